"""Register classes with JAX and `jax.export`."""

import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax.export

from treewright._base.functions import native_base
from treewright._base.jax_private import jax_trees
from treewright._base.text import with_article
from treewright._core.instance import FLAT_FORM, from_flat_form
from treewright._core.statics import Statics
from treewright.errors import NodeDefinitionError

_new: Any = object.__new__
_store: Any = object.__setattr__
_REDEFINED = itertools.count(2)  # One counter for all names: trying each name's numbers took 10 ms for the 1,600th.


def refuse_base(cls: type[Any]) -> None:
    """Raise for a subclass of `list`, `Exception` and other classes written in C."""
    base = native_base(cls)
    if base is not None:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a subclass of {base.__qualname__}, so it can't be a node: JAX flattens a node into "
            f"its fields and rebuilds it from them, so all other contents of {with_article(base.__qualname__)} would "
            f"be lost. Remove the base class, and store its contents in a field."
        )


@dataclasses.dataclass(frozen=True)
class Registration:
    """Marks a class as registered with JAX. When `cloudpickle` rebuilds the class, unpickling this registers it."""

    cls: type[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return (register_once, (self.cls,))


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


def register_once(cls: type[Any]) -> Registration:
    """Register a node class with JAX, unless it is registered. Nothing here depends on the fields."""
    if "__node_registered__" in vars(cls):
        existing: Registration = vars(cls)["__node_registered__"]
        return existing
    slot: Any = getattr(cls, FLAT_FORM, None)  # A Module has a slot; setting it directly is 15 % faster.
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

    register_with_jax(cls, _flatten_with_keys, unflatten, operator.attrgetter(FLAT_FORM))
    register_for_export(cls, lambda statics, children: from_flat_form(cls, (tuple(children), statics)))
    cls.__node_registered__ = registration = Registration(cls)
    return registration


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


def register_for_export(
    cls: type[Any], from_children: Callable[[Any, Iterable[Any]], Any], name: str | None = None
) -> None:
    """Register the class for `jax.export` under a stable name, `module.Class`, so that other processes find it.

    If a class is redefined, for example by running a notebook cell again, a number follows the name.
    """
    name = serialized_name = name or f"{cls.__module__}.{cls.__qualname__}"
    register: Any = jax.export.register_pytree_node_serialization
    while True:
        try:
            register(
                cls,
                serialized_name=serialized_name,
                serialize_auxdata=write_aux_data,
                deserialize_auxdata=lambda data: read_aux_data(data, cls),
                from_children=from_children,
            )
        except ValueError:  # the name is taken
            serialized_name = f"{name}#{next(_REDEFINED)}"
        else:
            return


@functools.singledispatch
def write_aux_data(aux_data: object) -> bytes:
    """The `aux_data` of a node as bytes for `jax.export`; implemented in `treewright._export`."""
    raise NotImplementedError(aux_data)


@functools.singledispatch
def read_aux_data(data: object, cls: type[Any]) -> Any:
    """The `aux_data` of a class from the bytes of `write_aux_data`."""
    raise NotImplementedError(data, cls)
