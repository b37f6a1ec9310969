"""What sharding by field costs: the memory of an init, the time of plans for a pod, of a step, and of the check.

`python benchmarks/sharding.py` starts four processes on this machine for the memory, and measures the rest in its own.
README.md beside this file says how to read it.
"""

import argparse
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before jax is imported: eight devices of the CPU, as parts of one machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _lines import Line, add_option, lines_text, write
from _report import peak
from _timing import Case, Key, measure, statement
from jax.sharding import AbstractMesh, AxisType, NamedSharding

from examples.processes import joined, run
from treewright import Module, TrainState, field, static
from treewright.errors import ProcessMismatchError
from treewright.sharding import (
    abstract_state,
    assert_same_on_all_processes,
    partition_specs,
    sharded_init,
    sharding_report,
    shardings,
)
from treewright.sharding import (
    init as sharded,
)

MIB = 2**20
PROCESSES = 4
RULES = {"in": "fsdp", "out": None}


class Layer(Module):
    """A kernel whose axes have names."""

    kernel: jax.Array = field(sharding=("in", "out"))
    act: str = static(default="relu")


class Plain(Module):
    """The same without names."""

    kernel: jax.Array
    act: str = static(default="relu")


class Net(Module):
    """Many layers."""

    layers: tuple[Any, ...]


def make(key: jax.Array, count: int, size: int, layer: type[Any] = Layer) -> Net:
    """A net of `count` kernels `f32[size, size]`."""
    return Net(tuple(layer(jax.random.normal(one, (size, size))) for one in jax.random.split(key, count)))


OF_A_STATE = ("partition_specs", "shardings", "sharding_report")  # plans that trace nothing

# In each of the processes


def memory(way: str, count: int) -> dict[str, float]:
    """How far the peak rises over that of an idle process, for `count` kernels of 64 MiB."""
    mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
    key = jax.random.key(0)
    jax.block_until_ready(jax.random.normal(key, (8,)))
    before = peak()
    if way == "sharded":
        net = sharded_init(lambda key: make(key, count, 4096), key, mesh=mesh, rules=RULES)
    else:
        whole = make(key, count, 4096)
        places = shardings(whole, mesh, RULES)

        def placed(array: jax.Array, place: NamedSharding) -> jax.Array:
            host = np.asarray(array)
            return jax.make_array_from_callback(host.shape, place, lambda index: host[index])

        net = jax.tree.map(placed, whole, places)
    jax.block_until_ready(net)
    held = sum(shard.data.nbytes for leaf in jax.tree.leaves(net) for shard in leaf.addressable_shards)
    return {"peak": peak() - before, "held": held / MIB}


def checking(leaves: int) -> dict[str, float]:
    """How long the check takes for equal trees, and for one that differs, in seconds."""
    found: dict[str, float] = {}
    kernel = jnp.ones((1, 1))
    for name, act in (("warm up", "relu"), ("same", "relu"), ("different", f"act {jax.process_index()}")):
        net = Net(tuple(Layer(kernel, act if place == 7 else "relu") for place in range(leaves)))
        began = time.perf_counter()
        try:
            assert_same_on_all_processes(net)
        except ProcessMismatchError:
            assert name == "different"
        found[name] = time.perf_counter() - began
    return found


def in_processes(*arguments: object) -> list[dict[str, float]]:
    """What each of four processes found."""
    command = [sys.executable, str(Path(__file__)), "--worker", *map(str, arguments)]
    outputs = run(command, PROCESSES, devices=1, seconds=600)
    lines = [line for output in outputs for line in output.splitlines() if line.startswith("found: ")]
    return [json.loads(line.removeprefix("found: ")) for line in lines]


# Plans for machines that are not here

SIZES: dict[str, tuple[int, ...]] = {"1,024 devices": (4, 64, 4), "8,192 devices": (8, 128, 8)}
PLANS = {
    "embed": "fsdp",
    "hidden": "tensor",
    "heads": "tensor",
    "vocabulary": "tensor",
    "experts": None,
    "layers": None,
}


class Expert(Module):
    """Two kernels."""

    up: jax.Array = field(sharding=("embed", "hidden"))
    down: jax.Array = field(sharding=("hidden", "embed"))


