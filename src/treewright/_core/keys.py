"""Exact keys: when two static values are the same.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to another program. It
is also too fine: `nan != nan`, and an optimiser that is built again differs from the last one. An exact key is equal
for two values only when no program can tell them apart. Where that can't be known, as of a function that reads a
global, the key stands for the very object. A key is taken once, when a node is made. What a class holds is part of no
key: a program that assigns to an attribute of a class, or to what its methods read, is on its own.
"""

import contextlib
import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.functions import (
    BY_EQUALITY,
    MISSING,
    ThisObject,
    captured,
    code_key,
    code_reads,
    import_path,
    is_cached_property,
    is_library,
    is_linen,
    jit_options,
    library_object,
    reads_of,
    state_of,
)
from treewright._core.jax_private import numbers_of
from treewright._core.kinds import DATACLASS, KINDS, NAMEDTUPLE, Kind, fields_of, kind_of
from treewright._core.misfits import MUTABLE, NoExactKeyError, problem_of, refuse_equality

BY_VALUE = BY_EQUALITY | {type(getattr(functools, "Placeholder", None))}  # a partial's, from Python 3.14 on
_LARGE = 4096  # elements of an array above which a library's function that captured it goes by identity
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_METHODS = frozenset({types.MethodType, types.BuiltinFunctionType, types.MethodWrapperType})


class OpenError(Exception):
    """A function, partial or method holds something that can change without it."""


