"""Kinds of values, and what a value of each consists of.

This one table serves exact keys, JSON and `freeze`. Parts are read by the
methods and descriptors of the kind's own class, so that nothing that a subclass overrides is called.
"""

import collections.abc
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import math
import operator
import pathlib
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._core.functions import ThisObject, class_attribute

Key = Callable[[Any], Hashable]
_sharding: Any = jax.sharding


class Kind(NamedTuple):
    """What values of a kind consist of, in plainer values.

    Attributes:
        name: In JSON, where there are those that can be made of their parts again.
        parts: From a value to its parts; None for a value that is opaque.
        key: From a value, and the function that gives the key of a part, to what is equal exactly when two values are;
            None where the keys of the parts are.
        is_ordered: Whether the order of the parts is part of the value.
        is_call: Whether a value goes by identity as soon as a part can change, like a function.
    """

    name: str
    parts: Callable[[Any], Iterable[Any] | None]
    key: Callable[[Any, Callable[[Any], Hashable]], tuple[Hashable, ...]] | None = None
    is_ordered: bool = True
    is_call: bool = False


def _slots(cls: type[Any], *names: str) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads attributes by the descriptors of a class."""
    reads = [vars(cls)[name].__get__ for name in names]
    return lambda value: tuple([read(value) for read in reads])


def _by_text(cls: type[Any], text: Callable[[Any], str]) -> Kind:
    return Kind(cls.__name__, lambda value: (text(value),))


# Numbers


def _float_key(value: Any, _: Key) -> tuple[Hashable, ...]:
    """All NaN are one; 0.0 and -0.0 are two."""
    plain = float.__float__(value)
    if plain != plain:  # noqa: PLR0124
        return ("nan",)
    return (plain,) if plain else (0.0, math.copysign(1.0, plain))


def _scalar_key(value: Any, key: Key) -> tuple[Hashable, ...]:
    """All NaN of one type are one, and so are all NaT."""
    if isinstance(value, np.complexfloating):
        return (_scalar_key(value.real, key), _scalar_key(value.imag, key))
    if value != value:  # noqa: PLR0124
        return (key(value.dtype), "nan")
    return (key(value.dtype), str(value) if isinstance(value, np.longdouble) else value.tobytes())  # pyright: ignore[reportArgumentType]  # which is padded


def _dtype_parts(dtype: Any) -> tuple[str] | None:
    """The name of a dtype, or its array protocol text where the name says too little, as of byte order."""
    return next(((str(name),) for name in (dtype.name, dtype.str) if _is_dtype(name, dtype)), None)


def _is_dtype(name: str, dtype: Any) -> bool:
    try:
        return bool(np.dtype(name) == dtype) and not dtype.metadata and dtype.fields is None
    except TypeError:
        return False


def _dtype_key(dtype: Any, key: Key) -> tuple[Hashable, ...]:
    """With what `==` of dtypes leaves out: the class of the scalars, the alignment, the metadata."""
    fields, metadata, inner = dtype.fields or {}, dtype.metadata or {}, dtype.subdtype
    if not (metadata or fields or inner):
        return (dtype,)
    parts = (tuple(metadata.items()), *((name, *field) for name, field in fields.items()), inner and inner[0])
    return (dtype, dtype.type, dtype.isalignedstruct, *map(key, parts))


# Times


def _moment(value: dt.datetime) -> tuple[Any, ...]:
    date, time = dt.datetime.date(value), dt.datetime.time(value)
    return (f"{date.isoformat()}T{time.isoformat()}", time.fold, _ZONE(value)[0])


def _time(value: dt.time) -> tuple[Any, ...]:
    hour, minute, second, micro, fold, zone = _TIME(value)
    return (dt.time(hour, minute, second, micro).isoformat(), fold, zone)


_ZONE = _slots(dt.datetime, "tzinfo")
_TIME = _slots(dt.time, "hour", "minute", "second", "microsecond", "fold", "tzinfo")


# Shardings


def _mesh_parts(mesh: Any) -> tuple[Any, ...]:
    return (mesh.axis_sizes, mesh.axis_names, tuple(kind.name for kind in mesh.axis_types))


def _named_parts(value: Any) -> tuple[Any, ...] | None:
    plain = _sharding.NamedSharding(value.mesh, value.spec, memory_kind=value.memory_kind)
    return (value.mesh, value.spec, value.memory_kind) if plain == value else None


def _spec_axes(spec: Any) -> tuple[Any, ...]:
    """Its axes; one with unreduced axes is not iterable."""
    return tuple(spec.partitions) if hasattr(spec, "partitions") else tuple(spec)


# By class, exactly: a subclass may mean something else.
KINDS: types.MappingProxyType[type[Any], Kind] = types.MappingProxyType(
    {
        float: Kind("float", lambda value: (repr(value),), _float_key),
        complex: Kind("complex", _slots(complex, "real", "imag")),
        str: _by_text(str, str.__str__),
        int: Kind("int", lambda value: (hex(int.__int__(value)),)),
        bytes: _by_text(bytes, bytes.hex),
        tuple: Kind("tuple", tuple.__iter__),
        frozenset: Kind("frozenset", frozenset.__iter__, is_ordered=False),
        slice: Kind("slice", _slots(slice, "start", "stop", "step")),
        range: Kind("range", _slots(range, "start", "stop", "step")),
        functools.partial: Kind(
            "partial", lambda value: (value.func, value.args, tuple(value.keywords.items())), is_call=True
        ),
        **{
            cls: Kind(cls.__name__, lambda value: value.__reduce__(), is_call=True)
            for cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller)
        },
        decimal.Decimal: _by_text(decimal.Decimal, decimal.Decimal.__str__),
        fractions.Fraction: Kind("Fraction", lambda value: (value.numerator, value.denominator)),
        dt.date: _by_text(dt.date, dt.date.isoformat),
        dt.time: Kind("time", _time),
        dt.datetime: Kind("datetime", _moment),
        dt.timedelta: Kind("timedelta", _slots(dt.timedelta, "days", "seconds", "microseconds")),
        dt.timezone: Kind("timezone", lambda value: value.__getinitargs__()),
        zoneinfo.ZoneInfo: Kind("ZoneInfo", lambda value: value.key and (value.key,)),
        uuid.UUID: Kind("UUID", lambda value: (value.hex, value.is_safe.name)),
        re.Pattern: Kind("Pattern", _slots(re.Pattern, "pattern", "flags")),
        **{cls: _by_text(cls, str) for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))},
        jax.tree_util.DictKey: Kind("DictKey", lambda value: (value.key,)),
        type(_sharding.PartitionSpec.UNCONSTRAINED): Kind("UNCONSTRAINED", lambda _: ()),
        _sharding.PartitionSpec: Kind(
            "PartitionSpec", lambda value: (_spec_axes(value), value.unreduced, value.reduced)
        ),
        # A mesh is one object for equal devices and axes: JAX interns them.
        _sharding.Mesh: Kind("Mesh", _mesh_parts, lambda value, _: (ThisObject(value),)),
        _sharding.AbstractMesh: Kind("AbstractMesh", _mesh_parts, lambda value, _: (value,)),
        _sharding.NamedSharding: Kind("NamedSharding", _named_parts),
    }
)


# Families: a class belongs to one by a property


def fields_of(value: Any) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(value))


def field_values(value: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass by name, past what the class overrides."""
    return tuple((name, object.__getattribute__(value, name)) for name in fields_of(value))


