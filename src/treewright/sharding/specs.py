"""Trees of `PartitionSpec`s and `NamedSharding`s, from the names on fields, rules and a mesh."""

import dataclasses
import difflib
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypeVar, get_args

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from treewright._core import FieldSpec, flat_form, is_node, spec_of
from treewright._core.jax_private import GetAttrKey, Path, jax_trees, path_text
from treewright._core.text import did_you_mean, text
from treewright._lines import counted, first_of
from treewright._processes import ranges_text
from treewright._trees.specs import spec_like
from treewright.errors import ShardingError, ShardingWarning, warn_user

T = TypeVar("T")
MeshAxes: TypeAlias = str | tuple[str, ...] | None
Rules: TypeAlias = Mapping[str, MeshAxes]
"""What the axes of each name are split over: a mesh axis, a tuple of several, or None for not at all."""
AnyMesh: TypeAlias = Mesh | AbstractMesh
Misfit: TypeAlias = Literal["error", "replicate", "replicate_rank"]
Names: TypeAlias = tuple[str | None, ...]
OnMisfit: TypeAlias = Misfit | Mapping[str, Misfit]
StackNames: TypeAlias = str | tuple[str, ...]

partition_spec: Callable[..., PartitionSpec] = PartitionSpec  # whose constructor has no annotations
ROOT = "The tree itself"
_INDEX = re.compile(r"\[(\d+)\]")
_NUMBER = re.compile(r"\d+")


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """How an array is split.

    Attributes:
        spec: The spec. What could not be split as the rules say is whole in it.
        misfits: What could not be split, and why.
        unknown: The names that have no rule, each in a phrase of its own.
        wrong_rank: Whether the array is not what the names are for: it has more or fewer axes, or one number in all,
            as optimisers keep it in place of an array.
    """

    spec: PartitionSpec
    misfits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    wrong_rank: bool = False


class MeshRules:
    """Rules on a mesh: they say how an array is split over its axes.

    Without `sizes`, how many devices each mesh axis has, nothing is dropped and no length is checked.
    """

    def __init__(self, rules: Mapping[Any, Any], sizes: Mapping[str, int] | None) -> None:
        if not isinstance(rules, Mapping):
            raise TypeError(f'rules= is a mapping from names to mesh axes, such as {{"mlp": "tensor"}}, got {rules!r}.')
        self._axes = {name: _axes_of(name, rule) for name, rule in rules.items()}
        self.sizes: Mapping[str, int] = sizes or {}
        self._present = {
            name: tuple(axis for axis in axes if sizes is None or sizes.get(axis, 1) > 1)
            for name, axes in self._axes.items()
        }
        self._used: set[Hashable] = set()
        named = {axis for axes in self._axes.values() for axis in axes}
        self.absent: tuple[str, ...] = tuple(sorted(named - self.sizes.keys()))  # the axes that the mesh does not have
        self.all_absent: bool = bool(named) and len(named) == len(self.absent)
        guesses = {axis: _almost(axis, self.sizes) for axis in self.absent}
        misspelt = [f"{axis!r} (did you mean {close!r}?)" for axis, close in guesses.items() if close]
        if misspelt:
            raise ShardingError(
                f"Unknown mesh ax{'es' if len(misspelt) > 1 else 'is'} {', '.join(misspelt)}: the mesh has "
                f"{axes_text(self.sizes)}, and what is split over another axis would be whole on every device. If it "
                f"is an axis of another mesh, give it a name that is less like those of this one."
            )
        self._fits: dict[tuple[Any, ...], Fit] = {}

    @property
    def unused(self) -> tuple[str, ...]:
        """The names that no array has had, whose rules would split something."""
        return tuple(str(name) for name, axes in self._axes.items() if axes and name not in self._used)

    def fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        """How an array is split whose leading axes hold stacks, and whose others have these names, or none."""
        key = (stacks, names, shape)
        if key not in self._fits:
            self._fits[key] = self._fit(stacks, names, shape)
            self._used.update((*stacks, *(names or ())))
        return self._fits[key]

    def _fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
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
        while entries and entries[-1] is None:  # as JAX writes the shardings of its results
            entries.pop()
        return Fit(partition_spec(*entries), tuple(misfits), wrong_rank=math.prod(shape) == 1)

    def _misfit(self, axes: tuple[str, ...], length: int, taken: Mapping[str, int]) -> str | None:
        for axis in axes:
            if axis in taken:
                return f"wants mesh axis {axis!r}, which axis {taken[axis]} has"
        if len({*axes}) < len(axes):
            return f"wants a mesh axis twice: {axes}"
        if length % math.prod(self.sizes.get(axis, 1) for axis in axes):
            return f"does not divide by {' x '.join(f'{axis!r} ({self.sizes[axis]})' for axis in axes)}"
        return None


