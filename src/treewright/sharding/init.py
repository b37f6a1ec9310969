"""Making a tree where it will live: no host and no device ever holds all of it."""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from treewright._jax import untyped_jax
from treewright.sharding.rules import MeshRules, Rules
from treewright.sharding.specs import OnMisfit, fitted_leaves, sizes_of

T = TypeVar("T")
_SMALL = 2**26  # bytes on a device, below which one program makes all


def sharded_init(fn: Callable[..., T], /, *args: Any, mesh: Mesh, rules: Rules, on_misfit: OnMisfit = "error") -> T:
    """What `fn(*args)` gives, made in parts: each device computes and holds only its own part.

    `fn` runs under `jit`, twice; about five times for a large tree, which is made in about four parts. Its random
    numbers are those of a run without a mesh, but for rounding. It may make statics that compare by identity, such as
    optimisers. With several processes, each calls this with the same arguments.

    Args:
        fn: A function or class. Its result must have arrays at all leaves, or numbers, which become arrays.
        *args: Its arguments. Arrays and random keys in them are traced; all else, such as sizes and names, is passed as
            it is.
        mesh: The mesh, with Auto or Explicit axes. The result is on it, whatever mesh is set.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import sharded_init
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     def __init__(self, inputs, outputs, key):
        ...         self.kernel = jax.random.normal(key, (inputs, outputs))
        >>> mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"))
        >>> layer = sharded_init(Layer, 6, 4, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": "tensor"})
        >>> layer.kernel.shape, layer.kernel.addressable_shards[0].data.shape
        ((6, 4), (3, 2))
    """
    make, arrays = _of_arrays(fn, args)
    with jax.set_mesh(_with_auto_axes(mesh)):
        treedef, leaves = _abstract(make, arrays, mesh, rules, on_misfit)

        made: list[Any] = []
        for part in _in_parts(leaves):
            # Leaves and not the tree: a static that compares by identity differs from trace to trace of `fn`.
            def leaves_of(given: list[Any], part: slice = part) -> list[Any]:
                return jax.tree.leaves(make(given))[part]

            jitted = untyped_jax.jit(leaves_of, out_shardings=[leaf.sharding for leaf in leaves[part]])
            made += untyped_jax.block_until_ready(jitted(arrays))
        result: T = treedef.unflatten(made)
    return result


def abstract_state(fn: Callable[..., T], /, *args: Any, mesh: Mesh, rules: Rules, on_misfit: OnMisfit = "error") -> T:
    """What `sharded_init` would give, with a `jax.ShapeDtypeStruct` that has its sharding for each array.

    Nothing is computed. It is the target for a restore: `treewright.checkpoint.load(path, like=...)` and Orbax put
    each part of an array on the device that is to have it.

    Args:
        fn: As for `sharded_init`.
        *args: As for `sharded_init`.
        mesh: As for `sharded_init`. It need not be the mesh that the arrays were on when they were saved.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import abstract_state
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> mesh = jax.make_mesh((4,), ("tensor",))
        >>> layer = abstract_state(lambda: Layer(jnp.ones((6, 4))), mesh=mesh, rules={"embed": None, "mlp": "tensor"})
        >>> layer.kernel.sharding.spec
        P(None, 'tensor')
    """
    make, arrays = _of_arrays(fn, args)
    with jax.set_mesh(_with_auto_axes(mesh)):
        treedef, leaves = _abstract(make, arrays, mesh, rules, on_misfit)
    result: T = treedef.unflatten(leaves)
    return result


def _of_arrays(fn: Callable[..., T], args: tuple[Any, ...]) -> tuple[Callable[[list[Any]], T], list[Any]]:
    """`fn` as a function of the arrays in `args`, and the arrays."""
    leaves, treedef = jax.tree.flatten(args)
    traced = [isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves]

    def make(arrays: list[Any]) -> T:
        given = iter(arrays)
        return fn(
            *treedef.unflatten(next(given) if is_array else leaf for leaf, is_array in zip(leaves, traced, strict=True))
        )

    return make, [_untyped(leaf) for leaf, is_array in zip(leaves, traced, strict=True) if is_array]


def _in_parts(leaves: list[jax.ShapeDtypeStruct]) -> Iterator[slice]:
    """The leaves that one program makes: all of a small tree, a fourth of the bytes of a large one.

    A program holds its random bits beside the arrays that it makes of them, so one program for all leaves would need
    twice the memory of the tree (benchmarks/sharding.py).
    """
    sizes = [_bytes_on_a_device(leaf) for leaf in leaves]
    limit = max(_SMALL, sum(sizes) // 4)
    start, held = 0, 0
    for place, size in enumerate(sizes):
        if held and held + size > limit:
            yield slice(start, place)
            start, held = place, 0
        held += size
    yield slice(start, len(leaves))


def _bytes_on_a_device(leaf: jax.ShapeDtypeStruct) -> int:
    sharding: Any = leaf.sharding
    shape: tuple[int, ...] = sharding.shard_shape(leaf.shape)
    return math.prod(shape) * int(leaf.dtype.itemsize)


def _with_auto_axes(mesh: Mesh) -> Mesh:
    """A mesh of the same devices that puts no shardings into types.

    Under Explicit axes random numbers are typed as replicated, so every device would make whole arrays: for a
    1024 x 1024 normal 16.8 MB beside the 0.5 MB that it keeps, instead of 1.6 MB.
    """
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _untyped(array: Any) -> Any:
    """The same array on a mesh with Auto axes. Nothing is copied."""
    placed = getattr(array, "sharding", None)
    if not isinstance(placed, NamedSharding) or not isinstance(placed.mesh, Mesh):
        return array
    return untyped_jax.device_put(array, NamedSharding(_with_auto_axes(placed.mesh), placed.spec))


def _abstract(
    make: Callable[[list[Any]], Any], arrays: list[Any], mesh: Mesh, rules: Rules, on_misfit: OnMisfit
) -> tuple[Any, list[jax.ShapeDtypeStruct]]:
    abstract = untyped_jax.eval_shape(make, arrays)
    leaves: list[jax.ShapeDtypeStruct] = []
    for declared, fit in fitted_leaves(abstract, MeshRules(rules, sizes_of(mesh)), on_misfit):
        leaf, placed = declared.value, NamedSharding(mesh, fit.spec)
        leaves.append(untyped_jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=placed, weak_type=leaf.weak_type))
    return jax.tree.structure(abstract), leaves
