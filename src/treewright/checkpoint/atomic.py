"""Files that appear whole or not at all, and locks that a dead process does not keep."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import warnings
import weakref
from collections.abc import Generator
from pathlib import Path
from typing import Any

from treewright._core.text import first_text
from treewright.errors import CheckpointError, CheckpointWarning

_SAVING = ".treewright-saving-"  # how the name of an unfinished file begins
_ABANDONED = 3600  # seconds without a write after which nobody writes it any more

# What a file system without locks answers: Lustre, some of FUSE, and NFS for what is open for reading alone.
_NO_LOCKS = frozenset({errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL})
# What one answers that can't bring a folder to the disk by itself.
_NO_SYNC = frozenset({errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EINVAL, errno.EACCES, errno.EPERM})


def local_path(path: str | os.PathLike[str]) -> Path:
    """A path on a local or mounted disk; an address is refused, of which `Path` would make a folder called `gs:`."""
    try:
        text = os.fsdecode(path)
    except TypeError:
        raise TypeError(
            f"A path comes first, and then what is saved or loaded. The path is {first_text(path)}."
        ) from None
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", text):
        raise CheckpointError(
            f"{text} is not on a local or mounted disk, without which a file can't appear whole or not at all. Mount "
            f"it, or save to a disk and copy. A CheckpointManager can save into a bucket: gs://..."
        )
    return Path(text)


class Lock:
    """An exclusive lock on a file or folder, held until it is closed or the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        _HELD.add(self)

    def close(self) -> None:
        """Release it. A second time does nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


_HELD: "weakref.WeakSet[Lock]" = weakref.WeakSet()


def _close_held() -> None:
    """In a child of a fork, such as a worker that loads data: it has its parent's locks too, and may live longer."""
    for lock in list(_HELD):
        lock.close()


os.register_at_fork(after_in_child=_close_held)


def try_lock(path: Path) -> Lock | None:
    """A lock, or None if another has it. A file system without locks gives one that locks nothing, and a warning."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
        text = f"{path}: this file system has no locks ({error.strerror}), so nothing keeps a second writer away."
        warnings.warn(text, CheckpointWarning, stacklevel=2)
    return Lock(descriptor)


# New files


@contextlib.contextmanager
def replacing(path: Path) -> Generator[int]:
    """A descriptor of a new file to write, which is on the disk and at `path` once the block has ended.

    Until then, and after any error, `path` is as it was. A file keeps its owner and its permissions; a symbolic link
    stays, and what it leads to is replaced. What killed processes left in the folder is cleared away.
    """
    target = Path(os.path.realpath(path))
    before = _status(target)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise CheckpointError(f"{path} is {kind_of_file(before.st_mode)}. Only a regular file can be replaced.")
    made = _unfinished(target.parent)
    mode = 0o666 if before is None else stat.S_IMODE(before.st_mode)
    descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        try:
            _clear_away(target.parent, now=os.fstat(descriptor).st_mtime)
            if before is None:  # or the folder was not there for a moment, as on a network: now it has to be
                before = _status(target)
                made.lstat()
            if before is not None:
                _give_to_owner(descriptor, before)
            yield descriptor
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        made.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            made.unlink()
        raise
    _sync_names(target.parent, path)


def marked(folder: Path) -> Path:
    """A file that says, as long as it is there, that this process is writing into a folder."""
    mark = _unfinished(folder)
    mark.touch()
    return mark


def others_write(mark: Path) -> bool:
    """Whether another process than that of the mark may be writing into its folder, with a lock or without."""
    _clear_away(mark.parent, now=mark.stat().st_mtime)
    return any(entry.name.startswith(_SAVING) and entry.name != mark.name for entry in mark.parent.iterdir())


def _unfinished(folder: Path) -> Path:
    """A name that nobody else takes, and that tells who is writing."""
    return folder / f"{_SAVING}{_process_table()}-{os.getpid()}-{secrets.token_hex(8)}"


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISLNK, "a symbolic link that leads to itself"),
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
)


def kind_of_file(mode: int) -> str:
    """What is not a regular file, in words."""
    return next((words for matches, words in _KINDS if matches(mode)), "not a file")


def _give_to_owner(descriptor: int, before: os.stat_result) -> None:
    """Owner and permissions of the file that is replaced, as far as this process may give them."""
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(OSError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
    with contextlib.suppress(OSError):  # until then the umask has only taken permissions away
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode))


def _clear_away(folder: Path, *, now: float) -> None:
    """Remove what dead processes left. No lock is asked: on NFS a lock may say that a living writer is dead."""
    with contextlib.suppress(OSError):  # a folder that may be written to and not be listed
        for left in list(os.scandir(folder)):
            if left.name.startswith(_SAVING):
                with contextlib.suppress(OSError, ValueError, OverflowError):
                    if _is_left(left, now):
                        os.unlink(left)  # noqa: PTH108  an entry of scandir


def _is_left(unfinished: "os.DirEntry[str]", now: float) -> bool:
    """Whether its writer is dead: one of this machine or container by its number, another by its long silence."""
    table, process, _ = unfinished.name.removeprefix(_SAVING).split("-")
    if table == _process_table():
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return True
        return False  # another user's is a PermissionError
    return now - unfinished.stat(follow_symlinks=False).st_mtime > _ABANDONED


def _process_table() -> str:
    """What tells the processes of this machine or container from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        container = os.stat("/proc/self/ns/pid").st_ino  # noqa: PTH116  it is not a path to a file
    except OSError:  # not Linux: nobody else writes this, so only silence counts
        return secrets.token_hex(8)
    return hashlib.sha256(f"{boot}{container}".encode()).hexdigest()[:16]


def _sync_names(folder: Path, path: Path) -> None:
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise CheckpointError(
                f"{path} is written, but its folder could not be brought to the disk, so after a power cut the earlier "
                f"file may be there again: {error}"
            ) from error


def sync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# A file system may write and read less than it is asked for: NFS, FUSE, and POSIX for any


def write_all(descriptor: int, data: Any) -> None:
    """Write all bytes of a buffer where the file stands."""
    left = memoryview(data)
    while left:
        count = os.write(descriptor, left)
        if not count:
            raise OSError(errno.EIO, "The file system wrote nothing and gave no reason")
        left = left[count:]


def read_at(descriptor: int, buffer: memoryview, start: int) -> int:
    """Fill a buffer with the bytes of a file from `start` on; how many there were, less only where the file ends."""
    done = 0
    while done < len(buffer) and (count := os.preadv(descriptor, [buffer[done:]], start + done)):
        done += count
    return done
