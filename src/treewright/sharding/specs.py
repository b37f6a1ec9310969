"""Trees of `PartitionSpec`s and `NamedSharding`s, from the names on fields, rules and a mesh."""

import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from treewright._base.jax_private import GetAttrKey, Path, jax_trees, path_text
from treewright._base.text import did_you_mean
from treewright._core import FieldInfo, flat_form, info_of, is_node, reject, warn
from treewright._reports import counted
from treewright._trees.level import reject_classes
from treewright._trees.specs import spec_like
from treewright.errors import ShardingError, ShardingWarning
from treewright.sharding import mistakes
from treewright.sharding.text import ROOT

T = TypeVar("T")
MeshAxes: TypeAlias = str | tuple[str, ...] | None
Rules: TypeAlias = Mapping[str, MeshAxes]
"""The mesh axis for each name, a tuple of several, or None for an axis that is not split."""
AnyMesh: TypeAlias = Mesh | AbstractMesh
Misfit: TypeAlias = Literal["error", "replicate", "replicate_rank"]
Names: TypeAlias = tuple[str | None, ...]
OnMisfit: TypeAlias = Misfit | Mapping[str, Misfit]
StackNames: TypeAlias = str | tuple[str, ...]

partition_spec: Callable[..., PartitionSpec] = PartitionSpec  # its constructor has no annotations
_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """How an array is split.

    Attributes:
        spec: The spec, without the rules that do not apply.
        misfits: The rules that do not apply, and why.
        unknown: One phrase for each name without a rule.
        wrong_rank: Whether the names do not fit the array: it has more or fewer axes, or only one element, as a
            placeholder of an optimiser.
    """

    spec: PartitionSpec
    misfits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    wrong_rank: bool = False


class MeshRules:
    """Rules on a mesh, which determine how arrays are split.

    `sizes` are the numbers of devices of the mesh axes. Without them, nothing is dropped and no length is checked.
    """

    def __init__(self, rules: Mapping[Any, Any], sizes: Mapping[str, int] | None) -> None:
        if not isinstance(rules, Mapping):
            raise TypeError(mistakes.rules_are_no_mapping(rules))
        self._axes = {name: _axes_of(name, rule) for name, rule in rules.items()}
        self.sizes: Mapping[str, int] = sizes or {}
        self._present = {
            name: tuple(axis for axis in axes if sizes is None or sizes.get(axis, 1) > 1)
            for name, axes in self._axes.items()
        }
        self._used: set[Hashable] = set()
        named = {axis for axes in self._axes.values() for axis in axes}
        self.absent: tuple[str, ...] = tuple(sorted(named - self.sizes.keys()))  # axes that the mesh lacks
        self.all_absent: bool = bool(named) and len(named) == len(self.absent)
        self.guesses: dict[str, str | None] = {axis: _almost(axis, self.sizes) for axis in self.absent}
        self.devices: int = math.prod(self.sizes.values())
        reject([mistakes.misspelt_axes], ShardingError, self)
        self.fit: Callable[[tuple[str, ...], tuple[Hashable, ...] | None, tuple[int, ...]], Fit]
        self.fit = functools.cache(self._fit)  # equal layers have equal arguments

    @property
    def unused(self) -> tuple[str, ...]:
        """The names with rules that would split an axis, but that no array has had."""
        return tuple(str(name) for name, axes in self._axes.items() if axes and name not in self._used)

    @property
    def none_used(self) -> bool:
        """Whether there are rules that would split an axis, and no array has had any of their names."""
        return bool(self.unused) and len(self.unused) == sum(map(bool, self._axes.values()))

    def _fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        """How an array is split: `stacks` name its leading axes, and `names` the others, or they have no names."""
        self._used.update((*stacks, *(names or ())))
        all_names = (*stacks, *((None,) * (len(shape) - len(stacks)) if names is None else names))
        unknown = tuple(
            f"no rule for {name!r}{did_you_mean(str(name), map(str, self._axes))}"
            for name in all_names
            if not (name is None or name in self._axes)
        )
        if unknown:
            return Fit(partition_spec(), (), unknown)
        if len(all_names) != len(shape):
            of_stacks = f", {len(stacks)} of a stack," if stacks else ""
            count = f"{counted(len(all_names), 'name')}{of_stacks} {all_names}"
            misfit = f"{count} for {len(shape)} {'axis' if len(shape) == 1 else 'axes'}"
            return Fit(partition_spec(), (misfit,), wrong_rank=True)
        entries: list[str | tuple[str, ...] | None] = []
        misfits: list[str] = []
        taken: dict[str, int] = {}
        for place, (name, length) in enumerate(zip(all_names, shape, strict=True)):
            axes = () if name is None else self._present[name]
            problem = self._misfit(axes, length, taken)
            if problem is not None:
                misfits.append(f"axis {place} ({name!r}, length {length}) {problem}")
                axes = ()
            taken.update(dict.fromkeys(axes, place))
            entries.append(axes[0] if len(axes) == 1 else axes or None)
        while entries and entries[-1] is None:  # JAX omits them in the shardings of results
            entries.pop()
        return Fit(partition_spec(*entries), tuple(misfits), wrong_rank=math.prod(shape) == 1)

    def _misfit(self, axes: tuple[str, ...], length: int, taken: Mapping[str, int]) -> str | None:
        for axis in axes:
            if axis in taken:
                return f"needs mesh axis {axis!r}, already used by axis {taken[axis]}"
        if len({*axes}) < len(axes):
            return f"needs a mesh axis twice: {axes}"
        if length % math.prod(self.sizes.get(axis, 1) for axis in axes):
            return f"is not divisible by mesh axis {' x '.join(f'{axis!r} ({self.sizes[axis]})' for axis in axes)}"
        return None


