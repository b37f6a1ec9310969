"""The steps of a training run: `CheckpointManager`, on Orbax's manager, with the manifest as an item of its own."""

# Of libraries that a user may not have:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import dataclasses
import functools
import json
import math
import operator
import os
import secrets
import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, Literal, Self, SupportsIndex, TypeVar, Unpack, overload

import jax
import numpy as np
import orbax.checkpoint as ocp
from etils import epath

from treewright._core.text import cut_text, short_text
from treewright._lines import first_of
from treewright._processes import compare, exchange, process_count, process_index
from treewright.checkpoint.arrays import WHOLE, digest_of, stored
from treewright.checkpoint.file import StrPath, sync
from treewright.checkpoint.fit import MISSING, Fit, checked_options, restored
from treewright.checkpoint.items import (
    LISTING,
    MANIFEST,
    STATE,
    ManifestHandler,
    SaveManifest,
    arrays_of_step,
    delete_inside,
    entries_of,
    in_all,
    manifest_of_step,
    problems_of,
)
from treewright.checkpoint.manifest import Manifest
from treewright.checkpoint.tree import Parts, parts_to_save
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
    has returned; if it fails there, the next call raises `CheckpointError`, once, and the one after that works. Use it
    in a `with` block, or call `close`: a program that ends without may lose its last step. One manager at a time, in
    one thread, saves into a folder; any number may read. In a job of several processes, all of them make the same
    calls, and get the same steps or an error each.

    A step stays if `keep`, `keep_every` or `keep_best` keeps it; the step that was saved last always stays. Where a
    method takes a step, the default is the latest, and one that is not there is a `CheckpointError`.

    Args:
        directory: The folder, which the first `save` makes. A bucket (`gs://bucket/run`) is left to Orbax.
        keep: How many of the steps that were saved last are kept; None keeps all.
        keep_every: Steps whose number this divides are kept too.
        keep_best: How many of the best steps are kept too.
        metric: The metric that ranks the steps. It must be among the `metrics` of each step.
        mode: Whether the smallest (`"min"`) or the largest (`"max"`) is the best.
        timeout_seconds: How long the processes of a job wait for each other.

    Raises:
        ImportError: If orbax-checkpoint is not installed, or for a bucket its package, such as gcsfs.
        OSError: If the file system refuses the path.
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

    def __init__(
        self,
        directory: StrPath,
        *,
        keep: int | None = 3,
        keep_every: int | None = None,
        keep_best: int | None = None,
        metric: str | None = None,
        mode: Mode | None = None,
        timeout_seconds: float = 600.0,
    ) -> None:
        if any(count is not None and count < 1 for count in (keep, keep_every, keep_best)):
            text = f"CheckpointManager({keep=}, {keep_every=}, {keep_best=}): each is a whole number from 1, or None."
            raise ValueError(text)
        if (metric is None) != (mode is None) or mode not in {None, "min", "max"} or (keep_best and not metric):
            raise ValueError(
                f"CheckpointManager({keep_best=}, {metric=}, {mode=}): the best steps are ranked by one of their "
                f"metrics, and by whether less is better. Give both: metric='loss', mode='min' or 'max'."
            )
        text = os.fsdecode(directory)
        self._is_local = "://" not in text
        # A bucket's path has the same methods, and is none of `pathlib`.
        self.directory: Any = Path(text).absolute() if self._is_local else epath.Path(text)
        if self._is_local:
            # Since Python 3.14 `is_file` hides that a folder may not be read.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (self.directory / LISTING).stat()
        if self.directory.is_file() or (self.directory / LISTING).is_file():
            raise CheckpointError(f"{text} is a file or a step. A CheckpointManager takes the folder of the steps.")
        policies = ocp.checkpoint_managers
        stay: list[Any] = [policies.LatestN(keep)]
        if keep_every is not None:
            stay.append(policies.EveryNSteps(keep_every))
        if keep_best is not None:
            stay.append(policies.BestN(get_metric_fn=float, n=keep_best, keep_checkpoints_without_metrics=False))
        self._policy: Any = policies.AnyPreservationPolicy(stay)
        self._metric, self._mode, self._timeout = metric, mode, timeout_seconds
        self._in_all = functools.partial(in_all, timeout=timeout_seconds)
        self._saver: Any = None  # Orbax's manager, from the first save on
        self._pending: int | None = None  # the step that is being written

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
        """Save a tree as a step, and throw out the steps that are not to be kept.

        Arrays may be donated or changed as soon as this returns.

        Args:
            step: The number of the step, above all that are there.
            state: Any pytree of arrays and numbers.
            metrics: Numbers that are to be known of the step, the same in all processes.
            items: What is not in the tree, as the state of a data iterator, by name: JSON. Each process saves and gets
                its own.

        Raises:
            CheckpointError: If something can't be saved, a step is there that is not below, or the save before failed.
            ProcessMismatchError: If the processes do not save the same.
        """
        number = _step_number(step)
        self._settle()
        arrays, parts, numbers, own_items = self._in_all("save", lambda: self._prepared(number, state, metrics, items))
        if process_count() > 1:
            entries = {"the step": str(number), "metrics": json.dumps(numbers), **entries_of(parts)}
            compare(entries, name="save", timeout=self._timeout)
        every = exchange(own_items, name="items", timeout=self._timeout)
        manifest = dataclasses.replace(parts.manifest, metrics=numbers, items=tuple(map(json.loads, every)))
        full = {name: array for name, array in arrays.items() if array.size}  # all that Orbax saves
        returned = threading.Event()
        saved: dict[str, Any] = {STATE: ocp.args.PyTreeSave(full)} if full else {}
        saved[MANIFEST] = SaveManifest(manifest, full, self.directory / _THROWN_OUT, returned, self._timeout)
        with self._failing_as(number):
            try:
                saver = self._opened()
                saver.save(number, args=ocp.args.Composite(**saved), metrics=numbers, force=True)
                self._pending = number
            finally:
                returned.set()

    def _prepared(
        self, number: int, state: object, metrics: Mapping[str, Any] | None, items: Mapping[str, Any] | None
    ) -> tuple[dict[str, Any], Parts, dict[str, float], str]:
        """The arrays, records, metrics and items of a step that can be saved."""
        steps = self._steps_on_disk() if self._saver is None else self._saver.all_steps()
        newer = [other for other in steps if other >= number]
        if newer:
            raise CheckpointError(
                f"{self.directory} has the steps {_shown(newer)} already, and a run that resumes takes the highest. "
                f"Delete them, as by delete({newer[-1]}), or save into another folder."
            )
        numbers = {name: np.asarray(value).tolist() for name, value in (metrics or {}).items()}
        wrong = [name for name, value in numbers.items() if type(value) not in {int, float}]
        if wrong or self._metric not in {None, *numbers}:
            raise CheckpointError(
                f"save(..., metrics={short_text(metrics)}): they have to be numbers by name"
                f"{f', with {self._metric!r} among them, which ranks the steps' if self._metric else ''}."
            )
        parts = parts_to_save(state, problems_of=problems_of)
        if not parts.values:
            raise CheckpointError("The tree can't be saved: it has no leaves, and Orbax saves no empty tree.")
        arrays = {leaf.name: stored(parts.values[leaf.name]) for leaf in parts.manifest.untied()}
        for leaf in parts.manifest.untied():
            array = arrays[leaf.name]
            if not isinstance(array, jax.Array) or not array.size:  # now: it may change while Orbax writes its copy
                leaf.digests = {WHOLE: digest_of(array if array.size else b"")}
        return arrays, parts, numbers, json.dumps(dict(items or {}))

    def _opened(self) -> Any:
        """Orbax's manager, made by the first save: it clears away what killed processes left in the folder."""
        if self._saver is None:
            policy: Any = SimpleNamespace(should_preserve=self._stay)  # Orbax's types have only its own policies
            options = ocp.CheckpointManagerOptions(
                preservation_policy=policy,
                best_fn=len,  # not called with a policy, but without one no metrics are written
                lightweight_initialize=True,  # and not read again: one that is damaged would be an error
                cleanup_tmp_directories=True,
                todelete_subdir=_THROWN_OUT,
                async_options=ocp.AsyncOptions(
                    timeout_secs=math.ceil(self._timeout), post_finalization_callback=self._sync_unfinished
                ),
            )
            handlers: Any = {STATE: ocp.PyTreeCheckpointHandler(use_compression=False), MANIFEST: ManifestHandler()}
            self._saver = ocp.CheckpointManager(self.directory, options=options, item_handlers=handlers)
        return self._saver

    def _sync_unfinished(self) -> None:
        """Bring a step to the disk before it gets its name. Orbax does that for arrays, and for none of its JSON."""
        for folder in self.directory.glob("*.orbax-checkpoint-tmp*") if self._is_local else ():
            for path in (folder, *folder.rglob("*")):
                sync(path)

    def _stay(self, infos: Sequence[Any], *, context: Any) -> list[bool]:
        """Whether each step stays: Orbax's policy, for steps whose metrics are ranks."""
        ranked = [SimpleNamespace(step=x.step, time=x.time, metrics=self._rank(x.step, x.metrics)) for x in infos]
        stay: list[bool] = self._policy.should_preserve(ranked, context=context)
        return stay

    def _rank(self, step: int, metrics: Mapping[str, float] | None = None) -> float | None:
        """How good a step is: the higher the better; None without the metric."""
        if self._metric is None:
            return None
        file = self.directory / str(step) / "metrics" / "metrics"
        with contextlib.suppress(FileNotFoundError, ValueError, KeyError):  # a damaged one has no rank
            value: float = (metrics or json.loads(file.read_text()))[self._metric]
            return -math.inf if math.isnan(value) else -value if self._mode == "min" else value
        return None

    def wait(self) -> None:
        """Return when all that was saved is on disk."""
        self._settle()
        if process_index() == 0:
            delete_inside(self.directory / _THROWN_OUT)

    def _settle(self) -> None:
        """Finish the save under way, and raise in all processes if it failed in one."""
        step, self._pending = self._pending, None
        if step is not None:
            with self._failing_as(step):
                self._in_all(f"the end of saving step {step}", lambda: self._finish(self.directory / str(step)))

    def _finish(self, folder: Any) -> None:
        try:
            self._saver.wait_until_finished()
        except Exception as error:
            if not folder.is_dir():
                raise
            text = f"Step {folder.name} is saved, but an old one could not be thrown out: {error}"
            warn_user(text, CheckpointWarning)
        # The names; and Orbax writes this file once more.
        for path in (folder / LISTING, folder, self.directory) if process_index() == 0 and self._is_local else ():
            sync(path)

    @contextlib.contextmanager
    def _failing_as(self, step: int) -> Generator[None]:
        """Any error means that a step was not saved; the next save makes another manager of Orbax."""
        try:
            yield
        except Exception as error:
            self._let_go()
            raise CheckpointError(
                f"Step {step} could not be saved in {self.directory}; earlier steps are as they were: {error}"
            ) from error

    def close(self) -> None:
        """Wait, and let go of the folder."""
        try:
            self.wait()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        saver, self._saver = self._saver, None
        if saver is not None:
            with contextlib.suppress(Exception):  # it was raised already
                saver.close()

    def delete(self, step: SupportsIndex) -> None:
        """Delete a step. A save under way is waited for."""
        number = self._existing(_step_number(step))
        self._opened().delete(number)
        self.wait()

    def reached_preemption(self, step: int) -> bool:
        """Whether the job is told to end and this is the step at which all its processes save.

        JAX agrees on the step, whichever process got the SIGTERM. Ask in each step, in all processes, of a job that
        called `jax.distributed.initialize`; in any other it is False.
        """
        return bool(ocp.utils.reached_preemption(step))

    # Steps

    def all_steps(self) -> tuple[int, ...]:
        """The steps that are wholly on disk, in order. A save under way is not waited for."""
        if process_count() == 1 and self._pending is not None and not self._saver.is_saving_in_progress():
            self._settle()
        steps: list[int] = self._in_all("listing steps", self._steps_on_disk, by_first=True)
        return tuple(step for step in steps if step != self._pending)

    def latest_step(self) -> int | None:
        """The last of `all_steps`; None if there is none."""
        return max(self.all_steps(), default=None)

    def best_step(self) -> int | None:
        """The best of `all_steps` by the `metric` of this manager; None if no step has the metric.

        Of equals it is the newest. NaN is worse than any number.

        Raises:
            CheckpointError: If the manager has no `metric`.
        """
        if self._metric is None:
            raise CheckpointError(
                "The manager has no metric that ranks steps: CheckpointManager(..., metric='loss', mode='min')."
            )
        steps = self.all_steps()
        ranks: list[Any] = self._in_all("ranking steps", lambda: list(map(self._rank, steps)), by_first=True)
        ranked = [(rank, step) for rank, step in zip(ranks, steps, strict=True) if rank is not None]
        return max(ranked)[1] if ranked else None

    def metrics(self, step: SupportsIndex | None = None) -> dict[str, float]:
        """The metrics that were saved with a step."""
        return dict(self.manifest(step).metrics)

    def items(self, step: SupportsIndex | None = None) -> dict[str, Any]:
        """The items that this process saved with a step.

        Raises:
            CheckpointError: If fewer processes saved it.
        """
        every, index = self.manifest(step).items, process_index()
        if index >= len(every) and any(every):
            raise CheckpointError(
                f"The step was saved by {len(every)} processes and has no items for process {index}. Redistribute them."
            )
        return dict(every[index]) if index < len(every) else {}

    def manifest(self, step: SupportsIndex | None = None) -> Manifest:
        """The manifest of a step. No array is read. A save under way is waited for.

        Raises:
            CheckpointDamagedError: If it can't be read.
        """
        folder = self.directory / str(self._existing(step))
        found: Manifest = self._in_all("reading a manifest", lambda: manifest_of_step(folder))
        return found

    def _steps_on_disk(self) -> list[int]:
        return sorted(info.step for info in ocp.path.step.standard_name_format().find_all(self.directory))

    def _existing(self, step: SupportsIndex | None) -> int:
        """The number of a step that is on disk, by default the latest. A save under way is finished."""
        self._settle()
        steps = self.all_steps()
        number = _step_number(step) if step is not None else max(steps, default=-1)
        if number in steps:
            return number
        empty = "has no steps" if self.directory.is_dir() else "does not exist"
        has = f"has the steps {_shown(steps)}" if steps else empty
        raise CheckpointError(f"{self.directory} {has}" + ("." if step is None else f", and no step {number}."))

    # Restoring

    @overload
    def restore(self, step: SupportsIndex | None = ..., *, like: T, **options: Unpack[Fit]) -> T: ...
    @overload
    def restore(self, step: SupportsIndex | None = ..., **options: Unpack[Fit]) -> Any: ...
    def restore(self, step: SupportsIndex | None = None, *, like: Any = MISSING, **options: Any) -> Any:
        """The tree of a step, with the structure, statics and shardings of `like`.

        A save under way is waited for. Each process reads its own parts, and compares each saved block that lies in
        them with its digest. The options are those of `treewright.checkpoint.load`; without `like`, the arrays come to
        the default device.

        Raises:
            CheckpointError: If there is no such step, or the tree can't be made.
            CheckpointMismatchError: If the step does not fit `like`.
            CheckpointDamagedError: If it is not what was saved.
            OSError: If the file system fails.
        """
        checked = checked_options(like, options)
        return self._restored(self._existing(step), like, checked)

    @overload
    def restore_latest_valid(self, *, like: T, **options: Unpack[Fit]) -> Restored[T] | None: ...
    @overload
    def restore_latest_valid(self, **options: Unpack[Fit]) -> Restored[Any] | None: ...
    def restore_latest_valid(self, *, like: Any = MISSING, **options: Any) -> Restored[Any] | None:
        """The newest step that is whole, or None if there are no steps: for a run that resumes, or starts.

        A save under way is waited for. A warning names the damaged steps that were skipped. They are renamed to
        `STEP.damaged-...`, so that they take no place and the run can save their numbers again; nothing deletes them.
        A run that must resume calls `restore`, for which a missing folder is an error.

        Raises:
            CheckpointMismatchError: If a whole step does not fit `like`. It is not damaged, so it is not skipped.
            CheckpointDamagedError: If there are steps, and all are damaged.
            OSError: If the file system fails. The step may be whole, so it is not skipped.
        """
        checked = checked_options(like, options)
        self._settle()
        skipped: dict[int, str] = {}
        # Listed again each time: another process that saves may have deleted one, and have a newer one.
        while untried := [step for step in self.all_steps() if step not in skipped]:
            step = untried[-1]
            try:
                tree = self._restored(step, like, checked)
            except CheckpointDamagedError as error:
                if step in self.all_steps():
                    skipped[step] = str(error)
                continue
            if skipped:
                self._let_go()  # Orbax would count them
                self._in_all("renaming damaged steps", lambda: self._set_aside(skipped), by_first=True)
                text = f"Restored step {step}, and skipped damaged ones, which were renamed:{_lines_of(skipped)}"
                warn_user(text, CheckpointWarning)
            return Restored(step, tree, skipped)
        if skipped:
            raise CheckpointDamagedError(f"All steps in {self.directory} are damaged:{_lines_of(skipped)}")
        return None

    def _restored(self, step: int, like: Any, options: Any) -> Any:
        folder = self.directory / str(step)
        read = functools.partial(arrays_of_step, folder)
        return self._in_all(f"restoring step {step}", lambda: restored(manifest_of_step(folder), read, like, options))

    def _set_aside(self, damaged: Iterable[int]) -> None:
        for step in damaged:
            with contextlib.suppress(OSError):  # of a folder that only others may change
                (self.directory / str(step)).rename(self.directory / f"{step}.damaged-{secrets.token_hex(4)}")


def _step_number(step: Any) -> int:
    number = operator.index(step) if isinstance(step, SupportsIndex) and not isinstance(step, bool) else -1
    if number < 0:
        raise CheckpointError(
            f"A step is a whole number from 0, got {short_text(step)}. A tree goes by name: restore(like=tree)."
        )
    return number


def _shown(steps: Sequence[int]) -> str:
    return ", ".join(first_of(list(map(str, steps))))


def _lines_of(skipped: Mapping[int, str]) -> str:
    return "".join(f"\n  {step}: {cut_text(reason, 400)}" for step, reason in skipped.items())
