"""Compare the speed of this checkout with a different one: `python benchmarks/compare_checkouts.py ../other-checkout`.

Each checkout runs in a child interpreter with its own `src` on the path. The two take turns, sample by sample, so that
drift of the machine meets both alike; new pairs of children are started a few times, because addresses and hash seeds
alone can be worth some per cent. A figure is a ratio of medians: 1.05 means that this checkout takes 5 % longer.
"""

import argparse
import dataclasses
import fnmatch
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from interleaved import Clock, Statement

HERE = Path(__file__).resolve().parents[1]
NODES, LAYERS = 100, 24
SAMPLE_SECONDS = 3e-3
IMPORTS = ("import, after jax: Module, static", "import, after jax: all public names")

# Each case is made by a function that returns a statement and the names it uses.
CASES: dict[str, Callable[[], Statement]] = {}


def case(name: str) -> Callable[[Callable[[], Statement]], Callable[[], Statement]]:
    """Add a case. It does its own imports, because the child decides which checkout they come from."""
    return lambda make: CASES.setdefault(name, make)


@functools.cache
def classes() -> dict[str, type]:
    """The node classes that several cases use."""
    import jax

    import treewright

    class Two(treewright.Module):
        weight: jax.Array
        bias: jax.Array
        width: int = treewright.static(default=64)
        activation: str = treewright.static(default="relu")

    @treewright.pytree_dataclass
    class Eight:
        c0: Any
        c1: Any
        c2: Any
        c3: Any
        c4: Any
        c5: Any
        c6: Any
        c7: Any
        width: int = treewright.static(default=64)

    class Own(treewright.Module):
        weight: jax.Array
        bias: jax.Array
        width: int = treewright.static()

        def __init__(self, weight: jax.Array, bias: jax.Array, width: int) -> None:
            self.weight = weight
            self.bias = bias
            self.width = width

    class Checked(treewright.Module):
        weight: jax.Array
        bias: jax.Array
        width: int = treewright.static(default=64)

        def __post_init__(self) -> None:
            if self.width < 0:
                raise ValueError(self.width)

    class Inherited(Two):
        scale: jax.Array = treewright.field(kw_only=True)

    class Converting(treewright.Module):
        weight: jax.Array
        shape: tuple[int, ...] = treewright.static(converter=treewright.freeze)

    class One(treewright.Module):
        child: jax.Array
        value: Any = treewright.static()

    class OwnOne(treewright.Module):
        child: jax.Array
        value: Any = treewright.static()

        def __init__(self, child: jax.Array, value: Any) -> None:
            self.child = child
            self.value = value

    class Layers(treewright.Module):
        layers: list[Any]

        def __init__(self, layers: list[Any]) -> None:
            self.layers = layers

    return {cls.__name__: cls for cls in (Two, Eight, Own, Checked, Inherited, Converting, One, OwnOne, Layers)}


@functools.cache
def arrays(count: int) -> list[Any]:
    """Scalars `f32[]`, each a separate array."""
    import jax
    import numpy as np

    return [jax.device_put(np.float32(i)) for i in range(count)]


@functools.cache
def nodes() -> list[Any]:
    """A tree of 100 nodes with 2 children and 2 statics each."""
    two, leaves = classes()["Two"], arrays(2 * NODES)
    return [two(leaves[2 * i], leaves[2 * i + 1]) for i in range(NODES)]


def construction(expression: str) -> Callable[[], Statement]:
    """One node from `a`, `b` and eight children `c`; another node with the same statics is alive meanwhile."""

    def make() -> Statement:
        names = {**classes(), "a": arrays(2)[0], "b": arrays(2)[1], "c": arrays(8), "one": nodes()[0]}
        return expression, {**names, "first": eval(expression, names)}  # noqa: S307 - text from this file

    return make


for _name, _expression in {
    "construct: generated __init__": "Two(a, b)",
    "construct: generated __init__, keywords": "Two(weight=a, bias=b, width=64, activation='relu')",
    "construct: decorated, 8 children": "Eight(*c)",
    "construct: own __init__": "Own(a, b, 64)",
    "construct: __post_init__": "Checked(a, b)",
    "construct: inherited": "Inherited(a, b, scale=a)",
    "construct: converter": "Converting(a, [1, 2])",
    "construct: own __init__, closure": "OwnOne(a, (lambda rate: lambda x: x * rate)(0.1))",
    "construct: own __init__, 24 layers": "Layers([one] * 24)",
}.items():
    case(_name)(construction(_expression))


def static(values: Callable[[], Iterator[Any]]) -> Callable[[], Statement]:
    """A node with one static, its values made before the clock starts, a node with an equal one alive."""

    def make() -> Statement:
        one, child, source = classes()["One"], arrays(1)[0], values()
        return "One(child, next(values))", {
            "One": one,
            "child": child,
            "next": next,
            "values": source,
            "first": one(child, next(source)),
        }

    return make


def _new(make: Callable[[], Any]) -> Callable[[], Iterator[Any]]:
    # Ahead of the clock in batches; the timer takes far fewer than are made.
    return lambda: itertools.cycle([make() for _ in range(2000)])


