"""The fuzzers, for a moment; `make exhaustive` runs each for an hour."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint import fuzz
from tests.checkpoint.test_faults import LEFT_BEHIND
from treewright.errors import CheckpointDamagedError

if TYPE_CHECKING:
    from pathlib import Path


def test_no_changed_file_is_accepted_or_ends_in_an_error_of_others(tmp_path: Path) -> None:
    seen = fuzz.run(fuzz.Fuzzer(tmp_path, seed=0), files=60)

    assert seen["files"] == 60
    assert seen["alone: CheckpointDamagedError"] > 20


@LEFT_BEHIND
def test_a_run_resumes_whatever_happened_to_its_newest_step(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")

    seen = fuzz.run(fuzz.StepFuzzer(tmp_path, seed=0), files=30)

    assert min(seen["like: step 1"], seen["like: step 2"]) > 5


@pytest.mark.exhaustive
@LEFT_BEHIND
@pytest.mark.parametrize("kind", [fuzz.Fuzzer, fuzz.StepFuzzer])
@pytest.mark.parametrize("seconds", [60, 3600])
def test_nor_does_any_in_a_minute_and_in_an_hour(
    kind: type[fuzz.Fuzzer | fuzz.StepFuzzer], seconds: float, tmp_path: Path
) -> None:
    fuzz.run(kind(tmp_path, seed=time.time_ns()), seconds=seconds)


def test_the_fuzzer_finds_an_error_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = fuzz.Fuzzer(tmp_path, seed=0)
    whole, loaded = fuzzer.path.read_bytes(), fuzz.load

    def fails(path: Path, **options: Any) -> Any:
        if path.read_bytes() != whole:
            raise KeyError("foreign")
        return loaded(path, **options)

    monkeypatch.setattr(fuzz, "load", fails)
    with pytest.raises(AssertionError, match="file 1, .*foreign"):
        fuzz.run(fuzzer, files=1)


@LEFT_BEHIND
def test_the_fuzzer_finds_a_run_that_does_not_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("orbax.checkpoint")
    fuzzer = fuzz.StepFuzzer(tmp_path, seed=0)
    monkeypatch.setattr("treewright.checkpoint.manager.CheckpointDamagedError", KeyError)  # so that none is skipped

    with pytest.raises(AssertionError, match="an accident ended the run") as caught:
        fuzz.run(fuzzer, files=100)
    assert isinstance(caught.value.__cause__, AssertionError | CheckpointDamagedError)
