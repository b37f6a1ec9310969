"""Static values as JSON: exact forms that can be read back, and descriptions with digests of what can't.

A form is a plain scalar, or a list of the name of a kind and its parts, each of which is a form:
`["tuple", 1, ["complex", 0.5, 2.0]]`. The kinds are those of the one table in `treewright._core.kinds`. Classes and
functions are written by name, `["name", "module:qualname"]`. Equal values have equal forms, whatever the order of a
set.
"""

import contextlib
import functools
import hashlib
import importlib
import json
import math
import re
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax
import numpy as np

from treewright._core import functions as inspected
from treewright._core.fields import spec_of
from treewright._core.freeze import FrozenArray, FrozenMapping
from treewright._core.functions import found_at, import_path, innermost, is_cached_property, state_of
from treewright._core.instance import flat_form, from_flat_form
from treewright._core.jax_private import is_key_dtype
from treewright._core.kinds import DATACLASS, FAMILIES, KINDS, NAMEDTUPLE, Kind, fields_of, kind_of
from treewright._core.text import cut_text, shape_text, text
from treewright.errors import StaticSerializationError

Form = Any  # str, int, float, bool, None, or a list of a kind's name and its parts
Find = Callable[[str], Any]
_PLAIN = frozenset({str, int, bool, float, types.NoneType})
_LARGEST_INT = 2**2000  # Python reads and writes no more digits for sure
_KEPT = 2000  # characters of a description
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")
_ABOUT_FUNCTIONS = frozenset(
    {"__wrapped__", "__doc__", "__annotations__", "__type_params__", "_fun", "_jit_info"}
)  # attributes that a description leaves out


# Kinds besides those of the table: nodes, and what only other libraries hold beside their leaves


def _node_parts(node: Any) -> tuple[Any, ...]:
    children, statics = flat_form(node)
    return (type(node), tuple(zip(statics.names, statics.values, strict=True)), *children)


def _make_node(cls: Any, statics: tuple[tuple[str, Any], ...], *children: Any) -> Any:
    if not isinstance(cls, type) or not hasattr(cls, "__node_spec__"):
        raise ValueError(f"{getattr(cls, '__qualname__', type(cls).__name__)} is not a node")
    spec, values = spec_of(cls), dict(statics)
    names = [field.name for field in spec.statics]
    if {*values} != {*names} or len(children) != len(spec.children):
        raise ValueError(f"{cls.__qualname__} has other fields now")
    return from_flat_form(cls, (children, spec.table.intern(tuple(values[name] for name in names))))


_NODE = Kind("node", _node_parts, _make_node)
_OF_OTHERS: Mapping[type[Any], Kind] = types.MappingProxyType(
    {
        list: Kind("list", list, lambda *items: list(items)),
        dict: Kind("dict", dict.items, lambda *items: dict(items)),
        set: Kind("set", set, lambda *items: set(items)),
    }
)
_MAKERS: Mapping[str, Callable[..., Any]] = types.MappingProxyType(
    {
        kind.name: kind.make
        for kind in (
            *(*KINDS.values(), *FAMILIES, *_OF_OTHERS.values()),
            *(FrozenMapping._kind_, FrozenArray._kind_, _NODE),
        )
        if kind.make is not None
    }
)
_UNORDERED = frozenset({"frozenset", "set"})
_OF_CLASS = frozenset({"enum", "namedtuple", "dataclass", "node"})  # whose first part is a class


# Writing


def encode(value: Any, *, describe: bool = False) -> Form:
    """The form of a static value.

    Args:
        value: The value.
        describe: Whether to describe what has no exact form: `["described", text, digest]`.

    Raises:
        StaticSerializationError: If a part has no exact form, unless it is described.
    """
    return _Encoder(described if describe else _refuse).encode(value)


def described(value: Any) -> Form:
    """`["described", text, digest]`: a bounded text for messages, and a digest of all that the value holds.

    Two values have one digest if they are made of the same code and hold the same values: arrays, captured variables
    and attributes included, in any process.
    """
    form = _Describer().encode(value)
    return ["described", cut_text(shown(form), _KEPT), _digest(form, 64)]


def portable_text(value: Any) -> str:
    """The whole description as text, which is the same in another process for a value that does the same."""
    return shown(_Describer().encode(value))


