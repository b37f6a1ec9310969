"""The report of a run, as text and as JSON."""

import dataclasses
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from treewright.retrace.cache import CacheReport, Missed
from treewright.retrace.tally import OPERATIONS, Group, Program, Run, TableRow

_ROWS = 15
_GROUPS = 10
_REASONS = 6
_LINES = 5
_MUCH = 0.02  # of the run
_NAMES = 4
_WIDTH = 110
HEADS = ("function", "traces", "compilations", "tracing", "compiling", "of the run")


def duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `21 min`."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1000:.0f} ms"


def counted(count: int, noun: str) -> str:
    """`1 trace`, `2,000 traces`; that of `_values.text` would load jax beside the program."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def share(seconds: float, run: Run) -> str:
    """The share of a run."""
    return f"{seconds / run.seconds:.1%}" if run.seconds else "-"


def report_text(run: Run, cache: CacheReport) -> str:
    """All that a person wants to know at the end of a run."""
    return "\n".join(_lines(run, cache))


def _lines(run: Run, cache: CacheReport) -> Iterator[str]:
    yield ""
    yield f"treewright retraces: {headline(run)}"
    yield from (f"  {note}" for note in run.notes)
    if not run.programs:
        return
    yield ""
    yield from _table(run)
    yield ""
    groups = run.groups()
    avoidable = [group for group in groups if group.avoidable]
    others = [group for group in groups if not group.avoidable]
    yield saveable_line(run)
    for number, group in enumerate(avoidable[:_GROUPS], 1):
        yield ""
        yield from _card_lines(group, f"{number}. ")
    yield from _more_than_shown(avoidable)
    if others:
        yield ""
        yield "Compiled again, for reasons that have no general cure:"
        yield from (line for group in others[:_GROUPS] for line in _card_lines(group))
        yield from _more_than_shown(others)
    costly = [group for group in run.operations() if group.seconds >= _MUCH * run.seconds]
    if costly:
        yield ""
        yield "Operations outside of jit are compiled one by one. The lines that cost most by them:"
        yield from (line for group in costly[:_LINES] for line in _card_lines(group))
    yield ""
    yield from cache_lines(cache)


def _more_than_shown(groups: Sequence[Group]) -> Iterator[str]:
    if len(groups) > _GROUPS:
        yield f"... and {len(groups) - _GROUPS} more; --html shows all of them"


def headline(run: Run) -> str:
    """One sentence on the whole run."""
    command = shlex.join(run.command)
    if not run.programs:
        return f"{command} ran for {duration(run.seconds)}, and JAX traced and compiled nothing in it."
    spent = f"{duration(run.compiling)} of it ({share(run.compiling, run)}) tracing and compiling"
    return f"{command} ran for {duration(run.seconds)}, {spent}."


def saveable_line(run: Run) -> str:
    """What could be saved, in one sentence."""
    if not run.saveable:
        return "Nothing was compiled that could be avoided."
    retraces = [program for program in run.programs if program.avoidable and not program.operation]
    operations = [program for program in run.programs if program.avoidable and program.operation]
    parts = [
        f"{duration(sum(program.seconds for program in programs))} of {counted(len(programs), noun)}"
        for programs, noun in ((retraces, "retrace"), (operations, "unjitted operation"))
        if programs
    ]
    whole = f"Up to {duration(run.saveable)} could be saved ({share(run.saveable, run)} of the run)"
    return f"{whole}: {' and '.join(parts)}."


def _table(run: Run) -> Iterator[str]:
    rows = run.rows()
    cells = [HEADS, *((_named(row), *numbers(row, run)) for row in rows[:_ROWS])]
    if rows[_ROWS:]:
        rest = rows[_ROWS:]
        sums: list[Any] = [sum(column) for column in zip(*(dataclasses.astuple(row)[2:] for row in rest), strict=True)]
        name = f"{len(rest)} other functions"
        cells.append((name, *numbers(TableRow(name, "", *sums), run)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *others in cells:
        yield "  ".join([name.ljust(widths[0]), *map(str.rjust, others, widths[1:])])


def _named(one: TableRow | Program) -> str:
    return f"{one.function} ({one.where})" if one.where else one.function


def numbers(row: TableRow, run: Run) -> tuple[str, ...]:
    """The cells of a row, below all `HEADS` but the first."""
    times = (duration(row.tracing), duration(row.compiling), share(row.seconds, run))
    return (str(row.traces), str(row.compilations), *times)


def card(group: Group, most: int | None = None) -> Iterator[tuple[str, str]]:
    """What is said of a group, as many of its reasons as asked: lines of text, each after what it is."""
    first, last = group.first.place, group.last.place
    yield "title", group_title(group)
    yield from (("reason", reason_text(reason)) for reason in group.reasons[:most])
    if most is not None and len(group.reasons) > most:
        yield "reason", f"... and {len(group.reasons) - most} more"
    yield from (("last", reason_text(reason)) for reason in group.last_reasons[:most])
    if first and not group.first.operation:
        yield "place", f"at {first}" if first == last else f"first at {first}, last at {last}"
    yield from (("cure", cure) for cure in cures(group))


def _card_lines(group: Group, margin: str = "  ") -> Iterator[str]:
    for what, text in card(group, _REASONS):
        label = {"last": "the last time: ", "cure": "cure: "}.get(what, "")
        yield f"{margin}{text}" if what == "title" else f"     {label}{text}"


def group_title(group: Group) -> str:
    """Which function, how often, how long."""
    first = group.first
    name = _named(first)
    if first.operation:
        return f"{first.place}: {counted(len(group.programs), 'program')}, {duration(group.seconds)}"
    if first.retrace and first.retrace["event"] == "recompile":
        name += ", compiled again without a trace"
    return f"{name}: {counted(len(group.programs), 'time')}, {duration(group.seconds)}"


def reason_text(reason: Mapping[str, str]) -> str:
    """`batch['x']: float32[32,2] -> float32[31,2]; axis 0: 32 -> 31`."""
    path = f"{reason['path']}: " if reason["path"] else ""
    return _cut("; ".join(filter(None, [f"{path}{reason['change']}", reason["reason"]])))


def cures(group: Group) -> list[str]:
    """What to do, each once."""
    return list(dict.fromkeys(reason["cure"] for reason in group.reasons if reason["cure"]))


def cache_lines(cache: CacheReport) -> Iterator[str]:
    """What the persistent cache did, and what it could do."""
    if cache.why_off:
        yield f"Persistent compilation cache: off ({cache.why_off})."
        if cache.at_most >= 0.05:
            yield (
                f"  With JAX_COMPILATION_CACHE_DIR=FOLDER and JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 the next "
                f"start would save up to {duration(cache.at_most)}."
            )
        return
    yield f"Persistent compilation cache: {cache.folder}"
    yield f"  read: {_names(cache.read)}, which saved {duration(cache.saved)}" if cache.read else "  read: nothing"
    if cache.kept:
        yield f"  missed and kept: {_names(cache.kept)}"
    for reason, programs in cache.left_out.items():
        yield f"  missed and not kept: {_names(programs)}: {reason}"
    yield f"  The next start saves {duration(cache.next_start)} by what is there now."
    if cache.left_out and cache.least > 0 and cache.at_most > cache.next_start:
        yield (
            f"  With JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0 (it is {cache.least:g}) it would save "
            f"{duration(cache.at_most)}."
        )
    for missed in cache.missed:
        yield from _missed_lines(missed)


def _missed_lines(missed: Missed) -> Iterator[str]:
    name = _named(missed.program)
    if not missed.line:
        yield f"  {name} was kept by an earlier run, and missed: {missed.cause}"
        if missed.old != missed.new:
            yield f"    {_cut(missed.old) or 'unset'} -> {_cut(missed.new) or 'unset'}"
        return
    yield f"  {name} was kept by an earlier run, and missed: its lowered text differs from line {missed.line} on"
    yield f"    - {_cut(missed.old)}"
    yield f"    + {_cut(missed.new)}"
    if missed.cause:
        yield f"    {missed.cause}"


def _names(programs: Sequence[Program]) -> str:
    seconds = sum(program.compiling for program in programs)
    names = list(dict.fromkeys(program.function for program in programs))
    some = ", ".join([*names[:_NAMES], *(["..."] if names[_NAMES:] else [])])
    return f"{counted(len(programs), 'program')} ({some}; {duration(seconds)})"


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ..."


def as_json(run: Run, cache: CacheReport) -> dict[str, Any]:
    """The whole report as data. Times are in seconds."""
    missed = ("line", "old", "new", "cause")
    return {
        "version": 1,
        **{name: getattr(run, name) for name in ("command", "status", "jax", "seconds", "compiling", "saveable")},
        "watching": run.ours,
        "retraces": run.retraces,
        "notes": run.notes,
        "functions": [dataclasses.asdict(row) for row in run.rows()],
        "groups": [_group_json(group) for group in run.groups()],
        "operations": [_group_json(group) for group in run.operations()],
        "cache": {
            "folder": cache.folder,
            "off": cache.why_off,
            "read": _keys(cache.read),
            "kept": _keys(cache.kept),
            "left_out": {reason: _keys(programs) for reason, programs in cache.left_out.items()},
            **{name: getattr(cache, name) for name in ("saved", "next_start", "at_most")},
            "missed": [
                {"function": one.program.function, **{name: getattr(one, name) for name in missed}}
                for one in cache.missed
            ],
        },
        "programs": [dataclasses.asdict(program) for program in run.programs],
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "function": OPERATIONS if group.first.operation else group.first.function,
        "where": group.first.where,
        "avoidable": group.avoidable,
        "count": len(group.programs),
        "seconds": group.seconds,
        "first": group.first.place,
        "last": group.last.place,
        "reasons": [dict(reason) for reason in group.reasons],
        "cures": cures(group),
    }


def _keys(programs: Iterable[Program]) -> list[str]:
    return [str(program.cache.get("key", program.function)) for program in programs]
