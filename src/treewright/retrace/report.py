"""The report: what has been traced again, where from, and every difference with its reason and remedy."""

import dataclasses
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from treewright._core import public
from treewright._core.jax_private import DictKey, SequenceKey, is_key_dtype, is_ref_type
from treewright._core.text import first_names
from treewright._lines import first_of, in_html
from treewright._trees.diff import Difference
from treewright._trees.level import LeafType
from treewright.retrace.why import REMEDIES, Cause

_LINES = 50  # of differences that are printed; all are in `RetraceReport.differences`
_BEFORE = "compared with an earlier call, which was traced before the block or inside of another trace"
_NOTHING = (
    "no difference was seen, so the cause was not: JAX's caches were cleared or evicted, or an untracked setting "
    "changed"
)

# The kinds of differences that the text does not show by itself.
_KINDS: Mapping[str, str] = types.MappingProxyType(
    {kind: kind for kind in ("static", "added", "removed", "placement", "setting")}
    | {"value": "static", "passing": "passed", "option": "option of jit"}
)
_NUMBER = "if only its value is computed with, pass it as an array that is traced; a shape or a length must be static"
_OTHER_FUNCTION = "jit keeps programs for each function object: make and jit it once, outside of the loop"
_OF_FUNCTIONS = types.MappingProxyType(
    {"other method": "jit a function that takes the object as an argument, and jit it once"}
    | dict.fromkeys(("other decorators", "other options"), "")
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
        lines = [self._headline(), *first_of(difference_lines(self.differences), _LINES, more="more lines")]
        if self.unseen and not self.differences:
            return "\n    ".join([*lines, self.unseen])
        if not self.differences and self.compared_with is not None:
            lines.append(_NOTHING)
        if self.compared_with is not None:
            lines.append(f"compared with trace {self.compared_with}" if self.compared_with else _BEFORE)
        if self.event == "count":
            lines.append("the arguments could not be read, so traces are only counted, by the function's name")
        return "\n    ".join([*lines, self.unseen] if self.unseen else lines)

    def _repr_html_(self) -> str:
        return in_html(str(self))

    def _headline(self) -> str:
        last = self.number % 10 if self.number % 100 not in {11, 12, 13} else 0
        ordinal = f"{self.number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }"
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


def too_many(limit: int, report: RetraceReport) -> str:
    """The message for one trace, or one compilation without a trace, too many."""
    done = "recompiled" if report.event == "recompile" else "traced"
    if limit == 0:
        return f"{report.function} may not be {done} here, and is:\n{report}"
    times = "once" if limit == 1 else f"{limit} times"
    return f"{report.function} may be {done} {times} here, and is {done} once more:\n{report}"


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """Lines for each difference, and for the same change in many places."""
    groups: dict[tuple[str, ...], list[Difference]] = {}
    is_other_function = False
    for whole in differences:
        is_other_function = is_other_function or whole.kind == "function"
        for part in whole.parts or (whole,):
            # Why there is another function says what it is.
            says = part.kind == "function" and part.reason
            change, reason = (part.reason, "") if says else (part.change, part.reason)
            folded = ["[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in part.path]
            groups.setdefault(("".join(folded), part.kind, change, reason), []).append(part)
    lines: list[str] = []
    for (_, kind, change, reason), group in groups.items():
        # Another function is traced whatever its arguments are: to change these would be no remedy.
        remedy = "" if is_other_function and kind != "function" else remedy_of(group[0])
        notes = "; ".join(filter(None, (str(reason), remedy)))
        lines += [f"{place_of(group)}: {change}", *([f"    {notes}"] if notes else [])]
    return lines


def place_of(group: list[Difference]) -> str:
    """The path of one difference, or the pattern of several: `*` where they are in different places."""
    kind, path = group[0].kind, ""
    for same in zip(*[difference.path for difference in group], strict=True):
        keys = list(dict.fromkeys(map(str, same)))
        if len(keys) > 1:  # of what is added or removed, the names themselves are what differs
            keys = [f"[{first_names([key.strip('[]') for key in keys])}]" if kind in {"added", "removed"} else "[*]"]
        path += keys[0]
    notes = [_KINDS.get(kind, ""), f"{len(group)} places" if len(group) > 1 else ""]
    shown = ", ".join(filter(None, notes))
    return f"{path} ({shown})" if shown else path


def remedy_of(difference: Difference) -> str:
    """What to do about a difference; empty where nothing general can be said."""
    left, right, reason = difference.left, difference.right, difference.reason
    match difference.kind:
        case "function":
            return _OF_FUNCTIONS.get(getattr(reason, "name", ""), _OTHER_FUNCTION)
        case _ if isinstance(reason, Cause):
            return REMEDIES[reason.name]
        case "static" | "value":
            kinds = {type(value.value if isinstance(value, LeafType) else value) for value in (left, right)}
            return _NUMBER if kinds <= {int, float, complex} else ""
        case "shape":
            return _of_shape(left, right)
        case "dtype" | "weak_type" if left.python is not None or right.python is not None:
            return "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"
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
    if any(is_ref_type(getattr(side, "aval", None)) for side in (old, new)):
        return "make the ref once, before the first call: jax.new_ref"
    kinds = {getattr(tree, "kind", None) for tree in (old, new)}
    if type(None) in kinds:
        return "pass the same in each call: an array of zeros in place of None, say"
    return "use one of the two" if kinds == {list, tuple} else ""
