"""How values of Python's and JAX's own classes are written as JSON: the forms, and their writers and readers.

A static in typed form is a plain scalar, or a list of its kind and its parts: `["tuple", 1, ["float", "inf"]]`.
"""

import base64
import contextlib
import datetime as dt
import decimal
import fractions
import itertools
import pathlib
import re
import types
import uuid
import zoneinfo
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, cast

import jax
import numpy as np

from treewright._core.freeze import FrozenArray, FrozenMapping, freeze
from treewright._core.functions import class_of
from treewright._core.jax_private import untyped_jax
from treewright.errors import StaticSerializationError

Write = Callable[[Any], Any]
Read = Callable[[Any], Any]
Part = Callable[[Any], Iterable[Any]]  # a function that gives the statics inside of a part, or raises

PLAIN = frozenset({str, int, bool, types.NoneType, float})
_MANY = 64  # of one hash: so few cost nothing, and by accident there are never so many
_LONGEST_PATTERN = 10_000  # characters of a regular expression
_UNCONSTRAINED = "UNCONSTRAINED"
_DTYPE = re.compile(r"[<>|=]?\w+(\[\w+\])?")


# The grammar


class StaticForm(NamedTuple):
    """The parts of a kind."""

    parts: tuple[Part, ...]
    rest: Part | None = None  # of all further parts, where there may be any


class _WrongPartError(Exception):
    """A part is not what its kind has there."""


def _held(part: Any, *kinds: type[Any]) -> Any:
    if class_of(part) not in kinds:
        raise _WrongPartError
    return part


def text(part: Any) -> Iterable[Any]:
    """A part that is a string."""
    _held(part, str)
    return ()


def number(part: Any) -> Iterable[Any]:
    """A part that is a whole number."""
    _held(part, int)
    return ()


def sizes(part: Any) -> Iterable[Any]:
    """A part that is a list of sizes."""
    if not all(class_of(size) is int and 0 <= size < 2**63 for size in _held(part, list)):
        raise _WrongPartError
    return ()


def static(part: Any) -> Iterable[Any]:
    """A part that is a static itself."""
    return (part,)


def listed(part: Any) -> Iterable[Any]:
    """A part that is a list of statics."""
    return cast("Iterable[Any]", _held(part, list))


def pair(part: Any) -> Iterable[Any]:
    """A part that is a list of two statics."""
    if len(_held(part, list)) != 2:
        raise _WrongPartError
    return cast("Iterable[Any]", part)


def named(part: Any) -> Iterable[Any]:
    """A part that is a dict of statics."""
    return cast("Iterable[Any]", _held(part, dict).values())


def parts_of(form: StaticForm, start: int = 0) -> Iterator[Part]:
    """The parts that a static of this form has from one of them on, without end where there may be any number."""
    return itertools.islice(itertools.chain(form.parts, itertools.repeat(form.rest or text)), start, None)


def statics_in(encoded: Any, forms: "types.MappingProxyType[str, StaticForm]") -> Iterable[Any]:
    """The statics directly inside of one in typed form, which has to be of one of these forms."""
    kind = class_of(encoded)
    if kind in PLAIN:
        return ()
    name: Any = encoded[0] if kind is list and encoded else None
    form = forms.get(name) if class_of(name) is str else None
    if form is None:
        raise StaticSerializationError(
            f"{shown(encoded if name is None else name)} is not a kind of static value that this version of Treewright "
            f"knows."
        )
    given = len(encoded) - 1 - len(form.parts)
    if given == 0 or (given > 0 and form.rest is not None):
        try:
            parts = zip(encoded[1:], parts_of(form), strict=False)
            return [inner for value, part in parts for inner in part(value)]
        except _WrongPartError:
            pass
    raise StaticSerializationError(f"{shown(encoded)} has other parts than its kind.")


