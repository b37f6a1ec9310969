"""One checkpoint as one safetensors file: written, opened and read, with a bar meanwhile."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import ctypes
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from treewright._core.jax_private import untyped_jax
from treewright.checkpoint.atomic import kind_of_file, read_at, replacing, write_all
from treewright.checkpoint.digests import WHOLE, digest_of, digests_of, new_digest
from treewright.checkpoint.layout import LENGTH, RESERVED, contents, header_of, in_order, length_of
from treewright.checkpoint.leaves import DTYPES, Leaf, bytes_of, contiguous, empty, stored, untied
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.restore import Reader, Wanted
from treewright.checkpoint.tree import manifest_of
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

_SHOWN = 1 << 28  # bytes from which on there is a bar
_RUN = 1 << 22  # bytes that a worker reads at a time, if that is more than one array
_SMALL = 1 << 16  # bytes up to which arrays are written and read together
_WRITE = 2  # SYNC_FILE_RANGE_WRITE: begin, and do not wait
_CHUNK = 1 << 23  # bytes that are written and read at once: smaller ones wait for Python between them


# Writing


def write(path: Path, tree: Any, *, progress: bool | None) -> None:
    """Save a tree as one file, which appears whole or not at all.

    Raises:
        CheckpointError: If something in the tree can't be saved, or the file can't be written.
    """
    manifest = manifest_of(tree, _problems)
    kept = untied(manifest.leaves)
    values = [stored(leaf.value) for leaf in kept]
    if jax.default_backend() != "cpu":
        untyped_jax.copy_to_host_async(values)
    arrays = {leaf.name: contiguous(value) for leaf, value in zip(kept, values, strict=True)}
    for leaf, digests in zip(kept, digests_of(arrays.values()), strict=True):
        leaf.digests = digests
    ordered = in_order(kept)
    header = header_of(ordered, manifest.to_metadata())
    total = sum(array.nbytes for array in arrays.values())
    try:
        with progress_bar(total, f"saving {path.name}", show=progress) as done, replacing(path) as descriptor:
            write_all(descriptor, header)
            for data in _chunks(arrays[leaf.name] for leaf in ordered):
                write_all(descriptor, data)
                _begin_to_disk(descriptor)
                done(len(data))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} could not be written: there is no folder {path.parent}.") from error
    except (OSError, ValueError) as error:  # a path with a null character is a ValueError
        raise CheckpointError(f"{path} could not be written, and is as it was: {error}") from error


def _problems(leaves: Iterable[Leaf]) -> Iterator[str]:
    """What one file can't hold."""
    for leaf in leaves:
        if leaf.name == RESERVED:
            yield f"{leaf.path} would get the name {RESERVED!r}, which safetensors keeps for itself"
        if isinstance(leaf.value, jax.Array) and not leaf.value.is_fully_addressable:
            yield f"{leaf.path} lies on several processes: CheckpointManager saves those"


def _chunks(arrays: Iterable[Any]) -> Iterator[Any]:
    """The bytes of arrays, many small ones together, large ones in parts."""
    small: list[bytes] = []
    size = 0
    for array in arrays:
        if small and (array.nbytes >= _SMALL or size + array.nbytes > _CHUNK):
            yield b"".join(small)
            small, size = [], 0
        if array.nbytes < _SMALL:
            small.append(array.tobytes())
            size += array.nbytes
            continue
        data = memoryview(bytes_of(array))
        for start in range(0, len(data), _CHUNK):
            yield data[start : start + _CHUNK]
    yield b"".join(small)


def _begin_to_disk(descriptor: int) -> None:
    """Have Linux write what is in a file so far, while more is prepared; else it only begins at `fsync`."""
    with contextlib.suppress(AttributeError, OSError):  # another system
        every = ctypes.c_int64(0)  # from the first byte to the last one there is
        ctypes.CDLL(None).sync_file_range(descriptor, every, every, _WRITE)


# Reading


class Span(NamedTuple):
    """What is read, and where its array begins and ends after the header."""

    wanted: Wanted
    start: int
    end: int


