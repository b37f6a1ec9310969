"""Mistakes in the values of fields: children that jit, grad and vmap reject, markers, errors of converters."""

import collections.abc
import dataclasses
import enum
import itertools
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from treewright._base.functions import foreign_library, is_state_of_nnx
from treewright._base.jax_private import jax_trees
from treewright._base.text import function_text, text_with_class
from treewright._core.rules.declarations import declaration, declared_as

if TYPE_CHECKING:
    from treewright._core.info import FieldInfo

_NUMBERS = frozenset({int, float, complex})
_MAX_ITEMS = 32  # of a container, that are searched for layers
_SETTINGS = (str, bytes, enum.Enum, type, np.dtype)
# Iterables such as `map` and `dict.values()`, which JAX treats as leaves.
_ITERABLES = (collections.abc.Iterator, collections.abc.Set, collections.abc.MappingView, range)


def marker_as_value(cls: type[Any], field: "FieldInfo", value: Any) -> str | None:
    """`self.width = static()` would store the marker."""
    if not isinstance(value, dataclasses.Field):
        return None
    return (
        f"{cls.__qualname__}.{field.name} was assigned a field marker, such as static(), which would be its value. "
        f"Declare the field in the class body, and assign its value in __init__:\n"
        f"  {declaration(field.name, field.type, cls, 'static()')}"
    )


def call_for_field(error: BaseException, function: str, *arguments: Any) -> str:  # noqa: ARG001  a rule's form
    """The traceback of a converter or a default factory does not show for which field it ran."""
    values = "".join([f", called with {text_with_class(value)}" for value in arguments])
    return f"Raised by the {function}{values}."


def layer_of_other_library(cls: type[Any], field: "FieldInfo", value: Any) -> str | None:
    """A layer, wherever it sits, may have leaves that are not arrays, or state that jit would lose."""
    layer = next(filter(_needs_adopt, _layers_in(value)), None)
    if layer is None:
        return None
    has_state = any(map(is_state_of_nnx, jax.tree.leaves(layer, is_leaf=is_state_of_nnx)))
    problem, end = _LOST_STATE if has_state else _OTHER_LEAVES
    return (
        f"{cls.__qualname__}.{field.name} is a child but holds {text_with_class(layer)}, {problem}\nWrap the layer "
        f"with adopt, which makes its arrays children and its settings statics:\n"
        f"  {field.name} = treewright.adopt(...){end}"
    )


_LOST_STATE = (
    "whose state changes when it is called. A node is immutable, so under jit each change would be lost.",
    "\nThen layer.call_and_update(...) returns the layer with its new state.",
)
_OTHER_LEAVES = (
    "with leaves that are neither arrays nor numbers. jit, grad and vmap reject functions, and trace flags.",
    "",
)


def _layers_in(value: Any, depth: int = 3) -> list[Any]:
    """The layers of other libraries in a value, and in the first items of its containers."""
    if foreign_library(type(value)) is not None:
        return [value]
    if not isinstance(value, tuple | list | dict) or depth == 0:
        return []
    items = itertools.islice(dict.values(value) if isinstance(value, dict) else value, _MAX_ITEMS)
    return [layer for item in items for layer in _layers_in(item, depth - 1)]


def _needs_adopt(layer: Any) -> bool:
    """Whether a layer is a leaf, has one that is neither an array nor a number (a bool is a flag), or state of nnx."""
    leaves = jax.tree.leaves(layer, is_leaf=is_state_of_nnx)
    return any(
        leaf is layer or is_state_of_nnx(leaf) or not (hasattr(leaf, "dtype") or type(leaf) in _NUMBERS)
        for leaf in leaves
    )


def unlikely_leaf(cls: type[Any], field: "FieldInfo", value: Any) -> str | None:
    """A string, a function or a config is a leaf that jit, grad and vmap reject; a `map` or a set is one for JAX."""
    is_iterable, is_dataclass = isinstance(value, _ITERABLES), dataclasses.is_dataclass(type(value))
    if not (is_iterable or is_dataclass or isinstance(value, _SETTINGS) or callable(value)) or not _is_leaf(value):
        return None
    fix = f"If it is a setting, make it static:\n  {declared_as('static', field, cls)}\n"
    if is_dataclass:
        fix += f"If it contains arrays, decorate {type(value).__qualname__} with @pytree_dataclass.\n"
    keep, function = "To keep it as a leaf anyway, declare it with field().", function_text(value)
    return (
        f"{cls.__qualname__}.{field.name} is a child but holds "
        f"{text_with_class(value) if function is None else f'the function {function}'}. jit, grad and vmap accept only "
        f"arrays and numbers as leaves.\n{f'Pass a tuple: {field.name} = tuple(...).' if is_iterable else fix + keep}"
    )


CHILD = (layer_of_other_library, unlikely_leaf)  # the first text is the warning


def _is_leaf(value: Any) -> bool:
    """Whether a value is a leaf, but not an array or a layer."""
    cls = type(value)
    is_array = hasattr(cls, "dtype") or hasattr(cls, "__jax_array__")
    return not is_array and foreign_library(cls) is None and jax.tree_util.all_leaves([value])


def has_jax_arrays(value: Any) -> bool:
    """Whether a value has arrays of JAX among its leaves, or is a layer of flax.nnx, which keeps them in variables."""
    try:
        return foreign_library(type(value)) == "nnx" or any(
            isinstance(leaf, jax.Array) for leaf in jax_trees.tree_leaves(value)
        )
    except Exception:  # noqa: BLE001  a dict that JAX can't sort, or a user's flatten function
        return False
