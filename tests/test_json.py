"""Statics as JSON: exact forms that round-trip in a fixed order, and descriptions with digests for the rest."""

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
from treewright._json import decode, description_of, encode, encoded_text, portable_text
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
def test_json_round_trips_static_values(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))

    assert type(back) is type(value)
    assert repr(back) == repr(value)


@pytest.mark.slow
def test_json_writes_sets_in_a_fixed_order() -> None:
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
def test_descriptions_differ_for_different_values_or_code(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    kind, text, digest, settings = description_of(first())

    assert (kind, len(text) <= 120) == ("described", True)
    assert description_of(first()) == ["described", text, digest, settings]
    assert description_of(second())[2] != digest
    assert encode(first(), describe=True) != encode(second(), describe=True)


def test_a_description_of_repeated_parts_is_small() -> None:
    tx: Any = optax.adamw(1e-3)
    for _ in range(30):
        tx = optax.masked(tx, {"a": True})

    assert len(portable_text(tx)) < 20_000


def test_the_text_of_a_dict_keeps_keys_with_equal_texts() -> None:
    one, other = object(), object()

    assert portable_text({"a": 1}).endswith("dict({'a': 1})")
    assert portable_text({one: 1, other: 2}) != portable_text({one: 3, other: 2})


def test_process_local_statics_are_omitted_from_texts() -> None:
    assert portable_text(Local("a", "one")) == portable_text(Local("a", "two")) != portable_text(Local("b", "one"))


def test_encoded_values_are_shown_as_source_code() -> None:
    assert (
        encoded_text(encode((1, Config((2,)), np.float32(0.5))))
        == "(1, tests.test_json.Config(sizes=(2,)), np.float32(0.5))"
    )


REJECTED: dict[str, tuple[Any, str]] = {
    "no form": ({}, r"^\{\} is not an encoded static\.$"),
    "an unknown kind": (["pickle", "gASV"], r"^'pickle' is not a kind of static value that this version of Treewright"),
    "a description": (["described", "<lambda>", ""], r"^It was saved as a description only, "),
    "a name that is nowhere": (
        ["name", "os:nowhere"],
        r"^os:nowhere was not found, but .*\. Import os before reading the program\.$",
    ),
    "a class that is none": (
        ["dataclass", ["name", "builtins:print"]],
        r"^\['dataclass', \['name', 'builtins:print'\], \.\.\.\] can't be read: print is not a frozen",
    ),
    "other fields": (
        ["namedtuple", ["name", "optax:EmptyState"], 1],
        r"can't be read: EmptyState has different fields now",
    ),
    "fields that a dataclass has no longer": (
        ["dataclass", ["name", "tests.test_json:Config"], ["tuple", "size", 1]],
        r"can't be read: Config has different fields now\.$",
    ),
    "a node without its statics": (
        ["node", ["name", "tests.test_json:Local"], ["tuple"]],
        r"can't be read: the fields of Local have changed\.$",
    ),
    "a call as a named tuple": (["namedtuple", ["name", "optax:adam"], "x"], r"is not a named tuple"),
    "a call as a node": (["node", ["name", "optax:adam"], ["tuple"]], r"is not a node"),
    "a module as an enum": (["enum", ["name", "optax:losses"], "x"], r"is not an enum"),
    "parts that do not fit": (["slice"], r"^\['slice', \.\.\.\] can't be read: "),
}


@pytest.mark.parametrize(("form", "message"), REJECTED.values(), ids=REJECTED)
def test_forged_json_is_rejected(form: Any, message: str) -> None:
    with pytest.raises(StaticSerializationError, match=message):
        decode(form)
