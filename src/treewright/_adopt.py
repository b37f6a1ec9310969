"""Wrapper nodes: `Static` for one value, `adopt` for another library's layer."""

import functools
import operator
import sys
import types
from collections.abc import Callable  # noqa: TC003  typing.get_type_hints asks for it
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from treewright._base.functions import is_state_of_nnx, public
from treewright._base.jax_private import Path, jax_trees, path_text
from treewright._base.text import short_text
from treewright._core import AnyStatic, buffer, field, flat_form, is_node, static
from treewright._freeze import FrozenMapping
from treewright._trees.level import is_none, reject_class
from treewright._trees.places import Place, walk
from treewright._trees.specs import Where  # noqa: TC001  typing.get_type_hints asks for it
from treewright._trees.where import chosen_leaves
from treewright.errors import StaticFieldError
from treewright.module import Module, pytree_dataclass

S = TypeVar("S", bound=AnyStatic)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


@pytree_dataclass
@public
class Static(Generic[S]):
    """A leafless node around one static value, for use inside lists, dicts and other containers.

    Attributes:
        value: Any value that a static field accepts.

    Raises:
        StaticFieldError: If the value can't be static.

    Examples:
        >>> settings = {"scale": 2.0, "mode": Static("train")}
        >>> jax.tree.leaves(settings)
        [2.0]
        >>> settings["mode"].value
        'train'
    """

    value: S = static()

    def __bool__(self) -> bool:
        """The truth value of `value`, for flags: `if settings["train"]:`."""
        return bool(self.value)

    def __eq__(self, other: object) -> Any:
        """Exact for two of them, as under `jit`; otherwise `==` of the value: `settings["mode"] == "train"`."""
        if isinstance(other, Static):
            return flat_form(self)[1] is flat_form(other)[1]
        return self.value == other

    def __hash__(self) -> int:
        return hash(self.value)


# equinox replaces leaves: its own error is "False is not a leaf of the pytree".
_INFERENCE_MODE = (
    "eqx.nn.inference_mode can't change an adopted layer, because its flags are statics. Adopt each layer again: "
    "model = at(model, Adopted).apply(lambda layer: adopt(eqx.nn.inference_mode(layer.tree)))"
)
_ARRAYS: Any = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, jax.Ref)


