"""Nodes around what is none: `Static` around one value, `adopt` around a layer of another library."""

import functools
import operator
import types
from collections.abc import Callable  # noqa: TC003  typing.get_type_hints asks for it
from typing import Any, Generic, ParamSpec, Self, TypeVar, cast

import jax
import numpy as np

from treewright._core import AnyStatic, FrozenMapping, Module, buffer, field, is_node, public, pytree_dataclass, static
from treewright._core.jax_private import Path, jax_trees, path_text
from treewright._core.text import short_text
from treewright._trees.level import Place, is_none, walk
from treewright._trees.specs import Where, chosen_leaves
from treewright.errors import StaticFieldError

S = TypeVar("S", bound=AnyStatic)
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
R = TypeVar("R")


@pytree_dataclass
@public("treewright")
class Static(Generic[S]):
    """A node without leaves that holds one static value, for places that have no field to mark.

    Attributes:
        value: Anything that a static field can hold.

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
        """That of the value, so that a flag can be asked as it is: `if settings["train"]:`."""
        return bool(self.value)


_ARRAYS: Any = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct, jax.Ref)


@public("treewright")
class Adopted(Module, Generic[T_co], frozen=True):
    """A layer, or any other tree, of another library as a node. `adopt` makes it.

    It is called as the layer is, and gives the layer's attributes and items. `tree` is the layer itself, put together
    anew each time.

    Examples:
        >>> import equinox as eqx
        >>> dropout = adopt(eqx.nn.Dropout(0.5))
        >>> dropout(jnp.ones(2), inference=True).tolist(), dropout.p
        ([1.0, 1.0], 0.5)
    """

    arrays: T_co = field(doc="The layer, with `None` in place of what the other fields hold.")
    buffers: Any = buffer(
        doc="The same with the arrays that training leaves alone; None if there are none.", repr=False
    )
    others: FrozenMapping[str, Any] = static(doc="The leaves that are not arrays, by path.", repr=False)
    places: tuple[int, ...] = static(doc="The place of each of them among all leaves, `None` counted.", repr=False)
    settings: FrozenMapping[str, Any] = static(
        doc="The `aux_data` of the classes in the layer, by the path of each.", repr=False
    )

    @property
    def tree(self) -> T_co:
        """The layer, as its own library has it."""
        leaves, treedef = jax.tree.flatten(self.arrays, is_leaf=is_none)
        if self.buffers is not None:
            kept = jax.tree.leaves(self.buffers, is_leaf=is_none)
            leaves = [leaf if buffer is None else buffer for leaf, buffer in zip(leaves, kept, strict=True)]
        for place, leaf in zip(self.places, self.others.values(), strict=True):
            leaves[place] = leaf
        return cast("T_co", jax.tree.unflatten(treedef, leaves))

    def __call__(self: "Adopted[Callable[P, R]]", *args: P.args, **kwargs: P.kwargs) -> R:
        """What the layer gives.

        Raises:
            TypeError: If the call has changed the layer, as batch normalisation of flax nnx does. `call_and_update`
                keeps the change.
        """
        return cast("R", _call(self, "__call__", *args, **kwargs))

    def call_and_update(self, *args: Any, **kwargs: Any) -> tuple[Any, Self]:
        """What the layer gives, and the layer as the call has left it: for layers that change when they are called."""
        tree: Any = self.tree
        output = tree(*args, **kwargs)
        changed: Any = _adopted(tree, {path for path, _ in jax_trees.tree_leaves_with_path(self.buffers)})
        return output, changed

    def __getitem__(self, index: Any) -> Any:
        """An item of the layer, such as one layer of a sequence."""
        return cast("Any", self.tree)[index]

    def __getattr__(self, name: str) -> Any:
        """An attribute of the layer. Its methods run as the layer itself does when it is called."""
        if name.startswith("__") or name == "tree":
            raise AttributeError(f"{type(self).__qualname__} has no attribute {name!r}")
        tree = self.tree
        value: Any = getattr(tree, name)
        if isinstance(value, types.MethodType) and value.__self__ is tree:
            return functools.partial(_call, self, name)
        return value


def _call(adopted: Adopted[Any], method: str, /, *args: Any, **kwargs: Any) -> Any:
    tree = adopted.tree
    before, treedef = jax_trees.tree_flatten(tree)
    output = getattr(tree, method)(*args, **kwargs)
    after, treedef_after = jax_trees.tree_flatten(tree)
    if treedef != treedef_after or not all(map(operator.is_, before, after)):
        raise TypeError(
            f"{type(tree).__qualname__}.{method} has changed the layer, and what an Adopted holds does not change: the "
            "new state would be lost. Write output, layer = layer.call_and_update(...) and keep the new layer, or call "
            "the layer in the mode in which it changes nothing."
        )
    return output


def adopt(tree: T, *, buffers: "type[Any] | Where[T] | None" = None) -> Adopted[T]:
    """A node around a layer, or any other tree, of another library.

    Its arrays become children; functions, numbers, flags and all else that its leaves and `aux_data` hold become exact
    statics. So a layer whose leaves are not all arrays passes through plain `jit`, `grad`, `vmap`, optimisers and
    checkpoints. A layer whose leaves are arrays can be a field as it is; adopted, its settings are compared exactly.

    Args:
        tree: An `equinox.nn` layer, a flax nnx module, any pytree.
        buffers: The arrays that training leaves alone: a class whose instances hold them, such as `nnx.BatchStat`, or a
            place as for `spec_like`: the text of a path, or a function of path and leaf.

    Raises:
        StaticFieldError: If something in the layer that is not an array can't be a static, such as a list in a static
            field of an `equinox.Module`.
        TypeError: If `tree` is a class: a layer is an instance.
        ValueError: If `buffers` chooses no array.

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
    if isinstance(tree, type):
        raise TypeError(
            f"adopt() takes a layer, and was given the class {tree.__name__}. Write adopt({tree.__name__}(...))."
        )
    return _adopted(tree, set() if buffers is None else _chosen_paths(buffers, tree))


