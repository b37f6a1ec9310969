"""One checkpoint as one safetensors file: written, opened and read, with a bar meanwhile."""

import contextlib
import itertools
import os
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from treewright._jax import untyped_jax
from treewright.checkpoint.atomic import publish, staging
from treewright.checkpoint.digests import WHOLE, digests_of, new_digest
from treewright.checkpoint.leaves import DTYPES, NAMES, Form, Leaf, bytes_of, contiguous, empty, stored
from treewright.checkpoint.manifest import LONGEST, Manifest, from_text, with_digests
from treewright.checkpoint.restore import Reader
from treewright.checkpoint.tree import manifest_of
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

if TYPE_CHECKING:
    from io import FileIO


_KEY = "treewright"  # of the manifest in the metadata of the header
_RESERVED = "__metadata__"  # which safetensors keeps for itself
_SHOWN = 1 << 28  # bytes from which on there is a bar
_RUN = 1 << 22  # bytes that a worker reads at a time, if that is more than one array
_CHUNK = 1 << 23  # bytes that it reads at once: smaller ones make it wait for Python between them
_BUFFERS = 1024  # that one call can fill

# What safetensors has a name for. Anything else is written as bytes, with one dimension more.
_CODES = MappingProxyType(
    {
        "bool": "BOOL",
        "float16": "F16",
        "bfloat16": "BF16",
        "float32": "F32",
        "float64": "F64",
        **{f"int{bits}": f"I{bits}" for bits in (8, 16, 32, 64)},
        **{f"uint{bits}": f"U{bits}" for bits in (8, 16, 32, 64)},
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    }
)


def engine() -> Any:
    """The safetensors package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import safetensors
    except ImportError as error:
        raise missing_extra("Saving to and loading from a file", "safetensors", "checkpoint") from error
    return safetensors


# Writing


def write(target: Path, tree: Any, *, progress: bool | None) -> None:
    """Save a tree as one file, which appears whole or not at all.

    Raises:
        CheckpointError: If something in the tree can't be saved, or the file can't be written.
    """
    safetensors = engine()
    manifest = manifest_of(tree, _problems)
    values = [stored(leaf.value) for leaf in manifest.leaves]
    if jax.default_backend() != "cpu":
        untyped_jax.copy_to_host_async(values)
    arrays = list(map(contiguous, values))
    leaves, header = manifest.leaves, with_digests(manifest, digests_of(arrays)).to_text()
    escapes = header.count('"') + header.count("\\")
    if len(header) + escapes + sum(len(leaf.name.encode()) + 200 for leaf in leaves) > LONGEST:
        raise CheckpointError(
            f"The manifest of this tree, {len(header)} characters, is too long for a safetensors header."
        )
    tensors = {leaf.name: _tensor(safetensors, array) for leaf, array in zip(leaves, arrays, strict=True)}
    total = sum(array.nbytes for array in arrays)
    try:
        with (
            staging(target.parent) as folder,
            progress_bar(total, f"saving {target.name}", show=progress) as done,
        ):
            made = folder / "file"
            with watched(folder, total, done):
                safetensors.serialize_file(tensors, str(made), metadata={_KEY: header})
            publish(made, target)
    except (OSError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{target} could not be written, and is as it was: {error}") from error


def _problems(leaves: Iterable[Leaf]) -> Iterator[str]:
    """What one file can't hold."""
    for leaf in leaves:
        if leaf.name == _RESERVED:
            yield f"{leaf.path} would get the name {_RESERVED!r}, which safetensors keeps for itself"
        if isinstance(leaf.value, jax.Array) and not leaf.value.is_fully_addressable:
            yield f"{leaf.path} lies on several processes: CheckpointManager saves those"


def _stored_as(form: Form) -> tuple[str, tuple[int, ...]]:
    """The dtype code and shape under which safetensors has an array of this form."""
    code = _CODES.get(form.dtype)
    return ("U8", (*form.shape, DTYPES[form.dtype].itemsize)) if code is None else (code, form.shape)


def _tensor(safetensors: Any, array: Any) -> Any:
    """What safetensors has to know of an array."""
    dtype = NAMES[array.dtype]
    if dtype not in _CODES:
        array, dtype = array.reshape(*array.shape, 1).view(np.uint8), "uint8"
    return safetensors.TensorSpec(
        dtype=dtype, shape=array.shape, data_ptr=array.__array_interface__["data"][0], data_len=array.nbytes
    )


# Reading


