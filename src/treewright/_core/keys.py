"""Exact keys: when two static values are the same.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to another program. It
is also too fine: `nan != nan`, and an optimiser that is built again differs from the last one. An exact key is equal
for two values only when no program can tell them apart. Where that can't be known, as of a function that reads a
global, the key stands for the very object. A key is taken once, when a node is made. What a class holds is part of no
key: a program that assigns to an attribute of a class, or to what its methods read, is on its own.
"""

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import itertools
import operator
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treewright._core import functions as inspected
from treewright._core.functions import (
    OpenError,
    ThisObject,
    captured,
    class_attribute,
    contents,
    import_path,
    is_cached_property,
    library_class,
    library_made,
    state_of,
)
from treewright._core.jax_private import is_key_dtype, node_data
from treewright._core.kinds import DATACLASS, DTYPE, KINDS, NAMEDTUPLE, Kind, field_values, is_frozen_mapping, kind_of
from treewright._core.misfits import MUTABLE, NoExactKeyError, problem_of, refuse_equality, unanswered
from treewright._core.text import first_names, short_text, text, text_with_class

BY_VALUE = inspected.BY_EQUALITY | {type(getattr(functools, "Placeholder", None))}  # a partial's, from Python 3.14 on
_LARGE = 4096  # elements of an array above which a library's function that captured it goes by identity
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_TEXTS = frozenset({str, types.NoneType})
# Compiled classes, whose subclasses are read by the methods of these.
_BASES = frozenset(
    {tuple, frozenset, float, complex, str, int, bytes, dt.datetime, dt.time, dt.date, dt.timedelta, decimal.Decimal}
)
_BY_FIELDS = (None, DATACLASS, NAMEDTUPLE)  # these may have an == of their own
_BUILT_IN = (types.BuiltinFunctionType, types.MethodWrapperType)
_SINGLE = frozenset({NotImplemented, dataclasses.MISSING})
_NOTHING = ((), ("__class__",))  # what a closed function captures: nothing, or in a method its class


