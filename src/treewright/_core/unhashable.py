"""Values that can't be static: lists, arrays, tracers, configs that can change; and what to give instead."""

import argparse
import dataclasses
import types
from collections.abc import MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.functions import class_attribute
from treewright._core.text import short_text, text, text_with_class

MUTABLE: tuple[type[Any], ...] = (
    *(list, dict, set, bytearray, MutableMapping, MutableSequence, MutableSet),
    *(np.ndarray, jax.Array, jax.Ref),
)
_IN_PLACE = "jit compares statics and never copies them, so a change in place would give stale results."
_UNHASHED = "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
_OWN_HASH = "a hashable form, such as a tuple, or its class __hash__ and __eq__, as dataclass(frozen=True) does"
# The call that makes a config static, by the class that it is an instance of.
_CONFIGS = types.MappingProxyType(
    {
        ("pydantic", "BaseModel"): "treewright.freeze(config.model_dump()), or its class model_config = "
        "ConfigDict(frozen=True)",
        ("omegaconf", "DictConfig"): "treewright.freeze(config)",
        ("omegaconf", "ListConfig"): "treewright.freeze(OmegaConf.to_container(config, resolve=True))",
        ("argparse", "Namespace"): "treewright.freeze(args)",
        ("types", "SimpleNamespace"): "treewright.freeze(config)",
    }
)


class NoExactKeyError(TypeError):
    """A value that can't be compared exactly: what it is, what would follow, and what to give instead, if anything."""

    def __init__(
        self,
        found: str,
        consequence: str,
        instead: str | None = f"Give it {_OWN_HASH}",
        *,
        freezes: bool = False,
    ) -> None:
        super().__init__(found)
        self.found, self.consequence, self.instead = found, consequence, instead
        self.freezes = freezes  # whether `freeze` makes that of it


def problem_of(value: Any) -> NoExactKeyError:
    """Why a value can't be static."""
    if isinstance(value, Tracer):
        return NoExactKeyError(
            f"a tracer, {text(value)}",
            "A tracer stands for a value of one trace only, and a static outlives the trace.",
            None,
        )
    if type(value) is jax.Ref:
        return NoExactKeyError(
            f"a ref, {text(value)}",
            "What a ref holds changes in place, and jit would take it for a part of the program, not of the tree: no "
            "checkpoint would save it, and a program compiled for one ref would not run with another.",
        )
    if isinstance(value, np.ndarray | jax.Array):
        return NoExactKeyError(
            f"an array, {text(value)}",
            "jit compares statics with ==, which gives an array and no answer, and changes of its values "
            "would give stale results.",
            "Give it treewright.freeze(...) of a table that never changes" if isinstance(value, np.ndarray) else None,
            freezes=isinstance(value, np.ndarray),
        )
    instead, freezes = _cure(value)
    consequence = _IN_PLACE if isinstance(value, MUTABLE) else _UNHASHED
    return NoExactKeyError(text_with_class(value), consequence, f"Give it {instead}", freezes=freezes)


def _cure(value: Any) -> tuple[str, bool]:
    """What to give instead of a value, and whether that is what `freeze` makes of it."""
    cls = type(value)
    names = [(str(base.__module__).partition(".")[0], base.__name__) for base in cls.__mro__]
    call = next((_CONFIGS[name] for name in names if name in _CONFIGS), None)
    if call is not None:
        return call, isinstance(value, MutableMapping | argparse.Namespace | types.SimpleNamespace)
    if hasattr(cls, "__attrs_attrs__"):
        return "treewright.freeze(attrs.asdict(config)), or make its class @attrs.frozen", False
    if dataclasses.is_dataclass(cls) and class_attribute(cls, "__hash__") is None:
        return "treewright.freeze(dataclasses.asdict(config)), or make its class @dataclass(frozen=True)", False
    if isinstance(value, list):
        return "a tuple", True
    if isinstance(value, set):
        return "a frozenset", True
    if isinstance(value, MutableMapping):
        return f"treewright.freeze(...) of the {'dict' if isinstance(value, dict) else 'mapping'}", True
    return _OWN_HASH, False


def unanswered(value: Any, why: Exception | object) -> NoExactKeyError:
    """Why a value can't be a static whose `==` raised this error, or gave this answer."""
    raised = (
        f"raises {type(why).__name__}: {why}" if isinstance(why, Exception) else f"gives {short_text(why)}, not a bool"
    )
    return NoExactKeyError(
        text_with_class(value),
        f"{type(value).__qualname__}.__eq__ {raised}, so jit could not tell whether it is the value that it "
        f"compiled for.",
    )


def refuse_equality(value: Any) -> None:
    """Ask a user's `==` once, where the class and the field can still be named: it has to answer with a bool."""
    try:
        answer = value == value  # noqa: PLR0124
    except Exception as error:
        raise unanswered(value, error) from error
    if not isinstance(answer, bool | np.bool_):
        raise unanswered(value, answer)
