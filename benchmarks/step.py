"""What one training step costs: a state of 24 layers and 676 leaves, as each library would have it, in one run.

`python benchmarks/step.py` prints a table and the targets with their verdicts; README.md beside this file says how to
read them.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Before jax is imported: these are costs on the host, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
from _chart import Bar, svg
from _lines import Behind, Line, add_option, lines_text, table, write
from _report import duration, machine, machine_text, peak
from _timing import timed
from _ways import LAYERS, Way, leaves_of, makers, ways

SMALL, LARGE = 2, 2**16  # elements of an array: for times, and for the peak of memory
STEPS = 3  # in one sample
FRESH = 5  # samples before each way gets arrays at other addresses: where they lie is worth some per cent
BASE, LIMIT = "nested dicts", "a flat list"
# The most that ours may cost, against the base or the limit.
TARGETS = (
    ("treewright.loop", LIMIT, 1.03),
    ("treewright.loop", BASE, 0.85),
    ("treewright.pytree_dataclass", BASE, 1.12 if sys.version_info < (3, 12) else 1.08),
    ("treewright.Module", BASE, 1.12 if sys.version_info < (3, 12) else 1.08),
)
MEASURES = {
    "step": "one training step",
    "build": "building the model",
    "forward": "an eager forward pass",
    "first": "the first call",
    "memory": "peak memory",
}
Samples = dict[str, dict[str, list[float]]]  # by measure and way


def first_calls(chosen: Sequence[Way], left_out: dict[str, str]) -> dict[str, Any]:
    """What starts a run of each way, after its first call."""
    x = jax.device_put(np.float32(1))
    starts: dict[str, Any] = {}
    for way in chosen:
        try:
            start = way.begin(way.code)
            jax.block_until_ready(start(way.model(leaves_of(SMALL)))(x))
            starts[way.name] = start
        except Exception as error:  # noqa: BLE001 - a broken peer must not stop the others
            left_out[way.name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return starts


def measure(chosen: Sequence[Way], starts: dict[str, Any], repeats: int) -> Samples:
    """Steps, models and eager passes: the ways take turns, in another order in each round.

    Were the order always the same, one way would always find the caches as the slowest one left them.
    """
    random = np.random.default_rng(0)
    x = jax.device_put(np.float32(1))
    samples: Samples = {name: {} for name in MEASURES}
    for repeat in range(repeats):
        turns = [chosen[place] for place in random.permutation(len(chosen))]
        models = {way.name: way.model(leaves_of(SMALL)) for way in turns}
        if repeat % FRESH == 0:
            steps = {way.name: starts[way.name](way.model(leaves_of(SMALL))) for way in turns}
            for way in turns:
                jax.block_until_ready(steps[way.name](x))
        leaves = leaves_of(SMALL)
        for way in turns:
            step, model = steps[way.name], models[way.name]
            samples["step"].setdefault(way.name, []).append(timed(lambda step=step: step(x), STEPS))
            if way.own_model:
                build = timed(lambda way=way, leaves=leaves: way.model(leaves))
                samples["build"].setdefault(way.name, []).append(build)
                forward = timed(lambda way=way, model=model: way.code.forward(model, x))
                samples["forward"].setdefault(way.name, []).append(forward)
    return samples


def alone(way: Way) -> dict[str, float]:
    """In a process of its own: the seconds of the first call, and how far the peak of memory rises in three steps."""
    x = jax.device_put(np.float32(1))
    jax.block_until_ready(x + x)
    before = peak()
    start = way.begin(way.code)
    step = start(way.model(leaves_of(LARGE)))
    first = timed(lambda: step(x))
    timed(lambda: step(x), STEPS)
    return {"first": first, "memory": peak() - before}


def in_processes(chosen: Mapping[str, Sequence[Way]], samples: Samples) -> None:
    """First calls and peaks of memory, each way in a process that has run no other and imported no other library."""
    for library, way in ((library, way) for library, those in chosen.items() for way in those):
        command = [sys.executable, str(Path(__file__)), "--alone", library, way.name]
        result = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  this file
        lines = [line for line in result.stdout.splitlines() if line.startswith("{")]
        for name, value in (json.loads(lines[-1]) if lines else {}).items():
            samples[name][way.name] = [value]


def results_rows(chosen: Sequence[Way], samples: Samples) -> list[list[str]]:
    """A row for each way: the ratio of medians to nested dicts, which stand there with their own values."""
    rows = [["", *MEASURES.values()]]
    for way in chosen:
        cells = [way.name if way.name != BASE else f"{BASE} (base)"]
        for name, by_way in samples.items():
            mine, base = (statistics.median(by_way.get(one, [float("nan")])) for one in (way.name, BASE))
            own = f"{base:.0f} MiB" if name == "memory" else duration(base)
            cells.append("" if way.name not in by_way else own if way.name == BASE else f"{mine / base:.2f}")
        rows.append(cells)
    return rows


def ratio(samples: Samples, one: str, other: str, measure: str = "step") -> float | None:
    """How long a step takes, or something else, against another way."""
    times = samples[measure]
    return statistics.median(times[one]) / statistics.median(times[other]) if {one, other} <= times.keys() else None


def lines_of(samples: Samples) -> list[Line]:
    """Our ways against the targets; then their first calls and peaks of memory, which have none."""
    lines: list[Line] = []
    for name, against, limit in TARGETS:
        measured = ratio(samples, name, against)
        text = "-" if measured is None else f"{measured:.2f}"
        what = f"a training step of 24 layers, {name}"
        lines.append(Line(what, against, text, f"<= {limit:.2f}", None if measured is None else measured <= limit))
    for measure in ("first", "memory"):
        for name in dict.fromkeys(name for name, _, _ in TARGETS):
            if (measured := ratio(samples, name, BASE, measure)) is not None:
                what = f"{MEASURES[measure]} of a training step of 24 layers, {name}"
                lines.append(Line(what, BASE, f"{measured:.2f}", "", None))
    return lines


def behind(chosen: Sequence[Way], samples: Samples) -> list[Behind]:
    """Where a peer is ahead of one of ours; of a step, that is a plain call of ours, not a loop."""
    rows: list[Behind] = []
    ours = [way.name for way in chosen if way.role == "ours"]
    for measure, by_way in samples.items():
        times = {name: statistics.median(values) for name, values in by_way.items()}
        peers = [way.name for way in chosen if way.role == "peer" and way.name in times]
        peer = min(peers, key=times.__getitem__, default="")
        rows += [
            Behind(measure, f"{MEASURES[measure]}, 24 layers, {name}", peer, times[name] / times[peer])
            for name in ours
            if peers and name in times and times[name] > times[peer]
        ]
    return rows


def chart(chosen: Sequence[Way], samples: Samples, head: dict[str, Any]) -> str:
    """The steps as bars, the shortest first."""
    bars = [Bar(way.name, found, way.role) for way in chosen if (found := ratio(samples, way.name, BASE)) is not None]
    versions = f"{head['python']}, JAX {head['versions']['jax']}"
    note = f"{LAYERS} layers, 676 small arrays, on a CPU; {BASE} are 1. {versions}. Shorter is faster."
    return svg("One jitted training step", note, sorted(bars, key=lambda bar: bar.value), longest=4)


def as_json(head: dict[str, Any], samples: Samples, lines: Sequence[Line]) -> dict[str, Any]:
    """The whole run as data: seconds, and MiB of memory."""
    medians = {
        name: {way: statistics.median(values) for way, values in by_way.items()} for name, by_way in samples.items()
    }
    targets = [{"what": line.what, "against": line.against, "measured": line.measured} for line in lines]
    return {"header": head, "medians": medians, "targets": targets}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60, help="samples of each cell (60)")
    parser.add_argument("--quick", action="store_true", help="without first calls and memory, which take processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to FILE as well")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the steps as bars into FILE, an SVG")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)
    add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    if options.alone:
        library, name = options.alone
        print(json.dumps(alone(next(way for way in makers()[library]() if way.name == name))))
        return 0
    by_library, left_out = ways()
    chosen = [way for those in by_library.values() for way in those]
    head = machine(["treewright", "jax", "optax", "flax", "equinox", *(way.distribution for way in chosen)])
    print(f"{machine_text(head)}\n{options.repeats} samples of each cell, ratios of medians to {BASE}.", flush=True)
    starts = first_calls(chosen, left_out)
    chosen = [way for way in chosen if way.name in starts]
    for name, reason in left_out.items():
        print(f"Left out: {name} ({reason})")
    samples = measure(chosen, starts, options.repeats)
    if not options.quick:
        running = {name: [way for way in those if way in chosen] for name, those in by_library.items()}
        in_processes(running, samples)

    rows = results_rows(chosen, samples)
    print(f"\n{table(rows)}")
    lines = lines_of(samples)
    print(f"\n{lines_text(lines)}")
    write(options.lines, lines, {"step": rows}, behind(chosen, samples))
    if options.chart is not None:
        options.chart.write_text(chart(chosen, samples, head), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(head, samples, lines), indent=1) + "\n", encoding="utf-8")
    return 1 if options.check and not all(line.reached for line in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
