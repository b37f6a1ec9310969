"""Track jitted functions: compare each trace with the most similar earlier call, and report the differences.

JAX sends each event after its work, in the thread and on the stack of the call:

    step(x), nothing cached    trace "traced", lower, compile: a trace
    step(x), trace cached      trace "shared", lower, compile: the first program of that trace, or a recompile
    step(x), program cached    nothing
    step raises                trace "failed"
    step(x) in outer(x)        nothing for step
    eval_shape(step, x)        trace, for no program; step(x) then sends trace "shared", lower, compile: now it counts
    grad(step), vmap(step)     lower, compile for each program of the transformation, such as the backward pass

So a trace is pending, in its thread, until its compilation, the next trace or the end of the block; then its report is
sent. If JAX does not show whether a trace is new ("unknown"), it is if its signature is.
"""

import collections
import contextlib
import dataclasses
import itertools
import operator
import threading
import warnings
import weakref
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Literal

import jax

from treewright._trees.causes import cause_of, snapshot
from treewright._trees.difference import Difference
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.comparison import call_differences, without_placement
from treewright.retrace.jax_private import OBSERVER, Call, Event, can_observe_compilations, can_read_calls
from treewright.retrace.report import RetraceReport, too_many
from treewright.retrace.signature import Signature, signature_of

_MAX_CALLS = 32  # remembered calls per definition
_JAX = f"JAX {jax.__version__}"
_NO_CALLS = f"Calls of jitted functions can't be read in {_JAX}, so no retrace is observed. Update Treewright."
_CANT_COUNT = (
    f"max_traces can't count in {_JAX}: its traces, or its compilations for recompiles=, can't be read. Update "
    f"Treewright."
)
_NO_COMPILATIONS = (
    f"Compilations can't be read completely in {_JAX}: some recompiles, such as for a different batch size of vmap, "
    f"and traces that occur only under grad or vmap, were not observed. Update Treewright."
)
_ONLY_COMPILED = (
    "under grad or vmap JAX reports only compilations; these arguments are new in this block, but may have been traced "
    "before"
)


@dataclasses.dataclass(slots=True, eq=False)
class PastCall:
    """An earlier call that JAX traced or compiled."""

    reference: weakref.ref[Any]  # the function
    function: Any  # the function's snapshot
    signature: Signature
    number: int  # the number of its trace
    is_compiled: bool = False
    limit_error: str = ""  # the error message if the trace exceeded the limit


class CallHistory:
    """The last calls of all functions from one `def` or `lambda`. `jit` has separate programs for each function."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: collections.Counter[str] = collections.Counter()  # traces, recompiles, compilations
        self.numbers: Iterator[int] = itertools.count(1)  # numbers of traces, inside other traces too
        self.calls: collections.deque[PastCall] = collections.deque(maxlen=_MAX_CALLS)
        # The functions and signatures of traces for no program, as in `eval_shape`, until a call uses them.
        self.unused: collections.deque[tuple[weakref.ref[Any], Signature]] = collections.deque(maxlen=_MAX_CALLS)
        self._before: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def programs_before(self, call: Call) -> int:
        """The entries of a function in jit's cache when it is first observed; 0 once a program of it is observed."""
        try:
            before = self._before.get(call.function)
        except TypeError:  # an unhashable module of equinox, whose cache can't be read either
            return 0
        before = self._before[call.function] = call.count_cached() if before is None else before
        if call.is_for_program and call.outcome != "failed":
            self._before[call.function] = 0
        return before

    def uses_unused(self, function: Any, signature: Signature) -> bool:
        """Whether a call uses a trace that was for no program so far. It is one for a program from now on."""
        for unused in self.unused:
            if unused[0]() == function and not without_placement(call_differences(unused[1], signature, reasons=False)):
                self.unused.remove(unused)
                return True
        return False

    def calls_of(self, function: Any) -> list[PastCall]:
        """The calls of this function, or of an equal one as in JAX's caches, newest first."""
        calls = reversed(list(self.calls))  # a copy: other threads may append
        return [call for call in calls if call.reference() == function]

    def closest(
        self, function: Any, signature: Signature, *, sharing: bool
    ) -> tuple[PastCall | None, list[Difference]]:
        """The most similar earlier call and its differences. With `sharing`, only calls that share a trace count.

        If the function has no earlier call, the last call of a different function with the same definition is used,
        and the first difference is the function itself.
        """
        calls = self.calls_of(function)
        ranked = [(_distance(call.signature, signature), call) for call in calls]
        distance, best = min(ranked, key=operator.itemgetter(0), default=(None, None))
        if distance is not None and best is not None:
            return (None, []) if sharing and distance[0] else (best, call_differences(best.signature, signature))
        if sharing or not self.calls:
            return None, []
        last, this = self.calls[-1], snapshot(function)
        reason = cause_of(last.function, this) or ""
        other = Difference(("the function itself",), last.function, this, "function", reason)
        return last, [other, *call_differences(last.signature, signature)]


