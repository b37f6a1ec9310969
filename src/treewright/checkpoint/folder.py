"""A run's folder: list and delete steps, and clear unfinished steps of killed processes.

Symbolic links are not followed, and nothing is deleted that a process may still be writing.
"""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import contextlib
import math
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import orbax.checkpoint as ocp
from etils import epath

from treewright._base.text import did_you_mean
from treewright.checkpoint.file import StrPath, flush_to_disk, local_path
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

LISTING = "_CHECKPOINT_METADATA"  # the file in which Orbax lists the items of a step
_UNTOUCHED_S = 3600.0  # after this time, an unfinished step has no living writer
_MAX_LISTINGS = 3  # a listing may miss the only step while a process renames steps

_BUCKETS = ("gs://", "s3://", "az://")
_STEP = re.compile(r"0|[1-9][0-9]*")
_THROWN_OUT = re.compile(r"[0-9]+\.thrown-out-[0-9a-f]{8}")
_TEMPORARY = re.compile(r"([0-9]+)\.orbax-checkpoint-tmp.*")


_OF_ORBAX = MappingProxyType(
    {"max_to_keep": "keep", "keep_period": "keep_every", "best_mode": "mode", "best_fn": "metric"}
)
_OPTIONS = ("keep", "keep_every", "keep_best", "metric", "mode", "timeout_seconds")


def rules_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The retention rules in the options of a manager, with the metric if it ranks steps; empty to keep all steps.

    Raises:
        TypeError: If an option is unknown.
        ValueError: If one is invalid, or they contradict each other.
    """
    for name in options:
        if name not in _OPTIONS:
            fix = f" Write {_OF_ORBAX[name]}= instead." if name in _OF_ORBAX else did_you_mean(name, _OPTIONS)
            raise TypeError(f"CheckpointManager() got an unexpected option {name!r}.{fix}")
    keep, keep_every, keep_best, metric, mode, timeout = map(options.get, _OPTIONS)
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"CheckpointManager(timeout_seconds={timeout!r}): pass a positive number of seconds.")
    counts = {"keep": keep, "keep_every": keep_every, "keep_best": keep_best}
    are_counts = all(count is None or (type(count) is int and count > 0) for count in counts.values())
    if not are_counts or (keep is None and (keep_every or keep_best)):
        raise ValueError(
            f"CheckpointManager({keep=}, {keep_every=}, {keep_best=}): each must be a positive int, or None. Without "
            f"keep=, all steps are kept: add keep=1 to delete the others."
        )
    ranks = isinstance(metric, str) and metric != "" and mode in ("min", "max")
    if not ranks and (keep_best, metric, mode) != (None, None, None):
        raise ValueError(
            f"CheckpointManager({keep_best=}, {metric=}, {mode=}): ranking steps needs the name of a metric and a "
            f"direction. Pass both: metric='loss', mode='min' or 'max'."
        )
    return {} if keep is None else {**counts, **({"metric": metric, "mode": mode} if keep_best else {})}


def folder_of_steps(directory: StrPath) -> Any:
    """The folder of the steps: a `Path`, or for a bucket an object with the same methods.

    Raises:
        CheckpointError: If it is a file, a step, or a different URL.
        OSError: If the path is invalid or inaccessible.
    """
    in_bucket = isinstance(directory, str) and directory.startswith(_BUCKETS)
    folder: Any = epath.Path(directory) if in_bucket else local_path(directory).absolute()
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        (folder / LISTING).stat()  # raises; since Python 3.14 `is_file` ignores permission errors
    if folder.is_file() or (folder / LISTING).is_file():
        raise CheckpointError(f"{directory} is a file or a step. Pass the folder that contains the steps.")
    return folder


def steps_in(directory: Any) -> list[int]:
    """The finished steps in a folder, in order.

    Raises:
        OSError: If the folder exists and can't be listed.
    """
    if not isinstance(directory, Path):
        return sorted(info.step for info in ocp.path.step.standard_name_format().find_all(directory))
    steps: list[int] = []
    for _ in range(_MAX_LISTINGS):
        with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
            steps = sorted(int(entry.name) for entry in entries if _STEP.fullmatch(entry.name) and entry.is_dir())
        if steps:
            break
    return steps


def temporary_paths(token: str) -> Any:
    """A factory of Orbax's temporary folders, such as `7.orbax-checkpoint-tmp-TOKEN` for step 7.

    By default, all writers of step 7 use the same folder, and the second one deletes the first one's files.
    """
    atomicity = ocp.path.atomicity

    def from_final(final: Any, **options: Any) -> Any:
        folder = final.parent / f"{final.name}{atomicity.TMP_DIR_SUFFIX}-{token}"
        return atomicity.AtomicRenameTemporaryPath(folder, final, **options)

    return SimpleNamespace(from_final=from_final)


def flush_temporary(directory: Path, token: str) -> None:
    """Flush a step to disk before it is renamed. Orbax flushes only the arrays."""
    for folder in directory.glob(f"*.orbax-checkpoint-tmp-{token}"):
        for path in (folder, *folder.rglob("*")):
            flush_to_disk(path)


def throw_out(directory: Any, steps: Iterable[int]) -> None:
    """Rename steps, so that they are not listed; `clear` deletes them later."""
    for step in steps:
        folder = directory / str(step)
        if isinstance(folder, Path):
            with contextlib.suppress(FileNotFoundError):  # a different process was faster
                folder.rename(directory / f"{step}.thrown-out-{secrets.token_hex(4)}")
        else:
            folder.rmtree()


def clear(directory: Any, *, in_background: bool = False) -> None:
    """Delete the steps that `throw_out` renamed, and unfinished steps of killed processes.

    Warns if that fails; not in the background, because only a later `wait` can name the user's line.
    """
    for path in list(_deletable(directory)) if isinstance(directory, Path) else ():
        try:
            path.unlink() if path.is_symlink() else shutil.rmtree(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if in_background:
                continue
            warn_user(f"{path} is no longer needed, but can't be deleted: {error}", CheckpointWarning)


def _deletable(directory: Path) -> Iterator[Path]:
    newest = max(steps_in(directory), default=-1)
    for path in directory.iterdir() if directory.is_dir() else ():
        temporary = _TEMPORARY.fullmatch(path.name)
        is_dead = temporary and int(temporary[1]) < newest and not path.is_symlink() and _is_untouched(path)
        if is_dead or _THROWN_OUT.fullmatch(path.name):
            yield path


def _is_untouched(folder: Path) -> bool:
    """Whether nothing in a folder was written for an hour."""
    try:
        latest = max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    except FileNotFoundError:  # its writer is alive
        return False
    return time.time() - latest > _UNTOUCHED_S
