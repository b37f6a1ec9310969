"""What is said of whole programs, which stand in `programs.txt`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import treewright
from tests.conftest import skip_before_jax
from tests.retrace import programs
from tests.retrace.support import Program, programs_in

if TYPE_CHECKING:
    from treewright import RetraceReport

pytestmark = [
    pytest.mark.filterwarnings("ignore:Some donated buffers were not usable"),
    pytest.mark.filterwarnings("ignore:.with mesh.. context manager has been deprecated:DeprecationWarning"),
]
FILE = Path(__file__).with_name("programs.txt")
PROGRAMS = programs_in(FILE)
VARYING = (
    (r", [\d.e-]+ s\), called from .*", ")"),  # seconds and the caller
    (r"((programs|_\w+)\.(py|txt)):\d+", r"\1"),
    (r"\n    compared with trace \d+", ""),
    (r"TFRT_CPU_(\d)", r"cpu:\1"),  # before JAX 0.10
    (r"P(artitionSpec)?\(('\w+')?,?\)", r"P(\2)"),
    (r"Param\(.*", "Param"),
)


def written(report: RetraceReport) -> str:
    """A report as the file has it."""
    text = str(report)
    for varying, fixed in VARYING:
        text = re.sub(varying, fixed, text)
    return f"{text}\n"


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_a_program_is_told_what_happened_and_nothing_else(program: Program) -> None:
    since = re.search(r"since JAX ([\d.]+)", program.name)
    if since:
        skip_before_jax(*map(int, since[1].split(".")))
    names = dict(vars(programs))
    head = "\n" * (program.line - 1) + "def program():\n"
    exec(compile(head + program.code, FILE.name, "exec"), names)
    reports: list[RetraceReport] = []

    with treewright.explain_retraces(on_report=reports.append):
        names["program"]()

    assert "".join(map(written, reports)) == program.told


def test_the_file_was_read_whole() -> None:
    assert len(PROGRAMS) >= 100
