"""Damaged steps: every changed file is damage, and nothing else is."""

from __future__ import annotations

import os
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
from tests.checkpoint.forged_files import forge_listing, forge_step
from tests.checkpoint.models import spec
from tests.checkpoint.runs import LIKE, TREE, file_of, saved
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


def test_restore_latest_valid_skips_and_names_damaged_steps(tmp_path: Path) -> None:
    manager = saved(tmp_path, 1, 2, 3, 4, 5)
    flip_a_bit(file_of(tmp_path, 5), -1)
    file_of(tmp_path, 4).write_text("{")
    file_of(tmp_path, 3).unlink()
    forge_step(file_of(tmp_path, 2).parent, lambda document: document["leaves"][0].update(name="y"))

    with pytest.raises(CheckpointDamagedError, match=r"\['x'\] is damaged: the digest of its bytes is"):
        manager.restore(like=LIKE)
    with pytest.warns(
        CheckpointWarning, match=r"Restored step 1, skipping damaged steps:\n  5: .* Renamed to 5\.damaged-.*\n  4: "
    ) as seen:
        found = manager.restore_latest_valid(like=LIKE)
    assert seen[0].filename == __file__
    assert found is not None
    tree, step = found
    assert (step, tree["x"].tolist(), manager.all_steps()) == (1, [1, 1], (1,))
    flip_a_bit(file_of(tmp_path, 1))
    with pytest.raises(CheckpointDamagedError, match=r"All steps in .*steps are damaged:\n  1: "):
        manager.restore_latest_valid(like=LIKE)


@pytest.mark.parametrize("same_manager", [True, False])
def test_a_damaged_step_is_quarantined_and_its_number_is_free(same_manager: bool, tmp_path: Path) -> None:
    saved(tmp_path, 20, 24, 30, keep=3).close()
    flip_a_bit(file_of(tmp_path, 30))
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
    assert len(list((tmp_path / "steps").glob("30.damaged-*/process_0.safetensors"))) == 1


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


CHANGES: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "a bit of the first byte": flipped(0),
    "a bit in the middle": flipped(0.5),
    "cut": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "a folder": replaced(lambda file: file.mkdir()),
    "a dangling link": replaced(lambda file: file.symlink_to("nowhere")),
    "a link to itself": replaced(lambda file: file.symlink_to(file)),
    "a link to an endless device": replaced(lambda file: file.symlink_to("/dev/zero")),
    "a pipe": replaced(os.mkfifo),
    "that of another step": lambda file: shutil.copy(file.parents[1] / "1" / file.name, file),
}
MORE_FLIPS: dict[str, Callable[[Path], object]] = {
    f"a bit at {place}": flipped(place) for place in (n / 97 for n in range(97))
}
# Orbax's own entries in the second file may be changed, and nothing reads the third.
FILES = ("process_0.safetensors", "_CHECKPOINT_METADATA", "commit_success.txt")


@pytest.mark.filterwarnings("always::treewright.errors.CheckpointWarning")
@pytest.mark.parametrize(
    "changes", [pytest.param(CHANGES, id="all"), pytest.param(MORE_FLIPS, id="flips", marks=pytest.mark.exhaustive)]
)
def test_any_change_to_a_file_is_damage_or_harmless(
    changes: dict[str, Callable[[Path], object]], tmp_path: Path
) -> None:
    def tree(number: int) -> Any:
        return {"x": jnp.full((100, 100), number), "host": np.full(3, float(number)), "n": number}

    with CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2):
            manager.save(step, tree(step), metrics={"loss": step}, items={"data": step})
    shutil.copytree(tmp_path / "run" / "2", tmp_path / "whole")
    files = [path.relative_to(tmp_path / "whole") for path in (tmp_path / "whole").rglob("*") if path.is_file()]
    assert {*map(str, files)} == {*FILES}
    accepted: set[tuple[str, str]] = set()
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
                accepted.add((str(file), name))
            else:
                assert "Restored step 1, skipping damaged steps:\n  2: " in str(seen[0].message), (file, name)
    assert all(file == FILES[2] or (file == FILES[1] and name.startswith("a bit")) for file, name in accepted)


@pytest.mark.exhaustive
def test_the_docs_show_the_output_of_the_fault_benchmark() -> None:
    pytest.importorskip("equinox")
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, str(root / "benchmarks" / "faults.py")], capture_output=True, text=True, check=True
    )
    assert run.stdout in (root / "docs" / "checkpoints.md").read_text()


ERRORS = [kind("of a new version") for kind in (RuntimeError, ImportError, TypeError, KeyError, ValueError, EOFError)]


