"""orbax: nodes are restored with class, statics, structure and dtype."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, TrainState, static
from treewright.checkpoint import CheckpointManager, from_names, to_names
from treewright.errors import CheckpointDamagedError, CheckpointError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Orbax's dependencies warn.
    orbax = pytest.importorskip("orbax.checkpoint")

if TYPE_CHECKING:
    from pathlib import Path

# Orbax warns about its own behaviour.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


class Dense(Module):
    kernel: jax.Array
    bias: jax.Array | None
    activation: str = static(default="relu")


def state_of(scale: float) -> TrainState[Any]:
    params = {"layers": [Dense(scale * jnp.ones((2, 3), jnp.bfloat16), jnp.ones(3)), Dense(jnp.ones((3, 1)), None)]}
    state: TrainState[Any] = TrainState.create(params=params, tx=optax.adam(0.1))
    return state.apply_gradients(grads=jax.tree.map(jnp.ones_like, params))


def assert_same(restored: Any, saved: Any) -> None:
    assert jax.tree.structure(restored) == jax.tree.structure(saved)
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(restored), jax.tree.leaves(saved))
    assert [leaf.dtype for leaf in jax.tree.leaves(restored)] == [leaf.dtype for leaf in jax.tree.leaves(saved)]


def test_orbax_saves_and_restores_a_training_state(tmp_path: Path) -> None:
    saved = state_of(2.0)
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "one", saved)
        checkpointer.wait_until_finished()

        restored = checkpointer.restore(tmp_path / "one", jax.eval_shape(lambda: state_of(0.0)))

    assert_same(restored, saved)
    # The restored state has the type of the saved one: each is one branch.
    jax.lax.cond(jnp.asarray(True), lambda: restored, lambda: saved)


def test_a_folder_of_plain_orbax_has_no_manifest(tmp_path: Path) -> None:
    with orbax.CheckpointManager(tmp_path) as plain:
        plain.save(1, args=orbax.args.StandardSave({"a": jnp.ones(1)}))
        plain.wait_until_finished()
        restored = plain.restore(1, args=orbax.args.StandardRestore())

    for restore in (CheckpointManager(tmp_path).restore, CheckpointManager(tmp_path).restore_latest_valid):
        with pytest.raises(CheckpointError, match=r"Step 1 in .* has no manifest: a different program") as caught:
            restore(like={"a": jnp.ones(1)})
        assert not isinstance(caught.value, CheckpointDamagedError)
    assert from_names(to_names(restored), like={"a": jnp.zeros(1)})["a"].tolist() == [1.0]
