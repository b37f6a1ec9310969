"""What a user points at: by a function over the tree, by the text of a path, or by a predicate."""

import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax

from treewright._nodes.representation import text
from treewright._trees.entries import NOTHING, child_of, item_key, listed
from treewright._trees.paths import Key, Path, Pattern, Step, field_key, parse, path_text
from treewright._trees.places import Place
from treewright._trees.recorder import Recorder, place_of_recorder
from treewright.errors import MissingPlaceError

_jax_trees: Any = jax.tree_util  # whose annotations leave the types of keys open


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
    names = sorted({str(key) for key in _keys_in(place) if not isinstance(key, _jax_trees.SequenceKey)})
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