def exact_key(value: object, *, content: bool = False) -> Hashable:
    """A key that is equal for two values exactly when `jit` may share one trace between them.

    By `content`, a user's function that captures variables counts by what it captured, not by identity.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return Keys(content).key(value)


def by_identity(value: Any) -> Hashable:
    """The key of this very object; of a method, which is made at each access, that of its function and instance."""
    is_method = hasattr(type(value), "__func__") and hasattr(type(value), "__self__")
    return ("identity", *map(ThisObject, (value.__func__, value.__self__) if is_method else (value,)))


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` already are the exact comparison for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


@dataclasses.dataclass(slots=True)
class Keys:
    """The keys of the parts of one static value.

    Outside of functions, what has no exact key stands for itself. Inside a function, a partial or a method it raises
    OpenError, and the whole stands for itself.
    """

    content: bool = False
    met: dict[int, tuple[int, Any]] | None = None  # inside: what was met, numbered, since there are cycles
    in_library: bool = False  # what a library's function captured does not change: lists, dicts, small arrays

    def key(self, value: Any) -> Hashable:
        """The exact key of a value, or of one inside it.

        Raises:
            NoExactKeyError: If it can't be a static.
            OpenError: Inside a function, partial or method, if it has no exact key of its own.
        """
        cls = type(value)
        if cls in BY_VALUE or (cls is float and value and value == value):  # noqa: PLR0124
            return (cls, value)
        if cls is types.FunctionType:
            return self.whole(value, Keys.function)
        if isinstance(value, functools.partial):
            return self.whole(value, Keys.partial)
        kind = KINDS.get(cls)
        if kind is not None:
            return self.of_kind(kind, value)
        if isinstance(value, type):
            return by_identity(value)
        if cls in _METHODS and not library_object(value):
            return self.whole(value, Keys.method)
        if hasattr(cls, "_exact_key_"):  # nodes, and methods of nodes
            return (cls, value._exact_key_(self))
        return self.by_parts(value)

    # By parts, or by `==`

    def by_parts(self, value: Any) -> Hashable:
        """The key of a value of a family, or of a class that extends a plain one; any other goes by `==`."""
        cls: Any = type(value)
        kind = kind_of(cls)
        if kind is not None and kind is not NAMEDTUPLE and kind is not DATACLASS:
            return self.of_kind(kind, value)
        base = next((base for base in cls.__mro__ if base in KINDS), None)
        if base is not None and state_of(value):
            self.of_kind(KINDS[base], value)  # which refuses what can change
            return self.itself(value)
        if base is not None and cls.__eq__ is base.__eq__:
            return (_class_key(cls), self.of_kind(KINDS[base], value))
        is_frozen_dict = isinstance(value, dict) and cls.__hash__ and cls.__setitem__ is not dict.__setitem__
        if isinstance(value, MUTABLE) and not is_frozen_dict:
            return self.container(value)
        by_fields = _is_generated(cls.__eq__) and (cls.__dataclass_params__.frozen or is_linen(cls))
        return self.dataclass(value) if by_fields else self.hashable(value)

    def of_kind(self, kind: Kind, value: Any) -> Hashable:
        """By its class and its parts."""
        cls = type(value)
        if kind.key is not None:
            return (cls, kind.key(value, self.key))
        parts = kind.parts(value)
        if parts is None:
            return self.hashable(value)
        if kind is not KINDS[frozenset]:
            return (cls, *map(self.key, parts))
        # Each on a walk of its own: the numbers of what was met before depend on the order.
        inside = self.met is not None
        return (cls, frozenset(Keys(self.content, {} if inside else None).key(part) for part in parts))

    def dataclass(self, value: Any) -> Hashable:
        """By the fields that `==` compares, and any attribute that is not a field."""
        cls, fields = type(value), fields_of(value)
        for name, part in state_of(value).items():
            if not is_cached_property(cls, name) and not (is_linen(cls) and name.startswith("_")):
                fields.setdefault(name, part)
        left_out = {field.name for field in dataclasses.fields(cls) if not field.compare}
        try:
            keys = [(name, self.key(part)) for name, part in fields.items() if name not in left_out]
        except NoExactKeyError:
            if _is_generated(cls.__hash__):
                raise
            return self.hashable(value)  # a class with a hash of its own vouches for what its fields hold
        return (_class_key(cls), *keys)

    def hashable(self, value: Any) -> Hashable:
        """By type, `hash` and `==`, or by identity where the type defines neither."""
        cls: Any = type(value)
        if cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__:
            return self.opaque(value)
        try:
            hash(value)
        except Exception as error:
            raise problem_of(value) from error
        refuse_equality(value)
        if isinstance(value, Mapping):  # such as flax's FrozenDict: its `==` takes 1 for True, and forgets the order
            return (_class_key(cls), value, *[(self.key(name), self.key(value[name])) for name in value])
        is_alias = cls.__module__ == "typing" or isinstance(value, types.GenericAlias | types.UnionType)
        return (_class_key(cls), value, repr(value)) if is_alias else (_class_key(cls), value)

    def opaque(self, value: Any) -> Hashable:
        """An object without `==`: a library's function, a jitted one, a device, an instance with attributes."""
        if library_object(value):
            return by_identity(value)
        if jit_options(value) is not None and (self.met is not None or import_path(value) is None):
            return self.whole(value, lambda walk, jit: (type(jit), walk.key(jit.__wrapped__), jit_options(jit)))
        stays = isinstance(value, jax.Device) or type(value) is object or value is MISSING
        if self.in_library and isinstance(value, types.ModuleType):
            stays = is_library(value.__name__)
        return by_identity(value) if stays else self.itself(value)

    def itself(self, value: Any) -> Hashable:
        """What goes by identity, and what holds it too."""
        if self.met is not None:
            raise OpenError
        return by_identity(value)

    def statics(self, statics: Any) -> Any:
        """The statics of a node: one object for equal values."""
        if self.met is not None:
            for content, value in zip(statics.table.content, statics.values, strict=True):
                Keys(content, {}).key(value)
        return statics

    # Functions, and what else goes as a whole

    def whole(self, value: Any, read: "Callable[[Keys, Any], Hashable]") -> Hashable:
        """The key of a function or the like by what it holds; of the very object where something in it can change.

        What is met again has the number of its first visit: there are cycles.
        """
        met, address = self.met, id(value)
        if met is None:
            try:
                return Keys(self.content, {}).whole(value, read)
            except (OpenError, RecursionError):  # nested deeper than Python's own stack
                return by_identity(value)
        if address in met:
            return met[address][0]
        met[address] = len(met), value
        return read(self, value)

    def function(self, value: types.FunctionType) -> Hashable:
        """By code, and by what it reads, captured and has for defaults; at the outermost by a name in a module."""
        from_library = is_library(value.__globals__.get("__name__"))
        is_named = "<" not in value.__qualname__ and import_path(value) is not None
        if is_named and (from_library or len(self.met or ()) == 1):
            return by_identity(value)
        code, closure, given = value.__code__, value.__closure__, value.__defaults__
        named, own = value.__kwdefaults__, value.__dict__
        inside = self if from_library is self.in_library else Keys(self.content, self.met, from_library)
        try:
            key = (
                # That of a library is this one, since equal code may stand in another file.
                *((id(code), code, value.__name__) if from_library else inside.origin(value)),
                tuple(map(inside.key, given)) if given else (),
                inside.items(named) if named else (),
                inside.items(captured(value)) if closure else (),
                inside.items(own) if own else (),
            )
        except NoExactKeyError as problem:
            raise OpenError from problem
        return _Content(value, key) if closure and not from_library else key

    def items(self, named: Mapping[str, Any]) -> Hashable:
        return (*named, *map(self.key, named.values()))

    def origin(self, value: types.FunctionType) -> tuple[Hashable, ...]:
        """What a user's function is, and what it reads by name, if that stays what it is."""
        code = value.__code__
        captures = value.__dict__ or code.co_freevars not in {(), ("__class__",)}
        if (captures and not self.content) or not code_reads(code)[1]:
            raise OpenError
        reads: list[Hashable] = []
        for _, read, stays in reads_of(value):
            if not stays:
                raise OpenError
            by_object: Any = type(read).__hash__
            reads.append(read if by_object is object.__hash__ else ThisObject(read))
        place = (code_key(id(code), code), id(value.__globals__), _annotations(value))
        return (*place, *map(self.key, _NAMES(value)), *reads)

    def partial(self, value: functools.partial[Any]) -> Hashable:
        """By its function and arguments, if it has no attributes."""
        if KINDS[functools.partial].parts(value) is None:
            raise OpenError
        cls: Any = type(value)
        return (cls, self.key(value.func), *map(self.key, value.args), self.items(value.keywords))

    def method(self, value: Any) -> Hashable:
        """By function and instance where both have exact keys, else by this function and this instance."""
        function, instance = getattr(value, "__func__", None) or value.__name__, value.__self__
        if instance is None:  # of a function written in C that belongs to no object
            raise OpenError
        try:
            return (type(value), self.key(instance), self.key(function))
        except (NoExactKeyError, OpenError) as problem:
            with contextlib.suppress(ValueError):  # of a node that is not finished, which has no leaves yet
                tracer = next((leaf for leaf in jax.tree.leaves(instance) if isinstance(leaf, Tracer)), None)
                if tracer is not None:
                    raise problem_of(tracer) from None
            raise OpenError from problem

    def container(self, value: Any) -> Hashable:
        """A list, a dict, an array: of what a library's function captured, by content."""
        if not self.in_library or isinstance(value, Tracer):
            raise problem_of(value)
        if isinstance(value, np.ndarray | jax.Array):
            return _array_key(value)
        return self.whole(value, lambda walk, held: _Content(held, (type(held), *map(walk.key, _parts_now(held)))))


