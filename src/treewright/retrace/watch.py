"""Watching jitted functions: JAX's events become a record of each trace, compared with the closest earlier one."""

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
from treewright.retrace.jax_private import (
    OBSERVER,
    Call,
    Event,
    called_by_the_user,
    capabilities,
    count_held,
    is_inside_another_trace,
    is_probe,
    jit_name,
    nothing,
    tells_of_compilations,
)
from treewright.retrace.report import RetraceReport
from treewright.retrace.signature import (
    Signature,
    call_differences,
    caller,
    is_placement,
    signature_of,
)
from treewright.retrace.why import snapshot, why_another

_SIGNATURES = 32  # of one function
_JAX = f"JAX {jax.__version__}"
_NO_TRACES = f"{_JAX} does not tell of traces as Treewright knows it: no retrace is reported. Update Treewright."
_NO_CALLS = (
    f"The calls of jitted functions can't be read in {_JAX}: traces are only counted, by the function's name, and "
    f"neither recompiles nor traces under grad or vmap alone are seen. Update Treewright."
)
_NO_OUTCOMES = (
    f"{_JAX} does not show as Treewright knows it whether a call was traced or got the trace of another: that is "
    f"found by comparing the call with those before it in the block. Update Treewright."
)
_NO_COMPILATIONS = (
    f"{_JAX} does not tell of compilations as Treewright knows it: neither recompiles nor traces under grad or vmap "
    f"alone were seen. Update Treewright."
)
_CLEARED = (
    "jax.monitoring.clear_event_listeners() was called meanwhile, which made JAX forget Treewright too: what was "
    "traced after it was not seen."
)
_ONLY_COMPILED = (
    "under grad or vmap JAX tells of compilations alone: this one was compiled for arguments that are new in this "
    "block, and may have been traced before"
)


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """A signature that has been traced, and whether a program has been compiled for it."""

    signature: Signature
    number: int  # 0 if the trace was made before the block
    compiled: bool | None = False  # None: before the block, if at all
    refusal: str = ""  # the message with which this trace was refused


class Definition:
    """All functions that one `def` or `lambda` has made: `jit` keeps programs for each of them apart."""

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.traces: int = 0
        self.compiles: int = 0
        self.last: tuple[Any, Entry] | None = None  # the function that was traced last, and how it was called


class History:
    """The signatures with which one function has been traced, the newest last."""

    def __init__(self, function: Any, definition: Definition) -> None:
        self.definition: Definition = definition
        self.entries: collections.deque[Entry] = collections.deque(maxlen=_SIGNATURES)
        self.forgotten: int = 0  # signatures
        self.unseen: int = 0  # calls from before the block: JAX tells no more than how many
        self.reference: weakref.ref[Any] = weakref.ref(function)
        self.function: Any = None  # its snapshot, when it was traced first

    def is_of(self, function: Any) -> bool:
        """Whether this is the history of the very function; a method may have been looked up again."""
        known = self.reference()
        return known is function or (isinstance(function, types.MethodType) and known == function)

    def record(self, signature: Signature, number: int, *, compiled: bool | None) -> Entry:
        """Remember a trace, so that later ones are compared with it."""
        entry = Entry(signature, number, compiled)
        self.forgotten += len(self.entries) == self.entries.maxlen
        self.entries.append(entry)
        return entry

    def closest(self, signature: Signature, *, sharing: bool) -> tuple[Entry | None, tuple[Difference, ...]]:
        """The earlier call that is closest to this one, and the differences; if asked, of those that share its trace.

        Where the function has none, it is the last call of another function of the same definition, and that it is
        another function is the first difference.
        """
        best: tuple[tuple[int, int], Entry] | None = None
        for entry in reversed(list(self.entries)):  # a copy, to which no other thread adds
            found = call_differences(entry.signature, signature, reasons=False)
            of_trace = sum(not is_placement(difference) for difference in found)
            distance = (of_trace, len(found))
            if not (of_trace and sharing) and (best is None or distance < best[0]):
                best = (distance, entry)
        if best is not None:
            return best[1], tuple(call_differences(best[1].signature, signature))
        if self.entries or sharing or self.definition.last is None:
            return None, ()
        (before, entry), this = self.definition.last, snapshot(self.reference())
        other = Difference(("the function itself",), before, this, "function", why_another(before, this))
        return entry, (other, *call_differences(entry.signature, signature))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Seen:
    """A call, and the earlier one that is closest to it, if there is one."""

    history: History
    signature: Signature
    closest: Entry | None
    differences: tuple[Difference, ...]

    @property
    def shares_trace(self) -> bool:
        """Whether `jit` takes the trace of the earlier call for this one as well."""
        return self.closest is not None and all(map(is_placement, self.differences))


@dataclasses.dataclass(slots=True)
class _Begun:
    """A trace whose compilation is still to come."""

    history: History
    entry: Entry
    report: RetraceReport | None  # None if the trace is shared with an earlier one
    seconds: float
    is_guess: bool = False  # whether that is only known from the signatures


