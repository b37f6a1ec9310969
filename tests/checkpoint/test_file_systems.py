"""File systems as they are: short reads and writes, no locks, disks that fill and fail, links and permissions.

Each is simulated by a patched call of the system. Whole ones, under which several write and read, are in
`test_schedules.py`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.engines import assert_same
from treewright.checkpoint import atomic, load, read_manifest, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TREE = {"large": np.arange(50_000), "small": [np.arange(3), 1, 2.5], "jax": jnp.ones((4, 5))}
OTHER = {"large": np.arange(50_000)[::-1], "small": [np.arange(3) + 1, 2, 3.5], "jax": jnp.zeros((4, 5))}


def unfinished(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".treewright")]


# Calls that fail at any moment


class Failing:
    """Calls of `os` that work so many times and then fail."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, calls: tuple[str, ...], number: int, works: int = 10**9
    ) -> None:
        self.works, self.number, self.count = works, number, 0
        for name in calls:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name)))

    def wrapped(self, real: Any) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count > self.works:
                raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **options)

        return call


WRITING = ("write", "fsync", "replace", "fchmod", "fchown")
ERRORS = [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE]


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_disk_that_fails_at_any_call_leaves_the_earlier_file_and_nothing_else(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x"
    monkeypatch.setattr("treewright.checkpoint.file._CHUNK", 1 << 16)
    save(path, TREE)
    with monkeypatch.context() as patch:
        counted = Failing(patch, WRITING, number)
        save(path, TREE)
    for works in range(counted.count):
        with monkeypatch.context() as patch:
            Failing(patch, WRITING, number, works)
            with contextlib.suppress(CheckpointError):  # a folder that can't be brought to the disk may be no error
                save(path, OTHER)
        last = works == counted.count - 1
        assert_same(load(path), OTHER if last else TREE)
        assert not unfinished(tmp_path)


def test_the_errors_of_a_disk_are_told_as_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", 1)
    Failing(monkeypatch, ("write",), errno.ENOSPC, 0)

    with pytest.raises(CheckpointError, match=r"x could not be written, and is as it was: .*No space left on device"):
        save(tmp_path / "x", 2)


def test_a_folder_that_fails_last_says_that_the_file_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, ("fsync",), errno.EIO, 1)

    with pytest.raises(CheckpointError, match="x is written, but its folder could not be brought to the disk"):
        save(tmp_path / "x", 2)
    assert load(tmp_path / "x") == 2


def test_a_folder_that_can_not_be_synced_by_itself_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, ("fsync",), errno.EINVAL, 1)
    save(tmp_path / "x", 2)

    assert load(tmp_path / "x") == 2


def test_a_write_of_nothing_is_an_error_and_no_endless_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", lambda *_: 0)

    with pytest.raises(CheckpointError, match="The file system wrote nothing and gave no reason"):
        save(tmp_path / "x", 2)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fails_while_it_is_read_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", TREE)
    for works in range(3):
        with monkeypatch.context() as patch:
            Failing(patch, ("preadv",), errno.EIO, works)
            with pytest.raises(CheckpointDamagedError, match=r"x can't be read: .*Input/output error"):
                load(tmp_path / "x")


def test_a_folder_that_is_removed_while_saving_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    fsync = os.fsync

    def removing(descriptor: int) -> None:
        fsync(descriptor)
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()

    monkeypatch.setattr(os, "fsync", removing)
    with pytest.raises(CheckpointError, match=r"x could not be written: there is no folder"):
        save(folder / "x", TREE)
    assert not folder.exists()


# What stands at the path


def modes(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444, 0o666, 0o777])
def test_a_file_keeps_its_permissions(mode: int, tmp_path: Path) -> None:
    save(tmp_path / "x", 1)
    (tmp_path / "x").chmod(mode)
    save(tmp_path / "x", 2)

    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == mode
    assert load(tmp_path / "x") == 2


