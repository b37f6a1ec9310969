"""What watching for retraces costs: calls that hit jit's cache, and calls that miss it, as ratios from one run.

`python benchmarks/retrace.py` prints both tables and the targets; README.md beside this file says how to read them.
"""

import argparse
import contextlib
import itertools
import os
import platform
import sys
import time
import timeit
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

# Before jax is imported: the cost is one on the host, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from _lines import Line, add_option, lines_text, table, write
from _report import duration
from _timing import Case, Key, Times, measure, statement

import treewright
from treewright import Module, static

LEAVES = (1, 600)
WAYS = ("bare", "traced", "explain_retraces")
LIMITS = types.MappingProxyType({"hit": 1.03, "miss": 1.05})
TABLES = (*(("hit", leaves) for leaves in LEAVES), ("miss", LEAVES[-1]))
Results = dict[Key, Times]


class Layer(Module):
    """Three children and a static."""

    kernel: Any
    bias: Any
    scale: Any
    number: int = static(default=0)


class Model(Module):
    """As many leaves as `LEAVES` says."""

    layers: tuple[Layer, ...]


def model(leaves: int, number: int = 0) -> Model:
    """A model whose first layer has this number as its static."""
    if leaves == 1:
        return Model((Layer(jnp.ones((4, 4)), None, None, number),))
    one = [jnp.ones((4, 4)) for _ in range(leaves)]
    numbers = itertools.chain([number], itertools.repeat(0))
    return Model(tuple(Layer(*one[i : i + 3], next(numbers)) for i in range(0, leaves, 3)))


def step() -> Callable[[Model, jax.Array], Model]:
    """A training step: forward through all layers, gradients, an update. A function of its own for each way."""

    def loss(model: Model) -> jax.Array:
        x = jnp.ones((4, 4))
        for layer in model.layers:
            x = jnp.tanh(x @ layer.kernel + layer.bias) * layer.scale
        return x.sum()

    def train(model: Model, rate: jax.Array) -> Model:
        return jax.tree.map(lambda leaf, grad: leaf - rate * grad, model, jax.grad(loss)(model))

    return train


class _Watched:
    """A timer inside of `explain_retraces`."""

    def __init__(self, timer: timeit.Timer) -> None:
        self._timer = timer

    def timeit(self, number: int) -> float:
        with treewright.explain_retraces(report=str):
            return self._timer.timeit(number)


def look() -> Callable[[Model, jax.Array], jax.Array]:
    """One that does next to nothing, so that a call of it costs what calls cost."""

    def look(_: Model, rate: jax.Array) -> jax.Array:
        return rate + 1

    return look


def jitted(function: Callable[..., Any], way: str) -> Any:
    """The jitted function, decorated or not; reports are made into text, as they are by default."""
    return jax.jit(treewright.traced(function, report=str) if way == "traced" else function)


def hits() -> list[Case]:
    """Calls that jit has a program for."""
    cases: list[Case] = []
    rate = jnp.asarray(0.1)
    for leaves in LEAVES:
        tree = model(leaves)
        for way in WAYS:
            call = jitted(look(), way)
            jax.block_until_ready(call(tree, rate))
            timer = statement("call(tree, rate)", call=call, tree=tree, rate=rate)
            watched: Any = _Watched(timer) if way == "explain_retraces" else timer
            cases.append(Case(Key("hit", leaves, way), watched))
    return cases


class _Misses:
    """Calls that trace and compile, each with a static that was not there before."""

    def __init__(self, way: str) -> None:
        self._call = jitted(step(), way)
        self._numbers = itertools.count()
        self._rate = jnp.asarray(0.1)
        self._watch = treewright.explain_retraces(report=str) if way == "explain_retraces" else contextlib.nullcontext()

    def timeit(self, number: int) -> float:
        spent = 0.0
        for _ in range(number):
            tree = model(LEAVES[-1], next(self._numbers))
            with self._watch:
                began = time.perf_counter()
                self._call(tree, self._rate)
                spent += time.perf_counter() - began
        return spent


def misses() -> list[Case]:
    """The same for each way."""
    return [Case(Key("miss", LEAVES[-1], way), _Misses(way), once=True) for way in WAYS]  # type: ignore[arg-type]


def rows_of(results: Results, name: str, leaves: int) -> Iterator[list[str]]:
    """A row for each way: the time of one call, and its ratios to the bare one, of medians and of minimums."""
    base = results[Key(name, leaves, "bare")]
    for way in WAYS:
        times = results[Key(name, leaves, way)]
        ratios = f"{times.median / base.median:.3f} / {times.minimum / base.minimum:.3f}"
        yield [name, str(leaves), way, duration(times.median), "base" if way == "bare" else ratios]


def lines(results: Results) -> Iterator[Line]:
    """The ratio of medians to the bare call, for each way and target."""
    for key, times in results.items():
        if key.library != "bare":
            ratio = times.median / results[Key(key.measure, key.children, "bare")].median
            limit = LIMITS[key.measure]
            leaves = "1 leaf" if key.children == 1 else f"{key.children} leaves"
            what = f"jit call that {'hits' if key.measure == 'hit' else 'misses'} the cache, {leaves}, {key.library}"
            yield Line(what, "the bare call", f"{ratio:.3f}", f"<= {limit}", ratio <= limit)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, default=400, help="samples of each kind of call that hits the cache")
    parser.add_argument("--misses", type=int, default=15, help="calls of each kind that miss it")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    results: Results = measure(hits(), repeats=options.hits)
    results |= measure(misses(), repeats=options.misses)
    print(f"Python {platform.python_version()}, jax {jax.__version__}, {os.cpu_count()} cores; ratios of medians and")
    print(f"of minimums; {options.hits} samples of each hit, {options.misses} misses of each kind, interleaved\n")
    rows = [row for name, leaves in TABLES for row in rows_of(results, name, leaves)]
    print(table([["call", "leaves", "way", "one call", "to the bare call"], *rows]), end="\n\n")
    found = list(lines(results))
    print(lines_text(found))
    write(options.lines, found)
    return 1 if options.check and not all(one.reached for one in found) else 0


if __name__ == "__main__":
    sys.exit(main())
