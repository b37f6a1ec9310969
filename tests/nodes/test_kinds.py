"""The laws of the table of kinds: exact keys, JSON, freeze, pickle and reports agree on each kind, wherever it is."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import json
import pathlib
import pickle
import re
import types
import typing
import uuid
import zoneinfo
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
import optax
import pytest

from tests.nodes.test_functions import CLOSED, OPEN
from treewright import Module, diff, freeze, static
from treewright._base.functions import FrozenValue
from treewright._contents import contents, unwrap_api_boundary
from treewright._core import exact_key, kind_of
from treewright._core.comparison import comparison_of
from treewright._core.keys import within
from treewright._core.kinds import DATACLASS, DTYPE, ENUM, KINDS, NAMEDTUPLE, SCALAR, Kind
from treewright._freeze import FrozenArray, FrozenMapping
from treewright._json import encode
from treewright._trees.causes import cause_of, one_static, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC: Any = jax.sharding.PartitionSpec
DEVICES: Any = np.array(jax.devices()[:2])


class Net(Module):
    setting: Any = static()


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Point(NamedTuple):
    x: Any


@dataclasses.dataclass(frozen=True)
class Config:
    width: Any


def mesh(name: str) -> Any:
    return jax.sharding.Mesh(DEVICES, (name,))


# Two different values of each kind. A new kind must come with two.
EXAMPLES: dict[Any, tuple[Callable[[], Any], Callable[[], Any]]] = {
    float: (lambda: 0.0, lambda: -0.0),
    complex: (lambda: complex(0.0, 1.0), lambda: complex(-0.0, 1.0)),
    str: (lambda: str(b"ab", "ascii"), lambda: "b"),
    int: (lambda: 10**20, lambda: 10**20 + 1),
    bytes: (lambda: bytes([1, 2]), lambda: b"\x01"),
    tuple: (lambda: (1, 2.0), lambda: (1.0, 2.0)),
    frozenset: (lambda: frozenset({1, "a"}), lambda: frozenset({True, "a"})),
    functools.partial: (lambda: functools.partial(max, 1), lambda: functools.partial(max, 1.0)),
    slice: (lambda: slice(0, 1), lambda: slice(0, 2)),
    range: (lambda: range(3), lambda: range(4)),
    dt.time: (lambda: dt.time(1), lambda: dt.time(2)),
    dt.datetime: (lambda: dt.datetime(2020, 1, 1, tzinfo=dt.UTC), lambda: dt.datetime(2020, 1, 2, tzinfo=dt.UTC)),
    dt.timedelta: (lambda: dt.timedelta(1), lambda: dt.timedelta(2)),
    dt.date: (lambda: dt.date(2020, 1, 1), lambda: dt.date(2020, 1, 2)),
    dt.timezone: (lambda: dt.timezone(dt.timedelta(hours=1)), lambda: dt.timezone(dt.timedelta(hours=2))),
    zoneinfo.ZoneInfo: (lambda: zoneinfo.ZoneInfo("UTC"), lambda: zoneinfo.ZoneInfo("Europe/Paris")),
    decimal.Decimal: (lambda: decimal.Decimal("1.0"), lambda: decimal.Decimal("1.00")),
    fractions.Fraction: (lambda: fractions.Fraction(1, 2), lambda: fractions.Fraction(1, 3)),
    uuid.UUID: (lambda: uuid.UUID(int=1), lambda: uuid.UUID(int=2)),
    ipaddress.IPv4Address: (lambda: ipaddress.ip_address("10.0.0.1"), lambda: ipaddress.ip_address("10.0.0.2")),
    ipaddress.IPv6Address: (lambda: ipaddress.ip_address("::1%a"), lambda: ipaddress.ip_address("::1%b")),
    re.Pattern: (lambda: re.compile("a"), lambda: re.compile("a", re.IGNORECASE)),
    types.GenericAlias: (lambda: list[int], lambda: list[float]),
    type(typing.Optional[int]): (lambda: typing.Optional[int], lambda: typing.Optional[float]),  # noqa: UP045
    types.UnionType: (lambda: int | str, lambda: str | int),
    pathlib.PurePosixPath: (lambda: pathlib.PurePosixPath("a"), lambda: pathlib.PurePosixPath("b")),
    pathlib.PureWindowsPath: (lambda: pathlib.PureWindowsPath("a"), lambda: pathlib.PureWindowsPath("A")),
    type(pathlib.Path()): (lambda: pathlib.Path("a"), lambda: pathlib.Path("b")),
    type(SPEC.UNCONSTRAINED): (lambda: SPEC.UNCONSTRAINED, lambda: None),
    SPEC: (lambda: SPEC("x"), lambda: SPEC("x", None)),
    jax.sharding.Mesh: (lambda: mesh("x"), lambda: mesh("y")),
    jax.sharding.AbstractMesh: (
        lambda: jax.sharding.AbstractMesh((2,), ("x",)),
        lambda: jax.sharding.AbstractMesh((4,), ("x",)),
    ),
    jax.sharding.NamedSharding: (
        lambda: jax.sharding.NamedSharding(mesh("x"), SPEC("x")),
        lambda: jax.sharding.NamedSharding(mesh("x"), SPEC()),
    ),
    ENUM: (lambda: Mode.TRAIN, lambda: Mode.TEST),
    DTYPE: (lambda: np.dtype("float32"), lambda: np.dtype(">f4")),
    SCALAR: (lambda: np.float32(0.0), lambda: np.float32(-0.0)),
    NAMEDTUPLE: (lambda: Point(1), lambda: Point(True)),
    DATACLASS: (lambda: Config(1), lambda: Config(1.0)),
    FrozenMapping: (lambda: freeze({"a": 1, "b": 2}), lambda: freeze({"b": 2, "a": 1})),
    FrozenArray: (lambda: freeze(np.arange(2)), lambda: freeze(np.arange(2.0))),
}
NAMES = [getattr(kind, "__name__", getattr(kind, "name", str(kind))) for kind in EXAMPLES]


def call(value: Any) -> Any:
    """A function that a module knows by name and that is closed."""
    return value


@dataclasses.dataclass(frozen=True)
class Holder:
    value: Any

    def method(self, x: Any) -> Any:
        return x


# Where a value of a kind can be in a static.
PLACES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "tuple": lambda value: (value,),
    "frozenset": lambda value: frozenset({value}),
    "frozen dataclass": Holder,
    "partial": lambda value: functools.partial(call, value),
    "partial of a lambda": lambda value: functools.partial(lambda x, y: (x, y), value),
    "frozenset in a partial": lambda value: functools.partial(call, frozenset({(value, 0)})),
    "default of a lambda": lambda value: lambda x, y=value: (x, y),
    "frozenset in a default": lambda value: lambda x, y=frozenset({value}): (x, y),
    "method": lambda value: Holder(value).method,
    "library's function": lambda value: jax.vmap(functools.partial(call, value)),
}
KINDS_AND_PLACES = [
    pytest.param(*makers, place, id=f"{name}-{where}")
    for name, makers in zip(NAMES, EXAMPLES.values(), strict=True)
    for where, place in PLACES.items()
    if "frozenset" not in where or isinstance(makers[0](), Hashable)
]


def test_each_kind_has_examples() -> None:
    families = {ENUM, DTYPE, SCALAR, NAMEDTUPLE, DATACLASS}

    assert {kind for kind in EXAMPLES if isinstance(kind, type)} - {FrozenMapping, FrozenArray} == {*KINDS}
    assert families <= {kind for kind in EXAMPLES if not isinstance(kind, type)}
    for kind, (make, _) in EXAMPLES.items():
        assert kind_of(type(make())) in {kind, KINDS.get(kind), vars(type(make())).get("_kind_")}


@pytest.mark.parametrize(("make", "other", "place"), KINDS_AND_PLACES)
def test_keys_json_freeze_and_snapshots_agree(
    make: Callable[[], Any], other: Callable[[], Any], place: Callable[[Any], Any]
) -> None:
    one, again, different = place(make()), place(make()), place(other())

    assert exact_key(one) == exact_key(again)
    assert hash(exact_key(one)) == hash(exact_key(again))
    assert exact_key(one) != exact_key(different)
    assert json.dumps(encode(one)) == json.dumps(encode(again)) != json.dumps(encode(different))
    assert exact_key(freeze(one)) == exact_key(one)
    assert one_static(snapshot(one), snapshot(again), exactly=True)
    assert not one_static(snapshot(one), snapshot(different), exactly=True)
    assert diff(Net(one), Net(again)) == []
    assert "setting" in str(diff(Net(one), Net(different)))


class Registered(FrozenValue):
    """A class with a kind of its own and without `==`, so `jit` compares it by identity in all other classes."""

    __slots__ = ("__weakref__", "width")
    _kind_ = Kind("Registered", lambda value: (value.width,))

    def __init__(self, width: int) -> None:
        self.width = width

    def __repr__(self) -> str:
        return f"Registered({self.width})"


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_registered_class_is_compared_by_its_parts_in_keys_and_reports(place: Callable[[Any], Any]) -> None:
    one, again, different = place(Registered(1)), place(Registered(1)), place(Registered(2))

    assert exact_key(one) == exact_key(again) != exact_key(different)
    assert json.dumps(encode(one)) == json.dumps(encode(again)) != json.dumps(encode(different))
    assert one_static(snapshot(one), snapshot(again), exactly=True)
    assert not one_static(snapshot(one), snapshot(different), exactly=True)
    assert "has no __eq__" not in str(cause_of(one, different))


def test_a_report_shows_the_values_of_a_registered_class() -> None:
    reason = cause_of(functools.partial(call, Registered(1)), functools.partial(call, Registered(2)))

    assert reason == "a new partial of call, with argument 0: Registered(1) -> Registered(2)"
    assert str(diff(Net(Registered(1)), Net(Registered(2)))[0]) == ".setting (static): Registered(1) -> Registered(2)"


PICKLED = {
    name: makers for name, makers in zip(NAMES, EXAMPLES.values(), strict=True) if name not in {"Mesh", "NamedSharding"}
}  # JAX can't pickle devices


@pytest.mark.parametrize(("make", "other"), PICKLED.values(), ids=PICKLED)
def test_pickles_and_copies_of_each_kind_have_the_same_statics(
    make: Callable[[], Any], other: Callable[[], Any]
) -> None:
    for value in (make(), other(), (make(), other()), Config(make())):
        node = Net(value)
        for restored in (pickle.loads(pickle.dumps(node)), copy.deepcopy(node)):
            assert jax.tree.structure(restored) == jax.tree.structure(node)


WITH_PARTS: dict[str, Callable[[], Any]] = (
    CLOSED
    | OPEN
    | {
        f"{name} in a partial": lambda make=make: functools.partial(call, (make(),))
        for name, (make, _) in zip(NAMES, EXAMPLES.values(), strict=True)
    }
)


@pytest.mark.parametrize("make", WITH_PARTS.values(), ids=WITH_PARTS)
def test_each_compared_part_is_in_the_contents(make: Callable[[], Any]) -> None:
    value = make()

    for each, how, _ in within(value, "field"):
        kind = kind_of(type(each))
        is_leaf = kind is not None and kind.make is None and not how.may_recur
        if not is_leaf and unwrap_api_boundary(each) is each:  # Contents look inside JAX's filter of tracebacks.
            listed = list(map(id, all_contents(each)))
            for role, _, parts in how.parts:
                compared = parts.values() if isinstance(parts, dict) else parts
                ids = {id(part) for part in compared if not isinstance(part, type)}
                assert role in {"name", "annotation"} or ids <= {*listed}, (each, role)


def all_contents(value: Any, depth: int = 3) -> list[Any]:
    parts = list(contents(value).values()) if depth else []
    return parts + [inner for part in parts for inner in all_contents(part, depth - 1)]


def test_the_law_detects_a_part_without_contents(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.nodes.test_kinds.contents", lambda _: {})

    with pytest.raises(AssertionError):
        test_each_compared_part_is_in_the_contents(lambda: functools.partial(call, Config(1)))
    assert comparison_of(functools.partial(call, 1), "field").parts


# Reports


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


# Where a value is in a static: deeper and further than a report lists.
DEPTHS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "below 9 levels": lambda value: nested(value, 9),
    "below 120 levels": lambda value: nested(value, 120),
    "after 450 parts": lambda value: (*range(450), value),
    "after 300 pairs": lambda value: (*((i, i) for i in range(300)), (0, value)),
}


def custom(factor: float) -> Any:
    """A function with a rule for its derivative, which is closed."""

    @jax.custom_jvp
    def double(x: Any) -> Any:
        return x * 2

    double.defjvps(lambda t, _ans, x, factor=factor: t * factor)
    return double


def custom_backward(factor: float) -> Any:
    @jax.custom_vjp
    def double(x: Any) -> Any:
        return x * 2

    double.defvjp(lambda x: (x * 2, None), lambda _, g, factor=factor: (g * factor,))
    return double


FUNCTIONS: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "closed function": (lambda: lambda x: x, lambda: lambda x: x + 1),
    "custom_jvp": (lambda: custom(2.0), lambda: custom(3.0)),
    "custom_vjp": (lambda: custom_backward(2.0), lambda: custom_backward(3.0)),
    "optimiser": (lambda: optax.adam(0.1), lambda: optax.adam(0.2)),
    "optimiser with a deep schedule": (
        lambda: optax.chain(optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100))),
        lambda: optax.chain(optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 101))),
    ),
}


EXAMPLES_AND_FUNCTIONS = dict(zip(NAMES, EXAMPLES.values(), strict=True)) | FUNCTIONS


@pytest.mark.parametrize("place", DEPTHS)
@pytest.mark.parametrize("kind", EXAMPLES_AND_FUNCTIONS)
def test_a_report_and_a_key_agree(kind: str, place: str) -> None:
    first, second = EXAMPLES_AND_FUNCTIONS[kind]
    made = [DEPTHS[place](make()) for make in (first, first, second)]
    keys, snapshots = [*map(exact_key, made)], [*map(snapshot, made)]

    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert one_static(snapshots[i], snapshots[j], exactly=True) is (keys[i] == keys[j])

    assert keys[0] != keys[2]
