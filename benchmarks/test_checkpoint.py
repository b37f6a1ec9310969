"""What checkpoints cost: one file, and steps of a training run, of 8 large and 2,000 small arrays in 80 MiB."""

from __future__ import annotations

import atexit
import itertools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from turns import Statement, group

from treewright import Module
from treewright.checkpoint import CheckpointManager, load, save

ocp: Any = pytest.importorskip("orbax.checkpoint")
safetensors: Any = pytest.importorskip("safetensors.numpy")
FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)


class Layer(Module):
    """A large and many small arrays."""

    kernel: jax.Array
    scales: list[jax.Array]


def net() -> list[Layer]:
    """The tree that is saved."""
    random = np.random.default_rng(0)
    return [
        Layer(
            jax.device_put(random.random((1600, 1600), np.float32)),
            [jax.device_put(x) for x in random.random((250, 8))],
        )
        for _ in range(8)
    ]


def flat(tree: Any) -> dict[str, np.ndarray]:
    """The arrays by name, for libraries that know no classes."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def equinox_way(tree: Any, *, loading: bool) -> Statement:
    import equinox

    path = FOLDER / "equinox"
    equinox.tree_serialise_leaves(path, tree)
    names = {"eqx": equinox, "path": path, "tree": tree}
    return f"eqx.tree_{'de' * loading}serialise_leaves(path, tree)", names


def file_way(name: str, *, loading: bool) -> Statement:
    tree, path = net(), FOLDER / name
    if name == "equinox":
        return equinox_way(tree, loading=loading)
    names = {"save": save, "load": load, "numpy": safetensors, "flat": flat, "path": path, "tree": tree}
    names |= {"put": jax.device_put, "wait": jax.block_until_ready}
    if name == "safetensors":
        safetensors.save_file(flat(tree), path)
        return "wait(put(numpy.load_file(path)))" if loading else "numpy.save_file(flat(tree), path)", names
    save(path, tree)
    return "wait(load(path, like=tree))" if loading else "save(path, tree)", names


FILES = ("safetensors", "equinox", "treewright.checkpoint")


@group(*FILES, title="save a file of 80 MiB", rounds=5, loops=1)
def test_save(name: str) -> Statement:
    return file_way(name, loading=False)


@group(*FILES, title="load a file of 80 MiB", rounds=5, loops=1)
def test_load(name: str) -> Statement:
    return file_way(name, loading=True)


@group("orbax", "treewright.checkpoint", title="save a step of 80 MiB and wait for it", rounds=5, loops=1)
def test_step(name: str) -> Statement:
    tree, steps = net(), itertools.count()
    if name == "orbax":
        options = ocp.CheckpointManagerOptions(max_to_keep=2)
        manager: Any = ocp.CheckpointManager(FOLDER / "orbax", options=options)
        arguments = ocp.args.StandardSave(tree)
        names = {"manager": manager, "steps": steps, "arguments": arguments}
        return "manager.save(next(steps), args=arguments); manager.wait_until_finished()", names
    ours = CheckpointManager(FOLDER / "steps", keep=2)
    return "manager.save(next(steps), tree); manager.wait()", {"manager": ours, "steps": steps, "tree": tree}
