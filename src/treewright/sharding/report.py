"""A table of what is split and what is replicated, and the bytes on each device."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from jax.sharding import PartitionSpec

from treewright._jax import path_text
from treewright._trees.sizes import bytes_in
from treewright._values.reach import public
from treewright._values.text import table, text
from treewright.sharding.rules import MeshRules, Rules
from treewright.sharding.specs import AnyMesh, OnMisfit, fitted_leaves, sizes_of


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
        misfits: What could not be split as the rules say, and why.
    """

    path: str
    array: str
    spec: PartitionSpec
    nbytes: int
    device_nbytes: int
    misfits: tuple[str, ...]


@public("treewright.sharding")
@dataclasses.dataclass(frozen=True, slots=True)
class ShardingReport:
    """All leaves of a tree on a mesh. `print` it for a table.

    Attributes:
        mesh: The axes of the mesh and how many devices each has.
        leaves: The leaves, in order.
        absent: The mesh axes that the rules name and the mesh does not have.
    """

    mesh: Mapping[str, int]
    leaves: tuple[ShardedLeaf, ...]
    absent: tuple[str, ...]

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

    def __str__(self) -> str:
        rows = [
            (leaf.path, leaf.array, _spec_text(leaf.spec), f"{leaf.nbytes:,}", f"{leaf.device_nbytes:,}")
            for leaf in self.leaves
        ]
        head = ("leaf", "array", "split over", "bytes", "on a device")
        lines = table([head, *rows], right=("bytes", "on a device"))
        lines += [f"{leaf.path}: {misfit}" for leaf in self.leaves for misfit in leaf.misfits]
        if self.absent:
            lines.append(f"not in the mesh, so not used: {', '.join(self.absent)}")
        axes = ", ".join(f"{name} {size}" for name, size in self.mesh.items())
        devices = math.prod(self.mesh.values())
        lines.append(
            f"{self.nbytes:,} bytes on {devices} device{'s' * (devices != 1)} ({axes}): "
            f"{self.device_nbytes:,} on each, {self.replicated_nbytes:,} of them replicated"
        )
        return "\n".join(lines)


def _spec_text(spec: PartitionSpec) -> str:
    entries: tuple[Any, ...] = tuple(spec)
    shown: list[str] = [entry if isinstance(entry, str) else " x ".join(entry or "-") for entry in entries]
    return ", ".join(shown) or "replicated"


def sharding_report(tree: object, mesh: AnyMesh, rules: Rules, *, on_misfit: OnMisfit = "error") -> ShardingReport:
    """What of a tree is split over a mesh and what is replicated, with the bytes on each device.

    Nothing is computed or moved, so you can plan for machines that are not here: with an abstract tree from
    `jax.eval_shape` and a `jax.sharding.AbstractMesh`.

    Args:
        tree: As for `partition_specs`.
        mesh: As for `shardings`.
        rules: As for `partition_specs`.
        on_misfit: As for `partition_specs`; with `"replicate"` the report says what did not fit.

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
        leaf     array          split over      bytes  on a device
        .kernel  f32[256,1024]  -, tensor   1,048,576      262,144
        .bias    f32[1024]      replicated      4,096        4,096
        1,052,672 bytes on 32 devices (data 8, tensor 4): 266,240 on each, 4,096 of them replicated
    """
    sizes = sizes_of(mesh)
    on_mesh = MeshRules(rules, sizes)
    leaves: list[ShardedLeaf] = []
    for leaf, fit in fitted_leaves(tree, on_mesh, on_misfit):
        nbytes = bytes_in(leaf.value)
        axes = [axis for entry in fit.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())]
        on_a_device = nbytes // math.prod(sizes[axis] for axis in axes)
        array = text(leaf.value).removesuffix("(abstract)")
        leaves.append(ShardedLeaf(path_text(leaf.path), array, fit.spec, nbytes, on_a_device, fit.misfits))
    return ShardingReport(dict(sizes), tuple(leaves), on_mesh.absent)
