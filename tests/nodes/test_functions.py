"""Static functions: which are one when they are made anew, and which go by identity."""

from __future__ import annotations

import dataclasses
import decimal
import enum
import functools
import math
import operator
import pathlib
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.nn import relu
from jax.sharding import PartitionSpec

from tests.conftest import trace_counts as trace_counts_of
from treewright import Module, TrainState, static
from treewright._core.functions import LIBRARIES, STANDARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCS = Path(__file__).parents[2] / "docs" / "statics.md"
RATE = 2
TABLE = {"rate": 2}
ACT = jax.nn.relu
MESH: Any = jax.make_mesh((1,), ("x",))
PARTIAL: Any = functools.partial


class Layer(Module):
    x: Any
    setting: Any = static()


class Content(Module):
    x: Any
    setting: Any = static(compare="content")


def in_module(name: str, source: str, **names: Any) -> Any:
    """A module of this name that holds what the source defines."""
    module = types.ModuleType(name)
    vars(module).update(names)
    sys.modules[name] = module
    exec(source, vars(module))
    return module


@pytest.fixture(autouse=True)
def _same_modules() -> Iterator[None]:
    before = dict(sys.modules)
    yield
    for name in set(sys.modules) - set(before):
        del sys.modules[name]
    sys.modules.update(before)


def nested(x: Any) -> Any:
    return [math.sin(y) * TABLE["rate"] for y in (x,)]


def importing() -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        import math as m

        return m.sin(x)

    return function


def assigning() -> Callable[[Any], Any]:
    def function(x: Any) -> Any:
        global RATE  # noqa: PLW0603
        RATE = 2  # pyright: ignore[reportConstantRedefinition]
        return x

    return function


def capturing(value: Any) -> Callable[[Any], Any]:
    return lambda x: (x, value)


def annotated(annotation: Any) -> Any:
    function = lambda x: x + 1
    function.__annotations__ = {"x": annotation}
    return function


def with_note(value: Any) -> Any:
    value.note = 1
    return value


def in_a_library(value: Any) -> Any:
    """A function that a library made, with this in it."""
    return optax.scale_by_schedule(jax.tree_util.Partial(max, value)).update  # type: ignore[no-untyped-call]  # left untyped by its library


@dataclasses.dataclass(frozen=True)
class Data:
    rate: Any = 1

    def closed(self, x: Any) -> Any:
        return jnp.tanh(x) * self.rate

    def with_keyword(self, x: Any, *, scale: Any = 2) -> Any:
        return x * self.rate * scale

    @property
    def doubled(self) -> Any:
        return 2 * self.rate

    @staticmethod
    def tripled(x: Any) -> Any:
        return 3 * x

    @functools.cached_property
    def cached(self) -> Any:
        return self.rate

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x: Any) -> Any:
        return x


class Super(Data):
    def closed(self, x: Any) -> Any:
        return super().closed(x)


class Reading(Data):
    def scale(self, x: Any) -> Any:
        return x * RATE


class Constant(Data):
    FACTOR = 3


class Mode(enum.Enum):
    TRAIN = "train"

    def scale(self, x: Any) -> Any:
        return x


class Lists(enum.Enum):
    A = [1]  # noqa: RUF012  which is the point


class Noted(enum.Enum):
    ONE = 1


Noted.ONE.note = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


class Point(NamedTuple):
    rate: Any = 1

    def scale(self, x: Any) -> Any:
        return x * self.rate


class Meta(type):
    """A metaclass of a user's."""


class OfMeta(tuple[Any, ...], metaclass=Meta):
    __slots__ = ()


class Own:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 1


@dataclasses.dataclass(frozen=True)
class NotedMethod:
    def closed(self, x: Any) -> Any:
        return x


vars(NotedMethod)["closed"].note = 1


