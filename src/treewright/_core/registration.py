"""Register classes with JAX and `jax.export`."""

import contextlib
import enum
import functools
import itertools
import json
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax.export

from treewright._base.functions import import_path, lookup_imported
from treewright._base.jax_private import jax_trees
from treewright._base.text import short_text
from treewright._core.info import FLAT_FORM_NAME, info_of
from treewright._core.instance import from_flat_form
from treewright._core.kinds import JSON_TYPES, kind_of
from treewright._core.pickles import Recipe
from treewright._core.statics import MAX_CHECKED_NODES, Statics
from treewright.errors import NodeDefinitionError, StaticSerializationError

_new: Any = object.__new__
_store: Any = object.__setattr__
_register_serialization: Any = jax.export.register_pytree_node_serialization
_REDEFINED = itertools.count(2)  # One counter for all names: trying each name's numbers took 10 ms for the 1,600th.


def _flatten_with_keys(node: Any) -> tuple[Iterable[tuple[Any, Any]], Statics]:
    children, statics = node._node
    match children:  # One and two children without `zip`, which is 20 % slower (benchmarks: flatten with path).
        case (one, two):
            first, second = statics.table.keys
            return ((first, one), (second, two)), statics
        case (one,):
            return ((statics.table.keys[0], one),), statics
        case _:
            return zip(statics.table.keys, children), statics  # noqa: B905  strict= costs a third of the time


def register_once(cls: type[Any]) -> Recipe:
    """Register a node class with JAX, unless it is registered. Nothing here depends on the fields.

    The result is an attribute of the class: when `cloudpickle` rebuilds the class, unpickling it registers the class.
    """
    recipe: Recipe | None = vars(cls).get("__node_registered__")
    if recipe is not None:  # `cloudpickle` writes the attributes of the class again, methods as functions
        if "__node_info__" in vars(cls):
            cls.__node_info__.table.to_check = MAX_CHECKED_NODES
        return recipe
    slot: Any = getattr(cls, FLAT_FORM_NAME, None)  # A Module has a slot; setting it directly is 15 % faster.
    # One assignment for all fields: 20 children are as fast as 1 (benchmarks: node).
    if slot is None:

        def unflatten(statics: Statics, children: tuple[Any, ...]) -> Any:
            node: Any = _new(cls)
            _store(node, "_node", (children, statics))
            return node

    else:
        store_in_slot: Any = slot.__set__

        def unflatten(statics: Statics, children: tuple[Any, ...]) -> Any:
            node: Any = _new(cls)
            store_in_slot(node, (children, statics))
            return node

    register_with_jax(cls, _flatten_with_keys, unflatten, operator.attrgetter(FLAT_FORM_NAME))
    _register_for_export(cls)
    cls.__node_registered__ = recipe = Recipe(register_once, cls)
    return recipe


def register_with_jax(cls: type[Any], *functions: Callable[..., Any]) -> None:
    """Register a class with JAX.

    Raises:
        NodeDefinitionError: If it is already registered.
    """
    try:
        jax_trees.register_pytree_with_keys(cls, *functions)
    except ValueError:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is already registered with JAX, by another decorator, a call or a base class, and JAX "
            f"allows only one registration. Remove it (treewright.Module can replace such a base), or keep "
            f"{cls.__name__} as it is and store it in a node's field."
        ) from None


def _register_for_export(cls: type[Any]) -> None:
    """Register the class for `jax.export` under a stable name, `module.Class`, so that other processes find it.

    If a class is redefined, for example by running a notebook cell again, a number follows the name.
    """
    register = functools.partial(
        _register_serialization,
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


# Statics in exported programs: plain values, names of functions and classes, and containers of them


def _statics_to_json(statics: Statics) -> bytes:
    owner, values = statics.table.owner.__qualname__, zip(statics.table.names, statics.values, strict=True)
    return json.dumps({name: _encode(value, f"{owner}.{name}") for name, value in values}).encode()


def _statics_from_json(cls: type[Any], data: bytes) -> Statics:
    encoded, table = json.loads(bytes(data)), info_of(cls).table
    if {*encoded} != {*table.names}:
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(encoded) or 'none'} of {cls.__qualname__}, which "
            f"now has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
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
