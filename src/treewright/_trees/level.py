"""One level of a live tree, a treedef or a snapshot: children, statics, and the types of leaves."""

import contextlib
import dataclasses
import types
from collections.abc import Hashable, Iterator, MappingView
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import (
    DictKey,
    GetAttrKey,
    Key,
    Path,
    SequenceKey,
    jax_trees,
    typeof,
)
from treewright._base.text import class_name, short_text, with_article
from treewright._core import flat_form, is_node_class

_NUMBERS = frozenset({bool, int, float, complex})
# Have nothing below them, for certain: finding that out from JAX takes ten times as long.
LEAVES: tuple[type[Any], ...] = (jax.Array, np.ndarray, str, int, float, types.NoneType, types.FunctionType)
_SEQUENCES = frozenset({list, tuple})


@dataclasses.dataclass(frozen=True, slots=True)
class AuxKey:
    """The key for `aux_data` of a class without names for its contents."""

    is_value: bool = False  # True if `aux_data` is the value itself, as with `jax.tree_util.register_static`

    def __str__(self) -> str:
        return ".<aux_data>"


@dataclasses.dataclass(slots=True, eq=False)
class Level:
    """A node or container with its children and statics."""

    cls: type[Any]
    aux: Any  # `aux_data`, which `jit` compares
    statics: tuple[tuple[Key, Any], ...]  # the contents of `aux` by name, if known
    children: tuple[tuple[Key, Any], ...]
    keys: tuple[Hashable, ...] | None = None  # the exact key of each static; None for foreign classes

    def __repr__(self) -> str:
        if self.cls is type(None):
            return "None"
        if self.cls in _SEQUENCES:
            return f"{self.cls.__qualname__} of {len(self.children)}"
        names = [str(key).strip(".[]") for key, _ in (*self.children, *self.statics)]
        texts = ["" for _ in self.children] + [f"={short_text(value)}" for _, value in self.statics]
        return f"{self.cls.__qualname__}({', '.join(map(str.__add__, names, texts))})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LeafType:
    """The part of a leaf that `jit` compiles for, without the array itself."""

    aval: Any  # JAX's type of the value; None if it can't be an array
    python: type[Any] | None = None  # the class of a Python number, or of a value that can't be an array
    value: Any = None  # the value itself, if it can't be an array
    placement: Any = None  # the devices of the array, if `jit` compiles for them
    anything: bool = False  # True for a leaf of a treedef, which may be any leaf

    def __repr__(self) -> str:
        if self.aval is None:
            return "*" if self.anything else short_text(self.value)
        if self.python is not None:
            return f"Python {self.python.__name__}"
        return f"{str(self.aval).lstrip('~')}{' (weakly typed)' if getattr(self.aval, 'weak_type', False) else ''}"


def level_of(value: Any) -> Level | None:
    """One level of a live tree or of a snapshot; None for a leaf. Nothing is unflattened.

    It has JAX's children in JAX's order: any registered class has some, and sets and other dataclasses are leaves. Not
    so for `contents`, which opens these too, or for texts, which show a subclass of a tuple by its own `repr`.

    Raises:
        UnfinishedNodeError: If `value` is a node whose `__init__` has not returned.
    """
    cls = type(value)
    if is_node_class(cls):
        children, aux = flat_form(value)
        statics = tuple(zip(map(GetAttrKey, aux.table.names), aux.values, strict=True))
        return Level(cls, aux, statics, tuple(zip(aux.table.keys, children, strict=True)), aux.keys)
    if cls in _SEQUENCES:
        return Level(cls, None, (), tuple((SequenceKey(i), item) for i, item in enumerate(value)), ())
    if cls is dict:
        with contextlib.suppress(Exception):  # names that can't be sorted: JAX raises below
            names = sorted(value)  # JAX's order, in an eighth of the time
            return Level(cls, names, (), tuple((DictKey(name), value[name]) for name in names), ())
    if cls is Level:
        return value  # type: ignore[no-any-return]
    if cls in _NUMBERS or cls is str or isinstance(value, LeafType | np.ndarray | jax.Array):
        return None
    entries, treedef = flatten_once(value)
    # Without `node_data`, `diff`, `at` and others raise AttributeError for dicts and nodes of other libraries, and
    # retraces with such arguments are counted but not explained.
    data = treedef.node_data()
    if data is None:
        return None
    children = tuple((path[0], child) for path, child in entries)
    return Level(cls, data[1], tuple(_named_statics(data[1], [key for key, _ in children], value)), children)


