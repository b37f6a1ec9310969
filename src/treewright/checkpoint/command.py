"""`python -m treewright checkpoint PATH`: what a file or a folder of steps holds, whether it is whole, how two differ.

Manifests alone are read, no array; to verify, each array is read, compared with its digest, and let go. Nothing is
imported for a checkpoint, and nothing of it is run.
"""

import argparse
import contextlib
import datetime as dt
import os
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from treewright._core.text import counted, cut_text, excerpts, first_of
from treewright.checkpoint.atomic import local_path
from treewright.checkpoint.compare import Mismatch, leaf_mismatches, lines_of, node_mismatches, paired, shown_static
from treewright.checkpoint.digests import digest_of
from treewright.checkpoint.file import SafetensorsFile
from treewright.checkpoint.leaves import Leaf, name_of, untied
from treewright.checkpoint.manifest import DIGEST, Manifest
from treewright.checkpoint.restore import Reader
from treewright.checkpoint.steps import reader_of, saved_extras, saved_manifest
from treewright.errors import CheckpointError

_WIDTH = 100  # of a static


@contextlib.contextmanager
def _opened(path: Path) -> Generator[tuple[Manifest, Reader]]:
    """The manifest of a file, or of a step of a folder, and a reader of its arrays."""
    if path.is_dir():
        yield saved_manifest(path), reader_of(path)
        return
    with SafetensorsFile(path) as file:
        yield file.manifest, file.reader(progress=None)


def main(arguments: list[str]) -> int:
    """Do what the arguments say. The exit status: 0; 1 if two differ or something is damaged; 2 if it can't be read."""
    parser = argparse.ArgumentParser(prog="python -m treewright checkpoint", description=_HELP)
    parser.add_argument("path", type=Path, help="a file that save wrote, a folder of steps, or one step in it")
    parser.add_argument("other", type=Path, nargs="?", help="another, to show what differs")
    parser.add_argument("--verify", action="store_true", help="read all arrays and compare them with their digests")
    parser.add_argument("--leaves", action="store_true", help="list all leaves of each step, or all that differ")
    options = parser.parse_args(arguments)
    output: Any = sys.stdout
    output.reconfigure(errors="backslashreplace")  # names may hold what the terminal's encoding does not
    try:
        found = _checkpoints(options.path)
        if options.other is not None:
            return _print(_differences(found[-1], _checkpoints(options.other)[-1], whole=options.leaves))
        return _print(_listed(found, whole=options.leaves or len(found) == 1, verify=options.verify))
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has; Python would say so once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return 0
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{_plain(error)}\n")
        return 2


_HELP = "List what a checkpoint holds, verify it, or show how two differ. Of a folder of steps, the last is compared."


def _print(lines: Iterable[str | int]) -> int:
    """Write lines as they come; a number among them is the exit status."""
    status = 0
    for line in lines:
        if isinstance(line, int):
            status = max(status, line)
        else:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    return status


def _checkpoints(path: Path) -> list[Path]:
    """The checkpoints that a path leads to: one file, one step, or all steps of a folder."""
    path = local_path(path)
    if path.is_file() or (path / "manifest").is_dir():
        return [path]
    if not path.is_dir():
        raise CheckpointError(f"{path} is neither a file nor a folder.")
    steps = sorted((int(step.name), step) for step in path.iterdir() if step.name.isdecimal() and step.is_dir())
    if not steps:
        raise CheckpointError(f"{path} holds no steps.")
    return [step for _, step in steps]


# What is in them


def _listed(paths: list[Path], *, whole: bool, verify: bool) -> Iterator[str | int]:
    for path in paths:
        try:
            with _opened(path) as (manifest, read):
                yield from _summary(path, manifest)
                if whole:
                    yield from _contents(manifest)
                if verify:
                    for _ in read((leaf, None) for leaf in manifest.leaves):
                        pass
                    yield "  verified: all leaves are what was saved"
        except CheckpointError as error:
            yield _plain(f"{path}: {error}")
            yield 1