def _almost(axis: str, axes: Iterable[str]) -> str | None:
    """The mesh axis of which this one is a misspelling. `data1` is none of `data2`, and `dp` none of `fsdp`."""
    close = difflib.get_close_matches(axis, axes, 1, cutoff=0.75)
    return close[0] if close and _NUMBER.sub("", axis) != _NUMBER.sub("", close[0]) else None


def _axes_of(name: Any, rule: Any) -> tuple[str, ...]:
    axes = () if rule is None else (rule,) if isinstance(rule, str) else rule
    if not (isinstance(axes, tuple) and all(isinstance(axis, str) for axis in axes)):
        raise TypeError(
            f"The rule for {name!r} is {rule!r}. A rule is a mesh axis, a tuple of mesh axes, or None for an axis that "
            f"is not split."
        )
    return tuple(axes)


# The leaves of a tree, and what their fields declare


@dataclasses.dataclass(frozen=True, slots=True)
class DeclaredLeaf:
    """A leaf with what its field declares: the names of its leading axes that hold stacks, and those of the others."""

    path: Path
    value: Any
    stacks: tuple[str, ...]
    names: Names | None


def declared_leaves(
    tree: Any, path: Path = (), stacks: tuple[str, ...] = (), names: Names | None = None
) -> Iterator[DeclaredLeaf]:
    """The leaves of a tree in JAX's order; `path`, `stacks` and `names` are what is declared above the tree."""
    if is_node(tree):
        children, _ = flat_form(tree)
        for field, child in zip(spec_of(tree).children, children, strict=True):
            own_names, stack = _declared(field, tree, path)
            below = (*path, GetAttrKey(field.name))
            yield from declared_leaves(child, below, stacks if stack is None else (*stacks, stack), own_names)
    else:
        for steps, part in jax_trees.tree_leaves_with_path(tree, is_leaf=is_node):
            if is_node(part):
                yield from declared_leaves(part, (*path, *steps), stacks)
            else:
                yield DeclaredLeaf((*path, *steps), part, stacks, names)


def _declared(field: FieldSpec, node: Any, path: Path) -> tuple[Names | None, str | None]:
    """The names and the stack of a field, which a class may compute."""
    names, stack = field.sharding, field.stack
    if not (callable(names) or callable(stack)):
        return names, stack
    place = f"{path_text(path) or ROOT}.{field.name}: the function in"
    if callable(names):
        names = names(node)
        if names is not None and not (type(names) is tuple and all(isinstance(name, str | None) for name in names)):
            raise ShardingError(f"{place} sharding= gave {names!r}, not a tuple with a name or None for each axis.")
    if callable(stack):
        stack = stack(node)
        if not isinstance(stack, str | None):
            raise ShardingError(f"{place} stack= gave {stack!r}, not the name of an axis or None.")
    return names, stack


def _shape_of(leaf: Any) -> tuple[int, ...]:
    """The shape of an array, live, abstract or traced; that of a number for anything else."""
    shape = getattr(leaf, "shape", ())
    return tuple(shape) if isinstance(shape, tuple) else ()  # `shape` may be a method


