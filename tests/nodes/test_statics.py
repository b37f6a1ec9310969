"""Statics under `jit`: many variants, functions that capture variables, what is refused, and a `==` of one's own."""

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
import optax
import pydantic
import pytest

from tests.conftest import count_traces, trace_counts
from treewright import FrozenMapping, Module, Static, field, pytree_dataclass, replace, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytree_dataclass
class Layer:
    x: Any = field()
    setting: Any = static()


@pytree_dataclass
class Content:
    x: Any
    setting: Any = static(compare="content")


class Point(NamedTuple):
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass
class Comparable:
    value: Any


def in_use(cls: Any) -> int:
    """How many combinations of statics of the class are interned, after what nobody uses is gone."""
    gc.collect()
    return len(cls.__node_spec__.table)


def test_a_program_is_compiled_for_the_very_value() -> None:
    jitted = jax.jit(lambda layer: jnp.asarray(layer.setting))

    def outcome(array: jax.Array) -> tuple[str, bool, str]:
        return str(array.dtype), array.weak_type, str(array)

    for setting in (1, True, 1.0, np.float32(1), 0, False, 0.0, -0.0, float("nan"), complex(0, -0.0), 0j):
        assert outcome(jitted(Layer(jnp.ones(2), setting))) == outcome(jnp.asarray(setting)), repr(setting)


def test_two_statics_are_told_apart_field_by_field() -> None:
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


def countdown(step: int) -> Callable[[int], int]:
    def down(n: int) -> int:
        return down(n - step) if n > 0 else 0

    return down


def parity(base: int) -> Callable[[int], bool]:
    def even(n: int) -> bool:
        return n == base or odd(n - 1)

    def odd(n: int) -> bool:
        return n != base and even(n - 1)

    return even


def with_default(default: Any) -> Callable[..., Any]:
    def function(x: Any, argument: Any = default) -> Any:
        return argument(x)

    return function


def with_attribute(factor: float) -> Any:
    function: Any = scaling(factor)
    function.note = factor
    return function


