"""What a function can get at, and whose code it is: the one place that everything else asks."""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
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

from tests.conftest import package_or_absent
from tests.conftest import trace_counts as trace_counts_of
from treewright import Module, TrainState, freeze, static
from treewright._core import functions as reach
from treewright._core.keys import why_itself_only
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DOCS = Path(__file__).parents[2] / "docs" / "statics.md"
RATE = 2
TABLE = {"rate": 2}
FROZEN_DICT: Any = package_or_absent("flax", "flax.core").core.FrozenDict
PARTIAL: Any = jax.tree_util.Partial


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


# Whose code


@pytest.mark.parametrize("module", ["jax", "jax._src.nn.functions", "optax", "treewright.train", "math", "functools"])
def test_listed_packages_are_libraries(module: str) -> None:
    assert reach.is_library(module)


@pytest.mark.parametrize(
    "module", ["mine", "__main__", "jaxmine", "os", "random", "tests.conftest", "statistic", "", None, 1]
)
def test_everything_else_is_the_users(module: object) -> None:
    assert not reach.is_library(module)


def test_a_file_of_the_users_under_the_name_of_a_standard_module_is_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "statistics", in_module("statistics", "def scale(x): return x * RATE", RATE=2))

    assert not reach.is_library("statistics")
    monkeypatch.delitem(sys.modules, "statistics")
    assert not reach.is_library("statistics")  # it has not been imported, so nothing is of it


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


def test_wraps_makes_no_function_a_librarys_and_none_the_users() -> None:
    @functools.wraps(jnp.tanh)
    def wrapping(x: Any) -> Any:
        return x * RATE

    mine: Any = wrapping
    wrapped: Any = jax.vmap(lambda x: x + 1)

    assert mine.__module__.startswith("jax")
    assert not reach.library_made(mine)
    assert wrapped.__module__ == __name__
    assert reach.library_made(wrapped)


def test_the_docs_print_the_lists() -> None:
    section = DOCS.read_text(encoding="utf-8").partition("### What counts as a library")[2].partition("\n#")[0]

    assert {*re.findall(r"`([a-z_]+)`", section)} == reach.LIBRARIES | reach.STANDARD


# What code reads


def nested(x: Any) -> Any:
    def inner(y: Any) -> Any:
        return [math.sin(y) * RATE * z for z in (TABLE["rate"],)]

    return inner(x)


def with_class_body(x: Any) -> Any:
    class Body:
        rate = RATE

    return x * Body.rate


def importing(x: Any) -> Any:
    import math as m
    import os.path

    return m.sin(x) * len(os.path.curdir)


RELATIVE = """
def importing(x):
    from . import settings
    return x * settings.RATE
def assigning(x):
    global RATE
    RATE = x
    return x
"""


READS: dict[str, tuple[Callable[..., Any], set[str]]] = {
    "nothing": (lambda x: x + 1, set()),
    "attributes of a module, as far as modules go": (lambda x: jax.nn.relu(x).sum(), {"jax.nn.relu"}),
    "attributes of an object": (lambda x: TABLE.get(x), {"TABLE"}),
    "nested functions and comprehensions": (nested, {"math.sin", "RATE", "TABLE"}),
    "class bodies": (with_class_body, {"RATE", "__name__"}),
    "built-ins": (lambda x: abs(len(x)), {"abs", "len"}),
    "names that are not there": (lambda: nowhere.near, {"nowhere"}),  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
}


@pytest.mark.parametrize(("function", "names"), READS.values(), ids=READS)
def test_the_globals_that_code_reads_are_named(function: Any, names: set[str]) -> None:
    assert {read.name for read in reach.reads_and_problem(function)[0]} == names


