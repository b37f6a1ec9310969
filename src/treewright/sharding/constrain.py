"""Sharding constraints for values, under Auto and Explicit meshes; no-ops without a mesh."""

import contextlib
import functools
from typing import Any, TypeAlias, TypeVar

import jax
from jax.sharding import AxisType, PartitionSpec

from treewright._base.jax_private import part_of_jit_key, untyped_jax
from treewright._base.text import text
from treewright._core import warn
from treewright._freeze import freeze
from treewright._trees.level import reject_classes
from treewright.errors import ShardingError, ShardingWarning, warn_user
from treewright.sharding import mistakes
from treewright.sharding.specs import (
    MeshRules,
    OnMisfit,
    Rules,
    StackNames,
    axes_in,
    fitted_leaves,
    is_name,
    partition_spec,
)

T = TypeVar("T")
Name: TypeAlias = str | tuple[str, ...] | None
_RULES: Any = part_of_jit_key((None, None))  # the rules of `use_rules`


def constrain(x: jax.Array, *names: Name, rules: Rules | None = None) -> jax.Array:
    """`x`, split over the mesh set by `jax.set_mesh`; without a mesh, `x` unchanged.

    Under Auto axes this is `jax.lax.with_sharding_constraint`, under Explicit ones `jax.sharding.reshard`. Mesh axes in
    rules that the mesh lacks are dropped, so that one model runs on any mesh.

    Args:
        x: An array, traced or not.
        *names: One name for each axis of `x`; None for an axis that is not split. Without rules, a name is a mesh axis
            or a tuple of mesh axes.
        rules: The mesh axes for each name; None for the rules of `use_rules`. Store them in a static field of the
            model, made hashable by `treewright.freeze`, so `jit` compiles for them, as it does for those of
            `use_rules`.

    Raises:
        ShardingError: If there are more or fewer names than axes, a name has no rule, or a length is not divisible.

    Warns:
        ShardingWarning: Inside `with mesh:`, JAX's old way to set a mesh, which has no effect here; or if, without
            rules, a name is not an axis of the mesh.

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
        raise TypeError(mistakes.not_one_array(x))
    return _split(x, _spec(f"constrain({text(x)})", names, x.shape, rules))


def constrain_tree(
    tree: T,
    rules: Rules | None = None,
    *,
    storage_rules: Rules | None = None,
    on_misfit: OnMisfit = "error",
    stack: StackNames = (),
) -> T:
    """`constrain` for each leaf of a tree, by the names of its field.

    The rules for computing may differ from the rules for storage: a parameter that is stored split by `{"embed":
    "fsdp", ...}` is gathered by `{"embed": None, ...}` for its use. Under Explicit axes, gradients are split as the
    parameters are stored. Under Auto axes, pass `storage_rules` for this; without them the compiler may leave gradients
    gathered.

    For stacked layers, call it in the body of `jax.lax.scan`, on the layer that the body receives. On the whole stack
    it would gather all layers together.

    Args:
        tree: A node, or any other tree with nodes in it.
        rules: As for `partition_specs`; None for the rules of `use_rules`, which are needed only if a mesh is set.
        storage_rules: The rules for storing the tree and splitting its gradients.
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
        ...     stored = constrain_tree(Layer(jnp.ones((4, 8))), {"embed": "fsdp", "mlp": None})
        ...     used = constrain_tree(stored, {"embed": None, "mlp": None})
        >>> stored.kernel.addressable_shards[0].data.shape, used.kernel.addressable_shards[0].data.shape
        ((1, 8), (4, 8))
    """
    reject_classes("constrain_tree", tree)
    if rules is None:
        rules, storage_rules = _RULES.value[0], storage_rules or _RULES.value[1]
    axes = _usable_axes()
    if rules is None and not axes:
        return tree
    if rules is None:
        raise TypeError("constrain_tree has no rules. Pass rules=, or call it inside `with use_rules(...):`.")
    leaves = jax.tree.leaves(tree)
    # A constraint is its own transpose: gradients pass these in reverse order.
    for each in (rules,) if storage_rules is None else (storage_rules, rules):
        fitted = fitted_leaves(tree, MeshRules(each, axes), on_misfit, stack)
        leaves = [_split(value, fit.spec) for value, (_, fit) in zip(leaves, fitted, strict=True)]
    split: T = jax.tree.unflatten(jax.tree.structure(tree), leaves)
    return split


def use_rules(rules: Rules, *, storage_rules: Rules | None = None) -> contextlib.AbstractContextManager[None]:
    """Default rules for `constrain`, `constrain_tree` and `out_sharding` inside a block.

    `jit` compiles for them: a function called under different rules is retraced; under the first rules again, it runs
    its first program.

    Args:
        rules: The mesh axes for each name, for values that are computed.
        storage_rules: The rules for storing parameters; `constrain_tree` splits gradients by them.

    Raises:
        TypeError: If `rules` is not a mapping from names to mesh axes.

    Warns:
        ShardingWarning: If no `with` block is entered, so that the rules have no effect.

    Examples:
        >>> from treewright.sharding import constrain, use_rules
        >>> double = jax.jit(lambda x: constrain(x * 2, "batch", None))
        >>> with jax.set_mesh(jax.make_mesh((4,), ("data",))), use_rules({"batch": "data"}):
        ...     double(jnp.ones((4, 3))).sharding.num_devices
        4
    """
    for each in (rules, storage_rules or {}):
        MeshRules(each, None)  # raises if these are not rules
    return _RulesBlock((freeze(dict(rules)), storage_rules and freeze(dict(storage_rules))))


class _RulesBlock(contextlib.AbstractContextManager[None]):
    """The block of `use_rules`, which warns if it is never entered."""

    def __init__(self, rules: tuple[Rules, Rules | None]) -> None:
        self._rules = rules
        self._entered: list[Any] = []  # one for each nested block: each restores the rules before it
        self._was_entered = False

    def __enter__(self) -> None:
        self._was_entered = True
        self._entered.append(_RULES(self._rules))
        self._entered[-1].__enter__()

    def __exit__(self, *error: object) -> None:
        self._entered.pop().__exit__(*error)

    def __del__(self) -> None:
        if not self._was_entered:
            warn_user("use_rules(...) has no effect without a block. Write `with use_rules(...):`.", ShardingWarning)


def out_sharding(*names: Name, rules: Rules | None = None) -> PartitionSpec | None:
    """The spec for `out_sharding=` of `jnp.dot`, `jnp.einsum` and the like; None without Explicit axes.

    Under Explicit axes JAX needs it for a product over a split axis; without them it rejects the argument.

    Args:
        *names: As for `constrain`.
        rules: As for `constrain`.

    Raises:
        ShardingError: If a name has no rule, or two names need the same mesh axis.

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
    warn([mistakes.old_mesh_context], ShardingWarning, mesh)
    return mesh


