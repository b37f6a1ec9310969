"""Warn about child fields that hold settings instead of arrays, where a node is made and where JAX needs a value.

The first nodes of each class are looked at, by value, whatever its annotations say. A class that has passed is fine:
to look at every node would make one with eight children by a fifth slower (benchmarks: against.py, construct).
"""

import collections.abc
import dataclasses
import enum
import types
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.converters import annotation_text
from treewright._core.fields import MISSING
from treewright._core.jax_private import is_tree_node
from treewright._core.text import function_text, short_text, text_with_class
from treewright.errors import ChildWarning, NodeInitError, warn_user

NODES_TO_SEE = 64
_SETTINGS = (str, bytes, enum.Enum, type, np.dtype)
# What gives items and is not a tree, such as `map` and `dict.values()`: to JAX each is one leaf, and not an array.
_ITERABLES = (collections.abc.Iterator, collections.abc.Set, collections.abc.MappingView, range)
_COMMON = frozenset({tuple, list, dict, types.NoneType, np.ndarray, bool, int, float, complex})
_LAYERS = frozenset({("equinox", "Module"), ("flax", "Module")})  # flax.linen's and flax.nnx's
_NUMBERS = frozenset({bool, int, "bool", "int"})


def check_children(node: Any) -> None:
    """Warn of the children of a new node that JAX takes for no leaf; those declared with `field()` are meant.

    Raises:
        NodeInitError: If a child is a method of the node itself.
    """
    spec, children = node.__node_spec__, object.__getattribute__(node, "_node")[0]
    if spec.unseen:
        spec.unseen.pop()
    for field in spec.children:
        value = children[field.index]
        if type(value) is list and field.name in spec.plain_children:
            _warn_of_list(node, field)
        if type(value) in _COMMON or isinstance(value, jax.Array):
            continue
        if getattr(value, "__self__", None) is node:
            raise contains_itself(node, field.name)
        if field.name in spec.plain_children and _is_no_leaf(value):
            _warn(node, field, value)


def contains_itself(node: Any, name: str) -> NodeInitError:
    """The error for a node in one of its own fields."""
    return NodeInitError(
        f"{type(node).__qualname__}.{name} was given the node itself, or one of its methods, so the node would contain "
        f"itself without end. Look it up where it is used instead."
    )


def _is_layer(kind: type[Any]) -> bool:
    """Whether a class is a module of equinox, flax linen or flax nnx."""
    return any((base.__module__.partition(".")[0], base.__name__) in _LAYERS for base in kind.__mro__)


def _is_no_leaf(value: Any) -> bool:
    """Whether jit would refuse a value, or a leaf of a layer of another library."""
    kind = type(value)
    if _is_layer(kind):
        return not is_tree_node(kind) or not all(
            hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex) for leaf in jax.tree.leaves(value)
        )
    if is_tree_node(kind) or hasattr(kind, "dtype") or hasattr(kind, "__jax_array__"):
        return False
    return isinstance(value, (*_SETTINGS, *_ITERABLES)) or callable(value) or dataclasses.is_dataclass(kind)


def _warn_of_list(node: Any, field: Any) -> None:
    cls = type(node)
    annotation = annotation_text(field.type, cls)
    if annotation.startswith("tuple["):
        warn_user(
            f"{cls.__qualname__}.{field.name} is annotated with {annotation} and was given a list: to JAX another "
            f"tree, so jit traces again, and the nodes are not equal.\n"
            f"Make a tuple of it where it is given: {field.name} = tuple(...).",
            ChildWarning,
        )


def _warn(node: Any, field: Any, value: Any) -> None:
    cls, kind, function = type(node), type(value), function_text(value)
    shown = text_with_class(value) if function is None else f"the function {function}"
    option = "" if field.default is MISSING else f"default={function_text(field.default) or short_text(field.default)}"
    decorate = f"\nIf it holds arrays, decorate {kind.__qualname__} with @pytree_dataclass."
    cure = (
        f"If it is a setting, make it static:\n  {field.name}: {annotation_text(field.type, cls)} = static({option})"
        f"{decorate if dataclasses.is_dataclass(kind) else ''}\n"
        f"If it is to be a leaf all the same, declare it with field()."
    )
    if isinstance(value, _ITERABLES):
        cure = f"Make a tuple of it where it is given: {field.name} = tuple(...)."
    elif _is_layer(kind):
        cure = (
            f"Adopt the layer where it is given, with its arrays as children and its settings as statics:\n"
            f"  {field.name} = treewright.adopt(...)"
        )
    warn_user(
        f"{cls.__qualname__}.{field.name} is a child and holds {shown}. jit, grad and vmap take arrays and "
        f"numbers as leaves, and would refuse it.\n{cure}",
        ChildWarning,
    )


def note_settings(error: TypeError, node: Any) -> None:
    """Add to JAX's error, where a method of the node needs the value of a tracer: which child may be meant as static.

    JAX proposes `static_argnums`, which would take the whole node for static.
    """
    said = str(error)
    if not (isinstance(error, _NEEDS_VALUE) or "concrete value" in said):
        return
    children = node._node[0]
    for field in node.__node_spec__.children:
        is_traced = field.type in _NUMBERS and isinstance(children[field.index], Tracer)
        if is_traced and (_BLAMED not in said or f".{field.name}" in said):
            cls = type(node).__qualname__
            note = (
                f"{cls}.{field.name} is a child, so it is traced and has no value here. If it is a setting, make it "
                f"static:\n  {field.name}: {annotation_text(field.type, type(node))} = static()"
            )
            if note not in getattr(error, "__notes__", ()):
                error.add_note(note)


_NEEDS_VALUE = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
_BLAMED = "depends on the value of the argument"
