"""`traced`: a function that remembers its traces; and all that are traced in this process."""

import dataclasses
import functools
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, overload

import jax

from treewright._core.functions import class_of
from treewright._core.keys import tracer_in
from treewright._core.text import first_text
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.call import caller, signature_of
from treewright.retrace.history import Entry, Histories, History, definition_of, name_of
from treewright.retrace.jax_private import Call, Sight, called_by_a_library, look, tells_of_compilations
from treewright.retrace.report import RetraceReport, report_of, tell, to_log_and_stderr, too_many

_NOTHING_KNOWN = (
    f"JAX {jax.__version__} calls what it traces in a way that Treewright does not know, so traced() and max_traces() "
    f"below jit see no traces. explain_retraces() may see them; else update Treewright."
)


class Listener(Protocol):
    """Someone who wants to know of every trace of a decorated function."""

    trace_begins: Callable[[Any, RetraceReport], object]  # before it runs; what this raises reaches the caller
    trace_ended: Callable[[RetraceReport], object]
    takes_reports: bool  # whether it shows reports to the user, who then needs no other


class Process:
    """What all traced functions of a process share: their histories, who listens, and what JAX shows."""

    def __init__(self) -> None:
        self.histories: Histories = Histories()
        self.listeners: tuple[Listener, ...] = ()
        self._lock = threading.Lock()

    @functools.cached_property
    def sight(self) -> Sight:
        """What this version of JAX shows of a trace."""
        return look()

    @functools.cached_property
    def knows_tracers(self) -> bool:
        """Whether a function can tell that `jit` traces it. If not, that is said once."""
        known = self.sight.tracer_class is not None
        if not known:
            warnings.warn(_NOTHING_KNOWN, RetraceWarning, stacklevel=4)
        return known

    @functools.cached_property
    def hears_compilations(self) -> bool:
        """Whether this version of JAX tells of compilations."""
        return tells_of_compilations()

    def add(self, listener: Listener) -> None:
        """Let `listener` hear of traces."""
        with self._lock:
            self.listeners = (*self.listeners, listener)

    def remove(self, listener: Listener) -> None:
        """Let `listener` hear no more."""
        with self._lock:
            self.listeners = tuple(other for other in self.listeners if other is not listener)


PROCESS = Process()


P = ParamSpec("P")
R = TypeVar("R")
MARK = "__treewright_traced__"


# fmt: off
@overload
def traced(function: Callable[P, R], /, *, max_traces: int | None = ...,
           on_report: Callable[[RetraceReport], object] | None = ...) -> Callable[P, R]: ...
@overload
def traced(*, max_traces: int | None = ..., on_report: Callable[[RetraceReport], object] | None = ...
           ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
# fmt: on
def traced(
    function: Callable[..., Any] | None = None,
    /,
    *,
    max_traces: int | None = None,
    on_report: Callable[[RetraceReport], object] | None = None,
) -> Any:
    """The function, which now says why `jit` traces it again. It stands directly under `jit`.

    A call that `jit` has a program for runs no Python, so it costs nothing. Calls outside of `jit`, and those under
    `vmap` or `grad` alone, are no traces. The first trace is not reported.

    Args:
        function: What `jit` is to trace: a function or a method.
        max_traces: How many traces are allowed; one more raises before anything is compiled. One in which the function
            raises does not count.
        on_report: Called with each `RetraceReport`. Without it, reports go to whoever listens with
            `explain_retraces`, and if nobody does, to the logger `treewright.retrace` and to standard error.

    Raises:
        TooManyTracesError: From the call that needed one trace more than `max_traces`.
        RuntimeError: From the first call, if there is a limit and traces can't be counted in this version of JAX.
        TypeError: If the function is jitted already: `@jax.jit` comes first, `@traced` below it.

    Examples:
        >>> reports = []
        >>> @jax.jit
        ... @traced(on_report=reports.append)
        ... def double(x):
        ...     return 2 * x
        >>> double(jnp.ones(3)), double(jnp.ones(4))
        (Array([2., 2., 2.], dtype=float32), Array([2., 2., 2., 2.], dtype=float32))
        >>> print(*reports[0].differences)
        x (shape): float32[3] -> float32[4]; axis 0: 3 -> 4
    """
    if function is None:
        return functools.partial(_traced, max_traces=max_traces, on_report=on_report)
    return _traced(function, max_traces, on_report)


def _traced(
    function: Any, max_traces: int | None, on_report: Callable[[RetraceReport], object] | None
) -> Callable[..., Any]:
    if not callable(function):
        raise TypeError(f"traced takes a function, got {first_text(function)}.")
    if hasattr(function, "lower") and hasattr(function, "__wrapped__"):
        raise TypeError(
            f"{name_of(function)} is jitted already, so a decorator around it would see every call and no trace. Put "
            f"@traced or @max_traces below @jax.jit."
        )
    history = PROCESS.histories.new(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if not PROCESS.knows_tracers and max_traces is not None:
            raise RuntimeError(f"max_traces={max_traces} can't be held: {_NOTHING_KNOWN}")
        if not _is_trace(args, kwargs):
            return function(*args, **kwargs)
        call = Call(function, args, kwargs, is_static=_has_no_tracer, fixed_numbers=True, live=False)
        return _trace(history, call, max_traces, on_report)

    setattr(wrapper, MARK, True)
    return wrapper


def _is_trace(args: Any, kwargs: Any) -> bool:
    """Whether JAX makes a program of this call; `grad` and `vmap` alone call with tracers of other classes."""
    tracer = tracer_in((args, kwargs))
    return called_by_a_library() and (tracer is None or class_of(tracer) is PROCESS.sight.tracer_class)


def _has_no_tracer(_name: str, _place: int, value: Any) -> bool:
    return bool(jax.tree.leaves(value)) and tracer_in(value) is None


def _trace(
    history: History, call: Call, max_traces: int | None, on_report: Callable[[RetraceReport], object] | None
) -> Any:
    entry: Entry | None = None
    with history.definition.lock:  # so that of traces at the same time each is compared with those that began before
        number, own = history.begin()
        try:
            signature = signature_of(call, history.newest)
            report = report_of("trace", history.definition, number, history.compare(signature))
            entry = history.record(signature, number)
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__: the program must go on
            report = RetraceReport(history.definition.name, "count", number, caller=caller())
    try:
        if max_traces is not None and own > max_traces:
            raise TooManyTracesError(too_many(max_traces, report))
        for listener in PROCESS.listeners:
            listener.trace_begins(definition_of(call.function), report)
        began = time.perf_counter()
        result = call.function(*call.args, **call.kwargs)
    except BaseException:
        history.failed(entry)
        raise
    report = dataclasses.replace(report, seconds=time.perf_counter() - began)
    if entry is not None:
        history.succeeded(entry)
    if report.is_retrace:
        _deliver(report, on_report)
    return result


def _deliver(report: RetraceReport, on_report: Callable[[RetraceReport], object] | None) -> None:
    listeners = PROCESS.listeners
    for listener in listeners:
        listener.trace_ended(report)
    if on_report is not None:
        tell(on_report, report)
    elif not any(listener.takes_reports for listener in listeners):
        to_log_and_stderr(report)