class Watch:
    """Turns what JAX tells of into reports, from `start` to `stop`: the memory of one block or decorator.

    JAX tells the same where one function is jitted twice and the trace is shared, so traces are told from that by
    what its frames show, and where they do not show it by signatures. Traces inside of others are not told.

    Args:
        begins: Called with the definition and the report of each trace before it is compiled, and of each compilation
            without a trace; what it raises reaches the caller of the function.
        ended: Called with the report once everything is compiled.
        concerns: Whether a function of a name is watched, or None of that name, where only that can be read.
    """

    def __init__(
        self,
        *,
        begins: Callable[[Any, RetraceReport], object] = nothing,
        ended: Callable[[RetraceReport], object] = nothing,
        concerns: Callable[[Any, str], bool] | None = None,
    ) -> None:
        self._begins = begins
        self._ended = ended
        self._concerns = concerns
        self._lock = threading.RLock()
        self._definitions: weakref.WeakKeyDictionary[Any, dict[str, Definition]] = weakref.WeakKeyDictionary()
        self._histories: weakref.WeakKeyDictionary[Any, History] = weakref.WeakKeyDictionary()
        self._unhashable: dict[int, History] = {}  # by the ids of functions that live: callable trees of equinox
        self._begun: dict[int, _Begun] = {}  # by thread
        self._by_name: collections.Counter[str] = collections.Counter()
        self._heard: set[str] = set()

    def start(self, *, stacklevel: int) -> None:
        """Begin to watch, and warn of what is not seen in this version of JAX."""
        can = capabilities()
        lost = _NO_OUTCOMES if can.calls else _NO_CALLS if can.events else _NO_TRACES
        if not (can.events and can.calls and can.outcomes):
            warnings.warn(lost, RetraceWarning, stacklevel=stacklevel + 1)
        OBSERVER.add(self.hear)

    def stop(self, *, stacklevel: int) -> None:
        """Watch no more, and warn of what was not seen."""
        was_heard = OBSERVER.is_heard(unknown=True)
        OBSERVER.remove(self.hear)
        self.flush()
        if not was_heard:
            warnings.warn(_CLEARED, RetraceWarning, stacklevel=stacklevel + 1)
        if "trace" in self._heard and "compile" not in self._heard and not tells_of_compilations():
            warnings.warn(_NO_COMPILATIONS, RetraceWarning, stacklevel=stacklevel + 1)

    def flush(self) -> None:
        """Report the traces for which nothing was compiled."""
        for thread in list(self._begun):
            self._end(self._begun.pop(thread, None))  # which may end in its own thread meanwhile

    def hear(self, event: Event) -> None:
        """Take note of what JAX tells of."""
        if event.kind == "cache" or is_probe():
            return
        self._heard.add(event.kind)
        if event.kind == "trace":
            self._end(self._take())
            self._traced(event)
        elif event.kind == "compile":
            self._compiled(event)
        else:
            begun = self._begun.get(threading.get_ident())
            if begun is not None:
                begun.seconds += event.seconds

    def _traced(self, event: Event) -> None:
        call = event.read_call()
        if call is None:
            self._count(event)
            return
        if not self._is_watched(call) or is_inside_another_trace():
            return
        outcome = call.outcome if capabilities().outcomes else "unknown"
        if outcome == "failed":
            return
        seen = self._look(event, call, sharing=outcome == "shared")
        if seen is None:
            if outcome != "shared":
                self._count(event)
            return
        if outcome == "shared" or (outcome == "unknown" and seen.shares_trace):
            entry = seen.closest or seen.history.record(seen.signature, 0, compiled=None)
            if entry.refusal:
                raise TooManyTracesError(entry.refusal)
            begun = _Begun(seen.history, entry, None, event.seconds, is_guess=outcome == "unknown")
        else:
            begun = self._new_trace(seen, event.seconds)
        self._begun[threading.get_ident()] = begun

    def _compiled(self, event: Event) -> None:
        call = event.read_call()
        if call is None or not self._is_watched(call) or event.name != f"jit({jit_name(call.jit_function)})":
            return
        begun = self._take()
        if begun is not None:
            begun.seconds += event.seconds
            if begun.report is not None and begun.history.is_of(call.function):
                begun.history.definition.compiles += 1
                begun.entry.compiled = not call.in_transformation
                self._end(begun)
                return
        seen = self._look(event, call, sharing=not call.in_transformation)
        if seen is None:
            return
        seen.history.definition.compiles += 1
        seconds = event.seconds if begun is None else begun.seconds
        if not call.in_transformation:
            self._compiled_alone(seen, seconds, begun)
        elif not seen.shares_trace:  # several may be compiled for one trace
            self._end(self._new_trace(seen, seconds, _ONLY_COMPILED))

    def _is_watched(self, call: Call) -> bool:
        """Whether a function is the user's and not JAX's own, such as those that make arrays, and is one to watch."""
        if package_of(call.function) in {"jax", "jaxlib", "treewright"}:
            return False
        return self._concerns is None or self._concerns(call.function, name_of(call.function))

    def _look(self, event: Event, call: Call, *, sharing: bool) -> _Seen | None:
        """Compare a call with the earlier ones; None where that can't be done: the program must go on."""
        try:
            with self._lock:
                history = self._history_of(call.function)
            if event.signature is None:
                event.signature = signature_of(call, history.entries[-1].signature if history.entries else None)
            if event.kind == "trace" and not history.entries and not history.definition.traces:
                history.unseen = count_held(call.jit_function)
            return _Seen(history, event.signature, *history.closest(event.signature, sharing=sharing))
        except Exception:  # noqa: BLE001  a user's __eq__ or __hash__, a function that can't be hashed
            return None

    def _new_trace(self, seen: _Seen, seconds: float, unseen: str = "") -> _Begun:
        history, definition = seen.history, seen.history.definition
        with self._lock:
            definition.traces += 1
            number = definition.traces
        compared_with = None if seen.closest is None else seen.closest.number
        if history.forgotten:
            unseen = unseen or f"the closest of the last traces; {history.forgotten} before them are not remembered"
        if seen.closest is None and history.unseen:
            calls = "a call" if history.unseen == 1 else f"{history.unseen} calls"
            now = _arguments(seen.signature)
            unseen = f"JAX has traces for {calls} from before the block, whose arguments were not seen; now {now}"
            compared_with, history.unseen = 0, 0
        of_trace = tuple(difference for difference in seen.differences if not is_placement(difference))
        entry = history.record(seen.signature, number, compiled=False)
        if history.function is None:
            history.function = snapshot(history.reference())
        definition.last = history.function, entry
        report = RetraceReport(definition.name, "trace", number, of_trace, compared_with, seconds, caller(), unseen)
        try:
            self._begins(definition, report)
        except TooManyTracesError as error:
            entry.refusal = str(error)
            raise
        return _Begun(history, entry, report, seconds)

    def _compiled_alone(self, seen: _Seen, seconds: float, begun: _Begun | None) -> None:
        """A compilation without a trace of its own."""
        entry, definition, unseen = seen.closest, seen.history.definition, ""
        if entry is None or entry.compiled is None:  # it was traced before the block
            unseen = f"traced before the block, which was not seen; compiled in it for {_arguments(seen.signature)}"
        else:
            first, entry.compiled = not entry.compiled, True
            if first:
                return
        if begun is not None and begun.is_guess and not seen.differences:  # the caches were cleared
            begun = self._new_trace(seen, seconds)
            begun.entry.compiled = True
            self._end(begun)
            return
        number = 0 if entry is None else entry.number
        seen.history.record(seen.signature, number, compiled=True)
        report = RetraceReport(
            definition.name, "recompile", definition.compiles, seen.differences, number, seconds, caller(), unseen
        )
        self._begins(definition, report)
        self._ended(report)

    def _count(self, event: Event) -> None:
        """Where no more can be told than the name of what was traced."""
        is_other = self._concerns is not None and not self._concerns(None, event.name)
        if is_other or not called_by_the_user():  # what JAX traces for itself, which not every JAX reports
            return
        with self._lock:
            self._by_name[event.name] += 1
            number = self._by_name[event.name]
        report = RetraceReport(event.name, "count", number, seconds=event.seconds, caller=caller())
        self._begins(event.name, report)
        self._ended(report)

    def _history_of(self, function: Any) -> History:
        try:
            if function not in self._histories:
                self._histories[function] = self._new_history(function)
            return self._histories[function]
        except TypeError:
            if id(function) not in self._unhashable:
                self._unhashable[id(function)] = self._new_history(function)
                weakref.finalize(function, self._unhashable.pop, id(function)).atexit = False
            return self._unhashable[id(function)]

    def _new_history(self, function: Any) -> History:
        code, file = definition_of(function)
        of_files = self._definitions.setdefault(code, {})
        if file not in of_files:
            of_files[file] = Definition(name_of(function))
        return History(function, of_files[file])

    def _take(self) -> _Begun | None:
        return self._begun.pop(threading.get_ident(), None)

    def _end(self, begun: _Begun | None) -> None:
        if begun is not None and begun.report is not None:
            self._ended(dataclasses.replace(begun.report, seconds=begun.seconds))


def _arguments(signature: Signature) -> str:
    """`x: float32[2] (committed to cpu:0), n: 3`."""
    texts: list[str] = []
    for name in signature.passed:
        value = signature.arguments[name]
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


def package_of(function: Any) -> str:
    """The package that a function is of."""
    return str(getattr(innermost(function), "__module__", "")).partition(".")[0]
