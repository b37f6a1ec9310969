"""The demo over 8 devices: three layouts in 2 and 4 processes, each with the parameters of one device."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from examples import digits_sharded

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _optimised(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared to one device is what a user runs: without optimisations rounding adds up to 1.1e-6."""
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a run that ends well prints. The test's own settings, which refuse to broadcast, hold in it too."""
    code = digits_sharded.main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    assert code == 0, found.err
    return found.out


EACH = {
    "data": "(data 8, fsdp 1, tensor 1): 67.3 KiB on each",
    "fully-sharded": "(data 1, fsdp 8, tensor 1): 9,096 B on each",
    "tensor": "(data 2, fsdp 1, tensor 4): 18.9 KiB on each",
}


@pytest.mark.parametrize(("processes", "layouts"), [(2, ["data", "fully-sharded"]), (4, ["tensor"])])
def test_each_layout_gives_the_parameters_of_one_device(
    processes: int, layouts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    output = lines_of(capsys, "--processes", processes, "--steps", 12, "--layout", *layouts)

    for layout in layouts:
        assert f"{layout}: 12 steps on 8 devices in {processes} processes" in output
        assert EACH[layout] in output
    differences = [float(found) for found in re.findall(r"largest difference to one device: (\S+)", output)]
    assert len(differences) == len(layouts)
    assert max(differences) <= 1e-6


def test_what_8_devices_saved_is_restored_on_4_and_on_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("orbax.checkpoint")
    layout = ("--layout", "tensor")
    lines_of(capsys, *layout, "--steps", 3, "--save", tmp_path)

    for devices in (4, 1):
        output = lines_of(capsys, *layout, "--devices", devices, "--restore", tmp_path)

        assert f"tensor: restored step 3 on {devices} devices" in output
        assert "every leaf where it belongs: True" in output
        (difference,) = re.findall(r"largest difference to one device: (\S+)", output)
        assert float(difference) <= 1e-6


def test_more_processes_than_devices_end_with_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        digits_sharded.main(["--processes", "4", "--devices", "2"])

    assert caught.value.code == 2
    assert "4 processes need as many devices, got 2" in capsys.readouterr().err


def test_a_process_that_fails_ends_the_demo_with_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert digits_sharded.main(["--processes", "2"]) == 1
    assert " ended with code 1" in capsys.readouterr().err
