"""Read and write one step with Orbax: the manifest, the arrays, the items, and agreement between processes."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import bisect
import contextlib
import dataclasses
import functools
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import NoneType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint import future

from treewright._base.lines import counted, first_lines
from treewright._base.text import short_text
from treewright._processes import (
    agree,
    digest_of_texts,
    process_count,
    process_index,
    raise_differences,
    raise_in_all,
    representatives_of,
)
from treewright.checkpoint.arrays import DTYPES, Layout, array_to_save, digest_of, grid_of, verify
from treewright.checkpoint.file import translate_read_errors
from treewright.checkpoint.fit import LeafRequest, Options, Read, rebuild_tree
from treewright.checkpoint.folder import LISTING, clear
from treewright.checkpoint.manifest import LeafRecord, Manifest, from_metadata, join_name, seal, unseal
from treewright.checkpoint.tree import Parts, parts_to_save
from treewright.errors import CheckpointDamagedError, CheckpointError

STATE, MANIFEST = "state", "manifest"  # Orbax's items in a step
_JSON = "metadata"  # Orbax's file name for a JSON item
_OF_PROCESS = "process.{}"  # its items, and its blocks' digests by leaf and number
_READ_CHUNK_BYTES = 1 << 25  # read together, however small the state
_MAX_READ_BLOCKS = 1000  # read together: for each block read, Orbax wakes all that wait


_JSON_VALUES = "Convert it to dicts with str keys, lists, str, int, float, bool or None, or make it a leaf of the tree."


# Agreement between processes


def run_on_all_processes(
    name: str,
    work: Callable[[], Any],
    timeout: float,
    *,
    on_first: bool = False,
    same: Callable[[Any], Mapping[str, str]] | None = None,
    channel: str = "exchange",
) -> Any:
    """Run `work` in every process, or only in the first, and return its result, with one exchange.

    If it fails anywhere, every process raises: its own error, or one that names the failed process. The error is a
    CheckpointDamagedError only if all failures are.

    Args:
        name: Name of the work in messages.
        work: The function to run.
        timeout: Seconds to wait for the other processes.
        on_first: Run only in process 0 and share its result, which must be JSON.
        same: Texts of a result, by path, that must be equal in all processes.
        channel: As for `agree`.
    """
    value: Any = None
    error: Exception | None = None
    texts: Mapping[str, str] = {}
    try:
        if not on_first or process_index() == 0:
            value = work()
        if same is not None and process_count() > 1:
            texts = same(value)
    except Exception as caught:  # noqa: BLE001  raised below, after the exchange
        error = caught
    is_damage = isinstance(error, CheckpointDamagedError)
    shown = None if error is None else f"{type(error).__name__}: {error}"
    outcome = [is_damage, shown, value if on_first else None, digest_of_texts(texts)]
    failure, first, representatives = agree(outcome, _decision, name=name, timeout=timeout, channel=channel)
    if failure:
        damaged, shown, index = failure
        if error is not None and is_damage == damaged:
            raise_in_all(error)
        kind = CheckpointDamagedError if damaged else CheckpointError
        raise_in_all(kind(f"In process {index}, {name} failed: {shown}"))
    raise_differences(texts, representatives, name=name, timeout=timeout)
    return first if on_first else value


def _decision(outcomes: Sequence[Any]) -> tuple[Any, Any, list[int]]:
    """The failure to raise, if any; the result of process 0; one process for each group with equal texts."""
    failures = [(damaged, shown, index) for index, (damaged, shown, *_) in enumerate(outcomes) if shown is not None]
    return min(failures, default=None), outcomes[0][2], representatives_of(outcome[3] for outcome in outcomes)


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

    blocks: dict[str, Any] = {}
    for leaf in parts.manifest.leaves:
        array = arrays[leaf.name]
        if isinstance(array, jax.Array) and array.size:
            leaf.layout, numbers = layout_and_numbers(array.sharding, grid_of(array))
            blocks[leaf.name] = array, numbers
        else:
            leaf.digest = digest_of(array if array.size else b"")
    manifest = dataclasses.replace(parts.manifest, processes=process_count(), layouts=tuple(layouts), **of_step)
    full = {name: array for name, array in arrays.items() if array.size}  # Orbax saves no empty arrays
    return parts._replace(manifest=manifest), full, SaveManifest(manifest, _json_of(items), blocks)


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


class ManifestHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc]
    """Writes the manifest and digests, in the background, the host memory that Orbax writes."""

    async def async_save(  # pyright: ignore[reportIncompatibleMethodOverride]  # without the deprecated `item`
        self, directory: Any, args: "SaveManifest"
    ) -> list[Any]:
        """Collect views of the blocks now, and digest them in the background."""
        # Views of the copies that Orbax has just made on the host; on CPU, of the arrays' own memory.
        blocks = {
            name: [
                (*numbers[shard.device], np.asarray(shard.data))
                for shard in array.addressable_shards
                if shard.device in numbers
            ]
            for name, (array, numbers) in args.blocks.items()
        }
        args.blocks = {}  # allows the devices to free them
        return [future.CommitFutureAwaitingContractedSignals(_write(directory, args, blocks), name="manifest")]


@ocp.args.register_with_handler(ManifestHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveManifest(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The arguments of `ManifestHandler`.

    Attributes:
        manifest: The manifest.
        items: The items of this process, as JSON.
        blocks: JAX's arrays with their blocks by device, as `blocks_of` returns them, by name.
        folder: The run's folder, to clear.
        timeout: Seconds to wait for the other processes.
        returned: Set when `save` returns: until then digests would compete with it for cores.
    """

    manifest: Manifest
    items: str
    blocks: dict[str, tuple[jax.Array, dict[Any, tuple[int, bool]]]]
    folder: Any = None
    timeout: float = 0.0
    returned: threading.Event = dataclasses.field(default_factory=threading.Event)


