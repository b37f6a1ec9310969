"""The end of a process, threads and failures: no step that was saved is lost, and what failed is told once."""

from __future__ import annotations

import errno
import functools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from treewright.checkpoint import CheckpointManager, ending
from treewright.checkpoint import manager as manager_module
from treewright.errors import CheckpointError, CheckpointWarning

pytest.importorskip("orbax.checkpoint")
ROOT = Path(__file__).parents[2]
TREE = {"x": np.ones(3)}

HEAD = """
import os, signal, sys, threading, time
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager
folder = sys.argv[1]
tree = {"x": jnp.ones(300_000)}
"""


@pytest.fixture(autouse=True)
def saving_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every Python: the process does not end here."""
    monkeypatch.setattr(manager_module, "CAN_FINISH", True)


def started(folder: Path, program: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-c", HEAD + textwrap.dedent(program), str(folder)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def ended(folder: Path, program: str) -> tuple[int, str]:
    """The exit status and what was written as errors."""
    with started(folder, program) as process:
        try:
            _, errors = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with what it has forked
            raise
        return process.returncode, errors


ENDINGS = {
    "normal": ("CheckpointManager(folder).save(1, tree)", 0),
    "exception": ("CheckpointManager(folder).save(1, tree)\nraise ValueError('boom')", 1),
    "sys.exit": ("CheckpointManager(folder).save(1, tree)\nsys.exit(3)", 3),
    "in a thread": (
        """
        thread = threading.Thread(target=CheckpointManager(folder).save, args=(1, tree))
        thread.start()
        thread.join()
        """,
        0,
    ),
    "a fork ends first": (  # as those of multiprocessing do: what runs at exit may wait for locks of lost threads
        """
        CheckpointManager(folder).save(1, tree)
        if not os.fork():
            threading._shutdown()
            os._exit(5)
        os.wait()
        """,
        0,
    ),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.exhaustive] * (name != "a fork ends first")) for name in ENDINGS],
)
def test_a_step_that_nobody_waited_for_is_on_disk_when_the_program_has_ended(name: str, tmp_path: Path) -> None:
    program, status = ENDINGS[name]

    assert ended(tmp_path, program)[0] == status
    assert CheckpointManager(tmp_path).restore()["x"].shape == (300_000,)


@pytest.mark.skipif(not ending.CAN_FINISH, reason="nothing is being saved when the program ends")
def test_a_save_that_fails_while_the_program_ends_is_told_and_others_are_waited_for(tmp_path: Path) -> None:
    program = """
    from pathlib import Path
    from treewright.checkpoint import manager as module
    real = module.sync
    def sync(path):
        if "bad" in path.parts:  # the names of Orbax's files are hexadecimal digits
            raise OSError("no space left")
        real(path)
    module.sync = sync
    CheckpointManager(Path(folder) / "bad").save(1, tree)
    CheckpointManager(Path(folder) / "good").save(1, tree)
    """
    status, errors = ended(tmp_path, program)

    assert status == 0
    assert "CheckpointError: Step 1 could not be saved in" in errors
    assert [CheckpointManager(tmp_path / name).all_steps() for name in ("bad", "good")] == [(), (1,)]


def test_what_fails_at_the_end_is_told_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = []

    def failing(disk: str) -> None:
        raise OSError(disk)

    monkeypatch.setattr(sys, "excepthook", lambda kind, error, traceback: told.append(error))
    monkeypatch.setattr(ending, "UNFINISHED", {functools.partial(failing, "disk"), functools.partial(failing, "disk")})
    ending._finish()
    assert [str(error) for error in told] == ["disk", "disk"]
    assert not ending.UNFINISHED


def test_only_managers_with_a_step_under_way_are_held(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        assert manager.close in ending.UNFINISHED
        manager.wait()
        assert manager.close not in ending.UNFINISHED


# Preemption

LOOP = """
with CheckpointManager(folder) as manager, manager.preemption(within={within}) as leave_if_told:
    for step in range(1, 100_000):
        tree = {{"x": tree["x"] + 1}}
        {body}
        leave_if_told(step, tree, metadata={{"told": True}}, items=lambda: {{"data": step}})
        if step == 3:
            print("ready", flush=True)
        time.sleep(0.01)
