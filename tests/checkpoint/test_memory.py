"""The memory that a restore needs."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

ARRAYS, ELEMENTS = 20, 16 * 2**20  # 1.25 GiB in float32

PROGRAM = f"""
import json, sys
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from treewright.checkpoint import CheckpointManager

def status(name):  # in bytes
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return 1024 * int(line.split()[1])

folder, devices, task = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mesh = Mesh(np.array(jax.devices()[:devices]), ("data",))
sharding = NamedSharding(mesh, PartitionSpec("data"))
names = [f"array{{index}}" for index in range({ARRAYS})]
with CheckpointManager(folder) as manager:
    if task == "save":
        values = np.arange({ELEMENTS}, dtype=np.float32)
        manager.save(1, {{name: jax.device_put(values, sharding) for name in names}})
    else:
        small = jax.block_until_ready(jax.device_put(np.ones(8, np.float32), sharding))
        like = {{name: jax.ShapeDtypeStruct(({ELEMENTS},), np.float32, sharding=sharding) for name in names}}
        before = status("VmRSS")
        tree = jax.block_until_ready(manager.restore(like=like))
        assert all(float(array[-1]) == {ELEMENTS} - 1 for array in tree.values())
        print(json.dumps(status("VmHWM") - before))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("saved_on", "restored_on"), [(4, 4), (4, 2), (1, 4)])
def test_a_restore_needs_at_most_1_3_of_the_state_in_memory(saved_on: int, restored_on: int, tmp_path: Path) -> None:
    def run(devices: int, task: str) -> str:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "run"), str(devices), task]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    run(saved_on, "save")
    peak = json.loads(run(restored_on, "restore").splitlines()[-1])

    assert 1 <= peak / (ARRAYS * ELEMENTS * 4) <= 1.3
