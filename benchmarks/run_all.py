"""All benchmarks, one after the other, and one table of what they measured.

`make bench` runs it. Each benchmark prints its own tables; the one of all goes to `output/benchmarks.md` too. With
`--docs` the tables and the chart of docs/performance.md are made anew, beside those of other Pythons.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

import _docs
from _lines import Report, lines_text, read
from _report import machine, machine_text

HERE = Path(__file__).parent
BENCHMARKS = (
    "step.py",
    "residual.py",
    "node.py",
    "trees.py",
    "retrace.py",
    "checkpoint.py",
    "checkpoint_steps.py",
    "sharding.py",
    "typing/compare.py",
)
LIBRARIES = (
    *("treewright", "jax", "flax", "equinox", "chex", "jax_dataclasses", "simple_pytree", "penzai", "sepes", "jarp"),
    *("tjax", "optax", "orbax-checkpoint", "safetensors", "mypy", "pyright"),
)


def main() -> int:
    """Run, print, write, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", metavar="NAME", help="benchmarks whose name contains NAME")
    parser.add_argument("--output", type=Path, default=Path("output"), help="folder for benchmarks.md (output)")
    parser.add_argument("--docs", action="store_true", help="make the tables of docs/performance.md anew from this run")
    options = parser.parse_args()
    if options.docs and options.only:
        parser.error("--docs takes all benchmarks, since a table is from one run")
    chosen = [name for name in BENCHMARKS if not options.only or any(part in name for part in options.only)]
    began = time.monotonic()
    failed: list[str] = []
    report = Report()
    with tempfile.TemporaryDirectory() as folder:
        for index, name in enumerate(chosen):
            print(f"\n=== {name}\n", flush=True)
            started, found = time.monotonic(), Path(folder) / f"{index}.json"
            command = [sys.executable, str(HERE / name), "--lines", str(found)]
            if options.docs and name == "step.py":
                command += ["--chart", str(_docs.CHART)]
            run = subprocess.run(command, check=False)  # noqa: S603  the benchmarks beside this file
            report.add(read(found))
            print(f"\n{name} took {time.monotonic() - started:.0f} s.", flush=True)
            failed += [name] * bool(run.returncode)
    installed = [name for name in LIBRARIES if find_spec(name) is not None or "-" in name]
    where = machine_text(machine(installed))
    text = f"{where}\n\n{lines_text(report.lines)}\n"
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "benchmarks.md").write_text(text, encoding="utf-8")
    print(f"\n=== all\n\n{text}\n{time.monotonic() - began:.0f} s. The table is in {options.output / 'benchmarks.md'}.")
    if options.docs:
        _docs.keep(where, report)
        _docs.update_page()
    for name in failed:
        print(f"{name} failed: what it has not measured is missing above{' and on the page' * options.docs}.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
