"""A folder of steps: kept, asynchronous, never named before they are whole, and opened by plain Orbax."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import net, spec, train_state
from treewright import loop, replace
from treewright.checkpoint import CheckpointManager, from_names
from treewright.checkpoint import manager as manager_module
from treewright.checkpoint.steps import saved_manifest
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable

ocp: Any = pytest.importorskip("orbax.checkpoint")


@pytest.fixture(autouse=True)
def saving_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every Python: the process does not end here."""
    monkeypatch.setattr(manager_module, "CAN_FINISH", True)


def saved(folder: Path, *steps: int, **options: Any) -> CheckpointManager:
    """A manager that has saved `{"x": [step, step]}` under these steps."""
    manager = CheckpointManager(folder / "steps", **options)
    for step in steps:
        manager.save(step, {"x": jnp.full(2, step)})
    manager.wait()
    return manager


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    with saved(tmp_path, 1, 2, 5, 7, keep=2) as manager:
        assert manager.all_steps() == (5, 7)
        assert manager.latest_step() == 7
        assert manager.restore(like={"x": jnp.zeros(2, int)})["x"].tolist() == [7, 7]
        assert manager.restore(5, like={"x": jnp.zeros(2, int)})["x"].tolist() == [5, 5]
        assert manager.manifest(5).leaves[0].name == "x"


def test_all_steps_are_kept_when_asked_for(tmp_path: Path) -> None:
    with saved(tmp_path, *range(6), keep=None) as manager:
        assert manager.all_steps() == tuple(range(6))


def test_a_folder_that_is_not_there_has_no_steps_and_is_not_made(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "none") as manager:
        assert manager.all_steps() == ()
        assert manager.latest_step() is None
        assert manager.restore_latest_valid(like=1) is None
        with pytest.raises(CheckpointError, match=r"none has no steps\.$"):
            manager.restore(like=1)
    assert not list(tmp_path.iterdir())


def test_a_step_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with (
        saved(tmp_path, 1, 2) as manager,
        pytest.raises(CheckpointError, match=r"has the steps 1, 2, and no step 3\.$"),
    ):
        manager.restore(3, like=1)


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_nothing_is_refused(keep: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"keep=\.\.\.\) takes a whole number from 1, or None, got {keep}"):
        CheckpointManager(tmp_path, keep=keep)


@pytest.mark.parametrize("step", [-1, True, 1.0, "1"])
def test_what_is_no_step_is_refused(step: Any, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="A step is a whole number from 0, got"):
        CheckpointManager(tmp_path).save(step, {"x": 1})


def test_a_step_that_exists_is_refused(tmp_path: Path) -> None:
    with saved(tmp_path, 1) as manager, pytest.raises(CheckpointError, match="steps has a step 1 already"):
        manager.save(1, {"x": 1})


def test_a_step_or_a_file_in_place_of_the_folder_is_told_when_the_manager_is_made(tmp_path: Path) -> None:
    saved(tmp_path, 1).close()
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match=r"steps/1 is a step. .*: CheckpointManager\('.*/steps'\)\."):
        CheckpointManager(tmp_path / "steps" / "1")  # a run that resumed there would begin anew
    with pytest.raises(CheckpointError, match="file is a file, and a CheckpointManager needs a folder"):
        CheckpointManager(tmp_path / "file")


def test_an_older_step_may_be_saved_later(tmp_path: Path) -> None:
    with saved(tmp_path, 5, 3) as manager:
        assert manager.all_steps() == (3, 5)


def test_saving_goes_on_in_the_background_and_arrays_may_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = hold_commits(monkeypatch)
    host, donated = np.ones(3), jnp.ones(3)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"host": host, "donated": donated})
        host[:] = 5
        jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
        assert manager.latest_step() is None
        let_go.set()
        manager.wait()
        found = manager.restore(like={"host": host, "donated": jnp.zeros(3)})
    assert_same(found, {"host": np.ones(3), "donated": jnp.ones(3)})


