"""One checkpoint as one safetensors file: `save`, `load` and `read_manifest`."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import functools
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, Unpack, overload

import jax
import numpy as np

from treewright._arguments import cured
from treewright._core.jax_private import process_count, untyped_jax
from treewright.checkpoint.arrays import DTYPES, WHOLE, digest_of, stored, verify
from treewright.checkpoint.fit import MISSING, Fit, Read, Wanted, checked_options, restored
from treewright.checkpoint.manifest import TEXT, Leaf, Manifest, from_metadata
from treewright.checkpoint.tree import parts_to_save
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

T = TypeVar("T")
StrPath = str | os.PathLike[str]
_RESERVED = "__metadata__"  # the one name in a safetensors file that is not an array's
# The dtypes that plain safetensors gives back as numpy arrays. All others are written as bytes, with one axis more.
_AS_THEY_ARE = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64", "complex64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)


@cured(lambda *_: "It takes the path, then the tree: save(path, tree). A file that is there is replaced.")
def save(path: StrPath, tree: object) -> None:
    """Save a tree as one safetensors file that also holds its classes, its statics and a digest of every leaf.

    The file appears whole or not at all: it is written beside its place, brought to the disk and then renamed. A file
    that was there before keeps its permissions; a symbolic link stays, and the file that it leads to is replaced. An
    array that occurs in several places of the tree is written once, and comes back as one.

    Args:
        path: Where to. Its folder must exist. A file that is there is replaced.
        tree: Any pytree of arrays, typed keys and numbers. Arrays that lie on several devices are gathered.

    Raises:
        CheckpointError: If something in the tree can't be saved, all of it by path, or the file can't be written.
        ImportError: If safetensors or xxhash is not installed.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0), "name": Static("first")})
        >>> load(path)
        {'name': Static(value='first'), 'w': Array([0., 1., 2.], dtype=float32)}
    """
    target, engine = local_path(path), _safetensors()
    parts = parts_to_save(tree, problems_of=functools.partial(_problems, alone=process_count() == 1))
    leaves = parts.manifest.untied()
    values = [stored(parts.values[leaf.name]) for leaf in leaves]
    if jax.default_backend() != "cpu":  # where it takes 4 us an array for nothing
        untyped_jax.copy_to_host_async([value for value in values if isinstance(value, jax.Array)])
    arrays = [np.asarray(value, order="C") for value in values]
    specs: dict[str, Any] = {}
    for leaf, array in zip(leaves, arrays, strict=True):
        leaf.digests = {WHOLE: digest_of(array)}
        name, shape = leaf.form.dtype, array.shape
        if name not in _AS_THEY_ARE:
            name, shape = "uint8", (*shape, array.itemsize)
        address = array.__array_interface__["data"][0]  # `.ctypes.data` takes 2 us more, and numpy's name of a dtype 5
        specs[leaf.name] = engine.TensorSpec(dtype=name, shape=shape, data_ptr=address, data_len=array.nbytes)
    try:
        with replacing(target) as beside:
            engine.serialize_file(specs, beside, metadata=parts.manifest.to_metadata())
    except FileNotFoundError as error:
        folder = Path(os.path.realpath(target)).parent
        raise CheckpointError(f"{target} could not be written: there is no folder {folder}.") from error
    except (OSError, ValueError, engine.SafetensorError) as error:  # a path with a null character is a ValueError
        raise CheckpointError(f"{target} could not be written, and is as it was: {error}") from error


def _problems(leaf: Leaf, value: Any, *, alone: bool) -> Iterator[str]:
    """What one file can't hold."""
    if leaf.name == _RESERVED:
        yield f"would get the name {_RESERVED!r}, which safetensors keeps for itself"
    if not alone and isinstance(value, jax.Array) and not value.is_fully_addressable:
        yield "lies on several processes: CheckpointManager saves those"


@overload
def load(path: StrPath, *, like: T, **options: Unpack[Fit]) -> T: ...
@overload
def load(path: StrPath, **options: Unpack[Fit]) -> Any: ...
@cured(lambda *_: "Write load(path, like=tree).")
def load(path: StrPath, *, like: Any = MISSING, **options: Any) -> Any:
    """The tree in a file that `save` wrote, every leaf verified by its digest.

    With `like`, the result has exactly its treedef, and its arrays the placement of those of `like`. Classes, statics,
    shapes and dtypes are compared before an array is read. Without, the tree is made from the file's records, of
    classes that are found in `modules` and nowhere else. No `__init__` and no converter runs either way.

    Args:
        path: The file.
        like: A tree to load into: a live one, or an abstract one from `jax.eval_shape`, with shardings if it has them.
        **options: With `like`, how far the file may differ from it. Without, what the tree is made of. See `Fit`.

    Raises:
        CheckpointMismatchError: If the file does not fit `like`; its `differences` are those that the message lists.
        CheckpointDamagedError: If the file is not what was saved.
        CheckpointError: If it has no manifest or no such part, needs another Treewright, or can't be made.
        OSError: If the file system fails.
        TypeError: If an option is unknown, or belongs to the other way of loading.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> save(path := os.path.join(tempfile.mkdtemp(), "model"), {"w": jnp.arange(3.0)})
        >>> load(path, like=jax.eval_shape(lambda: {"w": jnp.zeros(3)}))
        {'w': Array([0., 1., 2.], dtype=float32)}
        >>> load(path, like={"w": jnp.zeros(4)})
        Traceback (most recent call last):
            ...
        treewright.errors.CheckpointMismatchError: The checkpoint does not fit the tree, a difference:
          ['w']: shape (3,) saved, (4,) in the tree
        What to do:
          Another shape: change the array in migrate=.
    """
    checked = checked_options(like, options)
    manifest, read = open_saved(local_path(path))
    return restored(manifest, read, like, checked)


