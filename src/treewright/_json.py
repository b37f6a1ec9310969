"""Static values as JSON: exact forms that can be read back, and descriptions with digests of what can't.

A form is a plain scalar, or a list of the name of a kind and its parts, each of which is a form:
`["tuple", 1, ["complex", 0.5, 2.0]]`. The kinds are those of the one table in `treewright._core.kinds`. A class is
written by its name, `module:qualname`. Equal values have equal forms, whatever the order of a set.
"""

import datetime as dt
import decimal
import enum
import fractions
import functools
import hashlib
import importlib
import json
import math
import pathlib
import re
import types
import uuid
import zoneinfo
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from treewright._core import functions as inspected
from treewright._core.fields import spec_of
from treewright._core.freeze import FrozenMapping, frozen_array
from treewright._core.functions import found_at, import_path, innermost, is_cached_property, state_of
from treewright._core.instance import flat_form, from_flat_form
from treewright._core.jax_private import is_key_dtype
from treewright._core.kinds import (
    DATACLASS,
    ENUM,
    NAMEDTUPLE,
    Kind,
    fields_of,
    is_frozen_dataclass,
    is_namedtuple,
    kind_of,
    with_fields,
)
from treewright._core.text import cut_text, shape_text, text
from treewright.errors import StaticSerializationError

Form = Any  # str, int, float, bool, None, or a list of a kind's name and its parts
Find = Callable[[str], Any]
_PLAIN = frozenset({str, int, bool, float, types.NoneType})
_LARGEST_INT = 2**2000  # Python reads and writes no more digits for sure
_KEPT = 2000  # characters of a description
_LONGEST_PATTERN = 10_000  # characters of a regular expression that is made of its parts
_LONGEST_FRACTION = 60  # bits of its numerator and denominator: hashes of longer ones can be forged
_sharding: Any = jax.sharding
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")


# Kinds besides those of the table: nodes, and what only other libraries hold beside their leaves


def _node_parts(node: Any) -> tuple[Any, ...]:
    children, statics = flat_form(node)
    return (type(node), tuple(zip(statics.names, statics.values, strict=True)), *children)


def _make_node(cls: Any, statics: tuple[tuple[str, Any], ...], *children: Any) -> Any:
    if not hasattr(cls, "__node_spec__"):
        raise ValueError(f"{type(cls).__name__} is not a node")
    spec, values = spec_of(cls), dict(statics)
    names = [field.name for field in spec.statics]
    if {*values} != {*names} or len(children) != len(spec.children):
        raise ValueError(f"{cls.__qualname__} has other fields now")
    return from_flat_form(cls, (children, spec.table.intern(tuple(values[name] for name in names))))


# What makes a value of its parts. They may come from a forged file


def _make_dtype(name: str) -> Any:
    """The dtype of this name."""
    if not re.fullmatch(r"[<>|=]?\w+(\[\w+\])?", name):  # numpy's own reader takes whole structures
        raise ValueError(f"{name!r} is not a dtype of a static array")
    return np.dtype(name)


def _make_fraction(numerator: int, denominator: int) -> fractions.Fraction:
    if max(numerator.bit_length(), denominator.bit_length()) > _LONGEST_FRACTION:
        raise ValueError("a fraction of such long numbers")
    return fractions.Fraction(numerator, denominator)


def _make_clock(cls: Any) -> Callable[..., Any]:
    return lambda text, fold, zone: cls.fromisoformat(text).replace(fold=fold, tzinfo=zone)


def _make_pattern(pattern: Any, flags: int) -> re.Pattern[Any]:
    if len(pattern) > _LONGEST_PATTERN or flags & re.DEBUG:
        raise ValueError("such a regular expression")
    return re.compile(pattern, flags)


def _make_uuid(digits: str, is_safe: str) -> uuid.UUID:
    return uuid.UUID(digits, is_safe=uuid.SafeUUID[is_safe])


def _make_partial(function: Any, args: tuple[Any, ...], keywords: tuple[Any, ...]) -> functools.partial[Any]:
    return functools.partial(function, *args, **dict(keywords))


def _make_mesh(make: Any) -> Callable[..., Any]:
    return lambda sizes, names, kinds: make(sizes, names, tuple(_sharding.AxisType[kind] for kind in kinds))


