"""What a training step costs that changes its state in place, against one that returns it, with and without donation.

`python benchmarks/in_place.py` prints time and memory: of a model of many small arrays, where the call counts, and of
one of a few large ones, where the arrays do.
"""

import argparse
import os
import statistics
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import optax
from _lines import Line, add_option, table, write
from _timing import timed

from treewright import Module, TrainState, from_refs, to_refs

MODELS = {"48 small arrays": (24, 4), "8 large arrays": (4, 1024)}  # layers and width
ROUNDS = 60  # samples of each way, one step each
BASE = "returned, donated"


class Dense(Module):
    """A layer."""

    kernel: jax.Array
    bias: jax.Array

    def __call__(self, x: jax.Array) -> jax.Array:
        """The outputs of a batch."""
        return jax.nn.relu(x @ self.kernel + self.bias)


def loss_of(layers: list[Dense], x: jax.Array) -> jax.Array:
    """A loss that depends on all layers."""
    for layer in layers:
        x = layer(x)
    return jnp.mean(x**2)


def returning(state: TrainState[Any], x: jax.Array) -> tuple[TrainState[Any], jax.Array]:
    """The step that returns its state."""
    loss, grads = jax.value_and_grad(loss_of)(state.params, x)
    return state.apply_gradients(grads=grads), loss


def in_place(state: TrainState[Any], x: jax.Array) -> jax.Array:
    """The same step in place."""
    loss, grads = jax.value_and_grad(loss_of)(from_refs(state.params), x)
    state.update_in_place(grads=grads)
    return loss


def start(layers: int, width: int) -> TrainState[Any]:
    """A new state."""
    keys = jax.random.split(jax.random.key(0), layers)
    params = [Dense(jax.random.normal(key, (width, width)) / width**0.5, jnp.zeros(width)) for key in keys]
    return TrainState.create(params=params, tx=optax.adam(1e-3))


def ways(layers: int, width: int) -> dict[str, tuple[Any, Any]]:
    """Each way to step: what to call, and the memory that its program needs at once."""
    x = jnp.ones((4, width))
    made: dict[str, tuple[Any, Any]] = {}
    for name, options in (("returned", {}), ("returned, donated", {"donate_argnums": 0})):
        jitted: Any = jax.jit(returning, **options)
        states = [start(layers, width)]

        def step(jitted: Any = jitted, states: list[Any] = states) -> jax.Array:
            states[0], loss = jitted(states[0], x)
            return loss

        made[name] = step, jitted.lower(states[0], x).compile().memory_analysis()
    refs, changing = to_refs(start(layers, width)), jax.jit(in_place)
    made["in place"] = lambda: changing(refs, x), changing.lower(refs, x).compile().memory_analysis()
    return made


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_option(parser)
    options = parser.parse_args()
    lines: list[Line] = []
    for model, sizes in MODELS.items():
        made = ways(*sizes)
        samples: dict[str, list[float]] = {name: [] for name in made}
        for step, _ in made.values():
            jax.block_until_ready((step(), step()))
        for _ in range(ROUNDS):
            for name, (step, _) in made.items():
                samples[name].append(timed(step))
        medians = {name: statistics.median(values) for name, values in samples.items()}
        rows = [[f"{model}, JAX {jax.__version__}", "against donated", "one step", "memory"]]
        for name, (_, memory) in made.items():
            peak = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
            mib = (peak + memory.temp_size_in_bytes) / 2**20
            seconds, ratio = medians[name], f"{medians[name] / medians[BASE]:.2f}"
            rows.append([name, ratio, f"{seconds * 1e3:.2f} ms", f"{mib:.2f} MiB"])
            if name != BASE:
                lines.append(Line(f"a training step of {model}, state {name}", BASE, ratio, "", None))
        print(f"\n{table(rows)}")
    write(options.lines, lines)


if __name__ == "__main__":
    main()
