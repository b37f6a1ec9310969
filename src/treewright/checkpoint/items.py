"""A step in Orbax's folders: the manifest as an item of its own, and the arrays read again."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import dataclasses
import json
import math
import operator
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, SupportsIndex

import jax
import numpy as np
import orbax.checkpoint as ocp
import tensorstore
from etils import epath
from orbax.checkpoint import future

from treewright._core.jax_private import process_count, process_index
from treewright._core.text import cut_text, short_text
from treewright.checkpoint.arrays import DTYPES, contiguous, digest_of, local_blocks, verify
from treewright.checkpoint.file import reading
from treewright.checkpoint.fit import Request
from treewright.checkpoint.manifest import LARGEST, Leaf, Manifest, from_metadata
from treewright.checkpoint.tree import Parts
from treewright.errors import CheckpointError, CheckpointWarning

STATE, MANIFEST = "state", "manifest"  # the items of a step
LISTING = "_CHECKPOINT_METADATA"  # the file in which Orbax lists the items of a step
_JSON = "metadata"  # the name that Orbax gives to the file of an item that is JSON


# Written

if TYPE_CHECKING:  # Orbax has no types
    _Handler = object
else:
    _Handler = ocp.AsyncCheckpointHandler


class ManifestHandler(_Handler):
    """Writes the manifest. Digests are taken in the background, of the memory on the host that Orbax writes from.

    Each process writes the digests of the blocks that it holds; the first one brings them together.
    """

    def __init__(self) -> None:
        self.manifest: Manifest | None = None
        self.differing: list[str] = []  # the leaves of which processes hold different values

    async def async_save(self, directory: Any, args: "SaveManifest") -> list[Any]:
        """Look at the blocks now, and digest them later."""
        self.manifest, self.differing = args.manifest, []
        # numpy shows the copies that Orbax has just made on the host; on the CPU, the very memory of the arrays.
        blocks = {
            name: {place: np.asarray(block) for place, block in local_blocks(array).items()}
            for name, array in args.arrays.items()
            if array.size
        }
        writing = self._write(directory, args.manifest, blocks, args.left, args.returned)
        return [future.CommitFutureAwaitingContractedSignals(writing, name="manifest")]

    async def _write(
        self, directory: Any, manifest: Manifest, blocks: dict[str, Any], left: Any, returned: threading.Event
    ) -> None:
        returned.wait()
        if process_index() == 0:
            remove_inside(left)
        for leaf in manifest.untied():
            if leaf.name in blocks:
                places = blocks.pop(leaf.name)
                leaf.digests = {place: digest_of(contiguous(block)) for place, block in places.items()}
        if process_count() > 1:
            digests = {leaf.name: dict(leaf.digests) for leaf in manifest.untied()}
            (directory / f"digests.{process_index()}").write_text(json.dumps(digests))

    def finalize(self, directory: Any) -> None:
        """In the first process, when all have written: one manifest with all digests."""
        manifest, self.manifest = self.manifest, None
        if manifest is None:
            return
        merged: dict[str, dict[str, str]] = {leaf.name: {} for leaf in manifest.untied()}
        for process in range(process_count() if process_count() > 1 else 0):
            file = directory / f"digests.{process}"
            for name, digests in json.loads(file.read_text()).items():
                if any(merged[name].setdefault(place, digest) != digest for place, digest in digests.items()):
                    self.differing.append(name)
            file.unlink()
        for leaf in manifest.untied():
            leaf.digests = merged[leaf.name] or leaf.digests
        document = {"differing": self.differing} if self.differing else manifest.to_metadata()
        (directory / _JSON).write_text(json.dumps(document))

    def save(self, directory: Any, args: "SaveManifest") -> None:
        """Only Orbax's asynchronous checkpointer is used."""
        raise NotImplementedError

    def restore(self, directory: Any, args: Any = None) -> Any:
        """Read by `read_manifest_of_step`, without Orbax."""
        raise NotImplementedError


