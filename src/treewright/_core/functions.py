"""What a function can get at: the one reader of code objects, globals, cells, defaults and attributes.

A static function decides what a compiled program computes, and so does all that it reads. Keys, hazards, explanations
and snapshots ask here what that is, and whose code it is: a library's, or the user's own.
"""

import builtins
import contextlib
import dataclasses
import dis
import enum
import functools
import itertools
import operator
import os
import sys
import types
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, TypeVar, cast

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
_SINGLE_FILES = frozenset({"typing_extensions"})
OWN_MARK = "__treewright_library__"

# Built-in functions that reach whatever they are asked for.
_DYNAMIC = frozenset(
    {"__import__", "breakpoint", "compile", "eval", "exec", "globals", "input", "locals", "open", "vars"}
)
_BUILT_IN_MODULES = frozenset({"built-in", "frozen"})
_STANDARD_FOLDER = os.__file__.removesuffix("os.py")
# Attributes by which code gets at everything, and functions of libraries that read files or settings.
_ESCAPES = frozenset({"__builtins__", "__closure__", "__dict__", "__globals__", "f_back", "f_globals", "f_locals"})
_OF_THE_WORLD = frozenset(
    {"fromfile", "genfromtxt", "get_printoptions", "geterr", "load", "loadtxt", "memmap", "open_memmap"}
)
_READS_GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
_NAMES_SOMETHING = types.MappingProxyType(
    {"STORE_GLOBAL": "writes", "DELETE_GLOBAL": "writes", "IMPORT_NAME": "imports"}
)
_READS_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
CONSTANTS = frozenset({str, int, float, complex, bool, bytes, types.NoneType, types.EllipsisType})
# What Python, dataclasses, enum, typing and abc put into a class.
_LEFT_OUT = frozenset(
    {
        *("__module__", "__qualname__", "__doc__", "__dict__", "__weakref__", "__slots__", "__annotations__"),
        *("__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
        *("__slotnames__", "__firstlineno__", "__static_attributes__", "__type_params__", "__orig_bases__"),
        *("__parameters__", "__match_args__", "__dataclass_fields__", "__dataclass_params__"),
        *("__abstractmethods__", "_abc_impl", "__node_spec__", "__node_fields__", "__node_registered__"),
        *("__node_exported__", "__node_statics__", "__before_node__"),
        *("_fields", "_field_defaults", "_make", "_generate_next_value_", "_new_member_", "_use_args_"),
        *("_member_names_", "_member_map_", "_value2member_map_", "_unhashable_values_", "_unhashable_values_map_"),
        *("_member_type_", "_value_repr_", "_hashable_values_", "_boundary_", "_flag_mask_", "_singles_mask_"),
        *("_all_bits_", "_inverted_", "_is_protocol", "_is_runtime_protocol", "__protocol_attrs__"),
        *("_compact_name_scope_methods", "_state", "_parent_ref", "scope"),  # of flax
    }
)
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class was made by code, and not compiled in
_OURS = "<treewright: "  # the file name of what Treewright writes
_GENERATED = "__create_fn__."  # the qualified name of what `dataclasses` writes
_MADE_OF = operator.attrgetter("__code__", "__defaults__", "__name__", "__qualname__", "__module__", "__doc__")
_NOT_OPTIONS = frozenset({"fun_sourceinfo", "fun_signature"})
MISSING: Any = dataclasses.MISSING
F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C", bound=type[Any])
UNBOUND: Any = object()


# Classes, and the names of values


def class_of(value: object) -> type[Any]:
    """`type(value)`, of which any attribute may be read: to pyright, `type` of an `Any` is `type[Unknown]`."""
    return type(value)


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


def kept_in_pickles(function: F) -> F:
    """Let pickles name a function by `treewright._pickled`, which lists it and never moves."""
    function.__module__ = "treewright._pickled"
    return function


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


def home_of(function: types.FunctionType) -> types.ModuleType | None:
    """The module whose globals a function reads; None if it is not imported."""
    return sys.modules.get(function.__globals__.get("__name__", ""))


def is_library(module: object) -> bool:
    """Whether a module of this name belongs to a library, as the lists above and a package's own mark say."""
    if not isinstance(module, str):
        return False
    package = module.partition(".")[0]
    found = sys.modules.get(package)
    if package in LIBRARIES:  # and no file of the user's that has the same name
        return package in _SINGLE_FILES or hasattr(found, "__path__")
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
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names


def library_object(value: Any) -> bool:
    """Whether a value is a library's own function or class, found in the library where its name says.

    A function of the user's that a library wrapped is found in the user's own module.
    """
    if isinstance(value, np.ufunc):
        return getattr(np, value.__name__, None) is value
    if isinstance(value, types.BuiltinFunctionType):
        home = value.__self__
        if home is not None and not isinstance(home, types.ModuleType):
            return False
        return is_library(value.__module__) and value.__name__ not in _DYNAMIC | _OF_THE_WORLD
    if not callable(value) or (isinstance(value, types.FunctionType) and not library_made(value)):
        return False
    path = import_path(value)
    return path is not None and is_library(path[0]) and path[1] not in _OF_THE_WORLD


# What code reads


class CodeReads(NamedTuple):
    """What a code object and all code nested in it read by name, as it stands in the text."""

    chains: tuple[tuple[str, ...], ...]
    imports: tuple[str, ...]
    writes: tuple[str, ...]
    escapes: tuple[str, ...]


@functools.lru_cache(maxsize=4096)
def code_reads(code: types.CodeType) -> CodeReads:
    """The globals that code reads, each with the attributes that follow it: `("settings", "RATE")`."""
    reads: dict[str, dict[Any, None]] = {kind: {} for kind in CodeReads._fields}
    chain: list[str] | None = None
    for instruction in dis.get_instructions(code):  # which leaves out what the interpreter keeps between them
        name, argument = instruction.opname, instruction.argval
        reads_attribute = name in _READS_ATTRIBUTE
        kind = "escapes" if reads_attribute and argument in _ESCAPES else _NAMES_SOMETHING.get(name)
        if kind is not None:
            reads[kind][argument] = None
        if chain is not None and reads_attribute:
            chain.append(argument)
            continue
        if chain is not None:
            reads["chains"][tuple(chain)] = None
        chain = [argument] if name in _READS_GLOBAL else None
    for nested in code.co_consts:
        if isinstance(nested, types.CodeType):
            for known, more in zip(reads.values(), code_reads(nested), strict=True):
                known.update(dict.fromkeys(more))
    return CodeReads(*map(tuple, reads.values()))


class Read(NamedTuple):
    """A global that a function reads, followed through modules as far as they go."""

    name: str  # as the code has it: `slope`, `settings.RATE`
    value: Any  # what stands there now; `MISSING` for nothing
    # Each namespace that was asked, with the name and what it gave: while these hold, the value does.
    bindings: tuple[tuple[Mapping[str, Any], str, Any], ...]
    built_in: bool


def _followed(function: types.FunctionType, chain: tuple[str, ...]) -> Read:
    namespace: Mapping[str, Any] = function.__globals__
    first = namespace.get(chain[0], MISSING)
    bindings: list[tuple[Mapping[str, Any], str, Any]] = [(namespace, chain[0], first)]
    built_in = first is MISSING
    if built_in:
        namespace = cast("Any", function).__builtins__
        first = namespace.get(chain[0], MISSING)
        bindings.append((namespace, chain[0], first))
    value, length = first, 1
    while isinstance(value, types.ModuleType) and length < len(chain) and chain[length] in vars(value):
        namespace, name = vars(value), chain[length]
        value = namespace[name]
        bindings.append((namespace, name, value))
        length += 1
    return Read(".".join(chain[:length]), value, tuple(bindings), built_in)


def stays(read: Read) -> bool:
    """Whether what is read is a library's or Python's own: it stays what it is while its name is bound to it."""
    value = read.value
    if read.built_in:
        name = read.bindings[-1][1]
        return value is getattr(builtins, name, MISSING) and value is not MISSING and name not in _DYNAMIC
    if library_object(value):
        return True
    namespaces = [namespace for namespace, _, _ in read.bindings]
    if len(namespaces) == 1 or not is_library(namespaces[-1].get("__name__")):
        return False
    # An attribute of a library's module: a constant such as jnp.pi, a class such as jax.Array that does not tell its
    # name, or a callable that does not.
    if class_of(value) in CONSTANTS or (isinstance(value, type) and is_library(value.__module__)):
        return True
    told = isinstance(value, types.FunctionType | types.BuiltinFunctionType | types.MethodType | type)
    return callable(value) and not told and library_class(class_of(value)) and wrapped_by(value) is None


def reads_and_problem(function: types.FunctionType) -> tuple[tuple[Read, ...], str | None]:
    """The globals that a function reads, and the first thing among them that can change, in words."""
    found = code_reads(function.__code__)
    followed = tuple(_followed(function, chain) for chain in found.chains) if found.chains else ()
    if found.writes or found.imports or found.escapes:
        told = (("assigns the global", found.writes), ("imports", found.imports), ("reads", found.escapes))
        verb, names = next(item for item in told if item[1])
        return followed, f"it {verb} {names[0] or 'from its package'}"
    for read in followed:
        if not stays(read):
            dynamic = getattr(read.value, "__name__", None) in _DYNAMIC
            return followed, f"it calls {read.name}()" if dynamic else f"it reads the global {read.name}"
    return followed, None


# What a function is made of


def code_of(value: Any) -> types.CodeType | None:
    """The code of a Python function; None for anything else."""
    return value.__code__ if isinstance(value, types.FunctionType) else None


def file_of(code: types.CodeType) -> str:
    return code.co_filename


def name_of(code: types.CodeType) -> str:
    return code.co_qualname


def place_of(function: types.FunctionType | types.CodeType) -> str:
    """`train.py:12`, where a function is defined."""
    code = function if isinstance(function, types.CodeType) else function.__code__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"


def source_of(function: types.FunctionType) -> tuple[types.CodeType, str, int]:
    """The code of a function, its file, since code of the same text and line is equal in all files, and its globals."""
    return function.__code__, function.__code__.co_filename, id(function.__globals__)


def program_of(function: types.FunctionType | types.CodeType) -> tuple[str, tuple[Any, ...]]:
    """What code does, as text that is the same in each process, and its constants, among which is nested code."""
    code = function if isinstance(function, types.CodeType) else function.__code__
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames}", code.co_consts


