"""What exists, what is damaged and whose it is: errors of the file system, forks, and handlers of signals."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from safetensors.numpy import load_file

from tests.checkpoint.models import spec
from tests.checkpoint.runs import LIKE, saved
from treewright.checkpoint import CheckpointManager, load, save
from treewright.errors import CheckpointDamagedError, CheckpointError, CheckpointWarning

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


# Errors of the file system

CALLS = ("stat", "scandir", "open", "preadv")
NUMBERS = (errno.EACCES, errno.EIO, errno.ESTALE, errno.EMFILE)


class Shim:
    """Lets the call with one number fail, of those with a path in a folder; counts them."""

    def __init__(self, name: str, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.name, self.folder, self.count, self.failing, self.number = name, str(folder), 0, -1, 0
        owner: Any = Path if name == "open" else os
        self.plain: Any = getattr(owner, name)
        patch.setattr(owner, name, lambda *args, **options: self(*args, **options))

    def __call__(self, path: Any, *args: Any, **options: Any) -> Any:
        is_here = str(path).startswith(self.folder) if not isinstance(path, int) else self.name == "preadv"
        if is_here:
            self.count += 1
            if self.count == self.failing:
                raise OSError(self.number, os.strerror(self.number), str(path))
        return self.plain(path, *args, **options)


def latest(folder: Path) -> int | None:
    restored = CheckpointManager(folder).restore_latest_valid(like=LIKE)
    return restored and restored.step


TOLD = re.compile(r"^(?!CheckpointDamagedError).*(denied|Input/output|Stale|Too many)")
READS: dict[str, Callable[[Path], Any]] = {
    "restore_latest_valid": lambda folder: latest(folder / "steps"),
    "restore": lambda folder: int(CheckpointManager(folder / "steps").restore(like=LIKE)["x"][0]),
    "latest_step": lambda folder: CheckpointManager(folder / "steps").latest_step(),
    "load": lambda folder: int(load(folder / "file", like=LIKE)["x"][0]),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("read", READS)
def test_each_error_of_the_file_system_is_told_and_never_decides_what_exists(
    read: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path, 1, 2).close()
    save(tmp_path / "file", {"x": jnp.full(2, 2)})
    shim = Shim(name, tmp_path, monkeypatch)
    assert READS[read](tmp_path) == 2
    assert shim.count or (read, name) in {("latest_step", "open"), ("latest_step", "preadv"), ("load", "scandir")}
    for failing in range(1, shim.count + 1):
        for shim.number in NUMBERS:
            shim.count, shim.failing = 0, failing
            problem = ""
            try:
                found = READS[read](tmp_path)
            except (OSError, CheckpointError) as error:
                found, problem = 2, f"{type(error).__name__}: {error}"
            assert found == 2, (failing, shim.number)
            assert not problem or TOLD.search(problem), problem
    shim.failing = -1
    assert READS[read](tmp_path) == 2


def test_a_listing_looks_into_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = saved(tmp_path, 1)
    for step in range(2, 40):
        shutil.copytree(tmp_path / "steps" / "1", tmp_path / "steps" / str(step))
    looks: list[str] = []
    plain = os.stat

    def counted(path: Any, **options: Any) -> Any:
        if str(path).startswith(str(tmp_path / "steps") + os.sep):
            looks.append(str(path))
        return plain(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    assert len(manager.all_steps()) == 39
    assert len(looks) == 39
    assert len(manager.all_steps()) == 39
    assert len(looks) == 39


# Damage


def close_and_exit(manager: CheckpointManager) -> None:
    manager.close()
    sys.exit(7)


@pytest.mark.parametrize("again", [False, True])
def test_a_step_that_is_deleted_or_saved_again_while_it_is_read_is_not_damaged(
    again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, reader = saved(tmp_path, 1, 2, 3), CheckpointManager(tmp_path / "steps")
    plain = Path.open

    def changed(path: Path, *_: Any, **__: Any) -> Any:
        monkeypatch.setattr(Path, "open", plain)
        step = int(path.parent.name)
        manager.delete(step)
        if again:
            manager.save(step, {"x": jnp.full(2, 7)})
            manager.wait()
        raise CheckpointDamagedError("half of the old step, half of the new one")

    for call in (lambda: reader.restore(3, like=LIKE), lambda: reader.manifest(3 if again else 2)):
        monkeypatch.setattr(Path, "open", changed)
        verb = "replaced" if again else "deleted"
        with pytest.raises(CheckpointError, match=rf"Step [23] in .* was {verb} while it was read\.$") as caught:
            call()
        assert not isinstance(caught.value, CheckpointDamagedError)
    manager.save(4, {"x": jnp.full(2, 4)})
    manager.wait()
    monkeypatch.setattr(Path, "open", changed)
    restored = reader.restore_latest_valid(like=LIKE)
    assert restored is not None
    assert (restored.step, restored.tree["x"].tolist()) == ((4, [7, 7]) if again else (1, [1, 1]))
    assert not list((tmp_path / "steps").glob("*damaged*"))


# Files


@pytest.mark.parametrize("function", ["unlink", "chmod"])
def test_a_call_that_only_tidies_up_hides_no_error_and_is_none(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "x", {"x": 1})

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, refused)
        save(tmp_path / "x", {"x": 2})
        assert load(tmp_path / "x") == {"x": 2}
        patch.setattr(os, "fsync", refused)
        with pytest.raises(CheckpointError, match=r"could not be written and is unchanged: .*not permitted"):
            save(tmp_path / "x", {"x": 3})
    assert load(tmp_path / "x") == {"x": 2}
    save(tmp_path / "x", {"x": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


SHAPES: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((8, 6), ("a",)),
    ((6, 8), (None, "a")),
    ((4, 3, 8), ("a", None, "b")),
    ((8, 4), (("a", "b"),)),
    ((8,), ()),
    ((0, 4), (None, "a")),
]


@pytest.mark.devices(4)
@pytest.mark.parametrize("limit", [1, 40, 1000])
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
def test_an_array_on_several_devices_is_gathered_in_pieces(
    shape: tuple[int, ...], axes: Any, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treewright.checkpoint.host._PIECE_BYTES", limit)
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    x: Any = jax.device_put(values, NamedSharding(mesh, spec(*axes)))
    save(tmp_path / "x", {"x": x, "n": 1})
    np.testing.assert_array_equal(load(tmp_path / "x", like={"x": x, "n": 0})["x"], values)
    np.testing.assert_array_equal(load_file(tmp_path / "x")["x"], values)


MEMORY = """
import gc, sys
import jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from treewright.checkpoint import save
jax.config.update("jax_num_cpu_devices", 8)
def status(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return 1024 * int(line.split()[1])
spec = [*[None] * int(sys.argv[2]), "d"]
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec(*spec))
def state(count, size):
    shape = [*[1] * (len(spec) - 1), size]
    return jax.block_until_ready([jax.device_put(np.full(shape, n, np.float32), sharding) for n in range(count)])
