"""Watching every jitted function of the process for the time of a block, by JAX's events and where they come from."""

import collections
import dataclasses
import threading
import warnings
from collections.abc import Callable
from typing import Any, Self

import jax

from treewright._core.functions import innermost
from treewright.errors import RetraceWarning
from treewright.retrace.call import Signature, caller, signature_of
from treewright.retrace.history import Entry, Finding, Histories, History, definition_of
from treewright.retrace.jax_private import (
    Call,
    EventKind,
    EventListener,
    call_on_stack,
    called_by_the_user,
    is_inside_another_trace,
    nothing,
)
from treewright.retrace.report import RetraceReport, report_of
from treewright.retrace.traced import MARK, PROCESS

_NO_TRACES = (
    f"JAX {jax.__version__} does not tell of traces as Treewright knows it: no retrace is reported but those of "
    f"functions with @traced. Update Treewright."
)
_NO_CALLS = (
    f"The calls of jitted functions can't be read in JAX {jax.__version__}: traces are only counted, by the function's "
    f"name, and neither recompiles nor traces under grad or vmap alone are seen. Update Treewright."
)
_NO_OUTCOMES = (
    f"JAX {jax.__version__} does not show as Treewright knows it whether a call was traced or got the trace of "
    f"another: that is told by comparing the call with those before it in the block. Update Treewright."
)
_NOT_TOLD = (
    "under grad or vmap JAX tells of compilations alone: this one was compiled for arguments that are new in this "
    "block, and may have been traced before"
)
CLEARED = (
    "jax.monitoring.clear_event_listeners() was called meanwhile, which made JAX forget Treewright too: what was "
    "traced after it was not seen."
)
_NO_COMPILATIONS = (
    f"JAX {jax.__version__} does not tell of compilations as Treewright knows it: neither recompiles nor traces under "
    f"grad or vmap alone were seen. Update Treewright."
)


@dataclasses.dataclass(slots=True)
class _Begun:
    """A trace whose compilation is still to come."""

    history: History
    entry: Entry
    report: RetraceReport | None  # None if the trace is shared with an earlier one
    seconds: float
    is_guess: bool = False  # whether that is only known from the signatures


@dataclasses.dataclass(frozen=True, slots=True)
class _Seen:
    """A call, and what is new about it."""

    call: Call
    history: History
    signature: Signature
    finding: Finding