def fitted_leaves(
    tree: object, rules: MeshRules, on_misfit: OnMisfit, stack: StackNames = (), *, whole: bool = False
) -> list[tuple[DeclaredLeaf, Fit]]:
    """The leaves of a tree in JAX's order, each with how it is split.

    `whole` says that all that the rules are for is in this tree, so that one that is not used deserves a warning.
    """
    leaves = [*declared_leaves(tree, stacks=(stack,) if isinstance(stack, str) else stack)]
    fitted = [(leaf, rules.fit(leaf.stacks, leaf.names, _shape_of(leaf.value))) for leaf in leaves]
    wrong = [
        (leaf, fit)
        for (leaf, fit), setting in zip(fitted, _settings(tree, on_misfit, len(leaves)), strict=True)
        if fit.unknown or (fit.misfits and (setting == "error" or (setting == "replicate_rank" and not fit.wrong_rank)))
    ]
    if wrong:
        raise ShardingError(_message(wrong, len(fitted)))
    if whole and rules.unused:
        names = ", ".join(map(repr, rules.unused))
        known = dict.fromkeys(str(name) for leaf in leaves for name in (*leaf.stacks, *(leaf.names or ())) if name)
        warn_user(
            f"No field of the tree has a name of these rules, which split nothing: {names}. The names in the tree: "
            f"{', '.join(known) or 'none'}. Take the names of activations out of the rules for what is kept.",
            ShardingWarning,
        )
    if whole and rules.all_absent and math.prod(rules.sizes.values()) > 1:
        warn_user(
            f"The mesh has none of the axes that the rules name ({', '.join(rules.absent)}), so every device holds all "
            f"of each array. The mesh has {axes_text(rules.sizes)}. Name its axes in the rules, or None for an array "
            f"axis that is not split.",
            ShardingWarning,
        )
    return fitted


def _settings(tree: object, on_misfit: OnMisfit, count: int) -> list[Misfit]:
    """What to do about a misfit of each leaf."""
    settings: list[Any] = [*on_misfit.values()] if isinstance(on_misfit, Mapping) else [on_misfit]
    for setting in settings:
        if setting not in get_args(Misfit):
            raise ValueError(
                f'on_misfit= is "error", "replicate" or "replicate_rank", or a mapping from places in the tree to '
                f"these, got {setting!r}."
            )
    if isinstance(on_misfit, Mapping):
        return jax.tree.leaves(spec_like(tree, "error", on_misfit))
    return settings * count


def _message(wrong: list[tuple[DeclaredLeaf, Fit]], count: int) -> str:
    shown: list[str] = []
    rows = [(path_text(leaf.path), (text(leaf.value), fit.unknown or fit.misfits)) for leaf, fit in wrong]
    for path, members in folded(rows):
        array, problems = rows[members[0]][1]
        shown.append(f"{path or ROOT}, {array}: {'; '.join(dict.fromkeys(problems))}")
    lines = [
        f"{len(wrong)} of {count} leaves can't be split as the rules say:",
        *(f"  {line}" for line in first_of(shown)),
    ]
    if any(fit.unknown for _, fit in wrong):
        lines.append("Each name needs a rule; None is the rule for an axis that is not split.")
        return "\n".join(lines)
    if all(fit.wrong_rank and len(_shape_of(leaf.value)) > len(leaf.names or ()) for leaf, fit in wrong):
        lines.append('If this is a part of a stack, stack= names its leading axes, as in stack="layers".')
    setting = "replicate_rank" if all(fit.wrong_rank for _, fit in wrong) else "replicate"
    lines.append(f'on_misfit="{setting}" keeps such an axis, or array, whole on every device.')
    return "\n".join(lines)


