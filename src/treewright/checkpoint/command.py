"""`python -m treewright checkpoint PATH`: list what a file or a run holds, verify it, or compare two.

Only manifests are read, unless all arrays are to be verified: then each is read in its saved blocks, compared with its
digests and dropped. Nothing is imported for a checkpoint, and nothing of it is run.
"""

import argparse
import functools
import sys
from pathlib import Path

from treewright._core.text import cut_text
from treewright._lines import counted, first_of
from treewright.checkpoint.arrays import digest_of
from treewright.checkpoint.differences import mismatches, paired, static_text
from treewright.checkpoint.file import open_saved
from treewright.checkpoint.fit import Read, as_saved
from treewright.checkpoint.manifest import Leaf, Manifest
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
        paths = _checkpoints(options.path.absolute())
        if options.other is not None:
            return _compare(paths[-1], _checkpoints(options.other.absolute())[-1], whole=options.leaves)
        return max([_list(path, whole=options.leaves or len(paths) == 1, verify=options.verify) for path in paths])
    except (CheckpointError, OSError) as error:
        _print(str(error), to_stderr=True)
        return 2


def _print(text: str, *, to_stderr: bool = False) -> None:
    """Print a line of text from a checkpoint, without what a terminal would obey or its encoding does not have."""
    stream = sys.stderr if to_stderr else sys.stdout
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, errors="backslashreplace").decode(encoding), file=stream)


def _checkpoints(path: Path) -> list[Path]:
    """The file, the step, or the steps in order that a path leads to."""
    if not path.is_dir() or (path / "_CHECKPOINT_METADATA").exists():
        return [path]
    steps = [step for step in path.iterdir() if step.name.isdecimal()]
    if not steps:
        raise CheckpointError(f"{path} is a folder without steps.")
    return sorted(steps, key=lambda step: int(step.name))


def _opened(path: Path) -> tuple[Manifest, Read]:
    """The manifest of a file or of a step, and a reader of its arrays."""
    if path.is_dir():
        from treewright.checkpoint.items import arrays_of_step, manifest_of_step

        return manifest_of_step(path), functools.partial(arrays_of_step, path)
    return open_saved(path)


def _list(path: Path, *, whole: bool, verify: bool) -> int:
    try:
        manifest, read = _opened(path)
        arrays = manifest.untied()
        size = sum(leaf.form.nbytes for leaf in arrays)
        metrics = "".join(f"  {name}={value!r}" for name, value in manifest.metrics.items())
        _print(f"{path}  {counted(len(manifest.leaves), 'leaf', 'leaves')}  {size:,} bytes{metrics}")
        for leaf in manifest.leaves if whole else ():
            _print(f"  {leaf.name}  {leaf.form}  {_digest(leaf) if leaf.tied is None else f'is {leaf.tied}'}")
        for branch in manifest.branches if whole else ():
            for name, value in branch.statics.items():
                _print(f"  {branch.path}.{name} = {cut_text(static_text(value), 100)}  (static of {branch.cls})")
        for leaf in arrays if verify else ():  # one at a time: the rest needs no memory
            next(read([as_saved(leaf)]))
        if verify:
            _print(f"  {counted(len(arrays), 'array')} verified")
    except CheckpointDamagedError as error:
        _print(f"{path} is damaged: {error}")
        return 1
    return 0


def _digest(leaf: Leaf) -> str:
    """The digest of a leaf; of one in several blocks, that of all of theirs."""
    if len(leaf.digests) == 1:
        return next(iter(leaf.digests.values()))
    together = "".join(f"{place}{leaf.digests[place]}" for place in sorted(leaf.digests))
    return f"{digest_of(together.encode())} ({len(leaf.digests)} blocks)"


def _compare(one: Path, other: Path, *, whole: bool) -> int:
    """Print the differences between two: classes, statics, forms, and digests of leaves."""
    saved, wanted = _opened(one)[0], _opened(other)[0]
    pairs = paired(saved.leaves, wanted.leaves)
    lines = list(map(str, mismatches(saved, wanted, pairs)))
    same = 0
    for ours, theirs in pairs:
        if ours is None or theirs is None or ours.form != theirs.form:
            continue
        if ours.digests.keys() != theirs.digests.keys():
            lines.append(f"{ours.path}: in other blocks, which their digests do not compare")
        elif ours.digests != theirs.digests:
            lines.append(f"{ours.path}: values {_digest(ours)} | {_digest(theirs)}")
        else:
            same += 1
    for line in (f"- {one}", f"+ {other}", *(f"  {line}" for line in (lines if whole else first_of(lines)))):
        _print(line)
    _print(f"{same} of {len(pairs)} leaves are the same.")
    return int(bool(lines))
