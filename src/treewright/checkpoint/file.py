"""One checkpoint as one safetensors file: `save`, `load` and `read_manifest`."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import errno
import glob
import json
import os
import re
import secrets
import stat
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, TypeVar, Unpack, overload

import jax
import numpy as np

from treewright._base.text import cut_text, short_text
from treewright._processes import process_count
from treewright.checkpoint.arrays import DTYPES, Saved, array_to_save, digest_of, verify
from treewright.checkpoint.fit import MISSING, LoadOptions, check_options
from treewright.checkpoint.host import copied_to_host
from treewright.checkpoint.loading import Read, load_tree
from treewright.checkpoint.manifest import DIGEST, MAX_BYTES, TEXT, LeafRecord, Manifest, from_metadata
from treewright.checkpoint.placing import LeafRequest
from treewright.checkpoint.tree import parts_to_save
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

try:
    import fcntl
except ImportError:  # Windows: what killed writers leave is not deleted
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
StrPath = str | os.PathLike[str]
_METADATA = "__metadata__"  # safetensors' own key
_ALIGNED = 64  # bytes; XLA copies arrays on a CPU that begin elsewhere
_LOCK = ".lock"  # locked while its writer lives
# Errors that describe the disk's content; all others may be temporary.
_LASTING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO})
# TensorStore's codes for a bucket that does not answer, or not to this user.
_TEMPORARY = re.compile("(UNAVAILABLE|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|CANCELLED|PERMISSION_DENIED|UNAUTH)")
# Our names of safetensors' dtypes.
_CODES = MappingProxyType(
    {"BOOL": "bool", "BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64", "C64": "complex64"}
    | {f"{code}{bits}": f"{name}{bits}" for code, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}
    | {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"}
)
# Other dtypes are written as bytes, with one more axis; float8 too, because safetensors' numpy reader lacks it.
_NATIVE = frozenset(name for name in _CODES.values() if not name.startswith("float8"))


def save(path: StrPath, tree: object) -> None:
    """Save a tree as one safetensors file, with its classes, its statics and a digest of every leaf.

    The write is atomic: a temporary file in the same folder is written, flushed to disk and renamed. The new file has
    the permissions of the one that it replaces; if `path` is a symbolic link, its target is replaced.

    Args:
        path: The file to write. Its folder must exist; an existing file is replaced.
        tree: Any pytree of arrays, typed keys and numbers. Arrays on several devices are gathered.

    Raises:
        CheckpointError: If something in the tree can't be saved (the message lists all paths) or the file can't be
            written.
        ImportError: If safetensors or xxhash is not installed.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0), "steps": (1, 2)})
        >>> load(path)
        {'steps': (1, 2), 'w': Array([0., 1., 2.], dtype=float32)}
    """
    try:
        import safetensors as engine
    except ImportError as error:
        raise missing_extra("A checkpoint", "safetensors", "checkpoint") from error
    target = local_path(path)
    parts = parts_to_save(tree, problems_of=_problems)
    leaves = parts.manifest.leaves
    copies = copied_to_host({leaf.name: array_to_save(parts.values[leaf.name]) for leaf in leaves})
    arrays = [np.asarray(copies[leaf.name], order="C") for leaf in leaves]
    specs: dict[str, Any] = {}
    for leaf, array in zip(leaves, arrays, strict=True):
        leaf.digest = digest_of(array)
        name, shape = leaf.form.dtype, array.shape
        if name not in _NATIVE:
            name, shape = "uint8", (*shape, array.itemsize)
        address = array.__array_interface__["data"][0]  # `.ctypes.data` takes 2 us more, numpy's dtype name 5
        specs[leaf.name] = engine.TensorSpec(dtype=name, shape=shape, data_ptr=address, data_len=array.nbytes)
    try:
        with atomic_write(target) as temporary:
            engine.serialize_file(specs, temporary, metadata=parts.manifest.to_metadata())
    except (OSError, ValueError, engine.SafetensorError) as error:  # ValueError: a null character in the path
        if isinstance(error, FileNotFoundError) and not (folder := Path(os.path.realpath(target)).parent).is_dir():
            raise CheckpointError(f"{target} could not be written: the folder {folder} does not exist.") from error
        raise CheckpointError(f"{target} could not be written and is unchanged: {error}") from error


def _problems(leaf: LeafRecord, value: Any) -> Iterator[str]:
    """Reasons why a file can't contain a leaf."""
    if leaf.name == _METADATA:
        yield f"would be named {_METADATA!r}, which safetensors reserves"
    if process_count() > 1 and isinstance(value, jax.Array) and not value.is_fully_addressable:
        yield "is on several processes. Save it with CheckpointManager"


