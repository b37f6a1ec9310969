"""Register classes with JAX."""

import operator
from collections.abc import Callable, Iterable
from typing import Any

from treewright._base.jax_private import jax_trees
from treewright._core.info import FLAT_FORM_NAME
from treewright._core.pickles import Recipe
from treewright._core.rules.classes import registered_twice
from treewright._core.statics import MAX_CHECKED_NODES, Statics
from treewright.errors import NodeDefinitionError

_new: Any = object.__new__
_store: Any = object.__setattr__


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
        raise NodeDefinitionError(registered_twice(cls)) from None
