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

DIFFER = r"ProcessMismatchError: The processes have different trees: \|   "
BLOCKS = r"\(\(4, 1\), \(\(0, 2\), \(1, 2\)\)\), \(\(1, 1\), \(\(0, 1\),\)\)"
FEWER = (
    r"CheckpointError: Step 2 was saved by 1 process and has no items for process 1\. Redistribute them: items\(2, .*"
)
# The result of each process, by scenario: one pattern for both, or one for each
FOUND: dict[str, str | tuple[str, str]] = {
    "everyday": (
        rf"\(\(1, 2\), 1, \{{'data': 0\}}, 'CheckpointError: In process 1, .*: {FEWER}', \{{'data': 0\}}, {BLOCKS}\)",
        rf"\(\(1, 2\), 1, \{{'data': 1\}}, '{FEWER}', \{{'data': 0\}}, {BLOCKS}\)",
    ),
    "local_array": r"CheckpointError: The tree can't be saved, .* \['z'\] is only on this process\. Place it .*",
    "number_differs": DIFFER + r"\['seed'\] \|     process 0: int64\[\] \(int\) 100 #\w+ \|     process 1: .* 101 #\w+",
    "numpy_differs": DIFFER + r"\['a'\] \|     process 0: int64\[3\] \(numpy\) .* \|     process 1: .*",
    "metric_differs": DIFFER + r'metrics \|     process 0: \{"loss": 0.0\} \|     process 1: \{"loss": 1.0\}',
    "step_differs": DIFFER + r"the step \|     process 0: 1 \|     process 1: 2",
    "tree_differs": DIFFER
    + r"the tree \|     process 0: dict: b0, empty, keys, s, x, y \|     process 1: dict: b1, empty, keys, s, x, y",
    "one_rejects": (
        r"CheckpointError: In process 1, save failed: CheckpointError: The tree can't be saved, .*",
        r"CheckpointError: The tree can't be saved, .* \['a'\] is str 'text', not an array or a number.*",
    ),
    "replicated_differs": r"\(.CheckpointError: Step 1 .*: processes have different values of \['z'\], .*, \(\)\)",
    "damaged_shard": (
        r"\(1, 1, 'CheckpointDamagedError', \(1, 2\), \[(.*process_1.safetensors is not from the save that.*){2}\]\)"
    ),
    "failing_file_system": (
        r"\('CheckpointError: In process 1, the restore of step 2 failed: OSError: \[Errno 116\] Stale.*', 2\)",
        r"\('OSError: \[Errno 116\] Stale file handle', 2\)",
    ),
    "folder_differs": r"\(.CheckpointError: .*process 1 has no .*, which process 0 created\. Pass the same .*",
    "target_differs": (
        r"CheckpointError: In process 1, reading the tree of step 1 failed: CheckpointMismatchError: .*",
        r"CheckpointMismatchError: The checkpoint does not fit the tree, a difference: .*",
    ),
    "late": (r"\('ProcessMismatchError: Process 1 did not reach save within 2 s.*', True\)", "slept"),
}
REPRESENTATIVE = (
    *("everyday", "number_differs", "replicated_differs", "damaged_shard", "failing_file_system", "folder_differs"),
)


def outcomes(folder: Path, count: int, names: tuple[str, ...]) -> list[list[str]]:
    """The results of each process of a job, a line for each scenario."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    command = [sys.executable, "-m", "tests.checkpoint.process", str(folder), port, str(count)]
    processes = [
        subprocess.Popen(
            [*command, str(index), *names],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(count)
    ]
    try:
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors[-3000:]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [(folder / f"found-by-{index}").read_text().splitlines() for index in range(count)]


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (2, REPRESENTATIVE),
        pytest.param(2, tuple(FOUND), marks=pytest.mark.exhaustive),
        pytest.param(4, ("replicated_differs", "damaged_shard"), marks=pytest.mark.exhaustive),
    ],
    ids=["some", "all", "four"],
)
def test_all_processes_get_the_same_step_or_an_error(count: int, names: tuple[str, ...], tmp_path: Path) -> None:
    for index, lines in enumerate(outcomes(tmp_path, count, names)):
        assert [line.partition(":")[0] for line in lines] == list(names)
        for name, line in zip(names, lines, strict=True):
            expected = FOUND[name]
            pattern = expected if isinstance(expected, str) else expected[index]
            assert re.fullmatch(f"{name}: {pattern}", line), line
    if "everyday" not in names:
        return

    like = {"x": jnp.zeros(VALUES.shape), "y": np.zeros_like(VALUES), "empty": VALUES[:0], "n": 0}
    manager = CheckpointManager(tmp_path / "everyday")
    with pytest.warns(CheckpointWarning, match="Dropped|The checkpoint and"):
        found = manager.restore(like={**like, "log": {}}, strict=False, on_static="ignore")  # in one process
    np.testing.assert_array_equal(found["x"], VALUES)
