"""A table of what is split and what is replicated, and the bytes on each device."""

import dataclasses
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from jax.sharding import PartitionSpec

from treewright._core.functions import public
from treewright._core.jax_private import path_text
from treewright._core.text import counted, in_html, table, text
from treewright._trees.sizes import bytes_in
from treewright.sharding.folding import first_steps, folded
from treewright.sharding.specs import AnyMesh, MeshRules, OnMisfit, Rules, StackNames, fitted_leaves, sizes_of

Order: TypeAlias = Literal["tree", "bytes", "excess"]
Units: TypeAlias = Literal["auto", "bytes"]
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZES = operator.attrgetter("nbytes", "device_nbytes", "excess_nbytes")


def bytes_text(count: int, units: Units = "auto") -> str:
    """`9,999 B` and `1,500 KiB`, with at most four digits; or the number alone, as exact as it is."""
    if units == "bytes":
        return f"{count:,}"
    scaled, unit = float(count), 0
    while scaled >= 10_000 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    shown = f"{scaled:,.0f}" if scaled >= 100 or scaled == int(scaled) else f"{scaled:.1f}"
    return f"{shown} {_UNITS[unit]}"


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class ShardedLeaf:
    """One leaf of a report.

    Attributes:
        path: Where it is.
        array: Its dtype and shape, as text.
        spec: How it is split.
        nbytes: Its bytes.
        device_nbytes: Its bytes on each device.
        copies: How many devices hold each part of it.
        misfits: What could not be split as the rules say, and why.
    """

    path: str
    array: str
    spec: PartitionSpec
    nbytes: int
    device_nbytes: int
    copies: int
    misfits: tuple[str, ...]

    @property
    def excess_nbytes(self) -> int:
        """Its bytes on each device beyond those that it would have if each part were on one device alone."""
        return self.device_nbytes - self.device_nbytes // self.copies


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class ShardingReport:
    """All leaves of a tree on a mesh. `print` it for a table, or `table` for other ones.

    Attributes:
        mesh: The axes of the mesh and how many devices each has.
        leaves: The leaves, in order.
        absent: The mesh axes that the rules name and the mesh does not have.
        unused: The names of rules that no field of the tree has.
    """

    mesh: Mapping[str, int]
    leaves: tuple[ShardedLeaf, ...]
    absent: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def nbytes(self) -> int:
        """The bytes of the tree, each leaf counted once."""
        return sum(leaf.nbytes for leaf in self.leaves)

    @property
    def device_nbytes(self) -> int:
        """The bytes on each device."""
        return sum(leaf.device_nbytes for leaf in self.leaves)

    @property
    def replicated_nbytes(self) -> int:
        """The bytes on each device of leaves that every device has whole."""
        return sum(leaf.device_nbytes for leaf in self.leaves if leaf.nbytes == leaf.device_nbytes)

    @property
    def excess_nbytes(self) -> int:
        """The bytes on each device beyond those that it would have if each part of a leaf were on one device alone."""
        return sum(leaf.excess_nbytes for leaf in self.leaves)

    def table(
        self, *, depth: int | None = None, fold: bool = True, order: Order = "tree", units: Units = "auto"
    ) -> str:
        """The report as text: a line for each leaf, or for some of them together, and one for the whole.

        Args:
            depth: How many steps of the paths are shown; what is below is added up. None for all.
            fold: Whether leaves that are equal but for indices, as in unrolled layers, are one line, and so are those
                that an optimiser's state repeats.
            order: `"tree"`, or the largest first: by `"bytes"` on a device, or by their `"excess"`.
            units: `"auto"` for KiB, MiB and so on, `"bytes"` for exact numbers.

        Raises:
            ValueError: If `order` or `units` is anything else.
        """
        if order not in {"tree", "bytes", "excess"} or units not in {"auto", "bytes"}:
            raise ValueError(
                f'order= is "tree", "bytes" or "excess", and units= is "auto" or "bytes", got {order!r} and {units!r}.'
            )
        rows = self._rows(depth, fold=fold)
        if order != "tree":
            by_size = operator.attrgetter("device_nbytes" if order == "bytes" else "excess_nbytes")
            rows.sort(key=lambda row: -sum(map(by_size, row[1])))
        devices = math.prod(self.mesh.values())
        head = ("leaf", "array", "split over", "copies", "bytes", "on a device", f"beyond 1/{devices}")
        cells = [(name, *_cells(leaves, units)) for name, leaves in rows]
        lines = table([head, *cells], right=head[3:])
        misfits = folded([(leaf.path, misfit) for leaf in self.leaves for misfit in leaf.misfits])
        texts = [misfit for leaf in self.leaves for misfit in leaf.misfits]
        lines += [f"{fold}: {texts[fold.members[0]]}" for fold in misfits]
        if self.absent:
            lines.append(f"not in the mesh, so not used: {', '.join(self.absent)}")
        if self.unused:
            lines.append(f"rules for names that no field has: {', '.join(self.unused)}")
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.items())
        unit = " bytes" if units == "bytes" else ""
        lines.append(
            f"{bytes_text(self.nbytes, units)}{unit} on {counted(devices, 'device')} ({axes}): "
            f"{bytes_text(self.device_nbytes, units)} on each, {bytes_text(self.excess_nbytes, units)} of them beyond "
            f"1/{devices}"
        )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.table()

    def _repr_html_(self) -> str:
        return in_html(str(self))

    def _rows(self, depth: int | None, *, fold: bool) -> list[tuple[str, list[ShardedLeaf]]]:
        """The lines of the table: the name of each, and its leaves."""
        parts: dict[str, list[ShardedLeaf]] = {}
        for leaf in self.leaves:
            parts.setdefault(leaf.path if depth is None else first_steps(leaf.path, depth), []).append(leaf)
        if not fold:
            return [*parts.items()]
        content = operator.attrgetter("array", "spec", *(["misfits"] if depth is None else []))
        folds = folded([(name, tuple(map(content, leaves))) for name, leaves in parts.items()])
        groups = [*parts.values()]
        return [(str(one), [leaf for number in one.members for leaf in groups[number]]) for one in folds]


