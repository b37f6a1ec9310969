"""A sharded state on many CPU devices in one process: the cost of a step compared with Orbax's own manager.

`python benchmarks/many_devices.py 256 100 4` saves and restores 100 arrays over 256 devices four times with each, in
turns, and prints the ratio of each turn and the median. Arrays are small, so that blocks count and not bytes.
"""

from __future__ import annotations

import functools
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

DEVICES, LEAVES, TURNS = (int(argument) for argument in sys.argv[1:4])
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", DEVICES)

import numpy as np  # noqa: E402  after the number of devices
import orbax.checkpoint as ocp  # noqa: E402

from treewright.checkpoint import CheckpointManager  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable


def state() -> dict[str, jax.Array]:
    """Arrays of 1 kB for each device, split along one axis."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("a",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    values = np.ones((DEVICES, 256), np.float32)
    return {f"layer{index}": jax.device_put(values + index, sharding) for index in range(LEAVES)}


def seconds(work: Callable[[], object]) -> float:
    """The seconds that some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measured(save: Callable[[], object], wait: Callable[[], object], restore: Callable[[], object]) -> list[float]:
    """Seconds for the call of `save`, the whole save and a restore, and the CPU seconds for both."""
    start, cpu = time.perf_counter(), time.process_time()
    for_loop = seconds(save)
    wait()
    saved, cpu_saved = time.perf_counter() - start, time.process_time() - cpu
    cpu = time.process_time()
    return [for_loop, saved, seconds(restore), cpu_saved, time.process_time() - cpu]


def by_us(tree: Any, folder: Path) -> list[float]:
    """A step saved by `CheckpointManager`."""
    with CheckpointManager(folder) as manager:
        restore = functools.partial(manager.restore, 1, like=tree)
        return measured(lambda: manager.save(1, tree), manager.wait, lambda: jax.block_until_ready(restore()))


def by_orbax(tree: Any, folder: Path) -> list[float]:
    """The same with plain Orbax."""
    wanted = ocp.args.StandardRestore(jax.tree.map(ocp.utils.to_shape_dtype_struct, tree))
    with ocp.CheckpointManager(folder) as manager:
        saved = ocp.args.StandardSave(tree)
        restore = functools.partial(manager.restore, 1, args=wanted)
        wait = manager.wait_until_finished
        return measured(lambda: manager.save(1, args=saved), wait, lambda: jax.block_until_ready(restore()))


def main() -> None:
    """Print the ratios of each turn, and their medians."""
    tree, ratios = state(), list[list[float]]()
    for turn in range(TURNS + 1):  # the first warms up
        folder = Path(tempfile.mkdtemp())
        ours, theirs = by_us(tree, folder / "us"), by_orbax(tree, folder / "orbax")
        headers = [path.read_bytes()[:8] for path in (folder / "us" / "1").glob("*.safetensors")]
        size = sum(int.from_bytes(header, "little") for header in headers)
        shutil.rmtree(folder)
        if turn:
            ratios.append([one / other for one, other in zip(ours, theirs, strict=True)])
            texts = (f"{name} {a:.2f}/{b:.2f}" for name, a, b in zip(NAMES, ours, theirs, strict=True))
            print(f"{', '.join(texts)} s; headers of {size:,} bytes", flush=True)
    medians = map(statistics.median, zip(*ratios, strict=True))
    print(
        "ratios to plain Orbax:", ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(NAMES, medians, strict=True))
    )


NAMES = ("call of save", "save", "restore", "CPU of save", "CPU of restore")
if __name__ == "__main__":
    main()
