"""A process of test_processes.py: it runs the scenarios named on the command line."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils

from examples.processes import joined
from tests.sharding.mismatches import A_FEW, CASES, Net, equal
from treewright import TrainState, loop, replace
from treewright.errors import ProcessMismatchError
from treewright.sharding import abstract_state, assert_same_on_all_processes, sharded_init

if TYPE_CHECKING:
    from collections.abc import Collection


def mismatches(names: Collection[str] = tuple(CASES)) -> dict[str, Any]:
    """The message of each case, and its seconds; equal trees raise nothing."""
    me, count = jax.process_index(), jax.process_count()
    outcomes: dict[str, Any] = {}
    for name in names:
        check, _ = CASES[name]
        multihost_utils.sync_global_devices(name)  # so that only the check is timed
        began = time.monotonic()
        try:
            check(me == count // 2)
            message = "nothing"
        except ProcessMismatchError as error:
            message = str(error)
        outcomes[name] = (message, time.monotonic() - began)
    equal()
    return outcomes


def late() -> dict[str, Any]:
    """The message if process 1 is late, and a second check that both reach."""
    began = time.monotonic()
    if jax.process_index() == 1:
        time.sleep(3)
        began = time.monotonic()
    try:
        assert_same_on_all_processes(Net(1), timeout_seconds=1)
        message = "nothing"
    except ProcessMismatchError as error:
        message = str(error)
    seconds = time.monotonic() - began
    assert_same_on_all_processes(Net(1))
    return {"message": message, "seconds": seconds}


def sharded_state() -> dict[str, Any]:
    """Compare a state created on all processes, with statics that compare by identity, with one created here."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(
            params=Net(jax.random.normal(key, (8, 8))), tx=optax.adam(optax.constant_schedule(0.1))
        )

    state = sharded_init(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    like = abstract_state(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    assert_same_on_all_processes(state)
    elements = sum(shard.data.size for shard in state.params.kernel.addressable_shards)
    gathered = multihost_utils.process_allgather(state.params.kernel, tiled=True)
    single = make(jax.random.key(0)).params.kernel
    return {
        "elements": elements,
        "like": like.params.kernel.sharding == state.params.kernel.sharding,
        "values": bool((gathered == single).all()),
    }


def looped() -> dict[str, Any]:
    """Compare three steps of a loop over all processes with three steps on this process only."""
    traces: list[int] = []
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net(jax.random.normal(key, (8, 8))), tx=optax.adam(0.1))

    def step(state: TrainState[Net], scale: jax.Array) -> tuple[TrainState[Net], jax.Array]:
        traces.append(1)
        grads = jax.grad(lambda net: scale * (net.kernel**2).sum())(state.params)
        return state.apply_gradients(grads=grads), scale

    def after_three(state: TrainState[Net]) -> TrainState[Net]:
        run = loop(step, state)
        for _ in range(3):
            run(jnp.ones(()))
        return run.state

    state = sharded_init(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    spec = state.params.kernel.sharding
    state = after_three(replace(state, step=jnp.zeros((), jnp.int32)))  # on this process's first device
    gathered = multihost_utils.process_allgather(state.params.kernel, tiled=True)
    single = after_three(make(jax.random.key(0)))
    return {
        "keeps_sharding": bool(state.params.kernel.sharding == spec),
        "step": int(state.step.addressable_data(0)),
        "traces": len(traces),
        "values": bool(np.allclose(gathered, single.params.kernel, atol=1e-5)),
    }


def stops() -> None:
    """Process 1 silently stops working while process 0 waits for it in a check."""
    multihost_utils.sync_global_devices("all are here")
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    assert_same_on_all_processes(Net(1), timeout_seconds=2)


def dies() -> None:
    """Process 1 silently exits while process 0 waits for it."""
    multihost_utils.sync_global_devices("all are here")
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    assert_same_on_all_processes(Net(1))


def exits() -> None:
    """All processes have different trees, and exit immediately on the error, including the one with JAX's service."""
    try:
        assert_same_on_all_processes(Net(1, jax.process_index()))
    except ProcessMismatchError as error:
        sys.stdout.write(f"result: {error}\n")
        sys.stdout.flush()
        os._exit(0)


def fails() -> None:
    """Process 1 raises while process 0 waits for it."""
    multihost_utils.sync_global_devices("all are here")
    if jax.process_index() == 1:
        raise RuntimeError("no luck")
    multihost_utils.sync_global_devices("after the failure")


if __name__ == "__main__":
    with joined():
        scenarios: dict[str, Any] = {
            "a_few": lambda: mismatches(A_FEW),
            "mismatches": mismatches,
            "late": late,
            "sharded_state": sharded_state,
            "looped": looped,
            "stops": stops,
            "dies": dies,
            "exits": exits,
            "fails": fails,
        }
        for name in sys.argv[1:]:
            sys.stdout.write(f"result: {json.dumps(scenarios[name]())}\n")
