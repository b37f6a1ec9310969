"""Statics as JSON: forms that come back, in one order, and descriptions with digests of what can't."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, static
from treewright._json import decode, described, encode, portable_text, shown
from treewright.errors import StaticSerializationError

if TYPE_CHECKING:
    from collections.abc import Callable

SPEC: Any = jax.sharding.PartitionSpec


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (64,)


class Warmup:
    """A schedule of a plain class."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, count: Any) -> Any:
        return count / self.steps

    def halved(self, count: Any) -> Any:
        return count / self.steps / 2


class Local(Module):
    name: str = static(default="")
    log: str = static(default="", local=True)


def table_schedule(table: Any) -> Callable[[Any], Any]:
    return lambda count: table[count]


VALUES = {
    "scalars": (1, True, 1.5, -0.0, None, "a"),
    "a large int": 10**700,
    "a set": frozenset({3, 1, 2}),
    "a list and a dict of another library": [1, {"a": (2,)}],
    "a partial": functools.partial(jax.nn.gelu, approximate=True),
    "a spec": SPEC("x", None, ("y", "z"), SPEC.UNCONSTRAINED),
    "a dataclass": Config((1, 2)),
    "a dtype": np.dtype(">f4"),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_a_value_comes_back_from_its_form(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))

    assert type(back) is type(value)
    assert repr(back) == repr(value)


@pytest.mark.slow
def test_the_elements_of_a_set_are_written_in_one_order_in_each_process() -> None:
    source = "from treewright._json import encode; print(encode(frozenset({'a', 'b', 'c', 1, (2, None)})))"
    texts = {
        subprocess.run(
            [sys.executable, "-c", source],
            env={"PYTHONHASHSEED": str(number), "JAX_PLATFORMS": "cpu", "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for number in (1, 2)
    }

    assert len(texts) == 1


class Named(dict[str, Any]):
    """A dict with an attribute."""

    def __init__(self, name: str, **items: Any) -> None:
        super().__init__(items)
        self.name = name


CHANGED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "an array as the rate": (lambda: optax.adam(jnp.float32(1e-3)), lambda: optax.adam(jnp.float32(0.5))),
    "a schedule object": (lambda: optax.sgd(Warmup(10)), lambda: optax.sgd(Warmup(1000))),
    "a captured table": (lambda: table_schedule(np.arange(3)), lambda: table_schedule(np.arange(3) + 1)),
    "a captured array": (lambda: table_schedule(jnp.arange(3)), lambda: table_schedule(jnp.arange(3) + 1)),
    "the body of a lambda": (lambda: lambda x: x + 1, lambda: lambda x: x + 2),
    "steps": (
        lambda: optax.MultiSteps(optax.adamw(1e-3), 4),
        lambda: optax.MultiSteps(optax.adamw(1e-3), 8),
    ),
    "the rate within steps": (
        lambda: optax.MultiSteps(optax.adamw(1e-3), 4).gradient_transformation(),
        lambda: optax.MultiSteps(optax.adamw(0.5), 4).gradient_transformation(),
    ),
    "the last of twelve groups": (
        lambda: optax.multi_transform({n: optax.adamw(1e-3) for n in range(12)}, {"a": 1}),
        lambda: optax.multi_transform({n: optax.adamw(0.5 if n == 11 else 1e-3) for n in range(12)}, {"a": 1}),
    ),
    "the object of a method": (lambda: Warmup(1).halved, lambda: Warmup(2).halved),
    "the method of an object": (lambda: Warmup(1).halved, lambda: Warmup(1).__call__),
    "an attribute of a dict": (lambda: Named("p", rate=1), lambda: Named("q", rate=1)),
}


@pytest.mark.parametrize(("first", "second"), CHANGED.values(), ids=CHANGED)
def test_a_description_tells_apart_what_holds_other_values_or_has_other_code(
    first: Callable[[], Any], second: Callable[[], Any]
) -> None:
    kind, text, digest = described(first())

    assert (kind, len(text) <= 120) == ("described", True)
    assert described(first()) == ["described", text, digest]
    assert described(second())[2] != digest
    assert encode(first(), describe=True) != encode(second(), describe=True)


def test_a_description_is_small_however_often_a_part_occurs() -> None:
    tx: Any = optax.adamw(1e-3)
    for _ in range(30):
        tx = optax.masked(tx, {"a": True})

    assert len(portable_text(tx)) < 20_000


def test_a_text_of_a_dict_has_all_items_also_of_keys_that_have_one_text() -> None:
    one, other = object(), object()

    assert portable_text({"a": 1}).endswith("dict({'a': 1})")
    assert portable_text({one: 1, other: 2}) != portable_text({one: 3, other: 2})


def test_statics_that_are_local_to_a_process_are_left_out_of_a_text() -> None:
    assert portable_text(Local("a", "one")) == portable_text(Local("a", "two")) != portable_text(Local("b", "one"))


def test_a_form_is_shown_as_a_person_would_write_the_value() -> None:
    assert (
        shown(encode((1, Config((2,)), np.float32(0.5)))) == "(1, tests.test_json.Config(sizes=(2,)), np.float32(0.5))"
    )


REFUSED: dict[str, tuple[Any, str]] = {
    "no form": ({}, r"^\{\} is not the form of a static value\.$"),
    "an unknown kind": (["pickle", "gASV"], r"^'pickle' is not a kind of static value that this version of Treewright"),
    "a description": (["described", "<lambda>", ""], r"^It was saved as a description only, "),
    "a name that is nowhere": (
        ["name", "os:nowhere"],
        r"^os:nowhere was not found\. .* import os before reading it\.$",
    ),
    "a class that is none": (
        ["dataclass", ["name", "builtins:print"]],
        r"^\['dataclass', \['name', 'builtins:print'\], \.\.\.\] can't be read: print is not a frozen",
    ),
    "other fields": (
        ["namedtuple", ["name", "optax:EmptyState"], 1],
        r"can't be read: EmptyState has other fields now",
    ),
    "fields that a dataclass has no longer": (
        ["dataclass", ["name", "tests.test_json:Config"], ["tuple", "size", 1]],
        r"can't be read: Config has other fields now\.$",
    ),
    "a node without its statics": (
        ["node", ["name", "tests.test_json:Local"], ["tuple"]],
        r"can't be read: Local has other fields now\.$",
    ),
    "a call as a named tuple": (["namedtuple", ["name", "optax:adam"], "x"], r"is not a named tuple"),
    "a call as a node": (["node", ["name", "optax:adam"], ["tuple"]], r"is not a node"),
    "a module as an enum": (["enum", ["name", "optax:losses"], "x"], r"is not an enum"),
    "parts that do not fit": (["slice"], r"^\['slice', \.\.\.\] can't be read: "),
}


@pytest.mark.parametrize(("form", "message"), REFUSED.values(), ids=REFUSED)
def test_a_forged_form_is_refused(form: Any, message: str) -> None:
    with pytest.raises(StaticSerializationError, match=message):
        decode(form)