class SafetensorsFile:
    """An open file: its manifest, checked against the header, and a reader of its arrays."""

    path: Path
    descriptor: int
    begin: int
    manifest: Manifest
    spans: dict[str, list[int]]

    def __init__(self, path: Path) -> None:
        """Open and check.

        Raises:
            CheckpointError: If it can't be opened, is another kind of file, or was written by a newer version.
            CheckpointDamagedError: If the header or the manifest is damaged.
        """
        self.path = path
        self.descriptor = _opened(path)
        try:
            size = os.fstat(self.descriptor).st_size
            length = length_of(self.bytes_at(0, 4 * LENGTH), size)
            self.begin = LENGTH + length
            self.manifest, self.spans = contents(self.bytes_at(LENGTH, length), size - self.begin)
        except BaseException as error:
            os.close(self.descriptor)
            if isinstance(error, CheckpointError):
                raise type(error)(f"{path} can't be loaded: {error}") from error
            raise

    def bytes_at(self, start: int, length: int) -> bytes:
        """Some bytes of the file; fewer where it ends."""
        data = bytearray(length)
        return bytes(data[: self.fill(memoryview(data), start)])

    def fill(self, memory: memoryview, start: int) -> int:
        """Read into memory; how many bytes there were.

        Raises:
            CheckpointDamagedError: If the disk fails.
        """
        try:
            return read_at(self.descriptor, memory, start)
        except OSError as error:
            raise CheckpointDamagedError(f"{self.path} can't be read: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self.descriptor)

    def reader(self, *, progress: bool | None) -> Reader:
        """A reader of arrays, which shows a bar."""

        def read(wanted: Iterable[Wanted]) -> Iterator[tuple[list[Wanted], list[Any]]]:
            runs = list(self._runs({one[0].name: one for one in wanted}))
            sizes = [run[-1].end - run[0].start for run in runs]
            with (
                progress_bar(sum(sizes), f"loading {self.path.name}", show=progress) as done,
                ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool,
            ):
                for run, size, arrays in zip(runs, sizes, pool.map(self.read_run, runs), strict=True):
                    done(size)
                    yield [span.wanted for span in run], arrays

        return read

    def _runs(self, wanted: Mapping[str, Wanted]) -> Iterator[list[Span]]:
        """Leaves in groups, so that small ones do not cost a task each; those of a group follow each other in the file.

        Small ones come first: to place one costs JAX as much as a large one, and goes on while the large ones are read.
        """
        spans = [Span(wanted[name], start, end) for name, (start, end) in self.spans.items() if name in wanted]
        for large in False, True:
            run: list[Span] = []
            for span in spans:
                if (span.end - span.start >= _SMALL) is not large:
                    continue
                if run and (span.start != run[-1].end or span.end - run[0].start > _RUN):
                    yield run
                    run = []
                run.append(span)
            if run:
                yield run

    def read_run(self, run: Sequence[Span]) -> list[Any]:
        """Arrays of a group, each in memory of its own, and verified.

        Raises:
            CheckpointDamagedError: If one is not what was saved.
        """
        begin = run[0].start
        if run[0].end - begin >= _SMALL:
            return [self._read(span.wanted[0], span.start) for span in run]
        data = self.bytes_at(self.begin + begin, run[-1].end - begin)
        arrays: list[Any] = []
        for (leaf, _), start, end in run:
            if end - begin > len(data):
                raise CheckpointDamagedError(f"{self.path} ends inside {leaf.path}.")
            self._check(leaf, digest_of(data[start - begin : end - begin]))
            arrays.append(np.ndarray(leaf.form.shape, DTYPES[leaf.form.dtype], data, start - begin).copy())
        return arrays

    def _read(self, leaf: Leaf, start: int) -> Any:
        """An array, read in chunks, whose digest is taken while they are at hand."""
        array = empty(leaf.form)
        memory, digest = memoryview(bytes_of(array)), new_digest()
        for offset in range(0, len(memory), _CHUNK):
            chunk = memory[offset : offset + _CHUNK]
            if self.fill(chunk, self.begin + start + offset) != len(chunk):
                raise CheckpointDamagedError(f"{self.path} ends inside {leaf.path}.")
            digest.update(chunk)
        self._check(leaf, digest.hexdigest())
        return array

    def _check(self, leaf: Leaf, now: str) -> None:
        saved = leaf.digests.get(WHOLE)
        if now != saved:
            raise CheckpointDamagedError(
                f"{leaf.path} is damaged in {self.path}: its bytes have the digest {now}, and {saved} was saved."
            )


def _opened(path: Path) -> int:
    """A descriptor of a regular file.

    Raises:
        CheckpointError: If there is none that can be read; the message says what is there instead.
    """
    try:
        # A named pipe would wait for its writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} can't be opened: {error}") from error
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    folder = next((folder for folder in (path, path.parent) if _has_steps(folder)), None)
    remedy = "" if folder is None else f" CheckpointManager({str(folder)!r}).restore(like=...) reads the steps there."
    raise CheckpointError(f"{path} is {kind_of_file(mode)}, and load reads a file that save wrote.{remedy}")


def _has_steps(folder: Path) -> bool:
    """Whether a folder holds steps of a `CheckpointManager`."""
    with contextlib.suppress(OSError):
        return any(entry.name.isdecimal() and (entry / "manifest").is_dir() for entry in folder.iterdir())
    return False


# The bar


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
        show = total >= _SHOWN and sys.stderr.isatty() and _has_tqdm()
    if not show:
        yield unseen
        return
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise missing_extra("A progress bar", "tqdm", "checkpoint") from error
    bar: Any = tqdm(total=total, desc=what, unit="B", unit_scale=True, unit_divisor=1024)
    with bar:
        yield bar.update


def _has_tqdm() -> bool:
    from importlib.util import find_spec

    return find_spec("tqdm") is not None


def unseen(_: int) -> None:
    """What is done, reported to nobody."""
