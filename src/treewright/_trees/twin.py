"""A twin of a tree: run a function on copies of its nodes and containers, which know their places.

An instance is its flat form, so a copy of a node is a real instance of its class whose flat form is read lazily.
Methods, properties, `type`, `==`, `callable` and `jax.tree` work on it. The twin of `net` in `lambda net:
net.layers[1].bias` is a `Net` with two lazy values. Reading `.layers` makes a tuple that copies its items when they are
read, reading `.bias` of the second returns the bias itself, and `Run.read` has its place, `.layers[1].bias`.
"""

import contextlib
import copy
import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import DictKey, GetAttrKey, Key, Path, SequenceKey
from treewright._core import Statics, flat_form, from_flat_form, is_node, is_node_class
from treewright._freeze import FrozenMapping
from treewright._trees.level import LEAVES
from treewright._trees.pattern import item_key, missing_place
from treewright._trees.places import Place, all_entries, with_changes

EMPTY: Any = ()  # one object for all places
STRUCTURES = (tuple, list, dict)  # may contain several places
ONE = jax.tree.structure(0)  # the treedef of a single object
_NO_RESULT = object()  # the result of a run that raised


class Run:
    """One call of a function with a twin of the tree: what it reads and what it returns.

    Leaves are the tree's own, and a node or container has one copy for all its places, so `is` works; but objects with
    an `id` in `apart` have a stand-in or copy for each place, except for leaves at the paths in `kept`.

    Lists, tuples and dicts are of subclasses that copy an item when it is read; with `whole`, they are of their own
    classes and copied whole.
    """

    __slots__ = (
        *("where", "root", "apart", "kept", "whole", "runs", "read", "order", "shared", "made", "error", "missing"),
        *("returned", "structure", "is_lazy", "_copies", "_dicts"),
    )

    def __init__(
        self,
        where: Any,
        root: Place,
        apart: Collection[int] = (),
        kept: Collection[Path] = (),
        *,
        whole: bool = False,
        runs: "list[Run] | None" = None,
    ) -> None:
        self.where, self.root, self.apart, self.kept, self.whole = where, root, apart, kept, whole
        self.runs = [] if runs is None else runs
        self.runs.append(self)
        self.read: dict[int, list[Place]] = {}  # by the `id` of an object: the places where it may have been read
        self.order: list[tuple[int, Any]] = []  # the fields and items that were read, with the `id` of their owner
        self.shared: set[int] = set()  # the `id`s of nodes and containers that are at several places
        self.made: dict[int, tuple[Any, Place]] = {}  # copies and stand-ins by their `id`, which is thus not reused
        self.error: Exception | None = None
        self.missing: tuple[Exception | None, Place, Any] = (None, root, None)  # the last item that does not exist
        self._copies: dict[int, Any] = {}  # by the `id` of the object
        self._dicts: list[tuple[Any, Place]] = []  # of classes that may add a key when it is read, as a defaultdict
        self.is_lazy = False  # whether a list, tuple or dict was not of its own class
        result: Any = _NO_RESULT
        try:
            result = where(self.value_at(root))
        except Exception as error:  # noqa: BLE001  it raises for the tree too, or a copy is not enough like the value
            self.error = error
        self.returned, self.structure = flat(result, {*self.made, id(EMPTY)} if id(EMPTY) in self.read else self.made)

    def again(self, apart: Collection[int] = (), kept: Collection[Path] = (), *, whole: bool = False) -> "Run":
        """Another call of the function."""
        return Run(self.where, self.root, apart, kept, whole=whole or self.whole, runs=self.runs)

    @property
    def values(self) -> list[Any]:
        """The objects of the tree for those that the function returned."""
        return [self.made[id(each)][1].value if id(each) in self.made else each for each in self.returned]

    def release(self) -> None:
        """Let go of the twins: they refer to their run, and would keep the tree alive until Python looks for cycles."""
        for run in self.runs:
            run.made.clear()
            run._copies.clear()
            run.returned.clear()
            run._dicts.clear()
            run.error, run.missing = None, (None, run.root, None)
        self.runs.clear()

    def reject_added_keys(self) -> None:
        """Raise for a key that the function would add to a defaultdict by reading it."""
        for copied, place in self._dicts:
            for name in copied.keys() - place.value.keys():
                raise missing_place(place, item_key(place.value, name))

    def value_at(self, place: Place) -> Any:
        """What the function gets at a place: the leaf, the copy of a node or container, or a stand-in."""
        value = place.value
        key, cls = id(value), type(value)
        self.read.setdefault(key, []).append(place)
        is_own = is_node_class(cls)
        made: Any
        if not is_own and _is_leaf(value):
            if key not in self.apart or place.path in self.kept:
                return value
            made = stand_in(value)
        else:
            if key in self._copies:
                self.shared.add(key)
                if key not in self.apart:
                    return self._copies[key]
            made = self._copies[key] = self._copy_of_node(place) if is_own else self._copy_of_container(place)
        self.made[id(made)] = made, place
        return made

    def _copy_of_node(self, place: Place) -> Any:
        children, statics = flat_form(place.value)
        values: Any = _Values(place, self, children, statics.table.keys)
        if statics.values:
            statics = _Statics(statics, _Values(place, self, statics.values, statics.table.names))
        return from_flat_form(type(place.value), (values, statics))

    def _copy_of_container(self, place: Place) -> Any:
        value, cls = place.value, type(place.value)
        if cls in _LAZY and not self.whole:
            self.is_lazy = True
            lazy = _LAZY[cls]()
            lazy.place, lazy.run, lazy.copies = place, self, {}
            return lazy
        copied = with_parts(value, {entry.key: self.value_at(entry) for entry in place.entries()})
        if isinstance(value, dict) and cls is not dict:
            self._dicts.append((copied, place))
        return copied

    def place_of(self, returned: Any) -> Place | None:
        """The only place where the function can have read an object that it returned."""
        if id(returned) in self.made:
            return self.made[id(returned)][1]
        places = [] if self.apart else self.read.get(id(returned), [])
        return places[0] if len(places) == 1 or len({place.path for place in places}) == 1 else None