def test_nobody_else_can_read_what_replaces_a_private_file_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", 1)
    (tmp_path / "x").chmod(0o600)
    seen: set[int] = set()
    write = os.write

    def watched(descriptor: int, data: Any) -> int:
        seen.add(stat.S_IMODE(os.fstat(descriptor).st_mode))
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", watched)
    save(tmp_path / "x", 2)
    assert seen == {0o600}


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_file_keeps_its_owner_where_it_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path / "x", 1)
    os.chown(tmp_path / "x", 12345, 54321)
    save(tmp_path / "x", 2)
    assert modes(tmp_path / "x")[1:] == (12345, 54321)

    with monkeypatch.context() as patch:
        Failing(patch, ("fchown", "fchmod"), errno.EPERM, 0)
        save(tmp_path / "x", 3)
    assert load(tmp_path / "x") == 3


def test_a_symbolic_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "latest").symlink_to("store/model")
    for value in (1, 2):  # first to nothing, then to a file
        save(tmp_path / "latest", value)
        assert (tmp_path / "latest").is_symlink()
        assert load(tmp_path / "store" / "model") == load(tmp_path / "latest") == value
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["model"]


def made(path: Path, kind: str) -> None:
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case _:
            path.symlink_to("/dev/zero")


WORDS = {
    "pipe": "a named pipe",
    "folder": "a folder",
    "loop": "a symbolic link that leads to itself",
    "zero": "a device",
}


@pytest.mark.parametrize("kind", WORDS)
def test_only_regular_files_are_replaced(kind: str, tmp_path: Path) -> None:
    made(tmp_path / "x", kind)

    with pytest.raises(CheckpointError, match=f"x is {WORDS[kind]}. Only a regular file can be replaced"):
        save(tmp_path / "x", 1)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("kind", WORDS)
def test_only_regular_files_are_read_and_nothing_is_waited_for(kind: str, tmp_path: Path) -> None:
    made(tmp_path / "x", kind)

    expected = "Too many levels" if kind == "loop" else f"x is {WORDS[kind]}, and load reads a file that save wrote"
    for use in (load, read_manifest):
        with pytest.raises(CheckpointError, match=expected):
            use(tmp_path / "x")


