"""Real processes over the loopback: the checks, a state made over all of them, and how they end when one is gone."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

import pytest

from examples.processes import ProcessesFailedError, run
from tests.sharding.mismatches import CASES
from treewright.sharding.folding import ranges_text

SECONDS = 180  # a hard limit; a run takes a few


def results(*scenarios: str, count: int = 2) -> list[list[dict[str, Any]]]:
    """What the processes gave for each scenario, with hashes of their own, as a pod has them."""
    outputs = run([sys.executable, "-m", "tests.sharding.worker", *scenarios], count, devices=2, seconds=SECONDS)
    found = [re.findall(r"^result: (.*)$", output, re.MULTILINE) for output in outputs]
    return [[json.loads(result) for result in of_all] for of_all in zip(*found, strict=True)]


@pytest.fixture(scope="module")
def of_two() -> dict[str, list[dict[str, Any]]]:
    """What two processes gave for the scenarios that both of them live through."""
    scenarios = ("mismatches", "late", "made", "looped")
    return dict(zip(scenarios, results(*scenarios), strict=True))


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def hold_to_the_table(found: list[dict[str, Any]]) -> None:
    """Each case is named in each process, by field and process, within seconds."""
    count = len(found)
    odd = count // 2
    rest = [process for process in range(count) if process != odd]
    who = {"odd": f"process {odd}", "rest": "process 0" if count == 2 else f"processes {ranges_text(rest)}"}
    for name, (_, said) in CASES.items():
        messages = {one[name][0].replace("PartitionSpec(", "P(") for one in found}  # as JAX shows it since 0.10
        assert len(messages) == 1, (name, messages)
        (message,) = messages
        for text in said:
            wanted = text.replace("{odd}", who["odd"]).replace("{rest}", who["rest"])
            assert wanted in message, (name, wanted, message)
        assert max(one[name][1] for one in found) < 5, name


def test_every_kind_of_difference_is_named_in_every_process(of_two: Any) -> None:
    assert len(CASES) >= 30
    assert len(of_two["mismatches"]) == 2

    hold_to_the_table(of_two["mismatches"])


@pytest.mark.exhaustive
def test_one_of_four_processes_that_differs_is_named_in_every_process() -> None:
    (found,) = results("mismatches", count=4)

    assert len(found) == 4
    hold_to_the_table(found)


def test_a_process_that_does_not_come_in_time_is_named_and_all_can_meet_again(of_two: Any) -> None:
    waiting, late = of_two["late"]

    assert waiting["said"].startswith(
        "Process 1 has not come to assert_same_on_all_processes after 1 s; process 0 has.\nLook at the log of process 1"
    )
    assert 1 <= waiting["seconds"] < 5
    assert late["said"].startswith("Process 1 has come to assert_same_on_all_processes when others had stopped waiting")
    assert late["seconds"] < 1


def test_a_state_is_made_over_two_processes_as_over_one_device(of_two: Any) -> None:
    assert of_two["made"] == [{"held": 32, "like": True, "values": True}] * 2


def test_a_loop_over_two_processes_gives_what_it_gives_over_one_device(of_two: Any) -> None:
    assert of_two["looped"] == [{"kept": True, "step": 3, "values": True}] * 2


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
