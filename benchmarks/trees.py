"""What trees cost: once through 10,000 nodes, a change or a comparison of 1000, beside other libraries, from one run.

`python benchmarks/trees.py` prints a table for each measure and the targets with their verdicts; README.md beside this
file says how to read them.
"""

import argparse
import contextlib
import copy
import dataclasses
import json
import os
import sys
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# Before jax is imported: these are costs on the host, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import equinox
import jax
import jax_dataclasses
import numpy as np
from _lines import Behind, Line, add_option, lines_text, table, write
from _report import duration, machine, machine_text
from _timing import Case, Key, Times, measure, statement

import treewright
from treewright.errors import StaticFieldError

NODES = 1000
WALKED = 10_000  # nodes to go through once
Results = dict[Key, Times]


# How many times as fast, at least, an update has to be; the floor is the copy of the list, which every one has to make.
UPDATES = (("equinox.tree_at", 500), ("jax_dataclasses.copy_and_mutate", 500))
# How many times as long, at most, one row of a measure may take as the first.
LIMITS = (
    ("walk", "treewright.count", 3.0),
    ("walk", "treewright.count, by class", 3.0),
    ("walk", "treewright.diff, the same arrays", 3.0),
    ("walk", "treewright.edit", 3.0),
    ("walk", "treewright.summary", 3.0),  # whose text is made when it is looked at
    ("nested", "treewright.Module", 1.5),
    ("children", "annotated as a tuple", 1.25),  # it may be a setting, and is looked at
)
OWN_INIT, REFUSAL = 5e-6, 1e-3  # seconds on top of a plain class, and for a list of 100,000
TITLES = {
    "walk": f"once through {WALKED} nodes",
    "nested": "400 nested modules with an __init__ of their own",
    "children": "a node that holds a tuple of arrays",
    "own init": "an __init__ of one's own, 2 children and 2 statics",
    "refusal": "a list of 100,000 as a static",
    "update": f"set one leaf in a list of {NODES} nodes",
    "replace": "replace one field of a node",
    "diff": f"two equal trees of {NODES} nodes",
}


class Layer(treewright.Module):
    """A node with two children and one static."""

    kernel: jax.Array
    bias: jax.Array
    name: str = treewright.static(default="layer")


class Net(treewright.Module):
    """All the nodes, in a list."""

    layers: list[Layer]


class EquinoxLayer(equinox.Module):
    """The same for equinox."""

    kernel: jax.Array
    bias: jax.Array
    name: str = equinox.field(static=True, default="layer")


class EquinoxNet(equinox.Module):
    """The same for equinox."""

    layers: list[EquinoxLayer]


@jax_dataclasses.pytree_dataclass
class JdcLayer:
    """The same for jax_dataclasses."""

    kernel: jax.Array
    bias: jax.Array
    name: jax_dataclasses.Static[str] = "layer"


@jax_dataclasses.pytree_dataclass
class JdcNet:
    """The same for jax_dataclasses."""

    layers: list[JdcLayer]


@dataclasses.dataclass(frozen=True)
class Plain:
    """A frozen dataclass, which is no tree to JAX."""

    kernel: jax.Array
    bias: jax.Array
    name: str = "layer"


class PlainOwn:
    """A class with an `__init__`, which is no tree to JAX."""

    def __init__(self, kernel: Any, bias: Any, name: str, width: int) -> None:
        self.kernel, self.bias, self.name, self.width = kernel, bias, name, width


class Own(treewright.Module):
    """A node with the same `__init__`."""

    kernel: jax.Array
    bias: jax.Array
    name: str = treewright.static()
    width: int = treewright.static()

    def __init__(self, kernel: Any, bias: Any, name: str, width: int) -> None:
        self.kernel, self.bias, self.name, self.width = kernel, bias, name, width


class AnyTuple(treewright.Module):
    """Holds anything."""

    children: Any


class ArrayTuple(treewright.Module):
    """Says that it holds arrays."""

    children: tuple[jax.Array, ...]


class Nested(treewright.Module):
    """Holds one that is a level less deep."""

    inner: Any

    def __init__(self, levels: int) -> None:
        self.inner = Nested(levels - 1) if levels > 1 else None


class EquinoxNested(equinox.Module):
    """The same for equinox."""

    inner: Any

    def __init__(self, levels: int) -> None:
        self.inner = EquinoxNested(levels - 1) if levels > 1 else None


