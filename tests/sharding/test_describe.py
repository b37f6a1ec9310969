"""A tree as texts: equal where processes do the same, different where not, and the same in every process."""

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import subprocess
import sys
import tomllib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from treewright import FrozenMapping, Module, freeze, static
from treewright._core.portable import portable_text
from treewright.sharding.processes import described

P: Any = PartitionSpec  # whose constructor has no annotations


def description(value: Any) -> str:
    return portable_text(value, exact=True)


class Color(enum.Enum):
    RED = 1


class Flags(enum.Flag):
    A = 1
    B = 2


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Frozen:
    rate: float


class Layer(Module):
    kernel: Any
    act: Any = static(default="relu")
    log: str = static(default="", local=True)


class Items(list[Any]): ...


class Plain:
    def run(self) -> int:
        return 1


class Kept:
    def __init__(self, rate: Any) -> None:
        self.rate = rate
        self.itself = self

    @functools.cached_property
    def hashed(self) -> int:
        return id(self)


class Quiet(Kept):
    def __repr__(self) -> str:
        return "Quiet()"


def closure(rate: float) -> Any:
    def scaled(x: float, by: int = 2, *, more: int = 3) -> float:
        return x * rate * by * more

    return scaled


def recursive(rate: float) -> Any:
    def again(x: float) -> float:
        return again(x - rate) if x > 0 else x

    return again


def unbound() -> Any:
    def early() -> Any:
        return late

    found = early
    if rate_of(0) < 0:
        late = 1
    return found


def rate_of(x: float) -> float:
    return x


MAKERS: dict[str, Any] = {
    "numbers": lambda: (1, 1.5, 2j, True, None, ..., b"x", "s"),
    "numpy scalar": lambda: np.float32(0.1),
    "dtype": lambda: np.dtype(">f4"),
    "enum": lambda: (Color.RED, Flags.A | Flags.B),
    "class": lambda: (int, Layer),
    "function": lambda: (rate_of, jnp.tanh, jax.nn.relu),
    "lambda": lambda: lambda x: x + 1,
    "closure": lambda: closure(0.5),
    "recursive closure": lambda: recursive(0.5),
    "unbound closure": unbound,
    "partial": lambda: functools.partial(rate_of, x=3),
    "method": lambda: Plain().run,
    "jitted": lambda: jax.jit(closure(0.5)),
    "node": lambda: Layer(3, "gelu"),
    "named tuple": lambda: Pair(1, [2]),
    "dataclass": lambda: Frozen(0.5),
    "set": lambda: frozenset({"a", "b", "c", "d"}),
    "function with a set": lambda: lambda x: x in {"a", "b", "c", "d"},
    "mapping": lambda: FrozenMapping({"a": 1}),
    "frozen array": lambda: freeze(np.arange(3)),
    "array": lambda: jnp.arange(3),
    "key": lambda: jax.random.key(3),
    "module": lambda: lambda: (np, tomllib),
    "object": Plain,
    "object with attributes": lambda: (Kept(0.5), Quiet({"a": 1})),
    "list of another class": lambda: Items([1, 2]),
    "optimiser": lambda: optax.chain(optax.clip(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10))),
}


@pytest.mark.parametrize("name", MAKERS)
def test_values_made_anew_have_one_description_without_addresses(name: str) -> None:
    first, second = description(MAKERS[name]()), description(MAKERS[name]())

    assert first == second
    assert "0x" not in first


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        (closure(0.5), closure(0.25)),
        (lambda x: x + 1, lambda x: x + 2),
        (lambda x, y=1: x, lambda x, y=2: x),
        (lambda x, *, y=1: x, lambda x, *, y=2: x),
        (functools.partial(rate_of, 1), functools.partial(rate_of, 2)),
        (Layer(1), Layer(2)),
        (Layer(1, "relu"), Layer(1, "gelu")),
        (Frozen(1.0), Frozen(2.0)),
        (Pair(1, 2), Pair(1, 3)),
        ((1, 2), [1, 2]),
        (frozenset({1}), frozenset({2})),
        (freeze(np.arange(3)), freeze(np.arange(1, 4))),
        (jnp.tanh, jnp.sin),
        (optax.adam(1e-3), optax.adam(1e-2)),
        (jax.jit(closure(0.5)), jax.jit(closure(0.25))),
        (jax.random.key(0), jax.random.key(1)),
        (np.dtype("<f4"), np.dtype(">f4")),
        (Kept(1), Kept(2)),
        (Quiet(1), Quiet(2)),
        ([Quiet(Kept(1))], [Quiet(Kept(2))]),
    ],
)
def test_values_that_do_something_else_have_other_descriptions(left: Any, right: Any) -> None:
    assert description(left) != description(right)


