"""The write of a step, in a thread that whoever waits for it can start."""

import concurrent.futures
import threading
from collections.abc import Callable


class Task:
    """The write of a step, which is done once, in a thread of its own.

    `wait` starts the thread if none has begun: an exception may come between the lines that create a task and start it,
    from a signal handler or by Ctrl-C. It may also interrupt `wait`, as often as it likes, and never the work.
    """

    def __init__(self, step: int, work: Callable[[], None]) -> None:
        self.step = step
        self._work: Callable[[], None] | None = work
        self._begun = threading.Lock()
        self._future = concurrent.futures.Future[None]()

    def start(self) -> None:
        """Start a thread, unless one has begun."""
        if not self._begun.locked():
            threading.Thread(target=self._run, name="treewright-save").start()

    def wait(self) -> None:
        """Wait for the end of the work, and raise its error."""
        self.start()
        self._future.result()

    @property
    def has_succeeded(self) -> bool:
        """Whether the work is done, without an error."""
        return self._future.done() and self._future.exception() is None

    def _run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        work, self._work = self._work, None  # it has the arrays
        try:
            if work is not None:
                work()
        except BaseException as error:  # noqa: BLE001  `wait` raises it
            self._future.set_exception(error)
        else:
            self._future.set_result(None)
