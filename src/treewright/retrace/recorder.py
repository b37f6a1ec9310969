"""What the command writes down while a program runs: each trace, lowering and compilation, with place and reason."""

import atexit
import os
import threading
import time
import zlib
from typing import Any

import jax

from treewright._core.text import array_text, first_names
from treewright._trees.diff import Difference
from treewright.retrace.call import caller, place_in
from treewright.retrace.history import definition_of, name_of
from treewright.retrace.jax_cache import ASKED, READ, SAVED, WRITTEN, CacheRequest, cache_request_on_stack
from treewright.retrace.jax_private import (
    LOOKING,
    Call,
    EventKind,
    call_on_stack,
    frames_above,
    is_inside_another_trace,
)
from treewright.retrace.record import LOWERED, Record
from treewright.retrace.remedies import remedy_of
from treewright.retrace.report import RetraceReport, change_and_reason, place_of
from treewright.retrace.watch import CLEARED, Watch, package_of

# What decides whether the persistent compilation cache keeps a program.
_CACHE_SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_compilation_cache_max_size",
)
_SPANS = 64  # of a thread, newest last: those that a later one may contain
_OPERANDS = 4
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_STANDARD = os.__file__.removesuffix("os.py")
_NOTHING_DIFFERS = (
    "nothing that can be seen differs: JAX's caches were cleared (jax.clear_caches, clear_cache), or a setting"
)
_UNREAD = "the arguments could not be read in this version of JAX"


class _OfThread(threading.local):
    """What is known of the events of one thread."""

    def __init__(self) -> None:
        self.heard: float = 0.0  # when the event came that is told now
        self.began: float = 0.0  # the same by the clock for what we take, which stands while others have the processor
        self.spans: list[tuple[float, float]] = []
        self.reports: list[tuple[Any, RetraceReport]] = []
        self.request: CacheRequest | None = None
        self.cache: dict[str, Any] = {}


