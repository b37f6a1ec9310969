"""A process that forks children, which save in a loop until they are killed: a fork avoids a second of imports.

For each line `FOLDER MILLISECONDS` of its input, it kills a child that long after the child's first save, and prints
the last number whose file and step were both on disk.
"""

import itertools
import os
import select
import signal
import sys
import time
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as orbax_checkpoint  # before the forks

from treewright.checkpoint import CheckpointManager, save

assert orbax_checkpoint
SIZE = 50_000


def save_for_ever(folder: Path, answers: int) -> None:
    """Save increasing numbers, each as a file and as a step, and report each."""
    manager = CheckpointManager(folder / "steps", keep=2)
    for number in itertools.count((manager.latest_step() or 0) + 1):
        tree = {"a": jnp.full(SIZE, number), "b": [jnp.full(10, number)] * 5}
        save(folder / "file", tree)
        manager.save(number, tree)
        manager.wait()
        os.write(answers, f"{number}\n".encode())


def killed_round(folder: Path, milliseconds: float) -> str:
    """Let a new process save, kill it, and return the last number that it reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        save_for_ever(folder, writing)
    os.close(writing)
    reported = os.read(reading, 100)
    time.sleep(milliseconds / 1000)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while select.select([reading], [], [], 0)[0] and (more := os.read(reading, 1 << 16)):
        reported += more
    os.close(reading)
    return reported.decode().split()[-1]


if __name__ == "__main__":
    for line in sys.stdin:
        place, _, after = line.rpartition(" ")
        sys.stdout.write(f"{killed_round(Path(place), float(after))}\n")
        sys.stdout.flush()
