"""The lines that the same sharded decoder needs here, in flax nnx and in equinox; and whether it is the same.

`python benchmarks/lines/compare.py` counts, and then counts a residual network with batch norm and dropout in the same
way. `--run` trains each decoder in the six layouts, and compares the losses with those of one device, and what each
device holds at the end with ours.
"""

import argparse
import ast
import importlib
import io
import itertools
import os
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

from benchmarks._lines import table

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
OURS = ROOT / "examples" / "transformer_sharded.py"
PROGRAMS = {"treewright": OURS, "flax nnx": HERE / "decoder_nnx.py", "equinox": HERE / "decoder_equinox.py"}
MARKERS = ("# The model.", "# The sharding", "# The program")
RESIDUAL = {"treewright": ROOT / "examples" / "residual.py", "equinox": HERE / "residual_equinox.py"}
RESIDUAL_MARKERS = ("# The model.", "# The training.", "# The program")
RULES = ("BOTH", "INSIDE", "KEPT", "USED", "NAMES", "LAYOUTS")  # names in ours, which the others import
SKIPPED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> set[int]:
    """The numbers of the lines that hold code: not blank, not a comment alone, not a docstring."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SKIPPED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                lines.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def assigned(source: str, names: Sequence[str]) -> Iterator[int]:
    """The numbers of the lines in which these names of a module get their values."""
    for node in ast.parse(source).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id in names for target in targets):
            yield from range(node.lineno, (node.end_lineno or node.lineno) + 1)


def parts(source: str, markers: Sequence[str]) -> list[set[int]]:
    """The numbers of the lines of code between each marker and the next.

    Raises:
        ValueError: If a marker is missing or the markers are in another order.
    """
    starts = [source.find(f"\n{marker}") for marker in markers]
    if -1 in starts or starts != sorted(starts):
        raise ValueError(f"A program has the markers {', '.join(markers)}, in this order.")
    code, lines = code_lines(source), [source.count("\n", 0, start) + 2 for start in starts]
    return [code & set(range(*ends)) for ends in itertools.pairwise(lines)]


def counted(source: str) -> dict[str, int]:
    """The lines of code of the model, of the rules, and of what else there is about sharding, by the program's markers.

    Raises:
        ValueError: If a marker is missing or the markers are in another order.
    """
    model, sharding = parts(source, MARKERS)
    rules = set(assigned(source, RULES)) & code_lines(source)
    return {"model": len(model), "rules": len(rules), "sharding": len(sharding - rules)}


def counts() -> str:
    """The lines of each program, as a table. The rules stand in ours; the others need them as much."""
    found = {name: counted(path.read_text(encoding="utf-8")) for name, path in PROGRAMS.items()}
    rows = [["lines of code", *found["treewright"], "together"]]
    for name, one in found.items():
        whole = one | {"rules": found["treewright"]["rules"]}
        rows.append([name, *map(str, whole.values()), str(sum(whole.values()))])
    return table(rows)


def residual_counts() -> str:
    """The lines of the residual network and of its training, as a table."""
    rows = [["lines of code", "model", "training", "together"]]
    for name, path in RESIDUAL.items():
        lengths = [len(part) for part in parts(path.read_text(encoding="utf-8"), RESIDUAL_MARKERS)]
        rows.append([name, *map(str, lengths), str(sum(lengths))])
    return table(rows)


def held(state: Any) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shape of each array and of a device's part of it, in an order that is the same in all libraries."""
    import jax

    arrays = [leaf for leaf in jax.tree.leaves(state) if leaf.ndim]
    return sorted((leaf.shape, leaf.sharding.shard_shape(leaf.shape)) for leaf in arrays)


def differences(module: str, layout: str, compute: str, steps: int) -> tuple[float, bool]:
    """How far the losses are from ours on one device, and whether each device holds what it does with ours."""
    import jax
    import jax.numpy as jnp

    from examples import transformer_sharded as ours
    from treewright.sharding import abstract_state

    dtype = jnp.dtype(compute)
    with ours.laid_out(layout) as (mesh, kept):
        like = abstract_state(ours.make_state, jax.random.key(0), dtype, mesh=mesh, rules=kept)
    target, state, losses = importlib.import_module(module).train(layout, dtype, steps)
    pairs = zip(losses, ours.alone(compute, steps), strict=True)
    return max(abs(one - other) for one, other in pairs), held(target) == held(state) == held(like)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count, and run if asked; 1 if a program does not do the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="train each, and compare with ours")
    parser.add_argument("--steps", type=int, default=5, help="updates of the model (5)")
    parser.add_argument("--compute", choices=("bfloat16", "float32"), default="float32", help="in what layers compute")
    parser.add_argument("--layout", nargs="+", metavar="NAME", help="these layouts alone")
    options = parser.parse_args(arguments)
    print(f"{counts()}\n\n{residual_counts()}")
    if not options.run:
        return 0
    # Before jax is imported: eight devices of the CPU, as parts of one machine.
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
    from examples.transformer_sharded import LAYOUTS

    limit, wrong = (1e-4 if options.compute == "float32" else 1e-2), 0
    for name, path in [*PROGRAMS.items()][1:]:
        for layout in options.layout or LAYOUTS:
            difference, same = differences(f"benchmarks.lines.{path.stem}", layout, options.compute, options.steps)
            wrong += not same or difference > limit
            parts = "the same parts" if same else "OTHER PARTS"
            print(f"{name}, {layout}: losses at most {difference:.1e} from one device, {parts} on each device")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
