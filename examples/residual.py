"""A residual network with batch norm and dropout on handwritten digits: a step with statistics and random keys.

Run `pip install ".[examples]"`, then `python -m examples.residual`.
"""

import argparse
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

from examples.digits import CLASSES, PIXELS, Images, train_and_test_images
from treewright import Module, TrainState, buffer, replace, static

# The model.


class BatchNorm(Module):
    """Normalise by statistics of the batch in training, and by their running means otherwise."""

    scale: jax.Array
    offset: jax.Array
    mean: jax.Array = buffer()
    var: jax.Array = buffer()

    def __call__(self, x: jax.Array, *, train: bool) -> tuple[jax.Array, "BatchNorm"]:
        """`f32[batch, width]`, and the layer with new running means."""
        mean, var = (x.mean(0), x.var(0)) if train else (self.mean, self.var)
        y = (x - mean) / jnp.sqrt(var + 1e-5) * self.scale + self.offset
        return y, replace(self, mean=0.9 * self.mean + 0.1 * mean, var=0.9 * self.var + 0.1 * var)


class Block(Module):
    """`x + dropout(relu(norm(x @ kernel)))`."""

    kernel: jax.Array
    norm: BatchNorm
    rate: float = static()

    def __call__(self, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, "Block"]:
        """`f32[batch, width]`, and the block with new statistics. With a key it trains."""
        y, norm = self.norm(x @ self.kernel, train=key is not None)
        mask = 1 if key is None else jax.random.bernoulli(key, 1 - self.rate, y.shape) / (1 - self.rate)
        return x + mask * jax.nn.relu(y), replace(self, norm=norm)


class Net(Module):
    """Images to logits. The blocks are one `Block` whose leaves have a leading axis, for `scan`."""

    first: jax.Array
    blocks: Block
    last: jax.Array

    def __init__(self, width: int, depth: int, rate: float, key: jax.Array) -> None:
        first, inner, last = jax.random.split(key, 3)
        norm = BatchNorm(ones := jnp.ones((depth, width)), 0 * ones, 0 * ones, 1 * ones)
        self.first = jax.random.normal(first, (PIXELS, width)) / jnp.sqrt(PIXELS)
        self.blocks = Block(jax.random.normal(inner, (depth, width, width)) / jnp.sqrt(width), norm, rate)
        self.last = jax.random.normal(last, (width, CLASSES)) / jnp.sqrt(width)

    def __call__(self, x: jax.Array, keys: jax.Array | None = None) -> tuple[jax.Array, "Net"]:
        """`f32[batch, 10]` from `f32[batch, 64]`, and the updated network. To train, pass a key for each block."""
        x, blocks = jax.lax.scan(lambda x, each: each[0](x, each[1]), x @ self.first, (self.blocks, keys))
        return x @ self.last, replace(self, blocks=blocks)


# The training.


class State(TrainState[Net]):
    """The state of a training loop. The key never changes: each step derives its key from it."""

    key: jax.Array


def new_state(width: int, depth: int, rate: float, key: jax.Array) -> State:
    """The state before the first step."""
    return State.create(params=Net(width, depth, rate, key), tx=optax.adam(1e-3), key=key)


def loss_of(net: Net, x: jax.Array, y: jax.Array, key: jax.Array) -> tuple[jax.Array, Net]:
    """The mean cross entropy, and the network with new statistics."""
    logits, net = net(x, jax.random.split(key, len(net.blocks.kernel)))
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, y)), net


@jax.jit
def step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    """One update of weights and statistics, and the loss."""
    key = jax.random.fold_in(state.key, state.step)
    (loss, net), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params, x, y, key)
    return state.apply_gradients(grads=grads, buffers=net), loss


@jax.jit
def accuracy(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    """The accuracy of the network on the images."""
    return jnp.mean(jnp.argmax(net(x)[0], axis=1) == y)


def trained(state: State, images: Images, epochs: int) -> tuple[State, list[float]]:
    """The state after some epochs, and the loss of each step."""
    losses: list[float] = []
    for epoch in range(epochs):
        for batch in images.batches(32, np.random.default_rng(epoch)):
            state, loss = step(state, batch.pixels, batch.digits)
            losses.append(float(loss))
    return state, losses


# The program.


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and print the accuracy on the unseen images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64, help="of the residual blocks (64)")
    parser.add_argument("--depth", type=int, default=20, help="how many blocks there are (20)")
    parser.add_argument("--rate", type=float, default=0.1, help="the share that dropout drops (0.1)")
    parser.add_argument("--epochs", type=int, default=10, help="how often each image is seen (10)")
    parser.add_argument("--seed", type=int, default=0, help="for the split of the images and the training (0)")
    options = parser.parse_args(arguments)
    train, test = train_and_test_images(options.seed)
    state = new_state(options.width, options.depth, options.rate, jax.random.key(options.seed))
    state, losses = trained(state, train, options.epochs)
    print(f"{int(state.step)} steps, loss {np.mean(losses[:10]):.3f} at first, {np.mean(losses[-10:]):.3f} at last")
    print(f"test accuracy: {accuracy(state.params, test.pixels, test.digits):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
