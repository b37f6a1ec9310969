"""A folder of steps: asynchronous, atomic, sharded, and readable by plain safetensors."""

from __future__ import annotations

import errno
import math
import os
import re
import sys
import threading
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from safetensors.numpy import load_file

from tests.checkpoint.engines import assert_same, flip_a_bit
from tests.checkpoint.forged_files import forge
from tests.checkpoint.models import spec, train_state
from tests.checkpoint.runs import LIKE, TREE, hold_commits, saved
from treewright.checkpoint import CheckpointManager, LeafRecord, Manifest, from_names, load
from treewright.errors import CheckpointDamagedError, CheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

ocp: Any = pytest.importorskip("orbax.checkpoint")


# Where


def test_restore_of_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    for folder, problem in ((tmp_path / "none", "does not exist"), (tmp_path, "has no steps")):
        with CheckpointManager(folder) as manager:
            assert (manager.all_steps(), manager.latest_step()) == ((), None)
            assert manager.restore_latest_valid(like=1) is None
            for call in (manager.restore, manager.manifest, manager.metrics, manager.items):
                with pytest.raises(CheckpointError, match=rf"{problem}\.$"):
                    call()
    assert not list(tmp_path.iterdir())


def test_a_relative_folder_is_resolved_at_construction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    before = CheckpointManager("steps")
    manager = saved(Path(), 1)  # A notebook cell that runs again does this.
    monkeypatch.chdir("/")
    assert manager.all_steps() == before.all_steps() == (1,)
    assert_same(before.restore(like=LIKE), {"x": jnp.ones(2, int)})


def test_invalid_step_folders_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path, 1).close()
    (tmp_path / "file").touch()

    for path in (tmp_path / "steps" / "1", tmp_path / "file"):
        with pytest.raises(CheckpointError, match=rf"{path} is a file or a step\. Pass the folder"):
            CheckpointManager(path)
    with pytest.raises(OSError, match="File name too long"):
        CheckpointManager(tmp_path / ("x" * 300))
    for url in (Path("gs://bucket/run"), "memory://run", "file:///data/run"):
        with pytest.raises(CheckpointError, match=r"run is a URL, .*'/data/run' .*CheckpointManager\('gs://.*a str\."):
            CheckpointManager(url)
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ImportError, match="install gcsfs"):
        CheckpointManager("gs://bucket/run")


# In the background


def test_save_runs_in_the_background_on_copied_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_restore_waits_for_a_pending_save(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    let_go = hold_commits(monkeypatch)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.ones(2, int)})
        assert manager.latest_step() is None
        threading.Timer(0.1, let_go.set).start()
        assert CALLS[name](manager)
        assert manager.latest_step() == 1


