"""The report: what has been traced again, where from, and every difference with its reason and remedy."""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from treewright._core import public
from treewright._core.jax_private import DictKey, Path, SequenceKey, is_key_dtype, is_ref_type
from treewright._core.text import first_names
from treewright._lines import first_of, in_html
from treewright._trees.diff import Difference
from treewright._trees.level import LeafType

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
        if self.compared_with is not None and (self.differences or not self.unseen):
            lines += [] if self.differences else [_NOTHING]
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
    groups: dict[tuple[str, ...], tuple[Difference, list[Path]]] = {}
    is_other_function = False
    for whole in differences:
        is_other_function = is_other_function or whole.kind == "function"
        for part in whole.parts or (whole,):
            # Why there is another function says what it is.
            says = part.kind == "function" and part.reason
            change, reason = (part.reason, "") if says else (part.change, part.reason)
            folded = ["[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in part.path]
            groups.setdefault(("".join(folded), part.kind, change, reason), (part, []))[1].append(part.path)
    lines: list[str] = []
    for (_, kind, change, reason), (first, paths) in groups.items():
        # Another function is traced whatever its arguments are: to change these would be no remedy.
        remedy = "" if is_other_function and kind != "function" else remedy_of(first)
        notes = "; ".join(filter(None, (str(reason), remedy)))
        lines += [f"{_place_of(kind, paths)}: {change}", *([f"    {notes}"] if notes else [])]
    return lines


def _place_of(kind: str, paths: list[Path]) -> str:
    """The path of one difference, or the pattern of several: `*` where they are in different places."""
    path = ""
    for same in zip(*paths, strict=True):
        keys = list(dict.fromkeys(map(str, same)))
        if len(keys) > 1:  # of what is added or removed, the names themselves are what differs
            keys = [f"[{first_names([key.strip('[]') for key in keys])}]" if kind in {"added", "removed"} else "[*]"]
        path += keys[0]
    notes = [_KINDS.get(kind, ""), f"{len(paths)} places" if len(paths) > 1 else ""]
    shown = ", ".join(filter(None, notes))
    return f"{path} ({shown})" if shown else path


def remedy_of(difference: Difference) -> str:
    """What to do about a difference; empty where nothing general can be said."""
    cause = getattr(difference.reason, "name", difference.kind)
    if difference.kind == "function":
        return _OF_FUNCTIONS.get(cause, _OTHER_FUNCTION)
    remedy = REMEDIES[cause]
    return remedy if isinstance(remedy, str) else remedy(difference.left, difference.right)


def _of_shapes(old: LeafType, new: LeafType) -> str:
    a, b = old.aval.shape, new.aval.shape
    if is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype):
        return "make all random keys in one way: jax.random.key(seed)"
    if len(a) != len(b):
        return ""
    if sorted(a) == sorted(b):
        return "the same axes in another order"
    smaller = b[0] < a[0] and a[1:] == b[1:]
    return "if this is a last, smaller batch, drop or pad it" if smaller else "pad to one size, or to a few"


def _of_dtypes(old: LeafType, new: LeafType) -> str:
    if old.python is not None or new.python is not None:
        return "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"
    if old.aval.dtype != new.aval.dtype:
        return "convert it where it is made"
    return "give the dtype where the array is made: jnp.asarray(x, dtype)"


def _of_shardings(old: LeafType, new: LeafType) -> str:
    if str(old) == str(new):
        return "make it under the mesh that it is used with"
    return "give it one sharding before the loop: jax.device_put"


def _of_classes(old: Any, new: Any) -> str:
    if any(is_ref_type(getattr(side, "aval", None)) for side in (old, new)):
        return "make the ref once, before the first call: jax.new_ref"
    kinds = {getattr(tree, "kind", None) for tree in (old, new)}
    if type(None) in kinds:
        return "pass the same in each call: an array of zeros in place of None, say"
    return "use one of the two" if kinds == {list, tuple} else ""


def _of_values(old: Any, new: Any) -> str:
    kinds = {type(value.value if isinstance(value, LeafType) else value) for value in (old, new)}
    if not kinds <= {int, float, complex}:
        return ""
    return "if only its value is computed with, pass it as an array that is traced; a shape or a length must be static"


# What to do about each cause, and about each kind of difference without one; empty where nothing general can be said.
REMEDIES: Mapping[str, str | Callable[[Any, Any], str]] = types.MappingProxyType(
    {
        "class made twice": "define the class once, in a module of its own, and make the objects again",
        "other class": "use one type",
        "changed in place": "make another object instead of changing this one, and best freeze it",
        "function made again": "define it once, outside of what calls it, and reuse it",
        "optimiser made again": "build the optimiser once and reuse it, or keep it in a TrainState",
        "other function": "use one and the same function in all calls",
        "other method": "keep one object, or pass the object as an argument of a plain function",
        "other decorators": "",
        "other options": "",
        "other attributes": "",
        "other arguments": "pass what changes as an argument, and make it once",
        "wrapped again": "make it once and reuse it",
        "nan": "use None for what is not there, or reuse one NaN object such as math.nan",
        "identity": "give it __eq__ and __hash__, as a frozen dataclass has them, or make it once and reuse it",
        "same text": "make it once and reuse it",
        "unequal hashes": "give equal values one hash",
        "argument": "",
        "default passed": "a default that is passed is an argument more: pass it each time or never",
        "other statics": "jit the function once, with one set of static arguments",
        "shape": _of_shapes,
        "dtype": _of_dtypes,
        "weak_type": _of_dtypes,
        "sharding": _of_shardings,
        "placement": "put it there once, before the loop: jax.device_put",
        "class": _of_classes,
        "static": _of_values,
        "value": _of_values,
        "added": "keep the structure the same from call to call",
        "removed": "keep the structure the same from call to call",
        "passing": "pass it the same way each time: jit tells by position from by keyword",
        "setting": "set it once, before the first call",
        "option": "jit the function once, with one set of options",
    }
)
# Of the function itself, where that is another one.
_OTHER_FUNCTION = "jit keeps programs for each function object: make and jit it once, outside of the loop"
_OF_FUNCTIONS = types.MappingProxyType(
    {
        "other method": "jit a function that takes the object as an argument, and jit it once",
        "other decorators": "",
        "other options": "",
    }
)
