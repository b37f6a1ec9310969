"""equinox: its transformations and tools accept our nodes, and modules of each library can contain the other's."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces
from treewright import Module, static

pytestmark = pytest.mark.slow

eqx = pytest.importorskip("equinox")


class Scaled(Module):
    inner: Any
    scale: jax.Array
    name: str = static(default="scaled")

    def __call__(self, x: jax.Array) -> jax.Array:
        result: jax.Array = self.scale * self.inner(x)
        return result


def scaled() -> Scaled:
    return Scaled(eqx.nn.Linear(3, 2, key=jax.random.key(0)), jnp.asarray(2.0))


def test_filter_jit_retraces_a_node_only_for_a_different_static() -> None:
    jitted = eqx.filter_jit(counted := count_traces(lambda model, x: model(x)))

    for model in (scaled(), scaled(), scaled().replace(name="other")):
        jitted(model, jnp.ones(3))

    assert counted.count == 2


def test_tree_at_changes_children_of_nested_modules() -> None:
    model = scaled()

    changed = eqx.tree_at(lambda model: (model.scale, model.inner.bias), model, (jnp.asarray(5.0), jnp.ones(2)))
    removed = eqx.tree_at(lambda model: model.scale, model, replace_fn=lambda _: None)

    assert (float(changed.scale), changed.name, removed.scale) == (5.0, "scaled", None)
    np.testing.assert_array_equal(changed.inner.bias, 1)
    assert float(model.scale) == 2.0


def test_nodes_are_children_and_statics_of_equinox_modules() -> None:
    class Setting(Module):
        width: int = static(default=3)

    class Theirs(eqx.Module):  # type: ignore[misc, name-defined]  # pytest.importorskip returns Any
        ours: Scaled
        setting: Setting = eqx.field(static=True)

    model = Theirs(scaled(), Setting())
    jitted = jax.jit(counted := count_traces(lambda arrays: arrays.ours.scale * arrays.setting.width))

    arrays, _ = eqx.partition(model, eqx.is_array)
    assert float(jitted(arrays)) == 6.0
    assert float(jitted(eqx.partition(Theirs(scaled(), Setting()), eqx.is_array)[0])) == 6.0
    assert counted.count == 1
