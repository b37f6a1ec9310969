"""Exact keys: when two static values are the same.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to a different program.
It is also too fine: `nan != nan`, and an optimiser that is built twice does not equal itself. An exact key is equal for
two values only if no program can tell them apart.

The list of values compared by value is closed: the types of `kinds.py` by exact class, frozen dataclasses, partials,
closed functions, and classes with a custom `__eq__` or `__hash__`. All others are compared by identity. A key is
computed once, when a node is created. The same walk raises if a static reaches a node with arrays.

Keys ignore class attributes: a program that assigns to one, or to a global that a method reads, is not protected.
"""

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import (
    BY_EQUALITY,
    C_METHODS,
    METHODS,
    MISSING,
    captured,
    code_key,
    code_reads,
    has_author,
    import_path,
    instance_attributes,
    is_generated,
    is_library,
    is_library_object,
    is_linen,
    is_written,
    jit_options,
    reads_of,
    uncached_attributes,
)
from treewright._base.jax_private import numbers_of
from treewright._base.text import is_node_class
from treewright._core.field_checks import (
    MUTABLE,
    ArraysReachedError,
    NoExactKeyError,
    arrays_reached,
    comparison_problem,
    has_arrays,
    is_nnx,
    problem_of,
)
from treewright._core.kinds import DATACLASS, KINDS, NAMEDTUPLE, Kind, fields_of, kind_of

BY_VALUE = BY_EQUALITY | {type(getattr(functools, "Placeholder", None))}  # a partial's, from Python 3.14 on
_MAX_ELEMENTS = 4096  # A library's function that captured a larger array is compared by identity.
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_PARTIALS = frozenset({functools.partial, jax.tree_util.Partial})


def exact_key(value: object) -> Hashable:
    """A key that is equal for two values exactly if `jit` may share one trace between them.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return KeyBuilder().key(value)


def reaches(function: Any, node: Any) -> bool:
    """Whether a function, partial or method reaches this node, which is being built."""
    try:
        KeyBuilder(code="user", is_child=True).key(function)
    except ArraysReachedError as error:
        return error.value is node
    return False


def identity_key(value: Any) -> Hashable:
    """A key for the object itself; for a method, which is created at each access, its function and instance."""
    if isinstance(value, METHODS):
        return ("identity", IdentityKey(value.__func__), IdentityKey(value.__self__))
    return ("identity", value if type(value) in C_METHODS else IdentityKey(value))  # their == compares identities


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` are already exact for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


class IdentityKey:
    """A key that compares an object by identity."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@dataclasses.dataclass(slots=True)
