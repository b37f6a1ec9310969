"""Values and trees for a history: nothing in them changes later, and they keep no array and no object alive."""

import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from treewright._nodes.statics import Statics
from treewright._trees.level import LeafType, Level, opened
from treewright._trees.why import Remembered, captured_by, read_by, same_exactly, same_to_jit, wrapped_by
from treewright._values.classes import class_of
from treewright._values.freeze import FrozenArray

_DEPTH = 200  # levels of a tree that are remembered one by one; Python's own stack ends at a few hundred
_SINGLE = (types.NoneType, types.EllipsisType, types.NotImplementedType)
_AS_THEY_ARE = (*_SINGLE, type, enum.Enum, np.dtype, np.generic, types.ModuleType, types.BuiltinFunctionType)
_OBJECT: Any = object
_TUPLE: Any = tuple


def remembered(value: Any, inside: frozenset[int] = frozenset()) -> Any:
    """What to keep of a static value.

    Plain values are kept as they are, containers are copied, and what compares by identity is replaced by a
    `Remembered`, which is equal to another one of the same living object.
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
        captured = {name: inner(part) for name, part in captured_by(value).items()}
        # Functions among the globals by identity: what they read in turn may be half a program.
        read = {
            name: Remembered(part, captured={}) if isinstance(part, types.FunctionType) else inner(part)
            for name, part in read_by(value).items()
        }
        return Remembered(value, captured=captured, read=read) if captured or read else value
    if _is_array(value) or kind is types.MethodType or kind.__eq__ is _OBJECT.__eq__:
        return Remembered(value, wrapped=inner(wrapped_by(value)))
    return value


def _is_array(value: object) -> bool:
    return isinstance(value, jax.Array | np.ndarray) and not isinstance(value, FrozenArray)


_Inner = Callable[[Any], Any]


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


# Trees


def remembered_tree(
    tree: Any, like: Any = None, *, leaf: Callable[[Any, LeafType], LeafType] = lambda _, kept: kept, depth: int = 0
) -> Level | LeafType:
    """A tree of levels and leaf types in place of a live tree. What is as it was in `like` is shared with it.

    Args:
        tree: Any tree.
        like: An earlier result, most of which may be the same.
        leaf: Gives what to keep of a leaf, from the leaf and what is kept without it.
        depth: How deep in the whole tree this one hangs.
    """
    level = opened(tree)
    if isinstance(level, LeafType):
        kept = leaf(tree, level if level.value is None else dataclasses.replace(level, value=remembered(level.value)))
        return like if isinstance(like, LeafType) and _same_leaf(kept, like) else kept
    if depth == _DEPTH:
        return LeafType(None, class_of(tree), jax.tree.structure(tree))
    old = like if isinstance(like, Level) and like.kind is level.kind else None
    known = {} if old is None else dict(old.children)
    children = tuple(
        (key, remembered_tree(child, known.get(key), leaf=leaf, depth=depth + 1)) for key, child in level.children
    )
    # A weak reference: equal to another one of the same living object, and 10 times cheaper than a Remembered.
    aux = weakref.ref(level.aux) if isinstance(level.aux, Statics) else remembered(level.aux)
    unchanged = len(children) == len(known) and all(child is known.get(key) for key, child in children)
    if old is not None and unchanged and same_to_jit(old.aux, aux):
        return old
    statics = tuple((key, remembered(value)) for key, value in level.statics)
    return Level(level.kind, aux, statics, children, level.content)


def _same_leaf(leaf: LeafType, other: LeafType) -> bool:
    return (
        (leaf.aval is other.aval or leaf.aval == other.aval)
        and leaf.python is other.python
        and leaf.placement == other.placement
        and (leaf.value is other.value or same_exactly(leaf.value, other.value))
    )