FAILING: dict[str, Callable[[CheckpointManager], Any]] = {
    **CALLS,
    "save": lambda manager: manager.save(3, TREE),
    "wait": lambda manager: manager.wait(),
    "close": lambda manager: manager.close(),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("name", FAILING)
def test_a_background_failure_is_raised_by_the_next_call(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    manager = saved(tmp_path, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        manager.save(2, LIKE)
        with pytest.raises(CheckpointError, match=r"Step 2 could not be saved in .*steps; .*: .*No space left"):
            FAILING[name](manager)
    assert manager.latest_step() == 1
    with CheckpointManager(tmp_path / "steps") if name == "close" else manager as manager:
        manager.save(2, LIKE)
        manager.wait()
        assert manager.all_steps() == (1, 2)


# On the disk


def test_all_files_of_a_step_are_flushed_before_its_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: dict[str, bytes] = {}
    late: list[str] = []
    fsync = os.fsync

    def watched(descriptor: int) -> None:
        target = Path(f"/proc/self/fd/{descriptor}").readlink()
        name = re.sub(r"^1\.orbax-checkpoint-tmp-\w+", "1", str(target.relative_to(tmp_path)))
        synced[name] = target.read_bytes() if target.is_file() else b""
        if (tmp_path / "1").exists():
            late.append(target.name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    with CheckpointManager(tmp_path, metric="loss", mode="min") as manager:
        manager.save(1, {"x": jnp.ones(3)}, metrics={"loss": 1}, items={"a": 1})
        manager.wait()

    made = {str(path.relative_to(tmp_path)) for path in (tmp_path / "1").rglob("*")}
    assert made - synced.keys() <= {"1/commit_success.txt"}
    for name in made & synced.keys():  # unchanged since it was flushed
        assert (tmp_path / name).is_dir() or (tmp_path / name).read_bytes() == synced[name]
    assert late == ["_CHECKPOINT_METADATA", "1", tmp_path.name]  # Orbax rewrites the metadata last; then the folders


def test_a_failed_flush_of_a_step_names_its_state_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == tmp_path / "steps":
            raise OSError(errno.EIO, "Input/output error")
        fsync(descriptor)

    manager = saved(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        manager.save(1, TREE)
        with pytest.raises(CheckpointError, match=r"it was renamed, but could not be flushed .* may lose it"):
            manager.wait()
    assert manager.all_steps() == (1,)


# Metrics and items


def test_metrics_and_items_are_restored_unchanged(tmp_path: Path) -> None:
    items = {"data": {"epoch": 2, "seed": 2**70}, "list": [1, None, "a"], "nan": math.nan, "1": -0.0}
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, TREE, metrics={"loss": np.float32(0.5), "jax": jnp.int32(3), "nan": float("nan")}, items=items)
        manager.save(2, TREE)
        assert str(manager.metrics(1)) == "{'loss': 0.5, 'jax': 3, 'nan': nan}"
        assert str(manager.items(1)) == str(items)
        assert (manager.metrics(), manager.items()) == ({}, {})
        with pytest.raises(TypeError, match="'str' object cannot be interpreted as an integer"):
            manager.items(2, process="0")  # type: ignore[arg-type]


ITEMS: dict[str, tuple[Any, str]] = {
    "an object": (object(), "JSON can't represent .*<object object"),
    "a set": ({1, 2}, r"JSON can't represent .*\{1, 2\}.*\. Convert it to dicts with str keys, lists"),
    "an array": (np.ones(2), "JSON can't represent "),
    "a number of numpy": (np.float32(1), "JSON can't represent .*float32"),
    "a float of numpy": (np.float64(1), r"JSON can't represent \{'a': \[0, np.float64\(1.0\)\]\}"),
    "a tuple": ((1, 2), r"JSON can't represent \{'a': \[0, \(1, 2\)\]\}\. Convert it"),
    "bytes": (b"a", "JSON can't represent .*b'a'"),
    "a subclass of dict": (defaultdict(int, b=1), "JSON can't represent .*defaultdict"),
    "a subclass of str": (type("Name", (str,), {})("a"), "JSON can't represent .*'a'"),
    "a tuple as a key": ({(1, 2): 3}, r"JSON can't represent .*\(1, 2\): 3"),
    "an int as a key": ({1: "a", "1": "b"}, r"JSON can't represent .*Convert it to dicts with str keys"),
    "a large int": (10**5000, "can't be written as JSON: .*digits"),
}


@pytest.mark.parametrize("name", ITEMS)
def test_save_rejects_items_that_do_not_round_trip(name: str, tmp_path: Path) -> None:
    value, message = ITEMS[name]
    with pytest.raises(CheckpointError, match=message):
        CheckpointManager(tmp_path / "run").save(1, TREE, items={"a": [0, value]})
    assert not list(tmp_path.iterdir())


def test_items_that_are_not_a_dict_are_rejected(tmp_path: Path) -> None:
    looped: dict[str, Any] = {}
    looped["a"] = looped
    for items in (3, "ab", [(1, 2)], [1], looped):
        with pytest.raises(CheckpointError, match=r"^save\(\.\.\., items=\).* JSON.*Convert it to dicts with str keys"):
            CheckpointManager(tmp_path).save(1, TREE, items=items)  # type: ignore[arg-type]


def test_manifest_size_does_not_depend_on_array_blocks(tmp_path: Path) -> None:
    sizes: dict[int, int] = {}
    for count in (1, 2, 4):
        x = jax.device_put(jnp.zeros(8), split_over(jax.devices()[:count]))
        with CheckpointManager(tmp_path / str(count)) as manager:
            manager.save(1, {f"{index}": x + index for index in range(50)})
            sizes[count] = len(manager.manifest().to_metadata()["treewright"])
    assert max(sizes.values()) - min(sizes.values()) < 10


def test_the_manifest_of_a_state_on_thousands_of_devices_is_small(tmp_path: Path) -> None:
    """By formula, as docs/limits.md has it: 2,100 arrays in five layouts over 8,192 devices in 1,024 processes."""
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.zeros((2, 2))})
        leaf = manager.manifest().leaves[0]
    form, writers = leaf.form._replace(shape=(8192, 8192)), tuple((process, 8) for process in range(1024))
    name = "params.layers.{}.kernel"
    leaves = [LeafRecord(name.format(i), f".params.layers[{i}].kernel", form, layout=i % 5) for i in range(2100)]
    kind: Any = type(manager.manifest().layouts[0])
    layouts = [kind(grid, writers) for grid in [(8192, 1), (1, 8192), (64, 128), (128, 64), (4096, 2)]]
    manifest = Manifest((), tuple(leaves), processes=1024, layouts=tuple(layouts))

    assert len(manifest.to_metadata()["treewright"]) < 210 * 2100 + 10 * 1024 * 5


def test_a_flipped_bit_in_items_and_digests_is_damage(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jnp.ones(3)}, items={"a": 1})
        manager.wait()
        forge(tmp_path / "1" / "process_0.safetensors", lambda _: None, without="treewright.process.digest")
        with pytest.raises(CheckpointDamagedError, match="The items of process 0 in step 1 can't be read"):
            manager.items(1)
        with pytest.raises(CheckpointDamagedError, match=r"The digest of .* can't be read"):
            manager.restore(like={"x": jnp.ones(3)})


# Over several devices


def split_over(devices: Any, *axes: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("a",)), spec(*(axes or ("a",))))


