"""`stack`, `unstack` and `node_at` for trees with a leading axis."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.core import Tracer

from treewright._base.jax_private import Path, is_ref, jax_trees, path_text
from treewright._base.text import class_name, shape_text, short_text, text, with_article
from treewright._core import is_node
from treewright._reports import counted
from treewright._trees.level import leaf_type_of, reject_class, reject_classes

T = TypeVar("T")

_OF_STRUCTURE = frozenset({"class", "static", "added", "removed"})


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
    first, treedef = jax_trees.tree_flatten_with_path(trees[0])
    types = [_type_of(path, leaf) for path, leaf in first]
    columns: list[list[Any]] = [[leaf] for _, leaf in first]
    for index, tree in enumerate(trees[1:], 1):
        if jax.tree.structure(tree) != treedef:
            from treewright._trees.diff import differences

            first_difference = next(d for d in differences(trees[0], tree, values=False) if d.kind in _OF_STRUCTURE)
            fix = _fix_for(first_difference.left)
            raise ValueError(f"Tree {index} differs from tree 0: {first_difference}.{fix}")
        for (path, _), kind, column, other in zip(first, types, columns, jax.tree.leaves(tree), strict=True):
            if _type_of(path, other) != kind:
                raise ValueError(
                    f"{path_text(path, class_name(tree))} is {_type_of(path, other)} in tree {index} and {kind} in "
                    f"tree 0. Only leaves with the same shape and dtype can be stacked."
                )
            column.append(other)
    stacked: T = treedef.unflatten(map(jnp.stack, columns))
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


def _type_of(path: Path, leaf: Any) -> str:
    """The dtype and shape of a leaf, `f32[2,3]`, which must be the same in all trees."""
    aval = leaf_type_of(leaf).aval
    if aval is None or is_ref(leaf):
        raise ValueError(
            f"{path_text(path) or 'The leaf'} is {text(leaf)}, but only arrays and numbers can be stacked. If it is "
            f"the same in all trees, make it a static."
        )
    return shape_text(aval.dtype, aval.shape)


def _length(tree: Any) -> int:
    leaves: list[tuple[Path, Any]]
    leaves, _ = jax_trees.tree_flatten_with_path(tree)
    if not leaves:
        raise ValueError(f"{type(tree).__qualname__} has no leaves, so the number of trees in it is unknown.")
    types = [_type_of(path, leaf) for path, leaf in leaves]
    lengths = [jnp.shape(leaf)[:1] for _, leaf in leaves]
    wrong = next((index for index, length in enumerate(lengths) if not length or length != lengths[0]), None)
    if wrong is not None:
        shown = [f"{path_text(leaves[index][0], class_name(tree))} is {types[index]}" for index in sorted({0, wrong})]
        raise ValueError(f"All leaves of a stacked tree must have the same first-axis length, but {', '.join(shown)}.")
    return lengths[0][0]
