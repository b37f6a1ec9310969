"""What Treewright raises. Each docstring tells a user the cause and the cure."""

import inspect
import typing
import warnings

if typing.TYPE_CHECKING:
    from treewright.checkpoint import Mismatch

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointWarning",
    "ChildWarning",
    "DonatedStateError",
    "LoopStateError",
    "MissingPlaceError",
    "NodeDefinitionError",
    "NodeInitError",
    "ProcessMismatchError",
    "RetraceWarning",
    "ShardingError",
    "ShardingWarning",
    "StaticFieldError",
    "StaticSerializationError",
    "TooManyTracesError",
    "TracedComparisonError",
    "UnfinishedNodeError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def missing_extra(what: str, package: str, extra: str) -> ImportError:
    """The error for something that needs a package which is not installed, with the line that installs it."""
    return ImportError(
        f"{what} needs {package}. Install it with: pip install {package}\n"
        f"In a checkout of Treewright, all that goes with it: pip install '.[{extra}]'"
    )


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's that called Treewright, however deep inside of it the cause was found."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] == "treewright"
        or frame.f_code.co_filename.startswith("<treewright")  # a generated `__init__` has the user's globals
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class NodeDefinitionError(TypeError):
    """A class can't be made a node as it is written. Nothing has been registered.

    The message names the class, the field or option, and the line to write instead.
    """


class StaticFieldError(TypeError):
    """A static field was given a value that `jit` could not compare safely.

    `jit` compares statics and never copies them. A list that changes in place would give stale results, and an
    array has no single truth value. Three ways out: make the field a child, give it a hashable form (by hand or by
    `static(converter=treewright.freeze)`), or wrap the value in a class with `__hash__` and `__eq__`.
    """


class ChildWarning(UserWarning):
    """A child was given what `jit`, `grad` and `vmap` do not take, such as a string, a function or a `map`.

    It is fine in a tree that none of them sees. Otherwise it is a setting, and its field is to be `static()`; a `map`
    is to be made a tuple. A field that is declared with `field()` is not asked about.
    """


class NodeInitError(TypeError, AttributeError):
    """An `__init__` returned before every field had a value, or assigned to names that are not fields.

    A call that leaves arguments out is a `TypeError` in Python, and an assignment to what is not there an
    `AttributeError`; this is both.
    """


class UnfinishedNodeError(AttributeError):
    """A node was used before its `__init__` returned, or after it raised.

    Until then there is nothing to flatten: some of the fields may have no value.
    """


class TracedComparisonError(TypeError):
    """Two nodes were compared with `==` while a child of one of them is traced.

    `==` answers with a plain `bool`, and under `jit`, `grad` or `vmap` there is no value to take it from.
    """


class TooManyTracesError(RuntimeError):
    """`jit` was about to trace a function more often than was allowed, by `max_traces`. Nothing has been compiled.

    The message is the report: which argument, which path, what changed from what to what, why, and what to do.
    """


class LoopStateError(TypeError):
    """A state can't be carried by a `loop`. Nothing has been computed, and the state before is still there.

    The step returns a state of another structure, shape or dtype than it was given, so each call would be compiled
    anew; the message lists the differences by path. Or the state holds what is not an array.
    """


class DonatedStateError(RuntimeError):
    """The state of a `loop` was asked for after its arrays had been used up.

    A call that failed after it had begun to compute takes the donated state with it. Assign a state to go on from, such
    as the last checkpoint; with `loop(..., donate=False)` the last complete state stays.
    """


class MissingPlaceError(AttributeError, LookupError):
    """A function or path leads to a place that the tree does not have.

    The message says how far it leads and what is there. Nothing has been changed.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, name=None, obj=None)  # else Python adds a guess of its own to the one in the message


class StaticSerializationError(ValueError):
    """A static value can't be written into, or read from, an exported program (`jax.export`)."""


class ShardingError(ValueError):
    """Leaves of a tree can't be split over a mesh as the names of their fields and the rules say.

    The message lists all of them by path. A rule is missing, the names do not count the axes of the array, two axes
    want one mesh axis, or a length does not divide by the number of devices.
    """


class ShardingWarning(UserWarning):
    """A sharding is not what it seems, though nothing is wrong with the result.

    A rule that no field uses, a constraint that has no mesh to act on, or an array that each device computes whole.
    """


class ProcessMismatchError(RuntimeError):
    """The processes of one run hold or save different trees or programs, or some did not come to say what they hold.

    Every process raises it, before any has computed or written.

    Going on, a collective would wait without end, or each process would silently train with settings of its own.
    """


class CheckpointError(Exception):
    """A checkpoint can't be saved or loaded as asked. Nothing has been changed on disk, and nothing half loaded.

    The message lists all problems at once, each with its path in the tree. Its subclasses tell a damaged checkpoint
    from a whole one that does not fit.
    """


class CheckpointDamagedError(CheckpointError):
    """A checkpoint can't be read, or its bytes are not those that were saved.

    A disk, a copy or a crash changed it after it was written. Load an earlier one;
    `CheckpointManager.restore_latest_valid` finds it.
    """


class CheckpointMismatchError(CheckpointError):
    """A checkpoint is whole and does not fit the tree that it was to be loaded into.

    `differences` holds each by path, with what was saved and what is wanted. Where the change was meant, the options
    `renamed`, `migrate`, `allow_cast`, `on_static` and `strict` of `load` say so.
    """

    def __init__(self, message: str, differences: "tuple[Mismatch, ...]" = ()) -> None:
        super().__init__(message)
        self.differences = differences


class CheckpointWarning(UserWarning):
    """A checkpoint was loaded although something about it should be known.

    A static that differs, or could be compared only by its description; damaged steps that were skipped.
    """


class RetraceWarning(UserWarning):
    """Something about retraces was not seen, was not counted, or could not be told.

    Mostly since this version of JAX hides it: Treewright reads retraces from parts of JAX that are not public. The
    message says what is missing, and from what.
    """
