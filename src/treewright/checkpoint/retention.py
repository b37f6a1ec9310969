"""Which steps are kept: the newest, the best by a metric, and every so many."""

import dataclasses
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, SupportsIndex

from treewright.errors import CheckpointError

Mode = Literal["min", "max"]


@dataclasses.dataclass(frozen=True, slots=True)
class Retention:
    """What is kept. A step stays if any of the three keeps it."""

    newest: int | None
    every: int | None = None
    best: int | None = None
    metric: str | None = None
    mode: Mode | None = None

    def __post_init__(self) -> None:
        counts: dict[str, Any] = {"keep": self.newest, "keep_every": self.every, "keep_best": self.best}
        for name, count in counts.items():
            if count is not None and (not isinstance(count, SupportsIndex) or operator.index(count) < 1):
                raise ValueError(f"CheckpointManager({name}=...) takes a whole number from 1, or None, got {count!r}.")
        if self.mode not in {None, "min", "max"}:
            raise ValueError(f"CheckpointManager(mode=...) takes 'min' or 'max', got {self.mode!r}.")
        if (self.metric is None) != (self.mode is None) or (self.best is not None and self.metric is None):
            raise ValueError(
                f"CheckpointManager(keep_best={self.best}, metric={self.metric!r}, mode={self.mode!r}): the best steps "
                f"are known by an entry of their metadata and by whether less is better. Give both: metric='loss', "
                f"mode='min'."
            )

    def check(self, metadata: Mapping[str, Any]) -> None:
        """Return if a step with this metadata can be ranked."""
        if self.metric is None or (self.metric in metadata and type(metadata[self.metric]) in {int, float}):
            return
        shown = f"is {metadata[self.metric]!r}" if self.metric in metadata else "is missing"
        raise CheckpointError(
            f"The manager ranks steps by {self.metric!r}, and that {shown} in metadata: "
            f"save(step, tree, metadata={{{self.metric!r}: 0.5}})."
        )

    def check_there(self, metadata: Mapping[str, Any] | None) -> None:
        """Return if the metric is there, whatever it is: to look at it could wait for a device."""
        if self.metric not in {None, *(metadata or {})}:
            self.check({})

    def ranked(self, steps: Iterable[int], metadata: Callable[[int], Mapping[str, Any]]) -> list[int]:
        """The steps that have the metric, the best first and of equals the newest. NaN is worse than any number."""
        sign = -1 if self.mode == "max" else 1
        values: dict[int, float] = {}
        for step in steps:
            value: Any = metadata(step).get(self.metric or "")
            if type(value) in {int, float}:
                values[step] = math.inf if value != value else sign * value  # noqa: PLR0124  NaN; an int may be too large
        return sorted(values, key=lambda step: (values[step], -step))

    def kept(self, steps: Iterable[int], saved: int, metadata: Callable[[int], Mapping[str, Any]]) -> set[int]:
        """The steps that stay, when `saved` has just been saved. That one stays in any case."""
        steps = sorted(steps)
        if self.newest is None:
            return set(steps)
        kept = {*steps[-self.newest :], saved}
        if self.every is not None:
            kept.update(step for step in steps if step % self.every == 0)
        if self.best is not None:
            kept.update(self.ranked(steps, metadata)[: self.best])
        return kept