@pytest.mark.parametrize("place", ["placing.device_put", "blocks.digest_of", "placing.np.asarray"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_of_the_machine_is_not_damage(
    error: Exception, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    manager = saved(tmp_path, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(f"treewright.checkpoint.{place}", fail)
        with pytest.raises(type(error), match="of a new version"):
            manager.restore_latest_valid(like={"x": np.zeros(2, int)} if "np" in place else LIKE, allow_cast=True)
    assert manager.all_steps() == (1, 2)
    found = manager.restore_latest_valid(like=LIKE)
    assert found is not None
    assert found.step == 2


def by_another_program(step: Path) -> None:
    shutil.rmtree(step)
    ocp.Checkpointer(ocp.PyTreeCheckpointHandler()).save(step, TREE, custom_metadata={"framework": "treewright"})


def of_version_7(step: Path) -> None:
    forge_listing(step, lambda listed: [listed.pop(key) for key in ("version", "save")])


def of_version_9(step: Path) -> None:
    forge_listing(step, lambda listed: listed.update(version=9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (by_another_program, "Step 2 in .* has no manifest: a different program saved it with Orbax"),
        (
            of_version_7,
            "has format version 7, but this Treewright reads version 8.*Load it with the version that saved",
        ),
        (of_version_9, "has format version 9, but this Treewright reads version 8.*with a newer version"),
    ],
)
def test_a_step_of_another_format_is_not_damage(change: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    manager = saved(tmp_path, 1, 2)
    change(tmp_path / "steps" / "2")
    with pytest.raises(CheckpointError, match=message) as caught:
        manager.restore_latest_valid(like=LIKE)
    assert not isinstance(caught.value, CheckpointDamagedError)
    assert manager.all_steps() == (1, 2)


def test_a_step_of_64_bits_is_not_damage_without_them(tmp_path: Path) -> None:
    untyped: Any = jax
    x = untyped.device_put(jnp.arange(4.0), NamedSharding(Mesh(np.array(jax.devices()[:2]), ("a",)), spec("a")))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        with untyped.enable_x64(True):
            manager.save(2, {"x": jnp.arange(4.0)})
        for restore in (manager.restore, manager.restore_latest_valid):
            with pytest.raises(CheckpointError, match=r"\['x'\] is float64, .*jax_enable_x64") as seen:
                restore(like={"x": x}, allow_cast=True)
            assert not isinstance(seen.value, CheckpointDamagedError)
        assert manager.all_steps() == (1, 2)


def test_a_missing_package_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = saved(tmp_path, 1, 2)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(ImportError, match="The digest of a checkpoint needs xxhash"):
        manager.restore_latest_valid(like=LIKE)
    assert manager.all_steps() == (1, 2)


@pytest.mark.parametrize("name", ["process_0.safetensors", "_CHECKPOINT_METADATA"])
def test_a_huge_file_is_damage_and_not_read(name: str, tmp_path: Path) -> None:
    saved(tmp_path, 1, 2).close()
    path = tmp_path / "steps" / "2" / name
    os.truncate(path, 200_000_000_000)  # sparse
    manager = CheckpointManager(tmp_path / "steps")
    with pytest.raises(CheckpointDamagedError, match=r"entries do not match the length|at most 10,000,000 bytes"):
        manager.restore(2, like=LIKE)
    with pytest.warns(CheckpointWarning, match="Restored step 1"):
        manager.restore_latest_valid(like=LIKE)


def test_a_flipped_bit_in_a_key_of_a_file_is_damage(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a": np.ones(3)})
    content = (tmp_path / "x").read_bytes()
    for key in (b'"treewright"', b'"treewright.digest"'):
        for place in range(1, len(key) - 1):
            for bit in range(8):
                flipped = bytes([*key[:place], key[place] ^ 1 << bit, *key[place + 1 :]])
                (tmp_path / "x").write_bytes(content.replace(key, flipped, 1))
                with pytest.raises(CheckpointDamagedError):
                    load(tmp_path / "x")


def test_messages_about_damage_are_short(tmp_path: Path) -> None:
    save(tmp_path / "x", {"a" * 1_000_000: np.ones(3)})
    flip_at_end = bytearray((tmp_path / "x").read_bytes())
    flip_at_end[-1] ^= 1
    (tmp_path / "x").write_bytes(flip_at_end)
    with pytest.raises(CheckpointDamagedError) as caught:
        load(tmp_path / "x")
    assert len(str(caught.value)) < 1000


def test_a_header_above_the_limit_of_safetensors_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("treewright.checkpoint.format.MAX_BYTES", 1000)
    text = r"The names, statics and items would take [\d,]+ bytes .* limit of safetensors is 1,000\. Stack layers, save"
    with pytest.raises(CheckpointError, match=f"^{text}"):
        save(tmp_path / "x", {"a" * 1000: 1})
    manager = CheckpointManager(tmp_path / "run")
    manager.save(1, LIKE, items={"text": "a" * 1000})
    with pytest.raises(CheckpointError, match=f"Step 1 could not be saved .*: {text}"):
        manager.wait()
    assert [path.name for path in tmp_path.rglob("*")] == ["run"]


def test_items_above_the_limit_of_a_header_are_rejected_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treewright.checkpoint.handler.MAX_BYTES", 1000)
    with CheckpointManager(tmp_path) as manager:
        for step, text in enumerate(["a" * 1000, "a" * 900, '"' * 125, '"' * 110]):
            if step % 2:
                manager.save(step, LIKE, items={"text": text})
                continue
            with pytest.raises(
                CheckpointError, match=r"items=\) would take 1,0\d\d bytes .* 1,000\. Save large items as"
            ):
                manager.save(step, LIKE, items={"text": text})
    assert manager.all_steps() == (1, 3)
