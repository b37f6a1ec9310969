"""From the names of an array's axes to a `PartitionSpec`: the one place where that is decided."""

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec

from treewright._values.text import did_you_mean
from treewright.errors import ShardingError

# The mesh axes that array axes of one name are split over; None for not at all.
MeshAxes: TypeAlias = str | tuple[str, ...] | None
Rules: TypeAlias = Mapping[str, MeshAxes]
"""What the axes of each name are split over: a mesh axis, a tuple of several, or None for not at all."""

partition_spec: Callable[..., PartitionSpec] = PartitionSpec  # whose constructor has no annotations
_NUMBER = re.compile(r"\d+")
_no_sizes: Mapping[str, int] = types.MappingProxyType({})


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

    Args:
        rules: Mesh axes by name.
        sizes: The mesh axes and how many devices each has. Without them, nothing is dropped and no length is checked.

    Raises:
        ShardingError: If a mesh axis that the mesh lacks is written almost like one that it has.
        TypeError: If `rules` is not a mapping, or a rule is not a mesh axis, a tuple of mesh axes, or None.
    """

    def __init__(self, rules: Mapping[Any, Any], sizes: Mapping[str, int] | None) -> None:
        given: Any = rules
        if not isinstance(given, Mapping):
            raise TypeError(f'rules= is a mapping from names to mesh axes, such as {{"mlp": "tensor"}}, got {rules!r}.')
        self._axes = {name: _axes_of(name, rule) for name, rule in rules.items()}
        self._sizes = sizes
        self._used: set[Hashable] = set()
        misspelt = [f"{axis!r} for {close!r}" for axis in self.absent if (close := _almost(axis, self._sizes or ()))]
        if misspelt:
            has = ", ".join(f"{name} {size}" for name, size in (sizes or {}).items())
            raise ShardingError(
                f"The rules name mesh axes that the mesh ({has}) does not have, though almost: {', '.join(misspelt)}. "
                f"What a rule splits over an axis that is not in the mesh is left whole on every device. Write the "
                f"axis as the mesh does, or, if another is meant, a name that is less alike."
            )
        self._fits: dict[tuple[Any, ...], Fit] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """The mesh axes that the rules name and the mesh does not have."""
        sizes = self._sizes or _no_sizes
        return tuple(sorted({axis for axes in self._axes.values() for axis in axes if axis not in sizes}))

    @property
    def unused(self) -> tuple[str, ...]:
        """The names that no array has had, whose rules would split something."""
        return tuple(str(name) for name, axes in self._axes.items() if axes and name not in self._used)

    def fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        """How an array is split.

        Args:
            stacks: The names of its leading axes that hold a stack.
            names: The names of the other axes; None if they have no names.
            shape: The shape of the array.
        """
        key = (stacks, names, shape)
        fit = self._fits.get(key)
        if fit is None:
            fit = self._fits[key] = self._fit(stacks, names, shape)
            self._used.update((*stacks, *(names or ())))
        return fit

    def _fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        all_names = (*stacks, *((None,) * (len(shape) - len(stacks)) if names is None else names))
        unknown = tuple(self._without_rule(name) for name in all_names if not (name is None or name in self._axes))
        if unknown:
            return Fit(partition_spec(), (), unknown)
        if len(all_names) != len(shape):
            of_stacks = f", {len(stacks)} of a stack," if stacks else ""
            count = f"{_counted(len(all_names), 'name', 'names')}{of_stacks} {all_names}"
            return Fit(partition_spec(), (f"{count} for {_counted(len(shape), 'axis', 'axes')}",), wrong_rank=True)
        entries: list[str | tuple[str, ...] | None] = []
        misfits: list[str] = []
        taken: dict[str, int] = {}
        for place, (name, length) in enumerate(zip(all_names, shape, strict=True)):
            axes = () if name is None else self._present(self._axes[name])
            misfit = self._misfit(axes, length, taken)
            if misfit is not None:
                misfits.append(f"axis {place} ({name!r}, length {length}) {misfit}")
                axes = ()
            taken.update(dict.fromkeys(axes, place))
            entries.append(axes[0] if len(axes) == 1 else axes or None)
        while entries and entries[-1] is None:  # as JAX writes the shardings of its results
            entries.pop()
        return Fit(partition_spec(*entries), tuple(misfits), wrong_rank=math.prod(shape) == 1)

    def _present(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        sizes = self._sizes
        return axes if sizes is None else tuple(axis for axis in axes if sizes.get(axis, 1) > 1)

    def _misfit(self, axes: tuple[str, ...], length: int, taken: Mapping[str, int]) -> str | None:
        for axis in axes:
            if axis in taken:
                return f"wants mesh axis {axis!r}, which axis {taken[axis]} has"
        if len({*axes}) < len(axes):
            return f"wants a mesh axis twice: {axes}"
        sizes = self._sizes or _no_sizes
        if length % math.prod(sizes.get(axis, 1) for axis in axes):
            return f"does not divide by {' x '.join(f'{axis!r} ({sizes[axis]})' for axis in axes)}"
        return None

    def _without_rule(self, name: Hashable) -> str:
        return f"no rule for {name!r}{did_you_mean(str(name), map(str, self._axes))}"


def _almost(axis: str, axes: Iterable[str]) -> str | None:
    """The mesh axis of which this one is a misspelling. `data1` is none of `data2`, and `dp` none of `fsdp`."""
    close = difflib.get_close_matches(axis, axes, 1, cutoff=0.75)
    return close[0] if close and _NUMBER.sub("", axis) != _NUMBER.sub("", close[0]) else None


def _counted(count: int, singular: str, plural: str) -> str:
    return f"{count} {singular if count == 1 else plural}"


def _axes_of(name: Any, rule: Any) -> tuple[str, ...]:
    axes: Any = () if rule is None else (rule,) if isinstance(rule, str) else rule
    if not (issubclass(type(axes), tuple) and all(isinstance(axis, str) for axis in axes)):
        raise TypeError(
            f"The rule for {name!r} is {rule!r}. A rule is a mesh axis, a tuple of mesh axes, or None for an axis that "
            f"is not split."
        )
    return tuple(axes)
