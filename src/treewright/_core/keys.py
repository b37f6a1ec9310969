"""Exact keys: what "the same static" means.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to another program. It
is also too fine: `nan != nan`, and an optimiser that is built again differs from the last one. An exact key is equal
for two values only when no program can tell them apart. Where that can't be known, as of a function that reads a
global, the key stands for the very object.
"""

import contextlib
import dataclasses
import enum
import functools
import operator
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._core import functions as reach
from treewright._core import plain
from treewright._core.functions import class_attribute, class_of, import_path, is_cached_property
from treewright._core.jax_private import is_key_dtype, node_data
from treewright._core.jax_refs import is_ref
from treewright._core.plain import MUTABLE, ItselfOnlyError, NoExactKeyError, problem_of, refuse_equality
from treewright._core.text import first_names, first_text, text, text_with_class

_LARGE = 4096  # elements of an array above which a library's function that captured it is itself only
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
# What abc, flax and functools set on methods, and enum on its members.
_OF_METHODS = frozenset({"__wrapped__", "__isabstractmethod__", "compact", "method_handler_wrapped", "nowrap"})
_OF_MEMBERS = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_", "_inverted_"})
_TEXTS = frozenset({str, types.NoneType})
Check = Callable[[], bool]


class ThisObject:
    """A key for this very object.

    It refers to the object weakly where it can: a closure may refer to its own node, and would keep it alive through
    the table of keys. The key of an object that is gone equals no other, also where a later one gets its address.
    """

    __slots__ = ("address", "reference")

    def __init__(self, value: object) -> None:
        self.address = id(value)
        try:
            self.reference: Callable[[], Any] = weakref.ref(value)
        except TypeError:
            kept = ThisObject if value is None else value  # None is what a weak reference gives of what is gone
            self.reference = lambda: kept

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ThisObject) or self.address != other.address:
            return False
        value = self.reference()
        return value is not None and value is other.reference()

    def __hash__(self) -> int:
        return self.address


def exact_key(value: object, *, content: bool = False) -> Hashable:
    """A key that is equal for two values exactly when `jit` may share one trace between them.

    By `content`, a user's function that captures variables counts by what it captured, not by identity.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return ExactKeys(content=content).key(value)


def why_itself_only(value: object, *, content: bool = False) -> str | None:
    """Why a function, partial or method has no key but itself, in words; None for what has another. It may raise."""
    keys = ExactKeys(content=content)
    key: Any = keys.key(value)
    itself = key[0] == "identity" and import_path(value) is None
    return keys.reason or ("it is compared by identity" if itself else None)


def method_key(function: Any, instance: object) -> Hashable:
    """The key of a method that is not a static: exact where it has such a key, else of this function and instance."""
    return ExactKeys(content=False).method(types.MethodType, function, instance)


def tracer_in(tree: object) -> Any:
    leaves: list[Any] = jax.tree.leaves(tree)
    return next((leaf for leaf in leaves if isinstance(leaf, _TRACER)), None)


def by_identity(value: object) -> Hashable:
    return ("identity", ThisObject(value))


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` already are the exact comparison for this value."""
    return len(key) == 2 and key[0] is class_of(value) and key[1] is value


