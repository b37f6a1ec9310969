"""Methods of every node: `==`, `hash`, `copy`, `pickle`, and the public flatten pair."""

import copy as copying
import functools
from collections.abc import Callable, Hashable, Iterable
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.fields import FieldSpec, spec_of
from treewright._core.instance import (
    PAIR,
    Unfinished,
    delete_attribute,
    flat_form,
    from_flat_form,
    is_node,
    replace,
    set_attribute,
    stored,
)
from treewright._core.jax_private import Path, is_key_dtype, jax_trees, path_text
from treewright._core.keys import Keys, compared_by_itself, exact_key
from treewright._core.misfits import NoExactKeyError, problem_of
from treewright._core.statics import Statics, table_in
from treewright._core.text import array_text, node_repr, short_text
from treewright.errors import TracedComparisonError

_new: Any = object.__new__
_store = object.__setattr__


def tree_unflatten(cls: type[Any], aux_data: object, children: Iterable[Any]) -> Any:
    """A node from what `tree_flatten` gave, with any children in place of the old ones.

    Runs no constructor, converter or check, so sentinels, tracers and specs pass.

    Raises:
        TypeError: If `aux_data` does not come from a node of this class.
        ValueError: If the number of children is not that of the class.
    """
    values, names = tuple(children), spec_of(cls).table.children
    if not isinstance(aux_data, Statics) or aux_data.table is not spec_of(cls).table:
        raise TypeError(
            f"{cls.__qualname__}.tree_unflatten takes the aux_data of a {cls.__qualname__}, got "
            f"{short_text(aux_data)}. Take it from tree_flatten() of an instance."
        )
    if len(values) != len(names):
        raise ValueError(f"{cls.__qualname__} has {len(names)} children, {', '.join(names)}, got {len(values)}.")
    return from_flat_form(cls, (values, aux_data))


# Comparison


def equal(self: Any, other: object) -> Any:
    """A plain `bool`: same class, same statics, and children equal in structure, shape, dtype and value.

    A node inside is compared by its own `==`. NaN equals itself. Children that are not arrays compare as exactly as
    statics: `1`, `True` and `1.0` differ, and so do `0.0` and `-0.0`. Fields with `compare=False` are left out.

    Raises:
        TracedComparisonError: If the answer depends on a traced value.
    """
    if type(other) is not type(self):
        return NotImplemented
    spec, (children, statics), (others, other_statics) = spec_of(self), flat_form(self), flat_form(other)
    if statics is not other_statics:
        pairs = zip(spec.statics, statics.keys, other_statics.keys, strict=True)
        if any(field.equal and ours != theirs for field, ours, theirs in pairs):
            return False
    compared = [field for field in spec.children if field.equal and children[field.index] is not others[field.index]]
    left, right = ([side[field.index] for field in compared] for side in (children, others))
    leaves, treedef = jax_trees.tree_flatten(left, is_leaf=_compares_itself)
    other_leaves, other_treedef = jax_trees.tree_flatten(right, is_leaf=_compares_itself)

    def place(index: int) -> str:
        path, _ = jax_trees.tree_leaves_with_path(left, is_leaf=_compares_itself)[index]
        return _place_text(path, compared, spec.cls)

    # The structure before the first leaf: a difference there needs no values.
    return treedef == other_treedef and all(
        leaves_equal(ours, theirs, functools.partial(place, index))
        for index, (ours, theirs) in enumerate(zip(leaves, other_leaves, strict=True))
    )


def _compares_itself(value: Any) -> bool:
    """Whether a value is a node that is not compared by all of its children and statics, and so by its own `==`."""
    cls: Any = type(value)
    return hasattr(cls, "__node_spec__") and (
        cls.__eq__ is not equal or not all(field.equal for field in spec_of(cls).fields)
    )


def _place_text(path: Path, fields: list[FieldSpec], cls: type[Any]) -> str:
    """`Net.layers[0].kernel`, for a path that begins with the index of the field."""
    return f"{cls.__qualname__}.{fields[path[0].idx].name}{path_text(path[1:])}"


