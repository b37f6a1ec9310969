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

from treewright._reports import counted
from treewright.errors import missing_extra
from treewright.move.libraries import PAGES

if TYPE_CHECKING:
    from treewright.move.source import Source

_HELP = (
    "Rewrite Python files so that classes of other libraries become nodes. The diff goes to standard output, and "
    "nothing is changed without --write. Places to review are listed on standard error, by file and line."
)
_NOTHING = "Nothing has been changed."
_STATUS = (
    "exit status: 0; 1 if something could not be decided; 2 if a file can't be read, does not parse or can't be "
    "written, and then nothing is changed"
)


def main(arguments: list[str]) -> int:
    """Run the command. Returns the exit status: 0; 1 if something could not be decided; 2 after an error."""
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
    collected: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"{path} is neither a file nor a folder.")
        collected += [path] if path.is_file() else []
        for folder, folders, files in os.walk(path):
            folders[:] = [each for each in sorted(folders) if not Path(folder, each, "pyvenv.cfg").exists()]
            folders[:] = [each for each in folders if not each.startswith(".")]
            collected += [Path(folder, each) for each in sorted(files) if each.endswith((".py", ".ipynb"))]
    return list({path.resolve(): path for path in collected if path.exists()}.values())  # no links that lead to nothing


def _imports_one(notebook: Path, libraries: Iterable[str]) -> bool:
    pattern = rf"\b(import|from) +({'|'.join(libraries)})\b"
    return re.search(pattern, notebook.read_text("utf-8", "ignore")) is not None


# Writing


def _write(texts: Mapping[Path, bytes]) -> None:
    """Write all files to temporary files first, and then rename these, so that a full disk changes none.

    Raises:
        OSError: If one can't be written; the message lists the files that were changed before.
    """
    places = {path.resolve(): text for path, text in texts.items()}  # Links are resolved to their files.
    staged = {place: place.with_name(f".{place.name}.{os.getpid()}") for place in places}
    renamed: list[str] = []
    try:
        for place, temporary in staged.items():
            temporary.write_bytes(places[place])
            shutil.copymode(place, temporary)
        for place, temporary in staged.items():
            temporary.replace(place)
            renamed.append(str(place))
    except OSError as error:
        lines = ["Only these files have been changed:", *renamed] if renamed else [_NOTHING]
        raise OSError("\n".join([str(error), *lines])) from error
    finally:
        for temporary in staged.values():
            temporary.unlink(missing_ok=True)


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
    for source, _ in texts:
        for notice in sorted(source.notices):
            line = source.line(notice.start, written=written)
            lines[notice.undecided][f"  {source.path}:{line}: {notice.text} ({notice.page})\n"] = None
    for undecided, title in ((True, "Could not be decided"), (False, "Means something else now, or was left")):
        yield from [f"{title}:\n", *lines[undecided]] if lines[undecided] else []
