"""Each cause of a retrace is named: where, from what to what, why, and what to do."""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.retrace.support import details, reported
from treewright import Module, explain, static

if TYPE_CHECKING:
    from collections.abc import Callable

PartitionSpec: Any = jax.sharding.PartitionSpec  # untyped

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


class Layer(Module):
    kernel: Any
    activation: Any = static(default="relu")


class Model(Module):
    layers: Any
    name: Any = static(default="model")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    """A node of a class that is not ours: jit compares its static with `==`."""

    kernel: Any
    setting: Any = dataclasses.field(default="", metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...]
    rate: float = 0.1


class Plain:
    """Compares by identity."""

    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, x: Any) -> Any:
        return x * self.size


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Picky:
    """Can't be compared with another."""

    def __eq__(self, other: object) -> bool:
        raise ValueError("no comparison")

    def __hash__(self) -> int:
        return 0


def step(state: Any, batch: Any = None, scale: Any = 1.0) -> Any:
    return 0


def ones(*shape: int) -> Any:
    return jnp.ones(shape)


def made_by_a_loop(factor: float) -> Callable[[Any], Any]:
    return lambda x: x * factor


def class_made_anew() -> Any:
    class Anew(Module):
        x: Any = 1.0

    return Anew()


def model(*activations: Any, name: Any = "model") -> Model:
    return Model([Layer(ones(2), activation) for activation in activations], name)


PLACE = f"test_causes.py:{made_by_a_loop.__code__.co_firstlineno + 1}"
LATE = "if this is a last, smaller batch, drop or pad it"
FRESH = "define it once, outside of what calls it, and reuse it"
DEFAULT = "a default that is passed is an argument more: pass it each time or never"
SAME = "keep the structure the same from call to call"
NUMBER = "if only its value is computed with, pass it as an array that is traced; a shape or a length must be static"
FIXED = "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"

