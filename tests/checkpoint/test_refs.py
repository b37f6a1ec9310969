"""Refs in checkpoints: what they hold is saved, and they come back as refs of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.checkpoint.engines import engine as engine  # noqa: PLC0414
from treewright import TrainState, allclose, diff, from_refs, to_refs
from treewright.checkpoint import CheckpointManager, from_names, load, read_manifest, save, to_names
from treewright.checkpoint.command import main as command
from treewright.checkpoint.manifest import from_json
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError

KEPT = Path(__file__).parent / "kept" / "version-1" / "refs.safetensors"


def tree() -> dict[str, Any]:
    return {"mean": jax.new_ref(jnp.arange(3.0)), "key": jax.new_ref(jax.random.key(7)), "w": jnp.ones((2, 2))}


def is_ref(leaf: Any) -> bool:
    return isinstance(leaf, jax.Ref)


def test_what_refs_hold_is_saved_and_new_refs_come_back(engine: Any) -> None:
    saved = tree()
    engine.save(saved)
    saved["mean"][...] += 1

    into = engine.load(like=saved)
    alone = engine.load()

    for loaded in (into, alone):
        assert allclose(loaded, tree())
        assert (is_ref(loaded["mean"]), is_ref(loaded["key"]), is_ref(loaded["w"])) == (True, True, False)
    assert into["mean"] is not saved["mean"]
    assert saved["mean"][...].tolist() == [1, 2, 3]
    assert diff(into, tree()) == []  # of the kind that those of `like` have


def test_the_tree_decides_between_refs_and_arrays_and_an_abstract_one_leaves_it_to_the_checkpoint(engine: Any) -> None:
    engine.save(tree())
    arrays = engine.load(like=from_refs(tree()))
    abstract = engine.load(like=jax.eval_shape(lambda: from_refs(tree())))
    assert not any(map(is_ref, jax.tree.leaves(arrays)))
    assert [is_ref(abstract[name]) for name in ("mean", "key", "w")] == [True, True, False]
    assert allclose(arrays["mean"], abstract["mean"])


def test_a_run_goes_on_in_place_from_the_state_of_one_that_returned_it(engine: Any) -> None:
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(0.1))
    grads = {"w": jnp.ones(2)}
    engine.save(state.apply_gradients(grads=grads))

    refs = engine.load(like=to_refs(state))
    refs.update_in_place(grads=grads)

    assert allclose(from_refs(refs), state.apply_gradients(grads=grads).apply_gradients(grads=grads))


def test_a_step_that_is_taken_while_a_checkpoint_is_written_does_not_change_it(tmp_path: Path) -> None:
    refs = to_refs({"w": jnp.zeros(1 << 18)})
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, refs)
        jax.jit(lambda refs: refs["w"].addupdate(jnp.ones(1 << 18)))(refs)
    assert float(from_refs(refs)["w"].min()) == 1.0
    assert float(CheckpointManager(tmp_path).restore()["w"][...].max()) == 0.0


def test_names_and_migrations_hold_arrays(tmp_path: Path) -> None:
    names = to_names(tree())
    assert not any(map(is_ref, names.values()))
    assert allclose(from_names(names, like=tree()), tree())

    def doubled(values: dict[str, Any]) -> dict[str, Any]:
        assert isinstance(values["mean"], np.ndarray)
        return {**values, "mean": values["mean"] * 2}

    save(tmp_path / "one", tree())
    migrated = load(tmp_path / "one", like=tree(), migrate=doubled)
    assert is_ref(migrated["mean"])
    assert migrated["mean"][...].tolist() == [0, 2, 4]


def test_a_ref_that_was_not_saved_stays_that_of_the_tree(tmp_path: Path) -> None:
    save(tmp_path / "one", {"w": jnp.zeros(2)})
    like = {"w": jnp.ones(2), "seen": jax.new_ref(jnp.ones(3))}
    with pytest.warns(UserWarning, match="seen"):
        assert load(tmp_path / "one", like=like, strict=False)["seen"] is like["seen"]


def test_misfits_are_told_as_of_arrays(tmp_path: Path) -> None:
    save(tmp_path / "one", tree())
    with pytest.raises(CheckpointMismatchError, match=r"\['mean'\]: shape \(3,\) saved, \(4,\) in the tree"):
        load(tmp_path / "one", like=tree() | {"mean": jax.new_ref(jnp.ones(4))})
    with pytest.raises(CheckpointMismatchError, match=r"\['mean'\]: kind float32\[3\] \(array, ref\) saved, uint32"):
        load(tmp_path / "one", like=tree() | {"mean": jax.new_ref(jax.random.key(0))})
    with pytest.raises(CheckpointError, match=r"\['x'\] is traced, and has no values outside of jit"):
        jax.jit(lambda ref: save(tmp_path / "two", {"x": ref}))(tree()["mean"])


def test_the_manifest_says_what_was_a_ref(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "one", tree())
    save(tmp_path / "two", from_refs(tree()))

    forms = {leaf.name: str(leaf.form) for leaf in read_manifest(tmp_path / "one").leaves}
    assert forms == {
        "mean": "float32[3] (array, ref)",
        "key": "uint32[2] (key fry, ref)" if "(key fry" in forms["key"] else "uint32[2] (key threefry2x32, ref)",
        "w": "float32[2,2] (array)",
    }
    assert command([str(tmp_path / "one"), str(tmp_path / "two")]) == 0
    assert "3 of 3 leaves are the same." in capsys.readouterr().out


def test_a_number_can_not_be_a_ref_in_a_manifest(tmp_path: Path) -> None:
    save(tmp_path / "one", {"n": 3})
    content = read_manifest(tmp_path / "one").to_json()
    content["forms"][0]["ref"] = True
    with pytest.raises(CheckpointDamagedError, match="a leaf is a ref of kind int, and a ref holds an array or a key"):
        from_json(content)


def test_a_kept_file_with_refs_loads() -> None:
    assert diff(load(KEPT, like=tree()), tree()) == []
