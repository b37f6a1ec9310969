"""Steps of a run beside Orbax's own manager: `python benchmarks/steps.py` prints the ratio of each row.

Each case runs in a process of its own, in which both managers save and restore in turns, arrays that are new before
each save. `python benchmarks/steps.py NAME ...` runs only some cases; TMPDIR chooses the disk.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

OURS, ORBAX = "treewright.checkpoint", "orbax"
Samples = dict[str, dict[str, list[float]]]  # by group, by way


class Case(NamedTuple):
    """Arrays to save: how many, how many floats in each, on how many devices, and how often."""

    arrays: int
    floats: int
    devices: int = 1
    turns: int = 3
    is_first: bool = False  # replicated, and each save in a new process


CASES = {
    "3,000 arrays of 100 kB": Case(3_000, 25_000),
    "20,000 arrays of 10 kB": Case(20_000, 2_500, turns=1),
    "1 GiB in 16 arrays": Case(16, 1 << 24),
    "100 arrays on 128 devices": Case(100, 128 * 256, 128),
    **{f"40 arrays on {n} devices, the first time": Case(40, 2_500, n, 1, is_first=True) for n in (1, 4, 8)},
}
ACTIONS = "hold for", "save", "restore"
BEST_STEPS, MEMORY = "the best of 300 steps of 2,000 arrays", "memory to save a file of 1 GiB from 8 devices"


def tree_of(case: Case, number: int) -> dict[str, Any]:
    """New arrays; all values are different, because equal pages may be shared."""
    import jax
    import numpy as np

    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("a",))
    spec: Any = jax.sharding.PartitionSpec
    sharding = jax.sharding.NamedSharding(mesh, spec() if case.is_first else spec("a"))
    sizes = [case.floats + index * case.is_first for index in range(case.arrays)]  # a first save meets many shapes
    arrays = (np.arange(number, number + size, dtype=np.float32) for size in sizes)
    tree = {f"layer{index}": jax.device_put(values, sharding) for index, values in enumerate(arrays)}
    untyped: Any = jax
    waited: dict[str, Any] = untyped.block_until_ready(tree)
    return waited


def open_manager(way: str, folder: Path) -> Any:
    """A manager that deletes no step."""
    if way == OURS:
        from treewright.checkpoint import CheckpointManager

        return CheckpointManager(folder, metric="loss", mode="min")
    import orbax.checkpoint as ocp

    options = ocp.CheckpointManagerOptions(best_fn=lambda metrics: metrics["loss"], best_mode="min")
    return ocp.CheckpointManager(folder, options=options)


def save(way: str, manager: Any, step: int, tree: Any) -> float:
    """Save a step and wait for it. Returns the seconds until `save` returned."""
    start = time.perf_counter()
    if way == OURS:
        manager.save(step, tree, metrics={"loss": 1.0})
    else:
        import orbax.checkpoint as ocp

        manager.save(step, args=ocp.args.StandardSave(tree), metrics={"loss": 1.0})
    hold = time.perf_counter() - start
    (manager.wait if way == OURS else manager.wait_until_finished)()
    return hold


def restore(way: str, manager: Any, step: int, tree: Any) -> None:
    """Restore a step to devices, and compare its last array."""
    import jax
    import numpy as np

    if way == OURS:
        found = manager.restore(step, like=tree)
    else:
        import orbax.checkpoint as ocp

        like = jax.tree.map(ocp.utils.to_shape_dtype_struct, tree)
        found = manager.restore(step, args=ocp.args.StandardRestore(like))
    untyped: Any = jax
    untyped.block_until_ready(found)
    name = list(tree)[-1]
    np.testing.assert_array_equal(found[name], tree[name])


def seconds(work: Callable[[], object]) -> float:
    """The seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def save_and_restore(name: str, ways: tuple[str, ...], folder: Path) -> Samples:
    """Samples of a case: of the call of `save`, of the whole save, and of a restore."""
    case = CASES[name]
    samples: Samples = {f"{action} {name}": {way: [] for way in ways} for action in ACTIONS}
    managers = {way: open_manager(way, folder / way) for way in ways}
    small = tree_of(case._replace(arrays=2, floats=case.devices), 0)
    for way, manager in managers.items() if not case.is_first else ():  # what is imported and made once
        save(way, manager, 0, small)
        restore(way, manager, 0, small)
    for turn in range(1, case.turns + 1):
        for way in ways[:: 1 if turn % 2 else -1]:
            tree, manager = tree_of(case, turn), managers[way]
            start = time.perf_counter()
            hold = save(way, manager, turn, tree)
            saved = time.perf_counter() - start
            restored = seconds(functools.partial(restore, way, manager, turn, tree))
            for found, each in zip(samples.values(), (hold, saved, restored), strict=True):
                found[way].append(each)
            shutil.rmtree(folder / way / str(turn))
            del tree
            gc.collect()
    for manager in managers.values():
        manager.close()
    return samples


