"""`sharded_init` and `abstract_state`: the same values as on one device; statics by identity; any mesh."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from tests.conftest import count_traces
from treewright import Module, TrainState, field, replace, static
from treewright.errors import ShardingError
from treewright.sharding import Rules, abstract_state, sharded_init

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = [pytest.mark.slow, pytest.mark.devices(4)]

RULES: Rules = {"in": "fsdp", "out": "tensor"}
P: Any = PartitionSpec  # its constructor has no annotations


class Linear(Module):
    kernel: jax.Array = field(sharding=("in", "out"))
    bias: jax.Array = field(sharding=("out",))

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs))
        self.bias = jnp.zeros(outputs)


class Net(Module):
    layers: list[Linear]
    keys: jax.Array = field(sharding=("out",))
    act: Any = static(default=None)

    def __init__(self, sizes: Sequence[int], key: jax.Array, act: str = "relu") -> None:
        self.keys = jax.random.split(key, 4)
        self.layers = [Linear(*pair) for pair in zip(sizes, sizes[1:], self.keys, strict=False)]
        self.act = act


def mesh_of(kind: AxisType = AxisType.Auto) -> Mesh:
    return jax.make_mesh((2, 2), ("fsdp", "tensor"), axis_types=(kind, kind))


def allclose(left: Any, right: Any) -> bool:
    """Equal up to the rounding of a different program: with JAX 0.12 the last bit differs."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return jax.tree.structure(left) == jax.tree.structure(right) and all(
        np.allclose(a, b, rtol=1e-6, atol=1e-6) for a, b in pairs
    )


def test_sharded_init_matches_one_device() -> None:
    mesh = mesh_of()

    net = sharded_init(Net, [8, 16, 4], jax.random.key(1), "gelu", mesh=mesh, rules=RULES)

    expected = jax.jit(lambda key: Net([8, 16, 4], key, "gelu"))(jax.random.key(1))
    assert allclose(net.layers, expected.layers)
    assert net.act == "gelu"
    assert net.layers[0].kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert net.layers[0].kernel.addressable_shards[0].data.shape == (4, 8)
    assert (jax.random.key_data(net.keys) == jax.random.key_data(expected.keys)).all()
    assert net.keys.addressable_shards[0].data.shape == (2,)


def test_statics_that_compare_by_identity_pass_and_an_init_is_traced_once() -> None:
    class Learner(Module):
        linear: Linear
        tx: Any = static()
        state: Any

    def make(key: jax.Array) -> Learner:
        linear, tx = Linear(4, 4, key), optax.adam(lambda _: 1e-3)
        return Learner(linear, tx, tx.init(linear))  # type: ignore[arg-type]

    net = sharded_init(counted := count_traces(make), jax.random.key(0), mesh=mesh_of(), rules=RULES)

    assert counted.count == 1
    assert net.state[0].mu.kernel.sharding.spec == P("fsdp", "tensor")
    updates, _ = net.tx.update(net.linear, net.state)
    assert jax.tree.structure(updates) == jax.tree.structure(net.linear)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("is_set", [True, False])
def test_sharded_init_uses_its_mesh_over_the_current_one(kind: AxisType, is_set: bool) -> None:
    mesh = mesh_of(kind)

    with jax.set_mesh(mesh) if is_set else contextlib.nullcontext():
        key = jax.random.key(0)
        net = sharded_init(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)
        like = abstract_state(lambda key: Linear(4, 8, key), key, mesh=mesh, rules=RULES)

    assert net.kernel.sharding == like.kernel.sharding == NamedSharding(mesh, P("fsdp", "tensor"))
    assert allclose(net, jax.jit(Linear, static_argnums=(0, 1))(4, 8, jax.random.key(0)))


def test_numpy_arrays_among_the_arguments_are_traced() -> None:
    net = sharded_init(lambda table: {"w": table * 2}, np.ones(4, np.float32), mesh=mesh_of(), rules={})

    assert net["w"].tolist() == [2.0] * 4


def test_sharded_arguments_are_not_moved() -> None:
    table = jax.device_put(jnp.ones((4, 4)), NamedSharding(mesh_of(AxisType.Explicit), P("fsdp")))

    result = sharded_init(lambda table: {"twice": table * 2}, table, mesh=mesh_of(AxisType.Explicit), rules={})

    assert result["twice"].tolist() == [[2.0] * 4] * 4


def test_arguments_by_name_reach_the_function() -> None:
    result = sharded_init(Net, sizes=[8, 4], key=jax.random.key(1), act="gelu", mesh=mesh_of(), rules=RULES)
    like = abstract_state(Net, [8, 4], key=jax.random.key(1), act="gelu", mesh=mesh_of(), rules=RULES)

    assert result.act == like.act == "gelu"
    assert allclose(result.layers, jax.jit(lambda key: Net([8, 4], key))(jax.random.key(1)).layers)


