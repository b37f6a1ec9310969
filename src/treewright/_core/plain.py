"""Exact keys of plain values: numbers, texts, dates, dtypes, types, containers that can't change; and refusals.

Each reader takes a value and what gives the key of a part of it.
"""

import datetime as dt
import decimal
import enum
import fractions
import functools
import math
import operator
import pathlib
import types
import uuid
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.functions import class_attribute, class_of
from treewright._core.jax_refs import is_ref
from treewright._core.text import first_text, text, text_with_class

Key = Callable[[Any], Hashable]

BY_VALUE = frozenset(
    {
        *(str, int, bool, bytes, types.NoneType, types.EllipsisType),
        type(cast("object", getattr(functools, "Placeholder", None))),  # a partial's, from Python 3.14 on
    }
)
_MAPPING: Any = Mapping
_DATE_PARTS = operator.attrgetter("year", "month", "day")
_TIME_PARTS = operator.attrgetter("hour", "minute", "second", "microsecond", "fold")


def _itself(value: Any, _: Key) -> Hashable:
    return (class_of(value), value)


def _real(value: float, _: Key) -> Hashable:
    kind = class_of(value)
    if value != value:  # noqa: PLR0124  all NaN of one type are one
        return (kind, "nan", None)
    return (kind, value) if value else (kind, 0.0, math.copysign(1.0, value))


def _numpy_scalar(value: Any, key: Key) -> Hashable:
    kind: Any = class_of(value)
    if issubclass(kind, np.complexfloating):
        return (class_of(value), _numpy_scalar(value.real, key), _numpy_scalar(value.imag, key))
    if value != value:  # noqa: PLR0124  NaN, or NaT
        return (kind, value.dtype, "nan")
    return (kind, value.dtype, value or str(value))  # str tells -0.0 from 0.0


def _dtype(value: Any, key: Key) -> Hashable:
    """With what `==` of dtypes leaves out: the metadata."""
    kind = class_of(value)
    if value.metadata is None and value.fields is None and value.subdtype is None:
        return (kind, value)
    parts: list[Hashable] = []
    if value.metadata:
        parts.append(tuple((name, key(item)) for name, item in value.metadata.items()))
    fields: Any = value.fields or {}
    parts.extend((name, _dtype(field[0], key)) for name, field in fields.items())
    if value.subdtype is not None:
        parts.append(_dtype(value.subdtype[0], key))
    return (kind, value, *parts)


def _elements(value: tuple[Any, ...], key: Key) -> Hashable:
    return (class_of(value), *map(key, value))


def _bounds(value: Any, key: Key) -> Hashable:
    return (class_of(value), key(value.start), key(value.stop), key(value.step))


def _text(value: Any, _: Key) -> Hashable:
    """What `==` passes over: the digits of a decimal, the case in a path of Windows."""
    return (class_of(value), str(value))


def _moment(value: dt.datetime, key: Key) -> Hashable:
    """`==` of two aware datetimes asks whether they are one moment, whatever the clocks show."""
    return (class_of(value), _DATE_PARTS(value), _TIME_PARTS(value), key(value.tzinfo))


def _alias(value: Any, key: Key) -> Hashable:
    """`int | float`, `tuple[int, str]`, `Literal[1]`: in order, and with the types of what they were given."""
    parts = (getattr(value, name, ()) for name in ("__args__", "__metadata__"))
    name, unpacked = getattr(value, "_name", None), getattr(value, "__unpacked__", False)
    origin = getattr(value, "__origin__", None)
    return (
        class_of(value),
        name,
        unpacked,
        None if origin is None else key(origin),
        *(_elements(part, key) for part in parts),
    )


def mapping(value: Mapping[Any, Any], key: Key) -> Hashable:
    """A mapping that can't change, by its items in order, which a program can read."""
    return (class_of(value), *((key(name), key(value[name])) for name in value))


def is_frozen_mapping(kind: type[Any]) -> bool:
    """Whether a class is a mapping that can be hashed, as `frozendict` and the like."""
    hashed = class_attribute(kind, "__hash__") not in {None, object.__hash__}
    return hashed and issubclass(kind, _MAPPING) and not issubclass(kind, MutableMapping)


def is_alias(kind: type[Any]) -> bool:
    """Whether values of this class are parametrised types, such as `tuple[int]` and `Literal[1]`."""
    return kind in {types.GenericAlias, types.UnionType} or (kind.__module__ == "typing" and kind.__name__ in _ALIASES)


_ALIASES = frozenset(
    {"_GenericAlias", "_UnionGenericAlias", "_LiteralGenericAlias", "_AnnotatedAlias", "_CallableGenericAlias", "Union"}
    | {"_ConcatenateGenericAlias", "_UnpackGenericAlias"}
)