def local_class(rate: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Capturing:
        def closed(self, x: Any) -> Any:
            return x * rate

    return Capturing()


# One static, made anew or not.
CLOSED: dict[str, Callable[[], Any]] = {
    "libraries and built-ins": lambda: lambda x: jnp.tanh(abs(x)) * math.pi + jnp.float32(np.add(x, 1)),
    "a library's function by its own name": lambda: lambda x: relu(x),
    "a function in a function": lambda: lambda x: [(lambda y: jnp.sin(y))][0](x),
    "a text's method": lambda: PARTIAL("a".join, ("b",)),
    "a method that a class has": lambda: PARTIAL(str.upper),
    "a PartitionSpec": lambda: PARTIAL(jax.lax.with_sharding_constraint, shardings=PartitionSpec("x")),  # type: ignore[no-untyped-call]  # left untyped by its library
    "a mesh": lambda: PARTIAL(max, MESH),
    "a device": lambda: PARTIAL(jax.device_put, device=jax.devices()[0]),
    "a path": lambda: PARTIAL(max, pathlib.Path("a")),
    "a shard_map": lambda: jax.shard_map(
        lambda x: x,
        mesh=MESH,
        in_specs=PartitionSpec("x"),  # type: ignore[no-untyped-call]  # left untyped by its library
        out_specs=PartitionSpec("x"),  # type: ignore[no-untyped-call]  # left untyped by its library
    ),
    "two functions": lambda: (lambda x: x, lambda x: x),
    "data with closed methods": lambda: PARTIAL(max, Data()),
    "a class that calls its base": lambda: PARTIAL(max, Super()),
    "an enum": lambda: PARTIAL(max, Mode.TRAIN),
    "a named tuple": lambda: PARTIAL(max, Point()),
    "a closed method": lambda: Data().closed,
    "a method with a default": lambda: Data().with_keyword,
    "a method that calls its base": lambda: Super().closed,
    "a numpy array in a library's function": lambda: in_a_library(np.ones(2)),
    "an array in a library's function": lambda: in_a_library(jnp.ones(2)),
    "a random key in a library's function": lambda: in_a_library(jax.random.key(0)),
    "a set in a library's function": lambda: in_a_library({1}),
    "a class": lambda: PARTIAL(max, Data),
    "a class attribute": lambda: PARTIAL(max, Constant()),
    "data with a method that reads a global": lambda: PARTIAL(max, Reading()),
    "a class of a metaclass": lambda: PARTIAL(max, OfMeta((1,))),
    "an enum member with a list": lambda: PARTIAL(max, Lists.A),
    "an enum member with attributes": lambda: PARTIAL(max, Noted.ONE),
    "an == of one's own": lambda: PARTIAL(max, Own()),
    "a treedef": lambda: PARTIAL(max, jax.tree.structure(1)),
}

# Another static each time that it is made.
OPEN: dict[str, Callable[[], Any]] = {
    "a global": lambda: lambda x: x * RATE,
    "a global in a comprehension": lambda: lambda x: [y * RATE for y in x],
    "a library's function by a name of the user's": lambda: lambda x: ACT(x),
    "an object's attribute": lambda: lambda x: TABLE.get(x),
    "a name that is not there": lambda: lambda: nowhere,  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    "a capture": lambda: capturing(1),
    "an import": importing,
    "an assignment": assigning,
    "eval": lambda: lambda x: eval("RATE") * x,
    "globals": lambda: lambda x: globals()["RATE"] * x,
    "getattr": lambda: lambda x: getattr(x, "__glo" + "bals__"),
    "attrgetter": lambda: lambda x: operator.attrgetter("__globals__")(x),
    "a function's globals": lambda: lambda f: f.__globals__,
    "settings of a library": lambda: lambda x: x if jax.config.values else -x,
    "a random number": lambda: lambda x: x * np.random.rand(),  # noqa: NPY002
    "a file": lambda: lambda x: np.load(x),
    "a shadowed built-in": in_module("shadowing", "def make(): return lambda x: abs(x)\nabs = len").make,
    "another built-in": in_module("changed", "def make(): return lambda x: abs(x)", __builtins__={"abs": len}).make,
    "an attribute": lambda: with_note(lambda x: x),
    "a partial with an attribute": lambda: with_note(PARTIAL(max)),
    "a jitted function with an attribute": lambda: with_note(jax.jit(lambda x: x)),
    "an annotation that can't be hashed": lambda: annotated([1]),
    "a function of a module that reads a global": lambda: PARTIAL(nested),
    "a module": lambda: PARTIAL(max, math),
    "a method that reads a global": lambda: Reading().scale,
    "a method that captures": lambda: local_class(1).closed,
    "a method with attributes": lambda: NotedMethod().closed,
    "a list's method": lambda: PARTIAL([1].index),
    "a tuple with attributes": lambda: PARTIAL(max, with_note(type("Noted", (tuple,), {})((1,)))),
    "a large array in a library's function": lambda: in_a_library(np.ones(5000)),
}


@pytest.mark.parametrize("make", CLOSED.values(), ids=CLOSED)
def test_a_closed_function_that_is_made_anew_does_not_trace_again(make: Callable[[], Any]) -> None:
    assert trace_counts_of(Layer, make(), make(), make()) == [1, 1, 1]


@pytest.mark.parametrize("make", OPEN.values(), ids=OPEN)
def test_a_function_that_depends_on_what_can_change_is_the_same_only_as_itself(make: Callable[[], Any]) -> None:
    kept = make()

    assert trace_counts_of(Layer, kept, kept, make()) == [1, 1, 2]
    assert Layer(1.0, kept).setting is kept


# Two values that differ: in what a subclass overrides, in private slots, in the classes, in the order of constants.


class Unpacked(Point):
    """Unpacks as nothing."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


class Money(decimal.Decimal):
    def __str__(self) -> str:
        return f"{float(self):.1f}"


class Short(pathlib.PurePosixPath):
    def __str__(self) -> str:
        return self.name


class Zero(float):
    def __bool__(self) -> bool:
        return False


@dataclasses.dataclass(frozen=True)
class Slotted:
    __slots__ = ("__hidden", "k")
    k: int

    def hiding(self, value: Any) -> Slotted:
        object.__setattr__(self, "_Slotted__hidden", value)
        return self

    def scale(self, x: Any) -> Any:
        return x * self.__hidden  # type: ignore[attr-defined]


class Alike(type):
    def __eq__(cls, other: object) -> bool:
        return isinstance(other, Alike)

    def __hash__(cls) -> int:
        return 1


def of_alike(value: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Made(metaclass=Alike):
        x: int = 1

        def result(self) -> Any:
            return value

    return Made()


class Bits(int, enum.Enum):
    def __new__(cls, bits: int, name: str) -> Bits:  # noqa: PYI034  as enum has it
        made = int.__new__(cls, bits)
        made._value_ = name
        return made

    F16 = (16, "f16")
    BF16 = (16, "bf16")


CELL: dict[str, Any] = {"__name__": "cell"}


def run_again(constant: str) -> Any:
    exec(compile(f"f = lambda x: [i for i in {constant}]", "<cell>", "exec"), CELL)
    return CELL["f"]


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "__iter__ of a named tuple": (Unpacked(1), Unpacked(2)),
    "__str__ of a Decimal": (Money("1.01"), Money("1.02")),
    "__str__ of a path": (Short("/a/x"), Short("/bb/x")),
    "__bool__ of a float": (Zero(2.0), Zero(3.0)),
    "a private slot": (Slotted(1).hiding(2).scale, Slotted(1).hiding(3).scale),
    "classes that a metaclass calls equal": (of_alike(1), of_alike(2)),
    "members of one number": (Bits.F16, Bits.BF16),
    "order of a set of constants": (run_again("{8, 0}"), run_again("{0, 8}")),
    "scalars of a record": (np.dtype([("a", "f4")]), np.dtype((np.record, [("a", "f4")]))),
    "alignment": (np.dtype([("a", "f4")]), np.dtype([("a", "f4")], align=True)),
}


@pytest.mark.parametrize(("first", "second"), DIFFERENT.values(), ids=DIFFERENT)
def test_values_that_differ_only_where_a_reader_may_not_look_are_two(first: Any, second: Any) -> None:
    kept = Layer(1.0, first)

    assert Layer(1.0, second).setting is second
    assert jax.tree.structure(kept) != jax.tree.structure(Layer(1.0, second))


@dataclasses.dataclass(unsafe_hash=True)
class Trainer:
    act: Any
    logger: Any

    def forward(self, x: Any) -> Any:
        return self.act(x)


def test_a_value_that_is_met_twice_is_the_one_that_was_given() -> None:
    trainer = Trainer(lambda x: x * 2, object.__new__(Own))
    kept = Layer(1.0, (trainer.forward, trainer.act))
    trainer.act = lambda x: x * 3

    assert Layer(1.0, (trainer.forward, trainer.act)).setting[1] is trainer.act
    assert kept.setting[1](1) == 2


def test_a_dataclass_that_changed_is_not_given_for_one_that_did_not() -> None:
    changed, other = Trainer(1, 2), Trainer(1, 2)
    kept = Layer(1.0, changed)
    changed.act = 5

    assert Layer(1.0, other).setting is other
    assert kept.setting.act == 5


def test_by_content_a_function_is_not_given_one_whose_variable_was_assigned_again() -> None:
    setters: list[Callable[[Any], None]] = []

    def times(factor: Any) -> Callable[[Any], Any]:
        def assign(value: Any) -> None:
            nonlocal factor
            factor = value

        setters.append(assign)
        return lambda x: x * factor

    first = Content(1.0, times(2))
    setters[0](5)

    assert (first.setting(1), Content(1.0, times(2)).setting(1)) == (5, 2)


def test_a_list_that_a_library_captured_and_that_changed_is_not_given_again() -> None:
    mask = {"a": True, "b": True}
    params = {"a": jnp.ones(()), "b": jnp.ones(())}
    first = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), mask))
    mask["b"] = False
    second = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), {"a": True, "b": True}))

    updated = second.apply_gradients(grads=params).params
    assert first.tx is not second.tx
    assert (float(updated["a"]), float(updated["b"])) == (0.0, 0.0)


def test_what_is_nested_deeper_than_pythons_stack_is_the_same_as_itself() -> None:
    deep: Any = max
    for _ in range(2000):
        deep = functools.partial(deep, 1) if deep is max else types.MethodType(deep, deep)

    assert trace_counts_of(Layer, deep, deep) == [1, 1]


class Unnamed:
    __slots__ = ()

    @property
    def __module__(self) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        raise RuntimeError("no module")

    def __call__(self, x: Any) -> Any:
        return x


def test_an_object_whose_module_can_not_be_read_is_a_static() -> None:
    made = Unnamed()

    assert trace_counts_of(Layer, made, made, Unnamed()) == [1, 1, 2]


# What counts as a library

FACTORY = """
RATE = 2
def times(factor):
    def scale(x):
        return x * factor
    return scale
def times_rate(factor):
    return lambda x: x * factor * RATE
"""


def test_the_author_of_a_library_adds_it_by_one_line() -> None:
    plain = in_module("plainlib", FACTORY)
    library = in_module("mylib", FACTORY, __treewright_library__=True)

    assert trace_counts_of(Layer, plain.times(2), plain.times(2)) == [1, 2]
    assert trace_counts_of(Layer, library.times(2), library.times(2), library.times(3)) == [1, 1, 2]
    assert trace_counts_of(Layer, library.times_rate(2), library.times_rate(2)) == [1, 1]


def test_a_file_of_the_users_under_the_name_of_a_standard_module_is_the_users() -> None:
    mine = in_module("statistics", FACTORY)

    assert trace_counts_of(Layer, mine.times(2), mine.times(2)) == [1, 2]


def test_wraps_makes_no_function_a_librarys() -> None:
    def make() -> Any:
        @functools.wraps(jnp.tanh)
        def wrapping(x: Any) -> Any:
            return x * RATE

        return wrapping

    assert trace_counts_of(Layer, make(), make()) == [1, 2]


def test_the_docs_print_the_lists() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("### What counts as a library")[2].partition("\n#")[0]

    assert {*re.findall(r"`([a-z_]+)`", section)} == LIBRARIES | STANDARD
