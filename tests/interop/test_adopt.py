"""Layers of other libraries in a node: each layer of equinox, flax nnx and linen, under plain JAX."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
import pytest
from equinox import nn

from tests.conftest import count_traces, importorskip
from treewright import (
    Adopted,
    Module,
    TrainState,
    adopt,
    allclose,
    at,
    diff,
    partition,
    replace,
    static,
    trainable,
)
from treewright.checkpoint import load, save
from treewright.errors import CheckpointMismatchError, MissingPlaceError, StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

nnx: Any = importorskip("flax", "flax.nnx").nnx
linen: Any = importorskip("flax", "flax.linen").linen

KEY = jax.random.key(0)
VECTOR, LINE = jnp.arange(4.0), jnp.arange(32.0).reshape(4, 8)
PLANE, BLOCK = jnp.arange(256.0).reshape(4, 8, 8), jnp.arange(128.0).reshape(2, 4, 4, 4)


class Rectangle(eqx.Module):
    sizes: Any = eqx.field(static=True)
    side: jax.Array


def linear(inputs: int = 4, outputs: int = 3) -> Any:
    return nn.Linear(inputs, outputs, key=KEY)


# All layers of equinox.nn that return only their output, with their arguments
LAYERS: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(2), (LINE,)),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), (PLANE,)),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), (BLOCK,)),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(2), (LINE,)),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d(2), (PLANE,)),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), (BLOCK,)),
    "AdaptivePool": (lambda: nn.AdaptivePool(2, 1, jnp.max), (LINE,)),
    "AvgPool1d": (lambda: nn.AvgPool1d(2), (LINE,)),
    "AvgPool2d": (lambda: nn.AvgPool2d(2), (PLANE,)),
    "AvgPool3d": (lambda: nn.AvgPool3d(2), (BLOCK,)),
    "Conv": (lambda: nn.Conv(1, 4, 2, 3, key=KEY), (LINE,)),
    "Conv1d": (lambda: nn.Conv1d(4, 2, 3, key=KEY), (LINE,)),
    "Conv2d": (lambda: nn.Conv2d(4, 2, 3, key=KEY), (PLANE,)),
    "Conv3d": (lambda: nn.Conv3d(2, 2, 3, key=KEY), (BLOCK,)),
    "ConvTranspose": (lambda: nn.ConvTranspose(1, 4, 2, 3, key=KEY), (LINE,)),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 2, 3, key=KEY), (LINE,)),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 2, 3, key=KEY), (PLANE,)),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 2, 3, key=KEY), (BLOCK,)),
    "Dropout": (lambda: nn.Dropout(0.5), (VECTOR, KEY)),
    "Embedding": (lambda: nn.Embedding(5, 3, key=KEY), (jnp.array(2),)),
    "GRUCell": (lambda: nn.GRUCell(4, 3, key=KEY), (VECTOR, jnp.ones(3))),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), (LINE,)),
    "Identity": (nn.Identity, (VECTOR,)),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3, key=KEY), (VECTOR, (jnp.ones(3), jnp.ones(3)))),
    "Lambda": (lambda: nn.Lambda(jax.nn.relu), (VECTOR,)),
    "LayerNorm": (lambda: nn.LayerNorm(4), (VECTOR,)),
    "Linear": (linear, (VECTOR,)),
    "MLP": (lambda: nn.MLP(4, 3, 8, 2, key=KEY), (VECTOR,)),
    "MaxPool1d": (lambda: nn.MaxPool1d(2), (LINE,)),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), (PLANE,)),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), (BLOCK,)),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(2, 4, key=KEY), (jnp.ones((3, 4)),) * 3),
    "PReLU": (lambda: nn.PReLU(0.1), (VECTOR,)),
    "Pool": (lambda: nn.Pool(0, jax.lax.add, 1, 2, 2), (LINE,)),
    "RMSNorm": (lambda: nn.RMSNorm(4), (VECTOR,)),
    "RotaryPositionalEmbedding": (lambda: nn.RotaryPositionalEmbedding(8), (LINE,)),
    "Sequential": (lambda: nn.Sequential([linear(), nn.Lambda(jnp.tanh), nn.MLP(3, 1, 2, 1, key=KEY)]), (VECTOR,)),
    "WeightNorm": (lambda: nn.WeightNorm(linear()), (VECTOR,)),
}
# Layers that also return a state, or are called differently; each has a test below
OTHERS = {"BatchNorm", "Shared", "SpectralNorm", "State", "StateIndex", "StatefulLayer"}


def test_the_table_lists_every_equinox_layer() -> None:
    assert {name for name in vars(nn) if name[0].isupper()} == {*LAYERS, *OTHERS}


@pytest.mark.parametrize("name", LAYERS)
def test_an_adopted_layer_matches_the_original_under_plain_jax(name: str) -> None:
    make, arguments = LAYERS[name]
    options = {"key": arguments[1]} if name == "Dropout" else {}
    inputs = arguments[:1] if name == "Dropout" else arguments

    def call(layer: Any, *inputs: Any) -> Any:
        return layer(*inputs, **options)

    def loss(layer: Any) -> Any:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(call(layer, *inputs)))

    layer, counted = make(), count_traces(call)
    adopted, jitted = adopt(layer), jax.jit(counted)

    assert allclose(jitted(adopted, *inputs), jax.jit(lambda: call(layer, *inputs))(), atol=1e-5)
    jitted(adopt(make()), *inputs)
    assert counted.count == 1  # Recreated, it is an equal static.
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(adopted))
    gradients = jax.eval_shape(jax.grad(loss), adopted)
    assert jax.tree.structure(gradients) == jax.tree.structure(adopted)


class Net(Module):
    mlp: Adopted[nn.MLP]
    scale: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scale * self.mlp(x)


def net(activation: Any = jax.nn.relu) -> Net:
    return Net(adopt(nn.MLP(4, 1, 8, 1, activation, key=KEY)), jnp.ones(()))


def test_an_adopted_layer_trains_and_is_saved_and_loaded(tmp_path: Path) -> None:
    state = TrainState.create(params=net(), tx=optax.adam(0.1))

    @jax.jit
    def step(state: TrainState[Net]) -> tuple[TrainState[Net], jax.Array]:
        loss, grads = jax.value_and_grad(lambda net: jnp.sum((net(VECTOR) - 3) ** 2))(state.params)
        return state.apply_gradients(grads=grads), loss

    losses: list[jax.Array] = []
    for _ in range(20):
        state, loss = step(state)
        losses.append(loss)
    save(tmp_path / "state.safetensors", state)

    assert losses[-1] < 0.1 * losses[0]
    assert diff(load(tmp_path / "state.safetensors", like=state), state) == []
    with pytest.raises(CheckpointMismatchError, match=r"\.params\.mlp\.others"):
        load(tmp_path / "state.safetensors", like=at(state, "params").set(net(jax.nn.gelu)))


def test_adopt_forwards_attributes_items_and_methods() -> None:
    sequence = adopt(nn.Sequential([linear(), nn.Lambda(jnp.tanh)]))

    assert sequence[0].out_features == 3
    assert isinstance(sequence.tree, nn.Sequential)
    with pytest.raises(AttributeError, match="wieght"):
        _ = sequence.wieght
    with pytest.raises(AttributeError, match="Adopted has no attribute '__array__'"):
        _ = sequence.__array__


@pytest.mark.parametrize("mutable", [[2, 3], {"a": 1}, {1}])
def test_adopt_rejects_mutable_static_fields_of_a_layer(mutable: Any) -> None:
    with pytest.raises(StaticFieldError, match=r"^adopt\(Rectangle\): Adopted\.settings is static but holds"):
        adopt(Rectangle(mutable, jnp.ones(2)))


# flax


def test_buffers_are_selected_by_class_or_path() -> None:
    norm = nnx.BatchNorm(3, rngs=nnx.Rngs(0))
    by_class, by_path = adopt(norm, buffers=nnx.BatchStat), adopt(norm, buffers=lambda path, _: "mean" in path)

    weights, _ = partition(by_class, trainable)
    assert len(jax.tree.leaves(weights)) == 2
    assert len(jax.tree.leaves(by_path.buffers)) == 1
    assert by_class.tree.var[...].shape == (3,)


def test_call_and_update_returns_the_changed_layer() -> None:
    norm = adopt(nnx.BatchNorm(3, rngs=nnx.Rngs(0)), buffers=nnx.BatchStat)

    with pytest.raises(TypeError, match=r"^BatchNorm.__call__ changed the layer.* layer\.call_and_update"):
        norm(jnp.ones((2, 3)))
    _, changed = jax.jit(lambda norm, x: norm.call_and_update(x))(norm, jnp.ones((2, 3)))

    assert allclose(changed.mean[...], jnp.full(3, 0.01))
    assert jax.tree.structure(changed) == jax.tree.structure(norm)


class Dropped(Module):
    linear: Adopted[Any]
    dropout: Adopted[Any]

    def __call__(self, x: jax.Array) -> Any:
        x, dropout = self.dropout.call_and_update(x)
        return self.linear(x), replace(self, dropout=dropout)


def test_a_layer_with_a_key_and_a_counter_trains_and_advances_them() -> None:
    rngs = nnx.Rngs(0)
    net = Dropped(adopt(nnx.Linear(4, 1, rngs=rngs)), adopt(nnx.Dropout(0.5, rngs=rngs)))

    @count_traces
    def step(state: Any, x: jax.Array) -> Any:
        def loss_of(net: Any) -> Any:
            prediction, net = net(x)
            return jnp.mean(prediction**2), net

        (loss, net), grads = jax.value_and_grad(loss_of, has_aux=True, allow_int=True)(state.params)
        return state.apply_gradients(grads=grads, buffers=net), loss

    state: Any = TrainState.create(params=net, tx=optax.adam(1e-2))
    assert len(jax.tree.leaves(partition(state.params, trainable)[0])) == 2  # the kernel and the bias
    jitted, losses = jax.jit(step), list[float]()
    for _ in range(3):
        state, loss = jitted(state, jnp.ones((8, 4)))
        losses.append(float(loss))

    assert step.count == 1
    assert len(set(losses)) == 3  # a different mask at each step
    assert state.params.dropout.buffers.rngs.count[...] == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: nnx.Sequential(nnx.Linear(4, 3, rngs=nnx.Rngs(0)), nnx.relu),
        lambda: nnx.Conv(4, 2, (3,), rngs=nnx.Rngs(0)),
        lambda: nnx.LayerNorm(4, rngs=nnx.Rngs(0)),
    ],
)
def test_adopt_accepts_nnx_modules(make: Any) -> None:
    jitted = jax.jit(counted := count_traces(lambda layer, x: layer(x)))

    for _ in range(2):
        assert allclose(jitted(adopt(make()), jnp.ones((8, 4))), make()(jnp.ones((8, 4))), atol=1e-5)
    assert counted.count == 1


class Applied(Module):
    variables: Any
    module: Any = static()  # linen modules contain no arrays and are compared by their fields

    def __call__(self, x: jax.Array) -> Any:
        return self.module.apply(self.variables, x)


def test_a_linen_module_is_static_and_its_variables_are_children() -> None:
    jitted = jax.jit(counted := count_traces(lambda layer, x: layer(x)))

    for _ in range(2):
        dense = linen.Sequential((linen.Dense(5), jax.nn.relu, linen.Dense(3)))
        assert jitted(Applied(dense.init(KEY, VECTOR), dense), VECTOR).shape == (3,)
    assert counted.count == 1


# Errors


def test_adopt_rejects_buffers_that_match_nothing() -> None:
    with pytest.raises(MissingPlaceError, match=r"^Linear contains no Dropout\.$"):
        adopt(linear(), buffers=nn.Dropout)
    with pytest.raises(MissingPlaceError, match="wieght"):
        adopt(linear(), buffers=".wieght")


@pytest.mark.parametrize("value", [3, "relu", None, jnp.ones(3)], ids=str)
def test_adopt_rejects_a_single_value(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^adopt\(\) needs a layer or another tree, but got .* static\(\) for"):
        adopt(value)
    with pytest.raises(TypeError, match=r"^adopt\(\) needs an instance, but got the class Linear\. Pass an instance"):
        adopt(nn.Linear)
