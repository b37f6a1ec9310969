"""Real processes on one machine: the checks, a state on all of them, and the end of the job after one has died."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from examples.processes import ProcessesFailedError, run
from tests.sharding.mismatches import A_FEW, CASES
from treewright.errors import ProcessMismatchError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

SECONDS = 180  # a hard limit; a run takes a few


def results(*scenarios: str, count: int = 2) -> list[list[dict[str, Any]]]:
    """The results of the processes for each scenario; each process has its own hash seed, as in a pod."""
    outputs = run([sys.executable, "-m", "tests.sharding.worker", *scenarios], count, devices=2, seconds=SECONDS)
    lines = [re.findall(r"^result: (.*)$", output, re.MULTILINE) for output in outputs]
    return [[json.loads(result) for result in lines_of_scenario] for lines_of_scenario in zip(*lines, strict=True)]


@pytest.fixture(scope="module")
def results_of_two() -> dict[str, list[dict[str, Any]]]:
    """The results of two processes for the scenarios that both finish."""
    scenarios = ("a_few", "late", "sharded_state", "looped")
    return dict(zip(scenarios, results(*scenarios), strict=True))


def is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def assert_messages_match_the_table(by_process: list[dict[str, Any]]) -> None:
    """Each case has one message in all processes, with field and process, within seconds."""
    odd = len(by_process) // 2
    rest = {2: "process 0", 4: "processes 0-1, 3"}[len(by_process)]
    for name in by_process[0]:
        messages = {each[name][0].replace("PartitionSpec(", "P(") for each in by_process}  # the form since JAX 0.10
        assert len(messages) == 1, (name, messages)
        (message,) = messages
        for text in CASES[name][1]:
            expected = text.replace("{odd}", f"process {odd}").replace("{rest}", rest)
            assert expected in message, (name, expected, message)
        assert max(each[name][1] for each in by_process) < 10, name


def test_differences_are_named_by_field_and_process_in_every_process(results_of_two: Any) -> None:
    assert [{*by_process} for by_process in results_of_two["a_few"]] == [{*A_FEW}] * 2
    assert_messages_match_the_table(results_of_two["a_few"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("count", [2, 4])
def test_every_kind_of_difference_is_named_in_every_process(count: int) -> None:
    (by_process,) = results("mismatches", count=count)

    assert [{*each} for each in by_process] == [{*CASES}] * count
    assert_messages_match_the_table(by_process)


def test_the_message_lists_each_path_each_process_and_the_fix(results_of_two: Any) -> None:
    assert results_of_two["a_few"][0]["trees: a text"][0] == (
        "The processes have different trees:\n"
        "  .act (static)\n"
        "    process 0: 'relu'\n"
        "    process 1: 'gelu'\n"
        "All processes must have the same tree. If no program depends on a static, declare it static(local=True) to "
        "let it differ. Programs differ if they read something that differs: a global or environment variable, the "
        "order of a set."
    )


def test_a_late_process_is_named_in_all_processes(results_of_two: Any) -> None:
    early, late = results_of_two["late"]

    assert early["message"] == late["message"]
    assert early["message"].startswith(
        "Process 1 did not reach assert_same_on_all_processes within 1 s (process 0 did).\nLook at the log of process 1"
    )
    assert "increase timeout_seconds= in every process." in early["message"]
    assert late["seconds"] < 2


def test_a_state_created_by_two_processes_matches_one_device(results_of_two: Any) -> None:
    assert results_of_two["sharded_state"] == [{"elements": 32, "like": True, "values": True}] * 2


def test_a_loop_over_two_processes_matches_one_device(results_of_two: Any) -> None:
    assert results_of_two["looped"] == [{"keeps_sharding": True, "step": 3, "traces": 2, "values": True}] * 2


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("stops", r"(?s)Process 0 ended with code 1.*Process 1 did not reach assert_same.* within 2 s \(process 0 did"),
        ("dies", r"Process 1 was ended by SIGKILL\. Its last lines:"),
        ("fails", r"(?s)Process 1 ended with code 1.*no luck"),
    ],
)
def test_a_dying_process_is_named_and_ends_all_processes(scenario: str, message: str) -> None:
    command = [sys.executable, "-m", "tests.sharding.worker", scenario]
    started: list[int] = []

    with pytest.raises(ProcessesFailedError, match=message):
        run(command, 2, devices=1, seconds=SECONDS, started=started.extend)

    assert len(started) == 2
    assert not any(map(is_running, started))


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_processes_that_end_together_get_the_same_message(count: int) -> None:
    outputs = run([sys.executable, "-m", "tests.sharding.worker", "exits"], count, devices=1, seconds=SECONDS)

    messages = [output.partition("result: ")[2] for output in outputs]
    assert "have different trees" in messages[0]
    assert messages == messages[:1] * count


@pytest.mark.exhaustive
def test_an_exchange_grows_no_faster_than_the_number_of_processes() -> None:
    least = {"256": math.inf, "1024": math.inf}
    for _ in range(3):  # the machine may be busy
        command = [sys.executable, "benchmarks/many_processes.py", *least]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout
        for count, seconds in re.findall(r"(\d+) processes: ([\d.]+) s", output):
            least[count] = min(least[count], float(seconds))
        if least["1024"] < 6 * least["256"]:
            break

    assert least["1024"] < 6 * least["256"], least


def test_hanging_processes_end_at_the_timeout() -> None:
    started: list[int] = []

    with pytest.raises(ProcessesFailedError, match=r"(?s)Time is up\. Process 0 was running.*Process 1 was running"):
        run([sys.executable, "-c", "import time; time.sleep(60)"], 2, devices=1, seconds=1, started=started.extend)

    assert len(started) == 2
    assert not any(map(is_running, started))


def test_a_single_process_has_nothing_to_compare() -> None:
    from treewright.sharding import assert_same_on_all_processes

    assert_same_on_all_processes({"w": 1}, timeout_seconds=0)


def test_a_job_without_coordination_service_is_told_to_initialize(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on TPU pods, JAX counts all processes before they are connected."""
    import jax

    from treewright import _processes
    from treewright.checkpoint import CheckpointManager
    from treewright.sharding import assert_same_on_all_processes

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(_processes, "coordination_client", lambda: None)
    line = r"compares processes through JAX's coordination service, .* Call jax\.distributed\.initialize\(\) in every"
    with pytest.raises(ProcessMismatchError, match=line):
        assert_same_on_all_processes({"w": 1})
    with pytest.raises(ProcessMismatchError, match=f"save {line}"):
        CheckpointManager(tmp_path / "run").save(1, {"w": 1})
    assert not list(tmp_path.iterdir())
