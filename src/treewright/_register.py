"""`register_dataclass`, for a class that you can't decorate; and nodes in `jax.export` and `flax.serialization`."""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from treewright._core.fields import options_of
from treewright._core.instance import flat_form, from_flat_form
from treewright._core.jax_private import GetAttrKey
from treewright._core.registration import refuse_base, register_for_export, register_with_jax
from treewright._core.statics import Statics, StaticTable, table_in
from treewright._core.text import short_text, with_close_matches
from treewright._json import decode, encode
from treewright.errors import NodeDefinitionError, StaticSerializationError

C = TypeVar("C", bound=type[Any])


def register_dataclass(cls: C, /, *, static: Iterable[str] = ()) -> C:
    """Let JAX take instances of an existing dataclass apart: for one that you can't decorate, such as a third party's.

    As `jax.tree_util.register_dataclass`, but the statics are compared as exactly as those of a node, two classes never
    have equal treedefs, and what JAX puts together runs no constructor, `__post_init__` or check. The class is not made
    a node: its methods and instances stay what they are, those that were made before work too, and a static that can't
    be one is refused when JAX takes an instance apart. A class that you can edit is better decorated with
    `pytree_dataclass`, which refuses it when the instance is made, and costs less in every call.

    All fields count, those with `init=False` too; other attributes are lost. A subclass needs a call of its own. If the
    class is not frozen, JAX sees the values of the moment.

    Args:
        cls: A dataclass, by `dataclasses` or a library that uses it.
        static: Names of fields that are static, besides those whose metadata says so: `{"static": True}`, flax's
            `{"pytree_node": False}`, or `treewright.static()`.

    Returns:
        The class.

    Raises:
        NodeDefinitionError: If it is not a dataclass, is a pytree already, has a base such as `dict` whose instances
            hold more than fields, or has no field of a name. Nothing is registered then.

    Examples:
        >>> import dataclasses, treewright
        >>> @dataclasses.dataclass(frozen=True)
        ... class Grid:  # of some package
        ...     values: jax.Array
        ...     spacing: float
        ...     periodic: bool = False
        >>> _ = treewright.register_dataclass(Grid, static=["spacing", "periodic"])
        >>> jax.jit(lambda grid: grid.values / grid.spacing)(Grid(jnp.ones(2), 0.5)).tolist()
        [2.0, 2.0]
    """
    if "__dataclass_fields__" not in getattr(cls, "__dict__", ()):
        raise NodeDefinitionError(
            f"register_dataclass takes a class that is a dataclass itself, got {short_text(cls)}. Decorate your own "
            f"class with @pytree_dataclass."
        )
    refuse_base(cls)
    wanted = set(static)
    options = {field.name: options_of(field) for field in dataclasses.fields(cls)}
    if wrong := sorted(wanted - options.keys()):
        raise NodeDefinitionError(
            f"register_dataclass: {cls.__qualname__} has no field {with_close_matches(wrong, options)}. Its "
            f"fields: {', '.join(options) or 'none'}."
        )
    wanted.update(name for name, option in options.items() if option.get("kind") == "static")
    statics = tuple(name for name in options if name in wanted)
    children = tuple(name for name in options if name not in wanted)
    content = tuple(options[name].get("compare") == "content" for name in statics)
    table, keys = StaticTable(cls, statics, content, children), [GetAttrKey(name) for name in children]

    def flatten(instance: Any) -> tuple[tuple[Any, ...], Statics]:
        values = table.find(tuple([getattr(instance, name) for name in statics]))
        return tuple([getattr(instance, name) for name in children]), values

    def flatten_with_keys(instance: Any) -> tuple[Iterable[tuple[Any, Any]], Statics]:
        values, aux_data = flatten(instance)
        return zip(keys, values, strict=True), aux_data

    def unflatten(aux_data: Statics, values: Iterable[Any]) -> Any:
        instance = object.__new__(cls)
        for name, value in zip((*children, *statics), (*values, *aux_data.values), strict=True):
            object.__setattr__(instance, name, value)
        return instance

    register_with_jax(cls, flatten_with_keys, unflatten, flatten)
    setattr(cls, "__node_statics__", table)  # noqa: B010  pickles of treedefs find it there, and jax.export
    register_for_export(cls, unflatten)
    return cls


# Programs of `jax.export`


def serialize(aux_data: Any) -> bytes:
    """The names and values of the statics, or the function of a method, as JSON."""
    if not isinstance(aux_data, Statics):
        return json.dumps(encode(aux_data)).encode()
    forms: dict[str, Any] = {}
    for name, value in zip(aux_data.names, aux_data.values, strict=True):
        try:
            forms[name] = encode(value)
        except StaticSerializationError as error:
            raise StaticSerializationError(f"{aux_data.table.owner.__qualname__}.{name}: {error}") from error
    return json.dumps(forms).encode()


def deserialize(cls: type[Any], data: bytes | bytearray) -> Any:
    """The `aux_data` of `cls` from what `serialize` wrote."""
    forms, table = json.loads(bytes(data)), table_in(cls)
    if table is None:
        return decode(forms)
    if set(forms) != set(table.names):
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(forms) or 'none'} of {cls.__qualname__}, which now "
            f"has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
        )
    return table.intern(tuple([decode(forms[name]) for name in table.names]))


# State dicts of flax


def to_state_dict(node: Any, serialization: Any) -> dict[str, Any]:
    """The children of a node by name, as state dicts. The statics are left out."""
    children, statics = flat_form(node)
    return dict(zip(statics.table.children, map(serialization.to_state_dict, children), strict=True))


def from_state_dict(node: Any, state: Any, serialization: Any) -> Any:
    """A node with the children that a state dict holds and the statics of `node`."""
    children, statics = flat_form(node)
    cls, names = type(node), statics.table.children
    if not isinstance(state, Mapping) or set(state) != set(names):
        raise ValueError(
            f"{cls.__qualname__} has the children {', '.join(names) or 'none'}, and the state dict at "
            f"{serialization.current_path()} holds {', '.join(map(str, state)) or 'none'}. It was written by "
            f"another class or another version of this one: change the names in the dict, then restore it."
        )
    values = map(serialization.from_state_dict, children, [state[name] for name in names], names)
    return from_flat_form(cls, (tuple(values), statics))
