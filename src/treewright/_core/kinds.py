"""Kinds of values: what a value of each consists of, and how it is made of that again.

This one table serves exact keys, JSON, `freeze` and what says where two values differ. Parts are plainer values, read
by the methods and descriptors of the kind's own class, so that nothing that a subclass overrides is called.
"""

import contextlib
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
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._core.functions import class_attribute, is_cached_property, state_of

_LONGEST_PATTERN = 10_000  # characters of a regular expression that is made of its parts
_sharding: Any = jax.sharding
_complex: Any = complex
_longdouble: Any = np.longdouble  # to numpy's annotations an alias with type arguments, which isinstance can't take


class Kind(NamedTuple):
    """What values of a kind consist of, in plainer values.

    Attributes:
        name: In JSON.
        parts: From a value to its parts; None for a value that is opaque, or has attributes besides them.
        make: From the parts to the value.
        key: From a value, and the function that gives the key of a part, to what is equal exactly when two values are;
            None where the keys of the parts are.
    """

    name: str
    parts: Callable[[Any], Iterable[Any] | None]
    make: Callable[..., Any]
    key: Callable[[Any, Callable[[Any], Hashable]], Hashable] | None = None


def _same(value: Hashable, _: object) -> Hashable:
    """The key of values whose `==` is exact."""
    return value


def _by_text(cls: Any, text: Any = None, make: Any = None) -> Kind:
    to_text = text or cls.__str__
    return Kind(cls.__name__, lambda value: (to_text(value),), make or cls)


def _by_arguments(cls: Any) -> Kind:
    """By what the class takes to make it, as pickles have it."""
    return Kind(cls.__name__, lambda value: cls.__reduce_ex__(value, 4)[1], cls)


# Numbers


def _float_key(value: Any, _: object) -> Hashable:
    """All NaN are one; 0.0 and -0.0 are two."""
    plain = float.__float__(value)
    return (plain, math.copysign(1.0, plain)) if plain == plain else "nan"  # noqa: PLR0124


def _scalar_key(value: Any, _: object) -> Hashable:
    """All NaN of one type are one, and so are all NaT."""
    if isinstance(value, np.complexfloating):
        return (_scalar_key(value.real, _), _scalar_key(value.imag, _))
    if value != value:  # noqa: PLR0124
        return (value.dtype, "nan")
    return (value.dtype, str(value) if isinstance(value, _longdouble) else value.tobytes())  # which is padded


def _dtype_parts(dtype: Any) -> tuple[str] | None:
    """The name of a dtype, or its array protocol text where the name says too little, as of byte order."""
    if dtype.metadata or dtype.fields or dtype.subdtype:
        return None
    with contextlib.suppress(TypeError):
        if np.dtype(dtype.name) == dtype:
            return (str(dtype.name),)
    return (str(dtype.str),)


def _make_dtype(name: str) -> Any:
    if not re.fullmatch(r"[<>|=]?\w+(\[\w+\])?", name):  # numpy's own reader takes whole structures
        raise ValueError(f"{name!r} is not a dtype of a static array")
    return np.dtype(name)


def _dtype_key(dtype: np.dtype[Any], key: Callable[[Any], Hashable]) -> Hashable:
    """With what `==` of dtypes leaves out: the class of the scalars, the alignment, the metadata."""
    if not (dtype.metadata or dtype.fields or dtype.subdtype):
        return dtype
    return (dtype, repr(dtype), *map(key, (dtype.metadata or {}).items()))


def _make_scalar(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype)[0]


# Others that take more than a line


def _zone_parts(zone: zoneinfo.ZoneInfo) -> tuple[str] | None:
    """Its name, where that names this zone; one read from a file may have any name."""
    return (zone.key,) if zone.key and zoneinfo.ZoneInfo(zone.key) is zone else None


def _partial_parts(value: Any) -> tuple[Any, ...] | None:
    if value.__dict__ or (type(value) is not functools.partial and state_of(value)):
        return None
    return (value.func, value.args, (*value.keywords.items(),))


def _make_partial(function: Any, args: tuple[Any, ...], keywords: tuple[Any, ...]) -> functools.partial[Any]:
    return functools.partial(function, *args, **dict(keywords))


def _make_pattern(pattern: Any, flags: int) -> re.Pattern[Any]:
    if len(pattern) > _LONGEST_PATTERN or flags & re.DEBUG:
        raise ValueError("such a regular expression")
    return re.compile(pattern, flags)


def _mesh(cls: Any, make: Any) -> Kind:
    return Kind(
        cls.__name__,
        lambda mesh: (mesh.axis_sizes, mesh.axis_names, tuple(kind.name for kind in mesh.axis_types)),
        lambda sizes, names, kinds: make(sizes, names, tuple(_sharding.AxisType[kind] for kind in kinds)),
        _same,
    )