def shown(encoded: Any) -> str:
    """The beginning of what should be a static in typed form; however large it is, and however deep."""
    kind = class_of(encoded)
    if kind is list and encoded and class_of(encoded[0]) is str:
        return f"[{encoded[0][:60]!r}, ...]"
    if kind is str:
        return repr(encoded[:60])
    return repr(encoded) if kind in PLAIN else f"a {kind.__name__}"


# Writers and readers


class Exact(NamedTuple):
    """A class whose values are written exactly: its kind, its form, and the two ways.

    A writer takes a value and what writes a part, and gives the parts, or None for a value that it can't write. A
    reader takes what reads a part, and the parts.
    """

    cls: type[Any]
    kind: str
    form: StaticForm
    write: Callable[[Any, Write], Iterable[Any] | None]
    read: Callable[..., Any]


def read_keys(read: Read, encoded: Iterable[Any]) -> list[Any]:
    """Values that are to be the keys of a dict or the elements of a set, which then takes linear time.

    Whoever forges a file can choose numbers of one hash, and 20,000 of them in a set took 16 seconds.
    """
    keys = list(map(read, encoded))
    if len(keys) > _MANY and max(Counter(map(hash, keys)).values()) > _MANY:
        raise StaticSerializationError(f"of {len(keys)} elements more than {_MANY} have one hash: they were forged.")
    return keys


def write_pairs(value: Mapping[Any, Any], write: Write) -> Iterable[Any]:
    """The items of a dict."""
    return [[write(key), write(item)] for key, item in value.items()]


def read_pairs(read: Read, items: Iterable[Any]) -> Iterable[tuple[Any, Any]]:
    """What `write_pairs` wrote."""
    keys, values = zip(*items, strict=True) if items else ((), ())
    return zip(read_keys(read, keys), map(read, values), strict=True)


def dtype_text(dtype: Any) -> str | None:
    """The name of a dtype, or its array protocol text where the name says too little, as of byte order."""
    for name in (dtype.name, dtype.str):
        with contextlib.suppress(TypeError):
            if np.dtype(name) == dtype:
                return str(name)
    return None


def read_dtype(name: str) -> Any:
    """The dtype of this name."""
    if not _DTYPE.fullmatch(name):  # numpy's own reader takes whole structures
        raise StaticSerializationError(f"{name!r} is not a dtype of an array that can be static.")
    return np.dtype(name)


def write_array(value: Any, _: Write) -> Iterable[Any] | None:
    """The dtype, shape and bytes of an array; None if its dtype has no name."""
    name = None if value.dtype.metadata else dtype_text(value.dtype)
    return None if name is None else [name, list(value.shape), _base64(value.tobytes())]


def read_array(dtype: str, shape: list[int], data: str) -> Any:
    """What `write_array` wrote."""
    return np.frombuffer(base64.b64decode(data), read_dtype(dtype)).reshape(shape)


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _read_frozen_array(_: Read, dtype: str, shape: list[int], data: str) -> Any:
    return freeze(read_array(dtype, shape, data))


def _read_frozen_mapping(read: Read, *items: Any) -> Any:
    return FrozenMapping(dict(read_pairs(read, items)))


def _write_complex(value: complex, _: Write) -> Iterable[Any]:
    return [value.real.hex(), value.imag.hex()]


def _read_complex(_: Read, real: str, imag: str) -> Any:
    return complex(float.fromhex(real), float.fromhex(imag))


def _write_items(value: Iterable[Any], write: Write) -> Iterable[Any]:
    return map(write, value)


def _read_tuple(read: Read, *items: Any) -> Any:
    return tuple(map(read, items))


def _read_frozenset(read: Read, *items: Any) -> Any:
    return frozenset(read_keys(read, items))


def _parts_given_to(make: Callable[..., Any]) -> Callable[..., Any]:
    def read_parts(read: Read, *parts: Any) -> Any:
        return make(*map(read, parts))

    return read_parts


def _write_bounds(value: Any, write: Write) -> Iterable[Any]:
    return [write(value.start), write(value.stop), write(value.step)]


