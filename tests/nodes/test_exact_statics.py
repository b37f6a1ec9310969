"""Equality of statics: each row counts the traces of a jitted function; properties hold for the keys."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import fractions
import functools
import ipaddress
import itertools
import pathlib
import re
import statistics
import time
import types
import uuid
import zoneinfo
from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import importorskip
from tests.conftest import trace_counts as trace_counts_of
from treewright import FrozenMapping, Module, Static, freeze, pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")

ONES = (1, True, 1.0, np.float32(1))
F32, F64 = np.dtype("float32"), np.dtype("float64")
ABSTRACT: Any = jax.ShapeDtypeStruct
flax: Any = importorskip("flax", "flax.core", "flax.linen")
FROZEN_DICT: Any = flax.core.FrozenDict
equinox: Any = importorskip("equinox")
PARTIAL: Any = jax.tree_util.Partial
TUPLE: Any = tuple
SPEC: Any = jax.sharding.PartitionSpec


class Point(NamedTuple):
    value: Any


class Place(NamedTuple):
    value: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    value: Any


@dataclasses.dataclass(frozen=True)
class Cold:
    value: Any
    note: Any = dataclasses.field(default=None, compare=False, repr=False)


class Extended(Frozen):
    """Inherits an `==` that ignores additional attributes."""


@dataclasses.dataclass(frozen=True)
class Weighted(Frozen):
    weight: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Weighted) and self.weight == other.weight

    def __hash__(self) -> int:
        return hash(self.weight)


@dataclasses.dataclass(unsafe_hash=True)
class Changing:
    value: Any


class NumpyCount(np.int64):
    pass


class SubPartial(functools.partial[Any]):
    pass


class Tagged(tuple[Any, ...]):  # noqa: SLOT001  for its __dict__
    pass


class Label(str):  # noqa: SLOT000  for its __dict__
    pass


class Measure(float):
    pass


class Unit(str):
    __slots__ = ("power",)
    power: int


def unit(power: int) -> Unit:
    unit_with_power = Unit("m")
    unit_with_power.power = power
    return unit_with_power


def subclass_of(base: type[Any]) -> Callable[..., Any]:
    """A subclass whose instances can have attributes, which the inherited `==` ignores."""
    return types.new_class(f"{base.__name__}WithAttributes", (base,))


FINE = subclass_of(Decimal)
VALUES_OF_PYTHON: dict[Callable[..., Any], tuple[Any, ...]] = {
    subclass_of(base): arguments
    for base, arguments in {
        dt.date: (2020, 1, 2),
        dt.datetime: (2020, 1, 2),
        dt.timedelta: (1,),
        Decimal: ("1.50",),
        fractions.Fraction: (1, 3),
        pathlib.PurePosixPath: ("a/b",),
        uuid.UUID: ("0" * 32,),
    }.items()
}


class Setting(equinox.Module):  # type: ignore[misc,unused-ignore]
    value: Any = equinox.field(static=True)


def in_equinox_module(value: Any, read: Callable[[Any], Any] = lambda module: module) -> Any:
    return read(cast("Any", Setting)(value))


class FrozenDict(Mapping[str, Any]):
    """A user's immutable mapping."""

    def __init__(self, **items: Any) -> None:
        self.items_given = items

    def __getitem__(self, name: str) -> Any:
        return self.items_given[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.items_given)

    def __len__(self) -> int:
        return len(self.items_given)

    def __hash__(self) -> int:
        return hash(frozenset(self.items_given.items()))


class Money(Decimal):
    """Its repr omits a part, as for the next class."""

    def __str__(self) -> str:
        return f"{float(self):.1f}"


class Short(pathlib.PurePosixPath):
    def __str__(self) -> str:
        return self.name


class Color(enum.Enum):
    RED = 1


class Number(enum.IntEnum):
    ONE = 1


class Count(enum.IntEnum):
    ONE = 1


class Mode(enum.StrEnum):
    TRAIN = "train"


class Name(str):
    __slots__ = ()


class Half(float):
    __slots__ = ()


