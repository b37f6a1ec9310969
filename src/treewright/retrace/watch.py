"""Watching jitted functions: JAX's events become reports of each trace, compared with the closest earlier one."""

import collections
import dataclasses
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, Literal

import jax

from treewright._trees.diff import Difference
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.jax_private import OBSERVER, Call, Event, count_held, reads_calls, tells_of_compilations
from treewright.retrace.report import RetraceReport, too_many
from treewright.retrace.signature import Signature, call_differences, signature_of, without_placement
from treewright.retrace.why import snapshot, why_another

_SIGNATURES = 32  # of one definition
_JAX = f"JAX {jax.__version__}"
_NO_CALLS = (
    f"The calls of jitted functions can't be read in {_JAX}: traces are only counted, by the function's name, if JAX "
    f"tells of them, and neither recompiles nor traces under grad or vmap alone are seen. Update Treewright."
)
_NO_COMPILATIONS = (
    f"{_JAX} does not tell of compilations as Treewright knows it: neither recompiles nor traces under grad or vmap "
    f"alone were seen. Update Treewright."
)
_TRACED_BEFORE = "traced before the block, which was not seen; compiled in it for "
_ONLY_COMPILED = (
    "under grad or vmap JAX tells of compilations alone: this one was compiled for arguments that are new in this "
    "block, and may have been traced before"
)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A call that was traced or compiled."""

    reference: weakref.ref[Any]  # to the function
    function: Any  # its snapshot
    signature: Signature
    number: int  # of the trace; 0 before it is known, and if the trace was made before the block
    compiled: bool | None  # None: before the block, if at all
    refusal: str = ""  # the message with which this trace was refused


class History:
    """The last calls of the functions that one `def` or `lambda` made: `jit` keeps programs for each of them apart."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.counts: collections.Counter[str] = collections.Counter()  # of traces, compilations, recompiles
        self.forgotten = 0
        self.entries: collections.deque[Entry] = collections.deque(maxlen=_SIGNATURES)

    def calls_of(self, function: Any) -> list[Entry]:
        """The calls of the very function, the newest first; a method may have been looked up again."""
        calls: list[Entry] = []
        for entry in reversed(list(self.entries)):  # a copy, to which no other thread adds
            known = entry.reference()
            if known is function or (isinstance(function, types.MethodType) and known == function):
                calls.append(entry)
        return calls

    def closest(self, function: Any, signature: Signature, *, sharing: bool) -> tuple[Entry | None, list[Difference]]:
        """The earlier call that is closest to this one, and the differences; if asked, of those that share its trace.

        Where the function has none, it is the last call of another function of the same definition, and that it is
        another function is the first difference.
        """
        best: tuple[tuple[int, int], Entry] | None = None
        calls = self.calls_of(function)
        for entry in calls:
            found = call_differences(entry.signature, signature, reasons=False)
            distance = (len(without_placement(found)), len(found))
            if not (sharing and distance[0]) and (best is None or distance < best[0]):
                best = (distance, entry)
        if best is not None:
            return best[1], call_differences(best[1].signature, signature)
        if sharing or calls or not self.entries:
            return None, []
        last, this = self.entries[-1], snapshot(function)
        reason = why_another(last.function, this)
        other = Difference(("the function itself",), last.function, this, "function", reason)
        return last, [other, *call_differences(last.signature, signature)]


@dataclasses.dataclass(slots=True, eq=False)
class _Seen:
    """A call that JAX traces or compiles, and the closest earlier one."""

    reference: weakref.ref[Any]  # to the function
    history: History
    signature: Signature
    closest: Entry | None
    differences: list[Difference]
    of_trace: list[Difference]  # those for which it is traced, and not only compiled
    seconds: float
    report: RetraceReport | None = None  # of what was done for it
    is_guess: bool = False  # whether that the trace is shared is known from the signatures alone

    def record(self, number: int, *, compiled: bool | None) -> Entry:
        """Remember the call, so that later ones are compared with it."""
        function, history = self.reference(), self.history
        calls = history.calls_of(function)
        described = calls[0].function if calls else snapshot(function)
        entry = Entry(self.reference, described, self.signature, number, compiled)
        history.forgotten += len(history.entries) == _SIGNATURES
        history.entries.append(entry)
        return entry


