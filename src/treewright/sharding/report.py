"""`sharding_report`: a table of split and replicated leaves, and the bytes on each device."""

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from jax.sharding import PartitionSpec

from treewright._base.jax_private import path_text
from treewright._base.text import text
from treewright._reports import counted, table
from treewright._trees.level import reject_classes
from treewright._trees.sizes import bytes_in
from treewright.sharding.specs import (
    AnyMesh,
    MeshRules,
    OnMisfit,
    Rules,
    StackNames,
    axes_in,
    fitted_leaves,
    sizes_of,
)
from treewright.sharding.text import axes_text, folded

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def bytes_text(count: int) -> str:
    """`9,999 B` and `1,500 KiB`, with at most four digits."""
    scaled, unit = float(count), 0
    while scaled >= 10_000 and unit < len(_UNITS) - 1:
        scaled, unit = scaled / 1024, unit + 1
    shown = f"{scaled:,.0f}" if scaled >= 100 or scaled == int(scaled) else f"{scaled:.1f}"
    return f"{shown} {_UNITS[unit]}"


@dataclasses.dataclass(frozen=True, slots=True)
class ShardedLeaf:
    """One leaf of a report.

    Attributes:
        path: Its path.
        array: Its dtype and shape, as text.
        spec: Its partition spec.
        nbytes: Its bytes.
        device_nbytes: Its bytes on each device.
        copies: The number of devices with a copy of each part.
        misfits: The rules that do not apply, and why.
    """

    path: str
    array: str
    spec: PartitionSpec
    nbytes: int
    device_nbytes: int
    copies: int
    misfits: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class ShardingReport:
    """All leaves of a tree on a mesh. It prints as a table, in which equal layers share a line.

    Attributes:
        mesh: The number of devices of each mesh axis.
        leaves: The leaves, in order.
        absent: The mesh axes that are in the rules but not in the mesh.
        unused: The names that are in the rules but not in the tree.
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
        """The bytes on each device of replicated leaves."""
        return sum(leaf.device_nbytes for leaf in self.leaves if leaf.nbytes == leaf.device_nbytes)

    def __str__(self) -> str:
        folds = folded([(leaf.path, dataclasses.replace(leaf, path="")) for leaf in self.leaves])
        head = ("leaf", "array", "split over", "copies", "bytes", "on a device")
        rows: list[tuple[str, ...]] = [head]
        for path, members in folds:
            leaf, count = self.leaves[members[0]], len(members)
            array = f"{leaf.array} x {count}" if count > 1 else leaf.array
            sizes = (bytes_text(count * size) for size in (leaf.nbytes, leaf.device_nbytes))
            rows.append((path, array, spec_text(leaf.spec), str(leaf.copies), *sizes))
        lines = table(rows, right=head[3:])
        lines += [f"{path}: {misfit}" for path, members in folds for misfit in self.leaves[members[0]].misfits]
        used = {axis for leaf in self.leaves for axis in axes_in(leaf.spec)}
        idle = [axis for axis, size in self.mesh.items() if size > 1 and axis not in used]
        if idle:
            lines.append(f"mesh axes that split no leaf: {', '.join(idle)}")
        if self.absent:
            lines.append(f"not in the mesh, so not used: {', '.join(self.absent)}")
        if self.unused:
            lines.append(f"rules for names that no field has: {', '.join(self.unused)}")
        devices = counted(math.prod(self.mesh.values()), "device")
        lines.append(
            f"{bytes_text(self.nbytes)} on {devices} ({axes_text(self.mesh)}): {bytes_text(self.device_nbytes)} on "
            f"each, {bytes_text(self.replicated_nbytes)} of them replicated"
        )
        return "\n".join(lines)

    def __repr__(self) -> str:
        return str(self)


def spec_text(spec: Iterable[Any]) -> str:
    """`fsdp, tensor`, `-, data x fsdp`, or `replicated`."""
    axes = [entry if isinstance(entry, str) else " x ".join(entry or "-") for entry in spec]
    return ", ".join(axes) or "replicated"


def sharding_report(
    tree: object, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error", stack: StackNames = ()
) -> ShardingReport:
    """A table of the leaves of a tree on a mesh: how each is split, and the bytes on each device.

    Nothing is computed or moved, so you can plan for other machines with an abstract tree from `jax.eval_shape` and a
    `jax.sharding.AbstractMesh`.

    Args:
        tree: As for `partition_specs`.
        mesh: As for `shardings`.
        rules: As for `partition_specs`. The report lists unused rules, without a warning.
        on_misfit: As for `partition_specs`; with `"replicate"` the report lists the rules that do not apply.
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
        leaf     array          split over  copies      bytes  on a device
        .kernel  f32[256,1024]  -, tensor        8  1,024 KiB      256 KiB
        .bias    f32[1024]      replicated      32    4,096 B      4,096 B
        mesh axes that split no leaf: data
        1,028 KiB on 32 devices (data 8, tensor 4): 260 KiB on each, 4,096 B of them replicated
    """
    reject_classes("sharding_report", tree)
    sizes = sizes_of(mesh)
    on_mesh = MeshRules(rules, sizes)
    devices = math.prod(sizes.values())
    leaves: list[ShardedLeaf] = []
    for leaf, fit in fitted_leaves(tree, on_mesh, on_misfit, stack):
        nbytes = bytes_in(leaf.value)
        parts = math.prod(sizes[axis] for axis in axes_in(fit.spec))
        array = text(leaf.value).removesuffix("(abstract)")
        path = path_text(leaf.path)
        leaves.append(ShardedLeaf(path, array, fit.spec, nbytes, nbytes // parts, devices // parts, fit.misfits))
    return ShardingReport(dict(sizes), tuple(leaves), on_mesh.absent, on_mesh.unused)