class Holder(Module):
    value: Any = static()

    def method(self) -> Any:
        return self.value

    def other_method(self) -> Any:
        return self.value


@pytree_dataclass
class Layer:
    x: Any
    setting: Any = static()


def trace_counts(*settings: Any) -> list[int]:
    """How often a jitted function of a layer has been traced after its call with each of the settings."""
    return trace_counts_of(Layer, *settings)


def function_with_default(value: Any) -> Callable[..., Any]:
    def function(argument: Any = value) -> Any:
        return argument

    return function


def function_with_keyword_default(value: Any) -> Callable[..., Any]:
    def function(*, argument: Any = value) -> Any:
        return argument

    return function


def note(*args: Any, **keywords: Any) -> None:
    """Accepts any arguments."""


def documented(
    name: str = "f", doc: str = "Scales.", module: str = "m", annotations: dict[str, Any] | None = None
) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        """Scales."""
        return x + 1

    function.__name__, function.__doc__, function.__module__ = name, doc, module
    function.__annotations__ = annotations or {"x": int}
    return function


def with_attributes(value: Any, **attributes: Any) -> Any:
    vars(value).update(attributes)
    return value


def function_in(namespace: dict[str, Any]) -> Any:
    return eval("lambda x: x * scale", namespace)


# Created twice: equal, and mostly not identical.
SAME: dict[str, Callable[[], Any]] = {
    "date": lambda: dt.date(2020, 1, 2),
    "function of jax": lambda: jax.nn.relu,
    "jitted function": lambda: jax.nn.gelu,
    "function of a module": lambda: trace_counts,
    "lambda": lambda: lambda x: x + 1,
    "local function with defaults": lambda: function_with_default((1, "a")),
    "local function with keyword defaults": lambda: function_with_keyword_default(2),
    "partial": lambda: functools.partial(note, 1, sep=Decimal(2)),
    "partial of a lambda": lambda: functools.partial(lambda x, y: x, y=(1,)),
    "partial of a partial": lambda: functools.partial(functools.partial(note, 1), 2),
    "jitted lambda": lambda: jax.jit(lambda x: x + 1, static_argnums=0),
    "mapped, differentiated and checkpointed lambda": lambda: jax.vmap(jax.grad(jax.checkpoint(lambda x: x * x))),
    "initialiser": lambda: jax.nn.initializers.variance_scaling(0.1, "fan_in", "normal"),
    "layer of flax": lambda: flax.linen.Dense(3, kernel_init=flax.linen.initializers.normal(0.1)),
    "lambda that reads libraries and built-ins": lambda: (
        lambda x: jnp.tanh(x) + jnp.add(abs(x), np.pi) + jnp.float32(1)
    ),
    "documented function": documented,
    "field that a dataclass does not compare": lambda: Cold(1, note=object()),
    "union": lambda: int | float,
    "parametrised types": lambda: (tuple[int, ...], Literal["a"], Annotated[int, "b"], dict[str, list[int]]),
    "aware datetime": lambda: dt.datetime(2020, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    "time of day": lambda: dt.time(3, 4, tzinfo=dt.UTC),
    "UUID": lambda: uuid.UUID("0" * 32),
    "addresses": lambda: (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_address("::1%a")),
    "FrozenDict of flax": lambda: FROZEN_DICT({"a": 1, "b": {"c": 2.0}}),
    "subclass of partial": lambda: PARTIAL(note, 1),
    "node with children": lambda: Layer(1.5, "a"),
    "method of a node": lambda: Holder(2).method,
    "method of a static object": lambda: Frozen(1).__eq__,
    "frozen mapping": lambda: freeze({"a": [1, 2], "b": {"c"}}),
    "frozen array": lambda: freeze(np.arange(3.0)),
    "shape and dtype": lambda: ABSTRACT((2, 3), jnp.float32),
    "partition spec": lambda: SPEC("data", None),
    "treedef": lambda: jax.tree.structure({"a": (1, None), "b": Static(("a", 1))}),
    "key of a tree": lambda: (jax.tree_util.DictKey("a"), jax.tree_util.SequenceKey(1)),
    "path": lambda: pathlib.PurePosixPath("a", "b"),
    "module of equinox": lambda: in_equinox_module((1, "a")),
}

# Types that are not compared by value
UNLISTED: dict[str, Callable[[], Any]] = {
    "structured dtype": lambda: np.dtype([("a", np.float32), ("b", np.int8)]),
    "dtype with metadata": lambda: np.dtype("float32", metadata={"unit": "m"}),
    "network": lambda: ipaddress.ip_network("10.0.0.0/8"),
    "distribution of the standard library": lambda: statistics.NormalDist(0.0, 1.0),
    "NaN of a subclass of float": lambda: Half("nan"),
    "subclass of str": lambda: Name("a"),
    "subclass of a numpy scalar": lambda: NumpyCount(3),
    "subclass of partial": lambda: SubPartial(note, 1),
    "undecorated subclass of a frozen dataclass": lambda: Extended(1),
    "dataclass with unsafe_hash": lambda: Changing(1),
    "struct_time": lambda: time.gmtime(0),
    **{
        f"{kind.__name__} without attributes": functools.partial(kind, *arguments)
        for kind, arguments in VALUES_OF_PYTHON.items()
    },
}

DIFFERENT: dict[str, tuple[Any, Any]] = {
    "empty ranges": (range(0), range(1, 1)),
    "ranges by their stop": (range(0, 4, 3), range(0, 5, 3)),
    "signs of a np.complex64": (np.complex64(complex(0.0, 1.0)), np.complex64(complex(-0.0, 1.0))),
    "address and interface": (ipaddress.ip_address("10.0.0.1"), ipaddress.ip_interface("10.0.0.1/32")),
    "origins of a UUID": (uuid.UUID(int=1), uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe)),
    "byte order": (np.dtype("<f4"), np.dtype(">f4")),
    "functions": (jax.nn.relu, jax.nn.gelu),
    "order of keywords of a partial": (
        functools.partial(note, sep="a", end="b"),
        functools.partial(note, end="b", sep="a"),
    ),
    "attributes of a partial": (functools.partial(note), with_attributes(functools.partial(note), rate=1)),
    "partial and jax's partial": (functools.partial(note), PARTIAL(note)),
    "attributes of a tuple": (Tagged(("a",)), with_attributes(Tagged(("a",)), tag=1)),
    "attributes of a str": (Label("a"), with_attributes(Label("a"), tag=1)),
    "slots of a str": (unit(1), unit(2)),
    "zones of one name": (zoneinfo.ZoneInfo("UTC"), zoneinfo.ZoneInfo.no_cache("UTC")),
    "attributes of a float": (Measure(1.0), with_attributes(Measure(1.0), unit="m")),
    "attributes that are not fields": (Frozen(1), with_attributes(Frozen(1), tag=1)),
    "attributes of an undecorated subclass": (Extended(1), with_attributes(Extended(1), tag=1)),
    "own == of a subclass of a dataclass": (Weighted(1, 2.0), Weighted(1, 3.0)),
    "name of a function": (documented(), documented(name="other")),
    "docstring of a function": (documented(), documented(doc="Other.")),
    "module of a function": (documented(), documented(module="other")),
    "annotations of a function": (documented(), documented(annotations={"x": float})),
    "file of a function": tuple(eval(compile("lambda x: x", name, "eval")) for name in ("a.py", "b.py")),
    "attributes of a function": (documented(), with_attributes(documented(), rate=1)),
    "options of jit": (jax.jit(lambda x: x + 1), jax.jit(lambda x: x + 1, static_argnums=0)),
    "scale of an initialiser": (jax.nn.initializers.normal(0.1), jax.nn.initializers.normal(0.2)),
    "order of a union": (int | float, float | int),
    "types in a parametrised type": (TUPLE[1], TUPLE[True]),
    "values of Literal": (Literal[1, 2], Literal[2, 1]),
    "metadata of Annotated": (Annotated[int, 1], Annotated[int, True]),
    "zones of one moment": (
        dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC),
        dt.datetime(2020, 1, 2, 4, tzinfo=dt.timezone(dt.timedelta(hours=1))),
    ),
    "names of a zone": (dt.timezone(dt.timedelta(hours=1), "A"), dt.timezone(dt.timedelta(hours=1), "B")),
    "fold of a datetime": (dt.datetime(2020, 1, 2), dt.datetime(2020, 1, 2, fold=1)),  # noqa: DTZ001
    "fold of a time": (dt.time(3), dt.time(3, fold=1)),
    "metadata of a dtype": (F32, np.dtype("float32", metadata={"unit": "m"})),
    "lambdas on one line": (lambda x: x + 1, lambda x: x + 2),
    "constants of a lambda": (eval("lambda: 1"), eval("lambda: 1.0")),
    "globals of a lambda": (function_in({"scale": 1}), function_in({"scale": 2})),
    "defaults": (function_with_default(1), function_with_default(2)),
    "keyword defaults": (function_with_keyword_default(1), function_with_keyword_default(2)),
    "function and partial": (note, functools.partial(note)),
    "keywords of a partial": (functools.partial(note, sep="a"), functools.partial(note, end="a")),
    "function of a partial": (functools.partial(min, 1), functools.partial(max, 1)),
    "argument and keyword": (functools.partial(note, 1), functools.partial(note, sep=1)),
    "children of a node": (Layer(1.5, "a"), Layer(2.5, "a")),
    "methods of a node": (Holder(1).method, Holder(1).other_method),
    "nodes of a method": (Holder(1).method, Holder(2).method),
    "order of a frozen mapping": (freeze({"a": 1, "b": 2}), freeze({"b": 2, "a": 1})),
    "numbers in a FrozenDict": (FROZEN_DICT(a=1), FROZEN_DICT(a=True)),
    "signs in a FrozenDict": (FROZEN_DICT(a=0.0), FROZEN_DICT(a=-0.0)),
    "order of a FrozenDict": (FROZEN_DICT(a=1, b=2), FROZEN_DICT(b=2, a=1)),
    "numbers in a frozen mapping of one's own": (FrozenDict(a=1), FrozenDict(a=1.0)),
    "case of a path of Windows": (pathlib.PureWindowsPath("A"), pathlib.PureWindowsPath("a")),
    "__str__ of a Decimal": (Money("1.01"), Money("1.02")),
    "__str__ of a path": (Short("/a/x"), Short("/bb/x")),
    "scalars of a record": (np.dtype([("a", "f4")]), np.dtype((np.record, [("a", "f4")]))),
    "alignment": (np.dtype([("a", "f4")]), np.dtype([("a", "f4")], align=True)),
    "digits of a subclass of Decimal": (FINE("1.0"), FINE("1.00")),
    **{
        f"attributes of {kind.__name__}": (kind(*arguments), with_attributes(kind(*arguments), tag=1))
        for kind, arguments in VALUES_OF_PYTHON.items()
    },
    "frozen array by value": (freeze(np.zeros(2)), freeze(np.ones(2))),
    "frozen array by sign": (freeze(np.array(0.0)), freeze(np.array(-0.0))),
    "frozen array by dtype": (freeze(np.zeros(2, np.float32)), freeze(np.zeros(2, np.int32))),
    "frozen array by shape": (freeze(np.zeros((2, 3))), freeze(np.zeros((3, 2)))),
}