def flat(result: Any, places: Collection[int] = ()) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict, and its treedef. One whose `id` is in `places` is one object."""

    def is_object(value: Any) -> bool:
        return not isinstance(value, STRUCTURES) or id(value) in places

    if is_object(result):
        return [result], ONE
    return jax.tree.flatten(result, is_leaf=is_object)


def _is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    if type(value) in STRUCTURES:
        return value is EMPTY
    return isinstance(value, LEAVES) or not (is_node(value) or all_entries(value) is not None)


# Copies


class _Values:
    """The values of a node's children or statics in a run. They are read, and copied, one by one."""

    __slots__ = ("copies", "entries", "keys", "place", "run")

    def __init__(self, place: Place, run: Run, entries: tuple[Any, ...], keys: tuple[Any, ...]) -> None:
        self.place, self.run, self.entries, self.keys = place, run, entries, keys
        self.copies: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Any]:
        return map(self.__getitem__, range(len(self.entries)))

    def __getitem__(self, index: Any) -> Any:
        key = self.keys[index]
        self.run.order.append((id(self.place.value), key))
        if index not in self.copies:
            key = GetAttrKey(key) if type(key) is str else key
            self.copies[index] = self.run.value_at(Place(self.entries[index], key, self.place))
        return self.copies[index]


class _Statics(Statics):
    """The statics of a node in a run, whose values are read one by one. They equal the node's own."""

    __slots__ = ("own",)

    def __init__(self, own: Statics, values: Any) -> None:
        self.own, self.values, self.table, self.keys, self.watched = own, values, own.table, own.keys, own.watched

    def __eq__(self, other: object) -> bool:
        return self.own is getattr(other, "own", other)

    def __hash__(self) -> int:
        return hash(self.own)


class _Lazy:
    """A list, tuple or dict whose items are copied when they are read: one of 1,000 takes as long as one of 2."""

    base: Any
    place: Place
    run: Run
    copies: dict[Any, Any]  # by index or name

    def __getitem__(self, name: Any) -> Any:
        place = self.place
        try:
            value = place.value[name]
        except (TypeError, LookupError) as error:
            self.run.missing = error, place, name
            raise
        if isinstance(name, slice):
            return self.whole()[name]
        if self.base is not dict:
            name = range(len(place.value))[name]  # not from the end
        elif type(name) not in {str, int}:
            name = next(own for own in place.value if own is name or own == name)  # 1 if read by True
        self.run.order.append((id(place.value), name))
        if name not in self.copies:
            key = (DictKey if self.base is dict else SequenceKey)(name)
            self.copies[name] = self.run.value_at(Place(value, key, place))
        return self.copies[name]

    def __len__(self) -> int:
        return len(self.place.value)

    def whole(self) -> Any:
        """A list, tuple or dict of all copies."""
        if self.base is dict:
            return {name: self[name] for name in self.place.value}
        return self.base(map(self.__getitem__, range(len(self))))


