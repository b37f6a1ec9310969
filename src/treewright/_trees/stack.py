"""`stack`, `unstack` and `node_at` for trees with a leading axis."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

from treewright._base.jax_private import is_ref, jax_trees, path_text
from treewright._base.text import class_name, shape_text, short_text, text, with_article
from treewright._core import is_node
from treewright._reports import counted, first_names
from treewright._trees.diff import differences
from treewright._trees.level import leaf_type_of, reject_class, reject_classes

T = TypeVar("T")


def stack(trees: Sequence[T]) -> T:
    """One tree with the same treedef, whose leaves have a new first axis: an ensemble, or layers for `scan`.

    Leaves must have the same shape and dtype. Numpy arrays and Python numbers become JAX arrays. Converters and checks
    do not run.

    Raises:
        ValueError: If the list is empty, or if classes, statics, shapes or dtypes differ; the message names the place.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> stack([Layer(jnp.ones((2, 3))) for _ in range(5)])
        Layer(kernel=f32[5,2,3])
    """
    reject_class("stack", trees)
    if is_node(trees) or isinstance(trees, Mapping):
        kind = with_article(type(trees).__qualname__)
        raise TypeError(f"stack() needs a list of trees, but got {kind}. Write stack([one, another]).")
    trees = list(trees)
    reject_classes("stack", *trees)
    if not trees:
        raise ValueError("stack() needs at least one tree, for the structure of the result.")
    _types_of(trees[0])
    for index, tree in enumerate(trees[1:], 1):
        for difference in differences(trees[0], tree, values=False):
            if difference.kind != "weak_type":
                raise ValueError(f"Tree {index} differs from tree 0: {difference}.{_fix_for(difference.left)}")
    stacked: T = jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
    return stacked


def _fix_for(static: Any) -> str:
    """How to stack states with different optimisers, as in a sweep of rates; empty for any other static."""
    if not (callable(getattr(static, "init", None)) and callable(getattr(static, "update", None))):
        return ""
    return (
        "\nStates can be stacked if they share one tx. For a sweep of rates, keep the rate in the optimiser's state:\n"
        "  tx = optax.inject_hyperparams(optax.sgd)(learning_rate=0.1)\n"
        "  state.replace(opt_state=optax.tree.set(state.opt_state, learning_rate=rate)) for each rate"
    )


def unstack(tree: T) -> list[T]:
    """Undo `stack`: one tree per index of the first axis.

    Raises:
        ValueError: If the leaves do not all have the same first-axis length; the message names the place.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> unstack(Layer(jnp.ones((2, 3))))
        [Layer(kernel=f32[3]), Layer(kernel=f32[3])]
    """
    reject_classes("unstack", tree)
    return [node_at(tree, index) for index in range(_length(tree))]


def node_at(tree: T, index: int | jax.Array) -> T:
    """One tree of a stack.

    Args:
        tree: The stacked tree.
        index: The number of the tree, from the end if negative. A traced index is clamped to the length, as in JAX.

    Raises:
        IndexError: If the index is out of range.
        ValueError: If the leaves do not all have the same first-axis length.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> node_at(Layer(jnp.arange(6).reshape(2, 3)), -1).kernel.tolist()
        [3, 4, 5]
    """
    reject_classes("node_at", tree)
    number = leaf_type_of(index).aval
    if number is None or number.shape or not jnp.issubdtype(number.dtype, jnp.integer):
        raise TypeError(f"The index of node_at(tree, index) must be an integer, got {short_text(index)}.")
    length = _length(tree)
    if not isinstance(index, Tracer) and not -length <= operator.index(index) < length:
        raise IndexError(f"Index {index} is out of range: {class_name(tree)} contains {counted(length, 'tree')}.")
    leaves, treedef = jax_trees.tree_flatten(tree)
    node: T = treedef.unflatten(jnp.asarray(leaf)[index] for leaf in leaves)
    return node


def _types_of(tree: Any) -> dict[str, Any]:
    """JAX's type of each leaf, by path."""
    types = {}
    for path, leaf in jax_trees.tree_leaves_with_path(tree):
        name, aval = path_text(path, class_name(tree)), leaf_type_of(leaf).aval
        if aval is None or is_ref(leaf):
            raise ValueError(
                f"{name} is {text(leaf)}, but only arrays and numbers can be stacked. If it is the same in all trees, "
                f"make it a static."
            )
        types[name] = aval
    return types


def _length(tree: Any) -> int:
    by_length: dict[Any, str] = {}
    for name, aval in _types_of(tree).items():
        by_length.setdefault(aval.shape[:1], f"{name} is {shape_text(aval.dtype, aval.shape)}")
    if not by_length:
        raise ValueError(f"{type(tree).__qualname__} has no leaves, so the number of trees in it is unknown.")
    if () in by_length or len(by_length) > 1:
        raise ValueError(
            f"All leaves of a stacked tree must have the same first-axis length, but {first_names(by_length.values())}."
        )
    ((length,),) = by_length
    return int(length)
