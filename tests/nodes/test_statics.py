"""Statics under `jit`: many variants, functions that capture variables, invalid statics, and custom `==`."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import gc
import types
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import omegaconf
import pydantic
import pytest

from tests.conftest import count_traces, trace_counts
from treewright import FrozenMapping, Module, diff, explain, field, freeze, pytree_dataclass, replace, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytree_dataclass
class Layer:
    x: Any = field()
    setting: Any = static()


@pytree_dataclass
class SameObject:
    x: Any
    setting: Any = static(identity=True)


class Point(NamedTuple):
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass
class Comparable:
    value: Any


def in_use(cls: Any) -> int:
    """The number of interned combinations of statics of the class, without unused ones."""
    gc.collect()
    return len(cls.__node_info__.table.in_use)


def test_programs_are_compiled_for_the_exact_static() -> None:
    jitted = jax.jit(lambda layer: jnp.asarray(layer.setting))

    def outcome(array: jax.Array) -> tuple[str, bool, str]:
        return str(array.dtype), array.weak_type, str(array)

    for setting in (1, True, 1.0, np.float32(1), 0, False, 0.0, -0.0, float("nan"), complex(0, -0.0), 0j):
        assert outcome(jitted(Layer(jnp.ones(2), setting))) == outcome(jnp.asarray(setting)), repr(setting)


def test_statics_are_compared_field_by_field() -> None:
    @pytree_dataclass
    class Pair:
        x: jax.Array
        left: Any = static()
        right: Any = static()

    jitted = jax.jit(counted := count_traces(lambda pair: pair.x))
    for left, right in [(1, True), (True, 1), (1, 1), (True, True), ((1,), 2), (1, (2,))] * 2:
        jitted(Pair(jnp.ones(2), left, right))

    assert counted.count == 6


# Functions that capture variables


def scaling(factor: Any) -> Callable[[Any], Any]:
    def scale(x: Any) -> Any:
        return x * factor

    return scale


def with_default(default: Any) -> Callable[..., Any]:
    def function(x: Any, argument: Any = default) -> Any:
        return argument(x)

    return function


ANY_OBJECT: dict[str, Callable[[], Any]] = {
    "list": lambda: [1],
    "dict": lambda: {"a": 1},
    "random generator": lambda: np.random.default_rng(0),
    "array": lambda: jnp.ones(2),
    "number": lambda: int("1" * 30),
}


@pytest.mark.parametrize("make", ANY_OBJECT.values(), ids=ANY_OBJECT)
def test_identity_allows_any_object_and_compares_by_identity(make: Callable[[], Any]) -> None:
    first, second = make(), make()

    assert trace_counts(SameObject, first, first, second, first) == [1, 1, 2, 2]
    assert replace(SameObject(1, first), setting=second).setting is second


def test_a_new_object_is_not_confused_with_a_freed_one_at_the_same_address() -> None:
    functions: list[Any] = [with_default(scaling(1.0)) for _ in range(100)]
    first = [Layer(1.0, function) for function in functions]
    for function in functions:
        function.__defaults__ = (None,)  # frees the closure, and a later one gets its address

    later = [Layer(1.0, with_default(scaling(2.0))) for _ in range(100)]

    assert not {id(layer.setting) for layer in first} & {id(layer.setting) for layer in later}


# Rejected statics


REJECTED: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: [64, 64], r"a list, \[64, 64\]"),
    "dict": (lambda: {"a": 1}, r"a dict, \{'a': 1\}"),
    "set": (lambda: {1}, r"a set, \{1\}"),
    "bytearray": (lambda: bytearray(b"ab"), r"a bytearray, bytearray\(b'ab'\)"),
    "numpy array": (lambda: np.ones((2, 3)), r"an array, f64\[2,3\]\(numpy\)"),
    "JAX array": (lambda: jnp.ones((2, 3)), r"an array, f32\[2,3\]"),
    "random key": (lambda: jax.random.key(0), r"an array, key<fry>\[\]"),
    "object of a class with == and without a hash": (lambda: Comparable(1), r"a Comparable, Comparable\(value=1\)"),
}
HIDDEN: dict[str, Callable[[Any], Any]] = {
    "plain": lambda value: value,
    "tuple": lambda value: (1, (value,)),
    "named tuple": Point,
    "frozen dataclass": Frozen,
    "argument of a partial": lambda value: functools.partial(max, value),
    "keyword of a partial": lambda value: functools.partial(max, key=value),
    "child of a node": lambda value: Layer(value, 1),
    "frozen mapping": lambda value: FrozenMapping({"a": Frozen(value)}),
}
FIX = r"\n(Or make|Make) setting a child: remove static\(\)\.$"


@pytest.mark.parametrize(("make", "problem"), REJECTED.values(), ids=REJECTED)
def test_invalid_statics_are_rejected_at_any_depth(make: Callable[[], Any], problem: str) -> None:
    class Example(Module):
        setting: Any = static()

    example = Example(1)
    for hide in HIDDEN.values():
        gives: list[Callable[[Any], Any]] = [Example, lambda setting: replace(example, setting=setting)]
        for give in gives:
            with pytest.raises(StaticFieldError, match=rf"(?s)Example\.setting is static but holds {problem}.*{FIX}"):
                give(hide(make()))

    assert in_use(Example) == 1
    assert example.setting == 1


class Settings(pydantic.BaseModel):
    rate: float = 0.1


@attrs.define
class Options:
    rate: float = 0.1


CONFIGS: dict[str, tuple[Any, str]] = {
    "pydantic": (Settings(), r"a hashable value, such as a tuple, or define __hash__ and __eq__ on its class"),
    "attrs": (Options(), r"a hashable value, such as a tuple, or define __hash__ and __eq__ on its class"),
    "OmegaConf": (
        omegaconf.OmegaConf.create({"rate": 0.1}),
        r"treewright\.freeze\(config\), or let the field freeze it",
    ),
    "list of OmegaConf": (omegaconf.OmegaConf.create([1]), r"a tuple, or let the field freeze it"),
    "Namespace": (argparse.Namespace(rate=0.1), r"treewright\.freeze\(args\), or let the field freeze it"),
    "SimpleNamespace": (types.SimpleNamespace(rate=0.1), r"treewright\.freeze\(config\), or let the field freeze it"),
    "dataclass": (
        Comparable(1),
        r"treewright\.freeze\(dataclasses\.asdict\(config\)\), or decorate its class with @dataclass",
    ),
}


@pytest.mark.parametrize(("config", "call"), CONFIGS.values(), ids=CONFIGS)
def test_a_mutable_config_is_rejected_with_a_fix(config: Any, call: str) -> None:
    with pytest.raises(StaticFieldError, match=rf"^Layer\.setting is static but holds an? (?s:.*)\nPass {call}"):
        Layer(1, config)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
def test_a_tracer_is_rejected_and_does_not_outlive_its_trace(transform: Callable[[Any], Any]) -> None:
    class Example(Module):
        setting: Any = static()

    traced: list[weakref.ref[Any]] = []

    def function(x: jax.Array) -> jax.Array:
        traced.append(weakref.ref(x))
        for hide in HIDDEN.values():
            with pytest.raises(
                StaticFieldError, match=r"Example\.setting is static but holds a tracer, (?s:.*)outlives it"
            ):
                Example(hide(x))
        return x.sum()

    transform(function)(jnp.ones(2) if transform is not jax.grad else jnp.ones(()))

    assert in_use(Example) == 0
    assert [reference() for reference in traced] == [None]


def test_messages_truncate_long_values() -> None:
    with pytest.raises(StaticFieldError, match=r"holds a list, \[0, 1, 2, 3, 4, 5, \.\.\.\]\.\njit compares"):
        Layer(1, list(range(1000)))


# Statics with a custom `==` or `hash`


class Touchy:
    """All instances have one hash, and comparison raises."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("Touchy was compared")

    def __hash__(self) -> int:
        return 1


