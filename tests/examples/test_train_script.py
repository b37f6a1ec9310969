"""`examples/train.py`: one curve, however often the run is killed or stopped, and on whatever devices it goes on."""

from __future__ import annotations

import builtins
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("orbax.checkpoint")
pytestmark = [pytest.mark.slow, pytest.mark.devices(4)]
ROOT = Path(__file__).parents[2]
OPTIONS = ("--steps", "80", "--every", "10", "--folder")


@pytest.fixture(autouse=True)
def handler_of_sigterm() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def train(folder: Path, devices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    script: Any = importlib.import_module("examples.train")
    with monkeypatch.context() as patch:
        patch.setattr(jax, "device_count", lambda: devices)
        script.main([*OPTIONS, str(folder)])


def curve(folder: Path) -> dict[int, list[float]]:
    """The logged losses by step. A killed run may have logged a step that the next one repeats."""
    rows = map(json.loads, (folder / "log.jsonl").read_text(encoding="utf-8").splitlines())
    return {row["step"]: [row["loss"], row["test_loss"]] for row in rows}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    """The curve of a run on one device that nothing interrupts."""
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as monkeypatch:
        train(folder, 1, monkeypatch)
    return curve(folder)


def assert_same(run: dict[int, list[float]], expected: dict[int, list[float]]) -> None:
    assert [*run] == [*expected] == [*range(10, 81, 10)]
    np.testing.assert_allclose([*run.values()], [*expected.values()], rtol=1e-4)


def test_four_devices_give_the_curve_of_one(
    expected: dict[int, list[float]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, 4, monkeypatch)

    assert_same(curve(tmp_path), expected)
    assert expected[80][1] < expected[10][1] / 2


def test_a_run_killed_on_four_devices_goes_on_with_two_and_leaves_at_sigterm(
    expected: dict[int, list[float]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = [sys.executable, str(ROOT / "examples" / "train.py"), *OPTIONS, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "JAX_NUM_CPU_DEVICES": "4"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        while not any((tmp_path / "steps" / str(step)).exists() for step in range(10, 70, 10)):
            assert process.poll() is None
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)

    def printing(*words: object, file: Any = None) -> None:
        print_(*words, file=file)
        if file is None and '"step": 70' in str(words[0]):
            signal.raise_signal(signal.SIGTERM)

    print_ = builtins.print
    with monkeypatch.context() as patch:
        patch.setattr(builtins, "print", printing)
        train(tmp_path, 2, monkeypatch)
    stopped = capsys.readouterr().out
    train(tmp_path, 2, monkeypatch)

    assert "resumed at step" in stopped
    assert "stopped by SIGTERM after step 70" in stopped
    assert "resumed at step 70, cpu devices: 2" in capsys.readouterr().out
    assert_same(curve(tmp_path), expected)
    steps = [int(path.name) for path in (tmp_path / "steps").iterdir() if path.name.isdigit()]
    assert sorted(steps) == [60, 80]  # the best and the last
