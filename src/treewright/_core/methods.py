"""Methods of every node: `==`, `hash`, `copy`, `pickle`, representations, and the public flatten pair."""

import copy as copying
import time
from collections.abc import Hashable, Iterable, Iterator
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.fields import NodeSpec, spec_of
from treewright._core.instance import (
    PAIR,
    delete_attribute,
    flat_form,
    from_flat_form,
    is_node,
    is_open,
    replace,
    set_attribute,
)
from treewright._core.jax_private import is_key_dtype, jax_trees
from treewright._core.keys import Keys, NoExactKeyError, compared_by_itself, exact_key, problem_of
from treewright._core.statics import Statics, table_in
from treewright._core.text import (
    PATIENCE,
    Verbatim,
    array_text,
    in_html,
    node_repr,
    seen_array,
    short_text,
    shown_fields,
)
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
    spec = spec_of(cls)
    values = tuple(children)
    if not isinstance(aux_data, Statics) or aux_data.table is not spec.table:
        raise TypeError(
            f"{cls.__qualname__}.tree_unflatten takes the aux_data of a {cls.__qualname__}, got "
            f"{short_text(aux_data)}. Take it from tree_flatten() of an instance."
        )
    if len(values) != len(spec.children):
        names = ", ".join(field.name for field in spec.children) or "none"
        raise ValueError(
            f"{cls.__qualname__} has the children {names}, {len(spec.children)} in all, got {len(values)}."
        )
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
    # Not by recursion: nodes may be nested deeper than Python's stack.
    nodes: list[tuple[Any, Any]] = [(self, other)]
    leaves: list[tuple[Any, Any, str]] = []
    while nodes:
        left, right = nodes.pop()
        compare: Any = type(left).__eq__
        if type(left) is not type(right) or compare is not equal:
            if left is not right and left != right:
                return False
        elif left is not right and not _same_structure(left, right, nodes, leaves):
            return False
    # Every structure before the first leaf: a difference there needs no values.
    return all(leaves_equal(*leaf) for leaf in leaves)


def _same_structure(left: Any, right: Any, nodes: list[tuple[Any, Any]], leaves: list[tuple[Any, Any, str]]) -> bool:
    """Whether two nodes of one class agree but in what is right below them, which is added to nodes and leaves."""
    spec: NodeSpec = left.__node_spec__
    (children, statics), (others, other_statics) = flat_form(left), flat_form(right)
    if statics is not other_statics and not _equal_statics(spec, statics, other_statics):
        return False
    for field in spec.children:
        ours, theirs = children[field.index], others[field.index]
        if ours is theirs or not field.equal:
            continue
        place = f"{spec.cls.__qualname__}.{field.name}"
        if isinstance(ours, jax.Array):  # a third of the time of flattening it (benchmarks: against.py, ==)
            leaves.append((ours, theirs, place))
            continue
        parts, treedef = jax_trees.tree_flatten(ours, is_leaf=is_node)
        other_parts, other_treedef = jax_trees.tree_flatten(theirs, is_leaf=is_node)
        if treedef != other_treedef:
            return False
        for a, b in zip(parts, other_parts, strict=True):
            if is_node(a) or is_node(b):
                nodes.append((a, b))
            else:
                leaves.append((a, b, place))
    return True


def _equal_statics(spec: NodeSpec, statics: Statics, others: Statics) -> bool:
    """Whether two that are not one differ in nothing but fields with `compare=False`."""
    compared = [index for index, field in enumerate(spec.statics) if field.equal]
    return len(compared) < len(spec.statics) and all(statics.keys[index] == others.keys[index] for index in compared)


def leaves_equal(left: Any, right: Any, place: str) -> bool:
    """Whether two leaves are equal: nodes by their own `==`, arrays by shape, dtype and value, others as statics."""
    if left is right:
        return True
    if not any(isinstance(leaf, jax.Array | np.ndarray) for leaf in (left, right)):
        return _scalars_equal(left, right)
    both = all(isinstance(leaf, jax.Array | np.ndarray | np.generic) for leaf in (left, right))
    if not both or left.shape != right.shape or left.dtype != right.dtype:
        return False
    if any(isinstance(leaf, Tracer) for leaf in (left, right)):
        raise TracedComparisonError(
            f"{place} is traced, so == has no value to compare and can't answer with a bool. Compare outside of jit, "
            f"or compare the arrays themselves with jnp.array_equal."
        )
    if is_key_dtype(left.dtype):
        left, right = jax.random.key_data(left), jax.random.key_data(right)
    a, b = np.asarray(left), np.asarray(right)
    if a.dtype == object:
        return all(leaves_equal(x, y, place) for x, y in zip(a.flat, b.flat, strict=True))
    same: Any = (a == b) | ((a != a) & (b != b))  # noqa: PLR0124  NaN
    return bool(np.all(same))


