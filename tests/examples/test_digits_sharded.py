"""The demo over 8 devices: three layouts in several processes, each with the parameters of one device."""

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


def lines_of(*arguments: object) -> str:
    """What a run that ends well prints. The test's own settings, which refuse to broadcast, hold in it too.

    What is compared to one device is what a user runs: without optimisations rounding adds up to 1.1e-6.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as out,
        contextlib.redirect_stderr(io.StringIO()) as err,
    ):
        patch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS")
        code = digits_sharded.main([str(argument) for argument in arguments])
    assert code == 0, err.getvalue()
    return out.getvalue()


def check_layouts(output: str, processes: int) -> None:
    """All layouts are there, split as they should be, and end where one device ends."""
    for layout, bytes_on_each in EACH.items():
        assert f"{layout}: 12 steps on 8 devices in {processes} processes" in output
        assert bytes_on_each in output
    differences = [float(text) for text in re.findall(r"largest difference to one device: (\S+)", output)]
    assert len(differences) == len(EACH)
    assert max(differences) <= 1e-6


def test_each_layout_gives_the_parameters_of_one_device_and_is_restored_on_fewer(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    check_layouts(lines_of("--processes", 2, "--steps", 12, "--save", tmp_path), processes=2)
    check_restored(tmp_path, devices=4)


@pytest.mark.exhaustive
def test_four_processes_do_the_same_and_one_device_restores_it(tmp_path: Path) -> None:
    pytest.importorskip("orbax.checkpoint")
    check_layouts(lines_of("--processes", 4, "--steps", 12, "--save", tmp_path), processes=4)
    check_restored(tmp_path, devices=1)


def check_restored(folder: Path, devices: int) -> None:
    """What 8 devices have saved is whole on fewer."""
    output = lines_of("--layout", "tensor", "--devices", devices, "--restore", folder)

    assert f"tensor: restored step 12 on {devices} devices" in output
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
