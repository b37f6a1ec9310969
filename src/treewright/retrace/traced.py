"""`traced`: a function that remembers its traces; and all that are traced in this process."""

import dataclasses
import functools
import threading
import time
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax

from treewright._values.exact import tracer_in
from treewright._values.reach import class_of
from treewright.errors import TooManyTracesError
from treewright.retrace.call import Call, called_by_a_library, caller, signature_of
from treewright.retrace.history import Entry, Histories, History, definition_of, name_of
from treewright.retrace.report import RetraceReport, to_log_and_stderr, too_many, trace_report


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


P = ParamSpec("P")
R = TypeVar("R")
MARK = "__treewright_traced__"


# fmt: off
@overload
def traced(function: Callable[P, R], /, *, max_traces: int | None = ...,
           report: Callable[[RetraceReport], object] | None = ...) -> Callable[P, R]: ...
@overload
def traced(*, max_traces: int | None = ..., report: Callable[[RetraceReport], object] | None = ...
           ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
# fmt: on
def traced(
    function: Callable[..., Any] | None = None,
    /,
    *,
    max_traces: int | None = None,
    report: Callable[[RetraceReport], object] | None = None,
) -> Any:
    """The function, which now says why `jit` traces it again. It stands directly under `jit`.

    A call that `jit` has a program for runs no Python, so it costs nothing. Calls outside of `jit`, and those under
    `vmap` or `grad` alone, are no traces. The first trace is not reported.

    Args:
        function: What `jit` is to trace: a function or a method.
        max_traces: How many traces are allowed; one more raises before anything is compiled.
        report: Takes each `RetraceReport`. Without it, reports go to whoever listens with `explain_retraces`, and if
            nobody does, to the logger `treewright.retrace` and to standard error.

    Raises:
        TooManyTracesError: From the call that needed one trace more than `max_traces`.
        TypeError: If the function is jitted already: `@jax.jit` comes first, `@traced` below it.

    Examples:
        >>> reports = []
        >>> @jax.jit
        ... @traced(report=reports.append)
        ... def double(x):
        ...     return 2 * x
        >>> double(jnp.ones(3)), double(jnp.ones(4))
        (Array([2., 2., 2.], dtype=float32), Array([2., 2., 2., 2.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """
    if function is None:
        return functools.partial(_traced, limit=max_traces, sink=report)
    return _traced(function, max_traces, report)


def _traced(function: Any, limit: int | None, sink: Callable[[RetraceReport], object] | None) -> Any:
    if hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        raise TypeError(
            f"{name_of(function)} is jitted already, so a decorator around it would see every call and no trace. Put "
            f"@traced or @max_traces below @jax.jit."
        )
    history = PROCESS.histories.new(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not _is_trace(args, kwargs):
            return function(*args, **kwargs)
        call = Call(function, args, kwargs, is_static=_has_no_tracer, fixed_numbers=True, live=False)
        return _trace(history, call, limit, sink)

    setattr(wrapper, MARK, True)
    return wrapper


def _is_trace(args: Any, kwargs: Any) -> bool:
    """Whether JAX makes a program of this call; `grad` and `vmap` alone call with tracers of other classes."""
    tracer = tracer_in((args, kwargs))
    return called_by_a_library() and (tracer is None or class_of(tracer) is PROCESS.tracer_class)


def _has_no_tracer(_name: str, _place: int, value: Any) -> bool:
    return bool(jax.tree.leaves(value)) and tracer_in(value) is None


def _trace(history: History, call: Call, limit: int | None, sink: Callable[[RetraceReport], object] | None) -> Any:
    entry: Entry | None = None
    with history.definition.lock:  # so that of traces at the same time each is compared with those that began before
        number, own = history.begin()
        try:
            signature = signature_of(call, history.newest)
            found = trace_report(history, number, history.compare(signature), caller())
            entry = history.record(signature, number)
        except Exception:  # noqa: BLE001  an __eq__ or __hash__ of anybody's: the program must go on
            found = RetraceReport(history.definition.name, "count", number, caller=caller())
    try:
        if limit is not None and own > limit:
            raise TooManyTracesError(too_many(limit, found))
        for listener in PROCESS.listeners:
            listener.trace_begins(definition_of(call.function), found)
        began = time.perf_counter()
        result = call.function(*call.args, **call.kwargs)
    except BaseException:
        history.forget(entry)
        raise
    found = dataclasses.replace(found, seconds=time.perf_counter() - began)
    if entry is not None:
        history.succeeded()
    if found.is_retrace:
        _deliver(found, sink)
    return result


def _deliver(report: RetraceReport, sink: Callable[[RetraceReport], object] | None) -> None:
    listeners = PROCESS.listeners
    for listener in listeners:
        listener.trace_ended(report)
    if sink is not None:
        sink(report)
    elif not listeners:
        to_log_and_stderr(report)
