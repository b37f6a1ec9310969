"""Managers that save and others that restore on the disk that `disk.c` makes: `... SETTING SCHEDULES`.

It prints how many steps were saved and how many restored. Whatever the disk does: a step that was told to be saved is
there, what is restored is what was saved, every error is one of ours, a manager saves again once the disk is well, and
the program ends.
"""

import contextlib
import logging
import os
import random
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from treewright.checkpoint import CheckpointManager
from treewright.errors import CheckpointDamagedError, CheckpointError

FOLDER, SETTING = Path(os.environ["DISK_FOLDER"]), Path(os.environ["DISK_SETTING"])
WITHOUT_LOCKS = 8 | 16


def tree_of(number: int) -> dict[str, Any]:
    return {"large": jnp.full(30_000, number), "small": [jnp.full(7, number)] * 3, "number": number}


def number_in(tree: Any) -> int:
    number: int
    (number,) = {tree["number"], *map(int, np.unique(tree["large"])), *map(int, np.unique(tree["small"][0]))}
    return number


class Schedule:
    """One manager that saves, or two where no lock keeps the second away, and two that restore."""

    def __init__(self, seed: int, counts: Counter[str]) -> None:
        self.chance, self.folder, self.counts = random.Random(seed), FOLDER / str(seed), counts
        self.told: set[int] = set()
        self.done = threading.Event()
        self.problems: list[BaseException] = []

    def write(self, own: random.Random, first: int) -> None:
        manager = CheckpointManager(self.folder, keep=None)
        for number in range(first, first + 8, 2):
            with self.refusing():
                manager.save(number, tree_of(number))
                time.sleep(own.random() * 0.01)
                manager.wait()
                self.told.add(number)
        with self.refusing():
            manager.close()

    @contextlib.contextmanager
    def refusing(self) -> Generator[None]:
        try:
            yield
        except CheckpointError:
            self.counts["refused"] += 1

    def read(self, own: random.Random, _: int) -> None:
        manager = CheckpointManager(self.folder)
        while not self.done.is_set():
            time.sleep(own.random() * 0.01)
            with self.refusing():
                found = manager.restore_latest_valid(like=tree_of(0))
                assert found is None or number_in(found.tree) == found.step
                self.counts["restored"] += found is not None

    def started(self, work: Callable[[random.Random, int], None], number: int) -> threading.Thread:
        own = random.Random(self.chance.random())

        def body() -> None:
            try:
                work(own, number)
            except BaseException as error:  # noqa: BLE001  it is raised again in the main thread
                self.problems.append(error)

        thread = threading.Thread(target=body)
        thread.start()
        return thread

    def run(self, setting: str) -> None:
        SETTING.write_text(setting)
        readers = [self.started(self.read, number) for number in range(2)]
        writers = 2 if int(setting.partition(" ")[0]) & WITHOUT_LOCKS else 1
        for writer in [self.started(self.write, number) for number in range(writers)]:
            writer.join()
        self.done.set()
        for reader in readers:
            reader.join()
        SETTING.unlink()
        if self.problems:
            raise self.problems[0]
        with CheckpointManager(self.folder, keep=None) as manager:
            assert self.told <= set(manager.all_steps())
            for step in manager.all_steps():
                try:
                    assert number_in(manager.restore(step, like=tree_of(0))) == step
                except CheckpointDamagedError:
                    assert step not in self.told
            manager.save(1000, tree_of(1000))
        self.counts["saved"] += len(self.told)


def main(setting: str, schedules: int) -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    counts: Counter[str] = Counter()
    for seed in range(schedules):
        Schedule(seed, counts).run(setting)
    sys.stdout.write(f"{counts['saved']} {counts['restored']} {counts['refused']}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