@pytest.mark.devices(4)
@pytest.mark.parametrize(("count", "axes"), [(1, ("a",)), (2, ("a",)), (4, ("a",)), (4, (None, "a"))])
def test_a_sharded_step_is_restored_on_any_number_of_devices(count: int, axes: Any, tmp_path: Path) -> None:
    x = jnp.arange(1 << 22).reshape(8, -1)
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": jax.device_put(x, split_over(jax.devices()))})
        assert manager.manifest().layouts == (((4, 1), ((0, 4),)),)
        sharding = split_over(jax.devices()[:count], *axes)
        found = manager.restore(like={"x": jax.device_put(x * 0, sharding)})["x"]
    assert found.sharding == sharding
    np.testing.assert_array_equal(found, x)


@pytest.mark.devices(4)
def test_a_flipped_bit_is_detected_in_each_block_that_is_read(tmp_path: Path) -> None:
    x = jax.device_put(jnp.zeros((8, 4)), split_over(jax.devices()))
    half = jax.device_put(x, split_over(jax.devices()[:2]))
    cut = jax.device_put(x, split_over(jax.devices(), None, "a"))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, {"x": x})
        manager.wait()
        flip_a_bit(tmp_path / "1" / "process_0.safetensors", -33)  # in the last but one block of 32 bytes
        for like in (x, half, np.zeros((8, 4), np.float32), cut):
            with pytest.raises(CheckpointDamagedError, match=r"\['x'\]\[4:6,0:4\] is damaged: the digest of its bytes"):
                manager.restore(like={"x": like})


# Other programs


@pytest.mark.devices(2)
def test_safetensors_reads_a_step_by_flat_names(tmp_path: Path) -> None:
    state = train_state()
    x = jax.device_put(jnp.arange(8.0), split_over(jax.devices()[:2]))
    with CheckpointManager(tmp_path) as manager:
        manager.save(1, state)
        manager.save(2, {"x": x, "x#0": 1, "__metadata__": 2})

    found = load_file(tmp_path / "1" / "process_0.safetensors")
    np.testing.assert_array_equal(found["params.layers.0.kernel"], state.params.layers[0].kernel)
    assert_same(from_names(found, like=state), state)
    assert_same(load(tmp_path / "1" / "process_0.safetensors", like=state), state)
    blocks = load_file(tmp_path / "2" / "process_0.safetensors")
    assert {name: block.tolist() for name, block in blocks.items()} == {
        "x#0": [0, 1, 2, 3],
        "x#1": [4, 5, 6, 7],
        "x#0#0": 1,
        "__metadata__#0": 2,
    }