BUILDERS: dict[str, Callable[[Any], Any]] = {
    "closure": scaling,
    "closure over a closure": lambda value: scaling(scaling(value)),
    "closure over a tuple of closures": lambda value: scaling((scaling(value), scaling(3))),
    "closure over a partial of a closure": lambda value: scaling(functools.partial(scaling(value), 1)),
    "closure over a node": lambda value: scaling(Static(value)),
    "closure over itself": countdown,
    "closures over each other": parity,
    "tuple of closures": lambda value: (scaling(value), scaling(value)),
    "named tuple of closures": lambda value: Point(scaling(value)),
    "frozen dataclass of a closure": lambda value: Frozen(scaling(value)),
    "partial of a closure": lambda value: functools.partial(scaling(value), 1),
    "default that is a closure": lambda value: with_default(scaling(value)),
    "optax.adamw with a mask": lambda value: optax.adamw(value, mask=lambda params: params),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
def test_by_content_a_rebuilt_closure_is_the_same_and_a_changed_one_is_not(build: Callable[[Any], Any]) -> None:
    settings = map(build, (1, 1, 2, 1, 2))

    assert trace_counts(Content, *settings) == [1, 1, 2, 2, 2]


def test_by_content_captured_values_are_compared_exactly() -> None:
    assert trace_counts(Content, *map(scaling, (1, True, 1.0, np.float32(1), 0.0, -0.0))) == [1, 2, 3, 4, 5, 6]
    assert trace_counts(Content, scaling(float("nan")), scaling(float("nan"))) == [1, 1]


@pytest.mark.parametrize("captured", [[1], {"a": 1}, {1}, np.ones(2), jnp.ones(2), ([1],)], ids=str)
def test_by_content_a_closure_over_what_has_no_key_is_compared_by_identity(captured: Any) -> None:
    first, second = scaling(captured), scaling(captured)

    assert trace_counts(Content, first, first, second, first) == [1, 1, 2, 2]
    assert trace_counts(Content, scaling(first), scaling(first), scaling(second)) == [1, 2, 3]


def test_by_content_attributes_of_a_function_count() -> None:
    settings = map(with_attribute, (2.0, 2.0, 3.0, 2.0))

    assert trace_counts(Content, *settings) == [1, 1, 2, 2]
    assert trace_counts(Layer, *map(with_attribute, (2.0, 2.0))) == [1, 2]


def test_a_later_object_is_not_taken_for_a_freed_one_at_the_same_address() -> None:
    functions: list[Any] = [with_default(scaling(1.0)) for _ in range(100)]
    first = [Layer(1.0, function) for function in functions]
    for function in functions:
        function.__defaults__ = (None,)  # frees the closure, and a later one gets its address

    later = [Layer(1.0, with_default(scaling(2.0))) for _ in range(100)]

    assert not {id(layer.setting) for layer in first} & {id(layer.setting) for layer in later}


# What is refused


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
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
REMEDY = r"\n(Or make|Make) setting a child: drop static\(\)\.$"


@pytest.mark.parametrize(("make", "found"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_key_is_refused_by_class_and_field_wherever_it_hides_and_nothing_is_left(
    make: Callable[[], Any], found: str
) -> None:
    class Example(Module):
        setting: Any = static()

    example = Example(1)
    for hide in HIDDEN.values():
        gives: list[Callable[[Any], Any]] = [Example, lambda setting: replace(example, setting=setting)]
        for give in gives:
            with pytest.raises(StaticFieldError, match=rf"(?s)Example\.setting is static but holds {found}.*{REMEDY}"):
                give(hide(make()))

    assert in_use(Example) == 1
    assert example.setting == 1


class Settings(pydantic.BaseModel):
    rate: float = 0.1


@attrs.define
class Options:
    rate: float = 0.1


CONFIGS: dict[str, tuple[Any, str]] = {
    "pydantic": (Settings(), r"treewright\.freeze\(config\.model_dump\(\)\)"),
    "attrs": (Options(), r"treewright\.freeze\(attrs\.asdict\(config\)\), or make its class @attrs\.frozen"),
    "OmegaConf": (
        omegaconf.OmegaConf.create({"rate": 0.1}),
        r"treewright\.freeze\(config\), or let the field freeze it",
    ),
    "list of OmegaConf": (omegaconf.OmegaConf.create([1]), r"treewright\.freeze\(OmegaConf\.to_container\(config, "),
    "Namespace": (argparse.Namespace(rate=0.1), r"treewright\.freeze\(args\), or let the field freeze it"),
    "SimpleNamespace": (types.SimpleNamespace(rate=0.1), r"treewright\.freeze\(config\), or let the field freeze it"),
    "dataclass": (Comparable(1), r"treewright\.freeze\(dataclasses\.asdict\(config\)\), or make its class @dataclass"),
}


@pytest.mark.parametrize(("config", "call"), CONFIGS.values(), ids=CONFIGS)
def test_a_config_that_can_change_is_refused_with_the_call_that_makes_it_static(config: Any, call: str) -> None:
    with pytest.raises(StaticFieldError, match=rf"^Layer\.setting is static but holds an? (?s:.*)\nGive it {call}"):
        Layer(1, config)


@pytest.mark.slow
@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.grad], ids=["jit", "vmap", "grad"])
def test_a_tracer_is_refused_and_does_not_outlive_its_trace(transform: Callable[[Any], Any]) -> None:
    class Example(Module):
        setting: Any = static()

    traced: list[weakref.ref[Any]] = []

    def function(x: jax.Array) -> jax.Array:
        traced.append(weakref.ref(x))
        for hide in HIDDEN.values():
            with pytest.raises(
                StaticFieldError, match=r"Example\.setting is static but holds a tracer, (?s:.*)outlives the"
            ):
                Example(hide(x))
        return x.sum()

    transform(function)(jnp.ones(2) if transform is not jax.grad else jnp.ones(()))

    assert in_use(Example) == 0
    assert [reference() for reference in traced] == [None]


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(StaticFieldError, match=r"holds a list, \[0, 1, 2, 3, 4, 5, \.\.\.\]\.\njit compares"):
        Layer(1, list(range(1000)))


# Statics with an `==` or a `hash` of their own


class Touchy:
    """Hashes alike, and raises when it is compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("Touchy was compared")

    def __hash__(self) -> int:
        return 1


class Hashless:
    def __hash__(self) -> int:
        raise RuntimeError("Hashless was hashed")


class Asked:
    """Counts how often it is compared, in a list that all share."""

    def __init__(self, asked: list[str]) -> None:
        self.asked = asked

    def __eq__(self, other: object) -> bool:
        self.asked.append("==")
        return isinstance(other, Asked)

    def __hash__(self) -> int:
        self.asked.append("hash")
        return 7


class Odd:
    """Its `==` gives what it was made with."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __eq__(self, other: object) -> Any:
        return self.answer

    def __hash__(self) -> int:
        return 1


class Picky:
    """Can't be compared with another one."""

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        raise ValueError("another one")

    def __hash__(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Touchy, r"Touchy\.__eq__ raises RuntimeError: Touchy was compared, so jit could not tell"),
        (lambda: Odd("yes"), r"Odd\.__eq__ gives 'yes', not a bool, so jit could not tell"),
        (lambda: Odd(np.ones(2)), r"Odd\.__eq__ gives f64\[2\]\(numpy\), not a bool, so jit could not tell"),
        (lambda: (1, Odd(None)), r"Odd\.__eq__ gives None, not a bool, so jit could not tell"),
    ],
    ids=["raises", "str", "array", "inside a tuple"],
)
def test_a_static_whose_eq_gives_no_answer_is_refused_and_harms_no_other_instance(
    make: Callable[[], Any], text: str
) -> None:
    with pytest.raises(StaticFieldError, match=rf"Layer\.setting is static but holds an? \w+, (?s:.*){text}"):
        Layer(jnp.ones(2), make())

    assert trace_counts(Layer, 1, "relu", 1) == [1, 2, 2]
    assert trace_counts(Layer, Odd(answer=True), Odd(answer=np.True_)) == [1, 1]


def test_a_static_that_can_not_be_compared_with_another_one_raises_its_own_error_beside_that() -> None:
    first = Layer(jnp.ones(2), Picky())

    with pytest.raises(ValueError, match=r"^another one$"):
        Layer(jnp.ones(2), Picky())

    assert Layer(jnp.ones(2), first.setting) == first


def test_a_cached_call_runs_no_code_of_the_static() -> None:
    asked: list[str] = []
    jitted = jax.jit(counted := count_traces(lambda layer: layer.x))
    layers = [Layer(jnp.ones(2), Asked(asked)) for _ in range(3)]
    jitted(layers[0])
    asked.clear()

    for layer in layers * 3:
        jitted(layer)

    assert (counted.count, asked) == (1, [])
