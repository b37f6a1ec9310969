"""Static values as JSON: exact forms that can be read back, and descriptions with digests of what can't.

A form is a plain scalar, or a list of the name of a kind and its parts, each of which is a form:
`["tuple", 1, ["complex", 0.5, 2.0]]`. The kinds are those of the one table in `treewright._core.kinds`. Classes and
functions are written by name, `["name", "module:qualname"]`. Equal values have equal forms, whatever the order of a
set.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core import functions as inspected
from treewright._core.fields import spec_of
from treewright._core.freeze import FrozenArray, FrozenMapping
from treewright._core.functions import found_at, import_path, is_cached_property, state_of
from treewright._core.instance import flat_form, from_flat_form
from treewright._core.jax_private import numbers_of
from treewright._core.kinds import FAMILIES, KINDS, Kind, kind_of
from treewright._core.text import cut_text, shape_text, text
from treewright.errors import StaticSerializationError

Form = Any  # str, int, float, bool, None, or a list of a kind's name and its parts
_PLAIN = frozenset({str, int, bool, float, types.NoneType})
_LARGEST_INT = 2**2000  # Python reads and writes no more digits for sure
_KEPT = 120  # characters of a description, so that its digest stands beside it in a message
_SHORT = 100  # characters of a text that a description repeats
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")
_LEFT_OUT = frozenset({"__wrapped__", "__doc__", "__annotations__", "__type_params__", "_fun", "_jit_info"})


# Kinds besides those of the table: nodes, and what only other libraries hold beside their leaves


def _node_parts(node: Any) -> tuple[Any, ...]:
    children, statics = flat_form(node)
    return (type(node), tuple(zip(statics.names, statics.values, strict=True)), *children)


def _make_node(cls: Any, statics: tuple[tuple[str, Any], ...], *children: Any) -> Any:
    spec, values = spec_of(cls), dict(statics)
    if {*values} != {*spec.table.names} or len(children) != len(spec.children):
        raise ValueError(f"{cls.__qualname__} has other fields now")
    return from_flat_form(cls, (children, spec.table.intern(tuple(values[name] for name in spec.table.names))))


_NODE = Kind("node", _node_parts, _make_node)
_OF_OTHERS: Mapping[type[Any], Kind] = types.MappingProxyType(
    {
        list: Kind("list", list, lambda *items: list(items)),
        dict: Kind("dict", dict.items, lambda *items: dict(items)),
        set: Kind("set", set, lambda *items: set(items)),
    }
)
_FROZEN = (FrozenMapping._kind_, FrozenArray._kind_)
_MAKERS: Mapping[str, Callable[..., Any]] = types.MappingProxyType(
    {kind.name: kind.make for kind in (*KINDS.values(), *FAMILIES, *_OF_OTHERS.values(), *_FROZEN, _NODE)}
)
_OF_CLASS = types.MappingProxyType(  # whose first part is a class
    {"enum": "an enum", "namedtuple": "a named tuple", "dataclass": "a frozen dataclass", "node": "a node"}
)


def _kind_of(cls: type[Any]) -> Kind | None:
    return _NODE if hasattr(cls, "__node_spec__") else kind_of(cls) or _OF_OTHERS.get(cls)


# Writing


def encode(value: Any, *, describe: bool = False) -> Form:
    """The form of a static value.

    Args:
        value: The value.
        describe: Whether to describe what has no exact form: `["described", text, digest]`.

    Raises:
        StaticSerializationError: If a part has no exact form, unless it is described.
    """
    cls = type(value)
    is_plain = math.isfinite(value) if cls is float else cls is not int or abs(value) < _LARGEST_INT
    if cls in _PLAIN and is_plain:
        return value
    kind = _kind_of(cls)
    parts = None if kind is None or (kind.name in _OF_CLASS and import_path(cls) is None) else kind.parts(value)
    if kind is not None and parts is not None:
        forms = [encode(part, describe=describe) for part in parts]
        return [kind.name, *(sorted(forms, key=json.dumps) if isinstance(value, set | frozenset) else forms)]
    path = import_path(value)
    if path is not None:
        return ["name", ":".join(path)]
    if describe:
        return described(value)
    raise StaticSerializationError(
        f"{value!r} can't be named in an exported program: it is not an importable function, class, enum, "
        f"simple dtype, number, string, tuple, frozen dataclass or node. Define it at the top level of a module."
    )


# Describing


def described(value: Any) -> Form:
    """`["described", text, digest]`: a bounded text for messages, and a digest of all that the value holds.

    Two values have one digest if they are made of the same code and hold the same values: arrays, captured variables
    and attributes included, in any process.
    """
    whole = portable_text(value)
    return ["described", cut_text(whole, _KEPT), _digest(whole, 64)]


def portable_text(value: Any) -> str:
    """The whole description as text, which is the same in another process for a value that does the same."""
    return _Description().of(value)


def modules_in(value: Any) -> set[str]:
    """The modules of the functions and classes in a value."""
    description = _Description()
    description.of(value)
    return description.modules


class _Description:
    """One walk through a value: code is described by a digest, arrays by one, objects by their attributes.

    What occurs again is described by the digest of its text.
    """

    def __init__(self, *inside: int) -> None:
        self.inside = inside
        self.modules: set[str] = set()
        self.texts: dict[int, tuple[Any, str]] = {}  # by id; the value is kept, and so its id
        self.written: set[str] = set()

    def of(self, value: Any) -> str:
        """The text of a value, or of one inside it."""
        if type(value) in _PLAIN:
            return repr(value)
        if callable(value) and import_path(value) is not None:
            return self.name(value)
        if id(value) in self.inside:
            return f"<within {len(self.inside) - self.inside.index(id(value))}>"
        if id(value) not in self.texts:
            before, self.inside = self.inside, (*self.inside, id(value))
            self.texts[id(value)] = value, self.opened(value)
            self.inside = before
        whole = self.texts[id(value)][1]
        digest = _digest(whole)
        if len(whole) > _SHORT and digest in self.written:
            return f"#{digest}"
        self.written.add(digest)
        return whole

    def opened(self, value: Any) -> str:
        """What a value is called, and what it holds."""
        cls = type(value)
        if isinstance(value, np.ndarray | jax.Array):
            return f"{shape_text(value.dtype, value.shape)}{_array_digest(value)}"
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, type):
            return self.name(value)
        if isinstance(value, Mapping) and not hasattr(cls, "__node_spec__"):
            items = ", ".join([f"{self.of(name)}: {self.of(part)}" for name, part in value.items()])
            # A dict keeps its items outside of its attributes; other mappings, ours among them, keep them there.
            named = _attributes(value) if isinstance(value, dict) else {}
            return (
                f"{self.name(cls)}({{{items}}}{''.join(f', {name}={self.of(part)}' for name, part in named.items())})"
            )
        held = self.parts(value)
        if held is None:
            return _plain_text(value) if _kind_of(cls) else f"{self.name(cls)}({_plain_text(value)})"
        texts = [*map(self.of, held[0]), *(f"{name}={self.of(part)}" for name, part in held[1].items())]
        name = self.name(value if isinstance(value, types.FunctionType) else cls)
        return f"{'' if cls is tuple else name}({', '.join(texts)})"

    def parts(self, value: Any) -> tuple[Iterable[Any], Mapping[str, Any]] | None:
        """What a value holds, and what it holds by name; None if only its own text tells."""
        cls, named = type(value), _attributes(value)
        match value:
            case types.FunctionType():
                return (), inspected.bound_variables(value) | inspected.globals_read(value) | named
            case object(__func__=function, __self__=instance):
                return (function, instance), {}
            case object(__wrapped__=wrapped) if callable(value):
                return (wrapped, _plain_text(inspected.jit_options(value))), named
            case set() | frozenset():
                return sorted(value, key=self.alone), named
            case _ if hasattr(cls, "__node_spec__"):
                shared = (field.name for field in spec_of(value).fields if not field.local)
                return (), {name: getattr(value, name) for name in shared}
            case functools.partial():
                return (value.func, *value.args), value.keywords | named
            case tuple() | list():
                return value, named
            case _:
                is_plain = _kind_of(cls) is not None and not dataclasses.is_dataclass(cls)
                return None if is_plain or not named or inspected.of_python(cls) else ((), named)

    def alone(self, value: Any) -> str:
        """The text that does not depend on what was described before."""
        walk = _Description(*self.inside)
        found = walk.of(value)
        self.modules |= walk.modules
        return found

    def name(self, value: Any) -> str:
        """The import path of a function or class, with a digest of the code of a function of the user's."""
        module = str(getattr(value, "__module__", None))
        self.modules.add(module)
        name = f"{module}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")
        has_code = isinstance(value, types.FunctionType) and ("<" in name or not inspected.library_made(value))
        return f"{name}#{self.code(value.__code__)}" if has_code else name

    def code(self, code: types.CodeType) -> str:
        """A digest of what code does, which is the same in each process and wherever its file lies."""
        constants = [
            self.code(each) if isinstance(each, types.CodeType) else self.alone(each) for each in code.co_consts
        ]
        return _digest(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)))


