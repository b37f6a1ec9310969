"""Train a small network on handwritten digits, draw its curves, and count how often `jit` traces.

Run `make demo`, or `pip install ".[examples]"` and `python examples/digits.py --help`.
"""

import argparse
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits
from tqdm import tqdm

from treewright import Module, RetraceReport, TrainState, explain_retraces, replace, static

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Activation = Callable[[jax.Array], jax.Array]

PIXELS, CLASSES = 64, 10


# The model


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


class MLP(Module):
    """Linear layers with an activation between them."""

    layers: tuple[Linear, ...]
    activation: Activation = static()

    def __init__(self, sizes: Sequence[int], key: jax.Array, activation: Activation = jax.nn.relu) -> None:
        keys = jax.random.split(key, len(sizes) - 1)
        self.layers = tuple(map(Linear, sizes, sizes[1:], keys))
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits of one image, `f32[10]`."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


# The data


@dataclass(frozen=True, slots=True)
class Images:
    """Images as `f32[count, 64]` between 0 and 1, and the digit that each shows as `i32[count]`."""

    pixels: np.ndarray
    digits: np.ndarray

    def __len__(self) -> int:
        return len(self.digits)

    def select(self, places: np.ndarray) -> "Images":
        """The images and digits at these indices."""
        return Images(self.pixels[places], self.digits[places])

    def batches(self, size: int, random: np.random.Generator) -> Iterator["Images"]:
        """All images once, in random order. A smaller batch at the end is dropped: its shape would trace again."""
        size = min(size, len(self))
        order = random.permutation(len(self))
        for start in range(0, len(self) - size + 1, size):
            yield self.select(order[start : start + size])


def train_and_test_images(seed: int) -> tuple[Images, Images]:
    """Four fifths of the 1797 images for training and one fifth for testing, chosen by `seed`."""
    pixels, digits = load_digits(return_X_y=True)
    images = Images(np.asarray(pixels / 16, np.float32), np.asarray(digits, np.int32))
    order = np.random.default_rng(seed).permutation(len(images))
    tested = len(images) // 5
    return images.select(order[tested:]), images.select(order[:tested])


# Training


def loss_of(model: MLP, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    logits = jax.vmap(model)(pixels)
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, digits))


class TrainingStep:
    """One jitted update of the model; counts its calls, and its traces by a side effect that only tracing runs."""

    def __init__(self) -> None:
        self.calls = 0
        self.traces = 0
        self._jitted: Callable[..., TrainState[MLP]] = jax.jit(self.update)

    def __call__(self, state: TrainState[MLP], batch: Images) -> TrainState[MLP]:
        """The state after one update."""
        self.calls += 1
        return self._jitted(state, batch.pixels, batch.digits)

    def update(self, state: TrainState[MLP], pixels: jax.Array, digits: jax.Array) -> TrainState[MLP]:
        """The step as `jit` traces it."""
        self.traces += 1
        return state.apply_gradients(grads=jax.grad(loss_of)(state.params, pixels, digits))


