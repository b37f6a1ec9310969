"""Tools for tests and debugging: chex, hypothesis, treescope, and jax's own export, debug.print and checkify."""

from __future__ import annotations

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import pytest

from treewright import Module, pytree_dataclass, static

pytestmark = pytest.mark.slow


@pytree_dataclass
class Dense:
    kernel: jax.Array
    bias: jax.Array
    activation: str = static(default="relu")


class Net(Module):
    layers: tuple[Dense, ...]

    def __call__(self, x: jax.Array) -> jax.Array:
        for layer in self.layers:
            x = x @ layer.kernel + layer.bias[None, :]
        return x


def net(scale: float = 1.0) -> Net:
    return Net((Dense(scale * jnp.ones((2, 3)), jnp.ones(3)), Dense(jnp.ones((3, 1)), jnp.ones(1), "tanh")))


# chex


def test_chex_compares_nodes_and_names_the_path_of_a_difference() -> None:
    chex = pytest.importorskip("chex")

    chex.assert_trees_all_equal(net(), net())
    chex.assert_trees_all_close(net(), net(1 + 1e-8))
    chex.assert_trees_all_equal_shapes_and_dtypes(net(), net(2.0))
    chex.assert_tree_all_finite(net())
    chex.assert_tree_shape_prefix(jax.tree.map(lambda leaf: leaf[None], net()), (1,))
    with pytest.raises(AssertionError, match="kernel"):
        chex.assert_trees_all_equal(net(), net(2.0))
    with pytest.raises(AssertionError, match="do not match"):
        chex.assert_trees_all_equal_structs(net(), net().layers[0])


# hypothesis


FLOATS = st.floats(-10, 10, width=32)


@pytree_dataclass
class Point:
    x: float
    y: tuple[int, ...]
    name: str = static(default="point")


def test_hypothesis_shows_the_call_that_constructs_the_failing_node() -> None:
    @hypothesis.given(st.builds(Point, x=FLOATS, y=st.just(()), name=st.just("p")))
    @hypothesis.settings(database=None, derandomize=True)
    def fails(point: Point) -> None:
        assert point.x < 1

    with pytest.raises(AssertionError) as caught:
        fails()

    assert "Point(x=1.0, y=(), name='p')" in "\n".join(caught.value.__notes__)
