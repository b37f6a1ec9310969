"""Which steps of a run stay: the retention options of a manager, and what they select."""

import contextlib
import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from treewright._base.text import did_you_mean, short_text
from treewright.errors import CheckpointError


@dataclasses.dataclass(frozen=True)
class Retention:
    """The options of `CheckpointManager` that select steps.

    Raises:
        ValueError: If one is invalid, or they contradict each other.
    """

    keep: int | None = None
    keep_every: int | None = None
    keep_best: int | None = None
    metric: str | None = None
    mode: Literal["min", "max"] | None = None

    def __post_init__(self) -> None:
        keep, keep_every, keep_best, metric, mode = dataclasses.astuple(self)
        are_counts = all(count is None or (type(count) is int and count > 0) for count in (keep, keep_every, keep_best))
        if not are_counts or (keep is None and (keep_every or keep_best)):
            raise ValueError(
                f"CheckpointManager({keep=}, {keep_every=}, {keep_best=}): each must be a positive int, or None. "
                f"Without keep=, all steps are kept: add keep=1 to delete the others."
            )
        ranks = isinstance(metric, str) and metric != "" and mode in ("min", "max")
        if not ranks and (keep_best, metric, mode) != (None, None, None):
            raise ValueError(
                f"CheckpointManager({keep_best=}, {metric=}, {mode=}): ranking steps needs the name of a metric and a "
                f"direction. Pass both: metric='loss', mode='min' or 'max'."
            )

    @property
    def rules(self) -> dict[str, Any]:
        """The options that decide which steps stay, as the manifest has them; empty to keep all."""
        ranking = {"metric": self.metric, "mode": self.mode} if self.keep_best else {}
        counts = {"keep": self.keep, "keep_every": self.keep_every, "keep_best": self.keep_best}
        return {} if self.keep is None else counts | ranking

    def rank(self, metrics: Mapping[str, float]) -> float | None:
        """The rank of a step: higher is better, NaN is worst, None if it lacks the metric."""
        value = metrics.get(str(self.metric))
        if value is None:
            return None
        return -math.inf if math.isnan(value) else value if self.mode == "max" else -value

    def missing_metric(self, metrics: Mapping[str, float]) -> str:
        """A text if a step has metrics, but not the one that ranks steps."""
        if self.metric is None or not metrics or self.metric in metrics:
            return ""
        names = ", ".join(map(repr, metrics))
        return (
            f"The steps of this manager are ranked by {self.metric!r}{did_you_mean(self.metric, metrics)}, but the "
            f"metrics of this step are {names}. A step without it is never the best."
        )

    def kept(self, ranks: Mapping[int, float | None]) -> set[int]:
        """The steps that stay, of steps with their ranks. A step without a rank is never among the best.

        While no step has a rank, all stay: the metric may be misspelt.
        """
        if self.keep is None or (self.keep_best and all(rank is None for rank in ranks.values())):
            return set(ranks)
        newest = sorted(ranks)[-self.keep :]
        regular = [step for step in ranks if self.keep_every and step % self.keep_every == 0]
        ranked = sorted((rank, step) for step, rank in ranks.items() if rank is not None)
        best = [step for _, step in ranked[-self.keep_best :]] if self.keep_best else []
        return {*newest, *regular, *best}


def numbers_of(metrics: object) -> dict[str, float]:
    """The metrics of a step as Python numbers.

    Raises:
        CheckpointError: If they are not a dict of numbers by name.
    """
    pairs = metrics.items() if isinstance(metrics, Mapping) else ()
    numbers = {name: _number(value) for name, value in pairs}
    are_numbers = all(type(name) is str and type(value) in {int, float} for name, value in numbers.items())
    if not (isinstance(metrics, Mapping | None) and are_numbers):
        raise CheckpointError(
            f"save(..., metrics={short_text(metrics)}): metrics= must be a dict of numbers by name, in the range of "
            f"floats. Leave a metric out if it was not measured."
        )
    return numbers


def _number(value: Any) -> Any:
    """A scalar of any library as a number of Python; None if it is none that a float can represent."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = np.asarray(value).tolist()
        float(number)
        return number
    return None
