"""Compare the speed of this checkout with a different one: `python benchmarks/compare_checkouts.py ../other-checkout`.

Each checkout runs in a child interpreter with its own `src` on the path. The two take turns, sample by sample, so that
drift of the machine affects both equally. A few pairs of children are started, because addresses and hash seeds can
change a time by some per cent. A figure is a ratio of medians: 1.05 means that this checkout takes 5 % longer.
"""

import argparse
import fnmatch
import functools
import importlib
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interleaved import Clock, Statement

HERE = Path(__file__).resolve().parents[1]
SAMPLE_SECONDS = 3e-3
IMPORTS = ("import, after jax: Module, static", "import, after jax: all public names")

# The benchmarks of the other files that run here too: the file, the test, the alternative, and the parameters. A child
# imports them after it has timed the import of treewright.
MODULE, DECORATED = "treewright.Module", "treewright.pytree_dataclass"
SHARED: dict[str, tuple[str, str, str, dict[str, int]]] = {
    "construct: generated __init__": ("test_nodes", "construction", MODULE, {"children": 4}),
    "construct: decorated, 8 children": ("test_nodes", "construction", DECORATED, {"children": 8}),
    "construct: own __init__": ("test_trees", "own_init", MODULE, {}),
    "construct: own __init__, 400 nested": ("test_trees", "nested", MODULE, {}),
    "flatten: 100 nodes": ("test_nodes", "flatten", MODULE, {"children": 4}),
    "unflatten: 100 nodes": ("test_nodes", "unflatten", MODULE, {"children": 4}),
    "flatten with path: 100 nodes": ("test_nodes", "flatten_with_path", MODULE, {"children": 4}),
    "replace: one child": ("test_trees", "replace", "treewright.replace", {}),
    "at: set one child": ("test_trees", "update", "treewright.at", {}),
    "partition: 10,000 nodes": ("test_trees", "walk", "treewright.partition, trainable", {}),
    "diff: 1,000 nodes": ("test_trees", "compare", "treewright.diff, equal arrays", {}),
    "jit: take and return 100 nodes": ("test_nodes", "jitted_call", MODULE, {"children": 4}),
    "jit: read 100 nodes": ("test_nodes", "jitted_read", MODULE, {"children": 4}),
    "jit: 100 calls in explain_retraces": ("test_retrace", "hit", "in explain_retraces", {}),
    "jit: a retrace in explain_retraces": ("test_retrace", "miss", "in explain_retraces", {}),
    "step: 24 layers, jit": ("test_step", "step", MODULE, {}),
    "step: 24 layers, loop": ("test_step", "step", "treewright.loop", {}),
    "class: Module, 4 children, a static": ("test_nodes", "class_creation", MODULE, {}),
}
FEW_LOOPS = {"class:": 3, "jit: a retrace": 1}  # JAX keeps each class and each program

# Expressions for this comparison only, with the names of `names()`.
EXPRESSIONS = {
    "construct: generated __init__, keywords": "Two(weight=a, bias=a, width=64, activation='relu')",
    "construct: __post_init__": "Checked(a, a)",
    "construct: inherited": "Inherited(a, a, scale=a)",
    "construct: converter": "Converting(a, [1, 2])",
    "construct: own __init__, closure": "OwnOne(a, (lambda rate: lambda x: x * rate)(0.1))",
    "tree.map: 100 nodes": "jax.tree_util.tree_map(id, tree)",
    "read: a child and a static": "node.weight; node.width",
    "replace: one static": "treewright.replace(node, width=32)",
    "==: two nodes": "node == other",
    "jit: a method": "jax.jit(node.scaled)(a)",
    "class: decorated, 4 children, own __init__": "decorated()",
}


@functools.cache
def names() -> dict[str, Any]:
    """The names that the expressions use."""
    import jax
    import numpy as np

    import treewright

    class Two(treewright.Module):
        weight: jax.Array
        bias: jax.Array
        width: int = treewright.static(default=64)
        activation: str = treewright.static(default="relu")

        def scaled(self, x: jax.Array) -> jax.Array:
            return self.weight + x

    class Checked(Two):
        def __post_init__(self) -> None:
            if self.width < 0:
                raise ValueError(self.width)

    class Inherited(Two):
        scale: jax.Array = treewright.field(kw_only=True)

    class Converting(treewright.Module):
        weight: jax.Array
        shape: tuple[int, ...] = treewright.static(converter=treewright.freeze)

    class OwnOne(treewright.Module):
        child: jax.Array
        value: Any = treewright.static()

        def __init__(self, child: jax.Array, value: Any) -> None:
            self.child = child
            self.value = value

    def decorated() -> type:
        @treewright.pytree_dataclass
        class Node:
            c0: object
            c1: object
            c2: object
            c3: object

            def __init__(self, c: object) -> None:
                self.c0 = self.c1 = self.c2 = self.c3 = c

        return Node

    classes = {cls.__name__: cls for cls in (Two, Checked, Inherited, Converting, OwnOne)}
    a = jax.device_put(np.float32(1))
    node = Two(a, a)
    # Unused statics are freed.
    kept = [Checked(a, a), Inherited(a, a, scale=a), Converting(a, [1, 2])]
    others = {"jax": jax, "treewright": treewright, "decorated": decorated, "kept": kept}
    return classes | others | {"a": a, "node": node, "other": treewright.replace(node), "tree": [Two(a, a)] * 100}


