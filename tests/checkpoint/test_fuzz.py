"""The fuzzer, for a moment; `make exhaustive` runs it for an hour."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from tests.checkpoint import fuzz

if TYPE_CHECKING:
    from pathlib import Path


def test_no_changed_file_is_accepted_or_ends_in_an_error_of_others(tmp_path: Path) -> None:
    seen = fuzz.run(tmp_path, seed=0, files=60)

    assert seen["files"] == 60
    assert seen["alone: CheckpointDamagedError"] > 20


@pytest.mark.exhaustive
@pytest.mark.parametrize("seconds", [60, 3600])
def test_nor_does_any_in_a_minute_and_in_an_hour(seconds: float, tmp_path: Path) -> None:
    fuzz.run(tmp_path, seed=time.time_ns(), seconds=seconds)


def test_the_fuzzer_finds_an_error_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise KeyError("foreign")

    monkeypatch.setattr(fuzz, "read_manifest", fails)
    with pytest.raises((AssertionError, KeyError), match="foreign"):
        fuzz.run(tmp_path, seed=0, files=1)
