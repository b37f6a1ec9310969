"""Many nodes as one with a leading axis, and one random key for each leaf."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, at, buffer, field, node_at, replace, stack, static, unstack

pytestmark = pytest.mark.slow


class Layer(Module):
    kernel: Any = field(converter=jnp.asarray)
    bias: Any = None
    count: Any = buffer(default=0)
    activation: str = static(default="relu")

    def __check_init__(self) -> None:
        if self.kernel.ndim != 2:
            raise ValueError("kernel must be a matrix")

    def __call__(self, x: Any) -> Any:
        return jnp.tanh(x @ self.kernel)


def layers(count: int = 3) -> list[Layer]:
    return [Layer(jnp.full((2, 2), float(index)), {"b": np.ones(2)}, index) for index in range(count)]


def test_stack_adds_a_leading_axis_and_runs_no_class_code() -> None:
    stacked = stack(layers())

    assert type(stacked) is Layer
    assert stacked.kernel.shape == (3, 2, 2)
    assert stacked.bias["b"].shape == (3, 2)
    assert stacked.count.tolist() == [0, 1, 2]
    assert stacked.activation == "relu"


def test_unstack_and_node_at_return_the_nodes() -> None:
    nodes = [jax.tree.map(jnp.asarray, layer) for layer in layers()]
    stacked = stack(nodes)

    assert unstack(stacked) == nodes
    for index in (0, 2, -1, -3, np.int32(1), jnp.asarray(1)):
        assert node_at(stacked, index) == nodes[int(index)]  # type: ignore[arg-type]
    traced = jax.jit(node_at)(stacked, 1)
    assert traced == nodes[1]
    assert jax.jit(lambda index: node_at({"x": np.arange(3)}, index))(2)["x"] == 2


def test_an_ensemble_runs_under_vmap_and_layers_under_scan() -> None:
    nodes = [jax.tree.map(jnp.asarray, at(layer, ".bias").set(None)) for layer in layers()]
    stacked, x = stack(nodes), jnp.ones(2)

    ensemble = jax.vmap(lambda layer: layer(x))(stacked)
    assert jnp.allclose(ensemble, jnp.stack([layer(x) for layer in nodes]))
    deep, _ = jax.lax.scan(lambda x, layer: (layer(x), None), x, stacked)
    assert jnp.allclose(deep, nodes[2](nodes[1](nodes[0](x))))


def message(case: Any) -> str:
    with pytest.raises((ValueError, IndexError)) as caught:
        case()
    return str(caught.value)


def test_stack_rejects_different_trees_by_path() -> None:
    a, b = Layer(jnp.ones((2, 3))), Layer(jnp.ones((2, 3)))

    assert message(lambda: stack([])) == "stack() needs at least one tree, for the structure of the result."
    assert message(lambda: stack([a, replace(b, kernel=jnp.ones((2, 4)))])) == (
        "Layer.kernel is f32[2,4] in tree 1 and f32[2,3] in tree 0. Only leaves with the same shape and dtype can be "
        "stacked."
    )
    assert message(lambda: stack([a, b, replace(b, kernel=jnp.ones((2, 3), jnp.int32))])).startswith(
        "Layer.kernel is i32[2,3] in tree 2 and f32[2,3] in tree 0."
    )
    assert message(lambda: stack([a, replace(b, activation="gelu")])) == (
        "Tree 1 differs from tree 0: .activation (static): 'relu' -> 'gelu'."
    )
    assert message(lambda: stack([a, replace(b, kernel=jnp.ones((9, 9)), bias=3.0)])).startswith(
        "Tree 1 differs from tree 0: .bias (class): None -> 3.0"
    )
    assert message(lambda: stack([{"f": len}, {"f": len}])) == (
        "['f'] is len, but only arrays and numbers can be stacked. If it is the same in all trees, make it a static."
    )


@pytest.mark.parametrize("index", [True, np.bool_(1), 1.0, jnp.array(True), jnp.array([1]), np.array(1.0), slice(1)])
def test_node_at_rejects_invalid_indices(index: Any) -> None:
    stacked = stack(layers())

    with pytest.raises(TypeError, match=r"^The index of node_at\(tree, index\) must be an integer, got "):
        node_at(stacked, index)
    if not isinstance(index, slice):
        with pytest.raises(TypeError, match=r"^The index of node_at\(tree, index\) must be an integer, got "):
            jax.jit(node_at)(stacked, index)


def test_unstack_rejects_leaves_without_a_common_leading_axis() -> None:
    assert message(lambda: unstack({"a": jnp.ones((2, 1)), "b": jnp.ones(3)})) == (
        "All leaves of a stacked tree must have the same first-axis length, but dict['a'] is f32[2,1], dict['b'] is "
        "f32[3]."
    )
    assert message(lambda: node_at({"a": jnp.ones(()), "b": jnp.ones(3)}, 0)) == (
        "All leaves of a stacked tree must have the same first-axis length, but dict['a'] is f32[]."
    )
    assert message(lambda: unstack(())) == "tuple has no leaves, so the number of trees in it is unknown."
    for index in (3, -4):
        assert message(lambda index=index: node_at(stack(layers()), index)) == (
            f"Index {index} is out of range: Layer contains 3 trees."
        )
