"""Register classes with JAX, `jax.export` and flax; and `register_dataclass`, for a class that you can't decorate."""

import dataclasses
import itertools
import json
import operator
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import jax.export

from treewright._core.fields import options_of
from treewright._core.instance import PAIR, flat_form, from_flat_form, with_close_matches
from treewright._core.jax_private import GetAttrKey, jax_trees
from treewright._core.statics import Statics, StaticTable, table_in
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError, StaticSerializationError

C = TypeVar("C", bound=type[Any])

_new: Any = object.__new__
_store: Any = object.__setattr__
_MADE_AGAIN = itertools.count(2)  # one for all names: to try the numbers of each took 10 ms for the 1,600th


def refuse_base(cls: type[Any]) -> None:
    """Refuse a subclass of `list`, `Exception` and the like."""
    for base in cls.__mro__:
        if base is not object and isinstance(vars(base).get("__new__"), types.BuiltinFunctionType):
            raise NodeDefinitionError(
                f"{cls.__qualname__} is a subclass of {base.__qualname__}, and can't be a node: JAX takes instances "
                f"apart into their fields and puts them together from these, and what a {base.__qualname__} holds "
                f"besides would be lost. Drop the base, and keep what it held in a field."
            )


def registered_already(cls: type[Any]) -> NodeDefinitionError:
    """The error for a class that JAX knows."""
    return NodeDefinitionError(
        f"{cls.__qualname__} is registered with JAX already, by another decorator, a call or a base class that "
        f"registers its subclasses, and JAX keeps one form of each class. Drop that (treewright.Module can stand in "
        f"the place of such a base), or leave {cls.__name__} as it is: a node may hold it in a field."
    )


# Nodes


@dataclasses.dataclass(frozen=True)
class Registration:
    """The mark of a class that JAX knows; where `cloudpickle` brings the class to a new process, it tells JAX there."""

    cls: type[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return (register_once, (self.cls,))


def _flatten_with_keys(node: Any) -> tuple[Iterable[tuple[Any, Any]], Statics]:
    children, statics = node._node
    keys = statics.table.keys
    count = len(keys)
    if count == 2:  # without a `zip`, which takes a fifth longer, and a third for one (benchmarks: flatten with path)
        (first, second), (one, two) = keys, children
        return ((first, one), (second, two)), statics
    if count == 1:
        return ((keys[0], children[0]),), statics
    return zip(keys, children), statics  # noqa: B905  strict= takes a third of the time


def register_once(cls: type[Any]) -> Registration:
    """Make JAX see the instances of a node class, unless it does; nothing here depends on the fields."""
    if "__node_registered__" in vars(cls):
        known: Registration = vars(cls)["__node_registered__"]
        return known
    slot: Any = getattr(cls, PAIR, None)  # a Module has one, and storing past the name is a sixth faster
    store_in_slot: Any = getattr(slot, "__set__", None)

    # One store of the pair, not one for each field: 20 children cost what 1 costs (benchmarks: node).
    def unflatten(statics: Statics, children: tuple[Any, ...]) -> Any:
        node: Any = _new(cls)
        _store(node, "_node", (children, statics))
        return node

    def unflatten_slot(statics: Statics, children: tuple[Any, ...]) -> Any:
        node: Any = _new(cls)
        store_in_slot(node, (children, statics))
        return node

    try:
        jax_trees.register_pytree_with_keys(
            cls, _flatten_with_keys, unflatten if slot is None else unflatten_slot, operator.attrgetter(PAIR)
        )
    except ValueError:
        raise registered_already(cls) from None
    register_for_export(cls, lambda statics, children: from_flat_form(cls, (tuple(children), statics)))
    if "flax.serialization" in sys.modules:
        _register_for_flax(cls, sys.modules["flax.serialization"])
    cls.__node_registered__ = registration = Registration(cls)
    return registration


def register_for_export(cls: type[Any], from_children: Callable[[Any, Iterable[Any]], Any]) -> None:
    """Give the class a stable name, `module.Class`, under which `jax.export` finds it in another process.

    A class that is made again under one name, as by running a notebook cell again, gets a number after the name, which
    says no more than that.
    """
    name = serialized_name = f"{cls.__module__}.{cls.__qualname__}"
    register: Any = jax.export.register_pytree_node_serialization
    while True:
        try:
            register(
                cls,
                serialized_name=serialized_name,
                serialize_auxdata=serialize,
                deserialize_auxdata=lambda data: deserialize(cls, data),
                from_children=from_children,
            )
        except ValueError:  # the name is taken
            serialized_name = f"{name}#{next(_MADE_AGAIN)}"
        else:
            return


def serialize(statics: Statics) -> bytes:
    """The names and values of the statics as JSON."""
    from treewright._json import encode

    forms: dict[str, Any] = {}
    for name, value in zip(statics.names, statics.values, strict=True):
        try:
            forms[name] = encode(value)
        except StaticSerializationError as error:
            raise StaticSerializationError(f"{statics.table.owner.__qualname__}.{name}: {error}") from error
    return json.dumps(forms).encode()


def deserialize(cls: type[Any], data: bytes | bytearray) -> Statics:
    """The statics of `cls` from what `serialize` wrote."""
    from treewright._json import decode

    forms, table = json.loads(bytes(data)), table_in(cls)
    assert table is not None
    if set(forms) != set(table.names):
        raise StaticSerializationError(
            f"The exported program has the static fields {', '.join(forms) or 'none'} of {cls.__qualname__}, which now "
            f"has {', '.join(table.names) or 'none'}. Export it again with this version of the class."
        )
    return table.intern(tuple([decode(forms[name]) for name in table.names]))


def to_json(function: Any) -> bytes:
    """The `aux_data` of a method, which is a function, as JSON."""
    from treewright._json import encode

    return json.dumps(encode(function)).encode()


def from_json(data: bytes | bytearray) -> Any:
    """The function that `to_json` wrote."""
    from treewright._json import decode

    return decode(json.loads(bytes(data)))


def _register_for_flax(cls: type[Any], serialization: Any) -> None:
    """Let `flax.serialization` make state dicts of nodes: children by name. Statics stay those of the target."""

    def to_state_dict(node: Any) -> dict[str, Any]:
        children, statics = flat_form(node)
        return dict(zip(statics.table.children, map(serialization.to_state_dict, children), strict=True))

    def from_state_dict(node: Any, state: Any) -> Any:
        children, statics = flat_form(node)
        names = statics.table.children
        if not isinstance(state, Mapping) or set(state) != set(names):
            raise ValueError(
                f"{cls.__qualname__} has the children {', '.join(names) or 'none'}, and the state dict at "
                f"{serialization.current_path()} holds {', '.join(map(str, state)) or 'none'}. It was written by "
                f"another class or another version of this one: change the names in the dict, then restore it."
            )
        values = map(serialization.from_state_dict, children, [state[name] for name in names], names)
        return from_flat_form(cls, (tuple(values), statics))

    serialization.register_serialization_state(cls, to_state_dict, from_state_dict)


# Dataclasses as they are


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
        instance = _new(cls)
        for name, value in zip((*children, *statics), (*values, *aux_data.values), strict=True):
            _store(instance, name, value)
        return instance

    try:
        jax_trees.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    except ValueError:
        raise registered_already(cls) from None
    setattr(cls, "__node_statics__", table)  # noqa: B010  pickles of treedefs find it there, and jax.export
    register_for_export(cls, unflatten)
    return cls
