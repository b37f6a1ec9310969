"""Children that are settings: said where a node is made with one that is not a leaf, or a method needs its value."""

import collections.abc
import dataclasses
import enum
import types
import typing
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.annotations import annotation_text
from treewright._core.functions import class_of
from treewright._core.jax_private import is_tree_node
from treewright._core.text import first_text, function_text, text_with_class
from treewright.errors import ChildWarning, warn_user

# Of nearly every value of these classes JAX says that it is not an array; a node or a method of one may be a Callable.
_SETTINGS: tuple[type[Any], ...] = (str, bytes, enum.Enum, type, np.dtype)
_CALLABLE: Any = collections.abc.Callable
_SEQUENCES = frozenset[Any](
    {tuple, list, collections.abc.Sequence, collections.abc.Collection, collections.abc.Iterable}
)
# What most such fields hold, and the quick answer.
_NEVER_WARNED = frozenset[Any]({tuple, list, dict, type(None), np.ndarray, bool, int, float, complex})
# What gives items and is not a tree, such as `map` and `dict.values()`: to JAX each is one leaf, and not an array.
_ITERABLES: Any = (collections.abc.Iterator, collections.abc.Set, collections.abc.MappingView, range)
_NUMBERS = frozenset({bool, int, "bool", "int"})


def may_be_no_leaf(annotation: Any) -> bool:
    """Whether what is annotated so, and no more, is likely to be something that `jit` takes for no leaf."""
    kind = annotation
    if not isinstance(kind, type):
        kind = typing.get_origin(annotation)
        if kind is typing.Literal:
            return True
        if kind in {typing.Annotated, typing.Final, typing.Union, types.UnionType}:
            return any(map(may_be_no_leaf, typing.get_args(annotation)))
    if not isinstance(kind, type) or hasattr(kind, "__node_spec__"):
        return False
    return kind is _CALLABLE or kind in _SEQUENCES or dataclasses.is_dataclass(kind) or issubclass(kind, _SETTINGS)


class SettingsWarning:
    """Looks at some children of each node that is made, among the checks of its class.

    A generated `__init__` calls it only for a value whose type is not in `passed`: a node with a tuple of children then
    costs a tenth more than one with an array, and not three times as much (benchmarks/trees.py: children).

    Attributes:
        fields: The children.
        passed: Types of values that are never warned of, and that live as long as the program anyway.
    """

    __slots__ = ("fields", "passed")

    def __init__(self, fields: tuple[Any, ...]) -> None:
        self.fields = fields
        self.passed: set[type[Any]] = set(_NEVER_WARNED)

    def __reduce__(self) -> tuple[Any, ...]:
        return (SettingsWarning, (self.fields,))

    def __call__(self, node: Any) -> None:
        children = object.__getattribute__(node, "_node")[0]
        for field in self.fields:
            value = children[field.index]
            kind = class_of(value)
            if kind in self.passed:
                continue
            if _is_no_leaf(value):
                _warn(node, field, value)
            elif isinstance(value, jax.Array) or is_tree_node(kind):
                self.passed.add(kind)


def _warn(node: Any, field: Any, value: Any) -> None:
    function = function_text(value)
    found = text_with_class(value) if function is None else f"the function {function}"
    warn_user(
        f"{class_of(node).__qualname__}.{field.name} is a child and holds {found}. jit, grad and vmap take arrays and "
        f"numbers as leaves, and would refuse it.\n{_cure(class_of(node), field, value)}",
        ChildWarning,
    )


def _cure(cls: type[Any], field: Any, value: Any) -> str:
    if isinstance(value, _ITERABLES):
        return f"Make a tuple of it where it is given: {field.name} = tuple(...)."
    default = field.default
    option = "" if default is dataclasses.MISSING else f"default={function_text(default) or first_text(default)}"
    kind = class_of(value)
    is_record = dataclasses.is_dataclass(kind)
    decorate = f"\nIf it holds arrays, decorate {kind.__qualname__} with @pytree_dataclass." if is_record else ""
    return (
        f"If it is a setting, make it static:\n  {field.name}: {annotation_text(field.type, cls)} = static({option})"
        f"{decorate}\nIf it is to be a leaf all the same, declare it with field()."
    )


def _is_no_leaf(value: Any) -> bool:
    if isinstance(value, _ITERABLES):
        return not is_tree_node(class_of(value))
    is_array = hasattr(class_of(value), "dtype") or hasattr(class_of(value), "__jax_array__")
    told = isinstance(value, _SETTINGS) or callable(value) or dataclasses.is_dataclass(class_of(value))
    return told and not is_array and jax.tree_util.all_leaves((value,))


def note_settings(error: TypeError, node: Any) -> None:
    """Add to what JAX says where a method of the node needs the value of a tracer: which child may be meant as static.

    JAX tells of `static_argnums`, which would take the whole node for static.
    """
    said = str(error)
    if not (isinstance(error, _NEEDS_VALUE) or "concrete value" in said):
        return
    children = node._node[0]
    for field in node.__node_spec__.children:
        is_traced = field.type in _NUMBERS and isinstance(children[field.index], Tracer)
        if is_traced and (_BLAMED not in said or f".{field.name}" in said):
            cls = class_of(node).__qualname__
            note = (
                f"{cls}.{field.name} is a child, so it is traced and has no value here. If it is a setting, make it "
                f"static:\n  {field.name}: {annotation_text(field.type, class_of(node))} = static()"
            )
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


_NEEDS_VALUE = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
_BLAMED = "depends on the value of the argument"
