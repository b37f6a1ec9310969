"""`Module` and `pytree_dataclass` as users import them, with statics stored as JSON in `jax.export` programs."""

import json
from typing import Any

from treewright._core import (
    Module,
    Statics,
    is_node_class,
    pytree_dataclass,
    read_aux_data,
    spec_of,
    write_aux_data,
)
from treewright._json import decode, encode
from treewright.errors import StaticSerializationError

__all__ = ["Module", "pytree_dataclass"]


@write_aux_data.register(object)
def _write(aux_data: Any) -> bytes:
    """The names and values of the statics, or the function of a method."""
    if not isinstance(aux_data, Statics):
        return json.dumps(encode(aux_data)).encode()
    encoded: dict[str, Any] = {}
    for name, value in zip(aux_data.names, aux_data.values, strict=True):
        try:
            encoded[name] = encode(value)
        except StaticSerializationError as error:
            raise StaticSerializationError(f"{aux_data.table.owner.__qualname__}.{name}: {error}") from error
    return json.dumps(encoded).encode()


@read_aux_data.register(object)
def _read(data: bytes | bytearray, cls: Any) -> Any:
    """The `aux_data` of `cls` from the bytes of `_write`."""
    encoded = json.loads(bytes(data))
    if not is_node_class(cls):
        return decode(encoded)
    table = spec_of(cls).table
    if set(encoded) != set(table.names):
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(encoded) or 'none'} of {cls.__qualname__}, which "
            f"now has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
        )
    return table.intern(tuple([decode(encoded[name]) for name in table.names]))