@pytest.mark.parametrize("make", SAME.values(), ids=SAME)
def test_an_equal_static_does_not_retrace(make: Callable[[], Any]) -> None:
    first = make()

    assert trace_counts(first, first, make()) == [1, 1, 1]


@pytest.mark.parametrize("make", UNLISTED.values(), ids=UNLISTED)
def test_unlisted_types_are_compared_by_identity(make: Callable[[], Any]) -> None:
    first = make()

    assert trace_counts(first, first, make()) == [1, 1, 2]


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_a_changed_static_retraces_once(first: Any, second: Any) -> None:
    assert trace_counts(first, second, first, second) == [1, 2, 2, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.float32("nan"),
        lambda: np.float64("nan"),
        lambda: complex(float("nan"), 1),
        lambda: np.complex64(complex(1, float("nan"))),
        lambda: Decimal("nan"),
        lambda: Decimal("snan"),
        lambda: np.datetime64("NaT", "D"),
        lambda: jnp.dtype("bfloat16").type("nan"),
    ],
)
def test_nans_of_one_type_are_equal_statics(make: Callable[[], Any]) -> None:
    assert trace_counts(make(), make(), make()) == [1, 1, 1]


# Properties of the keys

SCALARS: list[Any] = [
    *ONES,
    *(0, False, 0.0, -0.0, float("nan"), float("inf"), 0j, complex(-0.0, 0.0), complex(0.0, -0.0), None, ...),
    *(np.float32(0), np.float32(-0.0), np.float64(1), np.float64("nan"), np.int32(1), np.int64(1), np.bool(1)),
    *("1", "train", b"1", Name("1"), Name("train"), np.str_("1"), Mode.TRAIN, Number.ONE, Count.ONE, Color.RED),
    *(Decimal(1), Decimal("1.0"), Decimal("-0"), Decimal("nan"), fractions.Fraction(1), Half(1), Half("nan")),
    *(F32, np.dtype(">f4"), np.float32, int, len, np.datetime64("NaT", "D"), np.datetime64("2020"), range(1), slice(1)),
    *(10**30, "relu", b"", np.int8(1), np.complex64(1 - 0j), np.dtype("float64"), jnp.dtype("bfloat16"), np.add),
    *(slice(1, None), range(0, 4, 3), np.datetime64("2020-01-01"), jnp.dtype("bfloat16").type(1.5)),
]