class ExactKeys:
    """One walk through a value.

    Inside a function, partial or method (`strict`), whatever has no exact key makes the whole equal to itself only, as
    it is when identity compares them. What a library's function has captured is `trusted`: lists, dicts and small
    arrays count by what they hold.
    """

    def __init__(self, *, content: bool) -> None:
        self.content = content
        self.strict = False
        self.trusted = False
        # What has been read, by id: a closure may capture itself, and what is met again need not be read again.
        self.met: dict[int, tuple[int, Any]] = {}
        self.checks: list[Check] = []  # whether what the key rests on, and can change, is still so
        self.reason: str | None = None  # why the value, or one inside it, is equal to itself only

    def key(self, value: Any) -> Hashable:
        """The exact key of a value, or of one inside it.

        Raises:
            NoExactKeyError: If it can't be a static.
            ItselfOnlyError: Inside a function, partial or method, if it has no key but itself.
        """
        kind = class_of(value)
        if kind in plain.BY_VALUE:
            return (kind, value)
        if kind is types.FunctionType:
            return self.function(value)
        read = plain.KINDS.get(kind)
        if read is not None:
            key = read(value, self.key)
            return (*cast("Any", key), *map(self.key, value)) if self.strict and kind is frozenset else key
        method = _KINDS.get(kind)
        if method is not None:
            return method(self, value)
        if issubclass(kind, enum.Enum):
            return self.member(value)
        if hasattr(kind, "_exact_key_"):  # nodes, methods of nodes, what freeze() makes
            return self.of_class(kind, value._exact_key_(self))
        read = None if issubclass(kind, np.void) else plain.reader_of(kind)
        if read is None:
            return self.foreign(kind, value)
        if self.bare(value):
            return self.of_class(kind, read(value, self.key))
        self.refuse_unhashable(value)
        return by_identity(value)

    def foreign(self, kind: type[Any], value: Any) -> Hashable:
        """A value of a class that is not one of Python's or ours."""
        if issubclass(kind, np.void):  # a row of a structured array, which can change in place
            raise problem_of(value)
        if _PARTIAL in kind.__mro__:
            return self.partial(value)
        if is_ref(value) and not self.trusted:
            raise problem_of(value)
        if isinstance(value, (*MUTABLE, np.ndarray, jax.Array)):
            return self.container(value)
        if plain.is_frozen_mapping(kind):
            own = () if reach.library_class(kind) else (self.hashable(value),)
            self.refuse_unhashable(value)
            return self.of_class(kind, (plain.mapping(value, self.key), *own))
        if dataclasses.is_dataclass(kind):
            return self.dataclass(value)
        return self.hashable(value)

    # Whether a key can be had at all

    def attempt(
        self, value: Any, read: Callable[[Any], Hashable], otherwise: Callable[[Any], Hashable] = by_identity
    ) -> Hashable:
        """What `read` gives in strict mode; where that fails, the value by identity, or the failure of the whole."""
        met = self.met.get(id(value))
        if met is not None:
            return ("met", met[0])
        self.met[id(value)] = (len(self.met), value)
        strict, trusted, checks = self.strict, self.trusted, len(self.checks)
        self.strict = True
        try:
            return read(value)
        except ItselfOnlyError as reason:
            if strict:
                raise
            del self.checks[checks:]
            self.reason = self.reason or str(reason)
        finally:
            self.strict, self.trusted = strict, trusted
        return otherwise(value)

    def rests_on(self, read: Callable[[Any], tuple[Any, ...]], value: Any) -> None:
        """The key holds as long as `read` gives the very objects that it gives now."""
        parts = read(value)

        def holds() -> bool:
            now = read(value)
            return len(now) == len(parts) and all(map(operator.is_, now, parts))

        self.checks.append(holds)

    def bare(self, value: Any) -> bool:
        """Whether an instance of a subclass of a plain class holds nothing of its own; numpy's own classes do not."""
        if reach.library_class(class_of(value)) or not reach.state_of(value, of_users=True):
            return True
        if self.strict:
            raise ItselfOnlyError(f"{first_text(value)} has attributes of its own")
        return False

    def of_class(self, kind: type[Any], key: Hashable) -> Hashable:
        """The key of an instance with, in strict mode, what the user wrote into its class, which must be closed."""
        if not self.strict or reach.library_class(kind):
            return key
        if not reach.library_class(type(kind)):
            raise ItselfOnlyError(f"it holds an instance of {kind.__qualname__}, whose class is made by another")
        written: list[Hashable] = []
        for base in kind.__mro__:
            if not reach.library_class(base):
                self.rests_on(_names_in, base)
        for base, name, value in reach.written_in(kind):
            written.append((name, self.class_attribute(base, name, value)))
            self.checks.append(functools.partial(_is_bound, vars(base), name, value))
        return (key, *written)

    def class_attribute(self, base: type[Any], name: str, value: Any) -> Hashable:
        """The key of what a class body holds: a closed method, or the default of a field."""
        functions = reach.functions_of(value)
        if functions is None and name in getattr(base, "__dataclass_fields__", ()):
            return self.within(base, value)
        if functions is None:
            raise ItselfOnlyError(f"it can read {base.__qualname__}.{name}, which can change")
        held: list[Hashable] = []
        for function in functions:
            self.closed(function, allowed=frozenset({"__class__"}))
            self.rests_on(reach.made_of, function)
            held.append(self.held(function, captured=False))
            attributes = [name for name in vars(function) if name not in _OF_METHODS]
            if attributes:
                raise ItselfOnlyError(f"it can read {base.__qualname__}.{name}.{attributes[0]}, which can change")
        return (ThisObject(value), *held)

    def within(self, holder: Any, value: Any) -> Hashable:
        """The key of what a class or an enum member holds, which may be refused as a static of its own."""
        try:
            return self.key(value)
        except NoExactKeyError as problem:
            raise ItselfOnlyError(f"it can read {problem.found} in {text(holder)}, which can change") from problem

    def refuse_unhashable(self, value: Any) -> None:
        try:
            hash(value)
        except Exception as error:
            raise problem_of(value) from error

    # Kinds of values

    def member(self, value: enum.Enum) -> Hashable:
        kind = class_of(value)
        if self.strict:
            self.within(value, value.value)
            others = [name for name in reach.state_of(value) if name not in _OF_MEMBERS]
            if others:
                raise ItselfOnlyError(f"it can read {value}.{others[0]}, which can change")
        return self.of_class(kind, by_identity(value) if plain.is_own_enum(kind) else (kind, value))

    def hashable(self, value: Any) -> Hashable:
        """Anything else: by type, `hash` and `==`, or by identity where the type defines neither."""
        kind = class_of(value)
        if isinstance(value, type) and self.strict and not reach.library_class(value):
            raise ItselfOnlyError(f"it uses the class {value.__qualname__}, whose attributes can change")
        if all(class_attribute(kind, name) is getattr(object, name) for name in ("__hash__", "__eq__")):
            return self.opaque(value)
        self.refuse_unhashable(value)
        refuse_equality(value)
        treedef = kind.__name__ == "PyTreeDef"  # whose nodes may hold anything
        if self.strict and (treedef or not reach.library_class(value if isinstance(value, type) else kind)):
            raise ItselfOnlyError(f"it holds {text_with_class(value)}, which compares by an == of its own")
        return (kind, value, *self.held_by_treedef(value)) if treedef else (kind, value)

    def held_by_treedef(self, treedef: Any) -> Iterator[Hashable]:
        """The keys of the `aux_data` in a treedef, which `==` compares by `==`; of what has none, that must do."""
        waiting = [treedef]
        while waiting:
            data = node_data(waiting[-1])
            waiting.extend(waiting.pop().children())
            if data is not None and data[1] is not None:
                with contextlib.suppress(NoExactKeyError):  # dicts keep their keys in a list
                    yield self.key(tuple(data[1]) if class_of(data[1]) is list else data[1])

    def opaque(self, value: Any) -> Hashable:
        """An object without `==`: a class, a jitted function, an instance with attributes."""
        if isinstance(value, type) or class_of(value) is object or value in _SINGLE or reach.library_object(value):
            return by_identity(value)
        if self.trusted and isinstance(value, types.ModuleType) and reach.is_library(value.__name__):
            return by_identity(value)
        options = reach.jit_options(value)
        if options is not None and (self.strict or import_path(value) is None):
            return self.attempt(value, lambda _: (class_of(value), self.key(reach.wrapped_by(value)), options))
        if self.strict:
            raise ItselfOnlyError(f"it holds {text_with_class(value)}, which can change")
        return by_identity(value)

    def container(self, value: Any) -> Hashable:
        """A list, a dict or an array that a library's function captured."""
        if not self.trusted or isinstance(value, Tracer):
            raise problem_of(value)
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        return self.attempt(value, self.read_container)

    def read_container(self, value: Any) -> Hashable:
        is_dict = issubclass(class_of(value), dict)
        self.rests_on(lambda held: (*held, *held.values()) if is_dict else tuple(held), value)
        if is_dict:
            return (class_of(value), *((self.key(name), self.key(item)) for name, item in value.items()))
        keys = map(self.key, value)
        return (class_of(value), frozenset(keys) if issubclass(class_of(value), set) else tuple(keys))

    def array(self, value: Any) -> Hashable:
        whole = getattr(value, "is_fully_addressable", True) and not getattr(value, "is_deleted", bool)()
        if value.size > _LARGE or not whole or value.dtype == object:
            raise ItselfOnlyError(f"it captured {text(value)}")
        kind = class_of(value)
        if isinstance(value, jax.Array):
            prng = is_key_dtype(value.dtype)
            data = np.asarray(jax.random.key_data(value) if prng else value)
            place = (value.sharding, getattr(value, "weak_type", False), getattr(value, "committed", None))
            return (kind, str(value.dtype), value.shape, data.tobytes(), place)
        data = value.tobytes()
        self.checks.append(lambda: value.tobytes() == data)
        return (kind, self.key(value.dtype), value.shape, data)

    def partial(self, value: functools.partial[Any]) -> Hashable:
        return self.attempt(value, self.read_partial)

    def read_partial(self, value: functools.partial[Any]) -> Hashable:
        if vars(value):
            raise ItselfOnlyError(f"{first_text(value)} has attributes of its own")
        self.checks.append(lambda: not vars(value))
        kind = class_of(value)
        key = (kind, self.key(value.func), tuple(map(self.key, value.args)), self.items(value.keywords))
        return key if kind is functools.partial else self.of_class(kind, key)

    def reduced(self, value: Any) -> Hashable:
        """`operator.itemgetter` and its like, by what they were made of."""
        return self.attempt(value, lambda _: (class_of(value), *map(self.key, value.__reduce__())))

    def dataclass(self, value: Any) -> Hashable:
        """By its fields where `==` is the generated one; with any attribute that is not a field."""
        kind = class_of(value)
        params: Any = kind.__dataclass_params__
        library, equality = reach.library_class(kind), reach.equality_of(kind)
        by_library = equality == "library"
        # That it does not change.
        vouched = params.unsafe_hash or by_library or (library and kind.__hash__ is not None)
        if not (params.frozen or vouched) or equality is None:
            return self.hashable(value)
        if not params.frozen:
            self.refuse_unhashable(value)
        fields = dataclasses.fields(value)
        names = {field.name for field in fields}
        others = {} if library or (vouched and not self.strict) else reach.state_of(value)
        internal = any((base.__module__, base.__name__) == ("flax.linen.module", "Module") for base in kind.__mro__)
        own = [
            name
            for name in others
            if name not in names
            and not (internal and name.startswith("_"))
            and not (is_cached_property(kind, name) and not self.strict)
        ]
        # A partial or a function compares by identity, whatever the dataclass inside leaves out.
        compared = tuple(field.name for field in fields if field.compare or self.strict)
        if self.strict:
            self.rests_on(lambda value: tuple(reach.state_of(value).values()), value)
        elif not params.frozen:
            self.rests_on(lambda value: tuple(getattr(value, name, None) for name in compared), value)
        try:
            key = (kind, *(self.key(getattr(value, name)) for name in compared))
            return self.of_class(kind, (*key, *((name, self.key(others[name])) for name in own)))
        except NoExactKeyError:
            # A class with a __hash__ of its own vouches for what its fields hold.
            with contextlib.suppress(TypeError):
                hash(value)
                return self.hashable(value)
            raise

    def built_in(self, value: types.BuiltinFunctionType) -> Hashable:
        home: Any = value.__self__
        if self.strict and not reach.library_object(value):
            if class_of(home) not in plain.BY_VALUE:
                raise ItselfOnlyError(f"it holds {text(value)}, a method of {text_with_class(home)}")
            return (class_of(value), value.__name__, self.key(home))
        return (class_of(value), value)

    def bound(self, value: types.MethodType) -> Hashable:
        return self.method(types.MethodType, value.__func__, value.__self__)

    def method(self, kind: type[Any], function: Any, instance: Any) -> Hashable:
        """By function and instance where both have exact keys, else by this function and this instance."""

        def read(_: Any) -> Hashable:
            try:
                return (kind, self.key(function), self.key(instance))
            except (NoExactKeyError, ItselfOnlyError) as problem:
                tracer = None
                with contextlib.suppress(ValueError):  # of a node that is not finished, which has no leaves yet
                    tracer = tracer_in(instance)
                if tracer is not None:
                    raise problem_of(tracer) from None
                reason = f": {problem}" if isinstance(problem, ItselfOnlyError) else ""
                raise ItselfOnlyError(f"it is a method of {text_with_class(instance)}{reason}") from problem

        this = (kind, "identity", ThisObject(function), ThisObject(instance))
        return self.attempt(instance, read, lambda _: this)

    def statics(self, statics: Any) -> Hashable:
        """The statics of a node: one object, whose values must have keys of their own in strict mode."""
        if self.strict:
            before = self.content
            for self.content, value in zip(statics.table.content, statics.values, strict=True):
                self.key(value)
            self.content = before
        return cast("Hashable", statics)

    # Functions

    def function(self, value: types.FunctionType) -> Hashable:
        if not self.strict and import_path(value) is not None:
            return by_identity(value)
        return self.attempt(value, self.read_function)

    def read_function(self, value: types.FunctionType) -> Hashable:
        try:
            if reach.library_made(value):
                self.trusted = True
                return self.of_library(value)
            self.trusted = False
            return self.of_user(value)
        except NoExactKeyError as problem:
            raise ItselfOnlyError(f"it holds {problem.found}") from problem

    def of_library(self, value: types.FunctionType) -> Hashable:
        if not reach.free_names(value) and import_path(value) is not None:
            return by_identity(value)
        code = reach.code_of(value)  # this one, of which the key is kept: equal code may stand in another file
        return (types.FunctionType, id(code), code, self.names(value), *self.held(value))

    def of_user(self, value: types.FunctionType) -> Hashable:
        if not self.content:
            if reach.free_names(value):
                raise ItselfOnlyError(f"it captures {first_names(reach.free_names(value))}")
            if vars(value):
                raise ItselfOnlyError(f"it has the attributes {first_names(vars(value))}")
        bindings = self.closed(value, allowed=frozenset(reach.free_names(value)))
        self.rests_on(reach.made_of, value)
        self.rests_on(reach.contents, value)
        if import_path(value) is not None:
            return (by_identity(value), bindings, *self.held(value))
        who = (*reach.source_of(value), self.names(value), self.annotations(value))
        return (types.FunctionType, who, bindings, *self.held(value))

    def closed(self, function: types.FunctionType, *, allowed: frozenset[str]) -> Hashable:
        """The keys of the libraries' functions and modules that a function reads, which must be all that it reads."""
        free = reach.free_names(function)
        if free and not allowed.issuperset(free):
            raise ItselfOnlyError(f"it captures {first_names(sorted(set(free) - allowed))}")
        reads, what = reach.reads_and_problem(function)
        if what is not None:
            raise ItselfOnlyError(what)
        found: list[Hashable] = []
        for read in reads:
            found.append(ThisObject(read.value))
            self.checks.extend(functools.partial(_is_bound, *binding) for binding in read.bindings)
        return tuple(found)

    def held(self, value: types.FunctionType, *, captured: bool = True) -> tuple[Hashable, ...]:
        """The keys of defaults, captures and attributes; most functions have none, and an empty loop is not free."""
        given, named = reach.given_defaults(value)
        contents, own = (reach.contents(value), value.__dict__) if captured else (None, None)
        return (
            tuple(map(self.key, given)) if given else (),
            self.items(named) if named else (),
            tuple(map(self.key, contents)) if contents else (),
            self.items(own) if own else (),
        )

    def items(self, named: Mapping[str, Any]) -> Hashable:
        return tuple((name, self.key(value)) for name, value in named.items())

    def names(self, value: types.FunctionType) -> Hashable:
        names: tuple[Any, ...] = _NAMES(value)
        return names if _TEXTS.issuperset(map(type, names)) else tuple(map(self.key, names))

    def annotations(self, value: Any) -> Hashable:
        if sys.version_info >= (3, 12) and value.__type_params__:
            raise ItselfOnlyError("it has type parameters, which are made anew with it")
        if sys.version_info >= (3, 14) and value.__annotate__ is not None:  # not evaluated, see PEP 649
            annotate = value.__annotate__
            return (reach.code_of(annotate), *map(ThisObject, reach.captured(annotate).values()))
        given = value.__annotations__
        return tuple((name, _annotation(item)) for name, item in given.items()) if given else ()


