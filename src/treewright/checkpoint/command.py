"""`python -m treewright checkpoint PATH`: what a file or a folder of steps holds, whether it is whole, how two differ.

Manifests alone are read, no array; to verify, each array is read, compared with its digest, and let go. Nothing is
imported for a checkpoint, and nothing of it is run.
"""

import argparse
import contextlib
import dataclasses
import datetime as dt
import shutil
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from treewright._values.text import excerpts, first_of
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Checkpoint:
    """A file, or a step of a folder."""

    path: Path

    @property
    def is_step(self) -> bool:
        return self.path.is_dir()

    @property
    def nbytes(self) -> int:
        """How much of the disk it takes."""
        files = [file for file in self.path.rglob("*") if file.is_file()] if self.is_step else [self.path]
        return sum(file.stat().st_size for file in files)

    @property
    def saved_at(self) -> str:
        """When it was written, in local time."""
        time = dt.datetime.fromtimestamp(self.path.stat().st_mtime, tz=dt.UTC).astimezone()
        return time.isoformat(" ", "seconds")

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What is to be known of a step."""
        return saved_extras(self.path)[0] if self.is_step else {}

    @contextlib.contextmanager
    def opened(self) -> Generator[tuple[Manifest, Reader]]:
        """The manifest, and a reader of the arrays."""
        if self.is_step:
            yield saved_manifest(self.path), reader_of(self.path)
            return
        with SafetensorsFile(self.path) as file:
            yield file.manifest, file.reader(progress=None)

    def manifest(self) -> Manifest:
        """The manifest alone."""
        with self.opened() as (manifest, _):
            return manifest


def main(arguments: list[str]) -> int:
    """Do what the arguments say. The exit status: 0; 1 if two differ or something is damaged; 2 if it can't be read."""
    parser = argparse.ArgumentParser(prog="python -m treewright checkpoint", description=_HELP)
    parser.add_argument("path", type=Path, help="a file that save wrote, a folder of steps, or one step in it")
    parser.add_argument("other", type=Path, nargs="?", help="another, to show what differs")
    parser.add_argument("--verify", action="store_true", help="read all arrays and compare them with their digests")
    parser.add_argument("--leaves", action="store_true", help="list all leaves of each step, or all that differ")
    options = parser.parse_args(arguments)
    try:
        found = _checkpoints(options.path)
        if options.other is not None:
            return _print(_differences(found[-1], _checkpoints(options.other)[-1], whole=options.leaves))
        return _print(_listed(found, whole=options.leaves or len(found) == 1, verify=options.verify))
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{error}\n")
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


def _checkpoints(path: Path) -> list[_Checkpoint]:
    """The checkpoints that a path leads to: one file, one step, or all steps of a folder.

    Raises:
        CheckpointError: If there is none.
    """
    path = local_path(path)
    if path.is_file() or (path / "manifest").is_dir():
        return [_Checkpoint(path)]
    if not path.is_dir():
        raise CheckpointError(f"{path} is neither a file nor a folder.")
    steps = sorted((int(step.name), step) for step in path.iterdir() if step.name.isdecimal() and step.is_dir())
    if not steps:
        raise CheckpointError(f"{path} holds no steps.")
    return [_Checkpoint(step) for _, step in steps]


# What is in them


def _listed(found: list[_Checkpoint], *, whole: bool, verify: bool) -> Iterator[str | int]:
    for checkpoint in found:
        try:
            with checkpoint.opened() as (manifest, read):
                yield from _summary(checkpoint, manifest)
                if whole:
                    yield from _contents(manifest)
                if verify:
                    yield _verified(manifest, read)
        except CheckpointError as error:
            yield f"{checkpoint.path}: {error}"
            yield 1


def _summary(checkpoint: _Checkpoint, manifest: Manifest) -> Iterator[str]:
    arrays, disk = sum(leaf.form.nbytes for leaf in untied(manifest.leaves)), checkpoint.nbytes
    count = "1 leaf" if len(manifest.leaves) == 1 else f"{len(manifest.leaves)} leaves"
    digest = manifest.to_metadata()[DIGEST]
    size = f"{count}, {_size(arrays)} ({_size(disk)} on disk)"
    yield _fitted([str(checkpoint.path), checkpoint.saved_at, size, digest])
    for name, value in checkpoint.metadata.items():
        yield f"  {name} = {value!r}"


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
            shown = shown_static(value)
            shown = shown if len(shown) <= _WIDTH else f"{shown[: _WIDTH - 3]}..."
            yield _fitted([f"  {'.'.join((*branch.steps, name))} = {shown}", f"(static of {branch.cls})"])


def _fitted(cells: list[str]) -> str:
    """Cells in one line; on a terminal that is too narrow, each in a line of its own."""
    columns, _ = shutil.get_terminal_size((sys.maxsize, 0))
    if len(line := "  ".join(cells)) <= columns:
        return line
    return "\n      ".join(cell.rstrip() for cell in cells)


def _digest(leaf: Leaf) -> str:
    """The digest of a leaf; of one in several blocks, that of all of theirs."""
    digests = leaf.digests
    if len(digests) == 1:
        return next(iter(digests.values()))
    together = digest_of("".join(f"{place}{digests[place]}" for place in sorted(digests)).encode())
    return f"{together} ({len(digests)} blocks)"


def _verified(manifest: Manifest, read: Reader) -> str:
    """What is said of a checkpoint whose arrays are all what was saved.

    Raises:
        CheckpointDamagedError: If one is not.
    """
    for _ in read((leaf, None) for leaf in manifest.leaves):
        pass
    return "  verified: all leaves are what was saved"


def _size(count: int) -> str:
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


# How two differ


def _differences(one: _Checkpoint, other: _Checkpoint, *, whole: bool) -> Iterator[str | int]:
    """What the second has that the first has not, and the other way: classes, statics, forms, and digests of leaves."""
    saved, wanted = one.manifest(), other.manifest()
    yield f"- {one.path}"
    yield f"+ {other.path}"
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
    yield from (f"  {line}" for line in lines)
    yield f"{len(same) - len(changed)} of {len({*ours, *theirs})} leaves are the same."
    yield int(bool(lines))


def _line(mismatch: Mismatch) -> str:
    saved, wanted = excerpts((mismatch.saved, mismatch.wanted), _WIDTH)
    return f"{mismatch.path}: {mismatch.kind} {saved} | {wanted}"


def _unequal(one: Leaf, other: Leaf) -> str:
    if one.digests.keys() != other.digests.keys():
        return "in other blocks, which their digests do not compare"
    return f"values {_digest(one)} | {_digest(other)}"
