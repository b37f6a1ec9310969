"""Checkpoints of a training run, step by step, in Orbax's folders."""

import contextlib
import dataclasses
import operator
import os
import signal
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, Self, SupportsIndex, TypeVar, overload

from treewright._core.functions import public
from treewright._core.jax_private import is_first_process, process_index
from treewright._core.text import cured, first_of, first_text, options_cure
from treewright.checkpoint.atomic import Lock, marked, sync, try_lock
from treewright.checkpoint.digests import new_digest
from treewright.checkpoint.ending import CAN_FINISH, UNFINISHED, Items, Metadata, Preemption
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.restore import ALONE, LoadOptions, Migrate, Modules, OnStatic, taken, warn
from treewright.checkpoint.retention import Mode, Retention
from treewright.checkpoint.steps import (
    LISTING,
    clear_away_steps,
    engine,
    extras_of,
    folder_of_run,
    handlers,
    is_local,
    items_of,
    reader_of,
    saved_extras,
    saved_manifest,
    unfinished_steps,
)
from treewright.errors import CheckpointDamagedError, CheckpointError

T = TypeVar("T")


@public("treewright.checkpoint")
@dataclasses.dataclass(frozen=True, slots=True)
class Restored(Generic[T]):
    """What `CheckpointManager.restore_latest_valid` found: the step, its tree, and the damaged steps it skipped.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(10, {"w": 1.5})
        ...     manager.wait()
        ...     manager.restore_latest_valid(like={"w": 0.0})
        Restored(step=10, tree={'w': 1.5}, skipped={})
    """

    step: int
    tree: T
    skipped: Mapping[int, str]


