"""By each route from a static, an object or container that can change is rejected or causes a warning."""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import random
import types
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import importorskip
from treewright import Module, Static, freeze, static
from treewright.errors import StaticFieldError, StaticWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

equinox: Any = importorskip("equinox")
linen: Any = importorskip("flax", "flax.linen").linen
orbax: Any = importorskip("orbax.checkpoint")


class Net(Module):
    setting: Any = static()


class Kept(Module):
    setting: Any = static(identity=True)


class Frozen(Module):
    setting: Any = static(converter=freeze)


class Pair(NamedTuple):
    first: Any


@dataclasses.dataclass(frozen=True)
class Data:
    value: Any


@dataclasses.dataclass(frozen=True, eq=False)
class ByIdentity:
    value: Any


@dataclasses.dataclass(frozen=True)
class OwnHash:
    value: Any

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True, eq=False)
class OwnEquality:
    value: Any

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return 1


def capturing(value: Any) -> Callable[[Any], Any]:
    return lambda x: (x, value)


def with_default(value: Any) -> Callable[[Any], Any]:
    def function(x: Any, v: Any = value) -> Any:
        return x, v

    return function


def with_keyword(value: Any) -> Callable[[Any], Any]:
    def function(x: Any, *, v: Any = value) -> Any:
        return x, v

    return function


def importable(x: Any) -> Any:
    return x


def default_of_an_importable_function(value: Any) -> Any:
    importable.__defaults__ = (value,)
    return importable


def wrapping(function: Any, wrapped: Any) -> Any:
    function.__wrapped__ = wrapped
    return function


@pytest.fixture(autouse=True)
def _no_default() -> Iterator[None]:
    yield
    importable.__defaults__ = None


# How a static reaches a value of any kind, and whether its key follows the value.
BY_VALUE: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "tuple": lambda value: (1, (value,)),
    "named tuple": Pair,
    "frozen dataclass": Data,
    "partial": lambda value: functools.partial(max, value),
    "keyword of a partial": lambda value: functools.partial(max, key=value),
}
NOT_FOLLOWED: dict[str, Callable[[Any], Any]] = {
    "closure": capturing,
    "closure of a closure": lambda value: capturing(capturing(value)),
    "default": with_default,
    "keyword default": with_keyword,
    "default of an importable function": default_of_an_importable_function,
    "jit of a closure": lambda value: jax.jit(capturing(value)),
    "vmap of a closure": lambda value: jax.vmap(capturing(value)),
    "cache of a closure": lambda value: functools.lru_cache(capturing(value)),
    "partial of a closure": lambda value: functools.partial(capturing(value), 1),
    "wrapper of a closure": lambda value: functools.wraps(capturing(value))(lambda x: x),
    "frozen dataclass without ==": ByIdentity,
    "frozen dataclass with its own hash": OwnHash,
    "frozen dataclass with its own ==": OwnEquality,
    "tuple of a closure": lambda value: (capturing(value),),
}


class Inner:
    def __init__(self, k: int) -> None:
        self.k = k

    def act(self, x: Any) -> Any:
        return x * self.k


class Equal(Inner):
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.k == other.k

    def __hash__(self) -> int:
        return hash(self.k)


class Property:
    def __init__(self) -> None:
        self._k = 2

    @property
    def k(self) -> int:
        return self._k

    @k.setter
    def k(self, value: int) -> None:
        self._k = value

    def act(self, x: Any) -> Any:
        return x * self.k


class OnTheClass:
    width = 2

    def act(self, x: Any) -> Any:
        return x * self.width


class Slot:
    __slots__ = ("k",)

    def act(self, x: Any) -> Any:
        return x, self


OBJECTS: dict[str, Callable[[], Any]] = {
    "object": lambda: Inner(2),
    "object with ==": lambda: Equal(2),
    "property with a setter": Property,
    "attribute of the class": OnTheClass,
    "slot without a value": Slot,
}
METHODS: dict[str, Callable[[Any], Any]] = {
    "method": lambda value: value.act,
    "jit of a method": lambda value: jax.jit(value.act),
    "vmap of a method": lambda value: jax.vmap(value.act),
    "checkpoint of a method": lambda value: jax.checkpoint(value.act),
    "partial of a method": lambda value: functools.partial(value.act, 1),
    "cache of a method": lambda value: functools.lru_cache(value.act),
    "frozenset": lambda value: frozenset({value}),
    "schedule of optax": lambda value: optax.scale_by_schedule(value.act),
    "attribute of a function": lambda value: wrapping(lambda x: x, value.act),
}
CONTAINERS: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "set": lambda: {1},
    "deque": lambda: collections.deque([1]),
    "numpy array": lambda: np.ones(2),
    "Namespace": lambda: argparse.Namespace(a=1),
    "SimpleNamespace": lambda: types.SimpleNamespace(a=1),
    "items of a dict": lambda: {"a": 1}.items(),
}
VIEWS: dict[str, Callable[[], Any]] = {"values of a dict": lambda: {"a": 1}.values()}  # Python gives it a hash
GENERATORS: dict[str, Callable[[], Any]] = {
    "random generator": lambda: np.random.default_rng(0),
    "random generator of Python": lambda: random.Random(0),
    "iterator": lambda: iter([1]),
}
ALL_ROUTES = BY_VALUE | NOT_FOLLOWED


