"""The file system: what exists, locks, atomic writes, flushes; and which errors are damage."""

import contextlib
import errno
import glob
import os
import secrets
import stat
from collections.abc import Generator
from pathlib import Path
from typing import IO, Any

from treewright._base.text import cut_text
from treewright.errors import CheckpointDamagedError, CheckpointError

try:
    import fcntl
except ImportError:  # Windows: what killed writers leave is not deleted
    fcntl = None  # type: ignore[assignment]

_LOCK = ".lock"  # locked while its writer lives
_NOT_FOUND = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})  # ELOOP: a link to itself
# What a parser raises for bytes that it does not expect.
_PARSE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError)


# What exists


def mode_of(path: Path, *, follow_links: bool = True) -> int:
    """The mode of a path; 0 if it does not exist.

    Only "not found" means no: `Path.exists` and its relatives also say no if the file system can't tell.

    Raises:
        OSError: If the file system can't tell.
    """
    try:
        return path.stat(follow_symlinks=follow_links).st_mode
    except OSError as error:
        if error.errno in _NOT_FOUND:
            return 0
        raise


def exists(path: Any) -> bool:
    """Whether a path exists; a dangling link does. Raises as `mode_of`."""
    return mode_of(path, follow_links=False) != 0 if isinstance(path, Path) else bool(path.exists())


def is_folder(path: Path) -> bool:
    """Whether a path is a folder, or a link to one. Raises as `mode_of`."""
    return stat.S_ISDIR(mode_of(path))


# What is damaged: a part is missing, has a wrong length, a wrong digest, or can't be parsed.


@contextlib.contextmanager
def parsing(subject: str, problem: str = "can't be read") -> Generator[None]:
    """Report errors of a parser as damage. Only parsers run inside: code of this package, on bytes that were read.

    Raises:
        CheckpointDamagedError: If the bytes are not what `save` writes.
    """
    try:
        yield
    except _PARSE_ERRORS as error:
        text = f"{cut_text(subject, 400)} {problem}: {cut_text(str(error), 1000)}"
        raise CheckpointDamagedError(text) from error


# Atomic writes


@contextlib.contextmanager
def atomic_write(path: Path) -> Generator[Path]:
    """Yield a temporary path; when the block ends, the file there is flushed to disk and renamed to `path`.

    Until then, and after any error, `path` does not change. Temporary files of killed writers are deleted.

    Raises:
        CheckpointError: If `path` is not a file, or the rename could not be flushed to disk.
    """
    target = Path(os.path.realpath(path))
    if (mode := mode_of(target)) and not stat.S_ISREG(mode):
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
        if mode:  # that of the old file; a new one has the mode of any new file
            with contextlib.suppress(PermissionError):  # a file system without modes
                temporary.chmod(stat.S_IMODE(mode))
        temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):  # the error of the write says more; the next save deletes it
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


def release_lock(lock: IO[str]) -> None:
    """Close and delete a lock. One that can't be deleted is a leftover, because nobody holds it."""
    lock.close()
    with contextlib.suppress(OSError):
        Path(lock.name).unlink(missing_ok=True)


def create_lock(path: Path) -> IO[str]:
    """Create a lock and hold it until it is closed, or the process ends. Do this before what it protects is created."""
    while True:
        lock = path.open("w")
        try:
            if not _lock(lock, wait=True):
                lock.close()  # it protects nothing, and Windows deletes no open file
            if exists(path):  # a different process may have deleted it before it was locked
                return lock
        except BaseException:
            lock.close()
            raise
        lock.close()


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


# Flushes


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    is_dir = is_folder(path)
    try:  # Windows flushes only files that are open for writing
        descriptor = os.open(path, os.O_RDONLY if is_dir else os.O_RDWR)
    except PermissionError:  # Windows can't open folders
        if is_dir:
            return
        raise
    try:
        flush(descriptor)
    finally:
        os.close(descriptor)


def flush(descriptor: int) -> None:
    """`os.fsync`, on macOS with F_FULLFSYNC: there fsync leaves the data in the cache of the disk."""
    control: Any = fcntl
    if hasattr(control, "F_FULLFSYNC"):
        with contextlib.suppress(OSError):  # a network or USB disk may not support it
            control.fcntl(descriptor, control.F_FULLFSYNC)
            return
    os.fsync(descriptor)
