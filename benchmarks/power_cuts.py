"""Power cuts, simulated: `sudo .venv/bin/python benchmarks/power_cuts.py 20` prints how many saved states were lost.

A filesystem in a file (ext4, which commits its journal every 300 s) is copied while it is mounted: the copy contains
what had been written to the device, as after a power cut. Each round saves a state, cuts the power after the save, and
again at a random time in the next save, which pauses after each flush and rename, so that copies fall between them. A
state is lost if the copy can't be read as the last finished save. Needs Linux and the right to mount.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orbax.checkpoint as ocp

from treewright.checkpoint import CheckpointManager, load, save

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = int(sys.argv[1])


def state(version: int) -> dict[str, np.ndarray[Any, Any]]:
    """8 MB of the same number in 20 arrays."""
    return {f"array{index}": np.full(100_000, version, np.float32) for index in range(20)}


def run(*command: object) -> None:
    """Run a command of the system."""
    subprocess.run([*map(str, command)], check=True, capture_output=True)  # noqa: S603


class Disk:
    """A filesystem in a file, mounted at `path`."""

    def __init__(self, image: Path, options: str) -> None:
        self.image = image
        self.path = image.with_suffix(".mounted")
        self.path.mkdir()
        run("mount", "-o", f"loop,{options}", image, self.path)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        run("umount", "--lazy", self.path)


def with_a_pause(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that waits after its work, for longer than a copy takes."""

    def paused(*args: Any, **options: Any) -> Any:
        result = function(*args, **options)
        time.sleep(0.04)
        return result

    return paused


def copy_between_writes(image: Path, copy: Path) -> None:
    """Copy a file while nothing is written to it: a copy from before and after a write shows a disk that never was."""
    for _ in range(1000):
        before = image.stat().st_mtime_ns
        time.sleep(0.005)  # the resolution of the time
        run("cp", "--sparse=auto", image, copy)
        if image.stat().st_mtime_ns == before:
            return
    raise RuntimeError(f"{image} is written without a pause.")


def version_after_a_power_cut(disk: Disk, read: Callable[[Path], Any]) -> int | None:
    """The version of the state on a copy of the disk, or None if it can't be read."""
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "copy"
        copy_between_writes(disk.image, image)
        with Disk(image, "noatime") as copy:
            try:
                found = read(copy)
            except Exception:  # noqa: BLE001  a damaged checkpoint
                return None
            versions = {float(value) for array in found.values() for value in np.unique(np.asarray(array))}
            return int(versions.pop()) if len(versions) == 1 else None


def save_file(folder: Path, version: int) -> None:
    """A file of one state."""
    save(folder / "state.safetensors", state(version))


def load_file(folder: Path) -> Any:
    """The state in the file."""
    return load(folder / "state.safetensors", like=state(0))


def save_step(folder: Path, version: int) -> None:
    """A step of our manager."""
    with CheckpointManager(folder / "run") as manager:
        manager.save(version, state(version))


def restore_step(folder: Path) -> Any:
    """The newest step that is valid."""
    with CheckpointManager(folder / "run") as manager:
        return manager.restore_latest_valid(like=state(0))[0]


def save_orbax(folder: Path, version: int) -> None:
    """A step of Orbax's manager."""
    with ocp.CheckpointManager(folder / "run") as manager:
        manager.save(version, args=ocp.args.StandardSave(state(version)))
        manager.wait_until_finished()


def restore_orbax(folder: Path) -> Any:
    """The newest step."""
    with ocp.CheckpointManager(folder / "run") as manager:
        return manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state(0)))


def lost(write: Callable[[Path, int], None], read: Callable[[Path], Any]) -> tuple[int, int]:
    """How many states were lost by a cut after a save, and by one during the next save."""
    after = during = 0
    for seed in range(ROUNDS):
        with tempfile.TemporaryDirectory() as folder:
            image = Path(folder) / "disk"
            run("truncate", "--size", "128M", image)
            run("mkfs.ext4", "-q", image)
            disk = Disk(image, "noauto_da_alloc,commit=300")
            with disk as path:
                began = time.perf_counter()
                write(path, 1)
                seconds = time.perf_counter() - began
                after += version_after_a_power_cut(disk, read) != 1
                saving = threading.Thread(target=write, args=(path, 2))
                saving.start()
                time.sleep(random.Random(seed).uniform(0, seconds))  # noqa: S311
                during += version_after_a_power_cut(disk, read) not in {1, 2}
                saving.join()
    return after, during


def main() -> None:
    """Print a row for each way to save."""
    os.fsync, os.rename, os.replace = map(with_a_pause, (os.fsync, os.rename, os.replace))
    print(f"{'':24}{'cut after a save':>18}{'cut during the next':>21}")
    for name, write, read in (
        ("treewright.save", save_file, load_file),
        ("our CheckpointManager", save_step, restore_step),
        ("Orbax's manager", save_orbax, restore_orbax),
    ):
        after, during = lost(write, read)
        print(f"{name:24}{f'{after} of {ROUNDS} lost':>18}{f'{during} of {ROUNDS} lost':>21}")


main()