class EventRecorder(Watch):
    """A watch that the program does not notice: from `start` to `stop`, it writes what JAX does into a record."""

    def __init__(self, record: Record) -> None:
        super().__init__(begins=self._keep, recompiled=self._keep)
        self._record = record
        self._thread = _OfThread()
        self._settings: dict[str, Any] = {}
        self._rows: dict[str, dict[str, Any]] = {}  # of functions, by their names

    def start(self) -> None:
        """Write down all that comes from now on."""
        self.__enter__()
        about = {"jax": jax.__version__, "XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}
        self._record.write({"kind": "jax", **about, "ours": time.thread_time() - self._record.began})
        atexit.register(self._say_what_was_missed)

    def stop(self) -> None:
        """Write nothing more."""
        atexit.unregister(self._say_what_was_missed)
        self.__exit__()

    def _say_what_was_missed(self) -> None:
        if not self.listener.is_told():
            self.warn(CLEARED)

    def warn(self, text: str) -> None:
        """Write down what the report can't know."""
        self._record.write({"kind": "note", "text": text})

    def _keep(self, definition: Any, report: RetraceReport) -> None:
        """Keep a report until it is written down what it is about."""
        self._thread.reports.append((definition, report))

    def _hear(self, kind: EventKind, seconds: float, name: str) -> None:
        self._thread.heard, self._thread.began = time.monotonic(), time.thread_time()
        try:
            if kind == "cache":
                self._hear_of_the_cache(name, seconds)
            elif threading.current_thread().name != LOOKING:
                call = call_on_stack()
                self.told(kind, call, seconds, name)
                self._write(kind, call, seconds, name)
        except Exception as error:  # noqa: BLE001  whatever fails here, the program must go on
            self.warn(f"An event of JAX could not be written down: {type(error).__name__}: {error}")

    def _write(self, kind: EventKind, call: Call | None, seconds: float, name: str) -> None:
        here = self._thread
        # JAX also tells of a call that shares the trace of another, and JAX 0.9.0 of traces inside of others.
        if kind == "trace" and call is not None and (call.outcome == "shared" or is_inside_another_trace()):
            return
        row = self._row(call, name)
        line: dict[str, Any] = {"kind": kind, **row, "at": here.heard, "seconds": seconds}
        line |= {"self": self._own_part(seconds), "place": _place(), "thread": threading.current_thread().name}
        if row["operation"]:
            line["operands"] = _operands(call) if kind != "lower" and call is not None else ""
        elif kind != "lower":
            report = self._take_report(row)
            if report is not None and report.is_retrace:
                line["retrace"] = explained(report, of_a_library=_is_installed(row["file"]))
        if kind == "compile":
            self._write_settings()
            line["cache"] = self._of_the_cache()
        line["ours"] = time.thread_time() - here.began
        self._record.write(line)

    def _row(self, call: Call | None, name: str) -> dict[str, Any]:
        """The row of the table that an event belongs in. Of a program compiled ahead of time, only its name is told."""
        plain = _plain(name)
        operation = {"function": plain, "file": "", "line": 0, "operation": True}
        if call is None:
            counted = any(definition == plain for definition, _ in self._thread.reports)
            return self._rows.get(plain, {**operation, "operation": not counted})
        if package_of(call.function) in {"jax", "jaxlib"}:
            return operation
        row = {"function": name_of(call.function), **_where(definition_of(call.function)), "operation": False}
        self._rows[plain] = row
        return row

    def _own_part(self, seconds: float) -> float:
        """The seconds of an event without those of the events inside of it."""
        here = self._thread
        began = here.heard - seconds
        inside = [span for span in here.spans if span[0] >= began]
        here.spans = [*(span for span in here.spans if span[0] < began), (began, seconds)][-_SPANS:]
        return max(0.0, seconds - sum(length for _, length in inside))

    def _take_report(self, row: dict[str, Any]) -> RetraceReport | None:
        """The report on what is told now; those on functions inside of it are dropped, for they are a part of it."""
        reports, self._thread.reports = self._thread.reports, []
        mine = [report for definition, report in reports if _is_of(definition, row)]
        return mine[-1] if mine else None

    def _hear_of_the_cache(self, event: str, seconds: float) -> None:
        here = self._thread
        if event == ASKED:
            here.request, here.cache = cache_request_on_stack(), {"outcome": "missed"}
        elif event == READ:
            here.cache["outcome"] = "read"
        elif event == SAVED:
            here.cache["saved"] = seconds
        elif event == WRITTEN:
            here.cache["outcome"] = "kept"

    def _of_the_cache(self) -> dict[str, Any]:
        here = self._thread
        request, cache = here.request, here.cache
        here.request, here.cache = None, {}
        if request is not None:
            cache |= {"key": request.key, "callbacks": request.is_left_out}
            if cache["outcome"] == "kept":
                file = self._record.path.parent / f"{request.key}{LOWERED}"
                file.write_bytes(zlib.compress(request.text().encode(), 1))
        return cache

    def _write_settings(self) -> None:
        settings = {name: getattr(jax.config, name, None) for name in _CACHE_SETTINGS}
        if settings != self._settings:
            self._settings = settings
            self._record.write({"kind": "settings", "settings": settings})


def explained(report: RetraceReport, *, of_a_library: bool = False) -> dict[str, Any]:
    """A report as JSON: its text, and a reason and a cure for each difference of another kind.

    A function that an installed package makes anew is that package's to mend, so there is no cure for it here.
    """
    reasons: dict[tuple[str, str, str], dict[str, str]] = {}
    for whole in report.differences:
        for part in whole.parts or (whole,):
            reason = _reason(part)
            if of_a_library and part.kind == "function":
                reason["cure"] = ""
            reasons.setdefault((reason["path"], reason["kind"], reason["cure"]), reason)
    if not reasons:
        why, cure = (_UNREAD, "") if report.event == "count" else (_NOTHING_DIFFERS, "find what clears them")
        reasons["", "", ""] = {"path": "", "kind": report.event, "change": why, "reason": "", "cure": cure}
    inevitable = of_a_library and any(reason["kind"] == "function" for reason in reasons.values())
    about = {"event": report.event, "number": report.number, "inevitable": inevitable, "text": str(report)}
    return {**about, "reasons": list(reasons.values())}


def _reason(difference: Difference) -> dict[str, str]:
    change, reason = change_and_reason(difference)
    about = {"path": place_of([difference]), "kind": difference.kind, "change": change, "reason": reason}
    return {**about, "cure": remedy_of(difference)}


def _plain(name: str) -> str:
    """The function's name in the names that JAX gives to its programs: `jit(step)`, `jit_step`."""
    if name.endswith(")"):
        return name.partition("(")[2][:-1]
    return name.removeprefix("jit_").removeprefix("pmap_")


def _where(definition: tuple[Any, str]) -> dict[str, Any]:
    code, file = definition
    return {"file": file, "line": getattr(code, "co_firstlineno", 0)}


def _is_of(definition: Any, row: dict[str, Any]) -> bool:
    if isinstance(definition, str):  # only counted, by the name
        return bool(definition == row["function"])
    return _where(definition) == {"file": row["file"], "line": row["line"]}


def _operands(call: Call) -> str:
    leaves = jax.tree.leaves((call.args, dict(call.kwargs)))
    return first_names(filter(None, map(array_text, leaves)), _OPERANDS)


def _place() -> str:
    """The nearest line of the program itself, and not of what is installed; of that, if there is no other."""
    for frame in frames_above():
        file = frame.f_code.co_filename
        if not _is_installed(file):
            return place_in(frame)
    return caller()


def _is_installed(file: str) -> bool:
    return file.startswith((_STANDARD, "<frozen")) or any(name in file for name in _INSTALLED)
