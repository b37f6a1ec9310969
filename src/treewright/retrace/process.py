"""What all threads of the process share: the histories of decorated functions, and who listens at the moment."""

import threading
from typing import Any, Protocol

from treewright.retrace.history import Histories
from treewright.retrace.report import Report


class Listener(Protocol):
    """Someone who wants to know of every trace of a decorated function."""

    def trace_begins(self, definition: Any, report: Report) -> None:
        """Called before the function runs; what this raises reaches the caller of the function."""
        ...

    def trace_ended(self, report: Report) -> None:
        """Called when the function has run."""
        ...


class Process:
    """One for each process."""

    def __init__(self) -> None:
        self.histories = Histories()
        self.listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    def add(self, listener: Listener) -> None:
        """Let `listener` hear of traces."""
        with self._lock:
            self.listeners = (*self.listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Let `listener` hear no more."""
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one is not listener)


PROCESS = Process()
