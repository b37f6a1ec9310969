"""What all threads of the process share: the histories of decorated functions, and who listens at the moment."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol

import jax

from treewright._nodes.classes import class_of
from treewright.retrace.history import Histories
from treewright.retrace.report import RetraceReport


class Listener(Protocol):
    """Someone who wants to know of every trace of a decorated function."""

    @property
    def trace_begins(self) -> Callable[[Any, RetraceReport], object]:
        """Called before the function runs; what this raises reaches the caller of the function."""
        ...

    @property
    def trace_ended(self) -> Callable[[RetraceReport], object]:
        """Called when the function has run."""
        ...


class Process:
    """One for each process."""

    def __init__(self) -> None:
        self.histories: Histories = Histories()
        self.listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    @functools.cached_property
    def tracer_class(self) -> type[Any]:
        """The class of the tracers of which JAX makes programs; `grad` and `vmap` have others."""
        found: list[type[Any]] = []

        def look(x: Any) -> None:
            found.append(class_of(x))

        jax.eval_shape(look, 0.0)  # pyright: ignore[reportUnknownMemberType]  JAX takes a bare Callable
        return found[0]

    def add(self, listener: Listener) -> None:
        """Let `listener` hear of traces."""
        with self._lock:
            self.listeners = (*self.listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Let `listener` hear no more."""
        with self._lock:
            self.listeners = tuple(one for one in self.listeners if one is not listener)


PROCESS = Process()
