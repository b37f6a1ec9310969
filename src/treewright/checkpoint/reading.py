"""Steps that users name and read: their numbers, results, and what is read from their folders."""

import contextlib
import operator
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, SupportsIndex, TypeVar

from treewright._base.text import short_text
from treewright._processes import process_index
from treewright._reports import first_lines
from treewright.checkpoint.folder import identity_of
from treewright.errors import CheckpointError, ProcessMismatchError

T = TypeVar("T")


class Restored(NamedTuple, Generic[T]):
    """The result of `CheckpointManager.restore_latest_valid`: the tree and its step.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager:
        ...     manager.save(10, {"w": 1.5})
        ...     tree, step = manager.restore_latest_valid(like={"w": 0.0})
        >>> tree, step
        ({'w': 1.5}, 10)
    """

    tree: T
    step: int


class StepGoneError(CheckpointError):
    """A step was deleted, or saved again, while it was read."""


def read_step(folder: Any, name: str, read: Callable[[Any], Any], run_on_all: Callable[..., Any]) -> Any:
    """Read something from the folder of a step, in all processes; `name` is that of the work in messages.

    Raises:
        StepGoneError: In all processes, if it was deleted or saved again meanwhile: it is not damaged.
        CheckpointError: If it exists in process 0, but not in all.
    """
    before: Any = None

    def read_here() -> Any:
        nonlocal before
        before = identity_of(folder)
        if before is None:
            raise CheckpointError(
                f"{folder} does not exist in process {process_index()}. Pass the same shared folder in all processes."
            )
        return read(folder)

    try:
        return run_on_all(name, read_here)
    except ProcessMismatchError:
        raise
    except Exception as error:
        then, now = run_on_all(f"{name} again", lambda: [before, identity_of(folder)], on_first=True)
        if now is not None and then in (None, now):  # None: it could not be looked at
            raise
        verb = "deleted" if now is None else "replaced"
        raise StepGoneError(f"Step {folder.name} in {folder.parent} was {verb} while it was read.") from error


def step_number(step: Any, fix_of_tree: str = "") -> int:
    """The number of a step that a user passes.

    Raises:
        CheckpointError: If it is not a non-negative integer.
    """
    number = -1
    with contextlib.suppress(TypeError):
        number = -1 if isinstance(step, bool) else operator.index(step)
    if number < 0:
        fix = fix_of_tree if not isinstance(step, SupportsIndex | float | str) else ""
        if step is None:
            fix = "best_step() and latest_step() return None if there is none. For the latest step, pass no step."
        raise CheckpointError(f"A step must be a non-negative integer, got {short_text(step)}. {fix}".rstrip())
    return number


def steps_text(steps: Sequence[int]) -> str:
    """`step 1`, or `steps 1, 2`: the first of these."""
    return f"step{'s' * (len(steps) > 1)} {', '.join(first_lines(list(map(str, steps))))}"