def _make_spec(axes: tuple[Any, ...], unreduced: Any, reduced: Any) -> Any:
    given = {name: value for name, value in (("unreduced", unreduced), ("reduced", reduced)) if value}
    return _sharding.PartitionSpec(*axes, **given)


def _make_dataclass(cls: Any, *fields: tuple[str, Any]) -> Any:
    """Past its constructor, which would run code of whoever forged a file."""
    _expect(cls, "a frozen dataclass", isinstance(cls, type) and is_frozen_dataclass(cls))
    _expect(cls, f"of the fields {', '.join(name for name, _ in fields)}", {*fields_of(cls)} == {n for n, _ in fields})
    return with_fields(cls, dict(fields))


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


NODE = Kind("node", _node_parts)
_OF_OTHERS: types.MappingProxyType[type[Any], Kind] = types.MappingProxyType(
    {list: Kind("list", list), dict: Kind("dict", dict.items), set: Kind("set", set, is_ordered=False)}
)
_OF_CLASS = frozenset({kind.name for kind in (ENUM, NAMEDTUPLE, DATACLASS, NODE)})  # whose first part is a class
# How the parts of a kind become a value again; what is not here is opaque.
_MAKERS: types.MappingProxyType[str, Callable[..., Any]] = types.MappingProxyType(
    {
        **{cls.__name__: cls for cls in (float, complex, str, slice, range, decimal.Decimal, dt.timedelta)},
        **{cls.__name__: cls for cls in (dt.timezone, zoneinfo.ZoneInfo, jax.tree_util.DictKey)},
        **{cls.__name__: cls for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath, type(pathlib.Path()))},
        "int": lambda digits: int(digits, 16),
        "bytes": bytes.fromhex,
        "tuple": lambda *items: items,
        "frozenset": lambda *items: frozenset(items),
        "list": lambda *items: list(items),
        "dict": lambda *items: dict(items),
        "set": lambda *items: set(items),
        "partial": _make_partial,
        "Fraction": _make_fraction,
        "date": dt.date.fromisoformat,
        "time": _make_clock(dt.time),
        "datetime": _make_clock(dt.datetime),
        "UUID": _make_uuid,
        "Pattern": _make_pattern,
        "dtype": _make_dtype,
        "scalar": _make_scalar,
        "enum": _make_member,
        "namedtuple": _make_namedtuple,
        "dataclass": _make_dataclass,
        "node": _make_node,
        "FrozenArray": frozen_array,
        "FrozenMapping": lambda *items: FrozenMapping(dict(items)),
        "UNCONSTRAINED": lambda: _sharding.PartitionSpec.UNCONSTRAINED,
        "PartitionSpec": _make_spec,
        "Mesh": _make_mesh(jax.make_mesh),
        "AbstractMesh": _make_mesh(_sharding.AbstractMesh),
        "NamedSharding": lambda mesh, spec, memory: _sharding.NamedSharding(mesh, spec, memory_kind=memory),
    }
)


# Writing


def encode(value: Any, *, describe: bool = False) -> Form:
    """The form of a static value.

    Args:
        value: The value.
        describe: Whether to describe what has no exact form: `["described", text, digest]`.

    Raises:
        StaticSerializationError: If a part has no exact form, unless it is described.
    """
    return _Encoder(described if describe else _refuse).encode(value)


def described(value: Any) -> Form:
    """`["described", text, digest]`: a bounded text for messages, and a digest of all that the value holds.

    Two values have one digest if they are made of the same code and hold the same values: arrays, captured variables
    and attributes included, in any process.
    """
    form = _Describer().encode(value)
    return ["described", cut_text(shown(form), _KEPT), _digest(json.dumps(form).encode(), 64)]


def portable_text(value: Any) -> str:
    """The whole description as text, which is the same in another process for a value that does the same."""
    return shown(_Describer().encode(value))


def modules_in(value: Any) -> set[str]:
    """The modules of the functions and classes in a value."""
    describer = _Describer()
    describer.encode(value)
    return describer.modules


def _refuse(value: Any) -> Form:
    raise StaticSerializationError(
        f"{value!r} can't be named in an exported program: it is not an importable function, class, enum, "
        f"simple dtype, number, string, tuple, frozen dataclass or node. Define it at the top level of a module."
    )


