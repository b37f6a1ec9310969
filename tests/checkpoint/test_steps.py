"""A folder of steps: kept, asynchronous, whole or not there, restored by the newest that is whole."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding

from tests.checkpoint.engines import assert_same, flip_a_bit
from tests.checkpoint.models import spec, train_state
from treewright.checkpoint import CheckpointManager, from_names
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")
TREE = {"x": np.ones(2)}
LIKE = {"x": jnp.zeros(2, int)}


def saved(folder: Path, *steps: Any, **options: Any) -> CheckpointManager:
    """A manager that has saved `{"x": [step, step]}` under these steps."""
    manager = CheckpointManager(folder / "steps", **options)
    for step in steps:
        manager.save(step, {"x": jnp.full(2, int(step))})
    manager.wait()
    return manager


def with_losses(folder: Path, steps: Sequence[int], losses: Sequence[float], **options: Any) -> CheckpointManager:
    manager = CheckpointManager(folder / "run", **options)
    for step, loss in itertools.zip_longest(steps, losses):
        manager.save(step, TREE, metrics={"loss": loss})
    manager.wait()
    return manager


# Which steps stay


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    assert saved(tmp_path / "all", *range(6), keep=None).all_steps() == tuple(range(6))
    with saved(tmp_path, 1, 2, 5, 7, keep=2) as manager:
        assert manager.all_steps() == (5, 7)
        assert manager.latest_step() == 7
        assert manager.restore(like=LIKE)["x"].tolist() == [7, 7]
        assert manager.restore(5, like=LIKE)["x"].tolist() == [5, 5]
        assert manager.manifest(5).leaves[0].name == "x"
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {"5", "7", ".thrown-out"}
    assert not list((tmp_path / "steps" / ".thrown-out").iterdir())


def test_every_so_many_and_the_best_stay_besides_the_newest_also_after_a_restart(tmp_path: Path) -> None:
    options: Any = {"keep": 1, "keep_every": 4, "keep_best": 2, "metric": "loss", "mode": "min"}
    with with_losses(tmp_path, range(1, 7), [5, 1, 4, 3, 2, 9], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 5, 6), 2)
    with with_losses(tmp_path, [7, 8], [0, float("nan")], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 7, 8), 7)
        manager.delete(7)
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 8), 2)
    with with_losses(tmp_path / "max", [1, 2, 3], [7, 7, 3], metric="loss", mode="max") as manager:
        assert manager.best_step() == 2  # of equals the newest


@pytest.mark.parametrize(
    "options",
    [
        *({"keep": 0}, {"keep_every": -1}, {"keep_best": 0, "metric": "loss", "mode": "min"}),
        *({"keep_best": 1}, {"metric": "loss"}, {"metric": "loss", "mode": "less"}),
    ],
)
def test_rules_that_contradict_themselves_are_refused(options: Any, tmp_path: Path) -> None:
    count, both = r"each is a whole number from 1, or None\.", r"Give both: metric='loss', mode='min' or 'max'\."
    with pytest.raises(ValueError, match=rf"CheckpointManager\(.*keep.*\): .*({count}|{both})"):
        CheckpointManager(tmp_path, **options)


def test_a_step_without_the_metric_is_refused_and_a_manager_without_one_ranks_nothing(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric="loss", mode="min")
    for metrics in (None, {"loss": "low"}, {"loss": np.ones(2)}, {"loss": True}, {"other": 1}):
        with pytest.raises(CheckpointError, match=r"metrics=.*\): they have to be numbers by name, with 'loss' among"):
            manager.save(1, TREE, metrics=metrics)
    assert manager.best_step() is None
    with pytest.raises(CheckpointError, match="has no metric that ranks steps"):
        CheckpointManager(tmp_path).best_step()


def test_a_damaged_step_has_no_rank_and_others_may_delete_steps(tmp_path: Path) -> None:
    with_losses(tmp_path, [1, 2, 3], [1, 2, 3], keep=None, metric="loss", mode="min").close()
    (tmp_path / "run" / "1" / "manifest" / "metadata").write_text("{")
    (tmp_path / "run" / "1" / "metrics" / "metrics").write_text("{")  # Orbax's own copy
    with CheckpointManager(tmp_path / "run", keep=1, keep_best=1, metric="loss", mode="min") as manager:
        assert manager.best_step() == 2
        manager.save(4, TREE, metrics={"loss": 4})
        manager.wait()
        assert (manager.all_steps(), manager.best_step()) == ((2, 4), 2)
        (tmp_path / "run" / "2").rename(tmp_path / "elsewhere")
        manager.save(5, TREE, metrics={"loss": 5})
        manager.wait()
        assert manager.all_steps() == (5,) or manager.all_steps() == (4, 5)


def test_a_run_that_goes_back_deletes_the_later_steps_first(tmp_path: Path) -> None:
    with saved(tmp_path, 10, 20, 30) as manager:
        with pytest.raises(CheckpointError, match=r"has the steps 20, 30 already, and a run .* as by delete\(30\), or"):
            manager.save(20, TREE)
        manager.delete(20)
        manager.delete(30)
        assert manager.all_steps() == (10,)
        manager.save(20, TREE)
        assert_same(manager.restore(like=TREE), TREE)
        for call in (manager.delete, manager.restore, manager.items):
            with pytest.raises(CheckpointError, match=r"has the steps 10, 20, and no step 30\.$"):
                call(30)


def test_a_step_is_a_whole_number(tmp_path: Path) -> None:
    manager: Any = CheckpointManager(tmp_path)
    for step in (-1, True, 1.0, "1", None, {"x": 1}):
        for call in (lambda step: manager.save(step, TREE), manager.delete, lambda step: manager.restore(step or -1)):
            with pytest.raises(CheckpointError, match="A step is a whole number from 0, got"):
                call(step)
    with saved(tmp_path, np.int64(1), jnp.int32(2), np.uint8(3)) as manager:  # what loops count with
        assert manager.all_steps() == (1, 2, 3)


# Where


def test_without_steps_a_run_starts_and_one_that_must_resume_is_told_so(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path / "none", "does not exist"), (tmp_path, "has no steps")):
        with CheckpointManager(folder) as manager:
            assert (manager.all_steps(), manager.latest_step()) == ((), None)
            assert manager.restore_latest_valid(like=1) is None
            for call in (manager.restore, manager.manifest, manager.metrics, manager.items):
                with pytest.raises(CheckpointError, match=rf"{problem}\.$"):
                    call()
    assert not list(tmp_path.iterdir())


def test_a_relative_folder_is_the_one_of_the_moment_and_any_number_of_managers_may_read_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = CheckpointManager("steps")
    manager = saved(Path(), 1)  # as a cell of a notebook that runs again
    monkeypatch.chdir("/")
    assert manager.all_steps() == before.all_steps() == (1,)
    assert_same(before.restore(like=LIKE), {"x": jnp.ones(2, int)})


def test_a_path_that_can_not_be_a_folder_of_steps_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1).close()
    (tmp_path / "file").touch()

    for path in (tmp_path / "steps" / "1", tmp_path / "file"):
        with pytest.raises(
            CheckpointError, match=rf"{path} is a file or a step\. A CheckpointManager takes the folder"
        ):
            CheckpointManager(path)
    with pytest.raises(OSError, match="File name too long"):
        CheckpointManager(tmp_path / ("x" * 300))
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match="install gcsfs"):
        CheckpointManager("gs://bucket/run")


# In the background


def hold_commits(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let no step get its name before the event is set."""
    let_go = threading.Event()
    rename = os.rename

    def held(source: Any, target: Any, **options: Any) -> None:
        if "orbax-checkpoint-tmp" in str(source):
            assert let_go.wait(10)
        rename(source, target, **options)

    monkeypatch.setattr(os, "rename", held)
    return let_go