def is_leaf_class(cls: type[Any]) -> bool:
    """Whether nothing is below any instance of a class, for certain. Cache it: it takes longer than most of a walk."""
    return cls in LEAVES or issubclass(cls, (jax.Array, Tracer))


def leaf_type_of(leaf: Any) -> LeafType:
    """The `LeafType` of a leaf, also of one without values."""
    cls = type(leaf)
    if cls is LeafType:
        return leaf  # type: ignore[no-any-return]
    try:
        return LeafType(typeof(leaf), cls if cls in _NUMBERS else None)
    except Exception:  # noqa: BLE001  JAX raises many errors for values that are not arrays
        return LeafType(None, cls, leaf)


def strong(leaf: Any) -> Any:
    """A leaf without weak type: a Python number becomes an array. With it, a step may be traced twice."""
    is_weak_array = isinstance(leaf, jax.Array) and getattr(leaf, "weak_type", False)
    is_weak = is_weak_array or isinstance(leaf, int | float | complex)
    return jnp.asarray(leaf, jnp.result_type(leaf)) if is_weak else leaf


def flatten_once(value: Any) -> tuple[list[tuple[Path, Any]], Any]:
    """The children of a value of any class, by path, and the treedef of this level."""

    def is_below(part: object) -> bool:
        return part is not value

    entries, treedef = jax_trees.tree_flatten_with_path(value, is_leaf=is_below)
    return entries, treedef


# Foreign classes


def _named_statics(aux: Any, keys: list[Key], tree: Any) -> Iterator[tuple[Key, Any]]:
    """The contents of a foreign class's `aux_data` by attribute name.

    Empty if `aux` only repeats the keys of the children, as for dicts. An `equinox.nn.Linear` has the children `weight`
    and `bias` and an `aux` with `(2, 3, True)` in it; these objects are also its attributes `in_features`,
    `out_features` and `use_bias`, so these are the names. An `aux` whose contents are no attributes has none.
    """
    if aux is None or _repeats(aux, keys):
        return
    if aux is tree:
        yield AuxKey(is_value=True), aux
        return
    parts = _items(aux) or (aux,)
    objects = {id(value) for part in parts for value in (part, *_items(part))}
    children = {getattr(key, "name", None) for key in keys}
    attributes: dict[str, Any] = getattr(tree, "__dict__", {})
    named = [name for name, value in attributes.items() if id(value) in objects and name not in children]
    if named:
        yield from ((GetAttrKey(name), attributes[name]) for name in named)
        return
    rest = tuple(part for part in parts if not _repeats(part, keys))
    yield AuxKey(), aux if len(rest) == len(parts) else rest


def _items(aux: Any) -> tuple[Any, ...]:
    """The items of a tuple or list; empty for any other value."""
    return tuple(aux) if type(aux) in _SEQUENCES else ()


def _repeats(aux: Any, keys: list[Key]) -> bool:
    """Whether `aux` only repeats the keys of the children."""
    names = _items(aux)
    same = (getattr(key, "key", key) is name for key, name in zip(keys, names, strict=False))
    return type(aux) in _SEQUENCES and len(names) == len(keys) and all(same)


# Arguments


def reject_class(function: str, *trees: object) -> None:
    """Reject a class passed in place of an instance: it would be a tree of one leaf.

    Raises:
        TypeError: If one of the trees is a class.
    """
    for tree in trees:
        if isinstance(tree, type):
            name = tree.__name__
            raise TypeError(f"{function}() needs an instance, but got the class {name}. Pass an instance: {name}(...).")


def reject_classes(function: str, *trees: object) -> None:
    """`reject_class`, also for node classes inside the trees, and for `dict.values()` and other iterators.

    The cost depends on the number of leaves.
    """
    reject_class(function, *trees)
    for tree in trees:
        if isinstance(tree, MappingView | Iterator):
            raise TypeError(
                f"{function}() needs a tree, but got {with_article(class_name(tree))}, which is a single leaf to JAX. "
                f"Pass a list: list(...)."
            )
    leaves = jax_trees.tree_leaves(trees)
    if any(issubclass(cls, type) for cls in {*map(type, leaves)}):
        reject_class(function, *filter(is_node_class, leaves))


def is_none(value: object) -> bool:
    """Whether a value is `None`, to flatten with `None`s as leaves."""
    return value is None