class _Encoder:
    """One walk through a value; `opaque` gives the form of what has no exact one."""

    def __init__(self, opaque: Callable[[Any], Form]) -> None:
        self.opaque = opaque

    def encode(self, value: Any) -> Form:
        cls = type(value)
        is_plain = math.isfinite(value) if cls is float else cls is not int or abs(value) < _LARGEST_INT
        if cls in _PLAIN and is_plain:
            return value
        kind = NODE if hasattr(cls, "__node_spec__") else kind_of(cls) or _OF_OTHERS.get(cls)
        parts = None if kind is None or kind.name not in _MAKERS or _holds_more(kind, value) else kind.parts(value)
        if kind is not None and parts is not None:
            return self.of_kind(kind, value, parts)
        return self.name(value) or self.opaque(value)

    def of_kind(self, kind: Kind, value: Any, parts: Iterable[Any]) -> Form:
        if kind.name in _OF_CLASS:
            name = self.name(type(value))
            if name is None:
                return self.opaque(value)
            return [kind.name, name[1], *map(self.encode, self.parts_of_node(value) if kind is NODE else [*parts][1:])]
        if not kind.is_ordered:
            return [kind.name, *sorted(map(self.alone().encode, parts), key=json.dumps)]
        return [kind.name, *map(self.encode, parts)]

    def parts_of_node(self, node: Any) -> Iterable[Any]:
        """Its statics, with their fields in the error for one that has no form, and its children."""
        _, statics, *children = _node_parts(node)
        for name, value in statics:
            try:
                self.encode(value)
            except StaticSerializationError as error:
                raise StaticSerializationError(f"{type(node).__qualname__}.{name}: {error}") from error
        return (statics, *children)

    def alone(self) -> "_Encoder":
        return self

    def name(self, value: Any) -> Form | None:
        """`["name", "module:qualname"]`, if that leads back to this very object."""
        path = import_path(value)
        return None if path is None else ["name", ":".join(path)]


def _holds_more(kind: Kind, value: Any) -> bool:
    """Whether a value has attributes that its parts leave out."""
    if kind not in {NAMEDTUPLE, DATACLASS} and type(value) is not functools.partial:
        return False
    fields = fields_of(value) if kind is DATACLASS else ()
    return any(name not in fields and not is_cached_property(type(value), name) for name in state_of(value))