REASONS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "a global": (lambda x: x * RATE, "it reads the global RATE"),
    "a nested global": (nested, "it reads the global TABLE"),
    "an import": (importing, "it imports math"),
    "an import from its package": (in_module("relative", RELATIVE).importing, "it imports from its package"),
    "an assignment": (in_module("relative", RELATIVE).assigning, "it assigns the global RATE"),
    "eval": (lambda x: eval("RATE") * x, "it calls eval()"),
    "globals": (lambda x: globals()["RATE"] * x, "it calls globals()"),
    "what is not there": (lambda: nowhere, "it reads the global nowhere"),  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore[reportUndefinedVariable]
    "settings of a library": (lambda x: x if jax.config.values else -x, "it reads the global jax.config"),
    "a random number": (lambda x: x * np.random.rand(), "it reads the global np.random.rand"),  # noqa: NPY002
    "libraries": (lambda x: jnp.tanh(x) * math.pi + jnp.float32(np.add(x, 1)) + jax.nn.gelu(x), None),
    "built-ins": (lambda x: sum(map(abs, x)), None),
}


@pytest.mark.parametrize(("function", "reason"), REASONS.values(), ids=REASONS)
def test_the_first_thing_that_can_change_is_said(function: Any, reason: str | None) -> None:
    assert reach.reads_and_problem(function)[1] == reason


def test_a_shadowed_built_in_is_a_global() -> None:
    function = in_module("shadowing", "f = lambda x: abs(x)\nabs = lambda x: x * 5").f

    assert reach.reads_and_problem(function)[1] == "it reads the global abs"


def test_a_changed_built_in_is_not_the_built_in() -> None:
    function = in_module("changed", "f = lambda x: abs(x)", __builtins__={"abs": len}).f

    assert reach.reads_and_problem(function)[1] == "it reads the global abs"


# What a function holds, and what instances of a class can do


def holding(a: int) -> Any:
    if a > 1:
        later = a

    def function(x: Any, y: Any = 1, *, z: Any = 2) -> Any:
        return a, later, x, y, z  # pyright: ignore[reportPossiblyUnboundVariable]

    return function


def test_captures_and_defaults_are_named() -> None:
    assert reach.held_by(holding(1)) == {"a": 1, "y": 1, "z": 2}
    assert reach.captured(holding(2)) == {"a": 2, "later": 2}


def test_what_a_library_reads_is_not_the_users() -> None:
    update: Any = optax.adam(1e-3).update
    own: Any = nested

    assert reach.read_by(own) == {"RATE": RATE, "TABLE": TABLE}
    assert reach.read_by(update) == {}


@dataclasses.dataclass(frozen=True)
class Data:
    rate: Any = 1

    def closed(self, x: Any) -> Any:
        return jnp.tanh(x) * self.rate

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


class Mode(enum.Enum):
    TRAIN = "train"

    def scale(self, x: Any) -> Any:
        return x


class Point(NamedTuple):
    rate: Any = 1

    def scale(self, x: Any) -> Any:
        return x * self.rate


class Reading(Data):
    def scale(self, x: Any) -> Any:
        return x * RATE


class Constant(Data):
    FACTOR = 3


class Super(Data):
    def closed(self, x: Any) -> Any:
        return super().closed(x)


def apply(value: Any, x: Any) -> Any:
    return value.closed(x)


INSIDE: dict[str, tuple[Callable[[], Any], str | None]] = {
    "data with closed methods": (Data, None),
    "an enum": (lambda: Mode.TRAIN, None),
    "a named tuple": (Point, None),
    "a class that calls its base": (Super, None),
    "a method that reads a global": (Reading, "it reads the global RATE"),
    "a constant in the class": (Constant, "it can read Constant.FACTOR, which can change"),
    "a class": (lambda: Data, "it uses the class Data, whose attributes can change"),
}


@pytest.mark.parametrize(("make", "reason"), INSIDE.values(), ids=INSIDE)
def test_an_instance_in_a_partial_counts_by_what_its_class_can_do(make: Callable[[], Any], reason: str | None) -> None:
    assert why_itself_only(functools.partial(apply, make())) == reason
    assert trace_counts_of(Layer, *(functools.partial(apply, make()) for _ in range(2))) == [1, 2 if reason else 1]


