"""The contents of a value: the parts by which it is compared, with a key for each, and what only describes it.

Retrace reports, `diff`, `stack` and descriptions in JSON use them. A value that exact keys compare by value is a leaf.
So is an object of JAX, numpy or Python, because its attributes are caches.
"""

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from treewright._base.functions import (
    C_METHOD_TYPES,
    CONSTANTS,
    METHOD_TYPES,
    MISSING,
    attribute_of,
    instance_attributes,
    is_library_function,
    is_standard_class,
    reads_of,
    uncached_attributes,
)
from treewright._base.jax_private import DictKey, GetAttrKey, Key, SequenceKey, options_of
from treewright._base.text import short_text
from treewright._core import Parts, comparison_of, flat_form, is_node, kind_of

# Values without contents: what they contain belongs to JAX, numpy or Python.
_WHOLE = (jax.Array, np.ndarray, type, types.ModuleType)
_PACKAGES = frozenset({"jax", "jaxlib", "numpy"})
_MAX_WRAPPERS = 100  # a mock wraps another one without end
_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")
_HIDDEN = frozenset({"piece", "name", "annotation", "uncompared"})  # roles that no report shows


class PartKey(NamedTuple):
    """The key of a part of a callable or an object that is not an item of a container."""

    role: str  # such as "captured", "default", "global", "argument", "option", "attribute"
    name: str

    def __str__(self) -> str:
        return "" if self.role == "member" else f".{self.name}"


_KEYS: Mapping[str, Callable[[Any], Key]] = types.MappingProxyType(
    {"item": SequenceKey, "entry": DictKey, "field": GetAttrKey, "static": GetAttrKey}
)


def is_plain(cls: type[Any]) -> bool:
    """Whether exact keys compare the instances of a class by value; these refer to no arrays."""
    if cls in CONSTANTS:
        return True
    kind = kind_of(cls)
    return kind is not None and kind.make is None and cls is not functools.partial


def contents(value: Any) -> dict[Key, Any]:
    """The contents of a value: items and fields by JAX's keys, the parts of callables and other objects by `PartKey`.

    A leaf has none.
    """
    if is_plain(type(value)) or isinstance(value, _WHOLE):
        return {}
    parts = tuple(part for part in comparison_of(value, "field").parts if part[0] not in _HIDDEN)
    return dict(_with_keys(value, _of_wrapper(value, parts) or (*parts, *_described(value, parts))))


def _with_keys(value: Any, parts: Parts) -> Iterator[tuple[Key, Any]]:
    for role, _, values in parts:
        named = values
        if role == "member":
            named = {short_text(member): member for member in sorted(values, key=short_text)}
        elif role == "default" and type(values) is tuple:
            code = value.__code__
            named = zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=False)
        elif role == "argument" and type(values) is tuple:
            named = {f"argument {index}": part for index, part in enumerate(values)}
        elif role == "child":
            role, named = "field", zip(flat_form(value)[1].table.children, values, strict=True)  # noqa: PLW2901
        elif role == "item" and hasattr(type(value), "_fields"):
            role, named = "field", zip(type(value)._fields, values, strict=False)  # noqa: PLW2901
        elif role == "item":
            named = enumerate(values)
        for name, part in dict(named).items():
            if name != "__wrapped__" or role == "function":  # `wraps` makes it an attribute too
                yield _KEYS.get(role, functools.partial(PartKey, role))(name), part


def _described(value: Any, parts: Parts) -> Parts:
    """What describes a value, though it is not compared by it, or by more than that."""
    if isinstance(value, types.FunctionType):
        reads = () if is_library_function(value) else reads_of(value)
        read = {name: part for name, part, library in reads if not library and part is not MISSING}
        return (("global", "user", read), ("attribute", "user", _names_of(value)))
    if type(value) in C_METHOD_TYPES:
        return (("object", "user", {"__func__": value.__name__}),)
    if is_node(value):
        statics = flat_form(value)[1]
        return (("static", "user", dict(zip(statics.table.names, statics.values, strict=True))),)
    roles = {role for role, _, _ in parts}
    if isinstance(value, functools.partial | types.MethodType) or "object" in roles:
        return ()
    items = () if roles & {"item", "entry", "member", "field"} else _items(value)
    has_more = not (roles or items) or (kind_of(type(value)) is None and isinstance(value, _BUILT_IN))
    return (*items, ("attribute", "user", _of_object(value))) if has_more else items


