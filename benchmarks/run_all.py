"""All benchmarks, one after the other, and one table of what they measured.

`make bench` runs it. Each benchmark prints its own tables; the one of all goes to `output/benchmarks.md` too.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from _lines import lines_text, read
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
    options = parser.parse_args()
    chosen = [name for name in BENCHMARKS if not options.only or any(part in name for part in options.only)]
    began = time.monotonic()
    failed: list[str] = []
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for index, name in enumerate(chosen):
            print(f"\n=== {name}\n", flush=True)
            found = Path(folder) / f"{index}.json"
            command = [sys.executable, str(HERE / name), "--lines", str(found)]
            run = subprocess.run(command, check=False)  # noqa: S603  the benchmarks beside this file
            lines += read(found)
            failed += [name] * bool(run.returncode)
    installed = [name for name in LIBRARIES if find_spec(name) is not None or "-" in name]
    text = f"{machine_text(machine(installed))}\n\n{lines_text(lines)}\n"
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "benchmarks.md").write_text(text, encoding="utf-8")
    print(f"\n=== all\n\n{text}\n{time.monotonic() - began:.0f} s. The table is in {options.output / 'benchmarks.md'}.")
    for name in failed:
        print(f"{name} failed: what it has not measured is missing above.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
