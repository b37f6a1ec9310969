"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

import dataclasses
import itertools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from treewright._base.jax_private import GetAttrKey, jax_trees, path_text
from treewright._base.text import short_text
from treewright._core import is_node, note
from treewright._trees.pattern import item_key, listed, missing_place
from treewright._trees.places import Place, reject_overlaps, walk, with_values
from treewright._trees.twin import EMPTY, ONE, Run, flat, quick_stand_in, stand_in, with_parts
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

    An object does not know its place, and `None`, numbers, strings and tied arrays are in many. So the function runs on
    a twin of the tree, whose nodes and containers know their places; leaves are the tree's own. Then it runs on the
    tree with another object at each place that it seems to mean, which it must return.
    """
    run = Run(where, root)
    try:
        return _selected(run, as_mask)
    finally:
        run.release()


def _selected(run: Run, as_mask: Callable[[Any], list[bool] | None]) -> Selection | list[bool]:
    root = run.root
    run.reject_added_keys()
    places, structure = _places(run), run.structure
    if not places or None in places:
        try:
            result = run.where(root.value)
        except (AttributeError, TypeError, LookupError) as error:
            note([_missing_place], error, run)
            raise
        mask = as_mask(result)
        if mask is not None:
            return mask
        if run.is_lazy and (places is None or not _fits(result, structure)):
            run = run.again(whole=True)
            places, structure = _places(run), run.structure
        if places is None or None in places:
            places, structure = _places_found(run, result, places or [None])
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
    notes, name = [], getattr(error, "name", None) or ""
    if type(run.error) is type(error) and str(run.error) == str(error):
        raised, place, item = run.missing
        if raised is run.error:
            notes = [str(missing_place(place, item_key(place.value, item)))]
        owner = run.place_of(getattr(run.error, "obj", run))
        if name and owner is not None and owner.child(GetAttrKey(name)) is None:
            notes = [str(missing_place(owner, GetAttrKey(name)))]
    if isinstance(error, TypeError) or hasattr(jax.Array, name) or hasattr(str, name):
        notes.append(HOW_CALLED)
    return " ".join(notes) or None


def _places(run: Run) -> Sequence[Any] | None:
    """The places of the objects that a function returned, as far as they are certain; None if a copy misled it."""
    places: Sequence[Place | None] = [_certain_place(run, each) for each in run.returned]
    if None in places:
        places = _places_apart(run, places)
    certain = [place for place in places if place is not None]
    if not certain:
        return places if all(id(value) in run.read for value in run.values) else None
    if run.structure is not ONE:
        reject_overlaps(certain)
    is_confirmed = _is_confirmed(run, places, certain, quick_stand_in) or _is_confirmed(run, places, certain, stand_in)
    return places if is_confirmed else None


def _is_confirmed(run: Run, places: Sequence[Place | None], certain: Sequence[Place], make: Callable[..., Any]) -> bool:
    """Whether the function returns other objects if the tree has these at the places."""
    others = [make(place.value) for place in certain]
    try:
        if len(others) == 1:  # in half the time
            result = run.where(certain[0].with_value(others[0], with_parts))
        else:
            changes = [(place.path, other) for place, other in zip(certain, others, strict=True)]
            result = run.where(with_values(run.root.value, changes, copied=with_parts))
        returned = [result] if run.structure is ONE else run.structure.flatten_up_to(result)
    except Exception:  # noqa: BLE001  the function computes with the value
        return False
    return all(map(operator.is_, itertools.compress(returned, places), others))


def _certain_place(run: Run, returned: Any) -> Place | None:
    """The place of an object that the function returned in a run; None if it may be from elsewhere."""
    place = run.place_of(returned)
    if place is None or isinstance(place.value, _SHARED):
        return None
    is_shared = run.shared and any(id(each.value) in run.shared for each in place.ancestors)
    return None if is_shared else place


def _fits(result: Any, structure: Any) -> bool:
    """Whether a result has this structure."""
    try:
        structure.flatten_up_to(result)
    except (ValueError, TypeError):
        return False
    return True


def _places_apart(run: Run, places: Sequence[Place | None]) -> Sequence[Place | None]:
    """The places, also of objects that may be from elsewhere, as far as they are certain.

    The function runs with a stand-in at each place where it read such an object. A stand-in misled it if it now reads
    something else, or returns something else with the object itself at that place: if `m.a` and `m.b` are `None`, `m.b
    if m.a is None else m.a` returns the `None` of `m.b`, but the stand-in of `m.a`. Of n places that it returned, a
    different half has the object itself in each of log2(n) runs, and in one more run all that it did not return.
    """
    values = run.values
    apart = {id(value) for value, place in zip(values, places, strict=True) if place is None} & run.read.keys()
    apart |= run.shared
    again = run.again(apart) if apart else run
    if again is run or not _is_same_way(again, run):
        return places
    found = [again.place_of(each) for each in again.returned]
    found = [place if place and place.value is value else None for place, value in zip(found, values, strict=True)]
    candidates = frozenset(place.path for key in apart - run.shared for place in again.read[key])
    claims = {i: place.path for i, place in enumerate(found) if place and place.path in candidates}
    numbers = {path: number for number, path in enumerate(dict.fromkeys(claims.values()), 1)}
    halves = [{path for path in numbers if numbers[path] >> bit & 1} for bit in range(len(numbers).bit_length())]
    for kept in {*map(frozenset, halves), candidates.difference(numbers)} - {frozenset(), candidates}:
        other = run.again(apart, kept)
        if not _is_same_way(other, run):
            return places
        for i, path in claims.items():
            place = other.place_of(other.returned[i])
            is_right = place is not None and place.path == path
            if not (other.returned[i] is values[i] if path in kept else is_right):
                found[i] = None
    return [place or new for place, new in zip(places, found, strict=True)]


def _is_same_way(other: Run, run: Run) -> bool:
    """Whether two runs read the same, and returned as many objects."""
    return other.order == run.order and other.structure == run.structure


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
    if not isinstance(value, _SHARED) and type(value) not in {list, tuple} and not is_node(value):
        # flax's FrozenDict creates its inner mappings when they are read
        same = [place for place in walk(run.root) if _has_same_leaves(place.value, value)]
        if len(same) == 1:
            return same[0]
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"The where function returned {value} for the whole tree. {HOW_CALLED}")
    raise TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which {'it may not have read from' if places else 'is not in'} {name}. To compute with "
        f"a value or change part of an array, select the whole: at(tree, where).apply(lambda value: ...). To select by "
        f"value, use a predicate: lambda path, value: ..."
    )


def _has_same_leaves(left: Any, right: Any) -> bool:
    ours, theirs = jax_trees.tree_leaves_with_path(left), jax_trees.tree_leaves_with_path(right)
    return 0 < len(ours) == len(theirs) and all(a == b and x is y for (a, x), (b, y) in zip(ours, theirs, strict=True))
