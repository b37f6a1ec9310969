"""The demo over several devices: three layouts, each with the parameters of one device, and one in two processes."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from typing import TYPE_CHECKING

import pytest

from examples import digits_sharded

if TYPE_CHECKING:
    from pathlib import Path


EACH = {
    "data": "(data 8, fsdp 1, tensor 1): 67.3 KiB on each",
    "fully-sharded": "(data 1, fsdp 8, tensor 1): 9,096 B on each",
    "tensor": "(data 2, fsdp 1, tensor 4): 18.9 KiB on each",
}
DIFFERENCE = r"largest difference to one device: (\S+)"
ROUNDING = 1e-5  # it adds up to 1.1e-6 in 12 steps; a layout that trains another model is off by 1e-3


def lines_of(*arguments: object) -> str:
    """What a run that ends well prints. The test's own settings, which refuse to broadcast, hold in it too."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = digits_sharded.main([str(argument) for argument in arguments])
    assert code == 0, err.getvalue()
    return out.getvalue()


def check_layouts(*layouts: str, processes: int, folder: Path) -> None:
    """They are there, split as they should be, and end where one device ends."""
    output = lines_of("--layout", *layouts, "--processes", processes, "--steps", 12, "--save", folder)

    for layout in layouts:
        assert f"{layout}: 12 steps on 8 devices in {processes} processes" in output
        assert EACH[layout] in output
    differences = [float(text) for text in re.findall(DIFFERENCE, output)]
    assert len(differences) == len(layouts)
    assert max(differences) <= ROUNDING


@pytest.mark.parametrize(
    ("layout", "bytes_on_each"),
    [
        ("data", "(data 4, fsdp 1, tensor 1): 67.3 KiB on each"),
        ("fully-sharded", "(data 1, fsdp 4, tensor 1): 17.2 KiB on each"),
    ],
)
def test_a_layout_gives_the_parameters_of_one_device(
    layout: str, bytes_on_each: str, capsys: pytest.CaptureFixture[str]
) -> None:
    digits_sharded.train_in(layout, 3, None)  # here, over the four devices that all tests see

    output = capsys.readouterr().out
    assert bytes_on_each in output
    (difference,) = re.findall(DIFFERENCE, output)
    assert float(difference) <= ROUNDING


def test_two_processes_give_the_parameters_of_one_device_and_are_restored_on_fewer_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("orbax.checkpoint")
    check_layouts("tensor", processes=2, folder=tmp_path)
    digits_sharded.restore("tensor", tmp_path)  # here, onto four devices
    check_restored(capsys.readouterr().out, devices=4)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("processes", "fewer"), [(2, 4), (4, 1)])
def test_so_do_all_layouts_in_more_processes(processes: int, fewer: int, tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    check_layouts(*EACH, processes=processes, folder=tmp_path)
    check_restored(lines_of("--layout", "tensor", "--devices", fewer, "--restore", tmp_path), devices=fewer)


def check_restored(output: str, devices: int) -> None:
    """What 8 devices have saved is whole on fewer."""
    assert f"tensor: restored step 12 on {devices} devices" in output
    assert "every leaf where it belongs: True" in output
    (difference,) = re.findall(DIFFERENCE, output)
    assert float(difference) <= ROUNDING


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
