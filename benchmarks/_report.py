"""The report: a header that says what ran where, a table for each measure, the targets; and the same as JSON."""

import datetime as dt
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from _lines import table
from _measures import Measure, sizes
from _peers import Library, version
from _targets import Results, Verdict
from _timing import Key, Times


def duration(seconds: float) -> str:
    """`seconds` with three digits in a unit that suits."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor() or platform.machine())


def peak() -> float:
    """The most memory that this process has had, in MiB.

    Not `ru_maxrss`: that of a new process begins with what the one that started it had in use.
    """
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) / 1024


def machine(distributions: Iterable[str | None]) -> dict[str, Any]:
    """What runs where, and the versions of these distributions."""
    names = dict.fromkeys(name for name in distributions if name is not None)
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": jax.devices()[0].platform,
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "versions": {"jaxlib": version("jaxlib")} | {name: version(name) for name in names},
    }


def machine_text(head: Mapping[str, Any]) -> str:
    """The machine and the versions as two lines."""
    where = f"{head['processor']}, {head['cores']} cores, {head['system']}, device {head['device']}"
    versions = ", ".join(f"{name} {number}" for name, number in head["versions"].items())
    return f"{where}, {head['python']}, {head['date']}\n{versions}"


def header(libraries: Iterable[Library], left_out: Mapping[str, str], *, repeats: int, classes: int) -> dict[str, Any]:
    """Machine, versions and settings of this run."""
    libraries = tuple(libraries)
    return {
        **machine(library.distribution for library in libraries),
        "without_statics": [library.name for library in libraries if library.static is None],
        "left_out": dict(left_out),
        "repeats": repeats,
        "classes": classes,
    }


def header_text(head: Mapping[str, Any]) -> str:
    """The header as a few lines."""
    cells = "Cells: ratio of medians / ratio of minimums to the row marked base."
    lines = [
        machine_text(head),
        f"{head['repeats']} samples of each cell, {head['classes']} classes of each for class creation. {cells}",
        f"Each node has 2 statics besides its children, but for {', '.join(head['without_statics'])}: they have none.",
    ]
    lines += [f"Left out: {name} ({reason})" for name, reason in head["left_out"].items()]
    return "\n".join(lines)


def _cell(times: Times | None, base: Times | None, *, is_base: bool) -> str:
    if times is None:
        return "-"
    if is_base or base is None:
        return f"{duration(times.median)} / {duration(times.minimum)}"
    return f"{times.median / base.median:.2f} / {times.minimum / base.minimum:.2f}"


def measure_text(measure: Measure, results: Results, libraries: Sequence[Library], children: Sequence[int]) -> str:
    """One measure: a row for each library, a column for each number of children."""
    columns = sizes(measure, children)
    rows = [[measure.title, *(f"{n} {'child' if n == 1 else 'children'}" for n in columns)]]
    for library in libraries:
        if library.role not in measure.needs:
            continue
        is_base = library.name == measure.base
        cells = [
            _cell(
                results.get(Key(measure.name, n, library.name)),
                results.get(Key(measure.name, n, measure.base)),
                is_base=is_base,
            )
            for n in columns
        ]
        rows.append([f"{library.name} (base)" if is_base else library.name, *cells])
    return table(rows)


def as_json(head: Mapping[str, Any], results: Results, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The whole run as data: times in nanoseconds for one operation."""
    return {
        "header": dict(head),
        "command": sys.argv[1:],
        "results": [
            {
                "measure": key.measure,
                "children": key.children,
                "library": key.library,
                "median_ns": times.median * 1e9,
                "minimum_ns": times.minimum * 1e9,
                "samples": len(times.samples),
            }
            for key, times in results.items()
        ],
        "targets": [
            {
                "number": one.target.number,
                "text": one.target.text,
                "against": one.against,
                "limit": one.target.limit,
                "ratios": {name: {"median": ratio[0], "minimum": ratio[1]} for name, ratio in one.ratios.items()},
                "reached": one.reached,
            }
            for one in verdicts
        ],
    }
