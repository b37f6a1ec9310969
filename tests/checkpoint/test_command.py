"""`python -m treewright checkpoint`: lists and verifies, and reads no arrays to list."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import flip_a_bit
from tests.checkpoint.models import net, spec
from treewright import Static
from treewright.__main__ import main
from treewright.checkpoint import CheckpointManager, read_manifest, save

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")
ROOT = Path(__file__).parents[2]


def output_of(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """The exit status, and all that was written."""
    status = main(["checkpoint", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


def steps(folder: Path, numbers: Sequence[int]) -> Path:
    with CheckpointManager(folder / "run") as manager:
        for number in numbers:
            manager.save(number, {"x": jnp.full(1000, number), "y": jnp.zeros(2)}, metrics={"loss": 1 / number})
    return folder / "run"


def test_the_command_lists_leaves_statics_and_digests_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(tmp_path / "net", net())

    status, text = output_of(capsys, tmp_path / "net")
    lines = text.splitlines()
    assert (status, lines[0]) == (0, f"{tmp_path / 'net'}  5 leaves  96 bytes")
    digest = read_manifest(tmp_path / "net").leaves[0].digest
    assert lines[1].split() == ["layers.0.kernel", "float32[3,4]", "(array)", digest]
    assert "  .width = 3  (static of tests.checkpoint.models:Net)" in lines


def test_the_command_lists_the_steps_of_a_folder_without_reading_arrays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = steps(tmp_path, (2, 10))
    flip_a_bit(run / "10" / "process_0.safetensors", -1)
    monkeypatch.chdir(tmp_path)

    status, text = output_of(capsys, "run")
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()] == [str(run / "2"), str(run / "10")]
    assert "  loss=0.5\n" in text
    assert "  x  int32[1000] (array)  " in output_of(capsys, run / "10")[1]


def test_verify_reports_a_damaged_step_and_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = steps(tmp_path, (1, 2, 3))
    flip_a_bit(run / "2" / "process_0.safetensors", -1)
    monkeypatch.chdir(tmp_path)

    status, text = output_of(capsys, "run", "--verify")
    assert status == 1
    assert text.count("  2 arrays verified\n") == 2
    assert f"{run / '2'} is damaged: " in text
    (run / "3" / "_CHECKPOINT_METADATA").write_bytes((run / "1" / "_CHECKPOINT_METADATA").read_bytes())
    assert f"{run / '3'} is damaged: " in output_of(capsys, "run", "--verify")[1]
    save(tmp_path / "file", net())
    assert output_of(capsys, tmp_path / "file", "--verify")[0] == 0


@pytest.mark.devices(4)
def test_the_command_lists_and_verifies_an_array_in_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    with CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"x": jax.device_put(jnp.arange(8.0), sharding)})

    assert f"({len(jax.devices())} blocks)\n" in output_of(capsys, tmp_path / "run")[1]
    assert output_of(capsys, tmp_path / "run", "--verify")[0] == 0


def test_the_command_escapes_terminal_control_characters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\nverified"
    save(tmp_path / "1", {evil: np.ones(2), "static": Static(evil)})
    data = (tmp_path / "1").read_bytes()
    (tmp_path / "damaged").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    text = output_of(capsys, tmp_path / "1")[1]
    assert "\\x1b[2J\\nverified" in text
    assert "\x1b" not in text
    assert "\nverified" not in text
    assert "\x1b" not in output_of(capsys, tmp_path / "damaged", "--verify")[1]


def test_unknown_commands_and_paths_without_a_checkpoint_are_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path, message in ((tmp_path / "none", "No such file or directory"), (tmp_path, "contains no steps")):
        status, text = output_of(capsys, path)
        assert (status, message in text) == (2, True)
    assert main(["--help"]) == 0
    assert "checkpoint   list and verify checkpoints" in capsys.readouterr().out
    assert main(["unknown"]) == 2
    assert "usage: python -m treewright COMMAND" in capsys.readouterr().err


def test_the_command_prints_only_ascii_as_a_program(tmp_path: Path) -> None:
    save(tmp_path / "x", {"\u00e4": 1})

    run = subprocess.run(
        [sys.executable, "-m", "treewright", "checkpoint", str(tmp_path / "x")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "1 leaf  8 bytes" in run.stdout
    assert "  \\xe4  int64[] (int)" in run.stdout


def test_orbax_is_imported_on_first_use_and_its_absence_is_explained() -> None:
    program = (
        "import sys; from treewright.checkpoint import save; assert 'orbax' not in sys.modules\n"
        "sys.modules['orbax.checkpoint'] = None\n"
        "from treewright.checkpoint import CheckpointManager"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ImportError: CheckpointManager needs orbax-checkpoint. Install it with" in run.stderr


def test_a_step_of_another_program_does_not_end_the_list(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = steps(tmp_path, [1])
    with ocp.CheckpointManager(run) as foreign:
        foreign.save(2, args=ocp.args.StandardSave({"x": jnp.ones(3)}))
    steps(tmp_path, [3])
    (run / "2024").mkdir()

    for option in ((), ("--verify",)):
        status, text = output_of(capsys, run, *option)
        assert status == 2
        assert [line.split()[0] for line in text.splitlines() if line.startswith(str(run))] == [f"{run}/1", f"{run}/3"]
        assert text.count("2 arrays verified") == (2 if option else 0)
        assert "Step 2 in" in text
        assert "has no manifest: a different program saved it with Orbax" in text


@pytest.mark.parametrize(
    ("package", "message"),
    [("orbax", "Listing steps needs orbax-checkpoint"), ("xxhash", "The digest of a checkpoint needs xxhash")],
)
def test_the_command_names_a_missing_package(package: str, message: str, tmp_path: Path) -> None:
    run = steps(tmp_path, [1])
    program = f"""
import sys
sys.modules[{package!r}] = None
from treewright.__main__ import main
sys.exit(main(["checkpoint", {str(run)!r}, "--verify"]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert re.match(message, done.stderr)
    assert "Traceback" not in done.stderr
    assert "pip install '.[checkpoint]'" in done.stderr