class KeyBuilder:
    """Builds the exact keys of static values, one after the other.

    A function, partial or method is compared as a whole: by its parts, or by identity if it is open, which means that
    one of its parts can change.

    Attributes:
        doubts: If it is a list, objects are added that are compared by identity and may be meant as constants.
        visited: Inside a function, partial or method, the objects entered so far, numbered because of cycles.
        is_open: Whether a part of that function, partial or method can change.
        code: Whose function captured the value, if any. A library's functions capture only constants.
        is_child: Whether the value is a child, for which only references to unfinished nodes matter.
    """

    doubts: list[Any] | None = None
    visited: dict[int, tuple[int, Any]] | None = None
    is_open: bool = False
    code: Literal["user", "library"] | None = None
    is_child: bool = False

    def key(self, value: Any) -> Hashable:
        """The exact key of a value, or of one inside it.

        Raises:
            NoExactKeyError: If it can't be static. Inside a function, the function becomes open instead.
            ArraysReachedError: If it reaches a node with arrays, also inside a function.
        """
        cls = type(value)
        if cls in BY_VALUE or (cls is float and value and value == value):  # noqa: PLR0124
            return (cls, value)
        if cls is types.FunctionType:
            return self.enter(value, KeyBuilder.function)
        if cls in _PARTIALS:
            return self.enter(value, KeyBuilder.partial)
        kind = KINDS.get(cls)
        if kind is not None:
            return self.by_parts(kind, value)
        if isinstance(value, type):
            return identity_key(value)
        if cls in C_METHODS or isinstance(value, METHODS):
            return identity_key(value) if is_library_object(value) else self.enter(value, KeyBuilder.method)
        if is_node_class(cls):
            return self.node(value)
        return self.by_class(value)

    # By parts, by the author's `==`, or by identity

    def by_class(self, value: Any) -> Hashable:
        """The key of a value whose exact class is not in the table."""
        cls: Any = type(value)
        kind = kind_of(cls)
        if kind is not None and kind is not DATACLASS:
            return self.by_parts(kind, value)
        if kind is not None and is_generated(cls.__eq__) and (self.code is None or not has_arrays(value)):
            return self.by_fields(value)
        is_frozen_dict = isinstance(value, dict) and cls.__hash__ and cls.__setitem__ is not dict.__setitem__
        if isinstance(value, MUTABLE) and not is_frozen_dict:
            return self.mutable(value)
        if has_arrays(value) and not self.is_child:
            raise arrays_reached(value)
        if type(cls) is not type and is_nnx(cls):  # nnx classes have a metaclass.
            return self.mutable(value)
        if is_generated(cls.__eq__) and is_linen(cls):
            return self.by_fields(value)
        if cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__:
            return self.by_identity(value)
        return self.by_equality(value)

    def by_parts(self, kind: Kind, value: Any) -> Hashable:
        """By class and parts; by identity if the value has more than its parts."""
        cls = type(value)
        if kind.key is not None:
            return (cls, kind.key(value))
        parts = kind.parts(value)
        if parts is None:
            return self.by_identity(value)
        if cls is frozenset:
            return (cls, frozenset(map(self.separate_key, parts)))
        key = (cls, *map(self.key, parts))
        return _Unchanged(value, key) if kind is NAMEDTUPLE and cls.__dictoffset__ else key

    def separate_key(self, value: Any) -> Hashable:
        """The key of a part from a separate walk, because the numbers in `visited` depend on the order."""
        before = self.visited
        self.visited = None if before is None else {}
        key = self.key(value)
        self.visited = before
        return key

    def by_fields(self, value: Any) -> Hashable:
        """A dataclass by the fields that `==` compares, and by all attributes that are not fields."""
        cls = type(value)
        try:
            named = fields_of(value) | uncached_attributes(value)
        except AttributeError:  # a field without a value
            return self.by_identity(value)
        ignored = {field.name for field in dataclasses.fields(cls) if not field.compare}
        compared = {name: part for name, part in named.items() if name not in ignored}
        if not is_written(cls, "__hash__"):
            return (_class_key(cls), self.items(compared))
        # If a field has no key, a custom `__hash__` decides: nnx's GraphDef contains a list.
        before = (self.code, self.visited)
        self.code = None
        try:
            return (_class_key(cls), self.items(compared))
        except ArraysReachedError:
            raise
        except NoExactKeyError:
            return self.by_equality(value)
        finally:
            self.code, self.visited = before

    def by_equality(self, value: Any) -> Hashable:
        """By class, `hash` and `==` if one of them is custom; otherwise by identity."""
        if self.is_open and self.visited is not None:
            return None
        cls: Any = type(value)
        by_author = has_author(cls)
        problem = comparison_problem(value, with_equality=by_author)
        if problem is not None and self.code is None:
            raise problem
        if problem is not None:
            self.is_open = True
            return None
        if not by_author:
            return self.by_identity(value)
        # The `==` of mappings, such as flax's FrozenDict, ignores the order and the difference of 1 and True.
        items = [(self.key(name), self.key(value[name])) for name in value] if isinstance(value, Mapping) else ()
        return (_class_key(cls), value, *items)

    def by_identity(self, value: Any) -> Hashable:
        """The key of an object that is compared by identity, except jitted functions, which are entered."""
        if is_library_object(value):
            return identity_key(value)
        if jit_options(value) is not None and (self.visited is not None or import_path(value) is None):
            return self.enter(value, KeyBuilder.jitted)
        is_constant = isinstance(value, jax.Device) or type(value) is object or value is MISSING
        if self.code == "library" and isinstance(value, types.ModuleType):
            is_constant = is_library(value.__name__)
        if not is_constant:
            self.is_open = True
            if self.doubts is not None and self.code != "user":
                self.doubts.append(value)
            if callable(value):  # The wrapped function may reach a node with arrays; its key is not needed.
                before, self.code = self.code, "user"
                self.separate_key(instance_attributes(value).get("__wrapped__"))
                self.code = before
        return identity_key(value)

    def node(self, node: Any) -> Hashable:
        """A node by its class, its statics, which are one object for equal values, and its children."""
        form = instance_attributes(node).get("_node")
        if not isinstance(form, tuple):
            raise arrays_reached(node, is_built=False)
        children, statics = form
        if self.is_child:
            return None
        if self.code is not None and has_arrays(node):
            raise arrays_reached(node)
        if self.visited is not None:
            for value, by_identity in zip(statics.values, statics.table.identity, strict=True):
                if not by_identity:
                    self.separate_key(value)  # It may be open.
        return (type(node), statics, *map(self.key, children))

    # Functions, partials and methods, which are compared as a whole

    def enter(self, value: Any, read: "Callable[[KeyBuilder, Any], Hashable]") -> Hashable:
        """The key of a function, partial or method by its parts; by identity if a part can change.

        Because of cycles, an object that is entered again is represented by the number of its first visit.
        """
        visited, address = self.visited, id(value)
        if visited is not None:
            if address in visited:
                return visited[address][0]
            visited[address] = len(visited), value
            return read(self, value)
        self.visited, self.is_open = {address: (0, value)}, False
        try:
            key = read(self, value)
        except RecursionError:  # nested deeper than Python's own stack
            self.is_open, self.code, key = True, None, None
        self.visited = None
        return identity_key(value) if self.is_open else key

    def function(self, value: types.FunctionType) -> Hashable:
        """By code, globals, captured variables and defaults. An importable function is compared by identity."""
        code, defaults, keyword_defaults = value.__code__, value.__defaults__, value.__kwdefaults__
        if self.is_open and not (value.__closure__ or defaults or keyword_defaults or value.__dict__):
            return None
        module = value.__globals__.get("__name__")
        from_library = is_library(module)
        is_named = "<" not in value.__qualname__ and import_path(value) is not None
        if is_named and (from_library or len(self.visited or ()) == 1):
            return identity_key(value)
        before, self.code = self.code, "library" if from_library else "user"
        key = (
            # == of code ignores the place, and so does cloudpickle, which drops the file. Other globals are constant.
            *((module, value.__qualname__, value.__name__, code) if from_library else self.source(value)),
            tuple(map(self.key, defaults)) if defaults else (),
            self.items(keyword_defaults) if keyword_defaults else (),
            self.items(captured(value)) if value.__closure__ else (),
            self.items(value.__dict__) if value.__dict__ else (),
        )
        self.code = before
        return key

    def items(self, named: Mapping[str, Any]) -> Hashable:
        return (*named, *map(self.key, named.values()))

    def source(self, value: types.FunctionType) -> tuple[Hashable, ...]:
        """The code of a user's function and its globals, if it is closed, so that they can't change."""
        code = value.__code__
        captures = code.co_freevars not in {(), ("__class__",)}
        if self.is_open or value.__dict__ or captures or not code_reads(code)[1]:
            self.is_open = True
            return ()
        reads: list[Hashable] = []
        for _, read, is_constant in reads_of(value):
            if not is_constant:
                self.is_open = True
                return ()
            reads.append(IdentityKey(read))
        place = (code_key(id(code), code), id(value.__globals__), self.annotations(value))
        return (*place, *map(self.key, _NAMES(value)), *reads)

    def annotations(self, value: Any) -> Hashable:
        annotate = getattr(value, "__annotate__", None)  # From Python 3.14 on; not evaluated, see PEP 649.
        if annotate is not None:
            return (code_key(id(annotate.__code__), annotate.__code__), *map(IdentityKey, captured(annotate).values()))
        annotations = value.__annotations__
        return self.separate_key(tuple(annotations.items())) if annotations else ()

    def partial(self, value: functools.partial[Any]) -> Hashable:
        """By function and arguments, if it has no attributes."""
        self.is_open = self.is_open or bool(value.__dict__)
        cls: Any = type(value)
        key = (cls, self.key(value.func), *map(self.key, value.args), self.items(value.keywords))
        return _Unchanged(value, key)

    def method(self, value: Any) -> Hashable:
        """By function and instance; a method written in C is compared with its own `==`."""
        before, instance = self.code, value.__self__
        if isinstance(instance, jax.Array) and not self.is_child:
            raise problem_of(instance)
        self.code = before or "user"  # The instance's attributes are not meant as constants.
        key = (type(value), self.key(instance), value if type(value) in C_METHODS else self.key(value.__func__))
        self.code = before
        return key

    def jitted(self, value: Any) -> Hashable:
        return (type(value), self.key(value.__wrapped__), jit_options(value))

    def mutable(self, value: Any) -> Hashable:
        """A list, dict, set or array: by content if a library's function captured it."""
        if self.code is None:
            raise problem_of(value)
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        if type(value) in {list, dict, set}:
            return self.enter(value, KeyBuilder.container)
        self.is_open = True
        return None

    def container(self, value: Any) -> Hashable:
        self.is_open = self.is_open or self.code == "user"
        return _Unchanged(value, (type(value), *map(self.key, _parts_now(value))))

    def array(self, value: Any) -> Hashable:
        """An array by its values, if it is small and a library's function captured it."""
        is_constant = self.code == "library" and value.size <= _MAX_ELEMENTS and value.dtype != object
        self.is_open = self.is_open or not is_constant or isinstance(value, Tracer)
        if self.is_open:
            return None
        try:
            data = numbers_of(value).tobytes()
        except RuntimeError:  # deleted, or partly on other hosts
            self.is_open = True
            return None
        place = (getattr(value, "sharding", None), getattr(value, "weak_type", None))
        key = (type(value), value.dtype, value.shape, data, *place)
        return _Unchanged(value, key) if isinstance(value, np.ndarray) else key


class _Unchanged:
    """The key of a mutable value: it equals another key only while both values are unchanged.

    Otherwise an optax mask that was changed in place would equal a new mask with the original values.
    """

    __slots__ = ("key", "parts", "value")

    def __init__(self, value: Any, key: Hashable) -> None:
        self.value, self.key, self.parts = value, key, _parts_now(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Unchanged) or self.key != other.key or not self.is_unchanged():
            return False
        return self.value is other.value or other.is_unchanged()

    def __hash__(self) -> int:
        return hash(self.key)

    def is_unchanged(self) -> bool:
        now = _parts_now(self.value)
        return len(now) == len(self.parts) and all(map(operator.is_, now, self.parts))


def _parts_now(value: Any) -> tuple[Any, ...]:
    """The mutable parts of a list, dict, set, numpy array, partial or named tuple."""
    if type(value) in _PARTIALS:
        return (*value.keywords, *value.keywords.values(), *value.__dict__)
    if isinstance(value, np.ndarray):
        return tuple(value.tobytes())  # small ints, which are singletons
    if isinstance(value, tuple):
        return tuple(value.__dict__)
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever the `==` of its metaclass."""
    meta: Any = type(cls)
    return cls if meta.__eq__ is object.__eq__ else IdentityKey(cls)
