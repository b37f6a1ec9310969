"""Checkpoints of a training run, step by step, in Orbax's folders."""

import contextlib
import dataclasses
import os
import warnings
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import jax
import numpy as np

from treewright._jax import is_first_process, process_count
from treewright._values.reach import public
from treewright.checkpoint.atomic import Lock, sync, try_lock
from treewright.checkpoint.digests import digests_of, gathered, verify
from treewright.checkpoint.leaves import DTYPES, Leaf, Steps, sharding_of, stored
from treewright.checkpoint.manifest import Manifest, from_json, with_digests
from treewright.checkpoint.restore import LoadOptions, Migrate, OnStatic, Reader, restored
from treewright.checkpoint.tree import manifest_of
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning, missing_extra

_STATE, _MANIFEST = "state", "manifest"  # the two items of a step


def engine() -> Any:
    """The Orbax package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise missing_extra("CheckpointManager", "orbax-checkpoint", "checkpoint") from error
    return orbax.checkpoint


# Writing


def _problems(leaves: Iterable[Leaf]) -> Iterator[str]:
    """What a step can't hold."""
    for leaf in leaves:
        if 0 in leaf.form.shape:
            yield f"{leaf.path} has the shape {leaf.form.shape}, and Orbax saves no array without elements"
        if not _is_dtype_of_engine(leaf.form.dtype):
            yield f"{leaf.path} has the dtype {leaf.form.dtype}, which Orbax does not save"
        if process_count() > 1 and isinstance(leaf.value, jax.Array) and leaf.value.is_fully_addressable:
            yield (
                f"{leaf.path} lies on this process alone, which others can't see. Place it with a sharding over all of "
                f"them"
            )


def _is_dtype_of_engine(name: str) -> bool:
    import tensorstore  # on which Orbax stands

    try:
        tensorstore.dtype(name)
    except ValueError:
        return False
    return True


