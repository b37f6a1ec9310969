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
    is_installed,
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
from treewright._core.kinds import DATACLASS, KINDS, NAMEDTUPLE, Kind, fields_of, kind_of
from treewright._core.mutable import MUTABLE, has_arrays
from treewright._core.rules import statics as rules

_MAX_ELEMENTS = 4096  # A library's function that captured a larger array is compared by identity.
_NAMES = operator.attrgetter("__name__", "__qualname__", "__module__", "__doc__")
_CUSTOM = (jax.custom_jvp, jax.custom_vjp)
_PARTIALS = frozenset({functools.partial, jax.tree_util.Partial})
# What holds a value: a field, or a tuple or the like there; the arguments of a function, partial or method; or a
# function that captured it: a library's, which captures only constants, a user's, or an installed package's.
Holder = Literal["field", "argument", "library", "user", "package"]
By = Literal["value", "parts", "author", "identity"]
_ROLES: Mapping[Any, str] = types.MappingProxyType({list: "item", dict: "entry", set: "member"})
_GIVEN = frozenset({"field", "argument"})  # The user passed the value, so a mutable one is rejected.
# By role, with their holder: a tuple in order, or a dict by name. Roles: "item", "entry" or "member" of a container;
# "child" or "static" of a node; "field" of a dataclass; "piece" of a plain value; "function" in a partial or wrapper,
# with "argument" or "option"; "object" of a method; "captured", "default", "attribute", "name" and "annotation" of a
# function; and "uncompared", which a key enters only to find nodes with arrays.
Parts = tuple[tuple[str, Holder, Any], ...]


@dataclasses.dataclass(slots=True, eq=False)  # not frozen, and no named tuple, because these take 0.1 us more
class Comparison:
    """How a value is compared.

    Attributes:
        by: By `own` and the keys of the parts: its value, its parts, or the author's `==`; or by identity.
        own: The part of the key that belongs to the value itself.
        parts: What it contains. It does not count if it is compared by identity.
        can_change: How the value can change. A function, partial or method that reaches it is compared by identity.
        may_recur: Whether it may contain itself: a function, partial or method, or an object or container in one.
        problem: Creates the error if the value can't be static. A stored error would keep its traceback, and so the
            value, alive.
    """

    by: By
    own: tuple[Any, ...] = ()
    parts: Parts = ()
    can_change: str = ""
    may_recur: bool = False
    problem: Callable[[], Any] | None = None


_BY_IDENTITY = Comparison("identity")  # a constant


def _rejected(value: Any, rule: rules.Rule, parts: Parts = ()) -> Comparison:
    return Comparison("identity", (), parts, problem=functools.partial(rules.NoExactKeyError, value, rule))


def _changeable(can_change: str, parts: Parts = ()) -> Comparison:
    """The comparison of a value that can change. Its parts may reach a node with arrays."""
    return Comparison("identity", (), parts, can_change, may_recur=True)


def comparison_of(value: Any, holder: Holder) -> Comparison:
    """How a value is compared."""
    cls = type(value)
    if cls is tuple:
        return Comparison("parts", (tuple,), (("item", holder, value),))
    if cls is types.FunctionType:
        return _of_function(value, holder)
    if cls in _PARTIALS:
        return _of_partial(value, holder)
    kind = KINDS.get(cls)
    if kind is not None:
        return _of_kind(kind, value, holder)
    if isinstance(value, type):
        return _BY_IDENTITY
    if cls in C_METHOD_TYPES or isinstance(value, METHOD_TYPES):
        return _of_library(value, holder) if library_of(value) else _of_method(value, holder)
    if is_node_class(cls):
        return _of_node(value, holder)
    return _of_object(value, holder)


# Values and objects


def _of_kind(kind: Kind, value: Any, holder: Holder) -> Comparison:
    cls = type(value)
    if kind.key is not None:
        return Comparison("value", (cls, kind.key(value)))
    parts = kind.parts(value)
    if parts is None:  # more than its parts
        return _by_identity(value, holder)
    if kind is NAMEDTUPLE:
        own = (cls, Unchanged(value)) if cls.__dictoffset__ else (cls,)
        return Comparison("parts", own, (("item", holder, tuple(parts)[1:]),))
    if kind.make is not None and cls is not frozenset:
        return Comparison("parts", (cls,), (("entry", holder, dict(parts)),))
    return Comparison("parts", (cls,), (("piece" if kind.make is None else "member", holder, tuple(parts)),))


