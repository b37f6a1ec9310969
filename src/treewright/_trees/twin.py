"""A twin of a tree: run a function on copies of its nodes and containers, which know their places.

An instance is its flat form, so a copy of a node is a real instance of its class whose flat form is read lazily.
Methods, properties, `type`, `==`, `callable` and `jax.tree` work on it. The twin of `net` in `lambda net:
net.layers[1].bias` is a `Net` with two lazy values. Reading `.layers` makes a tuple of two copies, reading `.bias` of
the second returns the bias itself, and `Run.read` has its place, `.layers[1].bias`.
"""

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Never

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import GetAttrKey, Key, Path, SequenceKey, jax_trees
from treewright._core import flat_form, from_flat_form, is_node, is_node_class
from treewright._freeze import FrozenMapping
from treewright._trees.level import LEAVES
from treewright._trees.pattern import item_key, missing_place
from treewright._trees.places import Place, all_entries, with_changes
from treewright.errors import MissingPlaceError

EMPTY: Any = ()  # one object for all places
STRUCTURES = (tuple, list, dict)  # may contain several places
ONE = jax.tree.structure(0)  # the treedef of a single object
_LONG = 16  # items of a list or tuple that are copied together
_NO_RESULT = object()  # the result of a run that raised


class Run:
    """One call of a function with a twin of the tree: what it reads and what it returns.

    Leaves are the tree's own, and a node or container has one copy for all its places, so `is` works; but objects with
    an `id` in `apart` have a stand-in or copy for each place, except for leaves at the paths in `kept`. With `naming`,
    lists, tuples and dicts raise an error with the name of a missing item.
    """

    __slots__ = (
        *("where", "root", "apart", "kept", "read", "order", "shared", "made", "missing", "returned", "structure"),
        *("_copies", "_dicts", "is_naming", "others"),
    )

    def __init__(
        self, where: Any, root: Place, apart: Collection[int] = (), kept: Collection[Path] = (), *, naming: bool = False
    ) -> None:
        self.where, self.root, self.apart, self.kept = where, root, apart, kept
        self.is_naming = naming
        self.others: list[Run] = []
        self.read: dict[int, list[Place]] = {}  # by the `id` of an object: the places where it may have been read
        self.order: list[tuple[int, Key]] = []  # the fields that were read, in order, with the `id` of the node
        self.shared: set[int] = set()  # the `id`s of nodes and containers that are at several places
        self.made: dict[int, tuple[Any, Place]] = {}  # copies and stand-ins by their `id`, which is thus not reused
        self.missing: MissingPlaceError | None = None
        self._copies: dict[int, Any] = {}  # by the `id` of the object
        self._dicts: list[tuple[Any, Place]] = []  # of classes that may add a key when it is read, as a defaultdict
        result: Any = _NO_RESULT
        try:
            result = where(self.value_at(root))
        except MissingPlaceError as error:
            self.missing = error
        except Exception:  # noqa: BLE001, S110  it raises for the tree too, or a stand-in is not enough like the value
            pass
        self.returned, self.structure = flat(
            result, self.made if id(EMPTY) not in self.read else {*self.made, id(EMPTY)}
        )

    def again(self, apart: Collection[int] = (), kept: Collection[Path] = (), *, naming: bool = False) -> "Run":
        """Another call of the function."""
        other = Run(self.where, self.root, apart, kept, naming=naming)
        self.others.append(other)
        return other

    def release(self) -> None:
        """Let go of the twins: they refer to their run, and would keep the tree alive until Python looks for cycles."""
        for run in (self, *self.others):
            run.made, run._copies, run._dicts, run.returned = {}, {}, [], []

    def reject_added_keys(self) -> None:
        """Raise for a key that the function would add to a defaultdict by reading it."""
        for copied, place in self._dicts:
            for name in copied.keys() - place.value.keys():
                raise missing_place(place, item_key(place.value, name))

    def value_at(self, place: Place) -> Any:
        """What the function gets at a place: the leaf, the copy of a node or container, or a stand-in."""
        value = place.value
        key = id(value)
        cls: Any = type(value)
        is_own = is_node_class(cls)
        is_leaf = not is_own and _is_leaf(value)
        if key in self.read:
            self.read[key].append(place)
            if not is_leaf:
                self.shared.add(key)
                if key not in self.apart and key in self._copies:
                    return self._copies[key]
        else:
            self.read[key] = [place]
        made: Any
        if not is_leaf:
            made = self._copies[key] = self._copy_of_node(place) if is_own else self._copy_of_container(place)
        elif key not in self.apart or place.path in self.kept:
            return value
        else:
            made = _equal_object(value)
            made = _stand_in_class(cls)(value) if made is value else made
        self.made[id(made)] = made, place
        return made

    def _copy_of_node(self, place: Place) -> Any:
        children, own = flat_form(place.value)
        statics: Any = _Statics(place, self, own.values, own.table.names)
        statics.own = own
        values: Any = _Values(place, self, children, own.table.keys)
        return from_flat_form(type(place.value), (values, statics))

    def _copy_of_container(self, place: Place) -> Any:
        value = place.value
        cls = type(value)
        if cls in _LAZY:
            if self.is_naming or len(value) > _LONG:
                lazy = _LAZY[cls]([_UNREAD] * len(value))
                lazy.place, lazy.run, lazy.made = place, self, {}
                return lazy
            return cls([self.value_at(Place(item, SequenceKey(i), place)) for i, item in enumerate(value)])
        parts = {entry.key: self.value_at(entry) for entry in place.entries()}
        if cls is dict and self.is_naming:
            return _NamingDict(place, parts)
        if not isinstance(value, (*STRUCTURES, FrozenMapping)):
            return _copy_of_foreign(place, parts)
        copied = with_changes(value, parts) if parts else copy.copy(value)
        if isinstance(value, dict) and cls is not dict:
            self._dicts.append((copied, place))
        return copied

    def place_of(self, returned: Any, value: Any) -> Place | None:
        """The place of an object that the function returned in this run and for the tree; None if it is not certain."""
        _, place = self.made.get(id(returned), (None, None))
        if place is None and returned is value and not (self.apart or isinstance(value, int)):
            places = self.read.get(id(value), [])
            place = places[0] if len(places) == 1 or len({each.path for each in places}) == 1 else None
        if place is None or place.value is not value:
            return None
        is_shared = self.shared and not self.apart and any(id(each.value) in self.shared for each in place.ancestors)
        return None if is_shared else place