def leaves_equal(left: Any, right: Any, place: Callable[[], str]) -> bool:
    """Whether two leaves are equal: nodes by their own `==`, arrays by shape, dtype and value, others as statics."""
    if left is right:
        return True
    if is_node(left) or is_node(right):
        return bool(left == right)
    if not any(isinstance(leaf, jax.Array | np.ndarray) for leaf in (left, right)):
        try:  # as exactly as statics, since a node that can be hashed may be a static argument of a jitted function
            return bool(exact_key(left) == exact_key(right))
        except NoExactKeyError:
            return type(left) is type(right) and bool(np.all(left == right))  # which may be an array of answers
    both = all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (left, right))
    if not both or left.shape != right.shape or left.dtype != right.dtype:
        return False
    if any(isinstance(leaf, Tracer) for leaf in (left, right)):
        raise TracedComparisonError(
            f"{place()} is traced, so == has no value to compare and can't answer with a bool. Compare outside of jit, "
            f"or compare the arrays themselves with jnp.array_equal."
        )
    if is_key_dtype(left.dtype):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype == object:
        return all(leaves_equal(x, y, place) for x, y in zip(a.flat, b.flat, strict=True))
    same: Any = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN
    return bool(np.all(same))


def hash_of(self: Any) -> int:
    """By value, where all leaves can be hashed, as a tuple of the fields.

    Raises:
        TypeError: If a child holds an array, or anything else that can't be hashed.
    """
    children, statics = form = flat_form(self)
    fields = [field for field in spec_of(self).fields if field.hash]
    keys = [statics.keys[field.index] if field.is_static else None for field in fields]
    try:
        return hash(tuple([_hashed_as(field.value_in(form), key) for field, key in zip(fields, keys, strict=True)]))
    except TypeError as error:
        raise _unhashable(self, children, [field for field in fields if not field.is_static]) or error from None


def _hashed_as(value: Any, key: Any = None) -> Any:
    """What stands for a value in the hash: its exact key, by which `==` goes, or itself, where that is as good."""
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


def _unhashable(node: Any, children: tuple[Any, ...], fields: list[FieldSpec]) -> TypeError | None:
    """The error for the first leaf below these fields that has no hash, by its place."""
    cls, values = type(node), tuple([children[field.index] for field in fields])

    def is_whole(value: Any) -> bool:
        return _compares_itself(value) or isinstance(value, list | dict)

    for path, leaf in jax_trees.tree_leaves_with_path(values, is_leaf=is_whole):
        try:
            hash(_hashed_as(leaf))
        except TypeError:
            shown = array_text(leaf)
            method = " As the function to jit or checkpoint, give its method: jit(node.__call__)." * callable(node)
            return TypeError(
                f"unhashable type: {_place_text(path, fields, cls)} holds "
                f"{repr(type(leaf).__name__) if shown is None else f'an array, {shown}'}, so the {cls.__qualname__} "
                f"has no hash. As an argument of a jitted function it needs none; as a static or a dict key it does, "
                f"and then every child must be hashable.{method}"
            )
    return None


def exact_key_of(self: Any, keys: Keys) -> Hashable:
    """A node as a static of another: by class, statics and the exact keys of its children."""
    if isinstance(stored(self), Unfinished):
        raise problem_of(self)
    children, statics = flat_form(self)
    cls: Any = type(self)
    return (cls, keys.statics(statics), *map(keys.key, children))


# Copies and pickles


def copy(self: Any) -> Any:
    """A node with the same children and statics."""
    return from_flat_form(type(self), flat_form(self))


def deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    """A node with deep copies of the children; statics never change and are shared."""
    form = flat_form(self)
    node = memo[id(self)] = _new(type(self))
    _store(node, PAIR, copying.deepcopy(form, memo))
    return node


def reduce(self: Any) -> tuple[Any, ...]:
    """Pickle the flat form: no `__init__` runs when it comes back."""
    children, statics = flat_form(self)
    # The function that fills the node goes with the pickle: an instance that hangs on its own class comes back before
    # the class has its methods.
    state = (dict(zip(statics.table.children, children, strict=True)), statics)
    return (_new, (type(self),), state, None, None, set_state)


def set_state(self: Any, state: tuple[dict[str, Any], Statics]) -> None:
    """Fill a node that comes back from a pickle."""
    children, statics = state
    table = table_in(type(self))
    table = statics.table if table is None else table
    if statics.table is not table or {*children} != {*table.children}:
        raise TypeError(
            f"The pickle holds the fields {', '.join((*children, *statics.names)) or 'none'} of "
            f"{type(self).__qualname__}, which now has {', '.join((*table.children, *table.names)) or 'none'}. It was "
            f"written by another version of the class."
        )
    _store(self, PAIR, (tuple([children[name] for name in table.children]), statics))


# What a node class takes over, by name.
METHODS: MappingProxyType[str, Any] = MappingProxyType(
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
        "__replace__": replace,
        "_exact_key_": exact_key_of,
    }
)
