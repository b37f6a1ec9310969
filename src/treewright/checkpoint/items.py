"""Read and write one step with Orbax: the manifest, the arrays and the items."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import bisect
import contextlib
import dataclasses
import functools
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any, Never

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath

from treewright._base.text import short_text
from treewright._processes import process_count, process_index, run_on_all_processes
from treewright._reports import counted, first_lines
from treewright.checkpoint.arrays import DTYPES, Layout, Saved, array_to_save, check_width, digest_of, grid_of, verify
from treewright.checkpoint.disk import exists, translate_read_errors
from treewright.checkpoint.fit import Options
from treewright.checkpoint.folder import LISTING, MANIFEST, STATE
from treewright.checkpoint.host import copied_to_host, read_on_host
from treewright.checkpoint.loading import load_tree
from treewright.checkpoint.manifest import MAX_BYTES, LeafRecord, Manifest, from_metadata, join_name, seal, unseal
from treewright.checkpoint.placing import LeafRequest
from treewright.checkpoint.tree import Parts, parts_to_save
from treewright.errors import CheckpointError

_JSON = "metadata"  # Orbax's file name for a JSON item
_INDEX = frozenset({"_METADATA", "_sharding", "array_metadatas"})  # JSON that Orbax reads whole
_NEEDED = ("", "_METADATA", "manifest.ocdbt")  # in the folder of the arrays
_OF_PROCESS = "process.{}"  # its items, and its blocks' digests by leaf and number
_MAX_FILE_BYTES = 4 * MAX_BYTES + 1000  # quotes of the items are escaped twice
_READ_CHUNK_BYTES = 1 << 25  # read together, however small the state
_MIN_SLICE_BYTES = 1 << 20  # of a replica that a process writes in part
_MAX_READ_BLOCKS = 1000  # read together: for each block read, Orbax wakes all that wait


_JSON_VALUES = "Convert it to dicts with str keys, lists, str, int, float, bool or None, or make it a leaf of the tree."


# Writing a step


def step_to_save(
    state: Any, items: Mapping[str, Any], blocks_of: Callable[..., Any], **of_step: Any
) -> tuple[Parts, dict[str, Any], "SaveManifest"]:
    """The records of a tree, the arrays that Orbax saves, and the arguments of `ManifestHandler`.

    Digests host values now, since the caller may change them. `of_step` are further fields of the manifest.
    """
    parts = parts_to_save(state, problems_of=problems_of)
    arrays = {leaf.name: array_to_save(parts.values[leaf.name]) for leaf in parts.manifest.leaves}
    layouts: dict[Layout, int] = {}

    @functools.cache
    def layout_and_numbers(sharding: Any, grid: tuple[int, ...]) -> tuple[int, Any]:
        layout, numbers = blocks_of(sharding, grid)
        return layouts.setdefault(layout, len(layouts)), numbers

    numbers: dict[str, Any] = {}
    for leaf in parts.manifest.leaves:
        array = arrays[leaf.name]
        if isinstance(array, jax.Array) and array.size:
            leaf.layout, numbers[leaf.name] = layout_and_numbers(array.sharding, grid_of(array))
        else:
            leaf.digest = digest_of(array if array.size else b"")
    manifest = dataclasses.replace(parts.manifest, processes=process_count(), layouts=tuple(layouts), **of_step)
    text = _json_of(items)
    full = {name: array for name, array in arrays.items() if array.size}  # Orbax saves no empty arrays
    copies = copied_to_host(full)
    blocks = {
        name: [(*here[shard.device], shard.data) for shard in copies[name].addressable_shards if shard.device in here]
        for name, here in numbers.items()
    }
    for name, array in full.items() if process_count() > 1 else ():
        # Orbax writes a part of each replica, and needs those of all processes: it copies such arrays itself.
        if name in numbers and copies[name].sharding.num_devices != array.sharding.num_devices:
            copies[name] = array
    return parts._replace(manifest=manifest), copies, SaveManifest(manifest, text, blocks)


def _json_of(items: Mapping[str, Any]) -> str:
    """Items as JSON.

    Raises:
        CheckpointError: If JSON can't represent them.
    """
    try:
        values = dict(items)
        inexact = {name: value for name, value in values.items() if not _is_json({name: value})}
        text = "" if inexact else json.dumps(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"save(..., items=) can't be written as JSON: {error}. {_JSON_VALUES}") from error
    if inexact:
        raise CheckpointError(f"save(..., items=): JSON can't represent {short_text(inexact)}. {_JSON_VALUES}")
    if len(text) > MAX_BYTES:
        raise CheckpointError(
            f"save(..., items=) have {len(text):,} bytes as JSON, and the limit is {MAX_BYTES:,}. Save large data as "
            f"leaves of the tree."
        )
    return text


def _is_json(value: Any) -> bool:
    """Whether JSON returns a value of the same types."""
    if type(value) is dict:
        return all(type(name) is str for name in value) and all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if type(value) is list else type(value) in {str, int, float, bool, NoneType}


def entries_of(parts: Parts) -> dict[str, str]:
    """Texts of a tree, by path, that must be equal in all processes. Local statics are omitted."""
    entries: dict[str, str] = {}
    for node in parts.manifest.nodes:
        entries[node.shown_path] = f"{node.cls or node.kind}: {', '.join(node.children)}"
        for name, static in node.statics.items():
            if join_name(node.name, name) not in parts.local:
                entries[f"{node.path}.{name}"] = json.dumps(static)
    for leaf in parts.manifest.leaves:
        value = parts.values[leaf.name]
        grid = parts.manifest.layout_of(leaf).grid
        shown = f" in blocks {grid}" if isinstance(value, jax.Array) else f" {short_text(value)} #{leaf.digest[:12]}"
        entries[leaf.path] = f"{leaf.form}{shown}"
    layouts, metrics = json.dumps(parts.manifest.layouts), json.dumps(parts.manifest.metrics)
    return {"metrics": metrics, **entries, "the devices": layouts}


def array_handler() -> Any:
    """Orbax's handler of arrays, whose first save compiles nothing for small ones.

    Processes that have replicas of an array write a part each. By default Orbax compiles a slice for each shape and
    device: the first save of 40 small replicated arrays takes 4 to 32 s on 4 devices, and with this limit 0.1 s.
    """
    arrays = ocp.type_handlers.ArrayHandler(min_slice_bytes_for_replica_parallel=_MIN_SLICE_BYTES)
    registry = ocp.type_handlers.create_type_handler_registry(
        (np.ndarray, ocp.type_handlers.NumpyHandler()), (jax.Array, arrays)
    )
    return ocp.PyTreeCheckpointHandler(use_compression=False, type_handler_registry=registry)


class ManifestHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc]
    """Writes the manifest and digests, in the background, the host memory that Orbax writes."""

    async def async_save(  # pyright: ignore[reportIncompatibleMethodOverride]  # without the deprecated `item`
        self, directory: Any, args: "SaveManifest"
    ) -> list[Any]:
        """Collect views of the blocks now, and digest them in the background."""
        # Of the copies on the host; on CPU, of the arrays' own memory, which is then not donated.
        blocks = {
            name: [(number, is_mine, np.asarray(block)) for number, is_mine, block in each]
            for name, each in args.blocks.items()
        }
        args.blocks = {}  # allows the devices to free them
        return [_Work(functools.partial(_write, directory, args, blocks))]


class _Work:
    """Work of Orbax's thread, which starts when nothing is left to do in `save`: it waits for no other thread."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work

    def result(self, timeout: float | None = None) -> None:
        """Do the work. It limits its waits for other processes itself."""
        del timeout
        self._work()

    def cancel(self) -> None:
        """It has begun, or never will."""