def test_methods_that_read_globals_are_itself_only_and_closed_ones_are_not() -> None:
    assert trace_counts_of(Layer, Data().closed, Data().closed, Data(2).closed) == [1, 1, 2]
    reading = Reading()
    assert trace_counts_of(Layer, reading.scale, reading.scale, Reading().scale) == [1, 1, 2]


class Meta(type):
    """A metaclass of a user's."""


class Numbers(enum.Enum):
    ONE = 1


Numbers.ONE.note = 1  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


@dataclasses.dataclass(frozen=True)
class Noted:
    def closed(self, x: Any) -> Any:
        return x


vars(Noted)["closed"].note = 1


@dataclasses.dataclass(frozen=True)
class WithKeyword:
    def closed(self, x: Any, *, rate: Any = 2) -> Any:
        return x * rate


class Own:
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 1


class OfMeta(tuple[Any, ...], metaclass=Meta):
    __slots__ = ()


class Lists(enum.Enum):
    A = [1]  # noqa: RUF012  which is the point


def capturing_class(rate: Any) -> Any:
    @dataclasses.dataclass(frozen=True)
    class Capturing:
        def closed(self, x: Any) -> Any:
            return x * rate

    return Capturing


def annotated(annotation: Any) -> Any:
    function = lambda x: x + 1
    function.__annotations__ = {"x": annotation}
    return function


def in_a_library(value: Any) -> Any:
    """A function that a library made, with this in it."""
    return optax.scale_by_schedule(PARTIAL(max, value)).update


PARTS: dict[str, tuple[Callable[[], Any], str | None]] = {
    "an instance of a class of a user's metaclass": (
        lambda: functools.partial(max, OfMeta((1,))),
        "it holds an instance of OfMeta, whose class is made by another",
    ),
    "an enum member with attributes": (
        lambda: functools.partial(max, Numbers.ONE),
        "it can read Numbers.ONE.note, which can change",
    ),
    "a method with attributes": (
        lambda: functools.partial(apply, Noted()),
        "it can read Noted.closed.note, which can change",
    ),
    "a method with a default by keyword": (lambda: functools.partial(apply, WithKeyword()), None),
    "an object with an == of its own": (
        lambda: functools.partial(max, Own()),
        "it holds an Own, <tests.nodes.test_reach.Own object at 0x...>, which compares by an == of its own",
    ),
    "an enum member with a list": (lambda: functools.partial(max, Lists.A), "it can read a list, [1] in "),
    "a method that captures": (lambda: functools.partial(apply, capturing_class(1)()), "it captures rate"),
    "a jitted function with attributes": (lambda: with_note(jax.jit(lambda x: x)), "it is compared by identity"),
    "a small numpy array in a library's function": (lambda: in_a_library(np.ones(2)), None),
    "a treedef": (
        lambda: functools.partial(max, jax.tree.structure(1)),
        "it holds a PyTreeDef, PyTreeDef(*), which compares by an == of its own",
    ),
    "a method of a text": (lambda: functools.partial("a".join, ("b",)), None),
    "a method of a list": (lambda: functools.partial([1].index), "it holds list.index, a method of a list, [1]"),
    "a tuple with attributes": (
        lambda: functools.partial(max, with_note(type("Noted", (tuple,), {})((1,)))),
        "(1,) has attributes of its own",
    ),
    "a partial with attributes": (lambda: with_note(functools.partial(max)), "partial(max) has attributes of its own"),
    "an annotation that can't be hashed": (lambda: annotated([1]), "it is annotated with a list, [1]"),
    "a module": (lambda: functools.partial(max, math), "it holds a module, <module 'math'"),
    "a small array in a library's function": (lambda: in_a_library(jnp.ones(2)), None),
    "a random key in a library's function": (lambda: in_a_library(jax.random.key(0)), None),
    "a large array in a library's function": (
        lambda: in_a_library(np.ones(5000)),
        "it captured f64[5000](numpy)",
    ),
    "a set in a library's function": (lambda: in_a_library({1}), None),
}


def with_note(value: Any) -> Any:
    value.note = 1
    return value