_BUILT_IN = (dict, list, tuple, set, frozenset)


def _items(value: Any) -> Parts:
    """The items or fields of a container that is not compared by them."""
    cls: Any = type(value)
    match value:
        case Mapping():
            return (("entry", "user", dict(value.items())),)
        case list() | tuple():
            return (("item", "user", tuple(value)),)
        case set() | frozenset():
            return (("member", "user", tuple(value)),)
        case bytearray():
            return (("attribute", "user", {"content": bytes(value)}),)
        case _ if dataclasses.is_dataclass(cls):
            compared = {field.name: field.compare for field in dataclasses.fields(cls)}
            fields = {name: getattr(value, name) for name in compared if hasattr(value, name)} | _of_object(value)
            return (("field", "user", {name: part for name, part in fields.items() if compared.get(name, True)}),)
        case _:
            return ()


def _of_object(value: Any) -> dict[str, Any]:
    """The attributes of an object, without caches."""
    cls: Any = type(value)
    is_opaque = is_standard_class(cls) and cls.__eq__ is object.__eq__
    return {} if is_opaque or cls.__module__.partition(".")[0] in _PACKAGES else uncached_attributes(value)


def _of_wrapper(value: Any, parts: Parts) -> Parts:
    """The wrapped function and the options of `jit`, `grad`, `vmap` or a wrapper class; empty for other values."""
    wrapped = attribute_of(value, "__wrapped__") if callable(value) else None
    is_users = isinstance(value, METHOD_TYPES) or (
        isinstance(value, types.FunctionType) and not is_library_function(value)
    )
    if wrapped is None or is_users:
        return ()
    options = options_of(value) or instance_attributes(value)
    if isinstance(value, types.FunctionType):
        inner = unwrap_api_boundary(value)
        variables = [part for part in comparison_of(inner, "argument").parts if part[0] in {"captured", "default"}]
        options = {key.name: part for key, part in _with_keys(inner, tuple(variables))}
    for part in options.values():  # `grad` captures the result of `value_and_grad`, which has the options
        if isinstance(part, types.FunctionType) and getattr(part, "__wrapped__", None) is wrapped:
            return _of_wrapper(part, parts)
    others = {name.strip("_"): part for name, part in options.items() if part is not wrapped}
    return (("function", "user", {"__wrapped__": wrapped}), ("option", "user", others))


def _names_of(function: types.FunctionType) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        # As text: evaluating them may fail, and `__annotate__` captured the namespace of a whole class.
        annotations: Any = annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
    else:  # before 3.14
        annotations = function.__annotations__
    return {name: getattr(function, name) for name in _NAMES} | {"__annotations__": annotations}


def wrapper_chain(function: Any) -> Iterator[Any]:
    """A function, then the one that it wraps, and so on, through partials, methods and decorators."""
    for _ in range(_MAX_WRAPPERS):
        yield function
        is_partial = isinstance(function, functools.partial)
        inner = function.func if is_partial else getattr(function, "__func__", getattr(function, "__wrapped__", None))
        if inner is None:
            return
        function = inner


def unwrap(function: Any) -> Any:
    """The innermost function that a partial, a method or a wrapper calls."""
    return list(wrapper_chain(function))[-1]


def unwrap_api_boundary(function: Any) -> Any:
    """The function inside JAX's traceback filter. Without its names, reports show `grad`'s inner function."""
    is_filter = (
        isinstance(function, types.FunctionType) and function.__code__.co_name == "reraise_with_filtered_traceback"
    )
    return inspect.getclosurevars(function).nonlocals.get("fun", function) if is_filter else function