def _of_object(value: Any, holder: Holder) -> Comparison:
    """The comparison of a value whose exact class is not in the table."""
    cls: Any = type(value)
    kind = kind_of(cls)
    if kind is not None and kind is not DATACLASS:
        return _of_kind(kind, value, holder)
    if kind is not None and is_generated(cls.__eq__) and (holder in _GIVEN or not has_arrays(value)):
        return _by_fields(value, holder)
    is_frozen_dict = isinstance(value, dict) and cls.__hash__ and cls.__setitem__ is not dict.__setitem__
    if isinstance(value, MUTABLE) and not is_frozen_dict:
        return _of_mutable(value, holder)
    if has_arrays(value):
        return _rejected(value, rules.reaches_arrays)
    library = foreign_library(cls)
    if library == "nnx":
        return _of_mutable(value, holder)
    if library == "linen" and is_generated(cls.__eq__):
        return _by_fields(value, holder)
    if cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__:
        return _by_identity(value, holder)
    return _by_author(value, holder)


def _by_fields(value: Any, holder: Holder) -> Comparison:
    """A dataclass by the fields that `==` compares, and by all attributes that are not fields."""
    cls = type(value)
    try:
        named = fields_of(value) | uncached_attributes(value)
    except AttributeError:  # a field without a value
        return _by_identity(value, holder)
    for field in dataclasses.fields(cls):
        if not field.compare:
            named.pop(field.name, None)
    # A custom `__hash__` decides for fields without a hash: nnx's GraphDef contains a list.
    if is_written(cls, "__hash__") and not all(map(_has_hash, named.values())):
        return _by_author(value, holder)
    return Comparison("parts", (_class_key(cls),), (("field", holder, named),))


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a user's
        return False
    return True


def _by_author(value: Any, holder: Holder) -> Comparison:
    """By class, `hash` and `==` if one of them is custom; otherwise by identity."""
    cls: Any = type(value)
    by_author = has_author(cls)
    problem = _problem_of(value, with_equality=by_author)
    if problem is not None:
        if holder in _GIVEN:
            return _rejected(value, problem)
        return _changeable(f"is {text_with_class(value)}, which can't be compared", _uncompared(value))
    if not by_author:
        return _by_identity(value, holder)
    # The `==` of mappings, such as flax's FrozenDict, ignores the order and the difference of 1 and True.
    if isinstance(value, Mapping):
        entries = {name: value[name] for name in value}
        return Comparison("author", (_class_key(cls), value), (("entry", holder, entries),))
    parts = _uncompared(value)
    return Comparison("author", (_class_key(cls), value), parts, may_recur=bool(parts))


def _problem_of(value: Any, *, with_equality: bool) -> rules.Rule | None:
    """The rule about an object that has no hash, or whose custom `==` does not return a bool."""
    if not _has_hash(value):
        return rules.unhashable
    try:
        answer = not with_equality or value == value  # noqa: PLR0124
        if isinstance(answer, bool | np.bool_):
            return None
        result = f"returns {short_text(answer)}, not a bool"
    except Exception as error:  # noqa: BLE001  a user's
        result = f"raises {type(error).__name__}: {error}"
    return functools.partial(rules.bad_equality, result=result)


def _uncompared(value: Any) -> Parts:
    """The fields of a user's frozen dataclass that is compared by identity, or by its author's `==`."""
    is_frozen = getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False)
    if not is_frozen or is_installed(type(value).__module__):
        return ()
    return (("uncompared", "user", instance_attributes(value)),)


def _by_identity(value: Any, holder: Holder) -> Comparison:
    """An object that is compared by identity, except jitted functions, which have parts."""
    if library_of(value):
        return _of_library(value, holder)
    options = jit_options(value)
    if options is not None and (holder != "field" or import_path(value) is None):
        parts: Parts = (("function", _inside(holder), {"__wrapped__": value.__wrapped__}),)
        return Comparison("parts", (type(value), options), parts, may_recur=True)
    if isinstance(value, _CUSTOM):
        return _of_custom_rule(value, holder)
    is_module = holder == "library" and isinstance(value, types.ModuleType) and is_library(value.__name__)
    if is_module or isinstance(value, jax.Device) or type(value) is object or value is MISSING:
        return _BY_IDENTITY
    wrapped = instance_attributes(value).get("__wrapped__") if callable(value) else None
    parts = _uncompared(value) if wrapped is None else (("function", "user", {"__wrapped__": wrapped}),)
    return _changeable(f"is {with_article(type(value).__qualname__)}, which is compared by identity", parts)


