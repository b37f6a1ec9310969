"""A twin of a tree: run a function on copies of its nodes and containers, which know their places.

An instance is its flat form, so a copy of a node is a real instance of its class whose flat form is read lazily.
Methods, properties, `type`, `==`, `callable` and `jax.tree` work on it. The twin of `net` in `lambda net:
net.layers[1].bias` is a `Net` with two lazy values. Reading `.layers` makes a tuple that copies its items when they are
read, reading `.bias` of the second returns the bias itself, and `Run.found` has its place, `.layers[1].bias`.
"""

import functools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax

from treewright._base.jax_private import DictKey, GetAttrKey, Key, SequenceKey
from treewright._core import Statics, flat_form, from_flat_form, is_node_class
from treewright._freeze import FrozenMapping
from treewright._trees.level import LEAVES
from treewright._trees.pattern import item_key, missing_place
from treewright._trees.places import Place, all_entries, bare_copy, with_attributes, with_changes

STRUCTURES = (tuple, list, dict)  # may contain several places
ONE = jax.tree.structure(0)  # the treedef of a single object
_NO_RESULT = object()  # the result of a run that raised


class Run:
    """One call of a function with a twin of the tree: what it reads and what it returns.

    Leaves are the tree's own, and a node or container has one copy for all its places, so `is` works; but objects with
    an `id` in `apart` have a stand-in or copy for each place.

    Lists, tuples and dicts are of subclasses that copy an item when it is read; with `whole`, they are of their own
    classes and copied whole.
    """

    failure = ""  # the error as text
    lacks: tuple[Place, Key] | None = None  # the place that the error is about, if it is certain
    is_lazy = False  # whether a list, tuple or dict was not of its own class, which may mislead the function

    def __init__(self, where: Any, root: Place, apart: Collection[int] = (), *, whole: bool = False) -> None:
        self.apart, self.whole = apart, whole
        self.way: list[tuple[int, Key]] = []  # what the function read, with the `id` of the owner
        self.read: dict[int, dict[Place, None]] = {}  # by the `id` of their value, with what was copied in a container
        self.copies: dict[int, Any] = {}  # by the `id` of the object, or of its place if it is apart
        self.made: dict[int, Place] = {}  # the places of copies by their `id`
        self.dicts: list[tuple[Any, Place]] = []  # copies of classes that may add a key when it is read
        # The last error of a list, tuple or dict, with its place and the item.
        self.missing: tuple[Exception | None, Place, Any] = (None, root, None)
        try:
            self._call(where, root)
        finally:  # The copies refer to this run: a cycle would keep the tree alive until Python looks for one.
            self.copies, self.made, self.dicts, self.missing = {}, {}, [], (None, root, None)

    def _call(self, where: Any, root: Place) -> None:
        result: Any = _NO_RESULT
        try:
            result = where(self.value_at(root))
        except Exception as error:  # noqa: BLE001  it raises for the tree too, or a copy is not enough like the value
            self.failure, self.lacks = repr(error), self._missing_place(error)
        for copied, place in self.dicts:
            for name in copied.keys() - place.value.keys():
                raise missing_place(place, item_key(place.value, name))
        returned, self.structure = flat(result, self.made)
        self.found = [self._places_of(each) for each in returned]  # for each object, where it may have been read
        # The nodes and containers that were read at several places, by their `id`.
        self.shared = {key for key in self.copies if len(self.read.get(key, ())) > 1}

    def value_at(self, place: Place) -> Any:
        """What the function gets at a place: the leaf, the copy of a node or container, or a stand-in."""
        value = place.value
        key = id(value)
        self.read.setdefault(key, {})[place] = None
        leaf = is_leaf(value)
        if key in self.apart:
            key = id(place)
        elif leaf:
            return value
        if key not in self.copies:
            made = self.copies[key] = stand_in(value) if leaf else self._copy_at(place)
            self.made[id(made)] = place
        return self.copies[key]

    def _copy_at(self, place: Place) -> Any:
        value, cls = place.value, type(place.value)
        if is_node_class(cls):
            children, statics = flat_form(value)
            values = self._lazy(_Lazy, place, children, statics.table.keys)
            if statics.values:
                statics = _Statics(statics, self._lazy(_Lazy, place, statics.values, statics.table.names))
            return from_flat_form(cls, (values, statics))
        if cls in _LAZY and not (self.whole and value):
            self.is_lazy = True
            return self._lazy(_LAZY[cls], place, value, None)
        copied = with_parts(value, {entry.key: self.value_at(entry) for entry in place.entries()})
        if isinstance(copied, dict):
            self.dicts.append((copied, place))
        return copied

    def _lazy(self, cls: type[Any], place: Place, parts: Any, names: Any) -> Any:
        lazy = cls()
        lazy.place, lazy.run, lazy.parts, lazy.names, lazy.places = place, self, parts, names, {}
        return lazy

    def _places_of(self, value: Any) -> list[Place]:
        """Where the function may have read an object that it returned."""
        place = self.made.get(id(value))
        key = id(value if place is None else place.value)
        if key in self.apart:
            return [] if place is None else [place]
        return [*self.read.get(key, ())]

    def _missing_place(self, error: Exception) -> tuple[Place, Key] | None:
        """The parent and the key of the place that the function tried to read; None if it is not certain."""
        raised, place, item = self.missing
        if raised is error:
            return place, item_key(place.value, item)
        owners = self._places_of(getattr(error, "obj", self))
        key = GetAttrKey(getattr(error, "name", None) or "")
        return (owners[0], key) if len(owners) == 1 and key.name and owners[0].child(key) is None else None


