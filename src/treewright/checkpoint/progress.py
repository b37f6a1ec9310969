"""A progress bar for what takes a while: shown on a terminal for large trees, or when asked for."""

import contextlib
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

_LARGE = 1 << 28  # bytes


@contextlib.contextmanager
def progress_bar(total: int, what: str, *, show: bool | None) -> Generator[Callable[[int], object]]:
    """A function to call with the number of bytes that were done.

    Args:
        total: The bytes in all.
        what: What is done, in a word or two.
        show: Whether there is a bar; None means for 256 MiB and more, on a terminal, where tqdm is installed.

    Raises:
        ImportError: If a bar is asked for and tqdm is not installed.
    """
    if show is None:
        show = total >= _LARGE and sys.stderr.isatty() and _has_tqdm()
    if not show:
        yield unseen
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("A progress bar needs tqdm. Install it with: pip install 'treewright[checkpoint]'") from error
    bar: Any = tqdm(total=total, desc=what, unit="B", unit_scale=True, unit_divisor=1024)
    with bar:
        yield bar.update


def _has_tqdm() -> bool:
    from importlib.util import find_spec

    return find_spec("tqdm") is not None


def unseen(_: int) -> None:
    """What is done, reported to nobody."""


@contextlib.contextmanager
def watched(folder: Path, total: int, done: Callable[[int], object]) -> Generator[None]:
    """Report the growth of the files in a folder, up to `total`, while an engine writes them in one call."""
    if done is unseen:
        yield
        return
    finished, seen = threading.Event(), 0

    def report() -> None:
        nonlocal seen
        with contextlib.suppress(OSError):  # a file that is renamed meanwhile
            size = min(total, sum(file.stat().st_size for file in folder.iterdir()))
            done(size - seen)
            seen = size

    def watch() -> None:
        while not finished.wait(0.1):
            report()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        report()
