"""JAX arrays in host memory: copy each block there once, in one call, and place it on devices again.

`np.asarray` of an array on a GPU copies through memory that the GPU can't address, at a tenth of the speed of a copy
to pinned memory. NumPy views pinned memory without a copy, and Orbax writes it without one.
"""

import collections
import functools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np

from treewright._base.jax_private import untyped_jax
from treewright._processes import process_index

R = TypeVar("R")

_PINNED = "pinned_host"
_HOST_KINDS = frozenset({_PINNED, "unpinned_host"})
_PLATFORMS = frozenset({"gpu"})  # as in Orbax. NumPy views arrays on a CPU; a TPU's pinned arrays have other layouts
_THREADS = min(4, os.cpu_count() or 1)  # 4 digest 20 GB/s
_LARGE_BYTES = 1 << 20  # worth a thread
_PIECE_BYTES = 1 << 24  # of an array on several devices, gathered at a time


def is_remote(sharding: Any) -> bool:
    """Whether arrays of this sharding are worth a copy to pinned memory."""
    return next(iter(sharding.device_set)).platform in _PLATFORMS and sharding.memory_kind not in _HOST_KINDS


def on_host(sharding: Any, shape: tuple[int, ...]) -> Any:
    """The sharding of a copy in host memory; the sharding itself if arrays of it are in host memory."""
    return sharding if 0 in shape or not is_remote(sharding) else _pinned(sharding, shape)


def read_on_host(sharding: Any, shape: tuple[int, ...]) -> Any:
    """The sharding to read an array with; None for NumPy's memory.

    Orbax's arrays on one device in host memory have the type of arrays on a device, and programs reject them.
    """
    is_mistyped = isinstance(sharding, jax.sharding.SingleDeviceSharding) and sharding.memory_kind in _HOST_KINDS
    return None if sharding is None or is_mistyped else on_host(sharding, shape)


@functools.lru_cache(maxsize=4096)
def _pinned(sharding: Any, shape: tuple[int, ...]) -> Any:
    """A sharding in pinned memory with each block once, of its first device in this process, or else in another."""
    grid = tuple([size // part for size, part in zip(shape, sharding.shard_shape(shape), strict=True)])
    devices: Any = np.full(grid, None, object)
    here: Any = np.zeros(grid, bool)
    for device, index in sharding.devices_indices_map(grid).items():  # each block counts as one element
        place, is_here = tuple([part.start or 0 for part in index]), device.process_index == process_index()
        if devices[place] is None or (is_here and not here[place]):
            devices[place], here[place] = device, is_here
    if devices.size == sharding.num_devices:
        return sharding.with_memory_kind(_PINNED)
    if not grid:
        return jax.sharding.SingleDeviceSharding(devices.item(), memory_kind=_PINNED)
    names = tuple(f"axis{axis}" for axis in range(len(grid)))
    return jax.sharding.NamedSharding(jax.sharding.Mesh(devices, names), untyped_jax.P(*names), memory_kind=_PINNED)


def copied_to_host(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of JAX's arrays in host memory, all started in one call; other values, and arrays there, as they are."""
    targets = {
        name: target
        for name, array in arrays.items()
        if isinstance(array, jax.Array) and (target := on_host(array.sharding, array.shape)) != array.sharding
    }
    blocks = [
        (name, shard)
        for name, target in targets.items()
        for shard in arrays[name].addressable_shards
        if shard.device in target.device_set
    ]
    pinned = [jax.sharding.SingleDeviceSharding(shard.device, memory_kind=_PINNED) for _, shard in blocks]
    copies = collections.defaultdict[str, list[Any]](list)
    copied = untyped_jax.device_put([shard.data for _, shard in blocks], pinned)
    for (name, _), copy in zip(blocks, copied, strict=True):
        copies[name].append(copy)
    join: Any = untyped_jax.make_array_from_single_device_arrays
    return {**arrays, **{name: join(arrays[name].shape, targets[name], copies[name]) for name in targets}}


def blocks_for(array: jax.Array, sharding: Any) -> Iterator[tuple[Any, Any]]:
    """The blocks of an array by the devices of a sharding with equal blocks, each with its device's sharding."""
    by_bounds = {_bounds(shard.index, array.shape): shard.data for shard in array.addressable_shards}
    for device, index in sharding.addressable_devices_indices_map(array.shape).items():
        target = jax.sharding.SingleDeviceSharding(device, memory_kind=sharding.memory_kind)
        yield by_bounds[_bounds(index, array.shape)], target


def _bounds(index: Any, shape: tuple[int, ...]) -> tuple[Any, ...]:
    return tuple([part.indices(size)[:2] for part, size in zip(index, shape, strict=True)])


def on_threads(work: Callable[[Any], R], arrays: Sequence[Any]) -> list[R]:
    """The results of `work` on arrays of the host, in order; a few threads do the large ones.

    xxhash releases Python's lock. A task for a thread takes as long as a digest of 300 kB.
    """
    large = [array for array in arrays if array.nbytes >= _LARGE_BYTES]
    if len(large) < 2:
        return list(map(work, arrays))
    with ThreadPoolExecutor(_THREADS, "treewright-digests") as pool:
        results = pool.map(work, large)
        small = iter([work(array) for array in arrays if array.nbytes < _LARGE_BYTES])
        return [next(results if array.nbytes >= _LARGE_BYTES else small) for array in arrays]


def pieces_of(array: Any) -> Iterator[Any]:
    """The values of an array in C order, in consecutive pieces; of an array on several devices gathered one at a time.

    `np.asarray` would gather the whole array, and JAX keep that copy as long as the array.
    """
    if not isinstance(array, jax.Array) or len(array.sharding.device_set) == 1:
        yield np.asarray(array, order="C")
        return
    shape, itemsize = array.shape, array.dtype.itemsize
    blocks = [(_bounds(each.index, shape), each.data) for each in array.addressable_shards if each.replica_id == 0]
    for bounds in _consecutive_parts(shape, itemsize):
        piece = np.empty([stop - start for start, stop in bounds], array.dtype)
        for at, block in blocks:
            both = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(bounds, at, strict=True)]
            if all(start < stop for start, stop in both):
                into, out = (
                    tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(both, origin, strict=True))
                    for origin in (bounds, at)
                )
                piece[into] = np.asarray(block)[out]
        yield piece


def _consecutive_parts(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[tuple[int, int], ...]]:
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
