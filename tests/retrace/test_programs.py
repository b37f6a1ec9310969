"""What is said of whole programs: a report that is not in the table, or a line more, is a failure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

import treewright
from tests.conftest import skip_before_jax
from tests.retrace.programs_of_statics import KINDS

if TYPE_CHECKING:
    from treewright import RetraceReport

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable"),
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager has been deprecated:DeprecationWarning"),
]


WITH_REASONS = frozenset({"values", "inside", "arguments"})


def written(report: RetraceReport, *, reasons: bool) -> str:
    """A report as the table has it."""
    text = "\n".join(str(report).splitlines()[1:])
    text = text.replace("\n        ", "; " if reasons else "\n     ")
    lines = [line[4:] for line in text.splitlines() if not line.startswith("     ")]
    told = [re.sub(r"Param\(.*", "Param", line) for line in lines if not line.startswith("compared with trace ")]
    return re.sub(r"( at | \()(programs|_)\w*\.py:\d+\)?", "", f"{report.event} {report.number}: {' | '.join(told)}")


PROGRAMS = [pytest.param(kind, name, id=f"{kind}: {name}") for kind, programs in KINDS.items() for name in programs]


@pytest.mark.parametrize(("kind", "name"), PROGRAMS)
def test_a_program_is_told_what_happened_and_nothing_else(kind: str, name: str) -> None:
    program, expected = KINDS[kind][name]
    if kind == "settings without a name before JAX 0.10.2":
        skip_before_jax(0, 10, 2)
    reports: list[RetraceReport] = []

    with treewright.explain_retraces(on_report=reports.append):
        program()

    assert [written(report, reasons=kind in WITH_REASONS) for report in reports] == expected


def test_there_are_programs_of_each_kind() -> None:
    assert len(PROGRAMS) >= 60
    assert all(len(programs) >= 2 for programs in KINDS.values())
