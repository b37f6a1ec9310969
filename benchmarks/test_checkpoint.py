"""The cost of a checkpoint in a file of 80 MiB in few large or many small arrays.

With large arrays, the time depends on the bytes: a load reads, digests and places each byte once. Each small array
costs about 15 us to save and 30 us to load, for its record and digest; safetensors stores only a name.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from interleaved import Statement, group

from treewright import Module
from treewright.checkpoint import load, save

safetensors: Any = pytest.importorskip("safetensors.numpy")
FOLDER = Path(tempfile.mkdtemp())
atexit.register(shutil.rmtree, FOLDER)


class Net(Module):
    """Arrays of one size."""

    kernels: list[jax.Array]


def net(count: int) -> Net:
    """The tree to save."""
    random = np.random.default_rng(0)
    return Net([jax.device_put(random.random((80 << 18) // count, np.float32)) for _ in range(count)])


def flat(tree: Any) -> dict[str, np.ndarray]:
    """The arrays by name, for libraries without classes."""
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


def sync(path: Path) -> None:
    """Flush a file to disk, as `save` does and safetensors does not."""
    with path.open() as file:
        os.fsync(file.fileno())


def equinox_way(tree: Any, path: Path, *, loading: bool) -> Statement:
    import equinox

    equinox.tree_serialise_leaves(path, tree)
    names = {"eqx": equinox, "path": path, "tree": tree}
    return f"eqx.tree_{'de' * loading}serialise_leaves(path, tree)", names


def file_way(name: str, count: int, *, loading: bool) -> Statement:
    tree, path = net(count), FOLDER / f"{name}-{count}"
    if name == "equinox":
        return equinox_way(tree, path, loading=loading)
    names = {"save": save, "load": load, "numpy": safetensors, "flat": flat, "path": path, "tree": tree}
    names |= {"sync": sync, "put": jax.device_put, "wait": jax.block_until_ready}
    if name == "safetensors":
        safetensors.save_file(flat(tree), path)
        return "wait(put(numpy.load_file(path)))" if loading else "numpy.save_file(flat(tree), path); sync(path)", names
    save(path, tree)
    return "wait(load(path, like=tree))" if loading else "save(path, tree)", names


FILES = ("safetensors", "equinox", "treewright.checkpoint")


@group(*FILES, title="save a file of 80 MiB in {count} arrays", rounds=5, loops=1, count=[8, 2000])
def test_save(name: str, count: int) -> Statement:
    return file_way(name, count, loading=False)


@group(*FILES, title="load a file of 80 MiB in {count} arrays", rounds=5, loops=1, count=[8, 2000])
def test_load(name: str, count: int) -> Statement:
    return file_way(name, count, loading=True)
