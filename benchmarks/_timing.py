"""Timing in one run: every round takes one short sample of each case, so that drift of the machine meets all alike."""

import dataclasses
import itertools
import statistics
import time
import timeit
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

SAMPLE_SECONDS = 1.5e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """What was measured, for how many children and of which library."""

    measure: str
    children: int
    library: str


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A statement to time. `timeit` switches garbage collection off inside each sample.

    One run of the statement does `operations` operations; `once` takes one run as a sample, whatever its length.
    """

    key: Key
    timer: timeit.Timer
    operations: int = 1
    once: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Times:
    """The samples of one case, in seconds for one operation."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median of the samples: what the ratios compare."""
        return statistics.median(self.samples)

    @property
    def minimum(self) -> float:
        """The fastest sample: nearest to an undisturbed machine."""
        return min(self.samples)


def timed(run: Callable[[], Any], times: int = 1) -> float:
    """The seconds of one run, until its result is there."""
    result = None
    began = time.perf_counter()
    for _ in range(times):
        result = run()
    jax.block_until_ready(result)
    return (time.perf_counter() - began) / times


def statement(text: str, **names: Any) -> timeit.Timer:
    """A timer of `text`, with `names` as local variables of the timing loop."""
    setup = "; ".join(f"{name} = _values[{name!r}]" for name in names) or "pass"
    return timeit.Timer(text, setup, globals={"_values": names})


def _loops(case: Case) -> int:
    if case.once:
        return 1
    case.timer.timeit(1)
    loops = 1
    while (seconds := case.timer.timeit(loops)) < SAMPLE_SECONDS / 4:
        loops *= 2
    return max(1, round(loops * SAMPLE_SECONDS / seconds))


def measure(cases: Sequence[Case], *, repeats: int) -> dict[Key, Times]:
    """The times of all cases, from `repeats` rounds over them.

    Within a round the libraries of one measure and size follow each other directly, in another order in each round:
    were it always the same, one would always find the caches as a library that runs the same code has left them. Each
    is the first equally often, which costs some a tenth.
    """
    random = np.random.default_rng(0)
    groups = [
        list(group) for _, group in itertools.groupby(cases, key=lambda case: (case.key.measure, case.key.children))
    ]
    loops = {case.key: _loops(case) for case in cases}
    samples: dict[Key, list[float]] = {case.key: [] for case in cases}
    for repeat in range(repeats):
        for group in groups:
            first, *others = np.roll(range(len(group)), repeat).tolist()
            turns: list[Case] = [group[place] for place in (first, *random.permutation(others).tolist())]
            for case in turns:
                runs = loops[case.key]
                if case.once:  # follows one of its own kind, and not another library that has filled the caches
                    case.timer.timeit(1)
                samples[case.key].append(case.timer.timeit(runs) / (runs * case.operations))
    return {key: Times(tuple(values)) for key, values in samples.items()}
