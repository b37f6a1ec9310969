"""How long each checker takes for 100 node classes, against 100 plain frozen dataclasses: CPU seconds, their ratio.

Imports are the same in all three files, so that a ratio is about the classes. Each file is checked three times, with
cold caches, in turn, and the least counts.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from _checkers import CHECKERS, cpu_seconds, version

TARGET = 1.2
HEAD = """
import dataclasses

import jax
from treewright import Module, field, pytree_dataclass, static
"""
CLASS = """

{decorator}
class {name}{base}:
    kernel: jax.Array
    bias: jax.Array
    scale: float = {static_}(default=1.0)
    sizes: tuple[int, ...] = {static_}(default=())
    first: jax.Array | None = {field}(default=None)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.scale * (x @ self.kernel) + self.bias


def use_{name}(x: jax.Array) -> jax.Array:
    layer = {name}(kernel=x, bias=x, scale=2.0)
    return layer(layer.kernel) + layer.bias
"""
SPELLINGS = {
    "plain frozen dataclasses": ("@dataclasses.dataclass(frozen=True)", "", "dataclasses.field", "dataclasses.field"),
    "pytree_dataclass": ("@pytree_dataclass", "", "static", "field"),
    "Module": ("", "(Module)", "static", "field"),
}


def program(spelling: str, count: int) -> str:
    """The text of a file with `count` classes."""
    decorator, base, static_, field = SPELLINGS[spelling]
    parts = {"decorator": decorator, "base": base, "static_": static_, "field": field}
    return HEAD + "".join(CLASS.format(name=f"Layer{n}", **parts) for n in range(count))


def seconds(checker: str, target: str, count: int, rounds: int) -> dict[str, float]:
    """The least CPU seconds for each spelling."""
    least = dict.fromkeys(SPELLINGS, float("inf"))
    for _ in range(rounds):
        for spelling in SPELLINGS:
            with tempfile.TemporaryDirectory() as folder:
                (Path(folder) / "classes.py").write_text(program(spelling, count), encoding="utf-8")
                taken = cpu_seconds(checker, Path(folder), "classes.py", target)
            least[spelling] = min(least[spelling], taken)
    return least


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checker", action="append", choices=list(CHECKERS), help="this checker only")
    parser.add_argument("--target", default="3.13", help="the Python version that checkers assume (3.13)")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true", help=f"exit with 1 if a ratio is above {TARGET}")
    options = parser.parse_args()
    reached = True
    print(f"{options.classes} classes, CPU seconds; as a ratio to the plain ones: at most {TARGET}\n")
    print("| checker | plain | pytree_dataclass | Module |\n|---|---:|---:|---:|")
    for checker in options.checker or CHECKERS:
        plain, *ours = seconds(checker, options.target, options.classes, options.rounds).values()
        ratios = [taken / plain for taken in ours]
        print(f"| {checker} {version(checker)} | {plain:.2f} s | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)
        reached = reached and max(ratios) <= TARGET
    return 1 if options.check and not reached else 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
