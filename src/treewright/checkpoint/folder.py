"""A run's folder: list, lock and delete steps.

Symbolic links are not followed, and nothing is deleted that a process is writing.
"""

# Optional dependencies:
# mypy: disable-error-code="import-not-found, import-untyped"

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import stat
from collections.abc import Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import orbax.checkpoint as ocp
from etils import epath

from treewright._base.text import cut_text
from treewright.checkpoint.disk import (
    create_lock,
    delete_unlocked,
    exists,
    flush_to_disk,
    is_folder,
    is_locked,
    lock_of,
    mode_of,
    release_lock,
)
from treewright.checkpoint.file import StrPath, local_path
from treewright.errors import CheckpointError, CheckpointWarning, warn_user

LISTING = "_CHECKPOINT_METADATA"  # Orbax's file in a step
FILE = "process_{}.safetensors"  # the file of a process in a step
_MAX_LISTINGS = 3  # a listing may miss the only step while a process renames steps

_BUCKETS = ("gs://", "s3://", "az://")
_STEP = re.compile(r"0|[1-9][0-9]*")
_SUFFIX = ocp.path.atomicity.TMP_DIR_SUFFIX
_HEX = "[0-9a-f]{8}"
_THROWN_OUT = re.compile(rf"[0-9]+\.thrown-out-{_HEX}")
_TEMPORARY = re.compile(rf"[0-9]+{re.escape(_SUFFIX)}-{_HEX}")
_LOCK = re.compile(rf"\.{_TEMPORARY.pattern}\.lock")


def as_folder(directory: StrPath) -> Any:
    """A folder as a `Path`, or in a bucket as an object with the same methods."""
    in_bucket = str(directory).startswith(_BUCKETS)
    return epath.Path(directory) if in_bucket else local_path(directory).absolute()


def folder_of_steps(directory: StrPath) -> Any:
    """The folder of the steps.

    Raises:
        CheckpointError: If it is a file, a step, or a different URL.
        OSError: If the path is invalid or inaccessible.
    """
    folder = as_folder(directory)
    is_file = stat.S_ISREG(mode_of(folder)) if isinstance(folder, Path) else folder.is_file()
    is_wrong = is_file or exists(folder / LISTING)
    if is_wrong:
        raise CheckpointError(f"{directory} is a file or a step. Pass the folder that contains the steps.")
    return folder


def steps_in(directory: Any, known: dict[int, int] | None = None) -> list[int]:
    """The finished steps in a folder, in order.

    `known` has the inodes of folders that are known to be steps, and gets those that are found: none is looked into
    twice.

    Raises:
        OSError: If the folder exists and can't be listed, or a folder that is named like a step can't be looked into.
    """
    if not isinstance(directory, Path):
        return sorted(info.step for info in ocp.path.step.standard_name_format().find_all(directory))
    known = {} if known is None else known
    steps: list[int] = []
    for _ in range(_MAX_LISTINGS):
        folders = _numbered_folders(directory)
        new = {number: inode for number, inode in folders.items() if known.get(number) != inode}
        known.update({number: inode for number, inode in new.items() if _is_step(directory / str(number))})
        steps = sorted(number for number, inode in folders.items() if known.get(number) == inode)
        if steps:
            break
    return steps


def is_foreign(path: Any) -> bool:
    """Whether a path exists, but has no part of a step."""
    return isinstance(path, Path) and exists(path) and not _is_step(path)


def _is_step(folder: Path) -> bool:
    """Whether a folder has any part of a step, which may be damaged."""
    return any(exists(folder / name) for name in (LISTING, FILE.format(0)))


def identity_of(step: Any) -> Any:
    """What changes if a step is deleted and saved again; None if it does not exist. JSON."""
    if not isinstance(step, Path):
        return True if step.exists() else None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        status = step.stat()
        return [status.st_ino, status.st_mtime_ns]
    return None


def _numbered_folders(directory: Path) -> dict[int, int]:
    """The folders that are named like steps, and their inodes."""
    with contextlib.suppress(FileNotFoundError), os.scandir(directory) as entries:
        return {int(entry.name): entry.inode() for entry in entries if _STEP.fullmatch(entry.name) and entry.is_dir()}
    return {}