@pytest.mark.parametrize(("make", "reason"), PARTS.values(), ids=PARTS)
def test_the_reason_for_identity_is_said(make: Callable[[], Any], reason: str | None) -> None:
    found = why_itself_only(make())

    assert (found is None) == (reason is None)
    if reason is not None:
        assert re.sub(r"0x[0-9a-f]+", "0x...", found or "").startswith(reason)
    assert trace_counts_of(Layer, make(), make()) == [1, 2 if reason else 1]


class Unnamed:
    __slots__ = ("rate",)

    @property
    def __module__(self) -> str:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]
        raise RuntimeError("no module")

    def __call__(self, x: Any) -> Any:
        return x


def test_an_object_whose_module_can_not_be_read_is_a_static() -> None:
    made = Unnamed()

    assert trace_counts_of(Layer, made, made, Unnamed()) == [1, 1, 2]
    assert reach.state_of(made) == {}


def test_a_row_of_a_structured_array_is_refused() -> None:
    with pytest.raises(StaticFieldError, match=r"Layer\.setting is static but holds a void, "):
        Layer(1.0, np.zeros(1, [("a", int)])[0])


def test_what_is_nested_deeper_than_pythons_stack_is_itself_only() -> None:
    deep: Any = max
    for _ in range(2000):
        deep = functools.partial(deep, 1) if deep is max else types.MethodType(deep, deep)

    assert trace_counts_of(Layer, deep, deep) == [1, 1]


def test_a_frozen_mapping_of_a_library_is_frozen_into_its_own_class() -> None:
    frozen = freeze(FROZEN_DICT({"a": np.zeros(2), "b": {"c": 1}}))

    assert type(frozen) is FROZEN_DICT
    assert hash(frozen) == hash(freeze(FROZEN_DICT({"a": np.zeros(2), "b": {"c": 1}})))


# What was merged is checked before it is given again


def test_by_content_a_fresh_function_does_not_get_one_whose_variable_was_assigned_again() -> None:
    setters: list[Callable[[Any], None]] = []

    def times(factor: Any) -> Callable[[Any], Any]:
        def assign(value: Any) -> None:
            nonlocal factor
            factor = value

        setters.append(assign)
        return lambda x: x * factor

    first = Content(1.0, times(2))
    setters[0](5)
    second = Content(1.0, times(2))

    assert (first.setting(1), second.setting(1)) == (5, 2)


def test_a_list_that_a_library_captured_and_that_changed_is_not_given_again() -> None:
    mask = {"a": True, "b": True}
    params = {"a": jnp.ones(()), "b": jnp.ones(())}
    first = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), mask))
    mask["b"] = False
    second = TrainState.create(params=params, tx=optax.masked(optax.sgd(1.0), {"a": True, "b": True}))

    updated = second.apply_gradients(grads=params).params
    assert first.tx is not second.tx
    assert (float(updated["a"]), float(updated["b"])) == (0.0, 0.0)


def test_a_library_of_another_name_that_was_traced_in_between_is_not_shared() -> None:
    world = in_module("world", "def make(): return lambda x: ops.cos(x)", ops=jnp)
    jitted = jax.jit(lambda layer: layer.setting(layer.x))
    first = Layer(jnp.float32(0), world.make())
    world.ops = types.SimpleNamespace(cos=lambda x: x + 5)
    assert jitted(first) == 5
    world.ops = jnp

    assert jitted(Layer(jnp.float32(0), world.make())) == 1


def test_an_optimizer_with_a_rate_that_reads_a_global_is_the_one_that_was_given() -> None:
    world = in_module("world", "def make(): return lambda count: rate", rate=0.5)
    params = {"w": jnp.float32(1)}

    @jax.jit
    def step(state: TrainState[Any]) -> TrainState[Any]:
        return state.apply_gradients(grads={"w": jnp.float32(1)})

    found: list[float] = []
    for world.rate in (0.5, 0.25, 0.5):
        state = TrainState.create(params=params, tx=optax.sgd(world.make()))
        found.append(float(step(state).params["w"]))
    assert found == [0.5, 0.75, 0.5]
