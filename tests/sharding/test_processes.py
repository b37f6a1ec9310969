"""Real processes over the loopback: the checks, a state made over all of them, and how they end when one is gone."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import pytest

from examples.processes import ProcessesFailedError, run

SECONDS = 180  # a hard limit; a run takes a few


def results(scenario: str, count: int = 2) -> list[dict[str, Any]]:
    """What each process of a scenario gave, with hashes of its own, as a pod has them."""
    command = [sys.executable, "-m", "tests.sharding.worker", scenario]
    outputs = run(command, count, devices=2, seconds=SECONDS)
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("result: ")]
    return [json.loads(line.removeprefix("result: ")) for line in lines]


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_what_differs_is_named_in_every_process() -> None:
    found = results("checks")

    messages = [{key: value for key, value in one.items() if key != "seconds"} for one in found]
    assert len(messages) == 2
    assert messages[0] == messages[1]
    first = messages[0]
    assert first["same tree"] == first["same program"] == "the same"
    assert "  .params.act (static)\n    process 0: 'relu'\n    process 1: 'gelu'\n" in first["act"]
    assert "  .tx (static)\n" in first["rate"]
    assert "0.001" in first["rate"]
    assert "0.002" in first["rate"]
    assert "  [1].kernel\n    process 0: nothing\n    process 1: f32[4,4]\n" in first["depth"]
    assert "  .kernel\n    process 0: f32[4,4]\n    process 1: bf16[4,4]\n" in first["dtype"]
    assert "process 0: %cst = stablehlo.constant dense<2.0" in first["program"]
    assert "process 1: %cst = stablehlo.constant dense<3.0" in first["program"]
    assert first["order of a set"].startswith("The processes have lowered different programs:")


def test_a_state_is_made_over_two_processes_as_over_one_device() -> None:
    assert results("made") == [{"held": 32, "like": True, "values": True}] * 2


def test_a_loop_over_two_processes_gives_what_it_gives_over_one_device() -> None:
    assert results("looped") == [{"kept": True, "step": 3, "values": True}] * 2


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("dies", r"Process 1 was ended by SIGKILL\. Its last lines:"),
        ("fails", r"(?s)Process 1 ended with code 1.*no luck"),
    ],
)
def test_a_process_that_dies_ends_them_all_and_is_named(scenario: str, message: str) -> None:
    command = [sys.executable, "-m", "tests.sharding.worker", scenario]
    started: list[int] = []

    with pytest.raises(ProcessesFailedError, match=message):
        run(command, 2, devices=1, seconds=SECONDS, started=started.extend)

    assert len(started) == 2
    assert not any(map(is_there, started))


def test_processes_that_hang_are_ended_at_the_limit() -> None:
    started: list[int] = []

    with pytest.raises(ProcessesFailedError, match=r"(?s)Time is up\. Process 0 was running.*Process 1 was running"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 2, devices=1, seconds=1, started=started.extend)

    assert len(started) == 2
    assert not any(map(is_there, started))