def test_saving_goes_on_in_the_background_and_arrays_may_change_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = hold_commits(monkeypatch)
    host, donated, ref = np.ones(3), jnp.ones(1 << 20), jax.new_ref(jnp.ones(3))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"host": host, "donated": donated, "ref": ref})
        host[:] = 5
        ref[...] += 5
        for _ in range(3):
            donated = jax.jit(lambda x: x + 1, donate_argnums=0)(donated)
        assert manager.latest_step() is None
        let_go.set()
        manager.wait()
        found: Any = manager.restore(like={"host": host, "donated": donated, "ref": ref})
    assert_same(
        found | {"ref": found["ref"][...]}, {"host": np.ones(3), "donated": jnp.ones(1 << 20), "ref": jnp.ones(3)}
    )


CALLS: dict[str, Callable[[CheckpointManager], Any]] = {
    "restore": lambda manager: manager.restore(like=LIKE)["x"].tolist() == [1, 1],
    "restore_latest_valid": lambda manager: manager.restore_latest_valid(like=LIKE) is not None,
    "manifest": lambda manager: manager.manifest().leaves[0].name == "x",
}


@pytest.mark.parametrize("name", CALLS)
def test_restoring_waits_for_the_step_that_is_being_saved(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = hold_commits(monkeypatch)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.ones(2, int)})
        assert manager.latest_step() is None
        threading.Timer(0.1, let_go.set).start()
        assert CALLS[name](manager)
        assert manager.latest_step() == 1


