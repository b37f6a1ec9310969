"""One level of any tree: what is directly below a value, and a copy with other values there."""

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np

from treewright._jax import DictKey, FlattenedIndexKey, GetAttrKey, SequenceKey, jax_trees, node_data, typeof
from treewright._nodes.fields import FieldOptions, options_of
from treewright._nodes.node import finished_pair, replaced
from treewright._nodes.spec import spec_of
from treewright._nodes.statics import Statics
from treewright._trees.paths import Key, Path, entries_of, field_key, place_of
from treewright._values.classes import class_of
from treewright._values.freeze import FrozenMapping
from treewright._values.text import did_you_mean, short_text, text
from treewright.errors import MissingPlaceError

_NUMBERS = (bool, int, float, complex)
_FUNCTION_FIELDS = ("func", "__func__")  # of jax.tree_util.Partial and of methods, whose aux_data is a function


@dataclasses.dataclass(frozen=True, slots=True)
class AuxKey:
    """The key of a class's `aux_data`, where it has no names for what is in it."""

    def __str__(self) -> str:
        return ".<aux_data>"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A node or container. `aux` is what `jit` compares; `statics` is the same by name, as far as it has names.

    `content` is there where statics compare exactly, as those of our own nodes do: whether each goes by content.
    """

    kind: type[Any]
    aux: Any
    statics: tuple[tuple[Key, Any], ...]
    children: tuple[tuple[Key, Any], ...]
    content: tuple[bool, ...] | None = None

    def __repr__(self) -> str:
        if self.kind is type(None):
            return "None"
        keys = [key for key, _ in self.children]
        if self.kind in {list, tuple}:
            return f"{self.kind.__qualname__} of {len(keys)}"
        statics = (f"{_bare(key)}={short_text(value)}" for key, value in self.statics)
        return f"{self.kind.__qualname__}({', '.join([*map(_bare, keys), *statics])})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """What `jit` sees of a leaf. It keeps no array.

    Args:
        aval: JAX's own type of the value; None for what can be no array.
        python: The class of a Python number, and of what can be no array.
        value: The value itself, if it can be no array.
        placement: Where the array lies, for who asks about that.
        anything: Whether it stands for any leaf, as that of a treedef does.
    """

    aval: Any
    python: type[Any] | None = None
    value: Any = None
    placement: Any = None
    anything: bool = False

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


def opened(tree: Any) -> Level | Leaf:
    """One level of a live tree, of a `Structure`, or of what has been opened before.

    Raises:
        UnfinishedNodeError: If `tree` is a node whose `__init__` has not returned.
    """
    kind = class_of(tree)
    if kind is Level or kind is Leaf:
        return cast("Level | Leaf", tree)
    if hasattr(kind, "__node_spec__"):
        children, statics = finished_pair(tree)
        return node_level(kind, children, statics)
    if kind is list or kind is tuple:
        return Level(kind, None, (), tuple((SequenceKey(i), item) for i, item in enumerate(tree)))
    if kind is Structure:
        return _structure_level(tree.treedef)
    if isinstance(tree, (jax.Array, np.ndarray, np.generic, *_NUMBERS)):
        return leaf_of(tree)
    return _foreign_level(tree)


def node_level(kind: type[Any], children: Any, statics: Statics) -> Level:
    """The level of one of our own nodes."""
    names = (field_key(name) for name in statics.table.names)
    return Level(
        kind,
        statics,
        tuple(zip(names, statics.values, strict=True)),
        tuple(zip(spec_of(kind).keys, children, strict=True)),
        statics.table.content,
    )


def leaf_of(value: Any) -> Leaf:
    """What `jit` sees of a leaf: also of a tracer, of a deleted array, of a `jax.ShapeDtypeStruct`."""
    try:
        aval: Any = typeof(value)
    except Exception:  # noqa: BLE001  what JAX refuses, in whatever way, is no array to it
        return Leaf(None, class_of(value), value)
    return Leaf(aval, class_of(value) if class_of(value) in _NUMBERS else None)


def _foreign_level(tree: Any) -> Level | Leaf:
    def is_below(part: object) -> bool:
        return part is not tree

    entries, treedef = jax_trees.tree_flatten_with_path(tree, is_leaf=is_below)
    data = node_data(treedef)
    if data is None:
        return leaf_of(tree)
    kind, aux = data
    children = tuple((path[0], child) for path, child in entries)
    return Level(kind, aux, tuple(_named_statics(kind, aux, [key for key, _ in children], tree)), children)


def _structure_level(treedef: Any) -> Level | Leaf:
    data = node_data(treedef)
    if data is None:
        return Leaf(None, anything=True)
    kind, aux = data
    parts = tuple(map(Structure, treedef.children()))
    if isinstance(aux, Statics):
        return node_level(kind, parts, aux)
    keys = _keys_of(kind, aux, len(parts))
    return Level(kind, aux, tuple(_named_statics(kind, aux, keys)), tuple(zip(keys, parts, strict=True)))


def _keys_of(kind: type[Any], aux: Any, count: int) -> list[Key]:
    """The keys of a class's children, which a treedef does not hold. Those of a dict and of fields can be told."""
    fields: tuple[str, ...] | None = getattr(kind, "_fields", None)
    if fields is not None and len(fields) == count:
        return [field_key(name) for name in fields]
    if kind in {list, tuple}:
        return [SequenceKey(index) for index in range(count)]
    held = _elements(aux)
    for entries in (held, *map(_elements, held)):
        if len(entries) == count and hasattr(kind, "keys"):
            return [DictKey(entry) for entry in entries]
    names = [field.name for field in _dataclass_fields(kind) if (options_of(field) or FieldOptions()).kind != "static"]
    if len(names) == count:
        return [field_key(name) for name in names]
    function = _function_field(kind, aux)
    return [field_key("__self__") if function == "__func__" else FlattenedIndexKey(i) for i in range(count)]


