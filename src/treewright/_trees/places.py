"""Places: the values in a tree with their paths, a walk over them, and copies with other values there."""

import collections
import contextlib
import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from treewright._base.jax_private import DictKey, GetAttrKey, Key, Path, SequenceKey
from treewright._base.text import class_name
from treewright._core import flat_form, info_of, is_node, is_node_class, note, with_fields
from treewright._freeze import FrozenMapping
from treewright._trees.level import Level, flatten_once, level_of

_SEQUENCES = frozenset({list, tuple})
NOTHING: Any = object()  # returned by `child_of` for a missing key


def children_of(value: Any) -> tuple[tuple[Key, Any], ...] | None:
    """The children of a value with their keys, in its own order; None for a leaf."""
    if isinstance(value, dict | FrozenMapping):
        return tuple((DictKey(name), item) for name, item in value.items())
    level = level_of(value)
    return None if level is None else level.children


def all_entries(value: Any) -> tuple[tuple[Key, Any], ...] | None:
    """The children and statics of a value with their keys, in their own order; None for a leaf."""
    if is_node(value):
        pair = flat_form(value)
        return tuple((GetAttrKey(field.name), field.value_in(pair)) for field in info_of(value).fields)
    children = children_of(value)
    if isinstance(value, dict | type) or not dataclasses.is_dataclass(value):
        return children
    names = {str(key) for key, _ in children or ()}
    fields = ((GetAttrKey(field.name), getattr(value, field.name)) for field in dataclasses.fields(value))
    return (*(children or ()), *(entry for entry in fields if str(entry[0]) not in names))


def child_of(value: Any, key: Key) -> Any:
    """The child or static with this key, or `NOTHING`."""
    cls = type(value)
    if cls in _SEQUENCES:
        return value[key.idx] if isinstance(key, SequenceKey) and 0 <= key.idx < len(value) else NOTHING
    if is_node_class(cls):
        is_field = type(key) is GetAttrKey and key.name in info_of(cls).by_name
        return getattr(value, key.name) if is_field else NOTHING
    return next((child for other, child in all_entries(value) or () if other == key), NOTHING)


@dataclasses.dataclass(eq=False)
class Place:
    """A value in a tree, with its key and its parent; the root has neither."""

    value: Any
    key: Key = None
    parent: "Place | None" = None

    @functools.cached_property
    def level(self) -> Level | None:
        """The level of the value; None for a leaf."""
        return level_of(self.value)

    @property
    def ancestors(self) -> "list[Place]":
        """The places from the root to this one, both included."""
        places: list[Place] = [self]
        while places[-1].parent is not None:
            places.append(places[-1].parent)
        return places[::-1]

    @property
    def path(self) -> Path:
        """The keys from the root to this place."""
        keys, place = [], self
        while place.parent is not None:
            keys.append(place.key)
            place = place.parent
        return tuple(reversed(keys))

    @functools.cached_property
    def text(self) -> str:
        """The path as text. In a walk from the top, each place adds its key to the text of its parent."""
        return "" if self.parent is None else f"{self.parent.text}{self.key}"

    @property
    def name(self) -> str:
        """The class of the root and the path: `Model.layers[0]`."""
        return f"{class_name(self.ancestors[0].value)}{self.text}"

    def child(self, key: Key) -> "Place | None":
        """The child or static with this key; None if it does not exist."""
        value = child_of(self.value, key)
        return None if value is NOTHING else Place(value, key, self)

    def children(self) -> "Iterator[Place]":
        """The children that are part of the tree, in JAX's order."""
        return (Place(child, key, self) for key, child in (self.level.children if self.level else ()))

    def entries(self) -> "Iterator[Place]":
        """The children and statics."""
        return (Place(child, key, self) for key, child in all_entries(self.value) or ())

    def with_value(self, value: Any, copied: Any = None) -> Any:
        """The whole tree with a different value here. Only ancestors are copied."""
        copied = copied or with_changes
        place = self
        while place.parent is not None:
            value, place = copied(place.parent.value, {place.key: value}), place.parent
        return value


def walk(root: Place, descend: Callable[[Place], Iterable[Place]] = Place.children) -> Iterator[Place]:
    """A place and all its descendants, parents first. `descend` is called after a place is yielded."""
    queue = [root]
    while queue:
        place = queue.pop()
        yield place
        queue.extend(reversed([*descend(place)]))


def note_redefined_classes(error: BaseException, *trees: Any) -> None:
    """Add a note to an error if two classes in the trees share a name."""
    note([_redefined_classes], error, *trees)


