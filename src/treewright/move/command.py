"""`python -m treewright move PATH...`: programs written for other libraries, rewritten, as a diff or in place."""

import argparse
import contextlib
import difflib
import io
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treewright.errors import CheckpointError, missing_extra
from treewright.move.libraries import LIBRARIES

if TYPE_CHECKING:
    from treewright.move.source import Source

_HELP = (
    "Rewrite Python files so that classes of other libraries become nodes. The diff goes to standard output, and "
    "nothing is changed without --write. What has to be looked at goes to standard error, by file and line."
)
_STATUS = (
    "exit status: 0; 1 if something could not be decided; 2 if a file can't be read, does not parse or can't be "
    "written, and then none is changed"
)


def main(arguments: list[str]) -> int:
    """Do what the arguments say. The exit status: 0; 1 if something could not be decided; 2 if nothing was done."""
    options = _parser().parse_args(arguments)
    try:
        from treewright.move.rewrite import moved
        from treewright.move.source import read
    except ImportError as error:
        raise missing_extra("python -m treewright move", "libcst", "move") from error
    chosen = [library for library in LIBRARIES if options.library in {library.name, "auto"}]
    try:
        sources = [read(path) for path in _files(options.paths)]
        texts = list(moved(sources, chosen))
        changed = [(source, text) for source, text in zip(sources, texts, strict=True) if text != source.content]
        if options.write:
            _write(changed)
    except (OSError, ValueError, CheckpointError) as error:
        sys.stderr.write(f"{error}\nNothing has been changed.\n")
        return 2
    for source, text in changed:
        sys.stdout.writelines(_diff(source, text))
    sys.stdout.flush()
    sys.stderr.writelines(_account(sources, texts, written=options.write))
    return int(any(finding.undecided for source in sources for finding in source.findings))


def _parser() -> argparse.ArgumentParser:
    names = [library.name for library in LIBRARIES]
    parser = argparse.ArgumentParser(prog="python -m treewright move", description=_HELP, epilog=_STATUS)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a Python file, or a folder of them")
    origin = "the library to move from; auto, the default, is all of them"
    parser.add_argument("--from", choices=[*names, "auto"], default="auto", dest="library", help=origin)
    parser.add_argument("--write", action="store_true", help="change the files")
    return parser


def _files(paths: Iterable[Path]) -> list[Path]:
    """The Python files that the paths lead to, each once; hidden folders and virtual environments are left out.

    Raises:
        FileNotFoundError: If a path leads to nothing.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} is neither a file nor a folder.")
        found += _files_below(path) if path.is_dir() else [path]
    return list({path.resolve(): path for path in found}.values())


def _files_below(folder: Path) -> Iterator[Path]:
    for here, folders, files in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if not name.startswith(".") and not Path(here, name, "pyvenv.cfg").exists()
        )
        yield from (Path(here, name) for name in sorted(files) if name.endswith(".py"))


def _write(changed: Iterable[tuple["Source", bytes]]) -> None:
    """Write all files: each appears whole, and none before all have been written beside their places."""
    from treewright.checkpoint.file import replacing

    with contextlib.ExitStack() as stack:
        for source, text in changed:
            stack.enter_context(replacing(source.path)).write_bytes(text)


def _diff(source: "Source", text: bytes) -> Iterator[str]:
    # As Python reads lines, and not at form feeds and the like, where str.splitlines splits too.
    texts = (io.StringIO(part.decode(source.module.encoding), newline="") for part in (source.content, text))
    before, after = (part.readlines() for part in texts)
    for line in difflib.unified_diff(before, after, str(source.path), str(source.path)):
        yield line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"


def _account(sources: Sequence["Source"], texts: Sequence[bytes], *, written: bool) -> Iterator[str]:
    """What has to be looked at: first what could not be decided, then what means something else now."""
    undecided, known = dict[str, None](), dict[str, None]()
    for source, text in zip(sources, texts, strict=True):
        line_now = _lines_now(source.content, text) if written else {}
        for finding in sorted(source.findings):
            line = line_now.get(finding.line, finding.line)
            shown = f"  {source.path}:{line}: {finding.text} ({finding.page})\n"
            (undecided if finding.undecided else known)[shown] = None
    for title, lines in (("Could not be decided", undecided), ("Means something else now, or was left", known)):
        yield from [f"{title}:\n", *lines] if lines else []


def _lines_now(before: bytes, after: bytes) -> dict[int, int]:
    """Where each line of a file is after it was rewritten."""
    numbers: dict[int, int] = {}
    for _, start, end, new, new_end in difflib.SequenceMatcher(
        None, before.splitlines(), after.splitlines(), autojunk=False
    ).get_opcodes():
        numbers |= {line + 1: min(new + line - start, max(new_end - 1, 0)) + 1 for line in range(start, end)}
    return numbers