def folded(rows: Sequence[tuple[str, Hashable]]) -> list[tuple[str, list[int]]]:
    """Rows of a path and its content, those of equal layers as one: `.layers[0-79].kernel`, and their numbers."""
    groups: dict[tuple[str, Hashable], list[int]] = {}
    for number, (path, content) in enumerate(rows):
        groups.setdefault((_INDEX.sub("[]", path), content), []).append(number)
    folds: list[tuple[str, list[int]]] = []
    for (pattern, _), members in groups.items():
        columns = zip(*(map(int, _INDEX.findall(rows[number][0])) for number in members), strict=True)
        ranges = [f"[{ranges_text(sorted({*column}))}]" for column in columns]
        first, *others = pattern.split("[]")
        folds.append((first + "".join(map("".join, zip(ranges, others, strict=True))), members))
    return folds


def partition_specs(
    tree: T, mesh: AnyMesh | None, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()
) -> T:
    """A tree of the same treedef with a `PartitionSpec` for each leaf, by the names of its field.

    A leaf whose field has no names is replicated, and so is a leaf outside all nodes.

    Args:
        tree: A node, or any other tree with nodes in it: live, traced, or abstract as `jax.eval_shape` gives it.
            An optimiser's state is such a tree: its moments are nodes of the classes of the parameters.
        mesh: A mesh, or a `jax.sharding.AbstractMesh`. Mesh axes that it lacks, or that have one device, are dropped,
            and lengths are checked. With None, nothing is dropped and no length is checked.
        rules: What the axes of each name are split over: a mesh axis, a tuple of several, or None for not at all.
        on_misfit: What to do if a length does not divide by the devices, two axes want one mesh axis, or there are
            more or fewer names than axes, as in optimisers that factor their moments. `"error"`, or `"replicate"`: keep
            that axis whole, or the array if the number of names is wrong. `"replicate_rank"` does so for such arrays
            alone, and for those of one number. Or a mapping from places, as `spec_like` takes them, to these:
            `{"opt_state": "replicate_rank"}`. A name without a rule is always an error.
        stack: The names of the leading axes of all arrays, where the tree is a part of a stack, such as
            `model.blocks`: the field with `stack=` is above it.

    Raises:
        MissingPlaceError: If a place in `on_misfit` is not there.
        ShardingError: If leaves can't be split as the rules say; the message lists all of them by path. Or if a rule
            names a mesh axis almost as the mesh has it, such as `"modle"`.
        TypeError: If `mesh` is not a mesh, or `rules` is not a mapping from names to mesh axes.

    Warns:
        ShardingWarning: If no field has the name of a rule that splits something, or if a mesh of several devices has
            none of the axes that the rules name.

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
    on_mesh = MeshRules(rules, None if mesh is None else sizes_of(mesh))
    fitted = fitted_leaves(tree, on_mesh, on_misfit, stack, whole=True)
    specs: T = jax_trees.tree_structure(tree).unflatten(fit.spec for _, fit in fitted)
    return specs


def shardings(tree: T, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()) -> T:
    """A tree of the same treedef with a `NamedSharding` for each leaf: for `jax.device_put`, `jit` and checkpoints.

    Mesh axes that the mesh lacks are dropped, as are those of one device: one set of rules serves a laptop and a pod.

    Args:
        tree: As for `partition_specs`.
        mesh: A mesh, or a `jax.sharding.AbstractMesh` to plan for machines that are not here.
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
    fitted = fitted_leaves(tree, MeshRules(rules, sizes_of(mesh)), on_misfit, stack, whole=True)
    placed: T = jax_trees.tree_structure(tree).unflatten(NamedSharding(mesh, fit.spec) for _, fit in fitted)
    return placed


def axes_text(sizes: Mapping[str, int]) -> str:
    """`data 2, tensor 4`."""
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def sizes_of(mesh: object) -> Mapping[str, int]:
    """How many devices each axis of a mesh has."""
    if not isinstance(mesh, Mesh | AbstractMesh):
        raise TypeError(f"mesh= is a jax.sharding.Mesh or AbstractMesh, got {mesh!r}.")
    shape: Mapping[str, int] = mesh.shape
    return shape
