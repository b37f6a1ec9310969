"""Facts of Orbax that nobody promises: each test fails if a release changes one."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from etils import epath  # type: ignore[import-untyped]

from tests.checkpoint.engines import flip_a_bit
from treewright.checkpoint import CheckpointManager, Manifest, folder, handler
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from pathlib import Path


def save_one(directory: Path) -> None:
    with CheckpointManager(directory) as manager:
        manager.save(1, {"x": jnp.ones(3)})
        manager.wait()


def test_temporary_folders_are_created_before_all_files_and_finished_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: dict[str, set[str]] = {}
    paths: Any = ocp.path.atomicity.AtomicRenameTemporaryPath
    create, finalize = paths.create, paths.finalize

    async def watched_create(self: Any) -> Any:
        calls["create"] = {path.name for path in self.get().glob("*")}
        return await create(self)

    async def watched_finalize(self: Any) -> None:
        calls["finish"] = {path.name for path in self.get().glob("*")}
        assert not self.get_final().exists()
        await finalize(self)
        assert self.get_final().exists()

    monkeypatch.setattr(paths, "create", watched_create)
    monkeypatch.setattr(paths, "finalize", watched_finalize)
    save_one(tmp_path)
    assert calls == {"create": set(), "finish": {folder.LISTING, "process_0.safetensors"}}


def test_a_step_without_files_is_not_finished(tmp_path: Path) -> None:
    """If Orbax had renamed the folder before, or had written somewhere else, nothing would be flushed."""
    steps = folder.UnfinishedSteps("01234567")
    unfinished = steps.path_class.from_final(epath.Path(tmp_path) / "7")
    unfinished.get().mkdir()
    asyncio.run(unfinished.finalize())
    with pytest.raises(CheckpointError, match="nothing was written to it that could be flushed"):
        steps.check()


def test_the_files_of_a_step_have_these_names(tmp_path: Path) -> None:
    save_one(tmp_path)
    listing = json.loads((tmp_path / "1" / folder.LISTING).read_text())
    assert listing["item_handlers"] == "treewright.checkpoint.handler.StepHandler"
    assert {*listing["custom_metadata"]} == {"treewright", "treewright.digest"}
    suffix: Any = ocp.path.atomicity.TMP_DIR_SUFFIX
    assert ocp.path.atomicity.AtomicRenameTemporaryPath.from_final(epath.Path("/7")).get().name.startswith(f"7{suffix}")


def test_a_job_of_one_process_is_not_preempted(tmp_path: Path) -> None:
    assert CheckpointManager(tmp_path).reached_preemption(1) is False


def test_a_bucket_has_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder behind the class of paths that buckets have: its steps are found, flushed and renamed by Orbax alone."""
    monkeypatch.setattr(folder, "_BUCKETS", (str(tmp_path),))
    with CheckpointManager(str(tmp_path / "run"), keep=1, keep_best=1, metric="loss", mode="min") as manager:
        for step in range(4):
            manager.save(step, {"x": jnp.full(3, step)}, metrics={"loss": step}, items={"data": step})
        manager.wait()
        assert not isinstance(manager.directory, pathlib.Path)
        assert (manager.all_steps(), manager.best_step(), manager.items()) == ((0, 3), 0, {"data": 3})
        assert manager.restore(like={"x": jnp.zeros(3, int)})["x"].tolist() == [3, 3, 3]
        flip_a_bit(tmp_path / "run" / "3" / "process_0.safetensors", -1)
        with pytest.raises(CheckpointDamagedError, match=r"\['x'\] is damaged"):
            manager.restore(like={"x": jnp.zeros(3, int)})
        manager.delete(3)
        assert manager.all_steps() == (0,)


def test_orbax_lists_a_step_and_does_not_read_it(tmp_path: Path) -> None:
    save_one(tmp_path)
    with ocp.CheckpointManager(tmp_path) as plain:
        assert plain.all_steps() == [1]
        with pytest.raises((KeyError, ValueError, FileNotFoundError)):
            plain.restore(1, args=ocp.args.StandardRestore())
    nothing = handler.SaveStep(Manifest((), ()), "", {}, "", 0.0, lambda: None)
    with pytest.raises(NotImplementedError, match=r"Restore it with treewright\.checkpoint\.CheckpointManager\('.*'\)"):
        ocp.Checkpointer(handler.StepHandler()).restore(tmp_path / "1", args=nothing)
