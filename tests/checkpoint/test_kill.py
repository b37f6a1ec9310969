"""Processes that are killed during a save, and a full disk."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.kill_while_saving import SIZE
from treewright.checkpoint import CheckpointManager, load, save

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIKE = {"a": jax.ShapeDtypeStruct((SIZE,), jnp.int32), "b": [jax.ShapeDtypeStruct((10,), jnp.int32)] * 5}  # type: ignore[no-untyped-call]


def number_in(tree: Any) -> int:
    """The number of which all arrays are full."""
    (number,) = {int(value) for leaf in jax.tree.leaves(tree) for value in np.unique(leaf)}
    return number


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_a_process_killed_during_save_leaves_a_usable_folder(rounds: int, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    chance = random.Random(0)
    command = [sys.executable, "-m", "tests.checkpoint.kill_while_saving"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as killer:
        latest: int | None = None
        assert killer.stdin is not None
        assert killer.stdout is not None
        for _ in range(rounds):
            print(tmp_path, chance.uniform(0, 120), file=killer.stdin, flush=True)
            reported = int(killer.stdout.readline())

            manager = CheckpointManager(tmp_path / "steps")
            latest = manager.latest_step()
            assert latest is not None
            assert latest >= reported
            assert number_in(manager.restore(like=LIKE)) == latest
            assert reported <= number_in(load(tmp_path / "file", like=LIKE)) <= latest + 1
        killer.stdin.close()

    with CheckpointManager(tmp_path / "steps", keep=2) as manager:
        manager.save(10**6, {"x": 1})
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {str(latest), str(10**6)}  # no leftovers
    save(tmp_path / "file", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"file", "steps"}


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
