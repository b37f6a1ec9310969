"""A place in a tree, on the way that led there; and the tree with other values at its places."""

from collections.abc import Iterator, Sequence
from typing import Any, Never, cast

from treewright._nodes.classes import class_of
from treewright._nodes.representation import text
from treewright._trees.entries import NOTHING, all_entries, child_of, item_key, missing_place, with_changes
from treewright._trees.paths import Key, Path, field_key, path_text


class Place:
    """Stands for a place while a function over the tree runs, and remembers the way that led there.

    It reads the real tree, so that loops, lengths, `in` and `isinstance` answer as the tree would. What is at the place
    can't be computed with: the function says where, not what.
    """

    # Fields are read as attributes, so no plain name may be taken.
    __slots__ = ("_treewright_key", "_treewright_parent", "_treewright_value")

    def __init__(self, value: Any, key: Key = None, parent: "Place | None" = None) -> None:
        self._treewright_value = value
        self._treewright_key = key
        self._treewright_parent = parent

    @property
    def __class__(self) -> Any:
        """What `isinstance` asks for."""
        return class_of(self._treewright_value)

    def __getattr__(self, name: str) -> Any:
        key = field_key(name)
        child = child_of(self._treewright_value, key)
        if child is not NOTHING:
            return Place(child, key, self)
        if isinstance(self._treewright_value, dict) and name in {"keys", "values", "items"}:
            return getattr({key.key: place for key, place in places_in(self)}, name)
        raise missing_place(name_of(self), self._treewright_value, key)

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        return below(self, item_key(self._treewright_value, item))

    def __len__(self) -> int:
        return len(self._treewright_value)

    def __iter__(self) -> Iterator[Any]:
        if isinstance(self._treewright_value, dict):
            return iter(cast("dict[Any, Any]", self._treewright_value))
        if isinstance(self._treewright_value, list | tuple):
            return (place for _, place in places_in(self))
        raise TypeError(f"{name_of(self)} is {text(self._treewright_value)}, which has no entries to go through.")

    def __contains__(self, item: object) -> bool:
        return item in self._treewright_value

    def __repr__(self) -> str:
        return f"<the place {name_of(self)}>"

    def _treewright_refuse(self, *_: Any, **__: Any) -> Never:
        raise TypeError(
            f"A function that says where runs on places, not on values, so {name_of(self)} can't be compared or called "
            f"in it. To select by value, use a predicate: lambda path, value: ..."
        )

    __bool__ = __call__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _treewright_refuse  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


def places_in(place: Place) -> Iterator[tuple[Key, Place]]:
    for key, child in all_entries(place._treewright_value) or ():
        yield key, Place(child, key, place)


def path_to(place: Place) -> Path:
    """The keys that lead from the root to a place."""
    keys: list[Key] = []
    while place._treewright_parent is not None:
        keys.append(place._treewright_key)
        place = place._treewright_parent
    return tuple(reversed(keys))


def value_at(place: Place) -> Any:
    """What is at a place."""
    return place._treewright_value


def with_value(place: Place, value: Any) -> Any:
    """The tree with another value at one place. Only what is on the way there is copied."""
    while place._treewright_parent is not None:
        value = with_changes(place._treewright_parent._treewright_value, {place._treewright_key: value})
        place = place._treewright_parent
    return value


def with_values(tree: Any, changes: Sequence[tuple[Path, Any]], depth: int = 0) -> Any:
    """The tree with other values at the ends of some paths, of which it stands at this depth.

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
    return with_changes(
        tree, {key: with_values(child_of(tree, key), inside, depth + 1) for key, inside in below.items()}
    )


def name_of(place: Place) -> str:
    root = place
    while root._treewright_parent is not None:
        root = root._treewright_parent
    return path_text(path_to(place), class_of(root._treewright_value).__qualname__)


def below(place: Place, key: Key) -> Place:
    child = child_of(place._treewright_value, key)
    if child is NOTHING:
        raise missing_place(name_of(place), place._treewright_value, key)
    return Place(child, key, place)
