"""What the command and the pytest plugin write down of a run: seconds by function, retraces, and the cache."""

import collections
import dataclasses
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from treewright._core.text import counted, table
from treewright._trees.diff import Difference
from treewright.retrace.jax_private import (
    CACHE_ASKED,
    CACHE_READ,
    CACHE_SAVED,
    CACHE_WRITTEN,
    OBSERVER,
    Event,
    is_probe,
    user_frame,
)
from treewright.retrace.report import RetraceReport, remedy_of
from treewright.retrace.signature import place_in
from treewright.retrace.watch import Watch, definition_of, name_of, package_of

_OUTSIDE = "operations outside of jit"
_ROWS = 15
_REPORTS = 20
_LINES = 5
_MIN_SECONDS = "jax_persistent_cache_min_compile_time_secs"


@dataclasses.dataclass(slots=True)
class _Span:
    """A trace, a lowering or a compilation, without what else happened inside of it."""

    kind: str
    function: str
    where: str  # of the function's definition, or of the line that called an operation
    is_operation: bool
    thread: int
    began: float
    seconds: float
    own: float
    cache: str = ""  # what the persistent cache did: read, kept, or asked in vain


class Record:
    """Listens to JAX until `end`."""

    def __init__(self) -> None:
        self.reports: list[RetraceReport] = []
        self._spans: list[_Span] = []
        self._cache: dict[int, dict[str, float]] = {}  # by thread, of the program that is compiled now
        self._saved = 0.0
        self._watch = Watch(ended=self._add_report)
        OBSERVER.add(self._hear)
        OBSERVER.add(self._watch.hear)

    def end(self) -> "Record":
        """Add reports of what was traced last."""
        self._watch.flush()
        return self

    def _add_report(self, report: RetraceReport) -> None:
        if report.is_retrace:
            self.reports.append(report)

    def _hear(self, event: Event) -> None:
        if is_probe():
            return
        thread = threading.get_ident()
        if event.kind == "cache":
            self._cache.setdefault(thread, {})[event.name] = event.seconds
            return
        now = time.monotonic()
        began = now - event.seconds
        inner = sum(span.own for span in self._spans[-64:] if span.thread == thread and span.began >= began)
        function, where, is_operation = _what_was_compiled(event)
        cache = self._cache_of(thread) if event.kind == "compile" else ""
        own = max(event.seconds - inner, 0.0)
        self._spans.append(_Span(event.kind, function, where, is_operation, thread, began, event.seconds, own, cache))

    def _cache_of(self, thread: int) -> str:
        events = self._cache.pop(thread, {})
        self._saved += events.get(CACHE_SAVED, 0.0)
        done = {CACHE_READ: "read", CACHE_WRITTEN: "kept", CACHE_ASKED: "not kept"}
        return next((text for name, text in done.items() if name in events), "")

    # The report

    def text(self, program: Sequence[str], seconds: float) -> str:
        """All that a person wants to know at the end of a run."""
        command = " ".join(program)
        if not self._spans:
            return (
                f"treewright retraces: {command} ran for {_duration(seconds)}; JAX traced and compiled nothing in it."
            )
        spent = sum(span.own for span in self._spans)
        share = f"{_duration(spent)} of it ({spent / seconds:.0%}) tracing and compiling"
        lines = [f"treewright retraces: {command} ran for {_duration(seconds)}, {share}.", ""]
        lines += [*self._table(), "", *self._retraces(), *self._operations(), "", *self._cache_lines()]
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, int, int, float, float]]:
        """By function: its traces and compilations, and the seconds of both, the longest first."""
        rows: dict[str, list[_Span]] = {}
        for span in self._spans:
            name = _OUTSIDE if span.is_operation else f"{span.function} ({span.where})" if span.where else span.function
            rows.setdefault(name, []).append(span)
        summed = [
            (
                name,
                sum(span.kind == "trace" for span in spans),
                sum(span.kind == "compile" for span in spans),
                sum(span.own for span in spans if span.kind == "trace"),
                sum(span.own for span in spans if span.kind != "trace"),
            )
            for name, spans in rows.items()
        ]
        return sorted(summed, key=lambda row: -row[3] - row[4])

    def _table(self) -> list[str]:
        head = ("function", "traces", "compilations", "tracing", "compiling")
        rows = self._rows()
        cells = [(name, str(n), str(m), _duration(a), _duration(b)) for name, n, m, a, b in rows[:_ROWS]]
        more = [f"and {counted(len(rows) - _ROWS, 'other function')}"] if len(rows) > _ROWS else []
        return [*table([head, *cells], right=head[1:]), *more]

    def _retraces(self) -> Iterator[str]:
        if not self.reports:
            yield "Nothing was traced or compiled again."
            return
        seconds = sum(report.seconds or 0.0 for report in self.reports)
        yield f"Traced or compiled again: {counted(len(self.reports), 'time')}, {_duration(seconds)}."
        costly = sorted(self.reports, key=lambda report: -(report.seconds or 0.0))[:_REPORTS]
        yield from (str(report) for report in self.reports if report in costly)
        if len(self.reports) > _REPORTS:
            yield f"and {len(self.reports) - _REPORTS} more that took less time; --json FILE has all of them"

    def _operations(self) -> Iterator[str]:
        lines = self._lines_outside()
        if lines:
            yield ""
            yield "Lines outside of jit that compile, each operation by itself; a jitted function is one program:"
        for place, spans in lines[:_LINES]:
            names = collections.Counter(span.function for span in spans if span.kind == "compile")
            most = ", ".join(f"{name} {count} times" if count > 1 else name for name, count in names.most_common(3))
            programs = counted(sum(names.values()), "program")
            yield f"    {place}: {programs} ({most}), {_duration(sum(span.own for span in spans))}"

    def _lines_outside(self) -> list[tuple[str, list[_Span]]]:
        """The lines outside of jit for which several programs were compiled, those that cost most first."""
        lines: dict[str, list[_Span]] = {}
        for span in self._spans:
            if span.is_operation and span.where:
                lines.setdefault(span.where, []).append(span)
        several = [(place, spans) for place, spans in lines.items() if sum(s.kind == "compile" for s in spans) > 1]
        return sorted(several, key=lambda line: -sum(span.own for span in line[1]))

    def _cache_lines(self) -> Iterator[str]:
        folder, least = _setting("jax_compilation_cache_dir"), _setting(_MIN_SECONDS)
        compiled = [span for span in self._spans if span.kind == "compile"]
        if not folder or not _setting("jax_enable_compilation_cache"):
            could = _duration(sum(span.seconds for span in compiled))
            yield "The persistent compilation cache is off. With JAX_COMPILATION_CACHE_DIR=FOLDER and"
            yield f"{_MIN_SECONDS.upper()}=0 the next start would save up to {could}."
            return
        yield f"Persistent compilation cache: {folder}"
        for what in ("read", "kept", "not kept"):
            spans = [span for span in compiled if span.cache == what]
            saved = f", which saved {_duration(self._saved)}" if what == "read" and spans else ""
            label = what if what == "read" else f"missed and {what}"
            yield f"    {label}: {counted(len(spans), 'program')}, {_duration(sum(s.seconds for s in spans))}{saved}"
        small = [span.seconds for span in compiled if span.cache == "not kept" and span.seconds < least]
        if small:
            could = f"would save up to {_duration(sum(small))} more at the next start"
            yield f"    {_MIN_SECONDS.upper()}=0 (it is {least:g}) {could}."

    def as_json(self, program: Sequence[str], seconds: float) -> dict[str, Any]:
        """The whole report as data. Times are in seconds."""
        names = ("function", "traces", "compilations", "tracing", "compiling")
        return {
            "version": 2,
            "command": list(program),
            "seconds": seconds,
            "spent": sum(span.own for span in self._spans),
            "functions": [dict(zip(names, row, strict=True)) for row in self._rows()],
            "retraces": [_report_json(report) for report in self.reports],
            "outside of jit": {
                place: {"seconds": sum(span.own for span in spans), "programs": len(spans)}
                for place, spans in self._lines_outside()
            },
            "cache": {
                what: [span.function for span in self._spans if span.cache == what]
                for what in ("read", "kept", "not kept")
            }
            | {"saved": self._saved},
        }

    def timeline(self) -> list[dict[str, Any]]:
        """The events of Chrome's trace format, which Perfetto opens."""
        first = min((span.began for span in self._spans), default=0.0)
        return [
            {
                "name": f"{span.kind} {span.function}",
                "cat": span.kind,
                "ph": "X",
                "ts": (span.began - first) * 1e6,
                "dur": span.seconds * 1e6,
                "pid": os.getpid(),
                "tid": span.thread,
                "args": {"where": span.where, "cache": span.cache},
            }
            for span in self._spans
        ]


def _what_was_compiled(event: Event) -> tuple[str, str, bool]:
    """The name of what JAX tells of, where it is defined or called, and whether it is an operation outside of jit."""
    call = event.read_call()
    if call is not None and package_of(call.function) not in {"jax", "jaxlib"}:
        code = definition_of(call.function)[0]
        place = f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}" if hasattr(code, "co_filename") else ""
        return name_of(call.function), place, False
    frame = user_frame()
    return (
        event.name.removeprefix("jit(").removeprefix("jit_").removesuffix(")"),
        "" if frame is None else place_in(frame),
        True,
    )


def _setting(name: str) -> Any:
    return getattr(jax.config, name, None)


def _report_json(report: RetraceReport) -> dict[str, Any]:
    def difference_json(difference: Difference) -> dict[str, str]:
        return {"kind": difference.kind, "text": str(difference), "remedy": remedy_of(difference)}

    parts = [part for whole in report.differences for part in whole.parts or (whole,)]
    values = {name: getattr(report, name) for name in ("function", "event", "number", "seconds", "caller")}
    return {**values, "text": str(report), "differences": [difference_json(part) for part in parts]}


def _duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `21 min`."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1000:.0f} ms"
