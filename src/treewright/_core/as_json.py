"""A static value as JSON and back: the one place for it. Exported programs and checkpoints write with it.

Reading runs no code of the classes that it makes: nodes are unflattened, tuples and dataclasses are filled past their
constructors.
"""

import dataclasses
import enum
import functools
import math
import types
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from treewright._core.functions import class_of, found_at, import_path, is_cached_property, state_of
from treewright._core.json_kinds import (
    EXACT,
    StaticForm,
    dtype_text,
    listed,
    named,
    number,
    pair,
    read_array,
    read_dtype,
    read_keys,
    read_pairs,
    shown,
    sizes,
    static,
    statics_in,
    text,
    write_array,
)
from treewright._core.statics import Statics, table_in
from treewright._core.text import cut_text
from treewright.errors import CheckpointError, StaticSerializationError

_PLAIN = (str, int, bool, type(None))
_WRITTEN_BITS = 2000  # of an int that is written in digits: Python reads and writes no more than 640 for sure


class StaticCodec:
    """Writes static values as JSON and reads them. Subclasses say how classes and functions are named and found."""

    def name_of(self, value: Any) -> str | None:
        """`module:qualname`, if it leads back to this very object."""
        path = import_path(value)
        return None if path is None else ":".join(path)

    def find(self, name: str) -> Any:
        """What has this name, in modules that are imported already."""
        module, _, qualname = name.partition(":")
        value = found_at(module, qualname)
        if value is None:
            raise StaticSerializationError(
                f"{name} was not found. The program needs it as a static value: import {module} before reading it."
            )
        return value

    def unnamed(self, value: Any) -> Any:
        """What is written for a value that has no other form."""
        raise StaticSerializationError(
            f"{value!r} can't be named in an exported program: it is not an importable function, class, enum, "
            f"simple dtype, number, string, tuple, frozen dataclass or node. Define it at the top level of a module."
        )

    # Writing

    def encode(self, value: Any) -> Any:
        """JSON for a value; anything but plain scalars is a list that begins with its kind."""
        kind = class_of(value)
        if kind in _PLAIN or (kind is float and math.isfinite(value)):
            return ["int", hex(value)] if kind is int and value.bit_length() > _WRITTEN_BITS else value
        if kind in _EXACT:
            parts = _EXACT[kind].write(value, self.encode)
            return self.unnamed(value) if parts is None else [_EXACT[kind].kind, *parts]
        for matches, write in _FAMILIES:
            if matches(kind):
                return self.unnamed(value) if _holds_more(kind, value) else write(self, value)
        name = self.name_of(value)
        return self.unnamed(value) if name is None else ["name", name]

    def encode_statics(self, statics: Statics) -> dict[str, Any]:
        """The statics of a node by name."""
        table = statics.table
        encoded: dict[str, Any] = {}
        for name, value in zip(table.names, statics.values, strict=True):
            try:
                encoded[name] = self.encode(value)
            except StaticSerializationError as error:
                raise StaticSerializationError(f"{table.owner.__qualname__}.{name}: {error}") from error
        return encoded

    def of_class(self, kind: str, value: Any, parts: Callable[[], Iterable[Any]]) -> Any:
        """A value of a named class."""
        name = self.name_of(class_of(value))
        return self.unnamed(value) if name is None else [kind, name, *parts()]

    # Reading

    def decode(self, encoded: Any) -> Any:
        """The value that `encode` wrote."""
        statics_in(encoded, FORMS)
        if class_of(encoded) is not list:
            return encoded
        kind, *parts = encoded
        try:
            if kind in _READERS:
                return _READERS[kind](self, *parts)
            return _EXACT_READERS[kind](self.decode, *parts)
        except (StaticSerializationError, CheckpointError):
            raise
        except Exception as error:  # whoever forges a file finds them all
            raise StaticSerializationError(f"{shown(encoded)} can't be read: {cut_text(repr(error))}") from error

    def decode_statics(
        self, cls: type[Any], encoded: Mapping[str, Any], given: Mapping[str, Any] = MappingProxyType({})
    ) -> Statics:
        """The statics of `cls` from what `encode_statics` wrote, with values that are given for some of them."""
        table = table_in(cls)
        names = () if table is None else table.names  # None: another library has the class now
        if table is None or set(encoded) != set(names):
            raise StaticSerializationError(
                f"The exported program has the static fields {', '.join(encoded) or 'none'} of {cls.__qualname__}, "
                f"which now has {', '.join(names) or 'none'}. Export it again with this version of the class."
            )
        values = (given[name] if name in given else self.decode(encoded[name]) for name in table.names)
        return table.intern(tuple(values))

    def find_class(self, name: str, kind: str, base: type[Any], attribute: str = "__node_spec__") -> Any:
        """The class of this name, if it is `kind`, `a node` say: a forged program must not call anything else."""
        cls = self.find(name)
        if not (isinstance(cls, type) and issubclass(cls, base) and hasattr(cls, attribute)):
            raise StaticSerializationError(
                f"{name} is not {kind}, as the program has it. It was changed, or {name} was."
            )
        return cls

    def decode_keys(self, encoded: Iterable[Any]) -> list[Any]:
        """The values that `encode` wrote, which are to be the keys of a dict or the elements of a set."""
        return read_keys(self.decode, encoded)

    def read_int(self, digits: str) -> Any:
        return int(digits, 16)

    def read_dtype(self, name: str) -> Any:
        return read_dtype(name)

    def read_scalar(self, dtype: str, shape: list[int], data: str) -> Any:
        return read_array(dtype, shape, data)[()]

    def read_list(self, *items: Any) -> Any:
        return list(map(self.decode, items))

    def read_dict(self, *items: Any) -> Any:
        return dict(read_pairs(self.decode, items))

    def read_name(self, name: str) -> Any:
        return self.find(name)

    def read_enum(self, name: str, member: str) -> Any:
        return self.find_class(name, "an enum", enum.Enum, "__members__").__members__[member]

    def read_flag(self, name: str, value: int) -> Any:
        return self.find_class(name, "a flag", enum.Flag, "__members__")(int(value))

    def read_partial(self, function: Any, arguments: list[Any], keywords: dict[str, Any]) -> Any:
        called = self.decode(function)
        if not callable(called):
            raise StaticSerializationError(f"{function!r} is not a function, as the program has it. It was changed.")
        named = {name: self.decode(item) for name, item in keywords.items()}
        return functools.partial(called, *map(self.decode, arguments), **named)

    def read_namedtuple(self, name: str, *items: Any) -> Any:
        cls = self.find_class(name, "a named tuple", tuple, "_fields")
        return cast("Any", tuple).__new__(cls, map(self.decode, items))

    def read_node(self, name: str, statics: dict[str, Any], *children: Any) -> Any:
        cls = self.find_class(name, "a node", object)
        return cls.tree_unflatten(self.decode_statics(cls, statics), map(self.decode, children))

    def read_dataclass(self, name: str, fields: dict[str, Any]) -> Any:
        cls = self.find_class(name, "a frozen dataclass", object, "__dataclass_params__")
        declared = {field.name for field in dataclasses.fields(cls)}
        if hasattr(cls, "__node_spec__") or not _is_frozen_dataclass(cls) or declared != set(fields):
            raise StaticSerializationError(f"{name} is not a frozen dataclass with the fields {', '.join(fields)}.")
        made = object.__new__(cls)
        for field, value in fields.items():
            object.__setattr__(made, field, self.decode(value))
        return made

    def read_described(self, description: str) -> Any:
        raise StaticSerializationError(f"it was saved as a description only, {description[:80]}: load(path, like=...).")


