"""Time alternatives in turns, so that drift of the machine affects all of them equally.

pytest-benchmark times one test after the other, so that the machine's drift would fall on some ways and not on others.
Here the statements of a group take turns, one short sample each and in a different order in each round, and
pytest-benchmark gets the samples: its tables, `--benchmark-json` and `--benchmark-compare` work as usual.
"""

from __future__ import annotations

import itertools
import random
import timeit
from collections.abc import Callable, Mapping
from typing import Any

import pytest

SAMPLE_SECONDS = 1.5e-3
Statement = tuple[str, Mapping[str, Any]]


class Clock:
    """A statement that is ready to be timed; `loops=1` times each run separately."""

    def __init__(self, statement: Statement, *, loops: int | None = None, seconds: float = SAMPLE_SECONDS) -> None:
        text, names = statement
        setup = "; ".join(f"{name} = _names[{name!r}]" for name in names) or "pass"
        self._timer = timeit.Timer(text, setup, globals={"_names": names})
        self._timer.timeit(1)
        self._loops = loops or self._calibrated(seconds)

    def _calibrated(self, seconds: float) -> int:
        loops = 1
        while (found := self._timer.timeit(loops)) < seconds / 4:
            loops *= 2
        return max(1, round(loops * seconds / found))

    def sample(self) -> float:
        """Seconds for one run."""
        return self._timer.timeit(self._loops) / self._loops


def take_turns(clocks: Mapping[str, Clock], rounds: int) -> dict[str, list[float]]:
    """Samples of each statement. Each comes first in a round equally often, because coming first can cost a tenth."""
    shuffled, names = random.Random(0), list(clocks)  # noqa: S311 - an order, not a secret
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        first = names[turn % len(names)]
        others = [name for name in names if name != first]
        for name in (first, *shuffled.sample(others, len(others))):
            samples[name].append(clocks[name].sample())
    return samples


class _Replay:
    """A timer for pytest-benchmark that replays the samples: each round takes as long as the next one."""

    def __init__(self) -> None:
        self._readings: itertools.chain[float] = itertools.chain()

    def load(self, samples: list[float]) -> None:
        self._readings = itertools.chain.from_iterable((0.0, sample) for sample in samples)

    def __call__(self) -> float:
        return next(self._readings)


_REPLAY = _Replay()
REPLAYED = pytest.mark.benchmark(timer=_REPLAY)


def replay(benchmark: Any, samples: list[float]) -> None:
    """Report seconds that were measured elsewhere, in a test that is marked `REPLAYED`."""
    _REPLAY.load(samples)
    benchmark.pedantic(lambda: None, rounds=len(samples))


def group(
    *ways: str, title: str, rounds: int = 40, loops: int | None = None, **parameters: list[Any]
) -> Callable[[Callable[..., Statement]], Callable[..., None]]:
    """Make a benchmark of a function that gives the statement of a way, for each combination of the parameters.

    Args:
        ways: Their names. One whose library is not installed is skipped.
        title: The subject, with the parameters in braces.
        rounds: Samples of each way.
        loops: Runs in a sample, for statements that must not run often.
        parameters: By name, the values to compare the ways at.
    """
    taken: dict[str, dict[str, list[float]]] = {}

    def decorate(statement: Callable[..., Statement]) -> Callable[..., None]:
        @REPLAYED
        @pytest.mark.parametrize("way", ways)
        @pytest.mark.parametrize(
            "at", list(itertools.product(*parameters.values())), ids=lambda at: "-".join(map(str, at))
        )
        def test(way: str, at: tuple[Any, ...], benchmark: Any) -> None:
            values = dict(zip(parameters, at, strict=True))
            benchmark.group = title.format(**values)
            if benchmark.group not in taken:
                clocks: dict[str, Clock] = {}
                for name in ways:
                    try:
                        clocks[name] = Clock(statement(name, **values), loops=loops)
                    except ImportError:
                        continue
                taken[benchmark.group] = take_turns(clocks, rounds)
            if way not in taken[benchmark.group]:
                pytest.skip(f"{way} is not installed")
            replay(benchmark, taken[benchmark.group][way])

        vars(test)["statement"] = statement
        return test

    return decorate
