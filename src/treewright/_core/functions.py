"""Inspect functions: whose code they are, the globals, captured variables, defaults and attributes that they depend on.

A static function decides what a compiled program computes, and so does everything that it reads.
"""

import builtins
import contextlib
import dataclasses
import dis
import functools
import os
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from treewright._core.jax_private import JIT_ATTRIBUTES, options_of

# Packages to whose modules and functions nothing is assigned, and whose factories capture what does not change. Another
# package joins by `__treewright_library__ = True` in its top module. docs/statics.md prints both lists.
LIBRARIES = frozenset(
    {
        *("jax", "jaxlib", "numpy", "scipy", "ml_dtypes", "opt_einsum", "einops"),
        *("optax", "chex", "flax", "equinox", "haiku", "jaxtyping", "lineax", "optimistix", "diffrax", "distrax"),
        *("treewright", "typing_extensions"),
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
_RANDOM = "numpy.random"  # which holds a state
_SINGLE_FILES = frozenset({"typing_extensions"})
OWN_MARK = "__treewright_library__"
_BUILT_IN_MODULES = frozenset({"built-in", "frozen"})
_STANDARD_FOLDER = os.__file__.removesuffix("os.py")

# Names by which code gets at what it does not name: variables, attributes, files, the settings of a library.
_DYNAMIC = frozenset(
    {
        *("__import__", "breakpoint", "compile", "eval", "exec", "getattr", "globals", "input", "locals", "open"),
        *("vars", "attrgetter", "methodcaller", "get_type_hints"),
        *("fromfile", "genfromtxt", "get_printoptions", "geterr", "load", "loadtxt", "memmap", "open_memmap"),
    }
)
_ESCAPES = frozenset(
    {"__builtins__", "__closure__", "__dict__", "__getattribute__", "__globals__", "f_back", "f_globals", "f_locals"}
)
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_WRITES_GLOBAL = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
BY_EQUALITY = frozenset({str, int, bool, bytes, types.NoneType, types.EllipsisType})  # constants whose == is exact
CONSTANTS = BY_EQUALITY | {float, complex}
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by code, and not compiled in
_NOT_OPTIONS = frozenset({"fun_sourceinfo", "fun_signature"})
MISSING: Any = dataclasses.MISSING
C = TypeVar("C", bound=type[Any])


class OpenError(Exception):
    """A function depends on something that can change without it; with the reason in words."""


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


# Classes, and the names of values


def class_attribute(cls: type[Any], name: str) -> Any:
    """What a class or the nearest of its bases holds under this name, without calling descriptors; None if nothing."""
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def is_cached_property(cls: type[Any], name: str) -> bool:
    """Whether an instance may keep the value of a `cached_property` under this name."""
    return isinstance(getattr(cls, name, None), functools.cached_property)


def found_at(module: str, name: str) -> Any:
    """What an imported module holds under a dotted name, without importing it; None if nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def of_earlier_class(cls: type[Any]) -> str:
    """What to say of an instance whose class was made again under its name since; empty where it was not."""
    current = found_at(cls.__module__, cls.__qualname__)
    if not isinstance(current, type) or current is cls or current.__qualname__ != cls.__qualname__:
        return ""
    return (
        f" This {cls.__qualname__} is of an earlier class of that name: the class statement ran again since, as a cell "
        f"or a reloaded module does. Make the object anew."
    )


def public(module: str) -> Callable[[C], C]:
    """Let a class say that it is from a public module: users, pickles and checkpoints find it there."""

    def moved(cls: C) -> C:
        cls.__module__ = module
        setattr(cls, "__firstlineno__", None)  # noqa: B010  that module has no source of it: inspect says so
        return cls

    return moved


def import_path(value: Any) -> tuple[str, str] | None:
    """The module and the name under which this very object is found; None for what has no such name."""
    try:
        module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    except Exception:  # noqa: BLE001  a property of a user's class
        return None
    if not isinstance(module, str) or not isinstance(name, str) or "<" in name:  # a lambda, or a local of a function
        return None
    return (module, name) if found_at(module, name) is value else None


# Whose code


def is_library(module: object) -> bool:
    """Whether a module of this name belongs to a library, as the lists above and a package's own mark say."""
    if not isinstance(module, str):
        return False
    package = module.partition(".")[0]
    found = sys.modules.get(package)
    if package in LIBRARIES:  # and no file of the user's that has the same name
        return (package in _SINGLE_FILES or hasattr(found, "__path__")) and not module.startswith(_RANDOM)
    if package.removeprefix("_") in STANDARD:  # _operator is the part of operator that is written in C
        origin = str(getattr(getattr(found, "__spec__", None), "origin", None))
        return origin in _BUILT_IN_MODULES or (origin.startswith(_STANDARD_FOLDER) and "site-packages" not in origin)
    return found is not None and vars(found).get(OWN_MARK) is True


def library_made(function: types.FunctionType) -> bool:
    """Whether the code of a function belongs to a library; `__module__` does not tell, since `wraps` copies it."""
    return is_library(function.__globals__.get("__name__"))


def library_class(kind: type[Any]) -> bool:
    """Whether a class is defined by a library: in C, or found where its name says.

    A class that a library's function makes for the user, as `make_dataclass` does, may name the library as its module.
    """
    return is_library(kind.__module__) and (not kind.__flags__ & _HEAP_TYPE or import_path(kind) is not None)


def of_python(kind: type[Any]) -> bool:
    """Whether a class is defined by Python or its standard library, with settings or without."""
    return str(kind.__module__).partition(".")[0] in sys.stdlib_module_names


def library_object(value: Any) -> bool:
    """Whether a value is a library's own function or class, found in the library where its name says.

    A function of the user's that a library wrapped is found in the user's own module.
    """
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):  # str.upper
        return library_class(value.__objclass__)
    if isinstance(value, types.BuiltinFunctionType):
        own = value.__self__ is None or isinstance(value.__self__, types.ModuleType)
        return own and is_library(value.__module__) and value.__name__ not in _DYNAMIC
    if not callable(value) or (isinstance(value, types.FunctionType) and not library_made(value)):
        return False
    path = import_path(value)
    return path is not None and is_library(path[0]) and path[1] not in _DYNAMIC


# What code reads


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """The globals that code reads, each with the attribute that follows, and why these may not be all."""
    reads: dict[tuple[str, str], None] = {}
    problem = None
    instructions = list(dis.get_instructions(code))
    for instruction, following in zip(instructions, [*instructions[1:], None], strict=True):
        operation, name = instruction.opname, instruction.argval
        if operation in _READS_GLOBAL:
            attribute = following.argval if following and following.opname in _READS_ATTRIBUTE else ""
            reads[name, attribute] = None
        elif operation in _WRITES_GLOBAL:
            problem = problem or f"it assigns the global {name}"
        elif operation == "IMPORT_NAME":
            problem = problem or f"it imports {name or 'from its package'}"
        elif operation in _READS_ATTRIBUTE and name in _ESCAPES:
            problem = problem or f"it reads {name}"
        if name in _DYNAMIC and operation in _READS_GLOBAL | _READS_ATTRIBUTE:
            problem = problem or f"it calls {name}()"
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            inner, why = code_reads(nested)
            reads |= dict.fromkeys(inner)
            problem = problem or why
    return tuple(reads), problem


class Read(NamedTuple):
    """A global that a function reads, or an attribute of a module that is one."""

    name: str  # `slope`, `settings.RATE`
    value: Any  # `MISSING` for nothing
    is_closed: bool  # whether it is Python's or a library's own, under its own name


def reads_of(function: Any) -> Iterator[Read]:
    """The globals that a function reads, with what they are now."""
    for name, attribute in code_reads(function.__code__)[0]:
        value = function.__globals__.get(name, MISSING)
        if value is MISSING:
            value = function.__builtins__.get(name, MISSING)
            yield Read(name, value, value is not MISSING and value is getattr(builtins, name, None))
        elif not isinstance(value, types.ModuleType):
            yield Read(name, value, library_object(value) and getattr(value, "__name__", None) == name)
        elif attribute in vars(value):
            found = vars(value)[attribute]
            home = found.__name__ if isinstance(found, types.ModuleType) else value.__name__
            fixed = callable(found) or type(found) in CONSTANTS or isinstance(found, types.ModuleType)
            yield Read(f"{name}.{attribute}", found, fixed and is_library(value.__name__) and is_library(home))
        else:
            yield Read(name, value, is_library(value.__name__))


def closed_reads(function: types.FunctionType) -> tuple[Any, ...]:
    """What a function reads by name, if all of that stays what it is.

    Raises:
        OpenError: If it reads a global of the user's, or may read something that it does not name.
    """
    reads, problem = list(reads_of(function)), code_reads(function.__code__)[1]
    opened = next((read.name for read in reads if not read.is_closed), None)
    if problem is not None or opened is not None:
        raise OpenError(problem or f"it reads the global {opened}")
    return tuple([read.value for read in reads])


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """What a user's function reads by name that is neither a library's nor Python's own."""
    if library_made(function):
        return {}
    return {read.name: read.value for read in reads_of(function) if not read.is_closed and read.value is not MISSING}


# What a function is made of


@functools.lru_cache(maxsize=4096)
def code_key(address: int, code: types.CodeType) -> Hashable:  # noqa: ARG001  without it the cache would go by `==`
    """The exact key of a code object: equal for code made by running the same text of the same file again.

    `==` of code leaves out the file and the order of constant sets.
    """
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_name, code.co_qualname)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags, code.co_stacksize)
    place = (code.co_filename, code.co_firstlineno, code.co_linetable)
    return (code.co_code, code.co_exceptiontable, names, counts, place, _constant_key(code.co_consts))


