"""One of the processes of a job: it saves and restores, and what it finds goes to a file beside the folder."""

from __future__ import annotations

import os
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

jax.config.update("jax_num_cpu_devices", 2)  # type: ignore[no-untyped-call]

if TYPE_CHECKING:
    from collections.abc import Callable


class Job:
    """This process: its trees, its folder, and the lines that it writes."""

    def __init__(self, folder: Path, index: int) -> None:
        import numpy as np
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        self.folder, self.index = folder, index
        self.lines: list[str] = []
        mesh = Mesh(np.array(jax.devices()), ("a",))
        spec: Any = PartitionSpec
        self.sharded, self.replicated = NamedSharding(mesh, spec("a")), NamedSharding(mesh, spec())
        self.values = np.arange(1 << 16, dtype=np.float32).reshape(8, -1)

    def tree(self, **others: Any) -> dict[str, Any]:
        """A tree that is the same in both processes but for `others`."""
        empty = self.placed(self.values[:0], self.replicated)
        x, y = self.placed(self.values, self.sharded), self.placed(self.values, self.replicated)
        return {"x": x, "y": y, "empty": empty, **others}

    def placed(self, values: Any, sharding: Any) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    def outcome(self, work: Callable[[], object]) -> str:
        """The result of some work, or the first lines of its error."""
        try:
            return str(work())
        except Exception as error:  # noqa: BLE001  each is a finding
            return f"{type(error).__name__}: {' | '.join(str(error).splitlines()[:4])}".replace(str(self.folder), "")