def modules_in(value: Any) -> set[str]:
    """The modules of the functions and classes in a value."""
    describer = _Describer()
    describer.encode(value)
    return describer.modules


def _refuse(value: Any) -> Form:
    raise StaticSerializationError(
        f"{value!r} can't be named in an exported program: it is not an importable function, class, enum, "
        f"simple dtype, number, string, tuple, frozen dataclass or node. Define it at the top level of a module."
    )


class _Encoder:
    """One walk through a value; `opaque` gives the form of what has no exact one."""

    def __init__(self, opaque: Callable[[Any], Form]) -> None:
        self.opaque = opaque

    def encode(self, value: Any) -> Form:
        cls = type(value)
        is_plain = math.isfinite(value) if cls is float else cls is not int or abs(value) < _LARGEST_INT
        if cls in _PLAIN and is_plain:
            return value
        if hasattr(cls, "__node_spec__"):
            return self.node(value)
        kind = kind_of(cls) or _OF_OTHERS.get(cls)
        parts = None if kind is None or kind.make is None or _holds_more(kind, value) else kind.parts(value)
        if kind is None or parts is None or (kind.name in _OF_CLASS and self.name(cls) is None):
            return self.name(value) or self.opaque(value)
        if kind.name in _UNORDERED:
            return [kind.name, *sorted(map(self.alone().encode, parts), key=json.dumps)]
        return [kind.name, *map(self.encode, parts)]

    def node(self, node: Any) -> Form:
        """Its class, its statics, with their fields in the error for one that has no form, and its children."""
        cls, statics, *children = _node_parts(node)
        forms: list[Form] = ["tuple"]
        for name, value in statics:
            try:
                forms.append(["tuple", name, self.encode(value)])
            except StaticSerializationError as error:
                raise StaticSerializationError(f"{cls.__qualname__}.{name}: {error}") from error
        return ["node", self.encode(cls), forms, *map(self.encode, children)]

    def alone(self) -> "_Encoder":
        return self

    def name(self, value: Any) -> Form | None:
        """`["name", "module:qualname"]`, if that leads back to this very object."""
        path = import_path(value)
        return None if path is None else ["name", ":".join(path)]


def _holds_more(kind: Kind, value: Any) -> bool:
    """Whether a value has attributes that its parts leave out."""
    if kind not in {NAMEDTUPLE, DATACLASS} and type(value) is not functools.partial:
        return False
    fields = fields_of(value) if kind is DATACLASS else ()
    return any(name not in fields and not is_cached_property(type(value), name) for name in state_of(value))