def _refused(large: Any) -> None:
    with contextlib.suppress(StaticFieldError):
        treewright.Static(large)


def net_of(net: Callable[[list[Any]], Any], layer: Callable[..., Any], leaves: Sequence[jax.Array]) -> Any:
    """A tree of nodes with two leaves each."""
    return net(list(map(layer, leaves[::2], leaves[1::2])))


def _copy_and_mutate(net: Any, value: Any) -> Any:
    with jax_dataclasses.copy_and_mutate(net) as changed:
        changed.layers[500].bias = value
    return changed


def _edit(net: Any, value: Any) -> Any:
    with treewright.edit(net) as draft:
        draft.layers[500].bias = value
    return draft


def constructions(value: jax.Array) -> dict[tuple[str, str], timeit.Timer]:
    """Of those, what makes nodes, or refuses to."""
    first = Own(value, value, "layer", 3)  # statics that no node holds are forgotten
    own = {"a": value, "first": first}
    return {
        ("nested", "equinox"): statement("make(400)", make=EquinoxNested),
        ("nested", "treewright.Module"): statement("make(400)", make=Nested),
        ("children", "annotated as Any"): statement("make(pair)", make=AnyTuple, pair=(value, value)),
        ("children", "annotated as a tuple"): statement("make(pair)", make=ArrayTuple, pair=(value, value)),
        ("own init", "a plain class"): statement("make(a, a, 'layer', 3)", make=PlainOwn, **own),
        ("own init", "treewright.Module"): statement("make(a, a, 'layer', 3)", make=Own, **own),
        ("refusal", "treewright"): statement("refused(large)", refused=_refused, large=list(range(100_000))),
    }


def statements(leaves: Sequence[jax.Array]) -> dict[tuple[str, str], timeit.Timer]:
    """What to time, by measure and row; the first row of a measure is its base."""
    net, equinox_net, jdc_net = (
        net_of(net, layer, leaves[: 2 * NODES])
        for net, layer in ((Net, Layer), (EquinoxNet, EquinoxLayer), (JdcNet, JdcLayer))
    )
    value, other = leaves[0], net_of(Net, Layer, leaves[: 2 * NODES])
    fresh = jax.tree.map(lambda leaf: leaf + 0, net)
    node, plain = Layer(value, value), Plain(value, value)

    large, same = net_of(Net, Layer, leaves), net_of(Net, Layer, leaves)

    def where(net: Any) -> Any:
        return net.layers[500].bias

    def run(text: str, **names: Any) -> timeit.Timer:
        return statement(text, net=net, other=other, where=where, value=value, **names)

    def walk(text: str, **names: Any) -> timeit.Timer:
        return statement(text, net=large, same=same, value=value, **names)

    at, diff, flatten = treewright.at, treewright.diff, jax.tree.flatten
    return {
        ("walk", "jax.tree.map"): walk("map(identity, net)", map=jax.tree.map, identity=lambda leaf: leaf),
        ("walk", "treewright.count"): walk("count(net)", count=treewright.count),
        ("walk", "treewright.count, by class"): walk("count(net, by='class')", count=treewright.count),
        ("walk", "treewright.diff, the same arrays"): walk("diff(net, same)", diff=diff),
        ("walk", "treewright.edit"): walk("edit(net, value)", edit=_edit),
        ("walk", "treewright.summary"): walk("summary(net)", summary=treewright.summary),
        ("walk", "treewright.summary, as text"): walk("summary(net).plain", summary=treewright.summary),
        **constructions(value),
        ("update", "copy of the list"): run("copy(layers)", copy=copy.copy, layers=net.layers),
        ("update", "treewright.at"): run("at(net, where).set(value)", at=at),
        ("update", "treewright.at, by text"): run("at(net, '.layers[500].bias').set(value)", at=at),
        ("update", "treewright.edit"): run("edit(net, value)", edit=_edit),
        ("update", "equinox.tree_at"): run("at(where, tree, value)", at=equinox.tree_at, tree=equinox_net),
        ("update", "jax_dataclasses.copy_and_mutate"): run("edit(tree, value)", edit=_copy_and_mutate, tree=jdc_net),
        ("replace", "dataclasses.replace, of a dataclass"): run(
            "replace(node, bias=value)", replace=dataclasses.replace, node=plain
        ),
        ("replace", "treewright.replace"): run("replace(node, bias=value)", replace=treewright.replace, node=node),
        ("replace", "dataclasses.replace, of equinox"): run(
            "replace(node, bias=value)", replace=dataclasses.replace, node=equinox_net.layers[0]
        ),
        ("replace", "dataclasses.replace, of jax_dataclasses"): run(
            "replace(node, bias=value)", replace=dataclasses.replace, node=jdc_net.layers[0]
        ),
        ("diff", "jax.tree.flatten of both"): run("flatten(net); flatten(other)", flatten=flatten),
        ("diff", "treewright.diff, the same arrays"): run("diff(net, other)", diff=diff),
        ("diff", "treewright.diff, equal arrays, values=False"): run(
            "diff(net, fresh, values=False)", diff=diff, fresh=fresh
        ),
        ("diff", "treewright.diff, equal arrays"): run("diff(net, fresh)", diff=diff, fresh=fresh),
    }


