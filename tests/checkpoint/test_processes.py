"""Two processes that save one tree together."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import multihost_utils

from treewright.checkpoint import CheckpointManager, digests, manager, steps
from treewright.checkpoint.leaves import Form, Leaf
from treewright.errors import CheckpointDamagedError, CheckpointError

ALONE = "lies on this process alone, which others can't see. Place it with a sharding over all of them"
ROOT = Path(__file__).parents[2]


def test_two_processes_save_restore_and_leave_together(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    del environment["JAX_NUM_CPU_DEVICES"]
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.checkpoint.process", str(tmp_path / "steps"), str(port), str(index)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        for index, process in enumerate(both):
            _, errors = process.communicate(timeout=90)
            assert process.returncode == 0, errors[-3000:]
            assert (tmp_path / f"found-by-{index}").read_text().splitlines() == [
                f"refused: ['z'] {ALONE}",
                "digests: ['0:2,0:2', '2:4,0:2', '4:6,0:2', '6:8,0:2']",
                "restored: (1,) 3",
                "left with 143 after its last step: True",
            ]
    finally:
        for process in both:
            process.kill()
            process.communicate()

    like = {"x": jnp.zeros((8, 2)), "y": np.zeros((8, 2), np.float32), "n": 0}
    found = CheckpointManager(tmp_path / "steps").restore(like=like)  # by one process alone
    np.testing.assert_array_equal(found["x"], np.arange(16.0).reshape(8, 2))
    left = CheckpointManager(tmp_path / "preempted")
    assert left.restore(like=like)["n"] == left.latest_step()


def test_arrays_of_one_process_are_refused_in_a_job_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "process_count", lambda: 2)

    with pytest.raises(CheckpointError, match=r"\['x'\] lies on this process alone, which others can't see\. Place it"):
        CheckpointManager(tmp_path).save(1, {"x": jnp.ones(2), "host": np.ones(2)})


def test_digests_of_all_processes_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [[{"0:1": "a"}, {"all": "c"}], [{"1:2": "b"}, {}]]

    assert digests.merged(parts) == [{"0:1": "a", "1:2": "b"}, {"all": "c"}]
    assert digests.gathered(parts[0]) == parts[0]
    monkeypatch.setattr(digests, "process_count", lambda: 2)
    assert digests.gathered(parts[0]) == parts[0]  # of this one process, through the collective
    assert digests.digests_of([np.zeros(1, np.uint8)]) == [{"all": digests.digest_of(b"\0")}]


def test_an_array_that_lies_in_other_blocks_on_other_processes_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.arange(4, dtype=np.int32)
    far: Any = type("Far", (), {"is_fully_addressable": False, "__class__": jax.Array, "shape": (4,), "nbytes": 16})()
    monkeypatch.setattr(digests, "_all_places", lambda _: {"all"})
    monkeypatch.setattr(multihost_utils, "process_allgather", lambda *_, **__: values)
    saved = {f"{i}:{i + 2}": digests.digest_of(values[i : i + 2]) for i in (0, 2)}
    leaf = Leaf(("x",), ".x", Form("array", (4,), "int32"), saved)

    digests.verify([far], [leaf])
    values[3] = 5
    with pytest.raises(CheckpointDamagedError, match=r"\.x\[2:4\] is damaged"):
        digests.verify([far], [leaf])


def test_only_the_first_process_locks_the_folder_and_brings_it_to_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        pytest.fail("it did")

    monkeypatch.setattr(manager, "is_first_process", lambda: False)
    monkeypatch.setattr(manager, "try_lock", fail)
    monkeypatch.setattr(manager, "sync", fail)
    tmp_path.joinpath("steps").mkdir()
    with CheckpointManager(tmp_path / "steps") as saving:
        saving.save(1, {"x": 1})
    assert saving.latest_step() == 1
