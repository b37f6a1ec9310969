"""`partition` and `combine`: split the leaves of a tree in two, and put them together again."""

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from treewright._core.jax_private import Path, jax_trees, path_text
from treewright._core.text import short_text
from treewright._trees.at import arguments_of
from treewright._trees.level import is_none, note_classes_made_again
from treewright._trees.specs import broadcast, spec_like, words_of_jax

T = TypeVar("T")

_FUNCTIONS = (types.MethodType, functools.partial)


def partition(tree: T, where: Any) -> tuple[T, T]:
    """Two trees of the same classes and statics: one with the leaves that are chosen, one with all the others.

    Each has `None` in place of what the other has, and `None` is not a leaf: `jax.grad` computes nothing for it, and an
    optimiser keeps nothing. `combine` puts them together again.

    Args:
        tree: A node, or any other tree.
        where: Which leaves are chosen: a mask, which is a tree of bools like `tree` or a prefix of it; a function that
            makes one of `tree`, such as `trainable`; a predicate of path and leaf; or a text, as in `at`.

    Raises:
        MissingPlaceError: If a text leads nowhere.
        TypeError: If the mask holds anything but bools.
        ValueError: If the mask is not a prefix of `tree`, or a name alone leads to several places.

    Examples:
        >>> class Norm(Module):
        ...     scale: jax.Array
        ...     mean: jax.Array = buffer()
        >>> weights, buffers = partition(Norm(jnp.ones(2), jnp.zeros(2)), trainable)
        >>> weights, buffers
        (Norm(scale=f32[2], mean=None), Norm(scale=None, mean=f32[2]))
        >>> partition({"kernel": 1.0, "bias": 2.0}, lambda path, leaf: "kernel" in path)
        ({'bias': None, 'kernel': 1.0}, {'bias': 2.0, 'kernel': None})
    """
    mask: Any = where
    # A model of bools is callable and a mask all the same. The methods of a node are trees to JAX, too.
    is_function = isinstance(mask, _FUNCTIONS) or (callable(mask) and jax.tree_util.all_leaves((mask,)))
    if isinstance(mask, str) or (is_function and arguments_of(mask) == 2):
        mask = spec_like(tree, default=False, where={mask: True})
    elif is_function:
        mask = _mask_by(mask, tree)
    chosen = broadcast("where=", mask, tree)
    wrong = [setting for setting in chosen if not isinstance(setting, bool | np.bool_)]
    if wrong:
        raise TypeError(f"A mask holds True or False for each leaf, got {short_text(wrong[0])}.")
    leaves, treedef = jax_trees.tree_flatten(tree)
    pairs = list(zip(leaves, chosen, strict=True))
    first: T = treedef.unflatten(leaf if keep else None for leaf, keep in pairs)
    rest: T = treedef.unflatten(None if keep else leaf for leaf, keep in pairs)
    return first, rest


def _mask_by(function: Callable[[Any], Any], tree: Any) -> Any:
    """The mask that a function makes of a tree, which a predicate of leaves would not."""
    takes = "partition calls a function of one argument with the whole tree; one of two with the path and each leaf"
    try:
        mask: Any = function(tree)
    except Exception as error:
        error.add_note(f"{takes}: lambda path, leaf: ...")
        raise
    if type(mask) in {bool, np.bool_} and not jax.tree_util.all_leaves((tree,)):
        raise TypeError(
            f"where= returned {mask} for the whole tree, and would choose {'all' if mask else 'none'} of its leaves: "
            f"{takes}. Write lambda path, leaf: ..."
        )
    return mask


def combine(*trees: T) -> T:
    """The tree that `partition` has split: each leaf from the one that has it.

    Raises:
        TypeError: If there are less than two.
        ValueError: If two have a leaf at one place; the message names it. Also if their classes or statics differ.

    Examples:
        >>> combine({"kernel": 1.0, "bias": None}, {"kernel": None, "bias": 2.0})
        {'bias': 2.0, 'kernel': 1.0}
    """
    if len(trees) < 2:  # partition() gives a pair, and one half alone is full of Nones
        raise TypeError(
            "combine() takes both trees that partition() has split: first, rest = partition(tree, where), then "
            "combine(first, rest)."
        )

    def present(path: Path, *leaves: Any) -> Any:
        values = [leaf for leaf in leaves if leaf is not None]
        if len(values) > 1:
            raise ValueError(
                f"{path_text(path) or 'The whole tree'} has a value in {len(values)} of the trees: "
                f"{', '.join(map(short_text, values))}. combine() takes trees that partition() has split, each leaf "
                "in one."
            )
        return values[0] if values else None

    try:
        combined: T = jax_trees.tree_map_with_path(present, *trees, is_leaf=is_none)
    except ValueError as error:
        error.args = (words_of_jax(error),)
        note_classes_made_again(error, *trees)
        raise
    return combined
