"""One step in Orbax's folders: the manifest as an item of its own, the arrays, and the processes that agree on both."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import dataclasses
import functools
import json
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint import future

from treewright._core.text import short_text
from treewright._lines import first_of
from treewright._processes import exchange, process_count, process_index, raise_in_all
from treewright.checkpoint.arrays import DTYPES, WHOLE, digest_of, local_blocks, verify
from treewright.checkpoint.file import reading
from treewright.checkpoint.fit import Wanted
from treewright.checkpoint.manifest import LARGEST, Leaf, Manifest, from_metadata, join_name
from treewright.checkpoint.tree import Parts
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning

STATE, MANIFEST = "state", "manifest"  # the items of a step
LISTING = "_CHECKPOINT_METADATA"  # the file in which Orbax lists the items of a step
_JSON = "metadata"  # the name that Orbax gives to the file of an item that is JSON
_PART = 1 << 25  # bytes that are read together in any case


# Processes that agree


def in_all(
    name: str, work: Callable[[], Any], timeout: float, *, by_first: bool = False, channel: str = "exchange"
) -> Any:
    """The result of some work, once it is done in all processes; with `by_first` that of the first, which is JSON.

    If it failed in one, all raise: their own errors, or one that says what failed where. It is damage only if it is in
    all of them that failed.
    """
    value: Any = None
    error: Exception | None = None
    try:
        if not by_first or process_index() == 0:
            value = work()
    except Exception as caught:  # noqa: BLE001  raised below, once the others know of it
        error = caught
    is_damage = isinstance(error, CheckpointDamagedError)
    shown = None if error is None else f"{type(error).__name__}: {error}"
    mine = json.dumps([is_damage, shown, value if by_first else None])
    outcomes = [json.loads(text) for text in exchange(mine, name=name, timeout=timeout, channel=channel)]
    failures = [(*outcome[:2], index) for index, outcome in enumerate(outcomes) if outcome[1] is not None]
    if failures:
        damaged, shown, index = min(failures)
        if error is not None and is_damage == damaged:
            raise_in_all(error)
        kind = CheckpointDamagedError if damaged else CheckpointError
        raise_in_all(kind(f"In process {index}, {name} failed: {shown}"))
    return outcomes[0][2] if by_first else value


def entries_of(parts: Parts) -> dict[str, str]:
    """What has to be the same of a tree in all processes, by path. Statics that are local to a process are left out."""
    entries: dict[str, str] = {}
    for branch in parts.manifest.branches:
        entries[branch.shown_path] = f"{branch.cls or branch.kind}: {', '.join(branch.children)}"
        for name, static in branch.statics.items():
            if join_name(branch.name, name) not in parts.local:
                entries[f"{branch.path}.{name}"] = json.dumps(static)
    for leaf in parts.manifest.leaves:
        value = parts.values[leaf.name]
        shown = "" if isinstance(value, jax.Array) else f" {short_text(value)} #{leaf.digests.get(WHOLE, '')[:12]}"
        entries[leaf.path] = f"{leaf.form}{shown}{f' is {leaf.tied}' if leaf.tied else ''}"
    return entries


# One step, written


class ManifestHandler(ocp.JsonCheckpointHandler):  # type: ignore[misc]
    """Writes the manifest. Digests are taken in the background, of the memory on the host that Orbax writes from."""

    async def async_save(  # pyright: ignore[reportIncompatibleMethodOverride]  # without the deprecated `item`
        self, directory: Any, args: "SaveManifest"
    ) -> list[Any]:
        """Look at the blocks now, and digest them later."""
        # numpy shows the copies that Orbax has just made on the host; on the CPU, the very memory of the arrays.
        blocks = {
            name: {place: np.asarray(block) for place, block in local_blocks(array).items()}
            for name, array in args.arrays.items()
            if isinstance(array, jax.Array)  # the digests of all others are in the manifest already
        }
        args.arrays = {}  # so that the devices can let go of them
        return [future.CommitFutureAwaitingContractedSignals(_write(directory, args, blocks), name="manifest")]


@ocp.args.register_with_handler(ManifestHandler, for_save=True, for_restore=True)
@dataclasses.dataclass
class SaveManifest(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """What the handler is given."""

    manifest: Manifest
    arrays: dict[str, Any]  # by name
    thrown_out: Any  # the folder of steps that can be deleted
    returned: threading.Event  # set when `save` lets the loop go on: digests take the cores that it needs until then
    timeout: float


async def _write(directory: Any, args: SaveManifest, blocks: dict[str, dict[str, Any]]) -> None:
    """Write the manifest with the digests of all processes, before the step gets its name.

    Raises:
        CheckpointError: In all processes, if they hold different values for one block.
    """
    args.returned.wait()
    if process_index() == 0:
        delete_inside(args.thrown_out)
    leaves = args.manifest.untied()
    for leaf in leaves:
        if leaf.name in blocks:
            leaf.digests = {place: digest_of(block) for place, block in blocks.pop(leaf.name).items()}
    if process_count() > 1:
        together = functools.partial(in_all, timeout=args.timeout, channel="digests")
        text = json.dumps([dict(leaf.digests) for leaf in leaves])
        together("writing digests", lambda: (directory / f"digests.{process_index()}").write_text(text))
        differing = together("comparing digests", lambda: _merged(directory, leaves), by_first=True)
        if differing:
            raise CheckpointError(
                f"processes hold different values of {', '.join(differing)}, which are replicated. Make them the same "
                f"in all processes, or shard them."
            )
    if process_index() == 0:
        (directory / _JSON).write_text(json.dumps(args.manifest.to_metadata()))


def _merged(directory: Any, leaves: list[Leaf]) -> list[str]:
    """Add the digests of the other processes; the result are the paths of leaves for which they differ."""
    differing: dict[str, None] = {}
    for process in range(process_count()):
        file = directory / f"digests.{process}"
        for leaf, digests in zip(leaves, json.loads(file.read_text()), strict=True):
            leaf.digests = digests | leaf.digests
            if any(leaf.digests[place] != digest for place, digest in digests.items()):
                differing[leaf.path] = None
        file.unlink()
    return first_of(list(differing))


def problems_of(leaf: Leaf, value: Any) -> Iterator[str]:
    """What a step can't hold."""
    if not hasattr(tensorstore, leaf.form.dtype):
        yield f"has the dtype {leaf.form.dtype}, which Orbax does not save: cast or view it"
    if process_count() > 1 and isinstance(value, jax.Array) and value.is_fully_addressable:
        yield "lies on this process alone. Place it with a sharding over all of them"