def _write_fraction(value: fractions.Fraction, _: Write) -> Iterable[Any] | None:
    parts = [value.numerator, value.denominator]
    return None if _can_share_hashes(*parts) else parts


def _read_fraction(_: Read, numerator: int, denominator: int) -> Any:
    if _can_share_hashes(numerator, denominator):
        raise ValueError("a fraction of such long numbers is not written")
    return fractions.Fraction(numerator, denominator)


def _can_share_hashes(*parts: int) -> bool:
    """Whether ints are so long that others have their hashes.

    Python keeps the hashes of fractions in a dict by numerator and denominator, which takes quadratic time then.
    """
    return any(part.bit_length() > 60 for part in parts)


def _write_time(value: Any, write: Write) -> Iterable[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, write(value.tzinfo)]


def _read_time(read: Read, text: str, fold: int, zone: Any) -> Any:
    return dt.time.fromisoformat(text).replace(fold=fold, tzinfo=read(zone))


def _read_moment(read: Read, text: str, fold: int, zone: Any) -> Any:
    return dt.datetime.fromisoformat(text).replace(fold=fold, tzinfo=read(zone))


def _write_delta(value: dt.timedelta, _: Write) -> Iterable[Any]:
    return [value.days, value.seconds, value.microseconds]


def _write_zone(value: dt.timezone, write: Write) -> Iterable[Any]:
    offset, name = value.utcoffset(None), value.tzname(None)
    return [write(offset), None if name == dt.timezone(offset).tzname(None) else name]


def _read_zone(read: Read, offset: Any, name: Any) -> Any:
    return dt.timezone(read(offset)) if name is None else dt.timezone(read(offset), read(name))


def _write_place(value: zoneinfo.ZoneInfo, _: Write) -> Iterable[Any] | None:
    key: Any = value.key  # None, where it was read from a file
    return None if key is None else [key]


def _write_uuid(value: uuid.UUID, _: Write) -> Iterable[Any] | None:
    return [value.hex] if value.is_safe is uuid.SafeUUID.unknown else None


def _write_pattern(value: re.Pattern[Any], write: Write) -> Iterable[Any] | None:
    return (
        None if value.flags & re.DEBUG or len(value.pattern) > _LONGEST_PATTERN else [write(value.pattern), value.flags]
    )


def _read_pattern(read: Read, pattern: Any, flags: int) -> Any:
    source = read(pattern)
    if len(source) > _LONGEST_PATTERN or flags & re.DEBUG:
        raise ValueError("such a regular expression is not written")
    return re.compile(source, flags)


def _write_spec(value: Any, write: Write) -> Iterable[Any] | None:
    if value.unreduced or value.reduced:
        return None
    spec = untyped_jax.sharding.PartitionSpec
    return [[_UNCONSTRAINED] if axes is spec.UNCONSTRAINED else write(axes) for axes in value]


def _axes(part: Any) -> Iterable[Any]:
    return () if part == [_UNCONSTRAINED] else (part,)


def _read_spec(read: Read, *parts: Any) -> Any:
    spec = untyped_jax.sharding.PartitionSpec
    return spec(*(spec.UNCONSTRAINED if part == [_UNCONSTRAINED] else read(part) for part in parts))


def _write_mesh(value: Any, write: Write) -> Iterable[Any]:
    return [[*map(write, value.axis_names)], [*value.axis_sizes], [kind.name for kind in value.axis_types]]


def _mesh_parts(read: Read, names: Any, lengths: Any, kinds: Any) -> Any:
    kinds = tuple(jax.sharding.AxisType[read(kind)] for kind in kinds)
    return tuple(lengths), tuple(map(read, names)), kinds


def _read_mesh(read: Read, *parts: Any) -> Any:
    lengths, names, kinds = _mesh_parts(read, *parts)
    return untyped_jax.make_mesh(lengths, names, axis_types=kinds)