def _through_whole(name: str) -> Any:
    return lambda self, *args, **options: getattr(self.whole(), name)(*args, **options)


def _lazy_class(base: Any) -> Any:
    own = {*vars(_Lazy), "__new__", "__init__", "__getattribute__"}
    methods = {
        name: _through_whole(name) for name, method in vars(base).items() if callable(method) and name not in own
    }
    if base is dict:
        methods["get"] = lambda self, name, default=None: self[name] if name in self.place.value else default
    cls = type(base.__name__, (_Lazy, base), {**methods, "base": base, "__module__": base.__module__})
    jax.tree_util.register_pytree_node(cls, lambda lazy: ((lazy.whole(),), None), lambda _, children: children[0])
    return cls


_LAZY: dict[type[Any], Any] = {cls: _lazy_class(cls) for cls in STRUCTURES}


def with_parts(value: Any, parts: Mapping[Key, Any]) -> Any:
    """A copy of a node or container with other contents, for a function to look at: nothing is converted or checked."""
    if is_node_class(type(value)):
        children, statics = flat_form(value)
        keys = statics.table.keys
        if statics.values and not parts.keys() <= {*keys}:
            statics = _Statics(statics, [*map(parts.get, map(GetAttrKey, statics.table.names), statics.values)])
        return from_flat_form(type(value), (tuple(map(parts.get, keys, children)), statics))
    if isinstance(value, (*STRUCTURES, FrozenMapping)):
        return with_changes(value, parts) if parts else copy.copy(value)
    return _foreign_with_parts(value, parts)


def _foreign_with_parts(value: Any, parts: Mapping[Key, Any]) -> Any:
    """A copy of an object of another library's class with other contents."""
    names = {child.key for child in Place(value).children()}
    children = {key: part for key, part in parts.items() if key in names}
    try:
        copied = with_changes(value, children) if children else copy.copy(value)
    except Exception:  # noqa: BLE001  its constructor
        copied, children = copy.copy(value), {}
    for key in parts.keys() - children.keys() if copied is not value else ():
        with contextlib.suppress(AttributeError):
            object.__setattr__(copied, key.name, parts[key])
    return copied


# Stand-ins for leaves


def stand_in(value: Any) -> Any:
    """Another object that acts like the value: an equal one, or if there is none a proxy."""
    other = _equal_object(value)
    return _proxy(value) if other is value else other


def quick_stand_in(value: Any) -> Any:
    """As `stand_in`, but for an array in a tenth of the time; JAX can't compute with it."""
    return _proxy(value) if isinstance(value, jax.Array) else stand_in(value)


def _proxy(value: Any) -> Any:
    cls: Any = type(value)
    return _proxy_class(cls)(value)


# Equal objects of these classes may be one: small ints, text of one character.
_SUBCLASSES: dict[type[Any], Any] = {
    cls: type(cls.__name__, (cls,), {"__module__": cls.__module__}) for cls in (int, str, bytes)
}


def _equal_object(value: Any) -> Any:
    """Another object that no function can tell from the value except by `is`, or `type` of an int; or the value."""
    if not _is_leaf(value):
        return with_parts(value, {})
    if type(value) is float:
        return value * 1.0
    if type(value) is str and len(value) > 1:
        return value[:1] + value[1:]
    if type(value) in _SUBCLASSES:
        return _SUBCLASSES[type(value)](value)
    if isinstance(value, np.ndarray):
        return value.view()
    if isinstance(value, jax.Array) and not isinstance(value, Tracer) and not value.is_deleted():
        with contextlib.suppress(Exception):
            shards = [shard.data for shard in value.addressable_shards]
            return jax.make_array_from_single_device_arrays(value.shape, value.sharding, shards, dtype=value.dtype)
    return value


class _Proxy:
    """Acts like a value, but for `is` and `type`."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:  # isinstance() reads __class__ here
        return getattr(_value_of(self), name)


_value_of: Callable[[Any], Any] = vars(_Proxy)["value"].__get__
for _function in (len, operator.index, bool, repr, str, hash, operator.eq):
    setattr(_Proxy, f"__{_function.__name__}__", lambda self, *other, do=_function: do(_value_of(self), *other))


@functools.lru_cache(64)
def _proxy_class(cls: type[Any]) -> Any:
    """The class of the proxies for a class of leaves. It has its name, because libraries show it in warnings."""
    return type(cls.__name__, (_Proxy,), {"__slots__": (), "__module__": cls.__module__})