FAILING: dict[str, Callable[[CheckpointManager], Any]] = {
    **CALLS,
    "all_steps": lambda manager: manager.all_steps(),
    "save": lambda manager: manager.save(3, TREE),
    "wait": lambda manager: manager.wait(),
    "close": lambda manager: manager.close(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", FAILING)
def test_a_failure_in_the_background_is_raised_at_the_next_call_and_the_step_is_never_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with saved(tmp_path, 1) as manager:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            manager.save(2, LIKE)
            time.sleep(0.5)
            with pytest.raises(CheckpointError, match=r"Step 2 could not be saved in .*steps; .*: .*No space left"):
                FAILING[name](manager)
        assert manager.latest_step() == 1
        manager.save(2, LIKE)
        manager.wait()
        assert manager.all_steps() == (1, 2)


# On the disk


def test_every_file_of_a_step_is_on_the_disk_before_the_step_gets_its_name(
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
    with CheckpointManager(tmp_path, metric="loss", mode="min") as manager:
        manager.save(1, {"x": jnp.ones(3)}, metrics={"loss": 1}, items={"a": 1})
        manager.wait()

    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "1").rglob("*")}
    assert {"1/manifest/metadata", "1/state/_METADATA", "1/metrics/metrics"} <= made
    assert made - synced.keys() <= {f"1{item}/commit_success.txt" for item in ("", "/manifest", "/state", "/metrics")}
    for name in made & synced.keys():  # and nothing was written after it was brought there
        assert (tmp_path / name).is_dir() or (tmp_path / name).read_bytes() == synced[name]
    assert late == ["_CHECKPOINT_METADATA", "1", tmp_path.name]  # which Orbax writes again last; and the names


@pytest.mark.parametrize(
    ("function", "warning"),
    [
        ("shutil.rmtree", r"\.thrown-out/2, .*, can't be deleted: .*busy"),
        ("os.replace", "Step 3 is saved, but an old one could not be thrown out: "),
    ],
)
def test_a_step_that_can_not_be_deleted_or_moved_aside_is_a_warning_and_the_save_succeeds(
    function: str, warning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = saved(tmp_path, 1, 2, keep=1)
    plain: Any = {"shutil.rmtree": shutil.rmtree, "os.replace": os.replace}[function]

    def busy(path: Any, *others: Any, **options: Any) -> Any:
        if function == "os.replace" and ".thrown-out" not in str(others):
            return plain(path, *others, **options)
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(function, busy)
        manager.save(3, LIKE)
        with pytest.warns(CheckpointWarning, match=warning):
            manager.wait()
    assert manager.latest_step() == 3
    manager.close()
    assert not list((tmp_path / "steps" / ".thrown-out").glob("*"))


def test_of_what_else_lies_in_the_folder_only_steps_that_were_not_finished_are_cleared_away(tmp_path: Path) -> None:
    saved(tmp_path, 1).close()
    steps = tmp_path / "steps"
    shutil.copytree(steps / "1", steps / "7.orbax-checkpoint-tmp")
    (steps / "1").rename(tmp_path / "elsewhere")
    (steps / "1").symlink_to(tmp_path / "elsewhere")
    others = {"007", "step_8", "\uff19", "2x", "9.damaged-1"}
    for name in others:
        (steps / name).mkdir()
    with CheckpointManager(steps, keep=1) as manager:
        assert manager.all_steps() == (1,)
        manager.save(2, LIKE)
    assert {path.name for path in steps.iterdir()} == {"2", ".thrown-out", *others}
    assert (tmp_path / "elsewhere" / "manifest").is_dir()


# Beside the state


def test_metrics_and_items_come_back_as_they_were(tmp_path: Path) -> None:
    items = {"data": {"epoch": 2, "seed": 2**70}, "list": [1, None, "a"]}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE, metrics={"loss": np.float32(0.5), "jax": jnp.int32(3), "nan": float("nan")}, items=items)
        manager.save(2, TREE)
        assert str(manager.metrics(1)) == "{'loss': 0.5, 'jax': 3, 'nan': nan}"
        assert manager.items(1) == items
        assert (manager.metrics(), manager.items()) == ({}, {})


@pytest.mark.parametrize("value", [object(), {1, 2}, np.ones(2), {(1, 2): 3}, b"a"])
def test_items_that_are_not_json_are_refused_before_anything_is_written(value: Any, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"is not JSON serializable|keys must be str"):
        CheckpointManager(tmp_path / "run").save(1, TREE, items={"a": value})
    assert not list(tmp_path.iterdir())


# Damage, and only damage


def arrays_in(folder: Path, step: int) -> list[Path]:
    return list((folder / "steps" / str(step) / "state").rglob("d/*"))


def test_the_latest_valid_step_is_found_and_the_damaged_ones_are_named(tmp_path: Path) -> None:
    manager = saved(tmp_path, 1, 2, 3, 4, 5, keep=None)
    flip_a_bit(*arrays_in(tmp_path, 5))
    (tmp_path / "steps" / "4" / "manifest" / "metadata").write_text("{")
    (tmp_path / "steps" / "3" / "manifest" / "metadata").unlink()
    (tmp_path / "steps" / "2" / "state" / "manifest.ocdbt").unlink()

    with pytest.raises(CheckpointDamagedError, match=r"Step 5 can't be read|damaged"):
        manager.restore(like=LIKE)
    with pytest.warns(CheckpointWarning, match=r"Restored step 1, and skipped damaged .*:\n  5: .*\n  4: ") as seen:
        found = manager.restore_latest_valid(like=LIKE)
    assert seen[0].filename == __file__
    assert found is not None
    assert (found.step, found.tree["x"].tolist(), set(found.skipped)) == (1, [1, 1], {2, 3, 4, 5})
    flip_a_bit(*arrays_in(tmp_path, 1))
    with pytest.raises(CheckpointDamagedError, match=r"All steps in .*steps are damaged:\n  1: "):
        manager.restore_latest_valid(like=LIKE)


@pytest.mark.parametrize("same_manager", [True, False])
def test_a_damaged_step_is_set_aside_so_that_it_takes_no_place_and_its_number_is_free(
    same_manager: bool, tmp_path: Path
) -> None:
    saved(tmp_path, 20, 24, 30, keep=None).close()
    flip_a_bit(*arrays_in(tmp_path, 30))
    manager = CheckpointManager(tmp_path / "steps", keep=2)
    with pytest.warns(CheckpointWarning, match="Restored step 24"):
        manager.restore_latest_valid(like=LIKE)
    with manager if same_manager else CheckpointManager(tmp_path / "steps", keep=2) as manager:
        manager.save(28, LIKE)
        manager.wait()
        assert manager.all_steps() == (24, 28)
        manager.save(30, {"x": jnp.full(2, 8)})
        manager.wait()
        assert manager.all_steps() == (28, 30)
        assert manager.restore(like=LIKE)["x"].tolist() == [8, 8]
    assert len(list((tmp_path / "steps").glob("30.damaged-*/state"))) == 1


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("place", ["read_text", "restore"])
def test_an_error_of_the_file_system_is_no_damage_and_the_step_stays(
    number: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = saved(tmp_path, 1, 2)

    def fail(*_: Any, **__: Any) -> None:
        if place == "restore":  # as TensorStore words it
            raise ValueError(f"Error reading local file: [OS error {number}: {os.strerror(number)}] at x.cc:1")
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(
            *((Path, "read_text", fail) if place == "read_text" else (ocp.PyTreeCheckpointHandler, place, fail))
        )
        with pytest.raises(OSError, match=os.strerror(number)) as caught:
            manager.restore_latest_valid(like=LIKE)
        assert caught.value.errno == number
    with pytest.raises(CheckpointError, match="has the steps 2 already"):
        manager.save(2, LIKE)
    found = manager.restore_latest_valid(like=LIKE)
    assert found is not None
    assert found.step == 2
    manager.close()


def test_a_whole_step_that_does_not_fit_is_not_skipped_and_an_error_of_the_target_is_raised_as_it_is(
    tmp_path: Path,
) -> None:
    struct: Any = jax.ShapeDtypeStruct
    with saved(tmp_path, 1, 2) as manager:
        with pytest.raises(CheckpointMismatchError, match=r"\['x'\]: shape"):
            manager.restore_latest_valid(like={"x": jnp.zeros(3, int)})
        for mesh in (Mesh(np.array(jax.devices()), ("a",)), jax.sharding.AbstractMesh((2,), ("a",))):
            with pytest.raises(ValueError, match=r"divisible|[aA]bstract|device") as caught:
                manager.restore_latest_valid(
                    like={"x": struct((2,), jnp.int32, sharding=NamedSharding(mesh, spec("a")))}
                )
            assert not isinstance(caught.value, CheckpointError)


def test_a_step_that_is_deleted_while_it_is_read_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, evaluator = saved(tmp_path, 1, keep=1), CheckpointManager(tmp_path / "steps")
    read = Path.read_text

    def saves_meanwhile(path: Path, *args: Any, **options: Any) -> str:
        monkeypatch.setattr(Path, "read_text", read)
        trainer.save(2, {"x": jnp.full(2, 2)})
        trainer.wait()
        return read(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", saves_meanwhile)
    found = evaluator.restore_latest_valid(like=LIKE)
    assert found is not None
    assert (found.step, found.skipped) == (2, {})
    trainer.close()


# Over several devices


def split_over(devices: Any, *axes: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("a",)), spec(*(axes or ("a",))))


@pytest.mark.parametrize(("count", "axes"), [(1, ("a",)), (2, ("a",)), (4, ("a",)), (4, (None, "a"))])
def test_a_sharded_step_comes_back_on_any_number_of_devices(count: int, axes: Any, tmp_path: Path) -> None:
    x = jnp.arange(1 << 22).reshape(8, -1)  # so large that Orbax would not read all of it at once
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jax.device_put(x, split_over(jax.devices()))})
        assert set(manager.manifest().leaves[0].digests) == {f"{i}:{i + 2},0:{1 << 19}" for i in range(0, 8, 2)}
        sharding = split_over(jax.devices()[:count], *axes)
        found = manager.restore(like={"x": jax.device_put(x * 0, sharding)})["x"]
    assert found.sharding == sharding
    np.testing.assert_array_equal(found, x)


