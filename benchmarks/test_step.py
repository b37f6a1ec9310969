"""What a jitted training step costs on top of its mathematics: 24 layers, 649 arrays, Adam, in each library.

`python benchmarks/test_step.py docs/images/step.svg` draws the chart.
"""

from __future__ import annotations

import functools
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import chart
import jax
import numpy as np
import optax
from peers import LIBRARIES, OURS, layers, peer
from turns import Clock, Statement, group, take_turns

import treewright

TX = optax.adam(1e-3)
Step = Callable[[], Any]
BASE = "nested dicts"


def step(state: tuple[Any, Any], x: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
    """The least that is a training step: what is measured is the call."""
    params, opt_state = state
    updates, opt_state = TX.update(jax.tree.map(lambda leaf: x * leaf, params), opt_state)
    return (optax.apply_updates(params, updates), opt_state), x


def carried(call: Callable[[Any, jax.Array], Any], state: Any) -> Step:
    """A step that keeps its state, as a training loop does."""
    x = jax.device_put(np.float32(1))

    def stepped() -> Any:
        nonlocal state
        state, loss = call(state, x)
        return jax.block_until_ready(loss)

    return stepped


def state_of(name: str) -> tuple[Any, Any]:
    """Parameters and the optimiser's state."""
    params = layers(name)
    return params, TX.init(params)


def jitted(name: str) -> Step:
    """Plain `jit` with donation, of a function of its own, since `jit` keeps its programs by it."""
    return carried(jax.jit(functools.partial(step), donate_argnums=0), state_of(name))


def flat() -> Step:
    """The state as a flat list, the least that a call can cost."""
    leaves, treedef = jax.tree.flatten(state_of("dict"))

    def flat_step(leaves: list[Any], x: jax.Array) -> tuple[list[Any], jax.Array]:
        state, loss = step(treedef.unflatten(leaves), x)
        return jax.tree.leaves(state), loss

    return carried(jax.jit(flat_step, donate_argnums=0), leaves)


def looped() -> Step:
    """Our loop, which takes no state apart between two steps."""
    run, x = treewright.loop(step, state_of("treewright.Module")), jax.device_put(np.float32(1))
    return lambda: jax.block_until_ready(run(x))


def filter_jitted() -> Step:
    """As equinox's documentation has it."""
    import equinox

    call = equinox.filter_jit(lambda x, state: step(state, x), donate="all-except-first")
    return carried(lambda state, x: call(x, state), state_of("equinox"))


def nnx(way: str) -> Step:
    """As flax's documentation has it, in three ways."""
    from flax import nnx

    model = peer("flax.nnx").Model(layers("flax.nnx"))
    optimizer, x = nnx.Optimizer(model, TX, wrt=nnx.Param), jax.device_put(np.float32(1))

    def nnx_step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
        optimizer.update(model, jax.tree.map(lambda leaf: x * leaf, nnx.state(model, nnx.Param)))
        return x

    if way == "split once":
        graphdef, state = nnx.split((model, optimizer))

        def split_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
            model, optimizer = nnx.merge(graphdef, state)
            loss = nnx_step(model, optimizer, x)
            return nnx.state((model, optimizer)), loss

        return carried(jax.jit(split_step, donate_argnums=0), state)
    call = nnx.jit(nnx_step, donate_argnums=(0, 1))
    if way == "cached_partial":
        cached = nnx.cached_partial(call, model, optimizer)
        return lambda: jax.block_until_ready(cached(x))
    return lambda: jax.block_until_ready(call(model, optimizer, x))


WAYS: dict[str, Callable[[], Step]] = {
    "a flat list": flat,
    BASE: functools.partial(jitted, "dict"),
    **{
        "equinox, jax.jit" if name == "equinox" else name: functools.partial(jitted, name)
        for name in (*LIBRARIES, *OURS)
    },
    "treewright.loop": looped,
    "equinox, filter_jit": filter_jitted,
    **{f"flax.nnx, {way}": functools.partial(nnx, way) for way in ("split once", "nnx.jit", "cached_partial")},
}


# Short samples that spread, since a step waits for XLA's threads.
@group(*WAYS, title="a jitted training step of 24 layers and 649 arrays", rounds=150)
def test_step(name: str) -> Statement:
    return "step()", {"step": WAYS[name]()}


def draw(path: Path) -> None:
    """The steps as bars, the shortest first."""
    clocks: dict[str, Clock] = {}
    for name in WAYS:
        try:
            clocks[name] = Clock(test_step.statement(name))
        except ImportError as error:
            print(f"Left out: {name} ({error})")
    medians = {name: statistics.median(samples) for name, samples in take_turns(clocks, rounds=150).items()}
    bars = [chart.Bar(name, median / medians[BASE], kind(name)) for name, median in medians.items()]
    python = ".".join(map(str, sys.version_info[:2]))
    note = f"24 layers, 649 small arrays, on a CPU; {BASE} are 1. Python {python}, JAX {jax.__version__}."
    path.write_text(chart.svg("One jitted training step", note, sorted(bars, key=lambda bar: bar.value), longest=4))


def kind(name: str) -> chart.Kind:
    """The colour of a bar."""
    if name in {BASE, "a flat list"}:
        return "base"
    return "ours" if name.startswith("treewright") else "peer"


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
