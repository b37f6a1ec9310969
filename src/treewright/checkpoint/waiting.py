"""Saves that take turns, and a wait for a save of which Ctrl-C interrupts only the wait."""

import concurrent.futures
import sys
import threading
from collections.abc import Callable

from treewright.errors import CheckpointError

# Before Python 3.13, Ctrl-C during `Thread.join` marks the thread as finished while it runs (python/cpython#90882).
_JOIN_IS_SAFE = sys.version_info >= (3, 13)
# Python 3.12.0 to 3.12.2 start no threads at exit (python/cpython#113964), and Orbax needs them to finish a save.
EXIT_STARTS_THREADS = sys.version_info < (3, 12) or sys.version_info >= (3, 12, 3)


class Turns:
    """Saves of several threads take turns. One inside another, as in a signal handler, would wait for itself."""

    def __init__(self, lock: "threading.RLock") -> None:
        self._lock = lock
        self.is_taken: bool = False  # read under the lock, so only this thread can have set it

    def __enter__(self) -> None:
        self._lock.acquire()
        if self.is_taken:
            self._lock.release()
            raise CheckpointError(
                "save() was called inside another save() of this manager, for example by a signal handler. Let the "
                "handler set a flag, and save in the training loop."
            )
        self.is_taken = True

    def __exit__(self, *_: object) -> None:
        self.is_taken = False
        self._lock.release()


class Waiter:
    """Waits for a thread through a function that joins it."""

    def __init__(self) -> None:
        # Of a wait that Ctrl-C interrupted: it may get the error of a failed save, which is raised once.
        self._unfinished: concurrent.futures.Future[None] | None = None

    def wait(self, join: Callable[[], None]) -> None:
        """Call `join`, in a different thread if Ctrl-C could interrupt it."""
        if _JOIN_IS_SAFE or not EXIT_STARTS_THREADS or threading.current_thread() is not threading.main_thread():
            join()
            return
        future = self._unfinished
        if future is None:
            future = self._unfinished = concurrent.futures.Future()
            threading.Thread(target=_settle, args=(future, join), daemon=True).start()
        try:
            future.result()
        finally:
            if future.done():
                self._unfinished = None


def _settle(future: "concurrent.futures.Future[None]", work: Callable[[], None]) -> None:
    """Run work for a future."""
    try:
        work()
    except BaseException as error:  # noqa: BLE001  the future raises it
        future.set_exception(error)
    else:
        future.set_result(None)