def read_manifest(path: StrPath) -> Manifest:
    """The records of a file that `save` wrote: nodes with classes and statics, leaves with shapes and dtypes.

    No array is read, nothing is imported.

    Raises:
        CheckpointDamagedError: If header or manifest is damaged.
        CheckpointError: If there is no manifest, or another version of the format.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> {leaf.name: leaf.form.shape for leaf in read_manifest(path).leaves}
        {'w': (3,)}
    """
    return open_saved(local_path(path))[0]


def open_saved(path: Path) -> tuple[Manifest, Read]:
    """The manifest of a file, and a reader of its arrays, each of which is compared with its digest.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file, or its manifest is damaged.
        CheckpointError: If it is not a file, has no manifest, or one of another version.
    """
    file = opened(path)
    metadata = file.metadata() or {}
    if TEXT not in metadata:
        raise CheckpointError(
            f"{path} can't be loaded: it is a safetensors file without a manifest, written by another program. "
            f"from_names(read_names(path), like=...) puts its tensors into a tree."
        )
    try:
        manifest = from_metadata(metadata)
    except CheckpointError as error:
        raise type(error)(f"{path} can't be loaded: {error}") from error

    def read(wanted: Sequence[Wanted]) -> Iterator[Any]:
        for leaf, *_ in wanted:
            with reading(f"{leaf.path} in {path}"):
                array = file.get_tensor(leaf.array)
                if array.nbytes != leaf.form.nbytes:
                    raise ValueError(f"it has {array.nbytes} bytes, and {leaf.form.nbytes} in the manifest")
                if array.shape != leaf.form.shape or array.dtype != DTYPES[leaf.form.dtype]:  # as bytes
                    array = array.reshape(-1).view(DTYPES[leaf.form.dtype]).reshape(leaf.form.shape)
                verify(array, leaf.digests, leaf.path)
            yield array

    return manifest, read


@contextlib.contextmanager
def reading(what: str) -> Generator[None]:
    """Errors of an engine as what they are: of the file system, of a full memory, or damage for all others."""
    try:
        yield
    except (CheckpointError, MemoryError, jax.errors.JaxRuntimeError):
        raise
    except FileNotFoundError as error:
        raise CheckpointDamagedError(f"{what} can't be read: {error}") from error
    except OSError:
        raise
    except Exception as error:
        # Engines in Rust and C++ keep the number of the system's error in their text alone.
        number = re.search(r"\bos error (\d+)", str(error), re.IGNORECASE)
        if number and int(number[1]) != 2:
            raise OSError(int(number[1]), f"{what} can't be read: {error}") from error
        raise CheckpointDamagedError(f"{what} can't be read: {error}") from error


def opened(path: Path) -> Any:
    """An open safetensors file, which is read by `pread`: a failing disk is an error, not a signal.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file.
        CheckpointError: If it is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # a named pipe would wait for its writer
        raise CheckpointError(
            f"{path} is no regular file, and load reads a file that save wrote. The steps of a run are in a folder: "
            f"CheckpointManager({str(path)!r}).restore(like=...)."
        )
    engine = _safetensors()
    try:
        return engine.safe_open(path, "np", backend="pread")
    except engine.SafetensorError as error:
        raise CheckpointDamagedError(
            f"{path} can't be loaded: it is no safetensors file, or its header is damaged: {error}"
        ) from error


def _safetensors() -> Any:
    try:
        import safetensors
    except ImportError as error:
        raise missing_extra("A checkpoint", "safetensors", "checkpoint") from error
    return safetensors


def local_path(path: StrPath) -> Path:
    """A path on a local or mounted disk; an address is refused, of which `Path` would make a folder called `gs:`."""
    text = os.fsdecode(path)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise CheckpointError(
            f"{text} is not on a local or mounted disk, where a file can appear whole or not at all. Mount it, or save "
            f"to a disk and copy."
        )
    return Path(text)


# Files that appear whole or not at all


@contextlib.contextmanager
def replacing(path: Path) -> Generator[Path]:
    """The place of a new file to write, which is on the disk and at `path` once the block has ended.

    Until then, and after any error, `path` is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise CheckpointError(f"{path} is no regular file, which alone can be replaced.")
    beside = target.with_name(f".{target.name[:100]}.unfinished-{secrets.token_hex(8)}")
    # Made here for the permissions that new files have; safetensors gives its own.
    os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    mode = (target if target.exists() else beside).stat().st_mode
    try:
        yield beside
        beside.chmod(stat.S_IMODE(mode))
        sync(beside)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync(target.parent)


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except PermissionError:  # Windows opens no folders
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
