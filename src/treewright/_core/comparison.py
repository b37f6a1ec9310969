"""How one static value is compared: the only place that decides it, without looking into the value's parts.

The list of values compared by value is closed: the types of `kinds.py` by exact class, frozen dataclasses, partials,
closed functions, and classes with a custom `__eq__` or `__hash__`. All others are compared by identity.

Exact keys and retrace reports are folds over these decisions.
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
    C_METHOD_TYPES,
    METHOD_TYPES,
    MISSING,
    captured,
    code_key,
    foreign_library,
    has_author,
    import_path,
    instance_attributes,
    is_generated,
    is_library,
    is_written,
    jit_options,
    library_of,
    may_read_files,
    uncached_attributes,
    why_open,
)
from treewright._base.jax_private import numbers_of
from treewright._base.text import is_node_class, short_text, text_with_class, with_article
from treewright._core.field_checks import (
    MUTABLE,
    arrays_reached,
    comparison_problem,
    has_arrays,
    problem_of,
)
from treewright._core.kinds import DATACLASS, KINDS, NAMEDTUPLE, Kind, fields_of, kind_of

_MAX_ELEMENTS = 4096  # A library's function that captured a larger array is compared by identity.
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_PARTIALS = frozenset({functools.partial, jax.tree_util.Partial})
Parts = tuple[tuple[str, Any], ...]
# Whose function captured a value: a library's, which captures only constants; the user's; or an installed package's.
Owner = Literal["library", "user", "package"] | None


@dataclasses.dataclass(slots=True, eq=False)  # not frozen, and no named tuple, because these take 0.2 us more
class Scope:
    """Where a value is found.

    Attributes:
        owner: Whose function captured it, if any.
        visited: Inside a function, partial or method, the objects entered so far, numbered because of cycles.
        doubts: If it is a list, values are added that are not compared by value, each with the owner of its scope.
    """

    owner: Owner = None
    visited: dict[int, tuple[int, Any]] | None = None
    doubts: list[tuple[Any, Owner]] | None = None


@dataclasses.dataclass(slots=True, eq=False)
class Comparison:
    """How a value is compared.

    Attributes:
        by: By `own` and the keys of the parts: its value, its parts, or the author's `==`; or by identity.
        own: The part of the key that belongs to the value itself.
        parts: The parts by role: in order, or by name. They do not count if it is compared by identity.
        owner: The owner of the parts.
        reason: How the value can change. A function, partial or method that reaches it is compared by identity.
        is_callable: Whether it is a function, partial, method or container in one, which may contain itself.
        problem: Creates the error if the value can't be static. An error that is stored would refer to itself by its
            traceback, so that the value would not be freed: a report would be missing.
    """

    by: Literal["value", "parts", "author", "identity"]
    own: tuple[Any, ...] = ()
    parts: Parts = ()
    owner: Owner = None
    reason: str = ""
    is_callable: bool = False
    problem: Callable[[], Any] | None = None


IDENTITY = Comparison("identity")


def _rejected(problem: Callable[..., Any], value: Any, **options: bool) -> Comparison:
    return Comparison("identity", problem=functools.partial(problem, value, **options))


def _open_function(parts: Parts, owner: Owner, reason: str) -> Comparison:
    """The comparison of a function, partial or method that can change."""
    return Comparison("identity", (), parts, owner, reason, is_callable=True)


def comparison_of(value: Any, scope: Scope) -> Comparison:
    """How a value is compared."""
    cls = type(value)
    if cls is types.FunctionType:
        return _of_function(value, scope)
    if cls in _PARTIALS:
        return _of_partial(value, scope)
    kind = KINDS.get(cls)
    if kind is not None:
        return _of_kind(kind, value, scope)
    if isinstance(value, type):
        return IDENTITY
    if cls in C_METHOD_TYPES or isinstance(value, METHOD_TYPES):
        return _of_library(value, scope) if library_of(value) else _of_method(value, scope)
    if is_node_class(cls):
        return _of_node(value, scope)
    return _of_object(value, scope)


# Values and objects


def _of_kind(kind: Kind, value: Any, scope: Scope) -> Comparison:
    cls = type(value)
    if kind.key is not None:
        return Comparison("value", (cls, kind.key(value)))
    parts = kind.parts(value)
    if parts is None:  # more than its parts
        return _by_identity(value, scope)
    own = (cls, Unchanged(value)) if kind is NAMEDTUPLE and cls.__dictoffset__ else (cls,)
    role = "member" if cls is frozenset else "item"
    return Comparison("parts", own, ((role, parts if type(parts) is tuple else tuple(parts)),), scope.owner)


def _of_object(value: Any, scope: Scope) -> Comparison:
    """The comparison of a value whose exact class is not in the table."""
    cls: Any = type(value)
    kind = kind_of(cls)
    if kind is not None and kind is not DATACLASS:
        return _of_kind(kind, value, scope)
    if kind is not None and is_generated(cls.__eq__) and (scope.owner is None or not has_arrays(value)):
        return _by_fields(value, scope)
    is_frozen_dict = isinstance(value, dict) and cls.__hash__ and cls.__setitem__ is not dict.__setitem__
    if isinstance(value, MUTABLE) and not is_frozen_dict:
        return _of_mutable(value, scope)
    if has_arrays(value):
        return _rejected(arrays_reached, value)
    library = foreign_library(cls)
    if library == "nnx":
        return _of_mutable(value, scope)
    if library == "linen" and is_generated(cls.__eq__):
        return _by_fields(value, scope)
    if cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__:
        return _by_identity(value, scope)
    return _by_author(value, scope)


def _by_fields(value: Any, scope: Scope) -> Comparison:
    """A dataclass by the fields that `==` compares, and by all attributes that are not fields."""
    cls = type(value)
    try:
        named = fields_of(value) | uncached_attributes(value)
    except AttributeError:  # a field without a value
        return _by_identity(value, scope)
    for field in dataclasses.fields(cls):
        if not field.compare:
            named.pop(field.name, None)
    # A custom `__hash__` decides for fields without a hash: nnx's GraphDef contains a list.
    if is_written(cls, "__hash__") and not all(map(_has_hash, named.values())):
        return _by_author(value, scope)
    return Comparison("parts", (_class_key(cls),), (("field", named),), scope.owner)


def _has_hash(value: Any) -> bool:
    if is_node_class(type(value)):
        return True
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a user's
        return False
    return True


def _by_author(value: Any, scope: Scope) -> Comparison:
    """By class, `hash` and `==` if one of them is custom; otherwise by identity."""
    cls: Any = type(value)
    by_author = has_author(cls)
    if comparison_problem(value, with_equality=by_author) is not None:
        if scope.owner is None:
            return _rejected(comparison_problem, value, with_equality=by_author)
        return Comparison("identity", reason=f"is {text_with_class(value)}, which can't be compared")
    if not by_author:
        return _by_identity(value, scope)
    # The `==` of mappings, such as flax's FrozenDict, ignores the order and the difference of 1 and True.
    items = (("item", tuple([(name, value[name]) for name in value])),) if isinstance(value, Mapping) else ()
    return Comparison("author", (_class_key(cls), value), items, scope.owner)


def _by_identity(value: Any, scope: Scope) -> Comparison:
    """An object that is compared by identity, except jitted functions, which have parts."""
    if library_of(value):
        return _of_library(value, scope)
    options = jit_options(value)
    if options is not None and (scope.visited is not None or import_path(value) is None):
        return Comparison(
            "parts", (type(value), options), (("function", (value.__wrapped__,)),), scope.owner, is_callable=True
        )
    is_constant = isinstance(value, jax.Device) or type(value) is object or value is MISSING
    if scope.owner == "library" and isinstance(value, types.ModuleType):
        is_constant = is_library(value.__name__)
    if is_constant:
        return IDENTITY
    wrapped = instance_attributes(value).get("__wrapped__") if callable(value) else None
    parts: Parts = () if wrapped is None else (("function", (wrapped,)),)
    cls: Any = type(value)
    how = "has no __eq__" if cls.__eq__ is object.__eq__ else "can change"
    return Comparison("identity", (), parts, "user", f"is {with_article(cls.__qualname__)}, which {how}")


def _of_library(value: Any, scope: Scope) -> Comparison:
    """A library's function that can be imported. In a partial, or passed to a user's function, it may read files."""
    if scope.visited is None or scope.owner == "library" or not may_read_files(value):
        return IDENTITY
    return Comparison("identity", reason=f"calls {short_text(value)}, which may read files")


def _of_node(node: Any, scope: Scope) -> Comparison:
    """A node by its class, its statics, which are one object for equal values, and its children."""
    form = instance_attributes(node).get("_node")
    if not isinstance(form, tuple):
        return _rejected(arrays_reached, node, is_built=False)
    children, statics = form
    if scope.owner is not None and has_arrays(node):
        return _rejected(arrays_reached, node)
    parts: Parts = (("item", children),)
    if scope.visited is not None:  # The statics may change.
        pairs = zip(statics.values, statics.table.identity, strict=True)
        parts = (("static", tuple([value for value, by_identity in pairs if not by_identity])), *parts)
    return Comparison("parts", (type(node), statics), parts, scope.owner)


def _of_mutable(value: Any, scope: Scope) -> Comparison:
    """A list, dict, set or array: by content if a library's function captured it."""
    if scope.owner is None:
        return _rejected(problem_of, value)
    if isinstance(value, np.ndarray | jax.Array):
        return _of_array(value, scope)
    reason = f"is a {type(value).__name__}, which can change"
    if type(value) not in {list, dict, set}:
        return Comparison("identity", reason=reason)
    parts = (("item", parts_now(value)),)
    if scope.owner != "library":
        return _open_function(parts, scope.owner, reason)
    return Comparison("parts", (type(value), Unchanged(value)), parts, scope.owner, is_callable=True)