# The classes of plain values, and how each is read; a subclass, which may mean something else, in the same way where it
# has the same `==`. Those of numpy's base classes are all numpy's own.
_READERS: tuple[tuple[type[Any], Callable[[Any, Key], Hashable]], ...] = (
    (np.generic, _numpy_scalar),
    (np.dtype, _dtype),
    (tuple, _elements),
    (frozenset, lambda value, key: (class_of(value), frozenset(map(key, value)))),
    (float, _real),
    (complex, lambda value, key: (class_of(value), key(value.real), key(value.imag))),
    (str, _itself),
    (int, _itself),
    (bytes, _itself),
    (range, _bounds),
    (slice, _bounds),
    (dt.datetime, _moment),
    (dt.time, lambda value, key: (class_of(value), _TIME_PARTS(value), key(value.tzinfo))),
    (dt.date, _itself),
    (dt.timedelta, _itself),
    (dt.timezone, lambda value, key: (dt.timezone, key(value.utcoffset(None)), value.tzname(None))),
    (decimal.Decimal, _text),
    (fractions.Fraction, _itself),
    (pathlib.PurePath, _text),
    (uuid.UUID, lambda value, _: (class_of(value), value, value.is_safe)),
    (jax.tree_util.DictKey, lambda value, key: (class_of(value), key(value.key))),
)
KINDS = types.MappingProxyType(
    {**dict(_READERS), **dict.fromkeys((type(np.dtype(code)) for code in np.typecodes["All"]), _dtype)}
)


def reader_of(kind: type[Any]) -> Callable[[Any, Key], Hashable] | None:
    """How a value of this subclass of a plain class, or a parametrised type, is read; None for anything else."""
    for base, read in _READERS:
        if issubclass(kind, base) and (kind.__eq__ is base.__eq__ or issubclass(kind, (np.generic, np.dtype))):
            return read
    return _alias if is_alias(kind) else None


def is_own_enum(kind: type[Any]) -> bool:
    """Whether a class is an enum whose members compare by an `__eq__` of the user's."""
    return issubclass(kind, enum.Enum) and any(
        isinstance(class_attribute(kind, name), types.FunctionType)
        and class_attribute(kind, name).__module__ != enum.__name__
        for name in ("__eq__", "__hash__")
    )


# What has no exact key

MUTABLE = (list, dict, set, bytearray)


# What to give instead of these: `freeze` makes it of them.
_FROZEN = types.MappingProxyType(
    {
        list: "Give it a tuple",
        set: "Give it a frozenset",
        dict: "Give it treewright.freeze(...) of the dict",
        np.ndarray: "Give it treewright.freeze(...) of a table that never changes",
    }
)


class NoExactKeyError(TypeError):
    """A value that can't be compared exactly: what it is, what would follow, and what to give instead, if anything."""

    def __init__(
        self,
        found: str,
        consequence: str,
        instead: str | None = "Give it a hashable form, such as a tuple, or its class __hash__ and __eq__, as "
        "dataclass(frozen=True) does",
        *,
        freezes: bool = False,
    ) -> None:
        super().__init__(found)
        self.found, self.consequence, self.instead = found, consequence, instead
        self.freezes = freezes  # whether `freeze` makes that of it


class ItselfOnlyError(Exception):
    """A value inside a function, partial or method makes the whole equal to itself only; with the reason in words."""


def problem_of(value: Any) -> NoExactKeyError:
    if isinstance(value, Tracer):
        return NoExactKeyError(
            f"a tracer, {text(value)}",
            "A tracer stands for a value of one trace only, and a static outlives the trace.",
            None,
        )
    if is_ref(value):
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
            _FROZEN[np.ndarray] if isinstance(value, np.ndarray) else None,
            freezes=isinstance(value, np.ndarray),
        )
    if isinstance(value, MUTABLE):
        consequence = "jit compares statics and never copies them, so a change in place would give stale results."
    else:
        consequence = "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
    instead = next((cure for kind, cure in _FROZEN.items() if isinstance(value, kind)), None)
    if instead is None:
        return NoExactKeyError(text_with_class(value), consequence)
    return NoExactKeyError(text_with_class(value), consequence, instead, freezes=True)


def unanswered(value: Any, why: Exception | object) -> NoExactKeyError:
    """Why a value can't be a static whose `==` raised this error, or gave this answer."""
    raised = (
        f"raises {type(why).__name__}: {why}" if isinstance(why, Exception) else f"gives {first_text(why)}, not a bool"
    )
    return NoExactKeyError(
        text_with_class(value),
        f"{class_of(value).__qualname__}.__eq__ {raised}, so jit could not tell whether it is the value that it "
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
