"""Train a network with batch norm and dropout on handwritten digits, with all of its state changed in place.

The running statistics, the random key, the sums of the metrics and the whole training state are refs: the step returns
nothing. Run `python -m examples.in_place`, with JAX 0.10 or newer (docs/in-place.md says what 0.9 needs).
"""

import argparse
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from treewright import AsRef, Module, TrainState, buffer, combine, from_refs, partition, static, to_refs, trainable
from treewright.typed import Ref


class BatchNorm(Module):
    """Normalises each feature: by its batch while training, by the running statistics otherwise."""

    scale: jax.Array
    offset: jax.Array
    mean: AsRef = buffer()
    var: AsRef = buffer()

    def __init__(self, features: int) -> None:
        self.scale, self.offset = jnp.ones((1, features)), jnp.zeros((1, features))
        self.mean, self.var = jnp.zeros((1, features)), jnp.ones((1, features))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """The outputs for a batch."""
        if train:
            mean, var = x.mean(0, keepdims=True), x.var(0, keepdims=True)
            self.mean[...] = 0.9 * self.mean[...] + 0.1 * mean
            self.var[...] = 0.9 * self.var[...] + 0.1 * var
        else:
            mean, var = self.mean[...], self.var[...]
        return (x - mean) * jax.lax.rsqrt(var + 1e-5) * self.scale + self.offset


class Dropout(Module):
    """Drops features while training, others each time: its key splits itself."""

    key: AsRef = buffer()
    rate: float = static(default=0.2)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """The outputs for a batch."""
        if not train:
            return x
        key, now = jax.random.split(self.key[...])
        self.key[...] = key
        return jnp.where(jax.random.bernoulli(now, 1 - self.rate, x.shape), x / (1 - self.rate), 0)


class Block(Module):
    """One hidden layer."""

    kernel: jax.Array
    norm: BatchNorm
    dropout: Dropout

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        init, drop = jax.random.split(key)
        self.kernel = jax.nn.initializers.he_normal()(init, (inputs, outputs))
        self.norm, self.dropout = BatchNorm(outputs), Dropout(drop)

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """The outputs for a batch."""
        return self.dropout(jax.nn.relu(self.norm(x @ self.kernel, train=train)), train=train)


class Net(Module):
    """Pixels in, logits out."""

    blocks: list[Block]
    head: jax.Array

    def __init__(self, sizes: Sequence[int], key: jax.Array) -> None:
        keys = jax.random.split(key, len(sizes))
        self.blocks = [Block(*pair, key) for pair, key in zip(itertools.pairwise(sizes), keys, strict=False)]
        self.head = jnp.zeros((sizes[-1], 10))

    def __call__(self, x: jax.Array, *, train: bool) -> jax.Array:
        """The outputs for a batch."""
        for block in self.blocks:
            x = block(x, train=train)
        return x @ self.head


def loss_and_hits(weights: Net, buffers: Net, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The mean loss of a batch, and how many of it are right."""
    logits = combine(weights, buffers)(x, train=True)
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), (logits.argmax(-1) == y).sum()


@jax.jit
def step(state: TrainState[Net], metrics: dict[str, Ref], x: jax.Array, y: jax.Array) -> None:
    """One update of the state and of the metrics, in place."""
    weights, buffers = partition(state.params, trainable)
    (loss, hits), grads = jax.value_and_grad(loss_and_hits, has_aux=True)(from_refs(weights), buffers, x, y)
    state.update_in_place(grads=grads)
    metrics["loss"][...] += loss * len(y)
    metrics["hits"][...] += hits
    metrics["seen"][...] += len(y)


@jax.jit
def accuracy(net: Net, x: jax.Array, y: jax.Array) -> jax.Array:
    """How many are right, with the running statistics and without dropout."""
    return (from_refs(net)(x, train=False).argmax(-1) == y).mean()


def train(epochs: int = 10, batch: int = 64, seed: int = 0) -> float:
    """The accuracy on images that the network has not seen."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    x, y = jnp.asarray(images[order] / 16, jnp.float32), jnp.asarray(labels[order], jnp.int32)
    test, seen = slice(0, 360), np.arange(360, len(labels))
    net = Net((64, 128, 128), jax.random.key(seed))
    state = to_refs(TrainState.create(params=net, tx=optax.adamw(2e-3)))
    on_test = 0.0
    for epoch in range(epochs):
        metrics = to_refs({"loss": 0.0, "hits": 0, "seen": 0})
        shuffled = np.random.default_rng(epoch).permutation(seen)
        for start in range(0, len(shuffled) - batch + 1, batch):
            rows = shuffled[start : start + batch]
            step(state, metrics, x[rows], y[rows])
        sums = {name: float(value) for name, value in from_refs(metrics).items()}
        on_test = float(accuracy(state.params, x[test], y[test]))
        print(
            f"epoch {epoch + 1}: loss {sums['loss'] / sums['seen']:.3f}, accuracy {sums['hits'] / sums['seen']:.3f}, "
            f"on test images {on_test:.3f}"
        )
    return on_test


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="how often each image is seen")
    parser.add_argument("--seed", type=int, default=0, help="for the network, its dropout and the order of the images")
    options = parser.parse_args(arguments)
    train(options.epochs, seed=options.seed)


if __name__ == "__main__":
    main()