class _Describer(_Encoder):
    """Opens whatever has no exact form: code by a digest, arrays by one, objects by their attributes.

    What occurs again, the same or equal, is written as the digest of its form.
    """

    def __init__(self) -> None:
        super().__init__(self.opened)
        self.modules: set[str] = set()
        self._inside: list[int] = []
        self._known: dict[int, tuple[Any, str, Form]] = {}  # by id; the value is kept, and so its id
        self._written: set[str] = set()

    def alone(self) -> "_Describer":
        """One that does not depend on what was written before."""
        other = _Describer()
        other.modules, other._inside = self.modules, self._inside
        return other

    def node(self, node: Any) -> Form:
        """Without fields that are local to a process."""
        kept = [field.name for field in spec_of(node).statics if not field.local]
        statics = [["tuple", name, self.encode(getattr(node, name))] for name in kept]
        return ["node", self.encode(type(node)), ["tuple", *statics], *map(self.encode, flat_form(node)[0])]

    def name(self, value: Any) -> Form | None:
        path = import_path(value) if callable(value) or isinstance(value, type) else None
        if path is None:
            return None
        self.modules.add(path[0])
        user = isinstance(value, types.FunctionType) and not inspected.library_made(value)
        return ["name", ":".join(path), *([self.code(value.__code__)] if user else [])]

    def opened(self, value: Any) -> Form:
        """The form of a value by all that it holds."""
        if id(value) in self._inside:
            return ["within", len(self._inside) - self._inside.index(id(value))]
        if id(value) not in self._known:
            self._inside.append(id(value))
            form = self.parts(value)
            self._inside.pop()
            self._known[id(value)] = value, _digest(form), form
        _, digest, form = self._known[id(value)]
        if digest in self._written:
            return ["same", digest]
        self._written.add(digest)
        return form

    def parts(self, value: Any) -> Form:
        """What a value is called, a digest of its code, and what it holds by name."""
        cls, own = type(value), _own(value)
        if isinstance(value, np.ndarray | jax.Array):
            return ["array", shape_text(value.dtype, value.shape), _array_digest(value)]
        if isinstance(value, types.FunctionType):
            held = inspected.captured(value) | inspected.defaults(value) | inspected.globals_read(value)
            return ["function", self.full_name(value), self.code(value.__code__), *self.pairs(held | vars(value))]
        if isinstance(value, types.ModuleType):
            return ["module", value.__name__]
        if isinstance(value, type):
            return ["class", self.full_name(value), self.code_of_class(value)]
        if hasattr(value, "__func__") and hasattr(value, "__self__"):
            return ["method", self.encode(value.__func__), self.encode(value.__self__)]
        name = self.full_name(cls)
        if callable(value) and getattr(value, "__wrapped__", None) is not None:
            options = _ADDRESS.sub("", repr(inspected.jit_options(value)))
            return ["object", name, options, self.encode(value.__wrapped__), *self.pairs(own)]
        if isinstance(value, Mapping):
            return ["object", name, *self.pairs(dict(value)), *self.pairs(own)]
        if isinstance(value, tuple | list | set | frozenset):
            items = [self.encode(item) for item in value]
            ordered = sorted(items, key=json.dumps) if isinstance(value, set | frozenset) else items
            return ["object", name, *ordered, *self.pairs(own)]
        if own and not inspected.of_python(cls):
            return ["object", name, self.code_of_class(cls), *self.pairs(own)]
        return ["object", name, self.code_of_class(cls), _repr(value)]

    def pairs(self, named: Mapping[Any, Any]) -> list[Form]:
        return [["tuple", self.encode(name), self.encode(value)] for name, value in named.items()]

    def full_name(self, value: Any) -> str:
        module = str(getattr(value, "__module__", None))
        self.modules.add(module)
        return f"{module}:{getattr(value, '__qualname__', None)}"

    def code(self, code: types.CodeType) -> str:
        """A digest of what code does, which is the same in each process and wherever its file lies."""
        constants = [
            self.code(each) if isinstance(each, types.CodeType) else self.alone().encode(each)
            for each in code.co_consts
        ]
        return _digest([code.co_code.hex(), code.co_names, code.co_varnames, code.co_freevars, constants])

    def code_of_class(self, cls: type[Any]) -> str:
        """A digest of the functions that the user wrote into a class."""
        functions = [
            (name, innermost(value.fget if isinstance(value, property) else value))
            for base in cls.__mro__
            if not inspected.library_object(base) and not inspected.of_python(base)
            for name, value in list(vars(base).items())
        ]
        codes = [
            (name, self.code(function.__code__))
            for name, function in functions
            if isinstance(function, types.FunctionType) and not _is_generated(function)
        ]
        return _digest(sorted(codes)) if codes else ""


def _is_generated(function: types.FunctionType) -> bool:
    """Whether `dataclasses`, `NamedTuple` or Treewright wrote it for a class of the user's."""
    written = function.__code__.co_qualname.startswith("__create_fn__.")
    return written or function.__code__.co_filename.startswith("<treewright: ") or inspected.library_made(function)


def _repr(value: Any) -> str:
    plain: Any = object
    try:
        return "" if type(value).__repr__ is plain.__repr__ else _ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001  a user's `__repr__`; the class alone must do
        return "..."


def _own(value: Any) -> dict[str, Any]:
    """The attributes of an object by name, without what it only keeps."""
    state = {name: part for name, part in state_of(value).items() if not is_cached_property(type(value), name)}
    return {name: state[name] for name in sorted(state, key=str) if name not in _ABOUT_FUNCTIONS}


def _array_digest(value: Any) -> str:
    """Empty for an array of which this process has only a part, or whose values are gone or yet to come."""
    if isinstance(value, jax.core.Tracer) or not getattr(value, "is_fully_addressable", True):  # pyright: ignore[reportAttributeAccessIssue]
        return ""
    if getattr(value, "is_deleted", bool)():
        return "deleted"
    data = np.asarray(jax.random.key_data(value) if is_key_dtype(value.dtype) else value)
    content = repr(data.tolist()).encode() if data.dtype == object else data.tobytes()
    return hashlib.sha256(content).hexdigest()[:12]


