"""flax: linen and nnx parameters inside `TrainState`, and nodes among the parameters of flax modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import count_traces
from treewright import Module, TrainState, static

flax = pytest.importorskip("flax")

from flax import linen, nnx  # noqa: E402  flax first

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


class Dense(Module):
    kernel: jax.Array


# Parameters of flax's own modules


X = jax.random.normal(jax.random.key(0), (32, 3))
Y = X.sum(axis=1, keepdims=True)


def steps(state: TrainState[Any], forward: Callable[[Any], Any]) -> tuple[TrainState[Any], list[float], int]:
    """Twenty updates, the losses, and the traces."""
    traces: list[None] = []

    @jax.jit
    def step(state: TrainState[Any]) -> tuple[TrainState[Any], jax.Array]:
        traces.append(None)
        loss, grads = jax.value_and_grad(lambda params: jnp.mean((forward(params) - Y) ** 2))(state.params)
        return state.apply_gradients(grads=grads), loss

    losses: list[float] = []
    for _ in range(20):
        state, loss = step(state)
        losses.append(float(loss))
    return state, losses, len(traces)


def test_nnx_parameters_train_in_a_train_state() -> None:
    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.first, self.second = nnx.Linear(3, 8, rngs=rngs), nnx.Linear(8, 1, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            return self.second(nnx.relu(self.first(x)))

    graph, params = nnx.split(Net(nnx.Rngs(0)), nnx.Param)
    state: TrainState[Any] = TrainState.create(params=params, tx=optax.adam(0.05))

    state, losses, traces = steps(state, lambda params: nnx.merge(graph, params)(X))

    assert losses[-1] < losses[0] / 2
    assert traces == 1
    trained = nnx.merge(graph, state.params)
    assert float(jnp.mean((trained(X) - Y) ** 2)) < losses[0] / 2


def test_graph_definitions_of_nnx_are_the_same_static_if_they_are_equal() -> None:
    """They are frozen dataclasses with a list in a field and a handwritten `__hash__`."""

    class Net(Module):
        graph: Any = static()
        params: Any

    def net(width: int) -> Net:
        return Net(*nnx.split(nnx.Linear(3, width, rngs=nnx.Rngs(0))))

    jitted = jax.jit(counted := count_traces(lambda net, x: nnx.merge(net.graph, net.params)(x)))
    assert [jitted(net(width), X).shape[-1] for width in (2, 2, 4)] == [2, 2, 4]
    assert counted.count == 2


def test_nodes_are_linen_parameters_and_nnx_attributes() -> None:
    class UsesNode(linen.Module):
        @linen.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            dense = self.param("dense", lambda key: Dense(jax.random.normal(key, (3, 1))))
            return x @ dense.kernel

    model: Any = UsesNode()
    variables = model.init(jax.random.key(0), X)
    assert isinstance(variables["params"]["dense"], Dense)
    assert model.apply(variables, X).shape == (32, 1)

    class Holder(nnx.Module):
        def __init__(self) -> None:
            self.dense = nnx.Param(Dense(jnp.ones((3, 1))))

    graph, state = nnx.split(Holder())
    doubled = nnx.merge(graph, jax.tree.map(lambda leaf: 2 * leaf, state))
    np.testing.assert_array_equal(jax.tree.leaves(nnx.state(doubled))[0], 2 * jnp.ones((3, 1)))