def _dataclass_fields(kind: type[Any]) -> "tuple[dataclasses.Field[Any], ...]":
    return dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()


def _function_field(kind: type[Any], aux: Any) -> str | None:
    return next((name for name in _FUNCTION_FIELDS if hasattr(kind, name)), None) if callable(aux) else None


def _named_statics(kind: type[Any], aux: Any, keys: list[Key], tree: Any = None) -> Iterator[tuple[Key, Any]]:
    """What a foreign class keeps in `aux_data`, by the names of its fields where it has them.

    Nothing at all where `aux` only repeats the keys of the children, as that of dicts does.
    """
    if aux is None or _repeats(aux, keys):
        return
    function = _function_field(kind, aux)
    if function is not None:
        yield field_key(function), aux
        return
    held = _elements(aux) or (aux,)
    children = {getattr(key, "name", None) for key in keys}
    names = [field.name for field in _dataclass_fields(kind) if field.name not in children]
    if tree is not None:
        within = (*held, *(item for part in held for item in _elements(part)))
        attributes = names or [name for name in getattr(tree, "__dict__", ()) if name not in children]
        values = ((name, getattr(tree, name, None)) for name in attributes)
        named = [(name, value) for name, value in values if any(value is item for item in within)]
    else:
        named = list(zip(names, held, strict=True)) if len(names) == len(held) else []
    yield from ((field_key(name), value) for name, value in named)
    if not named:
        rest = tuple(item for item in held if not _repeats(item, keys))
        yield AuxKey(), aux if len(rest) == len(held) else rest


def _elements(aux: Any) -> tuple[Any, ...]:
    """What a tuple or list holds; nothing for anything else."""
    return tuple(aux) if class_of(aux) in {list, tuple} else ()


def _repeats(aux: Any, keys: list[Key]) -> bool:
    """Whether this is the keys of the children over again."""
    names = _elements(aux)
    same = (getattr(key, "key", key) is name for key, name in zip(keys, names, strict=False))
    return class_of(aux) in {list, tuple} and len(names) == len(keys) and all(same)


NOTHING: Any = object()  # what `child_of` finds where there is nothing


def is_node(value: object) -> bool:
    """Whether a value is a node."""
    return hasattr(type(value), "__node_spec__")


