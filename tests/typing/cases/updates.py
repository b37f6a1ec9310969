"""`replace` knows the fields and keeps the class."""

import copy
import sys
from typing import Any, Generic, Self, TypeVar, assert_type

import jax
import jax.numpy as jnp

from treewright import Module, pytree_dataclass, replace, static
from treewright.typed import WithReplace

T = TypeVar("T")


@pytree_dataclass
class Layer:
    kernel: jax.Array
    activation: str = static(default="relu")

    def wider(self) -> Self:
        return replace(self, kernel=jnp.ones(4))


@pytree_dataclass
class Box(Generic[T]):
    value: T


@pytree_dataclass
class State(WithReplace):
    step: jax.Array
    name: str = static(default="state")

    def later(self) -> Self:
        return self.replace(step=self.step + 1)


@pytree_dataclass(kw_only=True)
class Named(State, Generic[T]):
    owner: T


class Net(Module):
    layer: Layer
    width: int = static(default=3)

    def deeper(self) -> Self:
        return self.replace(width=self.width + 1)


class Model(Module):
    layer: Layer

    def __init__(self, width: int) -> None:
        self.layer = Layer(jnp.ones(width))


layer, net, model = Layer(jnp.ones(3)), Net(Layer(jnp.ones(3))), Model(3)
assert_type(replace(layer, kernel=jnp.ones(2)), Layer)
assert_type(layer.wider(), Layer)
assert_type(replace(Box(3), value=4), Box[int])
assert_type(replace(net, width=4), Net)
assert_type(net.replace(width=4), Net)
assert_type(net.deeper(), Net)
assert_type(replace(model, layer=layer), Model)
assert_type(model.replace(layer=layer), Model)
state, named = State(jnp.zeros(())), Named(step=jnp.zeros(()), owner=3)
assert_type(state.replace(name="other"), State)
assert_type(state.later(), State)
assert_type(named.replace(owner=4), Named[int])
if sys.version_info >= (3, 13):
    assert_type(copy.replace(net, width=4), Net)


if sys.version_info >= (3, 13):

    def rejected() -> Any:
        """Never called: each line is an error of the checkers."""
        return [  # pyright: ignore[reportUnknownVariableType]
            replace(layer, kernel="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            replace(layer, nope=1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            replace(net, width="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            replace(net, nope=1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            replace(Box(3), value="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            replace(3, x=1),  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportCallIssue]
            net.replace(width="no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            net.replace(nope=1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
            state.replace(name=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            named.replace(nope=1),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        ]

else:

    def rejected() -> Any:
        """Never called: pyright can't check these before 3.13."""
        return [
            replace(layer, kernel="no"),  # type: ignore[arg-type]
            replace(layer, nope=1),  # type: ignore[call-arg]
            replace(net, width="no"),  # type: ignore[arg-type]
            replace(net, nope=1),  # type: ignore[call-arg]
            replace(Box(3), value="no"),  # type: ignore[arg-type]
            replace(model, nope=1),  # type: ignore[call-arg]
            replace(3, x=1),  # type: ignore[type-var]
        ]
