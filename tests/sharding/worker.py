"""What each process of test_processes.py runs: the scenario named on the command line."""

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
from treewright import Module, TrainState, field, loop, max_traces, replace, static
from treewright.errors import ProcessMismatchError
from treewright.sharding import (
    abstract_state,
    assert_same_on_all_processes,
    assert_same_program_on_all_processes,
    sharded_init,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Net(Module):
    kernel: jax.Array = field(sharding=("embed", "mlp"))
    act: str = static(default="relu")
    log: str = static(default="", local=True)


def message_of(check: Callable[[Any], None], subject: Any) -> str:
    try:
        check(subject)
    except ProcessMismatchError as error:
        return str(error)
    return "the same"


def checks() -> dict[str, Any]:
    """What the two checks say of trees and programs that agree or not, and how long a check takes that finds it."""
    me = jax.process_index()
    kernel = jnp.ones((4, 4))

    def state(act: str, rate: float) -> TrainState[Net]:
        return TrainState.create(params=Net(kernel, act, log=f"process {me}"), tx=optax.adamw(rate))

    def program(scale: int) -> jax.stages.Lowered:
        return jax.jit(lambda x: x * scale).lower(kernel)

    found = {
        "same tree": message_of(assert_same_on_all_processes, state("relu", 1e-3)),
        "act": message_of(assert_same_on_all_processes, state(["relu", "gelu"][me], 1e-3)),
        "rate": message_of(assert_same_on_all_processes, state("relu", [1e-3, 2e-3][me])),
        "depth": message_of(assert_same_on_all_processes, [Net(kernel)] * (me + 1)),
        "dtype": message_of(assert_same_on_all_processes, Net(kernel.astype([jnp.float32, jnp.bfloat16][me]))),
        "same program": message_of(assert_same_program_on_all_processes, program(2)),
        "program": message_of(assert_same_program_on_all_processes, program([2, 3][me])),
        "order of a set": message_of(
            assert_same_program_on_all_processes,
            jax.jit(lambda x: [x + ord(name) for name in frozenset("abcdefgh")]).lower(kernel),
        ),
    }
    began = time.monotonic()
    message_of(assert_same_on_all_processes, state(["relu", "gelu"][me], 1e-3))
    return {**found, "seconds": time.monotonic() - began}


def made() -> dict[str, Any]:
    """A state that is made over all processes, with statics that compare by identity."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(
            params=Net(jax.random.normal(key, (8, 8))), tx=optax.adam(optax.constant_schedule(0.1))
        )

    state = sharded_init(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    like = abstract_state(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    assert_same_on_all_processes(state)
    held = sum(shard.data.size for shard in state.params.kernel.addressable_shards)
    whole = multihost_utils.process_allgather(state.params.kernel, tiled=True)
    alone = make(jax.random.key(0)).params.kernel
    return {
        "held": held,
        "like": like.params.kernel.sharding == state.params.kernel.sharding,
        "values": bool((whole == alone).all()),
    }


def looped() -> dict[str, Any]:
    """Three steps of a loop over a state that is made over all processes, and the same on this process alone."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",))

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net(jax.random.normal(key, (8, 8))), tx=optax.adam(0.1))

    def step(state: TrainState[Net], scale: jax.Array) -> tuple[TrainState[Net], jax.Array]:
        grads = jax.grad(lambda net: scale * (net.kernel**2).sum())(state.params)
        return state.apply_gradients(grads=grads), scale

    def after_three(state: TrainState[Net]) -> TrainState[Net]:
        run = loop(max_traces(1)(step), state)
        for _ in range(3):
            run(jnp.ones(()))
        return run.state

    state = sharded_init(make, jax.random.key(0), mesh=mesh, rules={"embed": "fsdp", "mlp": None})
    spec = state.params.kernel.sharding
    state = after_three(replace(state, step=jnp.zeros((), jnp.int32)))  # on this process's first device
    whole = multihost_utils.process_allgather(state.params.kernel, tiled=True)
    alone = after_three(make(jax.random.key(0)))
    return {
        "kept": bool(state.params.kernel.sharding == spec),
        "step": int(state.step.addressable_data(0)),
        "values": bool(np.allclose(whole, alone.params.kernel, atol=1e-5)),
    }


def dies() -> None:
    """Process 1 is gone, without a word, when process 0 waits for it."""
    multihost_utils.sync_global_devices("all are here")
    if jax.process_index() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    multihost_utils.sync_global_devices("after the death")


def fails() -> None:
    """Process 1 raises while process 0 waits for it."""
    multihost_utils.sync_global_devices("all are here")
    if jax.process_index() == 1:
        raise RuntimeError("no luck")
    multihost_utils.sync_global_devices("after the failure")


if __name__ == "__main__":
    with joined():
        result = {"checks": checks, "made": made, "looped": looped, "dies": dies, "fails": fails}[sys.argv[1]]()
        sys.stdout.write(f"result: {json.dumps(result)}\n")