class Hashless:
    def __hash__(self) -> int:
        raise RuntimeError("Hashless was hashed")


class Compared:
    """Records its comparisons in a shared list."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def __eq__(self, other: object) -> bool:
        self.calls.append("==")
        return isinstance(other, Compared)

    def __hash__(self) -> int:
        self.calls.append("hash")
        return 7


class Odd:
    """Its `==` returns the value passed at construction."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __eq__(self, other: object) -> Any:
        return self.answer

    def __hash__(self) -> int:
        return 1


class Picky:
    """Equals itself, and can't be compared with any other object."""

    def __eq__(self, other: object) -> Any:
        return True if other is self else self.compare()

    def __hash__(self) -> int:
        return 1

    def compare(self) -> Any:
        raise ValueError("not comparable")


class Elementwise(Picky):
    def compare(self) -> Any:
        return np.array([True, True])


class Hidden:
    """An object whose attributes can't be read."""

    def __getattribute__(self, name: str) -> Any:
        raise KeyError(name)


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Touchy, r"Touchy\.__eq__ raises RuntimeError: Touchy was compared, so jit can't tell"),
        (lambda: Odd("yes"), r"Odd\.__eq__ returns 'yes', not a bool, so jit can't tell"),
        (lambda: Odd(np.ones(2)), r"Odd\.__eq__ returns f64\[2\]\(numpy\), not a bool, so jit can't tell"),
        (lambda: (1, Odd(None)), r"Odd\.__eq__ returns None, not a bool, so jit can't tell"),
    ],
    ids=["raises", "str", "array", "inside a tuple"],
)
def test_a_static_whose_eq_fails_is_rejected(make: Callable[[], Any], text: str) -> None:
    with pytest.raises(StaticFieldError, match=rf"Layer\.setting is static but holds an? \w+, (?s:.*){text}"):
        Layer(jnp.ones(2), make())

    assert trace_counts(Layer, 1, "relu", 1) == [1, 2, 2]
    assert trace_counts(Layer, Odd(answer=True), Odd(answer=np.True_)) == [1, 1]


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
@pytest.mark.parametrize("make", [Picky, Elementwise])
def test_objects_that_can_not_be_compared_are_different_statics(make: Callable[[], Any]) -> None:
    objects = make(), make()

    assert trace_counts(Layer, *objects, objects[0]) == [1, 2, 2]
    assert "a different" in str(diff(Layer(1.0, objects[0]), Layer(1.0, objects[1])))


