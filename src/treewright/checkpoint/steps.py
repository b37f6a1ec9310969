"""One step on disk, written and read with Orbax: what it can't hold, its two items, its arrays verified."""

import contextlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from treewright.checkpoint.digest import digests_of, gathered, in_threads, process_count, verify
from treewright.checkpoint.leaves import DTYPES, ON_DEVICE, data_sharding_of, stored
from treewright.checkpoint.manifest import Leaf, Manifest, Steps, from_json
from treewright.checkpoint.restore import Reader
from treewright.checkpoint.survey import Place, Survey
from treewright.errors import CheckpointDamagedError

STATE, MANIFEST = "state", "manifest"


def engine() -> Any:
    """The Orbax package.

    Raises:
        ImportError: If it is not installed.
    """
    try:
        import orbax.checkpoint
    except ImportError as error:
        raise ImportError(
            "CheckpointManager needs orbax-checkpoint. Install it with: pip install 'treewright[checkpoint]'"
        ) from error
    return orbax.checkpoint


# Writing


def problems(found: Survey) -> Iterator[str]:
    """What a step can't hold."""
    if not found.leaves and not found.problems:
        yield "it has no leaves, and Orbax saves no empty tree"
    for place in found.leaves:
        if 0 in place.form.shape:
            yield f"{place.path} has the shape {place.form.shape}, and Orbax saves no array without elements"
        if not _is_dtype_of_engine(place.form.dtype):
            yield f"{place.path} has the dtype {place.form.dtype}, which Orbax does not save"
        if process_count() > 1 and isinstance(place.value, jax.Array) and place.value.is_fully_addressable:
            yield (
                f"{place.path} lies on this process alone, which others can't see. Place it with a sharding over all "
                f"of them"
            )


def _is_dtype_of_engine(name: str) -> bool:
    import tensorstore  # on which Orbax stands

    try:
        tensorstore.dtype(name)
    except ValueError:
        return False
    return True


def items_of(found: Survey) -> tuple[dict[str, Any], dict[str, Any]]:
    """The two items of a step: the arrays as nested dicts, and the manifest."""
    arrays = [stored(place.value) for place in found.leaves]
    digests = gathered(in_threads(digests_of, arrays))
    leaves = tuple(
        Leaf(place.steps, place.path, place.form, digest) for place, digest in zip(found.leaves, digests, strict=True)
    )
    state = _nested((leaf.steps, array) for leaf, array in zip(leaves, arrays, strict=True))
    return state, Manifest(tuple(found.branches), leaves).to_json()


def _nested(values: Iterable[tuple[Steps, Any]]) -> dict[str, Any]:
    """Nested dicts by the steps to each value."""
    root: dict[str, Any] = {}
    for steps, value in values:
        *above, last = steps or ("value",)
        inside = root
        for step in above:
            inside = inside.setdefault(step, {})
        inside[last] = value
    return root


# Reading


@contextlib.contextmanager
def _reading(what: str) -> Generator[None]:
    """Whatever an engine raises on bytes that nobody wrote means damage."""
    try:
        yield
    except Exception as error:
        raise CheckpointDamagedError(f"{what} can't be read: {error}") from error


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a step.

    Raises:
        CheckpointDamagedError: If it can't be read.
        CheckpointError: If a newer Treewright wrote it.
    """
    orbax = engine()
    with _reading(f"The manifest of step {folder.name}"):
        document: Any = orbax.Checkpointer(orbax.JsonCheckpointHandler()).restore(folder / MANIFEST)
    return from_json(document)


def reader_of(folder: Path) -> Reader:
    """A reader of the arrays of a step."""
    orbax = engine()

    def read(wanted: Iterable[tuple[Leaf, Place | None]]) -> Iterator[tuple[list[Leaf], list[Any]]]:
        pairs = list(wanted)
        if not pairs:
            return
        leaves = [leaf for leaf, _ in pairs]
        item = _nested((leaf.steps, _target(leaf, place)) for leaf, place in pairs)
        restore_args = _nested((leaf.steps, _restore_args(orbax, leaf, place)) for leaf, place in pairs)
        args = orbax.args.PyTreeRestore(item=item, restore_args=restore_args, partial_restore=True)
        with _reading(f"Step {folder.name}"):
            nested = orbax.Checkpointer(orbax.PyTreeCheckpointHandler()).restore(folder / STATE, args=args)
            arrays = [_at(nested, leaf.steps) for leaf in leaves]
        for array, leaf in zip(arrays, leaves, strict=True):
            _check_form(array, leaf)
        in_threads(verify, arrays, [leaf.digests for leaf in leaves], [leaf.path for leaf in leaves])
        yield leaves, arrays

    return read


def _at(nested: Any, steps: Steps) -> Any:
    for step in steps or ("value",):
        nested = nested[step]
    return nested


def _placement(place: Place | None) -> Any:
    """The sharding with which an array is read; None to read it as a numpy array."""
    if place is None or place.form.kind not in ON_DEVICE:
        return None
    return data_sharding_of(place.value, place.form)


def _target(leaf: Leaf, place: Place | None) -> Any:
    abstract: Any = jax.ShapeDtypeStruct
    return abstract(leaf.form.shape, DTYPES[leaf.form.dtype], sharding=_placement(place))


def _restore_args(orbax: Any, leaf: Leaf, place: Place | None) -> Any:
    sharding = _placement(place)
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