class UnfinishedSteps:
    """The folders of a manager's saves until they are finished, such as `7.orbax-checkpoint-tmp-TOKEN`.

    Each has a lock, `.7.orbax-checkpoint-tmp-TOKEN.lock`, which this process holds while it exists: without its lock, a
    folder is a leftover. The lock is taken before the folder is created, so that it is never found without it.

    By default, all of Orbax's writers of step 7 use the same folder, and the second one deletes the first one's files;
    and nothing is flushed.

    Attributes:
        token: Its token, equal in all processes.
        path_class: The class of temporary folders for Orbax. Only process 0 creates and finishes them.
    """

    def __init__(self, token: str) -> None:
        self.token = token
        self.path_class: type[Any] = _path_class(self, token)
        self._lock: IO[str] | None = None
        self._error: Exception | None = None

    def begin(self, folder: Path) -> None:
        """Delete leftovers, so that the disk has room, and take the lock of a folder."""
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear(folder.parent, in_background=True)
        self._lock = create_lock(lock_of(folder))

    def release(self) -> None:
        """Give up the lock: its folder was renamed, or is a leftover."""
        lock, self._lock = self._lock, None
        if lock is not None:
            release_lock(lock)

    def close_copy(self) -> None:
        """In a fork, close its copy of the lock, which would be held until the fork ends."""
        if self._lock is not None:
            self._lock.close()

    @contextlib.contextmanager
    def deferring_errors(self) -> Generator[None]:
        """Let `check` raise the error: raised by process 0 alone, it would leave the others at Orbax's barrier."""
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._error = error

    def check(self) -> None:
        """Raise the error of creating or finishing the folder."""
        error, self._error = self._error, None
        if error is not None:
            raise error


def _path_class(steps: UnfinishedSteps, token: str) -> type[Any]:
    class UnfinishedStep(ocp.path.atomicity.AtomicRenameTemporaryPath):  # type: ignore[misc]
        @classmethod
        def from_final(cls, final_path: Any, **options: Any) -> Any:
            return cls(final_path.parent / f"{final_path.name}{_SUFFIX}-{token}", final_path, **options)

        async def create(self) -> Any:
            """Create the folder, with its lock."""
            with steps.deferring_errors():
                await asyncio.to_thread(steps.begin, Path(self.get()))
                await super().create()
            return self.get()

        async def finalize(self) -> None:
            """Flush the folder, whose files are flushed, rename it, and flush that."""
            with steps.deferring_errors():
                await asyncio.to_thread(_flush_step, Path(self.get()))
                await super().finalize()
                await asyncio.to_thread(_flush_rename, Path(self.get_final()))

    return UnfinishedStep


def _flush_step(folder: Path) -> None:
    if not exists(folder / FILE.format(0)):
        raise CheckpointError(f"Orbax finishes {folder}, but nothing was written to it that could be flushed to disk")
    flush_to_disk(folder)


def _flush_rename(folder: Path) -> None:
    try:
        for path in (folder / LISTING, folder, folder.parent):  # Orbax writes its own file last
            flush_to_disk(path)
    except OSError as error:
        text = f"it was renamed, but could not be flushed to disk, so a power cut may lose it: {error}"
        raise CheckpointError(text) from error


def throw_out(directory: Any, steps: Iterable[int]) -> None:
    """Rename steps, so that they are not listed; `clear` deletes them later."""
    for step in steps:
        folder = directory / str(step)
        if isinstance(folder, Path):
            with contextlib.suppress(FileNotFoundError):  # a different process was faster
                folder.rename(_thrown_out(directory, step))
        else:
            folder.rmtree()


def _thrown_out(directory: Path, step: object) -> Path:
    return directory / f"{step}.thrown-out-{secrets.token_hex(4)}"


def quarantine(directory: Any, damaged: Mapping[int, str]) -> list[str]:
    """Rename damaged steps; return a line about each, with the reason."""
    notes: list[str] = []
    for step, reason in damaged.items():
        name = f"{step}.damaged-{secrets.token_hex(4)}"
        try:
            (directory / str(step)).rename(directory / name)
            outcome = f"Renamed to {name}."
        except OSError as error:  # for example without permission to change the folder
            outcome = f"It could not be renamed: {error}"
        notes.append(f"\n  {step}: {cut_text(reason, 400)} {outcome}")
    return notes


def clear(directory: Any, *, in_background: bool = False) -> None:
    """Delete the steps that `throw_out` renamed, and the unfinished steps that no process writes any more.

    Warns if that fails; not in the background, because only a later `wait` can name the user's line.
    """
    for path in list(_deletable(directory)) if isinstance(directory, Path) else ():
        try:
            _delete(path)
        except FileNotFoundError:  # a different process was faster, or its writer has finished it
            continue
        except OSError as error:
            if in_background:
                continue
            warn_user(f"{path} is no longer needed, but can't be deleted: {error}", CheckpointWarning)


def _deletable(directory: Path) -> Iterator[Path]:
    """Unfinished steps come before locks: a folder whose lock is missing is deletable too."""
    paths = sorted(directory.iterdir(), reverse=True) if is_folder(directory) else []
    for path in paths:
        is_leftover = _TEMPORARY.fullmatch(path.name) and not path.is_symlink() and not is_locked(lock_of(path))
        if is_leftover or _THROWN_OUT.fullmatch(path.name) or _LOCK.fullmatch(path.name):
            yield path


def _delete(path: Path) -> None:
    """Delete a folder, a link or a lock; an unfinished step is renamed first, so that its writer can't finish it."""
    if _LOCK.fullmatch(path.name):
        delete_unlocked(path)
        return
    if _TEMPORARY.fullmatch(path.name):
        path = path.rename(_thrown_out(path.parent, path.name.partition(".")[0]))
    path.unlink() if path.is_symlink() else shutil.rmtree(path)
