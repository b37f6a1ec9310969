"""`at` with a function of the tree: the places of the objects that it returns, also of those in many places."""

from __future__ import annotations

import abc
import collections
import dataclasses
import enum
import functools
import operator
import pathlib
import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, at, static
from treewright.errors import MissingPlaceError

AxisType = jax.sharding.AxisType
RATE = 0.5


class Weighted(Module):
    weight: Any
    bias: Any = None
    kind: str = static(default="relu")
    is_first: bool = static(default=False)


class Stacked(Module):
    layers: tuple[Weighted, ...]
    spare: Any = None


def message(tree: Any, where: Any) -> str:
    with pytest.raises((ValueError, TypeError)) as caught:
        at(tree, where)
    return str(caught.value)


TIED = jnp.ones(2)
SHARED = Stacked((Weighted(TIED), Weighted(TIED, kind="gelu"), Weighted(TIED, is_first=True)), {"a": None, "b": None})


def places_of(tree: Any, where: Any) -> list[str]:
    """The paths in the `repr` of a selection."""
    return repr(at(tree, where)).removeprefix("<at ").removesuffix(">").split(", ")


def test_a_missing_place_is_named_if_it_is_certain() -> None:
    def notes(where: Any) -> list[str]:
        with pytest.raises(AttributeError, match=r"^'NoneType' object has no attribute 'x'") as caught:
            at(SHARED, where)
        return getattr(caught.value, "__notes__", [])

    assert notes(lambda m: m.layers[1].bias.x) == ["Stacked.layers[1].bias (None) has no .x. It has nothing."]
    assert notes(lambda m: [layer.bias for layer in m.layers][1].x) == []


def test_a_missing_key_of_a_defaultdict_is_not_added() -> None:
    tree: Any = collections.defaultdict(list, b=1.0)

    with pytest.raises(MissingPlaceError, match=r"has no \['zz'\]"):
        at(tree, lambda tree: tree["zz"])
    assert dict(tree) == {"b": 1.0}
    assert at(tree, lambda tree: tree["b"]).set(2.0) == {"b": 2.0}


@pytest.mark.parametrize(
    "where",
    [
        lambda m: vars(m.layers[0].__class__).get("nothing"),
        lambda m: dict[str, Any]().get("bias"),
        lambda m: getattr(m, "bias", None),
        lambda m: len(m.layers),
        lambda m: "gelu",
    ],
)
def test_an_object_that_the_function_computed_is_at_no_place(where: Any) -> None:
    tree = Stacked((Weighted(1, 2.0), Weighted(3.0, 4.0, "gelu", is_first=True)))
    assert message(tree, where).startswith("The where function must return a place in the tree, or a tuple, list or di")
    assert message(tree, lambda m: m.layers[1].kind == "gelu").startswith("The where function returned True for the ")


def test_bools_that_the_function_read_are_no_mask() -> None:
    assert message([True, False], lambda t: [not flag for flag in t]).startswith("The where function returned False f")
    assert ", which is at 2 places of list: [0], [1]. " in message([True, True], lambda t: [t[t[0] is True], t[0]])


class Base(Module):
    weight: Any

    def chosen(self) -> Any:
        return self.weight


class Derived(Base):
    run: Any = None

    def chosen(self) -> Any:
        return super().chosen() if self.run is None else self.run


@dataclasses.dataclass
class Limits:
    """As a leaf, the class has no values for its fields."""

    low: float


TIED_NODE = Derived(TIED)


class Range(NamedTuple):
    low: Any
    high: Any

    @property
    def end(self) -> Any:
        return self.high


@jax.tree_util.register_pytree_with_keys_class
class ReadOnly:
    """A container whose attribute can't be set."""

    def __init__(self, weight: Any) -> None:
        self._weight = weight

    weight = property(operator.attrgetter("_weight"))

    def tree_flatten_with_keys(self) -> Any:
        return ((jax.tree_util.GetAttrKey("weight"), self._weight),), None

    @classmethod
    def tree_unflatten(cls, _: Any, children: Any) -> ReadOnly:
        return cls(*children)


FOREIGN = [ReadOnly(TIED), Weighted(1.0), Weighted(2.0)]


