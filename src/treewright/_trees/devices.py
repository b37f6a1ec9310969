"""The devices of leaves, and of those that are not committed to any."""

from collections.abc import Iterable
from typing import Any

import jax
from jax.core import Tracer
from jax.sharding import NamedSharding

from treewright._base.jax_private import untyped_jax


def sharding_of(leaf: Any) -> Any:
    """The sharding of a committed leaf; None for any other."""
    is_committed = isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.committed
    return leaf.sharding if is_committed else None


def placed_with(others: Iterable[Any], leaves: list[Any]) -> list[Any]:
    """The leaves; if all others are on the same devices, the uncommitted ones are moved there, replicated over a mesh.

    The same list if there is nothing to move.

    `jit` would also move them, but then recompile for its own results, which are committed.
    """
    shardings = {_replicated_over_devices_of(leaf) for leaf in others} - {None}
    if len(shardings) != 1 or not any(map(_is_movable, leaves)):
        return leaves
    return [jax.device_put(leaf, *shardings) if _is_movable(leaf) else leaf for leaf in leaves]


def _is_movable(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and sharding_of(leaf) is None


def _replicated_over_devices_of(leaf: Any) -> Any:
    sharding, whole = sharding_of(leaf), untyped_jax.sharding.PartitionSpec()
    return NamedSharding(sharding.mesh, whole) if isinstance(sharding, NamedSharding) else sharding
