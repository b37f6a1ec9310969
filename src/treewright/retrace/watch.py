"""Watching jitted functions: JAX's events become reports of each trace, compared with the closest earlier one."""

import collections
import dataclasses
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax

from treewright._core import innermost
from treewright._trees.diff import Difference
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace.jax_private import OBSERVER, Call, Event, capabilities, count_held, tells_of_compilations
from treewright.retrace.report import RetraceReport, too_many
from treewright.retrace.signature import Signature, call_differences, is_placement, signature_of
from treewright.retrace.why import snapshot, why_another

_SIGNATURES = 32  # of one definition
_JAX = f"JAX {jax.__version__}"
_NO_TRACES = f"{_JAX} does not tell of traces as Treewright knows it: no retrace is reported. Update Treewright."
_NO_CALLS = (
    f"The calls of jitted functions can't be read in {_JAX}: traces are only counted, by the function's name, and "
    f"neither recompiles nor traces under grad or vmap alone are seen. Update Treewright."
)
_NO_COMPILATIONS = (
    f"{_JAX} does not tell of compilations as Treewright knows it: neither recompiles nor traces under grad or vmap "
    f"alone were seen. Update Treewright."
)
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
    number: int  # of the trace; 0 if that was made before the block
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
        """The calls of the very function, the newest first."""
        return [entry for entry in reversed(list(self.entries)) if _is_one(entry.reference(), function)]

    def closest(
        self, function: Any, signature: Signature, *, sharing: bool
    ) -> tuple[Entry | None, tuple[Difference, ...]]:
        """The earlier call that is closest to this one, and the differences; if asked, of those that share its trace.

        Where the function has none, it is the last call of another function of the same definition, and that it is
        another function is the first difference.
        """
        best: tuple[tuple[int, int], Entry] | None = None
        calls = self.calls_of(function)
        for entry in calls:
            found = call_differences(entry.signature, signature, reasons=False)
            distance = (sum(not is_placement(difference) for difference in found), len(found))
            if not (sharing and distance[0]) and (best is None or distance < best[0]):
                best = (distance, entry)
        if best is not None:
            return best[1], tuple(call_differences(best[1].signature, signature))
        if sharing or calls or not self.entries:
            return None, ()
        last, this = self.entries[-1], snapshot(function)
        reason = why_another(last.function, this)
        other = Difference(("the function itself",), last.function, this, "function", reason)
        return last, (other, *call_differences(last.signature, signature))


@dataclasses.dataclass(slots=True, eq=False)
class _Seen:
    """A call that JAX traces or compiles, and the closest earlier one."""

    function: Any
    history: History
    signature: Signature
    closest: Entry | None
    differences: tuple[Difference, ...]
    seconds: float
    report: RetraceReport | None = None  # of the trace that was made for it
    is_guess: bool = False  # whether that the trace is shared is known from the signatures alone

    @property
    def shares_trace(self) -> bool:
        """Whether `jit` takes the trace of the earlier call for this one as well."""
        return self.closest is not None and all(map(is_placement, self.differences))

    def record(self, number: int, *, compiled: bool | None) -> Entry:
        """Remember the call, so that later ones are compared with it."""
        history, calls = self.history, self.history.calls_of(self.function)
        described = calls[0].function if calls else snapshot(self.function)
        entry = Entry(weakref.ref(self.function), described, self.signature, number, compiled)
        history.forgotten += len(history.entries) == _SIGNATURES
        history.entries.append(entry)
        return entry


