"""Refs in checkpoints: the arrays that they hold are saved, and they come back as refs of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import pytest

from tests.checkpoint.engines import engine as engine  # noqa: PLC0414
from treewright.checkpoint import load, read_manifest, save
from treewright.errors import CheckpointError, CheckpointMismatchError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


def tree() -> dict[str, Any]:
    return {"mean": jax.new_ref(jnp.arange(3.0)), "key": jax.new_ref(jax.random.key(7)), "w": jnp.ones((2, 2))}


def refs_in(tree: dict[str, Any]) -> list[bool]:
    return [isinstance(tree[name], jax.Ref) for name in ("mean", "key", "w")]


def test_the_arrays_that_refs_hold_are_saved_and_new_refs_come_back(engine: Any) -> None:
    saved = tree()
    engine.save(saved)
    saved["mean"][...] += 1

    for loaded in (engine.load(like=saved), engine.load()):
        assert refs_in(loaded) == [True, True, False]
        assert loaded["mean"] is not saved["mean"]
        assert loaded["mean"][...].tolist() == [0, 1, 2]
        assert (jax.random.key_data(loaded["key"][...]) == jax.random.key_data(jax.random.key(7))).all()


def test_a_live_tree_decides_between_refs_and_arrays_and_an_abstract_one_leaves_it_to_the_checkpoint(
    engine: Any,
) -> None:
    engine.save(tree())
    arrays = {"mean": jnp.zeros(3), "key": jax.random.key(0), "w": jnp.zeros((2, 2))}

    assert refs_in(engine.load(like=arrays)) == [False, False, False]
    assert refs_in(engine.load(like=jax.eval_shape(lambda: arrays))) == [True, True, False]


def test_misfits_name_refs(tmp_path: Path) -> None:
    save(tmp_path / "one", tree())

    assert str(read_manifest(tmp_path / "one").leaves[1].form) == "float32[3] (array, ref)"
    with pytest.raises(CheckpointMismatchError, match=r"\['mean'\]: shape \(3,\) saved, \(4,\) in the tree"):
        load(tmp_path / "one", like=tree() | {"mean": jax.new_ref(jnp.ones(4))})
    with pytest.raises(CheckpointError, match=r"\['x'\] is traced, and has no values outside of jit"):
        jax.jit(lambda ref: save(tmp_path / "two", {"x": ref}))(tree()["mean"])
