"""Snapshots of static values: what they were when a function was traced, without keeping arrays or objects alive."""

import dataclasses
import enum
import functools
import itertools
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from treewright._core import FrozenArray, captured, defaults, globals_read, parts_of, state_of
from treewright._core.jax_private import options_of
from treewright._core.text import short_text
from treewright._trees.diff import ABSENT, same_exactly, same_to_jit
from treewright.retrace.jax_private import inside_of_boundary, is_of_a_library

_DEPTH = 8  # levels of a value that are looked into
_PARTS = 100  # of one value
_MOST = 400  # parts of one value in all; of those beyond only the text is kept
_PLAIN = (types.NoneType, types.EllipsisType, types.NotImplementedType, bool, int, float, complex, str, bytes)
_KEPT = (*_PLAIN, type, enum.Enum, np.dtype, np.generic, types.ModuleType, types.BuiltinFunctionType, FrozenArray)
_CONTAINERS = (list, tuple, dict, set, frozenset, bytearray)
_CHANGEABLE = (list, dict, set, bytearray)
_ABOUT_FUNCTIONS = ("__name__", "__qualname__", "__module__", "__doc__")
_NOT_OPTIONS = frozenset({"fun_sourceinfo", "fun_signature"})


def place_of(code: types.CodeType) -> str:
    """`train.py:12`, where code is defined."""
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


class Part(NamedTuple):
    """The key of something that belongs to a callable or an object and is no item of a container."""

    role: Literal["captured", "global", "attribute", "function", "argument", "option", "object"]
    name: str

    def __str__(self) -> str:
        return self.name


class Snapshot:
    """What is kept of a value that is not plain: its class, its text, and its parts, which are snapshots again.

    Attributes:
        kind: The class of the value.
        parts: By `jax` keys those of a container, by `Part` what a callable or an object holds.
        compared: How `jit` compares such values: by their parts, as objects, or by an `==` of their own.
        value: The value itself, where it has an `==` of its own.
        place: Of a Python function, its code, and where that is: `train.py:12`.
    """

    __slots__ = ("_id", "_object", "code", "compared", "kind", "parts", "place", "text", "value")

    def __init__(self, value: Any, parts: Mapping[Any, Any]) -> None:
        owner = value.__self__ if isinstance(value, types.MethodType) else value
        self.kind: type[Any] = type(value)
        self.text: str = short_text(value)
        self.parts: Mapping[Any, Any] = parts
        self.compared: Literal["parts", "object", "value"] = _compared(value)
        self.value: Any = value if self.compared == "value" else None
        inner = inside_of_boundary(value)
        self.code: types.CodeType | None = inner.__code__ if isinstance(inner, types.FunctionType) else None
        self.place: str = "" if self.code is None else place_of(self.code)
        self._id: int = id(owner)
        self._object: Any = None
        if not isinstance(owner, _CONTAINERS):
            try:
                self._object = weakref.ref(owner)
            except TypeError:
                self._object = None

    @property
    def is_alive(self) -> bool:
        """Whether the value is known to live, so that its parts do too."""
        return self._object is not None and self._object() is not None

    def is_object_of(self, other: "Snapshot") -> bool:
        """Whether both are of one object. Lists, dicts and the like are told by a number that others may have later."""
        if self._object is not None and other._object is not None:
            owner = self._object()
            return owner is not None and owner is other._object()
        return self._object is other._object and self._id == other._id

    @property
    def is_changeable(self) -> bool:
        """Whether it is a container that changes in place."""
        return issubclass(self.kind, _CHANGEABLE)

    def __repr__(self) -> str:
        return self.text


def _compared(value: Any) -> Literal["parts", "object", "value"]:
    kind: Any = type(value)
    if kind in _CONTAINERS or (isinstance(value, tuple) and kind.__eq__ is tuple.__eq__):
        return "parts"
    if kind.__eq__ is object.__eq__ or isinstance(value, (jax.Array, np.ndarray, types.MethodType)):
        return "object"
    generated = getattr(kind.__eq__, "__qualname__", "").startswith("__create_fn__")
    return "parts" if generated and dataclasses.is_dataclass(kind) else "value"


# Taking


def snapshot(value: Any) -> Any:
    """The snapshot of a value; a plain one is its own."""
    return _Taking().of(value, ())


