"""Facts of Orbax that nobody promises: each test fails if a release changes one."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import orbax.checkpoint as ocp
import pytest
from etils import epath  # type: ignore[import-untyped]

from treewright.checkpoint import CheckpointManager, disk, folder
from treewright.errors import CheckpointError

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
    assert calls == {"create": set(), "finish": {folder.LISTING, folder.MANIFEST, folder.STATE}}


def test_a_step_is_flushed_before_it_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed: set[str] = set()
    plain = disk.flush_to_disk

    def flush(path: Path) -> None:
        assert not (tmp_path / "1").exists()
        flushed.add(str(path.relative_to(next(tmp_path.glob("1.*")))))
        plain(path)

    monkeypatch.setattr(folder, "flush_to_disk", flush)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.ones(3)})
        manager.wait()
    files = {str(path.relative_to(tmp_path / "1")) for path in (tmp_path / "1").rglob("*")}
    assert {".", "manifest/metadata", "manifest/process.0", "state/manifest.ocdbt"} <= flushed
    assert files - flushed <= {"commit_success.txt"}  # nothing reads it


def test_a_step_that_can_not_be_flushed_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr(folder, "flush_to_disk", fail)
    manager = CheckpointManager(tmp_path)
    with pytest.raises(CheckpointError, match=r"Step 1 could not be saved.*Input/output error"):  # noqa: PT012
        manager.save(1, {"x": jnp.ones(3)})  # raises itself if the background is as fast
        manager.wait()
    assert manager.all_steps() == ()
    manager.close()


def test_a_step_without_files_is_not_finished(tmp_path: Path) -> None:
    """If Orbax had renamed the folder before, or had written somewhere else, nothing would be flushed."""
    unfinished = folder.UnfinishedSteps("01234567").path_class.from_final(epath.Path(tmp_path) / "7")
    unfinished.get().mkdir()
    with pytest.raises(CheckpointError, match="has written nothing to it that could be flushed"):
        asyncio.run(unfinished.finalize())


def test_the_files_of_a_step_have_these_names(tmp_path: Path) -> None:
    save_one(tmp_path)
    listing = json.loads((tmp_path / "1" / folder.LISTING).read_text())
    assert {*listing["item_handlers"]} == {folder.MANIFEST, folder.STATE}
    assert (tmp_path / "1" / "manifest" / "metadata").is_file()
    suffix: Any = ocp.path.atomicity.TMP_DIR_SUFFIX
    assert ocp.path.atomicity.AtomicRenameTemporaryPath.from_final(epath.Path("/7")).get().name.startswith(f"7{suffix}")


def test_a_job_of_one_process_is_not_preempted(tmp_path: Path) -> None:
    assert CheckpointManager(tmp_path).reached_preemption(1) is False
