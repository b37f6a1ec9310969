"""`CheckpointManager`: save and restore the steps of a training run, with Orbax."""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import atexit
import contextlib
import functools
import math
import operator
import os
import secrets
import threading
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import (
    Any,
    Literal,
    Self,
    SupportsIndex,
    TypeVar,
    Unpack,
    overload,
)

import orbax.checkpoint as ocp

from treewright._base.text import cut_text
from treewright._processes import process_count, process_index, run_on_all_processes
from treewright.checkpoint.arrays import blocks_of
from treewright.checkpoint.disk import exists
from treewright.checkpoint.file import StrPath
from treewright.checkpoint.fit import MISSING, LoadOptions, check_options
from treewright.checkpoint.folder import (
    UnfinishedSteps,
    clear,
    folder_of_steps,
    is_foreign,
    quarantine,
    steps_in,
    throw_out,
)
from treewright.checkpoint.handler import (
    SaveStep,
    StepHandler,
    entries_of,
    items_of_step,
    listed_of_step,
    manifest_of_step,
    step_to_save,
    tree_of_step,
)
from treewright.checkpoint.manifest import VERSION, Manifest, seal
from treewright.checkpoint.reading import Restored, StepGoneError, read_step, step_number, steps_text
from treewright.checkpoint.retention import Retention, numbers_of
from treewright.checkpoint.waiting import Task
from treewright.errors import (
    CheckpointDamagedError,
    CheckpointError,
    CheckpointWarning,
    warn_user,
)

T = TypeVar("T")


