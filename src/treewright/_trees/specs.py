"""Specs: trees with one setting for each leaf of a tree. A mask is a spec of bools."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

from treewright._base.jax_private import jax_trees
from treewright._base.text import short_text
from treewright._core import flat_form, info_of, is_node_class
from treewright._trees.level import reject_classes
from treewright._trees.where import broadcast, chosen_leaves

T = TypeVar("T")
Where: TypeAlias = "str | type[Any] | Callable[[T], Any] | Callable[[str, Any], bool]"


@overload
def spec_like(tree: T, default: Any = None, where: Mapping[str, Any] | None = None) -> T: ...
@overload
def spec_like(tree: T, default: Any, where: "Mapping[Where[T], Any]") -> T: ...
@overload
def spec_like(tree: T, default: Any = None, *, where: "Mapping[Where[T], Any]") -> T: ...
def spec_like(tree: Any, default: Any = None, where: Mapping[Any, Any] | None = None) -> Any:
    """A spec: a tree like `tree` with one setting per leaf.

    For arguments such as `in_axes` and `out_axes` of `vmap`, shardings, optax's masks and labels. Converters and checks
    do not run.

    Args:
        tree: A node, or any other tree.
        default: The setting of every other leaf. It may be a prefix of `tree`: a tree that ends earlier, and each of
            its settings applies to all leaves below.
        where: The settings of some leaves, by `where=` as in `at`: a path, `"**.bias"`, a class or a function of the
            tree, or a predicate of path and value. All leaves below a place get its setting, and later entries override
            earlier ones. A tuple, list or dict here is one setting; as `default` it would be a
            prefix.

    Raises:
        MissingPlaceError: If a place does not exist, or a pattern, predicate or class selects nothing.
        TypeError: If `where` is not a mapping, or a predicate returns anything but a bool.
        ValueError: If a place is a static or contains no leaf, or `default` is not a prefix of `tree`.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     bias: jax.Array
        >>> layers = [Layer(jnp.ones((2, 3)), jnp.ones(3)), Layer(jnp.ones((3, 1)), jnp.ones(1))]
        >>> spec_like(layers, True, {"**.bias": False})
        [Layer(kernel=True, bias=False), Layer(kernel=True, bias=False)]
        >>> spec_like(layers, "small", {lambda path, value: path.endswith("kernel"): "large", "[1]": None})
        [Layer(kernel='large', bias='small'), Layer(kernel=None, bias=None)]
    """
    reject_classes("spec_like", tree)
    if not isinstance(where, Mapping | None):
        raise TypeError(
            f"where= of spec_like must be a mapping from places to settings, got {short_text(where)}. Write "
            f"spec_like(tree, default, {{place: setting}})."
        )
    treedef = jax_trees.tree_structure(tree)
    settings = broadcast("default=", default, tree)
    for place, setting in (where or {}).items():
        chosen = chosen_leaves(tree, place)
        settings = [setting if change else old for change, old in zip(chosen, settings, strict=True)]
    return treedef.unflatten(settings)


def trainable(tree: T) -> T:
    """A mask of the same treedef: `False` for leaves in `buffer()` fields, `True` for all other leaves.

    For `partition`, and for optax without `TrainState`, because optax does not know about buffers:
    `optax.partition({True: tx, False: optax.set_to_zero()}, trainable)`.

    Raises:
        TypeError: If `tree` is a class.

    Examples:
        >>> class Norm(Module):
        ...     scale: jax.Array
        ...     mean: jax.Array = buffer()
        >>> trainable({"norm": Norm(jnp.ones(2), jnp.zeros(2))})
        {'norm': Norm(scale=True, mean=False)}
    """
    reject_classes("trainable", tree)
    mask: T = jax_trees.tree_structure(tree).unflatten(trained_leaves(tree))
    return mask


_ARRAYS = (jax.Array, np.ndarray, float)  # leaves for certain; finding that out from JAX takes ten times as long


def trained_leaves(tree: Any) -> list[bool]:
    """The mask of `trainable` as a list, in the order of the leaves."""
    known: dict[type[Any], bool] = {}  # asked of each node and leaf

    def has_buffers(value: Any) -> bool:
        cls = type(value)
        if cls not in known:
            known[cls] = is_node_class(cls) and any(field.kind == "buffer" for field in info_of(cls).children)
        return known[cls]

    trained: list[bool] = []
    for part in jax_trees.tree_leaves(tree, has_buffers):
        if not has_buffers(part):
            trained.append(True)
            continue
        for field, child in zip(info_of(part).children, flat_form(part)[0], strict=True):
            inner = [True] if isinstance(child, _ARRAYS) else trained_leaves(child)
            trained += [False] * len(inner) if field.kind == "buffer" else inner
    return trained