def _read_abstract_mesh(read: Read, *parts: Any) -> Any:
    lengths, names, kinds = _mesh_parts(read, *parts)
    return untyped_jax.sharding.AbstractMesh(lengths, names, axis_types=kinds)


def _write_sharding(value: Any, write: Write) -> Iterable[Any] | None:
    plain = untyped_jax.sharding.NamedSharding(value.mesh, value.spec, memory_kind=value.memory_kind)
    return [write(value.mesh), write(value.spec), value.memory_kind] if plain == value else None


def _read_sharding(read: Read, mesh: Any, spec: Any, memory: Any) -> Any:
    return untyped_jax.sharding.NamedSharding(read(mesh), read(spec), memory_kind=read(memory))


def _by_text(cls: type[Any], kind: str, write: Callable[[Any], str], read: Callable[[str], Any] | None = None) -> Exact:
    """A class whose values are one string."""

    def parts(value: Any, _: Write) -> Iterable[Any]:
        return [write(value)]

    def from_parts(_: Read, part: str) -> Any:
        return (read or cls)(part)

    return Exact(cls, kind, StaticForm((text,)), parts, from_parts)


EXACT: tuple[Exact, ...] = (
    _by_text(float, "float", repr),
    _by_text(bytes, "bytes", _base64, base64.b64decode),
    Exact(complex, "complex", StaticForm((text, text)), _write_complex, _read_complex),
    Exact(tuple, "tuple", StaticForm((), static), _write_items, _read_tuple),
    Exact(frozenset, "frozenset", StaticForm((), static), _write_items, _read_frozenset),
    Exact(FrozenArray, "FrozenArray", StaticForm((text, sizes, text)), write_array, _read_frozen_array),
    Exact(FrozenMapping, "FrozenMapping", StaticForm((), pair), write_pairs, _read_frozen_mapping),
    Exact(slice, "slice", StaticForm((static, static, static)), _write_bounds, _parts_given_to(slice)),
    Exact(range, "range", StaticForm((static, static, static)), _write_bounds, _parts_given_to(range)),
    _by_text(decimal.Decimal, "Decimal", str),
    Exact(fractions.Fraction, "Fraction", StaticForm((number, number)), _write_fraction, _read_fraction),
    _by_text(dt.date, "date", dt.date.isoformat, dt.date.fromisoformat),
    Exact(dt.time, "time", StaticForm((text, number, static)), _write_time, _read_time),
    Exact(dt.datetime, "datetime", StaticForm((text, number, static)), _write_time, _read_moment),
    Exact(dt.timedelta, "timedelta", StaticForm((number, number, number)), _write_delta, _parts_given_to(dt.timedelta)),
    Exact(dt.timezone, "timezone", StaticForm((static, static)), _write_zone, _read_zone),
    Exact(zoneinfo.ZoneInfo, "ZoneInfo", StaticForm((text,)), _write_place, _parts_given_to(zoneinfo.ZoneInfo)),
    Exact(uuid.UUID, "UUID", StaticForm((text,)), _write_uuid, _parts_given_to(uuid.UUID)),
    Exact(re.Pattern, "Pattern", StaticForm((static, number)), _write_pattern, _read_pattern),
    *(_by_text(cls, cls.__name__, str) for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath)),
    *(_by_text(cls, cls.__name__, str) for cls in (pathlib.PosixPath, pathlib.WindowsPath)),
    Exact(jax.sharding.PartitionSpec, "PartitionSpec", StaticForm((), _axes), _write_spec, _read_spec),
    Exact(jax.sharding.Mesh, "Mesh", StaticForm((listed, sizes, listed)), _write_mesh, _read_mesh),
    Exact(
        jax.sharding.AbstractMesh, "AbstractMesh", StaticForm((listed, sizes, listed)), _write_mesh, _read_abstract_mesh
    ),
    Exact(
        jax.sharding.NamedSharding,
        "NamedSharding",
        StaticForm((static, static, static)),
        _write_sharding,
        _read_sharding,
    ),
)
