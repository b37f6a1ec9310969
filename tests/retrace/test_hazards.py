"""`check_statics`: what in a tree will make jit trace again or answer wrongly, said before it does."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import re
import types
from typing import TYPE_CHECKING, Any, Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import importorskip
from treewright import Module, Static, TrainState, adopt, buffer, check_statics, field, static

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = re.escape("test_hazards.py:")


class Layer(Module):
    """Ours."""

    setting: Any = static()
    kernel: Any = 1.0


class ByContent(Module):
    setting: Any = static(compare="content")


class EqxLayer(eqx.Module):
    kernel: Any = 1.0
    setting: Any = eqx.field(static=True, default=None)


flax: Any = importorskip("flax", "flax.struct", "flax.nnx", "flax.training.train_state")


@flax.struct.dataclass
class FlaxLayer:
    kernel: Any = 1.0
    setting: Any = flax.struct.field(pytree_node=False, default=None)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Registered:
    kernel: Any = 1.0
    setting: Any = dataclasses.field(default=None, metadata={"static": True})


FOREIGN = [EqxLayer, FlaxLayer, Registered]
ALL = [Layer, *FOREIGN]


@dataclasses.dataclass(unsafe_hash=True)
class Changeable:
    size: int = 1


@dataclasses.dataclass(frozen=True)
class Frozen:
    inner: Any = None


class ByValue:
    """Compares by its content, and lets anybody change it."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByValue) and self.size == other.size

    def __hash__(self) -> int:
        return self.size

    def grow(self, x: Any) -> Any:
        return x


class Encapsulated:
    def __init__(self, size: int) -> None:
        self._size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encapsulated) and self._size == other._size

    def __hash__(self) -> int:
        return self._size


class Plain:
    def grow(self, x: Any) -> Any:
        return x


class Letter(enum.StrEnum):
    A = "a"


def named(x: Any) -> Any:
    return x


module_level = lambda x: x
made_by_the_module = functools.partial(lambda x: x)


def closure(factor: Any) -> Callable[[Any], Any]:
    return lambda x: x * factor


def local() -> Callable[[Any], Any]:
    return lambda x: x


def found(tree: Any) -> list[tuple[str, str]]:
    """The kind and the text of each hazard, the path and the value at the beginning of the text."""
    return [(hazard.kind, str(hazard)) for hazard in check_statics(tree)]


def of(cls: Any, value: Any) -> list[tuple[str, str]]:
    return found({"params": [cls(setting=value)]})


# In any class

ANYWHERE: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a closure": (
        lambda: closure(2),
        "function",
        rf"it captures factor \({HERE}\d+\), so one made again traces again; define it once",
    ),
    "a function that captures an array": (
        lambda: closure(jnp.ones(2)),
        "captured array",
        (
            "it captures the array factor, which becomes a constant of the program and gets no gradient; pass it as an "
            "argument, or make it a child"
        ),
    ),
    "a function that captures a list with an array": (
        lambda: closure([{"w": jnp.ones(2)}]),
        "captured array",
        "it captures the array factor, which",
    ),
    "an object that compares by identity": (
        object,
        "identity",
        "object has no __eq__, so one made again traces again; give it one, or make it once",
    ),
    "a method of an object": (
        lambda: Plain().grow,
        "identity",
        "it equals only the method of the very same Plain; define a function, and pass it the Plain",
    ),
    "a function jitted in place": (
        lambda: jax.jit(closure(2)),
        "function",
        "it is made in place, so one made again traces again; make it once",
    ),
    "a dataclass that is not frozen": (
        Changeable,
        "mutable",
        "a Changeable can change after jit has compiled for it, and the result is stale then; freeze it",
    ),
    "an object with attributes to assign": (lambda: ByValue(1), "mutable", "a ByValue can change after jit"),
    "deep inside a config": (lambda: Frozen((1, Frozen(object()))), "identity", "object has no __eq__"),
}


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize("name", ANYWHERE)
def test_hazards_of_any_class_are_listed(name: str, cls: Any) -> None:
    make, kind, text = ANYWHERE[name]

    hazards = dict(of(cls, make()))

    assert kind in hazards
    assert re.match(rf"\['params'\]\[0\]\.setting[^:]*: .*: {text}", hazards[kind]), hazards[kind]


def test_the_place_inside_a_static_is_named() -> None:
    [hazard] = check_statics(Layer(Frozen((1, Frozen(object())))))

    assert str(hazard).startswith(".setting.inner[1].inner: <object object>: ")
    assert isinstance(hazard.value, object)
    [inner] = check_statics(Layer(functools.partial(max, key=closure(2))))
    assert str(inner).startswith(".setting['key']: <lambda")


