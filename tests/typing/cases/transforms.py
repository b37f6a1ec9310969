"""JAX's functions under types: results have types, wrong arguments are rejected."""

import functools
from collections.abc import Callable
from typing import Any, assert_type

import jax
import jax.numpy as jnp

from treewright import Module, static
from treewright.typed import (
    cond,
    device_put,
    eval_shape,
    fori_loop,
    grad,
    hessian,
    jacfwd,
    jacrev,
    jit,
    jit_method,
    remat,
    scan,
    switch,
    tree_map,
    value_and_grad,
    vmap,
    while_loop,
)


class Base(Module):
    w: jax.Array

    @jit
    def step(self, x: jax.Array) -> jax.Array:
        return self.w + x

    @jit_method
    def two(self, x: jax.Array) -> jax.Array:
        return self.w - x

    @jit_method(static_argnames="n")
    def three(self, x: jax.Array, n: int = 1) -> jax.Array:
        return self.w * x * n

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w * x


class Sub(Base):
    scale: int = static(default=2)

    @jit_method
    def two(self, x: jax.Array) -> jax.Array:
        return self.w - x * self.scale


@jit
def scaled(x: jax.Array, by: float = 1.0) -> jax.Array:
    return x * by


@jit(static_argnames=("name",), donate_argnums=())
def named(net: Base, name: str = "a") -> jax.Array:
    return net.w * len(name)


@remat
def loss(net: Base, x: jax.Array) -> jax.Array:
    return jnp.sum(net(x))


def loss_aux(net: Base, x: jax.Array) -> tuple[jax.Array, dict[str, jax.Array]]:
    return jnp.sum(net(x)), {"x": x}


def squares(x: jax.Array) -> jax.Array:
    return x**2


def count(i: Any, net: Base) -> Base:
    return net.replace(w=net.w + 1)


def walk(net: Base, item: jax.Array) -> tuple[Base, jax.Array]:
    return net, item


def anything(x: Any) -> Any:
    return x


def large(net: Base) -> jax.Array:
    return jnp.max(net.w) > 100.0


def halved(net: Base) -> Base:
    return net.replace(w=net.w / 2)


net, x = Base(jnp.ones(3)), jnp.ones(3)
assert_type(net.step(x), jax.Array)
assert_type(net.step.lower(net, x), jax.stages.Lowered)
assert_type(Sub(x).step(x=x), jax.Array)
assert_type(net.two(x=x), jax.Array)
assert_type(Sub(x).two(x), jax.Array)
assert_type(net.three(x, n=3), jax.Array)
assert_type(scaled(x, by=2.0), jax.Array)
assert_type(scaled.trace(x), jax.stages.Traced)
assert_type(scaled.eval_shape(x), jax.Array)
assert_type(named(net, name="b"), jax.Array)
assert_type(jit(net.__call__)(x), jax.Array)
assert_type(grad(loss)(net, x), Base)
assert_type(grad(loss, 1)(net, x), jax.Array)
assert_type(grad(loss, argnums=1)(net, x), jax.Array)
assert_type(grad(loss, argnums=(0, 1))(net, x), tuple[Base, jax.Array])
assert_type(grad(loss_aux, has_aux=True)(net, x), tuple[Base, dict[str, jax.Array]])
assert_type(value_and_grad(loss)(net, x), tuple[jax.Array, Base])
assert_type(value_and_grad(loss, 1)(net, x), tuple[jax.Array, jax.Array])
assert_type(value_and_grad(loss, argnums=(0, 1))(net, x), tuple[jax.Array, tuple[Base, jax.Array]])
assert_type(value_and_grad(loss_aux, has_aux=True)(net, x), tuple[tuple[jax.Array, dict[str, jax.Array]], Base])
assert_type(jit(grad(loss))(net, x), Base)
assert_type(grad(jit(loss))(net, x), Base)
assert_type(jacfwd(squares)(x), jax.Array)
assert_type(jacrev(squares)(x), jax.Array)
assert_type(hessian(squares)(x), jax.Array)
assert_type(eval_shape(loss, net, x), jax.Array)
assert_type(device_put(net), Base)
assert_type(tree_map(jnp.negative, net), Base)
assert_type(cond(True, loss, loss, net, x), jax.Array)
assert_type(switch(0, [loss, loss], net, x), jax.Array)
assert_type(fori_loop(0, 3, count, net), Base)


@functools.partial(jit, static_argnames="times")
def repeated(net: Base, times: int) -> jax.Array:
    return net.w * times


assert_type(repeated(net, times=3), jax.Array)

# Functions without annotations: their arguments have no known type, so checkers reject nothing. The gradient has the
# type of the argument.
assert_type(grad(lambda net: loss(net, x))(net), Base)
assert_type(grad(lambda w: jnp.sum(w**2))(x), jax.Array)
assert_type(value_and_grad(lambda net: loss(net, x))(net), tuple[jax.Array, Base])
assert_type(value_and_grad(lambda net: (loss(net, x), x), has_aux=True)(net), tuple[tuple[jax.Array, jax.Array], Base])
assert_type(jit(grad(lambda net: loss(net, x)))(net), Base)
slope_of: Callable[[Base, jax.Array], Base] = grad(loss)
assert_type(tree_map(lambda leaf: 2 * leaf, net), Base)
assert_type(tree_map(lambda leaf, slope: leaf - 0.1 * slope, net, net), Base)
assert_type(tree_map(lambda a, b, c: a + b + c, net, net, net), Base)
assert_type(cond(True, lambda net: loss(net, x), lambda net: net.w.sum(), net), jax.Array)
assert_type(cond(True, lambda net, x: net(x), lambda net, x: net.w, net, x), jax.Array)
assert_type(fori_loop(0, 3, lambda i, net: net, net), Base)
slopes = jacfwd(lambda net: net.w * 3)(net)
curvature = hessian(lambda x: jnp.sum(x**2))(x)

assert_type(vmap(net)(x), jax.Array)
assert_type(vmap(lambda row: net(row))(x), jax.Array)
assert_type(vmap(lambda a, b: a + b)(x, x), Any)
assert_type(vmap(squares)(x=x), jax.Array)
assert_type(vmap(count)(x, net), Base)
assert_type(vmap(anything)(x), Any)
assert_type(vmap(loss, in_axes=(None, 0))(net, jnp.ones((2, 3))), jax.Array)
assert_type(scan(walk, net, x), tuple[Base, jax.Array])
assert_type(while_loop(large, halved, net), Base)


def rejected() -> list[Any]:
    """Never called: each line is an error of the checkers."""
    scan(walk, x, x)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return [  # pyright: ignore[reportUnknownVariableType]
        net.step("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        net.step.lower(net, "no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        net.two("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        net.three(x, n="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        scaled("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        scaled.lower("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        named(net, 3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        grad(loss)(net, "no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        repeated(net, time=3),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        jit(grad(loss))(net, "no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        grad(loss)(x, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        value_and_grad(loss)(net),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        cond(True, loss, loss, x, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        cond(True, loss, squares, net, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        switch(0, [squares, squares], net),  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
        while_loop(large, halved, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        vmap(loss)(net, "no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        fori_loop(0, 3, count, x),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]


def rejected_class() -> Any:
    """Also never called."""

    class Wrong(Base):
        @jit_method
        def two(self, x: str) -> jax.Array:  # type: ignore[override]  # pyright: ignore[reportIncompatibleMethodOverride]
            return self.w

    return Wrong
