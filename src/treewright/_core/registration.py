"""Register classes with JAX and `jax.export`, and with flax where it is in use."""

import dataclasses
import itertools
import operator
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any

import jax.export

from treewright._core.instance import PAIR, from_flat_form
from treewright._core.jax_private import jax_trees
from treewright._core.statics import Statics
from treewright.errors import NodeDefinitionError

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


@dataclasses.dataclass(frozen=True)
class Registration:
    """The mark of a class that JAX knows; where `cloudpickle` brings the class to a new process, it tells JAX there."""

    cls: type[Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return (register_once, (self.cls,))


def _flatten_with_keys(node: Any) -> tuple[Iterable[tuple[Any, Any]], Statics]:
    children, statics = node._node
    match children:  # one and two without a `zip`, which takes a fifth longer (benchmarks: flatten with path)
        case (one, two):
            first, second = statics.table.keys
            return ((first, one), (second, two)), statics
        case (one,):
            return ((statics.table.keys[0], one),), statics
        case _:
            return zip(statics.table.keys, children), statics  # noqa: B905  strict= takes a third of the time


def register_once(cls: type[Any]) -> Registration:
    """Make JAX see the instances of a node class, unless it does; nothing here depends on the fields."""
    if "__node_registered__" in vars(cls):
        known: Registration = vars(cls)["__node_registered__"]
        return known
    slot: Any = getattr(cls, PAIR, None)  # a Module has one, and storing past the name is a sixth faster
    # One store of the pair, not one for each field: 20 children cost what 1 costs (benchmarks: node).
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

    register_with_jax(cls, _flatten_with_keys, unflatten, operator.attrgetter(PAIR))
    register_for_export(cls, lambda statics, children: from_flat_form(cls, (tuple(children), statics)))
    if "flax.serialization" in sys.modules:
        _register_for_flax(cls, sys.modules["flax.serialization"])
    cls.__node_registered__ = registration = Registration(cls)
    return registration


def register_with_jax(cls: type[Any], *functions: Callable[..., Any]) -> None:
    """Let JAX take instances of the class apart, unless it can already."""
    try:
        jax_trees.register_pytree_with_keys(cls, *functions)
    except ValueError:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is registered with JAX already, by another decorator, a call or a base class that "
            f"registers its subclasses, and JAX keeps one form of each class. Drop that (treewright.Module can stand "
            f"in the place of such a base), or leave {cls.__name__} as it is: a node may hold it in a field."
        ) from None


def register_for_export(
    cls: type[Any], from_children: Callable[[Any, Iterable[Any]], Any], name: str | None = None
) -> None:
    """Give the class a stable name, `module.Class`, under which `jax.export` finds it in another process.

    A class that is made again under one name, as by running a notebook cell again, gets a number after the name, which
    says no more than that.
    """
    name = serialized_name = name or f"{cls.__module__}.{cls.__qualname__}"
    register: Any = jax.export.register_pytree_node_serialization
    while True:
        try:
            register(
                cls,
                serialized_name=serialized_name,
                serialize_auxdata=lambda aux_data: _others().serialize(aux_data),
                deserialize_auxdata=lambda data: _others().deserialize(cls, data),
                from_children=from_children,
            )
        except ValueError:  # the name is taken
            serialized_name = f"{name}#{next(_MADE_AGAIN)}"
        else:
            return


def _register_for_flax(cls: type[Any], serialization: Any) -> None:
    """Let `flax.serialization` make state dicts of nodes, and nodes of state dicts."""
    serialization.register_serialization_state(
        cls,
        lambda node: _others().to_state_dict(node, serialization),
        lambda node, state: _others().from_state_dict(node, state, serialization),
    )


def _others() -> Any:
    """What `jax.export` and flax need of node classes, imported when one of them asks."""
    from treewright import _register

    return _register
