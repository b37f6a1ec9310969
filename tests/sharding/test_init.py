"""`sharded_init` and `abstract_state`: the values of one device, in parts; statics by identity; Explicit meshes."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from treewright import Module, TrainState, field, static
from treewright.errors import ShardingError
from treewright.sharding import Rules, abstract_state, init, sharded_init, sharding_report

if TYPE_CHECKING:
    from collections.abc import Sequence

RULES: Rules = {"in": "fsdp", "out": "tensor"}


P: Any = PartitionSpec  # whose constructor has no annotations


class Linear(Module):
    kernel: jax.Array = field(sharding=("in", "out"))
    bias: jax.Array = field(sharding=("out",))

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)


class Net(Module):
    layers: list[Linear]
    key: jax.Array
    act: Any = static(default=None)

    def __init__(self, sizes: Sequence[int], key: jax.Array, act: str = "relu") -> None:
        keys = jax.random.split(key, len(sizes))
        self.layers = [Linear(*pair) for pair in zip(sizes, sizes[1:], keys, strict=False)]
        self.key = keys[-1]
        self.act = act


def allclose(left: Any, right: Any) -> bool:
    """Up to the rounding of another program: JAX 0.12 differs in the last bit."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs
    )


def mesh_of(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(kind, kind))


def test_the_values_are_those_of_one_device_and_lie_in_parts() -> None:
    mesh = mesh_of()

    made = sharded_init(Net, [8, 16, 4], jax.random.key(1), "gelu", mesh=mesh, rules=RULES)

    alone = jax.jit(lambda key: Net([8, 16, 4], key, "gelu"))(jax.random.key(1))
    assert allclose(made.layers, alone.layers)
    assert (jax.random.key_data(made.key) == jax.random.key_data(alone.key)).all()
    assert made.act == "gelu"
    assert made.layers[0].kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert made.layers[0].kernel.addressable_shards[0].data.shape == (4, 8)


def test_statics_that_compare_by_identity_pass() -> None:
    class Learner(Module):
        linear: Linear
        tx: Any = static()
        state: Any

    def make(key: jax.Array) -> Learner:
        linear, tx = Linear(4, 4, key), optax.adam(1e-3)
        return Learner(linear, tx, tx.init(linear))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    made = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)

    assert made.state[0].mu.kernel.sharding.spec == P("fsdp", "tensor")
    updates, _ = made.tx.update(made.linear, made.state)
    assert jax.tree.structure(updates) == jax.tree.structure(made.linear)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_set", [True, False])
def test_any_mesh_is_taken_whatever_mesh_is_set(kind: AxisType, is_set: bool) -> None:
    mesh = mesh_of(kind)

    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        key = jax.random.key(0)
        made = sharded_init(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)
        like = abstract_state(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)

    assert made.kernel.sharding == like.kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert allclose(made, jax.jit(Linear, static_argnums=(0, 1))(4, 8, jax.random.key(0)))


def test_numpy_arrays_among_the_arguments_are_traced() -> None:
    made = sharded_init(lambda table: {"w": table * 2}, np.ones(4, np.float32), mesh=mesh_of(), rules={})

    assert made["w"].tolist() == [2.0] * 4


def test_arguments_on_a_mesh_are_taken_where_they_are() -> None:
    mesh = mesh_of(AxisType.Explicit)
    table = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh, P("fsdp")))

    made = sharded_init(lambda table: {"twice": table * 2}, table, mesh=mesh, rules=RULES)

    assert made["twice"].tolist() == [[2.0] * 4] * 4


def test_the_abstract_state_is_what_the_live_one_would_be() -> None:
    mesh = mesh_of()

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net([8, 4], key), tx=optax.adamw(1e-3))

    like = abstract_state(make, jax.random.key(0), mesh=mesh, rules=RULES)
    made = sharded_init(make, jax.random.key(0), mesh=mesh, rules=RULES)

    assert jax.tree.structure(like) == jax.tree.structure(made)
    for abstract, live in zip(jax.tree.leaves(like), jax.tree.leaves(made), strict=True):
        assert isinstance(abstract, jax.ShapeDtypeStruct)
        assert (abstract.shape, abstract.dtype) == (live.shape, live.dtype)
        assert abstract.weak_type == getattr(live, "weak_type", False)
        assert live.sharding.is_equivalent_to(abstract.sharding, live.ndim)


def test_what_does_not_fit_is_known_before_anything_is_made() -> None:
    def make(key: jax.Array) -> Linear:
        return Linear(3, 4, key)

    with pytest.raises(ShardingError, match=r"\.kernel, f32\[3,4\]\(abstract\): axis 0 \('in', length 3\) does not"):
        sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)
    made = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES, on_misfit="replicate")
    assert made.kernel.sharding == NamedSharding(mesh_of(), P(None, "tensor"))


def test_a_large_tree_is_made_in_parts_of_a_fourth(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def make(key: jax.Array) -> Net:
        made.append(1)
        return Net([64] * 13, key)

    whole = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)
    assert len(made) == 2
    monkeypatch.setattr(init, "_SMALL", 1)
    parts = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)

    assert len(made) == 2 + 1 + 5
    assert allclose(parts.layers, whole.layers)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_no_device_makes_more_than_its_part(kind: AxisType, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh, programs = mesh_of(kind), list[Any]()
    jit: Any = jax.jit

    def recorded(function: Any, **options: Any) -> Any:
        jitted = jit(function, **options)

        def call(*args: Any) -> Any:
            programs.append(jitted.lower(*args).compile().memory_analysis())
            return jitted(*args)

        return call if "out_shardings" in options else jitted

    monkeypatch.setattr(jax, "jit", recorded)
    with jax.set_mesh(mesh):
        made = sharded_init(lambda key: Linear(512, 512, key), jax.random.key(0), mesh=mesh, rules=RULES)

    (memory,) = programs  # one for a small tree
    part = sharding_report(made, mesh, RULES).device_nbytes
    assert memory.output_size_in_bytes < 1.1 * part
    assert memory.temp_size_in_bytes < 4 * part  # random bits, a counter and what they become; whole, it were 16
