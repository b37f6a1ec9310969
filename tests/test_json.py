"""Statics as JSON: exact forms in a fixed order, and descriptions with digests for the rest."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import subprocess
import sys
import uuid
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from treewright import Module, static
from treewright._json import description_of, encode, encoded_text, portable_text

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


def nested(value: Any) -> Any:
    return functools.reduce(lambda inner, _: (inner,), range(60), value)


PATTERNS = [re.compile("a" * 300 + end) for end in "bc"]
IDS = [uuid.UUID(int=3, is_safe=safety) for safety in (uuid.SafeUUID.safe, uuid.SafeUUID.unsafe)]
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
    "the end of a long pattern": (lambda: table_schedule(PATTERNS[0]), lambda: table_schedule(PATTERNS[1])),
    "a long int": (lambda: table_schedule(10**6000), lambda: table_schedule(10**6000 + 1)),
    "a text of numpy": (lambda: table_schedule(np.str_("age")), lambda: table_schedule(np.str_("sex"))),
    "what is nested deeply": (lambda: table_schedule(slice(nested(1))), lambda: table_schedule(slice(nested(2)))),
    "the safety of a UUID": (lambda: table_schedule(IDS[0]), lambda: table_schedule(IDS[1])),
}


@pytest.mark.parametrize(("first", "second"), CHANGED.values(), ids=CHANGED)
def test_descriptions_differ_for_different_values_or_code(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    kind, text, digest, settings = description_of(first())

    assert (kind, len(text) <= 120) == ("described", True)
    assert description_of(first()) == ["described", text, digest, settings]
    assert description_of(second())[2] != digest
    assert encode(first()) != encode(second())


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


TEXTS: dict[str, Any] = {
    "(1, True, 1.5, -0.0, None, 'a')": (1, True, 1.5, -0.0, None, "a"),
    "(nan, -inf)": (float("nan"), -float("inf")),
    "(1,)": (1,),
    "tests.test_json.Config(sizes=(2,))": Config((2,)),
    "np.float32(0.5)": np.float32(0.5),
    "dtype('>f4')": np.dtype(">f4"),
    "scalar(dtype('bytes8'), bytes('61'))": np.bytes_(b"a"),
    "partial(print, (), (('end', ''),))": functools.partial(print, end=""),
    "PartitionSpec('x', None, ('y', 'z'))": SPEC("x", None, ("y", "z")),
}


@pytest.mark.parametrize(("text", "value"), TEXTS.items())
def test_encoded_values_are_shown_as_source_code(text: str, value: Any) -> None:
    assert encoded_text(json.loads(json.dumps(encode(value)))) == text


@pytest.mark.parametrize("forged", [{}, [], [[]], ["scalar", ["dtype", "O"], ["bytes", "00"]], ["scalar", [], "x"]])
def test_forged_json_has_a_text(forged: Any) -> None:
    assert isinstance(encoded_text(forged), str)
