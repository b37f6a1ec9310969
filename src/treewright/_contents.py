"""The contents of a value, as `jit` compares it: items, fields, captured variables, arguments, attributes.

Retrace reports, `diff`, `stack` and descriptions in JSON use them. A value that exact keys compare by value is a leaf.
So is an object of JAX, numpy or Python, because its attributes are caches.
"""

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from treewright._base.functions import (
    C_METHOD_TYPES,
    METHOD_TYPES,
    MISSING,
    captured,
    instance_attributes,
    is_library_function,
    is_standard_class,
    reads_of,
    uncached_attributes,
)
from treewright._base.jax_private import DictKey, GetAttrKey, Key, SequenceKey, options_of
from treewright._base.text import short_text
from treewright._core import info_of, is_node_class, kind_of

# Values without contents: what they contain belongs to JAX, numpy or Python.
_WHOLE = (jax.Array, np.ndarray, type, types.ModuleType, types.BuiltinFunctionType)
_PACKAGES = frozenset({"jax", "jaxlib", "numpy"})
_MAX_WRAPPERS = 100  # a mock wraps another one without end
_NAMES = ("__name__", "__qualname__", "__module__", "__doc__")


class Part(NamedTuple):
    """The key of a part of a callable or an object that is not an item of a container."""

    role: Literal["captured", "global", "function", "object", "argument", "option", "attribute", "item"]
    name: str

    def __str__(self) -> str:
        return "" if self.role == "item" else f".{self.name}"


def contents(value: Any) -> Mapping[Key, Any]:
    """The contents of a value: items and fields by JAX's keys, the parts of callables and other objects by `Part`.

    A leaf has none.
    """
    if isinstance(value, functools.partial):
        args = {f"argument {index}": part for index, part in enumerate(value.args)}
        attributes = _of_role("attribute", instance_attributes(value))
        return {Part("function", "func"): value.func} | _of_role("argument", args | value.keywords) | attributes
    kind = kind_of(type(value))
    if type(value) in C_METHOD_TYPES and not isinstance(value.__self__, types.ModuleType | None):
        return {Part("object", "self"): value.__self__, Part("object", "__func__"): value.__name__}
    if isinstance(value, _WHOLE) or (kind is not None and kind.make is None):
        return {}
    if isinstance(value, METHOD_TYPES):
        return {Part("object", "self"): value.__self__, Part("object", "__func__"): value.__func__}
    if callable(value) and getattr(value, "__wrapped__", None) is not None:
        wrapper = _of_wrapper(value)
        if wrapper is not None:
            return wrapper
    if isinstance(value, types.FunctionType):
        variables = _of_role("captured", bound_variables(value)) | _of_role("global", globals_read(value))
        return variables | _of_role("attribute", _attributes_of_function(value))
    items = _items(value)
    # Other mappings store their items in attributes.
    has_more = items is None or (kind is None and isinstance(value, dict | list | tuple | set | frozenset))
    return {**(items or {}), **(_of_role("attribute", _of_object(value)) if has_more else {})}


def _items(value: Any) -> Mapping[Key, Any] | None:
    """The items or fields of a container; None for any other object."""
    cls: Any = type(value)
    match value:
        case _ if is_node_class(cls):
            names = [field.name for field in info_of(cls).fields]
            return {GetAttrKey(name): getattr(value, name) for name in names if hasattr(value, name)}
        case Mapping():
            return {DictKey(name): part for name, part in value.items()}
        case tuple() if hasattr(cls, "_fields"):
            return {GetAttrKey(name): part for name, part in zip(cls._fields, value, strict=False)}
        case list() | tuple():
            return {SequenceKey(index): part for index, part in enumerate(value)}
        case set() | frozenset():
            return _of_role("item", {short_text(item): item for item in sorted(value, key=short_text)})
        case bytearray():
            return {Part("attribute", "content"): bytes(value)}
        case _ if not dataclasses.is_dataclass(cls):
            return None
        case _:
            left_out = {field.name for field in dataclasses.fields(cls) if not field.compare}
            fields = [field.name for field in dataclasses.fields(cls) if field.compare and hasattr(value, field.name)]
            named = {name: getattr(value, name) for name in fields} | _of_object(value)
            return {GetAttrKey(name): part for name, part in named.items() if name not in left_out}


def _of_object(value: Any) -> dict[str, Any]:
    """The attributes of an object, without caches."""
    cls: Any = type(value)
    is_opaque = is_standard_class(cls) and cls.__eq__ is object.__eq__
    return {} if is_opaque or cls.__module__.partition(".")[0] in _PACKAGES else uncached_attributes(value)


def _of_wrapper(value: Any) -> Mapping[Key, Any] | None:
    """The wrapped function and the options of `jit`, `grad`, `vmap` or a wrapper class; None for a user's wrapper."""
    wrapped, is_function = value.__wrapped__, isinstance(value, types.FunctionType)
    if is_function and not is_library_function(value):
        return None
    options = (
        bound_variables(unwrap_api_boundary(value)) if is_function else options_of(value) or instance_attributes(value)
    )
    for part in options.values():  # `grad` captures the result of `value_and_grad`, which has the options
        if isinstance(part, types.FunctionType) and getattr(part, "__wrapped__", None) is wrapped:
            return contents(part)
    others = {name.strip("_"): part for name, part in options.items() if part is not wrapped}
    return {Part("function", "__wrapped__"): wrapped, **_of_role("option", others)}


def _attributes_of_function(function: types.FunctionType) -> dict[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        # As text: evaluating them may fail, and `__annotate__` captured the namespace of a whole class.
        annotations: Any = annotationlib.get_annotations(function, format=annotationlib.Format.STRING)
    else:  # before 3.14
        annotations = function.__annotations__
    attributes = {name: getattr(function, name) for name in _NAMES} | {"__annotations__": annotations} | vars(function)
    attributes.pop("__wrapped__", None)
    return attributes


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """The globals that a user's function reads, without those of libraries and Python."""
    if is_library_function(function):
        return {}
    return {name: value for name, value, library in reads_of(function) if not library and value is not MISSING}


def bound_variables(function: types.FunctionType) -> dict[str, Any]:
    """The captured variables and the parameter defaults of a function, by name."""
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    last = zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False)
    return captured(function) | dict(reversed(list(last))) | (function.__kwdefaults__ or {})


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


def _of_role(role: Any, named: Mapping[str, Any]) -> dict[Key, Any]:
    return {Part(role, name): part for name, part in named.items()}
