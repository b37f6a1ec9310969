"""What has no exact key, and why, in words."""

import itertools
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._nodes.classes import class_of
from treewright._nodes.representation import text

MUTABLE = (list, dict, set, bytearray)
_NAMED = 3  # names that a reason lists
_ANSWERS = (bool, np.bool_)


class NoExactKeyError(TypeError):
    """A value that can't be compared exactly, with the words for an error message."""

    def __init__(self, found: str, consequence: str) -> None:
        super().__init__(found)
        self.found = found
        self.consequence = consequence


class ItselfOnlyError(Exception):
    """A value inside a function, partial or method makes the whole equal to itself only; with the reason in words."""


def problem_of(value: Any) -> NoExactKeyError:
    """Why `value` can't be a static, in words."""
    if isinstance(value, Tracer):
        return NoExactKeyError(
            f"a tracer, {text(value)}",
            "A tracer stands for a value of one trace only, and a static outlives the trace.",
        )
    if isinstance(value, np.ndarray | jax.Array):
        return NoExactKeyError(
            f"an array, {text(value)}",
            "jit compares statics with ==, which gives an array and no answer, and changes of its values "
            "would give stale results.",
        )
    if isinstance(value, MUTABLE):
        return NoExactKeyError(
            shown(value), "jit compares statics and never copies them, so a change in place would give stale results."
        )
    return NoExactKeyError(
        shown(value), "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
    )


def shown(value: Any) -> str:
    """`a list, [64, 64]`."""
    kind = class_of(value)
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    shown = text(value)
    return f"{article} {kind.__name__}, {shown if len(shown) <= 80 else shown[:77] + '...'}"


def unanswered(value: Any, why: Exception | object) -> NoExactKeyError:
    """Why a value can't be a static whose `==` raised this error, or gave this answer."""
    name = class_of(value).__qualname__
    raised = f"raises {type(why).__name__}: {why}" if isinstance(why, Exception) else f"gives {text(why)}, no bool"
    return NoExactKeyError(
        shown(value),
        f"{name}.__eq__ {raised}, so jit could not tell whether it is the value that it compiled for.",
    )


def refuse_equality(value: Any) -> None:
    """Ask a user's `==` once, where the class and the field can still be named."""
    try:
        answer = value == value  # noqa: PLR0124
    except Exception as error:
        raise unanswered(value, error) from error
    if not isinstance(answer, _ANSWERS):
        raise unanswered(value, answer)


def listed(names: Iterable[str]) -> str:
    """The first of these names, and dots for the others."""
    first = list(itertools.islice(names, _NAMED + 1))
    return ", ".join([*first[:_NAMED], *(["..."] if len(first) > _NAMED else [])])
