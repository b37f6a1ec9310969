"""Kinds of values: what a value of each consists of, and how it is made of that again.

This one table serves exact keys, JSON, `freeze`, and explanations of why two values differ. Parts are read by the
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
_LONGEST_PATTERN = 10_000  # characters of a regular expression that is made of its parts
_LONGEST_FRACTION = 60  # bits of its numerator and denominator: hashes of longer ones can be forged
_sharding: Any = jax.sharding


class Kind(NamedTuple):
    """What values of a kind consist of, in plainer values.

    Attributes:
        name: In JSON.
        parts: From a value to its parts; None for a value that is opaque.
        make: From the parts to a value; None for a kind that is not made again.
        key: From a value, and the function that gives the key of a part, to what is equal exactly when two values are;
            None where the keys of the parts are.
        is_ordered: Whether the order of the parts is part of the value.
    """

    name: str
    parts: Callable[[Any], Iterable[Any] | None]
    make: Callable[..., Any] | None = None
    key: Callable[[Any, Callable[[Any], Hashable]], tuple[Hashable, ...]] | None = None
    is_ordered: bool = True


def _slots(cls: type[Any], *names: str) -> Callable[[Any], tuple[Any, ...]]:
    """A function that reads attributes by the descriptors of a class."""
    reads = [vars(cls)[name].__get__ for name in names]
    return lambda value: tuple([read(value) for read in reads])


def _by_text(cls: type[Any], text: Callable[[Any], str], make: Callable[[str], Any] | None = None) -> Kind:
    return Kind(cls.__name__, lambda value: (text(value),), make or cls)


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
    return (key(value.dtype), str(value) if isinstance(value, np.longdouble) else value.tobytes())  # which is padded


def dtype_text(dtype: Any) -> str | None:
    """The name of a dtype, or its array protocol text where the name says too little, as of byte order."""
    return next((str(name) for name in (dtype.name, dtype.str) if _is_dtype(name, dtype)), None)


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


def dtype_of(name: str) -> Any:
    """The dtype of this name."""
    if not re.fullmatch(r"[<>|=]?\w+(\[\w+\])?", name):  # numpy's own reader takes whole structures
        raise ValueError(f"{name!r} is not a dtype of a static array")
    return np.dtype(name)


def _make_fraction(numerator: int, denominator: int) -> fractions.Fraction:
    if max(numerator.bit_length(), denominator.bit_length()) > _LONGEST_FRACTION:
        raise ValueError("a fraction of such long numbers")
    return fractions.Fraction(numerator, denominator)


# Times


def _make_clock(cls: Any) -> Callable[..., Any]:
    return lambda text, fold, zone: cls.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _moment(value: dt.datetime) -> tuple[Any, ...]:
    date, time = dt.datetime.date(value), dt.datetime.time(value)
    return (f"{date.isoformat()}T{time.isoformat()}", time.fold, _ZONE(value)[0])


def _time(value: dt.time) -> tuple[Any, ...]:
    hour, minute, second, micro, fold, zone = _TIME(value)
    return (dt.time(hour, minute, second, micro).isoformat(), fold, zone)


_ZONE = _slots(dt.datetime, "tzinfo")
_TIME = _slots(dt.time, "hour", "minute", "second", "microsecond", "fold", "tzinfo")


def _make_pattern(pattern: Any, flags: int) -> re.Pattern[Any]:
    if len(pattern) > _LONGEST_PATTERN or flags & re.DEBUG:
        raise ValueError("such a regular expression")
    return re.compile(pattern, flags)


def _make_uuid(digits: str, is_safe: str) -> uuid.UUID:
    return uuid.UUID(digits, is_safe=uuid.SafeUUID[is_safe])


def _make_partial(function: Any, args: tuple[Any, ...], keywords: tuple[Any, ...]) -> functools.partial[Any]:
    return functools.partial(function, *args, **dict(keywords))


# Shardings


def _mesh_parts(mesh: Any) -> tuple[Any, ...]:
    return (mesh.axis_sizes, mesh.axis_names, tuple(kind.name for kind in mesh.axis_types))


def _make_mesh(make: Any) -> Callable[..., Any]:
    return lambda sizes, names, kinds: make(sizes, names, tuple(_sharding.AxisType[kind] for kind in kinds))


def _named_parts(value: Any) -> tuple[Any, ...] | None:
    plain = _sharding.NamedSharding(value.mesh, value.spec, memory_kind=value.memory_kind)
    return (value.mesh, value.spec, value.memory_kind) if plain == value else None


def _spec_axes(spec: Any) -> tuple[Any, ...]:
    """Its axes; one with unreduced axes is not iterable."""
    return tuple(spec.partitions) if hasattr(spec, "partitions") else tuple(spec)


def _make_spec(axes: tuple[Any, ...], unreduced: Any, reduced: Any) -> Any:
    given = {name: value for name, value in (("unreduced", unreduced), ("reduced", reduced)) if value}
    return _sharding.PartitionSpec(*axes, **given)


def _identity(value: Any, _: Key) -> tuple[Hashable, ...]:
    return (ThisObject(value),)


# By class, exactly: a subclass may mean something else.
KINDS: types.MappingProxyType[type[Any], Kind] = types.MappingProxyType(
    {
        float: Kind("float", lambda value: (repr(value),), float, _float_key),
        complex: Kind("complex", _slots(complex, "real", "imag"), complex),
        str: Kind("str", lambda value: (str.__str__(value),), str),
        int: Kind("int", lambda value: (hex(int.__int__(value)),), lambda text: int(text, 16)),
        bytes: _by_text(bytes, bytes.hex, bytes.fromhex),
        tuple: Kind("tuple", tuple.__iter__, lambda *items: items),
        frozenset: Kind("frozenset", frozenset.__iter__, lambda *items: frozenset(items), is_ordered=False),
        slice: Kind("slice", _slots(slice, "start", "stop", "step"), slice),
        range: Kind("range", _slots(range, "start", "stop", "step"), range),
        functools.partial: Kind(
            "partial", lambda value: (value.func, value.args, tuple(value.keywords.items())), _make_partial
        ),
        decimal.Decimal: _by_text(decimal.Decimal, decimal.Decimal.__str__),
        fractions.Fraction: Kind("Fraction", lambda value: (value.numerator, value.denominator), _make_fraction),
        dt.date: _by_text(dt.date, dt.date.isoformat, dt.date.fromisoformat),
        dt.time: Kind("time", _time, _make_clock(dt.time)),
        dt.datetime: Kind("datetime", _moment, _make_clock(dt.datetime)),
        dt.timedelta: Kind("timedelta", _slots(dt.timedelta, "days", "seconds", "microseconds"), dt.timedelta),
        dt.timezone: Kind("timezone", lambda value: value.__getinitargs__(), dt.timezone),
        zoneinfo.ZoneInfo: Kind("ZoneInfo", lambda value: value.key and (value.key,), zoneinfo.ZoneInfo),
        uuid.UUID: Kind("UUID", lambda value: (value.hex, value.is_safe.name), _make_uuid),
        re.Pattern: Kind("Pattern", _slots(re.Pattern, "pattern", "flags"), _make_pattern),
        **{cls: _by_text(cls, str) for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))},
        jax.tree_util.DictKey: Kind("DictKey", lambda value: (value.key,), jax.tree_util.DictKey),
        type(_sharding.PartitionSpec.UNCONSTRAINED): Kind(
            "UNCONSTRAINED", lambda _: (), lambda: _sharding.PartitionSpec.UNCONSTRAINED
        ),
        _sharding.PartitionSpec: Kind(
            "PartitionSpec", lambda value: (_spec_axes(value), value.unreduced, value.reduced), _make_spec
        ),
        # A mesh is one object for equal devices and axes: JAX interns them.
        _sharding.Mesh: Kind("Mesh", _mesh_parts, _make_mesh(jax.make_mesh), _identity),
        _sharding.AbstractMesh: Kind(
            "AbstractMesh", _mesh_parts, _make_mesh(_sharding.AbstractMesh), lambda value, _: (value,)
        ),
        _sharding.NamedSharding: Kind(
            "NamedSharding",
            _named_parts,
            lambda mesh, spec, memory: _sharding.NamedSharding(mesh, spec, memory_kind=memory),
        ),
    }
)


# Families: a class belongs to one by a property


def fields_of(value: Any) -> tuple[str, ...]:
    """The names of the fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(value))