def measure_text(name: str, results: Results) -> str:
    """One measure: times, and ratios of medians and of the fastest samples to the first row."""
    rows = [[TITLES[name], "median", "fastest", "ratios to the first"]]
    found = {key.library: times for key, times in results.items() if key.measure == name}
    base = next(iter(found.values()))
    for library, times in found.items():
        ratios = f"{times.median / base.median:.3g} / {times.minimum / base.minimum:.3g}"
        rows.append([library, duration(times.median), duration(times.minimum), ratios])
    return table(rows)


def lines_of(results: Results) -> list[Line]:
    """Updates, how rows stand to the first of their measure, and times that have a limit of their own."""
    lines: list[Line] = []
    for theirs, times in UPDATES:
        ratio = results[Key("update", NODES, theirs)].median / results[Key("update", NODES, "treewright.at")].median
        what = f"{TITLES['update']}, treewright.at"
        lines.append(Line(what, theirs, f"1/{ratio:.0f}", f"<= 1/{times}", ratio >= times))
    for name, row, limit in LIMITS:
        base = next(key for key in results if key.measure == name)
        ratio = results[Key(name, NODES, row)].median / results[base].median
        lines.append(Line(f"{TITLES[name]}, {row}", base.library, f"{ratio:.2f}", f"<= {limit:.2f}", ratio <= limit))
    plain, own = (results[Key("own init", NODES, row)].median for row in ("a plain class", "treewright.Module"))
    refusal = results[Key("refusal", NODES, "treewright")].median
    for name, against, seconds, limit in (
        ("own init", "on top of a plain class", own - plain, OWN_INIT),
        ("refusal", "", refusal, REFUSAL),
    ):
        lines.append(Line(TITLES[name], against, duration(seconds), f"<= {duration(limit)}", seconds <= limit))
    return lines


def behind(results: Results) -> list[Behind]:
    """Where another library is faster than ours at the same."""
    rows: list[Behind] = []
    for name, ours in (("nested", "treewright.Module"), ("update", "treewright.at"), ("replace", "treewright.replace")):
        medians = {key.library: times.median for key, times in results.items() if key.measure == name}
        peers = [row for row in medians if "equinox" in row or "jax_dataclasses" in row]
        peer = min(peers, key=medians.__getitem__)
        if medians[ours] > medians[peer]:
            rows.append(Behind(name, f"{TITLES[name]}, {ours}", peer, medians[ours] / medians[peer]))
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=30, help="samples of each cell (30)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to FILE as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    sys.setrecursionlimit(5000)  # 400 nested modules
    head = machine(["treewright", "jax", "equinox", "jax_dataclasses"])
    print(f"{machine_text(head)}\n{options.repeats} samples of each cell.", flush=True)
    leaves = [jax.device_put(np.float32(index)) for index in range(2 * WALKED)]
    cases = [Case(Key(name, NODES, row), timer) for (name, row), timer in statements(leaves).items()]
    results = measure(cases, repeats=options.repeats)

    for name in TITLES:
        print(f"\n{measure_text(name, results)}")
    lines = lines_of(results)
    print(f"\n{lines_text(lines)}")
    write(options.lines, lines, behind=behind(results))
    if options.json is not None:
        times = [{**dataclasses.asdict(key), "median_ns": one.median * 1e9} for key, one in results.items()]
        report = {"header": head, "results": times, "targets": [dataclasses.asdict(line) for line in lines]}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 1 if options.check and not all(one.reached for one in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
