"""What a checkpoint costs beside the bytes themselves: against a raw write and read, safetensors, and bare Orbax.

`python benchmarks/checkpoint.py` prints throughputs and ratios of medians from one interleaved run; README.md beside
this file says how to read them.
"""

import argparse
import contextlib
import ctypes
import dataclasses
import hashlib
import logging
import os
import shutil
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import numpy as np
import orbax.checkpoint as ocp
import safetensors.flax
import xxhash
from _lines import Line, add_option, lines_text, table, write

from treewright.checkpoint import CheckpointManager, load, save

LARGE = 48  # arrays
MANY = 100_000  # leaves
M_MMAP_THRESHOLD = -3  # of glibc's mallopt


def make_tree(megabytes: int, count: int) -> dict[str, Any]:
    """48 large arrays of `megabytes` together, and `count` small ones."""
    random = np.random.default_rng(0)
    size = megabytes * 1_000_000 // LARGE // 4
    large = {f"layer_{i}": random.standard_normal(size, np.float32) for i in range(LARGE)}
    small = {f"scale_{i}": random.standard_normal(16, np.float32) for i in range(count)}
    tree: dict[str, Any] = jax.block_until_ready(jax.tree.map(jax.numpy.array, {"large": large, "small": small}))
    return tree


class Ways:
    """The ways of saving and loading that are compared, each in a file or folder of its own."""

    def __init__(self, folder: Path, tree: Any) -> None:
        self.folder = folder
        self.tree = tree
        self.abstract = jax.eval_shape(lambda: tree)
        self.arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
        self.flat = {"/".join(key.key for key in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}
        safetensors.flax.save_file(self.flat, folder / "plain.safetensors")
        self.step = 0
        self.manager = CheckpointManager(folder / "manager", keep=1)
        self.orbax = ocp.CheckpointManager(
            folder / "orbax",
            options=ocp.CheckpointManagerOptions(max_to_keep=1),
            item_handlers={"state": ocp.PyTreeCheckpointHandler(use_compression=False)},
        )

    def raw_write(self) -> None:
        """The bytes of all arrays into one file, and fsync."""
        with (self.folder / "raw").open("wb", buffering=0) as file:
            for array in self.arrays:
                file.write(array)
            os.fsync(file.fileno())

    def raw_read(self) -> None:
        """The same bytes into fresh memory."""
        with (self.folder / "raw").open("rb", buffering=0) as file:
            memory = [np.empty(array.nbytes, np.uint8) for array in self.arrays]
            for array in memory:
                file.readinto(array)

    def save(self) -> None:
        """One safetensors file."""
        save(self.folder / "file.safetensors", self.tree)

    def load(self) -> None:
        """It again, as JAX arrays."""
        jax.block_until_ready(load(self.folder / "file.safetensors", like=self.abstract))

    def plain_save(self) -> None:
        """What safetensors writes by itself, and fsync."""
        safetensors.flax.save_file(self.flat, self.folder / "new-plain.safetensors")
        with (self.folder / "new-plain.safetensors").open("rb") as file:
            os.fsync(file.fileno())

    def new_save(self) -> None:
        """One safetensors file, where there was none."""
        save(self.folder / "new-file.safetensors", self.tree)

    def plain_load(self) -> None:
        """It again, as JAX arrays."""
        jax.block_until_ready(safetensors.flax.load_file(self.folder / "plain.safetensors"))

    def remove(self) -> None:
        """Both files of the last round, so that neither way has memory at hand that it has just given back."""
        for name in ("new-plain.safetensors", "new-file.safetensors"):
            (self.folder / name).unlink(missing_ok=True)

    def forget(self) -> None:
        """Take both files out of the cache of the system, as far as it does that."""
        for name in ("raw", "file.safetensors"):
            with (self.folder / name).open("rb") as file, contextlib.suppress(OSError, AttributeError):
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def manager_save(self) -> None:
        """One step, until it is on disk."""
        self.step += 1
        self.manager.save(self.step, self.tree)
        self.manager.wait()

    def manager_restore(self) -> None:
        """It again, as JAX arrays."""
        jax.block_until_ready(self.manager.restore(like=self.tree))

    def orbax_save(self) -> None:
        """The same with Orbax alone, without compression."""
        self.step += 1
        self.orbax.save(self.step, args=ocp.args.Composite(state=ocp.args.PyTreeSave(self.tree)))
        self.orbax.wait_until_finished()

    def orbax_restore(self) -> None:
        """It again, as JAX arrays."""
        args = ocp.args.PyTreeRestore(
            item=self.tree, restore_args=ocp.checkpoint_utils.construct_restore_args(self.tree)
        )
        step = self.orbax.latest_step()
        jax.block_until_ready(self.orbax.restore(step, args=ocp.args.Composite(state=args)).state)


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """Two ways of the same, and the ratio of throughputs that is the target."""

    name: str
    against: str
    target: float
    ours: Callable[[], None]
    base: Callable[[], None]
    before: Callable[[], None] = lambda: None


def pairs(ways: Ways) -> tuple[Comparison, ...]:
    """What is measured."""
    return (
        Comparison("save, file", "safetensors + fsync", 1 / 1.15, ways.new_save, ways.plain_save, ways.remove),
        Comparison("save", "raw write + fsync", 0.8, ways.save, ways.raw_write),
        Comparison("load, file", "safetensors", 1.0, ways.load, ways.plain_load),
        Comparison("load", "raw readinto", 0.8, ways.load, ways.raw_read),
        Comparison("load from the disk", "raw readinto", 0.8, ways.load, ways.raw_read, ways.forget),
        Comparison("manager.save + wait", "Orbax, uncompressed", 0.7, ways.manager_save, ways.orbax_save),
        Comparison("manager.restore", "Orbax, uncompressed", 0.7, ways.manager_restore, ways.orbax_restore),
    )


def fresh_memory() -> None:
    """Have large arrays in memory that nobody used before, as the first ones in a process are.

    Otherwise glibc hands out what was freed: a raw read into that takes a third of the time, and which of the reads
    gets it is a matter of chance.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 20)


def settle() -> None:
    """Wait for what the run before left behind, and have memory at hand.

    Dirty pages are written. A virtual machine's host takes back what has been free for a while,
    and is slow to give it again, so that a run would measure which memory it happened to get: some is used and freed.
    """
    os.sync()
    np.ones(1 << 30, np.uint8)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one run takes: seconds, seconds of the processors, and megabytes at most besides those of before."""

    wall: float
    cpu: float
    peak: float

    @classmethod
    def of(cls, run: Callable[[], object]) -> "Cost":
        """The cost of one run. The peak is that of Linux, which alone can forget the last one; elsewhere it is 0."""
        before = resident("VmRSS", forget=True)
        cpu, wall = time.process_time(), time.perf_counter()
        run()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        return cls(wall, cpu, resident("VmHWM") - before)


def resident(name: str, *, forget: bool = False) -> float:
    """The megabytes of memory that this process has, or has had at most since the last one was forgotten."""
    with contextlib.suppress(OSError):
        if forget:
            Path("/proc/self/clear_refs").write_text("5")
        status = Path("/proc/self/status").read_text()
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith(name))
    return 0.0


