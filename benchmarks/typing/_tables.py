"""The report: a table for each checker, and what it says about each expression that is not right."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence

from _checkers import Complaints
from _programs import GROUPS, Program
from _verdicts import Verdict

WRONG: tuple[Verdict, ...] = ("wrongly accepted", "wrongly refused", "Any")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """The verdicts of one checker on one library's program."""

    name: str
    program: Program
    verdicts: Mapping[str, Verdict]
    said: Complaints

    @property
    def share(self) -> float:
        """How much of what was asked is right, from 0 to 1."""
        return self.right() / len(self.verdicts)

    def right(self, *names: str) -> int:
        """How many of these expressions are right; of all, if none is named."""
        return sum(self.verdicts[name] == "right" for name in names or self.verdicts)


def table(rows: Sequence[Row]) -> str:
    """One row for each library: right of asked, in all, without what only a good design can give, and by group."""
    head = ["library", "right", "share", "plain", *(group.letter for group in GROUPS), *WRONG]
    return _aligned([head, *(_cells(row) for row in rows)])


def _cells(row: Row) -> Iterator[str]:
    asked = row.program.asked
    yield row.name
    yield f"{row.right()}/{len(asked)}"
    yield f"{row.share:.1%}"
    yield _share(row, [one.name for one in asked if not one.design])
    for group in GROUPS:
        names = [one.name for one in asked if one in group.expressions]
        yield f"{row.right(*names)}/{len(names)}" if names else "-"
    yield from (str(sum(verdict == wrong for verdict in row.verdicts.values())) for wrong in WRONG)


def _share(row: Row, names: Sequence[str]) -> str:
    return f"{row.right(*names) / len(names):.1%}"


def _aligned(rows: Iterable[Iterable[str]]) -> str:
    """`rows` as a markdown table that also reads well as plain text; the first row is its head."""
    cells = [list(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) + " |" for row in cells]
    lines.insert(1, "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|")
    return "\n".join(lines)


def legend() -> str:
    """What the columns stand for."""
    return "; ".join(f"{group.letter} {group.title}" for group in GROUPS)


def details(row: Row) -> Iterator[str]:
    """Each expression that is not right: the verdict, the lines that were asked, and what the checker says of them."""
    text = row.program.text.splitlines()
    for name, verdict in row.verdicts.items():
        if verdict == "right":
            continue
        lines = sorted(row.program.lines[name])
        yield f"{name} {verdict}: {' / '.join(text[line - 1].strip() for line in lines)}"
        for line in lines:
            for complaint in row.said.get((row.program.file, line), ()):
                yield f"    {complaint.code}: {' '.join(complaint.message.split())}"
