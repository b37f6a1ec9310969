"""`where=` as a function: run it on the tree, and find the places of the objects that it returns."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Never

import jax
import numpy as np

from treewright._base.jax_private import GetAttrKey, Path, path_text
from treewright._base.text import short_text
from treewright._core import is_node
from treewright._trees.level import Place, all_entries, walk
from treewright._trees.pattern import below, item_key, listed
from treewright.errors import MissingPlaceError

_MAX_SHOWN = 5  # places that a message lists
_CONTAINERS = frozenset({tuple, list, dict})
_LEAVES = (jax.Array, np.ndarray, str, int, float)
_OBJECTS = (jax.Array, np.ndarray, list, dict)
_HOW_CALLED = (
    "A function of one argument is called with the whole tree and returns places in it; a predicate has two, "
    "lambda path, value: ..."
)


class Selection(NamedTuple):
    places: Sequence[Place]
    structure: Any = None  # the treedef of the function's result; None for a single place
    is_search: bool = False  # True for a pattern, predicate, class or mask, which may select any number of places


def select_by_function(
    root: Place, where: Callable[[Any], Any], is_mask: Callable[[Any, Any], bool]
) -> Selection | Any:
    """The places of the objects that a function returns for the tree itself.

    An object does not know its place, and `None`, numbers and strings are in many. So the function runs a second time,
    with a recorder: it knows the places and is otherwise like the tree. A place counts only if the tree has there the
    very object that the function returned, so a recorder that misleads the function can't select a wrong place.
    """
    try:
        result = where(root.value)
    except Exception as error:
        run = _Run()
        run.of(where, root)
        missing = run.missing
        reason = error if missing is None else missing
        if missing is None or hasattr(jax.Array, getattr(error, "name", None) or ""):  # meant for a leaf
            reason.add_note(_HOW_CALLED)
        if missing is None:
            raise
        raise missing from error
    if is_mask(result, root.value):
        return result
    places, structure = _places_of(root, where, result)
    if not places:
        raise MissingPlaceError(f"The where function returned no places of {root.name}, but {short_text(result)}.")
    if structure is None or jax.tree_util.treedef_is_leaf(structure):
        return Selection(places)
    _reject_overlaps(places)
    return Selection(places, structure)


def _places_of(root: Place, where: Callable[[Any], Any], result: Any) -> tuple[list[Place], Any]:
    """The place of each object in a function's result, and the treedef of the result; None for a single object."""
    run = _Run()
    recorded = run.of(where, root)
    if type(recorded) is _Recorder and _place_of(recorded).value is result and type(result) not in _CONTAINERS:
        recorded_place = _place_of(recorded)
        if _is_one_object(result) or run.read_only([recorded_place]):
            return [recorded_place], None
    places, structure = _certain_places(root, where, result, run, recorded)
    if places and None not in places:
        return [place for place in places if place], structure
    ids = {*map(id, _flat(result)[0]), id(result)}
    second = _Run(lambda place: id(place.value) in ids)
    recorded = second.of(where, root)
    places, structure = _certain_places(root, where, result, second, recorded)
    if places and None not in places:
        return [place for place in places if place], structure
    by_id = _places_by_id(root)
    values, structure_of_values = _flat(result, by_id)
    recorders = _flat(recorded)[0]
    if structure_of_values != structure or len(places) != len(values):
        places = recorders = [None] * len(values)
    found: list[Place] = []
    for value, place, recorder in zip(values, places, recorders, strict=True):
        only = place or _only_place(root, value, by_id.get(id(value), []), recorder)
        if only is None:
            raise run.missing or _not_a_place(root, value)
        found.append(only)
    return found, structure_of_values


def _certain_places(
    root: Place, where: Callable[[Any], Any], result: Any, run: "_Run", recorded: Any
) -> tuple[list[Place | None], Any]:
    """The recorded places of the objects in a result, None where it is not certain; empty if the structures differ.

    The object at a recorded place must be the returned one. That is enough for objects that are at one place only. Any
    other, such as `None`, is certain if the function has read nothing else that could change its way, or if it returns
    the same place when that place alone has a recorder: if `m.a` and `m.b` are `None`, then
    `m.a if m.a is None else m.b` returns the `None` of `m.a` for the tree, but the recorder of `m.b`.
    """
    recorders, structure = _flat(recorded)
    try:
        values: list[Any] = structure.flatten_up_to(result)
    except (ValueError, TypeError):  # to the functions of `jax.tree` a recorder is a leaf
        return [], structure
    places = [
        _place_of(recorder) if type(recorder) is _Recorder and _place_of(recorder).value is value else None
        for value, recorder in zip(values, recorders, strict=True)
    ]
    shared = {place.path for place in places if place and not _is_one_object(place.value)}
    if not shared or run.read_only([place for place in places if place]):
        return places, structure
    again = _Run(lambda place: place.path in shared).of(where, root)
    others, structure_again = _flat(again)
    if structure_again != structure:
        others = [None] * len(places)

    def is_certain(place: Place | None, other: Any) -> bool:
        if place is None or _is_one_object(place.value):
            return True
        return type(other) is _Recorder and _place_of(other).path == place.path

    return [place if is_certain(place, other) else None for place, other in zip(places, others, strict=True)], structure


def _only_place(root: Place, value: Any, places: Sequence[Place], recorder: Any) -> Place | None:
    """The only place of an object; None if it has no place."""
    if len(places) > 1:
        paths = [path_text(place.path) or "the whole tree" for place in places]
        raise ValueError(
            f"The where function returned {short_text(value)}, which is at {len(places)} places of {root.name}: "
            f"{listed(paths, _MAX_SHOWN)}. Select by path, or with a predicate: lambda path, value: ..."
        )
    if not places and type(recorder) is _Recorder and type(_place_of(recorder).value) is type(value):
        return _place_of(recorder)  # a class of another library creates its children when it is flattened
    return places[0] if places else None