class CheckpointManager:
    """Saves and restores the steps of a training run in a folder.

    Steps are written atomically, even if the process is killed. `save` continues in the background after it returns; if
    that fails, the next `save`, `wait` or restore raises `CheckpointError`, and the call after it works again. Use the
    manager in a `with` block, or call `close`: a program that ends without it first finishes its last save, or reports
    the reason in a `CheckpointWarning`; Ctrl-C ends it immediately. (Python 3.12.0 to 3.12.2 start no threads at exit:
    there, such a program loses that save, with the warning.)

    Only one manager at a time, in one thread, may save into a folder; any number may read. In a job of several
    processes, all must make the same calls; all get the same step, or all raise.

    By default, all steps are kept. With `keep`, a step is deleted if neither `keep` nor `keep_every` nor `keep_best`
    selects it and it was saved under the same rules. Steps that were saved under different rules, by a different
    program, or whose manifest can't be read are kept until `delete`. The argument `step` of a method defaults to the
    latest step; a missing step is a `CheckpointError`.

    Args:
        directory: The folder, created by the first `save`. In a bucket (`gs://bucket/run`), Orbax commits steps.
        keep: How many of the newest steps to keep; None keeps all.
        keep_every: With `keep`, also keep every step divisible by this number.
        keep_best: With `keep`, also keep this many of the best steps.
        metric: The metric that ranks steps. A step without it in its `metrics` has no rank.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) value is best.
        timeout_seconds: How long the processes of a job wait for each other.

    Raises:
        ImportError: If orbax-checkpoint is not installed, or for a bucket its package, such as gcsfs.
        OSError: If the path is invalid or inaccessible.
        ValueError: If a number is not a positive int, or the options contradict each other.
        CheckpointError: If the directory is a file or a step, or a URL that Orbax can't reach.

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

    def __init__(
        self,
        directory: StrPath,
        *,
        keep: int | None = None,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Literal["min", "max"] | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        given: object = timeout_seconds
        if not isinstance(given, int | float) or not 0 < given < math.inf:
            raise ValueError(f"CheckpointManager({timeout_seconds=}): pass a positive number of seconds.")
        self._retention = Retention(keep, keep_every, keep_best, metric, mode)
        self.directory: Any = folder_of_steps(directory)
        self._is_local = isinstance(self.directory, Path)
        self._timeout = timeout_seconds
        self._run_on_all = functools.partial(run_on_all_processes, timeout=timeout_seconds)
        self._blocks_of = functools.cache(blocks_of)
        self._unfinished: UnfinishedSteps | None = None  # its temporary folders, created by the first save
        self._count = 0  # of saves that began
        self._process = os.getpid()  # the process that it belongs to: in a fork, its threads are missing
        self._pending: Task | None = None
        self._is_closed = False
        self._lock = threading.RLock()
        self._is_saving = False  # read under the lock, so only this thread can have set it
        self._has_rank = False  # whether a step is known to have the metric, or its absence was told
        self._known: dict[int, int] = {}  # the inodes of the steps, by number

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Saving

    def save(
        self,
        step: SupportsIndex,
        state: object,
        *,
        metrics: Mapping[str, Any] | None = None,
        items: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a tree as a step. Once it is finished, the next `save` or `wait` deletes old steps.

        Arrays may be donated or changed as soon as this returns.

        Args:
            step: The number of the step, above all existing steps.
            state: Any pytree of arrays and numbers.
            metrics: Numbers by name, equal in all processes; `metric` may be missing.
            items: Other data by name, such as the state of a data iterator, as JSON values. Each process has its own.

        Raises:
            CheckpointError: If something can't be saved, the step is not above all others, the manager is closed, or
                the previous save failed.
            ProcessMismatchError: If the processes do not save the same.
        """
        number = step_number(step, f"The step comes first: save({state}, state)." if type(state) is int else "")
        if os.getpid() != self._process:
            raise CheckpointError(
                f"Step {number} can't be saved: this manager of {self.directory} belongs to process {self._process}, "
                f"and this is a fork of it. Save there, or create a CheckpointManager of another folder here."
            )
        if self._is_closed:
            raise CheckpointError(
                f"Step {number} can't be saved, because this manager of {self.directory} is closed. Save inside its "
                f"`with` block, or create a new CheckpointManager."
            )

        def prepare() -> tuple[Any, ...]:
            self._check_number(number)
            numbers = numbers_of(metrics)
            self._check_metrics(numbers)
            return step_to_save(state, {} if items is None else items, self._blocks_of, numbers)

        def entries(prepared: tuple[Any, ...]) -> dict[str, str]:
            return {"the step": str(number), **entries_of(prepared[0])}

        with self._turn():
            _, step_with = self._wait_and_run("save", prepare, same=entries)
            task = Task(number, self._writer(number, step_with))
            _begin(self)
            self._pending = task
            task.start()
        if bool(self._is_closed):  # by a signal handler
            self.close()

    @contextlib.contextmanager
    def _turn(self) -> Generator[None]:
        """Saves of several threads take turns. One inside another, as in a signal handler, would wait for itself."""
        with self._lock:
            if self._is_saving:
                raise CheckpointError(
                    "save() was called inside another save() of this manager, for example by a signal handler. Let "
                    "the handler set a flag, and save in the training loop."
                )
            try:
                self._is_saving = True
                yield
            finally:
                self._is_saving = False

    def _check_number(self, number: int) -> None:
        folder = self.directory / str(number)
        if is_foreign(folder):
            raise CheckpointError(
                f"{folder} is not a step: it contains none of a step's files. Rename it, or save into another folder."
            )
        newer = [other for other in self._listed() if other >= number]
        if newer:
            raise CheckpointError(
                f"{self.directory} already has the {steps_text(newer)}, and a run resumes from the highest. "
                f"Delete all of these, as by delete({newer[-1]}), or save into a different folder."
            )

    def _check_metrics(self, metrics: Mapping[str, float]) -> None:
        """Warn once if a step has other metrics than the one that ranks steps, and no step has that one."""
        if metrics and not self._has_rank:
            text = self._retention.missing_metric(metrics)
            if text and self._best() is None:
                warn_user(text, CheckpointWarning)
            self._has_rank = True

    def _writer(self, number: int, step_with: Callable[..., SaveStep]) -> Callable[[], None]:
        """A function that writes a step with Orbax, in a thread."""
        if self._unfinished is None:
            name = "naming temporary folders"
            self._unfinished = UnfinishedSteps(self._run_on_all(name, lambda: secrets.token_hex(4), on_first=True))
        self._count += 1
        unfinished = self._unfinished
        args = step_with(save=f"{unfinished.token}-{self._count}", timeout=self._timeout, check=unfinished.check)
        processes = ocp.options.MultiprocessingOptions(  # its barriers use no device: the program does meanwhile
            active_processes={*range(process_count())}, barrier_sync_key_prefix=args.save
        )
        saver = ocp.Checkpointer(
            StepHandler(),
            multiprocessing_options=processes,
            temporary_path_class=unfinished.path_class if self._is_local else None,
        )
        rules, metrics = self._retention.rules, args.manifest.metrics
        listed = seal({"version": VERSION, "retention": rules, "metrics": metrics, "save": args.save})

        def write() -> None:
            try:
                saver.save(self.directory / str(number), args=args, custom_metadata=listed)
                unfinished.check()
            finally:
                unfinished.release()
                saver.close()

        return write

    def _finish_at_exit(self) -> None:
        """Finish the save if the program ends without `close`."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            self._finish(pending)
            self.wait()  # delete old steps
        except Exception as error:  # noqa: BLE001  nothing else reports it
            text = f"The program ended before step {pending.step} was saved in {self.directory}: {error}."
            warn_user(f"{text} Use the manager in a `with` block, or call close().", CheckpointWarning)

    def wait(self) -> None:
        """Wait until all saves are on disk and old steps are deleted.

        In a signal handler, it waits only for steps whose `save` has returned; in a fork, it does nothing.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._is_saving:  # in a signal handler: the interrupted `save` goes on after it
                if self._pending is not None:
                    with contextlib.suppress(Exception):  # `save` or the next call raises
                        self._pending.wait()
                return
            self._wait_and_raise()
            if self._unfinished is not None and process_index() == 0:
                clear(self.directory)

    def _wait_and_raise(self) -> None:
        """Wait for the pending save, and raise in all processes if it failed in one; in a fork, do nothing."""
        if os.getpid() != self._process:
            return
        with self._lock:
            if self._pending is not None:
                self._wait_and_run(f"the end of saving step {self._pending.step}", lambda: None)

    def _wait_and_run(self, name: str, work: Callable[[], Any], **options: Any) -> Any:
        """Finish the pending save, then run `work` in all processes, with one exchange for both."""
        pending = self._pending

        def settle_and_work() -> Any:
            if pending is not None:
                try:
                    self._finish(pending)
                except Exception as error:
                    raise CheckpointError(
                        f"Step {pending.step} could not be saved in {self.directory}; earlier steps are unchanged: "
                        f"{error}"
                    ) from error
            return work()

        try:
            value = self._run_on_all(name, settle_and_work, **options)
        except Exception:
            if pending is not None:
                self._abandon()  # in all processes
            raise
        self._pending = None  # unless Ctrl-C interrupts: then the next call waits for the step
        _SAVING.discard(self)
        return value

    def _finish(self, pending: Task) -> None:
        pending.wait()
        if process_index() != 0:
            return
        if not exists(self.directory / str(pending.step)):
            raise CheckpointError("its folder is missing: a different manager deleted the step")
        listed_of_step(self.directory / str(pending.step))  # a step that can't be read is not saved
        self._prune()

    def _prune(self) -> None:
        """Delete the steps that were saved under this manager's rules and are selected by none of them."""
        if not self._retention.rules:
            return
        try:
            records = self._records(OSError)  # a step that can't be read is kept
            own = {step: rank for step, (rules, rank) in records.items() if rules == self._retention.rules}
            throw_out(self.directory, sorted({*own} - self._retention.kept(own)))
        except OSError as error:
            warn_user(f"An old step of {self.directory} could not be deleted: {error}", CheckpointWarning)

    def _records(self, *ignored: type[Exception]) -> dict[int, tuple[Mapping[str, Any], float | None]]:
        """The retention rules and the rank of each step that can be read; these errors mean that one can't."""
        records: dict[int, tuple[Mapping[str, Any], float | None]] = {}
        for step in self._listed():
            with contextlib.suppress(CheckpointError, *ignored):  # damaged, deleted, or saved by a different program
                rules, metrics, _ = listed_of_step(self.directory / str(step))
                records[step] = rules, self._retention.rank(metrics)
        return records

    def close(self) -> None:
        """Wait for the pending save and close the manager, which then can't save; in a fork, do nothing."""
        try:
            self.wait()
        finally:
            self._is_closed = True

    def _abandon(self) -> None:
        """End a failed save, and delete its folder."""
        self._pending = None
        _SAVING.discard(self)
        if process_index() == 0:
            with contextlib.suppress(OSError):  # the next save tries again
                clear(self.directory, in_background=True)

    def delete(self, step: SupportsIndex) -> None:
        """Delete a step, after waiting for the pending save.

        Raises:
            OSError: If it can't be renamed.
        """
        number = self._resolve_step(step_number(step))

        def delete() -> None:
            throw_out(self.directory, [number])
            clear(self.directory)

        self._run_on_all(f"deleting step {number}", delete, on_first=True)

    def reached_preemption(self, step: int) -> bool:
        """Whether the job has been preempted and all processes should save at this step.

        Call it in each step, in all processes. JAX chooses one step for all of them, whichever process got SIGTERM. It
        is always False in a job that did not call `jax.distributed.initialize`.
        """
        return bool(ocp.utils.reached_preemption(step))

    # Steps

    def all_steps(self) -> tuple[int, ...]:
        """The finished steps in order, without waiting for the pending save."""
        return tuple(self._run_on_all("listing steps", self._listed, on_first=True))

    def _listed(self) -> list[int]:
        return steps_in(self.directory, self._known)

    def latest_step(self) -> int | None:
        """The highest of `all_steps`; None if there are none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best of `all_steps` by this manager's `metric`; None if no step has the metric.

        Ties go to the newest step; NaN ranks last.

        Raises:
            CheckpointError: If the manager has no `metric`.
        """
        if self._retention.metric is None:
            raise CheckpointError(
                "The manager has no metric to rank steps. Pass one: CheckpointManager(..., metric='loss', mode='min')."
            )
        number: int | None = self._run_on_all("ranking steps", self._best, on_first=True)
        return number

    def _best(self) -> int | None:
        ranked = [(rank, step) for step, (_, rank) in self._records().items() if rank is not None]
        return max(ranked)[1] if ranked else None

    def metrics(self, step: SupportsIndex = MISSING) -> dict[str, float]:
        """The metrics of a step."""
        return dict(self.manifest(step).metrics)

    def items(self, step: SupportsIndex = MISSING, *, process: int | None = None) -> dict[str, Any]:
        """The items of this process, or of `process`, in a step.

        A run that resumes with a different number of processes reads the items of each, `range(manifest.processes)`,
        and redistributes them.

        Raises:
            CheckpointError: If fewer processes saved it.
            CheckpointDamagedError: If they can't be read.
        """
        index = process_index() if process is None else operator.index(process)
        return dict(
            self._read(self._resolve_step(step), "reading the items", lambda folder: items_of_step(folder, index))
        )

    def manifest(self, step: SupportsIndex = MISSING) -> Manifest:
        """The manifest of a step, after waiting for the pending save. Reads no array.

        Raises:
            CheckpointDamagedError: If it can't be read.
        """
        manifest: Manifest = self._read(self._resolve_step(step), "reading the manifest", manifest_of_step)
        return manifest

    def _read(self, step: int, name: str, read: Callable[[Any], Any]) -> Any:
        return read_step(self.directory / str(step), f"{name} of step {step}", read, self._run_on_all)

    def _resolve_step(self, step: Any, fix_of_tree: str = "") -> int:
        """The number of an existing step, by default the latest, after waiting for the pending save."""
        self._wait_and_raise()
        steps = self.all_steps()
        number = step_number(step, fix_of_tree) if step is not MISSING else max(steps, default=-1)
        if number in steps:
            return number
        empty = "has no steps" if exists(self.directory) else "does not exist"
        has = f"has only the {steps_text(steps)}" if steps else empty
        so = "." if step is MISSING else f", so there is no step {number}."
        raise CheckpointError(f"{self.directory} {has}{so}")

    # Restoring

    @overload
    def restore(self, step: SupportsIndex = ..., *, like: T, **options: Unpack[LoadOptions]) -> T: ...
    @overload
    def restore(self, step: SupportsIndex = ..., **options: Unpack[LoadOptions]) -> Any: ...
    def restore(self, step: SupportsIndex = MISSING, *, like: Any = MISSING, **options: Any) -> Any:
        """The tree of a step, with the structure, statics and shardings of `like`.

        Waits for the pending save. Each process reads the saved blocks that its own ones overlap, and verifies each.
        Accepts the options of `treewright.checkpoint.load`; without `like`, the arrays are placed on the default
        device.

        Raises:
            CheckpointError: If the step does not exist.
            CheckpointMismatchError: If the step does not fit `like`.
            CheckpointDamagedError: If it differs from the saved one.
            OSError: If the file system fails.
        """
        checked = check_options(like, options)
        number = self._resolve_step(step, "Pass the tree by name: restore(like=tree).")
        return self._read(number, "reading the tree", lambda folder: tree_of_step(folder, like, checked))

    @overload
    def restore_latest_valid(self, *, like: T, **options: Unpack[LoadOptions]) -> Restored[T] | None: ...
    @overload
    def restore_latest_valid(self, **options: Unpack[LoadOptions]) -> Restored[Any] | None: ...
    def restore_latest_valid(self, *, like: Any = MISSING, **options: Any) -> Restored[Any] | None:
        """The newest undamaged step as `(tree, step)`; None if the folder is empty or does not exist.

        Waits for the pending save. A warning names the damaged steps that were skipped. They are renamed to
        `STEP.damaged-...`, so that the run can save their numbers again, and never deleted. If the run must resume,
        call `restore`: it raises if the folder is missing.

        Raises:
            CheckpointMismatchError: If the newest undamaged step does not fit `like`; it is not skipped.
            CheckpointDamagedError: If there are steps, but all are damaged.
            OSError: If the file system fails; the step may be undamaged, so it is not skipped.
        """
        checked = check_options(like, options)
        self._wait_and_raise()
        skipped: dict[int, str] = {}
        # List again each time: a process that saves may have deleted a step, and added a newer one.
        while untried := [step for step in self.all_steps() if step not in skipped]:
            step = untried[-1]
            try:
                tree = self._read(step, "the restore", lambda folder: tree_of_step(folder, like, checked))
            except StepGoneError:
                continue
            except CheckpointDamagedError as error:
                skipped[step] = str(error)
                continue
            if skipped:
                notes = self._run_on_all(
                    "renaming damaged steps", lambda: quarantine(self.directory, skipped), on_first=True
                )
                warn_user(f"Restored step {step}, skipping damaged steps:{''.join(notes)}", CheckpointWarning)
            return Restored(tree, step)
        if skipped:
            lines = "".join(f"\n  {step}: {cut_text(reason, 400)}" for step, reason in skipped.items())
            raise CheckpointDamagedError(f"All steps in {self.directory} are damaged:{lines}")
        return None


# Program exit. A manager that saves may be known to nobody else: it is kept until its step has its name.
_SAVING = set[CheckpointManager]()


def _begin(manager: CheckpointManager) -> None:
    """Keep a manager that saves, and drop those whose step is finished."""
    for other in list(_SAVING):
        if other._pending is None or other._pending.has_succeeded:
            _SAVING.discard(other)
    _SAVING.add(manager)


def _finish_all() -> None:
    for manager in list(_SAVING):
        manager._finish_at_exit()


def _forget_in_fork() -> None:
    """Leave the saves to the process that forked."""
    while _SAVING:
        unfinished = _SAVING.pop()._unfinished
        if unfinished is not None:
            unfinished.close_copy()


getattr(threading, "_register_atexit", atexit.register)(_finish_all)  # before the executors of Orbax end
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_fork)