def exact_key(value: object, *, content: bool = False) -> Hashable:
    """A key that is equal for two values exactly when `jit` may share one trace between them.

    By `content`, a user's function that captures variables counts by what it captured, not by identity.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return Keys(content=content).key(value)


def method_key(function: Any, instance: object) -> Hashable:
    """The key of a method that is not a static: exact where it has such a key, else of this function and instance."""
    return Keys(content=False).method(types.MethodType, function, instance)


def tracer_in(tree: object) -> Any:
    return next((leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Tracer)), None)


def by_identity(value: object) -> Hashable:
    held = value if isinstance(value, _Method) else (value,)  # a method is made at each access
    return ("identity", *map(ThisObject, held))


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` already are the exact comparison for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


class _Method(NamedTuple):
    kind: type[Any]
    function: Any
    instance: Any


class Keys:
    """One walk through a static value.

    Outside of functions, what has no exact key stands for itself. Inside a function, a partial or a method it raises
    OpenError, and the whole stands for itself.
    """

    def __init__(self, *, content: bool, is_inside: bool = False) -> None:
        self.content = content
        self.met: dict[int, tuple[int, Any]] | None = {} if is_inside else None  # inside: numbered as they are met
        self.in_library = False  # what a library's function captured does not change: lists, dicts, small arrays

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
            return self.function(value)
        kind = KINDS.get(cls)
        if kind is not None:
            return self.whole(value, self.call) if kind.is_call else self.of_kind(kind, value)
        if cls is types.MethodType:
            return self.method(cls, value.__func__, value.__self__)
        if issubclass(cls, enum.Enum):
            return self.member(value)
        if hasattr(cls, "_exact_key_"):  # nodes, and methods of nodes
            return (cls, value._exact_key_(self))
        return self.extended(cls, value)

    def extended(self, cls: type[Any], value: Any) -> Hashable:
        """A value of a class that extends a plain one, or that no table knows."""
        kind = kind_of(cls)
        if kind is DTYPE:
            return self.of_kind(kind, value)  # pyright: ignore[reportArgumentType]
        if issubclass(cls, functools.partial):
            return self.whole(value, self.call)
        base = next((base for base in cls.__mro__ if base in KINDS), None)
        has_room = base is not None and bool(cls.__dictoffset__ or cls.__basicsize__ > base.__basicsize__)
        if has_room and state_of(value):
            self.refuse_unhashable(value)
            return self.itself(value, "has attributes of its own")
        if base in _BASES and cls.__eq__ is base.__eq__:
            return (_class_key(cls), self.of_kind(KINDS[base], value))
        if kind not in _BY_FIELDS:
            return self.of_kind(kind, value)
        if issubclass(cls, np.void):  # a row of a structured array, which can change in place
            raise problem_of(value)
        if is_frozen_mapping(cls):
            own = () if library_class(cls) else (self.hashable(value),)
            self.refuse_unhashable(value)
            items = [(self.key(name), self.key(value[name])) for name in value]
            return (_class_key(cls), *items, *own)
        if isinstance(value, MUTABLE):
            return self.container(value)
        return self.dataclass(value) if dataclasses.is_dataclass(cls) else self.hashable(value)

    # Functions, and what else goes as a whole

    def whole(self, value: Any, read: Callable[[Any], Hashable]) -> Hashable:
        """The key of a function or the like by what it holds; of the very object where something in it can change."""
        if self.met is not None:
            return self.numbered(value, read)
        self.met = {}
        try:
            return self.numbered(value, read)
        except OpenError:
            return by_identity(value)
        finally:
            self.met, self.in_library = None, False

    def numbered(self, value: Any, read: Callable[[Any], Hashable]) -> Hashable:
        """The key, and where the same object is met again the number of its first visit: there are cycles."""
        met: Any = self.met
        if id(value) in met:
            number: int = met[id(value)][0]
            return number
        met[id(value)] = len(met), value
        return read(value)

    def function(self, value: types.FunctionType) -> Hashable:
        if self.met is None and import_path(value) is not None:
            return by_identity(value)
        return self.whole(value, self.read_function)

    def read_function(self, value: types.FunctionType) -> Hashable:
        before, self.in_library = self.in_library, library_made(value)
        try:
            return self.of_library(value) if self.in_library else self.of_user(value)
        except NoExactKeyError as problem:
            raise OpenError(f"it holds {problem.found}") from problem
        finally:
            self.in_library = before

    def of_library(self, value: types.FunctionType) -> Hashable:
        """By content: nobody assigns to what a library's function captured."""
        if not value.__closure__ and import_path(value) is not None:
            return by_identity(value)
        code = value.__code__  # this one: equal code may stand in another file; a tuple compares it without Python
        return (id(code), code, *self.held(value, contents(value)))

    def of_user(self, value: types.FunctionType) -> Hashable:
        """By code and what is read, if it is closed."""
        code, free = value.__code__, value.__code__.co_freevars
        if (free not in _NOTHING or value.__dict__) and not self.content:
            raise OpenError(f"it {'captures' if free else 'has the attributes'} {first_names(free or value.__dict__)}")
        reads = [ThisObject(read) for read in inspected.closed_reads(value)]
        origin: Hashable = (inspected.code_key(id(code), code), id(value.__globals__), _annotations(value))
        if import_path(value) is not None:
            origin = by_identity(value)
        key = (origin, *reads, *self.held(value, contents(value) if free else ()))
        return _Content(value, key) if free else key

    def held(self, value: types.FunctionType, captures: tuple[Any, ...]) -> tuple[Hashable, ...]:
        """The keys of names, defaults, captures and attributes; most functions have few, and a loop is not free."""
        names: tuple[Any, ...] = _NAMES(value)
        given, named, own = value.__defaults__, value.__kwdefaults__, value.__dict__
        return (
            names if _TEXTS.issuperset(map(type, names)) else tuple(map(self.key, names)),
            tuple(map(self.key, given)) if given else (),
            self.items(named) if named else (),
            tuple(map(self.key, captures)) if captures else (),
            self.items(own) if own else (),
        )

    def items(self, named: Mapping[str, Any]) -> Hashable:
        return tuple([(name, self.key(value)) for name, value in named.items()])

    def call(self, value: Any) -> Hashable:
        """A partial, or what `operator` makes like one."""
        if not isinstance(value, functools.partial):
            return self.of_kind(KINDS[type(value)], value)
        if value.__dict__ or (type(value) is not functools.partial and state_of(value)):
            raise OpenError(f"{short_text(value)} has attributes of its own")
        return self.of_kind(KINDS[functools.partial], value)

    def jitted(self, value: Any) -> Hashable:
        return (type(value), self.key(value.__wrapped__), inspected.jit_options(value))

    def method(self, cls: type[Any], function: Any, instance: Any) -> Hashable:
        """By function and instance where both have exact keys, else by this function and this instance."""
        return self.whole(_Method(cls, function, instance), self.read_method)

    def read_method(self, value: _Method) -> Hashable:
        instance = value.instance
        try:
            return (value.kind, self.key(instance), self.key(value.function))
        except (NoExactKeyError, OpenError) as problem:
            tracer = None
            with contextlib.suppress(ValueError):  # of a node that is not finished, which has no leaves yet
                tracer = tracer_in(instance)
            if tracer is not None:
                raise problem_of(tracer) from None
            raise OpenError(f"it is a method of {text_with_class(instance)}") from problem

    # Containers that a library's function captured

    def container(self, value: Any) -> Hashable:
        """A list, a dict, an array."""
        if not self.in_library or isinstance(value, Tracer):
            raise problem_of(value)
        is_array = isinstance(value, np.ndarray | jax.Array)
        return self.array(value) if is_array else self.numbered(value, self.read_container)

    def read_container(self, value: Any) -> Hashable:
        parts = itertools.chain(*dict.items(value)) if isinstance(value, dict) else value
        return _Content(value, (type(value), *map(self.key, parts)))

    def array(self, value: Any) -> Hashable:
        whole = getattr(value, "is_fully_addressable", True) and not getattr(value, "is_deleted", bool)()
        if value.size > _LARGE or not whole or value.dtype == object:
            raise OpenError(f"it captured {text(value)}")
        place: Hashable = ()
        data = value
        if isinstance(value, jax.Array):
            data = np.asarray(jax.random.key_data(value) if is_key_dtype(value.dtype) else value)
            place = (value.sharding, getattr(value, "weak_type", False), getattr(value, "committed", None))
        key = (type(value), str(value.dtype), self.key(data.dtype), value.shape, data.tobytes(), place)
        return _Content(value, key) if isinstance(value, np.ndarray) else key

    # Instances

    def of_kind(self, kind: Kind, value: Any) -> Hashable:
        """By its class and its parts."""
        cls = type(value)
        if kind.key is not None:
            return (cls, *kind.key(value, self.key))
        parts = kind.parts(value)
        if parts is None:
            return self.hashable(value)
        return (cls, *map(self.key, parts)) if kind.is_ordered else (cls, frozenset(map(self.part_of_set, parts)))

    def part_of_set(self, part: Any) -> Hashable:
        """Without the numbers of what was met before, which depend on the order."""
        return Keys(content=self.content, is_inside=self.met is not None).key(part)

    def statics(self, statics: Any) -> Any:
        """The statics of a node: one object for equal values."""
        if self.met is not None:
            for content, value in zip(statics.table.content, statics.values, strict=True):
                Keys(content=content, is_inside=True).key(value)
        return statics

    def member(self, value: enum.Enum) -> Hashable:
        """By identity, as members are single; some compare by the `==` of a number, or of the user's."""
        cls = type(value)
        is_plain = class_attribute(cls, "__eq__") is object.__eq__
        return (cls, value) if is_plain else by_identity(value)

    def dataclass(self, value: Any) -> Hashable:
        """By its fields where `==` is the generated one; with any attribute that is not a field."""
        cls = type(value)
        equality, frozen = _equality_of(cls), cls.__dataclass_params__.frozen
        by_hash = class_attribute(cls, "__hash__") is not None
        if equality is None or not (frozen or by_hash):
            return self.hashable(value)
        try:
            keys = [(name, self.key(part)) for name, part in _parts_of_dataclass(value)]
        except NoExactKeyError:  # a class with a __hash__ of its own vouches for what its fields hold
            with contextlib.suppress(TypeError):
                hash(value)
                return self.hashable(value)
            raise
        # One that can change is compared as it is then, too.
        settled = frozen or equality == "library" or library_class(cls) or inspected.is_linen(cls)
        return (_class_key(cls), *keys) if settled else (_class_key(cls), *keys, self.hashable(value))

    def hashable(self, value: Any) -> Hashable:
        """Anything else: by type, `hash` and `==`, or by identity where the type defines neither."""
        cls = type(value)
        if isinstance(value, (*_BUILT_IN, type, types.CodeType, memoryview)):
            return self.opaque(value)
        if all(class_attribute(cls, name) is getattr(object, name) for name in ("__hash__", "__eq__")):
            return self.opaque(value)
        self.refuse_unhashable(value)
        refuse_equality(value)
        key = (_class_key(cls), value)
        return (key, *self.held_by_treedef(value)) if cls.__name__ == "PyTreeDef" else key

    def held_by_treedef(self, treedef: Any) -> Iterator[Hashable]:
        """The keys of the `aux_data` in a treedef, which `==` compares by `==`; of what has none, that must do."""
        waiting = [treedef]
        while waiting:
            data = node_data(waiting[-1])
            waiting.extend(waiting.pop().children())
            if data is not None and data[1] is not None:
                with contextlib.suppress(NoExactKeyError):  # dicts keep their keys in a list
                    yield self.key(tuple(data[1]) if type(data[1]) is list else data[1])

    def opaque(self, value: Any) -> Hashable:
        """An object without `==`: a jitted function, a class, an instance with attributes."""
        if inspected.library_object(value):
            return by_identity(value)
        if inspected.jit_options(value) is not None and (self.met is not None or import_path(value) is None):
            return self.whole(value, self.jitted)
        if isinstance(value, _BUILT_IN) and type(value.__self__) in BY_VALUE:  # "a".join
            return (type(value), value.__name__, self.key(value.__self__))
        of_library = self.in_library and isinstance(value, types.ModuleType) and inspected.is_library(value.__name__)
        fixed = isinstance(value, type | jax.Device) or type(value) is object or value in _SINGLE
        return by_identity(value) if fixed or of_library else self.itself(value)

    def itself(self, value: Any, problem: str = "can change") -> Hashable:
        """What goes by identity, and what holds it too."""
        if self.met is not None:
            raise OpenError(f"it holds {text_with_class(value)}, which {problem}")
        return by_identity(value)

    def refuse_unhashable(self, value: Any) -> None:
        try:
            hash(value)
        except Exception as error:
            raise problem_of(value) from error


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever `==` its metaclass has."""
    is_plain = type(cls) is type or class_attribute(type(cls), "__eq__") is object.__eq__
    return cls if is_plain else ThisObject(cls)


def _equality_of(kind: type[Any]) -> Literal["generated", "library"] | None:
    """Who wrote the `==` of a dataclass: `dataclasses` for its very fields, a library for a base; None for others."""
    owner = next(base for base in kind.__mro__ if "__eq__" in vars(base))
    code, fields = getattr(vars(owner)["__eq__"], "__code__", None), vars(owner).get("__dataclass_fields__")
    generated = code is not None and code.co_qualname.startswith("__create_fn__.")  # so `dataclasses` names it
    if generated and fields is class_attribute(kind, "__dataclass_fields__"):
        return "generated"
    # Such as `equinox.Module`, whose `==` looks at all fields.
    return "library" if owner is not kind and dataclasses.is_dataclass(owner) and library_class(owner) else None


def _parts_of_dataclass(value: Any) -> Iterator[tuple[str, Any]]:
    """The fields that `==` compares, and the attributes that are no fields, by name."""
    cls = type(value)
    left_out = {field.name for field in dataclasses.fields(cls) if not field.compare}
    fields = dict(field_values(value))
    yield from ((name, part) for name, part in fields.items() if name not in left_out)
    if library_class(cls):
        return
    for name, part in state_of(value).items():
        internal = inspected.is_linen(cls) and name.startswith("_")
        if name not in fields and not internal and not is_cached_property(cls, name):
            yield name, part


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
        return contents(value)
    if isinstance(value, np.ndarray):
        return tuple(value.tobytes())  # small ints, each of which is one object
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _annotations(value: Any) -> Hashable:
    if sys.version_info >= (3, 12) and value.__type_params__:
        raise OpenError("it has type parameters, which are made anew with it")
    if sys.version_info >= (3, 14) and value.__annotate__ is not None:  # not evaluated, see PEP 649
        code = value.__annotate__.__code__
        return (inspected.code_key(id(code), code), *map(ThisObject, captured(value.__annotate__).values()))
    given = value.__annotations__
    try:
        return tuple([(name, exact_key(item)) for name, item in given.items()]) if given else ()
    except NoExactKeyError as problem:
        raise OpenError(f"it is annotated with {problem.found}") from problem


__all__ = ["NoExactKeyError", "exact_key", "problem_of", "unanswered"]
