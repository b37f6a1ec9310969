"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

import collections
import dataclasses
import inspect
import operator
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Never

import jax
import numpy as np

from treewright._base.jax_private import GetAttrKey, Path, path_text
from treewright._base.text import short_text
from treewright._core import is_node
from treewright._trees.level import LEAVES, Place, all_entries, walk
from treewright._trees.pattern import below, item_key, listed
from treewright.errors import MissingPlaceError

_MAX_SHOWN = 5  # places that a message lists
_SHARED = (types.NoneType, int, str, bytes, type, types.FunctionType)  # an object of these may be in many places
_EMPTY: Any = ()  # and so may this one
_STRUCTURES = (tuple, list, dict)  # of several places
_ONE = jax.tree.structure(0)  # the treedef of a single object
_NO_RESULT = object()  # the result of a run that raised
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

    An object does not know its place, and `None`, numbers and strings are in many. So the function runs again, with
    recorders for the nodes and containers, which log the leaves that it reads. The leaves are the tree's own, so the
    function does the same as before. Objects that it did not read are looked for in the whole tree.
    """
    run = _Run(where, root)
    if run.missing is not None and run.would_add:
        raise run.missing
    result = _result_for_tree(where, root)
    structure = run.structure
    try:
        values = structure.flatten_up_to(result)
    except (ValueError, TypeError):  # to the functions of `jax.tree` a recorder is a leaf
        places: Sequence[Any] = [None]
    else:
        places = list(map(run.place_of, run.returned, values))
        if None in places and run.read:
            places = _places_among(run, values, places)
    if None in places:
        mask = as_mask(result)
        if mask is not None:
            return mask
        places, structure = _places_found(run, result, places)
    if not places:
        raise MissingPlaceError(f"The where function returned no places of {root.name}, but {short_text(result)}.")
    if structure is _ONE:
        return Selection(places)
    _reject_overlaps(places)
    return Selection(places, structure)


def _result_for_tree(where: Callable[[Any], Any], root: Place) -> Any:
    """The result of a function for the tree; an error names the place that the tree does not have."""
    try:
        return where(root.value)
    except Exception as error:
        missing = _Run(where, root, None).missing
        reason = error if missing is None else missing
        if missing is None or hasattr(jax.Array, getattr(error, "name", None) or ""):  # meant for a leaf
            reason.add_note(_HOW_CALLED)
        if missing is None:
            raise
        raise missing from error


def _places_among(run: "_Run", values: Sequence[Any], places: Sequence[Place | None]) -> Sequence[Place | None]:
    """The places, also of those leaves that a run has read at several places, as far as they are certain.

    The function runs with recorders for these leaves too, which know their places, and then only with recorders for
    those that it did not return. A recorder misled it if it now reads other leaves, or returns one of these: if `m.a`
    and `m.b` are `None`, then `m.b if m.a is None else m.a` returns the `None` of `m.b`, but the recorder of `m.a`.
    """
    unsure = {id(value) for value, place in zip(values, places, strict=True) if place is None} & run.read.keys()
    paths = {path for key in unsure for path in run.paths(key)}
    again = _Run(run.where, run.root, paths)
    others = paths - {_place_of(each).path for each in again.returned if type(each) is _Recorder}
    without = _Run(run.where, run.root, others) if others else run
    is_same_way = all(again.paths(key) == run.paths(key) for key in unsure)
    if not is_same_way or not len(again.returned) == len(without.returned) == len(values):
        return places

    def place_of(value: Any, place: Place | None, recorder: Any, other: Any) -> Place | None:
        if place is not None or type(recorder) is not _Recorder or other is not value:
            return place
        return _place_of(recorder) if _place_of(recorder).value is value else None

    return list(map(place_of, values, places, again.returned, without.returned))


def _places_found(run: "_Run", result: Any, places: Sequence[Place | None]) -> tuple[list[Place], Any]:
    """The places, and for each object without one the only place that the tree has for it; and the result's treedef."""
    by_id: dict[int, list[Place]] = {}
    for place in walk(run.root, Place.entries):
        by_id.setdefault(id(place.value), []).append(place)
    values, structure = _flat(result, by_id)
    returned: Sequence[Any] = run.returned
    if structure != run.structure:
        places = returned = [None] * len(values)
    found = [
        place or _only_place(run, value, by_id.get(id(value), []), recorder)
        for value, place, recorder in zip(values, places, returned, strict=True)
    ]
    return found, structure


