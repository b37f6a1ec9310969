"""A loop knows the types of its state, its inputs and its output."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
import optax

from treewright import Module, TrainState, loop, max_traces
from treewright.typed import value_and_grad


class Net(Module):
    w: jax.Array


def loss(net: Net, x: jax.Array) -> jax.Array:
    return jnp.sum(net.w * x)


def step(state: TrainState[Net], x: jax.Array, *, scale: float = 1.0) -> tuple[TrainState[Net], jax.Array]:
    value, grads = value_and_grad(loss)(state.params, x)
    return state.apply_gradients(grads=grads), scale * value


def count(number: jax.Array) -> tuple[jax.Array, None]:
    return number + 1, None


x = jnp.ones(3)
state = TrainState.create(params=Net(x), tx=optax.sgd(0.1))
run = loop(step, state, donate=False)
assert_type(run(x), jax.Array)
assert_type(run(x, scale=2.0), jax.Array)
assert_type(run.state, TrainState[Net])
assert_type(run.state.params.w, jax.Array)
assert_type(loop(max_traces(1)(step), state, donate=False)(x), jax.Array)
run.state = state


def trained(run: loop[TrainState[Net], [jax.Array], jax.Array]) -> Net:
    run(x)
    return run.state.params


def rejected() -> list[Any]:
    """Never called: each line is an error of the checkers."""
    loop(step, Net(x))(x)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    run.state = Net(x)  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    return [  # pyright: ignore[reportUnknownVariableType]
        run(),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        run("x"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        run(x, rate=1.0),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        loop(loss, Net(x)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        run(x).shapes,  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    ]
