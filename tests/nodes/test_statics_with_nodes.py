"""No static reaches a node with arrays, and no field the node that is being built, by whatever route."""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import importorskip
from treewright import Module, Static, TrainState, freeze, static
from treewright.errors import NodeInitError, StaticFieldError, StaticWarning

if TYPE_CHECKING:
    from collections.abc import Callable

equinox: Any = importorskip("equinox")
nnx: Any = importorskip("flax", "flax.nnx").nnx


class Net(Module):
    setting: Any = static()


@dataclasses.dataclass(frozen=True)
class OwnHash:
    value: Any

    def __hash__(self) -> int:
        return 1


def capturing(value: Any) -> Callable[[Any], Any]:
    return lambda x: (value, x)


def capturing_deeply(value: Any) -> Callable[[Any], Any]:
    """Closures in one another, more than Python's stack is deep."""
    for _ in range(3000):
        value = capturing(value)
    function: Callable[[Any], Any] = value
    return function


class Dense(Module):
    kernel: Any

    def __call__(self, x: Any) -> Any:
        return self.kernel * x


def dense() -> Dense:
    return Dense(jnp.ones(2))


REACHING: dict[str, Callable[[Any], Any]] = {
    "method": lambda node: node.__call__,
    "jit": lambda node: jax.jit(node.__call__),
    "vmap": lambda node: jax.vmap(node.__call__),
    "grad": lambda node: jax.value_and_grad(node.__call__),
    "checkpoint": lambda node: jax.checkpoint(node.__call__),
    "partial": lambda node: functools.partial(node.__call__, 1),
    "keyword of a partial": lambda node: functools.partial(max, key=node.__call__),
    "lambda": lambda node: lambda x: node.kernel * x,
    "default": lambda node: lambda x, layer=node: layer.kernel * x,
    "closure over a method": lambda node: capturing(node.__call__),
    "closure over a list": lambda node: capturing([{"a": node}]),
    "cache": lambda node: functools.lru_cache(node.__call__),
    "wrapper": lambda node: functools.wraps(node.__call__)(lambda x: x),
    "tuple of methods": lambda node: (1, node.__call__),
    "closures nested deeply": capturing_deeply,
}


@pytest.mark.parametrize("reach", REACHING.values(), ids=REACHING)
def test_a_static_rejects_values_that_contain_nodes_with_arrays(reach: Callable[[Any], Any]) -> None:
    with pytest.raises(
        StaticFieldError, match=r"^Net\.setting is static but reaches a Dense with arrays, through an? "
    ):
        Net(reach(dense()))
    with pytest.raises(StaticFieldError, match=r"^TrainState\.apply_fn is static but reaches a Dense with arrays"):
        TrainState.create(params=dense(), tx=optax.sgd(1.0), apply_fn=reach(dense()))


@pytest.mark.parametrize("reach", (REACHING | {"itself": lambda node: node}).values(), ids=[*REACHING, "itself"])
@pytest.mark.parametrize("is_static", [True, False])
def test_a_field_cannot_refer_to_the_node_under_construction(reach: Callable[[Any], Any], is_static: bool) -> None:
    class Own(Module):
        kernel: Any
        call: Any = static() if is_static else None

        def __init__(self) -> None:
            self.kernel = jnp.ones(2)
            self.call = reach(self)

        def __call__(self, x: Any) -> Any:
            return self.kernel * x

    own = re.escape(Own.__qualname__)
    text = rf"^{own}\.call is static but (holds|reaches) an? {own} that is being built"
    if not is_static:
        text = rf"^{own}\.call is the node itself, one of its methods, or a function that captured it"
    with pytest.raises(StaticFieldError if is_static else NodeInitError, match=text):
        Own()


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)).__call__,
        lambda: capturing(nnx.Linear(2, 2, rngs=nnx.Rngs(0))),
        lambda: capturing(equinox.nn.Linear(2, 2, key=jax.random.key(0))),
    ],
    ids=["method of nnx", "closure over nnx", "closure over equinox"],
)
def test_a_static_rejects_values_that_contain_foreign_nodes(make: Callable[[], Any]) -> None:
    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but reaches a Linear with arrays, through "):
        Net(make())


def test_fixes_in_the_errors_get_gradients() -> None:
    class Free(Module):
        layer: Dense
        call: Any = static()

    class Child(Module):
        call: Any

    free, child = Free(dense(), Dense.__call__), Child(dense().__call__)

    assert jax.grad(lambda net: net.call(net.layer, 3.0).sum())(free).layer.kernel.tolist() == [3.0, 3.0]
    assert jax.grad(lambda net: net.call(3.0).sum())(child).call.__self__.kernel.tolist() == [3.0, 3.0]


def test_methods_and_closures_without_node_arrays_are_valid_statics() -> None:
    for value in (Static(2).__bool__, capturing(freeze(np.ones(2))), operator.itemgetter(0), capturing_deeply(1)):
        assert Net(value).setting is value


def with_default(value: Any) -> Callable[[Any], Any]:
    def function(x: Any, scale: Any = value) -> Any:
        return x * scale

    return function


class Scale:
    """A callable without `__qualname__`, as instances have none."""

    def __init__(self, by: float) -> None:
        self.by = by

    def __call__(self, x: Any) -> Any:
        return x * self.by


def test_a_method_of_a_callable_object_warns_as_the_object_does() -> None:
    with pytest.warns(
        StaticWarning, match=r"holds a Scale, <Scale object>, inside a method, <Scale object> of 1\.0, who"
    ):
        Net(types.MethodType(Scale(2.0), 1.0))


@pytest.mark.parametrize("make", [capturing, with_default, lambda value: functools.partial(capturing(value), 1)])
def test_a_function_that_captured_an_array_warns_that_no_gradient_reaches_it(make: Callable[[Any], Any]) -> None:
    class Net(Module):  # a new one, because a class warns once
        setting: Any = static()

    with pytest.warns(
        StaticWarning, match=r"holds an array, f32\[2\], inside .*jit compiles it in as a constant: no grad"
    ):
        Net(make(jnp.ones(2)))


@pytest.mark.parametrize("make", [OwnHash, lambda value: OwnHash((value,))])
def test_a_frozen_dataclass_with_its_own_hash_must_not_reach_a_node_with_arrays(make: Callable[[Any], Any]) -> None:
    with pytest.raises(
        StaticFieldError, match=r"^Net\.setting is static but (holds an array|reaches a \S+ with arrays)"
    ):
        Net(make(dense()))