class _Taking:
    """One walk through a value and its parts."""

    def __init__(self) -> None:
        self.count = 0

    def of(self, value: Any, inside: tuple[int, ...]) -> Any:
        """What to keep of a value that is a part of those `inside`, by id: a recursive function captures itself."""
        if isinstance(value, _KEPT):
            return value
        self.count += 1
        if id(value) in inside or len(inside) >= _DEPTH or self.count > _MOST:
            return Snapshot(value, {})
        within = (*inside, id(value))
        parts = itertools.islice(_parts(value), _PARTS)
        return Snapshot(value, {key: self.of(part, self._shallow(key, part, within)) for key, part in parts})

    def _shallow(self, key: Any, part: Any, inside: tuple[int, ...]) -> tuple[int, ...]:
        """Of functions among the globals nothing inside is kept: what they read in turn may be half a program."""
        is_global = isinstance(key, Part) and key.role == "global" and isinstance(part, types.FunctionType)
        return inside * _DEPTH if is_global else inside


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, (jax.Array, np.ndarray)):
        return
    if isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, functools.partial):
        yield Part("function", "func"), value.func
        yield from ((Part("argument", f"argument {index}"), part) for index, part in enumerate(value.args))
        yield from ((Part("argument", name), part) for name, part in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield Part("function", "__func__"), value.__func__
        yield Part("object", "self"), value.__self__
    elif isinstance(value, (set, frozenset)):
        yield from ((Part("attribute", text), text) for text in sorted(map(short_text, value)))
    elif isinstance(value, bytearray):
        yield Part("attribute", "content"), bytes(value)
    elif getattr(value, "__wrapped__", None) is not None:
        yield from _parts_of_wrapper(value)
    else:
        attributes = ((Part("attribute", name), part) for name, part in state_of(value).items())
        yield from (parts_of(value) or dict(attributes)).items()


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[Any, Any]]:
    inner = inside_of_boundary(function)
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None and is_of_a_library(function):
        yield Part("function", "__wrapped__"), wrapped
        held = captured(inner)
        yield from ((Part("option", name), part) for name, part in held.items() if part is not wrapped)
        return
    held = captured(function) | defaults(function)
    yield from ((Part("captured", name), part) for name, part in held.items())
    yield from ((Part("global", name), part) for name, part in globals_read(function).items())
    yield from ((Part("attribute", name), getattr(function, name)) for name in _ABOUT_FUNCTIONS)
    yield from ((Part("attribute", name), part) for name, part in vars(function).items() if name != "__wrapped__")


def _parts_of_wrapper(value: Any) -> Iterator[tuple[Any, Any]]:
    """The function in it, and the options of `jit` or what else the wrapper has."""
    wrapped = value.__wrapped__
    yield Part("function", "__wrapped__"), wrapped
    options = options_of(value)
    named = state_of(value) if options is None else options
    others = ((name, part) for name, part in named.items() if part is not wrapped and name not in _NOT_OPTIONS)
    yield from ((Part("option", name), part) for name, part in others)


# Comparing


def same(left: Any, right: Any) -> bool:
    """Whether `jit` takes two values for one, which foreign classes have as statics."""
    if left is right:
        return True
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot):
        return same_to_jit(left, right)
    if left.compared == "value":
        return same_to_jit(left.value, right.value)
    if left.compared == "object":
        return left.is_object_of(right) and left.parts.keys() == right.parts.keys()
    return left.kind is right.kind and _same_parts(left, right, same)


def alike(left: Any, right: Any) -> bool:
    """Whether no difference between two values is seen, of those that exact statics tell apart."""
    if left is right:
        return True
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot):
        return type(left) is type(right) and same_exactly(left, right)
    if left.kind is not right.kind or left.code != right.code or left.place != right.place:
        return False
    if left.code is not None and left.is_object_of(right):
        return True
    if not left.parts and not right.parts:
        return left.is_object_of(right) or (left.compared != "object" and same(left, right))
    return _same_parts(left, right, alike)


def _same_parts(left: Snapshot, right: Snapshot, same: Callable[[Any, Any], bool]) -> bool:
    ours, theirs = left.parts, right.parts
    return ours.keys() == theirs.keys() and all(same(ours[key], theirs[key]) for key in ours)


class Change(NamedTuple):
    """A place inside of two values where they differ."""

    key: Any  # the outermost on the way
    name: str  # the whole way: `f.factor`, `config['rate']`
    old: Any
    new: Any
    in_place: bool = False

    def __str__(self) -> str:
        name = self.name.lstrip(".")
        where = f"{name} (changed in place)" if self.in_place else name
        return f"{where}: {change_text(self.old, self.new)}"


def change_text(old: Any, new: Any) -> str:
    """`1.0 -> 2.0`."""
    if old is ABSENT or new is ABSENT:
        return f"{short_text(new)} added" if old is ABSENT else f"{short_text(old)} removed"
    left, right = short_text(old), short_text(new)
    return f"another {left}" if left == right else f"{left} -> {right}"


def changes(left: Any, right: Any, *, alive: bool = False) -> list[Change]:
    """The innermost places where two values differ.

    What a list, dict or set holds may have been changed by the trace itself. Where such a container seems to be one
    object, that is only said to have changed if its owner lives: else its number may be that of another one.
    """
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.kind is not right.kind:
        return []
    alive = alive or left.is_alive
    found: list[Change] = []
    for key in dict.fromkeys((*left.parts, *right.parts)):
        old, new = left.parts.get(key, ABSENT), right.parts.get(key, ABSENT)
        if alike(old, new):
            continue
        one = isinstance(old, Snapshot) and isinstance(new, Snapshot) and old.is_object_of(new)
        if one and old.is_changeable and not alive:
            continue
        inner = changes(old, new, alive=alive)
        if not inner and one and old.is_changeable:
            continue
        for change in inner:
            name = f"{_name(key)}{'.' if isinstance(change.key, Part) else ''}{change.name}"
            found.append(Change(key, name, change.old, change.new, one or change.in_place))
        if not inner:
            found.append(Change(key, _name(key), old, new))
    return found


def _name(key: Any) -> str:
    return str(key).strip("_") if isinstance(key, Part) and key.role == "option" else str(key)
