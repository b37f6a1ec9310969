"""`partition` and `combine`: split the leaves of a tree in two, and merge the halves."""

from typing import Any, TypeVar

from treewright._base.jax_private import Path, jax_trees, path_text
from treewright._base.text import short_text
from treewright._trees.level import is_none, reject_classes
from treewright._trees.places import note_redefined_classes
from treewright._trees.specs import trainable, trained_leaves
from treewright._trees.where import chosen_leaves, jax_error_text

T = TypeVar("T")


def partition(tree: T, where: Any) -> tuple[T, T]:
    """Split a tree in two: one half has the selected leaves, the other the rest; `None` fills the gaps.

    Both halves have the classes and statics of `tree`. `None` is not a leaf: `jax.grad` computes nothing for it, and an
    optimiser has no state for it. `combine` merges the halves.

    Args:
        tree: A node, or any other tree.
        where: The leaves to select, as in `at`: most often a mask or a function that returns one, such as `trainable`,
            or a path or pattern. All leaves below a place are selected.

    Raises:
        MissingPlaceError: If `where` selects nothing, and is not a mask.
        TypeError: If the mask contains anything but bools, or a predicate returns anything else.
        ValueError: If the mask is not a prefix of `tree`, or the selected place is a static or contains no leaf.

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
    reject_classes("partition", tree)
    # Without `trainable`'s mask, which takes as long as a half.
    chosen = trained_leaves(tree) if where is trainable else chosen_leaves(tree, where)
    leaves, treedef = jax_trees.tree_flatten(tree)
    pairs = list(zip(leaves, chosen, strict=True))
    first: T = treedef.unflatten(leaf if keep else None for leaf, keep in pairs)
    rest: T = treedef.unflatten(None if keep else leaf for leaf, keep in pairs)
    return first, rest


def combine(*trees: T) -> T:
    """Merge the halves returned by `partition`.

    Raises:
        TypeError: If there are fewer than two.
        ValueError: If two have a leaf at the same place; the message names it. Also if their classes or statics differ.

    Examples:
        >>> combine({"kernel": 1.0, "bias": None}, {"kernel": None, "bias": 2.0})
        {'bias': 2.0, 'kernel': 1.0}
    """
    reject_classes("combine", *trees)
    if len(trees) < 2:  # one half without the other is full of Nones
        raise TypeError(
            "combine() needs both halves returned by partition(): first, rest = partition(tree, where), then "
            "combine(first, rest)."
        )

    def present(path: Path, *leaves: Any) -> Any:
        values = [leaf for leaf in leaves if leaf is not None]
        if len(values) > 1:
            raise ValueError(
                f"{path_text(path) or 'The whole tree'} has a value in {len(values)} of the trees: "
                f"{', '.join(map(short_text, values))}. combine() merges the halves returned by partition(), where "
                f"each leaf is in exactly one."
            )
        return values[0] if values else None

    try:
        combined: T = jax_trees.tree_map_with_path(present, *trees, is_leaf=is_none)
    except ValueError as error:
        error.args = (jax_error_text(error),)
        note_redefined_classes(error, *trees)
        raise
    return combined
