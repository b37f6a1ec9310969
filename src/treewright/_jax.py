"""What differs between the releases of JAX that this package runs on, from 0.9.0 to the newest."""

import zlib
from typing import Any, TypeAlias

import jax
import numpy as np

Key: TypeAlias = Any  # GetAttrKey, SequenceKey, DictKey, FlattenedIndexKey, or what a foreign class registered
Path: TypeAlias = tuple[Key, ...]

jax_trees: Any = jax.tree_util  # whose annotations leave keys and treedefs open


def path_text(path: Path, root: str = "") -> str:
    """A path as users would write it: `state.params.layers[2].kernel` for the root `state`."""
    return root + "".join(map(str, path))


def field_key(name: str) -> Key:
    """The key of a field."""
    return jax_trees.GetAttrKey(name)


# The frames of JAX in which a call of a jitted function can be read while it is traced, and while it is compiled. In
# 0.9.0 only `_trace_for_jit` shows a trace; since then it stands below `_infer_params`, with the same call.
TRACING = frozenset({"_infer_params", "_trace_for_jit"})
FRAMES = TRACING | {"_run_python_pjit"}


# Processes. `multihost_utils` is experimental. Without it the trees and programs of several processes could not be
# compared, and checkpoints of arrays that are spread over them could not have digests.


def process_allgather(array: Any, *, tiled: bool = False) -> Any:
    """The array of each process, stacked in their order; `tiled`, one array of the parts that they hold.

    All processes have to call it.
    """
    from jax.experimental import multihost_utils

    gather: Any = multihost_utils.process_allgather
    return np.asarray(gather(array, tiled=tiled))


def of_all_processes(data: bytes) -> list[bytes]:
    """The bytes that each process gives, in their order. All of them have to call it."""
    packed = np.frombuffer(zlib.compress(data), np.uint8)
    sizes = process_allgather(np.asarray(len(packed), np.int32))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: len(packed)] = packed
    rows = process_allgather(padded)
    return [zlib.decompress(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


_typed: Any = jax  # whose annotations leave some types open


def process_count() -> int:
    """How many processes the job has."""
    count: int = _typed.process_count()
    return count


def is_first_process() -> bool:
    """Whether this process does what one of them has to."""
    return bool(_typed.process_index() == 0)
