"""What a step of a run costs in time, CPU and memory: the manager beside bare Orbax, on one device and on eight.

`python benchmarks/checkpoint_steps.py` prints seconds, CPU seconds and the peak of memory over the size of the state.
Each measurement has a process of its own, since memory that was used once is used again.
"""

import argparse
import json
import logging
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
from _lines import Line, add_option, lines_text, table, write

untyped_jax: Any = jax

LARGE = 48  # arrays
WAYS = ("save", "orbax save", "restore", "orbax restore", "save by shard", "restore by shard")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")
    parser.add_argument("--megabytes", type=int, default=1000, help="of the state")
    parser.add_argument("--repeats", type=int, default=3, help="processes for each way")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    add_option(parser)
    return parser.parse_args(arguments)


# In a process of its own


@contextmanager
def measured(found: dict[str, float]) -> Iterator[None]:
    """Seconds, CPU seconds and the bytes of memory by which the process grew at most."""
    done = threading.Event()
    before = peak = resident()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident())

    thread = threading.Thread(target=watch)
    thread.start()
    began, cpu = time.perf_counter(), time.process_time()
    try:
        yield
    finally:
        found["seconds"], found["cpu"] = time.perf_counter() - began, time.process_time() - cpu
        done.set()
        thread.join()
        found["peak"] = max(peak, resident()) - before


def resident() -> int:
    """The bytes of memory that the process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_way(way: str, folder: Path, megabytes: int) -> dict[str, float]:
    """Measure one way."""
    import numpy as np

    logging.disable(logging.WARNING)
    sharded = way.endswith("by shard")
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("a",))
    spec: Any = jax.sharding.PartitionSpec
    sharding: Any = jax.sharding.NamedSharding(mesh, spec("a")) if sharded else None
    shape = (64, megabytes * 1_000_000 // LARGE // 4 // 64)
    names = [f"layer_{i}" for i in range(LARGE)]
    struct: Any = jax.ShapeDtypeStruct
    like = {name: struct(shape, np.float32, sharding=sharding) for name in names}
    action = orbax_action if way.startswith("orbax") else our_action
    small = {"x": jax.numpy.ones(3)}
    with tempfile.TemporaryDirectory() as warm:  # so that all packages are loaded
        action(Path(warm), "save", small)
        action(Path(warm), "restore", small)
    state: Any = None
    if "save" in way:
        random = np.random.default_rng(0)
        state = {name: jax.device_put(random.standard_normal(shape, np.float32), sharding) for name in names}
        untyped_jax.block_until_ready(state)
    found: dict[str, float] = {}
    with measured(found):
        result = action(folder, way, state if "save" in way else like)
    if "restore" in way:
        assert all(leaf.sharding.num_devices == (8 if sharded else 1) for leaf in jax.tree.leaves(result))
    return found


def our_action(folder: Path, way: str, tree: Any) -> Any:
    """Save a tree with the manager, or restore the last into it."""
    from treewright.checkpoint import CheckpointManager

    with CheckpointManager(folder / "ours") as manager:
        if "restore" in way:
            return untyped_jax.block_until_ready(manager.restore(like=tree))
        manager.save(1, tree)
        return manager.wait()


def orbax_action(folder: Path, way: str, tree: Any) -> Any:
    """The same with Orbax alone, without compression."""
    import orbax.checkpoint as ocp

    handlers = {"state": ocp.PyTreeCheckpointHandler(use_compression=False)}
    with ocp.CheckpointManager(folder / "orbax", item_handlers=handlers) as manager:
        if "restore" in way:
            device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
            restore_args = ocp.checkpoint_utils.construct_restore_args(tree, jax.tree.map(lambda _: device, tree))
            args = ocp.args.PyTreeRestore(item=tree, restore_args=restore_args)
            return untyped_jax.block_until_ready(manager.restore(1, args=ocp.args.Composite(state=args)).state)
        manager.save(1, args=ocp.args.Composite(state=ocp.args.PyTreeSave(tree)))
        return manager.wait_until_finished()


# All of them


def child(way: str, folder: Path, megabytes: int) -> dict[str, float]:
    """One measurement, in a new process."""
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    command = [sys.executable, __file__, "--way", way, "--folder", str(folder), "--megabytes", str(megabytes)]
    run = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)  # noqa: S603  itself
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def medians(folder: Path, megabytes: int, repeats: int) -> dict[str, dict[str, float]]:
    """For each way, the medians of what was measured. The ways take turns, and each finds what the one before saved."""
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(repeats):
        shutil.rmtree(folder, ignore_errors=True)
        for way in WAYS:
            if way == "save by shard":
                shutil.rmtree(folder, ignore_errors=True)
            os.sync()
            measured[way].append(child(way, folder, megabytes))
    return {
        way: {what: statistics.median(one[what] for one in found) for what in ("seconds", "cpu", "peak")}
        for way, found in measured.items()
    }


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    if options.way:
        print(json.dumps(run_way(options.way, options.folder, options.megabytes)))
        return 0
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        found = medians(folder / "steps", options.megabytes, options.repeats)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    size = options.megabytes * 1e6
    rows = [["", "s", "CPU s", "peak / state"]]
    rows += [
        [way, f"{one['seconds']:.2f}", f"{one['cpu']:.2f}", f"{one['peak'] / size:.2f}"] for way, one in found.items()
    ]
    slower = found["restore"]["seconds"] / found["orbax restore"]["seconds"]
    peaks = {way: found[way]["peak"] / size for way in ("restore", "restore by shard", "save by shard")}
    lines = [Line("time of manager.restore", "bare Orbax", f"{slower:.2f}", "<= 1.0", slower <= 1.0)]
    lines += [
        Line(f"peak of {way}", "the state", f"{peak:.2f}", "<= 1.15", peak <= 1.15) for way, peak in peaks.items()
    ]
    print(f"{options.megabytes} MB in {LARGE} arrays, medians of {options.repeats}\n")
    print(table(rows), lines_text(lines), sep="\n\n")
    write(options.lines, lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
