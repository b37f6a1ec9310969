"""Statics that can change: by each route from a static they are rejected, cause a warning, are frozen, or are quiet."""

from __future__ import annotations

import argparse
import array
import collections
import contextlib
import dataclasses
import functools
import io
import itertools
import logging
import random
import sys
import tempfile
import types
import warnings
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pydantic
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, Static, freeze, static
from treewright.errors import StaticFieldError, StaticWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

equinox: Any = importorskip("equinox")
linen: Any = importorskip("flax", "flax.linen").linen
nnx: Any = importorskip("flax", "flax.nnx").nnx
orbax: Any = importorskip("orbax.checkpoint")

pytestmark = pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")


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
    "node": Static,
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


class Config:
    def __init__(self, widths: list[int]) -> None:
        self.widths = widths


class Slotted:
    __slots__ = ("width",)

    def __init__(self, width: int) -> None:
        self.width = width


@dataclasses.dataclass(unsafe_hash=True)
class Hashed:
    width: int = 1


@dataclasses.dataclass(eq=False)
class DataByIdentity:
    width: int = 1


@dataclasses.dataclass
class Open:
    width: int = 1


@attrs.define
class Attrs:
    width: int = 1


@attrs.define(eq=False, slots=False)
class AttrsByIdentity:
    width: int = 1


class Model(pydantic.BaseModel):
    width: int = 1


class Countdown:
    def __init__(self, left: int) -> None:
        self.left = left

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        self.left -= 1
        return self.left


class Name(str):
    __slots__ = ("note",)
    note: str


def noted_name() -> Name:
    name = Name("relu")
    name.note = "draft"
    return name


def row() -> Any:
    table = np.zeros(2, [("a", float)])
    table.flags.writeable = False
    return table[0]


def memmap() -> Any:
    with tempfile.NamedTemporaryFile() as file:  # closed and deleted; the map stays
        return np.memmap(file, dtype="float32", shape=(2,), mode="w+")


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
    "bytearray": lambda: bytearray(b"a"),
    "deque": lambda: collections.deque([1]),
    "Counter": lambda: collections.Counter("a"),
    "defaultdict": lambda: collections.defaultdict(list),
    "OrderedDict": lambda: collections.OrderedDict(a=1),
    "UserDict": lambda: collections.UserDict(a=1),
    "SimpleNamespace": lambda: types.SimpleNamespace(a=1),
    "Namespace": lambda: argparse.Namespace(a=1),
    "array.array": lambda: array.array("i", [1]),
    "WeakSet": weakref.WeakSet,
    "numpy array": lambda: np.ones(2),
    "memmap": memmap,
}
REJECTED: dict[str, Callable[[], Any]] = {
    "items of a dict": lambda: {"a": 1}.items(),
    "values of a dict": lambda: {"a": 1}.values(),  # Python gives it a hash
    "matrix": lambda: np.asmatrix([[1.0]]),
    "masked array": lambda: np.ma.masked_array([1.0], mask=[True]),
    "record array": lambda: np.rec.array([(1.0,)], dtype=[("a", float)]),
    "row of a structured array": row,
    "array of objects": lambda: np.array([object()]),
    "JAX array": lambda: jnp.ones(2),
    "ref": lambda: jax.new_ref(jnp.ones(2)),
    "Random": lambda: random.Random(0),
    "Generator": lambda: np.random.default_rng(0),
    "BitGenerator": lambda: np.random.PCG64(0),
    "RandomState": lambda: np.random.RandomState(0),
    "list iterator": lambda: iter([1]),
    "generator": lambda: (x for x in [1]),
    "map": lambda: map(str, [1]),
    "count": itertools.count,
    "own iterator": lambda: Countdown(3),
    "open file": lambda: open(0, closefd=False, encoding="utf-8"),  # noqa: SIM115
    "StringIO": io.StringIO,
    "standard output": lambda: sys.stdout,
    "nnx module": lambda: nnx.Linear(2, 2, rngs=nnx.Rngs(0)),
    "nnx variable": lambda: nnx.Param(jnp.ones(2)),
    "nnx generators": lambda: nnx.Rngs(0),
    "dataclass with ==": Open,
    "attrs class with ==": Attrs,
    "pydantic model": Model,
}
WARNED: dict[str, Callable[[], Any]] = {
    "object with attributes": lambda: Config([64]),
    "object with slots": lambda: Slotted(64),
    "dataclass with unsafe_hash": Hashed,
    "dataclass with eq=False": DataByIdentity,
    "attrs class with eq=False": AttrsByIdentity,
    "str with attributes": noted_name,
}
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


