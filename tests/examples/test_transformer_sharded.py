"""The decoder with experts: six layouts with the losses of one device, and a run that goes on in another layout."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import transformer_sharded

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """What a run that ends well prints."""
    code = transformer_sharded.main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    assert code == 0, found.err
    return found.out


def differences(output: str) -> list[float]:
    """How far the losses of each layout are from those of one device."""
    return [float(found) for found in re.findall(r"at most (\S+) from one device", output)]


def test_a_layout_has_the_losses_of_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    settings = argparse.Namespace(steps=2, compute="float32", restore=None, save=None, report=False)
    transformer_sharded.work("both", settings)  # here, over the four devices that all tests see

    output = capsys.readouterr().out
    assert "both: steps 0 to 2 in 1 processes" in output
    assert max(differences(output)) < 1e-4


@pytest.mark.exhaustive
def test_what_one_layout_saved_goes_on_in_another_on_fewer_devices_and_processes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("orbax.checkpoint")
    steps = ("--steps", 3, "--compute", "float32")

    first = lines_of(capsys, "--layout", "both", "--processes", 2, *steps, "--save", tmp_path)
    second = lines_of(capsys, "--layout", "expert", "--devices", 4, *steps, "--restore", tmp_path, "--report")

    assert "both: steps 0 to 3 in 2 processes" in first
    assert "expert: steps 3 to 6 in 1 processes" in second
    assert max(differences(first) + differences(second)) < 1e-4
    assert re.search(r"\.params\.blocks\.up +f32\[4,4,32,32\] +-, inner, outer ", second)
    assert int(re.findall(r"alias_size_in_bytes=(\d+)", second)[0]) > 0


@pytest.mark.exhaustive
@pytest.mark.parametrize("compute", ["float32", "bfloat16"])
@pytest.mark.parametrize("processes", [1, 4])
def test_each_layout_has_the_losses_of_one_device(
    processes: int, compute: str, capsys: pytest.CaptureFixture[str]
) -> None:
    output = lines_of(capsys, "--steps", 5, "--processes", processes, "--compute", compute)

    assert len(differences(output)) == len(transformer_sharded.LAYOUTS) == 6
    assert max(differences(output)) < (1e-4 if compute == "float32" else 1e-2)


def test_the_model_has_fewer_than_150_lines_and_the_sharding_at_most_30() -> None:
    source = inspect.getsource(transformer_sharded)
    model, rest = source.split("# The model.", 1)[1].split("# The sharding:", 1)
    sharding = rest.split("# The program", 1)[0]

    assert len([line for line in model.splitlines() if line.strip()]) < 150
    assert len([line for line in sharding.splitlines() if line.strip()]) <= 30


def test_no_character_sees_a_later_one_and_scales_are_not_decayed() -> None:
    model = transformer_sharded.Decoder(jax.random.key(0), layers=2, compute=jnp.float32)
    text = jnp.arange(16)[None] % 20

    logits = jax.jit(model.__call__)
    same = np.equal(logits(text), logits(text.at[0, 9].set(19)))[0].all(axis=1).tolist()

    assert same == [True] * 9 + [False] * 7
    mask: Any = transformer_sharded.decayed(model)
    assert (mask.scale, mask.blocks.expert_scale, mask.blocks.up) == (False, False, True)


def test_wrong_arguments_and_failing_processes_end_with_a_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        transformer_sharded.main(["--processes", "4", "--devices", "2"])
    monkeypatch.setattr(sys, "executable", "/bin/false")

    assert transformer_sharded.main(["--processes", "2"]) == 1
    assert " ended with code 1" in capsys.readouterr().err
