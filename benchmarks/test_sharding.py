"""The cost of axis names on fields: plans of large states, and steps of models with names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest
from interleaved import Statement, group

from treewright import Module, TrainState, field, sharding

RULES = {"embed": "fsdp", "mlp": None}


class Named(Module):
    """A kernel with names."""

    kernel: jax.Array = field(sharding=("embed", "mlp"))


class Plain(Module):
    """The same without."""

    kernel: jax.Array


def mesh() -> jax.sharding.Mesh:
    """Eight devices under Auto axes."""
    if jax.device_count() < 8:
        pytest.skip("JAX_NUM_CPU_DEVICES=8 pytest benchmarks/test_sharding.py")
    return jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))


def state_of(count: int, cls: Any = Named) -> Any:
    """A training state with this number of parameter arrays."""
    return TrainState.create(params=[cls(jnp.ones((8, 8))) for _ in range(count)], tx=optax.adam(1e-3))


PLANS = {
    "jax.tree.map": "jax.tree.map(id, state)",
    "sharding.shardings": "sharding.shardings(state, mesh, rules)",
    "sharding.partition_specs": "sharding.partition_specs(state, mesh, rules)",
    "sharding.sharding_report": "sharding.sharding_report(state, mesh, rules)",
}


@group(*PLANS, title="plan a training state of 6,000 arrays", rounds=7, loops=1)
def test_plan(name: str) -> Statement:
    state = jax.eval_shape(lambda: state_of(2000))
    return PLANS[name], {"jax": jax, "sharding": sharding, "state": state, "mesh": mesh(), "rules": RULES}


ABSTRACT = {
    "jax.eval_shape": "jax.eval_shape(make)",
    "sharding.abstract_state": "sharding.abstract_state(make, mesh=mesh, rules=rules)",
}


@group(*ABSTRACT, title="describe a training state of 6,000 arrays before it exists", rounds=5, loops=1)
def test_abstract_state(name: str) -> Statement:
    def make() -> Any:
        return state_of(2000)

    return ABSTRACT[name], {"jax": jax, "sharding": sharding, "make": make, "mesh": mesh(), "rules": RULES}


INIT = {
    "jit with out_shardings": "wait(jax.jit(lambda: make(), out_shardings=specs)())",
    "sharding.sharded_init": "wait(sharding.sharded_init(lambda: make(), mesh=mesh, rules=rules))",
}


@group(*INIT, title="make a training state of 120 arrays where it will live", rounds=5, loops=1)
def test_init(name: str) -> Statement:
    def make() -> Any:
        return state_of(40)

    devices = mesh()
    specs = sharding.shardings(jax.eval_shape(make), devices, RULES)
    names = {"jax": jax, "sharding": sharding, "make": make, "mesh": devices, "rules": RULES, "specs": specs}
    return INIT[name], {**names, "wait": jax.block_until_ready}


@group("without", "with names", title="a step of 40 arrays on 8 devices, names on fields", rounds=60)
def test_step(name: str) -> Statement:
    net = [(Named if name == "with names" else Plain)(jnp.ones((128, 128))) for _ in range(40)]
    net = jax.device_put(net, jax.NamedSharding(mesh(), jax.P("fsdp")))
    call = jax.jit(lambda net: jax.tree.map(lambda leaf: leaf * 0.5 + 1, net))
    return "wait(call(net))", {"wait": jax.block_until_ready, "call": call, "net": net}
