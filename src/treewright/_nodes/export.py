"""Our treedefs in exported programs: `jax.export` writes them as names and JSON, never as pickles.

Reading runs no code: functions and classes are looked up in modules that are imported already.
"""

import base64
import contextlib
import enum
import json
import types
from collections.abc import Callable, Iterable
from typing import Any, cast

import jax.export
import numpy as np

from treewright._nodes.classes import class_of, found_at, import_path
from treewright._nodes.freeze import FrozenArray, FrozenMapping, freeze
from treewright._nodes.spec import spec_of
from treewright._nodes.statics import Statics
from treewright.errors import StaticSerializationError

_PLAIN = (str, int, bool, type(None))


def register_for_export(cls: type[Any]) -> None:
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


def register_function_node(cls: type[Any]) -> None:
    """The same for a class of ours whose `aux_data` is a function."""
    jax.export.register_pytree_node_serialization(
        cls,
        serialized_name=f"treewright.{cls.__name__}",
        serialize_auxdata=lambda function: json.dumps(encode(function)).encode(),
        deserialize_auxdata=lambda data: decode(json.loads(bytes(data))),
    )


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


def deserialize(cls: type[Any], data: bytes | bytearray) -> Statics:
    """The statics of `cls` from what `serialize` wrote.

    Raises:
        StaticSerializationError: If the class has other static fields now, or a name is not found.
    """
    encoded = json.loads(bytes(data))
    table = spec_of(cls).table
    if set(encoded) != set(table.names):
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(encoded) or 'none'} of {cls.__qualname__}, which "
            f"now has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
        )
    return table.intern(tuple(decode(encoded[name]) for name in table.names))


def encode(value: Any) -> Any:
    """JSON for a static value; anything but plain scalars is a list that begins with its kind."""
    kind = class_of(value)
    if kind in _PLAIN:
        return value
    if kind in _ENCODERS:
        return [kind.__name__, *_ENCODERS[kind](value)]
    if isinstance(value, enum.Flag):
        return ["flag", _name_of(kind), value.value]
    if isinstance(value, enum.Enum):
        return ["enum", _name_of(kind), value.name]
    if isinstance(value, np.dtype):
        return ["dtype", _dtype_text(value)]
    if issubclass(kind, np.generic):
        return ["scalar", *_array_parts(np.asarray(value))]
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return ["namedtuple", _name_of(kind), *map(encode, value)]
    if hasattr(kind, "__node_spec__"):
        children, statics = value.tree_flatten()
        return ["node", _name_of(kind), serialize(statics).decode(), *map(encode, children)]
    return ["name", _name_of(value)]


def _dtype_text(dtype: Any) -> str:
    """The name of a dtype, or its array protocol text where the name says too little, as of byte order."""
    for text in (dtype.name, dtype.str):
        with contextlib.suppress(TypeError):
            if np.dtype(text) == dtype:
                return str(text)
    raise _unnamed(dtype)


def _array_parts(value: Any) -> list[Any]:
    return [_dtype_text(value.dtype), list(value.shape), _base64(value.tobytes())]


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _pairs(value: FrozenMapping[Any, Any]) -> list[list[Any]]:
    return [[encode(key), encode(item)] for key, item in value.items()]


_ENCODERS: types.MappingProxyType[type[Any], Callable[[Any], Iterable[Any]]] = types.MappingProxyType(
    {
        float: lambda value: [value.hex()],
        complex: lambda value: [value.real.hex(), value.imag.hex()],
        bytes: lambda value: [_base64(value)],
        tuple: lambda value: map(encode, value),
        frozenset: lambda value: map(encode, value),
        FrozenArray: _array_parts,
        FrozenMapping: _pairs,
    }
)


def decode(encoded: Any) -> Any:
    """The value that `encode` wrote."""
    if class_of(encoded) is not list:
        return encoded
    kind, *parts = encoded
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise StaticSerializationError(f"{kind!r} is no kind of static value that this version of Treewright knows.")
    return decoder(*parts)


def _array(dtype: str, shape: list[int], data: str) -> Any:
    return np.frombuffer(base64.b64decode(data), np.dtype(dtype)).reshape(shape)


def _node(path: str, statics: str, *children: Any) -> Any:
    cls = _class(path, "node", object)
    return cls.tree_unflatten(deserialize(cls, statics.encode()), tuple(map(decode, children)))


def _name_of(value: Any) -> str:
    """`module:qualname`, if it leads back to this very object."""
    path = import_path(value)
    if path is None:
        raise _unnamed(value)
    return ":".join(path)


def _unnamed(value: Any) -> StaticSerializationError:
    return StaticSerializationError(
        f"{value!r} can't be named in an exported program: it is no importable function, class, enum, simple dtype, "
        f"number, string, tuple or node. Define it at the top level of a module."
    )


def _named(path: str) -> Any:
    module, _, name = path.partition(":")
    found = found_at(module, name)
    if found is None:
        raise StaticSerializationError(
            f"{path} was not found. The program needs it as a static value: import {module} before reading it."
        )
    return found


def _class(path: str, kind: str, base: type[Any], attribute: str = "__node_spec__") -> Any:
    """The class at `path`, if it is what the program says: a forged one must not call anything else."""
    found = _named(path)
    if not (isinstance(found, type) and issubclass(found, base) and hasattr(found, attribute)):
        raise StaticSerializationError(f"{path} is no {kind}, as the program has it. It was changed, or {path} was.")
    return found


def _enum(path: str, name: str) -> Any:
    return _class(path, "enum", enum.Enum, "__members__")[name]


def _flag(path: str, value: int) -> Any:
    return _class(path, "flag", enum.Flag, "__members__")(int(value))


def _complex(real: str, imag: str) -> complex:
    return complex(float.fromhex(real), float.fromhex(imag))


def _frozen_array(dtype: str, shape: list[int], data: str) -> Any:
    return freeze(_array(dtype, shape, data))


def _scalar(dtype: str, shape: list[int], data: str) -> Any:
    return _array(dtype, shape, data)[()]


def _tuple(*items: Any) -> tuple[Any, ...]:
    return tuple(map(decode, items))


def _frozenset(*items: Any) -> frozenset[Any]:
    return frozenset(map(decode, items))


def _namedtuple(path: str, *items: Any) -> Any:
    cls = _class(path, "named tuple", tuple, "_fields")
    return cast("Any", tuple).__new__(cls, map(decode, items))


def _mapping(*items: Any) -> FrozenMapping[Any, Any]:
    return FrozenMapping({decode(key): decode(item) for key, item in items})


_DECODERS: types.MappingProxyType[str, Callable[..., Any]] = types.MappingProxyType(
    {
        "float": float.fromhex,
        "complex": _complex,
        "enum": _enum,
        "flag": _flag,
        "dtype": np.dtype,
        "bytes": base64.b64decode,
        "FrozenArray": _frozen_array,
        "scalar": _scalar,
        "tuple": _tuple,
        "frozenset": _frozenset,
        "namedtuple": _namedtuple,
        "FrozenMapping": _mapping,
        "node": _node,
        "name": _named,
    }
)
