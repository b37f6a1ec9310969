"""Sharded initialisation: each device computes and stores its own part."""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding

from treewright._base.jax_private import jax_trees, path_text, untyped_jax
from treewright._base.text import short_text
from treewright._core import is_node
from treewright._json import portable_text
from treewright._processes import TIMEOUT, compare, process_count
from treewright._trees.level import leaf_type_of
from treewright.errors import ShardingError
from treewright.sharding import mistakes
from treewright.sharding.processes import tree_texts
from treewright.sharding.specs import AnyMesh, MeshRules, OnMisfit, Rules, fitted_leaves, sizes_of

T = TypeVar("T")


def sharded_init(
    fn: Callable[..., T],
    /,
    *args: Any,
    mesh: Mesh,
    rules: Rules,
    on_misfit: OnMisfit = "error",
    timeout_seconds: float = TIMEOUT,
    **kwargs: Any,
) -> T:
    """The result of `fn(*args, **kwargs)`, split over a mesh: each device computes and stores its own part.

    This is `jax.eval_shape` for the shardings of the leaves, then `jax.jit(fn, out_shardings=...)`. Random numbers are
    the same as without a mesh, except for rounding. `fn` may create statics that are compared by identity.

    All processes must call this with the same arguments. Before computing, they compare the arrays among the arguments,
    the structure of the result, and the program.

    Args:
        fn: A function or class. The leaves of its result are arrays, or numbers, which become arrays.
        *args: Its arguments. Arrays and random keys are traced; other values, such as sizes and names, are not.
        mesh: The mesh for the result, with Auto or Explicit axes. The current mesh is ignored.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.
        timeout_seconds: The time to wait for the other processes.
        **kwargs: More arguments of `fn`, as in `args`. For a name that is in this list, use `functools.partial`.

    Raises:
        ProcessMismatchError: If processes would create different trees, or some do not arrive in time.
        ShardingError: As for `partition_specs`. Also inside `jit`, `grad` and `vmap`, because traced arrays have no
            devices.
        TypeError: As for `partition_specs`, if `mesh` is abstract (use `abstract_state`), if `fn` is an instance of a
            node class, or if a leaf of the result is neither an array nor a number.

    Examples:
        >>> from treewright.sharding import sharded_init
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     def __init__(self, inputs, outputs, *, key):
        ...         self.kernel = jax.random.normal(key, (inputs, outputs))
        >>> mesh = jax.make_mesh((2, 2), ("fsdp", "tensor"))
        >>> rules = {"embed": "fsdp", "mlp": "tensor"}
        >>> layer = sharded_init(Layer, 6, 4, key=jax.random.key(0), mesh=mesh, rules=rules)
        >>> layer.kernel.shape, layer.kernel.addressable_shards[0].data.shape
        ((6, 4), (3, 2))
    """
    any_mesh: Any = mesh
    if isinstance(any_mesh, AbstractMesh):
        raise TypeError(mistakes.init_without_devices(mesh))
    _reject_call("sharded_init", fn)
    plan = _plan(fn, (args, kwargs), mesh, rules, on_misfit)
    auto = _with_auto_axes(mesh)
    on_auto = [NamedSharding(auto, leaf.sharding.spec) for leaf in plan.leaves]
    with jax.set_mesh(auto):
        lowered = untyped_jax.jit(plan.leaves_of, out_shardings=on_auto).lower(plan.arrays)
        if process_count() > 1:
            texts = {name: portable_text(array) for name, array in zip(plan.names, plan.arrays, strict=True)}
            texts |= tree_texts(plan.treedef.unflatten(plan.leaves)) | {"the program": lowered.as_text()}
            compare(texts, name="sharded_init", timeout=timeout_seconds)
        leaves = lowered.compile()(plan.arrays)
    # No copy: the same devices in the same order.
    result: T = plan.treedef.unflatten(jax.device_put(leaves, [leaf.sharding for leaf in plan.leaves]))
    return result


def abstract_state(
    fn: Callable[..., T], /, *args: Any, mesh: AnyMesh, rules: Rules, on_misfit: OnMisfit = "error", **kwargs: Any
) -> T:
    """The result of `sharded_init`, with a `jax.ShapeDtypeStruct` and its sharding in place of each array.

    Nothing is computed. Use it as the target of a restore: `treewright.checkpoint.load(path, like=...)` and Orbax put
    each part of an array on its device.

    Args:
        fn: As for `sharded_init`.
        *args: As for `sharded_init`.
        mesh: As for `sharded_init`, or a `jax.sharding.AbstractMesh` to plan for other machines. It may differ from the
            mesh of the saved arrays.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.
        **kwargs: As for `sharded_init`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import abstract_state
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> mesh = jax.sharding.AbstractMesh((4,), ("tensor",))
        >>> layer = abstract_state(lambda: Layer(jnp.ones((6, 4))), mesh=mesh, rules={"embed": None, "mlp": "tensor"})
        >>> layer.kernel.sharding.spec
        P(None, 'tensor')
    """
    _reject_call("abstract_state", fn)
    plan = _plan(fn, (args, kwargs), mesh, rules, on_misfit)
    result: T = plan.treedef.unflatten(plan.leaves)
    return result