class Watch:
    """Turns what JAX tells of into reports, from `start` to `stop`: the memory of one block or decorator.

    JAX tells the same where one function is jitted twice and the trace is shared, so traces are told from that by
    what its frames show, and where they do not show it by signatures. Traces inside of others are not told.

    Args:
        on_report: Called with the report of each retrace and recompile, once everything is compiled.
        concerns: Whether a function is one to watch.
        name: Its name, which alone is known where the call can't be read; None if all are watched.
        limit: How many traces of one definition's functions are allowed before `TooManyTracesError` is raised.
        recompiles: How many of their compilations without a trace.
    """

    def __init__(
        self,
        *,
        on_report: Callable[[RetraceReport], object] = lambda _report: None,
        concerns: Callable[[Any], bool] = lambda _function: True,
        name: str | None = None,
        limit: int | None = None,
        recompiles: int | None = None,
    ) -> None:
        self.violations: list[str] = []
        self.traced: set[str] = set()  # the names of what was traced, watched or not
        self._on_report, self._concerns, self._name = on_report, concerns, name
        self._limits = {"trace": limit, "count": limit, "recompile": recompiles}
        self._lock = threading.Lock()
        self._histories: dict[Any, History] = {}
        self._begun: dict[int, _Seen] = {}  # by thread, what is not compiled yet
        self._heard: set[str] = set()

    def start(self, *, stacklevel: int) -> None:
        """Begin to watch, and warn of what is not seen in this version of JAX."""
        if not capabilities().calls:
            lost = _NO_CALLS if capabilities().events else _NO_TRACES
            warnings.warn(lost, RetraceWarning, stacklevel=stacklevel + 1)
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
        call = event.call if capabilities().calls else None
        if event.is_operation or (call is not None and call.outcome == "failed"):
            return
        if event.kind == "trace" and (call is None or call.outcome != "shared"):
            self.traced.add(event.name if call is None else name_of(call.function))
        if call is not None and not self._concerns(call.function):
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
            if not is_shared:
                self._count(event)
            return
        if is_shared or (call.outcome == "unknown" and seen.shares_trace):
            seen.is_guess = not is_shared
            seen.closest = seen.closest or seen.record(0, compiled=None)
            if seen.closest.refusal:
                raise TooManyTracesError(seen.closest.refusal)
        else:
            self._trace(event, seen, held=0 if seen.closest else count_held(call.jit_function))
        self._begun[event.thread] = seen

    def _hear_compilation(self, event: Event, call: Call) -> None:
        seen = self._begun.pop(event.thread, None)
        if seen is not None and _is_one(seen.function, call.function):
            seen.seconds += event.seconds
        else:
            self._end(seen)
            seen = self._look(event, call, sharing=not call.in_transformation)
        if seen is None:
            return
        self._number(seen.history, "compile")
        if call.in_transformation and seen.report is None:
            if not seen.shares_trace:  # several may be compiled for one trace
                self._trace(event, seen, _ONLY_COMPILED)
        elif seen.closest is not None and seen.closest.compiled is False:  # the first for its trace
            seen.closest.compiled = True
        elif seen.is_guess and not seen.differences:  # the caches were cleared
            self._trace(event, seen, compiled=True)
        else:
            self._recompile(event, seen)
        self._end(seen)

    def _look(self, event: Event, call: Call, *, sharing: bool) -> _Seen | None:
        """Compare a call with the earlier ones; None where that can't be done: the program must go on."""
        function = call.function
        try:
            history = self._histories.setdefault(definition_of(function), History(name_of(function)))
            if event.signature is None:
                event.signature = signature_of(call, history.entries[-1].signature if history.entries else None)
            closest, differences = history.closest(function, event.signature, sharing=sharing)
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__, a function that can't be hashed
            return None
        return _Seen(function, history, event.signature, closest, differences, event.seconds)

    def _trace(self, event: Event, seen: _Seen, unseen: str = "", *, held: int = 0, compiled: bool = False) -> None:
        """A trace that was made for a call."""
        history, number = seen.history, self._number(seen.history, "trace")
        compared_with = None if seen.closest is None else seen.closest.number
        if history.forgotten:
            unseen = unseen or f"the closest of the last traces; {history.forgotten} before them are not remembered"
        if held:
            calls, now = "a call" if held == 1 else f"{held} calls", _arguments(seen.signature)
            unseen = f"JAX has traces for {calls} from before the block, whose arguments were not seen; now {now}"
            compared_with = 0
        of_trace = tuple(difference for difference in seen.differences if not is_placement(difference))
        seen.closest = seen.record(number, compiled=compiled)
        seen.report = RetraceReport(
            history.name, "trace", number, of_trace, compared_with, seen.seconds, event.caller, unseen
        )
        self._check(seen.report, number, seen.closest)

    def _recompile(self, event: Event, seen: _Seen) -> None:
        """A compilation without a trace of its own."""
        history, entry, unseen = seen.history, seen.closest, ""
        if entry is None or entry.compiled is None:
            unseen = f"traced before the block, which was not seen; compiled in it for {_arguments(seen.signature)}"
        number, compilations = 0 if entry is None else entry.number, history.counts["compile"]
        seen.record(number, compiled=True)
        seen.report = RetraceReport(
            history.name, "recompile", compilations, seen.differences, number, seen.seconds, event.caller, unseen
        )
        self._check(seen.report, self._number(history, "recompile"))

    def _count(self, event: Event) -> None:
        """A trace of which no more can be told than the name."""
        if self._name not in {None, event.name}:
            return
        number = self._number(self._histories.setdefault(event.name, History(event.name)), "count")
        report = RetraceReport(event.name, "count", number, seconds=event.seconds, caller=event.caller)
        self._check(report, number)
        if report.is_retrace:
            self._on_report(report)

    def _number(self, history: History, counted: str) -> int:
        with self._lock:
            history.counts[counted] += 1
            return history.counts[counted]

    def _check(self, report: RetraceReport, count: int, entry: Entry | None = None) -> None:
        """Raise where a report is one too many."""
        limit = self._limits[report.event]
        if limit is None or count <= limit:
            return
        message = too_many(limit, report)
        self.violations.append(message)
        if entry is not None:
            entry.refusal = message
        raise TooManyTracesError(message)

    def _end(self, seen: _Seen | None) -> None:
        if seen is not None and seen.report is not None and seen.report.is_retrace:
            self._on_report(dataclasses.replace(seen.report, seconds=seen.seconds))


def _is_one(known: Any, function: Any) -> bool:
    """Whether two are the very function; a method may have been looked up again."""
    return known is function or (isinstance(function, types.MethodType) and known == function)


def _arguments(signature: Signature) -> str:
    """`x: float32[2] (committed to cpu:0), n: 3`."""
    texts: list[str] = []
    for name in signature.passed:
        value = signature.argument(name)
        placement = getattr(value, "placement", None)
        texts.append(f"{name}: {value!r}" + ("" if placement is None else f" ({placement})"))
    return ", ".join(texts) or "no arguments"


def definition_of(function: Any) -> tuple[Any, str]:
    """What all functions of one `def` or `lambda` share: their code and its file; or the class of a callable object.

    The file, because code of the same text and line is equal in all files.
    """
    inner = innermost(function)
    code = getattr(inner, "__code__", None)
    return (type(inner), "") if code is None else (code, code.co_filename)


def name_of(function: Any) -> str:
    """The name by which a report calls a function."""
    inner = innermost(function)
    return str(getattr(inner, "__name__", type(inner).__name__))
