"""A process of a job: it saves and restores, and writes its results to a file next to the folder."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

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
        """A tree that is equal in all processes, except for `others`."""
        import numpy as np

        empty = self.placed(self.values[:0], self.replicated)
        x, y = self.placed(self.values, self.sharded), self.placed(self.values, self.replicated)
        keys = jax.random.wrap_key_data(self.placed(np.zeros((0, 2), np.uint32), self.replicated))
        return {"x": x, "y": y, "empty": empty, "keys": keys, **others}

    def placed(self, values: Any, sharding: Any) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    def manager(self, *steps: int, **options: Any) -> Any:
        """A manager that has saved these steps."""
        from treewright.checkpoint import CheckpointManager

        manager = CheckpointManager(self.folder, **options).__enter__()
        for step in steps:
            manager.save(step, self.tree(n=step))
        manager.wait()
        return manager

    def outcome(self, work: Callable[[], object]) -> str:
        """The result of some work, or the first lines of its error."""
        try:
            return str(work())
        except Exception as error:  # noqa: BLE001  each is a finding
            return f"{type(error).__name__}: {' | '.join(str(error).splitlines()[:4])}".replace(str(self.folder), "")


def everyday(job: Job) -> object:
    """Save; restore in the same and in different blocks; items of each process; one result for all."""
    import numpy as np

    from tests.checkpoint.forged_files import forge_step
    from treewright import Module, static

    class Log(Module):
        process: int = static(local=True)

    with job.manager(metric="loss", mode="min") as manager:
        for step in (1, 2):
            manager.save(step, job.tree(n=3, log=Log(job.index)), metrics={"loss": step}, items={"data": job.index})
        found = manager.restore(like=job.tree(n=0, log=Log(0)), on_static="ignore")
        for shard in found["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, job.values[shard.index])
        like = job.tree(n=0, log=Log(0))
        found = manager.restore(like={**like, "x": like["y"], "y": like["x"]}, on_static="ignore")
        np.testing.assert_array_equal(found["x"].addressable_data(0), job.values)
        manifest = manager.manifest()
        leaves = {leaf.name: manifest.layout_of(leaf) for leaf in manifest.leaves}
        every = manager.items()
        if job.index == 0:
            forge_step(job.folder / "2", lambda document: document.update(processes=1))  # A single process saves this.
        manager.all_steps()  # a barrier
        fewer = job.outcome(manager.items)
        shared = manager.items(process=0)
        return manager.all_steps(), manager.best_step(), every, fewer, shared, tuple(leaves["x"]), tuple(leaves["y"])


def replicated_differs(job: Job) -> object:
    """A replicated array with different values in each process."""
    manager = job.manager()
    manager.save(1, job.tree(z=job.placed(job.values + job.index, job.replicated)))
    outcome = job.outcome(manager.wait)
    manager.save(1, job.tree())
    assert manager.all_steps() == ()
    manager.close()
    assert manager.all_steps() == (1,)
    manager.delete(1)
    return outcome, manager.all_steps()


def damaged_shard(job: Job) -> object:
    """A flipped bit in the file of one process, and then a file of another save."""
    from tests.checkpoint.engines import flip_a_bit

    with job.manager(1, 2) as manager:
        if job.index == 0:
            flip_a_bit(job.folder / "2" / "process_1.safetensors", -1)
        manager.all_steps()  # a barrier
        damaged = job.outcome(lambda: manager.restore(like=job.tree(n=0)))[:22]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = manager.restore_latest_valid(like=job.tree(n=0))
        assert found is not None
        manager.save(2, job.tree(n=2))
        manager.wait()
        if job.index == 0:
            shutil.copy(job.folder / "1" / "process_1.safetensors", job.folder / "2" / "process_1.safetensors")
        manager.all_steps()
        mixed = [job.outcome(work)[-200:] for work in (lambda: manager.restore(2), lambda: manager.items(2, process=1))]
        return found.step, found.tree["n"], damaged, manager.all_steps(), mixed


def failing_file_system(job: Job) -> object:
    """A stale handle in one process."""
    with job.manager(1, 2) as manager:
        plain = Path.open

        def stale(path: Path, *args: Any, **options: Any) -> Any:
            if job.index == 1:
                raise OSError(116, "Stale file handle")
            return plain(path, *args, **options)

        with mock.patch.object(Path, "open", stale):
            outcome = job.outcome(lambda: manager.restore_latest_valid(like=job.tree(n=0)))
        found = manager.restore_latest_valid(like=job.tree(n=0))
        assert found is not None
        return outcome, found.step


def folder_differs(job: Job) -> object:
    """A folder of its own in each process."""
    job.folder = job.folder / str(job.index)
    manager = job.manager()
    manager.save(1, job.tree())
    outcome = job.outcome(manager.wait)
    return outcome, manager.all_steps()


def target_differs(job: Job) -> object:
    """A tree that fits in one process only."""
    with job.manager(1) as manager:
        return job.outcome(lambda: manager.restore(like=job.tree(n=0, **({"m": 1} if job.index else {}))))


def late(job: Job) -> object:
    """One process is late."""
    manager = job.manager(timeout_seconds=2)
    if job.index == 1:
        time.sleep(4)
        return "slept"
    began = time.monotonic()
    outcome = job.outcome(lambda: manager.save(1, job.tree()))
    return outcome, time.monotonic() - began < 4


SCENARIOS: dict[str, Callable[[Job], object]] = {
    scenario.__name__: scenario
    for scenario in (
        *(everyday, replicated_differs, damaged_shard),
        *(failing_file_system, folder_differs, target_differs, late),
    )
}


def saves(job: Job) -> dict[str, tuple[int, Any, dict[str, Any]]]:
    """Arguments that `save` rejects: a step, its tree and its options, by scenario."""
    import jax.numpy as jnp
    import numpy as np

    from treewright import Static

    index = job.index
    return {
        "local_array": (1, job.tree(z=jnp.ones(3)), {}),
        "number_differs": (1, job.tree(seed=100 + index), {}),
        "numpy_differs": (1, job.tree(a=np.arange(3) + index), {}),
        "metric_differs": (1, job.tree(), {"metrics": {"loss": float(index)}}),
        "step_differs": (1 + index, job.tree(), {}),
        "tree_differs": (1, job.tree(**{f"b{index}": 1}, s=Static(index)), {}),
        "one_rejects": (1, job.tree(a="text" if index else 1), {}),
    }


def rejected(job: Job, name: str) -> None:
    step, tree, options = saves(job)[name]
    with job.manager() as manager:
        manager.save(step, tree, **options)


def main(folder: Path, port: str, count: int, index: int, names: list[str]) -> None:
    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        count,
        index,
        initialization_timeout=60,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=20,
    )
    mock.patch("treewright._processes._LINGER_S", 0.1).start()  # no process ends after an error
    for name in names:
        job = Job(folder / name, index)
        scenario = SCENARIOS.get(name)
        line = job.outcome(
            functools.partial(rejected, job, name) if scenario is None else functools.partial(scenario, job)
        )
        with (folder / f"found-by-{index}").open("a") as file:
            file.write(f"{name}: {line}\n")
    others = [folder / f"found-by-{other}" for other in range(1, count)]
    deadline = time.monotonic() + 60
    # Process 0 runs the service and ends last: JAX aborts a process that loses it.
    while index == 0 and any(not file.exists() or len(file.read_text().splitlines()) < len(names) for file in others):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    time.sleep(1.0 if index == 0 else 0.0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
    sys.stdout.flush()
    os._exit(0)
