"""What mypy and pyright make of each library's classes: the same expressions, and the verdict asked of each.

`python benchmarks/typing/compare.py` prints a table for each checker; README.md beside this file says how to read them.
"""

import argparse
import contextlib
import importlib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

# Before jax is imported: what the expressions do is the same on every device, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
sys.path.append(str(Path(__file__).parents[1]))

from _checkers import CHECKERS, Complaints, mypy, version
from _libraries import LIBRARIES, Library
from _lines import Line, add_option, write
from _programs import Program, expressions, program
from _tables import Row, details, legend, table
from _verdicts import verdicts

# For the spellings that say `frozen=True`, and for the plain `Module` of the README.
TARGETS = {"mypy": 0.98, "pyright": 0.96, "basedpyright": 0.96, "ty": 0.94, "pyrefly": 0.94, "zuban": 0.94}
PLAIN_TARGETS = {"mypy": 0.97, "pyright": 0.93, "basedpyright": 0.93, "ty": 0.91, "pyrefly": 0.91, "zuban": 0.93}
FOLLOW = ("--follow-untyped-imports", "--implicit-reexport")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="3.11", help="the Python version that checkers assume (3.11)")
    parser.add_argument("--only", action="append", metavar="NAME", help="libraries whose name contains NAME")
    parser.add_argument("--checker", action="append", choices=list(CHECKERS), help="this checker only")
    parser.add_argument("--show", action="store_true", help="show each expression that is not right, and the messages")
    parser.add_argument("--run", action="store_true", help="run the expressions under Python instead of checking them")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the programs there and leave them")
    parser.add_argument("--check", action="store_true", help="exit with 1 if Treewright misses a target")
    add_option(parser)
    options = parser.parse_args(arguments)
    options.checker = options.checker or list(CHECKERS)
    return options


def problem(library: Library) -> str | None:
    """Why a library is left out; None if it is not."""
    try:
        importlib.import_module(library.distribution)
    except Exception as error:  # noqa: BLE001 - a broken peer must not stop the others
        return f"{type(error).__name__}: {error}"
    return None


def typed(library: Library) -> bool:
    """Whether the library tells checkers to use its annotations."""
    spec = find_spec(library.distribution)
    return spec is not None and spec.origin is not None and (Path(spec.origin).parent / "py.typed").exists()


def checked(checker: str, programs: Sequence[Program], folder: Path, target: str) -> Iterator[Row]:
    """A row for each program; for mypy a second one where the library has no py.typed, with its imports followed."""

    def rows(chosen: Sequence[Program], said: Complaints, suffix: str = "") -> Iterator[Row]:
        for one in chosen:
            yield Row(one.library.name + suffix, one, verdicts(one, said), said)

    yield from rows(programs, CHECKERS[checker](folder, [one.file for one in programs], target))
    if checker != "mypy":
        return
    untyped = [one for one in programs if not typed(one.library)]
    if untyped:
        followed = mypy(folder, [one.file for one in untyped], target, *FOLLOW)
        yield from rows(untyped, followed, ", followed")


def compared(options: argparse.Namespace, programs: Sequence[Program], folder: Path) -> bool:
    """Print the tables; whether Treewright was compared and reaches the targets."""
    reached = any(one.library.ours for one in programs)
    lines: list[Line] = []
    for checker in options.checker:
        rows = list(checked(checker, programs, folder, options.target))
        print(f"\n{checker} {version(checker)}, target Python {options.target}\n\n{table(rows)}")
        for row in rows:
            if options.show:
                print(f"\n{checker}, {row.name}", *details(row), sep="\n")
            reached = reached and (not row.program.library.ours or row.share >= asked(checker, row))
        lines += _lines(checker, rows)
    write(options.lines, lines)
    return reached


def asked(checker: str, row: Row) -> float:
    """The share that Treewright is to reach."""
    return (PLAIN_TARGETS if row.program.library.plain else TARGETS)[checker]


def _lines(checker: str, rows: Sequence[Row]) -> Iterator[Line]:
    """Our rows against the best of the others."""
    best = max((row for row in rows if not row.program.library.ours), key=lambda row: row.share, default=None)
    for row in rows:
        if row.program.library.ours:
            yield Line(
                f"expressions that {checker} gets right, {row.name}",
                "-" if best is None else f"{best.name}: {best.share:.1%}",
                f"{row.share:.1%}",
                f">= {asked(checker, row):.0%}",
                row.share >= asked(checker, row),
            )


def ran(programs: Sequence[Program], folder: Path) -> bool:
    """Print where Python disagrees with the verdicts asked; whether it agrees everywhere."""
    from _runs import disagreements

    agrees = True
    for one in programs:
        with contextlib.redirect_stdout(io.StringIO()):
            found = list(disagreements(one, folder / one.file))
        print(f"{one.library.name}: {len(one.asked)} expressions, {len(found)} disagreements", *found, sep="\n    ")
        agrees = agrees and not found
    return agrees


def main() -> int:
    """Compare, print, and return the exit code."""
    options = parse()
    chosen = [one for one in LIBRARIES if not options.only or any(part in one.name for part in options.only)]
    problems = {one.name: problem(one) for one in chosen}
    programs = [program(one) for one in chosen if problems[one.name] is None]
    print(f"{len(list(expressions()))} expressions. {legend()}.")
    print(
        ", ".join(dict.fromkeys(f"{one.library.distribution} {version(one.library.distribution)}" for one in programs))
    )
    for name, reason in problems.items():
        if reason is not None:
            print(f"Left out: {name} ({reason})")
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        for one in programs:
            (folder / one.file).write_text(one.text, encoding="utf-8")
        good = ran(programs, folder) if options.run else compared(options, programs, folder)
    return 1 if (options.check or options.run) and not good else 0


if __name__ == "__main__":
    sys.exit(main())
