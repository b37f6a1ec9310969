"""The tables of docs/performance.md: the last run on each Python, kept as data, and written between marks."""

import dataclasses
import itertools
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from _lines import Behind, Line, Report, read, table, write

HERE = Path(__file__).parent
RUNS = HERE / "runs"  # a file for each Python
PAGE = HERE.parent / "docs" / "performance.md"
CHART = HERE.parent / "docs" / "images" / "step.svg"

# Why a peer is ahead, by what is measured.
REASONS = {
    "flatten": "JAX reads our pair through a Python attribute, and some classes by code of its own in C++.",
    "unflatten": "A class without a `__setattr__` stores by specialised bytecode; ours need one to refuse names.",
    "path": "`register_dataclass` pairs keys with children in C++; JAX calls a Python function for each of our nodes.",
    "construct": "Classes without statics have nothing to look up.",
    "jit": "Unflattening, see there.",
    "read": "Flattening, see there.",
    "class": "We read annotations, refuse what can't be a node, and generate an `__init__`.",
    "step": "Its classes are flattened by JAX in C++; a call of ours runs a few instructions of Python for each node.",
    "build": "Our `__init__` looks the statics up in a table, so that `jit` compares them by identity.",
    "forward": "Reading a field goes through the pair.",
    "first": "Tracing and compiling differ from process to process by more than this.",
    "memory": "Arrays are all but all of it; the rest differs from process to process.",
    "nested": "Our own `__init__` seals the node when it returns.",
    "replace": "It calls the constructor; ours also runs converters and checks, and takes statics from a table.",
    "update": "The path is followed in a Python function.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What all benchmarks measured on one Python."""

    python: str
    where: str
    report: Report


def keep(where: str, report: Report) -> None:
    """Keep a run in place of the one before it on this Python."""
    RUNS.mkdir(exist_ok=True)
    python = ".".join(platform.python_version_tuple()[:2])
    path = RUNS / f"{python}.json"
    write(path, report.lines, report.tables | {"where": [[where]]}, report.behind)


def runs() -> list[Run]:
    """The runs that are kept, the oldest Python first."""
    paths = sorted(RUNS.glob("*.json"), key=lambda path: [int(part) for part in path.stem.split(".")])
    reports = [(path.stem, read(path)) for path in paths]
    return [Run(f"CPython {python}", report.tables["where"][0][0], report) for python, report in reports]


def update_page() -> None:
    """Write the tables of all runs that are kept into the page."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), runs()), encoding="utf-8")


def with_tables(page: str, found: Sequence[Run]) -> str:
    """The page with what stands between `<!-- measured: NAME -->` and `<!-- end -->` made anew."""

    def replaced(match: "re.Match[str]") -> str:
        return f"{match[1]}\n\n{TABLES[match[2]](found)}\n\n{match[3]}"

    return re.sub(r"(<!-- measured: (\w+) -->).*?(<!-- end -->)", replaced, page, flags=re.DOTALL)


def _where(found: Sequence[Run]) -> str:
    return "\n".join(f"- {run.python}: {'; '.join(run.where.splitlines())}." for run in found)


def _targets(found: Sequence[Run]) -> str:
    """One row for each thing measured, a column for each Python; what misses its target is bold."""
    lines: dict[tuple[str, str, int], dict[str, Line]] = {}
    for run in found:
        seen: dict[tuple[str, str], Iterator[int]] = {}
        for line in run.report.lines:
            number = next(seen.setdefault((line.what, line.target), itertools.count()))
            lines.setdefault((line.what, line.target, number), {})[run.python] = line
    rows = [["what", "against", *(run.python for run in found), "to reach"]]
    for (what, target, _), by_python in lines.items():
        against = " or ".join(dict.fromkeys(line.against for line in by_python.values()))
        rows.append([what, against, *(_measured(by_python.get(run.python)) for run in found), target])
    return table(rows)


def _measured(line: Line | None) -> str:
    if line is None:
        return ""
    return f"**{line.measured}**" if line.verdict == "not reached" else line.measured


def _each(name: str) -> Callable[[Sequence[Run]], str]:
    """A table of one benchmark, once for each Python."""

    def text(found: Sequence[Run]) -> str:
        tables = [(run, run.report.tables[name]) for run in found if name in run.report.tables]
        return "\n\n".join(table([[run.python, *rows[0][1:]], *rows[1:]]) for run, rows in tables)

    return text


def _behind(found: Sequence[Run]) -> str:
    """One row for each thing in which a peer is ahead on one of the Pythons."""
    kinds: dict[str, str] = {}
    rows_of: dict[str, dict[str, Behind]] = {}
    for run in found:
        for one in run.report.behind:
            kinds[one.what] = one.kind
            rows_of.setdefault(one.what, {})[run.python] = one
    rows = [["what", *(run.python for run in found), "why"]]
    for what, by_python in rows_of.items():
        cells = [_ahead(by_python.get(run.python)) for run in found]
        rows.append([what, *cells, REASONS[kinds[what]]])
    return table(rows)


def _ahead(row: Behind | None) -> str:
    return "" if row is None else f"{row.ratio:.2f} of {row.against}"


TABLES: Mapping[str, Callable[[Sequence[Run]], str]] = {
    "where": _where,
    "targets": _targets,
    "step": _each("step"),
    "residual": _each("residual"),
    "behind": _behind,
}