@public("treewright.checkpoint")
class CheckpointManager:
    """A folder of steps: saves a training run and restores it.

    A step is there whole or not at all, whenever the process is killed. Saving goes on in the background after `save`
    has returned; if it fails there, the next call of any method raises, once, and the one after that works. The end of
    the program waits for it, with or without `close`. Threads may share a manager. One manager at a time saves into a
    folder; any number may read.

    A step stays if `keep`, `keep_every` or `keep_best` keeps it; that which was saved last stays in any case.

    Args:
        directory: The folder, on a local or mounted disk or in a bucket (`gs://bucket/run`), where nothing keeps a
            second writer away. It is made by the first `save`.
        keep: How many steps are kept, those with the highest numbers; None keeps all.
        keep_every: Steps whose number this divides are kept too.
        keep_best: How many of the best steps are kept too.
        metric: The entry of the metadata that says how good a step is. It must be a number, in each step.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) is the best.
        asynchronous: Whether `save` returns when the arrays are copied and digested, and writes in the background. On
            Python 3.12.0 to 3.12.2 it always waits: there a program that ends can't finish what it was writing.

    Raises:
        ImportError: If orbax-checkpoint or xxhash is not installed, or for a bucket gcsfs.
        ValueError: If one of the numbers is less than 1, or `keep_best`, `metric` and `mode` do not go together.
        CheckpointError: If it is a file, a step or another address, as `s3://...`, or the bucket can't be reached.

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
            *("keep", "keep_every", "keep_best", "metric", "mode", "asynchronous"),
            max_to_keep="keep=3",
            keep_period="keep_every=1000",
            options="keep=, keep_every= and the like",
            best_fn="keep_best= and metric=",
            best_mode="mode=",
        )
    )
    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        asynchronous: bool = True,
    ) -> None:
        self._retention = Retention(keep, keep_every, keep_best, metric, mode)
        self.directory: Path = folder_of_run(directory)
        self._asynchronous = asynchronous and CAN_FINISH
        self._orbax = engine()
        new_digest()  # so that a missing package is told before the first save
        self._mutex = threading.RLock()
        self._lock: Lock | None = None
        self._mark: Path | None = None  # of the save under way
        self._saver: Any = None  # Orbax's manager, from the first save on
        self._step: int | None = None  # that was saved last
        self._pending = False  # whether nobody has waited for it
        self._damaged: set[int] = set()
        self._known: dict[int, Mapping[str, Any]] = {}  # metadata of steps, so that each is read once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Saving

    @cured(lambda _args, _kwargs: "It takes the number of the step, then the tree: manager.save(step, tree).")
    def save(
        self,
        step: SupportsIndex,
        tree: object,
        *,
        metadata: Mapping[str, Any] | None = None,
        items: Mapping[str, Any] | None = None,
    ) -> None:
        """Save a tree as a step, and forget the steps that are not to be kept.

        Arrays may be donated or changed as soon as this returns. A step that `restore_latest_valid` found damaged is
        replaced; any other that exists is refused.

        Args:
            step: The number of the step, which orders them.
            tree: Any pytree of arrays and numbers.
            metadata: What is to be known of the step: what JSON can hold, and numbers of numpy and JAX. In a job of
                several processes, the same in all of them.
            items: What is not in the tree, as the state of a data iterator, by name: what JSON can hold, and bytes. In
                a job of several processes, each saves and gets its own.

        Raises:
            CheckpointError: If something can't be saved, the step exists, another process saves into the folder, or
                the save before this one failed.
        """
        extras = extras_of(metadata, items)
        self._retention.check(extras.metadata)
        with self._mutex:
            number = self._refused_existing(step)
            saved = items_of(tree, extras)
            self.wait()
            with self._telling(f"Step {number} could not be saved"):
                saver = self._opened_for_saving()
                if number in self._damaged:
                    saver.delete(number)
                    self._damaged.discard(number)
                if self._brings_to_disk and self._mark is None:
                    self._mark = marked(self.directory)
                self._step, self._known[number] = number, extras.metadata
                saver.save(number, args=self._orbax.args.Composite(**saved), force=True)
                self._pending = True
                UNFINISHED.add(self.close)
            if not self._asynchronous:
                self.wait()

    def wait(self) -> None:
        """Return when all that was saved is on disk.

        Raises:
            CheckpointError: If it could not be written.
        """
        with self._mutex:
            if self._pending:
                with self._telling(f"Step {self._step} could not be saved"):
                    self._saver.wait_until_finished()
                    if self._brings_to_disk:  # what Orbax wrote last, and the names
                        folder = self.directory / str(self._step)
                        for path in (folder / LISTING, folder, self.directory):
                            sync(path)
                self._settle()

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

    def delete(self, step: int) -> None:
        """Delete a step. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step, or another process saves into the folder.
        """
        with self._mutex:
            step = int(self._folder(_number(step)).name)
            with self._telling(f"Step {step} could not be deleted"):
                self._opened_for_saving().delete(step)
            self._damaged.discard(step)
            self._known.pop(step, None)

    def preemption(self, *, within: float, signals: Iterable[int] = (signal.SIGTERM,)) -> Preemption:
        """A block in which a signal, as a cluster sends before it takes a machine away, makes the run save and leave.

        Args:
            within: The seconds from the signal to the end of the process, at most.
            signals: What to listen to.

        Raises:
            ValueError: If `within` is not above 0; when the block begins, if nobody can listen to one of the signals.
        """
        return Preemption(self._retention.check_there, self._save_last, within, signals)

    def _save_last(self, step: int, tree: object, metadata: Metadata, items: Items) -> None:
        """Bring a step to the disk, unless it is there and whole."""
        try:
            self.wait()
        except CheckpointError as error:  # of the step before: this one is worth more
            warn(str(error))
        if step not in self.all_steps() or step in self._damaged:
            self.save(step, tree, metadata=metadata, items=items() if callable(items) else items)
            self.wait()

    @property
    def _brings_to_disk(self) -> bool:
        """Whether this process locks the folder, and brings to the disk what Orbax does not. A bucket needs neither."""
        return is_first_process() and is_local(self.directory)

    def _settle(self) -> None:
        """Nothing is being saved any more."""
        self._pending = False
        UNFINISHED.discard(self.close)
        mark, self._mark = self._mark, None
        if mark is not None:
            with contextlib.suppress(OSError):
                mark.unlink()

    def _let_go(self) -> None:
        """Close Orbax's manager and the lock. What fails was told already, or nobody asked for it."""
        self._settle()
        held, self._saver, self._lock = (self._saver, self._lock), None, None
        for one in held:
            if one is not None:
                with contextlib.suppress(Exception):
                    one.close()

    def _opened_for_saving(self) -> Any:
        """Orbax's manager. Made by the first save, since it clears away what killed processes left in the folder."""
        if self._saver is not None:
            return self._saver
        if self._brings_to_disk:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = try_lock(self.directory)
            if self._lock is None:
                raise CheckpointError(
                    f"{self.directory}: another CheckpointManager saves into this folder. Close it, or take another."
                )
            clear_away_steps(self.directory)
        orbax = self._orbax
        self._saver = orbax.CheckpointManager(
            self.directory,
            options=orbax.CheckpointManagerOptions(
                preservation_policy=SimpleNamespace(should_preserve=self._kept),
                cleanup_tmp_directories=not is_local(self.directory),
                async_options=orbax.AsyncOptions(
                    post_finalization_callback=self._sync_step,
                    # If one can't be made, threads would wait for it for minutes, and the end of the program for them.
                    create_directories_asynchronously=False,
                ),
            ),
            item_handlers=handlers(),
        )
        return self._saver

    def _kept(self, checkpoints: Sequence[Any], **_: object) -> list[bool]:
        """Which steps stay: what Orbax asks. What someone else deleted is left to them."""
        steps = [checkpoint.step for checkpoint in checkpoints]
        saved = steps[-1]
        there = {*self._steps_on_disk(), saved} & set(steps)
        kept = self._retention.kept(there, saved, self._metadata_for_ranks)
        return [step in kept or step not in there for step in steps]

    def _metadata_for_ranks(self, step: int) -> Mapping[str, Any]:
        """The metadata of a step; of a damaged one, none."""
        if step not in self._known:
            try:
                self._known[step] = saved_extras(self.directory / str(step))[0]
            except CheckpointError:
                self._known[step] = {}
        return self._known[step]

    def _sync_step(self) -> None:
        """Bring the small files of a step to the disk before it gets its name: Orbax does that for its arrays only."""
        if self._brings_to_disk:
            for path in unfinished_steps(self.directory, self._step):
                for inside in (path, *path.rglob("*")):
                    sync(inside)

    def _refused_existing(self, wanted: SupportsIndex) -> int:
        """The number of a step that can be saved."""
        try:
            step = operator.index(wanted)
        except TypeError:  # an array of no rank has the method too
            step = -1
        if isinstance(wanted, bool) or step < 0:
            raise CheckpointError(f"A step is a whole number from 0, got {first_text(wanted)}.")
        if step in self.all_steps() and step not in self._damaged:
            raise CheckpointError(
                f"{self.directory} has a step {step} already. Save into another folder, or delete it: delete({step})."
            )
        return step

    def _raise_failure(self) -> None:
        """Raise if a save failed in the background; return at once while one is going on, in any thread."""
        if self._mutex.acquire(blocking=False):
            try:
                if self._pending and not self._saver.is_saving_in_progress():
                    self.wait()
            finally:
                self._mutex.release()

    @contextlib.contextmanager
    def _telling(self, what: str) -> Generator[None]:
        """Errors as ours, told once: Orbax's manager raises them again, so the next save gets a new one."""
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            self._let_go()
            raise CheckpointError(f"{what} in {self.directory}; earlier steps are as they were: {error}") from error

    # Restoring

    def all_steps(self) -> tuple[int, ...]:
        """The steps that are wholly on disk, in order.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        self._raise_failure()
        return self._steps_on_disk()

    def _steps_on_disk(self) -> tuple[int, ...]:
        try:
            there = self._orbax.utils.checkpoint_steps(self.directory) if self.directory.is_dir() else ()
        except OSError as error:
            raise CheckpointError(f"The steps in {self.directory} can't be listed: {error}") from error
        local = is_local(self.directory)  # where anybody may have made a `007` or `step_7`, which Orbax lists as 7
        return tuple(sorted(step for step in set(there) if not local or (self.directory / str(step)).is_dir()))

    def latest_step(self) -> int | None:
        """The step with the highest number that is wholly on disk; None if there is none.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best step by the `metric` of this manager that is wholly on disk; None if no step has the metric.

        Raises:
            CheckpointError: If the manager has no `metric`, or a save failed in the background since the last call.
        """
        if self._retention.metric is None:
            raise CheckpointError(
                "The best step is asked for, and no metric says which: CheckpointManager(..., metric='loss', "
                "mode='min')."
            )
        with self._mutex:
            return next(iter(self._retention.ranked(self.all_steps(), self._metadata_for_ranks)), None)

    def manifest(self, step: int | None = None) -> Manifest:
        """The manifest of a step, by default the latest. No array is read. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
            CheckpointDamagedError: If the manifest can't be read.
        """
        return saved_manifest(self._folder(step))

    def metadata(self, step: int | None = None) -> dict[str, Any]:
        """The metadata that was saved with a step, by default the latest. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
            CheckpointDamagedError: If it can't be read.
        """
        return saved_extras(self._folder(step))[0]

    def items(self, step: int | None = None) -> dict[str, Any]:
        """The items that this process saved with a step, by default the latest. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step, or fewer processes saved it.
            CheckpointDamagedError: If they can't be read.
        """
        folder = self._folder(step)
        every, index = saved_extras(folder)[1], process_index()
        if index >= len(every) and any(every):
            raise CheckpointError(
                f"Step {folder.name} holds the items of {len(every)} processes, and this is one more: {index}. Share "
                f"them out anew."
            )
        return every[index] if index < len(every) else {}

    @overload
    def restore(
        self,
        step: int | None = ...,
        *,
        like: T,
        part: str | None = ...,
        on_static: OnStatic = ...,
        allow_cast: bool = ...,
        strict: bool = ...,
        renamed: Mapping[str, str] | None = ...,
        migrate: Migrate | None = ...,
    ) -> T: ...
    @overload
    def restore(
        self,
        step: int | None = ...,
        *,
        part: str | None = ...,
        modules: Modules = ...,
        statics: Mapping[str, Any] | None = ...,
    ) -> Any: ...
    def restore(
        self,
        step: int | None = None,
        *,
        like: Any = ALONE,
        part: str | None = None,
        modules: Modules = (),
        statics: Mapping[str, Any] | None = None,
        on_static: OnStatic = "error",
        allow_cast: bool = False,
        strict: bool = True,
        renamed: Mapping[str, str] | None = None,
        migrate: Migrate | None = None,
    ) -> Any:
        """The tree of a step, by default the latest, with the structure, statics and shardings of `like`.

        A save under way is waited for. Every leaf is compared with its digest. The options are those of
        `treewright.checkpoint.load`; without `like`, the arrays come to the default device.

        Raises:
            CheckpointError: If there is no such step, the save under way failed, or the tree can't be made.
            CheckpointMismatchError: If the step does not fit `like`.
            CheckpointDamagedError: If it is not what was saved.
        """
        options = LoadOptions(on_static, allow_cast, strict, renamed, migrate, part, modules, statics)
        folder = self._folder(step)
        try:
            return taken(saved_manifest(folder), reader_of(folder), like, options)
        except CheckpointDamagedError as error:
            if int(folder.name) in self._steps_on_disk():
                raise
            raise CheckpointError(f"{folder} was deleted while it was read, perhaps by whoever saves there.") from error

    @overload
    def restore_latest_valid(
        self,
        *,
        like: T,
        part: str | None = ...,
        on_static: OnStatic = ...,
        allow_cast: bool = ...,
        strict: bool = ...,
        renamed: Mapping[str, str] | None = ...,
        migrate: Migrate | None = ...,
    ) -> Restored[T] | None: ...
    @overload
    def restore_latest_valid(
        self, *, part: str | None = ..., modules: Modules = ..., statics: Mapping[str, Any] | None = ...
    ) -> Restored[Any] | None: ...
    def restore_latest_valid(
        self,
        *,
        like: Any = ALONE,
        part: str | None = None,
        modules: Modules = (),
        statics: Mapping[str, Any] | None = None,
        on_static: OnStatic = "error",
        allow_cast: bool = False,
        strict: bool = True,
        renamed: Mapping[str, str] | None = None,
        migrate: Migrate | None = None,
    ) -> Restored[Any] | None:
        """The newest step that is whole, or None if the folder has no steps: what a run that resumes asks for.

        A save under way is waited for. A warning names the damaged steps that were skipped. They stay where they are
        until they are saved again.

        Raises:
            CheckpointError: If the save under way failed.
            CheckpointMismatchError: If a whole step does not fit `like`. It is not damaged, so it is not skipped.
            CheckpointDamagedError: If there are steps, and all are damaged.
        """
        options = LoadOptions(on_static, allow_cast, strict, renamed, migrate, part, modules, statics)
        skipped: dict[int, str] = {}
        self.wait()
        # Listed anew each time: another process that saves may have deleted one that was being read, and has a newer.
        while untried := [step for step in self.all_steps() if step not in skipped]:
            step = untried[-1]
            folder = self.directory / str(step)
            try:
                saved_extras(folder)
                tree = taken(saved_manifest(folder), reader_of(folder), like, options)
            except CheckpointDamagedError as error:
                skipped[step] = str(error)
                continue
            there = self._steps_on_disk()
            skipped = {step: reason for step, reason in skipped.items() if step in there}
            with self._mutex:
                self._damaged.update(skipped)
            if skipped:
                warn("\n  ".join([f"Restored step {step} and skipped damaged ones:", *_listed(skipped)]))
            return Restored(step, tree, skipped)
        if skipped:
            raise CheckpointDamagedError(
                "\n  ".join([f"All steps in {self.directory} are damaged:", *_listed(skipped)])
            )
        return None

    def _folder(self, step: int | None) -> Path:
        """The folder of a step, by default the latest, with that which is still being saved."""
        step = None if step is None else _number(step)
        self.wait()
        steps = self.all_steps()
        step = max(steps, default=None) if step is None else step
        if step is None or step not in steps:
            has = f"the steps {', '.join(first_of(list(map(str, steps))))}" if steps else "no steps"
            raise CheckpointError(f"{self.directory} has {has}" + ("." if step is None else f", and no step {step}."))
        return self.directory / str(step)


def _number(step: SupportsIndex) -> int:
    try:
        return operator.index(step)
    except TypeError:
        raise TypeError(
            f"The number of a step comes first, got {first_text(step)}. A tree goes by name: restore(like=tree)."
        ) from None


def _listed(skipped: Mapping[int, str]) -> list[str]:
    return first_of([f"{step}: {reason}" for step, reason in skipped.items()])
