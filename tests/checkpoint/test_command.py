"""`python -m treewright checkpoint`: lists, verifies and compares, and loads no arrays to do so."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.models import net, spec
from treewright import Static, replace
from treewright.__main__ import main
from treewright.checkpoint import CheckpointManager, read_manifest, save

if TYPE_CHECKING:
    from collections.abc import Sequence

pytest.importorskip("orbax.checkpoint")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "1000")


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit status, and all that was written."""
    status = main(["checkpoint", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def steps(folder: Path, numbers: Sequence[int]) -> Path:
    with CheckpointManager(folder / "run") as manager:
        for number in numbers:
            manager.save(number, {"x": jnp.full(1000, number), "y": jnp.zeros(2)}, metadata={"loss": 1 / number})
    return folder / "run"


def test_a_file_is_listed_with_leaves_statics_and_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tmp_path / "net", net())

    status, text = said(capsys, tmp_path / "net")

    lines = text.splitlines()
    size = (tmp_path / "net").stat().st_size
    assert status == 0
    assert lines[0].startswith(f"{tmp_path / 'net'}  20")
    assert f"  5 leaves, 96 bytes ({size / 1000:.3g} kB on disk)  " in lines[0]
    assert lines[1].split() == [
        "layers.0.kernel",
        "float32[3,4]",
        "(array)",
        read_manifest(tmp_path / "net").leaves[0].digests["all"],
    ]
    assert lines[6:] == [
        "  width = 3  (static of tests.checkpoint.models:Net)",
        *(
            f"  layers.{i}.activation = jax._src.nn.functions:relu  (static of tests.checkpoint.models:Dense)"
            for i in range(2)
        ),
    ]


def test_a_folder_is_listed_step_by_step_without_reading_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = steps(tmp_path, (2, 10))
    for file in (run / "10" / "state").rglob("d/*"):
        file.unlink()

    status, text = said(capsys, run)
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()] == [str(run / "2"), "loss", str(run / "10"), "loss"]
    assert "  loss = 0.5\n" in text
    assert "  x  int32[1000] (array)  " in said(capsys, run, "--leaves")[1]
    assert "  x  int32[1000] (array)  " in said(capsys, run / "10")[1]


def test_verifying_finds_the_damaged_step_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = steps(tmp_path, (1, 2, 3))
    file = max((run / "2" / "state").rglob("d/*"), key=lambda file: file.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    status, text = said(capsys, run, "--verify")
    assert status == 1
    assert text.count("  verified: all leaves are what was saved\n") == 2
    assert f"{run / '2'}: Step 2 can't be read" in text or f"{run / '2'}: ['x'] is damaged" in text
    save(tmp_path / "file", net())
    assert said(capsys, tmp_path / "file", "--verify")[0] == 0


def test_two_are_compared_by_classes_statics_forms_and_digests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = net()
    other = replace(one, width=4, count=jnp.zeros(3), layers=(replace(one.layers[0], bias=jnp.ones(3)),))
    save(tmp_path / "one", one)
    save(tmp_path / "other", other)

    status, text = said(capsys, tmp_path / "one", tmp_path / "other")
    assert status == 1
    assert text.splitlines()[:5] == [
        f"- {tmp_path / 'one'}",
        f"+ {tmp_path / 'other'}",
        "  .width: static 3 | 4",
        "  .layers[1].kernel: unexpected float32[2,3] (array) | nothing",
        "  .layers[1].bias: unexpected float32[2] (array) | nothing",
    ]
    assert "  .count: shape () | (3,)\n" in text
    assert "  .layers[0].bias: values " in text
    assert text.endswith("1 of 5 leaves are the same.\n")
    assert said(capsys, tmp_path / "one", tmp_path / "one")[0] == 0


def test_a_file_and_the_last_step_of_a_folder_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = steps(tmp_path, (1, 2))
    save(tmp_path / "file", {"x": jnp.full(1000, 2), "y": jnp.zeros(2)})

    assert said(capsys, run, tmp_path / "file") == (
        0,
        f"- {run / '2'}\n+ {tmp_path / 'file'}\n2 of 2 leaves are the same.\n",
    )


def test_blocks_have_one_digest_together_and_other_blocks_can_not_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    x = jnp.arange(8.0)
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"x": jax.device_put(x, sharding)})
    save(tmp_path / "file", {"x": x})

    assert f"({len(jax.devices())} blocks)\n" in said(capsys, tmp_path / "run")[1]
    status, text = said(capsys, tmp_path / "run", tmp_path / "file")
    assert (status, text.splitlines()[2:]) == (
        1,
        ["  ['x']: in other blocks, which their digests do not compare", "0 of 1 leaves are the same."],
    )