def _of_array(value: Any, scope: Scope) -> Comparison:
    """An array by its values, if it is small and a library's function captured it."""
    is_constant = scope.owner == "library" and value.size <= _MAX_ELEMENTS and value.dtype != object
    try:
        data = numbers_of(value).tobytes() if is_constant and not isinstance(value, Tracer) else None
    except RuntimeError:  # deleted, or partly on other hosts
        data = None
    if data is None:
        return Comparison("identity", reason="is an array")
    place = (getattr(value, "sharding", None), getattr(value, "weak_type", None))
    own = (type(value), value.dtype, value.shape, data, *place)
    return Comparison("value", (*own, Unchanged(value)) if isinstance(value, np.ndarray) else own)


# Functions and methods


def _of_function(value: types.FunctionType, scope: Scope) -> Comparison:
    """By code, globals, captured variables and defaults. An importable function is compared by identity."""
    code = value.__code__
    module = value.__globals__.get("__name__")
    from_library = is_library(module)
    is_importable = "<" not in value.__qualname__ and import_path(value) is not None
    if is_importable and from_library:
        return _of_library(value, scope)
    parts: Parts = (("captured", captured(value)),) if value.__closure__ else ()
    if value.__defaults__:
        parts = (*parts, ("default", value.__defaults__))
    if value.__kwdefaults__:
        parts = (*parts, ("keyword", value.__kwdefaults__))
    if value.__dict__:
        parts = (*parts, ("attribute", value.__dict__))
    if is_importable and scope.visited is None:
        return Comparison("identity", (), parts, "user") if parts else IDENTITY
    if from_library:  # == of code ignores the place; cloudpickle drops the file. The other globals are constant.
        named: tuple[Hashable, ...] = (module, value.__qualname__, value.__name__, code)
        return Comparison("parts", named, parts, "library", is_callable=True)
    owner: Owner = "package" if "-packages" in code.co_filename else "user"
    reason, reads = why_open(value)
    if reason:
        return _open_function(parts, owner, reason)
    own = (code_key(id(code), code), id(value.__globals__), *map(IdentityKey, reads))
    annotate = getattr(value, "__annotate__", None)  # From Python 3.14 on; not evaluated, see PEP 649.
    if annotate is not None:
        inner = annotate.__code__
        own = (*own, code_key(id(inner), inner), *map(IdentityKey, captured(annotate).values()))
    elif value.__annotations__:
        parts = (*parts, ("annotation", tuple(value.__annotations__.items())))
    return Comparison("parts", own, (("name", _NAMES(value)), *parts), owner, is_callable=True)