@pytest.mark.parametrize("make", [Hidden, lambda: (Hidden(),), lambda: functools.partial(print, Hidden())])
def test_the_error_of_an_unreadable_static_names_its_field(make: Callable[[], Any]) -> None:
    with pytest.raises(StaticFieldError, match=r"^Layer\.setting has .* raised KeyError\('__class__'\)\. Use"):
        Layer(jnp.ones(2), make())


def doubled(value: Any, make: Callable[..., Any], times: int = 60) -> Any:
    """A value with 2**60 parts, of which 60 are different."""
    for _ in range(times):
        value = make((value, value))
    return value


def test_a_shared_part_is_opened_once() -> None:
    def step(x: Any, s: Any) -> Any:
        return x

    jitted: Any = jax.jit(step, static_argnums=1)

    frozen = freeze(doubled([1], list))

    assert frozen[0] is frozen[1]
    old, again, new = doubled(1, tuple), doubled(1, tuple), doubled(2, tuple)
    assert "would not retrace" in str(explain(jitted, (1.0, old), (1.0, again)))
    assert "would retrace" in str(explain(jitted, (1.0, old), (1.0, new)))
    assert len(diff(Layer(1.0, doubled(1, tuple, 12)), Layer(1.0, doubled(2, tuple, 12)))) == 1


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")  # their attributes can be assigned
def test_a_cached_call_runs_no_code_of_the_static() -> None:
    calls: list[str] = []
    jitted = jax.jit(counted := count_traces(lambda layer: layer.x))
    layers = [Layer(jnp.ones(2), Compared(calls)) for _ in range(3)]
    jitted(layers[0])
    calls.clear()

    for layer in layers * 3:
        jitted(layer)

    assert (counted.count, calls) == (1, [])