@pytest.mark.parametrize("cls", ALL)
@pytest.mark.parametrize(
    "value",
    [
        *(None, ..., 1, 1.0, "relu", b"x", (1, "a"), frozenset({1}), Letter.A, np.float32(1), np.dtype("int8")),
        *(named, module_level, max, jax.nn.relu, Changeable, jnp.float32, range(3), Frozen(("a", 1))),
        *(Encapsulated(1), math.sqrt, pytest, Frozen()),
    ],
)
@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
def test_harmless_statics_are_not_listed(value: Any, cls: Any) -> None:
    assert of(cls, value) == []


def test_what_our_own_fields_take_for_the_same_is_not_listed() -> None:
    for value in (local(), functools.partial(max, 1), math.nan, slice(1), jax.jit(local()), optax.sgd(0.1)):
        assert [kind for kind, _ in found(Layer(value))] in ([], ["mutable"]), value
    assert found(ByContent(closure(2))) == []
    assert found(TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(1e-3))) == []
    (mutable, _), (kind, text) = found(ByContent(closure([2])))  # which has no exact key
    assert (mutable, kind, text.endswith("define it once")) == ("mutable", "function", True)


# What functions read and hold


class Reader:
    def __init__(self) -> None:
        self.rate = 1

    def read(self, x: Any) -> Any:
        return x * RATE


RATE = 2
READER = Reader()
TABLE = {"v": 2}
FIXED: Final = 3
SETTINGS = Changeable()


def helper(x: Any) -> Any:
    return x * RATE


def deep(x: Any) -> Any:
    return helper(x)


def reads_everything(x: Any) -> Any:
    return [x * RATE * TABLE["v"] * SETTINGS.size * FIXED for _ in range(3)]


def make_importing() -> Callable[[Any], Any]:
    def importing(x: Any) -> Any:
        import os

        return x * int(os.environ.get("RATE", "1"))

    return importing


SETTINGS_MODULE = types.ModuleType("settings_module")
vars(SETTINGS_MODULE).update(RATE=2)


def reads_a_module(x: Any) -> Any:
    return x * SETTINGS_MODULE.RATE


class Wrapped:
    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


READING: dict[str, tuple[Callable[[], Any], list[tuple[str, str]]]] = {
    "a global": (lambda: helper, [("global", "it reads the global RATE")]),
    "a helper's global": (lambda: deep, [("global", "it calls helper, which reads the global RATE")]),
    "several, in a comprehension": (
        lambda: reads_everything,
        [("global", f"it reads the global {name}") for name in ("RATE", "TABLE", "SETTINGS")],
    ),
    "made in place": (
        lambda: lambda x: x * RATE,
        [("global", "it reads the global RATE"), ("function", "it reads the global RATE")],
    ),
    "a jitted helper": (
        lambda: jax.jit(helper),
        [("global", "it reads the global RATE"), ("function", "it is made in place")],
    ),
    "a wrapped helper": (
        lambda: functools.wraps(helper)(lambda x: helper(x)),
        [("global", "it calls helper, which reads the global RATE"), ("function", "it reads the global helper")],
    ),
    "a method": (lambda: Reader().read, [("global", "it reads the global RATE"), ("identity", "it equals only")]),
    "a default without an exact key": (
        lambda: lambda x, reader=READER: reader.read(x),
        [
            ("mutable", "it holds reader"),
            ("function", "it captures reader"),
        ],
    ),
    "a partial of what can change": (
        lambda: functools.partial(max, Plain()),
        [("identity", "Plain has no __eq__")],
    ),
    "a partial of a function that reads": (
        lambda: functools.partial(helper, 1),
        [("global", "it reads the global RATE"), ("function", "it is made in place")],
    ),
    "a module's global": (lambda: reads_a_module, [("global", "it reads the global SETTINGS_MODULE.RATE")]),
    "a wrapper of a built-in": (lambda: Wrapped(max), [("identity", "Wrapped has no __eq__")]),
    "an import": (make_importing, [("function", "it is made in place")]),
}


@pytest.mark.parametrize("name", READING)
def test_functions_that_read_or_hold_what_can_change_are_listed(name: str) -> None:
    make, expected = READING[name]

    hazards = found(Layer(make()))

    assert [kind for kind, _ in hazards] == [kind for kind, _ in expected]
    for (_, text), (_, wanted) in zip(hazards, expected, strict=True):
        assert f": {wanted}" in text


# In classes of others, what our own refuse or tell apart

