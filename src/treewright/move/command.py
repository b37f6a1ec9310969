"""`python -m treewright move PATH...`: print the rewritten programs as a diff, or write them in place."""

import argparse
import difflib
import io
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from treewright._base.lines import counted
from treewright.errors import missing_extra
from treewright.move.libraries import PAGES

if TYPE_CHECKING:
    from treewright.move.program import Source

_HELP = (
    "Rewrite Python files so that classes of other libraries become nodes. The diff goes to standard output, and "
    "nothing is changed without --write. Places to review are listed on standard error, by file and line."
)
_NOTHING = "Nothing has been changed."
_STATUS = (
    "exit status: 0; 1 if something could not be decided; 2 if a file can't be read, does not parse or can't be "
    "written, and then none is changed"
)


def main(arguments: list[str]) -> int:
    """Do what the arguments say. The exit status: 0; 1 if something could not be decided; 2 if nothing was done."""
    options = _parser().parse_args(arguments)
    try:
        import libcst  # noqa: F401
    except ImportError:
        sys.stderr.write(f"{missing_extra('treewright move', 'libcst', 'move')}\n")
        return 2
    from treewright.move.program import Program
    from treewright.move.rewrite import moved

    libraries = [*PAGES] if options.library == "auto" else [options.library]
    try:
        files = _files(options.paths)
        notebooks = [path for path in files if path.suffix == ".ipynb" and _imports_one(path, libraries)]
        program = Program({path: path.read_bytes() for path in files if path.suffix != ".ipynb"}, libraries)
        texts = list(moved(program))
        changed = {source.path: text for source, text in texts if text != source.content}
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n{_NOTHING}\n")
        return 2
    if options.write:
        try:
            _write(changed)
        except OSError as error:
            sys.stderr.write(f"{error}\n")
            return 2
    for source, text in texts:
        if text != source.content:
            sys.stdout.writelines(_diff(source, text))
    sys.stdout.flush()
    sys.stderr.writelines(_account(texts, written=options.write))
    for path in notebooks:
        sys.stderr.write(f"{path} was skipped, since it is a notebook: export it as a .py file, and move that\n")
    count = counted(len(changed), "file")
    last = f"Changed {count}." if options.write else f"{_NOTHING} --write changes {count}."
    sys.stderr.write(f"{last}\n")
    return int(bool(notebooks) or any(notice.undecided for source, _ in texts for notice in source.notices))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m treewright move", description=_HELP, epilog=_STATUS)
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a Python file, or a folder of them")
    origin = "the library to move from; auto, the default, is all of them"
    parser.add_argument("--from", choices=[*PAGES, "auto"], default="auto", dest="library", help=origin)
    parser.add_argument("--write", action="store_true", help="change the files")
    return parser


def _files(paths: Iterable[Path]) -> list[Path]:
    """The Python files and notebooks below the paths, each once; hidden folders and virtual environments are left out.

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
        yield from (Path(here, name) for name in sorted(files) if name.endswith((".py", ".ipynb")))


def _imports_one(notebook: Path, libraries: Iterable[str]) -> bool:
    pattern = rf"\b(import|from) +({'|'.join(libraries)})\b"
    return re.search(pattern, notebook.read_text("utf-8", "ignore")) is not None


# Writing


def _write(texts: Mapping[Path, bytes]) -> None:
    """Write all files or none: all are written to temporary files first, and then renamed.

    Raises:
        OSError: If one can't be written; the message says whether those before could be put back.
    """
    places = {path.resolve(): text for path, text in texts.items()}  # Links are resolved to their files.
    before = {place: place.read_bytes() for place in places}
    staged: dict[Path, Path] = {}
    renamed: list[Path] = []
    try:
        for place, text in places.items():
            staged[place] = _staged(place, text)
        for place, temporary in staged.items():
            temporary.replace(place)
            renamed.append(place)
    except OSError as error:
        left = [str(place) for place in renamed if not _put_back(place, before[place])]
        lines = ["These files have been changed, and could not be put back:", *left] if left else [_NOTHING]
        raise OSError("\n".join([str(error), *lines])) from error
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


def _staged(place: Path, content: bytes) -> Path:
    """A temporary file in the same folder, with the same permissions and new content."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        shutil.copymode(place, temporary)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _put_back(place: Path, content: bytes) -> bool:
    try:
        _staged(place, content).replace(place)
    except OSError:
        return False
    return True


# Output


def _diff(source: "Source", text: bytes) -> Iterator[str]:
    # As Python reads lines, and not at form feeds and the like, where str.splitlines splits too.
    texts = (io.StringIO(part.decode(source.module.encoding), newline="") for part in (source.content, text))
    before, after = (part.readlines() for part in texts)
    for line in difflib.unified_diff(before, after, str(source.path), str(source.path)):
        yield line if line.endswith(("\n", "\r")) else f"{line}\n\\ No newline at end of file\n"


def _account(texts: Sequence[tuple["Source", bytes]], *, written: bool) -> Iterator[str]:
    """The places to review: first those that could not be decided, then those whose meaning changed."""
    lines: dict[bool, dict[str, None]] = {True: {}, False: {}}
    for source, text in texts:
        line_now = _lines_now(source.content, text) if written and source.notices and text != source.content else {}
        for notice in sorted(source.notices):
            line = line_now.get(notice.line, notice.line)
            lines[notice.undecided][f"  {source.path}:{line}: {notice.text} ({notice.page})\n"] = None
    for undecided, title in ((True, "Could not be decided"), (False, "Means something else now, or was left")):
        yield from [f"{title}:\n", *lines[undecided]] if lines[undecided] else []


def _lines_now(before: bytes, after: bytes) -> dict[int, int]:
    """Where each line of a file is after it was rewritten."""
    numbers: dict[int, int] = {}
    matcher = difflib.SequenceMatcher(None, before.splitlines(), after.splitlines())
    for _, start, end, new, new_end in matcher.get_opcodes():
        numbers |= {line + 1: min(new + line - start, max(new_end - 1, 0)) + 1 for line in range(start, end)}
    return numbers
