"""Treewright's exceptions and warnings. Each docstring gives the cause and the fix."""

import inspect
import warnings
from typing import Any

__all__ = [
    "CheckpointDamagedError",
    "CheckpointError",
    "CheckpointMismatchError",
    "CheckpointWarning",
    "ChildWarning",
    "DonatedStateError",
    "FieldOnClassError",
    "LoopStateError",
    "MissingPlaceError",
    "NodeDefinitionError",
    "NodeDefinitionWarning",
    "NodeInitError",
    "ProcessMismatchError",
    "RetraceWarning",
    "ShardingError",
    "ShardingWarning",
    "StaticFieldError",
    "StaticSerializationError",
    "StaticWarning",
    "TooManyTracesError",
    "TracedComparisonError",
    "UnfinishedNodeError",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def missing_extra(feature: str, package: str, extra: str) -> ImportError:
    """The error for a feature whose package is not installed, with the command that installs it."""
    return ImportError(
        f"{feature} needs {package}. Install it with: pip install {package}\n"
        f"In a checkout of Treewright, this installs everything for it: pip install '.[{extra}]'"
    )


def warn_user(message: str, category: type[Warning]) -> None:
    """Warn at the line of the user's code that called Treewright."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and (
        str(frame.f_globals.get("__name__")).partition(".")[0] == "treewright"
        or frame.f_code.co_filename.startswith("<treewright")  # A generated `__init__` has the user's globals.
    ):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


class NodeDefinitionError(TypeError):
    """A class can't become a node as it is written. Nothing has been registered.

    The message names the class, the field or option, and the line to write instead.
    """


class NodeDefinitionWarning(UserWarning):
    """A part of a class has no effect: a `__post_init__` that never runs, or an annotation that declares no field.

    The message names it, and the line to write instead.
    """


class StaticFieldError(TypeError):
    """A static field received a value that `jit` can't compare safely.

    `jit` compares statics and never copies them. A list that changes in place would give stale results, and an
    array has no single truth value. There are three fixes: make the field a child, pass a hashable value (directly or
    with `static(converter=treewright.freeze)`), or wrap the value in a class with `__hash__` and `__eq__`.
    """


class ChildWarning(UserWarning):
    """A child received a value that is probably no child: a string, a function, a `map`, or a number to train.

    `jit`, `grad` and `vmap` do not accept the first three; in a tree that is never passed to them, they are fine. A
    Python float among the parameters of a `TrainState` is trained, also an `eps`. Declare the field `static()` or
    `buffer()`, or turn a `map` into a tuple. Fields declared with `field()` are not checked.
    """


class StaticWarning(UserWarning):
    """A static field received an object whose attributes can be assigned.

    `jit` compares it by identity and ignores later assignments. If it contains settings, make its class
    `@dataclass(frozen=True)`. If it is meant to change, declare the field `static(identity=True)`. Each class of values
    is reported once for each class of nodes.
    """


class NodeInitError(TypeError, AttributeError):
    """An `__init__` returned before every field had a value, or assigned to names that are not fields.

    In Python, a call with missing arguments raises `TypeError`, and assigning a missing attribute `AttributeError`;
    this is both.
    """


class UnfinishedNodeError(AttributeError):
    """A node was used before its `__init__` returned, or after it raised.

    Until then some fields may have no value, so the node can't be flattened.
    """


class FieldOnClassError(TypeError, ValueError):
    """A field was read on the class and used as a value, but only instances have a value.

    For a class constant, declare a `ClassVar`. For a default, read `dataclasses.fields`. This is also a `ValueError`
    because IPython's autoreload compares attributes of classes and ignores that error.
    """


class TracedComparisonError(TypeError):
    """Two nodes were compared with `==` while a child of one of them is traced.

    `==` returns a plain `bool`, but under `jit`, `grad` or `vmap` the child has no value to compare.
    """


class TooManyTracesError(RuntimeError):
    """`jit` was about to trace a function more often than `max_traces` allows. Nothing has been compiled.

    The message is the report: the argument, the path, the old and the new value, the reason and the fix.
    """


class LoopStateError(TypeError):
    """A `loop` can't carry a state. Nothing has been computed, and the previous state is unchanged.

    Either the step returns a state with a different structure, shape or dtype than it received, so every call would
    recompile; the message lists the differences by path. Or the state contains a value that is not an array.
    """


class DonatedStateError(RuntimeError):
    """The state of a `loop` was read after its arrays had been donated.

    A call that fails while computing loses the donated state. Assign a state to continue from, such as the last
    checkpoint. With `loop(..., donate=False)` the last complete state is kept.
    """


class MissingPlaceError(AttributeError, LookupError):
    """A path leads to a place that the tree does not have, or a search finds none.

    The message shows how far the path leads and what the tree contains there. Nothing has been changed. The error of a
    function of the tree, `lambda net: net.kernal`, stays as it is, with this message as a note.
    """

    def __init__(self, message: str) -> None:
        super().__init__(message, name=None, obj=None)  # Otherwise Python adds a second suggestion to the message.


class StaticSerializationError(ValueError):
    """A static value can't be written to, or read from, an exported program (`jax.export`)."""


class ShardingError(ValueError):
    """Leaves of a tree can't be split over a mesh as the names of their fields and the rules specify.

    The message lists all of them by path. A rule is missing, the number of names differs from the number of axes, two
    axes use the same mesh axis, or a length is not divisible by the number of devices.
    """


class ShardingWarning(UserWarning):
    """A sharding has no effect, or less than it seems to have. Results are correct.

    A rule is not used by any field, a constraint has no mesh, or every device computes a whole array.
    """


class ProcessMismatchError(RuntimeError):
    """The processes of one run have different trees or programs, or some did not report theirs.

    Every process raises it, before any has computed or written.

    Without this error, a collective would hang, or processes would silently train with different settings.
    """


def _bounded(message: str) -> str:
    """A message about a checkpoint, whose names may have a megabyte each; a long one without its middle."""
    return message if len(message) <= 20_000 else f"{message[:15_000]}...{message[-4_000:]}"


class CheckpointError(Exception):
    """A checkpoint can't be saved or loaded. Nothing has been changed on disk, and nothing is partly loaded.

    The message lists all problems, each with its path in the tree. Subclasses distinguish a damaged checkpoint from an
    intact one that does not match.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_bounded(message))


class CheckpointDamagedError(CheckpointError):
    """A checkpoint can't be read, or its bytes differ from the saved bytes.

    A disk, a copy or a crash changed it after it was written. Load an earlier one;
    `CheckpointManager.restore_latest_valid` finds it.
    """


class CheckpointMismatchError(CheckpointError):
    """An intact checkpoint does not match the tree that it was loaded into.

    `differences` lists each difference by path, with the saved and the expected value. If the change is intended, use
    the options `renamed`, `migrate`, `allow_cast`, `on_static` and `strict` of `load`.
    """

    def __init__(self, message: str, differences: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.differences = differences


class CheckpointWarning(UserWarning):
    """A checkpoint was loaded or saved, but with a problem.

    A static differs, or could be compared only by its description; damaged steps were skipped; an old step can't be
    deleted; or a program ended before its step was saved.
    """

    def __init__(self, message: str) -> None:
        super().__init__(_bounded(message))


class RetraceWarning(UserWarning):
    """Retrace reports are incomplete: something could not be observed or counted.

    The usual cause is a JAX version that hides it, because Treewright reads retraces from private parts of JAX. The
    message shows what is missing and where.
    """
