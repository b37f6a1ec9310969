"""Specs: trees with one setting for each leaf of a tree. A mask is a spec of bools."""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar, overload

import jax

from treewright._base.jax_private import Path, jax_trees, path_text
from treewright._base.text import short_text, with_article
from treewright._core import flat_form, is_node, spec_of
from treewright._trees.at import arguments_of, select
from treewright._trees.level import Place, is_none, note_redefined_classes, reject_classes

T = TypeVar("T")
Where: TypeAlias = "str | tuple[Any, ...] | Callable[[T], Any] | Callable[[str, Any], Any]"


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
        where: The settings of some leaves, by place as in `at`, such as a path, `"**.bias"` or a function of the tree,
            or by a predicate of path and leaf. All leaves below a place get its setting, and later entries override
            earlier ones. A tuple, list or dict here is one setting; as `default` it would be a prefix.

    Raises:
        MissingPlaceError: If a place does not exist.
        TypeError: If `where` is not a mapping, or a predicate returns None for every leaf.
        ValueError: If a place is a static, a bare name matches several places, or `default` is not a prefix of `tree`.

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
    reject_classes("spec_like", tree)
    places: Any = where
    is_swapped = where is None and isinstance(default, Mapping) and not isinstance(tree, Mapping)
    if is_swapped or not isinstance(places, Mapping | None):
        wrong = f"default={short_text(default)}" if is_swapped else f"where={short_text(where)}"
        raise TypeError(
            f"The third argument of spec_like must be a mapping from places to settings, got {wrong}. Write "
            f"spec_like(tree, default, {{place: setting}})."
        )
    leaves, treedef = jax_trees.tree_flatten_with_path(tree)
    settings = broadcast("default=", default, tree)
    for place, setting in (where or {}).items():
        chosen = chosen_leaves(tree, leaves, place)
        settings = [setting if change else old for change, old in zip(chosen, settings, strict=True)]
    return treedef.unflatten(settings)


def broadcast(argument: str, prefix: Any, tree: object) -> list[Any]:
    """The settings of a prefix, repeated for each leaf of the tree."""
    settings: list[Any] = []

    def add(setting: Any, part: Any) -> None:
        settings.extend([setting] * len(jax.tree.leaves(part)))

    try:
        jax.tree.map(add, prefix, tree, is_leaf=is_none)
    except ValueError as error:
        rejection = ValueError(f"{argument} is not a prefix of the tree. {jax_error_text(error)}")
        note_redefined_classes(rejection, prefix, tree)
        raise rejection from error
    return settings


def jax_error_text(error: ValueError) -> str:
    """JAX's message about two different trees, without `tree_map` as the name of the first."""
    return re.sub(
        r"(pytree )?tree_map(?:_with_path)? tree", lambda found: "pytree" if found[1] else "the tree", str(error)
    )


def chosen_leaves(tree: Any, leaves: list[tuple[Path, Any]], where: str | Path | Callable[..., Any]) -> list[bool]:
    """For each leaf, whether `where` selects it: it is below a place, or the predicate is true for it."""
    if not isinstance(where, str | tuple) and arguments_of(where) == 2:
        results = [where(path_text(path), leaf) for path, leaf in leaves]
        if results and all(map(is_none, results)):
            raise TypeError("The predicate returned None for every leaf. Does it lack a return?")
        return list(map(bool, results))
    selection = select(tree, where)
    places = {place.path for place in selection.places}
    chosen = [any(path[:end] in places for end in range(len(path) + 1)) for path, _ in leaves]
    statics = [place.path for place in selection.places if _is_static(place)]
    if statics and not (selection.is_search and any(chosen)):
        names = ", ".join(map(path_text, statics))
        raise ValueError(
            f"{names} of {with_article(type(tree).__qualname__)} is static, so it has no leaf and no setting. To "
            f"change it: at(tree, where).set(value)."
        )
    return chosen


def _is_static(place: Place) -> bool:
    parents = ((step.key, step.parent) for step in place.ancestors if step.parent)
    return any(all(key != child.key for child in parent.children()) for key, parent in parents)


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
    mask: T = jax_trees.tree_structure(tree).unflatten(_are_trained(tree))
    return mask


def _are_trained(tree: Any) -> list[bool]:
    """The mask of `trainable` as a list, in the order of the leaves."""
    are_trained: list[bool] = []
    for part in jax_trees.tree_leaves(tree, is_node):
        if not is_node(part):
            are_trained.append(True)
            continue
        for field, child in zip(spec_of(part).children, flat_form(part)[0], strict=True):
            inner = _are_trained(child)
            are_trained += [False] * len(inner) if field.kind == "buffer" else inner
    return are_trained
