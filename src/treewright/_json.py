"""Encode statics as JSON, to compare them between programs: exactly, or as descriptions with digests.

An encoded static is a plain scalar, or a list of the name of a kind and its encoded parts:
`["tuple", 1, ["complex", 0.5, 2.0]]`. `treewright._core.kinds` has the table of kinds. Classes and
functions are written by name, `["name", "module:qualname"]`. Equal values are encoded equally, whatever the order of a
set.
"""

import hashlib
import json
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import import_path, is_library_function
from treewright._base.jax_private import DictKey, numbers_of
from treewright._base.text import cut_text, shape_text
from treewright._contents import contents
from treewright._core import JSON_TYPES, Kind, flat_form, info_of, is_node, is_node_class, kind_of

EncodedStatic = Any  # str, int, float, bool, None, or a list of a kind's name and its parts
_MAX_INT = 2**2000  # Python limits the digits of larger ints
_MAX_TEXT = 120  # characters of a description, so that its digest fits into the message
_MAX_SETTINGS = 30
_MAX_REPEATED = 100  # characters of a text that a description may repeat
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")
# Attributes of a function that do not affect its results, and its name, which is written first.
_IGNORED = frozenset({"__name__", "__qualname__", "__module__", "__doc__", "__annotations__", "__annotate__"})


# Further kinds: nodes, and containers in other libraries' aux_data


def _node_parts(node: Any) -> tuple[Any, ...]:
    children, statics = flat_form(node)
    return (type(node), tuple(zip(statics.table.names, statics.values, strict=True)), *children)


_NODE = Kind("node", _node_parts)
_CONTAINERS: Mapping[type[Any], Kind] = types.MappingProxyType(
    {
        list: Kind("list", list),
        dict: Kind("dict", dict.items),
        set: Kind("set", set),
    }
)
OF_CLASS = frozenset({"enum", "namedtuple", "dataclass", "node"})  # kinds whose first part is a class


def _kind_of(cls: type[Any]) -> Kind | None:
    return _NODE if is_node_class(cls) else kind_of(cls) or _CONTAINERS.get(cls)


# Writing


def encode(value: Any) -> EncodedStatic:
    """Encode a value. Parts without an exact encoding are described: `["described", text, digest, settings]`."""
    cls = type(value)
    is_plain = math.isfinite(value) if cls is float else cls is not int or abs(value) < _MAX_INT
    if cls in JSON_TYPES and is_plain:
        return value
    kind = _kind_of(cls)
    parts = None if kind is None or (kind.name in OF_CLASS and import_path(cls) is None) else kind.parts(value)
    if kind is not None and parts is not None:
        encoded = list(map(encode, parts))
        return [kind.name, *(sorted(encoded, key=json.dumps) if isinstance(value, set | frozenset) else encoded)]
    path = import_path(value)
    return description_of(value) if path is None else ["name", ":".join(path)]


# Describing


def description_of(value: Any) -> EncodedStatic:
    """`["described", text, digest, settings]`: a short text for messages, and a digest of the whole value.

    `settings` are the first numbers and strings that its functions captured: `["step_size=-0.001", ...]`.

    Two values have the same digest, in any process, if their code, arrays, captured variables and attributes are equal.
    """
    description = _Description()
    whole = description.of(value)
    return ["described", cut_text(whole, _MAX_TEXT), _digest(whole, 64), description.settings[:_MAX_SETTINGS]]


def portable_text(value: Any) -> str:
    """The full description, equal in all processes for values that behave equally."""
    return _Description().of(value)


def modules_in(value: Any) -> set[str]:
    """The modules of the functions and classes in a value."""
    description = _Description()
    description.of(value)
    return description.modules


