"""JAX's functions of generic functions, protocols and methods that override others."""

import abc
from collections.abc import Callable
from typing import Protocol, TypeVar, assert_type

import jax
import jax.numpy as jnp
import optax

from treewright import Module, TrainState
from treewright.typed import cond, grad, jit, jit_method, remat, scan, switch, tree_map, value_and_grad


class Net(Module):
    w: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w * x


class Wide(Net):
    b: jax.Array


class Scores(Protocol):
    def __call__(self, x: jax.Array) -> jax.Array: ...


M = TypeVar("M", bound=Module)
S = TypeVar("S", bound=Scores)
T = TypeVar("T")


def size(model: M, x: jax.Array, like: M | None = None) -> jax.Array:
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(like or model)), jnp.sum(x))


def score(model: S, x: jax.Array, like: S | None = None) -> jax.Array:
    return jnp.sum((like or model)(x))


def anything(tree: T, x: jax.Array, like: T | None = None) -> jax.Array:
    return jnp.sum(x) + 0 * len(jax.tree.leaves((tree, like)))


def of_protocol(model: Scores, x: jax.Array) -> jax.Array:
    return jnp.sum(model(x))


def with_aux(model: M, x: jax.Array) -> tuple[jax.Array, M]:
    return jnp.sum(x), model


def itself(model: M, x: jax.Array) -> M:
    return tree_map(lambda leaf: leaf + x, model)


def walk(carry: M, x: jax.Array) -> tuple[M, jax.Array]:
    return carry, x


def slope(model: M, x: jax.Array) -> M:
    return grad(size)(model, x)


def both(loss: Callable[[M, jax.Array], jax.Array], model: M, x: jax.Array) -> tuple[jax.Array, M]:
    return value_and_grad(loss)(model, x)


def stepped(state: TrainState[M], x: jax.Array) -> TrainState[M]:
    return state.apply_gradients(grads=grad(size)(state.params, x))


net, wide, x = Net(jnp.ones(3)), Wide(jnp.ones(3), jnp.ones(3)), jnp.ones(3)
assert_type(grad(size)(net, x), Net)
assert_type(grad(size)(wide, x), Wide)
assert_type(grad(score)(net, x), Net)
assert_type(grad(anything)(net, x), Net)
assert_type(grad(size, argnums=1)(net, x), jax.Array)
assert_type(grad(with_aux, has_aux=True)(net, x), tuple[Net, Net])
assert_type(grad(of_protocol)(net, x), Scores)
assert_type(value_and_grad(size)(net, x), tuple[jax.Array, Net])
assert_type(jit(grad(size))(net, x), Net)
assert_type(grad(jit(size))(net, x), Net)
assert_type(grad(remat(size))(net, x), Net)
assert_type(jit(value_and_grad(size))(net, x), tuple[jax.Array, Net])
assert_type(jit(itself)(net, x), Net)
assert_type(scan(walk, net, x), tuple[Net, jax.Array])
assert_type(slope(wide, x), Wide)
assert_type(both(size, net, x), tuple[jax.Array, Net])
assert_type(stepped(TrainState(params=net, tx=optax.sgd(0.1)), x).params, Net)

# By position and by name, as JAX accepts them
assert_type(grad(with_aux, 0, True)(net, x), tuple[Net, Net])
assert_type(tree_map(f=jnp.negative, tree=net), Net)
assert_type(cond(pred=True, true_fun=lambda: x, false_fun=lambda: x), jax.Array)
assert_type(switch(index=0, branches=[lambda: x]), jax.Array)
assert_type(remat(fun=size, prevent_cse=False, static_argnums=())(net, x), jax.Array)


class Distribution(Module, abc.ABC):
    @abc.abstractmethod
    def log_prob(self, x: jax.Array) -> jax.Array:
        """The logarithm of the density."""

    def mean(self, times: int = 1) -> jax.Array:
        return jnp.zeros(3) * times

    @jit_method(inline=True)
    def variance(self) -> jax.Array:
        return jnp.ones(3)


class Normal(Distribution):
    scale: jax.Array

    @jit_method
    def log_prob(self, x: jax.Array) -> jax.Array:
        return -self.scale * x**2

    @jit_method(static_argnames="times")
    def mean(self, times: int = 1) -> jax.Array:
        return self.scale * times

    def variance(self) -> jax.Array:  # type: ignore[override]  # for mypy a jitted method is still a method
        return self.scale**2


class Shifted(Normal):
    @jit_method
    def log_prob(self, x: jax.Array) -> jax.Array:
        return -self.scale * (x - 1) ** 2


normal = Shifted(x)
assert_type(normal.log_prob(x), jax.Array)
assert_type(normal.mean(times=2), jax.Array)
assert_type(normal.variance(), jax.Array)


def rejected() -> list[object]:
    """Never called: each line is an error of the checkers."""
    return [  # pyright: ignore[reportReturnType, reportUnknownVariableType]
        grad(size)(net, "no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        normal.log_prob("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        normal.mean(time=2),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        both(size, net, 3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
