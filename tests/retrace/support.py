"""Helpers for the tests of retraces."""

from __future__ import annotations

import itertools
import re
import types
from typing import TYPE_CHECKING, Any, NamedTuple

import treewright
from tests.expected_text import without_varying_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treewright import RetraceReport


def details(report: RetraceReport) -> list[str]:
    """The lines below the headline, without what varies."""
    return [without_varying_parts(line[4:]) for line in str(report).splitlines()[1:]]


_numbers = itertools.count()


def fresh(function: Any) -> Any:
    """A copy of this function, as if it were defined at a different place in the program."""
    code = function.__code__.replace(co_consts=(*function.__code__.co_consts, f"copy {next(_numbers)}"))
    made = types.FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def explained(*calls: Callable[[], object], **options: Any) -> list[RetraceReport]:
    """The reports for some calls."""
    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append, **options):
        for call in calls:
            call()
    return reports


class Program(NamedTuple):
    """A paragraph of a file: some code, its complete reports, and the code after the fix."""

    name: str  # with the heading before it
    line: int
    code: str
    reports: str
    fixed: str

    def run(self, namespace: dict[str, Any], file: str, *, fixed: bool = False) -> Any:
        """The result of the code, or of the fixed code."""
        code = self.fixed if fixed else self.code
        exec(compile("\n" * (self.line - 1) + "def program():\n" + code, file, "exec"), namespace)
        return namespace["program"]()


def rewrite(file: Path, program: Program, reports: str) -> None:
    """Replace the reports in the file."""
    text, old = file.read_text(), "".join(f"=> {line}" if line[0] != " " else line for line in _lines(program.reports))
    new = "".join(f"=> {line}" if line[0] != " " else line for line in _lines(reports))
    start = text.index(program.name.partition(": ")[2] + "\n" + program.code)
    at = text.index(program.code, start) + len(program.code)
    file.write_text(text[:at] + new + text[at + len(old) :])


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def programs_in(file: Path) -> list[Program]:
    """The paragraphs of a file under its headings, which begin with `#`, reports with `=>`, fixes with `fixed:`."""
    return list(_programs(file.read_text()))


def _programs(text: str) -> Iterator[Program]:
    heading = ""
    for paragraph in re.finditer(r"(?:.+\n)+", text):
        first, _, rest = paragraph[0].partition("\n")
        if first.startswith("# "):
            heading = first[2:]
        elif heading:
            before, _, fixed = rest.partition("fixed:\n")
            code, arrow, reports = before.partition("=> ")
            line = text.count("\n", 0, paragraph.start()) + 1
            yield Program(f"{heading}: {first}", line, code, (arrow + reports).replace("=> ", ""), fixed)
