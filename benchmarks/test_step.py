"""The time that each library adds to a jitted training step: 24 layers, 649 arrays, Adam.

Even the order of the leaves changes the compiled program and its time, by up to a fifth. So each step is measured
against the same step on the flat list of its leaves, which compiles to the same program.

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
from interleaved import Clock, Statement, group, take_turns
from peers import LIBRARIES, OURS, layers, peer

import treewright

TX = optax.adam(1e-3)
Function = Callable[[Any, jax.Array], tuple[Any, jax.Array]]
Step = Callable[[], Any]
BASE = "nested dicts"
FLAT = ", its leaves in a flat list"
COMPILATIONS = 7  # For each step in the chart: two compilations of one program differ by more than the libraries


def step(state: tuple[Any, Any], x: jax.Array) -> tuple[tuple[Any, Any], jax.Array]:
    """The cheapest training step, because the call is measured."""
    params, opt_state = state
    updates, opt_state = TX.update(jax.tree.map(lambda leaf: x * leaf, params), opt_state)
    return (optax.apply_updates(params, updates), opt_state), x


def state_of(name: str) -> tuple[Any, Any]:
    """Parameters and the optimiser's state."""
    params = layers(name)
    return params, TX.init(params)


def carried(call: Function, state: Any) -> Step:
    """A step that stores its state, as a training loop does."""
    x = jax.device_put(np.float32(1))

    def stepped() -> Any:
        nonlocal state
        state, loss = call(state, x)
        return jax.block_until_ready(loss)

    return stepped


def jitted(function: Function, state: Any) -> Step:
    """The step under plain `jit` with donation; a new function each time, so that it is compiled each time."""
    return carried(jax.jit(functools.partial(function), donate_argnums=0), state)


def flat(function: Function, state: Any) -> Step:
    """The same program on the flat list of the state's leaves."""
    leaves, treedef = jax.tree.flatten(state)

    def flat_step(leaves: list[Any], x: jax.Array) -> tuple[list[Any], jax.Array]:
        state, loss = function(treedef.unflatten(leaves), x)
        return jax.tree.leaves(state), loss

    return jitted(flat_step, leaves)


def looped() -> Step:
    """The step in `treewright.loop`, which keeps the state flat between calls."""
    run, x = treewright.loop(functools.partial(step), state_of("treewright.Module")), jax.device_put(np.float32(1))
    return lambda: jax.block_until_ready(run(x))


def filter_jitted() -> Step:
    """The step as in equinox's documentation."""
    import equinox

    call = equinox.filter_jit(lambda x, state: step(state, x), donate="all-except-first")
    return carried(lambda state, x: call(x, state), state_of("equinox"))


def nnx_parts() -> tuple[Any, Any]:
    """A model of flax's nnx and its optimiser."""
    from flax import nnx

    model = peer("flax.nnx").Model(layers("flax.nnx"))
    return model, nnx.Optimizer(model, TX, wrt=nnx.Param)


def nnx_step(model: Any, optimizer: Any, x: jax.Array) -> jax.Array:
    """The step on objects that change in place."""
    from flax import nnx

    optimizer.update(model, jax.tree.map(lambda leaf: x * leaf, nnx.state(model, nnx.Param)))
    return x


def nnx_split(way: Callable[[Function, Any], Step]) -> Step:
    """The step on the state of nnx objects that are split once."""
    from flax import nnx

    graphdef, state = nnx.split(nnx_parts())

    def split_step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        model, optimizer = nnx.merge(graphdef, state)
        loss = nnx_step(model, optimizer, x)
        return nnx.state((model, optimizer)), loss

    return way(split_step, state)


def nnx_jitted(*, cached: bool) -> Step:
    """The step under `nnx.jit`, as in flax's documentation, and with its `cached_partial`."""
    from flax import nnx

    parts, x = nnx_parts(), jax.device_put(np.float32(1))
    call = nnx.jit(functools.partial(nnx_step), donate_argnums=(0, 1))
    call = nnx.cached_partial(call, *parts) if cached else functools.partial(call, *parts)
    return lambda: jax.block_until_ready(call(x))


def on_trees(name: str) -> tuple[Callable[[], Step], Callable[[], Step]]:
    """The step on the tree of a library, and on the flat list of its leaves."""
    return lambda: jitted(step, state_of(name)), lambda: flat(step, state_of(name))


# For each way, its step and the step on the flat list of its leaves.
WAYS: dict[str, tuple[Callable[[], Step], Callable[[], Step]]] = {
    BASE: on_trees("dict"),
    **{"equinox, jax.jit" if name == "equinox" else name: on_trees(name) for name in (*LIBRARIES, *OURS)},
    "treewright.loop": (looped, on_trees("treewright.Module")[1]),
    "equinox, filter_jit": (filter_jitted, on_trees("equinox")[1]),
    "flax.nnx, split once": (functools.partial(nnx_split, jitted), functools.partial(nnx_split, flat)),
    "flax.nnx, nnx.jit": (functools.partial(nnx_jitted, cached=False), functools.partial(nnx_split, flat)),
    "flax.nnx, cached_partial": (functools.partial(nnx_jitted, cached=True), functools.partial(nnx_split, flat)),
}


# Short samples that vary, because a step waits for XLA's threads.
@group(*WAYS, *(name + FLAT for name in WAYS), title="a jitted training step of 24 layers and 649 arrays", rounds=150)
def test_step(name: str) -> Statement:
    return "step()", {"step": WAYS[name.removesuffix(FLAT)][name.endswith(FLAT)]()}


def added_times() -> dict[str, list[float]]:
    """By way, the milliseconds that it adds to the flat list of its leaves, once for each compilation."""
    added: dict[str, list[float]] = {}
    for _ in range(COMPILATIONS):
        clocks: dict[str, Clock] = {}
        for name in WAYS:
            try:
                clocks |= {key: Clock(test_step.statement(key)) for key in (name, name + FLAT)}
            except ImportError as error:
                print(f"Left out: {name} ({error})")
        medians = {name: statistics.median(samples) for name, samples in take_turns(clocks, rounds=60).items()}
        for name, median in medians.items():
            if not name.endswith(FLAT):
                added.setdefault(name, []).append(1e3 * (median - medians[name + FLAT]))
        flats = [1e3 * medians[name] for name in medians if name.endswith(FLAT)]
        print(f"flat lists: {min(flats):.2f} to {max(flats):.2f} ms")
    return added


def picture(added: dict[str, list[float]]) -> str:
    """The added times as bars, the shortest first, with the range over all compilations."""
    bars = [
        chart.Bar(name, statistics.median(times), kind(name), (min(times), max(times))) for name, times in added.items()
    ]
    python = ".".join(map(str, sys.version_info[:2]))
    note = (
        "Milliseconds that each library adds to the same program on a flat list of its leaves: 24 layers, 649 small "
        f"arrays. Median and range of {COMPILATIONS} compilations. Two CPU cores, Python {python}, "
        f"JAX {jax.__version__}."
    )
    bars.sort(key=lambda bar: bar.value)
    longest = 1.1 * bars[-3].spread[1]  # two of flax's ways are far longer
    return chart.svg("Overhead of one jitted training step", note, bars, longest=longest)


def kind(name: str) -> chart.Kind:
    """The colour of a bar."""
    if name == BASE:
        return "base"
    return "ours" if name.startswith("treewright") else "peer"


if __name__ == "__main__":
    measured = added_times()
    for name, times in measured.items():
        print(f"{name:30} {statistics.median(times):6.2f} ms, {min(times):.2f} to {max(times):.2f}")
    Path(sys.argv[1]).write_text(picture(measured))