def _almost(axis: str, axes: Iterable[str]) -> str | None:
    """The mesh axis that this one misspells, if any. `data1` does not misspell `data2`, nor `dp` `fsdp`."""
    close = difflib.get_close_matches(axis, axes, 1, cutoff=0.75)
    return close[0] if close and _NUMBER.sub("", axis) != _NUMBER.sub("", close[0]) else None


def is_name(name: object) -> bool:
    """Whether a value is a mesh axis, a tuple of mesh axes, or None."""
    return name is None or all(isinstance(axis, str) for axis in (name if isinstance(name, tuple) else (name,)))


def _axes_of(name: Any, rule: Any) -> tuple[str, ...]:
    axes = () if rule is None else (rule,) if isinstance(rule, str) else rule
    if not is_name(rule):
        raise TypeError(mistakes.wrong_rule(name, rule))
    return tuple(axes)


# The leaves of a tree, and the names that their fields declare


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredLeaf:
    """A leaf with the names that its field declares: of the leading axes of stacks, and of the other axes."""

    path: Path
    value: Any
    stacks: tuple[str, ...]
    names: Names | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a live, abstract or traced array; the empty shape for any other leaf."""
        shape = getattr(self.value, "shape", ())
        return tuple(shape) if isinstance(shape, tuple) else ()  # `shape` may be a method


def declared_leaves(
    tree: Any, path: Path = (), stacks: tuple[str, ...] = (), names: Names | None = None
) -> Iterator[DeclaredLeaf]:
    """The leaves of a tree in JAX's order; `path`, `stacks` and `names` come from the tree's parents."""
    if is_node(tree):
        children, _ = flat_form(tree)
        if names is not None and jax.tree.leaves(tree):
            raise ShardingError(mistakes.names_of_node(path, tree, names))
        for field, child in zip(info_of(tree).children, children, strict=True):
            own_names, stack = _declared(field, tree, path)
            below = (*path, GetAttrKey(field.name))
            yield from declared_leaves(child, below, stacks if stack is None else (*stacks, stack), own_names)
    else:
        for steps, part in jax_trees.tree_leaves_with_path(tree, is_leaf=is_node):
            if is_node(part):
                yield from declared_leaves(part, (*path, *steps), stacks, names)
            else:
                yield DeclaredLeaf((*path, *steps), part, stacks, names)


def _declared(field: FieldInfo, node: Any, path: Path) -> tuple[Names | None, str | None]:
    """The names and the stack of a field, which a class may compute."""
    names, stack = field.sharding, field.stack
    if not (callable(names) or callable(stack)):
        return names, stack
    place = f"{path_text(path) or ROOT}.{field.name}: the function in"
    if callable(names):
        names = names(node)
        if names is not None and not (type(names) is tuple and all(isinstance(name, str | None) for name in names)):
            raise ShardingError(f"{place} sharding= returned {names!r}, not a tuple with a name or None for each axis.")
    if callable(stack):
        stack = stack(node)
        if not isinstance(stack, str | None):
            raise ShardingError(f"{place} stack= returned {stack!r}, not the name of an axis or None.")
    return names, stack


def fitted_leaves(
    tree: object, rules: MeshRules, on_misfit: OnMisfit, stack: StackNames = (), *, whole: bool = False
) -> list[tuple[DeclaredLeaf, Fit]]:
    """The leaves of a tree in JAX's order, each with its fit.

    With `whole`, the tree is the whole state, so rules that it should have used cause a warning.
    """
    stacks: Any = (stack,) if isinstance(stack, str) else stack
    if not (isinstance(stacks, tuple) and all(isinstance(name, str) for name in stacks)):
        raise TypeError(f'stack= must be a name or a tuple of names, such as stack="layers", got {stack!r}.')
    leaves = [*declared_leaves(tree, stacks=stacks)]
    fitted = [(leaf, rules.fit(leaf.stacks, leaf.names, leaf.shape)) for leaf in leaves]
    wrong = [
        (leaf, fit)
        for (leaf, fit), setting in zip(fitted, _settings(tree, on_misfit, len(leaves)), strict=True)
        if fit.unknown or (fit.misfits and (setting == "error" or (setting == "replicate_rank" and not fit.wrong_rank)))
    ]
    if wrong:
        raise ShardingError(mistakes.rules_that_do_not_fit(wrong, len(fitted)))
    if whole:
        known = {name for leaf in leaves for name in (*leaf.stacks, *(leaf.names or ())) if name}
        warn(mistakes.WHOLE, ShardingWarning, rules, known)
    return fitted


def _settings(tree: object, on_misfit: OnMisfit, count: int) -> list[Misfit]:
    """The setting of `on_misfit` for each leaf."""
    settings: list[Any] = [*on_misfit.values()] if isinstance(on_misfit, Mapping) else [on_misfit]
    for setting in settings:
        if setting not in get_args(Misfit):
            raise ValueError(mistakes.wrong_setting(setting))
    if isinstance(on_misfit, Mapping):
        return jax.tree.leaves(spec_like(tree, "error", on_misfit))
    return settings * count


def partition_specs(
    tree: T, mesh: AnyMesh | None, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()
) -> T:
    """A tree of the same treedef with a `PartitionSpec` for each leaf, by the names of its field.

    Leaves without names, or outside all nodes, are replicated.

    Args:
        tree: A node, or any other tree with nodes in it: live, traced, or abstract, as from `jax.eval_shape`. An
            optimiser's state is such a tree: its moments are nodes of the parameters' classes.
        mesh: A mesh, or a `jax.sharding.AbstractMesh`. Mesh axes that it lacks, or that have one device, are dropped,
            and lengths are checked. With None, nothing is dropped and no length is checked.
        rules: The mesh axis for each name, a tuple of several, or None for an axis that is not split.
        on_misfit: The action if a rule does not apply: a length is not divisible, two axes need the same mesh axis, or
            there are more or fewer names than axes, as in optimisers that factor their moments. `"error"` raises.
            `"replicate"` leaves that axis whole, or the array if the number of names is wrong. `"replicate_rank"` does
            so only for arrays with the wrong number of names or with one element. Or a mapping from places, as in
            `spec_like`, to these: `{"opt_state": "replicate_rank"}`. A name without a rule is always an error.
        stack: The names of the leading axes of all arrays, if the tree is part of a stack, such as `model.blocks`,
            whose field with `stack=` is in its parent.

    Raises:
        MissingPlaceError: If a place in `on_misfit` does not exist.
        ShardingError: If rules do not apply to leaves; the message lists all of them by path. Or if a rule misspells a
            mesh axis, such as `"modle"`.
        TypeError: If `mesh` is not a mesh, or `rules` is not a mapping from names to mesh axes.

    Warns:
        ShardingWarning: If no field uses any of the rules that split an axis, or if a mesh of several devices has none
            of the axes in the rules. If some are used, the others may be for activations, see `constrain`.

    Examples:
        >>> from treewright.sharding import partition_specs
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     bias: jax.Array = field(sharding=("mlp",))
        >>> layer = Layer(jnp.ones((4, 8)), jnp.ones(8))
        >>> specs = partition_specs(layer, None, {"embed": None, "mlp": "tensor"})
        >>> print(specs.kernel, specs.bias)
        P(None, 'tensor') P('tensor',)
    """
    reject_classes("partition_specs", tree)
    on_mesh = MeshRules(rules, None if mesh is None else sizes_of(mesh))
    fitted = fitted_leaves(tree, on_mesh, on_misfit, stack, whole=True)
    specs: T = jax_trees.tree_structure(tree).unflatten(fit.spec for _, fit in fitted)
    return specs


def shardings(tree: T, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()) -> T:
    """A tree of the same treedef with a `NamedSharding` for each leaf, for `jax.device_put`, `jit` and checkpoints.

    Mesh axes that the mesh lacks, or that have one device, are dropped, so the same rules work on a laptop and a pod.

    Args:
        tree: As for `partition_specs`.
        mesh: A mesh, or a `jax.sharding.AbstractMesh` to plan for other machines.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`.
        stack: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import shardings
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        >>> mesh = jax.make_mesh((2,), ("tensor",))
        >>> layer = Layer(jnp.ones((4, 8)))
        >>> layer = jax.device_put(layer, shardings(layer, mesh, {"embed": "fsdp", "mlp": "tensor"}))
        >>> layer.kernel.sharding.spec, layer.kernel.addressable_shards[0].data.shape
        (P(None, 'tensor'), (4, 4))
    """
    reject_classes("shardings", tree)
    fitted = fitted_leaves(tree, MeshRules(rules, sizes_of(mesh)), on_misfit, stack, whole=True)
    placed: T = jax_trees.tree_structure(tree).unflatten(NamedSharding(mesh, fit.spec) for _, fit in fitted)
    return placed


def axes_in(entries: Iterable[Any]) -> list[str]:
    """The mesh axes in a `PartitionSpec`, or in names that are mesh axes."""
    return [axis for entry in entries for axis in ((entry,) if isinstance(entry, str) else entry or ())]


def sizes_of(mesh: object) -> Mapping[str, int]:
    """The number of devices of each mesh axis."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh= must be a jax.sharding.Mesh or AbstractMesh, got {mesh!r}.")
    shape: Mapping[str, int] = mesh.shape
    return shape
