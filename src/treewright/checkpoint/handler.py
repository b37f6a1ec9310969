"""One step of a run: Orbax's handler that writes it, and what is read of it.

In the folder of a step, each process has one safetensors file of its blocks, such as `process_0.safetensors`. Its
metadata has their digests and the items of the process; that of process 0 also the manifest. Orbax's own file,
`_CHECKPOINT_METADATA`, has what retention reads of every step.
"""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import dataclasses
import functools
import json
import stat
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from treewright._base.text import short_text
from treewright._processes import process_count, process_index, run_on_all_processes
from treewright._reports import counted, first_lines
from treewright.checkpoint.arrays import DTYPES, Layout, array_to_save, digest_of, grid_of
from treewright.checkpoint.blocks import PROCESS, BlockReader, block_name
from treewright.checkpoint.disk import exists, mode_of, parsing
from treewright.checkpoint.fit import Options
from treewright.checkpoint.folder import FILE, LISTING, as_folder
from treewright.checkpoint.format import SafetensorsFile, open_safetensors, write_safetensors
from treewright.checkpoint.host import on_host
from treewright.checkpoint.loading import load_tree
from treewright.checkpoint.manifest import MAX_BYTES, LeafRecord, Manifest, from_metadata, join_name, seal, unseal
from treewright.checkpoint.tree import Parts, parts_to_save
from treewright.errors import CheckpointDamagedError, CheckpointError

_MAX_LISTING_BYTES = 10_000_000
_MAX_ITEMS_BYTES = MAX_BYTES // 2  # the header also has the manifest and the digests

_JSON_VALUES = "Convert it to dicts with str keys, lists, str, int, float, bool or None, or make it a leaf of the tree."


# Writing a step


class StepHandler(ocp.CheckpointHandler):  # type: ignore[misc]
    """Writes the file of this process, in a thread of the manager."""

    def save(self, directory: Any, args: "SaveStep") -> None:
        """Write the file."""
        _write(as_folder(directory), args)

    def restore(self, directory: Any, *_: object, **__: object) -> Any:
        """Not used: reading a step needs no Orbax."""
        raise NotImplementedError(
            f"Restore it with treewright.checkpoint.CheckpointManager({str(directory.parent)!r})."
        )