@overload
def load(path: StrPath, like: T, **options: Unpack[LoadOptions]) -> T: ...
@overload
def load(path: StrPath, **options: Unpack[LoadOptions]) -> Any: ...
def load(path: StrPath, like: Any = MISSING, **options: Any) -> Any:
    """Load a tree saved by `save`, verifying every leaf.

    With `like`, the result has its treedef, and its arrays get the shardings of `like`. Classes, statics, shapes and
    dtypes are compared before any array is read. Without `like`, the result consists of lists, tuples, dicts, arrays
    and numbers: a node or named tuple becomes a dict of its children, and statics are omitted.

    Args:
        path: The file.
        like: The tree to load into, live or abstract (from `jax.eval_shape`, with or without shardings).
        **options: The part to load, and the allowed differences from `like`. See `LoadOptions`.

    Raises:
        CheckpointMismatchError: If the file does not fit `like`; its `differences` has all of them.
        CheckpointDamagedError: If the file differs from the saved one.
        CheckpointError: If it lacks a manifest or the part, or needs a different version of Treewright.
        OSError: If the file system fails.
        TypeError: If an option is unknown, or needs `like`.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import load, save
        >>> save(path := os.path.join(tempfile.mkdtemp(), "model"), {"w": jnp.arange(3.0)})
        >>> load(path, like=jax.eval_shape(lambda: {"w": jnp.zeros(3)}))
        {'w': Array([0., 1., 2.], dtype=float32)}
        >>> load(path, like={"w": jnp.zeros((3, 1))})
        Traceback (most recent call last):
            ...
        treewright.errors.CheckpointMismatchError: The checkpoint does not fit the tree, a difference:
          ['w']: shape (3,) saved, (3, 1) in the tree
        What to do:
          Different shape: convert the array in migrate=.
    """
    checked = check_options(like, options)
    with open_saved(local_path(path)) as (manifest, read):
        return load_tree(manifest, read, like, checked)


def read_manifest(path: StrPath) -> Manifest:
    """Read the records of a file saved by `save`: nodes with classes and statics, leaves with shapes and dtypes.

    Reads no array and imports nothing.

    Raises:
        CheckpointDamagedError: If the header or the manifest is damaged.
        CheckpointError: If the file lacks a manifest, or has a different format version.

    Examples:
        >>> import tempfile, os
        >>> from treewright.checkpoint import read_manifest, save
        >>> path = os.path.join(tempfile.mkdtemp(), "model.safetensors")
        >>> save(path, {"w": jnp.arange(3.0)})
        >>> {leaf.name: leaf.form.shape for leaf in read_manifest(path).leaves}
        {'w': (3,)}
    """
    with open_saved(local_path(path)) as (manifest, _):
        return manifest


def read_names(path: StrPath) -> dict[str, Any]:
    """Read the arrays of any safetensors file, as numpy arrays by name; the input of `from_names`.

    Args:
        path: The file.

    Raises:
        OSError: If it can't be opened or read.
        CheckpointDamagedError: If it is not a safetensors file, or is truncated.
        CheckpointError: If it has a dtype that NumPy does not have.

    Examples:
        >>> import tempfile, os
        >>> import numpy as np
        >>> from safetensors.numpy import save_file
        >>> from treewright.checkpoint import from_names, read_names
        >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
        >>> save_file({"layer.w": np.ones(2, np.float32)}, path)
        >>> from_names(read_names(path), like={"layer": {"w": jnp.zeros(2)}})
        {'layer': {'w': Array([1., 1.], dtype=float32)}}
    """
    path = local_path(path)
    arrays: dict[str, Any] = {}
    with _open_safetensors(path) as (_, entries, read_bytes), translate_read_errors(str(path)):
        for name, entry in entries.items():
            if entry["dtype"] not in _CODES:
                raise CheckpointError(f"{name!r} in {path} has the dtype {entry['dtype']}, which NumPy does not have.")
            arrays[name] = read_bytes(name).view(DTYPES[_CODES[entry["dtype"]]]).reshape(entry["shape"])
    return arrays