@pytest.mark.parametrize(
    ("tree", "where", "paths"),
    [
        (FOREIGN, lambda t: next(each for each in t if isinstance(each, Weighted)).bias, ["[1].bias"]),
        (FOREIGN, lambda t: (jax.tree.leaves(t), t[2].bias)[1], ["[2].bias"]),
        (FOREIGN, lambda t: t[2].bias if t[0].weight.ndim else t[1].bias, ["[2].bias"]),
        (SHARED, lambda t: t.spare.get("c", t.layers[2].bias), [".layers[2].bias"]),
        (SHARED, lambda t: sorted(t.layers, key=lambda layer: layer.kind)[1].weight, [".layers[0].weight"]),
        (SHARED, lambda t: t.layers[-1].weight if t.layers else t.spare, [".layers[2].weight"]),
        (SHARED, lambda t: t.layers[2].is_first, [".layers[2].is_first"]),
        ([Derived(TIED), Derived(TIED, TIED)], lambda t: t[1].chosen(), ["[1].run"]),
        ([Derived(TIED), Derived(TIED)], lambda t: t[1].chosen(), ["[1].weight"]),
        ([Derived(None), Derived(None)], lambda t: t[1].run, ["[1].run"]),
        ([TIED_NODE, TIED_NODE], lambda t: [each.weight for each in t], ["[0].weight", "[1].weight"]),
        ([Range(None, None)], lambda t: t[0].end, ["[0].high"]),
        ([Range(None, None)], lambda t: [high for _, high in t], ["[0].high"]),
        ([None, 1.5, None], lambda t: t[t.index(1.5) + 1], ["[2]"]),
        ([None, None, None], lambda t: t[::2], ["[0]", "[2]"]),
        ([1, 1, 1], lambda t: [t[2], t[0]], ["[2]", "[0]"]),
        ([[3.0], [1.0]], lambda t: t[0] + t[1], ["[0][0]", "[1][0]"]),
        ([[3.0], [1.0]], min, ["[1]"]),
        ([jax.nn.relu, jax.nn.relu], lambda t: t[1], ["[1]"]),
        ([(), ()], lambda t: t[1], ["[1]"]),
        ({"a": None, "b": None}, lambda t: [t[key] for key in t.keys() - {"a"}], ["['b']"]),
        (None, lambda t: t, [""]),
        ({"a": 7, "b": 7}, lambda t: t["b"] if t["b"] == 7.0 and t["b"] + 0.5 > 7 else t["a"], ["['b']"]),
        ({"a": 1.5, "b": None}, lambda t: next(v for v in t.values() if v is None), ["['b']"]),
        ({"a": Limits, "b": Range}, lambda t: next(v for v in t.values() if issubclass(v, tuple)), ["['b']"]),
    ],
)
def test_methods_and_containers_know_their_places(tree: Any, where: Any, paths: list[str]) -> None:
    assert [name.removeprefix(type(tree).__name__) for name in places_of(tree, where)] == paths


class Point(NamedTuple):
    x: float
    apply: Any = max


class Held(Module):
    value: Any = static()


# One static at two places
@pytest.mark.parametrize(
    "value",
    [
        *(int, jnp.float32, Point, abc.ABC, enum.Enum, type, list[int], int | str, np.dtype("f4"), Any),
        *(None, True, 3, 2**80, 1.5, "s", b"x", ..., re.compile("x"), range(3), pathlib.PurePath("a"), enum.Flag),
        *(print, max, jax.nn.relu, functools.partial(max, 1), operator.itemgetter(1), "x".join),
        *((), (1, 2), frozenset({1}), Point(1.0), ((1, Point(2.0)), "s"), optax.adam(1e-3)),
        AxisType.Auto,
    ],
)
def test_a_static_of_any_class_is_selected_at_one_place_or_at_both(value: Any) -> None:
    tree = Stacked((Weighted(Held(value)),), Held(value))

    assert places_of(tree, lambda t: t.spare.value) == ["Stacked.spare.value"]
    assert places_of(tree, lambda t: t.layers[0].weight.value) == ["Stacked.layers[0].weight.value"]
    assert places_of(tree, lambda t: [t.spare.value, t.layers[-1].weight.value]) == [
        *("Stacked.spare.value", "Stacked.layers[0].weight.value")
    ]


class Flags(Module):
    use: Any
    inner: Any = None


@pytest.mark.parametrize(
    ("tree", "where", "changed"),
    [
        ([[False, True], [True, True]], lambda t: t[0], [1, [True, True]]),
        (Flags(Flags(True, False), Flags(False, True)), lambda t: t.inner, Flags(Flags(True, False), 1)),
        ({"enc": {"w": True}, "dec": {"w": True}}, lambda t: t["enc"], {"enc": 1, "dec": {"w": True}}),
        (Flags(None, Flags(None)), lambda t: t.inner, Flags(None, 1)),
        ([[], []], lambda t: t[0], [1, []]),
    ],
)
def test_a_place_in_a_tree_of_bools_is_not_a_mask(tree: Any, where: Any, changed: Any) -> None:
    assert at(tree, where).set(1) == changed


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"i": 2, "x": 5.0}, len),
        ({"name": "relu", "x": 5.0}, lambda t: "relu"),
        (Weighted(TIED, 1), lambda t: t.weight.ndim),
        ([AxisType.Auto, 5.0], lambda t: AxisType.Auto),
        ([5.0, RATE], lambda t: RATE),
    ],
)
def test_a_constant_that_the_tree_has_too_is_not_taken_for_its_leaf(tree: Any, where: Any) -> None:
    assert "which it may not have read from " in message(tree, where)


@pytest.mark.parametrize(
    "where",
    [
        lambda t: t["n"] if t["n"] % 2 else t["x"],
        lambda t: t["n"] if -t["n"] + 1 < 0 else t["x"],
        lambda t: t["n"] if f"{t['n']:02d}" == "07" else t["x"],
        lambda t: max(t["n"], t["k"]),
        lambda t: t["n"] if (t["n"] * t["x"]).sum() == 14 else t["x"],
    ],
)
def test_a_function_may_compute_with_a_number_that_it_returns(where: Any) -> None:
    assert places_of({"n": 7, "k": 2, "x": TIED}, where) == ["dict['n']"]


def test_a_key_of_a_dict_is_named_as_the_dict_has_it() -> None:
    nan = float("nan")
    tree = {1: 1.5, 2: 2.5, nan: 3.5}
    assert places_of(tree, lambda t: [t[True], t[np.int64(2)], t[nan]]) == ["dict[1]", "dict[2]", "dict[nan]"]