class Watch:
    """Turns what JAX tells of into reports, from `start` to `stop`: the memory of one block or decorator.

    JAX tells the same where one function is jitted twice and the trace is shared, so traces are told from that by
    what its frames show, and where they do not show it by signatures. Traces inside of others are not told.

    Args:
        on_report: Called with the report of each retrace and recompile, once everything is compiled.
        concerns: Whether a function is one to watch; all are if it is None.
        name: Its name, which alone is known where the call can't be read.
        limit: How many traces of one definition's functions are allowed before `TooManyTracesError` is raised.
        recompiles: How many of their compilations without a trace.
    """

    def __init__(
        self,
        *,
        on_report: Callable[[RetraceReport], object] = lambda _report: None,
        concerns: Callable[[Any], bool] | None = None,
        name: str | None = None,
        limit: int | None = None,
        recompiles: int | None = None,
    ) -> None:
        self.violations: list[str] = []
        self.traced: set[str] = set()  # the names of what was traced, watched or not
        self._on_report, self._concerns, self._name = on_report, concerns, name
        self._limits = {"trace": limit, "count": limit, "recompile": recompiles}
        self._lock = threading.RLock()
        self._histories: dict[Any, History] = {}
        self._begun: dict[int, _Seen] = {}  # by thread, what is not compiled yet
        self._heard: set[str] = set()

    def start(self, *, stacklevel: int) -> None:
        """Begin to watch, and warn of what is not seen in this version of JAX."""
        if not reads_calls():
            warnings.warn(_NO_CALLS, RetraceWarning, stacklevel=stacklevel + 1)
        OBSERVER.add(self.hear)

    def stop(self, *, stacklevel: int) -> None:
        """Watch no more, and warn of what was not seen."""
        OBSERVER.remove(self.hear)
        self.flush()
        if "trace" in self._heard and "compile" not in self._heard and not tells_of_compilations():
            warnings.warn(_NO_COMPILATIONS, RetraceWarning, stacklevel=stacklevel + 1)

    def flush(self) -> None:
        """Report the traces for which nothing was compiled."""
        for thread in list(self._begun):
            self._end(self._begun.pop(thread, None))  # which may end in its own thread meanwhile

    def hear(self, event: Event) -> None:
        """Take note of what JAX tells of."""
        self._heard.add(event.kind)
        call = event.call if reads_calls() else None
        if event.is_operation or (call is not None and call.outcome == "failed"):
            return
        if event.kind == "trace" and (call is None or call.outcome != "shared"):
            self.traced.add(event.definition[0])
        if call is not None and self._concerns is not None and not self._concerns(call.function):
            return
        if event.kind == "trace":
            self._end(self._begun.pop(event.thread, None))
            self._hear_trace(event, call)
        elif event.kind == "lower" and event.thread in self._begun:
            self._begun[event.thread].seconds += event.seconds
        elif event.kind == "compile" and call is not None:
            self._hear_compilation(event, call)

    def _hear_trace(self, event: Event, call: Call | None) -> None:
        is_shared = call is not None and call.outcome == "shared"
        seen = None if call is None else self._look(event, call, sharing=is_shared)
        if call is None or seen is None:
            if not is_shared and self._name in {None, event.definition[0]}:
                self._report(event, self._history(event), "count")
            return
        if is_shared or (call.outcome == "unknown" and seen.closest is not None and not seen.of_trace):
            seen.is_guess = not is_shared
            seen.closest = seen.closest or seen.record(0, compiled=None)
            if seen.closest.refusal:
                raise TooManyTracesError(seen.closest.refusal)
        else:
            self._trace(event, seen, held=0 if seen.closest else count_held(call.jit_function))
        self._begun[event.thread] = seen

    def _hear_compilation(self, event: Event, call: Call) -> None:
        seen = self._begun.pop(event.thread, None)
        if seen is not None and seen.reference() is call.function:
            seen.seconds += event.seconds
        else:
            self._end(seen)
            seen = self._look(event, call, sharing=not call.in_transformation)
        if seen is None:
            return
        seen.history.counts["compile"] += 1
        entry = seen.closest
        if call.in_transformation and seen.report is None:
            if entry is None or seen.of_trace:  # several may be compiled for one trace
                self._trace(event, seen, _ONLY_COMPILED)
        elif entry is not None and entry.compiled is False:  # the first for its trace
            entry.compiled = True
        elif seen.is_guess and not seen.differences:  # the caches were cleared
            self._trace(event, seen, compiled=True)
        else:
            unseen = "" if entry is not None and entry.compiled else _TRACED_BEFORE + _arguments(seen.signature)
            seen.closest = seen.record(0 if entry is None else entry.number, compiled=True)
            self._report(event, seen.history, "recompile", seen, compared_with=seen.closest.number, unseen=unseen)
        self._end(seen)

    def _look(self, event: Event, call: Call, *, sharing: bool) -> _Seen | None:
        """Compare a call with the earlier ones; None where that can't be done: the program must go on."""
        function = call.function
        try:
            history = self._history(event)
            if event.signature is None:
                event.signature = signature_of(call, history.entries[-1].signature if history.entries else None)
            reference = weakref.ref(function)
            closest, found = history.closest(function, event.signature, sharing=sharing)
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__, a function that can't be hashed
            return None
        return _Seen(reference, history, event.signature, closest, found, without_placement(found), event.seconds)

    def _history(self, event: Event) -> History:
        name, definition = event.definition
        key = definition or name
        with self._lock:
            if key not in self._histories:
                self._histories[key] = History(name)
            return self._histories[key]

    def _trace(self, event: Event, seen: _Seen, unseen: str = "", *, held: int = 0, compiled: bool = False) -> None:
        """A trace that was made for a call."""
        compared_with, forgotten = None if seen.closest is None else seen.closest.number, seen.history.forgotten
        if forgotten and not unseen:
            unseen = f"the closest of the last traces; {forgotten} before them are not remembered"
        if held:
            calls, now = "a call" if held == 1 else f"{held} calls", _arguments(seen.signature)
            unseen = f"JAX has traces for {calls} from before the block, whose arguments were not seen; now {now}"
            compared_with = 0
        seen.closest = seen.record(0, compiled=compiled)
        self._report(event, seen.history, "trace", seen, compared_with=compared_with, unseen=unseen)

    def _report(
        self,
        event: Event,
        history: History,
        kind: Literal["trace", "recompile", "count"],
        seen: _Seen | None = None,
        *,
        compared_with: int | None = None,
        unseen: str = "",
    ) -> None:
        """Make the report of a trace or a recompile, and raise where it is one too many."""
        with self._lock:
            history.counts[kind] += 1
            count = history.counts[kind]
        number = history.counts["compile"] if kind == "recompile" else count
        found = [] if seen is None else seen.differences if kind == "recompile" else seen.of_trace
        report = RetraceReport(
            history.name, kind, number, tuple(found), compared_with, event.seconds, event.caller, unseen
        )
        limit = self._limits[kind]
        refusal = too_many(limit, report) if limit is not None and count > limit else ""
        if kind == "trace" and seen is not None and seen.closest is not None:
            seen.closest.number, seen.closest.refusal = number, refusal
        if refusal:
            self.violations.append(refusal)
            raise TooManyTracesError(refusal)
        if seen is not None:
            seen.report = report
        elif report.is_retrace:
            self._on_report(report)

    def _end(self, seen: _Seen | None) -> None:
        if seen is not None and seen.report is not None and seen.report.is_retrace:
            self._on_report(dataclasses.replace(seen.report, seconds=seen.seconds))


def _arguments(signature: Signature) -> str:
    """`x: float32[2] (committed to cpu:0), n: 3`."""
    texts: list[str] = []
    for name in signature.passed:
        value = signature.arguments[name]
        placement = getattr(value, "placement", None)
        texts.append(f"{name}: {value!r}" + ("" if placement is None else f" ({placement})"))
    return ", ".join(texts) or "no arguments"
