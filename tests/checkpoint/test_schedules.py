"""Whole file systems, simulated by patched calls or a library, under which several write and read at random."""

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

import numpy as np
import pytest

from tests.checkpoint.engines import assert_same
from tests.checkpoint.test_file_systems import WRITING
from treewright.checkpoint import load, save
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Generator

System = Callable[[random.Random, Path], Any]  # a block in which the calls of the system are others


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

    works: list[Callable[[random.Random], None]] = [functools.partial(write, target) for target in (path, link, other)]
    threads = [run(work) for work in (*works, read, read)]
    with system(chance, folder):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    read(chance)
    assert (link.is_symlink(), stat.S_IMODE(path.stat().st_mode)) == (True, 0o640)
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
    "over quota": f"2 {errno.EDQUOT} 8",
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