def make_a_set(values: list[Any]) -> bool:
    try:
        frozenset(values)
    except TypeError:  # an unhashable value; or Decimal(1) and np.int32(1), which can't be compared
        return False
    return True


def extended(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(values, max_size=3)
    return st.one_of(
        few.map(tuple),
        few.filter(make_a_set).map(frozenset),
        values.map(Point),
        values.map(Place),
        values.map(Frozen),
        values.map(Cold),
        values.map(lambda value: functools.partial(note, value, end=value)),
        values.map(lambda value: freeze({"a": value})),
        values.map(Static),
    )


VALUES = st.recursive(st.sampled_from(SCALARS), extended, max_leaves=6)


def parts_of(value: Any) -> Iterator[Any] | None:
    """The items of a container; None for anything else."""
    match value:
        case Static():
            return iter([value.value])
        case functools.partial():
            return iter([value.func, *value.args, *value.keywords.items()])
        case Frozen() | Cold():
            return iter([value.value])
        case tuple():
            return iter(value)
        case FrozenMapping():
            return iter(value.items())
        case _:
            return None


def exact_description(value: Any) -> str:
    """A text that is equal exactly if type and repr are equal at every level, and open partials are the same object."""
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    if isinstance(value, frozenset):
        return f"{kind}{{{', '.join(sorted(map(exact_description, value)))}}}"
    parts = parts_of(value)
    if parts is None:
        return f"{kind}:{value!r}"
    inside = ", ".join(map(exact_description, parts))
    is_open = isinstance(value, functools.partial) and re.search(r"\.(Half|Name):", inside)  # compared by identity
    return f"{kind}({inside}){id(value) if is_open else ''}"


@given(st.lists(VALUES, min_size=2, max_size=6))
def test_nodes_share_their_statics_exactly_when_type_and_repr_are_equal(values: list[Any]) -> None:
    nodes = [Static(value) for value in values]

    for first in nodes:
        for second in nodes:
            are_equal = exact_description(first) == exact_description(second)
            assert (jax.tree.structure(first) == jax.tree.structure(second)) is are_equal


@given(st.permutations(SCALARS))
def test_all_scalars_are_different_statics_in_any_order(scalars: list[Any]) -> None:
    structures = [jax.tree.structure(Static(scalar)) for scalar in scalars]

    assert all(left != right for left, right in itertools.combinations(structures, 2))
