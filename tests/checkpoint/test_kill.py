"""Processes that are killed while they save, and two that save at once."""

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

from tests.checkpoint.killed import SIZE
from treewright.checkpoint import CheckpointManager, load

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LIKE = {"a": jax.ShapeDtypeStruct((SIZE,), jnp.int32), "b": [jax.ShapeDtypeStruct((10,), jnp.int32)] * 5}  # type: ignore[no-untyped-call]


def number_in(tree: Any) -> int:
    """The number of which all arrays are full."""
    (number,) = {int(value) for leaf in jax.tree.leaves(tree) for value in np.unique(leaf)}
    return number


@pytest.mark.parametrize("rounds", [10, pytest.param(100, marks=pytest.mark.exhaustive)])
def test_a_process_killed_while_it_saves_leaves_the_earlier_step_and_a_usable_folder(
    rounds: int, tmp_path: Path
) -> None:
    pytest.importorskip("orbax.checkpoint")
    chance = random.Random(0)
    command = [sys.executable, "-m", "tests.checkpoint.killed"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as killer:
        latest: int | None = None
        assert killer.stdin is not None
        assert killer.stdout is not None
        for _ in range(rounds):
            print(tmp_path, chance.uniform(0, 120), file=killer.stdin, flush=True)
            told = int(killer.stdout.readline())

            manager = CheckpointManager(tmp_path / "steps")
            latest = manager.latest_step()
            assert latest is not None
            assert latest >= told
            assert number_in(manager.restore(like=LIKE)) == latest
            assert told <= number_in(load(tmp_path / "file", like=LIKE)) <= latest + 1
        killer.stdin.close()

    with CheckpointManager(tmp_path / "steps", keep=2) as manager:
        manager.save(10**6, {"x": 1})
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {str(latest), str(10**6), ".thrown-out"}
