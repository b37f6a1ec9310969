"""Leftovers of saves that fail, are killed, or whose program ends; and folders that are not ours."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.checkpoint.runs import LIKE, TREE, saved
from treewright.checkpoint import CheckpointManager
from treewright.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

pytest.importorskip("orbax.checkpoint")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


# Leftovers


def test_cleanup_deletes_only_leftovers_of_dead_processes(tmp_path: Path) -> None:
    saved(tmp_path, 1, 5, keep=1).close()
    steps = tmp_path / "steps"
    (steps / "5").rename(tmp_path / "elsewhere")
    (steps / "5").symlink_to(tmp_path / "elsewhere")
    dead = {f"{step}.orbax-checkpoint-tmp-0000000{step}" for step in (3, 6, 9)}  # whatever their numbers and ages
    alive = "4.orbax-checkpoint-tmp-00000004"
    for name in {*dead, alive, "2.orbax-checkpoint-tmp"}:  # the last is Orbax's own
        shutil.copytree(tmp_path / "elsewhere", steps / name)
    writer = (steps / f".{alive}.lock").open("w")
    fcntl.flock(writer, fcntl.LOCK_EX)
    (steps / ".3.orbax-checkpoint-tmp-00000003.lock").touch()
    (steps / ".8.orbax-checkpoint-tmp-00000008.lock").touch()
    (tmp_path / "photos").mkdir()
    for name in (".thrown-out", "4.thrown-out-01234567", "3.orbax-checkpoint-tmp-abcdef01"):
        (steps / name).symlink_to(tmp_path)
    shutil.copytree(tmp_path / "elsewhere", steps / "2.thrown-out-89abcdef")
    others = {"007", "step_8", "\uff19", "2x", "9.damaged-1", "5.orbax-checkpoint-tmp-photos"}
    for name in others:
        (steps / name).mkdir()
    before = {path.name for path in steps.iterdir()}

    with CheckpointManager(steps, keep=1) as manager:
        assert manager.all_steps() == (5,)
        manager.restore(like=LIKE)
        manager.wait()
        assert {path.name for path in steps.iterdir()} == before  # a manager that saves nothing deletes nothing
        manager.save(6, LIKE)
    locks = {".3.orbax-checkpoint-tmp-00000003.lock", ".8.orbax-checkpoint-tmp-00000008.lock"}
    gone = {"5", *dead, *locks, "4.thrown-out-01234567", "2.thrown-out-89abcdef"}
    assert {path.name for path in steps.iterdir()} == before - gone | {"6"}
    writer.close()
    with CheckpointManager(steps, keep=1) as manager:
        manager.save(7, LIKE)
    assert {path.name for path in steps.iterdir()} == before - gone - {alive, f".{alive}.lock"} | {"7"}
    assert (tmp_path / "elsewhere" / "process_0.safetensors").is_file()
    assert (tmp_path / "photos").is_dir()


def test_leftovers_of_the_same_step_go_before_the_step_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1).close()
    steps, mkdir = tmp_path / "steps", os.mkdir
    for number in range(6):
        shutil.copytree(steps / "1", steps / f"2.orbax-checkpoint-tmp-0000000{number}")
    seen: list[set[str]] = []

    def watched(path: Any, *args: Any, **options: Any) -> None:
        if "orbax-checkpoint-tmp" in str(path):
            seen.append(names_in(steps))
        mkdir(path, *args, **options)

    monkeypatch.setattr(os, "mkdir", watched)
    with CheckpointManager(steps) as manager:
        manager.save(2, LIKE)
    assert {re.sub("[0-9a-f]{8}", "TOKEN", name) for name in seen[0]} == {"1", ".2.orbax-checkpoint-tmp-TOKEN.lock"}
    assert names_in(steps) == {"1", "2"}


@pytest.mark.parametrize("function", ["rename", "fsync"])
def test_a_failed_save_leaves_nothing(function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = saved(tmp_path, 1)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        manager.save(2, TREE)
        with pytest.raises(CheckpointError, match=r"Step 2 could not be saved.*Input/output error"):
            manager.wait()
        assert {name[:2] for name in names_in(tmp_path / "steps")} <= {"1", "2."}
    manager.save(2, TREE)
    manager.wait()
    assert names_in(tmp_path / "steps") == {"1", "2"}


def test_a_step_whose_manifest_is_gone_is_not_reported_as_saved(tmp_path: Path) -> None:
    manager = saved(tmp_path, 1)
    manager.save(2, TREE)
    deadline = time.monotonic() + 10
    while manager.all_steps() != (1, 2):
        assert time.monotonic() < deadline
    (tmp_path / "steps" / "2" / "_CHECKPOINT_METADATA").write_text("{")
    with pytest.raises(CheckpointError, match=r"Step 2 could not be saved in .*_CHECKPOINT_METADATA of step 2 can't"):
        manager.wait()


# Folders that are not ours


def test_a_folder_of_the_user_is_no_step(tmp_path: Path) -> None:
    (tmp_path / "2024" / "state").mkdir(parents=True)
    (tmp_path / "2024" / "photo").touch()
    with CheckpointManager(tmp_path) as manager:
        assert (manager.all_steps(), manager.restore_latest_valid(like=LIKE)) == ((), None)
        with pytest.raises(CheckpointError, match=r"has no steps\.$"):
            manager.restore(like=LIKE)
        manager.save(4, TREE)
        for call in (manager.delete, manager.restore, manager.manifest):
            with pytest.raises(CheckpointError, match=r"has only the step 4, so there is no step 2024\.$"):
                call(2024)
        with pytest.raises(
            CheckpointError, match=r"/2024 is not a step: it contains none .*\. Rename it, or save into"
        ):
            manager.save(2024, TREE)
        (tmp_path / "4" / "process_0.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"All steps in .* are damaged:\n  4: "):
            manager.restore_latest_valid(like=LIKE)
    assert names_in(tmp_path) == {"4", "2024"}
    assert names_in(tmp_path / "2024") == {"photo", "state"}


# Program exit


ENDING = """
import gc, os, signal, sys, time
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager
rename = os.rename
def slow(source, target, **options):
    time.sleep(0.3)
    if sys.argv[2] == "a save that fails":
        raise OSError(5, "Input/output error")
    rename(source, target, **options)
