"""What watching for retraces costs: calls that hit jit's cache, and calls that miss it, as ratios from one run.

`python benchmarks/retrace.py` prints both tables and the targets; README.md beside this file says how to read them.
"""

import argparse
import contextlib
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

# Before jax is imported: the cost is one on the host, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from _lines import Line, add_option, lines_text, table, write
from _report import duration
from _timing import Case, Key, Times, measure, statement

import treewright
from treewright import Module, static
from treewright.retrace import traced
from treewright.retrace.watch import Watch

LEAVES = (1, 600)
WAYS = ("bare", "traced", "explain_retraces")
HIT, MISS, RUN = 1.03, 0.05, 0.02
COMMAND = ("-m", "treewright", "retraces")
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


def update() -> Callable[[Model, jax.Array], Model]:
    """As little work for each leaf as an update of weights has."""

    def update(model: Model, rate: jax.Array) -> Model:
        return jax.tree.map(lambda leaf: leaf - rate * leaf, model)

    return update


class _Watched:
    """A timer inside of `explain_retraces`."""

    def __init__(self, timer: timeit.Timer) -> None:
        self._timer = timer

    def timeit(self, number: int) -> float:
        with treewright.explain_retraces(on_report=str):
            return self._timer.timeit(number)


def look() -> Callable[[Model, jax.Array], jax.Array]:
    """One that does next to nothing, so that a call of it costs what calls cost."""

    def look(_: Model, rate: jax.Array) -> jax.Array:
        return rate + 1

    return look


def jitted(function: Callable[..., Any], way: str) -> Any:
    """The jitted function, decorated or not; reports are made into text, as they are by default."""
    return jax.jit(treewright.traced(function, on_report=str) if way == "traced" else function)


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


# How many misses of each: compiling the first takes a second, and our share of it is far from the target. The last uses
# none of its leaves, so JAX compiles next to nothing, and looking at them is a large part of it.
PROGRAMS = types.MappingProxyType(
    {"a training step": (step, 1), "an update of weights": (update, 2), "leaves not used": (look, 8)}
)