def delete_inside(folder: Any) -> None:
    """Delete all that a folder holds. What can't be deleted is a warning."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        try:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        except OSError as error:
            warnings.warn(f"{path}, a step that was thrown out, can't be deleted: {error}", CheckpointWarning, 2)


# One step, read


def manifest_of_step(folder: Any) -> Manifest:
    """The manifest of a step.

    Raises:
        CheckpointDamagedError: If it can't be read, or is not what was saved.
        CheckpointError: If another program saved the step.
    """
    file = folder / MANIFEST / _JSON
    with reading(f"The manifest of step {folder.name}"):
        if not file.exists() and MANIFEST not in json.loads((folder / LISTING).read_text())["item_handlers"]:
            raise CheckpointError(
                f"Step {folder.name} in {folder.parent} has no manifest: another program saved it with Orbax. "
                f"Restore it with Orbax, and put its arrays into a tree: from_names(to_names(arrays), like=...)."
            )
        if file.stat().st_size > 2 * LARGEST:  # its text is quoted once more
            raise ValueError(f"it has {file.stat().st_size:,} bytes, more than any")
        return from_metadata(json.loads(file.read_text()))


def arrays_of_step(folder: Any, wanted: Sequence[Wanted]) -> Iterator[Any]:
    """The arrays of a step, verified. Each process reads its own part of them, and nothing is exchanged.

    They are read in parts, one after the other: Orbax holds what it reads twice, until it returns. An array that goes
    to two places is read once for each, in two parts.
    """
    # An error of the target, such as a sharding that does not divide, is raised here as what it is.
    mine = sum(_block_bytes(each) * (len(each.sharding.addressable_devices) if each.sharding else 1) for each in wanted)
    enough = max(sum(each.leaf.form.nbytes for each in wanted) // 16, _PART)
    part: dict[str, Wanted] = {}
    size = 0
    for index, each in enumerate(wanted, start=1):
        part[each.leaf.array] = each
        size += each.leaf.form.nbytes
        if size < enough and index < len(wanted) and wanted[index].leaf.array not in part:
            continue
        arrays = _read(folder, list(part.values()), mine // 32)
        for leaf, *_ in part.values():
            array = arrays.pop(leaf.array)
            verify(array, leaf.digests, leaf.path)
            yield array
        part, size = {}, 0


def _block_bytes(wanted: Wanted) -> int:
    """The bytes of the largest block of an array that a device, or the host, gets."""
    form, sharding = wanted.leaf.form, wanted.sharding
    return form.nbytes if sharding is None else form._replace(shape=sharding.shard_shape(form.shape)).nbytes


def _read(folder: Any, wanted: Sequence[Wanted], enough: int) -> dict[str, Any]:
    """Arrays by the names under which they are kept; those without elements, which Orbax does not save, are made.

    Orbax holds a block three times while it reads it, so it reads no more at once than `enough` bytes, or one block.
    Where a block of the target cuts several that were saved, it has to read those whole.
    """
    arrays: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for leaf, _, _, _, sharding in wanted:
        shape, dtype = leaf.form.shape, DTYPES[leaf.form.dtype]
        if 0 in shape:
            arrays[leaf.array] = np.zeros(shape, dtype)
        elif sharding is None:
            arguments[leaf.array] = ocp.RestoreArgs(restore_type=np.ndarray)
        else:
            arguments[leaf.array] = ocp.ArrayRestoreArgs(sharding=sharding, global_shape=shape, dtype=dtype)
    item = dict.fromkeys(arguments, 0)  # of which only the names count
    restore = ocp.args.PyTreeRestore(item=item, restore_args=arguments, partial_restore=True)
    block, whole = max(map(_block_bytes, wanted)), max(each.leaf.form.nbytes for each in wanted)
    for limit in (max(enough, block), max(enough, whole)) if arguments else ():
        gigabytes: Any = (limit + (1 << 20)) / 1e9  # Orbax annotates int, and computes with fractions too
        handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=gigabytes)
        try:
            with reading(f"Step {folder.name}"):
                read: dict[str, Any] = handler.restore(epath.Path(folder) / STATE, args=restore)
                return arrays | read
        except CheckpointDamagedError as error:
            if limit >= whole or "more bytes than we reserved" not in str(error):
                raise
    return arrays
