"""Checkpoints beside their engines: one file beside safetensors, steps beside Orbax. Groups are the questions.

pytest benchmarks/test_checkpoint.py --benchmark-only
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
import safetensors.flax
import safetensors.numpy

from treewright.checkpoint import CheckpointManager, load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LARGE = {f"x{i}": jnp.asarray(np.random.default_rng(i).standard_normal(1 << 22, np.float32)) for i in range(8)}
MANY = {f"a{i}": {f"b{j}": jnp.full(64, i, jnp.float32) for j in range(20)} for i in range(100)}
TREES: dict[str, Any] = {"8 x 16 MB": LARGE, "2,000 leaves": MANY}


def with_safetensors(path: Path, tree: Any) -> None:
    safetensors.numpy.save_file({name: np.asarray(array) for name, array in tree.items()}, path)
    descriptor = os.open(path, os.O_RDONLY)  # as ours does
    os.fsync(descriptor)
    os.close(descriptor)


@pytest.mark.benchmark(group="file: save 128 MB")
@pytest.mark.parametrize("write", [save, with_safetensors], ids=["treewright", "safetensors and fsync"])
def test_save_file(write: Callable[[Path, Any], None], benchmark: Any, tmp_path: Path) -> None:
    benchmark(write, tmp_path / "x", LARGE)


@pytest.mark.benchmark(group="file: load 128 MB")
@pytest.mark.parametrize("engine", ["treewright", "safetensors"])
def test_load_file(engine: str, benchmark: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", LARGE)
    read: Any = {
        "treewright": lambda: load(tmp_path / "x", like=LARGE),
        "safetensors": lambda: safetensors.flax.load_file(tmp_path / "x"),
    }[engine]
    benchmark(lambda: jax.block_until_ready(read()))


class WithOrbax:
    """Orbax's manager alone, which keeps two steps."""

    def __init__(self, folder: Path) -> None:
        handlers = {"state": ocp.PyTreeCheckpointHandler(use_compression=False)}
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        self.manager = ocp.CheckpointManager(folder, options=options, item_handlers=handlers)
        self.wait, self.close = self.manager.wait_until_finished, self.manager.close

    def save(self, step: int, tree: Any) -> None:
        self.manager.save(step, args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree)), force=True)


@pytest.mark.benchmark(group="steps: how long save holds the loop")
@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize(
    "engine", [lambda folder: CheckpointManager(folder, keep=2), WithOrbax], ids=["treewright", "orbax"]
)
def test_hold_of_save(engine: Any, tree: str, benchmark: Any, tmp_path: Path) -> None:
    manager, steps = engine(tmp_path / "run"), itertools.count()

    def before() -> tuple[tuple[Any, ...], dict[str, Any]]:
        manager.wait()
        return (next(steps), TREES[tree]), {}

    benchmark.pedantic(manager.save, setup=before, rounds=10, warmup_rounds=2)
    manager.close()