def all_entries(value: Any) -> tuple[tuple[Key, Any], ...] | None:
    """All that is directly below a value, statics too, each with its key; None for a leaf."""
    if is_node(value):
        pair = finished_pair(value)
        return tuple((field_key(field.name), field.value_in(pair)) for field in spec_of(value).fields)
    if isinstance(value, dict | FrozenMapping):
        return tuple((DictKey(name), item) for name, item in cast("Mapping[Any, Any]", value).items())
    entries = entries_of(value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return entries
    children = {str(key) for key, _ in entries or ()}
    fields = ((field_key(field.name), getattr(value, field.name)) for field in dataclasses.fields(value))
    return (*(entries or ()), *(entry for entry in fields if str(entry[0]) not in children))


def child_of(value: Any, key: Key) -> Any:
    """What is below a value under a key, or `NOTHING`."""
    kind = class_of(value)
    if hasattr(kind, "__node_spec__"):
        is_field = isinstance(key, GetAttrKey) and key.name in spec_of(kind).by_name
        return getattr(value, key.name) if is_field else NOTHING
    if (kind is list or kind is tuple) and isinstance(key, SequenceKey):
        return value[key.idx] if 0 <= key.idx < len(value) else NOTHING
    return next((child for found, child in all_entries(value) or () if found == key), NOTHING)


def item_key(value: Any, item: Any) -> Key:
    """The key of `value[item]`; an index may be negative."""
    if not issubclass(class_of(value), (list, tuple)) or not hasattr(item, "__index__"):
        return DictKey(item)
    index: int = item.__index__()
    if -len(value) <= index < 0:
        index += len(value)
    names: Any = getattr(value, "_fields", None)
    return field_key(names[index]) if names and 0 <= index < len(names) else SequenceKey(index)


def with_changes(value: Any, changes: Mapping[Key, Any]) -> Any:
    """A copy of a node or container with other values under some keys; the rest is shared.

    Nodes run converters and checks, as `replace` does. Dicts keep their order, and every container its class.
    """
    if is_node(value):
        return replaced(value, **{key.name: new for key, new in changes.items()})
    kind = class_of(value)
    if kind in {list, tuple}:
        items = list(value)
        for key, new in changes.items():
            items[key.idx] = new
        return items if kind is list else tuple(items)
    if isinstance(value, dict | FrozenMapping):
        by_name = {key.key: new for key, new in changes.items()}
        if isinstance(value, FrozenMapping):
            return FrozenMapping({**cast("Any", value), **by_name})
        changed: Any = copy.copy(cast("Any", value))  # of the same class, such as OrderedDict
        changed.update(by_name)
        return changed
    return _with_foreign_changes(value, changes)


def _with_foreign_changes(value: Any, changes: Mapping[Key, Any]) -> Any:
    """For named tuples, dataclasses, and classes that others have registered."""

    def is_below(part: object) -> bool:
        return part is not value

    entries: list[tuple[Path, Any]]
    entries, treedef = jax_trees.tree_flatten_with_path(value, is_leaf=is_below)
    children = {path[0]: child for path, child in entries if path}
    if changes.keys() <= children.keys():
        return treedef.unflatten({**children, **changes}.values())
    return dataclasses.replace(value, **{key.name: new for key, new in changes.items()})


def missing_place(name: str, value: Any, key: Key) -> MissingPlaceError:
    """The error for a key that leads nowhere: where, and what is there instead."""
    entries = all_entries(value)
    if entries is None:
        hint = ""
        if hasattr(value, "at") and not isinstance(key, GetAttrKey):
            hint = " To change a part of an array, use .apply(lambda array: array.at[...].set(...))."
        return MissingPlaceError(f"{name} is {text(value)}, a leaf, and has no {key}.{hint}")
    found = class_of(value).__qualname__ if value is not None else "None"
    names = [str(entry) for entry, _ in entries]
    if names and all(isinstance(entry, SequenceKey) for entry, _ in entries):
        return MissingPlaceError(f"{name} ({found}) has no {key}. It has {names[0]} to {names[-1]}.")
    by_place = {str(place_of(entry)[1]): str(entry) for entry, _ in entries}
    meant = did_you_mean(str(place_of(key)[1]), by_place, show=by_place.__getitem__)
    return MissingPlaceError(f"{name} ({found}) has no {key}{meant}. It has {listed(names)}.")


def listed(names: "list[str]", most: int = 12) -> str:
    """Some names with commas, `nothing` for none."""
    shown = ", ".join(names[:most]) or "nothing"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