os.rename = slow
CheckpointManager(sys.argv[1]).save(1, {"x": jnp.ones(2)})  # a manager that nobody knows
gc.collect()
if sys.argv[2] == "a save that fails":
    time.sleep(1)
    CheckpointManager(sys.argv[1] + "-2").save(1, {"x": jnp.ones(2)})  # after the other has failed
if sys.argv[2].startswith("finished steps"):
    for step in (2, 3):
        if step == 2 or sys.argv[2].endswith("of a manager each"):
            manager = CheckpointManager(sys.argv[1], keep=1)
        manager.save(step, {"x": jnp.ones(2)})
        time.sleep(1.5)
if sys.argv[2] == "an exception":
    raise ValueError
if sys.argv[2] == "sys.exit in a handler of SIGTERM":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    os.kill(os.getpid(), signal.SIGTERM)
"""
FAILURE = "CheckpointWarning: The program ended before step 1 was saved in .*: .*Input/output error"
# How a program ends without `close`: its exit status, the saved steps, and its messages
ENDINGS: dict[str, tuple[int, tuple[int, ...], tuple[str, ...]]] = {
    "the last line": (0, (1,), ()),
    "an exception": (1, (1,), ()),
    "sys.exit in a handler of SIGTERM": (7, (1,), ()),
    "a save that fails": (0, (), (FAILURE, FAILURE)),
    "finished steps": (0, (1, 3), ()),  # keep=1 holds for the manager of 2 and 3
    "finished steps of a manager each": (0, (1, 3), ()),
}


@pytest.mark.skipif(
    (3, 12) <= sys.version_info < (3, 12, 3), reason="it starts no threads at exit (python/cpython#113964)"
)
def test_exit_without_close_finishes_the_save_or_reports_its_failure(tmp_path: Path) -> None:
    programs = {
        name: subprocess.Popen([sys.executable, "-c", ENDING, str(tmp_path / name), name], stderr=subprocess.PIPE)
        for name in ENDINGS
    }
    for name, (status, steps, messages) in ENDINGS.items():
        errors = programs[name].communicate()[1].decode()
        assert programs[name].returncode == status, errors
        assert CheckpointManager(tmp_path / name).all_steps() == steps, (name, errors)
        reported = [line for line in errors.splitlines() if "Checkpoint" in line and "Warning" in line]
        assert len(reported) == len(messages), (name, errors)
        assert all(map(re.search, messages, reported)), (name, errors)


def test_closed_and_dropped_managers_are_freed(tmp_path: Path) -> None:
    program = """
import gc, os, sys, threading, time, weakref
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager
folder, tree, managers = sys.argv[1], {"x": jnp.ones(2)}, []
for index in range(20):
    manager = CheckpointManager(f"{folder}/{index}")
    manager.save(1, tree)
    managers.append(weakref.ref(manager))
    if index % 2:
        manager.close()
del manager
while not all(os.path.exists(f"{folder}/{index}/1") for index in range(20)):
    time.sleep(0.01)
time.sleep(0.1)
with CheckpointManager(f"{folder}/last") as manager:
    manager.save(1, tree)
gc.collect()
print(sum(one() is not None for one in managers), threading.active_count())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)
    alive, threads = map(int, done.stdout.split())
    assert alive == 0
    assert threads <= 3
    assert done.stderr == ""
