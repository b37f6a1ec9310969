"""What sharding by field costs: the memory of an init, the time of `shardings`, of a step, and of the check.

`python benchmarks/sharding.py` starts four processes on this machine for the memory, and measures the rest in its own.
README.md beside this file says how to read it.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# Before jax is imported: eight devices of the CPU, as parts of one machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
sys.path.append(str(Path(__file__).parents[1]))

import jax
import jax.numpy as jnp
import numpy as np
from _timing import Case, Key, measure, statement
from jax.sharding import AxisType, NamedSharding

from examples.processes import joined, run
from treewright import Module, field, static
from treewright.errors import ProcessMismatchError
from treewright.sharding import assert_same_on_all_processes, sharded_init, shardings

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


# In each of the processes


def peak() -> float:
    """The most memory that this process has had, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


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
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        with joined():
            way, count = options.worker
            found = checking(int(count)) if way == "check" else memory(way, int(count))
            print("found:", json.dumps(found))
        return 0
    return 1 if not report(quick=options.quick) and options.check else 0


def worst(found: Sequence[dict[str, float]], name: str) -> float:
    """The largest of all processes."""
    return max(one[name] for one in found)


def report(*, quick: bool) -> bool:
    """Measure and print; whether all targets are reached."""
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
    targets = (
        (f"sharded_init / eager init: {ratio:.2f} (to reach: at most 0.5)", ratio <= 0.5),
        (f"shardings() of 2,000 leaves: {split * 1e3:.1f} ms (to reach: at most 50)", split <= 0.05),
        (f"step with names / without: {step:.2f} (to reach: 1 within noise, 0.1)", abs(step - 1) <= 0.1),
        (f"check that finds one static: {finding * 1e3:.0f} ms (to reach: below 1000)", finding < 1),
    )
    print(f"check of 2,000 nodes that are the same: {worst(check, 'same') * 1e3:.0f} ms")
    for text, reached in targets:
        print(f"{text}: {'reached' if reached else 'not reached'}")
    return all(reached for _, reached in targets)


if __name__ == "__main__":
    sys.exit(main())