def median(costs: Sequence[Cost], what: str) -> float:
    """The median of the seconds, say, of some runs."""
    return statistics.median(getattr(cost, what) for cost in costs)


def many_leaves(folder: Path) -> list[Line]:
    """Seconds of the processor that very many small arrays take."""
    path = folder / "many.safetensors"
    tree = [{"kernel": np.full(4, index, np.float32), "bias": np.zeros(1)} for index in range(MANY // 2)]
    ways: dict[str, Callable[[], object]] = {"save": lambda: save(path, tree), "load": lambda: load(path, like=tree)}
    costs = {name: min(Cost.of(way).cpu for _ in range(3)) for name, way in ways.items()}
    against = f"{MANY:,} numpy arrays"
    return [Line(f"CPU s of {name}", against, f"{cost:.2f}", "<= 2.0", cost <= 2) for name, cost in costs.items()]


def digests(repeats: int) -> list[list[str]]:
    """The throughput of the digests that there were to choose from, over 64 MB; what is not installed is left out."""
    data = np.random.default_rng(0).bytes(64_000_000)
    ways: dict[str, Callable[[bytes], object]] = {
        "xxh3_128 (used)": xxhash.xxh3_128_digest,
        "CRC-32 (zlib)": zlib.crc32,
        "SHA-256": lambda data: hashlib.sha256(data).digest(),
    }
    with contextlib.suppress(ImportError):
        import google_crc32c

        ways["CRC-32C"] = google_crc32c.value
    with contextlib.suppress(ImportError):
        import blake3

        ways["BLAKE3"] = lambda data: blake3.blake3(data).digest()
    rows = [["digest", "GB/s"]]
    for name, way in ways.items():
        taken = statistics.median(Cost.of(lambda way=way: way(data)).wall for _ in range(repeats))
        rows.append([name, f"{len(data) / taken / 1e9:.1f}"])
    return rows


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where to write (a temporary folder)")
    parser.add_argument("--megabytes", type=int, default=400, help="of the 48 large arrays together")
    parser.add_argument("--small", type=int, default=2000, help="how many small arrays there are besides")
    parser.add_argument("--repeats", type=int, default=5, help="rounds, after one that is not counted")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is not reached")
    add_option(parser)
    return parser.parse_args(arguments)


def main() -> int:
    """Measure, print, and return the exit code."""
    options = parse()
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    logging.disable(logging.WARNING)
    try:
        many = many_leaves(folder)  # in memory as every program has it
        fresh_memory()
        tree = make_tree(options.megabytes, options.small)
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(tree))
        counts = f"{LARGE} large and {options.small} small arrays"
        print(f"{size / 1e6:.0f} MB in {counts}, {options.repeats} rounds, in {folder}\n")
        compared = pairs(Ways(folder, tree))
        times: dict[str, tuple[list[Cost], list[Cost]]] = {one.name: ([], []) for one in compared}
        for round_ in range(-1, options.repeats):
            for one in compared:
                both = [one.base, one.ours] if round_ % 2 else [one.ours, one.base]
                if round_ < 0:  # the files have to be there before they are read
                    both = [one.base, one.ours]
                taken = {}
                for run in both:
                    settle()
                    one.before()
                    taken[run] = Cost.of(run)
                if round_ >= 0:
                    times[one.name][0].append(taken[one.ours])
                    times[one.name][1].append(taken[one.base])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    head = ["GB/s", "CPU s", "peak MB"]
    rows, lines = [["", *head, "against", *head]], many
    for one in compared:
        ours, base = times[one.name]
        cells = [
            [f"{size / median(each, 'wall') / 1e9:.2f}", f"{median(each, 'cpu'):.2f}", f"{median(each, 'peak'):.0f}"]
            for each in (ours, base)
        ]
        rows.append([one.name, *cells[0], one.against, *cells[1]])
        ratio = median(base, "wall") / median(ours, "wall")
        lines.append(
            Line(f"throughput of {one.name}", one.against, f"{ratio:.2f}", f">= {one.target:.2f}", ratio >= one.target)
        )
    print(table(rows), table(digests(options.repeats)), lines_text(lines), sep="\n\n")
    write(options.lines, lines)
    return 1 if options.check and not all(one.reached for one in lines) else 0


if __name__ == "__main__":
    sys.exit(main())
