"""Trees that are added: what differs in structure, shape and dtype, as far as it matters to a sum."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from treewright._base.jax_private import jax_trees
from treewright._trees.level import leaf_type_of

if TYPE_CHECKING:
    from treewright._trees.difference import Difference


def differences(root: str, left: Any, right: Any, *, with_types: bool = False) -> "list[Difference]":
    """The differences that prevent adding two trees; with `with_types`, also those that would retrace a jitted step."""
    (leaves, treedef), (others, other) = jax_trees.tree_flatten(left), jax_trees.tree_flatten(right)
    if treedef == other and all(map(_are_alike, leaves, others)):  # diff.differences would take five times as long
        return []
    from treewright._trees import diff  # not needed in most steps

    kinds = {"class", "static", "added", "removed", "shape", *(("dtype", "value") if with_types else ())}
    found = diff.differences(left, right, values=False, path=(root,))
    return [each for each in found if each.kind in kinds or (each.kind == "dtype" and _loses(each.left, each.right))]


def _are_alike(left: Any, right: Any) -> bool:
    """Whether two leaves are arrays with the same shape and dtype."""
    return hasattr(left, "dtype") and left.dtype == getattr(right, "dtype", None) and left.shape == right.shape


def _loses(left: Any, right: Any) -> bool:
    """Whether a sum in the dtype of the first would lose information of the second, or the second has no gradients."""
    to, of = map(_rank, (left, right))
    return of > to or of < 0 < to


def _rank(leaf: Any) -> int:
    """0 for integers, 1 for real and 2 for complex numbers; -1 for bools, and for the gradients of integers."""
    kinds: tuple[Any, ...] = (jnp.integer, jnp.floating, jnp.complexfloating)
    dtype = leaf_type_of(leaf).aval.dtype
    return next((rank for rank, kind in enumerate(kinds) if jnp.issubdtype(dtype, kind)), -1)


def are_per_example(weights: Any, grads: Any) -> bool:
    """Whether the gradients have one more leading axis, of equal length in all."""
    leaves, others = jax.tree.leaves(weights), jax.tree.leaves(grads)
    lengths = {np.shape(other)[:1] for other in others}
    return len(lengths) == 1 and [*map(np.shape, leaves)] == [np.shape(other)[1:] for other in others]