class SafetensorsFile:
    """An open file: its manifest, checked against the header, and a reader of its arrays.

    safetensors checks the header: its length, its JSON, that the tensors lie one after the other without gaps. So their
    places follow from their sizes, and the arrays are read directly, each into its own memory, digest and all.
    """

    def __init__(self, path: Path) -> None:
        """Open and check.

        Raises:
            CheckpointError: If there is no manifest, or it is of a newer version.
            CheckpointDamagedError: If the header or the manifest is damaged.
            OSError: If the file can't be opened.
        """
        safetensors = engine()
        self.path = path
        self.file: FileIO = path.open("rb", buffering=0)
        try:
            # By its descriptor: under its path there may be another file already.
            with safetensors.safe_open(f"/dev/fd/{self.file.fileno()}", framework="np") as opened:
                metadata: dict[str, str] = opened.metadata() or {}
                tensors = [(name, opened.get_slice(name)) for name in opened.offset_keys()]
                shapes = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in tensors}
            if _KEY not in metadata:
                raise CheckpointError(
                    f"{path} is a safetensors file without a manifest: another program wrote it. "
                    f"from_names(safetensors.numpy.load_file(path), like=...) puts its tensors into a tree."
                )
            self.manifest: Manifest = from_text(metadata[_KEY])
            self.starts: dict[str, int] = self._starts(shapes)
        except safetensors.SafetensorError as error:
            self.file.close()
            raise CheckpointDamagedError(f"{path} is not a whole safetensors file: {error}") from error
        except BaseException:
            self.file.close()
            raise

    def _starts(self, shapes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, int]:
        """Where each array begins."""
        forms = {leaf.name: leaf.form for leaf in self.manifest.leaves}
        if {name: _stored_as(form) for name, form in forms.items()} != dict(shapes):
            raise CheckpointDamagedError(f"{self.path}: the header and the manifest list different tensors.")
        position = os.fstat(self.file.fileno()).st_size - sum(form.nbytes for form in forms.values())
        starts: dict[str, int] = {}
        for name in shapes:
            starts[name] = position
            position += forms[name].nbytes
        return starts

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.file.close()

    def reader(self, *, progress: bool | None) -> Reader:
        """A reader of arrays, which shows a bar."""

        def read(wanted: Iterable[tuple[Leaf, Leaf | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
            runs = [
                sorted(run, key=lambda leaf: self.starts[leaf.name]) for run in self._runs(leaf for leaf, _ in wanted)
            ]
            total = sum(leaf.form.nbytes for run in runs for leaf in run)
            with (
                progress_bar(total, f"loading {self.path.name}", show=progress) as done,
                ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool,
            ):
                for run, arrays in zip(runs, pool.map(self.read_run, runs), strict=True):
                    done(sum(array.nbytes for array in arrays))
                    yield run, arrays

        return read

    def _runs(self, leaves: Iterable[Leaf]) -> Iterator[list[Leaf]]:
        """Leaves in groups, so that small ones do not cost a task each.

        Small ones come first: to place one costs JAX as much as a large one, and goes on while the large ones are read.
        """
        run: list[Leaf] = []
        size = 0
        for leaf in sorted(leaves, key=lambda leaf: leaf.form.nbytes):
            size += leaf.form.nbytes
            if run and size > _RUN:
                yield run
                run, size = [], leaf.form.nbytes
            run.append(leaf)
        if run:
            yield run

    def read_run(self, leaves: list[Leaf]) -> list[Any]:
        """Some arrays, each in memory of its own, and verified. In their order in the file, they take the fewest calls.

        Raises:
            CheckpointDamagedError: If one is not what was saved.
        """
        arrays = [empty(leaf.form) for leaf in leaves]
        views = [memoryview(bytes_of(array)) for array in arrays]
        for span in self._spans(leaves):
            self._fill(leaves[span], views[span])
        return arrays

    def _spans(self, leaves: list[Leaf]) -> Iterator[slice]:
        """The parts of a run that one call can read: small arrays that lie one after the other, or a large one."""
        first, end, size = 0, -1, 0
        for index, leaf in enumerate(leaves):
            start, size = self.starts[leaf.name], size + leaf.form.nbytes
            if index > first and (start != end or size > _CHUNK or index - first == _BUFFERS):
                yield slice(first, index)
                first, size = index, leaf.form.nbytes
            end = start + leaf.form.nbytes
        yield slice(first, len(leaves))

    def _fill(self, leaves: list[Leaf], views: list[memoryview]) -> None:
        """Read arrays that lie one after the other; a large one, which comes alone, in chunks."""
        digests, start = [new_digest() for _ in leaves], self.starts[leaves[0].name]
        size = sum(map(len, views))
        for offset in range(0, size, _CHUNK):
            parts = views if size <= _CHUNK else [views[0][offset : offset + _CHUNK]]
            end = offset + os.preadv(self.file.fileno(), parts, start + offset)
            if end != min(offset + _CHUNK, size):
                ends = itertools.accumulate(map(len, views))
                cut = next(leaf.path for leaf, its_end in zip(leaves, ends, strict=True) if its_end > end)
                raise CheckpointDamagedError(f"{self.path} ends inside {cut}.")
            for digest, part in zip(digests, parts, strict=True):
                digest.update(part)
        for leaf, digest in zip(leaves, digests, strict=True):
            saved, now = leaf.digests.get(WHOLE), digest.hexdigest()
            if now != saved:
                raise CheckpointDamagedError(
                    f"{leaf.path} is damaged in {self.path}: its bytes have the digest {now}, and {saved} was saved."
                )


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
