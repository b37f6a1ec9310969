"""What a training step with batch norm and dropout costs: `examples/residual.py` beside its twin in equinox.

`python benchmarks/residual.py` prints a table and the targets with their verdicts; README.md beside this file says how
to read them.
"""

import argparse
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before jax is imported: these are costs of small programs, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parents[1]))

import equinox as eqx
import jax
import numpy as np
import optax
from _lines import Line, add_option, lines_text, table, write
from _report import duration, machine, machine_text
from _timing import timed

from benchmarks.lines import residual_equinox as twin
from examples import residual as ours
from examples.digits import CLASSES, PIXELS
from treewright import Module, TrainState, loop, replace, unstack

BATCH, RATE, STEPS = 32, 0.1, 3  # steps in one sample
BASE = "equinox, filter_jit"
TARGETS = (("treewright, jit", 0.5), ("treewright, jit, blocks in a tuple", 1.0))
Step = Callable[[], Any]


class Unrolled(Module):
    """The network with its blocks one by one, as the twin has them, and not under `scan`."""

    first: jax.Array
    blocks: tuple[ours.Block, ...]
    last: jax.Array

    def __call__(self, x: jax.Array, keys: jax.Array) -> tuple[jax.Array, "Unrolled"]:
        """Logits, and the network with new statistics."""
        x, blocks = x @ self.first, list[ours.Block]()
        for block, key in zip(self.blocks, keys, strict=True):
            x, trained = block(x, key)
            blocks.append(trained)
        return x @ self.last, replace(self, blocks=tuple(blocks))


@jax.jit
def unrolled_step(state: TrainState[Unrolled], x: jax.Array, y: jax.Array) -> tuple[TrainState[Unrolled], jax.Array]:
    """`ours.step` for that network."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(0), state.step), len(state.params.blocks))

    def loss_of(net: Unrolled) -> tuple[jax.Array, Unrolled]:
        logits, net = net(x, keys)
        return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), net

    (loss, net), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
    return state.apply_gradients(grads=grads, buffers=net), loss


def with_jit(width: int, depth: int, x: Any, y: Any) -> Step:
    """The step of our example."""
    return carrying(ours.step, ours.new_state(width, depth, RATE, jax.random.key(0)), x, y)


def with_tuple(width: int, depth: int, x: Any, y: Any) -> Step:
    """The same without `scan`."""
    net = ours.new_state(width, depth, RATE, jax.random.key(0)).params
    unrolled = Unrolled(net.first, tuple(unstack(net.blocks)), net.last)
    return carrying(unrolled_step, TrainState.create(params=unrolled, tx=optax.adam(1e-3)), x, y)


def carrying(call: Callable[..., Any], state: Any, x: Any, y: Any) -> Step:
    """A step that keeps its state."""

    def step() -> Any:
        nonlocal state
        state, loss = call(state, x, y)
        return loss

    return step


def with_loop(width: int, depth: int, x: Any, y: Any) -> Step:
    """The same in a loop."""
    run = loop(ours.step.__wrapped__, ours.new_state(width, depth, RATE, jax.random.key(0)))
    return lambda: run(x, y)


def with_filter_jit(width: int, depth: int, x: Any, y: Any) -> Step:
    """The step of the twin."""
    key, count = jax.random.key(0), 0
    training = twin.new_state(width, depth, RATE, key)

    def step() -> Any:
        nonlocal training, count
        training, loss = twin.step(training, x, y, jax.random.fold_in(key, count))
        count += 1
        return loss

    return step


def with_split(width: int, depth: int, x: Any, y: Any) -> Step:
    """The step of the twin on its arrays alone: `partition` once and plain `jit`, as equinox's documentation has it."""
    key, count = jax.random.key(0), 0
    arrays, others = eqx.partition(twin.new_state(width, depth, RATE, key), eqx.is_array)

    @jax.jit
    def stepped(arrays: Any, count: Any) -> Any:
        training = eqx.combine(arrays, others)
        training, loss = twin.step.__wrapped__(training, x, y, jax.random.fold_in(key, count))
        return eqx.filter(training, eqx.is_array), loss

    def step() -> Any:
        nonlocal arrays, count
        arrays, loss = stepped(arrays, count)
        count += 1
        return loss

    return step


WAYS = {
    "treewright, loop": with_loop,
    "treewright, jit": with_jit,
    "treewright, jit, blocks in a tuple": with_tuple,
    "equinox, jit of its arrays": with_split,
    BASE: with_filter_jit,
}


def measure(width: int, depth: int, repeats: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The first call of each way, and samples of its steps: the ways take turns, in another order in each round.

    Were the order always the same, one way would always find the caches as the slowest one left them.
    """
    random = np.random.default_rng(0)
    x = jax.device_put(random.random((BATCH, PIXELS), np.float32))
    y = jax.device_put(random.integers(0, CLASSES, BATCH).astype(np.int32))
    steps = {name: way(width, depth, x, y) for name, way in WAYS.items()}
    first = {name: timed(step) for name, step in steps.items()}
    samples = {name: list[float]() for name in WAYS}
    for _ in range(repeats):
        for name in random.permutation([*WAYS]):
            samples[name].append(timed(steps[name], STEPS))
    return first, samples


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=64, help="of the blocks (64)")
    parser.add_argument("--depth", type=int, default=20, help="how many blocks there are (20)")
    parser.add_argument("--repeats", type=int, default=100, help="samples of each way (100)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    options = parser.parse_args(arguments)
    head = machine(["treewright", "jax", "optax", "equinox"])
    print(f"{machine_text(head)}\n{options.repeats} samples of {STEPS} steps, medians; a batch of {BATCH} images.")
    first, samples = measure(options.width, options.depth, options.repeats)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    rows = [["way", "one step", "ratio", "the first call"]]
    rows += [[n, duration(t), f"{t / medians[BASE]:.2f}", duration(first[n])] for n, t in medians.items()]
    print(f"\n{table(rows)}")
    what = f"a training step of {options.depth} residual blocks with batch norm and dropout"
    ratios = {name: medians[name] / medians[BASE] for name, _ in TARGETS}
    lines = [
        Line(f"{what}, {name}", BASE, f"{ratios[name]:.2f}", f"<= {limit:.2f}", ratios[name] <= limit)
        for name, limit in TARGETS
    ]
    print(f"\n{lines_text(lines)}")
    write(options.lines, lines, {"residual": rows})
    return 1 if options.check and not all(line.reached for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
