"""What every benchmark gives to the table of all: one line for each thing that was measured against another."""

import argparse
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One comparison. `measured` and `target` are texts in one unit: a ratio, a share, a time."""

    what: str
    against: str
    measured: str
    target: str
    reached: bool | None

    @property
    def verdict(self) -> str:
        """`reached`, `not reached`, or `not measured`."""
        return {True: "reached", False: "not reached", None: "not measured"}[self.reached]


def table(rows: Sequence[Sequence[str]]) -> str:
    """`rows` as a markdown table that also reads well as plain text; the first row is its head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def lines_text(lines: Iterable[Line]) -> str:
    """The lines as a markdown table."""
    rows = [[one.what, one.against, one.measured, one.target, one.verdict] for one in lines]
    return table([["what", "against", "measured", "to reach", "verdict"], *rows])


def add_option(parser: argparse.ArgumentParser) -> None:
    """`--lines FILE`, which `run_all.py` gives to each benchmark."""
    parser.add_argument("--lines", type=Path, metavar="FILE", help="write the table of targets to FILE as JSON")


def write(path: Path | None, lines: Sequence[Line]) -> None:
    """Write the lines, if a path was given."""
    if path is not None:
        path.write_text(json.dumps([dataclasses.asdict(one) for one in lines]) + "\n", encoding="utf-8")


def read(path: Path) -> list[Line]:
    """The lines that a benchmark has written; none if it did not come so far."""
    if not path.exists():
        return []
    return [Line(**one) for one in json.loads(path.read_text(encoding="utf-8"))]
