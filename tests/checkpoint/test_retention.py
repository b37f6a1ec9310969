"""Retention of steps: the rules of a run, and the ways a step could be lost."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import signal
import threading
import time
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.checkpoint.engines import assert_same
from tests.checkpoint.runs import LIKE, TREE, hold_commits, saved
from treewright.checkpoint import CheckpointManager, folder
from treewright.checkpoint.disk import lock_of
from treewright.checkpoint.retention import Retention
from treewright.errors import CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


def with_losses(directory: Path, steps: Sequence[int], losses: Sequence[float], **options: Any) -> CheckpointManager:
    manager = CheckpointManager(directory / "run", **options)
    for step, loss in itertools.zip_longest(steps, losses):
        manager.save(step, TREE, metrics={"loss": loss})
    manager.wait()
    return manager


# Which steps stay


LOSSES: dict[int, float] = {1: 0.5, 2: 0.1, 3: float("nan"), 4: 0.3, 6: 0.1, 7: 0.9}


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, {1, 2, 3, 4, 6, 7}),
        ({"keep": 2}, {6, 7}),
        ({"keep": 9}, {1, 2, 3, 4, 6, 7}),
        ({"keep": 1, "keep_every": 3}, {3, 6, 7}),
        ({"keep": 1, "keep_best": 1, "metric": "loss", "mode": "min"}, {6, 7}),  # the newest of equals
        ({"keep": 1, "keep_best": 3, "metric": "loss", "mode": "min"}, {2, 4, 6, 7}),
        ({"keep": 1, "keep_best": 2, "metric": "loss", "mode": "max"}, {1, 7}),
        ({"keep": 1, "keep_best": 5, "metric": "loss", "mode": "max"}, {1, 2, 4, 6, 7}),  # NaN last
        ({"keep": 1, "keep_best": 9, "metric": "loss", "mode": "max"}, {1, 2, 3, 4, 6, 7}),
        ({"keep": 1, "keep_best": 9, "metric": "other", "mode": "max"}, {1, 2, 3, 4, 6, 7}),  # in no step
    ],
)
def test_the_steps_that_stay_depend_on_numbers_and_metrics_only(options: Any, kept: set[int]) -> None:
    retention = Retention(**options)
    assert retention.kept({step: retention.rank({"loss": loss}) for step, loss in LOSSES.items()}) == kept
    assert retention.kept({}) == set()


def test_the_newest_steps_are_kept(tmp_path: Path) -> None:
    assert saved(tmp_path / "all", *range(6)).all_steps() == tuple(range(6))
    with saved(tmp_path, 1, 2, 5, 7, keep=2) as manager:
        assert manager.all_steps() == (5, 7)
        assert manager.latest_step() == 7
        assert manager.restore(like=LIKE)["x"].tolist() == [7, 7]
        assert manager.restore(5, like=LIKE)["x"].tolist() == [5, 5]
        assert manager.manifest(5).leaves[0].name == "x"
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {"5", "7"}


def test_keep_every_and_keep_best_survive_a_restart(tmp_path: Path) -> None:
    options: Any = {"keep": 1, "keep_every": 4, "keep_best": 2, "metric": "loss", "mode": "min"}
    with with_losses(tmp_path, range(1, 7), [5, 1, 4, 3, 2, 9], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 5, 6), 2)
    with with_losses(tmp_path, [7, 8], [0, float("nan")], **options) as manager:
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 7, 8), 7)
        manager.delete(7)
        assert (manager.all_steps(), manager.best_step()) == ((2, 4, 8), 2)
    with with_losses(tmp_path / "max", [1, 2, 3], [7, 7, 3], metric="loss", mode="max") as manager:
        assert manager.best_step() == 2  # Ties go to the newest.


@pytest.mark.parametrize(
    "options",
    [
        *({"keep": 0}, {"keep_every": -1}, {"keep_best": 0, "metric": "loss", "mode": "min"}, {"keep": 2.5}),
        *({"keep": 1, "keep_best": 1}, {"metric": "loss"}, {"metric": "loss", "mode": "less"}),
        *({"keep_every": 10}, {"keep_best": 1, "metric": "loss", "mode": "min"}, {"metric": "loss", "mode": ["min"]}),
        *({"metric": ["loss"], "mode": "min"}, {"metric": len, "mode": "min", "keep": 1, "keep_best": 1}),
    ],
)
def test_contradictory_retention_options_are_rejected(options: Any, tmp_path: Path) -> None:
    count = r"each must be a positive int, or None\. Without keep=, all steps are kept: add keep=1 to delete"
    both = r"Pass both: metric='loss', mode='min' or 'max'\."
    with pytest.raises(ValueError, match=rf"CheckpointManager\(.*keep.*\): .*({count}|{both})"):
        CheckpointManager(tmp_path, **options)
    for seconds in (0, -1.5, None, "60", float("inf"), float("nan")):
        with pytest.raises(ValueError, match=r"timeout_seconds=.*\): pass a positive number of seconds\."):
            CheckpointManager(tmp_path, timeout_seconds=seconds)  # type: ignore[arg-type]


def test_metrics_must_be_numbers(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric="loss", mode="min")
    losses = ("low", np.ones(2), jnp.ones(2), True, None, [1], [[1], [2, 3]], 10**400)
    for metrics in ({"loss": 1, 2: 3}, ["loss"], *({"loss": loss} for loss in losses)):
        with pytest.raises(
            CheckpointError, match=r"\): metrics= must be a dict of numbers by name, .* Leave a metric out"
        ):
            manager.save(1, TREE, metrics=metrics)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="has no metric to rank steps"):
        CheckpointManager(tmp_path).best_step()


@pytest.mark.filterwarnings("ignore:The steps of this manager are ranked:treewright.errors.CheckpointWarning")
def test_a_step_without_the_metric_is_never_the_best(tmp_path: Path) -> None:
    metrics: list[dict[str, float] | None] = [None, {"other": 0}, {"loss": float("nan")}, {"loss": 2}, {}, None]
    best: list[int | None] = [None, None, 3, 4, 4, 4]
    with CheckpointManager(tmp_path, **BEST) as manager:
        assert manager.best_step() is None
        for step, (measured, expected) in enumerate(zip(metrics, best, strict=True), start=1):
            manager.save(step, TREE, metrics=measured)
            manager.wait()
            assert manager.best_step() == expected
            assert manager.all_steps() == tuple(sorted({expected, step} if expected else range(1, step + 1)))


BEST: Any = {"keep": 1, "keep_best": 1, "metric": "loss", "mode": "min"}


def test_damaged_and_deleted_steps_have_no_rank(tmp_path: Path) -> None:
    with_losses(tmp_path, [1, 2, 3], [1, 2, 3], keep=3, keep_best=1, metric="loss", mode="min").close()
    (tmp_path / "run" / "1" / "_CHECKPOINT_METADATA").write_text("{")
    with CheckpointManager(tmp_path / "run", keep=3, keep_best=1, metric="loss", mode="min") as manager:
        assert manager.best_step() == 2
        for step in (4, 5, 6):
            manager.save(step, TREE, metrics={"loss": step})
        manager.wait()
        assert (manager.all_steps(), manager.best_step()) == ((1, 2, 4, 5, 6), 2)
        (tmp_path / "run" / "2").rename(tmp_path / "elsewhere")
        manager.save(7, TREE, metrics={"loss": 7})
        manager.wait()
        assert manager.all_steps() == (1, 4, 5, 6, 7)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"keep": 2},
        {"keep": 1, "keep_every": 5},
        {**BEST, "metric": "accuracy", "mode": "max"},
        {**BEST, "mode": "max"},
    ],
)
def test_a_manager_with_different_rules_keeps_earlier_steps(options: Any, tmp_path: Path) -> None:
    with_losses(tmp_path, [1, 2, 3], [2, 1, 3], **BEST).close()
    with CheckpointManager(tmp_path / "run", **options) as manager:
        for step in (4, 5, 6):
            manager.save(step, TREE, metrics={"loss": 0, "accuracy": -step})
    with CheckpointManager(tmp_path / "run", **BEST) as manager:
        assert manager.all_steps()[:2] == (2, 3)
        manager.save(7, TREE, metrics={"loss": 7})
        manager.wait()
        assert {2, 7} <= {*manager.all_steps()}
        assert 3 not in manager.all_steps()  # its own rules still apply


def test_a_step_saved_by_a_concurrent_manager_is_not_replaced(tmp_path: Path) -> None:
    with saved(tmp_path, 1) as manager, saved(tmp_path, 2):
        with pytest.raises(CheckpointError, match=r"already has the step 2, and a run resumes"):
            manager.save(2, TREE)
        assert manager.restore(2, like=LIKE)["x"].tolist() == [2, 2]


def test_what_retention_reads_is_verified(tmp_path: Path) -> None:
    with_losses(tmp_path, [1, 2, 3], [3, 1, 2], **BEST).close()
    listed = tmp_path / "run" / "2" / "_CHECKPOINT_METADATA"
    listed.write_text(listed.read_text().replace('\\"loss\\":1', '\\"loss\\":9'))
    with CheckpointManager(tmp_path / "run", **BEST) as manager:
        assert manager.best_step() == 3
        manager.save(4, TREE, metrics={"loss": 4})
        manager.wait()
        assert manager.all_steps() == (2, 3, 4)


def test_a_run_that_restarts_earlier_deletes_later_steps_first(tmp_path: Path) -> None:
    with saved(tmp_path, 10, 20, 30) as manager:
        with pytest.raises(CheckpointError, match=r"already has the steps 20, 30, and .* as by delete\(30\), or"):
            manager.save(20, TREE)
        manager.delete(20)
        manager.delete(30)
        assert manager.all_steps() == (10,)
        manager.save(20, TREE)
        assert_same(manager.restore(like=TREE), TREE)
        for call in (manager.delete, manager.restore, manager.items):
            with pytest.raises(CheckpointError, match=r"has only the steps 10, 20, so there is no step 30\.$"):
                call(30)


@pytest.mark.filterwarnings("ignore:The steps of this manager are ranked:treewright.errors.CheckpointWarning")
def test_a_step_that_does_not_exist_is_not_the_latest_one(tmp_path: Path) -> None:
    manager: Any
    with CheckpointManager(tmp_path, metric="val_loss", mode="min") as manager:
        manager.save(1, TREE, metrics={"loss": 1})
        manager.wait()
        assert manager.best_step() is None
        for read in (lambda step: manager.restore(step, like=TREE), manager.metrics, manager.items, manager.manifest):
            with pytest.raises(
                CheckpointError, match=r"got None\. best_step\(\) and .* For the latest step, pass no step"
            ):
                read(manager.best_step())


def test_a_step_must_be_a_non_negative_integer(tmp_path: Path) -> None:
    manager: Any = CheckpointManager(tmp_path)
    for step in (-1, True, 1.0, "1", None, {"x": 1}):
        for call in (lambda step: manager.save(step, TREE), manager.delete, lambda step: manager.restore(step or -1)):
            with pytest.raises(CheckpointError, match="A step must be a non-negative integer, got"):
                call(step)
    for call, fix in (
        (lambda: manager.save(TREE, 1), r"got \{'x': .*\}\. The step comes first: save\(1, state\)\.$"),
        (lambda: manager.save(np.array([3]), TREE), r"got array\(\[3\]\)\.$|got i64\[1\].*\.$"),
        (lambda: manager.restore(TREE), r"Pass the tree by name: restore\(like=tree\)\.$"),
    ):
        with pytest.raises(CheckpointError, match=fix):
            call()
    with saved(tmp_path, np.int64(1), jnp.int32(2), np.uint8(3)) as manager:  # types of loop counters
        assert manager.all_steps() == (1, 2, 3)


# Deletion


@pytest.mark.parametrize(
    ("function", "warning"),
    [
        ("shutil.rmtree", r"/1\.thrown-out-\w+ is no longer needed, but can't be deleted: .*busy"),
        ("os.rename", r"An old step of .*steps could not be deleted: .*busy"),
    ],
)
def test_a_step_that_cannot_be_deleted_is_a_warning_and_the_save_succeeds(
    function: str, warning: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = saved(tmp_path, 1, 2, keep=2)
    plain: Any = {"shutil.rmtree": shutil.rmtree, "os.rename": os.rename}[function]

    def busy(path: Any, *others: Any, **options: Any) -> Any:
        if function == "os.rename" and ".thrown-out" not in str(others):
            return plain(path, *others, **options)
        raise OSError(errno.EBUSY, "Device or resource busy", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(function, busy)
        manager.save(3, LIKE)
        with pytest.warns(CheckpointWarning, match=warning) as seen:
            manager.wait()
        assert seen[0].filename == __file__
        manager.save(4, LIKE)  # The background work retries silently.
        with pytest.warns(CheckpointWarning, match="can't be deleted|could not be deleted"):
            manager.wait()
    assert manager.latest_step() == 4
    manager.save(5, LIKE)
    manager.close()
    assert {path.name for path in (tmp_path / "steps").iterdir()} == {"4", "5"}


# Ways to lose a step


def test_a_save_on_a_closed_manager_is_rejected(tmp_path: Path) -> None:
    with saved(tmp_path, 1) as manager:
        pass
    with pytest.raises(CheckpointError, match=r"Step 2 can't be saved, because this manager of .* is closed\. Save"):
        manager.save(2, TREE)
    assert manager.restore(like=LIKE)["x"].tolist() == [1, 1]


def test_a_save_inside_a_save_is_rejected(tmp_path: Path) -> None:
    class Saving:
        def __array__(self, *_: Any, **__: Any) -> Any:
            with pytest.raises(
                CheckpointError, match=r"inside another save\(\) .* Let the handler set a flag, and save"
            ):
                manager.save(9, TREE)
            return np.array(0.5)

    with CheckpointManager(tmp_path) as manager:
        metrics: Any = {"loss": Saving()}
        manager.save(1, TREE, metrics=metrics)
        assert manager.metrics() == {"loss": 0.5}


def test_saves_in_several_threads_take_turns(tmp_path: Path) -> None:
    manager, rejected = saved(tmp_path), list[int]()

    def save(step: int) -> None:
        try:
            manager.save(step, {"x": jnp.full(1 << 16, step)})
        except CheckpointError as error:
            assert "and a run resumes from the highest" in str(error)  # noqa: PT017
            rejected.append(step)

    threads = [threading.Thread(target=save, args=(step,)) for step in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    manager.wait()
    assert {*manager.all_steps()} == {1, 2, 3, 4, 5} - {*rejected}
    for step in manager.all_steps():
        assert manager.restore(step)["x"].tolist() == [step] * (1 << 16)


def test_rerunning_a_cell_during_a_save_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = hold_commits(monkeypatch)
    managers = [saved(tmp_path) for _ in range(2)]
    for step, manager in enumerate(managers, start=2):
        manager.save(step, {"x": jnp.full(2, step)})
    manager = managers.pop()
    managers.clear()  # the first is still saving
    let_go.set()
    manager.wait()
    deadline = time.monotonic() + 10
    while manager.all_steps() != (2, 3):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert [manager.restore(step, like=LIKE)["x"].tolist() for step in (2, 3)] == [[2, 2], [3, 3]]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_only_one_of_two_managers_saves_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = hold_commits(monkeypatch)
    managers = [saved(tmp_path) for _ in range(2)]
    for number, manager in enumerate(managers):
        manager.save(1, {"x": jnp.full(2, number)})
    let_go.set()
    failures: list[str] = []
    for manager in managers:
        try:
            manager.wait()
        except CheckpointError as error:
            failures.append(str(error))
    assert len(failures) == 1
    assert "Step 1 could not be saved" in failures[0]
    assert managers[0].restore(like=LIKE)["x"].tolist() in ([0, 0], [1, 1])


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="Windows has no signals to threads")
def test_ctrl_c_during_a_wait_loses_no_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush, begun, caught = folder._flush_step, threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        begun.set()
        caught.wait(30)
        flush(path)

    def interrupt() -> None:
        begun.wait()
        while not caught.wait(0.2):  # a signal that arrives in a finalizer is lost
            signal.pthread_kill(main.ident or 0, signal.SIGINT)

    main = threading.main_thread()
    monkeypatch.setattr(folder, "_flush_step", slow)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # other tests and packages may have set one
    try:
        with CheckpointManager(tmp_path) as manager:
            manager.save(1, TREE)
            threading.Thread(target=interrupt).start()
            with pytest.raises(KeyboardInterrupt):
                manager.wait()
            caught.set()
    finally:
        caught.set()
        signal.signal(signal.SIGINT, handler)
    assert manager.all_steps() == (1,)


def test_an_incomplete_folder_listing_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = saved(tmp_path, 1)
    scandir, listings = os.scandir, list[Any]()

    def empty_at_first(path: Any) -> Any:
        listings.append(path)
        return scandir(tmp_path / "none" if len(listings) == 1 else path)

    (tmp_path / "none").mkdir()
    monkeypatch.setattr(os, "scandir", empty_at_first)
    found = manager.restore_latest_valid(like=LIKE)
    assert found is not None
    assert found.step == 1


def test_an_unfinished_step_is_deleted_before_its_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock that goes first would let its writer's folder be taken for one whose process has ended."""
    deleted: list[str] = []
    monkeypatch.setattr(folder, "_delete", lambda path: deleted.append(path.name))
    unfinished = [tmp_path / f"{step}{folder._SUFFIX}-0123abcd" for step in (3, 20)]
    for path in unfinished:
        path.mkdir()
        lock_of(path).touch()
    (tmp_path / "7.thrown-out-0123abcd").mkdir()

    folder.clear(tmp_path)

    assert sorted(deleted[:3]) == sorted([*(path.name for path in unfinished), "7.thrown-out-0123abcd"])
    assert sorted(deleted[3:]) == sorted(lock_of(path).name for path in unfinished)
