"""The report: what has been traced again, where from, and every difference with its reason and remedy."""

import dataclasses
import logging
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import jax

from treewright._core import public
from treewright._core.jax_private import DictKey, SequenceKey, is_key_dtype
from treewright._core.text import first_names, in_html
from treewright._trees.diff import Difference, DifferenceKind
from treewright._trees.level import LeafType
from treewright.errors import RetraceWarning
from treewright.retrace.why import REMEDIES, Cause

_LINES = 50  # of differences that are printed; all are in `RetraceReport.differences`
_BEFORE = "compared with an earlier call, which was traced before the block or inside of another trace"
_NOTHING = (
    "no difference was seen, so the cause was not: JAX's caches were cleared or evicted, or an untracked setting "
    "changed"
)

# The kinds of differences that the text does not show by itself.
_KINDS: types.MappingProxyType[DifferenceKind, str] = types.MappingProxyType(
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
_NUMBER = "if only its value is computed with, pass it as an array that is traced; a shape or a length must be static"
_OTHER_FUNCTION = "jit keeps programs for each function object: make and jit it once, outside of the loop"
_OF_FUNCTIONS = types.MappingProxyType(
    {"other method": "jit a function that takes the object as an argument, and jit it once", "other decorators": ""}
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
        compared_with: The number of the trace that the differences are to; 0 for one from before the block, None if
            there is none to compare with.
        seconds: How long it took to trace, lower and compile.
        caller: Where the function was called, as `train.py:69 in main`.
        unseen: What could not be seen, and may be missing from the report; else empty.

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
        return "\n    ".join([self._headline(), *self._details()])

    def _repr_html_(self) -> str:
        return in_html(str(self))

    def _headline(self) -> str:
        ordinal = ordinal_of(self.number)
        seconds = "" if self.seconds is None else f", {self.seconds:.2g} s"
        caller = f", called from {self.caller}" if self.caller else ""
        match self.event:
            case "none":
                return f"{self.function} would not retrace{', as far as can be seen' if self.unseen else ''}"
            case "would trace":
                return f"{self.function} would retrace"
            case "would recompile":
                return f"{self.function} would be compiled again, without a trace"
            case "recompile":
                return f"{self.function} recompiled, without a trace ({ordinal} compilation{seconds}){caller}"
            case _:
                again = "retraced" if self.number > 1 or self.compared_with == 0 else "traced"
                return f"{self.function} {again} ({ordinal} trace{seconds}){caller}"

    def _details(self) -> Iterator[str]:
        yield from _within(_LINES, difference_lines(self.differences))
        if not self.differences and self.compared_with is not None and not self.unseen:
            yield _NOTHING
        if self.compared_with is not None and not (self.unseen and not self.differences):
            yield f"compared with trace {self.compared_with}" if self.compared_with else _BEFORE
        if self.event == "count":
            yield "the arguments could not be read, so traces are only counted, by the function's name"
        if self.unseen:
            yield self.unseen


def _within(limit: int, groups: "list[tuple[str, list[str]]]") -> Iterator[str]:
    """The lines of the groups, each of an argument: if they are too many, the first of each argument come first."""
    total = sum(len(lines) for _, lines in groups)
    if total > limit:
        firsts = {argument: index for index, (argument, _) in reversed(list(enumerate(groups)))}.values()
        groups = [groups[index] for index in sorted(range(len(groups)), key=lambda index: index not in firsts)]
    yield from [line for _, lines in groups for line in lines][:limit]
    if total > limit:
        yield f"... and {total - limit} more lines"


def too_many(limit: int, report: RetraceReport) -> str:
    """The message for one trace, or one compilation without a trace, too many."""
    done = "recompiled" if report.event == "recompile" else "traced"
    if limit == 0:
        return f"{report.function} may not be {done} here, and is:\n{report}"
    times = "once" if limit == 1 else f"{limit} times"
    return f"{report.function} may be {done} {times} here, and is {done} once more:\n{report}"


def ordinal_of(number: int) -> str:
    """`1st`, `2nd`, `3rd`, `4th`."""
    if number % 100 in {11, 12, 13}:
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"


def difference_lines(differences: Iterable[Difference]) -> list[tuple[str, list[str]]]:
    """Lines for each difference, and for the same change in many places, with the argument that they are about."""
    groups: dict[tuple[str, str, str, str], list[Difference]] = {}
    is_other_function = False
    for whole in differences:
        is_other_function = is_other_function or whole.kind == "function"
        for part in whole.parts or (whole,):
            # Why there is another function says what it is.
            said = part.reason if part.kind == "function" and part.reason else part.change
            reason = "" if said is part.reason else part.reason
            groups.setdefault((_folded(part.path), part.kind, said, reason), []).append(part)
    found: list[tuple[str, list[str]]] = []
    for (_, kind, change, reason), group in groups.items():
        # Another function is traced whatever its arguments are: to change these would be no remedy.
        remedy = "" if is_other_function and kind != "function" else remedy_of(group[0])
        notes = "; ".join(filter(None, (str(reason), remedy)))
        lines = [f"{place_of(group)}: {change}"]
        found.append((str(group[0].path[0]), [*lines, f"    {notes}"] if notes else lines))
    return found


def remedy_of(difference: Difference) -> str:
    """What to do about a difference; empty where nothing general can be said."""
    left, right, reason = difference.left, difference.right, difference.reason
    if difference.kind == "function":
        return _OF_FUNCTIONS.get(getattr(reason, "name", ""), _OTHER_FUNCTION)
    if isinstance(reason, Cause):
        return REMEDIES[reason.name]
    match difference.kind:
        case "static" | "value":
            kinds = {type(value.value if isinstance(value, LeafType) else value) for value in (left, right)}
            return _NUMBER if kinds <= {int, float, complex} else ""
        case "shape":
            return _of_shape(left, right)
        case "dtype" | "weak_type":
            if any(leaf.python is not None for leaf in (left, right)):
                return "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"
            where = "convert it where it is made"
            return (
                where if difference.kind == "dtype" else "give the dtype where the array is made: jnp.asarray(x, dtype)"
            )
        case "class":
            return _of_class(left, right)
        case "added" | "removed" if len(difference.path) == 1:
            return ""  # an argument, not a part of a tree
        case "sharding" if str(left) == str(right):
            return "make it under the mesh that it is used with"
        case kind:
            return REMEDIES.get(kind, "")


def _of_shape(old: LeafType, new: LeafType) -> str:
    a, b = old.aval.shape, new.aval.shape
    if is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype):
        return "make all random keys in one way: jax.random.key(seed)"
    if len(a) != len(b):
        return ""
    if sorted(a) == sorted(b):
        return "the same axes in another order"
    smaller = b[0] < a[0] and a[1:] == b[1:]
    return "if this is a last, smaller batch, drop or pad it" if smaller else "pad to one size, or to a few"


def _of_class(old: Any, new: Any) -> str:
    if any(isinstance(getattr(side, "aval", None), jax.ref.AbstractRef) for side in (old, new)):  # pyright: ignore[reportAttributeAccessIssue]
        return "make the ref once, before the first call: jax.new_ref"
    kinds = {getattr(tree, "kind", None) for tree in (old, new)}
    if type(None) in kinds:
        return "pass the same in each call: an array of zeros in place of None, say"
    return "use one of the two" if kinds == {list, tuple} else ""


def _folded(path: Iterable[Any]) -> str:
    return "".join("[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in path)


def place_of(group: list[Difference]) -> str:
    """The path of one difference, or the pattern of several: `*` where they are in different places."""
    kind = group[0].kind
    is_new = kind in {"added", "removed"}  # of which the names themselves are what differs
    keys = zip(*(difference.path for difference in group), strict=True)
    path = "".join(_key_of(list(map(str, same)), names=is_new) for same in keys)
    notes = [_KINDS.get(kind, ""), f"{len(group)} places" if len(group) > 1 else ""]
    shown = ", ".join(filter(None, notes))
    return f"{path} ({shown})" if shown else path


def _key_of(keys: list[str], *, names: bool) -> str:
    different = list(dict.fromkeys(keys))
    if len(different) == 1:
        return different[0]
    return f"[{first_names(key.strip('[]') for key in different)}]" if names else "[*]"


# Where reports go


def tell(on_report: Callable[[RetraceReport], object], report: RetraceReport) -> None:
    """Give a report to a function of the user's; the program that retraced goes on whatever that does."""
    try:
        on_report(report)
    except Exception as error:  # noqa: BLE001
        name = getattr(on_report, "__qualname__", type(on_report).__name__)
        warnings.warn(
            f"on_report={name} raised {type(error).__name__}: {error}. The program goes on; to stop it at a retrace, "
            f"use max_traces. The report was:\n{report}",
            RetraceWarning,
            stacklevel=2,
        )


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
