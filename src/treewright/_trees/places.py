"""A place in a tree, with the way that led there; and the tree with other values at its places."""

from collections.abc import Iterator, Sequence
from typing import Any

from treewright._nodes.classes import class_of
from treewright._trees.entries import NOTHING, all_entries, child_of, missing_place, with_changes
from treewright._trees.paths import Key, Path, path_text


class Place:
    """A value in a tree, its key, and the place above it; the root has neither."""

    __slots__ = ("above", "key", "value")

    def __init__(self, value: Any, key: Key = None, above: "Place | None" = None) -> None:
        self.value: Any = value
        self.key: Key = key
        self.above: Place | None = above

    @property
    def path(self) -> Path:
        """The keys that lead here from the root."""
        keys: list[Key] = []
        place = self
        while place.above is not None:
            keys.append(place.key)
            place = place.above
        return tuple(reversed(keys))

    @property
    def name(self) -> str:
        """`Model.layers[0]`: the path, from the class of the root."""
        root = self
        while root.above is not None:
            root = root.above
        return path_text(self.path, class_of(root.value).__qualname__)

    def below(self, key: Key) -> "Place":
        """The place under a key.

        Raises:
            MissingPlaceError: If there is nothing under it.
        """
        child = child_of(self.value, key)
        if child is NOTHING:
            raise missing_place(self.name, self.value, key)
        return Place(child, key, self)

    def entries(self) -> "Iterator[Place]":
        """All places directly below."""
        for key, child in all_entries(self.value) or ():
            yield Place(child, key, self)

    def with_value(self, value: Any) -> Any:
        """The whole tree with another value here. Only what is on the way is copied."""
        place = self
        while place.above is not None:
            value = with_changes(place.above.value, {place.key: value})
            place = place.above
        return value


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
