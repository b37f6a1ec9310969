"""Checkpoints that were written once and stay in `kept`: each must load, and what is written today must be the same.

Of each version `every-kind.safetensors` has all that it can hold, and that of the last is what is written today: where
the format has to change, it is written again in a new folder.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint import models
from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import every_kind, train_state
from treewright.checkpoint import CheckpointManager, load, read_manifest, save
from treewright.checkpoint.manifest import VERSION

KEPT = Path(__file__).parent / "kept"


def plain(tree: Any) -> Any:
    """The tree with the data of its keys in their place."""
    return jax.tree.map(lambda leaf: jax.random.key_data(leaf) if is_key(leaf) else leaf, tree)


def is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_checkpoints_of_every_released_version_load(version: int, tmp_path: Path) -> None:
    folder = KEPT / f"version-{version}"
    expected = train_state()

    one = load(folder / "state.safetensors", like=expected)
    shutil.copytree(folder / "steps", tmp_path / "steps")
    other = CheckpointManager(tmp_path / "steps").restore(like=expected)

    for found in (one, other):
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert all(map(np.array_equal, jax.tree.leaves(found), jax.tree.leaves(expected)))


@pytest.mark.parametrize("version", range(1, VERSION + 1))
def test_a_kept_file_of_every_kind_loads_into_a_tree_and_without_one(version: int) -> None:
    path, expected = KEPT / f"version-{version}" / "every-kind.safetensors", every_kind()

    assert_same(plain(load(path, like=expected)), plain(expected))
    assert_same(plain(load(path, modules=[models, jax.nn])), plain(expected))


def test_what_is_written_today_is_what_was_kept(tmp_path: Path) -> None:
    save(tmp_path / "now", every_kind())

    kept = read_manifest(KEPT / f"version-{VERSION}" / "every-kind.safetensors")
    assert read_manifest(tmp_path / "now").to_json() == kept.to_json()


def test_no_manifest_names_a_private_module_of_ours(tmp_path: Path) -> None:
    save(tmp_path / "now", every_kind())

    assert "treewright._" not in json.dumps(read_manifest(tmp_path / "now").to_json())