class _Misses:
    """Calls that trace and compile, each with a static that was not there before, and how much of each is ours.

    Compiling takes a second, give or take a tenth, so the difference of two calls would say nothing of a few
    milliseconds. Our part is timed inside of the call instead: all that runs between JAX and the user's function.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]], way: str) -> None:
        self._ours = 0.0
        function = make()
        self._call = jitted(self._subtracted(function) if way == "traced" else function, way)
        self._way = way

    def _timed(self, part: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return part(*args, **kwargs)
            finally:
                self._ours += time.perf_counter() - began

        return timed

    def _subtracted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def subtracted(model: Model, rate: jax.Array) -> Any:
            began = time.perf_counter()
            try:
                return function(model, rate)
            finally:
                self._ours -= time.perf_counter() - began

        return subtracted

    def shares(self, repeats: int) -> Iterator[tuple[float, float]]:
        """Seconds that misses take without us, and with us those that are ours."""
        rate = jnp.asarray(0.1)
        with contextlib.ExitStack() as stack:
            if self._way == "traced":
                stack.enter_context(mock.patch.object(traced, "_trace", self._timed(traced._trace)))
            else:
                stack.enter_context(mock.patch.object(Watch, "_hear", self._timed(Watch._hear)))
                stack.enter_context(treewright.explain_retraces(on_report=str))
            for number in range(repeats + 2):
                tree = jax.block_until_ready(model(LEAVES[-1], number))
                self._ours, began = 0.0, time.perf_counter()
                self._call(tree, rate)
                whole = time.perf_counter() - began
                if number > 1:  # the first has nothing to be compared with, the second warms up the comparison
                    yield whole - self._ours, self._ours


def misses(repeats: int) -> Iterator[tuple[str, str, float, float]]:
    """For each program and way: the time of a miss without us, and the part that comes on top, as medians."""
    for name, (make, times) in PROGRAMS.items():
        for way in WAYS[1:]:
            samples = list(_Misses(make, way).shares(repeats * times))
            shares = [ours / others for others, ours in samples]
            yield name, way, statistics.median(others for others, _ in samples), statistics.median(shares)


def whole_runs(pairs: int) -> list[tuple[float, float, float]]:
    """CPU seconds of `examples/digits.py`, by itself and under `python -m treewright retraces`; and what is ours of it.

    Two whole runs differ by more than the command costs, so our part is measured too: what the program spends in our
    listeners, as the command's own report says, and what the command takes for a program that does nothing.
    """
    program = str(Path(__file__).parents[1] / "examples" / "digits.py")
    nothing = ("-m", "colorsys")
    found: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        for _ in range(pairs):
            alone = cpu_seconds([program, "--output", folder])
            watched = cpu_seconds([*COMMAND, "--json", str(report), program, "--output", folder])
            around = [cpu_seconds([*COMMAND, *nothing]) - cpu_seconds(nothing) for _ in range(5)]
            ours = json.loads(report.read_text(encoding="utf-8"))["watching"] + statistics.median(around)
            found.append((alone, watched, ours))
    return found


def cpu_seconds(arguments: Sequence[str]) -> float:
    """The CPU seconds of a run of Python, and of all that it starts."""
    with Path(os.devnull).open("w") as nowhere:
        process = subprocess.Popen([sys.executable, *arguments], stdout=nowhere, stderr=nowhere)  # noqa: S603  our own
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed")
    return usage.ru_utime + usage.ru_stime


def run_lines(runs: list[tuple[float, float, float]]) -> Iterator[Line]:
    """The line on the command, if it was measured."""
    if runs:
        share = statistics.median(ours / alone for alone, _, ours in runs)
        what = "what python -m treewright retraces costs on top of examples/digits.py"
        yield Line(what, "CPU seconds of the run", f"{share:.1%}", f"<= {RUN:.0%}", share <= RUN)


def hit_rows(results: Results, leaves: int) -> Iterator[list[str]]:
    """A row for each way: the time of one call, and its ratios to the bare one, of medians and of minimums."""
    base = results[Key("hit", leaves, "bare")]
    for way in WAYS:
        times = results[Key("hit", leaves, way)]
        ratios = f"{times.median / base.median:.3f} / {times.minimum / base.minimum:.3f}"
        yield [str(leaves), way, duration(times.median), "base" if way == "bare" else ratios]


def hit_lines(results: Results) -> Iterator[Line]:
    """The ratio of medians to the bare call, for each way."""
    for key, times in results.items():
        if key.library != "bare":
            ratio = times.median / results[Key("hit", key.children, "bare")].median
            leaves = "1 leaf" if key.children == 1 else f"{key.children} leaves"
            what = f"jit call that hits the cache, {leaves}, {key.library}"
            yield Line(what, "the bare call", f"{ratio:.3f}", f"<= {HIT}", ratio <= HIT)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hits", type=int, default=400, help="samples of each kind of call that hits the cache")
    parser.add_argument("--misses", type=int, default=5, help="calls of the first kind that miss it")
    parser.add_argument("--runs", type=int, default=1, help="pairs of whole runs, with the command and without")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    print(f"Python {platform.python_version()}, jax {jax.__version__}, {os.cpu_count()} cores\n")
    results: Results = measure(hits(), repeats=options.hits)
    rows = [row for leaves in LEAVES for row in hit_rows(results, leaves)]
    print(f"Hits: {options.hits} samples of each, ratios of medians / of minimums")
    print(table([["leaves", "way", "one call", "to the bare call"], *rows]), end="\n\n", flush=True)

    found = list(misses(options.misses))
    print(f"Misses of {LEAVES[-1]} leaves: medians of {options.misses} for the first, and more for the others")
    shown = [[name, way, duration(others), f"{share:.1%}"] for name, way, others, share in found]
    print(table([["program", "way", "trace and compile", "on top of it"], *shown]), end="\n\n")

    runs = whole_runs(options.runs)
    print("Whole runs, CPU seconds: by themselves, with the command, and what of that is ours")
    print("\n".join(f"{alone:.2f} {watched:.2f} {ours:.3f}" for alone, watched, ours in runs), end="\n\n")
    lines = [*hit_lines(results), *run_lines(runs)]
    for name, way, _, share in found:
        what = f"what a miss costs on top, 600 leaves, {name}, {way}"
        lines.append(Line(what, "trace and compile", f"{share:.1%}", f"<= {MISS:.0%}", share <= MISS))
    print(lines_text(lines))
    write(options.lines, lines)
    return 1 if options.check and not all(one.reached for one in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