def flat(result: Any, places: Collection[int] = ()) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict, and its treedef. One whose `id` is in `places` is one object."""

    def is_object(value: Any) -> bool:
        return not isinstance(value, STRUCTURES) or id(value) in places

    return ([result], ONE) if is_object(result) else jax.tree.flatten(result, is_leaf=is_object)


def _is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    if type(value) in STRUCTURES:
        return value is EMPTY
    return isinstance(value, LEAVES) or not (is_node(value) or all_entries(value) is not None)


# Copies


class _Values:
    """The values of a node's children or statics in a run. They are read, and copied, one by one."""

    __slots__ = ("entries", "keys", "made", "place", "run")

    def __init__(self, place: Place, run: Run, entries: tuple[Any, ...], keys: tuple[Any, ...]) -> None:
        self.place, self.run, self.entries, self.keys = place, run, entries, keys
        self.made: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self.entries)))

    def __getitem__(self, index: Any) -> Any:
        key = self.keys[index]
        self.run.order.append((id(self.place.value), key))
        if index not in self.made:
            key = GetAttrKey(key) if type(key) is str else key
            self.made[index] = self.run.value_at(Place(self.entries[index], key, self.place))
        return self.made[index]


class _Statics(_Values):
    """The statics of a node in a run, and their values. They equal the node's own."""

    __slots__ = ("own",)

    @property
    def values(self) -> Any:
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.own, name)

    def __eq__(self, other: object) -> bool:
        return self.own is getattr(other, "own", other)

    def __hash__(self) -> int:
        return hash(self.own)

    def __repr__(self) -> str:
        return repr(self.own)


