"""What a function over a tree gets in place of the tree: it remembers where the function goes."""

import operator
from collections.abc import Iterator
from typing import Any, Never

from treewright._nodes.classes import class_of
from treewright._nodes.representation import text
from treewright._trees.entries import NOTHING, child_of, item_key
from treewright._trees.paths import field_key
from treewright._trees.places import Place


class Recorder:
    """Stands for a place while a function over the tree runs.

    It reads the real tree, so that loops, lengths, `in` and `isinstance` answer as the tree would. What is at the place
    can't be computed with: the function says where, not what.
    """

    # Fields are read as attributes, so no name that a field may have is taken.
    __slots__ = ("_treewright_place",)

    def __init__(self, place: Place) -> None:
        self._treewright_place = place

    def __getattr__(self, name: str) -> Any:
        place, key = self._treewright_place, field_key(name)
        child = child_of(place.value, key)
        if child is not NOTHING:
            return Recorder(Place(child, key, place))
        if isinstance(place.value, dict) and name in {"keys", "values", "items"}:
            return getattr({entry.key.key: Recorder(entry) for entry in place.entries()}, name)
        return place.below(key)  # raises

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            return [self[index] for index in range(*item.indices(len(self)))]
        place = self._treewright_place
        return Recorder(place.below(item_key(place.value, item)))

    def __len__(self) -> int:
        return len(self._treewright_place.value)

    def __iter__(self) -> Iterator[Any]:
        place = self._treewright_place
        if isinstance(place.value, dict):
            return iter(self.keys())
        if isinstance(place.value, list | tuple):
            return map(Recorder, place.entries())
        raise TypeError(f"{place.name} is {text(place.value)}, which has no entries to go through.")

    def __contains__(self, item: object) -> bool:
        return item in self._treewright_place.value

    def __repr__(self) -> str:
        return f"<the place {self._treewright_place.name}>"

    def _treewright_refuse(self, *_: Any, **__: Any) -> Never:
        raise TypeError(
            f"A function that says where runs on places, not on values, so {self._treewright_place.name} can't be "
            f"compared or called in it. To select by value, use a predicate: lambda path, value: ..."
        )

    __bool__ = __call__ = __lt__ = __le__ = __gt__ = __ge__ = _treewright_refuse
    # Checkers know these of every object, and by other types; isinstance() asks for the class.
    locals().update(
        __eq__=_treewright_refuse,
        __ne__=_treewright_refuse,
        __hash__=None,
        __class__=property(lambda self: class_of(self._treewright_place.value)),
    )


place_of_recorder: Any = operator.attrgetter("_treewright_place")
