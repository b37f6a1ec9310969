"""Digests of arrays: xxh3_128.

It takes 9 to 18 GB/s on one core where zlib's CRC-32 takes 2.6 and SHA-256 1.4 (benchmarks/checkpoint.py).

They find accidents: flipped bits, lost writes, blocks of another file. They are no signature, since whoever changes an
array can compute its digest anew.

A sharded array has one digest for each of its blocks, so that no process needs the whole of it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from treewright._jax import untyped_jax
from treewright.errors import CheckpointDamagedError, missing_extra

WHOLE = "all"
LARGE = 1 << 20  # bytes from which on an array is worth a thread


def new_digest() -> Any:
    """A running digest with `update` and `hexdigest`.

    Raises:
        ImportError: If xxhash is not installed.
    """
    try:
        import xxhash
    except ImportError as error:
        raise missing_extra("The digest of a checkpoint", "xxhash", "checkpoint") from error
    return xxhash.xxh3_128()


def digest_of(data: Any) -> str:
    """The digest of bytes or of a buffer, as 32 hexadecimal digits."""
    digest = new_digest()
    digest.update(data)
    return str(digest.hexdigest())


def in_threads(function: Callable[..., Any], arrays: Sequence[Any], *others: Sequence[Any]) -> list[Any]:
    """`map` over arrays: large ones in threads, since their digests leave Python free, small ones at once.

    In a job of several processes one after the other: they may gather, and have to do that in one order.
    """
    if process_count() > 1:
        return list(map(function, arrays, *others))
    with ThreadPoolExecutor() as pool:
        pending: list[Any] = [
            _submitted(pool, function, array, *more) if array.nbytes >= LARGE else (array, *more)
            for array, *more in zip(arrays, *others, strict=True)
        ]
        done: list[Any] = [one if isinstance(one, Future) else function(*one) for one in pending]
        return [one.result() if isinstance(one, Future) else one for one in done]


def _submitted(pool: ThreadPoolExecutor, function: Callable[..., Any], *args: Any) -> Any:
    """A future; the arguments themselves where Python is ending and starts no thread any more, as in `atexit`."""
    try:
        return pool.submit(function, *args)
    except RuntimeError:
        return args


def bytes_of(array: Any) -> Any:
    """The bytes of a contiguous numpy array of any dtype, as a view."""
    return array.reshape(-1).view(np.uint8)


def contiguous(array: Any) -> Any:
    """The values of an array as a numpy array in C order; a view wherever it can be."""
    return np.asarray(array, order="C")


def digests_of(array: Any) -> dict[str, str]:
    """The digests of the blocks of an array that this process holds, by their place: `{"0:4,0:8": ...}`."""
    return {place: digest_of(bytes_of(contiguous(block))) for place, block in _blocks(array).items()}


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
        raise ValueError(f"{place!r} is no block of an array of rank {len(shape)}")
    if any(not 0 <= start < stop <= size for (start, stop), size in zip(bounds, shape, strict=True)):
        raise ValueError(f"{place!r} is no block of an array of shape {shape}")
    return tuple(slice(start, stop) for start, stop in bounds)


def verify(array: Any, digests: Mapping[str, str], path: str) -> None:
    """Compare an array that was read with the digests that were saved.

    Each process looks at the blocks that it holds. An array that now lies in other blocks comes to each as a whole.

    Raises:
        CheckpointDamagedError: If a block differs.
    """
    if set(digests) <= _all_places(array):  # the same on every process, so that all or none of them gather
        blocks = _blocks(array, replicas=True)
    else:
        whole = _all_of(array)
        blocks = {place: whole[index_of(place, array.shape)] for place in digests}
    for place, block in blocks.items():
        found, saved = digest_of(bytes_of(contiguous(block))), digests[place]
        if found != saved:
            where = "" if place == WHOLE else f"[{place}]"
            raise CheckpointDamagedError(
                f"{path}{where} is damaged: its bytes have the digest {found}, and {saved} was saved. "
                f"Load an earlier checkpoint."
            )


def _all_places(array: Any) -> set[str]:
    """The places of the blocks in which an array lies, on this process and on others."""
    if not isinstance(array, jax.Array):
        return {WHOLE}
    sharding: Any = array.sharding
    return {_place(index, array.shape) for index in sharding.devices_indices_map(array.shape).values()}


def _all_of(array: Any) -> Any:
    """The whole array on the host; where other processes hold parts of it, all of them must come here."""
    if isinstance(array, jax.Array) and not array.is_fully_addressable:
        from jax.experimental import multihost_utils

        gathered: Any = multihost_utils.process_allgather(array, tiled=True)
        return gathered
    return np.asarray(array)


# Together with other processes


def process_count() -> int:
    """How many processes the job has."""
    count: int = untyped_jax.process_count()
    return count


def is_first_process() -> bool:
    """Whether this process does what one of them has to."""
    index: int = untyped_jax.process_index()
    return index == 0


def gathered(digests: list[dict[str, str]]) -> list[dict[str, str]]:
    """The digests of all blocks of each array, where every process knows those that it holds."""
    if process_count() == 1:
        return digests
    return merged([json.loads(text) for text in all_texts(json.dumps(digests))])


def merged(parts: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    """One dict for each array, from one list of dicts for each process."""
    return [{place: digest for held in of_one for place, digest in held.items()} for of_one in zip(*parts, strict=True)]


def all_texts(text: str) -> list[str]:
    """The texts of all processes, in their order. All of them have to call it."""
    from jax.experimental import multihost_utils

    data = np.frombuffer(text.encode(), np.uint8)
    sizes: Any = np.atleast_1d(multihost_utils.process_allgather(np.asarray(len(data))))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(data)] = data
    rows: Any = np.atleast_2d(multihost_utils.process_allgather(padded))
    return [bytes(row[:size]).decode() for row, size in zip(rows, sizes, strict=True)]