def best_step(name: str, ways: tuple[str, ...], folder: Path) -> Samples:
    """Samples of a new manager and its `best_step()`, in a run whose steps are links to the files of one."""
    tree, found = tree_of(Case(2_000, 1), 0), dict[str, list[float]]()
    for way in ways:
        with open_manager(way, folder / way) as manager:
            save(way, manager, 0, tree)
        for step in range(1, 300):
            shutil.copytree(folder / way / "0", folder / way / str(step), copy_function=os.link)
        found[way] = [seconds(lambda: open_manager(way, folder / way).best_step())]  # noqa: B023  called at once
    return {name: found}


def status(line: str) -> int:
    """A line of this process's status in bytes."""
    texts = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(1024 * int(text.split()[1]) for text in texts if text.startswith(line))


def memory(name: str, ways: tuple[str, ...], folder: Path) -> Samples:
    """The memory at the peak of `save(path, tree)` and after it, as shares of the tree."""
    import jax

    from treewright.checkpoint import save as save_file

    assert ways, name
    tree = tree_of(Case(16, 1 << 24, 8), 0)
    save_file(folder / "small", tree_of(Case(2, 8, 8), 0))
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the peak from now on
    before = status("VmRSS")
    save_file(folder / "large", tree)
    gc.collect()
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
    peak, after = ((status(line) - before) / size for line in ("VmHWM", "VmRSS"))
    return {f"{name}, at the peak": {OURS: [peak]}, f"{name}, after it": {OURS: [after]}}


PROGRAMS = {**dict.fromkeys(CASES, save_and_restore), BEST_STEPS: best_step, MEMORY: memory}


def run(name: str, *ways: str) -> Samples:
    """Run a case in a new process."""
    devices = CASES[name].devices if name in CASES else 8 if name == MEMORY else 1
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}
    command = [sys.executable, __file__, "--in-this-process", name, *ways]
    text = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    samples: Samples = json.loads(text.splitlines()[-1])
    return samples


def measure(name: str) -> Samples:
    """Samples of a case by group and way. What is measured the first time has a process for each way."""
    if name not in CASES or not CASES[name].is_first:
        return run(name, OURS, ORBAX)
    ours, theirs = run(name, OURS), run(name, ORBAX)
    return {group: {**ours[group], **theirs[group]} for group in ours}


def main(names: list[str]) -> None:
    """Print the shortest time of each way, and the ratio."""
    for name in names or PROGRAMS:
        for group, ways in measure(name).items():
            ours, *others = (min(samples) for samples in ways.values())
            theirs = "".join(f", Orbax {other:.3f} s: {ours / other:.2f}" for other in others)
            print(f"{group}: {ours:.3f}{' s' * bool(others)}{theirs}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-this-process"]:
        with tempfile.TemporaryDirectory() as place:
            print(json.dumps(PROGRAMS[sys.argv[2]](sys.argv[2], tuple(sys.argv[3:]), Path(place))))
    else:
        main(sys.argv[1:])