# By class, exactly: a subclass may mean something else.
KINDS: types.MappingProxyType[type[Any], Kind] = types.MappingProxyType(
    {
        float: _by_text(float, repr)._replace(key=_float_key),
        complex: Kind("complex", _complex.__getnewargs__, complex),
        str: _by_text(str),
        int: _by_text(int, lambda value: hex(int.__int__(value)), lambda digits: int(digits, 16)),
        bytes: _by_text(bytes, bytes.hex, bytes.fromhex),
        tuple: Kind("tuple", tuple.__iter__, lambda *items: items),
        frozenset: Kind("frozenset", frozenset.__iter__, lambda *items: frozenset(items)),
        functools.partial: Kind("partial", _partial_parts, _make_partial),
        **{cls: _by_arguments(cls) for cls in (slice, range, dt.time, dt.datetime, dt.timedelta)},
        dt.date: _by_text(dt.date, dt.date.isoformat, dt.date.fromisoformat),
        dt.timezone: Kind("timezone", lambda value: value.__getinitargs__(), dt.timezone),
        zoneinfo.ZoneInfo: Kind("ZoneInfo", _zone_parts, zoneinfo.ZoneInfo),
        decimal.Decimal: _by_text(decimal.Decimal),
        fractions.Fraction: Kind("Fraction", fractions.Fraction.as_integer_ratio, fractions.Fraction),
        uuid.UUID: _by_text(uuid.UUID),
        re.Pattern: Kind("Pattern", lambda value: (value.pattern, value.flags), _make_pattern),
        **{cls: _by_text(cls) for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))},
        type(_sharding.PartitionSpec.UNCONSTRAINED): Kind(
            "UNCONSTRAINED", lambda _: (), lambda: _sharding.PartitionSpec.UNCONSTRAINED
        ),
        _sharding.PartitionSpec: Kind(
            "PartitionSpec",
            lambda spec: None if spec.unreduced or spec.reduced else tuple(spec),
            _sharding.PartitionSpec,
            _same,
        ),
        _sharding.Mesh: _mesh(_sharding.Mesh, jax.make_mesh),
        _sharding.AbstractMesh: _mesh(_sharding.AbstractMesh, _sharding.AbstractMesh),
        _sharding.NamedSharding: Kind(
            "NamedSharding",
            lambda value: (value.mesh, value.spec, value.memory_kind),
            lambda mesh, spec, memory: _sharding.NamedSharding(mesh, spec, memory_kind=memory),
            _same,
        ),
    }
)


# Families: a class belongs to one by a property. Their first part is the class


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, past what the class overrides."""
    return {field.name: object.__getattribute__(value, field.name) for field in dataclasses.fields(value)}


def is_namedtuple(cls: Any) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`, or extends such a class."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_frozen_dataclass(cls: Any) -> bool:
    """Whether `dataclass(frozen=True)` has made this very class, with an `==` by fields."""
    parameters: Any = vars(cls).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and parameters.eq and not hasattr(cls, "__node_spec__")


def _make_namedtuple(cls: Any, *items: Any) -> Any:
    if len(items) != len(cls._fields):
        raise ValueError(f"{cls.__qualname__} has other fields now")
    return tuple.__new__(cls, items)


def _make_dataclass(cls: Any, *fields: tuple[str, Any]) -> Any:
    """Past its constructor, which would run code of whoever forged a file."""
    if {*dict(fields)} != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"{cls.__qualname__} has other fields now")
    made = object.__new__(cls)
    for name, value in fields:
        object.__setattr__(made, name, value)
    return made


def _dataclass_parts(value: Any) -> tuple[Any, ...] | None:
    cls, fields = type(value), fields_of(value)
    has_more = any(name not in fields and not is_cached_property(cls, name) for name in state_of(value))
    return None if has_more else (cls, *fields.items())


ENUM = Kind(
    "enum",
    lambda value: (type(value), value.value if isinstance(value, enum.Flag) else value.name),
    lambda cls, value: cls(value) if issubclass(cls, enum.Flag) else cls.__members__[value],
    # Members are single; some compare by the `==` of a number, or of the user's.
    lambda value, _: value if class_attribute(type(value), "__eq__") is object.__eq__ else id(value),
)
DTYPE = Kind("dtype", _dtype_parts, _make_dtype, _dtype_key)
SCALAR = Kind("scalar", lambda value: (value.dtype, value.tobytes()), _make_scalar, _scalar_key)
NAMEDTUPLE = Kind(
    "namedtuple", lambda value: None if state_of(value) else (type(value), *tuple.__iter__(value)), _make_namedtuple
)
DATACLASS = Kind("dataclass", _dataclass_parts, _make_dataclass)
FAMILIES = (ENUM, DTYPE, SCALAR, NAMEDTUPLE, DATACLASS)


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
    return DATACLASS if is_frozen_dataclass(cls) else None


# Of these the parts are the user's values.
_CONTAINERS = frozenset({"tuple", "frozenset", "namedtuple", "dataclass", "FrozenMapping"})


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tuple, frozenset, frozen dataclass or the like with each part changed; anything else, and the same, itself."""
    kind = kind_of(type(value))
    if kind is None or kind.name not in _CONTAINERS:
        return value
    parts = tuple(kind.parts(value) or ())
    changed = tuple(map(change, parts))
    return value if all(map(operator.is_, parts, changed)) else kind.make(*changed)