def made_of(function: types.FunctionType) -> tuple[Any, ...]:
    """All that can be assigned to a function, and what its defaults by keyword and its attributes are."""
    return (*_MADE_OF(function), *(function.__kwdefaults__ or {}).values(), *vars(function).values())


def required_arguments(function: types.FunctionType) -> int:
    return function.__code__.co_argcount - len(function.__defaults__ or ())


def free_names(function: types.FunctionType) -> tuple[str, ...]:
    return function.__code__.co_freevars


def contents(function: types.FunctionType) -> tuple[Any, ...]:
    """What the captured variables of a function hold, in the order of `free_names`; `UNBOUND` before they are bound."""
    cells = function.__closure__ or ()
    try:
        return tuple([cell.cell_contents for cell in cells])
    except ValueError:  # one is not bound yet
        return tuple(map(_content_of, cells))


def _content_of(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return UNBOUND


def captured(function: types.FunctionType) -> dict[str, Any]:
    """The captured variables of a function by name; those that are not bound yet are left out."""
    pairs = zip(free_names(function), contents(function), strict=True)
    return {name: value for name, value in pairs if value is not UNBOUND}


def given_defaults(function: types.FunctionType) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """The defaults of a function's positional parameters, and those of its keyword-only ones by name."""
    return function.__defaults__, function.__kwdefaults__


def defaults(function: types.FunctionType) -> dict[str, Any]:
    """The defaults of a function's parameters by name, those of keyword-only ones too."""
    given, named = given_defaults(function)
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    last = zip(reversed(positional), reversed(given or ()), strict=False)  # somebody may have assigned too many
    return dict(reversed(list(last))) | (named or {})


def held_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function holds: its captured variables and its defaults."""
    return captured(function) | defaults(function)


def read_by(function: types.FunctionType) -> dict[str, Any]:
    """What a function of the user's reads by name that is neither a library's nor Python's own."""
    if library_made(function):
        return {}
    return {
        read.name: read.value
        for read in reads_and_problem(function)[0]
        if not stays(read) and read.value is not MISSING
    }


def wrapped_by(value: Any) -> Any:
    """What `jit`, `functools.wraps` or another wrapper made this callable of; None for anything else."""
    return None if isinstance(value, type) else getattr(value, "__wrapped__", None)


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


def innermost_code(function: Any) -> types.CodeType | None:
    """The code of the function that a partial, a method or a wrapper calls in the end; None if that has none."""
    return getattr(innermost(function), "__code__", None)


def jit_options(value: Any) -> Hashable | None:
    """The options that `jit` was given; None for what it has not made, or where this JAX does not tell them."""
    options = options_of(value)
    if options is None:
        return None
    wrapped: Any = getattr(value, "__wrapped__", None)
    if wrapped is None or not value.__dict__.keys() <= {*JIT_ATTRIBUTES, *getattr(wrapped, "__dict__", ())}:
        return None
    return tuple(item for name, item in options.items() if name not in _NOT_OPTIONS)


# What the instances of a class can do


def written_in(kind: type[Any]) -> Iterator[tuple[type[Any], str, Any]]:
    """What the user wrote into a class and its bases, for instances to call or to read: the base, the name, the value.

    Left out are the members of an enum, and what `dataclasses` and other libraries put there.
    """
    for base in kind.__mro__:
        if library_class(base):
            continue
        for name, value in vars(base).items():
            if name not in _LEFT_OUT and not isinstance(value, kind) and functions_of(value) != ():
                yield base, name, value


def functions_of(value: Any) -> tuple[types.FunctionType, ...] | None:
    """The user's functions behind a method, property or the like; None for anything else, and what is not known."""
    parts: tuple[Any, ...]
    if isinstance(value, types.BuiltinFunctionType | _SLOTS) or _is_view(class_of(value)):
        return ()
    if isinstance(value, types.FunctionType):
        code = value.__code__
        if code.co_qualname.startswith(_GENERATED) or code.co_filename.startswith(_OURS) or _of_namedtuple(value):
            return ()
        if not library_made(value):
            return (value,)
        held = [wrapped_by(value), *captured(value).values()]
        parts = tuple(p for p in held if callable(p) and not isinstance(p, type) and not library_object(p))
    elif isinstance(value, property | enum.property):
        parts = tuple(part for part in (value.fget, value.fset, value.fdel) if part is not None)
    elif isinstance(value, staticmethod | classmethod):
        parts = (cast("Any", value).__func__,)
    elif isinstance(value, functools.cached_property):
        parts = (value.func,)
    elif class_of(value).__name__ in _WRAPPERS and library_class(class_of(value)):
        parts = (wrapped_by(value),)
    else:
        return None
    found = tuple(map(functions_of, parts))
    known = tuple(functions for functions in found if functions is not None)
    return tuple(itertools.chain.from_iterable(known)) if len(known) == len(found) else None


_VIEWS = frozenset({"ChildView", "ParentDescriptor", "StaticView", "WatchedStaticView", "_tuplegetter"})
_WRAPPERS = frozenset({"ModuleMethod", "PjitFunction", "_lru_cache_wrapper"})
_SLOTS = (
    types.MemberDescriptorType | types.GetSetDescriptorType | types.WrapperDescriptorType | types.MethodDescriptorType
)


def _is_view(kind: type[Any]) -> bool:
    """Whether it reads a field: ours, those of flax, those of named tuples."""
    return kind.__name__ in _VIEWS and (kind.__module__ == "_collections" or is_library(kind.__module__))


def _of_namedtuple(function: types.FunctionType) -> bool:
    names = function.__globals__
    return str(names.get("__name__", "")).startswith("namedtuple_") and names.get("__builtins__") == {}


def equality_of(kind: type[Any]) -> Literal["generated", "library"] | None:
    """Who wrote the `==` of a dataclass: `dataclasses` for its very fields, a library for a base; None for others."""
    owner = next(base for base in kind.__mro__ if "__eq__" in vars(base))
    code, fields = code_of(vars(owner)["__eq__"]), vars(owner).get("__dataclass_fields__")
    generated = code is not None and code.co_qualname.startswith(_GENERATED)
    if generated and fields is getattr(kind, "__dataclass_fields__"):  # noqa: B009
        return "generated"
    # Such as `equinox.Module`, whose `==` looks at all fields.
    return "library" if owner is not kind and dataclasses.is_dataclass(owner) and library_class(owner) else None


def state_of(value: Any, *, of_users: bool = False) -> dict[str, Any]:
    """The attributes that an instance itself has, in its `__dict__` and in slots; if asked, those of a user's alone."""
    found: dict[str, Any] = dict(getattr(value, "__dict__", {}))
    for base in class_of(value).__mro__:
        if of_users and of_python(base):
            continue
        slots = vars(base).get("__slots__", ())
        for name in {slots} if isinstance(slots, str) else {*slots} - {"__dict__", "__weakref__"}:
            with contextlib.suppress(AttributeError):
                found[name] = getattr(value, name)
    return found