print("not here")
"""


@pytest.mark.parametrize(
    "body", ["pass", pytest.param("if step % 2: manager.save(step, tree)", marks=pytest.mark.exhaustive)]
)
def test_a_run_that_gets_sigterm_saves_its_last_step_and_leaves(body: str, tmp_path: Path) -> None:
    with started(tmp_path, LOOP.format(within=60, body=body)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=60)

    assert (process.returncode, output) == (128 + signal.SIGTERM, ""), errors
    manager = CheckpointManager(tmp_path)
    latest = manager.latest_step()
    assert latest is not None
    assert latest >= 3
    assert manager.restore()["x"][0] == 1 + latest
    if body == "pass":
        assert (manager.metadata(), manager.items()) == ({"told": True}, {"data": latest})


def test_a_run_that_can_not_save_in_time_leaves_and_keeps_its_earlier_steps(tmp_path: Path) -> None:
    body = "step == 1 and manager.save(1, tree)\n        while step == 4: time.sleep(0.01)"
    with started(tmp_path, LOOP.format(within=0.5, body=body)) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)

    assert 0.4 < time.monotonic() - began < 20
    assert process.returncode == 128 + signal.SIGTERM
    assert "treewright: 0.5 seconds after signal 15 the step was not saved yet. The process ends" in errors
    assert CheckpointManager(tmp_path).all_steps() == (1,)


@pytest.fixture
def _stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the process of the tests live when its time is over."""
    monkeypatch.setattr(ending, "_leave_now", lambda *_: None)