class Watch:
    """Hears of every trace and compilation in the process between `__enter__` and `__exit__`.

    JAX tells of each trace when it has ended and before anything is compiled, in the thread and on the stack of the
    call. It tells the same where one function is jitted twice and the trace is shared, so traces are told from that by
    their signatures. Traces inside of others are not told; those of decorated functions tell of themselves.
    """

    listener: EventListener

    def __init__(
        self,
        *,
        begins: Callable[[Any, RetraceReport], object] = nothing,  # what this raises reaches the caller of the function
        ended: Callable[[RetraceReport], object] = nothing,  # what was compiled for the trace is ready, too
        recompiled: Callable[[Any, RetraceReport], object] = nothing,  # without a trace
    ) -> None:
        self.trace_begins = begins
        self.trace_ended = ended
        self.takes_reports: bool = ended is not nothing
        self._recompiled = recompiled
        self._histories = Histories()
        self._lock = threading.Lock()
        self._begun: dict[int, _Begun] = {}  # by thread
        self._by_name: collections.Counter[str] = collections.Counter()

    def __enter__(self) -> Self:
        sight = PROCESS.sight
        lost = _NO_OUTCOMES if sight.calls else _NO_CALLS if sight.events else _NO_TRACES
        if not (sight.events and sight.calls and sight.outcomes):
            self.warn(lost)
        PROCESS.add(self)
        self.listener = EventListener(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        listener = self.listener
        PROCESS.remove(self)
        was_told = listener.stop()
        for thread in list(self._begun):
            self._end(self._begun.pop(thread, None))  # which may end in its own thread meanwhile
        if not was_told:
            self.warn(CLEARED)
        if listener.has_heard and not listener.has_heard_of_a_compilation and not PROCESS.hears_compilations:
            self.warn(_NO_COMPILATIONS)

    def warn(self, text: str) -> None:
        """Say what is not seen."""
        warnings.warn(text, RetraceWarning, stacklevel=4)

    def _hear(self, kind: EventKind, seconds: float, name: str) -> None:
        if kind in {"trace", "compile"}:
            self.told(kind, call_on_stack(), seconds, name)

    def told(self, kind: EventKind, call: Call | None, seconds: float, name: str) -> None:
        """What is done when JAX tells of a trace or a compilation."""
        if kind == "trace":
            self._traced(call, seconds, name)
        elif kind == "compile":
            self._compiled(call, seconds, name)

    def _traced(self, call: Call | None, seconds: float, name: str) -> None:
        self._end(self._take())
        if call is not None and (_is_internal(call.function) or is_inside_another_trace()):
            return
        outcome = call.outcome if call is not None and PROCESS.sight.outcomes else "unknown"
        if outcome == "failed":
            return
        seen = None if call is None else self._look(call, shares_trace=outcome == "shared")
        if seen is None:
            if outcome != "shared":
                self._count(seconds, name)
            return
        if outcome == "shared" or (outcome == "unknown" and seen.finding.shares_trace):
            entry = seen.finding.entry or seen.history.record(seen.signature, 0)
            begun = _Begun(seen.history, entry, None, seconds, is_guess=outcome == "unknown")
        else:
            begun = self._new_trace(seen, seconds)
        self._begun[threading.get_ident()] = begun

    def _compiled(self, call: Call | None, seconds: float, name: str) -> None:
        if call is None or _is_internal(call.function) or name != f"jit({call.jit_name})":
            return
        begun = self._take()
        if begun is not None and begun.report is not None and begun.history.is_of(call.function):
            begun.history.definition.compiles += 1
            begun.entry.compiled = not call.in_transformation
            self._end(dataclasses.replace(begun, seconds=begun.seconds + seconds))
            return
        self._end(begun)
        seen = self._look(call, shares_trace=not call.in_transformation)
        if seen is None:
            return
        seen.history.definition.compiles += 1
        if not call.in_transformation:
            self._compiled_alone(seen, seconds, begun)
        elif not seen.finding.shares_trace:  # several may be compiled for one trace
            self._end(self._new_trace(seen, seconds, _NOT_TOLD))

    def _look(self, call: Call, *, shares_trace: bool) -> _Seen | None:
        """What is new about a call; None where that can't be told, whatever the reason: the program must go on."""
        try:
            history = self._histories.of(call.function)
            signature = signature_of(call, history.newest)
            return _Seen(call, history, signature, history.compare(signature, shares_trace=shares_trace))
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__, a function that can't be hashed
            return None

    def _new_trace(self, seen: _Seen, seconds: float, unseen: str = "") -> _Begun:
        number, _ = seen.history.begin()
        entry = seen.history.record(seen.signature, number)
        seen.history.succeeded(entry)
        if hasattr(seen.call.function, MARK):  # it tells of itself
            return _Begun(seen.history, entry, None, seconds)
        report = report_of("trace", seen.history.definition, number, seen.finding, seconds=seconds, unseen=unseen)
        self.trace_begins(definition_of(seen.call.function), report)
        return _Begun(seen.history, entry, report, seconds)

    def _compiled_alone(self, seen: _Seen, seconds: float, begun: _Begun | None) -> None:
        """A compilation without a trace of its own."""
        finding, entry = seen.finding, seen.finding.entry
        if entry is None:  # it was traced before the block
            seen.history.record(seen.signature, 0).compiled = True
            return
        first, entry.compiled = not entry.compiled, True
        seconds += 0.0 if begun is None else begun.seconds
        if first:
            return
        if begun is not None and begun.is_guess and not finding.differences:  # the caches were cleared
            begun = self._new_trace(seen, seconds)
            begun.entry.compiled = True
            self._end(begun)
            return
        definition = seen.history.definition
        seen.history.record(seen.signature, entry.number).compiled = True
        report = report_of("recompile", definition, definition.compiles, finding, seconds=seconds)
        self._recompiled(definition_of(seen.call.function), report)

    def _count(self, seconds: float, name: str) -> None:
        """Where no more can be told than the name of what was traced."""
        if not called_by_the_user():  # pragma: no cover  what JAX traces for itself, which not every JAX reports
            return
        with self._lock:
            self._by_name[name] += 1
            number = self._by_name[name]
        report = RetraceReport(name, "count", number, seconds=seconds, caller=caller())
        self.trace_begins(name, report)
        self.trace_ended(report)

    def _take(self) -> _Begun | None:
        return self._begun.pop(threading.get_ident(), None)

    def _end(self, begun: _Begun | None) -> None:
        if begun is not None and begun.report is not None:
            self.trace_ended(dataclasses.replace(begun.report, seconds=begun.seconds))


def package_of(function: Any) -> str:
    """The package that a function is of."""
    return str(getattr(innermost(function), "__module__", "")).partition(".")[0]


def _is_internal(function: Any) -> bool:
    """Whether a function is JAX's own, such as those that make arrays, or ours: their programs are not the user's."""
    return package_of(function) in {"jax", "jaxlib", "treewright"}