def _constant_key(value: Any) -> Hashable:
    if isinstance(value, types.CodeType):
        return code_key(id(value), value)
    if isinstance(value, tuple | frozenset):
        return (type(value), *map(_constant_key, value))
    return (type(value), value if type(value) in BY_EQUALITY else repr(value))


def contents(function: types.FunctionType) -> tuple[Any, ...]:
    """The values of the captured variables; `MISSING` before they are bound."""
    cells = function.__closure__ or ()
    try:
        return tuple([cell.cell_contents for cell in cells])
    except ValueError:  # one is not bound yet
        return tuple(map(_content_of, cells))


def _content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def captured(function: types.FunctionType) -> dict[str, Any]:
    """The captured variables of a function by name; those that are not bound yet are left out."""
    pairs = zip(function.__code__.co_freevars, contents(function), strict=True)
    return {name: value for name, value in pairs if value is not MISSING}


def defaults(function: types.FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters by name, those of keyword-only ones too."""
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    last = zip(reversed(positional), reversed(function.__defaults__ or ()), strict=False)  # there may be too many
    return dict(reversed(list(last))) | (function.__kwdefaults__ or {})


def innermost(function: Any) -> Any:
    """The function that a partial, a method or a wrapper calls in the end."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__func__"):
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        else:
            return function


