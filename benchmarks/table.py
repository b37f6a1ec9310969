"""The table of docs/performance.md, from measurements: `python benchmarks/table.py FILE ...` writes it.

The files are pytest-benchmark's. `make bench` runs it on what it has just measured, so no figure is copied by hand. The
measured times are also written to measured.json, which a test compares with the table.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
MEASURED = Path(__file__).with_name("measured.json")
START, END = "<!-- written by benchmarks/table.py -->\n", "<!-- end of the table -->\n"
LIBRARIES = ("jax", "jax_dataclasses", "equinox", "flax", "orbax-checkpoint", "safetensors")


class Row(NamedTuple):
    """A row: two ways in a group of a benchmark file, and what the table calls them."""

    operation: str
    way: str
    other: str
    named: str  # the other way
    group: str
    command: str  # after `.venv/bin/pytest benchmarks/`


SET = "Change one leaf in a tree of 1,000 nodes (`at`)", "treewright.at"
CONSTRUCT = "Construct a node of 4 children and a static", "treewright.Module"
INIT = "Construct a node with a custom `__init__`", "treewright.Module"
FLATTEN = "Flatten a node of 4 children", "treewright.Module"
WALK = "once through 10,000 nodes", "test_trees.py -k walk"
OWN_INIT = "an __init__ of one's own, 2 children and 2 statics", "test_trees.py -k own_init"
SETTING = "set one leaf among 1,000 nodes", "test_trees.py -k update"
NODE = "construct a node, 4 children", "test_nodes.py -k construction"
FLAT = "flatten 100 nodes, 4 children each", "test_nodes.py -k test_flatten"
PATHS = "test_nodes.py -k with_path"
RETRACES = "in explain_retraces", "without", "outside"
FILE = "treewright.checkpoint", "safetensors", "safetensors"
STEP = "treewright.checkpoint", "orbax", "Orbax"
ROWS = [
    Row(*SET, "equinox.tree_at", "equinox's `tree_at`", *SETTING),
    Row(*SET, "jax_dataclasses.copy_and_mutate", "jax_dataclasses' `copy_and_mutate`", *SETTING),
    Row(*CONSTRUCT, "equinox", "equinox", *NODE),
    Row(*CONSTRUCT, "flax.struct", "`flax.struct`", *NODE),
    Row(
        "Construct a node of 4 children and a static, beside an equal one",
        *("treewright.Module", "flax.struct", "`flax.struct`"),
        *("construct a node, 4 children, beside an equal one", "test_nodes.py -k construction"),
    ),
    *(
        Row(operation, "treewright.Module", other, f"`{other}`", group, f"test_nodes.py -k {test}")
        for operation, other, group, test in (
            ("Compare two nodes with `==`", "register_dataclass", "compare two nodes with ==", "equality"),
            ("Hash a node", "register_dataclass", "hash a node", "test_hash"),
            ("Pickle 100 nodes and load them", "register_dataclass", "pickle 100 nodes and load them", "pickle"),
            ("Call a method of a node", "flax.struct", "call a method of a node", "test_method"),
            ("Construct a node with a `__post_init__`", "flax.struct", "construct a node with a __post_init__", "post"),
        )
    ),
    Row(*INIT, "equinox", "equinox", *OWN_INIT),
    Row(*INIT, "a plain class", "a plain class", *OWN_INIT),
    Row(
        "Construct 400 modules, nested in each other",
        *("treewright.Module", "equinox", "equinox"),
        *("400 nested modules with a custom __init__", "test_trees.py -k nested"),
    ),
    Row(
        "Construct a node with a new `optax.adamw(1e-3)` as its static",
        *("optax.adamw, a new one each time", "a str", "a node with a `str`"),
        *("construct a node whose static is", "test_nodes.py -k static"),
    ),
    Row(
        "Create a class",
        *("treewright.Module", "register_dataclass", "`register_dataclass`"),
        *("make a class of 4 children and a static", "test_nodes.py -k class"),
    ),
    Row(*FLATTEN, "equinox", "equinox", *FLAT),
    Row(*FLATTEN, "flax.struct", "`flax.struct`", *FLAT),
    Row(
        "Flatten a node of one child",
        *("treewright.Module", "flax.struct", "`flax.struct`"),
        *("flatten 100 nodes, 1 children each", "test_nodes.py -k test_flatten"),
    ),
    Row(
        "Flatten a node of 4 children, with paths",
        *("treewright.Module", "register_dataclass", "`register_dataclass`"),
        *("flatten 100 nodes with paths, 4 children each", PATHS),
    ),
    Row(
        "Flatten a node of one child, with paths",
        *("treewright.Module", "register_dataclass", "`register_dataclass`"),
        *("flatten 100 nodes with paths, 1 children each", PATHS),
    ),
    Row(
        "Unflatten a node of 4 children",
        *("treewright.Module", "flax.struct", "`flax.struct`"),
        *("unflatten 100 nodes, 4 children each", "test_nodes.py -k unflatten"),
    ),
    Row(
        "A jitted call that takes and returns 100 nodes of 4 children",
        *("treewright.Module", "tuple", "plain tuples"),
        *("a jitted call that takes and returns 100 nodes, 4 children each", "test_nodes.py -k jitted"),
    ),
    Row(
        "`replace` one field",
        *("treewright.replace", "dataclasses.replace, register_dataclass", "`dataclasses.replace`"),
        *("replace one field of a node", "test_trees.py -k replace"),
    ),
    Row("`count` the parameters of 10,000 nodes", "treewright.count", "jax.tree.map", "one `jax.tree.map`", *WALK),
    Row(
        "`summary` of 10,000 nodes, as text",
        *("treewright.summary, as text", "jax.tree.map", "one `jax.tree.map`"),
        *WALK,
    ),
    Row(
        "`diff` of two trees of 1,000 nodes with equal arrays",
        *("treewright.diff, equal arrays", "jax.tree.flatten of both", "`jax.tree.flatten` of both"),
        *("compare two trees of 1,000 nodes", "test_trees.py -k compare"),
    ),
    Row(
        "Jitted calls inside `explain_retraces`",
        *RETRACES,
        *("100 jitted calls of 216 arrays that hit the cache", "test_retrace.py -k hit"),
    ),
    Row(
        "A call that retraces, inside `explain_retraces`",
        *RETRACES,
        *("a jitted function of 216 arrays is traced and compiled again", "test_retrace.py -k miss"),
    ),
    Row(
        "`sharded_init` of 120 arrays on 8 devices",
        *("sharding.sharded_init", "jit with out_shardings", "`jit` with `out_shardings`"),
        *("make a training state of 120 arrays where it will live", "test_sharding.py -k init"),
    ),
    *(
        Row(
            f"{action} a file of 80 MiB in {count:,} arrays{', verified' if action == 'Load' else ''}",
            *FILE,
            *(f"{action.lower()} a file of 80 MiB in {count} arrays", f"test_checkpoint.py -k {action.lower()}"),
        )
        for action in ("Load", "Save")
        for count in (8, 2000)
    ),
    *(
        Row(f"{action} {case}", *STEP, f"{group} {case}", "test_steps.py")
        for group, action in (("save", "Save a step of"), ("restore", "Restore a step of"))
        for case in (
            "3,000 arrays of 100 kB",
            "20,000 arrays of 10 kB",
            "1 GiB in 16 arrays",
            "100 arrays on 128 devices",
        )
    ),
    *(
        Row(f"The call of `save` for {case}", *STEP, f"hold for {case}", "test_steps.py")
        for case in ("3,000 arrays of 100 kB", "1 GiB in 16 arrays")
    ),
    *(
        Row(f"Save 40 replicated arrays on {count} for the first time", *STEP, f"save {case}", "test_steps.py")
        for count, case in (
            ("a device", "40 arrays on 1 devices, the first time"),
            ("8 devices", "40 arrays on 8 devices, the first time"),
        )
    ),
    Row(
        "Open a run of 300 steps of 2,000 arrays, and find the best",
        *STEP,
        "the best of 300 steps of 2,000 arrays",
        "test_steps.py",
    ),
]


def measured(files: list[Path]) -> dict[str, Any]:
    """The shortest time of each way that a row needs, in seconds, and where it was measured."""
    times: dict[str, dict[str, float]] = {}
    needed = {(row.group, way) for row in ROWS for way in (row.way, row.other)}
    machine: dict[str, Any] = {}
    for file in files:
        run = json.loads(file.read_text(encoding="utf-8"))
        machine = run["machine_info"]
        for each in run["benchmarks"]:
            group, way, seconds = each["group"], each["params"]["way"], each["stats"]["min"]
            if (group, way) in needed:
                of_group = times.setdefault(group, {})
                of_group[way] = float(f"{min(seconds, of_group.get(way, seconds)):.3g}")
    versions = {name: importlib.metadata.version(name) for name in LIBRARIES}
    cpu = f"{machine['cpu']['count']} cores of an {machine['cpu']['brand_raw']}"
    return {"machine": cpu, "python": machine["python_version"], "versions": versions, "seconds": times}


def table(results: Mapping[str, Any]) -> str:
    """The sentence on the machine and the table, the smallest ratio first."""
    ratios: list[tuple[float, str]] = []
    for row in ROWS:
        ours, other = (results["seconds"][row.group][way] for way in (row.way, row.other))
        larger = max(ours / other, other / ours)
        ratio = f"{ours / other:.2f}" if larger < 10 else f"1/{larger:.0f}" if ours < other else f"{larger:.0f}"
        line = f"| {row.operation} | {time_of(ours)} | {ratio} | {row.named} | `{row.command}` |\n"
        ratios.append((ours / other, line))
    versions = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return (
        f"Measured on {results['machine']}, with Python {results['python']},\n{versions}.\n\n"
        "| operation | time | ratio | compared with | command |\n|---|---:|---:|---|---|\n"
        + "".join(line for _, line in sorted(ratios))
    )


def time_of(seconds: float) -> str:
    """A time with three digits, in its unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def with_table(page: str, results: Mapping[str, Any]) -> str:
    """The page with the table between its two marks."""
    before, _, rest = page.partition(START)
    return before + START + table(results) + END + rest.partition(END)[2]


if __name__ == "__main__":
    found = measured([Path(name) for name in sys.argv[1:]])
    MEASURED.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