def _not_a_place(root: Place, value: Any) -> TypeError:
    if isinstance(value, bool | np.bool_):
        return TypeError(f"The where function returned {value} for the whole tree. {_HOW_CALLED}")
    return TypeError(
        f"The where function must return a place in the tree, or a tuple, list or dict of places, but returned "
        f"{short_text(value)}, which is not in {root.name}. To change values: "
        f"at(tree, where).apply(lambda value: ...). To select by value, use a predicate: lambda path, value: ..."
    )


def _flat(result: Any, places: dict[int, list[Place]] | None = None) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict of places, and its treedef. A tuple that is itself a place is one object."""

    def is_object(value: Any) -> bool:
        if type(value) is _Recorder or not isinstance(value, tuple | list | dict):
            return True
        return places is not None and len(value) > 0 and id(value) in places

    return jax.tree.flatten(result, is_leaf=is_object)


def _is_one_object(value: Any) -> bool:
    """Whether an object is normally at one place only, unlike `None`, numbers, strings, functions and `()`."""
    return is_node(value) or isinstance(value, _OBJECTS)


def _places_by_id(root: Place) -> dict[int, list[Place]]:
    """All places of the tree, by the `id` of the object there."""
    places: dict[int, list[Place]] = {}
    for place in walk(root, Place.entries):
        places.setdefault(id(place.value), []).append(place)
    return places


# The recorder


class _Run:
    """One call of a function with a recorder: which values are recorded, and which places the function has read."""

    __slots__ = ("is_recorded", "missing", "reads")

    def __init__(self, is_recorded: Callable[[Place], bool] | None = None) -> None:
        self.is_recorded = is_recorded  # None: all values are
        self.reads: list[Place] = []
        self.missing: MissingPlaceError | None = None  # the first place that the tree does not have

    def of(self, where: Callable[[Any], Any], root: Place) -> Any:
        """The result of a function for a recorder; None if the function raises."""
        try:
            return where(_Recorder(root, self))
        except MissingPlaceError as error:
            self.missing = error
            return None
        except Exception:  # noqa: BLE001  it has not raised for the tree: the recorder is not enough like it
            return None

    def read_only(self, places: Sequence[Place]) -> bool:
        """Whether the function has read only these places and their ancestors."""
        known = {id(ancestor) for place in places for ancestor in place.ancestors}
        return all(id(place) in known for place in self.reads)

    def read(self, place: Place) -> Any:
        """The recorder of a place, or the value there."""
        self.reads.append(place)
        if self.is_recorded is None or self.is_recorded(place) or not _is_leaf(place.value):
            return _Recorder(place, self)
        return place.value


class _Recorder:
    """A place in the tree, for the second run of a function that selects places.

    Nodes and containers below are recorders too. Any other value below is itself, unless the run records it.
    """

    # Fields are read as attributes, so this class has no attribute with a name that a field may have.
    __slots__ = ("_treewright_place", "_treewright_run")

    def __init__(self, place: Place, run: _Run) -> None:
        self._treewright_place = place
        self._treewright_run = run

    def __getattr__(self, name: str) -> Any:
        place, run = self._treewright_place, self._treewright_run
        entry = place.child(GetAttrKey(name))
        if entry is not None:
            if run.is_recorded is None:  # as `read` does, in less time
                run.reads.append(entry)
                return _Recorder(entry, run)
            return run.read(entry)
        value: Any = place.value
        if isinstance(value, dict) and name in {"keys", "values", "items"}:
            return getattr({entry.key.key: run.read(entry) for entry in place.entries()}, name)
        if hasattr(value, name) and not _is_leaf(value):
            return getattr(value, name)  # a property or a method
        return run.read(below(place, GetAttrKey(name)))  # raises

    def __getitem__(self, item: Any) -> Any:
        if isinstance(item, slice):
            items = [self[index] for index in range(*item.indices(len(self)))]
            return tuple(items) if isinstance(_place_of(self).value, tuple) else items
        place = _place_of(self)
        return self._treewright_run.read(below(place, item_key(place.value, item)))

    def __len__(self) -> int:
        return len(_place_of(self).value)

    def __iter__(self) -> Iterator[Any]:
        place = _place_of(self)
        if isinstance(place.value, dict):
            return iter(place.value)
        if isinstance(place.value, list | tuple):
            return map(self._treewright_run.read, place.entries())
        raise TypeError(f"{place.name} can't be iterated over.")

    def __contains__(self, item: object) -> bool:
        return item in _place_of(self).value

    def __repr__(self) -> str:
        return repr(_place_of(self).value)

    def _reject(self, *_: object, **__: object) -> Never:
        raise TypeError(f"{_place_of(self).name} has no value here")

    # Checkers know these names on `object`, with different types. isinstance() reads __class__.
    locals().update(
        dict.fromkeys(("__bool__", "__eq__", "__ne__", "__array__"), _reject),
        __hash__=None,
        __class__=property(lambda self: type(_place_of(self).value)),
    )


_Recorder.__module__, _Recorder.__qualname__ = "treewright", "place"  # libraries name the class in warnings


def _place_of(recorder: Any) -> Place:
    place: Place = recorder._treewright_place
    return place


def _is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    return value is None or isinstance(value, _LEAVES) or (not is_node(value) and all_entries(value) is None)


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
