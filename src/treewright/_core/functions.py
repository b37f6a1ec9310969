"""Inspect functions: whose code they are, the globals, captured variables, defaults and attributes that they depend on.

A static function decides what a compiled program computes, and so does everything that it reads.
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
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

from treewright._core.jax_private import JIT_ATTRIBUTES, options_of

# Packages to whose modules and functions nothing is assigned, and whose factories capture what does not change. Another
# package joins by `__treewright_library__ = True` in its top module. docs/statics.md prints both lists.
LIBRARIES = frozenset(
    {
        *("jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "einops", "treewright"),
        *("optax", "chex", "flax", "equinox", "haiku", "jaxtyping", "lineax", "optimistix", "diffrax", "distrax"),
    }
)
# Modules of the standard library that hold no settings. `os`, `random` and others do.
STANDARD = frozenset(
    {
        *("abc", "bisect", "builtins", "cmath", "collections", "contextlib", "copy", "dataclasses", "enum"),
        *("fractions", "functools", "heapq", "itertools", "math", "numbers", "operator", "re", "reprlib"),
        *("statistics", "string", "types", "typing"),
    }
)
OWN_MARK = "__treewright_library__"
_RANDOM = "numpy.random"  # which holds a state
_STANDARD_FOLDER = os.__file__.removesuffix("os.py")

# Names by which code gets at what it does not name: variables, attributes, files, the settings of a library.
_DYNAMIC = frozenset(
    {
        *("__import__", "breakpoint", "compile", "eval", "exec", "getattr", "globals", "input", "locals", "open"),
        *("vars", "attrgetter", "methodcaller", "get_type_hints", "__getattribute__", "__dict__", "__closure__"),
        *("__builtins__", "__globals__", "f_back", "f_globals", "f_locals", "get_printoptions", "geterr"),
        *("fromfile", "genfromtxt", "load", "loadtxt", "memmap", "open_memmap"),
    }
)
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_OPENS = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL", "IMPORT_NAME"})
_CODE: Callable[[types.CodeType], tuple[Any, ...]] = operator.attrgetter(
    *("co_code", "co_exceptiontable", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_name"),
    *("co_qualname", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_flags", "co_stacksize"),
    *("co_filename", "co_firstlineno", "co_linetable"),
)
BY_EQUALITY = frozenset({str, int, bool, bytes, types.NoneType, types.EllipsisType})  # constants whose == is exact
CONSTANTS = BY_EQUALITY | {float, complex}
MISSING: Any = dataclasses.MISSING
C = TypeVar("C", bound=type[Any])


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
            kept = ThisObject if value is None else value  # a dead weak reference gives None
            self.reference = lambda: kept

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ThisObject) or self.address != other.address:
            return False
        value = self.reference()
        return value is not None and value is other.reference()

    def __hash__(self) -> int:
        return self.address


# Classes, instances, and the names of values


def class_attribute(cls: type[Any], name: str) -> Any:
    """What a class or the nearest of its bases holds under this name, without calling descriptors; None if nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def is_cached_property(cls: type[Any], name: str) -> bool:
    """Whether an instance may keep the value of a `cached_property` under this name."""
    return isinstance(getattr(cls, name, None), functools.cached_property)


def is_linen(cls: type[Any]) -> bool:
    """Whether a class is a Module of flax.linen, whose instances keep their own state in private attributes."""
    return any((base.__module__, base.__name__) == ("flax.linen.module", "Module") for base in cls.__mro__)


def of_python(cls: type[Any]) -> bool:
    """Whether a class is defined by Python or its standard library."""
    return str(cls.__module__).partition(".")[0] in sys.stdlib_module_names


def state_of(value: Any) -> dict[str, Any]:
    """The attributes that an instance itself has, in its `__dict__` and in slots, past what its class overrides."""
    found = dict(object.__getattribute__(value, "__dict__")) if type(value).__dictoffset__ else {}
    for base in type(value).__mro__:
        if base.__dict__.get("__slots__") and not of_python(base):
            for name, slot in vars(base).items():
                with contextlib.suppress(AttributeError):
                    if isinstance(slot, types.MemberDescriptorType):
                        found[name] = slot.__get__(value)
    return found


def public(module: str) -> Callable[[C], C]:
    """Let a class say that it is from a public module: users, pickles and checkpoints find it there."""

    def moved(cls: C) -> C:
        cls.__module__ = module
        setattr(cls, "__firstlineno__", None)  # noqa: B010  that module has no source of it: inspect says so
        return cls

    return moved


