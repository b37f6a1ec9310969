"""The steps of a training run: `CheckpointManager`, on Orbax's manager."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import dataclasses
import json
import math
import os
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, Literal, Self, SupportsIndex, TypeVar, Unpack, overload

import jax
import orbax.checkpoint as ocp
from etils import epath

from treewright._arguments import cured, options_cure
from treewright._core.jax_private import process_count, process_index
from treewright._core.text import first_of
from treewright.checkpoint.agree import Outcome, entries_of, in_all, of_first
from treewright.checkpoint.arrays import WHOLE, contiguous, digest_of, stored
from treewright.checkpoint.file import StrPath, sync
from treewright.checkpoint.fit import MISSING, Fit, checked_options, restored
from treewright.checkpoint.items import (
    LISTING,
    MANIFEST,
    STATE,
    ManifestHandler,
    Retention,
    SaveManifest,
    checked_metrics,
    policy_of,
    read_manifest_of_step,
    reader_of_step,
    remove_inside,
    step_number,
    step_problems,
)
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.tree import parts_to_save, refuse
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning, warn_user

T = TypeVar("T")
Mode = Literal["min", "max"]

_THROWN_OUT = ".thrown-out"  # the folder into which steps are renamed before they are deleted


@dataclasses.dataclass(frozen=True, slots=True)
class Restored(Generic[T]):
    """The result of `CheckpointManager.restore_latest_valid`: the step, its tree, and the damaged steps it skipped.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(10, {"w": 1.5})
        ...     manager.restore_latest_valid(like={"w": 0.0})
        Restored(step=10, tree={'w': 1.5}, skipped={})
    """

    step: int
    tree: T
    skipped: Mapping[int, str]


class CheckpointManager:
    """A folder of steps: saves a training run and restores it.

    A step is there whole or not at all, whenever the process is killed. Saving goes on in the background after `save`
    has returned; if it fails there, the next call raises, once, and the one after that works. Use it in a `with` block,
    or call `close`: a program that ends without may lose its last step. Threads may share a manager. One manager at a
    time saves into a folder; any number may read. In a job of several processes, all of them make the same calls, and
    get the same steps or an error each.

    A step stays if `keep`, `keep_every` or `keep_best` keeps it; the step that was saved last always stays.

    Args:
        directory: The folder, which the first `save` makes. A bucket (`gs://bucket/run`) is left to Orbax.
        keep: How many of the steps that were saved last are kept; None keeps all.
        keep_every: Steps whose number this divides are kept too.
        keep_best: How many of the best steps are kept too.
        metric: The metric that ranks the steps. It must be among the `metrics` of each step.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) is the best.
        asynchronous: Whether `save` returns once the arrays are copied, and writes in the background.
        timeout_seconds: How long the processes of a job wait for each other.

    Raises:
        ImportError: If orbax-checkpoint is not installed.
        ValueError: If one of the numbers is less than 1, or `keep_best`, `metric` and `mode` do not go together.
        CheckpointError: If the directory is a file or a step.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> state = {"w": jnp.ones(3), "step": 10}
        >>> with CheckpointManager(tempfile.mkdtemp(), keep=2) as manager:
        ...     manager.save(10, state)
        ...     manager.wait()
        ...     manager.latest_step(), manager.restore(like=state)
        (10, {'step': 10, 'w': Array([1., 1., 1.], dtype=float32)})
    """

    @cured(
        options_cure(
            *("keep", "keep_every", "keep_best", "metric", "mode", "asynchronous", "timeout_seconds"),
            max_to_keep="keep=3",
            keep_period="keep_every=1000",
            best_mode="mode=",
        )
    )
    def __init__(
        self,
        directory: StrPath,
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        asynchronous: bool = True,
        timeout_seconds: float = 600.0,
    ) -> None:
        if mode not in {None, "min", "max"}:
            raise ValueError(f"CheckpointManager(mode=...) takes 'min' or 'max', got {mode!r}.")
        if (metric is None) != (mode is None) or (keep_best is not None and metric is None):
            raise ValueError(
                f"CheckpointManager(keep_best={keep_best}, metric={metric!r}, mode={mode!r}): the best steps are "
                f"ranked by one of their metrics, and by whether less is better. Give both: metric='loss', mode='min'."
            )
        text = os.fsdecode(directory)
        self._is_local = "://" not in text
        # A bucket's path has the same methods, and is none of `pathlib`.
        self.directory: Any = Path(text).absolute() if self._is_local else epath.Path(text)
        if self._is_local and self.directory.is_file():
            raise CheckpointError(f"{text} is a file, and a CheckpointManager needs a folder. load(path) reads a file.")
        if (self.directory / LISTING).is_file():
            raise CheckpointError(f"{text} is a step. Give its folder: CheckpointManager('{self.directory.parent}').")
        self._metric, self._mode, self._asynchronous, self._timeout = metric, mode, asynchronous, timeout_seconds
        self._damaged: set[int] = set()
        self._metrics: dict[int, Mapping[str, float]] = {}  # of steps, so that each is read once
        self._retention = Retention(policy_of(keep, keep_every, keep_best, self._rank), self._damaged, self._metrics_of)
        self._mutex = threading.RLock()
        self._saver: Any = None  # Orbax's manager, from the first save on
        self._handler = ManifestHandler()
        self._pending: int | None = None  # the step that is being written

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_pending", None) is not None:
            text = f"A CheckpointManager was not closed while it wrote step {self._pending}. Use it in a with block."
            warnings.warn(text, ResourceWarning, 1)

    # Saving

    @cured(lambda *_: "It takes the number of the step, then the tree: manager.save(step, state).")
    def save(
        self,
        step: SupportsIndex,
        state: object,
        *,
        metrics: Mapping[str, Any] | None = None,
        items: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a tree as a step, and throw out the steps that are not to be kept.

        Arrays may be donated or changed as soon as this returns. A step that `restore_latest_valid` found damaged is
        replaced; any other that exists is refused.

        Args:
            step: The number of the step, which orders them.
            state: Any pytree of arrays and numbers.
            metrics: Numbers that are to be known of the step, the same in all processes.
            items: What is not in the tree, as the state of a data iterator, by name: JSON. Each process saves and gets
                its own.

        Raises:
            CheckpointError: If something can't be saved, differs by process, or the step exists; or if the save before
                this one failed.
        """
        with self._mutex:
            number = step_number(step)
            self._settle()
            (parts, arrays), texts = in_all(
                "save", lambda: self._prepared(number, state, metrics, items), self._timeout
            )
            manifest = dataclasses.replace(parts.manifest, items=tuple(map(json.loads, texts)))
            self._open_for_saving()
            returned = threading.Event()
            try:
                if number in self._damaged:
                    self._saver.delete(number)  # renames it first
                    self._damaged.discard(number)
                jax_arrays = {name: array for name, array in arrays.items() if isinstance(array, jax.Array)}
                item = SaveManifest(manifest, jax_arrays, self.directory / _THROWN_OUT, returned)
                full = {name: array for name, array in arrays.items() if 0 not in array.shape}
                saved = {STATE: ocp.args.PyTreeSave(full)} if full else {}
                self._metrics[number] = manifest.metrics
                self._saver.save(
                    number,
                    args=ocp.args.Composite(**saved, **{MANIFEST: item}),
                    metrics=dict(manifest.metrics) if self._metric else None,
                    force=True,
                )
                self._pending = number
            except Exception as error:
                returned.set()
                self._let_go()
                raise CheckpointError(
                    f"Step {number} could not be saved in {self.directory}; earlier steps are as they were: {error}"
                ) from error
            finally:
                returned.set()
            if not self._asynchronous:
                self._settle()

    def _prepared(
        self, number: int, state: object, metrics: Mapping[str, Any] | None, items: Mapping[str, Any] | None
    ) -> Outcome:
        """The parts of a tree that can be saved as this step, and what has to be the same in all processes."""
        steps = self._steps_on_disk()
        if number in steps and number not in self._damaged:
            raise CheckpointError(
                f"{self.directory} has a step {number} already. Save into another folder, or delete it: "
                f"delete({number})."
            )
        newer = [step for step in steps if step > number and step not in self._damaged]
        if newer and not self._metrics:  # the first save of this manager
            warn_user(
                f"{self.directory} has the steps {', '.join(first_of(list(map(str, newer))))}, which are above step "
                f"{number}: a run that resumes takes the highest. Delete them, or save into another folder.",
                CheckpointWarning,
            )
        parts = parts_to_save(state)
        refuse("The tree can't be saved, and nothing was written:", list(step_problems(parts)))
        if not parts.manifest.leaves:
            raise CheckpointError("The tree can't be saved: it has no leaves, and Orbax saves no empty tree.")
        arrays = {leaf.name: stored(parts.values[leaf.name]) for leaf in parts.manifest.untied()}
        for leaf in parts.manifest.untied():
            array = arrays[leaf.name]
            if not isinstance(array, jax.Array):  # now: it may be changed while Orbax writes its copy
                leaf.digests = {WHOLE: digest_of(contiguous(array))}
            elif not array.size:
                leaf.digests = {WHOLE: digest_of(b"")}
        numbers = checked_metrics(metrics, self._metric)
        parts = parts._replace(manifest=dataclasses.replace(parts.manifest, metrics=numbers))
        same = {"step": str(number), "metrics": json.dumps(numbers), **entries_of(parts)} if process_count() > 1 else {}
        return Outcome((parts, arrays), same, _items_text(items))

    def _open_for_saving(self) -> None:
        """Make Orbax's manager, on the first save: it clears away what killed processes left in the folder."""
        if self._saver is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._saver = ocp.CheckpointManager(
            self.directory,
            options=ocp.CheckpointManagerOptions(
                preservation_policy=self._retention,
                cleanup_tmp_directories=True,
                lightweight_initialize=True,  # metrics are read from the manifests, which have digests
                todelete_subdir=_THROWN_OUT,
                async_options=ocp.AsyncOptions(
                    timeout_secs=math.ceil(self._timeout),
                    post_finalization_callback=self._sync_unfinished,
                    create_directories_asynchronously=True,
                ),
                best_fn=self._rank if self._metric else None,
            ),
            item_handlers={  # pyright: ignore[reportArgumentType]
                STATE: ocp.PyTreeCheckpointHandler(use_compression=False),
                MANIFEST: self._handler,
            },
        )

    def _sync_unfinished(self) -> None:
        """Bring a step to the disk before it gets its name. Orbax does that for arrays, and for none of its JSON."""
        for folder in self.directory.glob("*.orbax-checkpoint-tmp*") if self._is_local else ():
            for path in (folder, *folder.rglob("*")):
                sync(path)

    def wait(self) -> None:
        """Return when all that was saved is on disk.

        Raises:
            CheckpointError: If it could not be written.
        """
        with self._mutex:
            self._settle()
            if process_index() == 0:
                remove_inside(self.directory / _THROWN_OUT)

    def _settle(self) -> None:
        """Finish the save under way: sync the names, and raise in all processes if it failed in one."""
        step, self._pending = self._pending, None
        if step is None:
            return
        try:
            in_all(f"the end of saving step {step}", lambda: self._finish(step), self._timeout)
        except Exception as error:
            self._let_go()
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"Step {step} could not be saved in {self.directory}; earlier steps are as they were: {error}"
            ) from error

    def _finish(self, step: int) -> Outcome:
        folder = self.directory / str(step)
        try:
            self._saver.wait_until_finished()
        except Exception as error:
            if not folder.is_dir():
                raise
            warn_user(f"Step {step} is saved, but an old one could not be thrown out: {error}", CheckpointWarning)
        if process_index() == 0 and self._is_local:
            for path in (folder / LISTING, folder, self.directory):
                sync(path)
        if self._handler.differing:
            paths = ", ".join(first_of(self._handler.differing))
            (self.directory / _THROWN_OUT).mkdir(exist_ok=True)
            folder.rename(self.directory / _THROWN_OUT / f"{step}.differing")
            raise CheckpointError(
                f"Step {step} was not kept: processes hold different values for {paths}, which are replicated or on "
                f"the host. Make them the same in all processes, or shard them."
            )
        return Outcome()

    def close(self) -> None:
        """Wait, and let go of the folder.

        Raises:
            CheckpointError: If a step could not be written.
        """
        with self._mutex:
            try:
                self.wait()
            finally:
                self._let_go()

    def _let_go(self) -> None:
        """Close Orbax's manager, which may have failed; the next save makes another."""
        saver, self._saver = self._saver, None
        if saver is not None:
            try:
                saver.close()
            except Exception:  # noqa: BLE001  the error was raised already
                return

    def delete(self, step: SupportsIndex) -> None:
        """Delete a step. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
        """
        with self._mutex:
            self._settle()
            number = self._existing(step_number(step))
            self._open_for_saving()
            self._saver.delete(number)
            self._damaged.discard(number)
            self._metrics.pop(number, None)
            self.wait()

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is told to end and this is the step at which all its processes save.

        JAX agrees on the step, whichever process got the SIGTERM. Ask in each step, in all processes, of a job that
        called `jax.distributed.initialize`; in any other it is False.
        """
        return bool(ocp.utils.reached_preemption(step))

    # Steps

    def all_steps(self) -> tuple[int, ...]:
        """The steps that are wholly on disk, in order.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        with self._mutex:
            if process_count() == 1 and self._pending is not None and not self._saver.is_saving_in_progress():
                self._settle()
            return tuple(
                step for step in of_first("listing steps", self._steps_on_disk, self._timeout) if step != self._pending
            )

    def latest_step(self) -> int | None:
        """The step with the highest number that is wholly on disk; None if there is none.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best step by the `metric` of this manager that is wholly on disk; None if no step has the metric.

        Of equals it is the newest. NaN is worse than any number.

        Raises:
            CheckpointError: If the manager has no `metric`, or a save failed in the background since the last call.
        """
        if self._metric is None:
            raise CheckpointError(
                "The manager has no metric that ranks steps: CheckpointManager(..., metric='loss', mode='min')."
            )
        steps = self.all_steps()

        def best() -> int | None:
            ranked = [step for step in steps if self._metric in self._metrics_of(step)]
            return max(ranked, key=lambda step: (self._rank(self._metrics_of(step)), step), default=None)

        found: int | None = of_first("ranking steps", best, self._timeout)
        return found

    def metrics(self, step: SupportsIndex | None = None) -> dict[str, float]:
        """The metrics that were saved with a step, by default the latest. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
            CheckpointDamagedError: If they can't be read.
        """
        return dict(self.manifest(step).metrics)

    def items(self, step: SupportsIndex | None = None) -> dict[str, Any]:
        """The items that this process saved with a step, by default the latest. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step, or fewer processes saved it.
            CheckpointDamagedError: If they can't be read.
        """
        every, index = self.manifest(step).items, process_index()
        if index >= len(every) and any(every):
            raise CheckpointError(
                f"The step was saved by {len(every)} processes and has no items for process {index}. Redistribute them."
            )
        return dict(every[index]) if index < len(every) else {}

    def manifest(self, step: SupportsIndex | None = None) -> Manifest:
        """The manifest of a step, by default the latest. No array is read. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
            CheckpointDamagedError: If the manifest can't be read.
        """
        with self._mutex:
            number = self._existing(None if step is None else step_number(step))
            folder = self.directory / str(number)
            found: Manifest
            found, _ = in_all("reading a manifest", lambda: Outcome(read_manifest_of_step(folder)), self._timeout)
            return found

    def _metrics_of(self, step: int) -> Mapping[str, float]:
        """The metrics of a step; none of a damaged one."""
        if step not in self._metrics:
            try:
                self._metrics[step] = read_manifest_of_step(self.directory / str(step)).metrics
            except CheckpointError:
                self._metrics[step] = {}
        return self._metrics[step]

    def _rank(self, metrics: Mapping[str, float]) -> float:
        """How good a step is: the higher the better."""
        value = metrics.get(self._metric or "", math.nan)
        if math.isnan(value):
            return -math.inf
        return -value if self._mode == "min" else value

    def _steps_on_disk(self) -> list[int]:
        if not self.directory.is_dir():
            return []
        if not self._is_local:  # where a step without its file of success is unfinished
            return sorted(info.step for info in ocp.path.step.standard_name_format().find_all(self.directory))
        with os.scandir(self.directory) as entries:
            names = [entry.name for entry in entries if entry.name.isdecimal() and entry.is_dir()]
        return sorted(int(name) for name in names if str(int(name)) == name)  # a `007` is somebody else's

    def _existing(self, step: int | None) -> int:
        """The number of a step that is on disk, by default the latest, with that which is still being saved."""
        self._settle()
        steps = self.all_steps()
        number = max(steps, default=None) if step is None else step
        if number is None or number not in steps:
            has = f"has the steps {', '.join(first_of(list(map(str, steps))))}" if steps else "has no steps"
            if not self.directory.is_dir():
                has = "does not exist"
            raise CheckpointError(f"{self.directory} {has}" + ("." if step is None else f", and no step {step}."))
        return number

    # Restoring

    @overload
    def restore(self, step: SupportsIndex | None = ..., *, like: T, **options: Unpack[Fit]) -> T: ...
    @overload
    def restore(self, step: SupportsIndex | None = ..., **options: Unpack[Fit]) -> Any: ...
    def restore(self, step: SupportsIndex | None = None, *, like: Any = MISSING, **options: Any) -> Any:
        """The tree of a step, by default the latest, with the structure, statics and shardings of `like`.

        A save under way is waited for. Each process reads its own parts, and compares each saved block that lies in
        them with its digest. The options are those of `treewright.checkpoint.load`; without `like`, the arrays come to
        the default device.

        Raises:
            CheckpointError: If there is no such step, the save under way failed, or the tree can't be made.
            CheckpointMismatchError: If the step does not fit `like`.
            CheckpointDamagedError: If it is not what was saved.
            OSError: If the file system fails.
        """
        checked = checked_options(like, options)
        with self._mutex:
            number = self._existing(None if step is None else step_number(step))
            return self._restored(number, like, checked)

    @overload
    def restore_latest_valid(self, *, like: T, **options: Unpack[Fit]) -> Restored[T] | None: ...
    @overload
    def restore_latest_valid(self, **options: Unpack[Fit]) -> Restored[Any] | None: ...
    def restore_latest_valid(self, *, like: Any = MISSING, **options: Any) -> Restored[Any] | None:
        """The newest step that is whole, or None if there are no steps: for a run that resumes, or starts.

        A save under way is waited for. A warning names the damaged steps that were skipped. They stay until they are
        saved again. A folder that does not exist is a warning too: its name may be misspelt.

        Raises:
            CheckpointError: If the save under way failed.
            CheckpointMismatchError: If a whole step does not fit `like`. It is not damaged, so it is not skipped.
            CheckpointDamagedError: If there are steps, and all are damaged.
            OSError: If the file system fails. The step may be whole, so it is not skipped.
        """
        checked = checked_options(like, options)
        with self._mutex:
            self._settle()
            skipped: dict[int, str] = {}
            # Listed again each time: another process that saves may have deleted one, and have a newer one.
            while untried := [step for step in self.all_steps() if step not in skipped]:
                try:
                    tree = self._restored(untried[-1], like, checked)
                except CheckpointDamagedError as error:
                    skipped[untried[-1]] = str(error)
                    continue
                there = self.all_steps()
                skipped = {step: reason for step, reason in skipped.items() if step in there}
                self._damaged.update(skipped)
                if skipped:
                    lines = _lines_of(skipped)
                    warn_user(f"Restored step {untried[-1]} and skipped damaged ones:\n  {lines}", CheckpointWarning)
                return Restored(untried[-1], tree, skipped)
            if skipped:
                lines = _lines_of(skipped)
                raise CheckpointDamagedError(f"All steps in {self.directory} are damaged:\n  {lines}")
            if not self.directory.is_dir():
                warn_user(
                    f"There is no folder {self.directory}, so no step was restored. If this is a new run, all is well; "
                    f"make the folder before to say so.",
                    CheckpointWarning,
                )
            return None

    def _restored(self, step: int, like: Any, options: Any) -> Any:
        folder = self.directory / str(step)

        def work() -> Outcome:
            return Outcome(restored(read_manifest_of_step(folder), reader_of_step(folder), like, options))

        try:
            tree, _ = in_all(f"restoring step {step}", work, self._timeout)
        except CheckpointDamagedError as error:
            if step in self.all_steps():
                raise
            raise CheckpointDamagedError(f"{folder} was deleted while it was read, perhaps by a run.") from error
        return tree


def _items_text(items: Mapping[str, Any] | None) -> str:
    try:
        return json.dumps(dict(items or {}), default=lambda value: value.item())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"items can't be saved: {error}. They hold what JSON can; of a data iterator, give its state, and of bytes "
            f"value.hex()."
        ) from error


def _lines_of(skipped: Mapping[int, str]) -> str:
    return "\n  ".join(first_of([f"{step}: {reason}" for step, reason in skipped.items()]))