def with_fields(cls: Any, fields: Mapping[str, Any]) -> Any:
    """A dataclass of these fields, past its constructor."""
    made = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    return made


ENUM = Kind("enum", lambda value: (type(value), value.value if isinstance(value, enum.Flag) else value.name))
DTYPE = Kind("dtype", _dtype_parts, _dtype_key)
SCALAR = Kind("scalar", lambda value: (value.dtype, value.tobytes()), _scalar_key)
NAMEDTUPLE = Kind("namedtuple", lambda value: (type(value), *tuple.__iter__(value)))
DATACLASS = Kind("dataclass", lambda value: (type(value), *field_values(value)))
ALIAS = Kind(
    "alias",
    lambda value: (
        *(getattr(value, name, None) for name in ("_name", "__origin__", "__args__", "__metadata__")),
        getattr(value, "__unpacked__", False),
    ),
)
_ALIASES = frozenset(
    {"_GenericAlias", "_UnionGenericAlias", "_LiteralGenericAlias", "_AnnotatedAlias", "_CallableGenericAlias", "Union"}
    | {"_ConcatenateGenericAlias", "_UnpackGenericAlias"}
)


def is_namedtuple(cls: Any) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`, or extends such a class."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_frozen_dataclass(cls: type[Any]) -> bool:
    """Whether `dataclass(frozen=True)` has made this very class, with an `==` by fields."""
    parameters: Any = vars(cls).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and parameters.eq and not hasattr(cls, "__node_spec__")


def is_alias(cls: type[Any]) -> bool:
    """Whether values of this class are parametrised types, such as `tuple[int]` and `Literal[1]`."""
    is_typing = cls.__module__ == "typing" and cls.__name__ in _ALIASES
    return is_typing or issubclass(cls, types.GenericAlias | types.UnionType)


def kind_of(cls: type[Any]) -> Kind | None:
    """How values of a class are taken apart; None for a class that is opaque."""
    kind = KINDS.get(cls) or vars(cls).get("_kind_")  # of what freeze() makes
    if kind is not None:
        return kind
    if issubclass(cls, enum.Enum):
        return ENUM
    if issubclass(cls, np.dtype):
        return DTYPE
    if issubclass(cls, np.generic):
        return None if issubclass(cls, np.void) else SCALAR  # a row of a structured array can change in place
    if is_namedtuple(cls):
        return NAMEDTUPLE
    if is_frozen_dataclass(cls):
        return DATACLASS
    return ALIAS if is_alias(cls) else None


def parts_of(value: Any) -> Mapping[Any, Any] | None:
    """The parts of a container or dataclass by JAX's keys; None for what has none."""
    cls, trees = type(value), jax.tree_util
    if isinstance(value, Mapping):
        return {trees.DictKey(name): part for name, part in value.items()}
    names = cls._fields if is_namedtuple(cls) else fields_of(value) if dataclasses.is_dataclass(cls) else ()
    if not names and isinstance(value, list | tuple):
        return {trees.SequenceKey(index): part for index, part in enumerate(value)}
    return {trees.GetAttrKey(name): getattr(value, name) for name in names if hasattr(value, name)} or None


def is_frozen_mapping(cls: type[Any]) -> bool:
    """Whether a class is a mapping that can be hashed and can't change, as `frozendict` and the like."""
    if class_attribute(cls, "__hash__") in {None, object.__hash__} or not issubclass(cls, Mapping):
        return False
    if issubclass(cls, dict):  # that the class has made read-only
        return class_attribute(cls, "__setitem__") is not dict.__setitem__
    return not issubclass(cls, collections.abc.MutableMapping)