save(sys.argv[1], state(1, 8))
x = state(4, 32 << 20)
gc.collect()
before = status("VmRSS")
open("/proc/self/clear_refs", "w").write("5")
save(sys.argv[1], x)
gc.collect()
print((status("VmHWM") - before) / (512 << 20), (status("VmRSS") - before) / (512 << 20))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("axis", ["0", "1"])
def test_a_save_of_a_sharded_state_needs_little_memory_and_keeps_none(axis: str, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "x"), axis], check=True, capture_output=True, text=True
    )
    peak, after = map(float, run.stdout.split())
    assert peak <= 0.15
    assert after <= 0.02


# Forks and signals


def test_a_fork_touches_nothing_of_its_parents_save(tmp_path: Path) -> None:
    program = """
import glob, os, sys, threading, time
import jax.numpy as jnp
from treewright.checkpoint import CheckpointManager
rename = os.rename
def slow(*args, **options):
    time.sleep(0.5)
    rename(*args, **options)
os.rename = slow
def locks():
    return [file for file in glob.glob("/proc/self/fd/*") if os.path.realpath(file).endswith(".lock")]
with CheckpointManager(sys.argv[1]) as manager:
    manager.save(1, {"x": jnp.ones(2)})
    while not locks():
        time.sleep(0.1)
    if not os.fork():
        print(locks())
        try:
            manager.save(2, {"x": jnp.ones(2)})
        except Exception as error:
            print(error, flush=True)
        manager.wait()
        manager.close()
        threading._shutdown()  # Python's exit hooks, ours among them
        os._exit(0)  # without the destructors of C++, which may wait for threads that a fork does not have
    os.wait()
    manager.wait()
    print(manager.all_steps())
"""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program, str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "Checkpoint" not in run.stderr
    locks, error, steps = run.stdout.splitlines()
    assert locks == "[]"  # otherwise, if the parent is killed, its unfinished step would stay while the fork lives
    assert "Step 2 can't be saved: this manager of" in error
    assert "this is a fork of it" in error
    assert steps == "(1,)"