def test_a_loop_may_go_on_while_its_state_is_written(tmp_path: Path) -> None:
    run = loop(lambda state: (jax.tree.map(lambda leaf: leaf + 1, state), None), {"x": jnp.zeros(1000)})
    with CheckpointManager(tmp_path / "steps", keep=None) as manager:
        for step in range(3):
            manager.save(step, run.state)
            run()
        run.state = manager.restore(1, like=run.state)
        run()

        assert [float(manager.restore(step, like=run.state)["x"].max()) for step in range(3)] == [0, 1, 2]
    assert float(run.state["x"].max()) == 2


def test_restoring_waits_for_the_step_that_is_being_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = {"x": jnp.ones(3)}
    calls: list[Callable[[CheckpointManager], object]] = [
        lambda manager: manager.restore(like=tree)["x"].tolist() == [1, 1, 1],
        lambda manager: manager.restore(1, like=tree)["x"].tolist() == [1, 1, 1],
        lambda manager: manager.restore_latest_valid(like=tree) is not None,
        lambda manager: manager.manifest().leaves[0].name == "x",
    ]
    for number, call in enumerate(calls):
        with monkeypatch.context() as patch, CheckpointManager(tmp_path / str(number)) as manager:
            let_go = hold_commits(patch)
            manager.save(1, tree)
            assert manager.latest_step() is None
            threading.Timer(0.1, let_go.set).start()
            assert call(manager)
            assert manager.latest_step() == 1


