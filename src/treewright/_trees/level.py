"""One level of any tree, live, described by a treedef or remembered; and the walk through all levels."""

import collections
import contextlib
import copy
import dataclasses
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from treewright._core import FrozenMapping, Statics, flat_form, is_node, spec_of, with_fields
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

_NUMBERS = frozenset({bool, int, float, complex})
_SEQUENCES = frozenset({list, tuple})


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
    exact: tuple[Hashable, ...] | None = None  # of our nodes: the exact key of each static

    @property
    def statics(self) -> tuple[tuple[Key, Any], ...]:
        self.named = tuple(self.named)
        return self.named

    def __repr__(self) -> str:
        if self.kind is type(None):
            return "None"
        if self.kind in _SEQUENCES:
            return f"{self.kind.__qualname__} of {len(self.children)}"
        names = [str(key).strip(".[]") for key, _ in (*self.children, *self.statics)]
        texts = ["" for _ in self.children] + [f"={short_text(value)}" for _, value in self.statics]
        return f"{self.kind.__qualname__}({', '.join(map(str.__add__, names, texts))})"


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


def level_of(value: Any) -> Level | None:
    """One level of a live tree, of a `Structure`, or of a remembered tree; None for a leaf. Nothing is unflattened.

    Raises:
        UnfinishedNodeError: If `value` is a node whose `__init__` has not returned.
    """
    kind = type(value)
    if hasattr(kind, "__node_spec__"):
        return _node_level(kind, *flat_form(value))
    if kind in _SEQUENCES:
        return Level(kind, None, (), tuple((SequenceKey(i), item) for i, item in enumerate(value)))
    if kind is dict:
        with contextlib.suppress(Exception):  # names that can't be sorted: JAX says so itself
            names = sorted(value)  # as JAX does, whose own way takes eight times as long
            return Level(kind, names, (), tuple((DictKey(name), value[name]) for name in names))
    if kind is Level:
        return value  # type: ignore[no-any-return]
    if kind is Structure:
        return _level_of_data(value.treedef, tuple(map(Structure, value.treedef.children())))
    if kind in _NUMBERS or isinstance(value, LeafType | np.ndarray | jax.Array):
        return None
    entries, treedef = _taken_apart(value)
    return _level_of_data(
        treedef, tuple(child for _, child in entries), [path[0] for path, _ in entries if path], value
    )


def leaf_type_of(leaf: Any) -> LeafType:
    """What `jit` sees of a leaf, also of one without values."""
    kind = type(leaf)
    if kind is LeafType:
        return leaf  # type: ignore[no-any-return]
    if kind is Structure:
        return LeafType(None, anything=True)
    try:
        return LeafType(typeof(leaf), kind if kind in _NUMBERS else None)
    except Exception:  # noqa: BLE001  JAX has many ways to refuse what is not an array
        return LeafType(None, kind, leaf)


def _node_level(kind: type[Any], children: Iterable[Any], statics: Statics) -> Level:
    names = statics.names
    if hasattr(kind, "__node_spec__"):
        keys: Sequence[Any] = spec_of(kind).table.keys
    else:  # what register_dataclass has registered
        keys = [GetAttrKey(field.name) for field in dataclasses.fields(kind) if field.name not in names]
    named = ((GetAttrKey(name), value) for name, value in zip(names, statics.values, strict=True))
    return Level(kind, statics, named, tuple(zip(keys, children, strict=True)), statics.keys)


def _taken_apart(value: Any) -> tuple[list[tuple[Path, Any]], Any]:
    """What is directly below a value of any class, by path, and the treedef of this level."""

    def is_below(part: object) -> bool:
        return part is not value

    entries, treedef = jax_trees.tree_flatten_with_path(value, is_leaf=is_below)
    return entries, treedef


# Classes of others


def _level_of_data(
    treedef: Any, parts: tuple[Any, ...], keys: list[Key] | None = None, tree: Any = None
) -> Level | None:
    """The level at the top of a treedef, of these parts; its tree, if there is one, has names for what is in it."""
    data = node_data(treedef)
    if data is None:
        return None
    kind, aux = data
    if isinstance(aux, Statics):
        return _node_level(kind, parts, aux)
    if keys is None:
        keys = _keys_of(kind, aux, len(parts))
    return Level(kind, aux, _named_statics(kind, aux, keys, tree), tuple(zip(keys, parts, strict=True)))


def _keys_of(kind: type[Any], aux: Any, count: int) -> list[Key]:
    """The keys of a class's children, which a treedef does not hold. Those of containers and of fields are known."""
    if kind in _SEQUENCES:
        return list(map(SequenceKey, range(count)))
    for entries in (_items(aux), *map(_items, _items(aux))):
        if len(entries) == count and hasattr(kind, "keys"):
            return list(map(DictKey, entries))
    # `{"static": True}` is JAX's mark of a static, `{"pytree_node": False}` that of flax.
    fields = [
        field.name
        for field in _dataclass_fields(kind)
        if not field.metadata.get("static") and field.metadata.get("pytree_node", True)
    ]
    names: Sequence[str] = getattr(kind, "_fields", fields)
    return list(map(GetAttrKey, names)) if len(names) == count else list(map(FlattenedIndexKey, range(count)))


def _dataclass_fields(kind: type[Any]) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _named_statics(kind: type[Any], aux: Any, keys: list[Key], tree: Any) -> Iterator[tuple[Key, Any]]:
    """What a foreign class keeps in `aux_data`, by the names of its attributes; of a treedef, of its dataclass fields.

    Nothing at all where `aux` only repeats the keys of the children, as that of dicts does.
    """
    if aux is None or _repeats(aux, keys):
        return
    parts = _items(aux) or (aux,)
    children = {getattr(key, "name", None) for key in keys}
    if tree is None:
        names = [field.name for field in _dataclass_fields(kind) if field.name not in children]
        named = list(zip(names, parts, strict=True)) if len(names) == len(parts) else []
    else:
        ids = {id(value) for part in (parts, *map(_items, parts)) for value in part}
        named = [entry for entry in getattr(tree, "__dict__", {}).items() if entry[0] not in children]
        named = [(name, value) for name, value in named if id(value) in ids]
    yield from ((GetAttrKey(name), value) for name, value in named)
    if not named:
        rest = tuple(part for part in parts if not _repeats(part, keys))
        yield AuxKey(), aux if len(rest) == len(parts) else rest


def _items(aux: Any) -> tuple[Any, ...]:
    """The items of a tuple or list; nothing for anything else."""
    return tuple(aux) if type(aux) in _SEQUENCES else ()


def _repeats(aux: Any, keys: list[Key]) -> bool:
    """Whether this is the keys of the children over again."""
    names = _items(aux)
    same = (getattr(key, "key", key) is name for key, name in zip(keys, names, strict=False))
    return type(aux) in _SEQUENCES and len(names) == len(keys) and all(same)


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
    if kind in _SEQUENCES:
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
    if kind in _SEQUENCES:
        items = list(value)
        for key, new in changes.items():
            items[key.idx] = new
        return items if kind is list else tuple(items)
    if isinstance(value, dict | FrozenMapping):
        frozen = isinstance(value, FrozenMapping)
        changed: Any = dict(value) if frozen else copy.copy(value)  # such as an OrderedDict
        changed.update((key.key, new) for key, new in changes.items())
        return FrozenMapping(changed) if frozen else changed
    entries, treedef = _taken_apart(value)
    children = {path[0]: child for path, child in entries if path}
    if changes.keys() <= children.keys():
        return treedef.unflatten({**children, **changes}.values())
    return dataclasses.replace(value, **{key.name: new for key, new in changes.items()})
