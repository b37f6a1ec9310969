"""One of two processes of a job that saves and restores together."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import jax

jax.config.update("jax_num_cpu_devices", 2)  # type: ignore[no-untyped-call]


def main(folder: Path, port: str, index: int) -> None:
    """Save, restore, and write what was found beside `folder`: other threads write to the standard output as well."""
    found_by = folder.with_name(f"found-by-{index}")

    def tell(*words: object) -> None:
        with found_by.open("a") as file:
            file.write(f"{' '.join(map(str, words))}\n")

    jax.distributed.initialize(
        f"127.0.0.1:{port}",
        2,
        index,
        initialization_timeout=60,
        heartbeat_timeout_seconds=10,
        shutdown_timeout_seconds=20,
    )
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from treewright.checkpoint import CheckpointManager
    from treewright.errors import CheckpointError

    mesh = Mesh(np.array(jax.devices()), ("a",))
    spec: Any = PartitionSpec
    sharded, replicated = (NamedSharding(mesh, spec(*axes)) for axes in (("a",), ()))
    values = np.arange(16.0, dtype=np.float32).reshape(8, 2)

    def placed(values: np.ndarray, sharding: NamedSharding) -> jax.Array:
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])

    tree: Any = {"x": placed(values, sharded), "y": placed(values, replicated), "n": 3}
    with CheckpointManager(folder) as manager:
        try:
            manager.save(1, {**tree, "z": jnp.ones(3)})
        except CheckpointError as error:
            tell("refused:", str(error).splitlines()[1].strip())
        manager.save(1, tree)
        manager.wait()
        tell("digests:", sorted(manager.manifest().leaves[1].digests))
        found = manager.restore(like=tree)
        for shard in found["x"].addressable_shards:
            np.testing.assert_array_equal(shard.data, values[shard.index])
        found = manager.restore(like={**tree, "x": placed(values, replicated)})
        np.testing.assert_array_equal(found["x"].addressable_data(0), values)
        tell("restored:", manager.all_steps(), found["n"])
    with CheckpointManager(folder.with_name("preempted")) as manager, manager.preemption(within=30) as leave_if_told:
        step = 0
        try:
            for step in range(1, 1000):
                if (index, step) == (1, 3):
                    os.kill(os.getpid(), signal.SIGTERM)  # to one of the two
                time.sleep(0.01)
                leave_if_told(step, {**tree, "n": step})
        except SystemExit as end:
            tell("left with", end.code, "after its last step:", manager.all_steps() == (step,))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