def test_what_an_object_only_keeps_is_no_part_of_it() -> None:
    used = Kept(1)
    assert used.hashed

    assert description(used) == description(Kept(1)) == f"{__name__}.Kept(itself=..., rate=1)"
    assert description(Quiet(1)) == f"{__name__}.Quiet: Quiet() (itself=..., rate=1)"
    assert portable_text(Quiet(1), exact=False) == f"{__name__}.Quiet: Quiet()"


def test_a_local_static_of_a_static_node_is_left_out() -> None:
    assert description(Layer(1, log="a")) == description(Layer(1, log="b"))


def test_of_an_array_that_is_partly_in_other_processes_shape_and_dtype_count() -> None:
    class Elsewhere(np.ndarray[Any, Any]):
        is_fully_addressable = False

    assert description(np.ones(3, np.float32).view(Elsewhere)) == "f32[3]"


def test_a_list_that_holds_itself_is_described() -> None:
    endless: list[Any] = [1]
    endless.append(endless)

    assert description(endless) == "[1, ...]"


def test_a_text_that_is_kept_is_bounded_and_reads_no_array() -> None:
    gone = jnp.ones(3)
    gone.delete()
    kept = portable_text([gone, *range(1000)], exact=False)

    assert kept.startswith("[f32[3], 0, 1, ")
    assert kept.endswith(", 97, 98, ...]")
    assert len(portable_text("x" * 10_000, exact=False)) == 4000


def test_a_function_that_is_kept_counts_by_its_name_and_what_it_holds() -> None:
    name = f"{__name__}.closure.<locals>.scaled"

    assert portable_text(closure(0.5), exact=False) == f"{name}(rate=0.5, by=2, more=3)"


def test_a_tree_is_described_place_by_place() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    split = jax.device_put(jnp.ones((2, 3)), NamedSharding(mesh, P("data")))
    tree = {"a": [Layer(split, jnp.tanh, "mine")], "b": (None, 3, jnp.asarray(2.0), 0.5 + jnp.asarray(0.5))}

    assert described(tree) == {
        "the tree itself": "dict",
        "['a']": "list",
        "['a'][0]": f"{__name__}.Layer",
        "['a'][0].act (static)": "jax.numpy.tanh",
        "['a'][0].kernel": f"f32[2,3] split by {P('data')} on {{'data': 2}}",
        "['b']": "tuple",
        "['b'][0]": "None",
        "['b'][1]": "3",
        "['b'][2]": "f32[] (weakly typed)",
        "['b'][3]": "f32[] (weakly typed)",
    }


def test_the_values_of_arrays_are_described_where_they_are_asked_for_and_all_here() -> None:
    mesh = jax.make_mesh((2,), ("data",))
    whole = jax.device_put(jnp.ones(2), NamedSharding(mesh, P()))

    plain, other = (described([jnp.ones(2) * number, 3, np.ones(2)], values=True) for number in (1, 2))
    replicated = described([whole], values=True)

    digest = plain["[0]"].partition("#")[2]
    assert len(digest) == 12
    assert plain["[0]"] != other["[0]"]
    assert replicated["[0]"] == f"f32[2] split by {P()} on {{'data': 2}} #{digest}"
    assert plain["[1]"] == "3"
    assert plain["[2]"].startswith("f64[2] #")
    split = jax.device_put(jnp.ones(2), NamedSharding(mesh, P("data")))
    assert described([split], values=True)["[0]"].endswith(f"#{digest}")


def test_an_abstract_tree_is_described_like_the_live_one() -> None:
    assert described(jax.eval_shape(lambda: Layer(jnp.ones(2)))) == described(Layer(jnp.ones(2)))


def test_every_process_describes_alike_whatever_its_hashes() -> None:
    program = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "from tests.sharding import test_describe as cases\n"
        "for name, make in cases.MAKERS.items(): print(name, cases.description(make()))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # here it is another one
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert run.stdout == "".join(f"{name} {description(make())}\n" for name, make in MAKERS.items())