class _Describer(_Encoder):
    """Opens whatever has no exact form: code by a digest, arrays by one, objects by their attributes.

    What occurs again, the same or equal, is written as the digest of its form.
    """

    def __init__(self) -> None:
        super().__init__(self.opened)
        self.modules: set[str] = set()
        self._inside: list[int] = []
        self._known: dict[int, tuple[Any, str, Form]] = {}  # by id; the value is kept, and so its id
        self._written: set[str] = set()

    def alone(self) -> "_Describer":
        """One that does not depend on what was written before."""
        other = _Describer()
        other.modules, other._inside = self.modules, self._inside
        return other

    def parts_of_node(self, node: Any) -> Iterable[Any]:
        """Without fields that are local to a process."""
        local = {field.name for field in spec_of(node).statics if field.local}
        _, statics, *children = _node_parts(node)
        return (tuple(pair for pair in statics if pair[0] not in local), *children)

    def name(self, value: Any) -> Form | None:
        path = import_path(value) if callable(value) or isinstance(value, type) else None
        if path is None:
            return None
        self.modules.add(path[0])
        user = isinstance(value, types.FunctionType) and not inspected.library_made(value)
        return ["name", ":".join(path), *([self.code(value.__code__)] if user else [])]

    def opened(self, value: Any) -> Form:
        """The form of a value by all that it holds."""
        if id(value) in self._inside:
            return ["within", len(self._inside) - self._inside.index(id(value))]
        if id(value) not in self._known:
            self._inside.append(id(value))
            form = self.parts(value)
            self._inside.pop()
            self._known[id(value)] = value, _digest(json.dumps(form).encode()), form
        _, digest, form = self._known[id(value)]
        if digest in self._written:
            return ["same", digest]
        self._written.add(digest)
        return form

    def parts(self, value: Any) -> Form:
        cls = type(value)
        if isinstance(value, np.ndarray | jax.Array):
            return ["array", shape_text(value.dtype, value.shape), _array_digest(value)]
        if isinstance(value, types.FunctionType):
            held = inspected.captured(value) | inspected.defaults(value) | inspected.globals_read(value) | vars(value)
            return ["function", self.full_name(value), self.code(value.__code__), *self.pairs(held)]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type):
            return ["class", self.full_name(value), self.code_of_class(value)]
        if hasattr(value, "__func__") and hasattr(value, "__self__"):
            return ["method", self.encode(value.__func__), self.encode(value.__self__)]
        wrapped = getattr(value, "__wrapped__", None)
        if callable(value) and wrapped is not None:
            options = _ADDRESS.sub("", repr(inspected.jit_options(value)))
            return ["wrapped", self.full_name(cls), options, self.encode(wrapped), *self.pairs(_own(value))]
        if isinstance(value, Mapping):
            return ["mapping", self.full_name(cls), *self.pairs(dict(value)), *self.pairs(_own(value))]
        if isinstance(value, tuple | list | set | frozenset):
            items = [self.encode(item) for item in value]
            ordered = sorted(items, key=json.dumps) if isinstance(value, set | frozenset) else items
            return ["items", self.full_name(cls), *ordered, *self.pairs(_own(value))]
        return self.object(value)

    def object(self, value: Any) -> Form:
        cls, own = type(value), _own(value)
        name = self.full_name(cls)
        if own and not inspected.of_python(cls):
            return ["object", name, self.code_of_class(cls), *self.pairs(own)]
        try:
            plain: Any = object
            shown_value = "" if cls.__repr__ is plain.__repr__ else _ADDRESS.sub("", repr(value))
        except Exception:  # noqa: BLE001  a user's `__repr__`; the class alone must do
            shown_value = "..."
        return ["object", name, self.code_of_class(cls), shown_value]

    def pairs(self, named: Mapping[Any, Any]) -> list[Form]:
        return [["tuple", self.encode(name), self.encode(value)] for name, value in named.items()]

    def full_name(self, value: Any) -> str:
        module = str(getattr(value, "__module__", None))
        self.modules.add(module)
        return f"{module}:{getattr(value, '__qualname__', None)}"

    def code(self, code: types.CodeType) -> str:
        """A digest of what code does, which is the same in each process and wherever its file lies."""
        constants = [
            self.code(one) if isinstance(one, types.CodeType) else self.alone().encode(one) for one in code.co_consts
        ]
        parts = [code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants]
        return _digest(json.dumps(parts).encode())

    def code_of_class(self, cls: type[Any]) -> str:
        """A digest of the functions that the user wrote into a class."""
        codes = [
            (name, self.code(innermost(function).__code__))
            for base in cls.__mro__
            if not inspected.library_class(base) and not inspected.of_python(base)
            for name, value in list(vars(base).items())
            for function in (value.fget if isinstance(value, property) else value,)
            if hasattr(innermost(function), "__code__") and not _is_generated(innermost(function))
        ]
        return _digest(json.dumps(sorted(codes)).encode()) if codes else ""


def _is_generated(function: types.FunctionType) -> bool:
    """Whether `dataclasses`, `NamedTuple` or Treewright wrote it for a class of the user's."""
    written = function.__code__.co_qualname.startswith("__create_fn__.")
    return written or function.__code__.co_filename.startswith("<treewright: ") or inspected.library_made(function)


def _own(value: Any) -> dict[str, Any]:
    """The attributes of an object by name, without what it only keeps."""
    cls = type(value)
    left_out = {"__wrapped__", "__doc__", "__annotations__", "__type_params__", "_fun", "_jit_info"}
    state = {name: part for name, part in state_of(value).items() if not is_cached_property(cls, name)}
    return {name: state[name] for name in sorted(state, key=str) if name not in left_out}


def _array_digest(value: Any) -> str:
    """Empty for an array of which this process has only a part, or whose values are gone or yet to come."""
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):  # pyright: ignore[reportAttributeAccessIssue]
        return ""
    if getattr(value, "is_deleted", bool)():
        return "deleted"
    data = np.asarray(jax.random.key_data(value) if is_key_dtype(value.dtype) else value)
    return _digest(repr(data.tolist()).encode() if data.dtype == object else data.tobytes())


def _digest(data: bytes, length: int = 12) -> str:
    return hashlib.sha256(data).hexdigest()[:length]


# Reading


def decode(form: Form, modules: Iterable[str | types.ModuleType] | None = None, *, find: Find | None = None) -> Any:
    """The value of a form. Runs no code of the classes that it makes, and imports nothing but `modules`.

    Args:
        form: As `encode` gave it; it may come from a forged file.
        modules: The modules whose classes and functions a form may name; None for all that are imported.
        find: In place of modules, a function from a name to its class or function.

    Raises:
        StaticSerializationError: If the form can't be read, or names something elsewhere, or is a description.
    """
    return _decode(form, find or (_find_imported if modules is None else _finder(modules)))


