"""Arrays of a tree as refs, which change in place, and back."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import numpy as np

from treewright._core.converters import as_ref
from treewright._core.functions import class_of
from treewright._core.jax_private import jax_trees, path_text, typeof
from treewright._core.jax_refs import content_of, is_ref
from treewright._core.text import first_text, short_text
from treewright._trees.diff import differences
from treewright._trees.partition import Where, chosen_leaves
from treewright.errors import MissingPlaceError

T = TypeVar("T")


def to_refs(tree: T, where: "Where[T] | None" = None) -> T:
    """A tree of the same treedef with refs in place of arrays: `jax.Ref`s, which a jitted function changes in place.

    Each ref holds a copy, so an array that stands in two places becomes two refs. They keep dtypes and shardings, and
    are not weakly typed; numbers become refs too, and refs stay. No converter and no check runs.

    Args:
        tree: A node, or any other tree, of arrays, random keys and numbers.
        where: Which of them: what `at` takes, such as a path's text or `"**.mean"`, and all that is below; or a
            predicate of path and leaf. None for all.

    Raises:
        TypeError: If what is to be a ref is not an array or a number.
        MissingPlaceError: If there is nothing where `where` points.

    Examples:
        >>> metrics = to_refs({"loss": 0.0, "seen": 0})
        >>> @jax.jit
        ... def count_in(metrics, losses):
        ...     metrics["loss"][...] += losses.sum()
        ...     metrics["seen"][...] += losses.size
        >>> count_in(metrics, jnp.ones(3))
        >>> from_refs(metrics)
        {'loss': Array(3., dtype=float32), 'seen': Array(3, dtype=int32)}
    """

    def ref_of(path: str, leaf: Any) -> Any:
        if not is_ref(leaf) and not isinstance(leaf, jax.Array | np.ndarray | np.generic | int | float | complex):
            raise TypeError(
                f"{path or 'The tree'} is {first_text(leaf)}, and only arrays and numbers become refs. Make it a "
                f"static, or choose the others with where=."
            )
        return as_ref(leaf)

    return _changed(tree, where, ref_of)


def from_refs(tree: T, where: "Where[T] | None" = None) -> T:
    """A tree of the same treedef with arrays in place of refs: what they hold now. The refs stay as they are.

    Args:
        tree: A node, or any other tree; what is not a ref stays.
        where: Which refs: as for `to_refs`.

    Raises:
        MissingPlaceError: If there is nothing where `where` points.

    Examples:
        >>> refs = to_refs({"w": jnp.ones(2)})
        >>> before = from_refs(refs)
        >>> refs["w"][0] = 5.0
        >>> before["w"].tolist(), from_refs(refs)["w"].tolist()
        ([1.0, 1.0], [5.0, 1.0])
    """
    return _changed(tree, where, lambda _path, leaf: content_of(leaf))


def _changed(tree: T, where: Any, change: Callable[[str, Any], Any]) -> T:
    leaves, treedef = jax_trees.tree_flatten_with_path(tree)
    chosen = [True] * len(leaves) if where is None else chosen_leaves(tree, leaves, where)
    if where is not None and not any(chosen):
        raise MissingPlaceError(f"where= chooses no leaf of the {class_of(tree).__qualname__}.")
    pairs = zip(leaves, chosen, strict=True)
    changed: T = treedef.unflatten(
        [change(path_text(path), leaf) if is_chosen else leaf for (path, leaf), is_chosen in pairs]
    )
    return changed


def write_changes(refs: T, before: T, after: T) -> None:
    """Write into the refs of a tree what a function has made of what they held before; all of it, or nothing.

    What is the same object before and after is not written.
    """
    entries, treedef = jax_trees.tree_flatten_with_path(refs)
    name = class_of(refs).__qualname__
    if jax.tree.structure(after) != treedef:
        first = next(iter(differences(before, after, values=False)))
        raise TypeError(f"{name} can't change its structure in place: {first}.")
    leaves = zip(entries, jax.tree.leaves(before), jax.tree.leaves(after), strict=True)
    changed = [(path, leaf, new) for (path, leaf), old, new in leaves if new is not old]
    for path, leaf, new in changed:
        if not is_ref(leaf):
            raise TypeError(
                f"{name}{path_text(path)} is {short_text(leaf)}, not a ref, so its new value would be lost. Make refs "
                f"of the whole tree before the first step: to_refs(...)."
            )
        if (leaf.shape, leaf.dtype) != (np.shape(new), typeof(new).dtype):
            raise TypeError(f"{name}{path_text(path)} is {short_text(leaf)}, and can't hold {short_text(new)}.")
    for _, ref, new in changed:
        ref[...] = new


def first_ref(tree: object) -> str | None:
    """The path of the first ref in a tree; None if there is none."""
    return next((path_text(path) for path, leaf in jax_trees.tree_leaves_with_path(tree) if is_ref(leaf)), None)
