"""`register_dataclass`: a dataclass of somebody else becomes a pytree with exact statics, and stays as it is."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from treewright._jax import GetAttrKey, jax_trees
from treewright._nodes.fields import options_of
from treewright._nodes.foreign import refuse_builtin_base, refuse_registered
from treewright._nodes.node import with_close_matches
from treewright._nodes.others import register_for_export, register_for_flax
from treewright._nodes.statics import Statics, StaticTable
from treewright._values.text import first_text
from treewright.errors import NodeDefinitionError

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
    names = _field_names(cls)
    wanted = set(static)
    wrong = sorted(wanted - {*names})
    if wrong:
        raise NodeDefinitionError(
            f"register_dataclass: {cls.__qualname__} has no field {', '.join(with_close_matches(wrong, names))}. Its "
            f"fields: {', '.join(names) or 'none'}."
        )
    options = {field.name: options_of(field) for field in dataclasses.fields(cls)}
    statics = tuple(
        name for name, option in options.items() if name in wanted or (option is not None and option.kind == "static")
    )
    table = StaticTable(
        cls, statics, tuple(option is not None and option.compare == "content" for option in map(options.get, statics))
    )
    _register(cls, tuple(name for name in names if name not in statics), table)
    return cls


def _field_names(cls: Any) -> list[str]:
    if not isinstance(cls, type) or "__dataclass_fields__" not in vars(cls):
        raise NodeDefinitionError(
            f"register_dataclass takes a class that is a dataclass itself, got {first_text(cls)}. Decorate your own "
            f"class with @pytree_dataclass."
        )
    if hasattr(cls, "__node_spec__"):
        raise NodeDefinitionError(f"register_dataclass: {cls.__qualname__} is a node already. Drop the call.")
    refuse_registered(cls)
    refuse_builtin_base(cls)
    return [field.name for field in dataclasses.fields(cls)]


def _register(cls: type[Any], children: tuple[str, ...], table: StaticTable) -> None:
    keys = [GetAttrKey(name) for name in children]
    store: Any = object.__setattr__

    def flatten(instance: Any) -> tuple[tuple[Any, ...], Statics]:
        statics = table.find(tuple([getattr(instance, name) for name in table.names]))
        return tuple([getattr(instance, name) for name in children]), statics

    def flatten_with_keys(instance: Any) -> tuple[tuple[tuple[Any, Any], ...], Statics]:
        values, statics = flatten(instance)
        return tuple(zip(keys, values, strict=True)), statics

    def unflatten(statics: Statics, values: Iterable[Any]) -> Any:
        instance = object.__new__(cls)
        for name, value in zip(children, values, strict=True):
            store(instance, name, value)
        for name, value in zip(table.names, statics.values, strict=True):
            store(instance, name, value)
        return instance

    jax_trees.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    setattr(cls, "__node_statics__", table)  # noqa: B010  pickles of treedefs find it there, and jax.export
    register_for_export(cls, unflatten)
    register_for_flax(
        cls,
        lambda instance: dict(zip(children, flatten(instance)[0], strict=True)),
        lambda instance, values: unflatten(flatten(instance)[1], values),
    )