def _digest(form: Any, length: int = 12) -> str:
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()[:length]


# Reading


def decode(form: Form, modules: Iterable[str | types.ModuleType] | None = None, *, find: Find | None = None) -> Any:
    """The value of a form. Runs no code of the classes that it makes, and imports nothing but `modules`.

    Args:
        form: As `encode` gave it; it may come from a forged file.
        modules: The modules whose classes and functions a form may name; None for all that are imported.
        find: In place of modules, a function from a name to its class or function.

    Raises:
        StaticSerializationError: If the form can't be read, or names something elsewhere, or is a description.
    """
    return _decode(form, find or (_find_imported if modules is None else _finder(modules)))


def _decode(form: Form, find: Find) -> Any:
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
        return find(str(parts[0])) if name == "name" else _MAKERS[name](*[_decode(part, find) for part in parts])
    except (StaticSerializationError, RecursionError):
        raise
    except Exception as error:  # whoever forges a file finds them all
        start = ", ".join(map(repr, form[:2]))
        raise StaticSerializationError(f"[{cut_text(start)}, ...] can't be read: {cut_text(str(error))}.") from error


def _find_imported(name: str) -> Any:
    module, _, qualname = name.partition(":")
    value = found_at(module, qualname)
    if value is None:
        raise StaticSerializationError(
            f"{name} was not found. The program needs it as a static value: import {module} before reading it."
        )
    return value


def _finder(modules: Iterable[str | types.ModuleType]) -> Find:
    names = {each if isinstance(each, str) else each.__name__ for each in modules}
    for each in names:
        importlib.import_module(each)

    def find(name: str) -> Any:
        module, _, qualname = name.partition(":")
        allowed = module == "builtins" or any(module == each or module.startswith(f"{each}.") for each in names)
        value = found_at(module, qualname) if allowed else None
        if value is None:
            listed = ", ".join(sorted(names)) or "none"
            raise StaticSerializationError(f"{name!r} is in none of the modules that may be used ({listed}).")
        return value

    return find


# For messages

_BRACKETS = types.MappingProxyType({"tuple": "()", "list": "[]", "set": "{}"})
_OPENED = frozenset({"frozenset", "partial", "dict", "FrozenMapping"})  # kinds whose parts are shown one by one


def shown(form: Form) -> str:
    """A form as a person would write the value."""
    if type(form) is not list or not form:
        return repr(form)
    kind, *parts = form
    if kind == "described":
        return str(parts[0])
    if kind in {"name", "function", "class", "module", "array"}:
        digest = f"#{parts[1]}" if len(parts) > 1 and parts[1] else ""
        return f"{_spelled(parts[0])}{digest}{_arguments(parts[2:]) if kind == 'function' else ''}"
    if kind == "object" or kind in _OF_CLASS:
        name = _spelled(parts[0]) if kind == "object" else shown(parts[0])
        return f"{name}{_arguments([part for part in parts[1:] if part != ''])}"
    if kind in _BRACKETS:
        texts = ", ".join(map(shown, parts))
        return f"{_BRACKETS[kind][0]}{texts}{',' if kind == 'tuple' and len(parts) == 1 else ''}{_BRACKETS[kind][1]}"
    if kind in _MAKERS and kind not in _OPENED:
        with contextlib.suppress(StaticSerializationError):
            return text(_decode(form, _find_imported))
    return f"{kind}{_arguments(parts)}"


def _spelled(name: str) -> str:
    return name.replace(":", ".").removeprefix("builtins.")


def _arguments(parts: list[Form]) -> str:
    """In brackets, as `name=value` for a pair."""
    are_pairs = [type(part) is list and len(part) == 3 and [part[0], type(part[1])] == ["tuple", str] for part in parts]
    texts = [
        f"{part[1]}={shown(part[2])}" if is_pair else shown(part)
        for part, is_pair in zip(parts, are_pairs, strict=True)
    ]
    return f"({', '.join(texts)})"


__all__ = ["Form", "StaticSerializationError", "decode", "described", "encode", "modules_in", "portable_text", "shown"]