def jit_options(value: Any) -> tuple[Any, ...] | None:
    """The options that `jit` was given; None for what it has not made, or where this JAX does not tell them."""
    options = options_of(value)
    wrapped: Any = getattr(value, "__wrapped__", None)
    if options is None or wrapped is None:
        return None
    if not value.__dict__.keys() <= {*JIT_ATTRIBUTES, *getattr(wrapped, "__dict__", ())}:
        return None
    return tuple(item for name, item in options.items() if name not in _NOT_OPTIONS)


# Classes and their instances


def is_linen(cls: type[Any]) -> bool:
    """Whether a class is a Module of flax.linen, whose instances keep their own state in private attributes."""
    return any((base.__module__, base.__name__) == ("flax.linen.module", "Module") for base in cls.__mro__)


def state_of(value: Any) -> dict[str, Any]:
    """The attributes that an instance itself has, in its `__dict__` and in slots, past what its class overrides."""
    try:
        found = dict(object.__getattribute__(value, "__dict__"))
    except AttributeError:
        found = {}
    for base in type(value).__mro__:
        if vars(base).get("__slots__") and not of_python(base):
            slots = [(name, slot) for name, slot in vars(base).items() if isinstance(slot, types.MemberDescriptorType)]
            for name, slot in slots:
                with contextlib.suppress(AttributeError):
                    found[name] = slot.__get__(value)
    return found
