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
from treewright.checkpoint.manifest import (
    DIGEST,
    MAX_BYTES,
    LeafRecord,
    Manifest,
    check_version,
    from_metadata,
    join_name,
    seal,
    unseal,
)
from treewright.checkpoint.tree import Parts, parts_to_save
from treewright.errors import CheckpointDamagedError, CheckpointError

_MAX_LISTING_BYTES = 10_000_000
SAVE = "treewright.save"  # the key in a file's metadata of the save that wrote it

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


# Orbax's file of our steps has both, far apart: with one damaged, the step is still ours.
_MARKS = (StepHandler.typestr(), f'"{DIGEST}"')


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
    blocks: dict[str, list[tuple[tuple[int, bool], Any]]] = {}
    for leaf in parts.manifest.leaves:
        array = array_to_save(parts.values[leaf.name])
        if isinstance(array, jax.Array) and array.size:
            layout, here = blocks_of(array.sharding, grid_of(array))
            leaf.layout = layouts.setdefault(layout, len(layouts))
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
    if size > MAX_BYTES:
        raise CheckpointError(
            f"save(..., items=) would take {size:,} bytes of the file's header, and the limit of safetensors is "
            f"{MAX_BYTES:,}. Save large items as leaves of the tree."
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
    together("comparing digests", lambda: _compare(folder, step, copies))


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
    record = seal({"digests": digests, "items": step.items}, PROCESS)
    metadata = {SAVE: step.save, **(manifest.to_metadata() if me == 0 else {}), **record}
    write_safetensors(folder / FILE.format(me), forms, mine.values(), metadata)
    return copies


def _compare(folder: Any, step: SaveStep, copies: Sequence[tuple[LeafRecord, int, str]]) -> None:
    """Raise if blocks that a different process wrote have different values there."""
    with contextlib.ExitStack() as stack:
        reader = BlockReader(step.manifest, lambda index: stack.enter_context(_open_file(folder, index, step.save)))
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


# The files of a step have the name of their save, which no other save has. Orbax's file is the one that the others must
# match: retention reads nothing else.


@contextlib.contextmanager
def open_step(folder: Any) -> Generator[tuple[Manifest, BlockReader]]:
    """The manifest of a step, and the reader of its arrays, in host memory or on several devices.

    Raises:
        CheckpointDamagedError: If a file can't be read, its digest does not match, or it is that of another save.
        CheckpointError: If a different program saved the step.
        OSError: If the file system fails.
    """
    *_, save = listed_of_step(folder)
    with contextlib.ExitStack() as stack:
        open_file = functools.cache(lambda process: stack.enter_context(_open_file(folder, process, save)))
        manifest = from_metadata(open_file(0).metadata)
        yield manifest, BlockReader(manifest, open_file)


@contextlib.contextmanager
def _open_file(folder: Any, process: int, save: str) -> Generator[SafetensorsFile]:
    """The file of a process in a step, written by this save."""
    path = folder / FILE.format(process)
    if not _is_file(path):
        raise CheckpointDamagedError(f"{path} is damaged: it is missing, or not a regular file.")
    with open_safetensors(path) as file:
        if file.metadata.get(SAVE) != save:
            raise CheckpointDamagedError(f"{path} is not from the save that wrote {LISTING} beside it.")
        yield file


def _is_file(path: Any) -> bool:
    """Whether a path is a regular file. Reading a pipe would wait for its writer."""
    return stat.S_ISREG(mode_of(path)) if isinstance(path, Path) else bool(path.exists())


def listed_of_step(folder: Any) -> tuple[Mapping[str, Any], Mapping[str, float], str]:
    """The retention rules, the metrics and the save of a step: Orbax's file, which is small and read for every step.

    Raises:
        CheckpointDamagedError: If it can't be read.
        CheckpointError: If a different program saved the step, or it has a different format version.
        OSError: If the file system fails.
    """
    path = folder / LISTING
    with parsing(f"{LISTING} of step {folder.name}"):
        if not _is_file(path) or (isinstance(path, Path) and path.stat().st_size > _MAX_LISTING_BYTES):
            raise ValueError(f"it is missing, or not a regular file of at most {_MAX_LISTING_BYTES:,} bytes")
        content = path.read_bytes()
        listing = json.loads(content)
        if any(mark.encode() in content for mark in _MARKS):
            listed = unseal(listing["custom_metadata"])
            check_version(listed.get("version", 7))  # version 7 did not list it
            return dict(listed["retention"]), dict(listed["metrics"]), str(listed["save"])
    raise CheckpointError(
        f"Step {folder.name} in {folder.parent} has no manifest: a different program saved it with Orbax. "
        f"Restore it with Orbax, and put its arrays into a tree: from_names(to_names(arrays), like=...)."
    )


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
