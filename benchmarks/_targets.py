"""What Treewright means to reach, and whether a run reached it."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from _lines import Behind, Line
from _measures import Measure
from _peers import LIBRARIES
from _timing import Key, Times

OURS = tuple(library.name for library in LIBRARIES if library.role == "ours")
PEERS = tuple(library.name for library in LIBRARIES if library.role == "peer")

Statistic = Literal["median", "minimum"]
Results = Mapping[Key, Times]


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """A limit for the ratio of Treewright's time to another's. `strict` asks to stay below the limit."""

    number: int
    measures: tuple[str, ...]
    children: int
    limit: float
    text: str
    against: str | None = None
    strict: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """A target, whom it was measured against, and the ratio of each of Treewright's classes: median and minimum."""

    target: Target
    against: str
    ratios: Mapping[str, tuple[float, float]]

    @property
    def reached(self) -> bool | None:
        """Whether all medians are within the limit; None if nothing was measured."""
        if not self.ratios:
            return None
        within = (
            median < self.target.limit if self.target.strict else median <= self.target.limit
            for median, _ in self.ratios.values()
        )
        return all(within)

    def line(self) -> Line:
        """The ratios of medians, `pytree_dataclass` first."""
        measured = " / ".join(f"{median:.2f}" for median, _ in self.ratios.values()) or "-"
        limit = f"{'<' if self.target.strict else '<='} {self.target.limit:.2f}"
        return Line(self.target.text, self.against, measured, limit, self.reached)


def _of(children: int) -> str:
    return "1 child" if children == 1 else f"{children} children"


def targets(children: Sequence[int]) -> Iterator[Target]:
    """All targets, for the numbers of children that a run measures. `against=None` means the best peer."""
    for n in children:
        yield Target(1, ("flatten", "unflatten"), n, 0.5, f"flatten + unflatten, {_of(n)}")
    call = "jit call that returns 100 nodes of 2 leaves"
    yield Target(2, ("jit",), 2, 1.12, call, against="tuple")
    yield Target(2, ("jit",), 2, 1.0, call, strict=True)
    yield Target(3, ("read",), 2, 1.05, "jit call that reads 100 nodes of 2 leaves", against="register_dataclass")
    for n in children:
        yield Target(4, ("construct",), n, 1.5, f"construction, {_of(n)}", against="frozen dataclass")
    for n in children:
        yield Target(5, ("class",), n, 1.3, f"class creation, {_of(n)}", against="register_dataclass")
    yield Target(6, ("path",), 2, 1.3, "flatten with path, 2 children")


def _seconds(results: Results, target: Target, library: str, statistic: Statistic) -> float | None:
    """The time of `library` for all measures of `target` together; None unless all were taken."""
    found = [results.get(Key(measure, target.children, library)) for measure in target.measures]
    times = [one for one in found if one is not None]
    if len(times) < len(found):
        return None
    return math.fsum(one.median if statistic == "median" else one.minimum for one in times)


def _opponent(results: Results, target: Target, statistic: Statistic) -> tuple[str, float] | None:
    names = PEERS if target.against is None else (target.against,)
    measured = [(name, _seconds(results, target, name, statistic)) for name in names]
    known = [(name, seconds) for name, seconds in measured if seconds is not None]
    return min(known, key=lambda one: one[1], default=None)


def verdict(results: Results, target: Target) -> Verdict | None:
    """How far Treewright is from `target`; None if the run did not take its measures."""
    by_median = _opponent(results, target, "median")
    by_minimum = _opponent(results, target, "minimum")
    if by_median is None or by_minimum is None:
        return None
    ratios: dict[str, tuple[float, float]] = {}
    for name in OURS:
        median = _seconds(results, target, name, "median")
        minimum = _seconds(results, target, name, "minimum")
        if median is not None and minimum is not None:
            ratios[name] = (median / by_median[1], minimum / by_minimum[1])
    against = by_median[0] if target.against is not None else f"best peer ({by_median[0]})"
    return Verdict(target, against, ratios)


def behind(results: Results, measures: Sequence[Measure]) -> list[Behind]:
    """Where a peer is faster than one of ours: the fastest peer, for each measure and number of children."""
    titles = {one.name: one.title for one in measures}
    places = dict.fromkeys((key.measure, key.children) for key in results if key.measure in titles)
    rows: list[Behind] = []
    for measure, children in places:
        times = {
            key.library: one.median
            for key, one in results.items()
            if (key.measure, key.children) == (measure, children)
        }
        peer = min((name for name in PEERS if name in times), key=times.__getitem__, default=None)
        for ours in OURS if peer is not None else ():
            if ours in times and times[ours] > times[peer]:
                what = f"{titles[measure]}, {_of(children)}, {ours}"
                rows.append(Behind(measure, what, peer, times[ours] / times[peer]))
    return rows
