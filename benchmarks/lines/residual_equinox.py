"""The residual network of `examples/residual.py` in equinox, with equinox's layers: the same numbers."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from equinox import nn

from examples.digits import CLASSES, PIXELS, Images

# The model.


class Block(eqx.Module):
    """`x + dropout(relu(norm(linear(x))))`."""

    linear: nn.Linear
    norm: nn.BatchNorm
    dropout: nn.Dropout

    def __init__(self, width: int, rate: float, key: jax.Array) -> None:
        self.linear = nn.Linear(width, width, use_bias=False, key=key)
        self.norm = nn.BatchNorm(width, "batch", momentum=0.9, mode="batch")
        self.dropout = nn.Dropout(rate)

    def __call__(self, x: jax.Array, state: nn.State, key: jax.Array | None) -> tuple[jax.Array, nn.State]:
        """`f32[width]` from `f32[width]`, and the new state."""
        y, state = self.norm(self.linear(x), state)
        return x + self.dropout(jax.nn.relu(y), key=key), state


class Net(eqx.Module):
    """From one image to logits."""

    first: nn.Linear
    blocks: list[Block]
    last: nn.Linear

    def __init__(self, width: int, depth: int, rate: float, key: jax.Array) -> None:
        first, last, *keys = jax.random.split(key, depth + 2)
        self.first = nn.Linear(PIXELS, width, use_bias=False, key=first)
        self.blocks = [Block(width, rate, key) for key in keys]
        self.last = nn.Linear(width, CLASSES, use_bias=False, key=last)

    def __call__(self, x: jax.Array, state: nn.State, key: jax.Array | None = None) -> tuple[jax.Array, nn.State]:
        """`f32[10]` from `f32[64]`, and the new state."""
        keys = [None] * len(self.blocks) if key is None else jax.random.split(key, len(self.blocks))
        x = self.first(x)
        for block, block_key in zip(self.blocks, keys, strict=True):
            x, state = block(x, state, block_key)
        return self.last(x), state


# The training.

TX = optax.adam(1e-3)
Training = tuple[Net, nn.State, optax.OptState]


def new_state(width: int, depth: int, rate: float, key: jax.Array) -> Training:
    """Network, statistics and optimiser state before the first step."""
    net, state = nn.make_with_state(Net)(width, depth, rate, key)
    return net, state, TX.init(eqx.filter(net, eqx.is_inexact_array))


def loss_of(net: Net, state: nn.State, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[jax.Array, nn.State]:
    """The mean cross entropy, and the new statistics."""
    keys = jax.random.split(key, len(x))
    logits, state = jax.vmap(net, in_axes=(0, None, 0), out_axes=(0, None), axis_name="batch")(x, state, keys)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y)), state


@eqx.filter_jit
def step(training: Training, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[Training, jax.Array]:
    """One update of weights and statistics, and the loss."""
    net, state, opt_state = training
    (loss, state), grads = eqx.filter_value_and_grad(loss_of, has_aux=True)(net, state, x, y, key)
    updates, opt_state = TX.update(grads, opt_state, eqx.filter(net, eqx.is_inexact_array))
    return (eqx.apply_updates(net, updates), state, opt_state), loss


@eqx.filter_jit
def accuracy(net: Net, state: nn.State, x: jax.Array, y: jax.Array) -> jax.Array:
    """The share of images whose digit the network finds."""
    logits, _ = jax.vmap(nn.inference_mode(net), in_axes=(0, None), out_axes=(0, None), axis_name="batch")(x, state)
    return jnp.mean(jnp.argmax(logits, axis=1) == y)


def trained(training: Training, images: Images, epochs: int, key: jax.Array) -> tuple[Training, list[float]]:
    """The state after some epochs, and the loss of each step."""
    losses: list[float] = []
    for epoch in range(epochs):
        for batch in images.batches(32, np.random.default_rng(epoch)):
            training, loss = step(training, batch.pixels, batch.digits, jax.random.fold_in(key, len(losses)))
            losses.append(float(loss))
    return training, losses


# The program is that of ours.
