"""flax: state dicts and bytes of nodes, and linen and nnx parameters inside `TrainState`."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, TrainState, pytree_dataclass, static

flax = pytest.importorskip("flax")

from flax import linen, nnx, serialization  # noqa: E402  flax first

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


class Dense(Module):
    kernel: jax.Array
    bias: jax.Array | None = None
    activation: str = static(default="relu")


@pytree_dataclass
class Net:
    layers: list[Dense]
    named: dict[str, Any]


def net(scale: float, activation: str = "relu") -> Net:
    layer = Dense(scale * jnp.ones((2, 3)), scale * jnp.ones(3), activation)
    return Net([layer, Dense(scale * jnp.ones((3, 1)))], {"scale": (scale, 1.0)})


def test_a_state_dict_has_the_children_by_name_and_no_statics() -> None:
    found = serialization.to_state_dict(net(2.0))

    assert jax.tree.map(lambda leaf: jnp.shape(leaf), found) == {
        "layers": {"0": {"kernel": (2, 3), "bias": (3,)}, "1": {"kernel": (3, 1), "bias": None}},
        "named": {"scale": {"0": (), "1": ()}},
    }


def test_bytes_come_back_into_a_node_with_its_own_statics() -> None:
    restored = serialization.from_bytes(net(0.0, "gelu"), serialization.to_bytes(net(2.0, "relu")))

    assert jax.tree.structure(restored) == jax.tree.structure(net(0.0, "gelu"))
    jax.tree.map(np.testing.assert_array_equal, jax.tree.leaves(restored), jax.tree.leaves(net(2.0)))


def test_flax_may_be_imported_first() -> None:
    program = (
        "from flax.serialization import to_state_dict\n"
        "from treewright import Module\n"
        "print(to_state_dict(type('Net', (Module,), {'__annotations__': {'x': float}})(2.0)))\n"
    )

    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert run.stdout == "{'x': 2.0}\n", run.stderr


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


def test_nnx_parameters_train_in_our_state() -> None:
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


def test_a_node_is_a_parameter_of_linen_and_an_attribute_of_nnx() -> None:
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

    graph, held = nnx.split(Holder())
    doubled = nnx.merge(graph, jax.tree.map(lambda leaf: 2 * leaf, held))
    np.testing.assert_array_equal(jax.tree.leaves(nnx.state(doubled))[0], 2 * jnp.ones((3, 1)))
