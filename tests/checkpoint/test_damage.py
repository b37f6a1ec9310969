"""Damaged steps: every changed file is damage, and nothing else is."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same, flip_a_bit
from tests.checkpoint.models import spec
from tests.checkpoint.runs import LIKE, arrays_in, saved
from treewright.checkpoint import CheckpointManager
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


def test_restore_latest_valid_skips_and_names_damaged_steps(tmp_path: Path) -> None:
    manager = saved(tmp_path, 1, 2, 3, 4, 5)
    flip_a_bit(*arrays_in(tmp_path, 5))
    (tmp_path / "steps" / "4" / "manifest" / "metadata").write_text("{")
    (tmp_path / "steps" / "3" / "manifest" / "metadata").unlink()
    (tmp_path / "steps" / "2" / "state" / "manifest.ocdbt").unlink()

    with pytest.raises(CheckpointDamagedError, match=r"Step 5 can't be read|damaged"):
        manager.restore(like=LIKE)
    with pytest.warns(
        CheckpointWarning, match=r"Restored step 1, skipping damaged steps:\n  5: .* Renamed to 5\.damaged-.*\n  4: "
    ) as seen:
        found = manager.restore_latest_valid(like=LIKE)
    assert seen[0].filename == __file__
    assert found is not None
    tree, step = found
    assert (step, tree["x"].tolist(), manager.all_steps()) == (1, [1, 1], (1,))
    with pytest.raises(AttributeError, match=r"it is the pair \(tree, step\)\. Use restored\.tree\.params"):
        found.params  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # noqa: B018
    flip_a_bit(*arrays_in(tmp_path, 1))
    with pytest.raises(CheckpointDamagedError, match=r"All steps in .*steps are damaged:\n  1: "):
        manager.restore_latest_valid(like=LIKE)


@pytest.mark.parametrize("same_manager", [True, False])
def test_a_damaged_step_is_quarantined_and_its_number_is_free(same_manager: bool, tmp_path: Path) -> None:
    saved(tmp_path, 20, 24, 30, keep=3).close()
    flip_a_bit(*arrays_in(tmp_path, 30))
    manager = CheckpointManager(tmp_path / "steps", keep=3)
    with pytest.warns(CheckpointWarning, match="Restored step 24"):
        manager.restore_latest_valid(like=LIKE)
    with manager if same_manager else CheckpointManager(tmp_path / "steps", keep=3) as manager:
        manager.save(28, LIKE)
        manager.wait()
        assert manager.all_steps() == (20, 24, 28)
        manager.save(30, {"x": jnp.full(2, 8)})
        manager.wait()
        assert manager.all_steps() == (24, 28, 30)
        assert manager.restore(like=LIKE)["x"].tolist() == [8, 8]
    assert len(list((tmp_path / "steps").glob("30.damaged-*/state"))) == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES, errno.EMFILE])
@pytest.mark.parametrize("place", ["open", "restore", "restore by TensorStore's code"])
def test_file_system_errors_are_not_damage(
    number: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = saved(tmp_path, 1, 2)

    def fail(*_: Any, **__: Any) -> None:
        if place == "restore":  # The words of TensorStore
            raise ValueError(f"Error reading local file: [OS error {number}: {os.strerror(number)}] at x.cc:1")
        if place != "open":
            raise ValueError(f"NOT_FOUND: {os.strerror(number)} [tensorstore_spec='{{}}'] [os_error_code='{number}']")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(*((Path, "open", fail) if place == "open" else (ocp.PyTreeCheckpointHandler, "restore", fail)))
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            manager.restore_latest_valid(like=LIKE)
        assert caught.value.errno == number
    with pytest.raises(CheckpointError, match="already has the steps 2"):
        manager.save(2, LIKE)
    found = manager.restore_latest_valid(like=LIKE)
    assert found is not None
    assert found.step == 2
    manager.close()


@pytest.mark.devices(2)
def test_an_intact_step_that_does_not_match_is_not_skipped(
    tmp_path: Path,
) -> None:
    struct: Any = jax.ShapeDtypeStruct
    with saved(tmp_path, 1, 2) as manager:
        with pytest.raises(CheckpointMismatchError, match=r"\['x'\]: shape"):
            manager.restore_latest_valid(like={"x": jnp.zeros(3, int)})
        sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
        with pytest.raises(ValueError, match=r"divisible|device") as caught:
            manager.restore_latest_valid(like={"x": struct((2,), jnp.int32, sharding=sharding)})
        assert not isinstance(caught.value, CheckpointError)


def test_a_step_deleted_during_a_read_is_not_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, evaluator = saved(tmp_path, 1, keep=1), CheckpointManager(tmp_path / "steps")
    plain = Path.open

    def saves_meanwhile(path: Path, *args: Any, **options: Any) -> Any:
        monkeypatch.setattr(Path, "open", plain)
        latest = max(trainer.all_steps())
        trainer.save(latest + 1, {"x": jnp.full(2, latest + 1)})
        trainer.wait()
        return plain(path, *args, **options)

    monkeypatch.setattr(Path, "open", saves_meanwhile)
    found = evaluator.restore_latest_valid(like=LIKE)
    assert found is not None
    assert found.step == 2
    for call in (evaluator.restore, evaluator.manifest):
        monkeypatch.setattr(Path, "open", saves_meanwhile)
        with pytest.raises(CheckpointError, match=r"Step [23] in .*steps was deleted while it was read\.$") as caught:
            call()
        assert not isinstance(caught.value, CheckpointDamagedError)
    trainer.close()


# Every change to every file of a step


def flipped(place: float) -> Callable[[Path], None]:
    """Flip a bit of the byte at this place, a share of the file."""

    def change(file: Path) -> None:
        data = bytearray(file.read_bytes())
        data[int(len(data) * place)] ^= 1 << int(place * 1000) % 8
        file.write_bytes(data)

    return change


def replaced(by: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.unlink()
        by(file)

    return change


CHANGES: dict[str, Callable[[Path], None]] = {
    "a bit of the first byte": flipped(0),
    "a bit in the middle": flipped(0.5),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "a folder": replaced(lambda file: file.mkdir()),
    "a dangling link": replaced(lambda file: file.symlink_to("nowhere")),
    "a link to itself": replaced(lambda file: file.symlink_to(file)),
    "a link to an endless device": replaced(lambda file: file.symlink_to("/dev/zero")),
    "a pipe": replaced(os.mkfifo),
}
MORE_FLIPS = {f"a bit at {place}": flipped(place) for place in (n / 97 for n in range(97))}
# Files that a restore reads. Changes to other files may go unnoticed if the tree is restored bit by bit.
READ = re.compile(r"manifest/(metadata|process\.0)|state/(manifest\.ocdbt|d/\w+)")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # "Event loop is closed", of TensorStore
@pytest.mark.filterwarnings("always::treewright.errors.CheckpointWarning")
@pytest.mark.parametrize(
    "changes", [pytest.param(CHANGES, id="all"), pytest.param(MORE_FLIPS, id="flips", marks=pytest.mark.exhaustive)]
)
def test_any_change_to_a_file_is_damage_or_harmless(changes: dict[str, Callable[[Path], None]], tmp_path: Path) -> None:
    def tree(number: int) -> Any:
        return {"x": jnp.full((100, 100), number), "host": np.full(3, float(number)), "n": number}

    with CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2):
            manager.save(step, tree(step), metrics={"loss": step}, items={"data": step})
    shutil.copytree(tmp_path / "run" / "2", tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert len([file for file in files if READ.fullmatch(str(file))]) == 4
    accepted: list[str] = []
    for file in files:
        for name, change in changes.items():
            for folder in (tmp_path / "run").glob("2*"):
                shutil.rmtree(folder)
            shutil.copytree(tmp_path / "whole", tmp_path / "run" / "2")
            change(tmp_path / "run" / "2" / file)
            with warnings.catch_warnings(record=True) as seen:
                restored = manager.restore_latest_valid(like=tree(0))
            assert restored is not None, (file, name)
            assert_same(restored.tree, tree(restored.step))
            if restored.step == 2:
                accepted.append(str(file))
            else:
                assert "Restored step 1, skipping damaged steps:\n  2: " in str(seen[0].message), (file, name)
    assert not [file for file in accepted if READ.fullmatch(file)]


@pytest.mark.exhaustive
def test_the_docs_show_the_output_of_the_fault_benchmark() -> None:
    pytest.importorskip("equinox")
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "faults.py")], capture_output=True, text=True, check=True
    )
    assert run.stdout in (root / "docs" / "checkpoints.md").read_text()