def _summary(path: Path, manifest: Manifest) -> Iterator[str]:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    arrays, disk = sum(leaf.form.nbytes for leaf in untied(manifest.leaves)), sum(file.stat().st_size for file in files)
    count = counted(len(manifest.leaves), "leaf", "leaves")
    saved_at = dt.datetime.fromtimestamp(path.stat().st_mtime, tz=dt.UTC).astimezone().isoformat(" ", "seconds")
    size = f"{count}, {_size(arrays)} ({_size(disk)} on disk)"
    yield _fitted([str(path), saved_at, size, manifest.to_metadata()[DIGEST]])
    for name, value in (saved_extras(path)[0] if path.is_dir() else {}).items():
        yield f"  {_line_of(name)} = {value!r}"


def _contents(manifest: Manifest) -> Iterator[str]:
    rows = [
        (leaf.name, str(leaf.form), _digest(leaf) if leaf.tied is None else f"is {name_of(leaf.tied)}")
        for leaf in manifest.leaves
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for name, form, digest in rows:
        yield _fitted([f"  {name:{widths[0]}}", f"{form:{widths[1]}}", digest])
    for branch in manifest.branches:
        for name, value in branch.statics.items():
            shown = cut_text(shown_static(value), _WIDTH)
            yield _fitted([f"  {'.'.join((*branch.steps, name))} = {shown}", f"(static of {branch.cls})"])


def _fitted(cells: list[str]) -> str:
    """Cells in one line; on a terminal that is too narrow, each in a line of its own."""
    cells = list(map(_line_of, cells))
    columns, _ = shutil.get_terminal_size((sys.maxsize, 0))
    if len(line := "  ".join(cells)) <= columns:
        return line
    return "\n      ".join(cell.rstrip() for cell in cells)


def _line_of(text: str) -> str:
    """Text from a checkpoint as one line, without what a terminal would obey."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _plain(error: object) -> str:
    return "\n".join(map(_line_of, str(error).split("\n")))


def _digest(leaf: Leaf) -> str:
    """The digest of a leaf; of one in several blocks, that of all of theirs."""
    digests = leaf.digests
    if len(digests) == 1:
        return next(iter(digests.values()))
    together = digest_of("".join(f"{place}{digests[place]}" for place in sorted(digests)).encode())
    return f"{together} ({len(digests)} blocks)"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


# How two differ


def _differences(one: Path, other: Path, *, whole: bool) -> Iterator[str | int]:
    """What the second has that the first has not, and the other way: classes, statics, forms, and digests of leaves."""
    with _opened(one) as (saved, _), _opened(other) as (wanted, _):
        yield f"- {one}"
        yield f"+ {other}"
    ours, theirs = ({leaf.name: leaf for leaf in manifest.leaves} for manifest in (saved, wanted))
    mismatches = [
        *node_mismatches(saved, wanted, set()),
        *leaf_mismatches(paired(saved.leaves, wanted.leaves), allow_cast=False, strict=True),
    ]
    same = [name for name, leaf in ours.items() if name in theirs and leaf.form.like(theirs[name].form)]
    changed = [name for name in same if ours[name].digests != theirs[name].digests]
    values = [f"{ours[name].path}: {_unequal(ours[name], theirs[name])}" for name in changed]
    if whole:
        lines = [*map(_line, mismatches), *values]
    else:
        lines = [*lines_of(mismatches, _line), *first_of(values, more="more whose values differ")]
    yield from (f"  {_line_of(line)}" for line in lines)
    yield f"{len(same) - len(changed)} of {len({*ours, *theirs})} leaves are the same."
    yield int(bool(lines))


def _line(mismatch: Mismatch) -> str:
    saved, wanted = excerpts((mismatch.saved, mismatch.wanted), _WIDTH)
    return f"{mismatch.path}: {mismatch.kind} {saved} | {wanted}"


def _unequal(one: Leaf, other: Leaf) -> str:
    if one.digests.keys() != other.digests.keys():
        return "in other blocks, which their digests do not compare"
    return f"values {_digest(one)} | {_digest(other)}"