def hold_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no step be committed before the event is set."""
    let_go = threading.Event()
    sync_step = CheckpointManager._sync_step

    def held(self: CheckpointManager) -> None:
        assert let_go.wait(5)
        sync_step(self)

    monkeypatch.setattr(CheckpointManager, "_sync_step", held)
    return let_go


def test_a_manager_that_is_not_asynchronous_returns_when_the_step_is_on_disk(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, asynchronous=False) as manager:
        manager.save(1, {"x": 1})
        assert (tmp_path / "1").is_dir()
        assert manager.latest_step() == 1


def test_where_a_program_that_ends_starts_no_threads_every_save_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "CAN_FINISH", False)
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"x": jnp.ones(2)})

    assert CheckpointManager(tmp_path).all_steps() == (1,)


def test_every_file_of_a_step_is_on_the_disk_as_it_is_and_most_of_them_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[str, bytes] = {}
    late: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        name = str(target.relative_to(tmp_path)).replace("1.orbax-checkpoint-tmp", "1")
        synced[name] = target.read_bytes() if target.is_file() else b""
        if (tmp_path / "1").exists():
            late.append(target.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.ones(3)})
        manager.wait()

    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "1").rglob("*")}
    assert {"1/manifest/metadata", "1/state/_METADATA"} <= made
    assert made - synced.keys() <= {f"1{item}/commit_success.txt" for item in ("", "/manifest", "/state")}
    for name in made & synced.keys():  # and nothing was written after it was brought there
        assert (tmp_path / name).is_dir() or (tmp_path / name).read_bytes() == synced[name]
    assert late == ["_CHECKPOINT_METADATA", "1", tmp_path.name]  # which Orbax writes again last; and the names


CALLS: dict[str, Any] = {
    "all_steps": lambda manager: manager.all_steps(),
    "latest_step": lambda manager: manager.latest_step(),
    "manifest": lambda manager: manager.manifest(),
    "restore": lambda manager: manager.restore(like=1),
    "restore_latest_valid": lambda manager: manager.restore_latest_valid(like=1),
    "save": lambda manager: manager.save(3, {"x": 1}),
    "wait": lambda manager: manager.wait(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_failure_in_the_background_is_raised_at_the_next_call_and_the_step_is_never_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()

    def fail(_: object) -> None:
        assert let_go.wait(5)
        raise OSError("no space left")

    with saved(tmp_path, 1) as manager:
        with monkeypatch.context() as patch:
            patch.setattr("treewright.checkpoint.manager.sync", fail)
            manager.save(2, {"x": jnp.ones(2)})
            assert manager.latest_step() == 1
            let_go.set()
            while manager._saver.is_saving_in_progress():
                time.sleep(0.01)
            with pytest.raises(
                CheckpointError, match=r"Step 2 could not be saved in .*steps; earlier steps are as they"
            ):
                CALLS[name](manager)
        assert manager.latest_step() == 1
        manager.save(2, {"x": jnp.ones(2)})
        manager.wait()
        assert manager.all_steps() == (1, 2)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failure_is_raised_by_the_next_save_and_by_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("treewright.checkpoint.manager.sync", fail)
    manager = CheckpointManager(tmp_path)
    manager.save(1, {"x": 1})
    with pytest.raises(CheckpointError, match=r"Step 1 could not be saved .*: no space left"):
        manager.save(2, {"x": 1})
    manager.save(2, {"x": 1})
    with pytest.raises(CheckpointError, match=r"Step 2 could not be saved .*: no space left"):
        manager.close()
    assert CheckpointManager(tmp_path).latest_step() is None


def test_two_managers_can_not_save_into_one_folder(tmp_path: Path) -> None:
    with saved(tmp_path, 1) as manager:
        other = CheckpointManager(tmp_path / "steps")
        for _ in range(2):
            with pytest.raises(CheckpointError, match="steps: another CheckpointManager saves into this folder"):
                other.save(2, {"x": 1})
        assert other.restore(like={"x": jnp.zeros(2, int)})["x"].tolist() == [1, 1]
        manager.save(3, {"x": 1})
    other.save(4, {"x": 1})
    other.close()
    other.close()
    assert other.all_steps() == (1, 3, 4)


def test_a_manager_leaves_what_another_is_writing_where_locks_keep_nobody_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # as between two machines on NFS
    let_go = hold_commits(monkeypatch)
    with CheckpointManager(tmp_path) as first, CheckpointManager(tmp_path) as second:
        first.save(1, {"x": 1})
        second.save(2, {"x": 2})
        let_go.set()
        first.wait()
        second.wait()
        assert [first.restore(step)["x"] for step in (1, 2)] == [1, 2]
    assert {path.name for path in tmp_path.iterdir()} == {"1", "2"}


def test_what_a_dead_process_was_writing_is_cleared_away_and_what_another_machine_writes_is_not(tmp_path: Path) -> None:
    left = tmp_path / "7.orbax-checkpoint-tmp"
    mark = tmp_path / ".treewright-saving-another-1-0123"
    for age, stays in ((0, True), (2 * 3600, False)):
        left.mkdir(exist_ok=True)
        mark.touch()
        os.utime(mark, (time.time() - age, time.time() - age))
        with CheckpointManager(tmp_path, asynchronous=False) as manager:
            manager.save(1 + age, {"x": 1})
        assert (left.exists(), mark.exists()) == (stays, stays)
    assert {path.name for path in tmp_path.iterdir()} == {"1", "7201"}


def test_a_step_can_be_deleted_from_a_disk_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    saved(tmp_path, 1, 2).close()
    monkeypatch.setattr(Path, "touch", full)
    with CheckpointManager(tmp_path / "steps") as manager:
        manager.delete(1)
        assert manager.all_steps() == (2,)


# Damage


def damage(folder: Path, step: int) -> None:
    """Flip a bit in the middle of each file with the bytes of arrays."""
    for file in (folder / "steps" / str(step) / "state").rglob("d/*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)


def test_the_latest_valid_step_is_found_and_the_damaged_ones_are_named(tmp_path: Path) -> None:
    manager = saved(tmp_path, 1, 2, 3)
    damage(tmp_path, 3)
    (tmp_path / "steps" / "2" / "manifest" / "metadata").write_text("{")

    with pytest.warns(CheckpointWarning, match=r"Restored step 1 and skipped damaged ones:\n  3: .*\n  2: ") as seen:
        found = manager.restore_latest_valid(like={"x": jnp.zeros(2, int)})
    assert seen[0].filename == __file__
    assert found is not None
    assert (found.step, found.tree["x"].tolist(), set(found.skipped)) == (1, [1, 1], {2, 3})
    with pytest.raises(CheckpointDamagedError):
        manager.restore(like={"x": jnp.zeros(2, int)})
    manager.close()


def test_a_damaged_step_that_was_skipped_can_be_saved_anew(tmp_path: Path) -> None:
    with saved(tmp_path, 1, 2) as manager:
        damage(tmp_path, 2)
        with pytest.warns(CheckpointWarning):
            manager.restore_latest_valid(like={"x": jnp.zeros(2, int)})
        manager.save(2, {"x": jnp.full(2, 8)})
        manager.wait()
        assert manager.restore(like={"x": jnp.zeros(2, int)})["x"].tolist() == [8, 8]
        with pytest.raises(CheckpointError, match="has a step 2 already"):
            manager.save(2, {"x": 1})


def test_if_all_steps_are_damaged_that_is_an_error(tmp_path: Path) -> None:
    with saved(tmp_path, 1, 2) as manager:
        damage(tmp_path, 1)
        damage(tmp_path, 2)
        with pytest.raises(CheckpointDamagedError, match=r"All steps in .*steps are damaged:\n  2: .*\n  1: "):
            manager.restore_latest_valid(like={"x": jnp.zeros(2, int)})


def test_a_whole_step_that_does_not_fit_is_not_skipped(tmp_path: Path) -> None:
    with saved(tmp_path, 1, 2) as manager, pytest.raises(CheckpointMismatchError, match=r"\['x'\]: shape"):
        manager.restore_latest_valid(like={"x": jnp.zeros(3, int)})


def test_a_whole_step_is_found_without_a_word(tmp_path: Path) -> None:
    with saved(tmp_path, 1, 2) as manager:
        found = manager.restore_latest_valid(like={"x": jnp.zeros(2, int)})
        assert found is not None
        assert (found.step, found.skipped) == (2, {})


# Plain Orbax


def test_plain_orbax_opens_it_and_finds_readable_names(tmp_path: Path) -> None:
    state = train_state()
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state)

    plain = ocp.CheckpointManager(tmp_path, item_names=("state", "manifest"))
    found: Any = plain.restore(
        1, args=ocp.args.Composite(state=ocp.args.StandardRestore(), manifest=ocp.args.JsonRestore())
    )
    plain.close()
    np.testing.assert_array_equal(found.state["params"]["layers"]["0"]["kernel"], state.params.layers[0].kernel)
    np.testing.assert_array_equal(
        found.state["opt_state"]["0"]["mu"]["layers"]["1"]["bias"], state.opt_state[0].mu.layers[1].bias
    )
    assert json.loads(found.manifest["treewright"])["containers"][0]["class"] == "treewright.train:TrainState"


def test_steps_of_plain_orbax_go_by_names(tmp_path: Path) -> None:
    with ocp.StandardCheckpointer() as plain:
        plain.save(tmp_path / "plain", {"layers": [{"kernel": jnp.ones(2)}]})
    with ocp.StandardCheckpointer() as plain:
        restored = plain.restore(tmp_path / "plain")
    from treewright.checkpoint import to_names

    like = {"layers": [{"kernel": jnp.zeros(2)}]}
    assert_same(from_names(to_names(restored), like=like), {"layers": [{"kernel": jnp.ones(2)}]})


def test_a_folder_of_plain_orbax_has_no_manifest(tmp_path: Path) -> None:
    with ocp.CheckpointManager(tmp_path) as plain:
        plain.save(1, args=ocp.args.StandardSave({"a": jnp.ones(1)}))

    for restore in (CheckpointManager(tmp_path).restore, CheckpointManager(tmp_path).restore_latest_valid):
        with pytest.raises(
            CheckpointError, match=r"Step 1 in .* has no manifest: another .*read_names\('.*/1'\)"
        ) as caught:
            restore(like={"a": jnp.ones(1)})
        assert not isinstance(caught.value, CheckpointDamagedError)


# Shardings


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_sharded_step_comes_back_on_any_number_of_devices(count: int, tmp_path: Path) -> None:
    def sharded(devices: Any) -> NamedSharding:
        return NamedSharding(Mesh(np.array(devices), ("a",)), spec("a"))

    x = jnp.arange(64.0).reshape(8, 8)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jax.device_put(x, sharded(jax.devices()))})
        manager.wait()
        assert set(manager.manifest().leaves[0].digests) == {f"{i}:{i + 2},0:8" for i in range(0, 8, 2)}
        found = manager.restore(like={"x": jax.device_put(x * 0, sharded(jax.devices()[:count]))})["x"]
    assert found.sharding == sharded(jax.devices()[:count])
    np.testing.assert_array_equal(found, x)


def test_a_step_of_whole_arrays_comes_back_sharded(tmp_path: Path) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    x = jnp.arange(8.0)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        manager.wait()
        found = manager.restore(like={"x": jax.device_put(x * 0, sharding)})["x"]

    assert found.sharding == sharding
    np.testing.assert_array_equal(found, x)


def test_a_flipped_bit_in_a_shard_is_told_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("a",)), spec("a"))
    x = jax.device_put(jnp.zeros(8), sharding)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        manager.wait()
        plain = ocp.PyTreeCheckpointHandler.restore

        def flipped(self: Any, *args: Any, **options: Any) -> Any:
            found = plain(self, *args, **options)
            place = np.arange(8) == 5
            return {"x": found["x"] + place.astype(np.float32)}

        monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", flipped)
        for like in (x, np.zeros(8, np.float32)):
            with pytest.raises(CheckpointDamagedError, match=r"\['x'\]\[4:6\] is damaged: its bytes have the digest"):
                manager.restore(like={"x": like})


def test_an_array_of_another_shape_than_the_manifest_says_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with saved(tmp_path, 1) as manager:
        monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", lambda *_, **__: {"x": np.zeros(3, np.int32)})
        with pytest.raises(CheckpointDamagedError, match=r"\['x'\] is damaged: it is a int32\(3,\), and a int32\[2\]"):
            manager.restore(like={"x": jnp.zeros(2, int)})


def test_statics_are_compared_by_the_manager_too(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, net())
        manager.wait()
        with pytest.raises(CheckpointMismatchError, match=r"\.width: static 3 saved, 5 in the tree"):
            manager.restore_latest_valid(like=replace(net(), width=5))


def test_a_folder_that_can_not_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(CheckpointError, match=r"Step 1 could not be saved in .*Not a directory"):
        CheckpointManager(tmp_path / "file" / "steps").save(1, {"x": 1})


def test_a_tree_that_asks_for_nothing_reads_nothing(tmp_path: Path) -> None:
    with saved(tmp_path, 1) as manager, pytest.warns(CheckpointWarning, match=r"0 leaves were loaded\."):
        assert manager.restore(like={"y": 3}, strict=False) == {"y": 3}


def test_a_step_without_an_array_of_its_manifest_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with saved(tmp_path, 1) as manager:
        monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", lambda *_, **__: {"x": ...})
        with pytest.raises(CheckpointDamagedError, match=r"\['x'\] is damaged: the step has no array for it"):
            manager.restore(like={"x": jnp.zeros(2, int)})


def test_a_step_that_is_deleted_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, evaluator = CheckpointManager(tmp_path, keep=1), CheckpointManager(tmp_path)
    tree = {"x": np.ones(2)}

    def saves_meanwhile(folder: Path) -> Any:
        monkeypatch.undo()
        trainer.save(int(folder.name) + 1, tree)
        trainer.wait()
        return saved_manifest(folder)

    with trainer:
        trainer.save(1, tree)
        trainer.wait()
        monkeypatch.setattr(manager_module, "saved_manifest", saves_meanwhile)
        found = evaluator.restore_latest_valid(like=tree)
        assert found is not None
        assert (found.step, found.skipped) == (2, {})
        monkeypatch.setattr(manager_module, "saved_manifest", saves_meanwhile)
        with pytest.raises(CheckpointError, match=r"2 was deleted while it was read, perhaps by whoever saves there\."):
            evaluator.restore(like=tree)


def test_a_folder_that_can_not_be_listed_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(ocp.utils, "checkpoint_steps", fails)
    with pytest.raises(CheckpointError, match=r"The steps in .* can't be listed: .*Permission denied"):
        CheckpointManager(tmp_path).latest_step()