def _distance(old: Signature, new: Signature) -> tuple[int, bool, int]:
    """The differences that make JAX retrace, whether `vmap` maps over more or fewer axes, and all differences."""
    differences = call_differences(old, new, reasons=False)
    return len(without_placement(differences)), len(old.batch) != len(new.batch), len(differences)


@dataclasses.dataclass(slots=True, eq=False)
class _CurrentCall:
    """A call that JAX is tracing or compiling, and the most similar earlier one."""

    reference: weakref.ref[Any]  # the function
    history: CallHistory
    signature: Signature
    closest: PastCall | None
    differences: list[Difference]
    is_new: bool  # True if the call uses a trace that no earlier call used
    may_be_new: bool = False  # True if JAX does not show that: its signature equals that of the closest call
    programs_before: int = 0  # the entries in jit's cache if the function is observed for the first time
    recorded: PastCall | None = None  # this call in the history
    report: RetraceReport | None = None  # of its trace, or of its compilation
    seconds: float = 0.0

    @property
    def of_trace(self) -> list[Difference]:
        """The differences that make JAX retrace; for the others it only recompiles."""
        return without_placement(self.differences)

    @property
    def trace(self) -> PastCall | None:
        """The call whose trace is compiled: this one, or the earlier one that shares it."""
        return self.recorded or self.closest

    def record(self, number: int | None = None) -> PastCall:
        """Add the call to the history, so later events are compared with it; without a number, as a new trace."""
        function, history = self.reference(), self.history
        calls = history.calls_of(function)
        described = calls[0].function if calls else snapshot(function)
        number = next(history.numbers) if number is None else number
        self.recorded = PastCall(self.reference, described, self.signature, number)
        history.calls.append(self.recorded)
        return self.recorded


