"""Places in a tree: what is below each of them, and a tree with other values at some of them.

A place may be a static as well as a child, or a part of a static: whatever a user can name.
"""

import copy
import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any, cast

import jax

from treewright._nodes.classes import class_of
from treewright._nodes.freeze import FrozenMapping
from treewright._nodes.node import finished_pair, replaced
from treewright._nodes.representation import text
from treewright._nodes.spec import spec_of
from treewright._trees.paths import Key, Path, entries_of, field_key, place_of
from treewright.errors import MissingPlaceError

_jax_trees: Any = jax.tree_util  # whose annotations leave the types of keys open
_GetAttrKey: Any = _jax_trees.GetAttrKey
_SequenceKey: Any = _jax_trees.SequenceKey
_DictKey: Any = _jax_trees.DictKey

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
        return tuple((_DictKey(name), item) for name, item in cast("Mapping[Any, Any]", value).items())
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
        is_field = isinstance(key, _GetAttrKey) and key.name in spec_of(kind).by_name
        return getattr(value, key.name) if is_field else NOTHING
    if (kind is list or kind is tuple) and isinstance(key, _SequenceKey):
        return value[key.idx] if 0 <= key.idx < len(value) else NOTHING
    return next((child for found, child in all_entries(value) or () if found == key), NOTHING)


def item_key(value: Any, item: Any) -> Key:
    """The key of `value[item]`; an index may be negative."""
    if not issubclass(class_of(value), (list, tuple)) or not hasattr(item, "__index__"):
        return _DictKey(item)
    index: int = item.__index__()
    if -len(value) <= index < 0:
        index += len(value)
    names: Any = getattr(value, "_fields", None)
    return field_key(names[index]) if names and 0 <= index < len(names) else _SequenceKey(index)


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
    entries, treedef = _jax_trees.tree_flatten_with_path(value, is_leaf=is_below)
    children = {path[0]: child for path, child in entries if path}
    if changes.keys() <= children.keys():
        return treedef.unflatten({**children, **changes}.values())
    return dataclasses.replace(value, **{key.name: new for key, new in changes.items()})


def missing_place(name: str, value: Any, key: Key) -> MissingPlaceError:
    """The error for a key that leads nowhere: where, and what is there instead."""
    entries = all_entries(value)
    if entries is None:
        hint = ""
        if hasattr(value, "at") and not isinstance(key, _GetAttrKey):
            hint = " To change a part of an array, use .apply(lambda array: array.at[...].set(...))."
        return MissingPlaceError(f"{name} is {text(value)}, a leaf, and has no {key}.{hint}")
    found = class_of(value).__qualname__ if value is not None else "None"
    names = [str(entry) for entry, _ in entries]
    if names and all(isinstance(entry, _SequenceKey) for entry, _ in entries):
        return MissingPlaceError(f"{name} ({found}) has no {key}. It has {names[0]} to {names[-1]}.")
    by_place = {str(place_of(entry)[1]): str(entry) for entry, _ in entries}
    close = difflib.get_close_matches(str(place_of(key)[1]), by_place, 1)
    meant = f" (did you mean {by_place[close[0]]}?)" if close else ""
    return MissingPlaceError(f"{name} ({found}) has no {key}{meant}. It has {listed(names)}.")


def listed(names: "list[str]", most: int = 12) -> str:
    """Some names with commas, `nothing` for none."""
    shown = ", ".join(names[:most]) or "nothing"
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown
