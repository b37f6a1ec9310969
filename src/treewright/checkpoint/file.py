"""One file to share: a safetensors file whose header carries the manifest. Plain `safetensors` opens it."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from treewright.checkpoint.atomic import publish, staging
from treewright.checkpoint.digest import CHUNK, WHOLE, bytes_of, contiguous, digest_of, in_threads, new_digest
from treewright.checkpoint.leaves import DTYPES, NAMES, Form, empty, stored
from treewright.checkpoint.manifest import LONGEST, Leaf, Manifest, from_json, parsed
from treewright.checkpoint.progress import progress_bar, watched
from treewright.checkpoint.restore import Reader
from treewright.checkpoint.survey import Place, Survey, survey
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from io import FileIO

_KEY = "treewright"
_jax: Any = jax  # whose annotations leave some types open

_RESERVED = "__metadata__"
_RUN = 1 << 24  # bytes that a worker reads at a time

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
        raise ImportError(
            "Saving to and loading from a file needs safetensors. Install it with: pip install 'treewright[checkpoint]'"
        ) from error
    return safetensors


# Writing


def write(target: Path, tree: Any, *, progress: bool | None) -> None:
    """Save a tree as one file, which appears whole or not at all.

    Raises:
        CheckpointError: If something in the tree can't be saved, or the file can't be written.
    """
    safetensors = engine()
    found = survey(tree)
    found.refuse(_problems(found))
    values = [stored(place.value) for place in found.leaves]
    if jax.default_backend() != "cpu":
        _jax.copy_to_host_async(values)
    arrays = list(map(contiguous, values))
    digests = in_threads(_digest, arrays)
    leaves = tuple(
        Leaf(place.steps, place.path, place.form, {WHOLE: digest})
        for place, digest in zip(found.leaves, digests, strict=True)
    )
    header = json.dumps(Manifest(tuple(found.branches), leaves).to_json())
    if len(json.dumps(header)) + sum(len(leaf.name.encode()) + 200 for leaf in leaves) > LONGEST:
        raise CheckpointError(
            f"The manifest of this tree, {len(header)} characters, is too long for a safetensors header."
        )
    tensors = {leaf.name: _spec(safetensors, array) for leaf, array in zip(leaves, arrays, strict=True)}
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


def _digest(array: Any) -> str:
    return digest_of(bytes_of(array))


def _problems(found: Survey) -> Iterator[str]:
    """What one file can't hold."""
    for place in found.leaves:
        if place.name == _RESERVED:
            yield f"{place.path} would get the name {_RESERVED!r}, which safetensors keeps for itself"
        if isinstance(place.value, jax.Array) and not place.value.is_fully_addressable:
            yield f"{place.path} lies on several processes: CheckpointManager saves those"


def _stored_as(form: Form) -> tuple[str, tuple[int, ...]]:
    """The dtype code and shape under which safetensors has an array of this form."""
    code = _CODES.get(form.dtype)
    return ("U8", (*form.shape, DTYPES[form.dtype].itemsize)) if code is None else (code, form.shape)


def _spec(safetensors: Any, array: Any) -> Any:
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
            self.manifest: Manifest = from_json(parsed(metadata[_KEY]))
            self.starts: dict[str, int] = self._starts(shapes)
        except safetensors.SafetensorError as error:
            self.file.close()
            raise CheckpointDamagedError(f"{path} is no whole safetensors file: {error}") from error
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

        def read(wanted: Iterable[tuple[Leaf, Place | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
            runs = list(_runs(leaf for leaf, _ in wanted))
            total = sum(leaf.form.nbytes for run in runs for leaf in run)
            with (
                progress_bar(total, f"loading {self.path.name}", show=progress) as done,
                ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool,
            ):
                for run, arrays in zip(runs, pool.map(self.read_run, runs), strict=True):
                    done(sum(array.nbytes for array in arrays))
                    yield run, arrays

        return read

    def read_run(self, leaves: list[Leaf]) -> list[Any]:
        """Some arrays, each verified while its bytes are in the cache.

        Raises:
            CheckpointDamagedError: If one is not what was saved.
        """
        return [self.read_array(leaf) for leaf in leaves]

    def read_array(self, leaf: Leaf) -> Any:
        """One array.

        Raises:
            CheckpointDamagedError: If it is not what was saved.
        """
        array = empty(leaf.form)
        view = memoryview(bytes_of(array))
        digest, start = new_digest(), self.starts[leaf.name]
        for offset in range(0, len(view), CHUNK):
            part = view[offset : offset + CHUNK]
            if os.preadv(self.file.fileno(), [part], start + offset) != len(part):
                raise CheckpointDamagedError(f"{self.path} ends inside {leaf.path}.")
            digest.update(part)
        saved, found = leaf.digests.get(WHOLE), digest.hexdigest()
        if found != saved:
            raise CheckpointDamagedError(
                f"{leaf.path} is damaged in {self.path}: its bytes have the digest {found}, and {saved} was saved."
            )
        return array


def _runs(leaves: Iterable[Leaf]) -> Iterator[list[Leaf]]:
    """Leaves in groups, so that small ones do not cost a task each."""
    run: list[Leaf] = []
    size = 0
    for leaf in leaves:
        run.append(leaf)
        size += leaf.form.nbytes
        if size >= _RUN:
            yield run
            run, size = [], 0
    if run:
        yield run
