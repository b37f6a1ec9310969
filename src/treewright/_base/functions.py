"""Inspect functions: their library, and the globals, captured variables, defaults and attributes that they depend on.

A static function determines what a compiled program computes, and so does everything that it reads.
"""

import builtins
import contextlib
import dataclasses
import dis
import functools
import itertools
import operator
import os
import sys
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, SupportsIndex, TypeVar

import numpy as np

from treewright._base.jax_private import JIT_ATTRIBUTES, options_of

# Packages whose modules and functions users don't modify, and whose factories capture only constants. More packages
# join with `__treewright_library__ = True` in their top module. docs/statics.md prints both lists.
LIBRARIES = frozenset(
    {
        *("jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "einops", "treewright"),
        *("optax", "chex", "flax", "equinox", "haiku", "jaxtyping", "lineax", "optimistix", "diffrax", "distrax"),
    }
)
# Modules of the standard library without settings, unlike `os`, `random` and others.
STANDARD = frozenset(
    {
        *("abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum"),
        *("fractions", "functools", "heapq", "itertools", "math", "numbers", "operator", "re", "reprlib"),
        *("statistics", "string", "types", "typing"),
    }
)
OWN_MARK = "__treewright_library__"
_RANDOM = "numpy.random"  # It has mutable state.
STANDARD_FOLDER = os.__file__.removesuffix("os.py")

# Packages whose functions read no files or settings, except those in the next list. So do packages with the mark.
_SAFE = frozenset({"jax", "math", "operator", "_operator", "functools", "_functools", "einops", "optax", "builtins"})
# Names of Python, `operator` and `jax.numpy` by which code reads variables, attributes, files or settings.
_DYNAMIC = frozenset(
    {
        *("__import__", "breakpoint", "compile", "eval", "exec", "getattr", "globals", "input", "locals", "open"),
        *("vars", "attrgetter", "methodcaller", "__getattribute__", "__dict__", "__closure__", "__builtins__"),
        *("__globals__", "f_back", "f_globals", "f_locals", "load", "fromfile", "get_printoptions"),
    }
)
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OPENS = types.MappingProxyType({"STORE_GLOBAL": "assigns", "DELETE_GLOBAL": "deletes", "IMPORT_NAME": "imports"})
_CODE: Callable[[types.CodeType], tuple[Any, ...]] = operator.attrgetter(
    *("co_code", "co_exceptiontable", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_name"),
    *("co_qualname", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_stacksize"),
    *("co_filename", "co_firstlineno", "co_linetable"),
)
# Other libraries' layers, variables and metaclasses: by name, the package and the library.
_LAYERS = types.MappingProxyType(
    {
        "Module": (("equinox.", "equinox"), ("flax.linen.", "linen"), ("flax.nnx.", "nnx")),
        "_ModuleMeta": (("equinox.", "equinox"),),
        "Pytree": (("flax.nnx.", "nnx"),),
        "Variable": (("flax.nnx.", "nnx"),),
    }
)
_PLACEHOLDER = type(getattr(functools, "Placeholder", None))  # a partial's, from Python 3.14 on
# Types whose == is exact between values of one type; and the other numbers, whose == ignores the sign of zero and NaN.
BY_VALUE = frozenset({str, int, bool, bytes, types.NoneType, types.EllipsisType, _PLACEHOLDER})
CONSTANTS = BY_VALUE | {float, complex}
MISSING: Any = dataclasses.MISSING
C = TypeVar("C", bound=type[Any])


class NodeMethod:
    """The base of a node's bound methods, with the attributes of `types.MethodType`."""

    __slots__ = ("__func__", "__self__", "__weakref__")
    __func__: Callable[..., Any]
    __self__: Any


class FrozenValue:
    """The base of what `freeze` creates: values that can't change."""

    __slots__ = ()


class ComputedArray(np.ndarray[Any, Any]):
    """An array computed from frozen arrays, which prints and pickles like an ordinary numpy array."""

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


# Others contain more than data, such as a mask.
PLAIN_ARRAYS = frozenset({np.ndarray, np.memmap, ComputedArray})
METHOD_TYPES = (types.MethodType, NodeMethod)
C_METHOD_TYPES = frozenset({types.BuiltinFunctionType, types.MethodWrapperType})


# Classes, instances, and the names of values


def is_cached_property(cls: type[Any], name: str) -> bool:
    """Whether this attribute of the class is a `cached_property`."""
    return isinstance(getattr(cls, name, None), functools.cached_property)


def foreign_library(cls: type[Any]) -> str | None:
    """`equinox`, `linen` or `nnx` if a class is one of its layers, variables or metaclasses; None for other classes."""
    for base in cls.__mro__:
        for package, library in _LAYERS.get(base.__name__, ()):
            if base.__module__.startswith(package):
                return library
    return None


def is_state_of_nnx(value: Any) -> bool:
    """Whether a value is a variable of flax.nnx that training must not change: any but a `Param`."""
    names = {base.__name__ for base in type(value).__mro__} if foreign_library(type(value)) == "nnx" else set[str]()
    return "Variable" in names and "Param" not in names


def native_base(cls: type[Any]) -> type[Any] | None:
    """The first class in the MRO that is written in C, such as `list` or `Exception`; None if there is none."""
    is_native = types.BuiltinFunctionType
    return next((base for base in cls.__mro__[:-1] if isinstance(vars(base).get("__new__"), is_native)), None)


def is_generated(method: Any) -> bool:
    """Whether `dataclasses` generated a method."""
    code = getattr(method, "__code__", None)
    return code is not None and code.co_qualname.startswith("__create_fn__.")


def is_written(cls: type[Any], name: str) -> bool:
    """Whether a user or a library's author wrote this method, rather than Python, numpy or `dataclasses`."""
    method = getattr(cls, name)
    if method is None or method is getattr(object, name) or is_generated(method):
        return False
    owner = next(base for base in cls.__mro__ if name in vars(base))
    return not is_standard_class(owner) and owner.__module__.partition(".")[0] != "numpy"


def has_author(cls: type[Any]) -> bool:
    """Whether a user or a library's author wrote the `__eq__` or `__hash__` of a class."""
    return is_written(cls, "__eq__") or is_written(cls, "__hash__")


def is_standard_class(cls: type[Any]) -> bool:
    """Whether a class is defined by Python or its standard library."""
    return str(cls.__module__).partition(".")[0] in sys.stdlib_module_names


def slots_of(cls: type[Any]) -> dict[str, types.MemberDescriptorType]:
    """The slots of a class and its bases by name, except in Python's own classes."""
    return {
        name: slot
        for base in cls.__mro__
        if base.__dict__.get("__slots__") and not is_standard_class(base)
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType)
    }


def instance_attributes(value: Any) -> dict[str, Any]:
    """The attributes in an instance's `__dict__` and slots, bypassing overrides of its class."""
    attributes = dict(object.__getattribute__(value, "__dict__")) if type(value).__dictoffset__ else {}
    for name, slot in slots_of(type(value)).items():
        with contextlib.suppress(AttributeError):
            attributes[name] = slot.__get__(value)
    return attributes


def uncached_attributes(value: Any) -> dict[str, Any]:
    """The attributes of an instance, without its cached properties and the internal state of flax.linen."""
    cls = type(value)
    return {
        name: part
        for name, part in instance_attributes(value).items()
        if not is_cached_property(cls, name) and not (name.startswith("_") and foreign_library(cls) == "linen")
    }


def public(cls: C) -> C:
    """Decorator that sets a class's `__module__` to `treewright`, where users, pickles and checkpoints find it."""
    cls.__module__ = "treewright"
    setattr(cls, "__firstlineno__", None)  # noqa: B010  `inspect` would look for its source in that module.
    return cls


def attribute_of(value: Any, name: str) -> Any:
    """An attribute; None if it is missing, or if a user's `__getattr__` or property raises."""
    try:
        return getattr(value, name, None)
    except Exception:  # noqa: BLE001
        return None


def lookup_imported(module: str, name: str) -> Any:
    """The value at a dotted name in a module that is already imported; None if there is none."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def import_path(value: Any) -> tuple[str, str] | None:
    """The module and dotted name at which this object can be imported; None if there are none."""
    module, name = attribute_of(value, "__module__"), attribute_of(value, "__qualname__")
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:  # a lambda or a local function
        return None
    return (module, name) if lookup_imported(module, name) is value else None


def earlier_class_hint(cls: type[Any]) -> str:
    """A hint for an instance whose class has been redefined since; empty if it has not."""
    current = lookup_imported(cls.__module__, cls.__qualname__)
    if not isinstance(current, type) or current is cls or current.__qualname__ != cls.__qualname__:
        return ""
    return (
        f" This {cls.__qualname__} belongs to an older definition of the class: the class statement has run again, for "
        f"example in a notebook cell or a reloaded module. Recreate the object."
    )


def is_pickled_by(*packages: str) -> bool:
    """Whether a pickler of these packages is running, also in Ray and joblib. `cloudpickle` and `dill` copy code."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if not {*packages}.isdisjoint(str(frame.f_globals.get("__name__")).split(".")):
            return True
        frame = frame.f_back
    return False


# Code of libraries and of users


def is_library(module: object) -> bool:
    """Whether a module of this name belongs to a library: it is in a list above, or its package has the mark."""
    name = str(module)
    package = name.partition(".")[0]
    top = sys.modules.get(package)
    if package in LIBRARIES:  # A user's file of the same name is not a package.
        return hasattr(top, "__path__") and _RANDOM not in name
    if package.removeprefix("_") in STANDARD:  # For example, _operator is the C part of operator.
        origin = str(getattr(getattr(top, "__spec__", None), "origin", None))
        is_standard = origin.startswith(STANDARD_FOLDER) and "site-packages" not in origin
        return is_standard or origin in {"built-in", "frozen"}
    return top is not None and vars(top).get(OWN_MARK) is True


def is_library_function(function: types.FunctionType) -> bool:
    """Whether a function's code belongs to a library. `__module__` is unreliable, because `wraps` copies it."""
    return is_library(function.__globals__.get("__name__"))


def is_installed(module: str) -> bool:
    """Whether a module belongs to a library or an installed package, whose classes users can't edit."""
    return is_library(module) or "-packages" in (getattr(sys.modules.get(module), "__file__", None) or "")


def library_of(value: Any) -> str:
    """The module of a library's function or class that can be imported from there; empty for any other value.

    A user's function that a library wrapped is imported from the user's module. So is a class that a library created
    for the user, for example with `make_dataclass`.
    """
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):  # str.upper
        value = value.__objclass__
    path = import_path(value) if callable(value) else None
    return path[0] if path is not None and is_library(path[0]) and path[1] not in _DYNAMIC else ""


# Names that code reads and writes


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> tuple[tuple[tuple[str, str], ...], str]:
    """The globals that code reads, each with the attribute that follows; and how it reads more, if it does."""
    reads: dict[tuple[str, str], None] = {}
    more = ""
    for here, after in itertools.pairwise(dis.get_instructions(code)):
        if here.opname in _READS_GLOBAL:
            reads[here.argval, after.argval if after.opname in _READS_ATTRIBUTE else ""] = None
        if here.opname in _READS_GLOBAL | _READS_ATTRIBUTE and here.argval in _DYNAMIC:
            more = more or f"uses {here.argval}"
        if here.opname in _OPENS:
            more = more or f"{_OPENS[here.opname]} {here.argval}"
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            inner, inner_more = code_reads(nested)
            reads |= dict.fromkeys(inner)
            more = more or inner_more
    return tuple(reads), more


def reads_of(function: Any) -> Iterator[tuple[str, Any, str]]:
    """The globals that a function reads: the name, such as `settings.RATE`, the value, and its library's module."""
    for name, attribute in code_reads(function.__code__)[0]:
        yield _read(function, name, attribute)


def _read(function: Any, name: str, attribute: str) -> tuple[str, Any, str]:
    """A global that a function reads.

    The module is empty if the global is not constant: it is not Python's or a library's, or has a new name.
    """
    value = function.__globals__.get(name, MISSING)
    if value is MISSING:
        value = function.__builtins__.get(name, MISSING)
        is_constant = value is not MISSING and value is getattr(builtins, name, None)
        return name, value, "builtins" if is_constant else ""
    if not isinstance(value, types.ModuleType):
        return name, value, library_of(value) if getattr(value, "__name__", None) == name else ""
    library = value.__name__ if is_library(value.__name__) else ""
    if attribute not in vars(value):
        return name, value, library
    member = vars(value)[attribute]
    is_module = isinstance(member, types.ModuleType)
    is_constant = is_library(member.__name__) if is_module else callable(member) or type(member) in CONSTANTS
    return f"{name}.{attribute}", member, library if is_constant else ""


def is_safe(value: Any, module: str) -> bool:
    """Whether a value of a library reads no files or settings: by its package, or because it is a number or a ufunc."""
    package = module.partition(".")[0]
    if package in _SAFE or package.removeprefix("_") not in LIBRARIES | STANDARD:  # the latter has the mark
        return bool(package)
    home = library_of(value)  # flax.linen.relu is JAX's
    if home.partition(".")[0] not in {"", package}:
        return is_safe(value, home)
    is_scalar_type = isinstance(value, type) and issubclass(value, np.generic)
    return is_scalar_type or type(value) in CONSTANTS or isinstance(value, np.ufunc)


def may_read_files(value: Any) -> bool:
    """Whether a library's function that can be imported may read a file: `numpy.load`, `scipy.io.loadmat`."""
    package = str(attribute_of(value, "__module__")).partition(".")[0]
    return package in {"numpy", "scipy"} and not isinstance(value, np.ufunc)


def why_open(function: types.FunctionType) -> tuple[str, list[Any]]:
    """How a user's function can change, or an empty text if it is closed; and the globals that it reads.

    A closed function captures nothing, has no attributes, and reads only constant globals.
    """
    code, attributes = function.__code__, function.__dict__
    if attributes:
        return f"has the attribute {next(iter(attributes))}", []
    if code.co_freevars and code.co_freevars != ("__class__",):
        return f"captures {code.co_freevars[0]}", []
    reads, more = code_reads(code)
    if more:
        return more, []
    values: list[Any] = []
    for read in reads:  # faster than reads_of()
        name, value, module = _read(function, *read)
        if not is_safe(value, module):
            return f"reads the global {name}", []
        values.append(value)
    return "", values


# Code and captured variables


@functools.lru_cache(maxsize=4096)
def code_key(address: int, code: types.CodeType) -> Hashable:  # noqa: ARG001  Otherwise the cache would use `==`.
    """The exact key of a code object. Compiling the same text of the same file again yields an equal key.

    `==` of code ignores the file and the order of constant sets.
    """
    return (*_CODE(code), *map(_constant_key, code.co_consts))


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, types.CodeType):
        return code_key(id(value), value)
    if isinstance(value, tuple | frozenset):
        return (type(value), *map(_constant_key, value))
    return (type(value), repr(value))