class _Description:
    """One walk through a value: code and arrays are described by digests, objects by their attributes.

    A long part that occurs again is described by the digest of its text.
    """

    def __init__(self, *inside: int) -> None:
        self.inside = inside
        self.modules: set[str] = set()
        self.settings: list[str] = []  # plain values that have a name
        self.texts: dict[int, tuple[Any, str]] = {}  # The keys are ids, and each value is stored to keep its id unique
        self.written: set[str] = set()

    def of(self, value: Any) -> str:
        """The text of the value or of a part of it."""
        if type(value) in JSON_TYPES:
            return encoded_text(encode(value))  # `repr` raises for a long int
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
        if len(whole) > _MAX_REPEATED and digest in self.written:
            return f"#{digest}"
        self.written.add(digest)
        return whole

    def opened(self, value: Any) -> str:
        """The name of a value and its contents."""
        cls = type(value)
        if isinstance(value, np.ndarray | jax.Array):
            return f"{shape_text(value.dtype, value.shape)}{_array_digest(value)}"
        if isinstance(value, types.ModuleType):
            return value.__name__
        if isinstance(value, type):
            return self.name(value)
        is_function = isinstance(value, types.FunctionType)
        texts = sorted(map(self.separately, value)) if isinstance(value, set | frozenset) else list(self.parts(value))
        if not (texts or is_function or isinstance(value, Mapping)):
            kind = _kind_of(cls)
            parts = kind and kind.parts(value)
            if kind is not None and parts is not None:  # `repr` leaves out parts of a UUID or a long pattern
                encoded = [kind.name, *map(encode, parts)]
                text = encoded_text(encoded)
                return f"{text} #{_digest(json.dumps(encoded))}" if "..." in text else text  # it may be cut
            return _plain_text(value) if kind else f"{self.name(cls)}({_plain_text(value)})"
        contents_text = f"{{{', '.join(texts)}}}" if isinstance(value, Mapping) else ", ".join(texts)
        return f"{'' if cls is tuple else self.name(value if is_function else cls)}({contents_text})"

    def parts(self, value: Any) -> Iterator[str]:
        """The texts of a value's contents; attributes last, sorted by name."""
        ignored = {field.name for field in info_of(value).fields if field.local} if is_node(value) else _IGNORED
        for key, part in sorted(contents(value).items(), key=lambda entry: _order(entry[0])):
            name = _written_name(key)
            if isinstance(key, DictKey):
                yield f"{self.of(key.key)}: {self.of(part)}"
            elif not name:
                yield self.of(part)
            elif name not in ignored:
                if type(part) in JSON_TYPES - {types.NoneType} and getattr(key, "role", "") != "option":
                    self.settings.append(f"{name}={cut_text(self.of(part), _MAX_REPEATED)}")
                yield f"{name}={self.of(part)}"

    def separately(self, value: Any) -> str:
        """The text of a value, independent of the parts described before."""
        walk = _Description(*self.inside)
        description = walk.of(value)
        self.modules |= walk.modules
        return description

    def name(self, value: Any) -> str:
        """The import path of a function or class; for a user's function, with a digest of its code."""
        module = str(getattr(value, "__module__", None))
        self.modules.add(module)
        name = f"{module}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")
        has_code = isinstance(value, types.FunctionType) and ("<" in name or not is_library_function(value))
        return f"{name}#{self.code(value.__code__)}" if has_code else name

    def code(self, code: types.CodeType) -> str:
        """A digest of code, equal in all processes and wherever its file is."""
        constants = [
            self.code(each) if isinstance(each, types.CodeType) else self.separately(each) for each in code.co_consts
        ]
        return _digest(repr((code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)))


def _order(key: Any) -> str:
    """Sorts attributes last, by name; the sort is stable, so all other parts keep their order."""
    return str(key) if getattr(key, "role", "") == "attribute" else ""


def _written_name(key: Any) -> str:
    """The name of a part in a description; empty for items, wrapped functions and positional arguments."""
    name: str = getattr(key, "name", "")
    is_bare = getattr(key, "role", "") in {"function", "object"} or name.startswith("argument ")
    return "" if is_bare else name


def _plain_text(value: Any) -> str:
    """The `repr` of a value without addresses; empty if its class defines none."""
    plain: Any = object
    try:
        return "" if type(value).__repr__ is plain.__repr__ else _ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001  a user's `__repr__` may raise anything
        return "..."


def _array_digest(value: Any) -> str:
    """A digest of an array; empty for a tracer, or if this process has only a part of it."""
    if isinstance(value, Tracer) or not getattr(value, "is_fully_addressable", True):
        return ""
    if getattr(value, "is_deleted", bool)():
        return "(deleted)"
    data = numbers_of(value)
    return f"#{_digest(repr(data.tolist()) if data.dtype == object else data.tobytes())}"


def _digest(content: str | bytes, length: int = 12) -> str:
    data = content if isinstance(content, bytes) else content.encode(errors="surrogatepass")
    return hashlib.sha256(data).hexdigest()[:length]


# For messages

_MAX_LEVELS = 50  # nesting depth of a message


def encoded_text(encoded: EncodedStatic, levels: int = _MAX_LEVELS) -> str:
    """The text of an encoded static, in Python syntax. Accepts any JSON, because the file may be forged."""
    if type(encoded) not in {list, dict}:
        return repr(encoded)
    match encoded if levels else None:
        case ["described", str(text), str(digest), *_]:
            return f"{text} #{digest[:8]}"  # different descriptions may have the same text
        case ["name", str(name)]:
            return name.replace(":", ".").removeprefix("builtins.")
        case ["float", str(number)]:
            return number
        case ["scalar", ["dtype", str(dtype)], ["bytes", str(data)]] if text := _scalar_text(dtype, data):
            return text
        case ["tuple", *parts]:
            return f"({', '.join([encoded_text(part, levels - 1) for part in parts])}{',' * (len(parts) == 1)})"
        case ["node", cls, ["tuple", *statics], *parts]:
            return _call(encoded_text(cls, levels - 1), [*statics, *parts], levels - 1)
        case [str(kind), cls, *parts] if kind in OF_CLASS:
            return _call(encoded_text(cls, levels - 1), parts, levels - 1)
        case [str(kind), *parts]:
            return f"{kind}({', '.join([encoded_text(part, levels - 1) for part in parts])})"
        case _:
            pass
    return "..."


def _scalar_text(dtype: str, data: str) -> str:
    """The text of a numpy scalar; empty for a text, whose dtype numpy does not read, or forged data."""
    try:
        return repr(np.frombuffer(bytes.fromhex(data), dtype)[0])
    except Exception:  # noqa: BLE001  numpy raises many types
        return ""


def _call(name: str, parts: Iterable[EncodedStatic], levels: int) -> str:
    """`name(field=value)`."""
    texts: list[str] = []
    for part in parts:
        match part:
            case ["tuple", str(field), value]:
                texts.append(f"{field}={encoded_text(value, levels)}")
            case _:
                texts.append(encoded_text(part, levels))
    return f"{name}({', '.join(texts)})"
