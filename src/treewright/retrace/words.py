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


def duration(seconds: float) -> str:
    """`12 ms`, `3.4 s`, `21 min`."""
    if seconds >= 120:
        return f"{seconds / 60:.0f} min"
    if seconds >= 10:
        return f"{seconds:.0f} s"
    return f"{seconds:.1f} s" if seconds >= 0.95 else f"{seconds * 1000:.0f} ms"


def counted(count: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{count} {noun}{'s' * (count != 1)}"


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
    yield saveable_line(run)
    for number, group in enumerate(avoidable[:_GROUPS], 1):
        yield ""
        yield from group_lines(group, number)
    if len(avoidable) > _GROUPS:
        yield f"... and {len(avoidable) - _GROUPS} more; --html shows all of them"
    others = [group for group in groups if not group.avoidable]
    if others:
        yield ""
        yield "Compiled again, for reasons that have no general cure:"
        for group in others[:_GROUPS]:
            yield from group_lines(group)
        if len(others) > _GROUPS:
            yield f"... and {len(others) - _GROUPS} more; --html shows all of them"
    yield from operation_lines(run)
    yield ""
    yield from cache_lines(cache)


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


def operation_lines(run: Run) -> Iterator[str]:
    """The lines that cost most by operations outside of jit, where they cost much."""
    costly = [group for group in run.operations() if group.seconds >= _MUCH * run.seconds]
    if costly:
        yield ""
        yield "Operations outside of jit are compiled one by one. The lines that cost most by them:"
    for group in costly[:_LINES]:
        yield f"  {group_title(group)}"
        yield from (f"     {reason_text(reason)}" for reason in group.reasons)
        yield from (f"     cure: {cure}" for cure in cures(group))


def _table(run: Run) -> Iterator[str]:
    rows = run.rows()
    cells: list[tuple[str, ...]] = [("function", "traces", "compilations", "tracing", "compiling", "of the run")]
    cells += [_cells(row, run) for row in rows[:_ROWS]]
    if rows[_ROWS:]:
        rest = rows[_ROWS:]
        numbers = [sum(column) for column in zip(*(dataclasses.astuple(row)[2:] for row in rest), strict=True)]
        whole = TableRow(f"{len(rest)} other functions", "", int(numbers[0]), int(numbers[1]), numbers[2], numbers[3])
        cells.append(_cells(whole, run))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for name, *numbers in cells:
        yield "  ".join([name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])])


def _named(one: TableRow | Program) -> str:
    return f"{one.function} ({one.where})" if one.where else one.function


def _cells(row: TableRow, run: Run) -> tuple[str, ...]:
    times = (duration(row.tracing), duration(row.compiling), share(row.seconds, run))
    return (_named(row), str(row.traces), str(row.compilations), *times)


def group_lines(group: Group, number: int | None = None) -> Iterator[str]:
    """The reason, the places and the cure of what was compiled again."""
    margin = "  " if number is None else f"{number}. "
    first, last = group.first, group.last
    yield f"{margin}{group_title(group)}"
    yield from (f"     {reason_text(reason)}" for reason in group.reasons[:_REASONS])
    if len(group.reasons) > _REASONS:
        yield f"     ... and {len(group.reasons) - _REASONS} more"
    for reason in group.last_reasons[:_REASONS]:
        yield f"     the last time: {reason_text(reason)}"
    where = f"at {first.place}" if first.place == last.place else f"first at {first.place}, last at {last.place}"
    if first.place:
        yield f"     {where}"
    yield from (f"     cure: {cure}" for cure in cures(group))


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
    functions = list(dict.fromkeys(program.function for program in programs))
    return f"{counted(len(programs), 'program')} ({_some(functions)}; {duration(seconds)})"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMES]) + (", ..." if names[_NAMES:] else "")


def _cut(text: str) -> str:
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 4]} ..."


def as_json(run: Run, cache: CacheReport) -> dict[str, Any]:
    """The whole report as data. Times are in seconds."""
    return {
        "version": 1,
        "command": run.command,
        "status": run.status,
        "jax": run.jax,
        "seconds": run.seconds,
        "compiling": run.compiling,
        "saveable": run.saveable,
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
            "saved": cache.saved,
            "next_start": cache.next_start,
            "at_most": cache.at_most,
            "missed": [
                {
                    "function": missed.program.function,
                    "line": missed.line,
                    "old": missed.old,
                    "new": missed.new,
                    "cause": missed.cause,
                }
                for missed in cache.missed
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