@pytest.mark.parametrize("make", (CONTAINERS | REJECTED).values(), ids=CONTAINERS | REJECTED)
@pytest.mark.parametrize("route", BY_VALUE.values(), ids=BY_VALUE)
def test_a_mutable_value_is_rejected_where_the_key_would_be_its_value(
    route: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    value = make()

    with pytest.raises(StaticFieldError, match=r"^(Net\.setting|Static\.value) is static but (holds|reaches) an? "):
        Net(route(value))
    with warnings.catch_warnings(action="error"):
        assert Kept(value).setting is value


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
def test_freeze_makes_containers_valid_statics(name: str, make: Callable[[], Any]) -> None:
    value = BY_VALUE[name](make())

    with warnings.catch_warnings(action="error"):
        assert jax.tree.structure(Frozen(value)) == jax.tree.structure(Frozen(BY_VALUE[name](make())))
        assert Frozen(value).setting is not value


@pytest.mark.parametrize("make", (CONTAINERS | REJECTED).values(), ids=CONTAINERS | REJECTED)
def test_the_error_offers_freeze_exactly_if_freeze_accepts_the_value(make: Callable[[], Any]) -> None:
    with pytest.raises(StaticFieldError) as caught:
        Net(make())

    with contextlib.nullcontext() if "converter=treewright.freeze" in str(caught.value) else pytest.raises(TypeError):
        freeze(make())


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("make", (REJECTED | WARNED).values(), ids=REJECTED | WARNED)
def test_freeze_rejects_values_it_cannot_freeze(make: Callable[[], Any]) -> None:
    for value in (make(), [make()]):
        with pytest.raises(TypeError, match=r"^freeze (can't freeze|is for settings, but) .*\."):
            freeze(value)


@pytest.mark.parametrize("make", WARNED.values(), ids=WARNED)
def test_a_mutable_static_object_warns_once_at_the_users_line(make: Callable[[], Any]) -> None:
    cls, name = fresh_class(), type(make()).__name__
    text = rf"Fresh\.setting is static and holds an? {name}, (?s:.*)@dataclass\(frozen=True\)\n  class {name}: \.\.\."
    with pytest.warns(StaticWarning, match=text) as caught:
        cls(make())

    assert [warning.filename for warning in caught] == [__file__]
    with warnings.catch_warnings(action="error"):
        assert isinstance(cls(make()), cls)
        assert isinstance(Kept(make()), Kept)


def test_the_fix_in_the_warning_makes_the_config_exact() -> None:
    @dataclasses.dataclass(frozen=True)
    class Cold:
        widths: tuple[int, ...]

    jitted = jax.jit(counted := count_traces(lambda net: jnp.asarray(net.setting.widths).sum()))

    assert [int(jitted(Net(Cold(widths)))) for widths in ((1,), (1,), (1, 2))] == [1, 1, 3]
    assert counted.count == 2


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
    "closure over a frozen value": lambda: capturing(freeze({"a": [1]})),
    "closure over a node": lambda: capturing(Static(1)),
    "object without attributes": Stateless,
    "method of a list": lambda: [1].append,
    "logger": lambda: logging.getLogger("quiet"),
    "object": object,
}


@pytest.mark.parametrize("make", QUIET.values(), ids=QUIET)
def test_libraries_and_constants_do_not_warn(make: Callable[[], Any]) -> None:
    value = make()

    with warnings.catch_warnings(action="error"):
        assert fresh_class()(value).setting is value


@attrs.define(unsafe_hash=True)
class Hashable:
    k: int = 2


@dataclasses.dataclass(frozen=True)
class FrozenK:
    k: int


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
@pytest.mark.parametrize("route", [BY_VALUE["itself"], BY_VALUE["tuple"], BY_VALUE["partial"]])
@pytest.mark.parametrize(
    "make", [lambda: Equal(2), Hashable, lambda: FrozenK(2)], ids=["own ==", "attrs", "frozen, by object.__setattr__"]
)
def test_a_value_that_is_not_compared_by_identity_is_never_stale(
    route: Callable[[Any], Any], make: Callable[[], Any]
) -> None:
    value = make()
    setting = route(value)
    jitted = jax.jit(lambda net: (net.setting, jnp.asarray(value.k))[1])
    nets = [Net(setting) for _ in range(4)]  # From the third time on, the same objects are found by their ids.

    assert [int(jitted(net)) for net in nets] == [2] * 4
    object.__setattr__(value, "k", 3)
    assert int(jitted(Net(setting))) == 3


def test_all_invalid_static_fields_are_listed_in_one_error() -> None:
    class Game(Module):
        sizes: Any = static()
        table: Any = static()
        names: Any = static()
        name: str = static(default="pong")

    with pytest.raises(StaticFieldError, match=r"(?s)Game\.sizes is static but holds a list.*\n  sizes: ") as caught:
        Game(sizes=[], table=np.ones(2), names={})

    assert str(caught.value).splitlines()[-3:] == [
        f"Other static fields of {Game.__qualname__} that must change:",
        "  table: an array, f64[2](numpy)",
        "  names: a dict, {}",
    ]


# Values at the edge


def test_static_objects_may_use_any_attribute_names() -> None:
    class Odd:
        _kind_ = "odd"
        _exact_key_ = "odd"

    value = Odd()

    assert Net(value).setting is value
    assert freeze(value) is value
    assert "Odd object" in repr(Net(value))


def test_a_dict_whose_attributes_raise_key_error_is_rejected() -> None:
    class Attributes(dict[str, Any]):
        __getattr__ = dict.__getitem__

    class Child(Module):
        value: Any

    assert "value=Attributes({'a': 1})" in repr(Child(Attributes(a=1)))
    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but holds an Attributes, Attributes\("):
        Net(Attributes(a=1))


def test_a_frozen_dataclass_with_an_unset_field_is_compared_by_identity() -> None:
    @dataclasses.dataclass(frozen=True)
    class Lazy:
        width: int
        cache: Any = dataclasses.field(init=False)

    lazy = Lazy(1)

    assert jax.tree.structure(Net(lazy)) == jax.tree.structure(Net(lazy)) != jax.tree.structure(Net(Lazy(1)))


def test_a_static_that_is_nested_too_deeply_names_its_field() -> None:
    value: Any = ()
    for _ in range(3000):
        value = (value,)

    with pytest.raises(StaticFieldError, match=r"^Net\.setting is static but holds a tuple that is nested too deeply"):
        Net(value)