class Block(Module):
    """A layer of a decoder, with one expert or many."""

    scales: tuple[jax.Array, ...] = field(sharding=("embed",))
    query: jax.Array = field(sharding=("embed", "heads"))
    key: jax.Array = field(sharding=("embed", "heads"))
    value: jax.Array = field(sharding=("embed", "heads"))
    output: jax.Array = field(sharding=("heads", "embed"))
    experts: tuple[Expert, ...]


class Decoder(Module):
    """Layers one by one, or stacked."""

    table: jax.Array = field(sharding=("vocabulary", "embed"))
    blocks: Any
    stacked: Any = field(stack="layers")


def decoder(layers: int, experts: int, *, stacked: bool) -> TrainState[Decoder]:
    """70 billion parameters in 80 layers with one expert; to be made abstractly."""
    embed, hidden = 8192, 28672

    def block(_: object) -> Block:
        kernel = jnp.zeros((embed, embed))
        expert = Expert(jnp.zeros((embed, hidden)), jnp.zeros((hidden, embed)))
        return Block((jnp.zeros(embed),) * 2, kernel, kernel, kernel, kernel, (expert,) * experts)

    blocks = () if stacked else tuple(map(block, range(layers)))
    stack = jax.vmap(block)(jnp.arange(layers)) if stacked else None
    return TrainState.create(params=Decoder(jnp.zeros((128_000, embed)), blocks, stack), tx=optax.adamw(1e-4))


def planned() -> dict[str, dict[str, float]]:
    """Seconds for each kind of plan: by model and number of devices."""
    shapes = {"70B stacked": (80, 1, True), "70B unrolled": (80, 1, False), "64 experts unrolled": (37, 64, False)}
    found: dict[str, dict[str, float]] = {}
    for model, (layers, experts, stacked) in shapes.items():
        make = functools.partial(decoder, layers, experts, stacked=stacked)
        state = jax.eval_shape(make)
        leaves = len(jax.tree.leaves(state))
        for name, shape in SIZES.items():
            pod = AbstractMesh(shape, ("data", "fsdp", "tensor"))
            rules = {rule: axes for rule, axes in PLANS.items() if axes or (rule == "layers" and stacked)}
            plans: dict[str, Any] = {
                "partition_specs": lambda pod=pod, rules=rules, state=state: partition_specs(state, pod, rules),
                "shardings": lambda pod=pod, rules=rules, state=state: shardings(state, pod, rules),
                "sharding_report": lambda pod=pod, rules=rules, state=state: str(sharding_report(state, pod, rules)),
                "abstract_state": lambda pod=pod, rules=rules, make=make: abstract_state(make, mesh=pod, rules=rules),
                "jax.eval_shape": lambda make=make: jax.eval_shape(functools.partial(make)),  # made anew: traced anew
            }
            found[f"{model}, {leaves:,} leaves, {name}"] = {kind: seconds(plan) for kind, plan in plans.items()}
    return found


def seconds(plan: Callable[[], object]) -> float:
    """The shorter of two times."""
    times = []
    for _ in range(2):
        began = time.perf_counter()
        plan()
        times.append(time.perf_counter() - began)
    return min(times)


