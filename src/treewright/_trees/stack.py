"""Many trees of one kind as one tree with a leading axis, and one random key for each leaf."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._arguments import cured
from treewright._core import is_node
from treewright._core.jax_private import Path, jax_trees, path_text
from treewright._core.text import shape_text, short_text, text

T = TypeVar("T")

_OF_STRUCTURE = frozenset({"class", "static", "added", "removed"})


@cured(lambda _args, _kwargs: "It takes a list of trees: stack([one, another]).")
def stack(trees: Sequence[T]) -> T:
    """One tree of the same treedef, whose leaves have a new first axis: an ensemble, or layers for `scan`.

    Leaves have to agree in shape and dtype. Python numbers become arrays. No converter and no check runs.

    Raises:
        ValueError: If there are no trees, if classes, statics, shapes or dtypes differ; the message names the place.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> stack([Layer(jnp.ones((2, 3))) for _ in range(5)])
        Layer(kernel=f32[5,2,3])
    """
    if is_node(trees) or isinstance(trees, Mapping):
        raise TypeError(f"stack() takes a list of trees, got a {type(trees).__qualname__}: stack([one, another]).")
    trees = list(trees)
    if not trees:
        raise ValueError("stack() takes at least one tree: the result has to have a structure.")
    first, treedef = jax_trees.tree_flatten_with_path(trees[0])
    types = [_type_of(path, leaf) for path, leaf in first]
    columns: list[list[Any]] = [[leaf] for _, leaf in first]
    for index, tree in enumerate(trees[1:], 1):
        if jax.tree.structure(tree) != treedef:
            from treewright._trees.diff import differences

            of_structure = (d for d in differences(trees[0], tree, values=False) if d.kind in _OF_STRUCTURE)
            raise ValueError(f"Tree {index} is not like tree 0: {next(of_structure)}.")
        for (path, _), kind, column, other in zip(first, types, columns, jax.tree.leaves(tree), strict=True):
            if _type_of(path, other) != kind:
                raise ValueError(
                    f"{_name(tree, path)} is {_type_of(path, other)} in tree {index} and {kind} in tree 0. Only leaves "
                    f"of one shape and dtype can be stacked."
                )
            column.append(other)
    stacked: T = treedef.unflatten(map(jnp.stack, columns))
    return stacked


def unstack(tree: T) -> list[T]:
    """The trees that `stack` has stacked: one for each index of the first axis.

    Raises:
        ValueError: If the leaves have no first axis of one length; the message names the place.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> unstack(Layer(jnp.ones((2, 3))))
        [Layer(kernel=f32[3]), Layer(kernel=f32[3])]
    """
    length = _length(tree)
    leaves, treedef = jax_trees.tree_flatten(tree)
    columns = [jnp.unstack(jnp.asarray(leaf)) for leaf in leaves]
    trees: list[T] = [treedef.unflatten(column[index] for column in columns) for index in range(length)]
    return trees


def node_at(tree: T, index: int | jax.Array) -> T:
    """One of the trees that `stack` has stacked.

    Args:
        tree: The stacked tree.
        index: Which one; from the end if negative. It may be traced, and is clamped to the length then, as JAX does.

    Raises:
        IndexError: If there is no tree at the index.
        ValueError: If the leaves have no first axis of one length.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        >>> node_at(Layer(jnp.arange(6).reshape(2, 3)), -1).kernel.tolist()
        [3, 4, 5]
    """
    if not _is_number(index):
        raise TypeError(f"node_at(tree, index) takes the number of a tree, got {short_text(index)}.")
    length = _length(tree)
    if not isinstance(index, Tracer) and not -length <= operator.index(index) < length:
        raise IndexError(f"There is no tree at {index}: {_name(tree, ())} holds {length}, at 0 to {length - 1}.")
    leaves, treedef = jax_trees.tree_flatten(tree)
    node: T = treedef.unflatten(jnp.asarray(leaf)[index] for leaf in leaves)
    return node


def _is_number(index: Any) -> bool:
    if hasattr(index, "dtype"):
        return bool(jnp.issubdtype(index.dtype, jnp.integer)) and jnp.shape(index) == ()
    return hasattr(index, "__index__") and not isinstance(index, bool)  # which would be a mask


def split_key_like(key: jax.Array, tree: T) -> T:
    """A tree of the same treedef with a random key in place of each leaf, each independent of the others.

    Args:
        key: `key<fry>[]` from `jax.random.key`, or a legacy `u32[2]`.
        tree: A node, or any other tree.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     bias: jax.Array
        >>> layer = Layer(jnp.zeros((2, 3)), jnp.zeros(3))
        >>> keys = split_key_like(jax.random.key(0), layer)
        >>> jax.tree.map(lambda leaf, key: leaf + jax.random.normal(key, leaf.shape), layer, keys)
        Layer(kernel=f32[2,3], bias=f32[3])
    """
    if not hasattr(key, "dtype"):
        raise TypeError(
            f"split_key_like(key, tree) takes a key such as jax.random.key(0) first, got {short_text(key)}."
        )
    treedef = jax_trees.tree_structure(tree)
    keys: T = treedef.unflatten(jax.random.split(key, treedef.num_leaves))
    return keys


def _type_of(path: Path, leaf: Any) -> str:
    """`f32[2,3]`: what has to be the same in trees that are stacked."""
    if not hasattr(leaf, "dtype") and not isinstance(leaf, int | float | complex):
        raise ValueError(
            f"{path_text(path) or 'The leaf'} is {text(leaf)}, which is not an array and has no axes. If it is the "
            f"same in all trees, make it a static."
        )
    return shape_text(jnp.result_type(leaf), jnp.shape(leaf))


def _length(tree: Any) -> int:
    leaves: list[tuple[Path, Any]]
    leaves, _ = jax_trees.tree_flatten_with_path(tree)
    if not leaves:
        raise ValueError(f"{type(tree).__qualname__} has no leaves, so it does not say how many trees it holds.")
    lengths = [(path, jnp.shape(leaf)[:1]) for path, leaf in leaves]
    first_path, first = lengths[0]
    for path, length in lengths:
        if not length or length != first:
            types = ", ".join(
                f"{_name(tree, place)} is {_type_of(place, leaf)}"
                for place, leaf in leaves
                if place in {first_path, path}
            )
            raise ValueError(f"The leaves of a stacked tree have a first axis of one length, but {types}.")
    return first[0]


def _name(tree: object, path: Path) -> str:
    return path_text(path, "The array" if isinstance(tree, jax.Array | np.ndarray) else type(tree).__qualname__)
