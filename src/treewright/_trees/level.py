"""One level of any tree, live, described by a treedef or remembered; and the walk through all levels."""

import collections
import contextlib
import copy
import dataclasses
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core import LEAVES, FrozenMapping, Statics, flat_form, is_node, spec_of, with_fields
from treewright._core.jax_private import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    Key,
    Path,
    SequenceKey,
    jax_trees,
    node_data,
    path_text,
    typeof,
)
from treewright._core.text import short_text

_NUMBERS = (bool, int, float, complex)


@dataclasses.dataclass(frozen=True, slots=True)
class AuxKey:
    """The key of a class's `aux_data`, where it has no names for what is in it."""

    def __str__(self) -> str:
        return ".<aux_data>"


@dataclasses.dataclass(slots=True, eq=False)
class Level:
    """A node or container, with what is directly below it."""

    kind: type[Any]
    aux: Any  # its `aux_data`, which `jit` compares
    named: Iterable[tuple[Key, Any]]  # the same by name, where it has names; an iterator is read when it is asked for
    children: tuple[tuple[Key, Any], ...]
    content: tuple[bool, ...] | None = None  # of our nodes, whose statics compare exactly: which do by content

    @property
    def statics(self) -> tuple[tuple[Key, Any], ...]:
        self.named = tuple(self.named)
        return self.named

    def __repr__(self) -> str:
        if self.kind is type(None):
            return "None"
        keys = [key for key, _ in self.children]
        if self.kind in {list, tuple}:
            return f"{self.kind.__qualname__} of {len(keys)}"
        statics = (f"{_bare(key)}={short_text(value)}" for key, value in self.statics)
        return f"{self.kind.__qualname__}({', '.join([*map(_bare, keys), *statics])})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LeafType:
    """What `jit` sees of a leaf. It does not keep the array."""

    aval: Any  # JAX's own type of the value; None for what can't be an array
    python: type[Any] | None = None  # the class of a Python number, and of what can't be an array
    value: Any = None  # the value itself, if it can't be an array
    placement: Any = None  # where the array lies, if that counts
    anything: bool = False  # whether it stands for any leaf, as the leaves of a treedef do

    def __repr__(self) -> str:
        if self.aval is None:
            return "*" if self.anything else short_text(self.value)
        if self.python is not None:
            return f"Python {self.python.__name__}"
        return f"{str(self.aval).lstrip('~')}{' (weakly typed)' if getattr(self.aval, 'weak_type', False) else ''}"


@dataclasses.dataclass(frozen=True, slots=True)
class Structure:
    """A treedef that is to be opened as the tree it describes. In a tree, a treedef is a leaf like any other."""

    treedef: Any


def _bare(key: Key) -> str:
    return str(key).strip(".[]")


class SureLeaves(dict[type[Any], bool]):
    """Whether all instances of a class are leaves, asked once for each class: to ask takes longer than the rest."""

    def __missing__(self, cls: type[Any]) -> bool:
        is_leaf = cls is not types.NoneType and (cls in LEAVES or issubclass(cls, (jax.Array, Tracer)))
        self[cls] = is_leaf
        return is_leaf


def level_of(value: Any) -> Level | None:
    """One level of a live tree, of a `Structure`, or of a remembered tree; None for a leaf. Nothing is unflattened.

    Raises:
        UnfinishedNodeError: If `value` is a node whose `__init__` has not returned.
    """
    kind = type(value)
    if hasattr(kind, "__node_spec__"):
        return _node_level(kind, *flat_form(value))
    if kind is list or kind is tuple:
        return Level(kind, None, (), tuple((SequenceKey(i), item) for i, item in enumerate(value)))
    if kind is dict:
        with contextlib.suppress(Exception):  # names that can't be sorted: JAX says so itself
            names = sorted(value)  # as JAX does, whose own way takes eight times as long
            return Level(kind, names, (), tuple((DictKey(name), value[name]) for name in names))
    if isinstance(value, Level):
        return value
    if kind is Structure:
        return _structure_level(value.treedef)
    if kind in {LeafType, np.ndarray} or kind in _NUMBERS or isinstance(value, jax.Array):
        return None
    return _foreign_level(value)