@jax.jit
def scores(model: MLP, pixels: jax.Array, digits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Loss and accuracy."""
    guesses = jnp.argmax(jax.vmap(model)(pixels), axis=1)
    return loss_of(model, pixels, digits), jnp.mean(guesses == digits)


@dataclass(frozen=True, slots=True)
class Curve:
    """Loss and accuracy on one set of images, before the first epoch and after each."""

    images: Images
    loss: list[float] = field(default_factory=list[float])
    accuracy: list[float] = field(default_factory=list[float])

    def add(self, model: MLP) -> None:
        """The curves with one more point."""
        loss, accuracy = scores(model, self.images.pixels, self.images.digits)
        self.loss.append(float(loss))
        self.accuracy.append(float(accuracy))


def run_epoch(step: TrainingStep, state: TrainState[MLP], batches: Iterable[Images]) -> TrainState[MLP]:
    """The state after one update for each batch."""
    for batch in batches:
        state = step(state, batch)
    return state


def with_activation(state: TrainState[MLP], activation: Activation) -> TrainState[MLP]:
    """The state with a different activation in its model and in the optimiser's moments, which are models too."""

    def is_model(node: object) -> bool:
        return isinstance(node, MLP)

    changed: TrainState[MLP] = jax.tree.map(
        lambda node: replace(node, activation=activation) if is_model(node) else node, state, is_leaf=is_model
    )
    return changed


# Output

Corner = Literal["upper left", "upper right", "lower right"]


def parameter_table(model: MLP) -> str:
    """The number of parameters in each layer."""
    found = jax.tree_util.tree_leaves_with_path(model)
    rows = [(f"model{jax.tree_util.keystr(path)}", str(leaf.shape), f"{leaf.size:,}") for path, leaf in found]
    rows.append(("all parameters", "", f"{sum(leaf.size for _, leaf in found):,}"))
    return "\n".join(f"  {place:24}{shape:>12}{count:>10}" for place, shape, count in rows)


def count_text(count: int, noun: str) -> str:
    """`1 trace`, `2 traces`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def text_curve(values: Sequence[float]) -> str:
    """One bar per value, on a logarithmic scale from the smallest to the largest."""
    logs = [math.log(value) for value in values]
    span = max(logs) - min(logs) or 1
    bars = "".join("▁▂▃▄▅▆▇█"[round(7 * (log - min(logs)) / span)] for log in logs)
    return f"{values[0]:.3f} {bars} {values[-1]:.3f}"


def draw(train: Curve, test: Curve, path: Path) -> None:
    """Save a picture of both curves."""
    # Imported here, because the processes of the demo on 8 devices draw nothing.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, PercentFormatter, StrMethodFormatter

    figure = Figure(figsize=(9, 3.8), dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
    left, right = figure.subplots(1, 2)
    left.set_title("Loss: mean cross entropy", loc="left", fontweight="bold")
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.yaxis.set_minor_locator(NullLocator())
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    draw_lines(left, train.loss, test.loss, legend="upper right")
    right.set_title(f"Accuracy: {test.accuracy[-1]:.1%} on unseen images", loc="left", fontweight="bold")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    if test.accuracy[-1] < 0.95:
        right.set_ylim(0, 1.02)
        draw_lines(right, train.accuracy, test.accuracy, legend="upper left")
    else:  # The climb from a tenth, which is guessing, is short; the last percent are the interesting part.
        right.set_ylim(0.9, 1.004)
        draw_lines(right, train.accuracy, test.accuracy, legend="lower right")
    figure.savefig(path)


def draw_lines(axes: "Axes", train: Sequence[float], test: Sequence[float], *, legend: Corner) -> None:
    """One panel with both lines."""
    for values, name, color in ((train, "training images", "#8a93a3"), (test, "unseen images", "#c2410c")):
        axes.plot(values, color=color, linewidth=1.8, label=name)
        axes.plot(len(values) - 1, values[-1], marker="o", markersize=4, color=color, clip_on=False)
    axes.legend(frameon=False, labelcolor="linecolor", loc=legend)
    axes.set_xlabel("epoch", color="#6b7280")
    axes.set_xlim(0, len(train) - 1)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors="#6b7280", which="both")


# The command line


def argument_parser() -> argparse.ArgumentParser:
    """The arguments and their defaults."""
    parser = argparse.ArgumentParser(
        description="Train a small network on scikit-learn's handwritten digits.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--epochs", metavar="N", type=int, default=30, help="how often each image is seen")
    add("--hidden", metavar="N", type=int, nargs="+", default=[128, 64], help="widths of the hidden layers")
    add("--batch-size", metavar="N", type=int, default=32, help="images in one update")
    add("--learning-rate", metavar="X", type=float, default=1e-3, help="of the optimiser, AdamW")
    add("--seed", metavar="N", type=int, default=0, help="for the split and the training")
    add("--output", metavar="FOLDER", type=Path, default=Path("output"), help="where the picture goes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Train and draw, then change the activation and restore it."""
    settings = argument_parser().parse_args(argv)
    settings.output.mkdir(parents=True, exist_ok=True)
    train, test = train_and_test_images(settings.seed)
    model = MLP([PIXELS, *settings.hidden, CLASSES], jax.random.key(settings.seed))
    state: TrainState[MLP] = TrainState.create(params=model, tx=optax.adamw(settings.learning_rate))
    print(f"learning from {len(train)} images, testing with {len(test)}, by a network with these parameters:")
    print(parameter_table(model))

    step = TrainingStep()
    reports: list[RetraceReport] = []
    with explain_retraces(only="update", on_report=reports.append):
        state, (learned, tested) = trained(settings, state, step, train, test)
        draw(learned, tested, settings.output / "digits.png")
        print(f"loss on unseen images: {text_curve(tested.loss)}")
        print(f"test accuracy: {tested.accuracy[-1]:.4f}")
        print(f"training step: {step.calls} calls, {count_text(step.traces, 'trace')}")
        for name, activation in (("with gelu now", jax.nn.gelu), ("with relu again", jax.nn.relu)):
            calls, traces = step.calls, step.traces
            batches = train.batches(settings.batch_size, np.random.default_rng(settings.seed))
            state = run_epoch(step, with_activation(state, activation), batches)
            print(f"{name}: {step.calls - calls} calls, {count_text(step.traces - traces, 'retrace')}")
            print(*reports, sep="\n", end="\n" * bool(reports))
            reports.clear()
    print(f"\ncurves of loss and accuracy: {settings.output / 'digits.png'}")
    print("the program: examples/digits.py; start with MLP, and with_activation, which caused the retrace")
    print("next: docs/start.md, or python -m treewright retraces examples/recompiles.py for a program of plain JAX")


def trained(
    settings: argparse.Namespace, state: TrainState[MLP], step: TrainingStep, train: Images, test: Images
) -> tuple[TrainState[MLP], list[Curve]]:
    """The state after all epochs, and the curves."""
    curves = [Curve(train), Curve(test)]
    for curve in curves:
        curve.add(state.params)
    with tqdm(range(settings.epochs), desc="training", unit="epoch") as bar:
        for epoch in bar:
            random = np.random.default_rng([settings.seed, epoch])
            state = run_epoch(step, state, train.batches(settings.batch_size, random))
            for curve in curves:
                curve.add(state.params)
            metrics = {"loss": f"{curves[0].loss[-1]:.3f}", "test_accuracy": f"{curves[1].accuracy[-1]:.3f}"}
            bar.set_postfix(metrics, refresh=False)
    return state, curves


if __name__ == "__main__":
    main()
