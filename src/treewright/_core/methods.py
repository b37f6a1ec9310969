"""Methods of every node, such as `==`, `copy` and `tree_flatten`."""

import copy as copying
import functools
from collections.abc import Callable, Iterable
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import jax_trees, numbers_of
from treewright._base.text import is_node_class, node_repr
from treewright._core.copies import replace_fields
from treewright._core.info import FLAT_FORM_NAME, info_of
from treewright._core.instance import delete_attribute, flat_form, from_flat_form, is_node, set_attribute
from treewright._core.keys import compared_by_itself, exact_key
from treewright._core.rules import instances as rules
from treewright._core.rules.statics import NoExactKeyError, pickle_of_other_fields
from treewright._core.statics import Statics
from treewright.errors import TracedComparisonError

_new: Any = object.__new__
_store = object.__setattr__


def tree_unflatten(cls: type[Any], aux_data: object, children: Iterable[Any]) -> Any:
    """Rebuild a node from the second result of tree_flatten and any children, without a constructor or check."""
    values, names = tuple(children), info_of(cls).table.children
    if not isinstance(aux_data, Statics) or aux_data.table is not info_of(cls).table:
        raise TypeError(rules.wrong_aux_data(cls, aux_data))
    if len(values) != len(names):
        raise ValueError(f"{cls.__qualname__} has {len(names)} children, {', '.join(names)}, got {len(values)}.")
    return from_flat_form(cls, (values, aux_data))


# Comparison


def equal(self: Any, other: object) -> Any:
    """Compare class, statics, and the structure, shape, dtype and value of the children; returns a plain bool.

    A nested node is compared with its own method. NaN equals itself. Children that are not arrays compare as exactly as
    statics: 1, True and 1.0 differ, and so do 0.0 and -0.0. Fields with compare=False are ignored. Comparing traced
    values raises a TracedComparisonError.
    """
    if type(other) is not type(self):
        return NotImplemented
    info, (children, statics), (others, other_statics) = info_of(self), flat_form(self), flat_form(other)
    if statics is not other_statics:
        pairs = zip(info.statics, statics.keys, other_statics.keys, strict=True)
        if any(field.compare and key != other_key for field, key, other_key in pairs):
            return False
    compared = [field for field in info.children if field.compare and children[field.index] is not others[field.index]]
    left, right = ([side[field.index] for field in compared] for side in (children, others))
    leaves, treedef = jax_trees.tree_flatten(left, is_leaf=_compares_itself)
    other_leaves, other_treedef = jax_trees.tree_flatten(right, is_leaf=_compares_itself)

    def place(index: int) -> str:
        (key, *path), _ = jax.tree_util.tree_flatten_with_path(left, is_leaf=_compares_itself)[0][index]
        return f"{info.cls.__qualname__}.{compared[key.idx].name}{jax.tree_util.keystr(tuple(path))}"

    # Compare the structures first, because that needs no values.
    return treedef == other_treedef and all(
        leaves_equal(leaf, other_leaf, functools.partial(place, index))
        for index, (leaf, other_leaf) in enumerate(zip(leaves, other_leaves, strict=True))
    )


def _compares_itself(value: Any) -> bool:
    """Whether a value is a node with a custom `==`, or with fields that `==` ignores."""
    cls: Any = type(value)
    return is_node_class(cls) and (cls.__eq__ is not equal or not all(field.compare for field in info_of(cls).fields))


def leaves_equal(left: Any, right: Any, place: Callable[[], str]) -> bool:
    """Whether two leaves are equal: nodes by their own `==`, arrays by shape, dtype and value, others as statics."""
    if left is right:
        return True
    if is_node(left) or is_node(right):  # a `Static` also equals its value, but not as a part of a tree
        return type(left) is type(right) and bool(left == right)
    if not any(isinstance(leaf, jax.Array | np.ndarray) for leaf in (left, right)):
        try:  # As exact as statics, because a hashable node can be a static argument of a jitted function.
            return bool(exact_key(left) == exact_key(right))
        except NoExactKeyError:
            return type(left) is type(right) and bool(np.all(left == right))  # == may return an array.
    both = all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (left, right))
    if not both or left.shape != right.shape or left.dtype != right.dtype:
        return False
    if any(isinstance(leaf, Tracer) for leaf in (left, right)):
        raise TracedComparisonError(rules.traced_comparison(place()))
    a, b = numbers_of(left), numbers_of(right)
    if a.dtype == object:
        return all(leaves_equal(x, y, place) for x, y in zip(a.flat, b.flat, strict=True))
    same: Any = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN
    return bool(np.all(same))


