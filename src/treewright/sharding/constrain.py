"""One model for any mesh: values are split under Auto axes, typed under Explicit ones, left alone without a mesh."""

import contextlib
import functools
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AxisType, PartitionSpec

from treewright._core import freeze
from treewright._core.jax_private import untyped_jax
from treewright._core.text import short_text, text
from treewright._lines import mesh_text
from treewright._processes import mesh_of_old_context, part_of_jit_key
from treewright.errors import ShardingError, ShardingWarning, warn_user
from treewright.sharding.specs import MeshRules, OnMisfit, Rules, StackNames, fitted_leaves, partition_spec

T = TypeVar("T")
Name: TypeAlias = str | tuple[str, ...] | None
_RULES: Any = part_of_jit_key((None, None))  # those of `use_rules`


def constrain(x: jax.Array, *names: Name, rules: Rules | None = None) -> jax.Array:
    """`x`, split over the mesh that `jax.set_mesh` has set; without a mesh, `x` as it is.

    Under Auto axes this is `jax.lax.with_sharding_constraint`, under Explicit ones `jax.sharding.reshard`. Mesh axes
    that the mesh lacks are dropped, so that one model runs on any mesh.

    Args:
        x: An array, traced or not.
        *names: For each axis of `x` what it is split over, or None for not at all. Without rules, a name is a mesh axis
            or a tuple of mesh axes.
        rules: The mesh axes for each name; None for those of `use_rules`. In a static field of the model
            (`treewright.freeze` makes them hashable) they are part of what `jit` compiles for, and so are those of
            `use_rules`.

    Raises:
        ShardingError: If there are more or fewer names than axes, a name has no rule, or a length does not divide.

    Warns:
        ShardingWarning: Inside `with mesh:`, which is JAX's old way to set a mesh and does not reach this function.

    Examples:
        >>> from treewright.sharding import constrain
        >>> @jax.jit
        ... def double(x):
        ...     return constrain(x * 2, "data", None)
        >>> double(jnp.ones((4, 3))).sharding.num_devices
        1
        >>> with jax.set_mesh(jax.make_mesh((4,), ("data",))):
        ...     double(jnp.ones((4, 3))).sharding.num_devices
        4
    """
    if not hasattr(x, "shape"):
        raise TypeError(
            f"constrain takes one array, got {short_text(x)}. constrain_tree splits each array of a tree by the names "
            f"of its field."
        )
    return _split(x, _spec(f"constrain({text(x)})", names, x.shape, rules))


def constrain_tree(
    tree: T,
    rules: Rules | None = None,
    *,
    kept: Rules | None = None,
    on_misfit: OnMisfit = "error",
    stack: StackNames = (),
) -> T:
    """`constrain` for each leaf of a tree, by the names of its field.

    Rules for computing may differ from those for keeping: what `{"embed": "fsdp", ...}` keeps split is gathered by
    `{"embed": None, ...}` where it is used. Under Explicit axes gradients come back split as the parameters are kept.
    Under Auto axes they do so where `kept` says how that is; without it the compiler may leave them gathered.

    Where layers are stacked, call it in the body of `jax.lax.scan`, on the one layer that the body is given. On the
    whole stack it would gather all layers at once.

    Args:
        tree: A node, or any other tree with nodes in it.
        rules: As for `partition_specs`; None for those of `use_rules`, which are needed only where a mesh is set.
        kept: The rules by which the tree is kept, and by which its gradients are to be split.
        on_misfit: As for `partition_specs`.
        stack: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: If `rules` is not a mapping from names to mesh axes.

    Examples:
        >>> from treewright.sharding import constrain_tree
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> with jax.set_mesh(jax.make_mesh((4,), ("fsdp",))):
        ...     kept = constrain_tree(Layer(jnp.ones((4, 8))), {"embed": "fsdp", "mlp": None})
        ...     used = constrain_tree(kept, {"embed": None, "mlp": None})
        >>> kept.kernel.addressable_shards[0].data.shape, used.kernel.addressable_shards[0].data.shape
        ((1, 8), (4, 8))
    """
    surrounding, surrounding_kept = _RULES.value
    used, kept = (surrounding, kept or surrounding_kept) if rules is None else (rules, kept)
    axes = _usable_axes()
    if used is None and not axes:
        return tree
    if used is None:
        raise TypeError("constrain_tree has no rules: give it some, or call it inside of `with use_rules(...):`.")
    leaves = jax.tree.leaves(tree)
    # The transpose of a constraint is the same one: the gradient passes these in the other order, and is kept last.
    for one in (used,) if kept is None else (kept, used):
        fitted = fitted_leaves(tree, MeshRules(one, axes), on_misfit, stack)
        leaves = [_split(value, fit.spec) for value, (_, fit) in zip(leaves, fitted, strict=True)]
    split: T = jax.tree.unflatten(jax.tree.structure(tree), leaves)
    return split


