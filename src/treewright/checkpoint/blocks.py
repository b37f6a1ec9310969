"""The blocks of arrays in safetensors files: their names, and a reader that verifies each by its digest."""

import bisect
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from treewright._base.jax_private import untyped_jax
from treewright._base.text import cut_text
from treewright.checkpoint.arrays import DTYPES, check_width, digest_of
from treewright.checkpoint.disk import parsing
from treewright.checkpoint.format import METADATA, SafetensorsFile
from treewright.checkpoint.host import Bounds, bounds_of, region_of
from treewright.checkpoint.manifest import LeafRecord, Manifest, unseal
from treewright.checkpoint.placing import LeafRequest
from treewright.errors import CheckpointDamagedError

PROCESS = "treewright.process"  # the key in a file's metadata of the digests and items of one process


def block_name(leaf: LeafRecord, number: int, grid: Sequence[int]) -> str:
    """The name of a block in its file: `w` for the only block of the leaf `w`, otherwise `w#3`.

    `#0` is also added to names that contain `#`, and to the one that safetensors reserves, so that no two are equal.
    """
    is_plain = math.prod(grid) == 1 and "#" not in leaf.array and leaf.array != METADATA
    return leaf.array if is_plain else f"{leaf.array}#{number}"


class BlockReader:
    """Reads arrays from the files of the processes that saved them. Each block is read whole, and verified.

    Args:
        manifest: The manifest of the checkpoint.
        open_file: Opens the file of a process. Called once for each process whose blocks are needed.
    """

    def __init__(self, manifest: Manifest, open_file: Callable[[int], SafetensorsFile]) -> None:
        self._manifest = manifest
        self._open = functools.cache(open_file)
        self.record: Callable[[int], Mapping[str, Any]]  # the digests and the items of a process
        self.record = functools.cache(lambda process: unseal(self._open(process).metadata, PROCESS))
        self._ends = [[*accumulate(count for _, count in layout.writers)] for layout in manifest.layouts]

    def __call__(self, requests: Sequence[LeafRequest]) -> Iterator[Any]:
        """The arrays of these requests: on several devices with their sharding, otherwise as numpy arrays.

        Raises:
            CheckpointDamagedError: If a block is missing, or differs from the saved one.
            CheckpointError: If an array needs jax_enable_x64.
            OSError: If a file can't be read.
        """
        for each in requests:  # errors of the target, such as a sharding that does not divide the shape, come first
            if each.sharding is not None:
                check_width(each.leaf.form.dtype, each.path)
                each.sharding.shard_shape(each.leaf.form.shape)
        for each in requests:
            yield self._array(each.leaf, each.sharding)

    def digest_at(self, leaf: LeafRecord, number: int) -> str:
        """The digest of a block."""
        if leaf.layout is None:
            return leaf.digest
        name = block_name(leaf, number, self._manifest.layout_of(leaf).grid)
        with parsing(f"The digest of {leaf.path}"):
            return str(self.record(self._writer(leaf, number))["digests"][name])

    def _writer(self, leaf: LeafRecord, number: int) -> int:
        """The process that wrote a block."""
        if leaf.layout is None:
            return 0
        return self._manifest.layouts[leaf.layout].writers[bisect.bisect(self._ends[leaf.layout], number)][0]

    def _array(self, leaf: LeafRecord, sharding: Any) -> Any:
        shape, dtype = leaf.form.shape, DTYPES[leaf.form.dtype]
        if 0 in shape:
            return np.zeros(shape, dtype)
        region = functools.cache(
            functools.partial(self._region, leaf, functools.cache(functools.partial(self._block, leaf)))
        )
        if sharding is None or sharding.num_devices == 1:  # many of these are placed in one call
            return region(tuple([(0, size) for size in shape]))
        return untyped_jax.make_array_from_callback(
            shape, sharding, lambda index: region(bounds_of(index, shape)), dtype=dtype
        )

    def _region(self, leaf: LeafRecord, read: Callable[[int, Bounds], Any], bounds: Bounds) -> Any:
        """The values between bounds, from all blocks that overlap them; of one block without a copy."""
        grid, shape = self._manifest.layout_of(leaf).grid, leaf.form.shape
        part = [size // count for size, count in zip(shape, grid, strict=True)]
        places = [range(start // size, -(-stop // size)) for (start, stop), size in zip(bounds, part, strict=True)]
        blocks: list[tuple[Bounds, Any]] = []
        for place in itertools.product(*places):
            number = functools.reduce(lambda number, axis: number * axis[1] + axis[0], zip(place, grid, strict=True), 0)
            of_block = tuple([(at * size, (at + 1) * size) for at, size in zip(place, part, strict=True)])
            blocks.append((of_block, read(number, of_block)))
        if len(blocks) == 1 and blocks[0][0] == bounds:
            return blocks[0][1]
        return region_of(bounds, DTYPES[leaf.form.dtype], blocks)

    def _block(self, leaf: LeafRecord, number: int, bounds: Bounds) -> Any:
        grid = self._manifest.layout_of(leaf).grid
        shape = [stop - start for start, stop in bounds]
        file = self._open(self._writer(leaf, number))
        values = file.read(block_name(leaf, number, grid), leaf.form.dtype, shape)
        if (now := digest_of(values)) != (saved := self.digest_at(leaf, number)):
            place = ",".join(f"{start}:{stop}" for start, stop in bounds)
            where = cut_text(leaf.path, 200) + ("" if math.prod(grid) == 1 else f"[{place}]")
            raise CheckpointDamagedError(
                f"{where} is damaged: the digest of its bytes is {now}, but {saved} was saved. Load an earlier "
                f"checkpoint."
            )
        return values