def test_abstract_state_matches_the_live_state() -> None:
    mesh = mesh_of()

    def make(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=Net([8, 4], key), tx=optax.adamw(1e-3))

    like = abstract_state(make, jax.random.key(0), mesh=mesh, rules=RULES)
    result = sharded_init(make, jax.random.key(0), mesh=mesh, rules=RULES)

    assert jax.tree.structure(like) == jax.tree.structure(result)
    for abstract, live in zip(jax.tree.leaves(like), jax.tree.leaves(result), strict=True):
        assert isinstance(abstract, jax.ShapeDtypeStruct)
        assert (abstract.shape, abstract.dtype) == (live.shape, live.dtype)
        assert abstract.weak_type == getattr(live, "weak_type", False)
        assert live.sharding.is_equivalent_to(abstract.sharding, live.ndim)


def test_sharded_init_reports_violations_before_allocating() -> None:
    def make(key: jax.Array) -> Linear:
        return Linear(3, 4, key)

    with pytest.raises(ShardingError, match=r"\.kernel, f32\[3,4\]\(abstract\): axis 0 \('in', length 3\) is not"):
        sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES)
    result = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules=RULES, on_misfit="replicate")
    assert result.kernel.sharding == NamedSharding(mesh_of(), P(None, "tensor"))


@pytest.mark.parametrize("make", [sharded_init, abstract_state])
def test_sharded_init_rejects_non_array_leaves_by_path(make: Any) -> None:
    nothing: Any = "none"

    with pytest.raises(
        TypeError, match=r"^result\['model'\]\.bias is 'none', but the leaves of the result must be arrays"
    ):
        make(
            lambda key: {"model": replace(Linear(4, 4, key), bias=nothing)}, jax.random.key(0), mesh=mesh_of(), rules={}
        )


@pytest.mark.parametrize("transform", [jax.jit, jax.eval_shape, lambda make: jax.vmap(lambda _: make())(jnp.ones(2))])
@pytest.mark.parametrize("plan", [sharded_init, abstract_state])
def test_sharded_init_is_rejected_under_tracing(plan: Any, transform: Any) -> None:
    def make() -> Any:
        return jax.tree.leaves(plan(Net, [4, 8], key=jax.random.key(0), mesh=mesh_of(AxisType.Auto), rules=RULES))

    def run() -> Any:
        result = transform(make)
        return result() if callable(result) else result

    with pytest.raises(ShardingError, match=rf"^{plan.__name__} sets a mesh, so it can't be called inside"):
        run()


@pytest.mark.parametrize("kind", [None, AxisType.Auto, AxisType.Explicit])
def test_a_plan_needs_no_devices_and_an_init_does(kind: AxisType | None) -> None:
    pod = AbstractMesh((64, 16), ("fsdp", "tensor"))
    rules: Rules = {**RULES, "in": ("fsdp",), "out": None}

    with jax.set_mesh(mesh_of(kind)) if kind else contextlib.nullcontext():
        like = abstract_state(Net, [1024, 4096], key=jax.random.key(0), mesh=pod, rules=rules)

    assert like.layers[0].kernel.sharding == NamedSharding(pod, P("fsdp"))
    with pytest.raises(TypeError, match=r"sharded_init creates arrays, but a mesh of .* is abstract.* abstract_state"):
        sharded_init(Net, [8, 4], key=jax.random.key(0), mesh=pod, rules=rules)  # type: ignore[arg-type]


def test_a_head_tied_to_a_replicated_table_does_not_warn() -> None:
    class Tied(Module):
        table: jax.Array
        head: jax.Array = field(sharding=(None, "out"))

    def make(key: jax.Array) -> Tied:
        table = jax.random.normal(key, (1024, 512))
        return Tied(table, table.T * 0.5)

    result = sharded_init(make, jax.random.key(0), mesh=mesh_of(), rules={"out": "tensor"})

    assert result.head.addressable_shards[0].data.shape == (512, 512)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_no_device_computes_more_than_its_part(kind: AxisType) -> None:
    shardings: list[Any] = []

    class Watched(Module):
        kernel: jax.Array = field(sharding=("in", "out"))

    def make(key: jax.Array) -> Watched:
        kernel = jax.random.normal(key, (512, 512))
        jax.debug.inspect_array_sharding(kernel, callback=shardings.append)
        return Watched(kernel)

    with jax.set_mesh(mesh_of(kind)):
        sharded_init(make, jax.random.key(0), mesh=mesh_of(kind), rules=RULES)

    assert [sharding.shard_shape((512, 512)) for sharding in shardings] == [(256, 256)]
