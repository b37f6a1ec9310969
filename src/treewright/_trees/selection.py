"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

import dataclasses
import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from treewright._base.text import short_text
from treewright._core import note
from treewright._trees.pattern import listed, missing_place
from treewright._trees.places import Place, reject_overlaps, walk, with_values
from treewright._trees.twin import ONE, Run, flat, is_leaf, stand_in, with_parts
from treewright.errors import MissingPlaceError

Where = Callable[[Any], Any]
HOW_CALLED = (
    "A function of one argument is called with the whole tree and returns places in it; a predicate has two, "
    "lambda path, value: ..."
)


@dataclasses.dataclass(slots=True)  # not frozen, which takes twice as long
class Selection:
    """The places that `where` selects."""

    places: Sequence[Place]
    structure: Any = ONE  # the treedef of the function's result
    is_search: bool = False  # True for a pattern, predicate, class or mask, which may select any number of places


def select_by_function(
    where: Where, root: Place, as_mask: Callable[[Any], list[bool] | None]
) -> Selection | list[bool]:
    """The places of the objects that a function returns for the tree; or if it returns a mask, the mask.

    An object does not know its place, and `None`, numbers, strings and tied arrays are in many. So the function runs on
    a twin of the tree, whose nodes and containers know their places; leaves are the tree's own. If the twin may have
    misled it, it runs on the tree with another object at each place that it seems to mean, which it must return. What
    it does not return then is selected only if the tree has it at one place.
    """
    run = Run(where, root)
    places, structure = _places(where, root, run), run.structure
    if not places:
        try:
            result = where(root.value)
        except (AttributeError, TypeError, LookupError) as error:
            note([_missing_place], error, run)
            raise
        mask = None if all(run.found) else as_mask(result)
        if mask is not None:
            return mask
        if places is None and run.is_lazy:
            run = Run(where, root, whole=True)
            places, structure = _places(where, root, run), run.structure
        if not places:
            places, structure = _places_found(where, root, result)
    return Selection(places, structure)


def _missing_place(error: BaseException, run: Run) -> str | None:
    """The place that the tree lacks, if it is certain, and how the function is called."""
    if isinstance(error, jax.errors.JAXTypeError | jax.errors.JAXIndexError):
        return None
    notes = [str(missing_place(*run.lacks))] if run.lacks and run.failure == repr(error) else []
    name = getattr(error, "name", None) or ""
    if isinstance(error, TypeError) or hasattr(jax.Array, name) or hasattr(str, name):
        notes.append(HOW_CALLED)
    return " ".join(notes) or None


def _places(where: Where, root: Place, run: Run) -> list[Place] | None:
    """The places of the objects that a function returned in a run; none if they are in doubt, None if it was misled.

    An object that may be from elsewhere needs another run, with a stand-in at each place where the function read it. A
    stand-in misled the function if it now reads something else: if `m.a` and `m.b` are `None`, `m.b if m.a is None else
    m.a` returns the `None` of `m.b`, but the stand-in of `m.a`. Then the function runs on the tree with other objects
    at all the places. For n of these objects, log2(n) more runs have others where it read them, but not at a different
    half of their places.
    """
    if not all(run.found):
        return None
    places = [found[0] for found in run.found]
    in_doubt = [i for i, found in enumerate(run.found) if len(found) > 1 or _may_be_elsewhere(found[0], run.shared)]
    read: list[Place] = []
    has_ties = False
    if in_doubt:
        ids = {id(places[i].value) for i in in_doubt}
        again = Run(where, root, ids | run.shared, whole=run.whole)
        if again.way != run.way or again.structure != run.structure or not all(again.found):
            return []
        for i in in_doubt:
            places[i] = again.found[i][0]
        read = [place for key in ids for place in again.read.get(key, ()) if is_leaf(place.value)]
        has_ties = bool(run.shared) or len(read) > len(in_doubt)  # else that run had others at just these places
    if run.structure is not ONE:
        reject_overlaps(places)
    if (run.is_lazy or has_ties) and not _returns_others(where, root, run.structure, places, places):
        return None
    return [] if read and not _is_as_claimed(where, root, run.structure, places, read) else places


