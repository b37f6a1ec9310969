"""What a user points at: a place in a tree, by a function, a path's text or a name."""

import inspect
import operator
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Never

import jax

from treewright._jax import SequenceKey
from treewright._trees.level import NOTHING, all_entries, child_of, item_key, listed, missing_place, with_changes
from treewright._trees.paths import Key, Path, Pattern, Step, field_key, parse, path_text
from treewright._values.classes import class_of
from treewright._values.text import text
from treewright.errors import MissingPlaceError


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


class Selection:
    """Places in a tree.

    `structure` is the treedef of what a function returned, None for a single place. `searched` says that a pattern or
    a predicate found the places: any number of them.
    """

    __slots__ = ("places", "searched", "structure")

    def __init__(self, places: Sequence[Place], structure: Any = None, *, searched: bool = False) -> None:
        self.places: Sequence[Place] = places
        self.structure: Any = structure
        self.searched: bool = searched
        if len(places) > 1:
            _refuse_overlaps(places)


def select(tree: Any, where: str | Callable[..., Any]) -> Selection:
    """The places that `where` points at.

    Raises:
        MissingPlaceError: If there is no such place.
        TypeError: If `where` is no function of one or two arguments, or does not return places.
        ValueError: If a text is no path, or one place is selected twice or contains another.
    """
    root = Place(tree)
    if isinstance(where, str):
        return _by_text(root, where)
    if arguments_of(where) == 2:
        return _searched(_matching(root, where), lambda: f"{root.name} has no place where the predicate is true.")
    return _by_function(root, where)


def arguments_of(function: Callable[..., Any]) -> int:
    """How many positional arguments a function has to be given."""
    if isinstance(function, types.FunctionType):  # `inspect` takes as long as a whole update
        return function.__code__.co_argcount - len(function.__defaults__ or ())
    if not callable(function):
        raise TypeError(f"where= takes a function, the text of a path or a predicate, got {text(function)}.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # attrgetter, itemgetter and others of C
        return 1
    needed = (p for p in parameters if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD})
    return len(list(needed))


# By a function


def _by_function(root: Place, where: Callable[[Any], Any]) -> Selection:
    found = where(Recorder(root))
    if type(found) is Recorder:
        return Selection([place_of_recorder(found)])
    recorders, structure = jax.tree.flatten(found, is_leaf=_is_no_container)
    if any(type(recorder) is not Recorder for recorder in recorders):
        raise TypeError(
            f"The function that says where must return a place of the tree, or a tuple, list or dict of places, got "
            f"{text(found)}."
        )
    return Selection(list(map(place_of_recorder, recorders)), structure)


def _is_no_container(value: object) -> bool:
    return not isinstance(value, tuple | list | dict)


# By text and by predicate: the topmost places that match


def _by_text(root: Place, where: str) -> Selection:
    steps = pattern_of(where).steps
    if all(map(_is_literal, steps)):
        place = root
        for step in steps:
            place = place.below(_key(place, step))
        return Selection([place])
    return _searched(_leading(root, steps), lambda: f"{root.name} has no place {where}. {_names_in(root)}")


def pattern_of(where: str) -> Pattern:
    """The pattern of a text; a name alone is every field and every dict entry of that name."""
    if where.isidentifier():
        return Pattern(where, (Step("deep", "**"), Step("name", where)))
    return parse(where)


def _leading(place: Place, steps: Sequence[Step]) -> Iterator[Place]:
    if not steps:
        yield place
        return
    step, rest = steps[0], steps[1:]
    if step.kind == "deep":
        yield from _leading(place, rest)
        for child in place.entries():
            yield from _leading(child, steps)
    elif _is_literal(step):
        key = _key(place, step)
        child = child_of(place.value, key)
        if child is not NOTHING:
            yield from _leading(Place(child, key, place), rest)
    else:
        for child in place.entries():
            if step.takes(child.key):
                yield from _leading(child, rest)


def _is_literal(step: Step) -> bool:
    return step.kind in {"field", "item"} and "*" not in str(step.name)


def _key(place: Place, step: Step) -> Key:
    return field_key(str(step.name)) if step.kind == "field" else item_key(place.value, step.name)


def _names_in(place: Place) -> str:
    names = sorted({str(key) for key in _keys_in(place) if not isinstance(key, SequenceKey)})
    return f"The names in it: {listed(names)}."


def _keys_in(place: Place) -> Iterator[Key]:
    for child in place.entries():
        yield child.key
        yield from _keys_in(child)


def _matching(place: Place, predicate: Callable[[str, Any], object]) -> Iterator[Place]:
    if predicate(path_text(place.path), place.value):
        yield place
        return
    for child in place.entries():
        yield from _matching(child, predicate)


def _searched(places: Iterable[Place], otherwise: Callable[[], str]) -> Selection:
    found = {place.path: place for place in places}
    topmost = [place for path, place in found.items() if not any(path[:end] in found for end in range(len(path)))]
    if not topmost:
        raise MissingPlaceError(otherwise())
    return Selection(topmost, searched=True)


def _refuse_overlaps(places: Sequence[Place]) -> None:
    selected: dict[Path, Place] = {}
    for place in places:
        path = place.path
        if path in selected:
            raise ValueError(f"{place.name} is selected twice, and could be given two values. Select it once.")
        selected[path] = place
    for path, place in selected.items():
        above = next((selected[path[:end]] for end in range(len(path)) if path[:end] in selected), None)
        if above is not None:
            raise ValueError(
                f"{place.name} is inside {above.name}, which is selected too: one change would undo the other. "
                f"Select one of them, or make two calls."
            )