def everyday(job: Job) -> object:
    """Save, restore in the same blocks and in others, items by process, and one answer for all."""
    import numpy as np

    from treewright import Module, static
    from treewright.checkpoint import CheckpointManager

    class Log(Module):
        process: int = static(local=True)

    with CheckpointManager(job.folder, metric="loss", mode="min") as manager:
        for step in (1, 2):
            manager.save(step, job.tree(n=3, log=Log(job.index)), metrics={"loss": step}, items={"data": job.index})
        found = manager.restore(like=job.tree(n=0, log=Log(0)), on_static="ignore")
        for shard in found["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, job.values[shard.index])
        like = job.tree(n=0, log=Log(0))
        found = manager.restore(like={**like, "x": like["y"], "y": like["x"]}, on_static="ignore")
        np.testing.assert_array_equal(found["x"].addressable_data(0), job.values)
        leaves = {leaf.name: sorted(leaf.digests) for leaf in manager.manifest().leaves}
        return manager.all_steps(), manager.best_step(), manager.items(), leaves["x"][:2], leaves["y"]


def local_array(job: Job) -> object:
    """An array on this process alone."""
    import jax.numpy as jnp

    return save(job, 1, job.tree(z=jnp.ones(3)))


def save(job: Job, step: int, tree: Any, **options: Any) -> object:
    from treewright.checkpoint import CheckpointManager

    with CheckpointManager(job.folder) as manager:
        manager.save(step, tree, **options)
        manager.wait()
        return manager.all_steps()


def number_differs(job: Job) -> object:
    """A number that is the process's own."""
    return save(job, 1, job.tree(seed=100 + job.index))


def numpy_differs(job: Job) -> object:
    """A numpy array that is the process's own."""
    import numpy as np

    return save(job, 1, job.tree(a=np.arange(3) + job.index))


def metric_differs(job: Job) -> object:
    """A loss of this process's own data."""
    return save(job, 1, job.tree(), metrics={"loss": float(job.index)})


def step_differs(job: Job) -> object:
    """Another number of the step."""
    return save(job, 1 + job.index, job.tree())


def tree_differs(job: Job) -> object:
    """Another leaf, and another static."""
    from treewright import Static

    return save(job, 1, job.tree(**{f"b{job.index}": 1}, s=Static(job.index)))


def one_refuses(job: Job) -> object:
    """A leaf that can't be saved in one process."""
    return save(job, 1, job.tree(a="text" if job.index else 1))


def replicated_differs(job: Job) -> object:
    """An array that claims to be replicated, and holds other values in each process."""
    from treewright.checkpoint import CheckpointManager

    manager = CheckpointManager(job.folder)
    manager.save(1, job.tree(z=job.placed(job.values + job.index, job.replicated)))
    said = job.outcome(manager.wait)
    manager.save(1, job.tree())
    assert manager.all_steps() == ()
    manager.close()
    assert manager.all_steps() == (1,)
    manager.delete(1)
    return said, manager.all_steps()


def damaged_shard(job: Job) -> object:
    """A flipped bit in what one process wrote."""
    from treewright.checkpoint import CheckpointManager

    with CheckpointManager(job.folder) as manager:
        for step in (1, 2):
            manager.save(step, job.tree(n=step))
        manager.wait()
        if job.index == 0:
            for file in (job.folder / "2" / "state").rglob("d/*"):
                data = bytearray(file.read_bytes())
                if b"ocdbt.process_1" in str(file).encode() or "process_1" in str(file):
                    data[len(data) // 2] ^= 1
                    file.write_bytes(data)
        manager.all_steps()  # both come here
        damaged = job.outcome(lambda: manager.restore(like=job.tree(n=0)))[:22]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = manager.restore_latest_valid(like=job.tree(n=0))
        assert found is not None
        manager.save(2, job.tree(n=2))
        manager.wait()
        return found.step, found.tree["n"], sorted(found.skipped), damaged, manager.all_steps()


def failing_file_system(job: Job) -> object:
    """A stale handle in one process."""
    from treewright.checkpoint import CheckpointManager

    with CheckpointManager(job.folder) as manager:
        for step in (1, 2):
            manager.save(step, job.tree(n=step))
        manager.wait()
        read = Path.read_text

        def stale(path: Path, *args: Any, **options: Any) -> str:
            if job.index == 1:
                raise OSError(116, "Stale file handle")
            return read(path, *args, **options)

        Path.read_text = stale  # type: ignore[assignment, method-assign]  # pyright: ignore[reportAttributeAccessIssue]
        said = job.outcome(lambda: manager.restore_latest_valid(like=job.tree(n=0)))
        Path.read_text = read  # type: ignore[method-assign]
        found = manager.restore_latest_valid(like=job.tree(n=0))
        assert found is not None
        return said, found.step


def target_differs(job: Job) -> object:
    """A tree that fits in one process only."""
    from treewright.checkpoint import CheckpointManager

    with CheckpointManager(job.folder) as manager:
        manager.save(1, job.tree(n=1))
        return job.outcome(lambda: manager.restore(like=job.tree(n=0, **({"m": 1} if job.index else {}))))


def late(job: Job) -> object:
    """One process never comes."""
    from treewright.checkpoint import CheckpointManager

    manager = CheckpointManager(job.folder, timeout_seconds=2)
    if job.index == 1:
        time.sleep(4)
        return "slept"
    began = time.monotonic()
    said = job.outcome(lambda: manager.save(1, job.tree()))
    return said, time.monotonic() - began < 4


SCENARIOS = (
    *(everyday, local_array, number_differs, numpy_differs, metric_differs, step_differs, tree_differs, one_refuses),
    *(replicated_differs, damaged_shard, failing_file_system, target_differs, late),
)


def main(folder: Path, port: str, count: int, index: int, names: list[str]) -> None:
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        count,
        index,
        initialization_timeout=60,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=20,
    )
    for scenario in SCENARIOS:
        if scenario.__name__ in names:
            job = Job(folder / scenario.__name__, index)
            line = job.outcome(lambda scenario=scenario, job=job: scenario(job))  # type: ignore[misc]  # its parameters have no types
            with (folder / f"found-by-{index}").open("a") as file:
                file.write(f"{scenario.__name__}: {line}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    sys.stdout.flush()
    os._exit(0)