def test_a_fork_reads_without_waiting_or_pruning(tmp_path: Path) -> None:
    program = """
import os, sys, threading, time
import numpy as np
from treewright.checkpoint import CheckpointManager
def in_fork(read):
    if not os.fork():
        print(read(), flush=True)
        os._exit(0)
    os.wait()
state = {"x": np.ones(2)}
first = CheckpointManager(sys.argv[1] + "/first", keep=1)
for step in (1, 2):
    first.save(step, state)
first._pending.wait()
other = CheckpointManager(sys.argv[1] + "/other")
other.save(1, state)  # drops the other manager's finished save from those to finish at exit
other.wait()
in_fork(lambda: (first.restore(1)["x"].tolist(), sorted(os.listdir(first.directory))))
first.close()
begun, go_on = threading.Event(), threading.Event()
check = other._check_number
def paused(number):
    begun.set()
    go_on.wait(60)
    check(number)
other._check_number = paused
saving = threading.Thread(target=lambda: other.save(2, state))
saving.start()
begun.wait(60)
in_fork(lambda: other.restore(1)["x"].tolist())
go_on.set()
saving.join()
other.close()
print(other.all_steps())
"""
    command = [sys.executable, "-W", "ignore::RuntimeWarning", "-c", program, str(tmp_path)]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["([1.0, 1.0], ['1', '2'])", "[1.0, 1.0]", "(1, 2)"]


def save_too(manager: CheckpointManager) -> None:
    """Save the step, before the interrupted `save` has begun; otherwise this is refused."""
    try:
        manager.save(2, {"x": jnp.full(2, 2)})
    except CheckpointError as error:
        assert re.search(r"inside another save\(\) of this manager|already has the step", str(error))  # noqa: PT017


HANDLERS: dict[str, Callable[[CheckpointManager], object]] = {
    "save": save_too,
    "wait": lambda manager: manager.wait(),
    "close": lambda manager: manager.close(),
    "close and exit": close_and_exit,
    "exit": lambda manager: sys.exit(7),
}


def interrupted_save(folder: Path, at: int, handler: Callable[[CheckpointManager], object]) -> tuple[int, bool]:
    """Call a handler at one line of `save`; the number of lines, and whether it ended."""
    count = 0
    has_ended = False

    def on_line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.endswith(("steps.py", "waiting.py")):
            return None
        if event == "line":
            count += 1
            if count == at:
                sys.settrace(None)
                handler(manager)
        return on_line

    manager = CheckpointManager(folder)
    try:
        manager.save(1, {"x": jnp.ones(2, int)})
        sys.settrace(on_line)
        manager.save(2, {"x": jnp.full(2, 2)})
        has_ended = True
    except (SystemExit, CheckpointError):  # CheckpointError: a handler closed the manager before it began
        pass
    finally:
        sys.settrace(None)
        manager.close()
    return count, has_ended


@pytest.mark.parametrize("stride", [23, pytest.param(1, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("name", HANDLERS)
def test_a_signal_handler_at_any_line_of_save_waits_for_nothing_that_can_not_happen(
    name: str, stride: int, tmp_path: Path
) -> None:
    lines, _ = interrupted_save(tmp_path / "whole", -1, HANDLERS[name])
    assert lines > 60
    for at in range(1, lines, stride):
        folder = tmp_path / str(at)
        _, has_ended = interrupted_save(folder, at, HANDLERS[name])
        assert has_ended or name != "wait", at
        with CheckpointManager(folder) as manager:
            assert manager.all_steps() in ([(1, 2)] if has_ended or name == "save" else [(1,), (1, 2)]), at
            manager.save(3, {"x": jnp.full(2, 3)})
        assert {path.name for path in folder.iterdir()} <= {"1", "2", "3"}, at


# Metrics


def test_a_metric_that_no_step_has_is_told_and_deletes_nothing(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, keep=1, keep_best=1, metric="val_loss", mode="min") as manager:
        text = r"ranked by 'val_loss' \(did you mean val_los\?\), but the metrics of this step are 'val_los'"
        with pytest.warns(CheckpointWarning, match=text):
            manager.save(0, LIKE, metrics={"val_los": 0})
        for step in (1, 2):  # told once
            manager.save(step, LIKE, metrics={"val_los": step})
        manager.wait()
        assert (manager.all_steps(), manager.best_step()) == ((0, 1, 2), None)
    with CheckpointManager(tmp_path, keep=1, keep_best=1, metric="val_loss", mode="min") as manager:
        manager.save(3, LIKE, metrics={"val_loss": 1.0})
        manager.save(4, LIKE, metrics={"train_loss": 1.0})  # measured when one can
        manager.save(5, LIKE)
        manager.wait()
        assert manager.all_steps() == (3, 5)
