"""Digests of arrays: xxh3_128.

It takes 9 to 18 GB/s on one core where zlib's CRC-32 takes 2.6 and SHA-256 1.4 (benchmarks/checkpoint.py).

They find accidents: flipped bits, lost writes, blocks of another file. They are not a signature: whoever changes an
array can compute its digest anew.

A sharded array has one digest for each of its blocks, so that no process needs the whole of it.
"""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from treewright._core.jax_private import process_count
from treewright._processes import of_all_processes, process_allgather
from treewright.checkpoint.leaves import Leaf, bytes_of, contiguous
from treewright.errors import CheckpointDamagedError, missing_extra

WHOLE = "all"
_LARGE = 1 << 20  # bytes from which on an array is worth a thread


def _xxhash() -> Any:
    """The package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import xxhash
    except ImportError as error:
        raise missing_extra("The digest of a checkpoint", "xxhash", "checkpoint") from error
    return xxhash


def new_digest() -> Any:
    """A running digest with `update` and `hexdigest`."""
    return _xxhash().xxh3_128()


def digest_of(data: Any) -> str:
    """The digest of bytes or of a buffer, as 32 hexadecimal digits."""
    digest: str = _xxhash().xxh3_128_hexdigest(data)
    return digest


def digests_of(arrays: Iterable[Any]) -> list[dict[str, str]]:
    """For each array the digests of the blocks that this process holds, by their place: `{"0:4,0:8": ...}`."""
    return _in_threads(_block_digests, list(arrays))


def _block_digests(array: Any) -> dict[str, str]:
    return {place: _array_digest(block) for place, block in _blocks(array).items()}


def _array_digest(array: Any) -> str:
    array = contiguous(array)
    return digest_of(bytes_of(array) if array.nbytes >= _LARGE else array.tobytes())  # a view takes ten times as long


def _in_threads(function: Callable[..., Any], arrays: Sequence[Any], *others: Iterable[Any]) -> list[Any]:
    """`map` over arrays: large ones in threads, since their digests leave Python free, small ones at once.

    In a job of several processes one after the other: they may gather, and have to do that in one order.
    """
    calls = list(zip(arrays, *others, strict=True))
    if process_count() > 1:
        return [function(*call) for call in calls]
    with ThreadPoolExecutor() as pool:
        futures = [_started(pool, function, call) if call[0].nbytes >= _LARGE else None for call in calls]
        pairs = zip(futures, calls, strict=True)
        return [function(*call) if future is None else future.result() for future, call in pairs]


def _started(pool: ThreadPoolExecutor, function: Callable[..., Any], call: tuple[Any, ...]) -> Future[Any] | None:
    """The call in a thread; None where Python is ending and starts no more threads, as in `atexit`."""
    try:
        return pool.submit(function, *call)
    except RuntimeError:
        return None


def gathered(digests: list[dict[str, str]]) -> list[dict[str, str]]:
    """The digests of all blocks of each array, where every process knows those that it holds."""
    if process_count() == 1:
        return digests
    return merged([json.loads(held) for held in of_all_processes(json.dumps(digests).encode())])


def merged(parts: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    """One dict for each array, from one list of dicts for each process."""
    return [{place: digest for held in of_one for place, digest in held.items()} for of_one in zip(*parts, strict=True)]


def _blocks(array: Any, *, replicas: bool = False) -> dict[str, Any]:
    """Each distinct block of an array that this process holds, by its place; without replicas, is the first to hold."""
    if not isinstance(array, jax.Array):
        return {WHOLE: array}
    shards = [shard for shard in array.addressable_shards if replicas or shard.replica_id == 0]
    return {_place(shard.index, array.shape): shard.data for shard in shards}


def _place(index: tuple[slice, ...], shape: tuple[int, ...]) -> str:
    bounds = [part.indices(size)[:2] for part, size in zip(index, shape, strict=True)]
    if all(bound == (0, size) for bound, size in zip(bounds, shape, strict=True)):
        return WHOLE
    return ",".join(f"{start}:{stop}" for start, stop in bounds)


def index_of(place: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
    """The index of a block in an array of this shape.

    Raises:
        ValueError: If there is no such block.
    """
    if place == WHOLE:
        return tuple(slice(0, size) for size in shape)
    bounds = [tuple(map(int, part.split(":"))) for part in place.split(",")]
    if len(bounds) != len(shape) or any(len(bound) != 2 for bound in bounds):
        raise ValueError(f"{place[:60]!r} is not a block of an array of rank {len(shape)}")
    if any(not 0 <= start < stop <= size for (start, stop), size in zip(bounds, shape, strict=True)):
        raise ValueError(f"{place[:60]!r} is not a block of an array of shape {shape}")
    return tuple(slice(start, stop) for start, stop in bounds)


def verify(arrays: Sequence[Any], leaves: Iterable[Leaf]) -> None:
    """Compare arrays that were read with the digests that were saved.

    Each process looks at the blocks that it holds. An array that now lies in other blocks comes to each as a whole.

    Raises:
        CheckpointDamagedError: If a block differs.
    """
    _in_threads(_verify, arrays, leaves)


def _verify(array: Any, leaf: Leaf) -> None:
    if set(leaf.digests) <= _all_places(array):  # the same on every process, so that all or none of them gather
        blocks = _blocks(array, replicas=True)
    else:
        whole = _whole(array)
        blocks = {place: whole[index_of(place, array.shape)] for place in leaf.digests}
    for place, block in blocks.items():
        now, saved = _array_digest(block), leaf.digests[place]
        if now != saved:
            raise CheckpointDamagedError(
                f"{leaf.path}{'' if place == WHOLE else f'[{place}]'} is damaged: its bytes have the digest {now}, and "
                f"{saved} was saved. Load an earlier checkpoint."
            )


def _all_places(array: Any) -> set[str]:
    """The places of the blocks in which an array lies, on this process and on others."""
    if not isinstance(array, jax.Array):
        return {WHOLE}
    sharding: Any = array.sharding
    return {_place(index, array.shape) for index in sharding.devices_indices_map(array.shape).values()}


def _whole(array: Any) -> Any:
    """The whole array on the host; where other processes hold parts of it, all of them must come here."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        return process_allgather(array, tiled=True)
    return np.asarray(array)
