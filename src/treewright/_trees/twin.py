"""A twin of a tree: copies of its nodes and containers, which are made when they are read and know their places.

A node of a twin is a real instance of the real class, because an instance is the pair of its values and statics: here
the values are read from the tree one by one. Methods, properties, `type`, `isinstance`, `==` and `jax.tree` see a tree
like any other. Leaves are the tree's own objects, or stand-ins for them where their identity has to tell places apart.
"""

import contextlib
import copy
import operator
import types
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Literal, Never

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import GetAttrKey, Key, Path, SequenceKey, jax_trees
from treewright._core import FLAT_FORM_NAME, flat_form, is_node, is_node_class
from treewright._freeze import FrozenMapping
from treewright._trees.level import LEAVES, Place, all_entries, with_changes
from treewright._trees.pattern import below, item_key
from treewright.errors import MissingPlaceError

EMPTY: Any = ()  # this object may be at many places
STRUCTURES = (tuple, list, dict)  # of several places
ONE = jax.tree.structure(0)  # the treedef of a single object
_SEQUENCES = (list, tuple)
_LONG = 16  # items of a list or tuple that are copied together
_NO_RESULT = object()  # the result of a run that raised
_PASSIVE = (int, float, bool, types.NoneType, types.FunctionType, types.BuiltinFunctionType)
_store = object.__setattr__


class Run:
    """One call of a function with a twin of the tree: what it returns, and what it reads.

    Attributes:
        returned: The objects in its result; and `structure`, the treedef of the result.
        read: By the `id` of an object of the tree: the places where the function may have read it.
        order: The fields that it read in nodes, in order, by the `id` of the node and the key.
        shared: The `id`s of nodes and containers that it may have read at several places.
        made: By the `id` of a copy or stand-in: itself, so that the `id` stays in use, and its place.
        missing: The error for a place that the function reads and the tree does not have; only if `naming` is set.
    """

    def __init__(
        self,
        where: Callable[[Any], Any],
        root: Place,
        *,
        apart: Collection[int] = (),
        kept: Collection[Path] = (),
        naming: Literal["", "missing", "computed"] = "",
    ) -> None:
        """Call the function.

        Args:
            where: The function.
            root: The tree.
            apart: The `id`s of leaves that have a stand-in at each place.
            kept: The places among these where the leaf itself is kept.
            naming: Whether leaves are stand-ins that name a place that is missing below them; also for what is
                computed with them.
        """
        self.where, self.root, self.apart, self.kept, self.naming = where, root, apart, kept, naming
        self.read: dict[int, list[Place]] = {}
        self.order: list[tuple[int, Key]] = []
        self.shared: set[int] = set()
        self.made: dict[int, tuple[Any, Place]] = {}
        self.missing: MissingPlaceError | None = None
        self._copies: dict[int, Any] = {}  # by the `id` of the object
        self._dicts: list[tuple[Any, Place]] = []
        result: Any = _NO_RESULT
        try:
            if apart or naming:
                with warnings.catch_warnings(action="ignore"):  # of a stand-in's class; the tree itself warns too
                    result = where(self.value_at(root))
            else:
                result = where(self.value_at(root))
        except MissingPlaceError as error:
            self.missing = error
        except AttributeError as error:
            self.missing = self._missing_attribute(error) if naming else None
        except Exception:  # noqa: BLE001, S110  it raises for the tree too, or a stand-in is not enough like it
            pass
        self.returned, self.structure = [result], ONE
        if isinstance(result, STRUCTURES):
            self.returned, self.structure = flat_result(result, self.made.keys() | ({id(EMPTY)} & self.read.keys()))

    @property
    def added(self) -> MissingPlaceError | None:
        """The error for a place that reading adds, as in a defaultdict."""
        for copied, place in self._dicts:
            for key in copied.keys() - place.value.keys():
                try:
                    below(place, item_key(place.value, key))
                except MissingPlaceError as error:
                    return error
        return None

    def place_of(self, returned: Any, value: Any) -> Place | None:
        """The place of a value that the function returned in this run; None if it is not certain."""
        made = self.made.get(id(returned))
        if made is not None:
            _, place = made
            if place.value is not value:
                return None
        else:
            places = self.read.get(id(value), [])
            is_known = returned is value and not isinstance(value, int) and not self.apart
            if not (is_known and places) or (len(places) > 1 and len({place.path for place in places}) > 1):
                return None
            place = places[0]
        is_shared = self.shared and not self.apart and any(id(step.value) in self.shared for step in place.ancestors)
        return None if is_shared else place

    def path_of(self, returned: Any) -> Path | None:
        """The path of a copy or stand-in; None for other objects."""
        made = self.made.get(id(returned))
        return None if made is None else made[1].path

    def value_at(self, place: Place) -> Any:
        """A leaf; the copy of a node or container; or a stand-in, which only this place has."""
        value = place.value
        key, cls = id(value), type(value)
        is_own_node = is_node_class(cls)
        is_leaf = not is_own_node and _is_leaf(value)
        if key in self.read:
            self.read[key].append(place)
        else:
            self.read[key] = [place]
        if is_leaf:
            if not self.naming and (key not in self.apart or place.path in self.kept):
                return value
            made = value if self.naming else _twin_of_leaf(value)
            made = StandIn(place, self) if made is value else made
        else:
            if len(self.read[key]) > 1:
                self.shared.add(key)
                if key not in self.apart and key in self._copies:
                    return self._copies[key]
            made = self._copies[key] = _copy_of_node(place, self, cls) if is_own_node else self._copy_at(place)
        self.made[id(made)] = made, place
        return made

    def _copy_at(self, place: Place) -> Any:
        """A copy of a container, or of an object of another library."""
        value = place.value
        cls = type(value)
        if cls in _SEQUENCES and not self.naming:
            if len(value) > _LONG:
                return _LAZY[cls](value, place, self)
            return cls(self.value_at(Place(item, SequenceKey(i), place)) for i, item in enumerate(value))
        parts = {entry.key: self.value_at(entry) for entry in place.entries()}
        if isinstance(value, (*STRUCTURES, FrozenMapping)):
            copied = with_changes(value, parts) if parts else copy.copy(value)
        else:
            copied = _copy_of_foreign(place, parts)
        if isinstance(value, dict) and type(value) is not dict:
            self._dicts.append((copied, place))
        return _naming_missing(copied, place) if self.naming and isinstance(value, STRUCTURES) else copied

    def _missing_attribute(self, error: AttributeError) -> MissingPlaceError | None:
        """The error for the place that an attribute of a copy would have."""
        made = self.made.get(id(error.obj))
        try:
            if made is not None and error.name:
                below(made[1], GetAttrKey(error.name))
        except MissingPlaceError as missing:
            return missing
        return None