def _array_key(value: Any) -> Hashable:
    """An array by its values."""
    if value.size > _LARGE or value.dtype == object:
        raise OpenError
    try:
        data = numbers_of(value).tobytes()
    except RuntimeError as error:  # deleted, or in part on other hosts
        raise OpenError from error
    place = (getattr(value, "sharding", None), getattr(value, "weak_type", None))
    key = (type(value), value.dtype, value.shape, data, *place)
    return _Content(value, key) if isinstance(value, np.ndarray) else key


class _Content:
    """The key of a captured container, or of a closure: it equals another only while both hold what they held.

    A mask of optax that was changed in place would otherwise stand for a new one that is as it was at first.
    """

    __slots__ = ("key", "parts", "value")

    def __init__(self, value: Any, key: Hashable) -> None:
        self.value, self.key, self.parts = value, key, _parts_now(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Content) and self.key == other.key and self.stays() and other.stays()

    def __hash__(self) -> int:
        return hash(self.key)

    def stays(self) -> bool:
        now = _parts_now(self.value)
        return len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))


def _parts_now(value: Any) -> tuple[Any, ...]:
    if isinstance(value, types.FunctionType):
        return tuple(captured(value).values())
    if isinstance(value, np.ndarray):
        return tuple(value.tobytes())  # small ints, each of which is one object
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever `==` its metaclass has."""
    meta: Any = type(cls)
    return cls if meta.__eq__ is object.__eq__ else ThisObject(cls)


def _is_generated(method: Any) -> bool:
    """Whether `dataclasses` has written a method."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_qualname.startswith("__create_fn__.")


def _annotations(value: Any) -> Hashable:
    annotate = getattr(value, "__annotate__", None)  # from Python 3.14 on, and not evaluated: see PEP 649
    if annotate is not None:
        return (code_key(id(annotate.__code__), annotate.__code__), *map(ThisObject, captured(annotate).values()))
    given = value.__annotations__
    return exact_key(tuple(given.items())) if given else ()