def _reject_call(caller: str, fn: object) -> None:
    if is_node(fn) and jax.tree.leaves(fn) and not hasattr(fn, "__func__"):
        raise TypeError(mistakes.tree_in_place_of_function(caller, fn))
    try:
        jax.sharding.get_mesh()
    except ValueError as error:
        raise ShardingError(mistakes.inside_transformation(caller)) from error


class _Plan(NamedTuple):
    """A function of arrays, and the abstract leaves of its result with their shardings.

    It has leaves, not the tree, because statics that are compared by identity differ at each trace.
    """

    leaves_of: Callable[[list[Any]], list[Any]]
    arrays: list[Any]
    names: list[str]  # `argument key`; `argument 0` for the first positional one
    treedef: Any
    leaves: list[Any]  # instances of `jax.ShapeDtypeStruct`


def _plan(fn: Callable[..., Any], inputs: tuple[Any, Any], mesh: AnyMesh, rules: Rules, on_misfit: OnMisfit) -> _Plan:
    on_mesh, treedefs = MeshRules(rules, sizes_of(mesh)), list[Any]()
    arguments, structure = jax_trees.tree_flatten_with_path(inputs)
    places = [place for place, (_, leaf) in enumerate(arguments) if isinstance(leaf, jax.Array | np.ndarray)]
    arrays = [_on_auto_axes(arguments[place][1]) for place in places]
    paths = [arguments[place][0] for place in places]
    names = [f"argument {getattr(step, 'key', None) or step.idx}{path_text(tuple(rest))}" for _, step, *rest in paths]

    def leaves_of(arrays: list[Any]) -> list[Any]:
        filled = dict(enumerate(leaf for _, leaf in arguments)) | dict(zip(places, arrays, strict=True))
        args, kwargs = structure.unflatten(filled.values())
        tree = fn(*args, **kwargs)
        for path, leaf in jax_trees.tree_leaves_with_path(tree):
            if leaf_type_of(leaf).aval is None:
                raise TypeError(
                    f"{path_text(path, 'result')} is {short_text(leaf)}, but the leaves of the result "
                    f"must be arrays or numbers. Make it a static, or omit it."
                )
        leaves, treedef = jax_trees.tree_flatten(tree)
        treedefs.append(treedef)
        return list(leaves)

    with _mesh_for_tracing(_with_auto_axes(mesh)):
        abstract = untyped_jax.eval_shape(leaves_of, arrays)
    fitted = fitted_leaves(treedefs[0].unflatten(abstract), on_mesh, on_misfit, whole=True)
    leaves = [leaf.value.update(sharding=NamedSharding(mesh, fit.spec)) for leaf, fit in fitted]
    return _Plan(leaves_of, arrays, names, treedefs[0], leaves)


def _mesh_for_tracing(mesh: AnyMesh) -> contextlib.AbstractContextManager[object]:
    """Set the mesh that `fn` sees. JAX can't set an abstract mesh if a mesh is set: then `fn` sees that one."""
    if isinstance(mesh, Mesh):
        return jax.set_mesh(mesh)
    before: Mesh = jax.sharding.get_mesh()
    return jax.sharding.use_abstract_mesh(mesh) if before.empty else jax.set_mesh(_with_auto_axes(before))


def _with_auto_axes(mesh: AnyMesh) -> Any:
    """A mesh of the same devices with Auto axes, so types have no shardings.

    Under Explicit axes random numbers are typed as replicated, so every device would create whole arrays: for a
    1024 x 1024 normal, 16.8 MB in addition to the 0.5 MB that it stores, instead of 1.6 MB.
    """
    kinds = (AxisType.Auto,) * len(mesh.axis_names)
    if isinstance(mesh, AbstractMesh):
        return AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
    return Mesh(mesh.devices, mesh.axis_names, axis_types=kinds)


def _on_auto_axes(array: Any) -> Any:
    """The same array on a mesh with Auto axes. Nothing is copied."""
    placed = getattr(array, "sharding", None)
    if not isinstance(placed, NamedSharding) or not isinstance(placed.mesh, Mesh):
        return array
    return untyped_jax.device_put(array, NamedSharding(_with_auto_axes(placed.mesh), placed.spec))
