"""`python -m treewright checkpoint PATH`: list what a file or a run holds, verify it, or compare two.

Only manifests are read, unless all arrays are to be verified: then each is read in its saved blocks, compared with its
digests and dropped. Nothing is imported for a checkpoint, and nothing of it is run.
"""

import argparse
import contextlib
import sys
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from treewright._core.text import counted, cut_text, first_of
from treewright.checkpoint.arrays import digest_of
from treewright.checkpoint.differences import leaf_mismatches, lines_of, node_mismatches, paired
from treewright.checkpoint.file import open_saved
from treewright.checkpoint.fit import Read, Request
from treewright.checkpoint.manifest import Leaf, Manifest
from treewright.checkpoint.tree import shown_static
from treewright.errors import CheckpointDamagedError, CheckpointError

_HELP = "List what a checkpoint holds, verify it, or show how two differ. Of a run, the last step is compared."


def main(arguments: list[str]) -> int:
    """Do what the arguments ask. The exit status: 0; 1 if two differ or something is damaged; 2 if it can't be read."""
    parser = argparse.ArgumentParser(prog="python -m treewright checkpoint", description=_HELP)
    parser.add_argument("path", type=Path, help="a file that save wrote, a folder of steps, or one step in it")
    parser.add_argument("other", type=Path, nargs="?", help="another, to show what differs")
    parser.add_argument("--verify", action="store_true", help="read all arrays and compare them with their digests")
    parser.add_argument("--leaves", action="store_true", help="list all leaves of each step, or all that differ")
    options = parser.parse_args(arguments)
    try:
        found = _checkpoints(options.path.absolute())
        if options.other is not None:
            other = _checkpoints(options.other.absolute())[-1]
            return _print(_differences(found[-1], other, whole=options.leaves))
        return _print(_listed(found, whole=options.leaves or len(found) == 1, verify=options.verify))
    except (CheckpointError, OSError) as error:
        sys.stderr.write(f"{_safe(str(error))}\n")
        return 2


def _print(lines: Iterable[str | int]) -> int:
    """Write lines as they come; a number among them is the exit status."""
    status = 0
    for line in lines:
        if isinstance(line, int):
            status = max(status, line)
        else:
            sys.stdout.write(_safe(line).replace("\n", "\\n") + "\n")
    return status


def _safe(text: str) -> str:
    """Text from a checkpoint without characters that a terminal would obey, or that its encoding does not have."""
    shown = "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return shown.encode(encoding, errors="backslashreplace").decode(encoding)


def _checkpoints(path: Path) -> list[Path]:
    """The file, the step, or the steps in order that a path leads to."""
    if path.is_file() or (path / "_CHECKPOINT_METADATA").exists():
        return [path]
    if not path.exists():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    steps = sorted(
        (step for step in path.iterdir() if step.name.isdecimal() and step.is_dir()), key=lambda x: int(x.name)
    )
    if not steps:
        raise CheckpointError(f"{path} is a folder without steps.")
    return steps


@contextlib.contextmanager
def _opened(path: Path) -> Generator[tuple[Manifest, Read]]:
    """The manifest of a file or of a step, and a reader of its arrays."""
    if path.is_dir():
        from treewright.checkpoint.items import read_manifest_of_step, reader_of_step

        yield read_manifest_of_step(path), reader_of_step(path)
    else:
        with open_saved(path) as pair:
            yield pair


def _listed(paths: list[Path], *, whole: bool, verify: bool) -> Iterator[str | int]:
    for path in paths:
        try:
            with _opened(path) as (manifest, read):
                yield _summary(path, manifest)
                if whole:
                    yield from _contents(manifest)
                if verify:
                    leaves = manifest.untied()
                    for leaf in leaves:  # one at a time: the rest needs no memory
                        next(read([Request(leaf, None)]))
                    yield f"  {counted(len(leaves), 'array')} verified"
        except CheckpointDamagedError as error:
            yield f"{path} is damaged: {error}"
            yield 1


def _summary(path: Path, manifest: Manifest) -> str:
    size = sum(leaf.form.nbytes for leaf in manifest.untied())
    metrics = "".join(f"  {name}={value!r}" for name, value in manifest.metrics.items())
    return f"{path}  {counted(len(manifest.leaves), 'leaf', 'leaves')}  {size:,} bytes{metrics}"


def _contents(manifest: Manifest) -> Iterator[str]:
    for leaf in manifest.leaves:
        yield f"  {leaf.name}  {leaf.form}  {_digest(leaf) if leaf.tied is None else f'is {leaf.tied}'}"
    for branch in manifest.branches:
        for name, value in branch.statics.items():
            yield f"  {branch.path}.{name} = {cut_text(shown_static(value), 100)}  (static of {branch.cls})"


def _digest(leaf: Leaf) -> str:
    """The digest of a leaf; of one in several blocks, that of all of theirs."""
    if len(leaf.digests) == 1:
        return next(iter(leaf.digests.values()))
    together = "".join(f"{place}{leaf.digests[place]}" for place in sorted(leaf.digests))
    return f"{digest_of(together.encode())} ({len(leaf.digests)} blocks)"


def _differences(one: Path, other: Path, *, whole: bool) -> Iterator[str | int]:
    """The differences between two: classes, statics, forms, and digests of leaves."""
    with _opened(one) as (saved, _), _opened(other) as (wanted, _):
        yield f"- {one}"
        yield f"+ {other}"
    ours, theirs = ({leaf.name: leaf for leaf in manifest.leaves} for manifest in (saved, wanted))
    pairs = paired(saved.leaves, wanted.leaves)
    mismatches = [*node_mismatches(saved, wanted), *leaf_mismatches(pairs, allow_cast=False, strict=True)]
    same = [name for name, leaf in ours.items() if name in theirs and leaf.form == theirs[name].form]
    changed = [name for name in same if ours[name].digests != theirs[name].digests]
    values = [f"{ours[name].path}: {_unequal(ours[name], theirs[name])}" for name in changed]
    lines: list[Any] = [*map(str, mismatches), *values] if whole else [*lines_of(mismatches), *first_of(values)]
    yield from (f"  {line}" for line in lines)
    yield f"{len(same) - len(changed)} of {len({*ours, *theirs})} leaves are the same."
    yield int(bool(lines))


def _unequal(one: Leaf, other: Leaf) -> str:
    if one.digests.keys() != other.digests.keys():
        return "in other blocks, which their digests do not compare"
    return f"values {_digest(one)} | {_digest(other)}"