@pytest.mark.usefixtures("_stays")
def test_any_signal_may_be_the_one_and_the_handlers_come_back(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    with CheckpointManager(tmp_path) as manager:
        with manager.preemption(within=60, signals=[signal.SIGUSR1]) as leave:
            leave(1, TREE)
            assert manager.all_steps() == ()
            for _ in range(2):
                signal.raise_signal(signal.SIGUSR1)
            for _ in range(2):  # the second time it is on disk already
                with pytest.raises(SystemExit) as caught:
                    leave(2, TREE)
                assert caught.value.code == 128 + signal.SIGUSR1
        assert manager.all_steps() == (2,)
    assert signal.getsignal(signal.SIGUSR1) is before


def test_when_the_time_is_over_the_process_ends_whatever_it_does(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ending._leave_now(15, 2.0)
    assert codes == [143]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.usefixtures("_stays")
def test_a_step_that_failed_before_does_not_cost_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise OSError("no space left")

    with CheckpointManager(tmp_path) as manager, manager.preemption(within=60, signals=[signal.SIGUSR1]) as leave:
        with monkeypatch.context() as patch:
            patch.setattr("treewright.checkpoint.manager.sync", fail)
            manager.save(1, TREE)
            while manager._saver.is_saving_in_progress():
                time.sleep(0.01)
        signal.raise_signal(signal.SIGUSR1)
        told = pytest.warns(CheckpointWarning, match="Step 1 could not be saved in .*: no space left")
        with told, pytest.raises(SystemExit):
            leave(2, TREE)
    assert manager.all_steps() == (2,)


@pytest.mark.usefixtures("_stays")
def test_a_step_that_is_there_and_damaged_is_saved_anew_on_leaving(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        for step in (1, 2):
            manager.save(step, TREE)
    (tmp_path / "2" / "manifest" / "metadata").write_text("{")
    with CheckpointManager(tmp_path) as manager, manager.preemption(within=60, signals=[signal.SIGUSR1]) as leave:
        with pytest.warns(CheckpointWarning, match="skipped damaged ones"):
            manager.restore_latest_valid()
        signal.raise_signal(signal.SIGUSR1)
        with pytest.raises(SystemExit):
            leave(2, TREE)
        assert manager.restore(2)["x"].tolist() == [1, 1, 1]


def test_a_signal_to_a_fork_is_not_one_to_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        manager = CheckpointManager(tmp_path)
        with manager.preemption(within=60, signals=[signal.SIGUSR1]) as leave:
            with monkeypatch.context() as patch:
                patch.setattr(os, "getpid", lambda: -1)
                signal.raise_signal(signal.SIGUSR1)
            with pytest.raises(RuntimeError, match="inside of its block alone"):
                leave(1, TREE)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert (heard, manager.all_steps()) == ([signal.SIGUSR1], ())


@pytest.mark.exhaustive
def test_a_forked_worker_can_be_terminated_and_keeps_no_lock(tmp_path: Path) -> None:
    program = """
    manager = CheckpointManager(folder)
    with manager, manager.preemption(within=600):
        manager.save(1, tree)
        manager.wait()
        workers = []
        for _ in range(2):
            if not (worker := os.fork()):
                time.sleep(600)
            workers.append(worker)
        time.sleep(0.5)
        os.kill(workers[0], signal.SIGTERM)
        assert os.waitpid(workers[0], 0)[1] == signal.SIGTERM
    with CheckpointManager(folder) as manager:
        manager.save(2, tree)
    os.kill(workers[1], signal.SIGKILL)
    """
    assert ended(tmp_path, program)[0] == 0
    assert CheckpointManager(tmp_path).all_steps() == (1, 2)


def test_leaving_without_the_block_or_the_metric_is_told_at_the_first_step(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path, metric="loss", mode="min")
    with pytest.raises(RuntimeError, match=r"with manager\.preemption\(within=30\) as leave_if_told:"):
        manager.preemption(within=60)(1, TREE)
    with manager.preemption(within=60, signals=[]) as leave:
        with pytest.raises(CheckpointError, match="ranks steps by 'loss', and that is missing in metadata"):
            leave(1, TREE)
        leave(1, TREE, metadata={"loss": jnp.ones(())})


def test_signals_that_can_not_be_heard_are_refused_and_the_others_are_as_they_were(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(TypeError, match=r"signals=\.\.\.\) takes several signals, got .*SIGTERM.*\. Write \[15\]"):
        manager.preemption(within=1, signals=signal.SIGTERM)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    before = signal.getsignal(signal.SIGUSR1)
    leave = manager.preemption(within=1, signals=[signal.SIGUSR1, signal.SIGKILL])
    with pytest.raises(
        ValueError, match=r"signals=\.\.\.\): nobody can listen to <Signals\.SIGKILL: 9>: .*Invalid arg"
    ):
        leave.__enter__()
    assert signal.getsignal(signal.SIGUSR1) is before


def test_a_time_or_a_thread_that_can_not_be_is_refused(tmp_path: Path) -> None:
    manager = CheckpointManager(tmp_path)
    with pytest.raises(ValueError, match=r"takes the seconds that are left after the signal, got 0"):
        manager.preemption(within=0)
    raised: list[str] = []

    def enter() -> None:
        try:
            manager.preemption(within=1).__enter__()
        except RuntimeError as error:
            raised.append(str(error))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert raised == ["preemption() listens to signals, and Python gives these to the main thread alone."]


@pytest.mark.usefixtures("_stays")
def test_in_a_job_of_several_processes_jax_says_which_step_is_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ending, "process_count", lambda: 2)
    monkeypatch.setattr(ending, "preemption_agreed", lambda step: step == 3)
    with CheckpointManager(tmp_path) as manager:
        with manager.preemption(within=60) as leave:
            assert signal.getsignal(signal.SIGTERM) is before
            leave(1, TREE)
            leave(2, TREE)
            with pytest.raises(SystemExit):
                leave(3, TREE)
        assert manager.all_steps() == (3,)


# Threads


def test_threads_that_share_a_manager_lose_no_step(tmp_path: Path) -> None:
    errors: list[BaseException] = []
    with CheckpointManager(tmp_path, keep=None) as manager:

        def save(first: int) -> None:
            try:
                for step in range(first, 24, 4):
                    manager.save(step, {"x": jnp.full(1000, step)})
                    assert manager.latest_step() is None or manager.restore(like={"x": jnp.zeros(1000, int)})
            except BaseException as error:  # noqa: BLE001  told to the main thread
                errors.append(error)

        threads = [threading.Thread(target=save, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not errors
    assert manager.all_steps() == tuple(range(24))
    assert [int(manager.restore(step)["x"][5]) for step in (0, 13, 23)] == [0, 13, 23]


def test_asking_for_steps_does_not_wait_for_a_thread_that_saves(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.wait()
        held, let_go = threading.Event(), threading.Event()

        def hold() -> None:
            with manager._mutex:
                held.set()
                let_go.wait(20)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(20)
        assert manager.all_steps() == (1,)
        let_go.set()
        thread.join()


# Failures


FULL = """
import resource
from treewright.errors import CheckpointError, CheckpointWarning
manager = CheckpointManager(folder)
manager.save(1, tree)
manager.wait()
soft = resource.getrlimit(resource.RLIMIT_FSIZE)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, soft[1]))
told = []
try:
    manager.save(2, tree)
    manager.wait()
except CheckpointError as error:
    told.append(str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, soft)
manager.wait()
manager.save(3, tree)
manager.wait()
manager.close()
print(len(told), manager.all_steps())
"""


def test_a_full_disk_is_told_once_and_the_next_save_works_when_there_is_room(tmp_path: Path) -> None:
    with started(tmp_path, FULL) as process:
        output, errors = process.communicate(timeout=60)

    assert process.returncode == 0, errors
    assert output == "1 (1, 3)\n"
    assert "Event loop is closed" not in errors


def test_a_disk_without_room_for_a_folder_leaves_no_thread_for_which_the_program_would_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def full(path: Any, *arguments: Any, **options: Any) -> None:
        if "orbax-checkpoint-tmp" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        mkdir(path, *arguments, **options)

    before = set(threading.enumerate())
    manager = CheckpointManager(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "mkdir", full)
        with pytest.raises(CheckpointError, match=r"Step 1 could not be saved in .*No space left on device"):
            manager.save(1, TREE)
    for thread in set(threading.enumerate()) - before:
        thread.join(20)
    assert not [thread for thread in set(threading.enumerate()) - before if not thread.daemon]
    assert not list(tmp_path.iterdir())
    manager.save(1, TREE)
    manager.close()


def test_a_folder_that_is_removed_while_a_step_is_saved_is_told_and_made_anew_with_a_lock_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CheckpointManager._sync_step

    def removing(self: CheckpointManager) -> None:
        shutil.rmtree(self.directory)
        real(self)

    with CheckpointManager(tmp_path / "run") as manager:
        with monkeypatch.context() as patch:
            patch.setattr(CheckpointManager, "_sync_step", removing)
            manager.save(1, TREE)
            with pytest.raises(CheckpointError, match=r"Step 1 could not be saved in .*No such file or directory"):
                manager.wait()
        manager.save(2, TREE)
        with pytest.raises(CheckpointError, match="another CheckpointManager saves into this folder"):
            CheckpointManager(tmp_path / "run").save(3, TREE)
        manager.wait()
        assert manager.all_steps() == (2,)


def test_waiting_that_is_interrupted_leaves_the_step_to_be_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        with monkeypatch.context() as patch:
            patch.setattr(manager._saver, "wait_until_finished", interrupted)
            with pytest.raises(KeyboardInterrupt):
                manager.wait()
        assert manager.close in ending.UNFINISHED
        assert manager.restore(like=TREE)["x"].tolist() == [1, 1, 1]


def test_a_step_that_can_not_be_deleted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError("busy")

    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE)
        manager.wait()
        monkeypatch.setattr(manager._saver, "delete", fail)
        with pytest.raises(CheckpointError, match=r"Step 1 could not be deleted in .*; earlier steps are as .*: busy"):
            manager.delete(1)
        manager.delete(1)
        assert manager.all_steps() == ()
