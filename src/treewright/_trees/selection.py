"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.errors import JAXIndexError, JAXTypeError

from treewright._base.jax_private import Path, jax_trees, path_text
from treewright._base.text import short_text
from treewright._core import is_node
from treewright._trees.level import Place, walk
from treewright._trees.pattern import listed
from treewright._trees.twin import EMPTY, ONE, Run, StandIn, flat_result
from treewright.errors import MissingPlaceError

_MAX_SHOWN = 5  # places that a message lists
# An object of these may be at many places.
_SHARED = (types.NoneType, int, str, bytes, type, types.FunctionType)
_OF_TRACERS = (JAXTypeError, JAXIndexError)
_HOW_CALLED = (
    "A function of one argument is called with the whole tree and returns places in it; a predicate has two, "
    "lambda path, value: ..."
)


@dataclasses.dataclass(slots=True)  # not frozen, which takes twice as long
class Selection:
    """The places that `where` selects."""

    places: Sequence[Place]
    structure: Any = None  # the treedef of the function's result; None for a single place
    is_search: bool = False  # True for a pattern, predicate, class or mask, which may select any number of places


def select_by_function(
    where: Callable[[Any], Any], root: Place, as_mask: Callable[[Any], list[bool] | None]
) -> Selection | list[bool]:
    """The places of the objects that a function returns for the tree; or if it returns a mask, the mask.

    An object does not know its place, and `None`, numbers, strings and tied arrays are in many. So the function runs
    again, on a twin of the tree: each node and container is a copy of the same class, made when it is read, and knows
    its place. Leaves are the tree's own, so the function does the same as before. If it reads a returned object at
    several places, it runs once more with a stand-in at each of these.
    """
    run = Run(where, root)
    if run.added is not None:
        raise run.added
    result = _result_for_tree(where, root)
    structure = run.structure
    try:
        values = structure.flatten_up_to(result)
    except (ValueError, TypeError):
        places: Sequence[Any] = [None]
    else:
        places = list(map(run.place_of, run.returned, values))
        if None in places and run.read:
            places = _places_apart(run, values, places)
    if None in places:
        mask = as_mask(result)
        if mask is not None:
            return mask
        places, structure = _places_found(run, result, places)
    if not places:
        raise MissingPlaceError(f"The where function returned no places of {root.name}, but {short_text(result)}.")
    if structure is ONE:
        return Selection(places)
    _reject_overlaps(places)
    return Selection(places, structure)


def _result_for_tree(where: Callable[[Any], Any], root: Place) -> Any:
    """The result of a function for the tree. An error gets a note with the place that the tree does not have."""
    try:
        return where(root.value)
    except Exception as error:
        if isinstance(error, AttributeError | TypeError | LookupError) and not isinstance(error, _OF_TRACERS):
            missing = Run(where, root, naming="missing").missing
            if missing is not None:
                error.add_note(str(missing))
            if missing is None or hasattr(jax.Array, getattr(error, "name", None) or ""):  # meant for a leaf
                error.add_note(_HOW_CALLED)
        raise


def _places_apart(run: Run, values: Sequence[Any], places: Sequence[Place | None]) -> Sequence[Place | None]:
    """The places, also of objects that the function reads at several places, as far as they are certain.

    The function runs with a stand-in at each of these places. It was misled if it now reads something else, or, with
    the objects themselves at the places that it returned, returns something else: if `m.a` and `m.b` are `None`, then
    `m.b if m.a is None else m.a` returns the `None` of `m.b`, but the stand-in of `m.a`.
    """
    apart = {id(value) for value, place in zip(values, places, strict=True) if place is None} & run.read.keys()
    apart |= run.shared
    if not apart:
        return places
    again = Run(run.where, run.root, apart=apart)
    if again.order != run.order or len(again.returned) != len(values):
        return places
    found = [again.place_of(returned, value) for returned, value in zip(again.returned, values, strict=True)]
    codes = {index: place for index, place in enumerate(found) if type(again.returned[index]) is StandIn and place}
    claimed = dict.fromkeys(place.path for place in codes.values())
    numbers = {path: number for number, path in enumerate(claimed, 1)}
    for bit in range(len(numbers).bit_length()):
        kept = {path for path, number in numbers.items() if number >> bit & 1}
        other = Run(run.where, run.root, apart=apart, kept=kept)
        if other.order != run.order or len(other.returned) != len(values):
            return places
        for index, place in codes.items():
            each = other.returned[index]
            if each is not values[index] if place.path in kept else other.path_of(each) != place.path:
                found[index] = None
    return [place if place is not None else new for place, new in zip(places, found, strict=True)]


def _places_found(run: Run, result: Any, places: Sequence[Place | None]) -> tuple[list[Place], Any]:
    """The places, and for each object without one the only place that the tree has for it; and the result's treedef."""
    by_id: dict[int, list[Place]] = {}
    for place in walk(run.root, Place.entries):
        by_id.setdefault(id(place.value), []).append(place)
    by_id.pop(id(EMPTY), None)
    values, structure = flat_result(result, by_id)
    returned: Sequence[Any] = run.returned
    if structure != run.structure:
        places = returned = [None] * len(values)
    found = [
        place or _only_place(run, value, by_id.get(id(value), []), each)
        for value, place, each in zip(values, places, returned, strict=True)
    ]
    return found, structure


def _only_place(run: Run, value: Any, places: Sequence[Place], returned: Any) -> Place:
    """The only place of an object that a function returned, or the place with the same leaves."""
    name = run.root.name
    if len(places) > 1:
        paths = [path_text(place.path) or "the whole tree" for place in places]
        raise ValueError(
            f"The where function returned {short_text(value)}, which is at {len(places)} places of {name}: "
            f"{listed(paths, _MAX_SHOWN)}. Select by path, or with a predicate: lambda path, value: ..."
        )
    if places and not (isinstance(value, _SHARED) or value is EMPTY):
        return places[0]
    if returned is not None:  # flax's FrozenDict creates its inner mappings when they are read
        same = [place for place in walk(run.root) if _has_same_leaves(place.value, value)]
        if type(value) not in {list, tuple} and not is_node(value) and len(same) == 1:
            return same[0]
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"The where function returned {value} for the whole tree. {_HOW_CALLED}")
    missing = None if value is None else Run(run.where, run.root, naming="computed").missing
    raise missing or TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which {'it did not read from' if places else 'is not in'} {name}. To change values: "
        f"at(tree, where).apply(lambda value: ...). To select by value, use a predicate: lambda path, value: ..."
    )


def _has_same_leaves(left: Any, right: Any) -> bool:
    ours, theirs = jax_trees.tree_leaves_with_path(left), jax_trees.tree_leaves_with_path(right)
    return 0 < len(ours) == len(theirs) and all(a == b and x is y for (a, x), (b, y) in zip(ours, theirs, strict=True))


def _reject_overlaps(places: Sequence[Place]) -> None:
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
