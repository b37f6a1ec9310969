"""The fuzzers, for a moment; `make exhaustive` runs each for an hour."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint import fuzz
from treewright.checkpoint import load


def test_no_changed_file_is_accepted_or_ends_in_an_error_of_others(tmp_path: Path) -> None:
    seen = fuzz.run(fuzz.Fuzzer(tmp_path, seed=0), files=60)

    assert seen["files"] == 60
    assert seen["alone: CheckpointDamagedError"] > 20


def in_a_process(*options: str) -> str:
    """What the fuzzer printed. It ends without a finding."""
    command = [sys.executable, "-m", "tests.checkpoint.fuzz", *options]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}"}
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root, env=environment)
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout


def of_steps(*options: str) -> dict[str, int]:
    """What the fuzzer of steps counted, in a process of its own: when a read of Orbax fails, others end later."""
    pytest.importorskip("orbax.checkpoint")
    lines = in_a_process("--steps", *options).splitlines()
    return {what: int(count) for count, what in (line.split(maxsplit=1) for line in lines)}


def test_a_run_resumes_whatever_happened_to_its_newest_step() -> None:
    seen = of_steps("--files", "30", "--seed", "0")

    assert min(seen["like: step 1"], seen["like: step 2"]) > 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("seconds", [60, 3600])
def test_the_same_holds_for_a_minute_and_for_an_hour(seconds: int, tmp_path: Path) -> None:
    fuzz.run(fuzz.Fuzzer(tmp_path, seed=time.time_ns()), seconds=seconds)
    of_steps("--seconds", str(seconds))


@pytest.mark.exhaustive
def test_nor_does_what_atheris_finds_in_a_minute() -> None:
    pytest.importorskip("atheris")

    in_a_process("--guided", "--seconds", "60")


def test_the_fuzzer_finds_an_error_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fuzzer = fuzz.Fuzzer(tmp_path, seed=0)
    whole = fuzzer.path.read_bytes()

    def fails(path: Path, **options: Any) -> Any:
        if path.read_bytes() != whole:
            raise KeyError("foreign")
        return load(path, **options)

    monkeypatch.setattr(fuzz, "load", fails)
    with pytest.raises(AssertionError, match=r"file 1, .*foreign"):
        fuzz.run(fuzzer, files=1)


def test_the_fuzzer_finds_a_run_that_does_not_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("orbax.checkpoint")
    fuzzer = fuzz.StepFuzzer(tmp_path, seed=0)
    manifest = fuzzer.newest / "manifest" / "metadata"
    monkeypatch.setattr(fuzzer, "change", lambda: manifest.write_bytes(b"x"))
    monkeypatch.setattr("treewright.checkpoint.manager.CheckpointDamagedError", KeyError)  # so that none is skipped

    with pytest.raises(AssertionError, match="an accident ended the run"):
        fuzz.run(fuzzer, files=1)
