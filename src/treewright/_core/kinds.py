"""A table of value types: how to split a value into parts.

Exact keys, JSON, `freeze` and the comparison of values use this table. Parts are simpler values. They are read with the
methods of the exact class, so that overrides in a subclass are never called.
"""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import ipaddress
import math
import operator
import pathlib
import re
import types
import typing
import uuid
import zoneinfo
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._base.functions import FrozenValue, instance_attributes, native_base, uncached_attributes
from treewright._base.text import is_node_class

_sharding: Any = jax.sharding
_complex: Any = complex
_longdouble: Any = np.longdouble  # numpy annotates it as a generic alias, which isinstance rejects


class Kind(NamedTuple):
    """How to split the values of a type into parts.

    Attributes:
        name: The name in JSON.
        parts: Returns the parts of a value; None if the value is opaque or has further attributes.
        key: Returns the exact key of a value; None if the keys of the parts are its key.
        make: Rebuilds a container of a user's values from its parts; None for other kinds, which are leaves.
    """

    name: str
    parts: Callable[[Any], Iterable[Any] | None]
    key: Callable[[Any], Hashable] | None = None
    make: Callable[..., Any] | None = None


def _same(value: Any) -> Any:
    """The key of values whose `==` is exact; the parts of a tuple."""
    return value


def _by_text(cls: Any, text: Any = None) -> Kind:
    to_text = text or cls.__str__
    return Kind(cls.__name__, lambda value: (to_text(value),))


def _by_arguments(cls: Any) -> Kind:
    """A kind whose parts are the constructor's arguments, as in a pickle."""
    return Kind(cls.__name__, lambda value: cls.__reduce_ex__(value, 4)[1])


# Numbers


def _float_key(value: Any) -> Hashable:
    """Equal for all NaN; different for 0.0 and -0.0."""
    return (value, math.copysign(1.0, value)) if value == value else "nan"  # noqa: PLR0124


def _scalar_key(value: Any) -> Hashable:
    """Equal for all NaN of a type, and for all NaT."""
    if isinstance(value, np.complexfloating):
        return (_scalar_key(value.real), _scalar_key(value.imag))
    if value != value:  # noqa: PLR0124
        return (value.dtype, "nan")
    return (value.dtype, str(value) if isinstance(value, _longdouble) else value.tobytes())  # longdouble has padding


def _is_plain(dtype: Any) -> bool:
    """Whether a dtype has no fields, settings or metadata, which its name and `==` ignore."""
    return bool(dtype.isbuiltin or not (dtype.metadata or dtype.kind == "T" or issubclass(dtype.type, np.void)))


def _dtype_parts(dtype: Any) -> tuple[str] | None:
    """The name, or the array protocol string for another byte order; one for `l` and `q`, as in a pickle."""
    return (str(dtype.name if dtype.isnative else dtype.str),) if _is_plain(dtype) else None


# Types that need more than a line


def _zone_parts(zone: zoneinfo.ZoneInfo) -> tuple[str] | None:
    """The key of a time zone, if it identifies the zone; a zone read from a file can have any key."""
    return (zone.key,) if zone.key and zoneinfo.ZoneInfo(zone.key) is zone else None


def partial_parts(value: Any) -> tuple[Any, ...] | None:
    return None if value.__dict__ else (value.func, value.args, (*value.keywords.items(),))


def _mesh_parts(mesh: Any) -> tuple[Any, ...]:
    return (mesh.axis_sizes, mesh.axis_names, tuple(kind.name for kind in mesh.axis_types))


JSON_TYPES = frozenset({str, int, float, bool, types.NoneType})  # JSON keeps their type and value.
_UNIONS: tuple[Any, ...] = (type(typing.Optional[int]), types.UnionType)  # noqa: UP045  one class from Python 3.14 on
_ADDRESSES: tuple[Any, ...] = (ipaddress.IPv4Address, ipaddress.IPv6Address)  # networks have attributes

