"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from treewright._base.jax_private import GetAttrKey, jax_trees, path_text
from treewright._base.text import short_text
from treewright._core import is_node, note
from treewright._trees.pattern import listed, missing_place
from treewright._trees.places import Place, reject_overlaps, walk
from treewright._trees.twin import EMPTY, ONE, Run, StandIn, flat
from treewright.errors import MissingPlaceError

_MAX_SHOWN = 5  # places that a message lists
_SHARED = (types.NoneType, int, str, bytes, type, types.FunctionType)  # an object of these may be in many places
HOW_CALLED = (
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

    An object does not know its place, and `None`, numbers, strings and tied arrays are in many. So the function also
    runs on a twin of the tree, whose nodes and containers know their places; leaves are the tree's own. If it reads a
    returned object at several places, it runs again with a stand-in at each of these.
    """
    run = Run(where, root)
    try:
        return _selected(run, as_mask)
    finally:
        run.release()


def _selected(run: Run, as_mask: Callable[[Any], list[bool] | None]) -> Selection | list[bool]:
    root = run.root
    run.reject_added_keys()
    try:
        result = run.where(root.value)
    except (AttributeError, TypeError, LookupError) as error:
        note([_missing_place], error, run)
        raise
    try:
        values = run.structure.flatten_up_to(result)
    except (ValueError, TypeError):
        places: Sequence[Any] = [None]
    else:
        places = list(map(run.place_of, run.returned, values))
        if None in places and run.read:
            places = _places_apart(run, values, places)
    structure = run.structure
    if None in places:
        mask = as_mask(result)
        if mask is not None:
            return mask
        places, structure = _places_found(run, result, places)
    if not places:
        raise MissingPlaceError(f"The where function returned no places of {root.name}, but {short_text(result)}.")
    if structure is ONE:
        return Selection(places)
    reject_overlaps(places)
    return Selection(places, structure)


def _missing_place(error: BaseException, run: Run) -> str | None:
    """The place that the tree lacks, if it is certain, and how the function is called."""
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return None
    named = run.again(naming=True)
    missing, name = named.missing, getattr(error, "name", None) or ""
    places = {place.path: place for place in named.read.get(id(getattr(error, "obj", None)), ())}
    for place in places.values():
        if name and len(places) == 1 and place.child(GetAttrKey(name)) is None:
            missing = missing_place(place, GetAttrKey(name))
    is_meant_for_leaf = isinstance(error, TypeError) or hasattr(jax.Array, name) or hasattr(str, name)
    notes = [*([] if missing is None else [str(missing)]), *([HOW_CALLED] if is_meant_for_leaf else [])]
    return " ".join(notes) or None


def _places_apart(run: Run, values: Sequence[Any], places: Sequence[Place | None]) -> Sequence[Place | None]:
    """The places, also of objects that the function reads at several places, as far as they are certain.

    The function runs with a stand-in at each of these places. A stand-in misled it if it now reads something else, or
    returns something else with the object itself at that place: if `m.a` and `m.b` are `None`, `m.b if m.a is None
    else m.a` returns the `None` of `m.b`, but the stand-in of `m.a`. Of n places that it returned, a different half
    has the object itself in each of log2(n) runs.
    """
    apart = {id(value) for value, place in zip(values, places, strict=True) if place is None} & run.read.keys()
    apart |= run.shared
    if not apart:
        return places
    again = run.again(apart)

    def is_same_way(other: Run) -> bool:
        return other.order == run.order and len(other.returned) == len(values)

    if not is_same_way(again):
        return places
    found = list(map(again.place_of, again.returned, values))
    stood_in = (issubclass(type(returned), StandIn) for returned in again.returned)
    claims = {i: place.path for i, place in enumerate(found) if next(stood_in) and place}
    numbers = {path: number for number, path in enumerate(dict.fromkeys(claims.values()), 1)}
    for bit in range(len(numbers).bit_length()):
        kept = {path for path, number in numbers.items() if number >> bit & 1}
        other = run.again(apart, kept)
        if not is_same_way(other):
            return places
        for i, path in claims.items():
            place = other.place_of(other.returned[i], values[i])
            is_right = place is not None and place.path == path
            if not (other.returned[i] is values[i] if path in kept else is_right):
                found[i] = None
    return [place or new for place, new in zip(places, found, strict=True)]


def _places_found(run: Run, result: Any, places: Sequence[Place | None]) -> tuple[list[Place], Any]:
    """The places, and for each object without one the only place that the tree has for it; and the result's treedef."""
    by_id: dict[int, list[Place]] = {}
    for place in walk(run.root, Place.entries):
        by_id.setdefault(id(place.value), []).append(place)
    by_id.pop(id(EMPTY), None)
    values, structure = flat(result, by_id)
    if structure != run.structure:
        places = [None] * len(values)
    found = [
        place or _only_place(run, each, by_id.get(id(each), [])) for place, each in zip(places, values, strict=True)
    ]
    return found, structure


def _only_place(run: Run, value: Any, places: Sequence[Place]) -> Place:
    """The only place of an object that a function returned, or the only place with the same leaves."""
    name = run.root.name
    if len(places) > 1:
        paths = [path_text(place.path) or "the whole tree" for place in places]
        raise ValueError(
            f"The where function returned {short_text(value)}, which is at {len(places)} places of {name}: "
            f"{listed(paths, _MAX_SHOWN)}. Select by path, or with a predicate: lambda path, value: ..."
        )
    if places and not isinstance(value, _SHARED):
        return places[0]
    if type(value) not in {list, tuple} and not is_node(value):
        # flax's FrozenDict creates its inner mappings when they are read
        same = [place for place in walk(run.root) if _has_same_leaves(place.value, value)]
        if len(same) == 1:
            return same[0]
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"The where function returned {value} for the whole tree. {HOW_CALLED}")
    raise TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which {'it did not read from' if places else 'is not in'} {name}. To compute with a "
        f"value or change part of an array, select the whole: at(tree, where).apply(lambda value: ...). To select by "
        f"value, use a predicate: lambda path, value: ..."
    )


def _has_same_leaves(left: Any, right: Any) -> bool:
    ours, theirs = jax_trees.tree_leaves_with_path(left), jax_trees.tree_leaves_with_path(right)
    return 0 < len(ours) == len(theirs) and all(a == b and x is y for (a, x), (b, y) in zip(ours, theirs, strict=True))