def field_values(value: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass by name, past what the class overrides."""
    return tuple((name, object.__getattribute__(value, name)) for name in fields_of(value))


def _make_dataclass(cls: Any, *fields: tuple[str, Any]) -> Any:
    """Past its constructor, which would run code of whoever forged a file."""
    _expect(cls, "a frozen dataclass", isinstance(cls, type) and is_frozen_dataclass(cls))
    _expect(cls, f"of the fields {', '.join(name for name, _ in fields)}", {*fields_of(cls)} == {n for n, _ in fields})
    made = object.__new__(cls)
    for name, value in fields:
        object.__setattr__(made, name, value)
    return made


def _make_namedtuple(cls: Any, *items: Any) -> Any:
    _expect(cls, "a named tuple", is_namedtuple(cls) and len(cls._fields) == len(items))
    return tuple.__new__(cls, items)


def _make_member(cls: Any, value: Any) -> Any:
    _expect(cls, "an enum", isinstance(cls, enum.EnumMeta))
    return cls(value) if issubclass(cls, enum.Flag) else cls.__members__[value]


def _make_scalar(dtype: Any, data: bytes) -> Any:
    return np.frombuffer(data, dtype)[0]


def _expect(cls: Any, what: str, is_so: bool) -> None:  # noqa: FBT001
    if not is_so:
        raise ValueError(f"{cls.__qualname__ if isinstance(cls, type) else type(cls).__name__} is not {what}")


ENUM = Kind("enum", lambda v: (type(v), v.value if isinstance(v, enum.Flag) else v.name), _make_member)
DTYPE = Kind("dtype", lambda value: None if (n := dtype_text(value)) is None else (n,), dtype_of, _dtype_key)
SCALAR = Kind("scalar", lambda value: (value.dtype, value.tobytes()), _make_scalar, _scalar_key)
NAMEDTUPLE = Kind("namedtuple", lambda value: (type(value), *tuple.__iter__(value)), _make_namedtuple)
DATACLASS = Kind("dataclass", lambda value: (type(value), *field_values(value)), _make_dataclass)
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


BUILTIN_KINDS = (*KINDS.values(), ENUM, DTYPE, SCALAR, NAMEDTUPLE, DATACLASS)


def is_frozen_mapping(cls: type[Any]) -> bool:
    """Whether a class is a mapping that can be hashed and can't change, as `frozendict` and the like."""
    if class_attribute(cls, "__hash__") in {None, object.__hash__} or not issubclass(cls, Mapping):
        return False
    if issubclass(cls, dict):  # that the class has made read-only
        return class_attribute(cls, "__setitem__") is not dict.__setitem__
    return not issubclass(cls, collections.abc.MutableMapping)
