"""What to keep of a value for later: it does not change, and keeps no array and no object alive."""

import enum
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Never, cast

import jax
import numpy as np

from treewright._core import functions as reach
from treewright._core.freeze import FrozenArray
from treewright._core.functions import class_of
from treewright._core.jax_private import DictKey, Path, SequenceKey
from treewright._core.keys import ThisObject
from treewright._core.plain import MUTABLE
from treewright._core.text import short_text

_ATTRIBUTES = 20  # attributes of an object that are remembered
_LEVELS, _PARTS = 4, 100  # of containers that are told from others that hold the same
_SINGLE = (types.NoneType, types.EllipsisType, types.NotImplementedType)
_AS_THEY_ARE = (*_SINGLE, type, enum.Enum, np.dtype, np.generic, types.ModuleType, types.BuiltinFunctionType)
_ARRAYS: Any = (jax.Array, np.ndarray)
_OBJECT: Any = object
_TUPLE: Any = tuple
_NOTHING: Mapping[Any, Any] = types.MappingProxyType({})


class Facts(NamedTuple):
    """What tells why two values differ: of a live value as it is now, of a remembered one as it was then."""

    kind: type[Any]
    attributes: Mapping[str, str] = _NOTHING  # the texts of what stands in its `__dict__`, by name
    method_of: Any = None  # of a method its function
    wrapped: Any = None  # what `jit` or another wrapper made this callable of
    # Of a Python function: its code, what it captured and its defaults, the globals that it reads and that can change,
    # and of what it holds and reads, the identities of the lists, dicts and sets by name and the way inside.
    code: types.CodeType | None = None
    held: Mapping[str, Any] = _NOTHING
    read: Mapping[str, Any] = _NOTHING
    containers: Mapping[Path, int] = _NOTHING


def facts_of(value: Any) -> Facts:
    if isinstance(value, Remembered):
        return value.facts
    if class_of(value) in reach.CONSTANTS:  # half the time of comparing two calls (benchmarks/retrace.py)
        return Facts(class_of(value))
    is_function = isinstance(value, types.FunctionType)
    held, read = (reach.held_by(value), reach.read_by(value)) if is_function else ({}, {})
    return Facts(
        kind=class_of(value),
        code=reach.code_of(value),
        held=held,
        read=read,
        containers=_containers(held | read),
        method_of=getattr(value, "__func__", None),
        wrapped=reach.wrapped_by(value),
        attributes=_attributes_of(value),
    )


def _attributes_of(value: Any) -> dict[str, str]:
    first = itertools.islice(getattr(value, "__dict__", _NOTHING).items(), _ATTRIBUTES)
    return {name: short_text(item) for name, item in first}


def _containers(named: Mapping[str, Any]) -> dict[Path, int]:
    """The identities of the lists, dicts and sets in these values: the same object may hold something else later."""
    found: dict[Path, int] = {}
    waiting: list[tuple[Path, Any]] = [((name,), value) for name, value in named.items()]
    while waiting:
        path, value = waiting.pop()
        if issubclass(class_of(value), MUTABLE):
            found[path] = id(value)
        parts: Iterable[tuple[Any, Any]] = ()
        if isinstance(value, dict) and len(path) < _LEVELS:
            parts = ((DictKey(name), part) for name, part in cast("Any", value).items())
        elif isinstance(value, list | tuple) and len(path) < _LEVELS:
            parts = ((SequenceKey(index), part) for index, part in enumerate(cast("Any", value)))
        waiting.extend(((*path, key), part) for key, part in itertools.islice(parts, _PARTS))
    return found


class Remembered:
    """What is kept of a value that compares by identity: enough to say what it was, and not the value itself.

    Two are equal when they are of one object that is still alive. `known` are facts that need the values inside.
    """

    __slots__ = ("facts", "owner", "text")

    def __init__(self, value: Any, **known: Any) -> None:
        owner: Any = value.__self__ if isinstance(value, types.MethodType) else value
        self.text: str = short_text(value)
        method_of = getattr(value, "__func__", None)
        self.facts: Facts = Facts(class_of(value), _attributes_of(value), method_of, **known)
        self.owner: ThisObject = ThisObject(owner)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remembered) or self.facts.method_of is not other.facts.method_of:
            return False
        return self.owner == other.owner

    def __hash__(self) -> int:
        return hash(self.owner)

    def __call__(self) -> Never:
        """Only there because `functools.partial` takes nothing but callables."""
        raise TypeError(f"{self.text} is only remembered, and can't be called")

    def __repr__(self) -> str:
        return self.text


def remembered(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """What to keep of a static value that is a part of those `inside`, by id.

    Plain values are kept as they are, containers are copied, and what compares by identity is replaced by a
    `Remembered`.
    """
    kind = class_of(value)
    if issubclass(kind, _AS_THEY_ARE):
        return value
    if id(value) in inside:  # a recursive function captures itself
        return Remembered(value)

    def inner(part: Any) -> Any:
        return remembered(part, inside | {id(value)})

    if kind in _COPIES:
        return _COPIES[kind](value, inner)
    if _TUPLE in kind.__mro__ and hasattr(kind, "_fields"):
        return _TUPLE.__new__(kind, map(inner, value))  # past a __new__ of the user's
    if kind is types.FunctionType:
        known = remembered_function(value, inner)
        return known if known.facts.held or known.facts.read else value
    is_array = isinstance(value, _ARRAYS) and not isinstance(value, FrozenArray)
    if is_array or kind is types.MethodType or kind.__eq__ is _OBJECT.__eq__:
        return Remembered(value, wrapped=inner(reach.wrapped_by(value)))
    return value


_Inner = Callable[[Any], Any]


def remembered_function(function: types.FunctionType, inner: _Inner = remembered) -> Remembered:
    """What to keep of a function: its code, what it holds, and what it reads."""
    holds, reads = reach.held_by(function), reach.read_by(function)
    held = {name: inner(part) for name, part in holds.items()}
    # Functions among the globals by identity: what they read in turn may be half a program.
    read = {
        name: Remembered(part, code=reach.code_of(part)) if isinstance(part, types.FunctionType) else inner(part)
        for name, part in reads.items()
    }
    containers = _containers(holds | reads)
    return Remembered(function, code=reach.code_of(function), held=held, read=read, containers=containers)


def _copied(make: Callable[[Any], Any]) -> Callable[[Any, _Inner], Any]:
    return lambda value, inner: make(map(inner, value))


_COPIES: types.MappingProxyType[type[Any], Callable[[Any, _Inner], Any]] = types.MappingProxyType(
    {
        list: _copied(list),
        tuple: _copied(tuple),
        set: _copied(set),
        frozenset: _copied(frozenset),
        dict: lambda value, inner: {key: inner(part) for key, part in value.items()},
        bytearray: lambda value, _: bytearray(value),
        functools.partial: lambda value, inner: functools.partial(
            inner(value.func), *map(inner, value.args), **{name: inner(part) for name, part in value.keywords.items()}
        ),
    }
)