FOREIGN_ONLY: dict[str, tuple[Callable[[], Any], str, str]] = {
    "a list": (
        lambda: [64, 64],
        "unhashable",
        r"jit compares statics and never copies them, so a change in place would give stale results\. Give it a tuple\.",
    ),
    "a dict": (lambda: {"a": 1}, "unhashable", "jit compares statics and never copies"),
    "a set": (lambda: {1}, "unhashable", "jit compares statics and never copies"),
    "a bytearray": (lambda: bytearray(b"x"), "unhashable", "jit compares statics and never copies"),
    "a list in a tuple": (lambda: (1, [2]), "unhashable", "jit compares statics and never copies"),
    "a list in a partial": (lambda: functools.partial(max, [1]), "unhashable", "jit compares statics and never copies"),
    "an array": (
        lambda: jnp.ones(2),
        "array",
        r"jit compares statics with ==, which gives an array and no answer, .* stale results\. Make it a child\.",
    ),
    "a numpy array": (lambda: np.ones(2), "array", "jit compares statics with =="),
    "NaN": (lambda: math.nan, "nan", "NaN equals no other NaN, so one made again traces again; use None"),
    "NaN of numpy": (lambda: np.float32("nan"), "nan", "NaN equals no other NaN"),
    "a local function": (
        local,
        "function",
        rf"it is made in place \({HERE}\d+\), so one made again traces again; define it once",
    ),
    "a partial": (
        lambda: functools.partial(named, 1),
        "function",
        "it is made in place, so one made again traces again; make it once",
    ),
}


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("cls", FOREIGN)
@pytest.mark.parametrize("name", FOREIGN_ONLY)
def test_hazards_of_foreign_classes_are_listed(name: str, cls: Any) -> None:
    make, kind, text = FOREIGN_ONLY[name]

    hazards = dict(of(cls, make()))

    assert kind in hazards
    assert re.match(rf"\['params'\]\[0\]\.setting[^:]*: .*: {text}", hazards[kind]), hazards[kind]


def test_leaves_that_are_no_arrays_are_looked_at_too() -> None:
    mlp = eqx.nn.MLP(2, 2, 2, 2, activation=local(), key=jax.random.key(0))

    assert found(eqx.nn.MLP(2, 2, 2, 2, key=jax.random.key(0))) == []
    [(kind, text)] = found(mlp)
    assert (kind, text.startswith(".activation: <lambda")) == ("function", True)
    assert [kind for kind, _ in found(object())] == ["identity"]
    assert str(check_statics(object())[0]).startswith("the whole tree: <object object>: ")


def test_an_optimizer_in_a_foreign_state_is_listed() -> None:
    create: Any = flax.training.train_state.TrainState.create
    state = create(apply_fn=named, params={"w": jnp.ones(2)}, tx=optax.adam(1e-3))

    assert [text.partition(":")[0] for _, text in found(state)] == [".tx.init", ".tx.update"]


def test_the_order_is_that_of_the_tree() -> None:
    tree = [Layer(object(), Layer(object())), Layer(object())]

    assert [text.partition(":")[0] for _, text in found(tree)] == [
        "[0].setting",
        "[0].kernel.setting",
        "[1].setting",
    ]


class Tagged(Module):
    value: Any = 1.0
    meant: Any = field(default=True)
    kept: Any = buffer(default=True)


PARTIAL: Any = jax.tree_util.Partial
FAILS = "is not an array, so jit, grad and vmap fail"
TRACED = "it is a child, so jit traces it, and an if on it fails"


@pytest.mark.filterwarnings("ignore::treewright.errors.ChildWarning")
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("relu", f".value: 'relu': it is a child, a str {FAILS}; declare Tagged.value static()"),
        (named, f".value: named: it is a child, a function {FAILS}; declare Tagged.value static()"),
        (True, f".value: True: {TRACED}; declare Tagged.value static()"),
        (
            Frozen(1),
            f".value: Frozen(inner=1): it is a child, a Frozen {FAILS}; declare Tagged.value static()",
        ),
        (
            ["relu"],
            f".value[0]: 'relu': it is a child, a str {FAILS}; declare Tagged.value static()",
        ),
        (
            EqxLayer("relu"),
            f".value.kernel: 'relu': it is a child, a str {FAILS}; hold the EqxLayer as treewright.adopt(",
        ),
        ({"flag": EqxLayer(False)}, f".value['flag'].kernel: False: {TRACED}; hold the EqxLayer as treewright.adopt"),
    ],
)
def test_a_child_that_should_be_static_is_listed(value: Any, expected: str) -> None:
    for tree, place in ((Tagged(value), ""), ([Tagged(value)], "[0]")):
        [(kind, text)] = found(tree)
        assert (kind, text.startswith(f"{place}{expected}")) == ("leaf", True), text
        with pytest.raises((TypeError, jax.errors.TracerBoolConversionError)):
            jax.jit(lambda leaves: 1 if all(leaves) else 2)(jax.tree.leaves(tree))


@pytest.mark.parametrize(
    "tree",
    [
        Tagged(1.0),
        Tagged(jnp.ones(3)),
        Tagged(np.bool_(True)),
        Tagged(Static("relu")),
        Tagged(adopt(EqxLayer("relu"))),
        Tagged(adopt(eqx.nn.Dropout(0.5))),
        Tagged([None, (1, {"a": 2.0})]),
        {"mode": "train", "flag": True},
        EqxLayer("relu"),
        PARTIAL(named, True),
    ],
)
def test_a_child_that_can_be_traced_and_a_leaf_of_nobody_elses_are_not_listed(tree: Any) -> None:
    assert found(tree) == []