def found_at(module: str, name: str) -> Any:
    """What an imported module holds under a dotted name, without importing it; None if nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def import_path(value: Any) -> tuple[str, str] | None:
    """The module and the name under which this very object is found; None for what has no such name."""
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # noqa: BLE001  a property of a user's class
        return None
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:  # a lambda, or a local of a function
        return None
    return (module, name) if found_at(module, name) is value else None


def of_earlier_class(cls: type[Any]) -> str:
    """What to say of an instance whose class was made again under its name since; empty where it was not."""
    current = found_at(cls.__module__, cls.__qualname__)
    if not isinstance(current, type) or current is cls or current.__qualname__ != cls.__qualname__:
        return ""
    return (
        f" This {cls.__qualname__} is of an earlier class of that name: the class statement ran again since, as a cell "
        f"or a reloaded module does. Make the object anew."
    )


# Whose code


def is_library(module: object) -> bool:
    """Whether a module of this name belongs to a library, as the lists above and a package's own mark say."""
    name = str(module)
    package = name.partition(".")[0]
    found = sys.modules.get(package)
    if package in LIBRARIES:  # and no file of the user's that has the same name
        return hasattr(found, "__path__") and _RANDOM not in name
    if package.removeprefix("_") in STANDARD:  # _operator is the part of operator that is written in C
        origin = str(getattr(getattr(found, "__spec__", None), "origin", None))
        is_here = origin.startswith(_STANDARD_FOLDER) and "site-packages" not in origin
        return is_here or origin in {"built-in", "frozen"}
    return found is not None and vars(found).get(OWN_MARK) is True


def library_made(function: types.FunctionType) -> bool:
    """Whether the code of a function belongs to a library; `__module__` does not tell, since `wraps` copies it."""
    return is_library(function.__globals__.get("__name__"))


def library_object(value: Any) -> bool:
    """Whether a value is a library's own function or class, found in the library where its name says.

    A function of the user's that a library wrapped is found in the user's own module, and so is a class that a library
    made for the user, as `make_dataclass` does.
    """
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):  # str.upper
        value = value.__objclass__
    path = import_path(value) if callable(value) else None
    return path is not None and is_library(path[0]) and path[1] not in _DYNAMIC


# What code reads


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> tuple[tuple[tuple[str, str], ...], bool]:
    """The globals that code reads, each with the attribute that follows, and whether these are all that it gets at."""
    reads: dict[tuple[str, str], None] = {}
    is_all = True
    for here, after in itertools.pairwise(dis.get_instructions(code)):
        if here.opname in _READS_GLOBAL:
            reads[here.argval, after.argval if after.opname in _READS_ATTRIBUTE else ""] = None
        dynamic = here.opname in _READS_GLOBAL | _READS_ATTRIBUTE and here.argval in _DYNAMIC
        is_all = is_all and not dynamic and here.opname not in _OPENS
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            inner, are_all = code_reads(nested)
            reads |= dict.fromkeys(inner)
            is_all = is_all and are_all
    return tuple(reads), is_all


def reads_of(function: Any) -> Iterator[tuple[str, Any, bool]]:
    """The globals that a function reads: the name, `slope` or `settings.RATE`, the value now, and whether it stays.

    What stays is Python's or a library's own, under its own name.
    """
    for name, attribute in code_reads(function.__code__)[0]:
        value = function.__globals__.get(name, MISSING)
        if value is MISSING:
            value = function.__builtins__.get(name, MISSING)
            yield name, value, value is not MISSING and value is getattr(builtins, name, None)
        elif not isinstance(value, types.ModuleType):
            yield name, value, getattr(value, "__name__", None) == name and library_object(value)
        elif attribute in vars(value):
            found = vars(value)[attribute]
            is_module = isinstance(found, types.ModuleType)
            stays = is_library(found.__name__) if is_module else callable(found) or type(found) in CONSTANTS
            yield f"{name}.{attribute}", found, stays and is_library(value.__name__)
        else:
            yield name, value, is_library(value.__name__)


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """What a user's function reads by name that is neither a library's nor Python's own."""
    if library_made(function):
        return {}
    return {name: value for name, value, stays in reads_of(function) if not stays and value is not MISSING}


# What a function is made of


@functools.lru_cache(maxsize=4096)
def code_key(address: int, code: types.CodeType) -> Hashable:  # noqa: ARG001  without it the cache would go by `==`
    """The exact key of a code object: equal for code made by running the same text of the same file again.

    `==` of code leaves out the file and the order of constant sets.
    """
    return (*_CODE(code), *map(_constant_key, code.co_consts))


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, types.CodeType):
        return code_key(id(value), value)
    if isinstance(value, tuple | frozenset):
        return (type(value), *map(_constant_key, value))
    return (type(value), repr(value))


def captured(function: types.FunctionType) -> dict[str, Any]:
    """The captured variables of a function by name; those that are not bound yet are left out."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def bound_variables(function: types.FunctionType) -> dict[str, Any]:
    """The values that a function came with, by name: of captured variables, and the defaults of its parameters."""
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    last = zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False)  # there may be too many
    return captured(function) | dict(reversed(list(last))) | (function.__kwdefaults__ or {})


def innermost(function: Any) -> Any:
    """The function that a partial, a method or a wrapper calls in the end."""
    is_partial = isinstance(function, functools.partial)
    inner = function.func if is_partial else getattr(function, "__func__", getattr(function, "__wrapped__", None))
    return function if inner is None else innermost(inner)


def jit_options(value: Any) -> tuple[Any, ...] | None:
    """The options that `jit` was given; None for what it has not made, or where this JAX does not tell them."""
    options = options_of(value)
    if options is None or not vars(value).keys() <= {*JIT_ATTRIBUTES, *getattr(value.__wrapped__, "__dict__", ())}:
        return None
    return tuple(options.values())