def cases() -> dict[str, Callable[[], Statement]]:
    """By name, functions that return a statement and the names it uses."""

    def shared(file: str, test: str, *arguments: Any, **parameters: Any) -> Callable[[], Statement]:
        return lambda: vars(importlib.import_module(file))[f"test_{test}"].statement(*arguments, **parameters)

    found = {name: shared(*place, way, **parameters) for name, (*place, way, parameters) in SHARED.items()}
    found |= {name: functools.partial(lambda text: (text, names()), text) for name, text in EXPRESSIONS.items()}
    values = importlib.import_module("test_nodes").STATIC_VALUES
    return found | {f"static: {value}": shared("test_nodes", "static", value) for value in values}


# The child: reads requests line by line and times them.


def serve() -> None:
    """For each name of a case on stdin, print its seconds, or the reason that it can't be timed."""
    import jax  # noqa: F401 - not to be counted below

    began = time.perf_counter()
    import treewright

    assert treewright.Module is not None
    nodes_after = time.perf_counter() - began
    assert all(getattr(treewright, name) is not None for name in treewright.__all__)
    print(json.dumps([[nodes_after, time.perf_counter() - began], treewright.__file__]), flush=True)
    clocks: dict[str, Clock] = {}
    statements = cases()
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in clocks:
                loops = next((loops for start, loops in FEW_LOOPS.items() if name.startswith(start)), None)
                clocks[name] = Clock(statements[name](), loops=loops, seconds=SAMPLE_SECONDS)
            answer: float | str = clocks[name].sample()
        except Exception as error:  # noqa: BLE001 - an API that one of the two does not have must not stop the others
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps(answer), flush=True)


class Child:
    """An interpreter with one checkout."""

    def __init__(self, checkout: Path, cache: Path) -> None:
        # One cache of bytecode for both, because a read-only checkout would have none.
        environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONPYCACHEPREFIX": str(cache)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        environment.setdefault("JAX_PLATFORMS", "cpu")
        self._process = subprocess.Popen(  # noqa: S603 - this file
            [sys.executable, __file__, "--child", "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.import_seconds, origin = self._answer()
        if checkout not in Path(origin).resolve().parents:
            raise SystemExit(f"{checkout} was asked for, but treewright comes from {origin}")

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("A child has ended; its error is above.")
        return json.loads(line)

    def sample(self, name: str) -> float | str:
        """One sample of a case."""
        assert self._process.stdin is not None
        print(name, file=self._process.stdin, flush=True)
        answer: float | str = self._answer()
        return answer

    def close(self) -> None:
        """End the interpreter."""
        self._process.communicate()


Samples = dict[str, tuple[list[float], list[float]]]


def ratios(
    checkouts: tuple[Path, Path], names: list[str], *, pairs: int, rounds: int
) -> tuple[Samples, dict[str, str]]:
    """Samples of both checkouts by case, and the reasons for missing ones."""
    samples: Samples = {name: ([], []) for name in (*IMPORTS, *names)}
    failures: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as cache:
        for checkout in checkouts:  # fills the cache of bytecode
            Child(checkout, Path(cache)).close()
        for pair in range(pairs):
            children = [Child(checkout, Path(cache)) for checkout in checkouts]
            for name in names:
                # A step waits for XLA's threads, so its samples vary.
                turns = range(rounds * 4 if name.startswith("step:") else rounds)
                for turn, place in itertools.product(turns, (0, 1)):
                    which = place ^ (turn + pair) % 2  # each is the first equally often
                    answer = children[which].sample(name)
                    if isinstance(answer, str):
                        failures[name] = f"{checkouts[which]}: {answer}"
                        break
                    samples[name][which].append(answer)
            for child in children:
                child.close()
        for _, which in itertools.product(range(2 * pairs), (0, 1)):
            child = Child(checkouts[which], Path(cache))
            child.close()
            for name, seconds in zip(IMPORTS, child.import_seconds, strict=True):
                samples[name][which].append(seconds)
    return {name: both for name, both in samples.items() if name not in failures}, failures


def main() -> int:
    """Measure, print, and return 1 if a case is slower than `--fail-above`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="a checkout of a different commit, for example a git worktree")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="cases by shell pattern, e.g. 'construct*'")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of interpreters (5)")
    parser.add_argument("--rounds", type=int, default=11, help="samples of each case in each interpreter (11)")
    parser.add_argument("--fail-above", type=float, metavar="RATIO", help="exit with 1 if a ratio is above it")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        serve()
        return 0
    patterns = [f"{pattern}*" for pattern in options.only or [""]]
    names = [name for name in cases() if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    checkouts = (HERE, options.other.resolve())
    samples, failures = ratios(checkouts, names, pairs=options.pairs, rounds=options.rounds)
    print(f"{'':45}{'here':>12}{'other':>12}{'ratio':>8}{'of fastest':>12}")
    worst = 0.0
    for name, (here, other) in samples.items():
        ratio = statistics.median(here) / statistics.median(other)
        fastest = min(here) / min(other)
        worst = max(worst, ratio)
        micro = [1e6 * statistics.median(times) for times in (here, other)]
        print(f"{name:45}{micro[0]:>9.2f} us{micro[1]:>9.2f} us{ratio:>8.2f}{fastest:>12.2f}")
    for name, reason in failures.items():
        print(f"{name:45} not measured: {reason}")
    return 1 if options.fail_above and worst > options.fail_above else 0


if __name__ == "__main__":
    sys.exit(main())