def test_of_very_many_differences_some_of_each_kind_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trees = [
        {"w": {str(i): np.zeros(n) for i in range(500)}, "v": {str(i): np.full(2, n) for i in range(50)}}
        for n in (3, 4)
    ]
    for number, tree in enumerate([trees[0], trees[1] | {"long": Static("x" * 999)}]):
        save(tmp_path / str(number), tree)

    status, text = said(capsys, tmp_path / "0", tmp_path / "1")
    lines = text.splitlines()
    assert (status, len(lines), max(map(len, lines))) == (1, 31, len(lines[2]))
    assert lines[2].startswith("  ['long']: missing nothing | treewright:Static(value='xxx")
    assert len(lines[2]) < 200
    assert lines[3:9] == [
        *(f"  ['w']['{i}']: shape (3,) | (4,)" for i in (0, 1, 10, 100, 101)),
        "  and 495 more of the kind 'shape'",
    ]
    assert lines[-2:] == ["  and 30 more whose values differ", "0 of 550 leaves are the same."]
    assert len(said(capsys, tmp_path / "0", tmp_path / "1", "--leaves")[1].splitlines()) == 554


def test_a_narrow_terminal_gets_a_line_for_each_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", {"a_long_name": np.zeros(3), "b": Static("y")})
    wide = said(capsys, tmp_path / "x")[1]

    monkeypatch.setenv("COLUMNS", "50")
    narrow = said(capsys, tmp_path / "x")[1]
    assert narrow.split() == wide.split()
    assert [line for line in narrow.splitlines() if len(line) > 50 and str(tmp_path) not in line] == []
    assert "\n  a_long_name\n      float64[3] (numpy)\n      " in narrow


def test_nothing_in_a_checkpoint_is_obeyed_by_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\nverified"
    for number in (1, 2):
        save(tmp_path / str(number), {evil: np.full(2, number), "static": Static(evil * number)})
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"x": 1}, metadata={evil: evil})
    data = (tmp_path / "1").read_bytes()
    (tmp_path / "damaged").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    for arguments in ((tmp_path / "1",), (tmp_path / "1", tmp_path / "2"), (tmp_path / "run",)):
        text = said(capsys, *arguments)[1]
        assert "\\x1b[2J\\nverified" in text
        assert "\x1b" not in text
    assert "\x1b" not in said(capsys, tmp_path / "damaged", "--verify")[1]


def test_names_that_the_output_can_not_hold_are_written_and_its_end_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", {"\u00e4": 1})
    reading, writing = os.pipe()
    with os.fdopen(reading) as reader, os.fdopen(writing, "w", encoding="ascii") as output:
        monkeypatch.setattr(sys, "stdout", output)
        assert main(["checkpoint", str(tmp_path / "x")]) == 0
        assert reader.readline().startswith(str(tmp_path))
        assert reader.readline().startswith("  \\xe4  int64[] (int)")
        reader.close()
        assert main(["checkpoint", str(tmp_path / "x")]) == 0


@pytest.mark.parametrize(("name", "message"), [("none", "is neither a file nor a folder"), (".", "holds no steps")])
def test_what_is_no_checkpoint_is_told(
    name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = said(capsys, tmp_path / name)

    assert status == 2
    assert message in text


@pytest.mark.parametrize(("count", "text"), [(0, "0 bytes"), (1500, "1.5 kB"), (2 * 10**9, "2 GB"), (10**13, "10 TB")])
def test_sizes_have_units(count: int, text: str) -> None:
    from treewright.checkpoint.command import _size

    assert _size(count) == text


def test_commands_are_listed_and_an_unknown_one_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "checkpoint   list, verify and compare checkpoints" in capsys.readouterr().out
    assert main(["unknown"]) == 2
    assert "usage: python -m treewright COMMAND" in capsys.readouterr().err


def test_the_command_runs_as_a_program(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": 1})

    run = subprocess.run(
        [sys.executable, "-m", "treewright", "checkpoint", str(tmp_path / "x")],
        env={"PYTHONPATH": str(ROOT / "src"), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 leaf, 8 bytes" in run.stdout