def _redefined_classes(error: BaseException, *trees: Any) -> str | None:  # noqa: ARG001  a rule's form
    classes = dict.fromkeys(place.level.cls for tree in trees for place in walk(Place(tree)) if place.level)
    names = collections.Counter((cls.__module__, cls.__qualname__) for cls in classes)
    twice = ", ".join(name for (_, name), count in names.items() if count > 1)
    if not twice:
        return None
    return (
        f"Two classes are named {twice}: the class statement ran twice, for example in a notebook cell or a reloaded "
        f"module. Recreate all objects with the current class."
    )


# Changed copies


def reject_overlaps(places: Sequence[Place]) -> None:
    """Reject places of which one contains another: `with_values` could not set both."""
    selected: dict[Path, Place] = {}
    for place in places:
        path = place.path
        if path in selected:
            raise ValueError(f"{place.name} is selected twice, so it could get two values. Select it once.")
        selected[path] = place
    for path, place in selected.items():
        parent = next((selected[path[:end]] for end in range(len(path)) if path[:end] in selected), None)
        if parent is not None:
            raise ValueError(
                f"{place.name} is inside {parent.name}, which is also selected: one change would undo the other. "
                f"Select one of them, or make two calls."
            )


def with_values(tree: Any, places: Sequence[Place], values: Sequence[Any], copied: Any = None) -> Any:
    """A tree with new values at some places, of which none may contain another.

    Each node on the paths is copied, and checked, once; or `copied` does it.
    """
    if len(places) == 1:  # in 3/4 of the time (benchmarks: trees)
        return places[0].with_value(values[0], copied)
    return _with_values(tree, [(place.path, value) for place, value in zip(places, values, strict=True)], copied)


def _with_values(tree: Any, changes: Sequence[tuple[Path, Any]], copied: Any, depth: int = 0) -> Any:
    """The tree itself is at this depth of the paths."""
    path, new = changes[0]
    if len(path) == depth:
        return new
    inner: dict[Key, list[tuple[Path, Any]]] = {}
    for change in changes:
        inner.setdefault(change[0][depth], []).append(change)
    parts = {key: _with_values(child_of(tree, key), part, copied, depth + 1) for key, part in inner.items()}
    return (copied or with_changes)(tree, parts)


def with_changes(value: Any, changes: Mapping[Key, Any]) -> Any:
    """A copy of a node or container with new values for some keys; the rest is shared.

    Nodes run converters and checks, but not `__post_init__`. Dicts keep their order, and every container its class.
    Statics of foreign classes are set by the constructor if it is a dataclass's generated one, else without it.
    """
    cls = type(value)
    if cls in _SEQUENCES:
        items = list(value)
        for key, new in changes.items():
            items[key.idx] = new
        return items if cls is list else tuple(items)
    if is_node_class(cls):
        return with_fields(value, {key.name: new for key, new in changes.items()})
    changed: Any
    if isinstance(value, FrozenMapping):
        return FrozenMapping(with_changes(dict(value), changes))
    if isinstance(value, dict):
        changed = copy.copy(value)  # keeps the class, such as OrderedDict
        changed.update((key.key, new) for key, new in changes.items())
        return changed
    entries, treedef = flatten_once(value)
    children = {path[0]: child for path, child in entries if path}
    if changes.keys() <= children.keys():
        return treedef.unflatten({**children, **changes}.values())
    if _is_replaceable(value, changes):
        return dataclasses.replace(value, **{key.name: new for key, new in changes.items()})
    return with_attributes(value, {key.name: new for key, new in changes.items()}, _copy)


def with_attributes(value: Any, changes: Mapping[str, Any], copied: Callable[[Any], Any]) -> Any:
    """A copy of an object with new values for some attributes."""
    try:
        changed = copied(value)
        for name, attribute in changes.items():
            object.__setattr__(changed, name, attribute)
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"{type(value).__qualname__} can't be copied with a different {', '.join(changes)}: {error}. Build one "
            f"instead."
        ) from error
    return changed


def _copy(value: Any) -> Any:
    """A copy by the protocol of the class; if that returns the object itself or fails, a bare copy."""
    with contextlib.suppress(Exception):
        copied = copy.copy(value)
        if copied is not value:
            return copied
    return bare_copy(value)


def bare_copy(value: Any) -> Any:
    """An object of the same class and attributes, without a call of the class's own methods."""
    state: Any = object.__getstate__(value)
    own, slots = state if isinstance(state, tuple) else (state, {})
    copied = object.__new__(type(value))
    if own:
        vars(copied).update(own)
    for name, attribute in slots.items():
        object.__setattr__(copied, name, attribute)
    return copied


def _is_replaceable(value: Any, keys: Iterable[Key]) -> bool:
    """Whether the constructor of a dataclass accepts its fields, as `dataclasses.replace` assumes."""
    fields = {field.name for field in dataclasses.fields(value) if field.init}
    return fields.issuperset(key.name for key in keys) and fields == {*inspect.signature(type(value)).parameters}
