"""Texts lose the parts that vary, and a run that rewrites a snapshot fails."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tests.expected_text import compare_with_snapshot, without_varying_parts

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A snapshot in one process that rewrites."""
    monkeypatch.setenv("UPDATE_SNAPSHOTS", "1")
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    (tmp_path / "snapshot.txt").write_text("old", encoding="utf-8")
    return tmp_path / "snapshot.txt"


@pytest.mark.parametrize(
    ("text", "fixed"),
    [
        ("f retraced (2nd trace, 0.00016 s)", "f retraced (2nd trace, ... s)"),
        ("1.5e+02 s or 3e-05 s in total, 2 steps", "... s or ... s in total, 2 steps"),
        ("<A object at 0x7f3a>", "<A object at 0x...>"),
        ("<lambda at _mlp.py:22>, called from train.py:9", "<lambda at _mlp.py>, called from train.py:9"),
        ("FOLDER/a.txt", "FOLDER/a.txt"),
        ("P('x',) and PartitionSpec('x')", "P('x') and P('x')"),
    ],
)
def test_parts_that_vary_are_taken_out(text: str, fixed: str) -> None:
    assert without_varying_parts(text) == fixed


def test_a_temporary_folder_is_taken_out(tmp_path: Path) -> None:
    assert without_varying_parts(f"{tmp_path}/a.txt", tmp_path) == "FOLDER/a.txt"


def test_a_text_that_is_unchanged_passes(snapshot: Path) -> None:
    compare_with_snapshot(lambda: "old", "old", snapshot.write_text)


def test_a_rewritten_snapshot_fails_its_run(snapshot: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match=r"rewritten, review the diff(.|\n)*-old\n\+new"):
        compare_with_snapshot(lambda: "new", "old", snapshot.write_text)

    assert snapshot.read_text(encoding="utf-8") == "new"


def test_a_text_that_varies_is_not_written(snapshot: Path) -> None:
    numbers = itertools.count()

    with pytest.raises(pytest.fail.Exception, match=r"two runs differ: add what varies(.|\n)*-run 0\n\+run 1"):
        compare_with_snapshot(lambda: f"run {next(numbers)}", "old", snapshot.write_text)

    assert snapshot.read_text(encoding="utf-8") == "old"


def test_a_process_of_several_does_not_rewrite(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw0")

    with pytest.raises(pytest.fail.Exception, match=r"not rewritten, .* add -n 0"):
        compare_with_snapshot(lambda: "new", "old", snapshot.write_text)

    assert snapshot.read_text(encoding="utf-8") == "old"


def test_a_difference_fails_and_rewrites_nothing(snapshot: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UPDATE_SNAPSHOTS")

    with pytest.raises(pytest.fail.Exception, match=r"UPDATE_SNAPSHOTS=1 rewrites it(.|\n)*-old\n\+new"):
        compare_with_snapshot(lambda: "new", "old", snapshot.write_text)

    assert snapshot.read_text(encoding="utf-8") == "old"
