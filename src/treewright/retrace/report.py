"""Retrace reports: the function, its caller, and every difference with its reason and fix."""

import dataclasses
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from treewright._base.functions import set_public_module
from treewright._base.jax_private import DictKey, Path, SequenceKey, is_key_dtype, is_ref_type
from treewright._base.lines import first_lines, in_html
from treewright._base.text import first_names
from treewright._trees.diff import Difference
from treewright._trees.level import LeafType

_MAX_LINES = 50  # printed lines of differences; `RetraceReport.differences` has all of them
_NOTHING = "no visible difference: JAX's caches were cleared or evicted, or an untracked setting changed"

# The labels for kinds of differences that the values do not show.
_KINDS: Mapping[str, str] = types.MappingProxyType(
    {kind: kind for kind in ("static", "added", "removed", "placement", "setting")}
    | {"value": "static", "passing": "passed", "option": "option of jit"}
)

Event = Literal["trace", "recompile", "count", "would trace", "would recompile", "none"]


@set_public_module("treewright")
@dataclasses.dataclass(frozen=True, slots=True)
class RetraceReport:
    """One retrace or recompile. `str` is the full text.

    Args:
        function: The name of the function.
        event: `"trace"`; `"recompile"`, a compilation without a trace; `"count"`, a trace for which only the name of
            the function could be read. From `explain`: `"would trace"`, `"would recompile"`, `"none"`.
        number: The number of this trace among those of the function's definition; of this compilation, if `event` is
            `"recompile"`.
        differences: The differences from the most similar earlier signature. Their paths begin with an argument's name;
            `left` and `right` describe the values and keep no arrays.
        compared_with: The number of that earlier trace; None for the first one.
        seconds: The time to trace, lower and compile.
        caller: The line that called the function, such as `train.py:69 in main`.
        unseen: What could not be observed, so the report may lack it; else empty.

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
        """Whether the function had been traced before."""
        return self.compared_with is not None or (self.event == "count" and self.number > 1)

    def __str__(self) -> str:
        lines = [self._headline(), *first_lines(difference_lines(self.differences), _MAX_LINES, more="more lines")]
        if self.compared_with is not None and (self.differences or not self.unseen):
            lines += [] if self.differences else [_NOTHING]
            lines.append(f"compared with trace {self.compared_with}")
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
                return f"{self.function} would recompile, without a trace"
            case "recompile":
                return f"{self.function} recompiled, without a trace ({ordinal} compilation{seconds}){caller}"
            case _:
                again = "retraced" if self.is_retrace else "traced"
                return f"{self.function} {again} ({ordinal} trace{seconds}){caller}"


def too_many(limit: int, report: RetraceReport) -> str:
    """The error message for one trace, or one compilation without a trace, above the limit."""
    done = "recompiled" if report.event == "recompile" else "traced"
    times = {0: "", 1: " twice"}.get(limit, f" {limit + 1} times")
    return f"{report.function} was {done}{times}; the limit is {limit}:\n{report}"


def difference_lines(differences: Iterable[Difference]) -> list[str]:
    """The lines for each difference; the same change in several places is listed once."""
    groups: dict[tuple[str, ...], tuple[Difference, list[Path]]] = {}
    is_other_function = False
    for whole in differences:
        is_other_function = is_other_function or whole.kind == "function"
        for part in whole.parts or (whole,):
            # The reason for a different function also describes it.
            is_described = part.kind == "function" and part.reason
            change, reason = (part.reason, "") if is_described else (part.change, part.reason)
            folded = ["[*]" if isinstance(key, (SequenceKey, DictKey)) else str(key) for key in part.path]
            groups.setdefault(("".join(folded), part.kind, change, reason), (part, []))[1].append(part.path)
    lines: list[str] = []
    for (_, kind, change, reason), (first, paths) in groups.items():
        # A different function is traced for any arguments, so changing these would not help.
        fix = "" if is_other_function and kind != "function" else fix_for(first)
        notes = "; ".join(filter(None, (str(reason), fix)))
        lines += [f"{_place_of(kind, paths)}: {change}", *([f"    {notes}"] if notes else [])]
    return lines


def _place_of(kind: str, paths: list[Path]) -> str:
    """The path of one difference, or a pattern for several paths, with `*` for the keys that differ."""
    path = ""
    for same in zip(*paths, strict=True):
        keys = list(dict.fromkeys(map(str, same)))
        if len(keys) > 1:  # if added or removed, the names are the difference
            keys = [f"[{first_names([key.strip('[]') for key in keys])}]" if kind in {"added", "removed"} else "[*]"]
        path += keys[0]
    notes = [_KINDS.get(kind, ""), f"{len(paths)} places" if len(paths) > 1 else ""]
    label = ", ".join(filter(None, notes))
    return f"{path} ({label})" if label else path


def fix_for(difference: Difference) -> str:
    """The fix for a difference; empty if no general one is known."""
    cause = getattr(difference.reason, "name", difference.kind)
    if difference.kind == "function":
        return _OF_FUNCTIONS.get(cause, _OTHER_FUNCTION)
    fix = FIXES.get(cause, "")
    return fix if isinstance(fix, str) else fix(difference.left, difference.right)


def _of_shapes(old: LeafType, new: LeafType) -> str:
    a, b = old.aval.shape, new.aval.shape
    if is_key_dtype(old.aval.dtype) != is_key_dtype(new.aval.dtype):
        return "create all random keys in the same way: jax.random.key(seed)"
    if len(a) != len(b):
        return ""
    if sorted(a) == sorted(b):
        return "the same axes in a different order"
    smaller = b[0] < a[0] and a[1:] == b[1:]
    return (
        "if this is the smaller last batch of an epoch, drop or pad it" if smaller else "pad to one size, or to a few"
    )


def _of_dtypes(old: LeafType, new: LeafType) -> str:
    if old.python is not None or new.python is not None:
        return "pass the number as an array of a fixed dtype: jnp.asarray(x, dtype)"
    if old.aval.dtype != new.aval.dtype:
        return "convert it where it is created"
    return "pass the dtype where the array is created: jnp.asarray(x, dtype)"


def _of_shardings(old: LeafType, new: LeafType) -> str:
    if str(old) == str(new):
        return "create it under the mesh in which it is used"
    return "set its sharding once, before the loop: jax.device_put"


def _of_classes(old: Any, new: Any) -> str:
    if any(is_ref_type(getattr(side, "aval", None)) for side in (old, new)):
        return "create the ref once, before the first call: jax.new_ref"
    kinds = {getattr(tree, "kind", None) for tree in (old, new)}
    if type(None) in kinds:
        return "pass the same type in each call, such as an array of zeros instead of None"
    return "use one of the two" if kinds == {list, tuple} else ""


def _of_values(old: Any, new: Any) -> str:
    kinds = {type(value.value if isinstance(value, LeafType) else value) for value in (old, new)}
    if not kinds <= {int, float, complex}:
        return ""
    return "if it is only used in arithmetic, pass it as a traced argument; a shape or a length must be static"


# The fix for each cause, and for each kind of difference without a cause.
FIXES: Mapping[str, str | Callable[[Any, Any], str]] = types.MappingProxyType(
    {
        "redefined class": "define the class once, in a separate module, and recreate the objects",
        "other class": "use one type",
        "changed in place": "create a new object instead of changing this one; a frozen dataclass can't change",
        "recreated function": "define it once, before the loop, and reuse it",
        "recreated optimiser": "build the optimiser once and reuse it, or keep it in a TrainState",
        "other function": "use the same function in all calls",
        "other method": "reuse one object, or pass the object to a plain function as an argument",
        "other arguments": "create it once, and pass the changing values as arguments",
        "wrapped again": "create it once and reuse it",
        "nan": "use None for a missing value, or reuse one NaN object such as math.nan",
        "identity": "define __eq__ and __hash__, for example with a frozen dataclass, or create it once and reuse it",
        "same text": "create it once and reuse it",
        "unequal hashes": "equal values must have equal hashes",
        "default passed": "passing a default explicitly adds an argument: always pass it, or never",
        "other statics": "jit the function once, with one set of static arguments",
        "shape": _of_shapes,
        "dtype": _of_dtypes,
        "weak_type": _of_dtypes,
        "sharding": _of_shardings,
        "placement": "move it once, before the loop: jax.device_put",
        "batch": "use one batch size, or a few: pad the batch",
        "class": _of_classes,
        "static": _of_values,
        "value": _of_values,
        "added": "use the same structure in every call",
        "removed": "use the same structure in every call",
        "passing": "pass it the same way each time: jit distinguishes positional from keyword arguments",
        "setting": "set it once, before the first call",
        "option": "jit the function once, with one set of options",
    }
)
# The fixes if the function itself is a different one.
_OTHER_FUNCTION = (
    "jit compiles each function object separately: create and jit it once, before the loop, and pass the changing "
    "values as arguments"
)
_OF_FUNCTIONS = types.MappingProxyType(
    {
        "other method": (
            "jit one function that takes the object as an argument: traced if it is a node, else static, with __eq__ "
            "and __hash__"
        ),
        "other decorators": "",
        "other options": "",
    }
)