def test_a_flipped_bit_is_found_in_every_saved_block_that_lies_whole_in_a_block_of_the_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = jax.device_put(jnp.zeros((8, 4)), split_over(jax.devices()))
    whole, half = np.zeros((8, 4), np.float32), jax.device_put(x, split_over(jax.devices()[:2]))
    cut = jax.device_put(x, split_over(jax.devices(), None, "a"))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        manager.wait()
        plain = ocp.PyTreeCheckpointHandler.restore

        def flipped(self: Any, *args: Any, **options: Any) -> Any:
            found = plain(self, *args, **options)
            place = np.arange(32).reshape(8, 4) == 21
            return {"x": found["x"] + jax.device_put(place.astype(np.float32), found["x"].sharding)}

        def flipped_on_host(self: Any, *args: Any, **options: Any) -> Any:
            return {"x": plain(self, *args, **options)["x"] + (np.arange(32).reshape(8, 4) == 21)}

        for like, patched in ((x, flipped), (half, flipped), (whole, flipped_on_host)):
            monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", patched)
            with pytest.raises(CheckpointDamagedError, match=r"\['x'\]\[4:6,0:4\] is damaged: its bytes have"):
                manager.restore(like={"x": like})
        monkeypatch.setattr(ocp.PyTreeCheckpointHandler, "restore", flipped)
        assert float(manager.restore(like={"x": cut})["x"].sum()) == 1  # cut in all its blocks: the docs say so


# Plain Orbax


def test_plain_orbax_opens_it_and_finds_the_flat_names(tmp_path: Path) -> None:
    state = train_state()
    with CheckpointManager(tmp_path, metric="loss", mode="min") as manager:
        manager.save(1, state, metrics={"loss": 0.5})

    with ocp.CheckpointManager(tmp_path, item_names=("state", "manifest")) as plain:
        both = ocp.args.Composite(state=ocp.args.StandardRestore(), manifest=ocp.args.JsonRestore())
        found: Any = plain.restore(1, args=both)
        assert plain.metrics(1) == {"loss": 0.5}
    np.testing.assert_array_equal(found.state["params.layers.0.kernel"], state.params.layers[0].kernel)
    assert_same(from_names(found.state, like=state), state)
    assert json.loads(found.manifest["treewright"])["nodes"][0]["cls"] == "treewright.train:TrainState"