# By exact class, because a subclass may have a different meaning.
KINDS: types.MappingProxyType[type[Any], Kind] = types.MappingProxyType(
    {
        float: _by_text(float, repr)._replace(key=_float_key),
        complex: Kind("complex", _complex.__getnewargs__),
        str: _by_text(str),
        int: _by_text(int, lambda value: hex(int.__int__(value))),
        bytes: _by_text(bytes, bytes.hex),
        tuple: Kind("tuple", _same, make=lambda *items: items),
        frozenset: Kind("frozenset", frozenset.__iter__, make=lambda *items: frozenset(items)),
        functools.partial: Kind("partial", partial_parts),
        **{cls: _by_arguments(cls) for cls in (slice, range, dt.time, dt.datetime, dt.timedelta)},
        dt.date: _by_text(dt.date, dt.date.isoformat),
        dt.timezone: Kind("timezone", lambda value: value.__getinitargs__()),
        zoneinfo.ZoneInfo: Kind("ZoneInfo", _zone_parts),
        decimal.Decimal: _by_text(decimal.Decimal),
        fractions.Fraction: Kind("Fraction", fractions.Fraction.as_integer_ratio),
        uuid.UUID: Kind("UUID", lambda value: (value.int, value.is_safe)),
        **{cls: _by_text(cls) for cls in _ADDRESSES},
        re.Pattern: Kind("Pattern", lambda value: (value.pattern, value.flags)),
        types.GenericAlias: Kind(
            "GenericAlias", lambda alias: None if alias.__unpacked__ else (alias.__origin__, *alias.__args__)
        ),
        **{cls: Kind("Union", operator.attrgetter("__args__")) for cls in _UNIONS},
        **{cls: _by_text(cls) for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))},
        type(_sharding.PartitionSpec.UNCONSTRAINED): Kind("UNCONSTRAINED", lambda _: ()),
        _sharding.PartitionSpec: Kind(
            "PartitionSpec", lambda spec: None if spec.unreduced or spec.reduced else tuple(spec), _same
        ),
        _sharding.Mesh: Kind("Mesh", _mesh_parts, _same),
        _sharding.AbstractMesh: Kind("AbstractMesh", _mesh_parts, _same),
        _sharding.NamedSharding: Kind(
            "NamedSharding", lambda value: (value.mesh, value.spec, value.memory_kind), _same
        ),
    }
)


# Families: types that are recognised by a property. The first part is the class


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of a dataclass by name, bypassing overrides of its class."""
    return {field.name: object.__getattribute__(value, field.name) for field in dataclasses.fields(value)}


def _make_dataclass(cls: Any, *fields: tuple[str, Any]) -> Any:
    """Rebuild a dataclass without calling its constructor, because a forged file must not run code."""
    if {*dict(fields)} != {field.name for field in dataclasses.fields(cls)}:
        raise ValueError(f"{cls.__qualname__} has different fields now")
    made = object.__new__(cls)
    for name, value in fields:
        object.__setattr__(made, name, value)
    return made


def _dataclass_parts(value: Any) -> tuple[Any, ...] | None:
    fields = fields_of(value)
    return (type(value), *fields.items()) if uncached_attributes(value).keys() <= fields.keys() else None


ENUM = Kind(
    "enum",
    lambda value: (type(value), value.value if isinstance(value, enum.Flag) else value.name),
    # Members are singletons; some have the `==` of a number or a user's.
    lambda value: value if value.__class__.__eq__ is object.__eq__ else id(value),
)
DTYPE = Kind("dtype", _dtype_parts, lambda dtype: dtype if _is_plain(dtype) else id(dtype))
SCALAR = Kind("scalar", lambda value: (value.dtype, value.tobytes()), _scalar_key)
NAMEDTUPLE = Kind(
    "namedtuple",
    lambda value: None if instance_attributes(value) else (type(value), *tuple.__iter__(value)),
    make=lambda cls, *items: cls._make(items),
)
DATACLASS = Kind("dataclass", _dataclass_parts, make=_make_dataclass)


def kind_of(cls: type[Any]) -> Kind | None:
    """The kind of a class; None if it is opaque."""
    kind = KINDS.get(cls)
    if kind is not None:
        return kind
    if issubclass(cls, FrozenValue):
        return vars(cls).get("_kind_")
    if issubclass(cls, enum.Enum):
        return ENUM
    if issubclass(cls, np.dtype):
        return DTYPE
    if issubclass(cls, np.generic):  # Except a row of a structured array, which is mutable.
        return SCALAR if np.dtype(cls).type is cls and not issubclass(cls, np.void) else None
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return NAMEDTUPLE
    # A frozen dataclass, by exact class: an undecorated subclass is opaque.
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not (parameters.frozen and parameters.eq) or is_node_class(cls):
        return None
    return DATACLASS if native_base(cls) is None else None


def with_parts(value: Any, change: Callable[[Any], Any]) -> Any:
    """A tuple, frozenset, frozen dataclass or the like with each part changed; the value itself if nothing changes."""
    kind = kind_of(type(value))
    if kind is None or kind.make is None:
        return value
    parts = tuple(kind.parts(value) or ())
    changed = tuple(map(change, parts))
    return value if all(map(operator.is_, parts, changed)) else kind.make(*changed)