def _of_partial(value: functools.partial[Any], scope: Scope) -> Comparison:
    """By function and arguments, if it has no attributes."""
    parts: Parts = (("argument", (value.func, *value.args)),)
    if value.keywords:
        parts = (*parts, ("keyword", value.keywords))
    if not value.__dict__:
        return Comparison("parts", (type(value), Unchanged(value)), parts, scope.owner, is_callable=True)
    return _open_function(
        (*parts, ("attribute", value.__dict__)), scope.owner, f"has the attribute {next(iter(value.__dict__))}"
    )


def _of_method(value: Any, scope: Scope) -> Comparison:
    """By function and instance; a method written in C is compared with its own `==`."""
    instance = value.__self__
    if isinstance(instance, jax.Array):
        return _rejected(problem_of, instance)
    cls, owner = type(value), scope.owner or "user"
    if cls in C_METHOD_TYPES:  # A list whose method was passed is meant to change.
        return Comparison("parts", (cls, value), (("object", (instance,)),), scope.owner or "package", is_callable=True)
    function = value.__func__
    if library_of(function):
        return Comparison("parts", (cls, IdentityKey(function)), (("object", (instance,)),), owner, is_callable=True)
    return Comparison("parts", (cls,), (("object", (instance, function)),), owner, is_callable=True)


# Own keys


class IdentityKey:
    """A key that compares an object by identity."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class Unchanged:
    """Part of the key of a mutable value: two of them are equal only while both values are unchanged.

    Otherwise an optax mask that was changed in place would equal a new mask with the original values.
    """

    __slots__ = ("parts", "value")

    def __init__(self, value: Any) -> None:
        self.value, self.parts = value, parts_now(value)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Unchanged) or not self.is_unchanged():
            return False
        return self.value is other.value or other.is_unchanged()

    def __hash__(self) -> int:
        return len(self.parts)

    def is_unchanged(self) -> bool:
        now, before = parts_now(self.value), self.parts
        return len(now) == len(before) and (not now or all(map(operator.is_, now, before)))


def parts_now(value: Any) -> tuple[Any, ...]:
    """The mutable parts of a list, dict, set, numpy array, partial or named tuple."""
    if type(value) in _PARTIALS:
        keywords = value.keywords
        return (*keywords, *keywords.values(), *value.__dict__) if keywords or value.__dict__ else ()
    if isinstance(value, np.ndarray):
        return tuple(value.tobytes())  # small ints, which are singletons
    if isinstance(value, tuple):
        return tuple(value.__dict__)
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever the `==` of its metaclass."""
    meta: Any = type(cls)
    return cls if meta.__eq__ is object.__eq__ else IdentityKey(cls)
