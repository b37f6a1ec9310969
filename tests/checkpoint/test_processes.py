"""Two processes of one job: they save one tree together, and get the same step or an error each."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from treewright.checkpoint import CheckpointManager
from treewright.errors import CheckpointWarning

pytestmark = pytest.mark.slow

pytest.importorskip("orbax.checkpoint")
ROOT = Path(__file__).parents[2]
VALUES = np.arange(1 << 16, dtype=np.float32).reshape(8, -1)

DIFFER = r"CheckpointError: The processes do not save the same: \|   "
# By scenario, what each process finds: one pattern for both, or one for each.
FOUND: dict[str, str | tuple[str, str]] = {
    "everyday": (
        r"\(\(1, 2\), 1, \{'data': 0\}, \['0:2,0:8192', '2:4,0:8192'\], \['all'\]\)",
        r"\(\(1, 2\), 1, \{'data': 1\}, \['0:2,0:8192', '2:4,0:8192'\], \['all'\]\)",
    ),
    "local_array": r"CheckpointError: The tree can't be saved, .* \['z'\] lies on this process alone, which others .*",
    "number_differs": DIFFER + r"\['seed'\]: int64\[\] \(int\) 100 #\w+ in process 0; .* 101 #\w+ in process 1",
    "numpy_differs": DIFFER + r"\['a'\]: int64\[3\] \(numpy\) .* in process 0; .* in process 1",
    "metric_differs": DIFFER + r'metrics: \{"loss": 0.0\} in process 0; \{"loss": 1.0\} in process 1',
    "step_differs": DIFFER + r"step: 1 in process 0; 2 in process 1",
    "tree_differs": DIFFER + r"the tree \(class\): dict: b0, s, x, y in process 0; dict: b1, s, x, y in process 1",
    "one_refuses": (
        r"CheckpointError: In process 1, save failed: CheckpointError: The tree can't be saved, .*",
        r"CheckpointError: The tree can't be saved, .* \['a'\] is str 'text', not an array or a number.*",
    ),
    "replicated_differs": r"CheckpointError: .*Step 1 was not kept: processes hold different values for z, .*",
    "damaged_shard": r"\(1, 1, \[2\], 'CheckpointDamagedError'\)",
    "failing_file_system": (
        r"\('CheckpointError: In process 1, restoring step 2 failed: OSError: \[Errno 116\] Stale.*', 2\)",
        r"\('OSError: \[Errno 116\] Stale file handle', 2\)",
    ),
    "target_differs": (
        r"CheckpointError: In process 1, restoring step 1 failed: CheckpointMismatchError: .*",
        r"CheckpointMismatchError: The checkpoint does not fit the tree, a difference: .*",
    ),
    "late": (r"\('ProcessMismatchError: Process 1 did not reach save within 2 s.*', True\)", "slept"),
}
REPRESENTATIVE = ("everyday", "number_differs", "replicated_differs", "damaged_shard", "failing_file_system")


@pytest.mark.parametrize(
    "names", [REPRESENTATIVE, pytest.param(tuple(FOUND), marks=pytest.mark.exhaustive)], ids=["some", "all"]
)
def test_both_processes_get_the_same_step_or_an_error_each(names: tuple[str, ...], tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoint.process", str(tmp_path), port, str(index), *names],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for index, process in enumerate(both):
            _, errors = process.communicate(timeout=200)
            assert process.returncode == 0, errors[-3000:]
            lines = (tmp_path / f"found-by-{index}").read_text().splitlines()
            assert [line.partition(":")[0] for line in lines] == list(names)
            for name, line in zip(names, lines, strict=True):
                expected = FOUND[name]
                pattern = expected if isinstance(expected, str) else expected[index]
                assert re.fullmatch(f"{name}: {pattern}", line), line
    finally:
        for process in both:
            process.kill()
            process.communicate()

    like = {"x": jnp.zeros(VALUES.shape), "y": np.zeros_like(VALUES), "n": 0}
    manager = CheckpointManager(tmp_path / "everyday")
    with pytest.warns(CheckpointWarning, match="Dropped|Not all"):
        found = manager.restore(like={**like, "log": {}}, strict=False, on_static="ignore")  # by one process alone
    np.testing.assert_array_equal(found["x"], VALUES)