def _decode(form: Form, find: Find) -> Any:
    if type(form) in _PLAIN:
        return form
    if type(form) is not list or not form or type(form[0]) is not str:
        raise StaticSerializationError(f"{cut_text(repr(form))} is not the form of a static value.")
    name, *parts = form
    if name == "described":
        raise StaticSerializationError(f"It was saved as a description only, {cut_text(str(parts[:1]))}.")
    if name != "name" and name not in _MAKERS:
        raise StaticSerializationError(
            f"{cut_text(repr(name))} is not a kind of static value that this version of Treewright knows."
        )
    try:
        if name == "name":
            return find(str(parts[0]))
        if name in _OF_CLASS:
            return _MAKERS[name](find(str(parts[0])), *[_decode(part, find) for part in parts[1:]])
        return _MAKERS[name](*[_decode(part, find) for part in parts])
    except (StaticSerializationError, RecursionError):
        raise
    except Exception as error:  # whoever forges a file finds them all
        place = f"{parts[0]}" if name in _OF_CLASS else f"[{name!r}, ...]"
        raise StaticSerializationError(f"{cut_text(place)} can't be read: {cut_text(str(error))}.") from error


def _find_imported(name: str) -> Any:
    module, _, qualname = name.partition(":")
    value = found_at(module, qualname)
    if value is None:
        raise StaticSerializationError(
            f"{name} was not found. The program needs it as a static value: import {module} before reading it."
        )
    return value


def _finder(modules: Iterable[str | types.ModuleType]) -> Find:
    names = {
        one.__name__ if isinstance(one, types.ModuleType) else importlib.import_module(one).__name__ for one in modules
    }

    def find(name: str) -> Any:
        module, _, qualname = name.partition(":")
        allowed = module == "builtins" or any(module == one or module.startswith(f"{one}.") for one in names)
        value = found_at(module, qualname) if allowed else None
        if value is None:
            listed = ", ".join(sorted(names)) or "none"
            raise StaticSerializationError(f"{name!r} is in none of the modules that may be used ({listed}).")
        return value

    return find


# For messages

_BRACKETS = types.MappingProxyType({"tuple": "()", "list": "[]", "set": "{}"})
_CONTAINERS = frozenset({*_BRACKETS, "frozenset", "partial", "dict", "FrozenMapping", *_OF_CLASS})


def shown(form: Form) -> str:
    """A form as a person would write the value."""
    if type(form) is not list or not form:
        return repr(form)
    kind, *parts = form
    if kind == "described":
        return str(parts[0])
    if kind in {"name", "function", "class", "module", "array"}:
        name = str(parts[0]).replace(":", ".").removeprefix("builtins.")
        digest = f"#{parts[1]}" if len(parts) > 1 and parts[1] else ""
        return f"{name}{digest}{_arguments(parts[2:]) if kind == 'function' else ''}"
    if kind in {"object", "items", "mapping", "wrapped"} or kind in _OF_CLASS:
        name, *rest = parts
        shown_parts = _arguments([part for part in rest if part != ""])
        return f"{str(name).replace(':', '.').removeprefix('builtins.')}{shown_parts}"
    if kind in _BRACKETS:
        texts = ", ".join(map(shown, parts))
        return f"{_BRACKETS[kind][0]}{texts}{',' if kind == 'tuple' and len(parts) == 1 else ''}{_BRACKETS[kind][1]}"
    if kind in _MAKERS and kind not in _CONTAINERS:
        try:
            return text(_decode(form, _find_imported))
        except StaticSerializationError:
            pass
    return f"{kind}{_arguments(parts)}"


def _arguments(parts: list[Form]) -> str:
    return f"({', '.join(map(_argument, parts))})"


def _argument(part: Form) -> str:
    """`name=value` for a pair."""
    is_pair = type(part) is list and len(part) == 3 and part[0] == "tuple" and type(part[1]) is str
    return f"{part[1]}={shown(part[2])}" if is_pair else shown(part)


__all__ = ["Form", "StaticSerializationError", "decode", "described", "encode", "modules_in", "portable_text", "shown"]