def _only_place(run: "_Run", value: Any, places: Sequence[Place], recorder: Any) -> Place:
    """The only place of an object that a function returned, or the place of its recorder."""
    name = run.root.name
    if len(places) > 1:
        paths = [path_text(place.path) or "the whole tree" for place in places]
        raise ValueError(
            f"The where function returned {short_text(value)}, which is at {len(places)} places of {name}: "
            f"{listed(paths, _MAX_SHOWN)}. Select by path, or with a predicate: lambda path, value: ..."
        )
    if places and not (isinstance(value, _SHARED) or value is _EMPTY):
        return places[0]
    if type(recorder) is _Recorder and _has_same_leaves(_place_of(recorder).value, value):
        return _place_of(recorder)  # flax's FrozenDict creates its inner mappings when they are read
    if isinstance(value, bool | np.bool_):
        raise TypeError(f"The where function returned {value} for the whole tree. {_HOW_CALLED}")
    missing = _Run(run.where, run.root, None).missing
    raise missing or TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which {'it did not read from' if places else 'is not in'} {name}. To change values: "
        f"at(tree, where).apply(lambda value: ...). To select by value, use a predicate: lambda path, value: ..."
    )


def _has_same_leaves(left: Any, right: Any) -> bool:
    ours, theirs = jax.tree.leaves(left), jax.tree.leaves(right)
    return 0 < len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def _flat(result: Any, places: Collection[int] = ()) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict, and its treedef."""
    if _is_object(result, places):
        return [result], _ONE
    return jax.tree.flatten(result, is_leaf=lambda value: _is_object(value, places))


def _is_object(value: Any, places: Collection[int]) -> bool:
    """Whether a result is not a structure of several. A tuple that is itself a place is one object."""
    return type(value) is _Recorder or not isinstance(value, _STRUCTURES) or (id(value) in places and len(value) > 0)


# The recorder


class _Run:
    """One call of a function with a recorder for the tree: what it returns, and the leaves that it reads."""

    __slots__ = ("is_complete", "missing", "read", "recorded", "returned", "root", "structure", "where", "would_add")

    def __init__(self, where: Callable[[Any], Any], root: Place, recorded: Collection[Path] | None = ()) -> None:
        self.where, self.root = where, root
        self.recorded = recorded  # the leaves that have a recorder too; None for all
        self.read: dict[int, list[Place]] = {}  # by the `id` of the leaf
        self.is_complete = True  # False if an object of another library may have read more
        self.missing: MissingPlaceError | None = None  # a place that the function reads and the tree does not have
        self.would_add = False  # whether reading it from the tree would add it, as in a defaultdict
        result: Any = _NO_RESULT
        try:
            result = where(_Recorder(root, self))
        except MissingPlaceError as error:
            self.missing = error
        except Exception:  # noqa: BLE001, S110  it has not raised for the tree: a recorder is not enough like it
            pass
        self.returned, self.structure = _flat(result)

    def value_at(self, place: Place) -> Any:
        """A leaf, or the recorder of a node or container."""
        value = place.value
        if not _is_leaf(value):
            return _Recorder(place, self)
        self.read.setdefault(id(value), []).append(place)
        if self.recorded is None or (self.recorded and place.path in self.recorded):
            return _Recorder(place, self)
        return value

    def place_of(self, returned: Any, value: Any) -> Place | None:
        """The place of a value that the function returned in this run; None if it is not certain."""
        if type(returned) is _Recorder:
            place = _place_of(returned)
            return place if place.value is value else None
        if returned is not value or isinstance(value, int) or not self.is_complete:
            return None
        places = self.read.get(id(value), [])
        return places[0] if len(places) == 1 or len({*self.paths(id(value))}) == 1 else None

    def paths(self, key: int) -> list[Path]:
        """The places of an object that the function read, in this order."""
        return [place.path for place in self.read.get(key, ())]


class _Recorder:
    """A node, container or leaf of the tree, with its place. It acts like the value, but for its identity and type."""

    __slots__ = ("place", "run")

    def __init__(self, place: Place, run: _Run) -> None:
        self.place = place
        self.run = run

    # Every name may be a field, so `_place_of` and `_run_of` read the attributes of this class. isinstance() reads
    # __class__ here, and gets the value's.
    def __getattribute__(self, name: str) -> Any:
        place = _place_of(self)
        entry = place.child(GetAttrKey(name))
        return _attribute(self, name) if entry is None else _run_of(self).value_at(entry)

    def __getitem__(self, item: Any) -> Any:
        place = _place_of(self)
        if isinstance(item, slice):
            items = [self[index] for index in range(*item.indices(len(self)))]
            return tuple(items) if isinstance(place.value, tuple) else items
        run, key = _run_of(self), item_key(place.value, item)
        run.would_add = isinstance(place.value, collections.defaultdict) and place.child(key) is None
        return run.value_at(below(place, key))

    def __iter__(self) -> Iterator[Any]:
        place = _place_of(self)
        if isinstance(place.value, dict):
            return iter(place.value)
        if isinstance(place.value, list | tuple):
            return map(_run_of(self).value_at, place.entries())
        raise TypeError(f"{place.name} can't be iterated over.")

    def __len__(self) -> int:
        return len(_place_of(self).value)

    def __bool__(self) -> bool:
        return bool(_place_of(self).value)

    def __contains__(self, item: object) -> bool:
        return item in _place_of(self).value

    def __repr__(self) -> str:
        return repr(_place_of(self).value)

    def __hash__(self) -> int:
        return hash(_place_of(self).value)

    def __eq__(self, other: object) -> Any:
        return _place_of(self).value == other

    def __array__(self, *_: object, **__: object) -> Never:
        raise TypeError(f"{_place_of(self).name} has no value here")


_place_of: Callable[[Any], Place] = vars(_Recorder)["place"].__get__
_run_of: Callable[[Any], _Run] = vars(_Recorder)["run"].__get__
_Recorder.__module__, _Recorder.__qualname__ = "treewright", "place"  # libraries name the class in warnings


def _attribute(recorder: _Recorder, name: str) -> Any:
    """An attribute that is not a place: a property or method, which reads the recorder; else the value's own."""
    place, run = _place_of(recorder), _run_of(recorder)
    value: Any = place.value
    if name == "__class__":
        return type(value)
    if isinstance(value, dict) and name in {"keys", "values", "items"}:
        return getattr({entry.key.key: run.value_at(entry) for entry in place.entries()}, name)
    if isinstance(value, dict) and name == "get":
        return lambda key, default=None: recorder[key] if key in value else default
    is_leaf = _is_leaf(value)
    attribute = inspect.getattr_static(type(value), name, None)
    if isinstance(attribute, property | types.FunctionType) and not is_leaf:
        return attribute.__get__(recorder, type(value))
    if not hasattr(value, name) or (is_leaf and run.recorded is None):
        below(place, GetAttrKey(name))  # raises
    run.is_complete = False
    return getattr(value, name)


def _is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    if type(value) in _STRUCTURES:
        return False
    return isinstance(value, LEAVES) or not (is_node(value) or all_entries(value) is not None)


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
