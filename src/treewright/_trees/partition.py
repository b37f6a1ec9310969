"""Trees of settings: one for each leaf of a tree, in a tree of the same treedef. Masks are such trees too."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import jax
import numpy as np

from treewright._core.functions import class_of
from treewright._core.instance import finished_pair, from_pair, is_node
from treewright._core.jax_private import Path, jax_trees, path_text
from treewright._core.spec import spec_of
from treewright._core.text import first_text
from treewright._trees.at import arguments_of, select
from treewright._trees.diff import telling_of_classes
from treewright._trees.level import Place, is_none

T = TypeVar("T")
_MAPPING: Any = Mapping  # after `isinstance` with it, keys and values are still `Any`
Where: TypeAlias = "str | Callable[[T], Any] | Callable[[str, Any], Any]"


@overload
def spec_like(tree: T, default: Any = None, where: Mapping[str, Any] | None = None) -> T: ...
@overload
def spec_like(tree: T, default: Any, where: "Mapping[Where[T], Any]") -> T: ...
@overload
def spec_like(tree: T, default: Any = None, *, where: "Mapping[Where[T], Any]") -> T: ...
def spec_like(tree: Any, default: Any = None, where: Mapping[Any, Any] | None = None) -> Any:
    """A tree of the same treedef with a setting in place of each leaf.

    For whatever takes settings as a tree: `in_axes` and `out_axes` of `vmap`, shardings, optax's masks and labels. No
    converter and no check runs on it.

    Args:
        tree: A node, or any other tree.
        default: The setting of every other leaf. It may be a prefix of `tree`: a tree that ends earlier, whose settings
            hold for all that is below them.
        where: The settings of some leaves, by place: what `at` takes, such as the text of a path, `"**.bias"` or a
            function over the tree; all that is below the place gets the setting. Or by a predicate of path and leaf. A
            later entry wins over an earlier one. Here a setting may be a tuple, list or dict, which as the default
            would be a prefix.

    Raises:
        MissingPlaceError: If a place is not there.
        TypeError: If `where` is not a mapping.
        ValueError: If a place is a static, a name alone leads to several places, or `default` is not a prefix of
            `tree`.

    Examples:
        >>> class Layer(Module):
        ...     kernel: jax.Array
        ...     bias: jax.Array
        >>> layers = [Layer(jnp.ones((2, 3)), jnp.ones(3)), Layer(jnp.ones((3, 1)), jnp.ones(1))]
        >>> spec_like(layers, True, {"**.bias": False})
        [Layer(kernel=True, bias=False), Layer(kernel=True, bias=False)]
        >>> spec_like(layers, "small", {lambda path, leaf: leaf.size > 3: "large", "[1]": None})
        [Layer(kernel='large', bias='small'), Layer(kernel=None, bias=None)]
    """
    leaves: list[tuple[Path, Any]]
    leaves, treedef = jax_trees.tree_flatten_with_path(tree)
    if where is not None and not isinstance(where, _MAPPING):
        raise TypeError(
            f"spec_like(tree, default, where) takes a mapping from places to settings as where, got "
            f"{first_text(where)}. Write spec_like(tree, default, {{place: setting}})."
        )
    settings = _broadcast("default=", default, tree)
    for place, setting in (where or {}).items():
        chosen = chosen_leaves(tree, leaves, place)
        settings = [setting if change else old for change, old in zip(chosen, settings, strict=True)]
    return treedef.unflatten(settings)


def _broadcast(argument: str, prefix: Any, tree: object) -> list[Any]:
    """The settings of a prefix, one for each leaf of the whole tree."""
    settings: list[Any] = []

    def add(setting: Any, part: Any) -> None:
        settings.extend([setting] * len(jax.tree.leaves(part)))

    try:
        with telling_of_classes(prefix, tree):
            jax.tree.map(add, prefix, tree, is_leaf=is_none)
    except ValueError as error:
        raise ValueError(f"{argument} is not a prefix of the tree. {_of_jax(error)}") from error
    return settings


def _of_jax(error: ValueError) -> str:
    """What JAX says of two trees that differ, without the name of its function that it gives the first."""
    return re.sub(r"(?:pytree )?tree_map(?:_with_path)? tree", "the tree", str(error))


def chosen_leaves(tree: Any, leaves: list[tuple[Path, Any]], where: str | Callable[..., Any]) -> list[bool]:
    """Which leaves `where` points at: those below its places, or those of which a predicate is true."""
    if not isinstance(where, str) and arguments_of(where) == 2:
        return [bool(where(path_text(path), leaf)) for path, leaf in leaves]
    places = {place.path: place for place in select(tree, where).places}
    chosen = [any(path[:end] in places for end in range(len(path) + 1)) for path, _ in leaves]
    if not any(chosen) and all(map(_is_static, places.values())):
        names = ", ".join(map(path_text, places))
        raise ValueError(
            f"{names} of a {class_of(tree).__qualname__} is static. It is not part of the tree, and takes no setting."
        )
    return chosen


def _is_static(place: Place) -> bool:
    return any(all(step.key != child.key for child in step.above.children()) for step in place.way if step.above)


def trainable(tree: T) -> T:
    """A mask of the same treedef: `False` for what is in a `buffer()` field, `True` for every other leaf.

    For `optax.masked` and the like, which take the function itself as well as its result, and for `partition`.

    Examples:
        >>> class Norm(Module):
        ...     scale: jax.Array
        ...     mean: jax.Array = buffer()
        >>> trainable({"norm": Norm(jnp.ones(2), jnp.zeros(2))})
        {'norm': Norm(scale=True, mean=False)}
    """

    def mask(part: Any) -> Any:
        if not is_node(part):
            return True
        children, statics = finished_pair(part)
        masks = (
            spec_like(child, default=False) if field.kind == "buffer" else trainable(child)
            for field, child in zip(spec_of(part).children, children, strict=True)
        )
        return from_pair(class_of(part), (tuple(masks), statics))

    masked: T = jax.tree.map(mask, tree, is_leaf=is_node)
    return masked


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
    is_function = callable(mask) and not is_node(mask)
    if isinstance(mask, str) or (is_function and arguments_of(mask) == 2):
        mask = spec_like(tree, default=False, where={mask: True})
    elif is_function:
        mask = _mask_by(mask, tree)
    chosen = _broadcast("where=", mask, tree)
    wrong = [setting for setting in chosen if not isinstance(setting, bool | np.bool_)]
    if wrong:
        raise TypeError(f"A mask holds True or False for each leaf, got {first_text(wrong[0])}.")
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
    if class_of(mask) in {bool, np.bool_} and not jax.tree_util.all_leaves((tree,)):
        raise TypeError(
            f"where= returned {mask} for the whole tree, and would choose {'all' if mask else 'none'} of its leaves: "
            f"{takes}. Write lambda path, leaf: ..."
        )
    return mask


def combine(*trees: T) -> T:
    """The tree that `partition` has split: each leaf from the one that has it.

    Raises:
        ValueError: If two have a leaf at one place; the message names it. Also if their classes or statics differ.

    Examples:
        >>> combine({"kernel": 1.0, "bias": None}, {"kernel": None, "bias": 2.0})
        {'bias': 2.0, 'kernel': 1.0}
    """

    def the_one_of(path: Path, *leaves: Any) -> Any:
        present = [leaf for leaf in leaves if leaf is not None]
        if len(present) > 1:
            raise ValueError(
                f"{path_text(path) or 'The whole tree'} has a value in {len(present)} of the trees: "
                f"{', '.join(map(first_text, present))}. combine() takes trees that partition() has split, each leaf "
                "in one."
            )
        return present[0] if present else None

    if not trees or (len(trees) == 1 and class_of(trees[0]) is tuple):  # what partition() gives, as it is
        raise TypeError("combine() takes the trees that partition() has split: combine(*partition(tree, where)).")
    try:
        with telling_of_classes(*trees):
            combined: T = jax_trees.tree_map_with_path(the_one_of, *trees, is_leaf=is_none)
    except ValueError as error:
        error.args = (_of_jax(error),)
        raise
    return combined