async def _write(directory: Any, args: SaveManifest, blocks: dict[str, list[tuple[int, bool, Any]]]) -> None:
    """Write the digests of this process's blocks, and compare its copies of other processes' blocks with theirs.

    Raises:
        CheckpointError: In all processes, if they have different values for one block.
    """
    args.returned.wait()
    if process_index() == 0:
        clear(args.folder, in_background=True)
    manifest = args.manifest
    digests: dict[str, dict[int, str]] = {}
    copies: list[tuple[LeafRecord, int, str]] = []
    for leaf in manifest.leaves:
        mine = digests.setdefault(leaf.name, {})
        for number, is_mine, block in blocks.pop(leaf.name, ()):
            if is_mine:
                mine[number] = digest_of(block)
            else:
                copies.append((leaf, number, digest_of(block)))
    together = functools.partial(run_on_all_processes, timeout=args.timeout, channel="digests")
    text = json.dumps(seal({"digests": digests, "items": args.items}))
    together("writing digests", lambda: (directory / _OF_PROCESS.format(process_index())).write_text(text))
    together("comparing digests", lambda: _compare(copies, digests_in(directory, manifest)))
    if process_index() == 0:
        (directory / _JSON).write_text(json.dumps(manifest.to_metadata()))


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
        if not file.exists() and MANIFEST not in json.loads(_read_regular(folder / LISTING))["item_handlers"]:
            raise CheckpointError(
                f"Step {folder.name} in {folder.parent} has no manifest: a different program saved it with Orbax. "
                f"Restore it with Orbax, and put its arrays into a tree: from_names(to_names(arrays), like=...)."
            )
        return from_metadata(json.loads(_read_regular(file)))


def open_step(folder: Any) -> tuple[Manifest, Read]:
    """The manifest of a step, and a reader of its arrays that verifies each by its digests."""
    manifest = manifest_of_step(folder)
    return manifest, functools.partial(arrays_of_step, folder, manifest)


def tree_of_step(folder: Any, like: Any, options: Options) -> Any:
    """The tree of a step, shaped like `like`."""
    return rebuild_tree(*open_step(folder), like, options)


def _read_regular(path: Any) -> bytes:
    """The content of a file in a step; reading a pipe would wait for its writer.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is not a regular file.
    """
    if isinstance(path, Path) and not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path.name} is not a regular file")
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
    """The arrays of a step, verified. Each process reads its own blocks, without communication.

    They are read in batches, because Orbax keeps two copies until it returns.
    """
    # Errors of the target, such as a sharding that does not divide the shape, are raised here, unchanged.
    blocks = [len(each.sharding.addressable_devices) if each.sharding else 1 for each in requests]
    mine = sum(_block_bytes(each) * count for each, count in zip(requests, blocks, strict=True))
    enough = max(sum(each.leaf.form.nbytes for each in requests) // 16, _READ_CHUNK_BYTES)
    if isinstance(folder, Path) and process_index() == 0:
        with translate_read_errors(f"Step {folder.name}"):
            _check_regular_files(folder / STATE)
    digest_at = digests_in(folder / MANIFEST, manifest)
    batch: list[LeafRequest] = []
    size = count = 0
    for each, number in zip(requests, blocks, strict=True):
        batch.append(each)
        size, count = size + each.leaf.form.nbytes, count + number
        if size >= enough or count >= _MAX_READ_BLOCKS or each is requests[-1]:
            limits = [_bytes_at_once(one, manifest.layout_of(one.leaf).grid) for one in batch]
            arrays = _read(folder, batch, max(mine // 32, *limits))
            for leaf in [one.leaf for one in batch]:
                array = arrays.pop(leaf.array)
                verify(array, manifest.layout_of(leaf).grid, functools.partial(digest_at, leaf), leaf.path)
                yield array
            batch, size, count = [], 0, 0


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
            arrays |= handler.restore(epath.Path(folder) / STATE, args=restore)
            for leaf in [each.leaf for each in requests]:  # Orbax's own index may be damaged
                array, form = arrays.get(leaf.array), leaf.form
                if (getattr(array, "shape", 0), getattr(array, "dtype", 0)) != (form.shape, DTYPES[form.dtype]):
                    raise ValueError(f"{leaf.path} was saved as {form}, but Orbax returns {short_text(array)}")
    return arrays


def _check_regular_files(folder: Path) -> None:
    """Raise if a file is a pipe, a device or a dangling link: reading a pipe would wait for its writer."""
    for root, _, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            if not path.is_file():
                raise ValueError(f"{path} is not a regular file")