def _of_custom_rule(value: Any, holder: Holder) -> Comparison:
    """A `custom_jvp` or `custom_vjp` by its function, its rules and its options, which can be assigned."""
    attributes = instance_attributes(value)
    function = attributes.pop("__wrapped__", None)
    parts: Parts = (("function", _inside(holder), {"__wrapped__": function}), ("option", "library", attributes))
    if None in (getattr(value, "jvp", 0), getattr(value, "fwd", 0)):  # `jvp` is an attribute of the class until then
        return _changeable("has no rules yet", parts)
    return Comparison("parts", (type(value), Unchanged(value)), parts, may_recur=True)


def _of_library(value: Any, holder: Holder) -> Comparison:
    """A library's function that can be imported. In a partial, or passed to a user's function, it may read files."""
    if holder in {"field", "library"} or not may_read_files(value):
        return _BY_IDENTITY
    return _changeable(f"calls {short_text(value)}, which may read files")


def _of_node(node: Any, holder: Holder) -> Comparison:
    """A node by its class, its statics, which are one object for equal values, and its children."""
    form = instance_attributes(node).get("_node")
    if not isinstance(form, tuple):
        return _rejected(node, rules.reaches_unfinished_node)
    children, statics = form
    if holder not in _GIVEN and has_arrays(node):
        return _rejected(node, rules.reaches_arrays)
    parts: Parts = (("child", holder, children),)
    if holder != "field":  # The statics may change.
        pairs = zip(statics.values, statics.table.identity, strict=True)
        parts = (*parts, ("static", holder, tuple([value for value, by_identity in pairs if not by_identity])))
    return Comparison("parts", (type(node), statics), parts)


def _of_mutable(value: Any, holder: Holder) -> Comparison:
    """A list, dict, set or array: by content if a library's function captured it."""
    cls = type(value)
    parts: Parts = ((_ROLES[cls], holder, dict(value) if cls is dict else tuple(value)),) if cls in _ROLES else ()
    if holder in _GIVEN:
        return _rejected(value, rules.rule_of(value), parts)
    if isinstance(value, np.ndarray | jax.Array):
        return _of_array(value, holder)
    if holder == "library" and parts:
        return Comparison("parts", (cls, Unchanged(value)), parts, may_recur=True)
    return _changeable(f"is a {cls.__name__}, which can change", parts)


def _of_array(value: Any, holder: Holder) -> Comparison:
    """An array by its values, if it is small and a library's function captured it."""
    is_constant = holder == "library" and value.size <= _MAX_ELEMENTS and value.dtype != object
    try:
        data = numbers_of(value).tobytes() if is_constant and not isinstance(value, Tracer) else None
    except RuntimeError:  # deleted, or partly on other hosts
        data = None
    if data is None:
        return _changeable("is an array")
    where = (getattr(value, "sharding", None), getattr(value, "weak_type", None))
    own = (type(value), value.dtype, value.shape, data, *where)
    return Comparison("value", (*own, Unchanged(value)) if isinstance(value, np.ndarray) else own)


# Functions and methods


