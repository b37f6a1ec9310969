"""The report: a table for each checker, and what it says about each expression that is not right."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

from _checkers import Complaints
from _lines import table as markdown
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
    return markdown([head, *(list(_cells(row)) for row in rows)], right=True)


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
