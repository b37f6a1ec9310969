"""docs/performance.md shows the runs that are kept, and its tables say what was missed and where a peer is ahead."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def docs() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("_docs")
        for name in ("_docs", "_lines"):
            del sys.modules[name]


def run(
    docs: Any, python: str, measured: str, *, reached: bool | None, target: str = "<= 1.10", ratio: float = 1.2
) -> Any:
    lines = importlib.import_module("_lines")
    line = lines.Line("a step", f"best peer (of {python})", measured, target, reached)
    behind = [lines.Behind("path", "flatten with path", "chex", ratio)] if ratio > 1 else []
    return docs.Run(
        python, "a machine\nversions", lines.Report([line], {"step": [["", "one"], ["ours", "1.00"]]}, behind)
    )


def test_the_page_shows_the_runs_that_are_kept(docs: Any) -> None:
    page = docs.PAGE.read_text(encoding="utf-8")

    assert docs.runs()
    assert page == docs.with_tables(page, docs.runs())
    assert page.count("<!-- measured: ") == page.count("<!-- end -->") == len(docs.TABLES)


def test_there_is_a_column_for_each_python_and_what_missed_its_target_is_bold(docs: Any) -> None:
    runs = [run(docs, "A", "1.05", reached=True), run(docs, "B", "1.20", reached=False)]

    table = docs.with_tables("<!-- measured: targets -->\nold\n<!-- end -->", runs)

    assert [[cell.strip() for cell in row.split("|")] for row in table.splitlines() if row.startswith("|")][::2] == [
        ["", "what", "against", "A", "B", "to reach", ""],
        ["", "a step", "best peer (of A) or best peer (of B)", "1.05", "**1.20**", "<= 1.10", ""],
    ]
    assert "old" not in table


def test_a_line_without_a_target_is_shown_and_not_judged(docs: Any) -> None:
    table = docs.TABLES["targets"]([run(docs, "A", "3.00", reached=None, target="")])

    assert "| 3.00 " in table


def test_a_peer_that_is_ahead_on_one_python_is_named_with_the_reason(docs: Any) -> None:
    table = docs.TABLES["behind"]([run(docs, "A", "1", reached=True, ratio=0.9), run(docs, "B", "1", reached=True)])

    assert f"| | 1.20 of chex | {docs.REASONS['path']} |" in " ".join(table.split())


def test_every_kind_of_row_has_its_reason(docs: Any) -> None:
    assert {one.kind for run in docs.runs() for one in run.report.behind} <= docs.REASONS.keys()


def test_a_run_takes_the_place_of_the_one_before_it(docs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docs, "RUNS", tmp_path / "runs")
    for measured in ("1.05", "1.06"):
        docs.keep("a machine", run(docs, "", measured, reached=True).report)

    (kept,) = docs.runs()

    assert kept.report.lines[0].measured == "1.06"
    assert kept.where == "a machine"
