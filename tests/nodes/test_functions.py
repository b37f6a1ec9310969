"""Static functions: which are equal when recreated, and which are compared by identity."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
import operator
import pathlib
import re
import sys
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.io
from jax.nn import relu
from jax.sharding import PartitionSpec

from tests.conftest import importorskip
from tests.conftest import trace_counts as trace_counts_of
from treewright import Module, TrainState, static
from treewright._base.functions import LIBRARIES, STANDARD
from treewright._trees.causes import snapshot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

linen: Any = importorskip("flax", "flax.linen").linen
DOCS = Path(__file__).parents[2] / "docs" / "statics.md"
RATE = 2
TABLE = {"rate": 2}
ACT = jax.nn.relu
MESH: Any = jax.make_mesh((1,), ("x",))
PARTIAL: Any = functools.partial


class Layer(Module):
    x: Any
    setting: Any = static()


def in_module(name: str, source: str, **names: Any) -> Any:
    """A module of this name with the definitions of the source."""
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
        RATE = 2
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
    """A function created by a library, which captures the value."""
    return optax.scale_by_schedule(jax.tree_util.Partial(max, value)).update  # type: ignore[no-untyped-call]  # left untyped by its library


@dataclasses.dataclass(frozen=True)
class Data:
    rate: Any = 1

    def closed(self, x: Any) -> Any:
        return jnp.tanh(x) * self.rate


@dataclasses.dataclass(frozen=True)
class Super(Data):
    def closed(self, x: Any) -> Any:
        return super().closed(x)


@dataclasses.dataclass(frozen=True)
class Reading(Data):
    def scale(self, x: Any) -> Any:
        return x * RATE


class Mode(enum.Enum):
    TRAIN = "train"


@dataclasses.dataclass(frozen=True, eq=False)
class Named:
    """Compared by its name, as its author says."""

    name: str
    function: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.name == other.name

    def __hash__(self) -> int:
        return hash(self.name)


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


# One static, recreated or not
CLOSED: dict[str, Callable[[], Any]] = {
    "libraries and built-ins": lambda: lambda x: jnp.tanh(abs(x)) * math.pi + jnp.float32(np.add(x, 1)),
    "a library's function by its own name": lambda: lambda x: relu(x),
    "numbers, ufuncs and scalar types of numpy": lambda: lambda x: np.float32(np.sqrt(x)) * np.pi,
    "a library's name for a function of jax": lambda: lambda x: linen.relu(x),
    "a partial of a ufunc": lambda: PARTIAL(np.add, 1),
    "a function in a function": lambda: lambda x: [(lambda y: jnp.sin(y))][0](x),
    "a text's method": lambda: PARTIAL("a".join, ("b",)),
    "a method that a class has": lambda: PARTIAL(str.upper),
    "a PartitionSpec": lambda: PARTIAL(jax.lax.with_sharding_constraint, shardings=PartitionSpec("x")),  # type: ignore[no-untyped-call]  # left untyped by its library
    "a mesh": lambda: PARTIAL(max, MESH),
    "a device": lambda: PARTIAL(jax.device_put, device=jax.devices()[0]),
    "a path": lambda: PARTIAL(max, pathlib.Path("a")),
    "an object with its own ==": lambda: PARTIAL(max, Named("a", lambda x: x * RATE)),
    "a shard_map": lambda: jax.shard_map(
        lambda x: x,
        mesh=MESH,
        in_specs=PartitionSpec("x"),  # type: ignore[no-untyped-call]  # left untyped by its library
        out_specs=PartitionSpec("x"),  # type: ignore[no-untyped-call]  # left untyped by its library
    ),
    "data with closed methods": lambda: PARTIAL(max, Data()),
    "an enum": lambda: PARTIAL(max, Mode.TRAIN),
    "a closed method": lambda: Data().closed,
    "a method that calls its base": lambda: Super().closed,
    "a numpy array in a library's function": lambda: in_a_library(np.ones(2)),
    "an array in a library's function": lambda: in_a_library(jnp.ones(2)),
    "a random key in a library's function": lambda: in_a_library(jax.random.key(0)),
    "a set in a library's function": lambda: in_a_library({1}),
    "a class": lambda: PARTIAL(max, Data),
    "data with a method that reads a global": lambda: PARTIAL(max, Reading()),
    "an == of one's own": lambda: PARTIAL(max, Own()),
    "a treedef": lambda: PARTIAL(max, jax.tree.structure(1)),
}

# Each call returns a different static.
OPEN: dict[str, Callable[[], Any]] = {
    "a global": lambda: lambda x: x * RATE,
    "a global in a comprehension": lambda: lambda x: [y * RATE for y in x],
    "a library's function by a name of the user's": lambda: lambda x: ACT(x),
    "an object's attribute": lambda: lambda x: TABLE.get(x),
    "a name that is not there": lambda: lambda: nowhere,  # type: ignore[name-defined]  # noqa: F821
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
    "a library's function that reads files": lambda: PARTIAL(np.load, "x"),
    "an argument that reads files": lambda: PARTIAL(lambda read: read("x"), scipy.io.loadmat),
    "a file by jax": lambda: lambda x: jnp.load(x),
    "a file by a library that reads files": lambda: lambda x: scipy.io.loadmat(x),
    "a shadowed built-in": in_module("shadowing", "def make(): return lambda x: abs(x)\nabs = len").make,
    "a replaced built-in": in_module("changed", "def make(): return lambda x: abs(x)", __builtins__={"abs": len}).make,
    "an attribute": lambda: with_note(lambda x: x),
    "a partial with an attribute": lambda: with_note(PARTIAL(max)),
    "a jitted function with an attribute": lambda: with_note(jax.jit(lambda x: x)),
    "an annotation that can't be hashed": lambda: annotated([1]),
    "a function of a module that reads a global": lambda: PARTIAL(nested),
    "a function of a module that reads a global, in a frozenset": lambda: PARTIAL(max, frozenset({nested})),
    "a module": lambda: PARTIAL(max, math),
    "a method that reads a global": lambda: Reading().scale,
    "a method that captures": lambda: local_class(1).closed,
    "a method with attributes": lambda: NotedMethod().closed,
    "a list's method": lambda: PARTIAL([1].index),
    "a large array in a library's function": lambda: in_a_library(np.ones(5000)),
}


@pytest.mark.parametrize("make", CLOSED.values(), ids=CLOSED)
def test_recreating_a_closed_function_does_not_retrace(make: Callable[[], Any]) -> None:
    assert trace_counts_of(Layer, make(), make(), make()) == [1, 1, 1]


@pytest.mark.parametrize("make", OPEN.values(), ids=OPEN)
def test_functions_that_depend_on_mutable_state_compare_by_identity(make: Callable[[], Any]) -> None:
    function = make()

    assert trace_counts_of(Layer, function, function, make()) == [1, 1, 2]
    assert Layer(1.0, function).setting is function


@pytest.mark.parametrize("make", [*CLOSED.values(), *OPEN.values()], ids=[*CLOSED, *OPEN])
def test_the_decision_for_reports_agrees_with_the_key(make: Callable[[], Any]) -> None:
    function = make()
    snap = snapshot(function)

    assert snap.exact == ("identity" if make in OPEN.values() else "parts")
    assert bool(snap.can_change) == (make in OPEN.values())


@dataclasses.dataclass(unsafe_hash=True)
class Trainer:
    act: Any
    logger: Any

    def forward(self, x: Any) -> Any:
        return self.act(x)


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
def test_a_repeated_static_is_the_object_that_was_passed() -> None:
    trainer = Trainer(lambda x: x * 2, object.__new__(Own))
    layer = Layer(1.0, (trainer.forward, trainer.act))
    trainer.act = lambda x: x * 3

    assert Layer(1.0, (trainer.forward, trainer.act)).setting[1] is trainer.act
    assert layer.setting[1](1) == 2


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
def test_a_mutated_dataclass_is_not_confused_with_an_equal_one() -> None:
    changed, other = Trainer(1, 2), Trainer(1, 2)
    layer = Layer(1.0, changed)
    changed.act = 5

    assert Layer(1.0, other).setting is other
    assert layer.setting.act == 5


def test_a_function_that_also_is_in_a_field_outside_of_an_own_equality_is_compared() -> None:
    def twice(function: Any) -> Any:
        return PARTIAL(max, Named("a", function), function)

    assert trace_counts_of(Layer, twice(lambda x: x + 1), twice(lambda x: x + 2)) == [1, 2]


def test_a_mutated_captured_list_is_not_confused_with_the_original() -> None:
    mask = {"a": True, "b": True}
    params = {"a": jnp.ones(()), "b": jnp.ones(())}
    first = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), mask))
    mask["b"] = False
    second = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), {"a": True, "b": True}))

    updated = second.apply_gradients(grads=params).params
    assert first.tx is not second.tx
    assert (float(updated["a"]), float(updated["b"])) == (0.0, 0.0)


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


def test_a_library_can_register_its_functions_in_one_line() -> None:
    plain = in_module("plainlib", FACTORY)
    library = in_module("mylib", FACTORY, __treewright_library__=True)

    assert trace_counts_of(Layer, plain.times(2), plain.times(2)) == [1, 2]
    assert trace_counts_of(Layer, library.times(2), library.times(2), library.times(3)) == [1, 1, 2]
    assert trace_counts_of(Layer, library.times_rate(2), library.times_rate(2)) == [1, 1]


def test_a_function_of_a_library_is_known_by_its_module_and_qualified_name_not_by_its_file() -> None:
    library = in_module("mylib", FACTORY, __treewright_library__=True)
    same_code = in_module("otherlib", FACTORY, __treewright_library__=True)
    scale = library.times(2)
    code = scale.__code__.replace(co_filename="<dynamic-code>")  # as cloudpickle restores it
    restored = types.FunctionType(code, scale.__globals__, scale.__name__, None, scale.__closure__)
    restored.__qualname__ = scale.__qualname__
    renamed = library.times(2)
    renamed.__qualname__ = "scale"

    assert trace_counts_of(Layer, scale, restored, renamed, same_code.times(2)) == [1, 1, 2, 3]


def test_a_user_module_named_like_a_standard_module_is_user_code() -> None:
    mine = in_module("statistics", FACTORY)

    assert trace_counts_of(Layer, mine.times(2), mine.times(2)) == [1, 2]


def test_the_docs_list_the_trusted_modules() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("### What counts as a library")[2].partition("\n#")[0]

    assert {*re.findall(r"`([a-z_]+)`", section)} == LIBRARIES | STANDARD
