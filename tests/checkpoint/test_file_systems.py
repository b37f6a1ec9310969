"""File systems as they are: short reads and writes, no locks, disks that fill and fail, links and permissions.

Each is simulated by a patched call of the system. `SYSTEMS` are whole ones, under which two writers and readers run at
random schedules.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import random
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.engines import assert_same
from treewright.checkpoint import atomic, load, read_manifest, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Generator

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


System = Callable[[random.Random, Path], Any]  # a block in which the calls of the system are others


# Whole file systems, with two writers and readers


@contextlib.contextmanager
def patched(**calls: Any) -> Generator[None]:
    """Other calls of `os`, and `flock`, for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name, call in calls.items():
            patch.setattr(fcntl if name == "flock" else os, name, call)
        yield


def short(chance: random.Random, _: Path) -> Any:
    """Reads and writes do a part of what they are asked for."""
    write, preadv = os.write, os.preadv

    def some(size: int) -> int:
        return size if size < 2 else chance.randint(1, size)

    return patched(
        write=lambda descriptor, data: write(descriptor, data[: some(len(data))]),
        preadv=lambda descriptor, views, start: preadv(descriptor, [views[0][: some(len(views[0]))]], start),
    )


def unlockable(chance: random.Random, _: Path) -> Any:
    """No call for locks at all."""

    def flock(*_: Any) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    return patched(flock=flock)


def pretending(chance: random.Random, _: Path) -> Any:
    """Locks that everybody gets."""
    return patched(flock=lambda *_: None)


def failing(number: int) -> System:
    """Any call that writes fails now and then."""

    def system(chance: random.Random, _: Path) -> Any:
        def wrapped(real: Any) -> Any:
            def call(*arguments: Any, **options: Any) -> Any:
                if chance.random() < 0.1:
                    raise OSError(number, os.strerror(number))
                return real(*arguments, **options)

            return call

        return patched(**{name: wrapped(getattr(os, name)) for name in WRITING})

    return system


def read_only(chance: random.Random, _: Path) -> Any:
    """Now and then no file can be made."""
    real = os.open

    def call(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT and chance.random() < 0.3:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return real(path, flags, *arguments, **options)

    return patched(open=call)


def leaving(chance: random.Random, folder: Path) -> Any:
    """The folder is gone when a file has been written, and is there again later."""
    fsync, away, one = os.fsync, folder.with_name(f"{folder.name}-away"), threading.Lock()

    def call(descriptor: int) -> None:
        fsync(descriptor)
        if chance.random() < 0.3:
            with one:
                folder.rename(away)
                time.sleep(0.002)
                away.rename(folder)

    return patched(fsync=call)


def slow(chance: random.Random, _: Path) -> Any:
    """Calls take their time, so that others come between them."""

    def wrapped(real: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            time.sleep(chance.random() * 0.002)
            return real(*arguments, **options)

        return call

    names = ("write", "preadv", "fsync", "replace", "open", "scandir", "unlink")
    return patched(**{name: wrapped(getattr(os, name)) for name in names})


SYSTEMS: dict[str, System] = {
    "plain": lambda *_: contextlib.nullcontext(),
    "short": short,
    "no locks": unlockable,
    "locks that do nothing": pretending,
    "full": failing(errno.ENOSPC),
    "over quota": failing(errno.EDQUOT),
    "failing": failing(errno.EIO),
    "read-only": read_only,
    "gone for a moment": leaving,
    "slow": slow,
}


def schedule(seed: int, folder: Path, system: System) -> None:
    """Two writers of one file, one of another, and two readers; what is read was written as a whole.

    One writer and the readers may go through a symbolic link, which stays, as do the permissions.
    """
    chance = random.Random(seed)
    path, other, link = folder / "x", folder / "y", folder.with_name(f"{folder.name}-link")
    save(path, tree_of(0))
    save(other, tree_of(0))
    path.chmod(0o640)
    link.symlink_to(path)
    problems: list[BaseException] = []

    def run(work: Callable[[random.Random], None]) -> threading.Thread:
        own = random.Random(chance.random())

        def body() -> None:
            try:
                for _ in range(4):
                    time.sleep(own.random() * 0.003)
                    work(own)
            except BaseException as error:  # noqa: BLE001  it is raised again in the main thread
                problems.append(error)

        return threading.Thread(target=body)

    def write(target: Path, own: random.Random) -> None:
        with contextlib.suppress(CheckpointError):
            save(target, tree_of(own.randrange(1, 100)))

    def read(own: random.Random) -> None:
        with contextlib.suppress(CheckpointError) if system is leaving else contextlib.nullcontext():
            found = load(own.choice([path, other, link]))
            assert_same(found, tree_of(found["number"]))

    threads = [
        run(work) for work in (*(functools.partial(write, target) for target in (path, link, other)), read, read)
    ]
    with system(chance, folder):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    read(chance)
    assert (link.is_symlink(), modes(path)[0]) == (True, 0o640)
    left = {entry.name for entry in folder.iterdir()} - {"x", "y"}
    assert not left or system is leaving  # where it could not be removed, a later process does


def tree_of(number: int) -> Any:
    return {"number": number, "array": np.full(5000, number), "many": [np.full(7, number)] * 5}


@pytest.mark.parametrize("name", SYSTEMS)
def test_two_writers_and_readers_never_meet_half_a_file(name: str, tmp_path: Path) -> None:
    schedule(0, tmp_path, SYSTEMS[name])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SYSTEMS)
def test_nor_do_they_at_fifty_schedules(name: str, tmp_path: Path) -> None:
    for seed in range(50):
        folder = tmp_path / str(seed)
        folder.mkdir()
        schedule(seed, folder, SYSTEMS[name])


# Orbax writes in C++, where only another library can stand between it and the disk

SHIMMED = {
    "short": "1 0 0",
    "full": f"2 {errno.ENOSPC} 8",
    "over quota": f"2 {errno.EDQUOT} 20",
    "failing writes": f"2 {errno.EIO} 8",
    "failing reads": f"4 {errno.EIO} 5",
    "no locks": "8 0 0",
    "locks that do nothing": "16 0 0",
    "short, without locks": "17 0 0",
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SHIMMED)
def test_managers_and_readers_at_fifty_schedules(name: str, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    root, library = Path(__file__).parents[2], tmp_path / "disk.so"
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", library, Path(__file__).with_name("disk.c"), "-ldl"], check=True
    )
    run = subprocess.run(
        [sys.executable, "-m", "tests.checkpoint.disk", SHIMMED[name], "50"],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
            "LD_PRELOAD": str(library),
            "DISK_FOLDER": str(tmp_path / "disk"),
            "DISK_SETTING": str(tmp_path / "setting"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=900,  # a thread that Orbax leaves would let the program wait for minutes at its end
    )
    assert run.returncode == 0, run.stderr[-3000:]
    assert int(run.stdout.split()[0]) > 20  # steps that were saved
