"""Each construct of each library, before and after, as text: `cases/LIBRARY-construct.txt`.

A case contains a program of one or more files, each below a line `# file: NAME`, the program after the move, and the
report. Without `=== after` in place, `UPDATE_SNAPSHOTS=1` writes it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.expected_text import compare_with_snapshot
from treewright.__main__ import main

pytestmark = pytest.mark.slow

CASES = sorted((Path(__file__).parent / "cases").glob("*.txt"))
FILE = re.compile(r"^# file: (.+)\n", re.MULTILINE)


def files_of(text: str) -> dict[str, str]:
    """The files of a program by name."""
    first, *rest = FILE.split(text)
    return dict(zip(rest[::2], rest[1::2], strict=True)) if rest else {"program.py": first}


def as_text(folder: Path, names: list[str]) -> str:
    texts = {name: (folder / name).read_text(encoding="utf-8") for name in names}
    return "".join(f"# file: {name}\n{text}" for name, text in texts.items()) if len(texts) > 1 else texts[names[0]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.stem)
def test_move_rewrites_each_construct_and_a_second_run_has_the_same_status(
    case: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = case.read_text(encoding="utf-8")
    before = expected.partition("=== after\n")[0]
    files = files_of(before)
    monkeypatch.chdir(tmp_path)
    status = 0

    def moved() -> str:
        nonlocal status
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text, encoding="utf-8")
        status = main(["move", ".", "--write"])
        found, message = as_text(tmp_path, [*files]), capsys.readouterr().err
        assert status == int("Could not be decided" in message)
        return f"{before}=== after\n{found}=== said\n{message}"

    compare_with_snapshot(moved, expected, case.write_text)

    found = as_text(tmp_path, [*files])
    assert main(["move", ".", "--write"]) == status  # as long as something is left to do
    assert as_text(tmp_path, [*files]) == found
    assert capsys.readouterr().err.endswith("Changed 0 files.\n")
    for name in files:
        compile((tmp_path / name).read_text(encoding="utf-8"), name, "exec")
