"""The end of a process: saves that are waited for, and a run that is told to leave, saves and leaves in time."""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from types import FrameType
from typing import Any, Self, cast

from treewright._core.functions import public
from treewright._core.jax_private import process_count
from treewright._processes import preemption_agreed

# The `close` of each manager whose last save nobody has waited for yet. Held here, since
# `CheckpointManager(d).save(1, tree)` leaves no other reference.
UNFINISHED: set[Callable[[], None]] = set()


def _finish() -> None:
    """Wait for all saves. What fails is told as an uncaught error is: nobody is left to catch it."""
    while UNFINISHED:
        close = UNFINISHED.pop()
        try:
            close()
        except Exception as error:  # noqa: BLE001  the others are waited for too
            sys.excepthook(type(error), error, error.__traceback__)


# `atexit` comes too late: by then Python starts no more threads, and Orbax needs some to finish. Private, in Python 3.9
# to 3.15; without it, only a manager that is closed or waited for is sure of its last step.
getattr(threading, "_register_atexit", atexit.register)(_finish)
# From 3.12.0 to 3.12.2 even that is too late (python/cpython#113964): there each save is waited for at once.
CAN_FINISH = not (3, 12) <= sys.version_info < (3, 12, 3)
os.register_at_fork(after_in_child=UNFINISHED.clear)  # the threads that save are the parent's


Metadata = Mapping[str, Any] | None
Items = Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None


@public("treewright.checkpoint")
class Preemption:
    """A block in which a signal makes the run save, and leave within a given time. `manager.preemption` makes it.

    Call it once in each step of the loop. Until the signal has come it does nothing. Then it saves the step, unless
    that was saved already, waits, and ends the program with `SystemExit`, so that `finally` and `with` blocks run. If
    all that takes longer than the time, the process ends at once; the steps that are on disk stay. If the step before
    could not be saved, a warning says so, and this one is saved.

    Python notices a signal between two of its own instructions, so the time begins after a compilation under way.

    In a job of several processes JAX tells all of them which step is the last, whichever got the signal; all have to
    call this in each step. JAX listens to SIGTERM alone.

    Examples:
        >>> import tempfile
        >>> from treewright.checkpoint import CheckpointManager
        >>> with CheckpointManager(tempfile.mkdtemp()) as manager, manager.preemption(within=30) as leave_if_told:
        ...     for step in range(1, 4):
        ...         state = {"w": jnp.full(3, step)}
        ...         leave_if_told(step, state)
    """

    def __init__(
        self,
        check: Callable[[Metadata], None],
        save: Callable[[int, object, Metadata, Items], None],
        within: float,
        signals: Iterable[int],
    ) -> None:
        if not within > 0:
            raise ValueError(f"preemption(within=...) takes the seconds that are left after the signal, got {within}.")
        if not isinstance(cast("object", signals), Iterable):
            raise TypeError(f"preemption(signals=...) takes several signals, got {signals!r}. Write [{signals!s}].")
        self._check, self._save = check, save
        self._within = within
        self._signals = tuple(signals)
        self._replaced: dict[int, Any] = {}
        self._process: int | None = None  # that listens, since the block was entered
        self._told: int | None = None  # the signal

    def __enter__(self) -> Self:
        self._process = os.getpid()
        if process_count() > 1:  # JAX listens, and a handler here would replace its own
            return self
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("preemption() listens to signals, and Python gives these to the main thread alone.")
        for number in self._signals:
            try:
                self._replaced[number] = signal.signal(number, self._hear)
            except (OSError, ValueError) as error:
                self.__exit__()
                raise ValueError(f"preemption(signals=...): nobody can listen to {number!r}: {error}") from error
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._replaced.items():
            signal.signal(number, handler)
        self._process = None

    def _hear(self, number: int, _: FrameType | None = None) -> None:
        """Only note it: in the middle of the loop the old state may be donated, and the new one have no name."""
        if os.getpid() != self._process:  # a fork, such as a worker that loads data: it was told, and not the run
            self.__exit__()
            signal.raise_signal(number)
        elif self._told is None:
            self._told = number
            watch = threading.Timer(self._within, _leave_now, (number, self._within))
            watch.daemon = True
            watch.start()

    def __call__(self, step: int, tree: object, *, metadata: Metadata = None, items: Items = None) -> None:
        """If the run was told to leave, save the step and leave.

        Args:
            step: The number of the step.
            tree: What to save.
            metadata: As for `CheckpointManager.save`.
            items: As for `CheckpointManager.save`, or a function that gives them, called only to save.

        Raises:
            SystemExit: With 128 and the number of the signal, once the step is on disk.
            CheckpointError: If it could not be saved; at once, if `metadata` has no entry for the manager's `metric`.
            RuntimeError: Outside of the block, where no signal would be noticed.
        """
        if self._process is None:
            raise RuntimeError(
                "It hears signals inside of its block alone: with manager.preemption(within=30) as leave_if_told:"
            )
        self._check(metadata)
        if process_count() > 1 and preemption_agreed(step):
            self._hear(signal.SIGTERM)
        if self._told is not None:
            self._save(step, tree, metadata, items)
            raise SystemExit(128 + self._told)


def _leave_now(number: int, within: float) -> None:
    """End the process, whatever it is doing."""
    sys.stderr.write(
        f"treewright: {within:g} seconds after signal {number} the step was not saved yet. The process ends; the steps "
        f"on disk are as they were.\n"
    )
    sys.stderr.flush()
    os._exit(128 + number)