def _usable_axes() -> dict[str, int]:
    """The axes of the current mesh, without the manual ones of a `shard_map`."""
    mesh = _mesh()
    return {
        name: size
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        if kind is not AxisType.Manual
    }


def _spec(caller: str, names: tuple[Name, ...], shape: tuple[int, ...], rules: Rules | None) -> PartitionSpec:
    wrong = [name for name in names if not is_name(name)]
    if wrong:
        raise TypeError(mistakes.no_name(caller, wrong[0]))
    rules = _RULES.value[0] if rules is None else rules
    mesh_axes: Any = {name: name for name in names if name is not None}
    fit = MeshRules(mesh_axes if rules is None else rules, _usable_axes()).fit((), names, shape)
    problems = fit.unknown or fit.misfits
    if problems:
        raise ShardingError(f"{caller} with the names {names}: {'; '.join(problems)}.")
    absent = {*axes_in(names)}.difference(_mesh().axis_names) if rules is None else set[str]()
    if absent:
        warn([mistakes.names_without_rules], ShardingWarning, caller, _mesh(), absent)
    return fit.spec


def _split(x: T, spec: PartitionSpec) -> T:
    kinds = {*_mesh().axis_types}
    if AxisType.Explicit in kinds:
        try:
            x = untyped_jax.sharding.reshard(x, _part(spec, AxisType.Explicit))
        except ValueError as error:
            if "only AbstractMesh exists" not in str(error):
                raise
            raise ShardingError(mistakes.constraint_without_devices(_mesh())) from error
    if AxisType.Auto in kinds:
        x = _constrained(x, _part(spec, AxisType.Auto))
    return x


def _part(spec: PartitionSpec, kind: AxisType) -> PartitionSpec:
    """The part of a spec for mesh axes of one kind. An array axis with both kinds is split only by Explicit ones."""
    mesh = _mesh()
    kinds = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    entries: list[Any] = []
    for entry in spec:
        axes = axes_in([entry])
        mine = tuple(axis for axis in axes if kinds[axis] is kind)
        others = len(mine) < len(axes) and kind is AxisType.Auto
        entries.append(PartitionSpec.UNCONSTRAINED if others else mine or None)
    return partition_spec(*entries)


@functools.partial(untyped_jax.jit, static_argnums=1, inline=True)
def _constrained(x: Any, spec: PartitionSpec) -> Any:
    """In `jit`, because outside it an array that is not on a mesh can't be constrained."""
    return untyped_jax.lax.with_sharding_constraint(x, spec)