@ocp.args.register_with_handler(ManifestHandler, for_save=True, for_restore=True)  # pyright: ignore[reportArgumentType]
@dataclasses.dataclass
class SaveManifest(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """What the handler is given."""

    manifest: Manifest
    arrays: dict[str, Any]  # the jax.Arrays, by name: the digests of all others are in the manifest already
    left: Any  # the folder of steps that were thrown out
    returned: threading.Event  # set when `save` lets the loop go on: digests take the cores that it needs until then


def remove_inside(folder: Any) -> None:
    """Delete all that a folder holds. What can't be deleted is a warning."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        try:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError as error:
            warnings.warn(f"{path}, a step that was thrown out, can't be deleted: {error}", CheckpointWarning, 2)


# Read


def read_manifest_of_step(folder: Any) -> Manifest:
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
        if isinstance(file, Path) and file.stat().st_size > 2 * LARGEST:  # its text is quoted once more
            raise ValueError(f"it has {file.stat().st_size:,} bytes, more than any")
        document = json.loads(file.read_text())
        if isinstance(document, dict) and "differing" in document:
            raise ValueError(f"processes had saved different values for {cut_text(str(document['differing']), 200)}")
        return from_metadata(document)


def step_problems(parts: Parts) -> Iterator[str]:
    """What a step can't hold."""
    for leaf in parts.manifest.leaves:
        value = parts.values[leaf.name]
        try:
            tensorstore.dtype(leaf.form.dtype)
        except ValueError:
            yield f"{leaf.path} has the dtype {leaf.form.dtype}, which Orbax does not save: cast or view it"
        if process_count() > 1 and isinstance(value, jax.Array) and value.is_fully_addressable:
            yield (
                f"{leaf.path} lies on this process alone, which others can't see. Place it with a sharding over all of "
                f"them"
            )


def reader_of_step(folder: Any) -> Callable[[list[Request]], Iterator[Any]]:
    """A reader of the arrays of a step: each process reads its own parts, and nothing is exchanged."""

    def read(requests: list[Request]) -> Iterator[Any]:
        for leaf, sharding in requests:
            if sharding is not None:
                sharding.devices_indices_map(leaf.form.shape)  # an error of the target is raised as what it is
        for part in _in_parts(requests):
            arrays = _read_arrays(folder, part)
            for leaf, _ in part:
                array = arrays.pop(leaf.array)
                verify(array, leaf.digests, leaf.path)
                yield array

    return read


def _in_parts(requests: list[Request]) -> Iterator[list[Request]]:
    """Parts that are read one after the other: an array on the host is copied once more, to its device.

    An array that goes to two places is read once for each, in two parts.
    """
    enough = sum(leaf.form.nbytes for leaf, sharding in requests if sharding is None) // 8
    part: list[Request] = []
    names: set[str] = set()
    size = 0
    for request in requests:
        if part and (request.leaf.array in names or (size and size >= enough)):
            yield part
            part, names, size = [], set(), 0
        part.append(request)
        names.add(request.leaf.array)
        size += request.leaf.form.nbytes if request.sharding is None else 0
    if part:
        yield part


def _read_arrays(folder: Any, requests: list[Request]) -> dict[str, Any]:
    """Arrays by the names under which they are kept."""
    empty = {request.leaf.array: _empty(request) for request in requests if 0 in request.leaf.form.shape}
    full = {request.leaf.array: request for request in requests if request.leaf.array not in empty}
    if not full:
        return empty
    arguments = ocp.args.PyTreeRestore(
        item={name: _abstract(*request) for name, request in full.items()},
        restore_args={name: _restore_args(*request) for name, request in full.items()},
        partial_restore=True,
    )
    with reading(f"Step {folder.name}"):
        state = _restored_state(epath.Path(folder) / STATE, arguments, list(full.values()))
        for name, (leaf, _) in full.items():
            array = state[name]
            if getattr(array, "shape", None) != leaf.form.shape or array.dtype != DTYPES[leaf.form.dtype]:
                raise ValueError(f"{leaf.path} is {short_text(array)}, and a {leaf.form} was saved")
    return empty | state


def _restored_state(folder: Any, arguments: Any, requests: list[Request]) -> dict[str, Any]:
    """What Orbax reads, with a limit on what it holds at a time.

    It holds what it reads twice until an array is whole: of 1 GB in 8 arrays the peak is 1.6 GB without a limit, and
    1.25 GB with a sixteenth of what this process gets. It refuses a block above the limit, one that the new mesh cuts.
    """
    shares = [_local_bytes(*request) for request in requests]
    whole = max(leaf.form.nbytes for leaf, _ in requests)
    for largest in (max(share for _, share in shares), whole):
        limit = max(sum(size for size, _ in shares) // 16, largest) + (1 << 20)
        handler = ocp.PyTreeCheckpointHandler(restore_concurrent_gb=limit / 10**9)  # pyright: ignore[reportArgumentType]
        try:
            state: dict[str, Any] = handler.restore(folder, args=arguments)
        except ValueError as error:
            if largest == whole or "more bytes than we reserved" not in str(error):
                raise
        else:
            return state
    raise AssertionError


def _local_bytes(leaf: Leaf, sharding: Any) -> tuple[int, int]:
    """The bytes of a leaf that this process gets, and those of its largest block there."""
    if sharding is None:
        return leaf.form.nbytes, leaf.form.nbytes
    block = math.prod(sharding.shard_shape(leaf.form.shape)) * DTYPES[leaf.form.dtype].itemsize
    return block * len(sharding.addressable_devices), block


def _empty(request: Request) -> Any:
    """An array without elements, which Orbax does not save."""
    form = request.leaf.form
    array = np.zeros(form.shape, DTYPES[form.dtype])
    if request.sharding is None:
        return array
    return jax.make_array_from_callback(form.shape, request.sharding, lambda index: array[index])


def _abstract(leaf: Leaf, sharding: Any) -> Any:
    struct: Callable[..., Any] = jax.ShapeDtypeStruct
    return struct(leaf.form.shape, DTYPES[leaf.form.dtype], sharding=sharding)


def _restore_args(leaf: Leaf, sharding: Any) -> Any:
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    dtype, shape = DTYPES[leaf.form.dtype], leaf.form.shape
    return ocp.ArrayRestoreArgs(restore_type=jax.Array, sharding=sharding, global_shape=shape, dtype=dtype)


# Steps that stay


@dataclasses.dataclass(frozen=True)
class Retention:
    """Which steps stay, by Orbax's policies. A damaged one takes no place, and stays until a newer step is whole."""

    policy: Any
    damaged: set[int]
    metrics_of: Callable[[int], Mapping[str, float]]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each step stays: what Orbax asks."""
        whole = [info for info in checkpoints if info.step not in self.damaged]
        ranked = [SimpleNamespace(step=x.step, time=x.time, metrics=self.metrics_of(x.step) or None) for x in whole]
        stay = self.policy.should_preserve(ranked, context=context)
        kept = {info.step for info, stays in zip(whole, stay, strict=True) if stays} | {whole[-1].step}
        return [info.step in kept or (info.step in self.damaged and info.step > whole[-1].step) for info in checkpoints]


def policy_of(keep: int | None, every: int | None, best: int | None, rank: Callable[[Any], float]) -> Any:
    """Orbax's policy for the newest steps, every so many, and the best.

    Raises:
        ValueError: If one of the numbers is less than 1.
    """
    counts: dict[str, Any] = {"keep": keep, "keep_every": every, "keep_best": best}
    for name, count in counts.items():
        if count is not None and not (isinstance(count, SupportsIndex) and operator.index(count) >= 1):
            raise ValueError(f"CheckpointManager({name}=...) takes a whole number from 1, or None, got {count!r}.")
    policies = ocp.checkpoint_managers
    parts: list[Any] = [policies.LatestN(keep)]
    if every is not None:
        parts.append(policies.EveryNSteps(every))
    if best is not None:
        parts.append(policies.BestN(get_metric_fn=rank, n=best, keep_checkpoints_without_metrics=False))
    return policies.AnyPreservationPolicy(parts)


def checked_metrics(metrics: Mapping[str, Any] | None, ranked: str | None) -> dict[str, float]:
    """Metrics as numbers of Python, with that among them which ranks the steps.

    Raises:
        CheckpointError: If one is not a number, or the one that ranks is missing.
    """
    numbers: dict[str, float] = {}
    for name, value in (metrics or {}).items():
        number: Any = np.asarray(value).item() if np.ndim(value) == 0 else None
        if type(number) not in {int, float}:
            raise CheckpointError(f"The metric {name!r} is {short_text(value)}, and must be a number.")
        numbers[str(name)] = number
    if ranked is not None and ranked not in numbers:
        raise CheckpointError(
            f"The manager ranks steps by {ranked!r}, which is missing in metrics: save(step, state, "
            f"metrics={{{ranked!r}: 0.5}})."
        )
    return numbers


def step_number(step: Any) -> int:
    """The number of a step.

    Raises:
        CheckpointError: If it is not a whole number from 0.
    """
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if isinstance(step, bool) or number < 0:
        hint = " A tree goes by name: restore(like=tree)." if not isinstance(step, float | int) else ""
        raise CheckpointError(f"A step is a whole number from 0, got {short_text(step)}.{hint}")
    return number