def fresh_class() -> Any:
    """A class that has not warned yet."""
    return type("Fresh", (Module,), {"__annotations__": {"setting": Any}, "setting": static()})


@pytest.mark.parametrize("make", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("route", (ALL_ROUTES | METHODS).values(), ids=ALL_ROUTES | METHODS)
def test_an_object_that_can_change_warns_by_every_route(route: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    value, cls = make(), fresh_class()

    with pytest.warns(
        StaticWarning, match=rf"holds an? {type(value).__name__}, (?s:.*), whose attributes can be assig"
    ):
        cls(route(value))
    with warnings.catch_warnings(action="error"):
        cls(route(make()))
        Kept(route(make()))


@pytest.mark.parametrize("make", (CONTAINERS | VIEWS | GENERATORS).values(), ids=CONTAINERS | VIEWS | GENERATORS)
@pytest.mark.parametrize("route", BY_VALUE.values(), ids=BY_VALUE)
def test_a_container_is_rejected_where_the_key_would_be_its_value(
    route: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but holds an? "):
        Net(route(make()))


@pytest.mark.parametrize("make", (CONTAINERS | GENERATORS).values(), ids=CONTAINERS | GENERATORS)
@pytest.mark.parametrize("route", NOT_FOLLOWED.values(), ids=NOT_FOLLOWED)
def test_a_container_warns_where_no_key_follows_it(route: Callable[[Any], Any], make: Callable[[], Any]) -> None:
    cls = fresh_class()
    if route is OwnHash and make in GENERATORS.values():  # hashable, so the fields are compared
        with pytest.raises(StaticFieldError, match="It changes when it is used"):
            cls(route(make()))
        return

    with pytest.warns(StaticWarning, match=r"holds an? (?s:.*)which can change in place"):
        cls(route(make()))
    with warnings.catch_warnings(action="error"):
        cls(route(make()))
        Kept(route(make()))


@pytest.mark.parametrize("name", ["itself", "tuple", "named tuple", "frozen dataclass"])
@pytest.mark.parametrize("make", CONTAINERS.values(), ids=CONTAINERS)
def test_freeze_accepts_what_is_rejected_by_value(name: str, make: Callable[[], Any]) -> None:
    expected = contextlib.nullcontext()
    if type(make()).__name__.startswith("dict_"):
        expected = pytest.raises((TypeError, StaticFieldError))  # type: ignore[assignment]  # both are context managers

    with warnings.catch_warnings(action="error"), expected:
        Frozen(BY_VALUE[name](make()))


def test_the_warning_names_the_container_its_function_and_two_fixes() -> None:
    with pytest.warns(StaticWarning) as caught:
        fresh_class()(capturing([1]))

    first, constant, change, line = str(caught[0].message).splitlines()
    assert first.startswith("Fresh.setting is static and holds a list, [1], inside a function, <")
    assert first.endswith("jit compares it by identity: it ignores later changes.")
    assert constant == "If it is constant, use a tuple."
    assert (change, line) == ("If it is meant to change, declare:", "  setting: ... = static(identity=True)")


class Stateless:
    def __call__(self, x: Any) -> Any:
        return x


QUIET: dict[str, Callable[[], Any]] = {
    "optimiser with a mask": lambda: optax.masked(optax.adam(1e-3), {"a": True}),
    "chain with a schedule": lambda: optax.chain(optax.clip(1.0), optax.adamw(optax.cosine_decay_schedule(1.0, 10))),
    "layer of linen": lambda: linen.Dense(3),
    "method of linen": lambda: linen.Dense(3).apply,
    "layer of equinox without arrays": lambda: equinox.nn.Dropout(0.5),
    "function of equinox": lambda: equinox.nn.Lambda(jax.nn.relu),
    "object of an installed package": lambda: orbax.StandardCheckpointHandler(),
    "closure over an array": lambda: capturing(jnp.ones(2)),
    "closure over a frozen value": lambda: capturing(freeze({"a": [1]})),
    "closure over a node": lambda: capturing(Static(1)),
    "object without attributes": Stateless,
    "method of a list": lambda: [1].append,
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_libraries_and_constants_do_not_warn(make: Callable[[], Any]) -> None:
    with warnings.catch_warnings(action="error"):
        fresh_class()(make())


@pytest.mark.parametrize("make", [OwnHash, lambda value: OwnHash((value,))])
def test_a_frozen_dataclass_with_its_own_hash_must_not_reach_a_node_with_arrays(make: Callable[[Any], Any]) -> None:
    class Dense(Module):
        kernel: Any

    with pytest.raises(
        StaticFieldError, match=r"^Net\.setting is static but (holds an array|reaches a \S+ with arrays)"
    ):
        Net(make(Dense(jnp.ones(2))))


def test_a_static_that_is_nested_too_deeply_names_its_field() -> None:
    value: Any = ()
    for _ in range(3000):
        value = (value,)

    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but holds a tuple that is nested too deeply"):
        Net(value)