def flat(result: Any, places: Collection[int] = ()) -> tuple[list[Any], Any]:
    """The objects in a tuple, list or dict, and its treedef. One whose `id` is in `places` is one object."""

    def is_object(value: Any) -> bool:
        return not isinstance(value, STRUCTURES) or id(value) in places

    if is_object(result):
        return [result], ONE
    return jax.tree.flatten(result, is_leaf=is_object)


def is_leaf(value: Any) -> bool:
    """Whether a value has no places below it."""
    cls = type(value)
    if cls in STRUCTURES or is_node_class(cls):
        return False
    return isinstance(value, LEAVES) or all_entries(value) is None


# Copies


class _Statics(Statics):
    """The statics of a node in a run, whose values are read one by one. They equal the node's own."""

    __slots__ = ("own",)

    def __init__(self, own: Statics, values: Any) -> None:
        self.own, self.values, self.table, self.keys = own, values, own.table, own.keys

    def __eq__(self, other: object) -> bool:
        return self.own is getattr(other, "own", other)

    def __hash__(self) -> int:
        return hash(self.own)


class _Lazy:
    """Items that are copied when they are read: one of 1,000 takes as long as one of 2.

    They are a node's children or statics, or the items of a list, tuple or dict in a subclass with the same methods.
    """

    base: Any = tuple
    place: Place  # of the owner
    run: Run
    parts: Any
    names: tuple[Any, ...] | None  # or keys, of a node's children or statics
    places: dict[Any, Place]  # by index or name

    def __getitem__(self, name: Any) -> Any:
        try:
            value = self.parts[name]
        except (TypeError, LookupError) as error:
            self.run.missing = error, self.place, name
            raise
        if isinstance(name, slice):
            return self.whole()[name]
        if self.base is dict:
            name = name if type(name) is str else item_key(self.parts, name).key  # 1 if read by True
        elif self.names is None:
            name = range(len(self.parts))[name]  # not from the end
        if name not in self.places:
            key = self.names[name] if self.names else (DictKey if self.base is dict else SequenceKey)(name)
            self.places[name] = Place(value, GetAttrKey(key) if type(key) is str else key, self.place)
        place = self.places[name]
        self.run.way.append((id(self.place.value), place.key))
        return self.run.value_at(place)

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole())

    def __reduce_ex__(self, protocol: Any) -> Any:  # a deep copy of the run would keep the tree alive
        return self.whole().__reduce_ex__(protocol)

    def whole(self) -> Any:
        """A list, tuple or dict of all copies."""
        if self.base is dict:
            return {name: self[name] for name in self.parts}
        return self.base(map(self.__getitem__, range(len(self))))


def _through_whole(name: str) -> Any:
    return lambda self, *args, **options: getattr(self.whole(), name)(*args, **options)


def _lazy_class(base: Any) -> Any:
    own = {*vars(_Lazy), "__new__", "__init__", "__getattribute__"}
    methods = {name: _through_whole(name) for name in vars(base).keys() - own}
    if base is dict:  # without a copy of all items
        methods["get"] = lambda self, name, default=None: self[name] if name in self.parts else default
    cls = type(base.__name__, (_Lazy, base), {**methods, "base": base, "__module__": base.__module__})
    jax.tree_util.register_pytree_node(cls, lambda lazy: ((lazy.whole(),), None), lambda _, children: children[0])
    return cls


_LAZY: dict[type[Any], Any] = {cls: _lazy_class(cls) for cls in STRUCTURES}


def with_parts(value: Any, parts: Mapping[Key, Any]) -> Any:
    """A copy of a node or container with other contents, for a function to look at: nothing is converted or checked."""
    if is_node_class(type(value)):
        children, statics = flat_form(value)
        keys = statics.table.keys
        if not all(map(keys.__contains__, parts)):
            statics = _Statics(statics, [*map(parts.get, map(GetAttrKey, statics.table.names), statics.values)])
        return from_flat_form(type(value), (tuple(map(parts.get, keys, children)), statics))
    if isinstance(value, (*STRUCTURES, FrozenMapping)) or not all(isinstance(key, GetAttrKey) for key in parts):
        return with_changes(value, parts)
    try:
        return with_attributes(value, {key.name: part for key, part in parts.items()}, bare_copy)
    except TypeError:  # for example a property without a setter
        return with_changes(value, parts)


# Stand-ins for leaves


def stand_in(value: Any) -> Any:
    """Another object that acts like the value: a copy of a node or container, a proxy of a leaf."""
    cls: Any = type(value)
    other = value if is_leaf(value) else with_parts(value, {})
    return _proxy_class(cls)(value) if other is value else other


class _Proxy:
    """Acts like a leaf, but for `is`, `type` and what JAX computes."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __getattribute__(self, name: str) -> Any:  # isinstance() reads __class__ here
        return getattr(_value_of(self), name)


_value_of: Callable[[Any], Any] = vars(_Proxy)["value"].__get__


def _forwarding(name: str) -> Any:
    operate = vars(operator).get(name)  # it tries both classes; the method alone may return NotImplemented

    def method(self: Any, *others: Any, **options: Any) -> Any:
        value = _value_of(self)
        return operate(value, *others) if operate else getattr(value, name)(*others, **options)

    return method


_NOT_FORWARDED = frozenset(dir(_Proxy)) - {*vars(operator), "__repr__", "__str__", "__hash__", "__format__"}


@functools.lru_cache(64)
def _proxy_class(cls: type[Any]) -> Any:
    """The class of the proxies for a class of leaves. It has its name, because libraries show it in warnings."""
    names = [name for name in dir(cls) if name.startswith("__") and name not in _NOT_FORWARDED]
    methods = {name: _forwarding(name) for name in names if callable(getattr(cls, name, None))}  # `type` lacks one
    return type(cls.__name__, (_Proxy,), {**methods, "__slots__": (), "__module__": cls.__module__})
