"""Each construct of each library, before and after, as text: `cases/LIBRARY-construct.txt`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from treewright.move.libraries import LIBRARIES
from treewright.move.rewrite import moved
from treewright.move.source import Notice, Source

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
PATH = Path("program.py")


def move(text: str, library: str | None = None) -> tuple[str, list[Notice]]:
    """A program rewritten, and what has to be looked at."""
    source = Source(PATH, text.encode())
    chosen = [each for each in LIBRARIES if library in {None, each.name}]
    (after,) = moved([source], chosen)
    return after.decode(), sorted(source.findings)


def shown(findings: list[Notice]) -> str:
    marks = {True: "decide", False: "know"}
    return "".join(f"{each.line}: {marks[each.undecided]}: {each.text} [{each.page}]\n" for each in findings)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_a_construct_moves_as_its_case_says_and_a_second_time_changes_nothing(case: Path) -> None:
    before, rest = case.read_text(encoding="utf-8").split("=== after\n")
    after, findings = rest.split("=== findings\n")

    found, noted = move(before)

    if "UPDATE_SNAPSHOTS" in os.environ:
        case.write_text(f"{before}=== after\n{found}=== findings\n{shown(noted)}", encoding="utf-8")
    else:
        assert found == after
        assert shown(noted) == findings
    again, _ = move(found)
    assert again == found
    compile(found, str(PATH), "exec")