def _may_be_elsewhere(place: Place, shared: set[int]) -> bool:
    return _may_be_constant(place.value) or bool(shared and any(id(each.value) in shared for each in place.ancestors))


def _may_be_constant(value: Any) -> bool:
    """Whether the function may have a leaf from elsewhere: `None`, numbers, texts, enum members, classes."""
    return not isinstance(value, jax.Array | np.ndarray) and is_leaf(value)


def _is_as_claimed(where: Where, root: Place, structure: Any, places: list[Place], read: list[Place]) -> bool:
    """Whether the function returns objects in doubt themselves if there are others where it read them as well."""
    selected = {place.path for place in places}
    others = {place.path: place for place in read}
    others = {path: others[path] for path in others if not any(path[:end] in selected for end in range(len(path)))}
    in_doubt = selected & others.keys()
    for bit in range(len(in_doubt).bit_length()):
        half = {path for n, path in enumerate(in_doubt, 1) if n >> bit & 1}
        changed = [place for path, place in others.items() if path not in half]
        if changed and not _returns_others(where, root, structure, places, changed):
            return False
    return True


def _returns_others(where: Where, root: Place, structure: Any, places: list[Place], changed: list[Place]) -> bool:
    """Whether the function returns the objects at the places also from a tree with others where it is changed."""
    others = [stand_in(place.value) for place in changed]
    try:
        result = where(with_values(root.value, changed, others, with_parts))
        returned = [result] if structure is ONE else structure.flatten_up_to(result)
    except Exception:  # noqa: BLE001  the function computes with the value
        return False
    if changed is places:
        return all(map(operator.is_, returned, others))
    by_path = {place.path: other for place, other in zip(changed, others, strict=True)}
    return all(each is by_path.get(place.path, place.value) for each, place in zip(returned, places, strict=True))


def _places_found(where: Where, root: Place, result: Any) -> tuple[list[Place], Any]:
    """The only places that the tree has for the objects that a function returned, and the result's treedef."""
    by_id: dict[int, list[Place]] = {}
    for place in walk(root, Place.entries):
        by_id.setdefault(id(place.value), []).append(place)
    by_id.pop(id(()), None)  # one object for all
    values, structure = flat(result, by_id)
    if not values:
        raise MissingPlaceError(f"The where function returned no places of {root.name}, but {short_text(result)}.")
    return [_only_place(where, root, each, by_id.get(id(each), [])) for each in values], structure


def _only_place(where: Where, root: Place, value: Any, places: Sequence[Place]) -> Place:
    """The only place of an object that a function returned."""
    name = root.name
    if len(places) > 1:
        shown = listed([place.text for place in places])
        raise ValueError(
            f"The where function returned {short_text(value)}, which is at {len(places)} places of {name}: {shown}. "
            f"Select by path, or with a predicate: lambda path, value: ..."
        )
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"The where function returned {value} for the whole tree. {HOW_CALLED}")
    if places and (not _may_be_constant(value) or _depends(where, places[0])):
        return places[0]
    raise TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which {'it may not have read from' if places else 'is not in'} {name}. To compute with "
        f"a value or change part of an array, select the whole: at(tree, where).apply(lambda value: ...). To select by "
        f"value, use a predicate: lambda path, value: ..."
    )


def _depends(where: Where, place: Place) -> bool:
    """Whether a function that returned the object at a place does not, or raises, if another is there."""
    try:
        values, _ = flat(where(place.with_value(stand_in(place.value), with_parts)))
    except Exception:  # noqa: BLE001  the function can't compute with the other
        return True
    return all(value is not place.value for value in values)
