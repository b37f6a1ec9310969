"""Our treedefs in exported programs: `jax.export` writes them as names and JSON, never as pickles.

Reading runs no code: functions and classes are looked up in modules that are imported already.
"""

import contextlib
import json
from typing import Any

import jax.export

from treewright._nodes.static_json import StaticCodec
from treewright._nodes.statics import Statics


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
    return json.dumps(StaticCodec().encode_statics(statics)).encode()


def deserialize(cls: type[Any], data: bytes | bytearray) -> Statics:
    """The statics of `cls` from what `serialize` wrote.

    Raises:
        StaticSerializationError: If the class has other static fields now, or a name is not found.
    """
    return StaticCodec().decode_statics(cls, json.loads(bytes(data)))


def encode(value: Any) -> Any:
    """JSON for a static value."""
    return StaticCodec().encode(value)


def decode(encoded: Any) -> Any:
    """The value that `encode` wrote."""
    return StaticCodec().decode(encoded)
