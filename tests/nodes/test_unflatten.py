"""Unflattening stores the pair: any leaves pass, and no code of the class runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, Static, buffer, field, pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable

# JAX leaves these constructors untyped.
Spec: Any = jax.sharding.PartitionSpec
Shape: Any = jax.ShapeDtypeStruct


class Calls:
    """What the guarded classes below ran since the last `clear`."""

    seen: tuple[str, ...] = ()

    @classmethod
    def add(cls, name: str) -> None:
        cls.seen = (*cls.seen, name)


def as_vector(value: Any) -> Any:
    Calls.add("converter")
    if not isinstance(value, np.ndarray | jax.Array) or value.ndim != 1:
        raise TypeError(f"not a vector: {value!r}")
    return value


def made_anew() -> Any:
    Calls.add("default_factory")
    return jnp.zeros(2)


class Guards:
    """Refuses everything that a transformation puts into a node but vectors."""

    weight: Any
    bias: Any

    def __check_init__(self) -> None:
        Calls.add("__check_init__")
        as_vector(self.bias)


class GuardsAfterInit(Guards):
    def __post_init__(self) -> None:
        Calls.add("__post_init__")
        as_vector(self.weight)


@pytree_dataclass
class GuardedData(GuardsAfterInit):
    weight: Any = field(converter=as_vector)
    bias: Any = field(default_factory=made_anew, converter=as_vector)
    name: str = static(default="guarded", converter=str.lower)


class GuardedModule(GuardsAfterInit, Module):
    weight: Any = field(converter=as_vector)
    bias: Any = field(default_factory=made_anew, converter=as_vector)
    name: str = static(default="guarded", converter=str.lower)


class GuardedInit(Guards, Module):
    weight: Any = field(converter=as_vector)
    bias: Any = field(default_factory=made_anew, converter=as_vector)
    name: str = static(default="guarded")

    def __init__(self, size: int) -> None:
        Calls.add("__init__")
        self.weight = jnp.arange(1.0, size + 1.0)


MAKERS: dict[str, Callable[[], Any]] = {
    "decorated": lambda: GuardedData(jnp.array([1.0, 2.0])),
    "Module": lambda: GuardedModule(jnp.array([1.0, 2.0])),
    "custom __init__": lambda: GuardedInit(2),
}


@pytest.fixture(params=list(MAKERS.values()), ids=list(MAKERS))
def guarded(request: pytest.FixtureRequest) -> Any:
    node = request.param()
    Calls.seen = ()
    return node


def energy(node: Any) -> Any:
    return jnp.sum(node.weight**2) + jnp.sum(node.bias)


def adam(node: Any) -> Any:
    optimizer = optax.adam(0.1)
    updates, _ = optimizer.update(jax.grad(energy)(node), optimizer.init(node), node)
    return optax.apply_updates(node, updates)


def rebuilt(node: Any) -> Any:
    leaves, treedef = jax.tree.flatten(node)
    return jax.tree.unflatten(treedef, leaves)


def weight_of(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda node: make(node).weight


# Each operation with what it gives for weight [1, 2] and bias [0, 0].
OPERATIONS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "jit": (jax.jit(energy), 5.0),
    "grad": (weight_of(jax.grad(energy)), [2.0, 4.0]),
    "vmap": (jax.vmap(lambda one: one.weight * 3), [3.0, 6.0]),
    "vmap out": (weight_of(jax.vmap(lambda one: jax.tree.map(jnp.negative, one))), [-1.0, -2.0]),
    "lower": (lambda node: jax.jit(energy).lower(node).compile()(node), 5.0),
    "scan carry": (
        weight_of(
            lambda node: jax.lax.scan(lambda c, _: (jax.tree.map(lambda x: 2 * x, c), None), node, None, length=2)[0]
        ),
        [4.0, 8.0],
    ),
    "scan xs": (lambda node: jax.lax.scan(lambda total, one: (total + one.weight, None), 0.0, node)[0], 3.0),
    "cond": (weight_of(lambda node: jax.lax.cond(True, lambda n: n, lambda n: n, node)), [1.0, 2.0]),
    "eval_shape": (weight_of(lambda node: jax.tree.map(lambda s: s.shape[0], jax.eval_shape(lambda n: n, node))), 2),
    "tree.map": (weight_of(lambda node: jax.tree.map(jnp.square, node)), [1.0, 4.0]),
    "tree.map to str": (weight_of(lambda node: jax.tree.map(str, node)), "[1. 2.]"),
    "tree.map to None": (weight_of(lambda node: jax.tree.map(lambda _: None, node)), None),
    "tree.map to object()": (lambda node: type(jax.tree.map(lambda _: object(), node).weight), object),
    "tree_map_with_path": (
        weight_of(lambda node: jax.tree_util.tree_map_with_path(lambda path, _: jax.tree_util.keystr(path), node)),
        ".weight",
    ),
    "tree.transpose": (
        lambda node: (
            jax.tree.transpose(jax.tree.structure(node), None, jax.tree.map(lambda x: [x[0], 7], node))[0].weight
        ),
        1.0,
    ),
    "flatten and unflatten": (weight_of(rebuilt), [1.0, 2.0]),
    "optax.adam": (weight_of(adam), [0.9, 1.9]),
}


@pytest.mark.parametrize(("operation", "expected"), OPERATIONS.values(), ids=OPERATIONS)
def test_no_operation_runs_code_of_the_class(guarded: Any, operation: Callable[[Any], Any], expected: Any) -> None:
    result = operation(guarded)

    assert Calls.seen == ()
    if isinstance(result, jax.Array):
        np.testing.assert_allclose(result, expected, rtol=1e-5)
    else:
        assert result == expected


def test_explain_cache_misses_runs_no_code_of_the_class(guarded: Any) -> None:
    jitted = jax.jit(lambda node: energy(node))
    with jax.explain_cache_misses(True):
        jitted(guarded)
        jitted(jax.tree.map(lambda leaf: leaf.astype(jnp.int32), guarded))

    assert Calls.seen == ()


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_constructor_does_run_them(make: Callable[[], Any]) -> None:
    Calls.seen = ()

    make()

    assert {"converter", "default_factory", "__check_init__"} <= set(Calls.seen)


# Any leaves


PLACEHOLDERS = {
    "object()": object(),
    "str": "text",
    "int": 0,
    "NaN": float("nan"),
    "ellipsis": ...,
    "a class": int,
    "a function": as_vector,
    "ShapeDtypeStruct": Shape((2,), jnp.float32),
    "PartitionSpec": Spec("data", None),
    "numpy": np.zeros(3),
    "another class's node": Static("text"),
    "a list": [1, 2],
}


@pytest.mark.parametrize("placeholder", PLACEHOLDERS.values(), ids=PLACEHOLDERS)
def test_any_leaf_passes_through_unflatten(guarded: Any, placeholder: object) -> None:
    treedef = jax.tree.structure(guarded)

    node = jax.tree.unflatten(treedef, [placeholder, None])

    assert type(node) is type(guarded)
    assert node.weight is placeholder
    assert node.bias is None
    assert node.name == "guarded"
    assert Calls.seen == ()
    repr(node)
    leaves, again = jax.tree.flatten(node, is_leaf=lambda leaf: leaf is placeholder or leaf is None)
    assert leaves[0] is placeholder
    assert leaves[1] is None
    assert again == treedef


# Specs as in_axes


@pytree_dataclass
class Layer:
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


class ModuleLayer(Module):
    kernel: Any
    bias: Any = buffer()
    activation: str = static(default="tanh")


@pytest.mark.parametrize("make", [Layer, ModuleLayer])
def test_in_axes_and_out_axes_are_written_as_calls_of_the_class(make: Any) -> None:
    layer = make(kernel=jnp.arange(24.0).reshape(4, 3, 2), bias=jnp.ones(2), activation="relu")

    def doubled(one: Any) -> Any:
        assert one.kernel.shape == (3, 2)
        return make(2 * one.kernel, one.bias + 1, "relu")

    axes = make(kernel=0, bias=None, activation="relu")
    result = jax.vmap(doubled, in_axes=(axes,), out_axes=make(kernel=2, bias=None, activation="relu"))(layer)

    np.testing.assert_array_equal(result.kernel, jnp.moveaxis(2 * layer.kernel, 0, 2))
    np.testing.assert_array_equal(result.bias, [2.0, 2.0])


@pytest.mark.parametrize("make", [Layer, ModuleLayer])
def test_in_axes_can_stop_at_an_inner_node(make: Any) -> None:
    outer = make(make(jnp.ones((4, 2)), jnp.arange(8.0).reshape(4, 2)), make(jnp.ones(3), None))

    total = jax.vmap(lambda one: one.kernel.bias.sum() + one.bias.kernel.sum(), in_axes=(make(0, None),))(outer)

    np.testing.assert_array_equal(total, [4.0, 8.0, 12.0, 16.0])


AXES: dict[str, Callable[[Any], Any]] = {
    "tree.map": lambda node: jax.tree.map(lambda _: 0, node),
    "tree_unflatten": lambda node: node.tree_unflatten(node.tree_flatten()[1], (0, 0)),
    "tree.unflatten": lambda node: jax.tree.unflatten(jax.tree.structure(node), (0, 0)),
    "a prefix": lambda _: 0,
}


@pytest.mark.parametrize("axes", AXES.values(), ids=AXES)
def test_in_axes_pass_by_converters_and_checks_that_would_refuse_them(guarded: Any, axes: Callable[[Any], Any]) -> None:
    stacked = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf + 1]), guarded)

    total = jax.vmap(energy, in_axes=(axes(stacked),))(stacked)

    np.testing.assert_array_equal(total, [5.0, 15.0])
    assert Calls.seen == ()
