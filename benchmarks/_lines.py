"""What every benchmark gives to the table of all: one line for each thing that was measured against another.

And to the page about performance: tables of its own, and the rows where somebody else is ahead.
"""

import argparse
import dataclasses
import json
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One comparison. `measured` and `target` are texts in one unit: a ratio, a share, a time; no target is ""."""

    what: str
    against: str
    measured: str
    target: str
    reached: bool | None

    @property
    def verdict(self) -> str:
        """`reached`, `not reached`, or `not measured`; nothing for a line without a target."""
        if not self.target:
            return ""
        return {True: "reached", False: "not reached", None: "not measured"}[self.reached]


def table(rows: Sequence[Sequence[str]], *, right: bool = False) -> str:
    """`rows` as a markdown table that also reads well as plain text; the first row is its head.

    All columns but the first may be aligned on the right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned, rule = (str.rjust, ":") if right else (str.ljust, "-")
    lines = ["| " + " | ".join([row[0].ljust(widths[0]), *map(aligned, row[1:], widths[1:])]) + " |" for row in rows]
    lines.insert(1, "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + rule for width in widths[1:])]) + "|")
    return "\n".join(lines)


def lines_text(lines: Iterable[Line]) -> str:
    """The lines as a markdown table."""
    rows = [[one.what, one.against, one.measured, one.target, one.verdict] for one in lines]
    return table([["what", "against", "measured", "to reach", "verdict"], *rows])


@dataclasses.dataclass(frozen=True, slots=True)
class Behind:
    """A row in which somebody else is ahead of ours.

    Args:
        kind: Names the reason, in `_docs.py`.
        what: What was measured, and which of ours.
        against: Who is ahead.
        ratio: Ours to theirs.
    """

    kind: str
    what: str
    against: str
    ratio: float


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """All that a benchmark hands on; a table has its head as its first row."""

    lines: list[Line] = dataclasses.field(default_factory=list[Line])
    tables: dict[str, list[list[str]]] = dataclasses.field(default_factory=dict[str, list[list[str]]])
    behind: list[Behind] = dataclasses.field(default_factory=list[Behind])

    def add(self, other: "Report") -> None:
        """Take what another one has."""
        self.lines.extend(other.lines)
        self.tables.update(other.tables)
        self.behind.extend(other.behind)


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--lines FILE`, which `run_all.py` gives to each benchmark."""
    parser.add_argument("--lines", type=Path, metavar="FILE", help="write the table of targets to FILE as JSON")


def write(
    path: Path | None,
    lines: Sequence[Line],
    tables: Mapping[str, list[list[str]]] = types.MappingProxyType({}),
    behind: Sequence[Behind] = (),
) -> None:
    """Write the report, if a path was given."""
    if path is not None:
        report = Report(list(lines), dict(tables), list(behind))
        path.write_text(json.dumps(dataclasses.asdict(report), indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Report:
    """What a benchmark has written; nothing if it did not come so far."""
    if not path.exists():
        return Report()
    data = json.loads(path.read_text(encoding="utf-8"))
    lines, behind = ([kind(**one) for one in data[name]] for kind, name in ((Line, "lines"), (Behind, "behind")))
    return Report(lines, data["tables"], behind)