def is_namedtuple(kind: Any) -> bool:
    """Whether a class was made by `NamedTuple` or `namedtuple`."""
    return issubclass(kind, tuple) and hasattr(cast("Any", kind), "_fields")


def _holds_more(kind: type[Any], value: Any) -> bool:
    """Whether a value has attributes that its form would lose, so that another value came back."""
    if issubclass(kind, np.generic) or hasattr(kind, "__node_spec__") or issubclass(kind, enum.Enum):
        return False
    if issubclass(kind, np.dtype):
        return bool(value.metadata)
    fields = [field.name for field in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else ()
    return any(name not in fields and not is_cached_property(kind, name) for name in state_of(value))


def _is_frozen_dataclass(kind: type[Any]) -> bool:
    parameters: Any = vars(kind).get("__dataclass_params__")
    return parameters is not None and parameters.frozen and parameters.eq


def _write_dtype(codec: StaticCodec, value: Any) -> Any:
    name = dtype_text(value)
    return codec.unnamed(value) if name is None else ["dtype", name]


def _write_scalar(codec: StaticCodec, value: Any) -> Any:
    parts = write_array(np.asarray(value), codec.encode)
    return codec.unnamed(value) if parts is None else ["scalar", *parts]


def _write_partial(codec: StaticCodec, value: functools.partial[Any]) -> Any:
    keywords = {str(name): codec.encode(item) for name, item in value.keywords.items()}
    return ["partial", codec.encode(value.func), list(map(codec.encode, value.args)), keywords]


def _write_node(codec: StaticCodec, value: Any) -> Any:
    children, statics = value.tree_flatten()
    return codec.of_class("node", value, lambda: [codec.encode_statics(statics), *map(codec.encode, children)])


def _write_dataclass(codec: StaticCodec, value: Any) -> Any:
    names = [field.name for field in dataclasses.fields(value)]
    return codec.of_class("dataclass", value, lambda: [{name: codec.encode(getattr(value, name)) for name in names}])


# Kinds that are known by a property of the class, and how each is written. The first that fits is taken.
_FAMILIES: tuple[tuple[Callable[[type[Any]], bool], Callable[[StaticCodec, Any], Any]], ...] = (
    (
        lambda kind: issubclass(kind, enum.Flag),
        lambda codec, value: codec.of_class("flag", value, lambda: [value.value]),
    ),
    (
        lambda kind: issubclass(kind, enum.Enum),
        lambda codec, value: codec.of_class("enum", value, lambda: [value.name]),
    ),
    (lambda kind: issubclass(kind, np.dtype), _write_dtype),
    (lambda kind: issubclass(kind, np.generic), _write_scalar),
    (lambda kind: kind is functools.partial, _write_partial),
    (is_namedtuple, lambda codec, value: codec.of_class("namedtuple", value, lambda: map(codec.encode, value))),
    (lambda kind: hasattr(kind, "__node_spec__"), _write_node),
    (_is_frozen_dataclass, _write_dataclass),
)

# What they and the kinds without a class of their own consist of, and how they are read.
_OWN: tuple[tuple[str, StaticForm, Callable[..., Any]], ...] = (
    ("int", StaticForm((text,)), StaticCodec.read_int),
    ("dtype", StaticForm((text,)), StaticCodec.read_dtype),
    ("scalar", StaticForm((text, sizes, text)), StaticCodec.read_scalar),
    ("list", StaticForm((), static), StaticCodec.read_list),
    ("dict", StaticForm((), pair), StaticCodec.read_dict),
    ("enum", StaticForm((text, text)), StaticCodec.read_enum),
    ("flag", StaticForm((text, number)), StaticCodec.read_flag),
    ("partial", StaticForm((static, listed, named)), StaticCodec.read_partial),
    ("namedtuple", StaticForm((text,), static), StaticCodec.read_namedtuple),
    ("node", StaticForm((text, named), static), StaticCodec.read_node),
    ("dataclass", StaticForm((text, named)), StaticCodec.read_dataclass),
    ("name", StaticForm((text,)), StaticCodec.read_name),
    ("described", StaticForm((text,)), StaticCodec.read_described),
)
_EXACT = types.MappingProxyType({exact.cls: exact for exact in EXACT})
_EXACT_READERS = types.MappingProxyType({exact.kind: exact.read for exact in EXACT})
_READERS = types.MappingProxyType({kind: read for kind, _, read in _OWN})

# What every kind consists of.
FORMS: types.MappingProxyType[str, StaticForm] = types.MappingProxyType(
    {kind: form for kind, form, _ in _OWN} | {exact.kind: exact.form for exact in EXACT}
)
