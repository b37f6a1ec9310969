"""From the names of an array's axes to a `PartitionSpec`, by rules. The one place where that is decided."""

import dataclasses
import math
import types
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, TypeAlias

from jax.sharding import PartitionSpec

from treewright._values.text import did_you_mean

# Which mesh axes the axes of an array with this name are split over; None for not at all.
MeshAxes: TypeAlias = str | tuple[str, ...] | None
Rules: TypeAlias = Mapping[str, MeshAxes]

_no_sizes: Mapping[str, int] = types.MappingProxyType({})


@dataclasses.dataclass(frozen=True, slots=True)
class Fit:
    """How an array is split; what could not be split as the rules say, and is whole in `spec`; what has no rule."""

    spec: PartitionSpec
    misfits: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def partition_spec(entries: Iterable[Any]) -> PartitionSpec:
    """The spec with these entries."""
    make: Any = PartitionSpec  # whose constructor has no annotations
    spec: PartitionSpec = make(*entries)
    return spec


class Resolver:
    """Rules and the axes of a mesh, by which arrays are fitted.

    Args:
        rules: Mesh axes by name.
        sizes: The mesh axes and how many devices each has. Without, nothing is dropped and no length is checked.

    Raises:
        TypeError: If the rules are no mapping, or a rule is no mesh axis, tuple of such, or None.
    """

    def __init__(self, rules: Mapping[Any, Any], sizes: Mapping[str, int] | None) -> None:
        rules_are: Any = rules
        if not isinstance(rules_are, Mapping):
            raise TypeError(f'Rules are a mapping from names to mesh axes, such as {{"mlp": "tensor"}}, got {rules!r}.')
        self._axes = {name: _axes_of(name, rule) for name, rule in rules.items()}
        self._sizes = sizes
        self._known: dict[tuple[Any, ...], Fit] = {}

    @property
    def absent(self) -> tuple[str, ...]:
        """The mesh axes that rules speak of and the mesh does not have."""
        sizes = _no_sizes if self._sizes is None else self._sizes
        return tuple(sorted({axis for axes in self._axes.values() for axis in axes if axis not in sizes}))

    def fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        """How an array of this shape is split.

        Args:
            stacks: The names of its leading axes that hold a stack.
            names: The names of the other axes; None if they have none.
            shape: Its shape.
        """
        key = (stacks, names, shape)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fit(stacks, names, shape)
        return found

    def _fit(self, stacks: tuple[str, ...], names: tuple[Hashable, ...] | None, shape: tuple[int, ...]) -> Fit:
        everything = (*stacks, *((None,) * (len(shape) - len(stacks)) if names is None else names))
        unknown = tuple(self._without_rule(name) for name in everything if not (name is None or name in self._axes))
        if unknown:
            return Fit(partition_spec(()), (), unknown)
        if len(everything) != len(shape):
            of_stacks = f", {len(stacks)} of a stack," if stacks else ""
            counted = f"{_counted(len(everything), 'name', 'names')}{of_stacks} {everything}"
            return Fit(partition_spec(()), (f"{counted} for {_counted(len(shape), 'axis', 'axes')}",))
        entries: list[Any] = []
        misfits: list[str] = []
        taken: dict[str, int] = {}
        for place, (name, length) in enumerate(zip(everything, shape, strict=True)):
            axes = () if name is None else self._present(self._axes[name])
            misfit = self._misfit(axes, length, taken)
            if misfit is not None:
                misfits.append(f"axis {place} ({name!r}, length {length}) {misfit}")
                axes = ()
            taken.update(dict.fromkeys(axes, place))
            entries.append(axes[0] if len(axes) == 1 else axes or None)
        while entries and entries[-1] is None:  # as JAX writes the shardings of its results
            entries.pop()
        return Fit(partition_spec(entries), tuple(misfits))

    def _present(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        sizes = self._sizes
        return axes if sizes is None else tuple(axis for axis in axes if sizes.get(axis, 1) > 1)

    def _misfit(self, axes: tuple[str, ...], length: int, taken: Mapping[str, int]) -> str | None:
        for axis in axes:
            if axis in taken:
                return f"wants mesh axis {axis!r}, which axis {taken[axis]} has"
        if len({*axes}) < len(axes):
            return f"wants a mesh axis twice: {axes}"
        sizes = _no_sizes if self._sizes is None else self._sizes
        if length % math.prod(sizes.get(axis, 1) for axis in axes):
            return f"does not divide by {' x '.join(f'{axis!r} ({sizes[axis]})' for axis in axes)}"
        return None

    def _without_rule(self, name: Hashable) -> str:
        return f"no rule for {name!r}{did_you_mean(str(name), map(str, self._axes))}"


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _axes_of(name: Any, rule: Any) -> tuple[str, ...]:
    given: Any = () if rule is None else (rule,) if isinstance(rule, str) else rule
    axes: tuple[Any, ...] = given if issubclass(type(given), tuple) else (None,)
    if not all(isinstance(axis, str) for axis in axes):
        raise TypeError(
            f"The rule for {name!r} is {rule!r}. A rule is a mesh axis, a tuple of mesh axes, or None for an axis that "
            f"is not split."
        )
    return axes
