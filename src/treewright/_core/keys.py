"""Exact keys: what "the same static" means.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to another program. It
is also too fine: `nan != nan`, and an optimiser that is built again differs from the last one. An exact key is equal
for two values only when no program can tell them apart. Where that can't be known, as of a function that reads a
global, the key stands for the very object. A key is taken once, when a node is made.
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
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core import functions as inspected
from treewright._core.functions import (
    OpenError,
    ThisObject,
    captured,
    class_attribute,
    closed_reads,
    contents,
    import_path,
    is_cached_property,
    library_class,
    library_made,
    state_of,
)
from treewright._core.jax_private import is_key_dtype, node_data
from treewright._core.kinds import (
    DATACLASS,
    KINDS,
    NAMEDTUPLE,
    Kind,
    field_values,
    is_frozen_mapping,
    kind_of,
)
from treewright._core.text import first_names, short_text, text, text_with_class
from treewright._core.unhashable import MUTABLE, NoExactKeyError, problem_of, refuse_equality, unanswered

BY_VALUE = frozenset(
    {
        *(str, int, bool, bytes, types.NoneType, types.EllipsisType),
        type(getattr(functools, "Placeholder", None)),  # a partial's, from Python 3.14 on
    }
)
_LARGE = 4096  # elements of an array above which a library's function that captured it goes by identity
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_TEXTS = frozenset({str, types.NoneType})
# What abc, flax and functools set on methods, and enum on its members.
_OF_METHODS = frozenset({"__wrapped__", "__isabstractmethod__", "compact", "method_handler_wrapped", "nowrap"})
_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
# Compiled classes, whose subclasses are read by the methods of these.
_BASES = frozenset(
    {tuple, frozenset, float, complex, str, int, bytes, dt.datetime, dt.time, dt.date, dt.timedelta, decimal.Decimal}
)
_BY_FIELDS = (None, DATACLASS, NAMEDTUPLE)  # these may have an == of their own
_SINGLE = frozenset({NotImplemented, dataclasses.MISSING, getattr(functools, "Placeholder", NotImplemented)})


def exact_key(value: object, *, content: bool = False) -> Hashable:
    """A key that is equal for two values exactly when `jit` may share one trace between them.

    By `content`, a user's function that captures variables counts by what it captured, not by identity.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return Keys(content=content).key(value)


def why_itself_only(value: object, *, content: bool = False) -> str | None:
    """Why a function, partial or method goes by identity, in words; None for what has another key. It may raise."""
    keys = Keys(content=content)
    key: Any = keys.key(value)
    is_itself = key[0] == "identity" and import_path(value) is None
    return keys.reason or ("it is compared by identity" if is_itself else None)


def method_key(function: Any, instance: object) -> Hashable:
    """The key of a method that is not a static: exact where it has such a key, else of this function and instance."""
    return Keys(content=False).method(types.MethodType, function, instance)


def tracer_in(tree: object) -> Any:
    return next((leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, Tracer)), None)


