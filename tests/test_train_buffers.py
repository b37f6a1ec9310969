"""`TrainState` does not train buffers: no gradients, no optimiser state, no weight decay."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from treewright import Module, TrainState, buffer, combine, partition, spec_like, trainable

pytestmark = pytest.mark.slow


class Norm(Module):
    scale: jax.Array
    mean: jax.Array = buffer()
    count: Any = buffer(default=None)


class Net(Module):
    kernel: jax.Array
    norm: Norm
    table: jax.Array = buffer()
    tree: Any = buffer(default=None)

    def __call__(self, x: jax.Array) -> jax.Array:
        return (x @ self.table @ self.kernel - self.norm.mean[None]) * self.norm.scale[None]


def small_net(count: Any = None) -> Net:
    norm = Norm(jnp.ones(2), jnp.full(2, 3.0), count)
    return Net(jnp.ones((3, 2)), norm, jnp.ones((3, 3)), [jnp.ones(1), Norm(jnp.ones(1), jnp.ones(1))])


def loss_of(net: Net, x: jax.Array) -> jax.Array:
    return jnp.mean(net(x) ** 2)


X = jnp.ones((4, 3))


def buffers_of(net: Net) -> list[Any]:
    return [leaf.tolist() for leaf in jax.tree.leaves(partition(net, trainable)[1])]


def partial_grads(net: Net) -> Net:
    weights, buffers = partition(net, trainable)
    grads: Net = jax.grad(lambda weights: loss_of(combine(weights, buffers), X))(weights)
    return grads


def test_integer_buffers_and_keys_are_accepted() -> None:
    net = small_net(count=(jnp.arange(3), jax.random.key(0)))
    state = TrainState.create(params=net, tx=optax.sgd(0.1))
    stepped = state.apply_gradients(grads=partial_grads(net))

    assert stepped.params.norm.count[0].tolist() == [0, 1, 2]
    assert not jnp.array_equal(stepped.params.kernel, net.kernel)
    with pytest.raises(TypeError, match="grad requires real- or complex-valued inputs"):
        jax.grad(loss_of)(net, X)
    only_integers = small_net(count=jnp.arange(3))
    state = TrainState.create(params=only_integers, tx=optax.sgd(0.1))
    with_zeros = state.apply_gradients(grads=jax.grad(loss_of, allow_int=True)(only_integers, X))
    assert jnp.array_equal(with_zeros.params.kernel, stepped.params.kernel)
    assert with_zeros.params.norm.count.dtype == jnp.int32


def test_masks_and_labels_for_the_whole_model_work_with_buffers() -> None:
    net = small_net()
    transforms: Any = {"fast": optax.sgd(1.0), "slow": optax.sgd(0.0)}
    for tx in (
        optax.adamw(0.1, mask=spec_like(net, default=True, where={"**.scale": False})),
        optax.adamw(0.1, mask=lambda net: spec_like(net, default=True, where={"**.scale": False})),
        optax.multi_transform(transforms, lambda net: spec_like(net, "slow", {"**.kernel": "fast"})),
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)),
    ):
        state = TrainState.create(params=net, tx=tx)
        stepped = jax.jit(lambda state: state.apply_gradients(grads=jax.grad(loss_of)(state.params, X)))(state)
        assert buffers_of(stepped.params) == buffers_of(net)
        assert not jnp.array_equal(stepped.params.kernel, net.kernel)