def _scalars_equal(left: Any, right: Any) -> bool:
    """As exactly as statics, since a node that can be hashed may be a static argument of a jitted function."""
    try:
        return bool(exact_key(left) == exact_key(right))
    except NoExactKeyError:
        same: Any = type(left) is type(right) and left == right
    try:
        return bool(same)
    except ValueError:  # an array of answers
        return bool(np.all(same))


class _Hashed:
    """Wraps a precomputed hash: each value is hashed once, not once a level of nesting."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return self.value


def _hash_of_child(value: object) -> int:
    """The hash of a node is its own; of anything else that of its exact key, by which `==` goes."""
    if is_node(value):  # called past hash(), which C limits in depth
        own: Any = type(value).__hash__
        return hash(value) if own is None else int(own(value))
    if isinstance(value, tuple):
        return hash(tuple(_Hashed(_hash_of_child(item)) for item in value))
    try:
        return _hash_of_key(value, exact_key(value))
    except NoExactKeyError:
        return hash(value)


def _hash_of_key(value: object, key: Hashable) -> int:
    return hash(value) if compared_by_itself(value, key) else hash(key)


def hash_of(self: Any) -> int:
    """By value, where all leaves can be hashed, as a tuple of the fields.

    Raises:
        TypeError: If a child holds an array, or anything else that can't be hashed.
    """
    spec, (children, statics) = spec_of(self), flat_form(self)
    hashes: list[_Hashed] = []
    for field in spec.fields:
        if not field.hash:
            continue
        if field.is_static:
            hashes.append(_Hashed(_hash_of_key(statics.values[field.index], statics.keys[field.index])))
            continue
        value = children[field.index]
        try:
            hashes.append(_Hashed(_hash_of_child(value)))
        except TypeError as error:
            method = " As the function to jit or checkpoint, give its method: jit(node.__call__)." * callable(self)
            raise TypeError(
                f"unhashable type: {spec.cls.__qualname__}.{field.name} holds {_kind_text(value)}, so the node has no "
                f"hash. As an argument of a jitted function it needs none; as a static or a dict key it "
                f"does, and then every child must be hashable.{method}"
            ) from error
    return hash(tuple(hashes))


def _kind_text(value: object) -> str:
    shown = array_text(value)
    return repr(type(value).__name__) if shown is None else f"an array, {shown}"


def exact_key_of(self: Any, keys: Keys) -> Hashable:
    """A node as a static of another: by class, statics and the exact keys of its children."""
    if is_open(self):
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
    children, statics = flat_form(self)
    node = _new(type(self))
    memo[id(self)] = node
    _store(node, PAIR, (copying.deepcopy(children, memo), statics))
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
    if table is not None and (statics.table is not table or {*children} != {*table.children}):
        raise TypeError(
            f"The pickle holds the fields {', '.join((*children, *statics.names)) or 'none'} of "
            f"{type(self).__qualname__}, which now has {', '.join((*table.children, *table.names)) or 'none'}. It was "
            f"written by another version of the class."
        )
    names = statics.table.children if table is None else table.children
    _store(self, PAIR, (tuple(children[name] for name in names), statics))


# Representations


def node_rich_repr(self: Any) -> Iterator[tuple[str, Any]]:
    """For `rich`: the fields, arrays as short text."""
    until = time.monotonic() + PATIENCE
    for name, value in shown_fields(self):
        yield name, _shortened(value, until, frozenset())


def _shortened(value: Any, until: float, inside: frozenset[int]) -> Any:
    """The value with short text in place of its arrays, in lists, tuples and dicts too."""
    short = seen_array(value, until)
    if short is not None:
        return Verbatim(short)
    kind = type(value)
    if kind not in {list, tuple, dict}:
        return value
    if id(value) in inside:
        return Verbatim("...")
    inside |= {id(value)}
    if kind is dict:
        return {key: _shortened(item, until, inside) for key, item in value.items()}
    return kind(_shortened(item, until, inside) for item in value)


def node_repr_html(self: Any) -> str:
    """For notebooks: the text of `repr`."""
    return in_html(repr(self))


# What a node class takes over, by name. `Module` has all of them, a decorated class gets those it does not write.
Methods = MappingProxyType[str, Any]
FROZEN: Methods = MappingProxyType({"__setattr__": set_attribute, "__delattr__": delete_attribute})
COMPARISON: Methods = MappingProxyType({"__eq__": equal, "__hash__": hash_of, "__repr__": node_repr})
OTHERS: Methods = MappingProxyType(
    {
        "tree_flatten": flat_form,
        "tree_unflatten": classmethod(tree_unflatten),
        "__copy__": copy,
        "__deepcopy__": deepcopy,
        "__reduce__": reduce,
        "__replace__": replace,
        "_exact_key_": exact_key_of,
        "__rich_repr__": node_rich_repr,
        "_repr_html_": node_repr_html,
    }
)
