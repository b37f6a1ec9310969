"""Our treedefs in exported programs: `jax.export` writes them as names and JSON, never as pickles.

Reading runs no code: functions and classes are looked up in modules that are imported already.
"""

import base64
import contextlib
import enum
import json
import sys
from collections.abc import Callable
from typing import Any, cast

import jax.export
import numpy as np

from treewright._nodes.freeze import FrozenArray, FrozenMapping, freeze
from treewright._nodes.spec import spec_of
from treewright._nodes.statics import Statics
from treewright.errors import StaticSerializationError

_PLAIN = (str, int, bool, type(None))


def register_for_export(cls: type) -> None:
    """Give the class a stable name, `module.Class`, under which `jax.export` finds it in another process.

    A class that is made twice under one name, as by running a notebook cell again, gets a number after the first.
    """
    name, count = f"{cls.__module__}.{cls.__qualname__}", 1
    while True:
        with contextlib.suppress(ValueError):  # the name is taken
            jax.export.register_pytree_node_serialization(
                cls,
                serialized_name=name if count == 1 else f"{name}#{count}",
                serialize_auxdata=serialize,
                deserialize_auxdata=lambda data: deserialize(cls, data),
            )
            return
        count += 1


def serialize(statics: Statics) -> bytes:
    """The names and values of the statics as JSON.

    Raises:
        StaticSerializationError: For a value that has no name to be found by, such as a lambda.
    """
    table = statics.table
    encoded = {}
    for name, value in zip(table.names, statics.values, strict=True):
        try:
            encoded[name] = encode(value)
        except StaticSerializationError as error:
            raise StaticSerializationError(f"{table.owner.__qualname__}.{name}: {error}") from error
    return json.dumps(encoded).encode()


def deserialize(cls: type, data: bytes | bytearray) -> Statics:
    """The statics of `cls` from what `serialize` wrote.

    Raises:
        StaticSerializationError: If the class has other static fields now, or a name is not found.
    """
    encoded = json.loads(bytes(data))
    table = spec_of(cls).table
    if set(encoded) != set(table.names):
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(encoded) or 'none'} of {cls.__qualname__}, which now "
            f"has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
        )
    return table.intern(tuple(decode(encoded[name]) for name in table.names))


def encode(value: Any) -> Any:
    """JSON for a static value; anything but plain scalars is a list that begins with its kind."""
    kind: type = type(value)
    if kind in _PLAIN:
        return value
    if kind in {float, complex}:
        parts = (value.real, value.imag) if kind is complex else (value,)
        return [kind.__name__, *(part.hex() for part in parts)]
    if isinstance(value, enum.Enum):
        return ["enum", _name_of(kind), value.name]
    if isinstance(value, np.dtype):
        return ["dtype", value.name]
    if kind is bytes:
        return ["bytes", base64.b64encode(value).decode()]
    if isinstance(value, FrozenArray | np.generic):
        plain = np.asarray(value)
        return [
            "array" if isinstance(value, FrozenArray) else "scalar",
            plain.dtype.name,
            list(plain.shape),
            base64.b64encode(plain.tobytes()).decode(),
        ]
    if kind in {tuple, frozenset}:
        return [kind.__name__, *map(encode, cast("tuple[object, ...]", value))]
    if isinstance(value, tuple):
        return ["namedtuple", _name_of(kind), *map(encode, value)]
    if isinstance(value, FrozenMapping):
        return ["mapping", *([encode(key), encode(item)] for key, item in value.items())]
    if hasattr(kind, "__node_spec__"):
        children, statics = value.tree_flatten()
        return ["node", _name_of(kind), serialize(statics).decode(), *map(encode, children)]
    return ["name", _name_of(value)]


def decode(encoded: Any) -> Any:
    """The value that `encode` wrote."""
    if not isinstance(encoded, list):
        return encoded
    kind, *parts = cast("list[Any]", encoded)
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise StaticSerializationError(f"{kind!r} is no kind of static value that this version of Treewright knows.")
    return decoder(*parts)


def _array(dtype: str, shape: list[int], data: str) -> Any:
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)


def _node(name: str, statics: str, *children: Any) -> Any:
    cls = _named(name)
    return cls.tree_unflatten(deserialize(cls, statics.encode()), tuple(map(decode, children)))


def _name_of(value: Any) -> str:
    """`module:qualname`, if it leads back to this very object."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if module is None or name is None or _found(module, name) is not value:
        raise StaticSerializationError(
            f"{value!r} can't be named in an exported program: it is no importable function, class, enum, dtype, "
            f"number, string, tuple or node. Define it at the top level of a module."
        )
    return f"{module}:{name}"


def _found(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    found = _found(module, name)
    if found is None:
        raise StaticSerializationError(
            f"{path} was not found. The program needs it as a static value: import {module} before reading it."
        )
    return found


_DECODERS: dict[str, Callable[..., Any]] = {
    "float": float.fromhex,
    "complex": lambda real, imag: complex(float.fromhex(real), float.fromhex(imag)),
    "enum": lambda path, name: _named(path)[name],
    "dtype": np.dtype,
    "bytes": base64.b64decode,
    "array": lambda *parts: freeze(np.array(_array(*parts))),
    "scalar": lambda *parts: _array(*parts)[()],
    "tuple": lambda *items: tuple(map(decode, items)),
    "frozenset": lambda *items: frozenset(map(decode, items)),
    "namedtuple": lambda path, *items: _named(path)(*map(decode, items)),
    "mapping": lambda *items: FrozenMapping({decode(key): decode(item) for key, item in items}),
    "node": _node,
    "name": _named,
}