def traced_layers(count: int) -> dict[str, float]:
    """Seconds for an init of unrolled layers until it is to be compiled: traced and lowered, by `jit` and by ours."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))

    def init(key: jax.Array) -> TrainState[Net]:
        return TrainState.create(params=make(key, count, 256), tx=optax.adamw(1e-3))

    def lowered() -> None:
        jax.clear_caches()
        jax.jit(functools.partial(init)).lower(jax.random.key(0))

    def before_compiling() -> None:
        jax.clear_caches()
        traced = sharded._traced(init, ((jax.random.key(0),), {}), mesh, RULES, "error")
        with jax.set_mesh(mesh):
            parts = sharded._parts_of(traced.jaxpr, [leaf.sharding for leaf in traced.leaves])
            for part in {part.key: part for part in parts}.values():
                arrays = dict(zip(traced.jaxpr.jaxpr.invars, traced.arrays, strict=True))
                sharded._lowered(part, arrays, traced.leaves)

    return {"jit": seconds(lowered), "sharded_init": seconds(before_compiling)}


# In this process


def times(repeats: int) -> dict[str, float]:
    """Medians in seconds: `shardings` of 2,000 leaves, and a step with names and without, interleaved."""
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(AxisType.Auto,))
    many = Net(tuple(Layer(jnp.ones((8, 8))) for _ in range(2000)))
    cases = [
        Case(Key("shardings", 2000, "ours"), statement("f(t, m, r)", f=shardings, t=many, m=mesh, r=RULES), once=True)
    ]
    for name, kind in (("with names", Layer), ("without", Plain)):
        net = make(jax.random.key(0), 40, 128, kind)
        net = jax.device_put(net, jax.tree.map(lambda _: NamedSharding(mesh, jax.P("fsdp")), net))

        def step(net: Net) -> Net:
            return jax.tree.map(lambda leaf: leaf * 0.5 + 1.0, net)

        compiled = jax.jit(step)
        jax.block_until_ready(compiled(net))
        timer = statement("wait(f(t))", f=compiled, t=net, wait=jax.block_until_ready)
        cases.append(Case(Key("step", 40, name), timer))
    return {f"{key.measure} {key.library}": found.median for key, found in measure(cases, repeats=repeats).items()}


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a model of 192 MiB, and fewer samples")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with joined():
            way, count = options.worker
            found = checking(int(count)) if way == "check" else memory(way, int(count))
            print("found:", json.dumps(found))
        return 0
    lines = report(quick=options.quick)
    write(options.lines, lines)
    return 1 if options.check and not all(one.reached for one in lines) else 0


def worst(found: Sequence[dict[str, float]], name: str) -> float:
    """The largest of all processes."""
    return max(one[name] for one in found)


def report(*, quick: bool) -> list[Line]:
    """Measure and print."""
    kernels = 3 if quick else 12
    print(f"{kernels * 64} MiB of parameters, {PROCESSES} processes: the most that one takes over an idle one")
    eager, sharded = (in_processes(way, kernels) for way in ("eager", "sharded"))
    for name, found in (("eager init, then split", eager), ("sharded_init", sharded)):
        print(f"  {name:24}{worst(found, 'peak'):8.0f} MiB, of which it keeps {worst(found, 'held'):.0f}")
    check = in_processes("check", 2000)
    found = times(repeats=15 if quick else 60)
    ratio = worst(sharded, "peak") / worst(eager, "peak")
    finding = worst(check, "different")
    split, step = found["shardings ours"], found["step with names"] / found["step without"]
    model = f"{kernels * 64} MiB on {PROCESSES} processes"
    plans = planned()
    for name, times_of in plans.items():
        print(f"{name}: {', '.join(f'{kind} {time * 1e3:.0f} ms' for kind, time in times_of.items())}")
    slowest = max(time for times_of in plans.values() for kind, time in times_of.items() if kind in OF_A_STATE)
    abstract = max(times_of["abstract_state"] for times_of in plans.values())
    eval_shape = max(times_of["jax.eval_shape"] for times_of in plans.values())
    unrolled = traced_layers(80)
    tracing = unrolled["sharded_init"] / unrolled["jit"]
    lines = [
        Line("the slowest plan of a state of 15,000 leaves", "", f"{slowest * 1e3:.0f} ms", "< 1000 ms", slowest < 1),
        Line(
            "abstract_state of 15,000 leaves",
            f"jax.eval_shape alone: {eval_shape * 1e3:.0f} ms",
            f"{abstract * 1e3:.0f} ms",
            "< 1000 ms",
            abstract < 1,
        ),
        Line("sharded_init before it compiles, 80 layers", "jit", f"{tracing:.2f}", "<= 2", tracing <= 2),
        Line(f"peak memory of sharded_init, {model}", "eager init, then split", f"{ratio:.2f}", "<= 0.5", ratio <= 0.5),
        Line("shardings() of 2,000 leaves", "", f"{split * 1e3:.0f} ms", "<= 50 ms", split <= 0.05),
        Line("a step with names on its fields", "without", f"{step:.2f}", "1 within 0.1", abs(step - 1) <= 0.1),
        Line("finding one other static, 2,000 nodes", "", f"{finding * 1e3:.0f} ms", "< 1000 ms", finding < 1),
    ]
    print(f"check of 2,000 nodes that are the same: {worst(check, 'same') * 1e3:.0f} ms\n\n{lines_text(lines)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