@ocp.args.register_with_handler(StepHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveStep(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The arguments of `StepHandler`.

    Attributes:
        manifest: The manifest.
        items: The items of this process, as JSON.
        blocks: The blocks that this process digests, by leaf: number, whether this process writes it, values.
        save: A text that is equal in all processes, and different for each save.
        timeout: Seconds to wait for the other processes.
        check: Raises if the folder could not be created.
    """

    manifest: Manifest
    items: str
    blocks: dict[str, list[tuple[tuple[int, bool], np.ndarray]]]
    save: str
    timeout: float
    check: Callable[[], None]


def step_to_save(
    state: Any, items: Mapping[str, Any], blocks_of: Callable[..., Any], metrics: Mapping[str, float]
) -> tuple[Parts, Callable[..., SaveStep]]:
    """The records of a tree, and what this process writes of it, in host memory: the caller may change its arrays.

    The rest of `SaveStep`'s arguments are those of the manager.
    """
    parts = parts_to_save(state, problems_of=problems_of)
    layouts: dict[Layout, int] = {}

    @functools.cache
    def layout_and_numbers(sharding: Any, grid: tuple[int, ...]) -> tuple[int, Any]:
        layout, numbers = blocks_of(sharding, grid)
        return layouts.setdefault(layout, len(layouts)), numbers

    blocks: dict[str, list[tuple[tuple[int, bool], Any]]] = {}
    for leaf in parts.manifest.leaves:
        array = array_to_save(parts.values[leaf.name])
        if isinstance(array, jax.Array) and array.size:
            leaf.layout, here = layout_and_numbers(array.sharding, grid_of(array))
            shards = [(each.device, each.data) for each in array.addressable_shards]
            blocks[leaf.name] = [(here[device], data) for device, data in shards if device in here]
        else:
            leaf.digest = digest_of(array if array.size else b"")
            if array.size and process_index() == 0:
                blocks[leaf.name] = [((0, True), np.array(array, order="C"))]
    manifest = dataclasses.replace(
        parts.manifest, processes=process_count(), layouts=tuple(layouts), metrics=dict(metrics)
    )
    return parts._replace(manifest=manifest), functools.partial(SaveStep, manifest, _json_of(items), on_host(blocks))


def _json_of(items: Mapping[str, Any]) -> str:
    """Items as JSON, if it can represent them."""
    try:
        values = dict(items)
        inexact = {name: value for name, value in values.items() if not _is_json({name: value})}
        text = "" if inexact else json.dumps(values)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"save(..., items=) can't be written as JSON: {error}. {_JSON_VALUES}") from error
    if inexact:
        raise CheckpointError(f"save(..., items=): JSON can't represent {short_text(inexact)}. {_JSON_VALUES}")
    size = len(json.dumps(json.dumps(text)))  # as the header of the file has them: each quote as eight characters
    if size > _MAX_ITEMS_BYTES:
        raise CheckpointError(
            f"save(..., items=) have {size:,} bytes in a file's header, and the limit is {_MAX_ITEMS_BYTES:,}. Save "
            f"large data as leaves of the tree."
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


def _write(folder: Any, step: SaveStep) -> None:
    """Write this process's file, and compare its copies of other processes' blocks with their digests.

    Raises:
        CheckpointError: In all processes, if one can't write, or they have different values for one block.
    """
    together = functools.partial(run_on_all_processes, timeout=step.timeout, channel="digests")
    copies = together("writing blocks", lambda: _write_file(folder, step))
    together("comparing digests", lambda: _compare(folder, step.manifest, copies))


def _write_file(folder: Any, step: SaveStep) -> list[tuple[LeafRecord, int, str]]:
    """Write this process's file; the digests of its copies of blocks that a different process writes."""
    step.check()
    manifest, me = step.manifest, process_index()
    if not exists(folder):
        raise CheckpointError(
            f"process {me} has no {folder}, which process 0 created. Pass the same shared folder in all processes."
        )
    # Wide dtypes first, so that each array in the file is aligned.
    leaves = sorted(manifest.leaves, key=lambda leaf: -DTYPES[leaf.form.dtype].itemsize)
    blocks = [(leaf, label, block) for leaf in leaves for label, block in step.blocks.get(leaf.name, ())]
    digests: dict[str, str] = {}
    mine: dict[str, np.ndarray] = {}
    copies: list[tuple[LeafRecord, int, str]] = []
    for leaf, (number, is_mine), block in blocks:
        if is_mine:
            name = block_name(leaf, number, manifest.layout_of(leaf).grid)
            digests[name], mine[name] = digest_of(block), np.asarray(block, order="C")
        else:
            copies.append((leaf, number, digest_of(block)))
    forms = {name: (block.dtype.name, block.shape) for name, block in mine.items()}
    record = seal({"save": step.save, "digests": digests, "items": step.items}, PROCESS)
    metadata = {**(manifest.to_metadata() if me == 0 else {}), **record}
    write_safetensors(folder / FILE.format(me), forms, mine.values(), metadata)
    return copies


def _compare(folder: Any, manifest: Manifest, copies: Sequence[tuple[LeafRecord, int, str]]) -> None:
    """Raise if blocks that a different process wrote have different values there."""
    with contextlib.ExitStack() as stack:
        reader = BlockReader(manifest, lambda process: stack.enter_context(_open_file(folder, process)))
        differing = dict.fromkeys(leaf.path for leaf, number, now in copies if now != reader.digest_at(leaf, number))
    if differing:
        raise CheckpointError(
            f"processes have different values of {', '.join(first_lines(list(differing)))}, which are replicated. "
            f"Make them equal in all processes, or shard them."
        )


def problems_of(_: LeafRecord, value: Any) -> Iterator[str]:
    """Reasons why a step can't contain a leaf."""
    if process_count() > 1 and isinstance(value, jax.Array) and value.is_fully_addressable:
        yield "is only on this process. Place it with a sharding over all processes"


# Reading a step


@contextlib.contextmanager
def open_step(folder: Any) -> Generator[tuple[Manifest, BlockReader]]:
    """The manifest of a step, and the reader of its arrays, in host memory or on several devices.

    Raises:
        CheckpointDamagedError: If the manifest can't be read, or its digest does not match.
        CheckpointError: If a different program saved the step.
        OSError: If the file system fails.
    """
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(_open_file(folder, 0))
        manifest = from_metadata(first.metadata)
        yield (
            manifest,
            BlockReader(
                manifest, lambda process: stack.enter_context(_open_file(folder, process)) if process else first
            ),
        )


@contextlib.contextmanager
def _open_file(folder: Any, process: int) -> Generator[SafetensorsFile]:
    """The file of a process in a step."""
    path = folder / FILE.format(process)
    if not stat.S_ISREG(mode_of(path)) if isinstance(path, Path) else not path.exists():
        if not process:
            _reject_other_programs(folder)
        raise CheckpointDamagedError(f"{path} is damaged: it is missing, or not a regular file.")
    with open_safetensors(path) as file:
        yield file


def _reject_other_programs(folder: Any) -> None:
    """Raise if a different program saved a step."""
    with parsing(f"Step {folder.name}"):
        handlers = json.loads(_read_listing(folder))["item_handlers"]
    if handlers != StepHandler.typestr():
        raise CheckpointError(
            f"Step {folder.name} in {folder.parent} has no manifest: a different program saved it with Orbax. "
            f"Restore it with Orbax, and put its arrays into a tree: from_names(to_names(arrays), like=...)."
        )


def _read_listing(folder: Any) -> bytes:
    """Orbax's file in a step. Reading a pipe would wait for its writer, and a huge file take all memory.

    Raises:
        OSError: If it can't be read.
        ValueError: If it is not a regular file, or larger than any that `save` writes.
    """
    path = folder / LISTING
    if isinstance(path, Path):
        is_small = stat.S_ISREG(mode_of(path)) and path.stat().st_size <= _MAX_LISTING_BYTES
        if not is_small:
            raise ValueError(f"{path.name} is not a regular file of at most {_MAX_LISTING_BYTES:,} bytes")
    content: bytes = path.read_bytes()
    return content


def manifest_of_step(folder: Any) -> Manifest:
    """The manifest of a step. Raises as `open_step`."""
    with open_step(folder) as (manifest, _):
        return manifest


def tree_of_step(folder: Any, like: Any, options: Options) -> Any:
    """The tree of a step, shaped like `like`."""
    with open_step(folder) as (manifest, read):
        return load_tree(manifest, read, like, options)


def items_of_step(folder: Any, process: int) -> dict[str, Any]:
    """The items of one process in a step. Raises as `CheckpointManager.items`."""
    with open_step(folder) as (manifest, reader):
        count = manifest.processes
        if process not in range(count):
            raise CheckpointError(
                f"Step {folder.name} was saved by {counted(count, 'process', 'processes')} and has no items for "
                f"process {process}. Redistribute them: items({folder.name}, process=i) for i in range({count})."
            )
        with parsing(f"The items of process {process} in step {folder.name}"):
            return dict(json.loads(reader.record(process)["items"]))


def listed_of_step(folder: Any) -> tuple[Mapping[str, Any], Mapping[str, float]]:
    """The retention rules and the metrics of a step: a small file, which is read for every step.

    Raises:
        CheckpointDamagedError: If a different program saved it, or it can't be read.
    """
    with parsing(f"The metrics of step {folder.name}"):
        listed = unseal(json.loads(_read_listing(folder))["custom_metadata"])
        return dict(listed["retention"]), dict(listed["metrics"])
