"""Files that appear whole or not at all, and locks that a dead process does not keep."""

import contextlib
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import Generator
from pathlib import Path

FREEING = "treewright-freeing"  # the threads that let go of replaced files
_STAGING = ".treewright-saving-"


class Lock:
    """An exclusive lock on a file or folder, held until it is closed or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Release it. A second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


def try_lock(path: Path) -> Lock | None:
    """A lock, or None if another has it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return Lock(descriptor)


@contextlib.contextmanager
def staging(folder: Path) -> Generator[Path]:
    """A new, hidden folder inside `folder`, to write in. At the end it is gone, with what was not published.

    Folders that a killed process left are cleared away; a lock tells them from those of a running one.
    """
    for left in folder.glob(f"{_STAGING}*"):
        with contextlib.suppress(OSError):
            lock = try_lock(left)
            if lock is not None:
                shutil.rmtree(left)
                lock.close()
    made, lock = _made_in(folder)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        lock.close()


def _made_in(folder: Path) -> tuple[Path, Lock]:
    """A new folder and its lock; another, if someone took it for one that was left before it was locked."""
    while True:
        made = folder / f"{_STAGING}{secrets.token_hex(8)}"
        made.mkdir()
        with contextlib.suppress(FileNotFoundError):
            lock = try_lock(made)
            if lock is not None and made.exists():
                return made, lock


def publish(made: Path, target: Path) -> None:
    """Move a finished file to its place, in one step that a crash or power cut does not halve."""
    mode = made.with_name("mode")
    mode.touch()
    made.chmod(mode.stat().st_mode)  # what new files have here; safetensors makes its files private
    sync(made)
    replaced = _opened(target)
    try:
        made.replace(target)
        sync(target.parent)
    finally:
        if replaced is not None:
            _close_aside(replaced)


def _opened(path: Path) -> int | None:
    """A descriptor of a file, if there is one that can be opened."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for its writer
    except OSError:
        return None


def _close_aside(descriptor: int) -> None:
    """Close the last descriptor of a replaced file in a thread: to free 400 MB takes the kernel a tenth of a second."""
    try:
        threading.Thread(target=os.close, args=(descriptor,), name=FREEING).start()
    except RuntimeError:  # Python is ending
        os.close(descriptor)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
