"""Processes that are killed during a save, and a full disk."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.kill_while_saving import SIZE
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow

ROOT, MOUNT = Path(__file__).parents[2], shutil.which("mount")
LIKE = {"a": jax.ShapeDtypeStruct((SIZE,), jnp.int32), "b": [jax.ShapeDtypeStruct((10,), jnp.int32)] * 5}  # type: ignore[no-untyped-call]


def number_in(tree: Any) -> int:
    """The number of which all arrays are full."""
    (number,) = {int(value) for leaf in jax.tree.leaves(tree) for value in np.unique(leaf)}
    return number


def kill_in_turns(folder: Path, rounds: int) -> int:
    """Kill a process in each round while it saves files and steps, and check what is left. Returns the last step."""
    chance, latest = random.Random(0), 0
    command = [sys.executable, "-m", "tests.checkpoint.kill_while_saving"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as killer:
        assert killer.stdin is not None
        assert killer.stdout is not None
        for _ in range(rounds):
            print(folder, chance.uniform(0, 120), file=killer.stdin, flush=True)
            reported = int(killer.stdout.readline())

            manager = CheckpointManager(folder / "steps")
            latest = manager.latest_step() or 0
            assert latest >= reported > 0
            assert number_in(manager.restore(like=LIKE)) == latest
            assert reported <= number_in(load(folder / "file", like=LIKE)) <= latest + 1
        killer.stdin.close()
    return latest


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_a_process_killed_during_save_leaves_a_usable_folder(rounds: int, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    latest = kill_in_turns(tmp_path, rounds)

    with CheckpointManager(tmp_path / "steps", keep=2) as manager:
        manager.save(10**6, {"x": 1})
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {str(latest), str(10**6)}  # no leftovers
    save(tmp_path / "file", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "steps"}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB: room for two files, and for the three steps that a run has while it keeps two."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if not MOUNT or subprocess.run([MOUNT, "-t", "tmpfs", "-o", "size=3m", "tmpfs", disk], check=False).returncode:
        pytest.skip("needs the right to mount a tmpfs")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


@pytest.mark.exhaustive
def test_killed_writers_do_not_fill_a_disk(small_disk: Path) -> None:
    kill_in_turns(small_disk, 100)  # a save without room would end the process before it is killed


@pytest.mark.exhaustive
def test_a_disk_that_is_full_at_any_page_loses_nothing(small_disk: Path) -> None:
    def filled(number: int) -> Any:
        return jax.tree.map(lambda leaf: np.full(leaf.shape, number, leaf.dtype), LIKE)

    saved = {"file": 0, "steps": 0}
    save(small_disk / "file", filled(0))
    with CheckpointManager(small_disk / "steps", keep=1) as manager:
        manager.save(0, filled(0))
    failures: dict[str, list[str]] = {"file": [], "steps": []}
    for number in range(1, 80):  # pages that are free
        for name in saved:
            status = os.statvfs(small_disk)
            (small_disk / "filler").write_bytes(bytes((status.f_bavail - number) * status.f_bsize))
            try:
                if name == "file":
                    save(small_disk / "file", filled(number))
                else:
                    with CheckpointManager(small_disk / "steps", keep=1) as manager:
                        manager.save(number, filled(number))
                saved[name] = number
            except CheckpointError as error:
                failures[name].append(str(error))
            (small_disk / "filler").unlink()
            assert number_in(load(small_disk / "file", like=LIKE)) == saved["file"]
            manager = CheckpointManager(small_disk / "steps")
            assert number_in(manager.restore(like=LIKE)) == manager.latest_step() == saved["steps"]
            assert {path.name for path in small_disk.iterdir()} == {"file", "steps"}
    for errors in failures.values():
        assert 20 < len(errors) < 79  # the last ones had room
        assert all("No space left on device" in error for error in errors), errors
    with CheckpointManager(small_disk / "steps", keep=1) as manager:
        manager.save(1000, filled(1000))
    assert {path.name for path in (small_disk / "steps").iterdir()} == {"1000"}


FULL_DISK = """
import resource, signal, sys
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with CheckpointManager(sys.argv[1] + "/steps") as manager:
    for step, most in ((1, -1), (2, 1 << 18), (3, -1)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, -1))
        tree = {"x": jnp.full(1 << 18, step)}
        for call in (lambda: save(sys.argv[1] + "/x", tree), lambda: manager.save(step, tree), manager.wait):
            try:
                call()
            except CheckpointError as error:
                text = str(error).replace(sys.argv[1], "").partition(" be ")[0]
                print(text, load(sys.argv[1] + "/x")["x"][0], manager.restore()["x"][0])
    print(manager.all_steps())
"""


def test_a_full_disk_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == ["/x could not 1 1", "Step 2 could not 1 1", "(1, 3)"]
    assert "Event loop is closed" not in run.stderr
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {"1", "3"}
    assert {path.name for path in tmp_path.iterdir()} == {"x", "steps"}