# The arguments of two calls, and the lines of the report but the last.
CASES: dict[str, tuple[Any, Any, list[str]]] = {
    "the same change in many places": (
        (model(*["relu"] * 48),),
        (model(*["gelu"] * 48),),
        ["state.layers[*].activation (static, 48 places): 'relu' -> 'gelu'"],
    ),
    "a number as a static": (
        (model(name=1),),
        (model(name=1.0),),
        [
            "state.name (static): 1 -> 1.0",
            f"    {NUMBER}",
        ],
    ),
    "a field of a frozen config": (
        (model(name=Config((64, 64))),),
        (model(name=Config((64, 32), 0.2)),),
        [
            "state.name.sizes[1] (static): 64 -> 32",
            f"    {NUMBER}",
            "state.name.rate (static): 0.1 -> 0.2",
            f"    {NUMBER}",
        ],
    ),
    "a fresh closure": (
        (model(name=made_by_a_loop(2.0)),),
        (model(name=made_by_a_loop(3.0)),),
        [
            f"state.name (static): <lambda at {PLACE}> -> <lambda at {PLACE}>",
            f"    made again by the same code ({PLACE}), which captured factor: 2.0 -> 3.0; {FRESH}",
        ],
    ),
    "a fresh lambda in a foreign class": (
        (Foreign(ones(), eval("lambda x: x")),),
        (Foreign(ones(), eval("lambda x: x")),),
        [
            "state.setting (static): <lambda at <string>:1> -> <lambda at <string>:1>",
            f"    made again by the same code (<string>:1), which captures nothing; {FRESH}",
        ],
    ),
    "an object without __eq__": (
        (model(name=Plain(3)),),
        (model(name=Plain(3)),),
        [
            "state.name (static): <Plain object> -> <Plain object>",
            (
                "    Plain has no __eq__, so each instance is a value of its own; the attributes of these two are "
                "the same; give it __eq__ and __hash__, as a frozen dataclass has them, or make it once and reuse it"
            ),
        ],
    ),
    "NaN in a foreign class": (
        (Foreign(ones(), math.nan),),
        (Foreign(ones(), float("nan")),),
        [
            "state.setting (static): nan -> nan",
            (
                "    NaN equals nothing, not even another NaN; use None for what is not there, or reuse one NaN object "
                "such as math.nan"
            ),
        ],
    ),
    "a function jitted anew": (
        (Foreign(ones(), jax.jit(made_by_a_loop)),),
        (Foreign(ones(), jax.jit(made_by_a_loop)),),
        [
            "state.setting (static): made_by_a_loop -> made_by_a_loop",
            "    the same function, wrapped again by jit; wrap it once and reuse it",
        ],
    ),
    "a method of another object": (
        (Foreign(ones(), Plain(1).grow),),
        (Foreign(ones(), Plain(1).grow),),
        [
            "state.setting (static): Plain.grow of <Plain object> -> Plain.grow of <Plain object>",
            (
                "    the same method of another object; keep one object, or pass the object as an argument of a plain "
                "function"
            ),
        ],
    ),
    "a longer sequence": (
        (ones(4, 7),),
        (ones(4, 9),),
        ["state: float32[4,7] -> float32[4,9]", "    axis 1: 7 -> 9; pad to one size, or to a few"],
    ),
    "a transposed array": (
        (ones(4, 7),),
        (ones(7, 4),),
        ["state: float32[4,7] -> float32[7,4]", "    axis 0: 4 -> 7, axis 1: 7 -> 4; the same axes in another order"],
    ),
    "dtype": (
        (ones(2),),
        (jnp.ones(2, jnp.bfloat16),),
        ["state: float32[2] -> bfloat16[2]", "    convert it where it is made"],
    ),
    "weak type": (
        (jnp.asarray(1.0),),
        (ones(),),
        [
            "state: float32[] (weakly typed) -> float32[]",
            (
                "    one is weakly typed, as Python numbers are: its dtype gives way to that of others; give the "
                "dtype where the array is made: jnp.asarray(x, dtype)"
            ),
        ],
    ),
    "a dict key added": (
        ({"a": ones(2)},),
        ({"a": ones(2), "b": ones(3)},),
        ["state['b'] (added): float32[3]", f"    {SAME}"],
    ),
    "a shorter list": (
        ([ones(2), Layer(ones(3))],),
        ([ones(2)],),
        ["state[1] (removed): Layer(kernel, activation='relu')", f"    {SAME}"],
    ),
    "list against tuple": (
        ([ones(2)],),
        ((ones(2),),),
        ["state: list of 1 -> tuple of 1", "    use one of the two"],
    ),
    "None against an array": (
        ({"mask": None},),
        ({"mask": ones(2)},),
        [
            "state['mask']: None -> float32[2]",
            "    pass the same in each call: an array of zeros in place of None, say",
        ],
    ),
    "two classes of one name": (
        (class_made_anew(),),
        (class_made_anew(),),
        [
            "state: class_made_anew.<locals>.Anew(x) -> class_made_anew.<locals>.Anew(x)",
            (
                "    two classes are named class_made_anew.<locals>.Anew: its class statement ran twice, as in a "
                "notebook cell that runs again, a reloaded module or a function; define the class once, in a module of "
                "its own, and make the objects again"
            ),
        ],
    ),
    "a default passed explicitly": (
        (ones(2), ones(2)),
        (ones(2), ones(2), ones()),
        ["scale (added): float32[]", f"    {DEFAULT}"],
    ),
    "typed against raw key": (
        (jax.random.key(0),),
        (jax.random.PRNGKey(0),),
        ["state: key<fry>[] -> uint32[2]", "    make all random keys in one way: jax.random.key(seed)"],
    ),
    "several at once": (
        (model("relu"), ones(4), ones()),
        (model("gelu", name="b"), ones(3), jnp.ones((), int)),
        [
            "state.name (static): 'model' -> 'b'",
            "state.layers[0].activation (static): 'relu' -> 'gelu'",
            "batch: float32[4] -> float32[3]",
            f"    axis 0: 4 -> 3; {LATE}",
            "scale: float32[] -> int32[]",
            "    convert it where it is made",
        ],
    ),
    "a huge static": (
        (model(name=tuple(range(100_000))),),
        (model(name="x" * 100_000),),
        [
            (
                "state.name (static): (0, 1, 2, 3, 4, 5, ...) -> "
                "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_report_names_the_path_and_what_it_was_and_is(name: str) -> None:
    old, new, lines = CASES[name]

    [report] = reported(step, lambda f: f(*old), lambda f: f(*new))

    assert details(report) == [*lines, "compared with trace 1"]
    assert str(report).startswith("step retraced (2nd trace, ")
    assert "called from test_causes.py:" in str(report)


def test_members_of_an_enum_differ_by_their_names_and_are_not_numbers_to_trace() -> None:
    [report] = reported(
        lambda x, size: x * size.value,
        lambda f: f(1.0, Size.SMALL),
        lambda f: f(1.0, Size.LARGE),
        static_argnums=1,
    )

    assert details(report) == ["size (static): <Size.SMALL: 1> -> <Size.LARGE: 2>", "compared with trace 1"]


def spread(devices: list[Any], memory: str = "device") -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("d",)), PartitionSpec("d"), memory_kind=memory)


def test_placements_that_print_alike_are_told_apart_by_their_devices() -> None:
    one = np.ones(8, np.float32)
    [report] = reported(
        lambda x: x * 2,
        lambda f: f(jax.device_put(one, spread(jax.devices()))),
        lambda f: f(jax.device_put(one, spread(jax.devices()[::-1]))),
    )

    told = "devices 0, 1, 2, ... -> devices 3, 2, 1, ..."
    assert details(report)[1] == f"    {told}; put it there once, before the loop: jax.device_put"


def test_an_array_in_another_memory_is_not_said_to_be_sharded_otherwise() -> None:
    one = np.ones(8, np.float32)
    report = explain(
        lambda x: x * 2,
        (jax.device_put(one, spread(jax.devices())),),
        (jax.device_put(one, spread(jax.devices(), "pinned_host")),),
    )

    assert "    the memory that it lies in is part of the type" in details(report)[1]
