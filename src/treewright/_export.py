"""`jax.export`: save the statics of an exported program as JSON, and find its classes by name."""

import contextlib
import enum
import functools
import itertools
import json
from typing import Any

import jax.export

from treewright._base.functions import import_path, lookup_imported
from treewright._base.text import short_text
from treewright._core import JSON_TYPES, Recipe, Statics, from_flat_form, info_of, kind_of
from treewright.errors import StaticSerializationError

_register: Any = jax.export.register_pytree_node_serialization
_REDEFINED = itertools.count(2)  # One counter for all names: trying each name's numbers took 10 ms for the 1,600th.


def register_for_export(cls: Any) -> Recipe:
    """Register the class for `jax.export` under a stable name, `module.Class`, so that other processes find it.

    If a class is redefined, for example by running a notebook cell again, a number follows the name. The result is an
    attribute of the class, so that unpickling a class with `cloudpickle` registers it.
    """
    register = functools.partial(
        _register,
        cls,
        serialize_auxdata=_statics_to_json,
        deserialize_auxdata=lambda data: _statics_from_json(cls, data),
        from_children=lambda statics, children: from_flat_form(cls, (tuple(children), statics)),
    )
    name = f"{cls.__module__}.{cls.__qualname__}"
    try:
        register(serialized_name=name)
    except ValueError:  # The name is taken, or the class: then its own registration is kept.
        with contextlib.suppress(ValueError):
            register(serialized_name=f"{name}#{next(_REDEFINED)}")
    cls.__node_exported__ = recipe = Recipe(register_for_export, cls)
    return recipe


# Statics in exported programs: plain values, names of functions and classes, and containers of them


def _statics_to_json(statics: Statics) -> bytes:
    owner, values = statics.table.owner.__qualname__, zip(statics.table.names, statics.values, strict=True)
    return json.dumps({name: _encode(value, f"{owner}.{name}") for name, value in values}).encode()


def _statics_from_json(cls: type[Any], data: bytes) -> Statics:
    encoded, table = json.loads(bytes(data)), info_of(cls).table
    if {*encoded} != {*table.names}:
        written, names = (", ".join(each) or "none" for each in (encoded, table.names))
        raise StaticSerializationError(
            f"The exported program has the static fields {written} of {cls.__qualname__}, which now has {names}. "
            f"Export it again with this version of the class."
        )
    return table.intern_by_key(tuple([_decode(encoded[name]) for name in table.names]))


def _encode(value: Any, full_name: str) -> Any:
    """A static as JSON: by the name of an importable object, or by the class and parts of a container."""
    cls = type(value)
    if cls in JSON_TYPES:
        return value
    path = (cls.__module__, f"{cls.__qualname__}.{value.name}") if isinstance(value, enum.Enum) else import_path(value)
    if path is not None and lookup_imported(*path) is value:
        return {"name": path}
    kind, class_path = kind_of(cls), import_path(cls)
    parts = None if kind is None or kind.make is None or class_path is None else kind.parts(value)
    if parts is None:
        raise StaticSerializationError(
            f"{full_name}: {short_text(value)} can't be saved in an exported program. Use numbers, strings, enums, "
            f"functions and classes at the top level of a module, or tuples and frozen dataclasses of them."
        )
    return {"class": class_path, "parts": [_encode(part, full_name) for part in parts]}


def _decode(encoded: Any) -> Any:
    """The value of `_encode`'s JSON. Imports nothing, and runs no code of a user's class."""
    if not isinstance(encoded, dict):
        return encoded
    module, name = encoded.get("name") or encoded["class"]
    value = lookup_imported(module, name)
    if value is None:
        raise StaticSerializationError(
            f"{module}.{name} was not found, but the exported program needs it. Import {module} before reading the "
            f"program."
        )
    if "name" in encoded:
        return value
    kind: Any = kind_of(value)
    return kind.make(*map(_decode, encoded["parts"]))