@public
class Adopted(Module, Generic[T_co], frozen=True):
    """A node around another library's layer or tree, returned by `adopt`.

    Call it like the layer; items and attributes are forwarded, except those that have the name of an attribute here.
    `tree` rebuilds the layer itself.

    Examples:
        >>> import equinox as eqx
        >>> dropout = adopt(eqx.nn.Dropout(0.5))
        >>> dropout(jnp.ones(2), inference=True).tolist(), dropout.p
        ([1.0, 1.0], 0.5)
    """

    arrays: T_co = field(doc="The layer, with `None` in place of the leaves that the other fields contain.")
    buffers: Any = buffer(doc="The layer with only the arrays that are not trained; None if it has none.", repr=False)
    others: FrozenMapping[str, Any] = static(doc="The leaves that are not arrays, by path.", repr=False)
    places: tuple[int, ...] = static(doc="The index of each of them among all leaves, including `None`s.", repr=False)
    settings: FrozenMapping[str, Any] = static(
        doc="The `aux_data` of the classes in the layer, by the path of each.", repr=False
    )

    @property
    def tree(self) -> T_co:
        """The layer itself, an instance of its library's class."""
        leaves, treedef = jax.tree.flatten(self.arrays, is_leaf=is_none)
        if self.buffers is not None:
            kept = jax.tree.leaves(self.buffers, is_leaf=is_none)
            leaves = [leaf if buffer is None else buffer for leaf, buffer in zip(leaves, kept, strict=True)]
        for place, leaf in zip(self.places, self.others.values(), strict=True):
            leaves[place] = leaf
        return cast("T_co", jax.tree.unflatten(treedef, leaves))

    def __call__(self: "Adopted[Callable[P, R]]", *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the layer.

        Raises:
            TypeError: If the call changes the layer, as batch normalisation in flax nnx does. `call_and_update` returns
                the changed layer.
        """
        return cast("R", _call(self, "__call__", *args, **kwargs))

    def call_and_update(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        """Call a layer that changes when it is called; return its output and the changed layer."""
        tree: Any = self.tree
        output = tree(*args, **kwargs)
        changed: Any = _adopted(tree, {path for path, _ in jax_trees.tree_leaves_with_path(self.buffers)})
        return output, changed

    def __getitem__(self, index: Any) -> Any:
        """An item of the layer, such as one layer of a sequence."""
        return cast("Any", self.tree)[index]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the layer. Its methods are called like the layer itself."""
        if name.startswith("__") or name == "tree":
            raise AttributeError(f"{type(self).__qualname__} has no attribute {name!r}")
        tree = self.tree
        is_mode = name == "inference" and sys._getframe(1).f_globals.get("__name__") == "equinox.nn._inference"
        if is_mode and any(map(_has_mode, jax.tree.leaves(tree, is_leaf=_has_mode))):
            raise TypeError(_INFERENCE_MODE)  # not an AttributeError: equinox would skip the layer
        value: Any = getattr(tree, name)
        if isinstance(value, types.MethodType) and value.__self__ is tree:
            return functools.partial(_call, self, name)
        return value


def _has_mode(layer: Any) -> bool:
    return hasattr(layer, "inference")


def _call(adopted: Adopted[Any], method: str, /, *args: Any, **kwargs: Any) -> Any:
    tree = adopted.tree
    before, treedef = jax_trees.tree_flatten(tree)
    output = getattr(tree, method)(*args, **kwargs)
    after, treedef_after = jax_trees.tree_flatten(tree)
    if treedef != treedef_after or not all(map(operator.is_, before, after)):
        raise TypeError(
            f"{type(tree).__qualname__}.{method} changed the layer, but an Adopted is immutable, so the new state "
            f"would be lost. Write output, layer = layer.call_and_update(...) to get the new layer, or call it in a "
            f"mode without changes."
        )
    return output


def adopt(tree: T, *, buffers: "Where[T] | None" = None) -> Adopted[T]:
    """Wrap another library's layer or tree in a node.

    Its arrays become children; functions, numbers, flags and everything else in its leaves and `aux_data` become exact
    statics. So a layer with other leaves than arrays works with plain `jit`, `grad`, `vmap`, optimisers and
    checkpoints. A layer with only arrays as leaves can be a field without `adopt`; with it, its settings are compared
    exactly. Arrays without gradients become buffers: integers, bools and random keys, such as those of `nnx.Dropout`;
    and, unless `buffers` is given, the variables of a flax nnx module that are not `nnx.Param`s.

    Args:
        tree: An `equinox.nn` layer, a flax nnx module, any pytree.
        buffers: The arrays that are not trained, besides those without gradients, in one of the forms of `where=` in
            `at`: a class whose instances contain them, such as `nnx.BatchStat`, a path, or a predicate of path and
            leaf.

    Raises:
        StaticFieldError: If a value in the layer that is not an array can't be static, such as a list in a static field
            of an `equinox.Module`.
        TypeError: If `tree` is a class, or a single value that is not a function.
        MissingPlaceError: If `buffers` selects nothing.
        ValueError: If `buffers` selects no array.

    Examples:
        >>> import equinox as eqx
        >>> class Net(Module):
        ...     mlp: Adopted[eqx.nn.MLP]
        ...     scale: jax.Array
        >>> net = Net(adopt(eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))), jnp.ones(()))
        >>> jax.jit(lambda net, x: net.scale * net.mlp(x))(net, jnp.ones(2)).shape
        (1,)
        >>> jax.grad(lambda net: net.mlp(jnp.ones(2))[0])(net).mlp.layers[0].weight.shape
        (8, 2)
    """
    reject_class("adopt", tree)
    if tree is None or (jax.tree_util.all_leaves([tree]) and not callable(tree)):
        raise TypeError(
            f"adopt() needs a layer or another tree, but got {short_text(tree)}. Declare a field for an array, and "
            f"static() for a setting."
        )
    return _adopted(tree, _paths_of_state(tree) if buffers is None else _chosen_paths(buffers, tree))


def _adopted(tree: T, buffers: set[Path]) -> Adopted[T]:
    """The node around a tree, with the arrays at some paths as buffers."""
    entries: list[tuple[Path, Any]]
    entries, treedef = jax_trees.tree_flatten_with_path(tree, is_leaf=is_none)
    arrays, kept = [None] * len(entries), [None] * len(entries)
    others: dict[int, tuple[str, Any]] = {}
    for place, (path, leaf) in enumerate(entries):
        if isinstance(leaf, _ARRAYS):
            is_buffer = path in buffers or not jnp.issubdtype(leaf.dtype, jnp.inexact)
            (kept if is_buffer else arrays)[place] = leaf
        elif leaf is not None:
            others[place] = path_text(path), leaf
    # `jit` compares aux_data with `==`, and `1 == True`.
    settings = {
        path_text(place.path): _setting(place.value, place.level.aux)
        for place in walk(Place(tree))
        if place.level is not None and place.level.aux is not None and not is_node(place.value)
    }
    try:
        return Adopted(
            treedef.unflatten(arrays),
            treedef.unflatten(kept) if any(leaf is not None for leaf in kept) else None,
            FrozenMapping(dict(others.values())),
            tuple(others),
            FrozenMapping(settings),
        )
    except StaticFieldError as error:
        raise StaticFieldError(f"adopt({type(tree).__qualname__}): {error}") from error


def _paths_of_state(tree: Any) -> set[Path]:
    """The paths of the arrays of flax.nnx that training must not change, such as the statistics of a `BatchNorm`."""
    variables = jax_trees.tree_leaves_with_path(tree, is_leaf=is_state_of_nnx)
    return {
        (*path, *inner)
        for path, variable in variables
        if is_state_of_nnx(variable)
        for inner, _ in jax_trees.tree_leaves_with_path(variable)
    }


def _chosen_paths(buffers: Any, tree: Any) -> set[Path]:
    """The paths of the arrays that `buffers` selects."""
    leaves = jax_trees.tree_leaves_with_path(tree)
    are_chosen = chosen_leaves(tree, buffers)
    pairs = zip(leaves, are_chosen, strict=True)
    paths = {path for (path, leaf), is_chosen in pairs if is_chosen and isinstance(leaf, _ARRAYS)}
    if not paths:
        raise ValueError(
            f"adopt({type(tree).__qualname__}, buffers={short_text(buffers)}) selects no array, so training would "
            f"change all of them. Pass a class or a place with arrays, or omit buffers."
        )
    return paths


def _setting(layer: Any, aux: Any) -> Any:
    """`aux_data` as a static. An attribute of the layer is not converted, so a list in one is rejected.

    Dicts here come from the layer's library. They are sorted, because the order of attributes changes when a layer is
    unflattened.
    """
    if any(aux is value for name, value in getattr(layer, "__dict__", {}).items() if not name.startswith("_")):
        return aux
    if type(aux) is dict:
        return FrozenMapping({name: _setting(layer, aux[name]) for name in sorted(aux, key=str)})
    return tuple(_setting(layer, part) for part in aux) if type(aux) in {list, tuple} else aux