def opened(tree: Any) -> Level | LeafType:
    """One level of a tree, or what `jit` sees of a leaf."""
    return level_of(tree) or leaf_type_of(tree)


def leaf_type_of(leaf: Any, like: Any = None) -> LeafType:
    """What `jit` sees of a leaf, also of one without values; or `like`, where that is the type of such an array."""
    kind = type(leaf)
    if isinstance(leaf, LeafType):
        return leaf
    if kind is Structure:
        return LeafType(None, anything=True)
    try:
        aval: Any = typeof(leaf)
    except Exception:  # noqa: BLE001  JAX has many ways to refuse what is not an array
        return LeafType(None, kind, leaf)
    python = kind if kind in _NUMBERS else None
    if (
        isinstance(like, LeafType)
        and python is None
        and like.python is None
        and (aval is like.aval or aval == like.aval)
    ):
        return like
    return LeafType(aval, python)


def _node_level(kind: type[Any], children: Iterable[Any], statics: Statics) -> Level:
    keys: Sequence[Any]
    if hasattr(kind, "__node_spec__"):
        keys = spec_of(kind).keys
    else:  # a treedef of what register_dataclass has registered
        keys = [GetAttrKey(field.name) for field in dataclasses.fields(kind) if field.name not in statics.table.names]
    return _exact_level(kind, tuple(zip(keys, children, strict=True)), statics)


def _exact_level(kind: type[Any], children: tuple[tuple[Key, Any], ...], statics: Statics) -> Level:
    named = ((GetAttrKey(name), value) for name, value in zip(statics.table.names, statics.values, strict=True))
    return Level(kind, statics, named, children, statics.table.content)


def _taken_apart(value: Any) -> tuple[list[tuple[Path, Any]], Any]:
    """What is directly below a value of any class, by path, and the treedef of this level."""

    def is_below(part: object) -> bool:
        return part is not value

    entries, treedef = jax_trees.tree_flatten_with_path(value, is_leaf=is_below)
    return entries, treedef


def _foreign_level(value: Any) -> Level | None:
    entries, treedef = _taken_apart(value)
    data = node_data(treedef)
    if data is None:
        return None
    kind, aux = data
    children = tuple((path[0], child) for path, child in entries)
    if isinstance(aux, Statics):  # of register_dataclass
        return _exact_level(kind, children, aux)
    return Level(kind, aux, _named_statics(kind, aux, [key for key, _ in children], value), children)


def _structure_level(treedef: Any) -> Level | None:
    data = node_data(treedef)
    if data is None:
        return None
    kind, aux = data
    parts = tuple(map(Structure, treedef.children()))
    if isinstance(aux, Statics):
        return _node_level(kind, parts, aux)
    keys = _keys_of(kind, aux, len(parts))
    return Level(kind, aux, _named_statics(kind, aux, keys), tuple(zip(keys, parts, strict=True)))


def _keys_of(kind: type[Any], aux: Any, count: int) -> list[Key]:
    """The keys of a class's children, which a treedef does not hold. Those of containers and of fields are known."""
    if kind in {list, tuple}:
        return [SequenceKey(index) for index in range(count)]
    parts = _parts(aux)
    for entries in (parts, *map(_parts, parts)):
        if len(entries) == count and hasattr(kind, "keys"):
            return [DictKey(entry) for entry in entries]
    # `{"static": True}` is JAX's mark of a static, `{"pytree_node": False}` that of flax.
    fields = [
        field.name
        for field in _dataclass_fields(kind)
        if not field.metadata.get("static") and field.metadata.get("pytree_node", True)
    ]
    names = getattr(kind, "_fields", None) or fields
    return [GetAttrKey(name) for name in names] if len(names) == count else list(map(FlattenedIndexKey, range(count)))