def _annotation(value: Any) -> Hashable:
    try:
        return exact_key(value)
    except NoExactKeyError as problem:
        raise ItselfOnlyError(f"it is annotated with {problem.found}") from problem


def _names_in(cls: type[Any]) -> tuple[str, ...]:
    """The names in a class body, but for those that Python adds when it likes."""
    return tuple(name for name in vars(cls) if not name.startswith("__"))


def _is_bound(namespace: Mapping[str, Any], name: str, value: Any) -> bool:
    return namespace.get(name, reach.MISSING) is value


_PARTIAL: Any = functools.partial
_TRACER: Any = Tracer
_SINGLE = frozenset({NotImplemented, dataclasses.MISSING, getattr(functools, "Placeholder", NotImplemented)})

# The classes of single values, and how each is read. Only the class itself: a subclass may mean something else.
_KINDS: types.MappingProxyType[type[Any], Callable[[ExactKeys, Any], Hashable]] = types.MappingProxyType(
    {
        functools.partial: ExactKeys.partial,
        operator.itemgetter: ExactKeys.reduced,
        operator.attrgetter: ExactKeys.reduced,
        operator.methodcaller: ExactKeys.reduced,
        types.MethodType: ExactKeys.bound,
        types.BuiltinFunctionType: ExactKeys.built_in,
        types.MethodWrapperType: ExactKeys.built_in,
    }
)
