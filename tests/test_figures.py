"""Figures on pages come from measurements: the table of docs/performance.md is what measured.json gives."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
table: Any = importlib.import_module("benchmarks.table")


def test_the_table_of_the_page_is_what_was_measured() -> None:
    page = table.PAGE.read_text(encoding="utf-8")
    results = json.loads(table.MEASURED.read_text(encoding="utf-8"))

    assert table.with_table(page, results) == page, "make bench measures, and writes the table"


def test_each_command_of_the_table_selects_its_benchmark() -> None:
    for row in table.ROWS:
        file, _, selected = row.command.partition(" -k ")
        text = (ROOT / "benchmarks" / file).read_text(encoding="utf-8")
        assert any(selected in f"{file} {name}" for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)), row


def test_the_shortest_time_of_all_runs_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [table.Row("Jump", "ours", "theirs", "a frog", "jumps", "test_jumps.py -k jump")]
    monkeypatch.setattr(table, "ROWS", rows)
    files = [tmp_path / "1.json", tmp_path / "2.json"]
    for file, (ours, theirs) in zip(files, [(2e-6, 8e-6), (4e-6, 4e-6)], strict=True):
        times = {"ours": ours, "theirs": theirs, "another": 1.0}
        runs = [{"group": "jumps", "params": {"way": way}, "stats": {"min": each}} for way, each in times.items()]
        machine = {"cpu": {"count": 2, "brand_raw": "Abacus"}, "python_version": "3.11.7"}
        file.write_text(json.dumps({"machine_info": machine, "benchmarks": runs}), encoding="utf-8")

    results = table.measured(files)

    assert results["seconds"] == {"jumps": {"ours": 2e-6, "theirs": 4e-6}}
    assert table.table(results).startswith("Measured on 2 cores of an Abacus, with Python 3.11.7,\njax ")
    assert table.table(results).endswith("| Jump | 2 us | 0.50 | a frog | `test_jumps.py -k jump` |\n")


# Programs on pages print seconds, which differ in each run, so pages show `...` in place of the number.
@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))], ids=lambda path: path.name
)
def test_output_on_pages_has_no_measured_seconds(path: Path) -> None:
    blocks = re.findall(r"^```text.*?^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)

    assert [*re.findall(r".*(?:trace|compilation)s?, \d[\d.e-]* s.*", "\n".join(blocks))] == []