def _dataclass_fields(kind: type[Any]) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _named_statics(kind: type[Any], aux: Any, keys: list[Key], tree: Any = None) -> Iterator[tuple[Key, Any]]:
    """What a foreign class keeps in `aux_data`, by the names of its attributes; of a treedef, of its dataclass fields.

    Nothing at all where `aux` only repeats the keys of the children, as that of dicts does.
    """
    if aux is None or _repeats(aux, keys):
        return
    parts = _parts(aux) or (aux,)
    children = {getattr(key, "name", None) for key in keys}
    if tree is None:
        names = [field.name for field in _dataclass_fields(kind) if field.name not in children]
        named = list(zip(names, parts, strict=True)) if len(names) == len(parts) else []
    else:
        values = (*parts, *(value for part in parts for value in _parts(part)))
        attributes = [entry for entry in getattr(tree, "__dict__", {}).items() if entry[0] not in children]
        named = [(name, value) for name, value in attributes if any(value is other for other in values)]
    yield from ((GetAttrKey(name), value) for name, value in named)
    if not named:
        rest = tuple(part for part in parts if not _repeats(part, keys))
        yield AuxKey(), aux if len(rest) == len(parts) else rest


def _parts(aux: Any) -> tuple[Any, ...]:
    """The items of a tuple or list; nothing for anything else."""
    return tuple(aux) if type(aux) in {list, tuple} else ()


def _repeats(aux: Any, keys: list[Key]) -> bool:
    """Whether this is the keys of the children over again."""
    names = _parts(aux)
    same = (getattr(key, "key", key) is name for key, name in zip(keys, names, strict=False))
    return type(aux) in {list, tuple} and len(names) == len(keys) and all(same)


# What a user can point at


NOTHING: Any = object()  # what `child_of` gives where there is nothing


def is_none(value: object) -> bool:
    """Whether a value is `None`: for flattening with `None`s as leaves."""
    return value is None


