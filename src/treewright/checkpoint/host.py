"""JAX arrays in host memory: each block is copied there once, all in one call.

`np.asarray` of an array on a GPU copies through memory that the GPU can't address, at a tenth of the speed of a copy
to pinned memory. NumPy views pinned memory without a copy.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from treewright._base.jax_private import untyped_jax

K = TypeVar("K")
Bounds = tuple[tuple[int, int], ...]  # where a block starts and stops along each dimension

_PINNED = "pinned_host"
_HOST_KINDS = frozenset({_PINNED, "unpinned_host"})
_PLATFORMS = frozenset({"gpu"})  # NumPy views arrays on a CPU; a TPU's pinned arrays have other layouts
_PIECE_BYTES = 1 << 24  # of an array on several devices, gathered at a time


def on_host(blocks: Mapping[str, Sequence[tuple[K, Any]]]) -> dict[str, list[tuple[K, np.ndarray]]]:
    """Labelled blocks of arrays by name as numpy arrays. All copies from devices are started in one call.

    On a CPU they are views of the arrays' own memory, which is then not donated.
    """
    flat = [block for each in blocks.values() for _, block in each]
    remote = [index for index, block in enumerate(flat) if isinstance(block, jax.Array) and _is_remote(block.sharding)]
    pinned = [jax.sharding.SingleDeviceSharding(flat[index].device, memory_kind=_PINNED) for index in remote]
    for index, copy in zip(remote, untyped_jax.device_put([flat[index] for index in remote], pinned), strict=True):
        flat[index] = copy
    arrays = iter(flat)
    return {name: [(label, np.asarray(next(arrays))) for label, _ in each] for name, each in blocks.items()}


def _is_remote(sharding: Any) -> bool:
    """Whether arrays of this sharding are worth a copy to pinned memory."""
    return next(iter(sharding.device_set)).platform in _PLATFORMS and sharding.memory_kind not in _HOST_KINDS


def bounds_of(index: Sequence[slice], shape: Sequence[int]) -> Bounds:
    """The bounds of an index."""
    return tuple([part.indices(size)[:2] for part, size in zip(index, shape, strict=True)])


def local_blocks(array: Any) -> list[tuple[Bounds, Any]]:
    """The different blocks of an array on this process's devices, with their bounds."""
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1:
        return [(tuple([(0, size) for size in array.shape]), array)]
    return list({bounds_of(each.index, array.shape): each.data for each in array.addressable_shards}.items())


def region_of(bounds: Bounds, dtype: Any, blocks: Sequence[tuple[Bounds, Any]]) -> Any:
    """The values between bounds, from all blocks that overlap them."""
    region = np.empty([stop - start for start, stop in bounds], dtype)
    for of_block, block in blocks:
        both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, of_block, strict=True)]
        if all(start < stop for start, stop in both):
            into, out = (
                tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(both, origin, strict=True))
                for origin in (bounds, of_block)
            )
            region[into] = block[out]
    return region


def pieces_of(form: tuple[Any, Sequence[int]], blocks: Sequence[tuple[Bounds, Any]]) -> Iterator[Any]:
    """The values of an array in C order, in consecutive pieces; of several blocks gathered one piece at a time.

    Args:
        form: Its dtype and shape.
        blocks: Its blocks in host memory.
    """
    dtype, shape = form
    if len(blocks) == 1:
        yield np.asarray(blocks[0][1], order="C")
        return
    for bounds in _consecutive_parts(tuple(shape), dtype.itemsize):
        yield region_of(bounds, dtype, blocks)


def _consecutive_parts(shape: tuple[int, ...], itemsize: int) -> Iterator[Bounds]:
    """Bounds of parts that follow each other in C order, of at most `_PIECE_BYTES`."""
    row = math.prod(shape[1:]) * itemsize
    if not shape or row * shape[0] <= _PIECE_BYTES:
        yield tuple((0, size) for size in shape)
    elif row <= _PIECE_BYTES:
        count = _PIECE_BYTES // row
        for start in range(0, shape[0], count):
            yield (start, min(start + count, shape[0])), *((0, size) for size in shape[1:])
    else:
        for start in range(shape[0]):
            for rest in _consecutive_parts(shape[1:], itemsize):
                yield (start, start + 1), *rest
