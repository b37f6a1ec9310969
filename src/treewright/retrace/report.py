"""Retrace reports: the sentences for the differences of two calls."""

import dataclasses
import types
from collections.abc import Collection, Mapping
from typing import Literal

from treewright._base.functions import public
from treewright._base.jax_private import DictKey, Path, SequenceKey
from treewright._reports import first_lines, first_names
from treewright._trees.difference import Difference
from treewright.retrace.fixes import fix_for

_X64 = "jax.config.jax_enable_x64"
_MAX_LINES = 50  # printed lines of differences; `RetraceReport.differences` has all of them
_NOTHING = "no visible difference: JAX's caches were cleared or evicted, or an untracked setting changed"

# The labels for kinds of differences that the values do not show.
_KINDS: Mapping[str, str] = types.MappingProxyType(
    {kind: kind for kind in ("static", "added", "removed", "placement", "setting")}
    | {"value": "static", "passing": "passed", "option": "option of jit"}
)

ReportedEvent = Literal["trace", "recompile", "would trace", "would recompile", "none"]


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RetraceReport:
    """One retrace or recompile. It prints as the full text.

    Args:
        function: The name of the function.
        event: `"trace"`, or `"recompile"`, a compilation without a trace. From `explain`: `"would trace"`,
            `"would recompile"`, `"none"`.
        number: The number of this trace among those of the function's definition; of this compilation, if `event` is
            `"recompile"`.
        differences: The differences from the most similar earlier signature. Their paths begin with an argument's name;
            `left` and `right` describe the values and keep no arrays.
        compared_with: The number of that earlier trace; None for the first one.
        seconds: The time to trace, lower and compile.
        caller: The line that called the function, such as `train.py:69 in main`.
        unseen: What could not be observed, so the report may lack it; else empty.
        before: For the first observed trace or recompile of a function: the entries it had in JAX's cache before. A
            program can have two, for numpy arrays and for JAX's; a call that failed has one too, and so has a call that
            another thread began at the same time.

    Examples:
        >>> step = jax.jit(lambda batch: batch["x"].sum())
        >>> with explain_retraces(on_report=lambda report: print(report.function, report.number, *report.differences)):
        ...     step({"x": jnp.ones((32, 2))}), step({"x": jnp.ones((31, 2))})
        <lambda> 2 batch['x'] (shape): float32[32,2] -> float32[31,2]; axis 0: 32 -> 31
        (Array(64., dtype=float32), Array(62., dtype=float32))
    """

    function: str
    event: ReportedEvent
    number: int
    differences: tuple[Difference, ...] = ()
    compared_with: int | None = None
    seconds: float | None = None
    caller: str = ""
    unseen: str = ""
    before: int = 0

    @property
    def is_retrace(self) -> bool:
        """Whether the function had been traced before."""
        return self.compared_with is not None or self.before > 0

    def __str__(self) -> str:
        lines = [self._headline(), *first_lines(difference_lines(self.differences), _MAX_LINES, more="more lines")]
        if self.compared_with is not None and (self.differences or not self.unseen):
            lines += [] if self.differences else [_NOTHING]
            lines.append(f"compared with trace {self.compared_with}")
        if self.before:
            programs = "program" if self.before == 1 else "programs"
            lines.append(f"it had up to {self.before} {programs} before, whose arguments were not seen")
        return "\n    ".join([*lines, self.unseen] if self.unseen else lines)

    def __repr__(self) -> str:
        return str(self)

    def _headline(self) -> str:
        last = self.number % 10 if self.number % 100 not in {11, 12, 13} else 0
        ordinal = f"{self.number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }{' observed' if self.before else ''}"
        seconds = "" if self.seconds is None else f", {_seconds(self.seconds)}"
        caller = f", called from {self.caller}" if self.caller else ""
        match self.event:
            case "none":
                return f"{self.function} would not retrace{', as far as can be seen' if self.unseen else ''}"
            case "would trace":
                return f"{self.function} would retrace"
            case "would recompile":
                return f"{self.function} would recompile, without a trace"
            case "recompile":
                return f"{self.function} recompiled, without a trace ({ordinal} compilation{seconds}){caller}"
            case _:
                again = "retraced" if self.is_retrace and not self.before else "traced"
                return f"{self.function} {again} ({ordinal} trace{seconds}){caller}"


def _seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:,.0f} s"


def too_many(limit: int, report: RetraceReport) -> str:
    """The error message for one trace, or one compilation without a trace, above the limit."""
    done = "recompiled" if report.event == "recompile" else "traced"
    times = {0: "", 1: " twice"}.get(limit, f" {limit + 1} times")
    return f"{report.function} was {done}{times}; the limit is {limit}:\n{report}"


def difference_lines(differences: Collection[Difference]) -> list[str]:
    """The lines for each difference; the same change in several places is listed once."""
    groups: dict[tuple[str, ...], tuple[Difference, list[Path]]] = {}
    for whole in differences:
        for part in whole.parts or (whole,):
            # The reason for a different function also describes it.
            is_described = part.kind == "function" and part.reason
            change, reason = (part.reason, "") if is_described else (part.change, part.reason)
            folded = ["[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in part.path]
            groups.setdefault(("".join(folded), part.kind, change, reason), (part, []))[1].append(part.path)
    is_other_function = any(whole.kind == "function" for whole in differences)
    is_other_width = any(whole.path == (_X64,) for whole in differences)
    lines: list[str] = []
    fixes = {""}
    for (_, kind, change, reason), (first, paths) in groups.items():
        # A different function is traced for any arguments, and JAX converts dtypes if x64 changes.
        is_caused = (is_other_function and kind != "function") or (is_other_width and kind == "dtype")
        fix = "" if is_caused else fix_for(first)
        notes = "; ".join(filter(None, (str(reason), "" if fix in fixes else fix)))
        fixes.add(fix)
        lines += [f"{_place_of(kind, paths)}: {change}", *([f"    {notes}"] if notes else [])]
    return lines


def _place_of(kind: str, paths: list[Path]) -> str:
    """The path of one difference, or a pattern for several paths, with `*` for the keys that differ."""
    path = ""
    for keys_at in zip(*paths, strict=True):
        keys = list(dict.fromkeys(map(str, keys_at)))
        if len(keys) > 1:  # if added or removed, the names are the difference
            keys = [f"[{first_names([key.strip('[]') for key in keys])}]" if kind in {"added", "removed"} else "[*]"]
        path += keys[0]
    notes = [_KINDS.get(kind, ""), f"{len(paths)} places" if len(paths) > 1 else ""]
    label = ", ".join(filter(None, notes))
    return f"{path} ({label})" if label else path