@contextlib.contextmanager
def open_saved(path: Path) -> Generator[tuple[Manifest, Read]]:
    """The manifest of a file, and a reader of its arrays that verifies each by its digest.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file, or its manifest is damaged.
        CheckpointError: If it is not a file, lacks a manifest, or has a different format version.
    """
    with _open_safetensors(path) as (metadata, _, read_bytes):
        if TEXT not in metadata and DIGEST in metadata:
            raise CheckpointDamagedError(f"{path} is damaged: the key of its manifest is missing.")
        if TEXT not in metadata:
            raise CheckpointError(
                f"{path} has no manifest: a different program wrote this safetensors file. Load it by name: "
                f"from_names(read_names(path), like=...)."
            )
        try:
            manifest = from_metadata(metadata)
        except CheckpointError as error:
            raise type(error)(f"{path} can't be loaded: {error}") from error

        def read(requests: Sequence[LeafRequest]) -> Iterator[Any]:
            for leaf in [request.leaf for request in requests]:
                with translate_read_errors(f"{leaf.path} in {path}"):
                    array = read_bytes(leaf.array).view(DTYPES[leaf.form.dtype]).reshape(leaf.form.shape)
                    verify([array], [Saved(manifest.layout_of(leaf).grid, [leaf.digest].__getitem__, leaf.path)])
                yield array

        yield manifest, read


@contextlib.contextmanager
def translate_read_errors(subject: str) -> Generator[None]:
    """Raise what the bytes on disk prove as damage, and errors of the machine, of a package or of the target unchanged.

    A decoder raises any error for bytes that it does not expect, so this lists the others.
    """
    try:
        yield
    except (CheckpointError, MemoryError, ImportError):
        raise
    except Exception as error:
        # JSON that is nested too deeply is damage. Other RuntimeErrors are JAX's, or about threads and event loops.
        if isinstance(error, RuntimeError) and not isinstance(error, RecursionError):
            raise
        _raise_if_temporary(error, subject)
        raise CheckpointDamagedError(f"{cut_text(subject, 200)} can't be read: {cut_text(str(error), 1000)}") from error


def _raise_if_temporary(error: Exception, subject: str) -> None:
    """Raise an error of the file system that says nothing about its content; TensorStore has it only in its text."""
    number = getattr(error, "errno", None)
    if in_text := re.search(r"\bos[ _]error(?:_code)?[ ='\"]+(\d+)", str(error), re.IGNORECASE):
        number = int(in_text[1])
    if number in _LASTING:
        return
    if isinstance(error, OSError):
        raise error
    if number:
        raise OSError(number, f"{subject} can't be read: {error}") from error
    if _TEMPORARY.match(str(error)):
        raise OSError(f"{subject} can't be read: {error}") from error


@contextlib.contextmanager
def _open_safetensors(path: Path) -> Generator[tuple[dict[str, Any], dict[str, Any], Callable[[str], Any]]]:
    """The metadata of a safetensors file, its entries by name, and a function that reads the bytes of an entry.

    The bytes come from one open file, which no writer can replace, and are aligned as JAX needs them to place an array
    on a CPU without a copy. With safetensors' reader, which copies twice, loading takes 1.3 to 1.7 times as long.

    Raises:
        OSError: If it can't be opened.
        CheckpointDamagedError: If it is not a safetensors file.
        CheckpointError: If it is not a regular file.
    """
    if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would wait for its writer
        raise CheckpointError(
            f"{path} is not a regular file. load() reads files that save() wrote.{_restore_hint(path)}"
        )
    with path.open("rb") as file:
        try:
            start = 8 + int.from_bytes(file.read(8), "little")
            if start > MAX_BYTES:
                raise ValueError(f"its length is {start - 8:,} bytes")
            entries = json.loads(file.read(start - 8))
            metadata = dict(entries.pop(_METADATA, {}))
            bounds = {name: entry["data_offsets"] for name, entry in entries.items()}
            length = os.fstat(file.fileno()).st_size - start
            is_right = all(0 <= begin <= end for begin, end in bounds.values())
            if not is_right or max((end for _, end in bounds.values()), default=0) != length:
                raise ValueError("its entries do not match the length of the file")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            text = f"{path} is not a safetensors file, or its header is damaged: {cut_text(str(error), 200)}"
            raise CheckpointDamagedError(text) from error

        def read_bytes(name: str) -> Any:
            begin, end = bounds[name]
            memory = np.empty(end - begin + _ALIGNED, np.uint8)
            first = -memory.__array_interface__["data"][0] % _ALIGNED
            data = memory[first : first + end - begin]
            file.seek(start + begin)
            if file.readinto(data.data) != end - begin:
                raise ValueError(f"{name} ends after the file")
            return data

        yield metadata, entries, read_bytes


def _restore_hint(path: Path) -> str:
    """The line that restores a step from a folder, which is a step or a run."""
    if not path.is_dir():
        return ""
    run, step = (path.parent, f"{path.name}, ") if path.name.isdecimal() else (path, "")
    return f" To restore a step of a run: CheckpointManager({str(run)!r}).restore({step}like=...)."