def _attributes(value: Any) -> dict[str, Any]:
    """The attributes of an object by name, without what it only keeps."""
    state = state_of(value).items()
    kept = {name: part for name, part in state if not is_cached_property(type(value), name) and name not in _LEFT_OUT}
    return {name: kept[name] for name in sorted(kept, key=str)}


def _plain_text(value: Any) -> str:
    """The `repr` of a value that has one, without addresses."""
    plain: Any = object
    try:
        return "" if type(value).__repr__ is plain.__repr__ else _ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001  a user's `__repr__`; the class alone must do
        return "..."


def _array_digest(value: Any) -> str:
    """Empty for an array of which this process has only a part, or whose values are gone or yet to come."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return ""
    if getattr(value, "is_deleted", bool)():
        return "(deleted)"
    data = numbers_of(value)
    return f"#{_digest(repr(data.tolist()) if data.dtype == object else data.tobytes())}"


def _digest(content: str | bytes, length: int = 12) -> str:
    data = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    return hashlib.sha256(data).hexdigest()[:length]


# Reading


def imported(name: str) -> Any:
    """The class or function of this name in a module that is imported; nothing else is."""
    module, _, qualname = name.partition(":")
    value = found_at(module, qualname)
    if value is None:
        raise StaticSerializationError(
            f"{name} was not found. The program needs it as a static value: import {module} before reading it."
        )
    return value


def decode(form: Form, *, find: Callable[[str], Any] = imported) -> Any:
    """The value of a form. Runs no code of the classes that it makes, and imports nothing.

    Args:
        form: As `encode` gave it; it may come from a forged file.
        find: From a name to its class or function.

    Raises:
        StaticSerializationError: If the form can't be read, names what is not found, or is a description.
    """
    if type(form) in _PLAIN:
        return form
    if type(form) is not list or not form or type(form[0]) is not str:
        raise StaticSerializationError(f"{cut_text(repr(form))} is not the form of a static value.")
    name, *parts = form
    if name == "described":
        raise StaticSerializationError(f"It was saved as a description only, {cut_text(str(parts[:1]))}.")
    if name != "name" and name not in _MAKERS:
        raise StaticSerializationError(
            f"{cut_text(repr(name))} is not a kind of static value that this version of Treewright knows."
        )
    try:
        if name == "name":
            return find(str(parts[0]))
        values = [decode(part, find=find) for part in parts]
        if name in _OF_CLASS:
            cls = values[0]
            kind = _kind_of(cls) if isinstance(cls, type) else None
            if kind is None or kind.name != name:
                raise ValueError(f"{getattr(cls, '__qualname__', type(cls).__name__)} is not {_OF_CLASS[name]}")
        return _MAKERS[name](*values)
    except (StaticSerializationError, RecursionError):
        raise
    except Exception as error:  # whoever forges a file finds them all
        start = ", ".join(map(repr, form[:2]))
        raise StaticSerializationError(f"[{cut_text(start)}, ...] can't be read: {cut_text(str(error))}.") from error


# For messages

_OPENED = frozenset({"tuple", "list", "set", "frozenset", "partial", "dict", "FrozenMapping", *_OF_CLASS})


def shown(form: Form) -> str:
    """A form as a person would write the value."""
    if type(form) is not list or not form:
        return repr(form)
    kind, *parts = form
    if kind in {"described", "name"}:
        return str(parts[0]) if kind == "described" else parts[0].replace(":", ".").removeprefix("builtins.")
    if kind in _MAKERS and kind not in _OPENED:
        with contextlib.suppress(StaticSerializationError):
            return text(decode(form))
    name = shown(parts.pop(0)) if kind in _OF_CLASS else kind
    if kind == "node":
        parts = [*parts[0][1:], *parts[1:]]
    texts = [_argument(part) if kind in _OF_CLASS else shown(part) for part in parts]
    if kind == "tuple":
        return f"({', '.join(texts)}{',' * (len(texts) == 1)})"
    return f"{name}({', '.join(texts)})"


def _argument(part: Form) -> str:
    """`name=value` for a field."""
    is_field = type(part) is list and len(part) == 3 and part[0] == "tuple"
    return f"{part[1]}={shown(part[2])}" if is_field else shown(part)


__all__ = ["Form", "StaticSerializationError", "decode", "described", "encode", "modules_in", "portable_text", "shown"]
