"""What a user points at: by a function over the tree, by the text of a path, or by a predicate."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from treewright._nodes.representation import text
from treewright._trees.entries import NOTHING, child_of, item_key, listed
from treewright._trees.paths import Key, Path, Pattern, Step, field_key, parse, path_text
from treewright._trees.places import Place, below, name_of, path_to, places_in, value_at
from treewright.errors import MissingPlaceError

_jax_trees: Any = jax.tree_util  # whose annotations leave the types of keys open


class Selection:
    """Places in a tree.

    `structure` is the treedef of what a function returned, None for a single place. `searched` says that a pattern or
    a predicate found the places: any number of them.
    """

    __slots__ = ("places", "searched", "structure")

    def __init__(self, places: Sequence[Place], structure: Any = None, *, searched: bool = False) -> None:
        self.places = places
        self.structure = structure
        self.searched = searched
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
        return _searched(_matching(root, where), lambda: f"{name_of(root)} has no place where the predicate is true.")
    return _by_function(root, where)


def arguments_of(function: Callable[..., Any]) -> int:
    """How many positional arguments a function has to be given."""
    if isinstance(function, types.FunctionType):  # `inspect` takes as long as a whole update
        return function.__code__.co_argcount - len(function.__defaults__ or ())
    if not callable(function):
        raise TypeError(f"where= takes a function, the text of a path or a predicate, got {text(function)}.")
    parameters = inspect.signature(function).parameters.values()
    needed = (p for p in parameters if p.default is p.empty and p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD})
    return len(list(needed))


# By a function


def _by_function(root: Place, where: Callable[[Any], Any]) -> Selection:
    found = where(root)
    places, structure = ([found], None) if type(found) is Place else jax.tree.flatten(found)
    wrong = [place for place in places if type(place) is not Place]
    if wrong or found is None:
        raise TypeError(
            f"The function that says where must return a place of the tree, or a tuple, list or dict of places, got "
            f"{text(found)}."
        )
    return Selection(places, structure)


# By text and by predicate: the topmost places that match


def _by_text(root: Place, where: str) -> Selection:
    steps = pattern_of(where).steps
    if all(map(_is_literal, steps)):
        place = root
        for step in steps:
            place = below(place, _key(place, step))
        return Selection([place])
    return _searched(_leading(root, steps), lambda: f"{name_of(root)} has no place {where}. {_names_in(root)}")


def pattern_of(where: str) -> Pattern:
    """The pattern of a text; a name alone is every field of that name."""
    return parse(f"**.{where}" if where.isidentifier() else where)


def _leading(place: Place, steps: Sequence[Step]) -> Iterator[Place]:
    if not steps:
        yield place
        return
    step, rest = steps[0], steps[1:]
    if step.kind == "deep":
        yield from _leading(place, rest)
        for _, child in places_in(place):
            yield from _leading(child, steps)
    elif _is_literal(step):
        key = _key(place, step)
        child = child_of(value_at(place), key)
        if child is not NOTHING:
            yield from _leading(Place(child, key, place), rest)
    else:
        for key, child in places_in(place):
            if step.takes(key):
                yield from _leading(child, rest)


def _is_literal(step: Step) -> bool:
    return step.kind != "deep" and "*" not in str(step.name)


def _key(place: Place, step: Step) -> Key:
    return field_key(str(step.name)) if step.kind == "field" else item_key(value_at(place), step.name)


def _names_in(place: Place) -> str:
    names = sorted({str(key) for key in _keys_in(place) if not isinstance(key, _jax_trees.SequenceKey)})
    return f"The names in it: {listed(names)}."


def _keys_in(place: Place) -> Iterator[Key]:
    for key, child in places_in(place):
        yield key
        yield from _keys_in(child)


def _matching(place: Place, predicate: Callable[[str, Any], object]) -> Iterator[Place]:
    if predicate(path_text(path_to(place)), value_at(place)):
        yield place
        return
    for _, child in places_in(place):
        yield from _matching(child, predicate)


def _searched(places: Iterable[Place], otherwise: Callable[[], str]) -> Selection:
    found = {path_to(place): place for place in places}
    topmost = [place for path, place in found.items() if not any(path[:end] in found for end in range(len(path)))]
    if not topmost:
        raise MissingPlaceError(otherwise())
    return Selection(topmost, searched=True)


def _refuse_overlaps(places: Sequence[Place]) -> None:
    selected: dict[Path, Place] = {}
    for place in places:
        path = path_to(place)
        if path in selected:
            raise ValueError(f"{name_of(place)} is selected twice, and could be given two values. Select it once.")
        selected[path] = place
    for path, place in selected.items():
        above = next((selected[path[:end]] for end in range(len(path)) if path[:end] in selected), None)
        if above is not None:
            raise ValueError(
                f"{name_of(place)} is inside {name_of(above)}, which is selected too: one change would undo the other. "
                f"Select one of them, or make two calls."
            )