def _of_function(value: types.FunctionType, holder: Holder) -> Comparison:
    """By code, globals, captured variables and defaults. An importable function is compared by identity.

    jax.nn.relu              by identity, a constant
    optax.adam(0.1).update   by parts: a library's, which captured constants (`inner` is "library")
    lambda x: jnp.tanh(x)    by parts: closed
    lambda x: x * step       by identity: it captures `step`, which can change
    """
    code = value.__code__
    module = value.__globals__.get("__name__")
    from_library = is_library(module)
    is_importable = "<" not in value.__qualname__ and import_path(value) is not None
    if is_importable and from_library:
        return _of_library(value, holder)
    inner: Holder = "library" if from_library else "package" if "-packages" in code.co_filename else "user"
    parts: Parts = (("captured", inner, captured(value)),) if value.__closure__ else ()
    if value.__defaults__:
        parts = (*parts, ("default", inner, value.__defaults__))
    if value.__kwdefaults__:
        parts = (*parts, ("default", inner, value.__kwdefaults__))
    if value.__dict__:
        parts = (*parts, ("attribute", inner, value.__dict__))
    if is_importable and holder == "field":
        return Comparison("identity", (), parts, may_recur=True) if parts else _BY_IDENTITY
    if from_library:  # == of code ignores the place; cloudpickle drops the file. The other globals are constant.
        return Comparison("parts", (module, value.__qualname__, value.__name__, code), parts, may_recur=True)
    can_change, reads = why_open(value)
    return _changeable(can_change, parts) if can_change else _of_closed_function(value, inner, parts, reads)


def _of_closed_function(value: types.FunctionType, holder: Holder, parts: Parts, reads: list[Any]) -> Comparison:
    """By code, defaults, annotations and the globals that it reads."""
    code = value.__code__
    own = (code_key(id(code), code), id(value.__globals__), *map(IdentityKey, reads))
    if value.__defaults__ or value.__kwdefaults__:  # can be assigned
        own = (*own, Unchanged(value))
    annotate = getattr(value, "__annotate__", None)  # From Python 3.14 on; not evaluated, see PEP 649.
    if annotate is not None:
        code = annotate.__code__
        own = (*own, code_key(id(code), code), *map(IdentityKey, captured(annotate).values()))
    elif value.__annotations__:  # A list in an annotation is no constant of a program.
        parts = (*parts, ("annotation", "package", value.__annotations__))
    return Comparison("parts", own, (("name", holder, _NAMES(value)), *parts), may_recur=True)


def _inside(holder: Holder) -> Holder:
    """The holder of the arguments of a partial or jitted function."""
    return "argument" if holder == "field" else holder


def _of_partial(value: functools.partial[Any], holder: Holder) -> Comparison:
    """By function and arguments, if it has no attributes."""
    inner = _inside(holder)
    parts: Parts = (("function", inner, {"func": value.func}),)
    if value.args:
        parts = (*parts, ("argument", inner, value.args))
    if value.keywords:
        parts = (*parts, ("argument", inner, value.keywords))
    if value.__dict__:
        parts = (*parts, ("attribute", inner, value.__dict__))
        return _changeable(f"has the attribute {next(iter(value.__dict__))}", parts)
    return Comparison("parts", (type(value), Unchanged(value)), parts, may_recur=True)


def _of_method(value: Any, holder: Holder) -> Comparison:
    """By function and instance; a method written in C is compared with its own `==`."""
    instance = value.__self__
    if isinstance(instance, jax.Array):
        return _rejected(instance, rules.rule_of(instance))
    cls, is_given = type(value), holder in _GIVEN
    if cls in C_METHOD_TYPES:  # A list whose method was passed is meant to change.
        parts: Parts = (("object", "package" if is_given else holder, {"self": instance}),)
        return Comparison("parts", (cls, value), parts, may_recur=True)
    parts = (("object", "user" if is_given else holder, {"self": instance, "__func__": value.__func__}),)
    return Comparison("parts", (cls,), parts, may_recur=True)


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
    """The mutable parts of a function, partial, list, dict, set, numpy array, named tuple or dataclass."""
    if type(value) is types.FunctionType:
        keywords = value.__kwdefaults__ or {}
        return (*(value.__defaults__ or ()), *keywords, *keywords.values())
    if type(value) in _PARTIALS:
        keywords = value.keywords
        return (*keywords, *keywords.values(), *value.__dict__) if keywords or value.__dict__ else ()
    if isinstance(value, np.ndarray):
        return tuple(value.tobytes())  # small ints, which are singletons
    if dataclasses.is_dataclass(value) or isinstance(value, _CUSTOM):
        return tuple(instance_attributes(value).values())
    if isinstance(value, tuple):
        return tuple(value.__dict__)
    return (*value, *value.values()) if isinstance(value, dict) else tuple(value)


def _class_key(cls: Any) -> Hashable:
    """A class by identity, whatever the `==` of its metaclass."""
    meta: Any = type(cls)
    return cls if meta.__eq__ is object.__eq__ else IdentityKey(cls)
