"""What a node costs: Treewright against built-in containers and other pytree libraries, as ratios from one run.

`python benchmarks/node.py` prints a table for each measure and the targets with their verdicts; README.md beside this
file says how to read them.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

# Before jax is imported: the cost of a node is a cost on the host, and a CPU is what every machine has.
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import _statics
from _lines import add_option, lines_text, write
from _measures import MEASURES, cases
from _peers import LIBRARIES, problem
from _report import as_json, header, header_text, measure_text
from _targets import behind, targets, verdict
from _timing import measure

CHILDREN = (1, 2, 8, 20)
QUICK_CHILDREN = (2, 8)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not a positive number")
    return number


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer samples, and 2 and 8 children only")
    names = [*(one.name for one in MEASURES), _statics.NAME]
    parser.add_argument("--only", action="append", choices=names, help="this measure only; may be given several times")
    parser.add_argument("--repeats", type=_positive, help="samples of each cell (60; 15 with --quick)")
    parser.add_argument("--classes", type=_positive, help="classes made of each kind (60; 10 with --quick)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the run to FILE as well")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached or not measured")
    add_option(parser)
    options = parser.parse_args(arguments)
    if options.json is not None and not options.json.parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.parent}")
    options.repeats = options.repeats or (15 if options.quick else 60)
    options.classes = options.classes or (10 if options.quick else 60)
    return options


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    began = time.monotonic()
    children = QUICK_CHILDREN if options.quick else CHILDREN
    measures = [one for one in MEASURES if not options.only or one.name in options.only]
    problems = {library.name: problem(library) for library in LIBRARIES}
    left_out = {name: reason for name, reason in problems.items() if reason is not None}
    libraries = [library for library in LIBRARIES if library.name not in left_out]

    head = header(libraries, left_out, repeats=options.repeats, classes=options.classes)
    print(header_text(head), flush=True)
    shared = [one for one in measures if one.name != "class"]
    statics = list(_statics.cases()) if not options.only or _statics.NAME in options.only else []
    results = measure([*cases(shared, libraries, children), *statics], repeats=options.repeats)
    # Last, because the classes stay registered: jax keeps them for ever.
    creation = [one for one in measures if one.name == "class"]
    results |= measure(list(cases(creation, libraries, children)), repeats=options.classes)

    for one in measures:
        print(f"\n{measure_text(one, results, libraries, children)}")
    if statics:
        print(f"\n{_statics.text(results)}")
    verdicts = [found for target in targets(children) if (found := verdict(results, target)) is not None]
    lines = [one.line() for one in verdicts]
    print(f"\n{lines_text(lines)}\n\n{time.monotonic() - began:.0f} s")
    write(options.lines, lines, behind=behind(results, measures))
    if options.json is not None:
        options.json.write_text(json.dumps(as_json(head, results, verdicts), indent=1) + "\n", encoding="utf-8")
    return 1 if options.check and not all(one.reached for one in verdicts) else 0


if __name__ == "__main__":
    sys.exit(main())