def flat_result(result: Any, places: Collection[int]) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict, and its treedef. A tuple that is itself a place is one object."""

    def is_object(value: Any) -> bool:
        return type(value) is StandIn or not isinstance(value, STRUCTURES) or id(value) in places

    return jax.tree.flatten(result, is_leaf=is_object)


def _is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    cls = type(value)
    if cls in STRUCTURES:
        return value is EMPTY
    return cls in _PASSIVE or isinstance(value, LEAVES) or not (is_node(value) or all_entries(value) is not None)


# Nodes


def _copy_of_node(place: Place, run: Run, cls: type[Any]) -> Any:
    form = flat_form(place.value)
    twin = object.__new__(cls)
    _store(twin, FLAT_FORM_NAME, (_Values(place, run, form[0], form[1].table.keys), _Statics(place, run, form[1])))
    return twin


class _Values:
    """The children or statics of a node in a run. They are read, and copied, one by one."""

    __slots__ = ("keys", "made", "place", "run", "values")

    def __init__(self, place: Place, run: Run, values: tuple[Any, ...], keys: tuple[Key, ...]) -> None:
        self.place, self.run, self.values, self.keys = place, run, values, keys
        self.made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return tuple(self)[index]
        key = self.keys[index]
        self.run.order.append((id(self.place.value), key))
        if index not in self.made:
            self.made[index] = self.run.value_at(Place(self.values[index], key, self.place))
        return self.made[index]


class _Statics:
    """The statics of a node in a run, which equal the node's own."""

    __slots__ = ("made", "own", "place", "run", "table")

    def __init__(self, place: Place, run: Run, own: Any) -> None:
        self.place, self.run, self.own, self.table = place, run, own, own.table
        self.made: _Values | None = None

    @property
    def values(self) -> Any:
        if self.made is None:
            keys = tuple(map(GetAttrKey, self.table.names))
            self.made = _Values(self.place, self.run, self.own.values, keys)
        return self.made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __eq__(self, other: object) -> bool:
        return self.own is getattr(other, "own", other)

    def __hash__(self) -> int:
        return hash(self.own)

    def __repr__(self) -> str:
        return repr(self.own)


# Containers


