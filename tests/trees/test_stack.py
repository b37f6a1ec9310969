"""Many nodes as one with a leading axis."""

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
    numbers: list[Any] = [1.0, jnp.ones(())]
    assert stack(numbers).tolist() == [1, 1]
    assert np.asarray(stack([[1]])[0]).tolist() == [1]


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


A, B = Layer(jnp.ones((2, 3))), Layer(jnp.ones((2, 3)))
NO_ARRAY = "but only arrays and numbers can be stacked. If it is the same in all trees, make it a static."
LENGTHS = "All leaves of a stacked tree must have the same first-axis length, but "


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: stack([]), "stack() needs at least one tree, for the structure of the result."),
        (
            lambda: stack([A, replace(B, kernel=jnp.ones((2, 4)), bias=3.0)]),
            "Tree 1 differs from tree 0: .kernel (shape): float32[2,3] -> float32[2,4]; axis 1: 3 -> 4.",
        ),
        (
            lambda: stack([A, B, replace(B, kernel=jnp.ones((2, 3), jnp.int32))]),
            "Tree 2 differs from tree 0: .kernel (dtype): float32[2,3] -> int32[2,3].",
        ),
        (
            lambda: stack([A, replace(B, activation="gelu")]),
            "Tree 1 differs from tree 0: .activation (static): 'relu' -> 'gelu'.",
        ),
        (lambda: stack([[1], [1, 2]]), "Tree 1 differs from tree 0: [1] (added): 2."),
        (
            lambda: stack([{"f": len}, {"f": len}]),
            f"dict['f'] is len, {NO_ARRAY}",
        ),
        (lambda: unstack(jax.new_ref(jnp.ones(2))), f"Ref is f32[2](ref), {NO_ARRAY}"),
        (
            lambda: unstack({"a": jnp.ones((2, 1)), "b": jnp.ones(3), "c": jnp.ones(2)}),
            f"{LENGTHS}dict['a'] is f32[2,1], dict['b'] is f32[3].",
        ),
        (lambda: node_at({"a": jnp.ones(()), "b": 1}, 0), f"{LENGTHS}dict['a'] is f32[]."),
        (lambda: unstack(()), "tuple has no leaves, so the number of trees in it is unknown."),
        (lambda: node_at(stack([A, B]), 2), "Index 2 is out of range: Layer contains 2 trees."),
        (lambda: node_at(stack([A, B]), -3), "Index -3 is out of range: Layer contains 2 trees."),
    ],
)
def test_different_trees_and_missing_axes_are_rejected_by_path(call: Any, message: str) -> None:
    with pytest.raises((ValueError, IndexError)) as caught:
        call()
    assert str(caught.value) == message


@pytest.mark.parametrize("index", [True, np.bool_(1), 1.0, jnp.array([1]), np.array(1.0), slice(1)])
def test_node_at_rejects_invalid_indices(index: Any) -> None:
    stacked = stack([A, B])

    calls: list[Any] = [node_at, *([] if isinstance(index, slice) else [jax.jit(node_at)])]
    for call in calls:
        with pytest.raises(TypeError, match=r"^The index of node_at\(tree, index\) must be an integer, got "):
            call(stacked, index)