# Methods of long lists and tuples that copy all items.
_READS = (
    *("__iter__", "__reversed__", "__contains__", "__add__", "__mul__", "__rmul__", "__eq__", "__lt__", "__gt__"),
    *("__hash__", "__le__", "__ge__", "__ne__", "index", "count", "copy"),
)
_UNREAD = object()  # stored in a long list, for code in C that does not ask its methods


def _lazy(base: Any) -> Any:
    """A class of lists or tuples whose items are copied when they are read: one of 1,000 takes as long as one of 20."""

    class Lazy(base):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            place = self.place
            if isinstance(index, slice):
                return self.whole()[index]
            key = item_key(place.value, index)
            if not (isinstance(key, SequenceKey) and 0 <= key.idx < len(place.value)):
                if self.run.is_naming:
                    raise missing_place(place, key)
                return base.__getitem__(self, index)  # raises
            if key.idx not in self.made:
                self.made[key.idx] = self.run.value_at(Place(place.value[index], key, place))
            return self.made[key.idx]

        def __radd__(self, other: Any) -> Any:
            return other + self.whole()

        def whole(self) -> Any:
            return base([self[index] for index in range(len(self.place.value))])

    for name in _READS:
        if getattr(base, name, None):
            setattr(Lazy, name, lambda self, *args, name=name: getattr(self.whole(), name)(*args))
    Lazy.__name__, Lazy.__qualname__, Lazy.__module__ = base.__name__, base.__name__, base.__module__
    jax_trees.register_pytree_with_keys(
        Lazy,
        lambda lazy: (tuple((SequenceKey(i), item) for i, item in enumerate(lazy.whole())), None),
        lambda _, children: base(children),
        lambda lazy: (lazy.whole(), None),
    )
    return Lazy


_LAZY: dict[type[Any], Any] = {cls: _lazy(cls) for cls in (list, tuple)}


class _NamingDict(dict[Any, Any]):
    """A dict that names a key that it lacks."""

    def __init__(self, place: Place, parts: Mapping[Key, Any]) -> None:
        super().__init__({key.key: part for key, part in parts.items()})
        self.place = place

    def __missing__(self, name: object) -> Never:
        raise missing_place(self.place, item_key(self.place.value, name))


def _copy_of_foreign(place: Place, parts: Mapping[Key, Any]) -> Any:
    """A copy of an object of another library's class with other contents."""
    names = {child.key for child in place.children()}
    children = {key: part for key, part in parts.items() if key in names}
    try:
        copied = with_changes(place.value, children) if children else copy.copy(place.value)
    except Exception:  # noqa: BLE001  its constructor
        copied, children = copy.copy(place.value), {}
    for key in parts.keys() - children.keys() if copied is not place.value else ():
        with contextlib.suppress(AttributeError):
            object.__setattr__(copied, key.name, parts[key])
    return copied


# Stand-ins for leaves


def _equal_object(value: Any) -> Any:
    """Another object that no function can tell from a float, string or array except by `is`; or the value itself."""
    if type(value) is float:
        return value * 1.0
    if type(value) is str and len(value) > 1:
        return value[:1] + value[1:]
    if isinstance(value, np.ndarray):
        return value.view()
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and not value.is_deleted():
        with contextlib.suppress(Exception):
            shards = [shard.data for shard in value.addressable_shards]
            return jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards, dtype=value.dtype)
    return value


class StandIn:
    """Acts like a leaf that has no equal object, such as `None`, `True` or a function, but for `is` and `type`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:  # isinstance() reads __class__ here
        return getattr(_value_of(self), name)


_value_of: Callable[[Any], Any] = vars(StandIn)["value"].__get__
for _function in (len, operator.index, bool, repr, str, hash, operator.eq):
    setattr(StandIn, f"__{_function.__name__}__", lambda self, *other, do=_function: do(_value_of(self), *other))


@functools.lru_cache(64)
def _stand_in_class(cls: type[Any]) -> Any:
    """The class of the stand-ins for a class of leaves. It has its name, because libraries show it in warnings."""
    return type(cls.__name__, (StandIn,), {"__slots__": (), "__module__": cls.__module__})
