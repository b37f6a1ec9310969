"""`python -m treewright checkpoint PATH`: list or verify checkpoints.

Only manifests are read. With `--verify`, arrays are read one at a time and compared with their digests.
Reading a checkpoint imports nothing and runs no code from it.
"""

import argparse
import collections
import contextlib
import math
import os
import sys
from collections.abc import Generator
from pathlib import Path

from treewright._base.text import cut_text
from treewright._reports import counted
from treewright.checkpoint.arrays import digest_of
from treewright.checkpoint.blocks import BlockReader
from treewright.checkpoint.differences import static_text
from treewright.checkpoint.disk import exists, is_folder
from treewright.checkpoint.file import open_saved
from treewright.checkpoint.manifest import LeafRecord, Manifest
from treewright.checkpoint.placing import as_saved
from treewright.errors import CheckpointDamagedError, CheckpointError, missing_extra

_HELP = "List the contents of a checkpoint, or verify it."


def main(arguments: list[str]) -> int:
    """Run the command. Exit status: 0; 1 if something is damaged; 2 if the path can't be read."""
    parser = argparse.ArgumentParser(prog="python -m treewright checkpoint", description=_HELP)
    parser.add_argument("path", type=Path, help="a file that save wrote, a folder of steps, or one step in it")
    parser.add_argument("--verify", action="store_true", help="read all arrays and compare them with their digests")
    options = parser.parse_args(arguments)
    try:
        paths = _checkpoints(options.path.absolute())
        return max([_list(path, whole=len(paths) == 1, verify=options.verify) for path in paths])
    except BrokenPipeError:  # of `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at its end
        return 0
    except (CheckpointError, OSError) as error:
        _print(str(error), to_stderr=True)
    except ImportError as error:  # our own text, of several lines
        sys.stderr.write(f"{error}\n")
    return 2


def _print(text: str, *, to_stderr: bool = False) -> None:
    """Print a line, escaping control characters and characters that the encoding lacks."""
    stream = sys.stderr if to_stderr else sys.stdout
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    encoding = stream.encoding or "utf-8"
    print(shown.encode(encoding, errors="backslashreplace").decode(encoding), file=stream)


def _checkpoints(path: Path) -> list[Path]:
    """The file or step at a path, or the steps of a run in order."""
    if not is_folder(path):
        return [path]
    try:
        from treewright.checkpoint.folder import LISTING, steps_in
    except ImportError as error:
        raise missing_extra("Listing steps", "orbax-checkpoint", "checkpoint") from error
    steps = [path] if exists(path / LISTING) else [path / str(step) for step in steps_in(path)]
    if not steps:
        raise CheckpointError(f"{path} contains no steps.")
    return steps


@contextlib.contextmanager
def _open(path: Path) -> Generator[tuple[Manifest, BlockReader]]:
    """The manifest of a file or step, and the reader of its arrays."""
    if is_folder(path):
        from treewright.checkpoint.handler import open_step

        with open_step(path) as step:
            yield step
        return
    with open_saved(path) as file:
        yield file


def _list(path: Path, *, whole: bool, verify: bool) -> int:
    try:
        with _open(path) as (manifest, read):
            size = sum(leaf.form.nbytes for leaf in manifest.leaves)
            metrics = "".join(f"  {name}={value!r}" for name, value in manifest.metrics.items())
            _print(f"{path}  {counted(len(manifest.leaves), 'leaf', 'leaves')}  {size:,} bytes{metrics}")
            for leaf in manifest.leaves if whole else ():
                _print(f"  {leaf.name}  {leaf.form}  {_digest(leaf, manifest, read)}")
            for node in manifest.nodes if whole else ():
                for name, value in node.statics.items():
                    _print(f"  {node.path}.{name} = {cut_text(static_text(value), 100)}  (static of {node.cls})")
            if verify:
                collections.deque(read([as_saved(leaf) for leaf in manifest.leaves]), maxlen=0)
                _print(f"  {counted(len(manifest.leaves), 'array')} verified")
    except CheckpointDamagedError as error:
        _print(f"{path} is damaged: {error}")
        return 1
    except BrokenPipeError:
        raise
    except (CheckpointError, OSError) as error:  # the other steps of the run are listed too
        _print(str(error), to_stderr=True)
        return 2
    return 0


def _digest(leaf: LeafRecord, manifest: Manifest, read: BlockReader) -> str:
    """The digest of a leaf; for several blocks, a digest of their digests."""
    digests = [read.digest_at(leaf, number) for number in range(math.prod(manifest.layout_of(leaf).grid))]
    return digests[0] if len(digests) == 1 else f"{digest_of(''.join(digests).encode())} ({len(digests)} blocks)"
