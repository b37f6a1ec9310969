"""A network learns x squared from 256 noisy points: 1-128-128-1, with optax and `TrainState`, and a picture of the fit.

Run `pip install ".[examples]"`, then `python examples/regression.py`.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from treewright import Module, TrainState, loop, pytree_dataclass, static

Activation = Callable[[jax.Array], jax.Array]

PICTURE = "regression.png"
EDGE = 2.0  # the points are between -EDGE and EDGE


class Dense(Module):
    """`activation(x @ kernel + bias)`, or without an activation."""

    kernel: jax.Array
    bias: jax.Array
    activation: Activation | None = static()

    def __init__(self, inputs: int, outputs: int, key: jax.Array, activation: Activation | None = None) -> None:
        self.kernel = jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs)
        self.bias = jnp.zeros(outputs)
        self.activation = activation

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[outputs]` from `f32[inputs]`."""
        y = x @ self.kernel + self.bias
        return y if self.activation is None else self.activation(y)


class Curve(Module):
    """A function of one number."""

    layers: tuple[Dense, Dense, Dense]

    def __init__(self, width: int, key: jax.Array) -> None:
        first, second, third = jax.random.split(key, 3)
        self.layers = (Dense(1, width, first, jnp.tanh), Dense(width, width, second, jnp.tanh), Dense(width, 1, third))

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[]` from `f32[]`."""
        y = x[None]
        for layer in self.layers:
            y = layer(y)
        return y[0]


@pytree_dataclass
class Points:
    """Points on the line, each with a noisy x squared."""

    x: jax.Array
    y: jax.Array


def noisy_points(count: int, key: jax.Array) -> Points:
    """Points at random places."""
    place, noise = jax.random.split(key)
    x = jax.random.uniform(place, (count,), minval=-EDGE, maxval=EDGE)
    return Points(x, x**2 + 0.2 * jax.random.normal(noise, (count,)))


def loss_of(curve: Curve, points: Points) -> jax.Array:
    """The mean squared error."""
    return jnp.mean((jax.vmap(curve)(points.x) - points.y) ** 2)


def trained(state: TrainState[Curve], points: Points, steps: int) -> tuple[TrainState[Curve], jax.Array, int]:
    """The state after all steps, the loss before each, and how often the step was traced."""
    traces: list[str] = []

    def step(state: TrainState[Curve], points: Points) -> tuple[TrainState[Curve], jax.Array]:
        traces.append("Python runs only while jit traces")
        loss, grads = jax.value_and_grad(loss_of)(state.params, points)
        return state.apply_gradients(grads=grads), loss

    run = loop(step, state)
    losses = [run(points) for _ in range(steps)]
    return run.state, jnp.stack(losses), len(traces)


def draw(curve: Curve, points: Points, losses: jax.Array, path: Path) -> None:
    """The points, x squared and the fit; next to them the loss."""
    figure = Figure(figsize=(9, 3.8), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    x = jnp.linspace(-1.25 * EDGE, 1.25 * EDGE, 200)
    left.plot(points.x, points.y, ".", color="#b6bdc9", markersize=4, label="noisy points")
    left.plot(x, x**2, "--", color="#111827", linewidth=1, label="x squared")
    left.plot(x, jax.vmap(curve)(x), color="#c2410c", linewidth=1.8, label="the network")
    left.axvspan(-EDGE, EDGE, color="#f3f4f6", zorder=0)
    left.set_title("The fit; it has seen the grey part", loc="left", fontweight="bold")
    left.legend(frameon=False)
    right.plot(np.asarray(losses), color="#c2410c")
    right.set_yscale("log")
    right.set_title("Loss: mean squared error", loc="left", fontweight="bold")
    right.set_xlabel("step")
    figure.savefig(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Train, print a table of the fit, draw."""
    parser = argparse.ArgumentParser(description="A network learns x squared.")
    parser.add_argument("--steps", type=int, default=1500, help="updates of the parameters")
    parser.add_argument("--width", type=int, default=128, help="of the two hidden layers")
    parser.add_argument("--seed", type=int, default=0, help="for the points and the network")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for the picture")
    settings = parser.parse_args(argv)

    first, second = jax.random.split(jax.random.key(settings.seed))
    points = noisy_points(256, first)
    rate = optax.cosine_decay_schedule(3e-3, settings.steps)
    state = TrainState.create(params=Curve(settings.width, second), tx=optax.adam(rate))
    state, losses, traces = trained(state, points, settings.steps)

    print(f"{'x':>6}{'x squared':>12}{'network':>12}")
    for x in np.linspace(-EDGE, EDGE, 9, dtype=np.float32):
        print(f"{x:>6.1f}{x * x:>12.2f}{float(state.params(jnp.asarray(x))):>12.2f}")
    inside = jnp.linspace(-EDGE, EDGE, 100)
    error = jnp.sqrt(loss_of(state.params, Points(inside, inside**2)))
    print(f"loss: {losses[0]:.3f} at first, {losses[-1]:.3f} at last; the noise contributes 0.04")
    print(f"root mean square distance from x squared: {error:.4f}")
    print(f"traces of the training step: {traces}")
    settings.output.mkdir(parents=True, exist_ok=True)
    draw(state.params, points, losses, settings.output / PICTURE)
    print(f"picture: {settings.output / PICTURE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