def captured(function: types.FunctionType) -> dict[str, Any]:
    """The captured variables of a function by name, without those that are not bound yet.

    A library's function is what it was when it was first seen. If it assigns to a captured number itself, that is only
    to convert it, so 400 and 400.0 are the same number then:

        cosine = optax.cosine_decay_schedule(1e-3, 400)  # captured decay_steps=400
        cosine(0)  # assigns decay_steps = 400.0, but is the same schedule
    """
    variables: dict[str, Any] = {}
    names = function.__code__.co_freevars
    for index, cell in enumerate(function.__closure__ or ()):  # half the time of zip(strict=True)
        try:  # half the time of contextlib.suppress
            value = cell.cell_contents
        except ValueError:  # not bound yet
            continue
        name = names[index]
        if type(value) is float and value and value.is_integer() and is_library_function(function):
            value = int(value) if name in assigned_by(function.__code__) else value
        variables[name] = value
    return variables


@functools.lru_cache(maxsize=4096)
def assigned_by(code: types.CodeType) -> frozenset[str]:
    """The captured variables that the code assigns to."""
    stores = [each.argval for each in dis.get_instructions(code) if each.opname == "STORE_DEREF"]
    return frozenset(stores).intersection(code.co_freevars)


def jit_options(value: Any) -> tuple[Any, ...] | None:
    """The options of a jitted function; None for other values, or if this JAX version does not provide them."""
    options = options_of(value)
    if options is None or not vars(value).keys() <= {*JIT_ATTRIBUTES, *getattr(value.__wrapped__, "__dict__", ())}:
        return None
    return tuple(options.values())