def _library(path: str) -> Callable[[], Iterator[Any]]:
    def values() -> Iterator[Any]:
        import jax
        import jax.numpy as jnp
        import numpy as np
        import optax

        names = {"jax": jax, "jnp": jnp, "np": np, "optax": optax, "partial": functools.partial}
        return itertools.repeat(eval(path, names))  # noqa: S307 - text from this file

    return values


def _adamw() -> Any:
    import optax

    return optax.adamw(1e-3)


def _closure() -> Any:
    slope = 0.1
    return lambda x: x * slope


class _Plain:
    """A callable object without `==` whose attributes are private."""

    def __init__(self) -> None:
        self._rate = 0.1

    def step(self, x: Any) -> Any:
        """Scale."""
        return x * self._rate


@dataclasses.dataclass(frozen=True)
class _Config:
    width: int = 3
    rate: float = 0.1


for _name, _values in {
    "static: plain object, new": _new(_Plain),
    "static: method of an object, new": _new(lambda: _Plain().step),
    "static: frozen dataclass, new": _new(_Config),
    "static: str": _library("'relu'"),
    "static: float": _library("0.1"),
    "static: tuple of ints": _library("(3, (64, 64), 'same')"),
    "static: jax.nn.relu": _library("jax.nn.relu"),
    "static: dtype": _library("np.dtype('float32')"),
    "static: jnp.float32": _library("jnp.float32"),
    "static: partial": _library("partial(jax.nn.leaky_relu, negative_slope=0.1)"),
    "static: lambda, the same": _library("lambda x: x"),
    "static: lambda, new": _new(lambda: lambda x: x),
    "static: closure, new": _new(_closure),
    "static: optax.adamw, the same": _library("optax.adamw(1e-3)"),
    "static: optax.adamw, new": _new(_adamw),
}.items():
    case(_name)(static(_values))


def tree_case(name: str, text: str) -> None:
    """A case of `jax.tree_util` or ours on 100 nodes."""

    def make() -> Statement:
        import jax

        import treewright

        tree = nodes()
        leaves, treedef = jax.tree.flatten(tree)
        names = {"tree": tree, "node": tree[0], "leaves": leaves, "treedef": treedef, "a": arrays(1)[0]}
        names |= {
            "util": jax.tree_util,
            "treewright": treewright,
            "other": treewright.replace(tree[0]),
        }
        return text, names

    case(name)(make)


for _name, _text in {
    "flatten: 100 nodes": "util.tree_flatten(tree)",
    "unflatten: 100 nodes": "util.tree_unflatten(treedef, leaves)",
    "flatten with path: 100 nodes": "util.tree_flatten_with_path(tree)",
    "tree.map: 100 nodes": "util.tree_map(id, tree)",
    "read: a child and a static": "node.weight; node.width",
    "replace: one child": "treewright.replace(node, weight=a)",
    "replace: one static": "treewright.replace(node, width=32)",
    "at: set one child": "treewright.at(tree, lambda t: t[50].weight).set(a)",
    "==: two nodes": "node == other",
    "partition: 100 nodes": "treewright.partition(tree, lambda path, leaf: True)",
}.items():
    tree_case(_name, _text)


@case("jit: take and return 100 nodes")
def _jit() -> Statement:
    import jax

    call, tree = jax.jit(lambda tree: tree), nodes()
    jax.block_until_ready(call(tree))
    return "call(tree)", {"call": call, "tree": tree}


@case("jit: read 100 nodes")
def _jit_read() -> Statement:
    import jax

    call, tree = jax.jit(lambda tree: jax.tree.leaves(tree)[0]), nodes()
    jax.block_until_ready(call(tree))
    return "call(tree)", {"call": call, "tree": tree}


@case("jit: a method")
def _jit_method() -> Statement:
    import jax

    import treewright

    class Model(treewright.Module):
        weight: jax.Array

        def step(self, x: jax.Array) -> jax.Array:
            return self.weight + x

    model, a = Model(arrays(1)[0]), arrays(1)[0]
    jax.block_until_ready(jax.jit(model.step)(a))
    return "jit(model.step)(a)", {"jit": jax.jit, "model": model, "a": a}


def _stepping(*, loop: bool) -> Statement:
    import jax
    import optax

    import treewright

    class Norm(treewright.Module):
        scale: jax.Array
        epsilon: float = treewright.static(default=1e-6)

    class Attention(treewright.Module):
        query: jax.Array
        key: jax.Array
        value: jax.Array
        out: jax.Array
        heads: int = treewright.static(default=8)

    class MLP(treewright.Module):
        gate: jax.Array
        up: jax.Array
        down: jax.Array
        activation: str = treewright.static(default="silu")

    class Block(treewright.Module):
        norm1: Norm
        attention: Attention
        norm2: Norm
        mlp: MLP

    def block() -> Block:
        a, b, c, d, e, f, g, h, i = (x + 1 for x in arrays(9))
        return Block(Norm(a), Attention(b, c, d, e), Norm(f), MLP(g, h, i))

    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        grads = jax.tree.map(lambda leaf: x * leaf, state.params)
        return state.apply_gradients(grads=grads), x

    state = treewright.TrainState.create(params=[block() for _ in range(LAYERS)], tx=optax.adam(1e-3))
    x = arrays(1)[0]
    if loop:
        run = treewright.loop(step, state)
        jax.block_until_ready(run(x))
        return "ready(run(x))", {"run": run, "ready": jax.block_until_ready, "x": x}
    names = {"call": jax.jit(step), "state": state, "x": x, "ready": jax.block_until_ready}
    jax.block_until_ready(names["call"](state, x))
    return "ready(call(state, x))", names