def _adopted(tree: T, buffers: set[Path]) -> Adopted[T]:
    """The node, with the arrays at some paths as its buffers."""
    entries: list[tuple[Path, Any]]
    entries, treedef = jax_trees.tree_flatten_with_path(tree, is_leaf=is_none)
    arrays, kept = [None] * len(entries), [None] * len(entries)
    others: dict[int, tuple[str, Any]] = {}
    for place, (path, leaf) in enumerate(entries):
        if isinstance(leaf, _ARRAYS):
            (kept if path in buffers else arrays)[place] = leaf
        elif leaf is not None:
            others[place] = path_text(path), leaf
    # `jit` compares aux_data by `==`, to which `1` and `True` are one.
    settings = {
        path_text(place.path): _setting(place.value, place.level.aux)
        for place in walk(Place(tree))
        if place.level is not None and place.level.aux is not None and not is_node(place.value)
    }
    try:
        return Adopted(
            treedef.unflatten(arrays),
            treedef.unflatten(kept) if buffers else None,
            FrozenMapping(dict(others.values())),
            tuple(others),
            FrozenMapping(settings),
        )
    except StaticFieldError as error:
        raise StaticFieldError(f"adopt({type(tree).__qualname__}): {error}") from error


def _chosen_paths(buffers: Any, tree: Any) -> set[Path]:
    """The paths of the arrays that `buffers` chooses."""
    leaves = jax_trees.tree_leaves_with_path(tree)
    if isinstance(buffers, type):
        parts = jax.tree.leaves(tree, is_leaf=lambda part: isinstance(part, buffers))
        are_chosen = [isinstance(part, buffers) for part in parts for _ in jax.tree.leaves(part)]
    else:
        are_chosen = chosen_leaves(tree, leaves, buffers)
    pairs = zip(leaves, are_chosen, strict=True)
    paths = {path for (path, leaf), is_chosen in pairs if is_chosen and isinstance(leaf, _ARRAYS)}
    if not paths:
        raise ValueError(
            f"adopt({type(tree).__qualname__}, buffers={short_text(buffers)}) chooses no array, so training would "
            "change all of them. Name a class or a place that holds arrays, or leave buffers out."
        )
    return paths


def _setting(layer: Any, aux: Any) -> Any:
    """`aux_data` as a static. An attribute of the layer stays as it is, so that a list in one is refused.

    The dicts are those of the layer's library. They are sorted: their order is that of attributes, and differs once a
    layer was unflattened.
    """
    if any(aux is value for name, value in getattr(layer, "__dict__", {}).items() if not name.startswith("_")):
        return aux
    if type(aux) is dict:
        return FrozenMapping({name: _setting(layer, aux[name]) for name in sorted(aux, key=str)})
    return tuple(_setting(layer, part) for part in aux) if type(aux) in {list, tuple} else aux