class _LazyItems:
    """The items of a long list or tuple, which are copied when they are read."""

    base: Any  # list or tuple
    place: Place
    run: Run
    made: dict[int, Any]

    def __new__(cls, value: Any, place: Place, run: Run) -> Any:
        new = cls.base.__new__(cls, value)
        new.__dict__.update(place=place, run=run, made={})
        return new

    def __init__(self, value: Any, place: Place, run: Run) -> None:  # noqa: ARG002  those of `__new__`
        if self.base is list:
            initialise: Any = self.base.__init__
            initialise(self, value)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.whole()[index]
        value = self.place.value
        index = range(len(value))[index]
        if index not in self.made:
            self.made[index] = self.run.value_at(Place(value[index], SequenceKey(index), self.place))
        return self.made[index]

    def whole(self) -> Any:
        return self.base(self[index] for index in range(len(self.place.value)))

    def __reversed__(self) -> Any:
        return reversed(self.whole())

    def __hash__(self) -> int:
        return hash(self.whole())


def _lazy(base: Any) -> Any:
    lazy: Any = type(base.__name__, (_LazyItems, base), {"base": base, "__hash__": _LazyItems.__hash__})
    for name in _READS:
        setattr(lazy, name, lambda self, *args, name=name: getattr(self.whole(), name)(*args))
    jax_trees.register_pytree_with_keys(
        lazy,
        lambda items: (tuple((SequenceKey(i), each) for i, each in enumerate(items.whole())), None),
        lambda _, children: base(children),
        lambda items: (items.whole(), None),
    )
    return lazy


_READS = ("__iter__", "__contains__", "__add__", "__mul__", "__rmul__", "__eq__", "__lt__", "__gt__", "index", "count")
_LAZY: Mapping[type[Any], Any] = types.MappingProxyType({cls: _lazy(cls) for cls in _SEQUENCES})


def _copy_of_foreign(place: Place, parts: Mapping[Key, Any]) -> Any:
    """A copy of an object of another library's class with other contents."""
    names = {child.key for child in place.children()}
    children = {key: part for key, part in parts.items() if key in names}
    try:
        copied = with_changes(place.value, children) if children else copy.copy(place.value)
    except Exception:  # noqa: BLE001  a constructor
        copied, children = copy.copy(place.value), {}
    for key in parts.keys() - children.keys():
        with contextlib.suppress(AttributeError):
            _store(copied, str(getattr(key, "name", key)), parts[key])
    return copied


def _naming_missing(copied: Any, place: Place) -> Any:
    """A list, tuple or dict that raises an error with the name of the place."""
    cls: Any = type(copied)
    naming = type(cls.__name__, (_Naming, cls), {})
    named = naming(*copied) if hasattr(cls, "_fields") else naming(copied) if cls in STRUCTURES else copied
    with contextlib.suppress(AttributeError):
        named.place = place
    return named


class _Naming:
    place: Place

    def __getitem__(self, item: Any) -> Any:
        try:
            return super().__getitem__(item)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
        except (LookupError, TypeError):
            below(self.place, item_key(self.place.value, item))
            raise


# Leaves


def _twin_of_leaf(value: Any) -> Any:
    """A different object that no function can tell from this leaf except by identity; the leaf itself if there is none.

    An array is the same buffers in another object. None, numbers and short strings have no twins.
    """
    cls = type(value)
    if cls is float:
        return value * 1.0
    if cls is str and len(value) > 1:
        return value[:1] + value[1:]
    if isinstance(value, np.ndarray):
        return value.view()
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and not value.is_deleted():
        with contextlib.suppress(Exception):
            shards = [shard.data for shard in value.addressable_shards]
            return jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards, dtype=value.dtype)
    return value


class StandIn:
    """A leaf of the tree, with its place. It acts like the value, but for its identity and type."""

    __slots__ = ("place", "run")

    def __init__(self, place: Place, run: Run) -> None:
        self.place = place
        self.run = run

    # isinstance() reads __class__ here, and gets the value's.
    def __getattribute__(self, name: str) -> Any:
        place = _place_of(self)
        if name == "__class__":
            return type(place.value)
        if _run_of(self).naming == "computed" or not hasattr(place.value, name):
            below(place, GetAttrKey(name))  # raises
        return getattr(place.value, name)

    def __getitem__(self, item: Any) -> Any:
        place = _place_of(self)
        if _run_of(self).naming == "missing" and hasattr(type(place.value), "__getitem__"):
            return place.value[item]
        return below(place, item_key(place.value, item))  # raises

    def __iter__(self) -> Iterator[Any]:
        return iter(_place_of(self).value)

    def __len__(self) -> int:
        return len(_place_of(self).value)

    def __index__(self) -> int:
        return operator.index(_place_of(self).value)

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


_place_of: Callable[[Any], Place] = vars(StandIn)["place"].__get__
_run_of: Callable[[Any], Run] = vars(StandIn)["run"].__get__
StandIn.__name__ = StandIn.__qualname__ = "leaf"  # what a function prints that looks at the class