def _items_of(tree: object) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two items of a step: the arrays as nested dicts, and the manifest.

    Raises:
        CheckpointError: If something in the tree can't be saved.
    """
    manifest = manifest_of(tree, _problems)
    if not manifest.leaves:
        raise CheckpointError("The tree can't be saved: it has no leaves, and Orbax saves no empty tree.")
    arrays = [stored(leaf.value) for leaf in manifest.leaves]
    manifest = with_digests(manifest, gathered(digests_of(arrays)))
    return _nested(manifest.leaves, arrays), manifest.to_json()


def _nested(leaves: Iterable[Leaf], values: Iterable[Any]) -> dict[str, Any]:
    """The values as nested dicts by the steps of their leaves."""
    root: dict[str, Any] = {}
    for leaf, value in zip(leaves, values, strict=True):
        *above, last = leaf.steps or ("value",)
        inside = root
        for step in above:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return root


# Reading


@contextlib.contextmanager
def _reading(what: str) -> Generator[None]:
    """Whatever Orbax raises while it reads means damage: it has no error of its own for it."""
    try:
        yield
    except Exception as error:
        raise CheckpointDamagedError(f"{what} can't be read: {error}") from error


def _saved_manifest(folder: Path) -> Manifest:
    """The manifest of a step.

    Raises:
        CheckpointDamagedError: If it can't be read.
        CheckpointError: If a newer Treewright wrote it.
    """
    orbax = engine()
    with _reading(f"The manifest of step {folder.name}"):
        document: Any = orbax.Checkpointer(orbax.JsonCheckpointHandler()).restore(folder / _MANIFEST)
    return from_json(document)


def _reader_of(folder: Path) -> Reader:
    """A reader of the arrays of a step."""
    orbax = engine()

    def read(wanted: Iterable[tuple[Leaf, Leaf | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
        pairs = list(wanted)
        if not pairs:
            return
        leaves = [leaf for leaf, _ in pairs]
        shardings = [None if target is None else sharding_of(target) for _, target in pairs]
        args = orbax.args.PyTreeRestore(
            item=_nested(leaves, map(_abstract, leaves, shardings)),
            restore_args=_nested(leaves, (_restore_args(orbax, *each) for each in zip(leaves, shardings, strict=True))),
            partial_restore=True,
        )
        with _reading(f"Step {folder.name}"):
            nested = orbax.Checkpointer(orbax.PyTreeCheckpointHandler()).restore(folder / _STATE, args=args)
            arrays = [_at(nested, leaf.steps) for leaf in leaves]
        for array, leaf in zip(arrays, leaves, strict=True):
            _check_form(array, leaf)
        verify(arrays, leaves)
        yield leaves, arrays

    return read


def _at(nested: Any, steps: Steps) -> Any:
    for step in steps or ("value",):
        nested = nested[step]
    return nested


def _abstract(leaf: Leaf, sharding: Any) -> Any:
    struct: Any = jax.ShapeDtypeStruct
    return struct(leaf.form.shape, DTYPES[leaf.form.dtype], sharding=sharding)


def _restore_args(orbax: Any, leaf: Leaf, sharding: Any) -> Any:
    """How an array is read: with a sharding, or as a numpy array."""
    if sharding is None:
        return orbax.RestoreArgs(restore_type=np.ndarray)
    return orbax.ArrayRestoreArgs(
        restore_type=jax.Array, sharding=sharding, global_shape=leaf.form.shape, dtype=DTYPES[leaf.form.dtype]
    )


def _check_form(array: Any, leaf: Leaf) -> None:
    if not hasattr(array, "nbytes"):  # Orbax gives what it was asked with for what it does not find
        raise CheckpointDamagedError(f"{leaf.path} is damaged: the step has no array for it.")
    if array.shape != leaf.form.shape or array.dtype != DTYPES[leaf.form.dtype]:
        raise CheckpointDamagedError(
            f"{leaf.path} is damaged: it is a {array.dtype}{array.shape}, and a {leaf.form} was saved."
        )


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
    has returned; if it fails there, the next call of any method raises. One manager at a time saves into a folder;
    any number may read.

    Args:
        directory: The folder, on a local or mounted disk. It is made by the first `save`.
        keep: How many steps are kept, the newest; None keeps all.
        asynchronous: Whether `save` returns when the arrays are copied and digested, and writes in the background.

    Raises:
        ImportError: If orbax-checkpoint is not installed.
        ValueError: If `keep` is less than 1.

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

    def __init__(self, directory: str | os.PathLike[str], *, keep: int | None = 3, asynchronous: bool = True) -> None:
        if keep is not None and keep < 1:
            raise ValueError(f"CheckpointManager(keep=...) takes the number of steps to keep, or None, got {keep}.")
        self.directory: Path = Path(directory).absolute()
        self._keep = keep
        self._asynchronous = asynchronous
        self._orbax = engine()
        self._lock: Lock | None = None
        self._saver: Any = None  # Orbax's manager, from the first save on
        self._step: int | None = None  # that was saved last
        self._pending = False  # whether nobody has waited for it
        self._damaged: set[int] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # Saving

    def save(self, step: int, tree: object) -> None:
        """Save a tree as a step, and forget the oldest steps beyond those to keep.

        Arrays may be donated or changed as soon as this returns. A step that `restore_latest_valid` found damaged is
        replaced; any other that exists is refused.

        Args:
            step: The number of the step, which orders them.
            tree: Any pytree of arrays and numbers.

        Raises:
            CheckpointError: If something in the tree can't be saved, the step exists, another process saves into the
                folder, or the save before this one failed.
        """
        self._refuse_existing(step)
        state, manifest = _items_of(tree)
        self.wait()
        args = self._orbax.args
        items = {_STATE: args.PyTreeSave(state), _MANIFEST: args.JsonSave(manifest)}
        with self._telling(f"Step {step} could not be saved"):
            saver = self._opened_for_saving()
            if step in self._damaged:
                saver.delete(step)
                self._damaged.discard(step)
            self._step = step
            saver.save(step, args=args.Composite(**items), force=True)
            self._pending = True
        if not self._asynchronous:
            self.wait()

    def wait(self) -> None:
        """Return when all that was saved is on disk.

        Raises:
            CheckpointError: If it could not be written.
        """
        if self._pending:
            self._pending = False
            with self._telling(f"Step {self._step} could not be saved"):
                self._saver.wait_until_finished()
                if is_first_process():
                    sync(self.directory)

    def close(self) -> None:
        """Wait, and let go of the folder.

        Raises:
            CheckpointError: If a step could not be written.
        """
        try:
            self.wait()
        finally:
            saver, self._saver = self._saver, None
            lock, self._lock = self._lock, None
            if saver is not None:
                saver.close()
            if lock is not None:
                lock.close()

    def _opened_for_saving(self) -> Any:
        """Orbax's manager. Made by the first save, since it clears away what killed processes left in the folder."""
        if self._saver is not None:
            return self._saver
        if self._lock is None and is_first_process():
            self.directory.mkdir(parents=True, exist_ok=True)
            self._lock = try_lock(self.directory)
            if self._lock is None:
                raise CheckpointError(
                    f"{self.directory}: another CheckpointManager saves into this folder. Close it, or take another."
                )
        orbax = self._orbax
        self._saver = orbax.CheckpointManager(
            self.directory,
            options=orbax.CheckpointManagerOptions(
                max_to_keep=self._keep,
                cleanup_tmp_directories=True,
                async_options=orbax.AsyncOptions(post_finalization_callback=self._sync_step),
            ),
            item_handlers={
                _STATE: orbax.PyTreeCheckpointHandler(use_compression=False),
                _MANIFEST: orbax.JsonCheckpointHandler(),
            },
        )
        return self._saver

    def _sync_step(self) -> None:
        """Bring the small files of a step to the disk before it gets its name: Orbax does that for its arrays only."""
        if is_first_process():
            for path in self.directory.glob(f"{self._step}.*"):
                for inside in (path, *path.rglob("*")):
                    sync(inside)

    def _refuse_existing(self, step: int) -> None:
        if type(step) is not int or step < 0:
            raise CheckpointError(f"A step is a whole number from 0, got {step!r}.")
        if step in self.all_steps() and step not in self._damaged:
            raise CheckpointError(
                f"{self.directory} has a step {step} already. Save into another folder, or delete it."
            )

    def _raise_failure(self) -> None:
        """Raise if a save failed in the background; return at once while one is going on."""
        if self._pending and not self._saver.is_saving_in_progress():
            self.wait()

    @contextlib.contextmanager
    def _telling(self, what: str) -> Generator[None]:
        try:
            yield
        except CheckpointError:
            raise
        except Exception as error:
            if self._saver is not None:
                self._saver.reload()  # it counts the step as saved
            raise CheckpointError(f"{what} in {self.directory}; earlier steps are as they were: {error}") from error

    # Restoring

    def all_steps(self) -> tuple[int, ...]:
        """The steps that are wholly on disk, in order.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        self._raise_failure()
        if not self.directory.is_dir():
            return ()
        return tuple(sorted(self._orbax.utils.checkpoint_steps(self.directory)))

    def latest_step(self) -> int | None:
        """The newest step that is wholly on disk; None if there is none.

        Raises:
            CheckpointError: If a save failed in the background since the last call.
        """
        return max(self.all_steps(), default=None)

    def manifest(self, step: int | None = None) -> Manifest:
        """The manifest of a step, by default the latest. No array is read. A save under way is waited for.

        Raises:
            CheckpointError: If there is no such step.
            CheckpointDamagedError: If the manifest can't be read.
        """
        return _saved_manifest(self._folder(step))

    def restore(
        self,
        step: int | None = None,
        *,
        like: T,
        on_static: OnStatic = "error",
        allow_cast: bool = False,
        strict: bool = True,
        renamed: Mapping[str, str] | None = None,
        migrate: Migrate | None = None,
    ) -> T:
        """The tree of a step, by default the latest, with the structure, statics and shardings of `like`.

        A save under way is waited for. Every leaf is compared with its digest. The options are those of
        `treewright.checkpoint.load`.

        Raises:
            CheckpointError: If there is no such step, or the save under way failed.
            CheckpointMismatchError: If the step does not fit `like`.
            CheckpointDamagedError: If it is not what was saved.
        """
        options = LoadOptions(on_static, allow_cast, strict, renamed, migrate)
        folder = self._folder(step)
        return restored(_saved_manifest(folder), _reader_of(folder), like, options)

    def restore_latest_valid(
        self,
        *,
        like: T,
        on_static: OnStatic = "error",
        allow_cast: bool = False,
        strict: bool = True,
        renamed: Mapping[str, str] | None = None,
        migrate: Migrate | None = None,
    ) -> Restored[T] | None:
        """The newest step that is whole, or None if the folder has no steps: what a run that resumes asks for.

        A save under way is waited for. A warning names the damaged steps that were skipped. They stay where they are
        until they are saved again.

        Raises:
            CheckpointError: If the save under way failed.
            CheckpointMismatchError: If a whole step does not fit `like`. It is not damaged, so it is not skipped.
            CheckpointDamagedError: If there are steps, and all are damaged.
        """
        options = LoadOptions(on_static, allow_cast, strict, renamed, migrate)
        skipped: dict[int, str] = {}
        self.wait()
        for step in reversed(self.all_steps()):
            folder = self.directory / str(step)
            try:
                tree = restored(_saved_manifest(folder), _reader_of(folder), like, options)
            except CheckpointDamagedError as error:
                skipped[step] = str(error)
                continue
            self._damaged.update(skipped)
            if skipped:
                text = "\n".join([f"Restored step {step} and skipped damaged ones:", *_listed(skipped)])
                warnings.warn(text, CheckpointWarning, stacklevel=2)
            return Restored(step, tree, skipped)
        if skipped:
            raise CheckpointDamagedError("\n".join([f"All steps in {self.directory} are damaged:", *_listed(skipped)]))
        return None

    def _folder(self, step: int | None) -> Path:
        """The folder of a step, by default the latest, with that which is still being saved."""
        self.wait()
        steps = self.all_steps()
        if step is None and steps:
            step = steps[-1]
        if step is None or step not in steps:
            has = f"the steps {', '.join(map(str, steps))}" if steps else "no steps"
            raise CheckpointError(f"{self.directory} has {has}" + ("." if step is None else f", and no step {step}."))
        return self.directory / str(step)


def _listed(skipped: Mapping[int, str]) -> list[str]:
    return [f"  {step}: {reason}" for step, reason in skipped.items()]
