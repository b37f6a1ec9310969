"""The report: what has been traced again, where from, and every difference with its reason and remedy."""

import dataclasses
import logging
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any, Literal

from treewright._jax import DictKey, SequenceKey
from treewright._trees.diff import Difference, DifferenceKind
from treewright._values.reach import public
from treewright.retrace.history import Finding, History
from treewright.retrace.remedies import remedy_of

_LINES = 50  # of differences that are printed; all are in `RetraceReport.differences`

# The kinds of differences that the text does not show by itself.
KINDS: types.MappingProxyType[DifferenceKind, str] = types.MappingProxyType(
    {
        "static": "static",
        "value": "static",
        "added": "added",
        "removed": "removed",
        "placement": "placement",
        "passing": "passed",
        "setting": "setting",
        "option": "option of jit",
    }
)

Event = Literal["trace", "recompile", "count", "would trace", "would recompile", "none"]


@public("treewright")
@dataclasses.dataclass(frozen=True, slots=True)
class RetraceReport:
    """One retrace or recompile. `str` gives the text.

    Args:
        function: The name of the function.
        event: `"trace"`; `"recompile"`, a compilation without a trace; `"count"`, a trace of which only the name of
            the function could be read. From `explain`: `"would trace"`, `"would recompile"`, `"none"`.
        number: How many traces of this function's definition there have been, this one among them; of compilations,
            if `event` is `"recompile"`.
        differences: The differences to the closest earlier signature. Their paths begin with an argument's name; `left`
            and `right` describe what was there, and keep no arrays.
        compared_with: The number of the trace that the differences are to; None if there is none to compare with.
        seconds: How long it took: tracing, by `traced`; tracing and compiling, by `explain_retraces`.
        caller: Where the function was called, as `train.py:69 in main`.
        unseen: What could not be seen in this version of JAX, and may be missing from the report; else empty.

    Examples:
        >>> step = jax.jit(lambda batch: batch["x"].sum())
        >>> with explain_retraces(on_report=lambda report: print(report.function, report.number, *report.differences)):
        ...     step({"x": jnp.ones((32, 2))}), step({"x": jnp.ones((31, 2))})
        <lambda> 2 batch['x'] (shape): float32[32,2] -> float32[31,2]; axis 0: 32 -> 31
        (Array(64., dtype=float32), Array(62., dtype=float32))
    """

    function: str
    event: Event
    number: int
    differences: tuple[Difference, ...] = ()
    compared_with: int | None = None
    seconds: float | None = None
    caller: str = ""
    unseen: str = ""

    @property
    def is_retrace(self) -> bool:
        """Whether something had been traced before."""
        return self.compared_with is not None or (self.event == "count" and self.number > 1)

    def __str__(self) -> str:
        return "\n".join([self._headline(), *(f"    {line}" for line in self._details())])

    def _headline(self) -> str:
        ordinal = ordinal_of(self.number)
        seconds = "" if self.seconds is None else f", {self.seconds:.2g} s"
        caller = f", called from {self.caller}" if self.caller else ""
        match self.event:
            case "none":
                return f"{self.function} would not retrace"
            case "would trace":
                return f"{self.function} would retrace"
            case "would recompile":
                return f"{self.function} would be compiled again, without a trace"
            case "recompile":
                return f"{self.function} recompiled, without a trace ({ordinal} compilation{seconds}){caller}"
            case _:
                again = "retraced" if self.number > 1 else "traced"
                return f"{self.function} {again} ({ordinal} trace{seconds}){caller}"

    def _details(self) -> Iterator[str]:
        lines = list(difference_lines(self.differences))
        yield from lines[:_LINES]
        if len(lines) > _LINES:
            yield f"... and {len(lines) - _LINES} more lines"
        if not self.differences and self.compared_with is not None:
            yield (
                "nothing that can be seen differs: JAX's caches were cleared (jax.clear_caches, clear_cache), or a "
                "setting of JAX changed that is not known here"
            )
        if self.compared_with is not None:
            yield f"compared with trace {self.compared_with}"
        if self.event == "count":
            yield "the arguments could not be read, so traces are only counted, by the function's name"
        if self.unseen:
            yield self.unseen


def trace_report(history: History, number: int, finding: Finding, place: str) -> RetraceReport:
    """The report of a trace that begins."""
    earlier = number - 1 if finding.entry is None else finding.entry.number
    compared_with = earlier if finding.differences or finding.entry is not None else None
    return RetraceReport(history.definition.name, "trace", number, finding.of_trace, compared_with, caller=place)


def too_many(limit: int, report: RetraceReport) -> str:
    """The message for one trace too many."""
    if limit == 0:
        return f"{report.function} may not be traced here, and is:\n{report}"
    times = "once" if limit == 1 else f"{limit} times"
    return f"{report.function} may be traced {times} here, and is traced once more:\n{report}"


def ordinal_of(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`."""
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def difference_lines(differences: Iterable[Difference]) -> Iterator[str]:
    """A line for each difference, and one for the same change in many places, each followed by reason and remedy."""
    groups: dict[tuple[str, str, str], list[Difference]] = {}
    for whole in differences:
        for part in whole.parts or (whole,):
            groups.setdefault((_folded(part.path), _change_of(part), part.reason), []).append(part)
    for (_, change, reason), group in groups.items():
        yield f"{_place_of(group)}: {change}"
        notes = "; ".join(filter(None, ("" if reason == change else reason, remedy_of(group[0]))))
        if notes:
            yield f"    {notes}"


def _change_of(difference: Difference) -> str:
    return (difference.kind == "function" and difference.reason) or difference.change


def _folded(path: Iterable[Any]) -> str:
    return "".join("[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in path)


def _place_of(group: list[Difference]) -> str:
    """The path of one difference, or the pattern of several: `*` where they are in different places."""
    keys = zip(*(difference.path for difference in group), strict=True)
    path = "".join(str(same[0]) if len(set(map(str, same))) == 1 else "[*]" for same in keys)
    notes = [KINDS.get(group[0].kind, ""), f"{len(group)} places" if len(group) > 1 else ""]
    shown = ", ".join(filter(None, notes))
    return f"{path} ({shown})" if shown else path


# Where reports go


def to_log_and_stderr(report: RetraceReport) -> None:
    """Write a report to the logger `treewright.retrace`, and to standard error unless the logging does that."""
    logger = logging.getLogger("treewright.retrace")
    if not logger.isEnabledFor(logging.WARNING):
        return
    handlers = list(_handlers_of(logger))
    if handlers:
        logger.warning("%s", report)
    if not any(_writes_to_stderr(handler) for handler in handlers):
        sys.stderr.write(f"{report}\n")


def _handlers_of(logger: logging.Logger) -> Iterator[logging.Handler]:
    current: logging.Logger | None = logger
    while current is not None:
        yield from current.handlers
        current = current.parent if current.propagate else None


def _writes_to_stderr(handler: logging.Handler) -> bool:
    stream: Any = getattr(handler, "stream", None)
    return handler.level <= logging.WARNING and stream in {sys.stderr, sys.__stderr__}