def by_identity(value: object) -> Hashable:
    return ("identity", ThisObject(value))


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` already are the exact comparison for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever `==` its metaclass has."""
    is_plain = type(cls) is type or class_attribute(type(cls), "__eq__") is object.__eq__
    return cls if is_plain else ThisObject(cls)


def _base_of(cls: type[Any]) -> type[Any] | None:
    """The plain class that a class extends."""
    for base in cls.__mro__:
        if base in KINDS:
            return base
    return None


def _may_hold_more(cls: type[Any], base: type[Any]) -> bool:
    """Whether instances have room for more than the base has: a `__dict__`, or slots."""
    return bool(cls.__dictoffset__) or cls.__basicsize__ > base.__basicsize__


class Keys:
    """One walk through a static value. Functions, partials and methods are read by `_Inside`."""

    reads_all = False  # whether fields that `==` leaves out, and cached properties, are part of a dataclass

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.reason: str | None = None  # why a function in the value goes by identity
        self.inside: _Inside | None = None  # the walk through functions and the like, until it fails

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
        read = _READERS.get(cls)
        if read is not None:
            return read(self, value)
        kind = KINDS.get(cls)
        if kind is not None:
            return self.of_kind(kind, value)
        if issubclass(cls, enum.Enum):
            return self.member(value)
        if hasattr(cls, "_exact_key_"):  # nodes, and methods of nodes
            return self.of_class(cls, value._exact_key_(self))
        base = _base_of(cls)
        if base is not None and _may_hold_more(cls, base) and self.holds_more(value):
            self.refuse_unhashable(value)
            return by_identity(value)
        if base in _BASES and cls.__eq__ is base.__eq__:
            return self.of_class(cls, self.of_kind(KINDS[base], value))
        kind = kind_of(cls)
        return self.foreign(cls, value) if kind in _BY_FIELDS else self.of_kind(kind, value)

    def foreign(self, cls: type[Any], value: Any) -> Hashable:
        """A value of a class that no table knows."""
        if issubclass(cls, np.void):  # a row of a structured array, which can change in place
            raise problem_of(value)
        if issubclass(cls, functools.partial):
            return self.closed(value)
        if is_frozen_mapping(cls):
            own = () if library_class(cls) else (self.hashable(value),)
            self.refuse_unhashable(value)
            items = [(self.key(name), self.key(value[name])) for name in value]
            return self.of_class(cls, (*items, *own))
        if isinstance(value, MUTABLE):
            return self.container(value)
        return self.dataclass(value) if dataclasses.is_dataclass(cls) else self.hashable(value)

    # What differs inside a function

    def of_class(self, cls: type[Any], key: Hashable) -> Hashable:
        """The key of an instance, from the key of what it holds."""
        return (_class_key(cls), key)

    def closed(self, value: Any) -> Hashable:
        """The key of a function, partial, method or the like; by identity where it depends on what can change."""
        try:
            return self.read_inside(value, Keys.key)
        except OpenError:
            return by_identity(value)

    def read_inside(self, value: Any, read: "Callable[[_Inside, Any], Hashable]") -> Hashable:
        """A key with those of the functions that are met in it first."""
        inside = self.inside = self.inside or _Inside(content=self.content)
        count = len(inside.rows)
        try:
            key = read(inside, value)
        except OpenError as reason:
            self.reason = self.reason or str(reason)
            self.inside = None  # whose numbers stand for keys that are in no whole
            raise
        kind: Any = type(value)
        return (kind, key, *itertools.islice(inside.rows, count, None))

    def function(self, value: types.FunctionType) -> Hashable:
        return by_identity(value) if import_path(value) is not None else self.closed(value)

    def method(self, cls: type[Any], function: Any, instance: Any) -> Hashable:
        """By function and instance where both have exact keys, else by this function and this instance."""
        try:
            return self.read_inside((function, instance), lambda keys, pair: keys.method(cls, *pair))
        except OpenError:
            return (cls, "identity", ThisObject(function), ThisObject(instance))

    def unordered(self, parts: Iterable[Any]) -> Hashable:
        return frozenset([Keys(content=self.content).key(part) for part in parts])

    def container(self, value: Any) -> Hashable:
        """A list, a dict, an array."""
        raise problem_of(value)

    def statics(self, statics: Any) -> Any:
        """The statics of a node: one object for equal values."""
        return statics

    def built_in(self, value: types.BuiltinFunctionType) -> Hashable:
        return (type(value), value)

    def compared(self, value: Any) -> Hashable:
        """By type, `hash` and `==`."""
        return (_class_key(type(value)), value)

    def opaque(self, value: Any) -> Hashable:
        """An object without `==`: a jitted function, an instance with attributes."""
        if inspected.jit_options(value) is not None and import_path(value) is None:
            return self.closed(value)
        return by_identity(value)

    # Kinds of values

    def of_kind(self, kind: Kind, value: Any) -> Hashable:
        """By its class and its parts."""
        if kind.key is not None:
            return (type(value), *kind.key(value, self.key))
        parts = kind.parts(value)
        if parts is None:
            return self.hashable(value)
        return (type(value), *map(self.key, parts)) if kind.is_ordered else (type(value), self.unordered(parts))

    def holds_more(self, value: Any) -> bool:
        """Whether an instance of a subclass of a plain class has attributes."""
        return not isinstance(value, functools.partial) and bool(state_of(value))

    def member(self, value: enum.Enum) -> Hashable:
        """By identity, as members are single; some compare by the `==` of a number, or of the user's."""
        cls = type(value)
        is_plain = class_attribute(cls, "__eq__") is object.__eq__
        return (cls, value) if is_plain else by_identity(value)

    def dataclass(self, value: Any) -> Hashable:
        """By its fields where `==` is the generated one; with any attribute that is not a field."""
        cls = type(value)
        equality, frozen = inspected.equality_of(cls), cls.__dataclass_params__.frozen
        by_hash = class_attribute(cls, "__hash__") is not None
        if equality is None or not (frozen or by_hash):
            return self.hashable(value)
        try:
            keys = [(name, self.key(part)) for name, part in self.parts_of_dataclass(value)]
        except NoExactKeyError:  # a class with a __hash__ of its own vouches for what its fields hold
            with contextlib.suppress(TypeError):
                hash(value)
                return self.hashable(value)
            raise
        # One that can change is compared as it is then, too.
        settled = frozen or equality == "library" or library_class(cls) or inspected.is_linen(cls)
        live = () if settled else (self.hashable(value),)
        return self.of_class(cls, (*keys, *live))

    def parts_of_dataclass(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The fields that `==` compares, and the attributes that are no fields, by name."""
        cls = type(value)
        left_out = {field.name for field in dataclasses.fields(cls) if not (field.compare or self.reads_all)}
        fields = dict(field_values(value))
        yield from ((name, part) for name, part in fields.items() if name not in left_out)
        if library_class(cls):
            return
        for name, part in state_of(value).items():
            internal = inspected.is_linen(cls) and name.startswith("_")
            if name not in fields and not internal and (self.reads_all or not is_cached_property(cls, name)):
                yield name, part

    def hashable(self, value: Any) -> Hashable:
        """Anything else: by type, `hash` and `==`, or by identity where the type defines neither."""
        cls = type(value)
        if isinstance(value, type | types.CodeType | memoryview):
            return self.opaque(value)
        if all(class_attribute(cls, name) is getattr(object, name) for name in ("__hash__", "__eq__")):
            return self.opaque(value)
        self.refuse_unhashable(value)
        refuse_equality(value)
        key = self.compared(value)
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

    def refuse_unhashable(self, value: Any) -> None:
        try:
            hash(value)
        except Exception as error:
            raise problem_of(value) from error

    def bound(self, value: types.MethodType) -> Hashable:
        return self.method(types.MethodType, value.__func__, value.__self__)


class _Inside(Keys):
    """The walk inside a function, partial or method, which goes by identity if a part has no exact key of its own.

    Functions, containers and classes that are met are numbered by their keys, so that those that are met often, or are
    equal, are read and compared once.
    """

    reads_all = True

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.in_library = False  # what a library's function captured does not change: lists, dicts, small arrays
        self.rows: dict[Hashable, int] = {}  # the keys of functions, containers and classes, numbered
        self.numbers: dict[int, tuple[int, Any]] = {}  # by id; while one is read, a negative one by the visit
        self.cycles = 0  # how often one was met while it was read

    def numbered(self, value: Any, read: Callable[[Any], Hashable]) -> Hashable:
        """A number in place of the key, which stands once in the whole."""
        known = self.numbers.get(id(value))
        if known is not None:
            self.cycles += known[0] < 0
            return known[0]
        visit, cycles = ~len(self.numbers), self.cycles
        self.numbers[id(value)] = visit, value
        key = read(value)
        # What refers to what holds it, or can change, is like no other that is met.
        row = key if self.cycles == cycles and type(key) is not _Content else (visit, key)
        number = self.rows.setdefault(row, len(self.rows))
        self.numbers[id(value)] = number, value
        return number

    def closed(self, value: Any) -> Hashable:
        if isinstance(value, functools.partial):
            return self.partial(value)
        if type(value) in _REDUCED:
            return (type(value), *map(self.key, value.__reduce__()))
        return (type(value), self.key(inspected.wrapped_by(value)), inspected.jit_options(value))

    # Functions

    def function(self, value: types.FunctionType) -> Hashable:
        return self.numbered(value, self.read_function)

    def read_function(self, value: types.FunctionType) -> Hashable:
        is_library = library_made(value)
        if is_library and not value.__code__.co_freevars and import_path(value) is not None:
            return by_identity(value)
        before, self.in_library = self.in_library, is_library
        try:
            return self.of_library(value) if is_library else self.of_user(value)
        except NoExactKeyError as problem:
            raise OpenError(f"it holds {problem.found}") from problem
        finally:
            self.in_library = before

    def of_library(self, value: types.FunctionType) -> Hashable:
        """By content: nobody assigns to what a library's function captured."""
        code = value.__code__  # this one: equal code may stand in another file; a tuple compares it without Python
        return (id(code), code, self.names(value), *self.held(value, contents(value)))

    def of_user(self, value: types.FunctionType, *, in_class: bool = False) -> Hashable:
        """By code and what is read, if it is closed. The `__class__` of a method is that of the instance."""
        free, own = value.__code__.co_freevars, value.__dict__
        if in_class:
            free = tuple(name for name in free if name != "__class__")
            own = {name: part for name, part in own.items() if name not in _OF_METHODS}
        if (free or own) and not self.content:
            which = "it captures" if free else "it has the attributes"
            raise OpenError(f"{which} {first_names(free or own)}")
        reads = tuple(map(ThisObject, closed_reads(value)))
        if import_path(value) is not None:
            return (by_identity(value), reads, *self.held(value, ()))
        code = (inspected.code_key(value.__code__), id(value.__globals__))
        held = self.held(value, contents(value) if free else ())
        key = (code, self.names(value), _annotations(value), reads, *held)
        return _Content(value, key) if free else key

    def held(self, value: types.FunctionType, captures: tuple[Any, ...]) -> tuple[Hashable, ...]:
        """The keys of defaults, captures and attributes; most functions have few, and an empty loop is not free."""
        given, named, own = value.__defaults__, value.__kwdefaults__, value.__dict__
        return (
            tuple(map(self.key, given)) if given else (),
            self.items(named) if named else (),
            tuple(map(self.key, captures)) if captures else (),
            self.items(own) if own else (),
        )

    def items(self, named: Mapping[str, Any]) -> Hashable:
        return tuple([(name, self.key(value)) for name, value in named.items()])

    def names(self, value: types.FunctionType) -> Hashable:
        names: tuple[Any, ...] = _NAMES(value)
        return names if _TEXTS.issuperset(map(type, names)) else tuple(map(self.key, names))

    def partial(self, value: functools.partial[Any]) -> Hashable:
        if state_of(value):
            raise OpenError(f"{short_text(value)} has attributes of its own")
        parts = (self.key(value.func), tuple(map(self.key, value.args)), self.items(value.keywords))
        return self.of_class(type(value), parts)

    def method(self, cls: type[Any], function: Any, instance: Any) -> Hashable:
        try:
            return (cls, self.key(instance), self.function_of_class(function))
        except (NoExactKeyError, OpenError) as problem:
            tracer = None
            with contextlib.suppress(ValueError):  # of a node that is not finished, which has no leaves yet
                tracer = tracer_in(instance)
            if tracer is not None:
                raise problem_of(tracer) from None
            reason = f": {problem}" if isinstance(problem, OpenError) else ""
            raise OpenError(f"it is a method of {text_with_class(instance)}{reason}") from problem

    def function_of_class(self, value: Any) -> Hashable:
        if not isinstance(value, types.FunctionType) or library_made(value):
            return self.key(value)
        return self.numbered(value, functools.partial(self.of_user, in_class=True))

    def built_in(self, value: types.BuiltinFunctionType) -> Hashable:
        if inspected.library_object(value):
            return (type(value), value)
        if type(value.__self__) not in BY_VALUE:
            raise OpenError(f"it holds {text(value)}, a method of {text_with_class(value.__self__)}")
        return (type(value), value.__name__, self.key(value.__self__))

    # Instances

    def of_class(self, cls: type[Any], key: Hashable) -> Hashable:
        """With what the user's classes hold, which has to be closed."""
        whole = (_class_key(cls), key)
        return whole if library_class(cls) or cls in KINDS else (*whole, self.numbered(cls, self.read_class))

    def read_class(self, cls: type[Any]) -> Hashable:
        if not library_class(type(cls)):
            raise OpenError(f"it holds an instance of {cls.__qualname__}, whose class is made by another")
        held: list[Hashable] = []
        for base, name, value in inspected.class_body(cls):
            held.append((ThisObject(base), name, ThisObject(value)))
            functions = inspected.functions_of(value)
            if functions is not None:
                held.extend(map(self.function_of_class, functions))
            elif name in getattr(base, "__dataclass_fields__", ()):
                held.append(self.within(base, value))
            elif not isinstance(value, cls) and not inspected.is_of_python(base, name):
                raise OpenError(f"it can read {base.__qualname__}.{name}, which can change")
        return tuple(held)

    def within(self, holder: Any, value: Any) -> Hashable:
        """The key of what a class or an enum member holds, which may be refused as a static of its own."""
        try:
            return self.key(value)
        except NoExactKeyError as problem:
            raise OpenError(f"it can read {problem.found} in {text(holder)}, which can change") from problem

    def member(self, value: enum.Enum) -> Hashable:
        self.within(value, value.value)
        other = next((name for name in state_of(value) if name not in _OF_MEMBERS), None)
        if other is not None:
            raise OpenError(f"it can read {value}.{other}, which can change")
        return self.of_class(type(value), by_identity(value))

    def holds_more(self, value: Any) -> bool:
        if super().holds_more(value):
            raise OpenError(f"{short_text(value)} has attributes of its own")
        return False

    def unordered(self, parts: Iterable[Any]) -> Hashable:
        return tuple(map(self.key, parts))  # in the order in which a function finds them

    def statics(self, statics: Any) -> Any:
        for content, value in zip(statics.table.content, statics.values, strict=True):
            _Inside(content=content).key(value)
        return statics

    def compared(self, value: Any) -> Hashable:
        if not library_class(type(value)) or type(value).__name__ == "PyTreeDef":  # whose nodes may hold anything
            raise OpenError(f"it holds {text_with_class(value)}, which compares by an == of its own")
        return super().compared(value)

    def opaque(self, value: Any) -> Hashable:
        if isinstance(value, type) and not library_class(value):
            raise OpenError(f"it uses the class {value.__qualname__}, whose attributes can change")
        if inspected.jit_options(value) is not None:
            return self.numbered(value, self.closed)
        of_library = self.in_library and isinstance(value, types.ModuleType) and inspected.is_library(value.__name__)
        fixed = isinstance(value, type | jax.Device) or type(value) is object or value in _SINGLE
        if fixed or of_library or inspected.library_object(value):
            return by_identity(value)
        raise OpenError(f"it holds {text_with_class(value)}, which can change")

    def container(self, value: Any) -> Hashable:
        if not self.in_library or isinstance(value, Tracer):
            raise problem_of(value)
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        return self.numbered(value, self.read_container)

    def read_container(self, value: Any) -> Hashable:
        cls = type(value)
        if issubclass(cls, dict):
            key = (cls, *((self.key(name), self.key(item)) for name, item in dict.items(value)))
        else:
            key = (cls, *map(self.key, value))
        return _Content(value, key)

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


class _Content:
    """The key of a captured container, or of a closure: it equals another only while both hold what they held."""

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
        annotate = value.__annotate__
        return (inspected.code_key(annotate.__code__), *map(ThisObject, captured(annotate).values()))
    given = value.__annotations__
    try:
        return tuple([(name, exact_key(item)) for name, item in given.items()]) if given else ()
    except NoExactKeyError as problem:
        raise OpenError(f"it is annotated with {problem.found}") from problem


_REDUCED = frozenset({operator.itemgetter, operator.attrgetter, operator.methodcaller})
_READERS: types.MappingProxyType[type[Any], Callable[[Keys, Any], Hashable]] = types.MappingProxyType(
    {
        types.MethodType: lambda keys, value: keys.bound(value),
        types.BuiltinFunctionType: lambda keys, value: keys.built_in(value),
        types.MethodWrapperType: lambda keys, value: keys.built_in(value),
        **dict.fromkeys((functools.partial, *_REDUCED), lambda keys, value: keys.closed(value)),
    }
)


__all__ = ["NoExactKeyError", "exact_key", "problem_of", "unanswered"]