@pytest.mark.parametrize("use", [load, read_manifest, lambda path: save(path, 1)])
@pytest.mark.parametrize("name", ["none/x", "a\0b", "y" * 300, "file/x"])
def test_a_path_that_can_not_be_is_an_error_of_ours(name: str, use: Callable[[Any], Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(CheckpointError, match=r"can't be opened|could not be written"):
        use(tmp_path / name)


# Files of other kinds


def npz(path: Path) -> None:
    with path.open("wb") as file:
        np.savez(file, a=np.ones(2))


def npy(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.ones(2))


def text_of(content: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(content)


def pickled(path: Path) -> None:
    import pickle

    path.write_bytes(pickle.dumps({"a": 1}))


def msgpack(path: Path) -> None:
    serialization = pytest.importorskip("flax.serialization")
    path.write_bytes(serialization.to_bytes({"a": np.ones(2)}))


FOREIGN: dict[str, tuple[Callable[[Path], Any], str]] = {
    "npz": (npz, "it is a zip archive, as numpy.savez and torch.save write them, not a safetensors file"),
    "npy": (npy, "it is an array of numpy.save"),
    "pickle": (pickled, "it is a pickle"),
    "msgpack": (msgpack, "it is a msgpack file, as flax.serialization writes them"),
    "hdf5": (text_of(b"\x89HDF\r\n\x1a\n" + bytes(100)), "it is an HDF5 file"),
    "gzip": (text_of(b"\x1f\x8b\x08" + b"\xff" * 100), "it is compressed by gzip"),
    "git lfs": (text_of(b"version https://git-lfs.github.com/spec/v1\n"), "it is a pointer of Git LFS, .*git lfs pull"),
    "text": (text_of(b"learning_rate: 0.1"), "it is a text that begins with 'learning_rate: 0.1'"),
    "nothing": (text_of(b""), "it is empty: it was cut short"),
    "a few bytes": (text_of(b"\0\0\0"), "it has 3 bytes, too few for what its first bytes announce"),
    "zeros": (text_of(bytes(1000)), "it has 1000 bytes, too few for|its first bytes"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_of_another_kind_is_called_by_its_name(kind: str, tmp_path: Path) -> None:
    write, message = FOREIGN[kind]
    write(tmp_path / "x")

    for use in (load, read_manifest):
        with pytest.raises(CheckpointError, match=rf"x can't be loaded: .*{message}"):
            use(tmp_path / "x")


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    save(os.fsencode(tmp_path / "x"), 1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    assert load(tmp_path / "x") == 1


def test_a_step_given_to_load_leads_to_the_manager(tmp_path: Path) -> None:
    (tmp_path / "run" / "12" / "manifest").mkdir(parents=True)

    for path in (tmp_path / "run", tmp_path / "run" / "12"):
        with pytest.raises(
            CheckpointError, match=r"is a folder, .* CheckpointManager\('.*/run'\)\.restore\(like=...\)"
        ):
            load(path)


def test_a_file_is_closed_when_opening_it_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Any:
        raise KeyboardInterrupt

    save(tmp_path / "x", 1)
    before = len(os.listdir("/dev/fd"))  # noqa: PTH208  the number is all that is asked
    monkeypatch.setattr("treewright.checkpoint.file.contents", interrupted)
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path / "x")
    assert len(os.listdir("/dev/fd")) == before  # noqa: PTH208


# What was left by writers that died


def left(folder: Path, table: str, process: int, *, age: float) -> Path:
    """An unfinished file of a process, to which nobody has written for so many seconds."""
    path = folder / f".treewright-saving-{table}-{process}-0123"
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def dead_process() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_what_a_dead_process_left_is_cleared_away_and_what_another_writes_is_not(tmp_path: Path) -> None:
    here = atomic._process_table()
    dead = left(tmp_path, here, dead_process(), age=0)
    old = left(tmp_path, "another", 1, age=2 * 3600)
    living = [left(tmp_path, here, os.getpid(), age=10**6), left(tmp_path, "another", 2, age=60)]
    living += [left(tmp_path, here, 1, age=0), left(tmp_path, here, 10**30, age=0)]
    save(tmp_path / "x", 1)

    assert not dead.exists()
    assert not old.exists()
    assert all(path.exists() for path in living)


def test_where_processes_can_not_be_told_only_silence_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any) -> Any:
        raise FileNotFoundError

    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_text", missing)
        assert atomic._process_table() != atomic._process_table()


def test_a_folder_that_may_not_be_listed_is_saved_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Failing(monkeypatch, ("scandir",), errno.EACCES, 0)
    save(tmp_path / "x", 1)

    assert load(tmp_path / "x") == 1


# Locks


def test_a_lock_keeps_others_away_until_it_is_closed(tmp_path: Path) -> None:
    lock = atomic.try_lock(tmp_path)
    assert lock is not None
    assert atomic.try_lock(tmp_path) is None
    lock.close()
    lock.close()
    assert atomic.try_lock(tmp_path) is not None


def test_a_child_of_a_fork_lets_go_of_the_locks_of_its_parent(tmp_path: Path) -> None:
    lock = atomic.try_lock(tmp_path)
    assert atomic.try_lock(tmp_path) is None
    atomic._close_held()  # as it does there
    assert atomic.try_lock(tmp_path) is not None
    assert lock is not None
    lock.close()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EBADF], ids=errno.errorcode.get)
def test_a_file_system_without_locks_is_said_once_and_used(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.warns(CheckpointWarning, match="this file system has no locks .* nothing keeps a second writer away"):
        lock = atomic.try_lock(tmp_path)
    assert lock is not None
    lock.close()


def test_another_error_of_a_lock_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError, match="Input/output error"):
        atomic.try_lock(tmp_path)