def _cells(leaves: Sequence[ShardedLeaf], units: Units) -> tuple[str, ...]:
    arrays = {leaf.array for leaf in leaves}
    array = f"{arrays.pop()}{f' x {len(leaves)}' * (len(leaves) > 1)}" if len(arrays) == 1 else f"{len(leaves)} arrays"
    specs = {spec_text(leaf.spec) for leaf in leaves}
    copies = sorted({leaf.copies for leaf in leaves})
    sizes = [sum(column) for column in zip(*map(_SIZES, leaves), strict=True)]
    shown = (array, specs.pop() if len(specs) == 1 else "...", "-".join(map(str, copies[:: len(copies) - 1 or 1])))
    return (*shown, *(bytes_text(size, units) for size in sizes))


def spec_text(spec: Iterable[Any]) -> str:
    """`fsdp, tensor`, `-, data x fsdp`, or `replicated`."""
    shown = [entry if isinstance(entry, str) else " x ".join(entry or "-") for entry in spec]
    return ", ".join(shown) or "replicated"


def sharding_report(
    tree: object, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()
) -> ShardingReport:
    """What of a tree is split over a mesh and what is replicated, with the bytes on each device.

    Nothing is computed or moved, so you can plan for machines that are not here: with an abstract tree from
    `jax.eval_shape` and a `jax.sharding.AbstractMesh`. What a compiled program does with the tree is in
    `program_report`.

    Args:
        tree: As for `partition_specs`.
        mesh: As for `shardings`.
        rules: As for `partition_specs`. One that no field uses is in the report, and no warning.
        on_misfit: As for `partition_specs`; with `"replicate"` the report says what did not fit.
        stack: As for `partition_specs`.

    Raises:
        ShardingError: As for `partition_specs`.
        TypeError: As for `partition_specs`.

    Examples:
        >>> from treewright.sharding import sharding_report
        >>> class Layer(Module):
        ...     kernel: jax.Array = field(sharding=("embed", "mlp"))
        ...     bias: jax.Array
        >>> layer = jax.eval_shape(lambda: Layer(jnp.ones((256, 1024)), jnp.ones(1024)))
        >>> mesh = jax.sharding.AbstractMesh((8, 4), ("data", "tensor"))
        >>> print(sharding_report(layer, mesh, {"embed": None, "mlp": "tensor"}))
        leaf     array          split over  copies      bytes  on a device  beyond 1/32
        .kernel  f32[256,1024]  -, tensor        8  1,024 KiB      256 KiB      224 KiB
        .bias    f32[1024]      replicated      32    4,096 B      4,096 B      3,968 B
        1,028 KiB on 32 devices (data 8, tensor 4): 260 KiB on each, 228 KiB of them beyond 1/32
    """
    sizes = sizes_of(mesh)
    on_mesh = MeshRules(rules, sizes)
    devices = math.prod(sizes.values())
    leaves: list[ShardedLeaf] = []
    for leaf, fit in fitted_leaves(tree, on_mesh, on_misfit, stack):
        nbytes = bytes_in(leaf.value)
        axes = [axis for entry in fit.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]
        parts = math.prod(sizes[axis] for axis in axes)
        array = text(leaf.value).removesuffix("(abstract)")
        path = path_text(leaf.path)
        leaves.append(ShardedLeaf(path, array, fit.spec, nbytes, nbytes // parts, devices // parts, fit.misfits))
    return ShardingReport(dict(sizes), tuple(leaves), on_mesh.absent, on_mesh.unused)