def all_entries(value: Any) -> tuple[tuple[Key, Any], ...] | None:
    """All that is directly below a value, statics too, each with its key, in its own order; None for a leaf."""
    if is_node(value):
        pair = flat_form(value)
        return tuple((GetAttrKey(field.name), field.value_in(pair)) for field in spec_of(value).fields)
    if isinstance(value, dict | FrozenMapping):
        return tuple((DictKey(name), item) for name, item in value.items())
    level = level_of(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return None if level is None else level.children
    children = () if level is None else level.children
    names = {str(key) for key, _ in children}
    fields = ((GetAttrKey(field.name), getattr(value, field.name)) for field in dataclasses.fields(value))
    return (*children, *(entry for entry in fields if str(entry[0]) not in names))


def child_of(value: Any, key: Key) -> Any:
    """What is below a value under a key, that of a static too, or `NOTHING`."""
    kind = type(value)
    if hasattr(kind, "__node_spec__"):
        is_field = isinstance(key, GetAttrKey) and key.name in spec_of(kind).by_name
        return getattr(value, key.name) if is_field else NOTHING
    if kind is list or kind is tuple:
        return value[key.idx] if isinstance(key, SequenceKey) and 0 <= key.idx < len(value) else NOTHING
    return next((child for other, child in all_entries(value) or () if other == key), NOTHING)


@dataclasses.dataclass(eq=False)
class Place:
    """A value in a tree, its key, and the place above it; the root has neither."""

    value: Any
    key: Key = None
    above: "Place | None" = None

    @functools.cached_property
    def level(self) -> Level | None:
        """What `jit` sees directly below; None for a leaf."""
        return level_of(self.value)

    @property
    def way(self) -> "list[Place]":
        """The places from the root to this one."""
        places: list[Place] = [self]
        while places[-1].above is not None:
            places.append(places[-1].above)
        return places[::-1]

    @property
    def path(self) -> Path:
        """The keys that lead here from the root."""
        return tuple(place.key for place in self.way[1:])

    @property
    def name(self) -> str:
        """`Model.layers[0]`: the path, from the class of the root."""
        return path_text(self.path, type(self.way[0].value).__qualname__)

    def child(self, key: Key) -> "Place | None":
        """The place under a key, that of a static too; None if there is nothing under it."""
        value = child_of(self.value, key)
        return None if value is NOTHING else Place(value, key, self)

    def children(self) -> "Iterator[Place]":
        """The places directly below that are part of the tree, in JAX's order."""
        return (Place(child, key, self) for key, child in (self.level.children if self.level else ()))

    def entries(self) -> "Iterator[Place]":
        """All places directly below, those of statics too."""
        return (Place(child, key, self) for key, child in all_entries(self.value) or ())

    def with_value(self, value: Any) -> Any:
        """The whole tree with another value here. Only what is on the way is copied."""
        place = self
        while place.above is not None:
            value, place = with_changes(place.above.value, {place.key: value}), place.above
        return value


def walk(root: Place, below: Callable[[Place], Iterable[Place]] = Place.children) -> Iterator[Place]:
    """A place and all that is below it, from the top down. A caller decides where to stop when it is given a place."""
    waiting = [root]
    while waiting:
        place = waiting.pop()
        yield place
        waiting.extend(reversed([*below(place)]))


def note_classes_made_again(error: BaseException, *trees: Any) -> None:
    """Add to an error about trees that two classes in them only share a name, if so."""
    classes = dict.fromkeys(place.level.kind for tree in trees for place in walk(Place(tree)) if place.level)
    names = collections.Counter((cls.__module__, cls.__qualname__) for cls in classes)
    twice = ", ".join(name for (_, name), count in names.items() if count > 1)
    if twice:
        error.add_note(
            f"Two classes are named {twice}: the class statement ran twice, as a cell that runs again or a "
            f"reloaded module does. Make all objects again with the class as it is now."
        )


# Changed copies


def with_values(tree: Any, changes: Sequence[tuple[Path, Any]], depth: int = 0) -> Any:
    """A tree with other values at the ends of some paths, in which it stands at this depth.

    No path leads through the end of another. Each node on the way is copied, and checked, once.
    """
    if not changes:
        return tree
    path, new = changes[0]
    if len(path) == depth:
        return new
    below: dict[Key, list[tuple[Path, Any]]] = {}
    for change in changes:
        below.setdefault(change[0][depth], []).append(change)
    return with_changes(tree, {key: with_values(child_of(tree, key), inner, depth + 1) for key, inner in below.items()})


def with_changes(value: Any, changes: Mapping[Key, Any]) -> Any:
    """A copy of a node or container with other values under some keys; the rest is shared.

    Nodes run converters and checks, and no `__post_init__`. Dicts keep their order, and every container its class.
    """
    if is_node(value):
        return with_fields(value, {key.name: new for key, new in changes.items()})
    kind = type(value)
    if kind in {list, tuple}:
        items = list(value)
        for key, new in changes.items():
            items[key.idx] = new
        return items if kind is list else tuple(items)
    if isinstance(value, dict | FrozenMapping):
        frozen = isinstance(value, FrozenMapping)
        changed: Any = dict(value) if frozen else copy.copy(value)  # such as an OrderedDict
        changed.update((key.key, new) for key, new in changes.items())
        return FrozenMapping(changed) if frozen else changed
    return _with_foreign_changes(value, changes)


def _with_foreign_changes(value: Any, changes: Mapping[Key, Any]) -> Any:
    """For named tuples, dataclasses, and classes that others have registered."""
    entries, treedef = _taken_apart(value)
    children = {path[0]: child for path, child in entries if path}
    if changes.keys() <= children.keys():
        return treedef.unflatten({**children, **changes}.values())
    return dataclasses.replace(value, **{key.name: new for key, new in changes.items()})
