"""Specs: trees with one setting for each leaf of another tree. A mask is a spec of bools."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import jax

from treewright._core import flat_form, from_flat_form, is_node, spec_of
from treewright._core.jax_private import Path, jax_trees, path_text
from treewright._core.text import short_text
from treewright._trees.at import arguments_of, select
from treewright._trees.level import Place, is_none, note_classes_made_again

T = TypeVar("T")
Where: TypeAlias = "str | tuple[Any, ...] | Callable[[T], Any] | Callable[[str, Any], Any]"


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
    if where is None and isinstance(default, Mapping) and not isinstance(tree, Mapping):
        raise TypeError(
            f"spec_like(tree, default, where) takes the mapping as where, after the setting of all other leaves, got "
            f"default={short_text(default)}. Write spec_like(tree, default, {{place: setting}})."
        )
    if where is not None and not isinstance(where, Mapping):
        raise TypeError(
            f"spec_like(tree, default, where) takes a mapping from places to settings as where, got "
            f"{short_text(where)}. Write spec_like(tree, default, {{place: setting}})."
        )
    leaves, treedef = jax_trees.tree_flatten_with_path(tree)
    settings = broadcast("default=", default, tree)
    for place, setting in (where or {}).items():
        chosen = chosen_leaves(tree, leaves, place)
        settings = [setting if change else old for change, old in zip(chosen, settings, strict=True)]
    return treedef.unflatten(settings)


def broadcast(argument: str, prefix: Any, tree: object) -> list[Any]:
    """The settings of a prefix, one for each leaf of the whole tree."""
    settings: list[Any] = []

    def add(setting: Any, part: Any) -> None:
        settings.extend([setting] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(add, prefix, tree, is_leaf=is_none)
    except ValueError as error:
        refused = ValueError(f"{argument} is not a prefix of the tree. {words_of_jax(error)}")
        note_classes_made_again(refused, prefix, tree)
        raise refused from error
    return settings


def words_of_jax(error: ValueError) -> str:
    """JAX's message on two trees that differ, without the name of its function that it gives the first."""
    return re.sub(r"(?:pytree )?tree_map(?:_with_path)? tree", "the tree", str(error))


def chosen_leaves(tree: Any, leaves: list[tuple[Path, Any]], where: str | Path | Callable[..., Any]) -> list[bool]:
    """Which leaves `where` points at: those below its places, or those of which a predicate is true."""
    if not isinstance(where, str | tuple) and arguments_of(where) == 2:
        return [bool(where(path_text(path), leaf)) for path, leaf in leaves]
    places = {place.path: place for place in select(tree, where).places}
    chosen = [any(path[:end] in places for end in range(len(path) + 1)) for path, _ in leaves]
    if not any(chosen) and all(map(_is_static, places.values())):
        names = ", ".join(map(path_text, places))
        raise ValueError(
            f"{names} of a {type(tree).__qualname__} is static. It is not part of the tree, and takes no setting."
        )
    return chosen


def _is_static(place: Place) -> bool:
    return any(all(step.key != child.key for child in step.above.children()) for step in place.way if step.above)


def trainable(tree: T) -> T:
    """A mask of the same treedef: `False` for what is in a `buffer()` field, `True` for every other leaf.

    For `partition`, and for optax without `TrainState`, which knows no buffers:
    `optax.partition({True: tx, False: optax.set_to_zero()}, trainable)`.

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
        children, statics = flat_form(part)
        masks = (
            spec_like(child, default=False) if field.kind == "buffer" else trainable(child)
            for field, child in zip(spec_of(part).children, children, strict=True)
        )
        return from_flat_form(type(part), (tuple(masks), statics))

    masked: T = jax.tree.map(mask, tree, is_leaf=is_node)
    return masked