@ocp.args.register_with_handler(ManifestHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveManifest(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The arguments of `ManifestHandler`.

    Attributes:
        manifest: The manifest.
        items: The items of this process, as JSON.
        blocks: The blocks of JAX's arrays that this process digests, by name: number, whether it writes it, values.
        timeout: Seconds to wait for the other processes.
    """

    manifest: Manifest
    items: str
    blocks: dict[str, list[tuple[int, bool, Any]]]
    timeout: float = 0.0


def _write(directory: Any, args: SaveManifest, blocks: dict[str, list[tuple[int, bool, Any]]]) -> None:
    """Write the digests of this process's blocks, and compare its copies of other processes' blocks with theirs.

    Raises:
        CheckpointError: In all processes, if they have different values for one block.
    """
    manifest = args.manifest
    digests: dict[str, dict[int, str]] = {leaf.name: {} for leaf in manifest.leaves}
    copies: list[tuple[LeafRecord, int, str]] = []
    for leaf in manifest.leaves:  # one after the other: Orbax writes meanwhile, which takes longer
        for number, is_mine, block in blocks.pop(leaf.name, ()):
            if is_mine:
                digests[leaf.name][number] = digest_of(block)
            else:
                copies.append((leaf, number, digest_of(block)))
    together = functools.partial(run_on_all_processes, timeout=args.timeout, channel="digests")
    text = json.dumps(seal({"digests": digests, "items": args.items}))
    _check_folder(directory, together)
    together("writing digests", lambda: (directory / _OF_PROCESS.format(process_index())).write_text(text))
    together("comparing digests", lambda: _compare(copies, digests_in(directory, manifest)))
    if process_index() == 0:
        (directory / _JSON).write_text(json.dumps(manifest.to_metadata()))


def _check_folder(directory: Any, together: Callable[..., Any]) -> None:
    """Raise in all processes if one of them does not see the folder that process 0 created."""

    def look() -> None:
        if not exists(directory):
            raise CheckpointError(
                f"process {process_index()} has no {directory}, which process 0 created. Pass the same shared folder "
                f"in all processes."
            )

    if process_count() > 1:
        together("finding the folder", look)


def _compare(copies: Sequence[tuple[LeafRecord, int, str]], digest_at: Callable[[LeafRecord, int], str]) -> None:
    """Raise if blocks that a different process writes have different values there."""
    differing = dict.fromkeys(leaf.path for leaf, number, digest in copies if digest != digest_at(leaf, number))
    if differing:
        raise CheckpointError(
            f"processes have different values of {', '.join(first_lines(list(differing)))}, which are replicated. "
            f"Make them equal in all processes, or shard them."
        )


def problems_of(leaf: LeafRecord, value: Any) -> Iterator[str]:
    """Reasons why a step can't contain a leaf."""
    if not hasattr(tensorstore, leaf.form.dtype):
        yield f"has the dtype {leaf.form.dtype}, which Orbax does not save: cast or view it"
    if process_count() > 1 and isinstance(value, jax.Array) and value.is_fully_addressable:
        yield "is only on this process. Place it with a sharding over all processes"


# Reading a step


def manifest_of_step(folder: Any) -> Manifest:
    """The manifest of a step.

    Raises:
        CheckpointDamagedError: If it can't be read, or its digest does not match.
        CheckpointError: If a different program saved the step.
    """
    file = folder / MANIFEST / _JSON
    with translate_read_errors(f"The manifest of step {folder.name}"):
        if not exists(file) and MANIFEST not in json.loads(_read_regular(folder / LISTING))["item_handlers"]:
            raise CheckpointError(
                f"Step {folder.name} in {folder.parent} has no manifest: a different program saved it with Orbax. "
                f"Restore it with Orbax, and put its arrays into a tree: from_names(to_names(arrays), like=...)."
            )
        return from_metadata(json.loads(_read_regular(file)))


def tree_of_step(folder: Any, like: Any, options: Options) -> Any:
    """The tree of a step, shaped like `like`."""
    manifest = manifest_of_step(folder)
    return load_tree(manifest, functools.partial(arrays_of_step, folder, manifest), like, options)


def _read_regular(path: Any) -> bytes:
    """The content of a small file in a step; reading a pipe would wait for its writer, and a huge file take all memory.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is not a regular file, or larger than any that `save` writes.
    """
    if isinstance(path, Path):
        status = path.stat()
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            raise ValueError(f"{path.name} is not a regular file of at most {_MAX_FILE_BYTES:,} bytes")
    content: bytes = path.read_bytes()
    return content


def manifest_time(folder: Any) -> Any:
    """The modification time of a step's manifest; None if it is missing."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = (folder / MANIFEST / _JSON).stat()
        return getattr(status, "st_mtime_ns", None) or status.mtime
    return None


def items_of_step(folder: Any, process: int) -> dict[str, Any]:
    """The items of one process in a step.

    Raises:
        CheckpointDamagedError: If they can't be read.
        CheckpointError: If fewer processes saved the step.
    """
    count = manifest_of_step(folder).processes
    if process not in range(count):
        raise CheckpointError(
            f"Step {folder.name} was saved by {counted(count, 'process', 'processes')} and has no items for process "
            f"{process}. Redistribute them: items({folder.name}, process=i) for i in range({count})."
        )
    with translate_read_errors(f"The items of process {process} in step {folder.name}"):
        return dict(json.loads(_of_process(folder / MANIFEST, process)["items"]))


def _of_process(folder: Any, process: int) -> Any:
    return unseal(json.loads(_read_regular(folder / _OF_PROCESS.format(process))))


def digests_in(folder: Any, manifest: Manifest) -> Callable[[LeafRecord, int], str]:
    """A function from a leaf and a block number to the digest. Each process's file is read at its first use."""
    ends = [[*accumulate(count for _, count in layout.writers)] for layout in manifest.layouts]
    written_by = functools.cache(lambda process: _of_process(folder, process)["digests"])

    def digest_at(leaf: LeafRecord, number: int) -> str:
        if leaf.layout is None:
            return leaf.digest
        writer, _ = manifest.layouts[leaf.layout].writers[bisect.bisect(ends[leaf.layout], number)]
        with translate_read_errors(f"The digest of {leaf.path}"):
            return str(written_by(writer)[leaf.array][str(number)])

    return digest_at


def arrays_of_step(folder: Any, manifest: Manifest, requests: Sequence[LeafRequest]) -> Iterator[Any]:
    """The arrays of a step, in host memory, verified. Each process reads its own blocks, without communication."""
    # Errors of the target, such as a sharding that does not divide the shape, are raised here, unchanged.
    for each in requests:
        if each.sharding is not None:
            check_width(each.leaf.form.dtype, each.path)
    requests = [each._replace(sharding=read_on_host(each.sharding, each.leaf.form.shape)) for each in requests]
    mine = sum(_block_bytes(each) * _block_count(each) for each in requests)
    has_arrays = any(each.leaf.form.nbytes for each in requests)  # Orbax saves no empty ones
    if has_arrays and isinstance(folder, Path) and process_index() == 0:
        with translate_read_errors(f"Step {folder.name}"):
            _check_files(folder / STATE)
    digest_at = digests_in(folder / MANIFEST, manifest)
    for batch in _batches(requests):
        grids = [manifest.layout_of(each.leaf).grid for each in batch]
        arrays = _read(folder, batch, max(mine // 32, *map(_bytes_at_once, batch, grids)))
        leaves = [each.leaf for each in batch]
        saved = [
            Saved(grid, functools.partial(digest_at, leaf), leaf.path) for leaf, grid in zip(leaves, grids, strict=True)
        ]
        verify([arrays[leaf.array] for leaf in leaves], saved)
        for leaf in leaves:
            yield arrays.pop(leaf.array)


def _batches(requests: Sequence[LeafRequest]) -> Iterator[list[LeafRequest]]:
    """Arrays that are read together: about a sixteenth of them, because Orbax keeps two copies until it returns."""
    enough = max(sum(each.leaf.form.nbytes for each in requests) // 16, _READ_CHUNK_BYTES)
    batch: list[LeafRequest] = []
    size = count = 0
    for each in requests:
        batch.append(each)
        size, count = size + each.leaf.form.nbytes, count + _block_count(each)
        if size >= enough or count >= _MAX_READ_BLOCKS:
            yield batch
            batch, size, count = [], 0, 0
    if batch:
        yield batch


def _block_count(request: LeafRequest) -> int:
    """The number of blocks of an array that this process reads."""
    return len(request.sharding.addressable_devices) if request.sharding else 1


def _block_bytes(request: LeafRequest) -> int:
    """The bytes of an array on one device, or on the host."""
    form, sharding = request.leaf.form, request.sharding
    return form.nbytes if sharding is None else form._replace(shape=sharding.shard_shape(form.shape)).nbytes


def _bytes_at_once(request: LeafRequest, grid: Sequence[int]) -> int:
    """The bytes that Orbax needs at least: one block, or the whole array if the new blocks split saved ones."""
    shape, sharding = request.leaf.form.shape, request.sharding
    part = shape if sharding is None or 0 in shape else sharding.shard_shape(shape)
    cuts = any(length % (size // count) for length, size, count in zip(part, shape, grid, strict=True) if size)
    return request.leaf.form.nbytes if cuts else _block_bytes(request)


def _read(folder: Any, requests: Sequence[LeafRequest], limit: int) -> dict[str, Any]:
    """Arrays by their saved names. Empty ones are created here, because Orbax does not save them.

    Orbax keeps three copies of a block while it reads it, so it reads at most `limit` bytes at the same time.
    """
    arrays: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for leaf, sharding in [(each.leaf, each.sharding) for each in requests]:
        shape, dtype = leaf.form.shape, DTYPES[leaf.form.dtype]
        if 0 in shape:
            arrays[leaf.array] = np.zeros(shape, dtype)
        elif sharding is None:
            arguments[leaf.array] = ocp.RestoreArgs(restore_type=np.ndarray)
        else:
            arguments[leaf.array] = ocp.ArrayRestoreArgs(sharding=sharding, global_shape=shape, dtype=dtype)
    if arguments:
        item = dict.fromkeys(arguments, 0)  # only the names matter
        restore = ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=True)
        gigabytes: Any = (limit + (1 << 20)) / 1e9  # annotated int, but fractions work
        with translate_read_errors(f"Step {folder.name}"):
            handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=gigabytes)
            try:
                arrays |= handler.restore(epath.Path(folder) / STATE, args=restore)
            except FileNotFoundError as error:  # of a file that Orbax did not find, for any reason
                if all(exists(folder / STATE / name) for name in _NEEDED):
                    raise OSError(f"Step {folder.name} can't be read: {error}") from error
                raise
            for leaf in [each.leaf for each in requests]:  # Orbax's own index may be damaged
                array, form = arrays.get(leaf.array), leaf.form
                if (getattr(array, "shape", 0), getattr(array, "dtype", 0)) != (form.shape, DTYPES[form.dtype]):
                    raise ValueError(f"{leaf.path} was saved as {form}, but Orbax returns {short_text(array)}")
    return arrays


def _check_files(folder: Path) -> None:
    """Raise if a file is a pipe, a device or a dangling link, or Orbax's index is larger than any that it writes.

    Reading a pipe would wait for its writer, and a huge index take all memory.
    """

    def fail(error: OSError) -> Never:
        raise error

    for root, _, names in os.walk(folder, onerror=fail):
        for path in (Path(root, name) for name in names):
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ValueError(f"{path} is not a regular file")
            is_index = path.name in _INDEX or path.parent.name in _INDEX
            if is_index and status.st_size > _MAX_FILE_BYTES:
                raise ValueError(f"{path} is not a regular file of at most {_MAX_FILE_BYTES:,} bytes")