def use_rules(rules: Rules, *, kept: Rules | None = None) -> contextlib.AbstractContextManager[None]:
    """Rules for all of `constrain`, `constrain_tree` and `out_sharding` in a block that are given none.

    They are part of what `jit` compiles for: a function that is called under other rules is traced again, and under the
    first ones it has its first program.

    Args:
        rules: The mesh axes for each name, in what is computed.
        kept: Those by which parameters are kept, for `constrain_tree`: it brings gradients back to them.

    Raises:
        TypeError: If `rules` is not a mapping from names to mesh axes.

    Examples:
        >>> from treewright.sharding import constrain, use_rules
        >>> double = jax.jit(lambda x: constrain(x * 2, "batch", None))
        >>> with jax.set_mesh(jax.make_mesh((4,), ("data",))), use_rules({"batch": "data"}):
        ...     double(jnp.ones((4, 3))).sharding.num_devices
        4
    """
    for one in (rules, kept or {}):
        MeshRules(one, None)  # which refuses what are not rules
    block: contextlib.AbstractContextManager[None] = _RULES((freeze(dict(rules)), kept and freeze(dict(kept))))
    return block


def out_sharding(*names: Name, rules: Rules | None = None) -> PartitionSpec | None:
    """How a result is split, for `out_sharding=` of `jnp.dot`, `jnp.einsum` and the like; None without Explicit axes.

    Under Explicit axes JAX must be told how to split a product over an axis that is split; elsewhere it refuses to be
    told.

    Args:
        *names: As for `constrain`.
        rules: As for `constrain`.

    Raises:
        ShardingError: If a name has no rule, or two want one mesh axis.

    Examples:
        >>> from treewright.sharding import out_sharding
        >>> def project(x, kernel):
        ...     return jnp.dot(x, kernel, out_sharding=out_sharding("data", None))
        >>> project(jnp.ones((4, 2)), jnp.ones((2, 3))).shape
        (4, 3)
        >>> with jax.set_mesh(jax.make_mesh((4,), ("data",))):
        ...     out_sharding("data", None)
        P('data',)
    """
    spec = _spec("out_sharding", names, (0,) * len(names), rules)
    return _part(spec, AxisType.Explicit) if AxisType.Explicit in _mesh().axis_types else None


def _mesh() -> Any:
    mesh: Any = jax.sharding.get_abstract_mesh()
    if mesh.empty and mesh_of_old_context() is not None:
        warn_user(
            f"`with mesh:` does not reach constrain, constrain_tree and out_sharding, which leave their values as they "
            f"are: {mesh_text(mesh_of_old_context())} is set by it. Write `with jax.set_mesh(mesh):`.",
            ShardingWarning,
        )
    return mesh


def _usable_axes() -> dict[str, int]:
    """The axes of the mesh that is set, without those that a `shard_map` has taken over."""
    mesh = _mesh()
    return {
        name: size
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        if kind is not AxisType.Manual
    }


def _spec(caller: str, names: tuple[Name, ...], shape: tuple[int, ...], rules: Rules | None) -> PartitionSpec:
    own_rules = {name: name for name in names if name is not None}
    given = _RULES.value[0] if rules is None else rules
    fit = MeshRules(own_rules if given is None else given, _usable_axes()).fit((), names, shape)
    problems = fit.unknown or fit.misfits
    if problems:
        raise ShardingError(f"{caller} with the names {names}: {'; '.join(problems)}.")
    return fit.spec


def _split(x: T, spec: PartitionSpec) -> T:
    kinds = {*_mesh().axis_types}
    if AxisType.Explicit in kinds:
        x = untyped_jax.sharding.reshard(x, _part(spec, AxisType.Explicit))
    if AxisType.Auto in kinds:
        x = _constrained(x, _part(spec, AxisType.Auto))
    return x


def _part(spec: PartitionSpec, kind: AxisType) -> PartitionSpec:
    """What a spec says of the mesh axes of one kind. An array axis that has both kinds is left to the Explicit ones."""
    mesh = _mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    entries: list[Any] = []
    for entry in spec:
        axes = (entry,) if isinstance(entry, str) else entry or ()
        mine = tuple(axis for axis in axes if kinds[axis] is kind)
        others = len(mine) < len(axes) and kind is AxisType.Auto
        entries.append(PartitionSpec.UNCONSTRAINED if others else mine or None)
    return partition_spec(*entries)


@functools.partial(untyped_jax.jit, static_argnums=1, inline=True)
def _constrained(x: Any, spec: PartitionSpec) -> Any:
    """Under `jit`, because an array that is not on a mesh yet can't be constrained outside of it."""
    return untyped_jax.lax.with_sharding_constraint(x, spec)
