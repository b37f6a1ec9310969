"""The demo: it learns, it counts its traces, it draws, and it refuses bad arguments before it trains."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from matplotlib.image import imread

from examples import digits
from treewright.checkpoint import CheckpointManager, Leaf

ROOT = Path(__file__).parents[2]


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> list[str]:
    """What a run that ends well prints."""
    assert digits.main([str(argument) for argument in arguments]) == 0
    return capsys.readouterr().out.splitlines()


def test_it_learns_the_digits_and_traces_once_for_each_activation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = lines_of(capsys, "--epochs", 15, "--output", tmp_path / "new" / "folder")

    (accuracy,) = (float(line.removeprefix("test accuracy: ")) for line in lines if line.startswith("test accuracy"))
    assert accuracy >= 0.96
    # 44 whole batches of 32 in 1438 images; the 30 images that are left would have another shape.
    assert lines[-3:] == [
        "training step: 660 calls, 1 trace",
        "with gelu now: 44 calls, 1 retrace",
        "with relu again: 44 calls, 0 retraces",
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where short runs of one setting print, draw and save."""
    return tmp_path_factory.mktemp("digits")


def short(folder: Path, seed: int) -> tuple[list[str], str]:
    """What a run of one epoch prints, and what it shows beside that."""
    arguments = ["--epochs", "1", "--hidden", "16", "--seed", str(seed), "--output", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert digits.main(arguments) == 0
    return out.getvalue().splitlines(), err.getvalue()


@pytest.fixture(scope="module")
def first(folder: Path) -> tuple[list[str], str]:
    return short(folder, seed=1)


def test_it_draws_the_curves(folder: Path, first: tuple[list[str], str]) -> None:
    assert f"curves of loss and accuracy: {folder / 'digits.png'}" in first[0]
    picture = imread(folder / "digits.png")
    height, width, _ = picture.shape
    assert width > 1000
    assert height > 400
    assert picture.std() > 0.05  # not blank


def test_it_shows_a_progress_bar(first: tuple[list[str], str]) -> None:
    assert re.search(r"training: 100%.*1/1 .*loss=", first[1])


def test_the_seed_decides_the_split_and_the_result_and_without_resume_a_run_begins_anew(
    folder: Path, first: tuple[list[str], str]
) -> None:
    again, _ = short(folder, seed=1)

    assert "training step: 44 calls, 1 trace" in again
    assert again == first[0]
    assert short(folder, seed=2)[0] != first[0]


def test_a_run_of_other_settings_is_not_resumed(
    folder: Path, first: tuple[list[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        digits.main(["--epochs", "1", "--hidden", "5", "--seed", "3", "--output", str(folder), "--resume"])
    told = capsys.readouterr().err
    assert re.search(r"\.seed: static [12] saved, 3 in the tree", told)
    assert ".state.params.layers[0].kernel: shape (16, 64) saved, (5, 64) in the tree" in told


def test_it_counts_the_parameters_of_the_sizes_it_was_given(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, "--epochs", 1, "--hidden", 8, 4, "--batch-size", 700, "--output", tmp_path)

    assert [line.split() for line in lines[1:8]] == [
        ["model.layers[0].kernel", "(8,", "64)", "512"],
        ["model.layers[0].bias", "(8,)", "8"],
        ["model.layers[1].kernel", "(4,", "8)", "32"],
        ["model.layers[1].bias", "(4,)", "4"],
        ["model.layers[2].kernel", "(10,", "4)", "40"],
        ["model.layers[2].bias", "(10,)", "10"],
        ["all", "parameters", "606"],
    ]
    assert "training step: 2 calls, 1 trace" in lines


EPOCHS = 8
SHORT = ("--epochs", str(EPOCHS), "--hidden", "16")


def final_leaves(folder: Path) -> tuple[Leaf, ...]:
    """Every leaf of the last step with the digest of its bits."""
    manager = CheckpointManager(folder / "checkpoints")
    assert manager.latest_step() == EPOCHS
    return manager.manifest().leaves


def test_a_run_that_is_killed_and_resumed_ends_with_the_same_bits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = lines_of(capsys, *SHORT, "--output", tmp_path / "whole")
    killed = tmp_path / "killed"
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), *SHORT, "--output", str(killed), "--resume"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as run:
        while not any((killed / "checkpoints" / str(later)).exists() for later in range(2, EPOCHS)):
            assert run.poll() is None
            time.sleep(0.002)
        run.send_signal(signal.SIGKILL)

    resumed = lines_of(capsys, *SHORT, "--output", killed, "--resume")
    (line,) = (line for line in resumed if line.startswith("going on after epoch"))
    assert 2 <= int(line.split()[-1]) < EPOCHS
    assert any(re.fullmatch(r"training step: \d+ calls, 1 trace", text) for text in resumed)
    assert [text for text in resumed if "test accuracy" in text] == [text for text in whole if "test accuracy" in text]
    assert final_leaves(killed) == final_leaves(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epochs", "0"], "--epochs: takes a whole number from 1 to 1000, got '0'"),
        (["--epochs", "1.5"], "--epochs: takes a whole number from 1 to 1000, got '1.5'"),
        (["--hidden", "64", "-3"], "--hidden: takes a whole number from 1 to 4096, got '-3'"),
        (["--hidden"], "--hidden: expected at least one argument"),
        (["--batch-size", "many"], "--batch-size: takes a whole number from 1 to 4096, got 'many'"),
        (["--batch-size", "2000"], "--batch-size: takes at most the 1438 training images, got 2000"),
        (["--learning-rate", "0"], "--learning-rate: takes a number above 0 and at most 1, got '0'"),
        (["--learning-rate", "nan"], "--learning-rate: takes a number above 0 and at most 1, got 'nan'"),
        (["--learning-rate", "fast"], "--learning-rate: takes a number above 0 and at most 1, got 'fast'"),
        (["--seed", "-1"], "--seed: takes a whole number from 0 to 4294967295, got '-1'"),
        (["--output", __file__], f"--output: can't write into '{__file__}': File exists"),
        (["--epoch", "3"], "unrecognized arguments: --epoch 3"),
    ],
)
def test_a_bad_argument_ends_with_code_2_before_training(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_anyway(*_: object) -> None:
        pytest.fail("it trained")

    monkeypatch.setattr(digits, "run", train_anyway)

    with pytest.raises(SystemExit) as caught:
        digits.main(arguments)

    assert caught.value.code == 2
    assert message in capsys.readouterr().err