def local_path(path: StrPath) -> Path:
    """A path on a local or mounted disk.

    Raises:
        TypeError: If it is not a path.
        CheckpointError: If it is empty, a URL, or begins with `~`.
    """
    if not isinstance(path, str | bytes | os.PathLike):
        raise TypeError(
            f"The path must be a str or a Path, got {short_text(path)}. It is the first argument: save(path, tree)."
        )
    text = os.fsdecode(path)
    if not text:
        raise CheckpointError("The path is empty.")
    if text.startswith("~/"):
        raise CheckpointError(f"{text} would create a folder named '~'. Pass pathlib.Path({text!r}).expanduser().")
    if text.startswith("file:/"):
        raise CheckpointError(f"{text} is the URL of a local path. Pass the path: {'/' + text[5:].lstrip('/')!r}.")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):  # `Path` makes gs:/bucket of gs://bucket
        raise CheckpointError(
            f"{text} can't be reached: atomic writes need a local or mounted disk. Save to a disk and copy the file, "
            f"mount the bucket, or let Orbax save steps: CheckpointManager('gs://bucket/run'), with the URL as a str."
        )
    return Path(text)


# Atomic writes


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a temporary path; when the block ends, the file there is flushed to disk and renamed to `path`.

    Until then, and after any error, `path` does not change. Temporary files of killed writers are deleted.

    Raises:
        CheckpointError: If `path` is not a file, or the rename could not be flushed to disk.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise CheckpointError(f"{path} is not a regular file, so it can't be replaced.")
    name = os.fsencode(target.name)[:200].decode(errors="ignore")  # names have at most 255 bytes
    prefix = f".{name}.unfinished-"
    token = glob.escape(prefix) + "[0-9a-f]" * 8
    for leftover in (*target.parent.glob(token), *target.parent.glob(token + _LOCK)):
        with contextlib.suppress(OSError):  # of a different user, or deleted already
            _delete_leftover(leftover)
    temporary = target.with_name(f"{prefix}{secrets.token_hex(4)}")
    lock = create_lock(lock_of(temporary))
    try:
        yield temporary
        flush_to_disk(temporary)  # before it may become read-only
        # The mode of the old file, or of any new one; safetensors sets 0o600.
        temporary.chmod(stat.S_IMODE((target if target.exists() else lock_of(temporary)).stat().st_mode))
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
        release_lock(lock)
    try:
        flush_to_disk(target.parent)
    except OSError as error:
        raise CheckpointError(
            f"{path} was replaced, but its folder could not be flushed to disk, so a power cut may restore the old "
            f"file: {error}"
        ) from error


def _delete_leftover(path: Path) -> None:
    if path.suffix == _LOCK:
        delete_unlocked(path)
    elif not is_locked(lock_of(path)):
        path.unlink()


# Locks: what a process writes under a temporary name is a leftover if no process holds its lock.


def lock_of(path: Path) -> Path:
    """The lock of a temporary file or folder."""
    return path.with_name(("" if path.name.startswith(".") else ".") + path.name + _LOCK)


def create_lock(path: Path) -> IO[str]:
    """Create a lock and hold it until it is closed, or the process ends. Do this before what it protects is created."""
    while True:
        lock = path.open("w")
        if not _lock(lock, wait=True):
            lock.close()  # it protects nothing, and Windows deletes no open file
        if path.exists():  # a different process may have deleted it before it was locked
            return lock
        lock.close()


def release_lock(lock: IO[str]) -> None:
    """Close and delete a lock."""
    lock.close()
    Path(lock.name).unlink(missing_ok=True)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of a file, or may: without locks, nobody can tell."""
    try:
        with path.open("r+") as file:  # NFS locks only files that are open for writing
            return not _lock(file, wait=False)
    except FileNotFoundError:
        return False
    except OSError:  # of a different user
        return True


def delete_unlocked(path: Path) -> None:
    """Delete a lock file, unless a process holds it."""
    with contextlib.suppress(OSError), path.open("r+") as file:
        if _lock(file, wait=False):
            path.unlink()


def _lock(file: IO[str], *, wait: bool) -> bool:
    """Lock a file until it is closed or the process ends. False if it is locked, or locks are unsupported."""
    locks: Any = fcntl
    try:
        locks.flock(file, locks.LOCK_EX | (0 if wait else locks.LOCK_NB))
    except (OSError, AttributeError):  # AttributeError: Windows
        return False
    return True


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    is_folder = path.is_dir()
    try:  # Windows flushes only files that are open for writing
        descriptor = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    except PermissionError:  # Windows can't open folders
        if is_folder:
            return
        raise
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    """`os.fsync`, on macOS with F_FULLFSYNC: there fsync leaves the data in the cache of the disk."""
    control: Any = fcntl
    if hasattr(control, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # a network or USB disk may not support it
            control.fcntl(descriptor, control.F_FULLFSYNC)
            return
    os.fsync(descriptor)