def hash_of(self: Any) -> int:
    """Hash a node by value, like a tuple of its fields; arrays can't be hashed."""
    _, statics = form = flat_form(self)
    fields = [field for field in info_of(self).fields if field.hash]
    keys = [statics.keys[field.index] if field.is_static else None for field in fields]
    try:
        return hash(tuple([_hashed_as(field.value_in(form), key) for field, key in zip(fields, keys, strict=True)]))
    except TypeError as error:  # a child's own error, or a user's `__hash__`
        raise TypeError(rules.unhashable_child(self)) from error


def _hashed_as(value: Any, key: Any = None) -> Any:
    """The object to hash for a value: its exact key, with which `==` agrees, or the value if that is equivalent."""
    if key is None:
        if is_node(value):
            return value
        if isinstance(value, tuple):
            return tuple([_hashed_as(part) for part in value])
        try:
            key = exact_key(value)
        except NoExactKeyError:
            return value
    return value if compared_by_itself(value, key) else key


# Copies and pickles


def copy(self: Any) -> Any:
    """A node with the same children and statics."""
    return from_flat_form(type(self), flat_form(self))


def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """A node with deep copies of the children; statics never change and are shared."""
    form = flat_form(self)
    node = memo[id(self)] = _new(type(self))
    _store(node, FLAT_FORM_NAME, copying.deepcopy(form, memo))
    return node


def reduce(self: Any) -> tuple[Any, ...]:
    """Pickle the flat form, so that unpickling runs no constructor."""
    children, statics = flat_form(self)
    # The pickle contains the function that fills the node, because an instance that is an attribute of its class is
    # restored before the class has its methods.
    state = (dict(zip(statics.table.children, children, strict=True)), statics)
    return (_new, (type(self),), state, None, None, set_state)


def set_state(self: Any, state: tuple[dict[str, Any], Statics]) -> None:
    """Fill a node that is restored from a pickle."""
    children, statics = state
    info: Any = getattr(type(self), "__node_info__", None)
    table = statics.table if info is None else info.table
    if info is not None and table.to_check:
        info.restore_class(info)  # cloudpickle restores methods as functions
    if statics.table is not table or {*children} != {*table.children}:
        written, names = (*children, *statics.table.names), (*table.children, *table.names)
        raise TypeError(pickle_of_other_fields(type(self), written, names))
    _store(self, FLAT_FORM_NAME, (tuple([children[name] for name in table.children]), statics))


def replace_method(self: Any, /, **changes: Any) -> Any:
    """Return a copy with some fields replaced, like the function treewright.replace."""
    return replace_fields(self, changes)


def pydantic_schema(cls: type[Any], _source: Any, _handler: Any) -> Any:
    """Let pydantic accept only instances: it would fill a node itself, without a constructor."""
    from pydantic_core import core_schema

    return core_schema.is_instance_schema(cls)


# The methods that every node class gets.
NODE_METHODS: MappingProxyType[str, Any] = MappingProxyType(
    {
        "__setattr__": set_attribute,
        "__delattr__": delete_attribute,
        "__eq__": equal,
        "__hash__": hash_of,
        "__repr__": node_repr,
        "tree_flatten": flat_form,
        "tree_unflatten": classmethod(tree_unflatten),
        "__copy__": copy,
        "__deepcopy__": deepcopy,
        "__reduce__": reduce,
        "__replace__": replace_method,  # for copy.replace
        "__get_pydantic_core_schema__": classmethod(pydantic_schema),
    }
)
for _name, _method in {**NODE_METHODS, "replace": replace_method}.items():
    _function: Any = getattr(_method, "__func__", _method)
    _function.__name__ = _name  # `help` prints it. `__qualname__` remains the name under which pickles find it.
    _function.__no_type_check__ = True  # `==` recognises our functions, so beartype must not wrap them.
