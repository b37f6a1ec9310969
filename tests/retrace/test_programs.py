"""Reports on whole programs: `programs.txt` by kind of change, `code_bases.txt` as users write them.

`UPDATE_SNAPSHOTS=1 pytest tests/retrace/test_programs.py` rewrites the reports. The headline has tests of its own.
"""

from __future__ import annotations

import ast
import functools
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

import treewright
from tests.conftest import skip_before_jax, skip_below_devices
from tests.expected_text import compare_with_snapshot, without_varying_parts
from tests.retrace import programs
from tests.retrace.support import Program, programs_in, rewrite
from treewright.retrace import fixes as fixes_module

if TYPE_CHECKING:
    from treewright import RetraceReport

pytestmark = [
    pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning"),
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable"),
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager has been deprecated:DeprecationWarning"),
]
FILES = [Path(__file__).with_name(name) for name in ("programs.txt", "code_bases.txt")]
PROGRAMS = [(file, program) for file in FILES for program in programs_in(file)]
FIXED = [(file, program) for file, program in PROGRAMS if program.fixed]


def written(report: RetraceReport) -> str:
    """A report as the file has it: function, event and number, and the lines below the headline."""
    below = [line for line in str(report).splitlines()[1:] if not line.startswith("    compared with trace")]
    return "\n".join([f"{report.function}: {report.event} {report.number}", *map(without_varying_parts, below), ""])


def result_and_reports(file: Path, program: Program, *, fixed: bool = False) -> tuple[Any, str]:
    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        result = program.run(dict(vars(programs)), file.name, fixed=fixed)
    return result, "".join(map(written, reports))


def names(programs_of_files: list[tuple[Path, Program]]) -> list[str]:
    return [program.name for _, program in programs_of_files]


def skip_without_devices(program: Program) -> None:
    """Skip a program whose title says that it needs devices which are not here."""
    if needed := re.search(r"on (\d) devices", program.name):
        skip_below_devices(int(needed[1]))


@pytest.mark.parametrize(("file", "program"), PROGRAMS, ids=names(PROGRAMS))
def test_each_program_produces_exactly_its_reports(file: Path, program: Program) -> None:
    since = re.search(r"since JAX ([\d.]+)", program.name)
    if since:
        skip_before_jax(*map(int, since[1].split(".")))

    skip_without_devices(program)

    def reports() -> str:
        return result_and_reports(file, program)[1]

    compare_with_snapshot(reports, program.reports, functools.partial(rewrite, file, program))


@pytest.mark.parametrize(("file", "program"), FIXED, ids=names(FIXED))
def test_the_fixed_program_does_not_retrace_and_computes_the_same(file: Path, program: Program) -> None:
    skip_without_devices(program)
    with jax.disable_jit():
        expected = program.run(dict(vars(programs)), file.name)

    result, reports = result_and_reports(file, program, fixed=True)

    assert reports == ""
    assert jax.tree.leaves(expected), "the program returns its numbers"
    jax.tree.map(np.testing.assert_allclose, result, expected)


def fixes() -> list[str]:
    """The sentences of `treewright.retrace.fixes`."""
    parts = list(ast.walk(ast.parse(inspect.getsource(fixes_module))))
    texts = {part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    docstrings = {
        part.value.value for part in parts if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)
    }
    return sorted({text for text in texts - docstrings if text.count(" ") > 2} - {*fixes_module.FIXES})


@pytest.mark.parametrize("fix", fixes())
def test_each_fix_has_a_program(fix: str) -> None:
    assert any(fix in program.reports for _, program in FIXED)


def test_the_program_tables_are_read_completely() -> None:
    assert len(PROGRAMS) >= 200
    assert len(FIXED) >= 30
