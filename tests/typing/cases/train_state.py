"""`TrainState` knows the type of its parameters."""

from typing import Any, Generic, Self, TypeVar, assert_type

import jax
import jax.numpy as jnp
import optax

from treewright import Module, TrainState
from treewright.typed import grad, jit

P = TypeVar("P")


class Net(Module):
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w * x


class WithStats(TrainState[Net]):
    stats: jax.Array

    def forget(self) -> Self:
        return self.replace(stats=jnp.zeros(3))


class Counting(TrainState[Net]):
    def steps(self) -> int:
        return int(self.step)


class Averaged(TrainState[P], Generic[P]):
    average: P


def loss(net: Net, x: jax.Array) -> jax.Array:
    return jnp.sum(net(x))


@jit
def step(state: TrainState[Net], x: jax.Array) -> TrainState[Net]:
    return state.apply_gradients(grads=grad(loss)(state.params, x))


net, tx, x = Net(jnp.ones(3)), optax.adamw(1e-3), jnp.ones(3)
assert_type(TrainState.create(params=net, tx=tx), TrainState[Net])
assert_type(TrainState.create(params=net, tx=tx, apply_fn=loss).params, Net)
assert_type(TrainState(params=net, tx=tx).params, Net)
assert_type(TrainState[Net].create(params=net, tx=tx).step, jax.Array)
assert_type(TrainState.create(params={"w": x}, tx=optax.chain(tx)).params, dict[str, jax.Array])
assert_type(WithStats.create(params=net, tx=tx, stats=x), WithStats)
assert_type(WithStats.create(params=net, tx=tx, stats=x).forget().params, Net)
assert_type(Counting.create(params=net, tx=tx).steps(), int)
assert_type(Averaged[Net].create(params=net, tx=tx, average=net).average, Net)
assert_type(step(TrainState.create(params=net, tx=tx), x).params.w, jax.Array)
assert_type(WithStats.create(params=net, tx=tx, stats=x).apply_gradients(grads=net, stats=x), WithStats)
assert_type(TrainState.create(params=net, tx=tx).apply_gradients(grads=net, buffers=net).params, Net)
assert_type(TrainState.create(params=net, tx=tx).replace(step=3), TrainState[Net])


def rejected() -> list[Any]:
    """Never called: each line is an error of the checkers."""
    state = TrainState.create(params=net, tx=tx)
    state.step = 3  # type: ignore[arg-type]  # pyright: ignore[reportAttributeAccessIssue]
    state.params = net  # type: ignore[arg-type]  # pyright: ignore[reportAttributeAccessIssue]
    # mypy can't know the fields of a subclass.
    TrainState.create(params=net, tx=tx, kye=3)  # pyright: ignore[reportCallIssue]
    WithStats.create(params=net, tx=tx, stat=x)  # pyright: ignore[reportCallIssue]
    WithStats.create(params=net, tx=tx, stats=3)  # pyright: ignore[reportArgumentType]
    WithStats.create(params=net, tx=tx)  # pyright: ignore[reportCallIssue]
    return [  # pyright: ignore[reportUnknownVariableType]
        TrainState.create(params=net, tx=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        TrainState.create(params=net),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        TrainState[Net].create(params=3, tx=tx),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Counting.create(params=3, tx=tx),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        TrainState.create(params=net, tx=tx).apply_gradients(grads=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        TrainState.create(params=net, tx=tx).apply_gradients(grads=net, buffers=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        step(net, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        step(TrainState.create(params=x, tx=tx), x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