class RetraceTracker:
    """The state of one block or decorator: turns JAX's events into reports, from `start` to `stop`.

    Args:
        on_report: Called with the report of each retrace and recompile, after compilation.
        concerns: A predicate of the calls to track; None for all.
        limit: The maximum number of traces per definition; one more raises `TooManyTracesError`.
        recompiles: The maximum number of compilations without a trace per definition.
    """

    def __init__(
        self,
        *,
        on_report: Callable[[RetraceReport], object] = lambda _report: None,
        concerns: Callable[[Call], bool] | None = None,
        limit: int | None = None,
        recompiles: int | None = None,
    ) -> None:
        self.violations: list[str] = []
        self.traced: dict[str, Any] = {}  # the definitions of all traced functions, tracked or not, by name
        self._on_report, self._concerns = on_report, concerns
        self._limits: Mapping[str, int | None] = {"trace": limit, "recompile": recompiles}
        self._lock = threading.RLock()
        self._histories: dict[Any, CallHistory] = {}
        self._pending: dict[int, _CurrentCall] = {}  # per thread, the call that is not compiled yet
        self._has_compiled = False

    def start(self, *, stacklevel: int, key: Hashable = None) -> bool:
        """Begin tracking, in place of another tracker with this key; True without one.

        Warn, or raise if there is a limit, if calls can't be observed in this version of JAX.
        """
        if not can_read_calls():
            if self._limits["trace"] is not None:
                raise RuntimeError(_CANT_COUNT)
            warnings.warn(_NO_CALLS, RetraceWarning, stacklevel=stacklevel + 1)
        return OBSERVER.add(self if key is None else key, self.on_event)

    def stop(self, *, stacklevel: int) -> None:
        """End tracking, and warn about events that were not observed."""
        OBSERVER.remove(self)
        self.flush()
        if self._has_compiled and not can_observe_compilations():
            warnings.warn(_NO_COMPILATIONS, RetraceWarning, stacklevel=stacklevel + 1)

    def flush(self) -> None:
        """Report the traces without a compilation."""
        for thread in list(self._pending):
            self._send(self._pending.pop(thread, None))  # its own thread may end it first

    def on_event(self, event: Event) -> None:
        """Process one event from JAX."""
        call = event.call
        # Not earlier, because the test starts JAX's backends: `jax.distributed.initialize` must come before it.
        self._has_compiled = self._has_compiled or event.kind != "trace"
        if self._has_compiled and self._limits["recompile"] is not None and not can_observe_compilations():
            raise RuntimeError(_CANT_COUNT)
        if event.kind == "lower" and event.thread in self._pending:
            self._pending[event.thread].seconds += event.seconds
        if call is None or event.is_operation or not can_read_calls():
            return
        if call.outcome == "failed":  # JAX keeps an entry in its cache for a failed call too
            with contextlib.suppress(Exception):  # a user's __eq__ or __hash__
                self._history(event).programs_before(call)
            return
        if event.kind == "trace" and call.outcome != "shared":
            self.traced.update([event.definition])
        if self._concerns is not None and not self._concerns(call):
            return
        if event.kind == "trace":
            self._send(self._pending.pop(event.thread, None))
            self._on_trace(event, call)
        elif event.kind == "compile":
            self._on_compilation(event, call)

    def _on_trace(self, event: Event, call: Call) -> None:
        is_shared = call.outcome == "shared"
        current = self._compare(event, call, sharing=is_shared)
        if current is None:
            if not is_shared and call.is_for_program:
                self._report_uncompared(event)
            return
        if not call.is_for_program:
            if not is_shared:
                current.history.unused.append((current.reference, current.signature))
            return
        current.seconds += event.seconds
        current.may_be_new = call.outcome == "unknown" and current.closest is not None and not current.of_trace
        if current.is_new and not current.may_be_new:
            self._report(event, "trace", current)
        elif current.closest is None:
            current.record()  # traced before the block, or inside a different function's trace
        elif current.closest.limit_error:
            raise TooManyTracesError(current.closest.limit_error)
        self._pending[event.thread] = current

    def _on_compilation(self, event: Event, call: Call) -> None:
        current = self._pending.pop(event.thread, None)
        if current is None or current.reference() is not call.function:
            self._send(current)
            current = self._compare(event, call, sharing=not call.in_transformation)
        if current is None:
            return
        current.seconds += event.seconds
        current.history.counts["compile"] += 1
        past, kind = current.trace, _kind_of_compilation(current, call)
        if kind == "first program":
            if past is None or past.signature.batch != current.signature.batch:
                past = current.record(None if past is None else past.number)
            # A transformation without a batch has compiled its own program, not that of a plain call.
            past.is_compiled = not call.in_transformation or bool(current.signature.batch)
        elif kind is not None:
            self._report(event, kind, current, _ONLY_COMPILED if call.in_transformation and kind == "trace" else "")
        self._send(current)

    def _compare(self, event: Event, call: Call, *, sharing: bool) -> _CurrentCall | None:
        """Compare a call with earlier ones; None if that fails, because the program must go on."""
        function, is_new = call.function, not sharing
        try:
            history = self._history(event)
            signature = signature_of(call, history.calls[-1].signature if history.calls else None)
            reference = weakref.ref(function)
            before = history.programs_before(call)
            closest, differences = history.closest(function, signature, sharing=sharing)
            if sharing and closest is None and history.uses_unused(function, signature):
                closest, differences = history.closest(function, signature, sharing=False)
                is_new = True
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__, or an unhashable function
            return None
        if before:  # with programs of its own, it is not compared with a different function of the same definition
            closest, differences = None, []
        return _CurrentCall(reference, history, signature, closest, differences, is_new, programs_before=before)

    def _history(self, event: Event) -> CallHistory:
        """The history of the function's definition."""
        name, definition = event.definition
        with self._lock:
            return self._histories.setdefault(definition or name, CallHistory(name))

    def _report_uncompared(self, event: Event) -> None:
        """Count and report a trace whose call can't be compared with earlier ones."""
        history = self._history(event)
        number = next(history.numbers)
        report = RetraceReport(
            history.name,
            "trace",
            number,
            compared_with=number - 1 or None,
            seconds=event.seconds,
            caller=event.caller,
            unseen="the arguments could not be compared, because an __eq__ or __hash__ failed",
        )
        self._count(history, report)
        if report.is_retrace:
            self._on_report(report)

    def _report(
        self, event: Event, kind: Literal["trace", "recompile"], current: _CurrentCall, unseen: str = ""
    ) -> None:
        """Count a trace or recompile and record its call; the report is sent after the compilation."""
        history, earlier = current.history, current.trace
        compared_with = None if earlier is None else earlier.number
        is_recompile = kind == "recompile"  # of an earlier trace, whose number the new call keeps
        past = current.record(compared_with if is_recompile else None)
        past.is_compiled = event.kind == "compile" and not unseen
        report = RetraceReport(
            history.name,
            kind,
            number=history.counts["compile"] if is_recompile else past.number,
            differences=tuple(current.differences if is_recompile else current.of_trace),
            compared_with=compared_with,
            seconds=event.seconds,
            caller=event.caller,
            unseen=unseen,
            before=0 if unseen else current.programs_before,
        )
        self._count(history, report, past)
        current.report = report

    def _count(self, history: CallHistory, report: RetraceReport, past: PastCall | None = None) -> None:
        """Count a trace or recompile; above the limit raise, here and for each call that shares the trace."""
        with self._lock:
            history.counts[report.event] += 1
            limit = self._limits[report.event]
            if limit is None or history.counts[report.event] <= limit:
                return
        error = too_many(limit, report)
        if past is not None and report.event == "trace":
            past.limit_error = error
        self.violations.append(error)
        raise TooManyTracesError(error)

    def _send(self, current: _CurrentCall | None) -> None:
        """Send the report of a finished call, unless it was the first of its function."""
        if current is not None and current.report is not None and current.report.is_retrace:
            self._on_report(dataclasses.replace(current.report, seconds=current.seconds))


def _kind_of_compilation(current: _CurrentCall, call: Call) -> Literal["trace", "recompile", "first program"] | None:
    """What JAX compiled: the first program of a trace, or one more, a recompile.

    It is a trace if JAX did not report it as one: for new arguments under a transformation, or because JAX's caches
    were cleared. The further programs of a transformation are None.
    """
    past = current.trace
    if current.report is not None:
        return "first program"
    if call.in_transformation:
        if past is None or current.of_trace:
            return "trace"
        if any(difference.kind == "batch" for difference in current.differences):
            return "recompile"
        return "first program" if len(past.signature.batch) != len(current.signature.batch) else None
    if current.is_new and not current.may_be_new:
        return "trace"
    if current.programs_before:
        return "recompile"  # of a trace from before the block
    if past is None or not past.is_compiled or past.signature.batch:
        return "first program"
    return "trace" if current.may_be_new and not current.differences else "recompile"