case("step: 24 layers, jit")(functools.partial(_stepping, loop=False))
case("step: 24 layers, loop")(functools.partial(_stepping, loop=True))


@case("class: Module, 2 children, 2 statics")
def _class_of_module() -> Statement:
    import treewright

    def make() -> type:
        class Node(treewright.Module):
            weight: object
            bias: object
            width: int = treewright.static(default=64)
            activation: str = treewright.static(default="relu")

        return Node

    return "make()", {"make": make}


@case("class: decorated, 4 children, own __init__")
def _class_decorated() -> Statement:
    import treewright

    def make() -> type:
        @treewright.pytree_dataclass
        class Node:
            c0: object
            c1: object
            c2: object
            c3: object

            def __init__(self, c: object) -> None:
                self.c0 = self.c1 = self.c2 = self.c3 = c

        return Node

    return "make()", {"make": make}


# The child: reads requests line by line and times them.


def serve() -> None:
    """Answer each line on stdin, the name of a case, by a line with its seconds or with why it can't be timed."""
    import jax  # noqa: F401 - not to be counted below

    began = time.perf_counter()
    import treewright

    assert treewright.Module is not None
    nodes_after = time.perf_counter() - began
    assert all(getattr(treewright, name) is not None for name in treewright.__all__)
    print(json.dumps([[nodes_after, time.perf_counter() - began], treewright.__file__]), flush=True)
    clocks: dict[str, Clock] = {}
    for line in sys.stdin:
        name = line.strip()
        try:
            if name not in clocks:  # classes stay registered for ever, hence few
                loops = 3 if name.startswith("class:") else None
                clocks[name] = Clock(CASES[name](), loops=loops, seconds=SAMPLE_SECONDS)
            answer: float | str = clocks[name].sample()
        except Exception as error:  # noqa: BLE001 - an API that one of the two does not have must not stop the others
            answer = f"{type(error).__name__}: {error}".splitlines()[0]
        print(json.dumps(answer), flush=True)


class Child:
    """An interpreter with one checkout."""

    def __init__(self, checkout: Path, cache: Path) -> None:
        # The same cache of bytecode for both, since a checkout that can't be written would have none.
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
    """Samples of both checkouts by case, and why some could not be taken."""
    samples: Samples = {name: ([], []) for name in (*IMPORTS, *names)}
    refused: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as cache:
        for checkout in checkouts:  # fills the cache of bytecode
            Child(checkout, Path(cache)).close()
        for pair in range(pairs):
            children = [Child(checkout, Path(cache)) for checkout in checkouts]
            for name in names:
                # A step waits for XLA's threads, so that its samples spread.
                turns = range(rounds * 4 if name.startswith("step:") else rounds)
                for turn, place in itertools.product(turns, (0, 1)):
                    which = place ^ (turn + pair) % 2  # each is the first equally often
                    answer = children[which].sample(name)
                    if isinstance(answer, str):
                        refused[name] = f"{checkouts[which]}: {answer}"
                        break
                    samples[name][which].append(answer)
            for child in children:
                child.close()
        for _, which in itertools.product(range(2 * pairs), (0, 1)):
            child = Child(checkouts[which], Path(cache))
            child.close()
            for name, seconds in zip(IMPORTS, child.import_seconds, strict=True):
                samples[name][which].append(seconds)
    return {name: both for name, both in samples.items() if name not in refused}, refused


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
    names = [name for name in CASES if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]
    checkouts = (HERE, options.other.resolve())
    samples, refused = ratios(checkouts, names, pairs=options.pairs, rounds=options.rounds)
    print(f"{'':45}{'here':>12}{'other':>12}{'ratio':>8}{'of fastest':>12}")
    worst = 0.0
    for name, (here, other) in samples.items():
        ratio = statistics.median(here) / statistics.median(other)
        fastest = min(here) / min(other)
        worst = max(worst, ratio)
        micro = [1e6 * statistics.median(times) for times in (here, other)]
        print(f"{name:45}{micro[0]:>9.2f} us{micro[1]:>9.2f} us{ratio:>8.2f}{fastest:>12.2f}")
    for name, reason in refused.items():
        print(f"{name:45} not measured: {reason}")
    return 1 if options.fail_above and worst > options.fail_above else 0


if __name__ == "__main__":
    sys.exit(main())
