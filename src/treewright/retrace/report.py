"""Retrace reports: call signatures, their differences, and the text with the reason and fix for each."""

import dataclasses
import inspect
import types
from collections.abc import Callable, Collection, Iterator, Mapping
from itertools import zip_longest
from typing import Any, Literal

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import public
from treewright._base.jax_private import DictKey, Key, Path, SequenceKey, is_key_dtype, is_ref_type
from treewright._base.text import Verbatim, short_text
from treewright._contents import Part
from treewright._loop import FlatTree, loop
from treewright._reports import first_lines, first_names, mesh_text
from treewright._trees.causes import Cause, Snapshot, alike, cause_of, class_of, is_same_object, same, snapshot
from treewright._trees.diff import Comparator, differences, static_difference
from treewright._trees.difference import ABSENT, Difference, DifferenceKind, describe_apart, shown
from treewright._trees.level import LeafType, Level, leaf_type_of, level_of
from treewright.retrace.jax_private import FLAX_NODES, OF_PMAP, UNNAMED_SETTINGS, Call, trace_settings

_MAX_DEPTH = 200  # levels of a tree in its snapshot; Python's stack ends at a few hundred
_MAX_DEVICES = 8  # device ids in the text of a placement
_NO_CHILD = (None, None)
_X64 = "jax.config.jax_enable_x64"
_MAX_LINES = 50  # printed lines of differences; `RetraceReport.differences` has all of them
_NOTHING = "no visible difference: JAX's caches were cleared or evicted, or an untracked setting changed"

# The labels for kinds of differences that the values do not show.
_KINDS: Mapping[str, str] = types.MappingProxyType(
    {kind: kind for kind in ("static", "added", "removed", "placement", "setting")}
    | {"value": "static", "passing": "passed", "option": "option of jit"}
)

ReportedEvent = Literal["trace", "recompile", "count", "would trace", "would recompile", "none"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The parts of a call that `jit` compiles for. It keeps no array, and never changes."""

    arguments: Mapping[str, Any]  # name -> levels and leaf types if traced, a snapshot if static
    statics: frozenset[str]  # the names of static arguments
    passed: Mapping[str, str]  # "by position" or "by keyword"
    settings: Mapping[str, Any]  # JAX settings
    options: Mapping[str, Any]  # `jit` options
    # Of each parameter with one: its snapshot, and its levels and leaf types.
    defaults: Mapping[str, tuple[Any, Any]] = dataclasses.field(default_factory=dict[str, tuple[Any, Any]])
    batch: tuple[int, ...] = ()  # the sizes of the axes that `vmap` maps the call over
    explicit: frozenset[str] = frozenset()  # the names of arguments whose default was passed


# Signatures


def signature_of(call: Call, like: Signature | None = None) -> Signature:
    """The signature of a call. Parts that equal those in `like`, an earlier one, are shared with it."""
    try:
        parameters = list(inspect.signature(call.function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        parameters = []
    arguments: dict[str, Any] = {}
    statics: list[str] = []
    explicit: list[str] = []
    raw_defaults = {par.name: par.default for par in parameters if par.default is not par.empty}
    passed: dict[str, str] = {}
    options = call.options
    for place, (name, key, value, passing) in enumerate(_named(parameters, call)):
        if isinstance(value, FlatTree):
            value, options = value.tree, {}  # noqa: PLW2901  a loop derives its options from its state
        passed[name] = passing
        if _is_default(value, raw_defaults.get(name, ABSENT)):
            explicit.append(name)
        if not call.statics.isdisjoint((key, place)):
            statics.append(name)
            arguments[name] = snapshot(value)
        else:
            arguments[name] = _tree_snapshot(value, None if like is None else like.arguments.get(name), call)
    settings: Mapping[str, Any] = {**trace_settings(), **call.settings}
    if like is not None and like.settings == settings:
        settings = like.settings
    defaults = {name: (snapshot(value), _tree_snapshot(value, None, call)) for name, value in raw_defaults.items()}
    return Signature(
        arguments, frozenset(statics), passed, settings, options, defaults, call.batch, frozenset(explicit)
    )


def _is_default(value: Any, default: Any) -> bool:
    """Whether an argument is the default of its parameter."""
    return value is default or (
        type(value) is type(default) and isinstance(value, int | float | str) and value == default
    )


def _named(parameters: list[inspect.Parameter], call: Call) -> Iterator[tuple[str, str, Any, str]]:
    """The arguments: `x`, `args[0]` or `kwargs['y']`, its name to `jit`, the value, and how it is passed."""
    names: dict[Any, list[str]] = {}
    for parameter in parameters:
        names.setdefault(parameter.kind, []).append(parameter.name)
    kinds = inspect.Parameter
    named = [*names.get(kinds.POSITIONAL_ONLY, ()), *names.get(kinds.POSITIONAL_OR_KEYWORD, ())]
    [rest] = names.get(kinds.VAR_POSITIONAL, ["args"])
    [others] = names.get(kinds.VAR_KEYWORD, ["kwargs"])
    known = {*named, *names.get(kinds.KEYWORD_ONLY, ())}
    for index, value in enumerate(call.args):
        name = named[index] if index < len(named) else f"{rest}[{index - len(named)}]"
        yield name, name, value, "by position"
    for name in sorted(call.kwargs):
        yield name if name in known else f"{others}[{name!r}]", name, call.kwargs[name], "by keyword"


def _tree_snapshot(tree: Any, like: Any, call: Call, depth: int = 0) -> Level | LeafType:
    """The levels and leaf types of a tree; unchanged parts are shared with `like`, an earlier snapshot.

    So the comparison with many earlier calls skips them.
    """
    # Arrays skip the other tests: a miss with 600 leaves takes 3.7 ms of CPU instead of 5.4.
    is_array = type(like) is LeafType and isinstance(tree, jax.Array | np.ndarray)
    level = None if is_array else level_of(tree)
    if level is None:
        return _leaf_snapshot(tree, like, call)
    if depth == _MAX_DEPTH:
        return LeafType(None, type(tree), jax.tree.structure(tree))
    like = like if isinstance(like, Level) and like.cls is level.cls else None
    children: list[tuple[Any, Any]] = []
    is_same = like is not None and len(like.children) == len(level.children)
    # By position: if keys differ, the earlier child only serves to be shared.
    for (key, child), (other, earlier) in zip_longest(
        level.children, like.children if like else (), fillvalue=_NO_CHILD
    ):
        if key is not None:
            new = _tree_snapshot(child, earlier, call, depth + 1)
            is_same = is_same and new is earlier and (key is other or key == other)
            children.append((key, new))
    aux = snapshot(level.aux) if level.keys is None else level.keys
    if like is None or not (aux is like.aux if like.keys is not None else same(like.aux, aux)):
        named = [(key, snapshot(value)) for key, value in level.statics]
        return Level(level.cls, aux, named, tuple(children), level.keys)
    return like if is_same else Level(level.cls, like.aux, like.named, tuple(children), level.keys)


def _leaf_snapshot(leaf: Any, like: Any, call: Call) -> LeafType:
    kind = leaf_type_of(leaf)
    is_compared = kind.aval is None or (kind.python is not None and call.fixed_numbers)
    aval = None if is_compared else kind.aval
    value = (snapshot(leaf) if kind.aval is None else leaf) if is_compared else None
    placement = placement_of(leaf) if call.live and not is_compared else None
    if type(like) is LeafType and like.python is kind.python and like.placement == placement and like.aval == aval:
        is_same = value is like.value or (same(like.value, value) and alike(like.value, value))
        return like if is_same else LeafType(aval, kind.python, value, placement)
    return LeafType(aval, kind.python, value, placement)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The devices of an array, as far as `jit` compiles for them. `sharding` is None if it is not committed."""

    sharding: Any
    is_numpy: bool = dataclasses.field(default=False, compare=False)

    def __str__(self) -> str:
        if self.sharding is None:
            return "uncommitted"
        devices = sorted(str(device) for device in self.sharding.device_set)
        if len(devices) == 1:
            return f"committed to {devices[0]}"
        mesh, spec = (getattr(self.sharding, name, None) for name in ("mesh", "spec"))
        if mesh is None or spec is None:
            return f"sharded {short_text(self.sharding)}"
        return (
            f"sharded {spec} over devices {first_names((str(device.id) for device in mesh.devices.flat), _MAX_DEVICES)}"
        )


_ANYWHERE, _IN_NUMPY = Placement(None), Placement(None, is_numpy=True)


def placement_of(value: Any) -> Placement | None:
    """The placement of a leaf: None for tracers, uncommitted for numpy arrays and Python numbers."""
    if isinstance(value, Tracer | LeafType):
        return None
    is_array = isinstance(value, jax.Array)
    if value.committed if is_array else isinstance(value, jax.Ref):
        return Placement(value.sharding)
    return _IN_NUMPY if isinstance(value, np.ndarray) else _ANYWHERE


# Differences


def _parts_of_both(left: Any, right: Any) -> tuple[Mapping[Key, Any], Mapping[Key, Any]]:
    """The parts of two containers; empty for callables and for one changed object, which the reason describes."""
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.cls is not right.cls:
        return {}, {}
    is_explained = any(isinstance(key, Part) for key in left.parts) or (left.is_alive and is_same_object(left, right))
    return ({}, {}) if is_explained else (left.parts, right.parts)


_WITHOUT_REASONS = Comparator(same, _parts_of_both, lambda _left, _right: "", alike)  # a third of the time
_WITH_REASONS = Comparator(same, _parts_of_both, lambda left, right: cause_of(left, right) or "", alike)


def call_differences(old: Signature, new: Signature, *, reasons: bool = True) -> list[Difference]:
    """The differences between two calls: arguments, then settings and options."""
    differences = list(_argument_differences(old, new, _WITH_REASONS if reasons else _WITHOUT_REASONS))
    if any(difference.kind in {"added", "removed"} for difference in differences):  # flax repeats them in a static
        differences = [difference for difference in differences if str(difference.path[-1]) != FLAX_NODES]
    if old.settings is not new.settings:
        settings = list(_setting_differences(old.settings, new.settings))
        named = [difference for difference in settings if difference.path != (UNNAMED_SETTINGS,)]
        # The unnamed settings include the named ones: they are redundant if not more of them changed.
        unnamed = zip(*(each.settings.get(UNNAMED_SETTINGS, ()) for each in (old, new)), strict=True)
        differences += named if sum(not same(a, b) for a, b in unnamed) <= len(named) else settings
    if old.batch != new.batch and len(old.batch) == len(new.batch):
        differences.append(Difference(("the size of vmap",), _size(old.batch), _size(new.batch), "batch"))
    return [*differences, *_by_name("option", old.options, new.options)]


def _size(batch: tuple[int, ...]) -> Any:
    return batch[0] if len(batch) == 1 else batch[::-1]  # the outermost axis first, as users write them


def _argument_differences(old: Signature, new: Signature, compare: Comparator) -> Iterator[Difference]:
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.arguments.get(name, ABSENT), new.arguments.get(name, ABSENT)
        default, default_tree = new.defaults.get(name, (ABSENT, ABSENT))
        passed, is_static = b if a is ABSENT else a, name in old.statics | new.statics
        if (a is ABSENT or b is ABSENT) and is_static and default is not ABSENT and not same(default, passed):
            both = (default, b) if a is ABSENT else (a, default)
            yield static_difference((name,), *both, compare)
        elif a is ABSENT or b is ABSENT:
            is_default = name in (new if a is ABSENT else old).explicit
            yield _presence_difference(name, (a, b), (default, default_tree), is_default=is_default)
        elif (name in old.statics) is not (name in new.statics):
            reasons = ("traced before, and static now", "static before, and traced now")
            yield Difference((name,), a, b, "class", Cause("other statics", reasons[name in old.statics]))
        else:
            if name in old.statics and not (class_of(a) is class_of(b) and same(a, b)):
                yield static_difference((name,), a, b, compare)
            if old.passed[name] != new.passed[name]:
                yield Difference((name,), old.passed[name], new.passed[name], "passing")
            if name not in old.statics:
                yield from differences(a, b, values=False, path=(name,), compare=compare)


def _presence_difference(name: str, both: Any, defaults: tuple[Any, Any], *, is_default: bool) -> Difference:
    """The difference between a call with an argument and one without it."""
    (a, b), (value, default) = both, defaults
    passed = b if a is ABSENT else a
    kind: DifferenceKind = "added" if a is ABSENT else "removed"
    if default is ABSENT:
        return Difference((name,), a, b, kind, Cause("argument", ""))
    if is_default:
        return Difference((name,), a, b, kind, Cause("default passed", ""))
    if not any(differences(default, passed, values=False, compare=_WITHOUT_REASONS)):
        return Difference((name,), a, b, kind, Cause("default replaced", ""))
    text = short_text(value) if getattr(default, "python", None) else shown(default)
    by_default = Verbatim(f"{text} (default)")
    cause = Cause("None replaced" if getattr(default, "cls", None) is type(None) else "default replaced", "")
    return Difference((name,), by_default if a is ABSENT else a, by_default if b is ABSENT else b, "class", cause)


def _by_name(kind: DifferenceKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, ABSENT), new.get(name, ABSENT)
        if a is not b and not same(a, b):
            old_value, new_value = _settings(a, b) if kind == "setting" else (snapshot(a), snapshot(b))
            yield static_difference((name,), old_value, new_value, _WITHOUT_REASONS, kind)


def _setting_differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    """The differences of settings. Those of `pmap`, if only one of the calls went through it, are one."""
    under = ["pmap" if any(name.endswith(OF_PMAP) for name in each) else "jit" for each in (old, new)]
    if under[0] == under[1]:
        yield from _by_name("setting", old, new)
        return
    reason = Cause("other transformations", "")
    yield Difference(("the transformation",), Verbatim(under[0]), Verbatim(under[1]), "setting", reason)
    common = [{name: value for name, value in each.items() if not name.endswith(OF_PMAP)} for each in (old, new)]
    yield from _by_name("setting", *common)


def _settings(old: Any, new: Any) -> tuple[Any, Any]:
    """Two settings as reports show them: a mesh by its axes, and also by its devices if the axes are equal."""
    sides = _setting(old), _setting(new)
    if not all(isinstance(side, Verbatim) for side in sides) or sides[0].content != sides[1].content:
        return sides
    details = describe_apart(_innermost_mesh(old), _innermost_mesh(new)) or ["", ""]
    left, right = [Verbatim(f"{side.content} {detail}".rstrip()) for side, detail in zip(sides, details, strict=True)]
    return left, right


def _setting(value: Any) -> Any:
    """A setting as reports show it: a mesh, or the stack of meshes from `with mesh:`, by its axes."""
    mesh = _innermost_mesh(value)
    if value == () or isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return Verbatim(mesh_text(mesh))
    axes = getattr(value, "axis_sizes", None)  # named axes, from vmap and pmap
    return snapshot(value if axes is None else dict(axes))


def _innermost_mesh(value: Any) -> Any:
    return next(reversed(value), None) if type(value) is tuple else value


def without_placement(differences: list[Difference]) -> list[Difference]:
    """The differences that make `jit` retrace; for the others it recompiles the same trace."""
    return [difference for difference in differences if difference.kind not in {"placement", "option", "batch"}]


# Reports


@public
@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RetraceReport:
    """One retrace or recompile. It prints as the full text.

    Args:
        function: The name of the function.
        event: `"trace"`; `"recompile"`, a compilation without a trace; `"count"`, a trace whose arguments could not
            be compared, because an `__eq__` raised. From `explain`: `"would trace"`, `"would recompile"`, `"none"`.
        number: The number of this trace among those of the function's definition; of this compilation, if `event` is
            `"recompile"`.
        differences: The differences from the most similar earlier signature. Their paths begin with an argument's name;
            `left` and `right` describe the values and keep no arrays.
        compared_with: The number of that earlier trace; None for the first one.
        seconds: The time to trace, lower and compile.
        caller: The line that called the function, such as `train.py:69 in main`.
        unseen: What could not be observed, so the report may lack it; else empty.
        before: For the first observed trace or recompile of a function: the entries it had in JAX's cache before. A
            program can have two, for numpy arrays and for JAX's, and a call that failed has one too.
        programs: The number of programs that were compiled for the function's definition so far.
        total_seconds: The time for all of them.

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
    programs: int = 0
    total_seconds: float | None = None

    @property
    def is_retrace(self) -> bool:
        """Whether the function had been traced before."""
        return self.compared_with is not None or self.before > 0 or (self.event == "count" and self.number > 1)

    def __str__(self) -> str:
        lines = [self._headline(), *first_lines(difference_lines(self.differences), _MAX_LINES, more="more lines")]
        if self.compared_with is not None and (self.differences or not self.unseen):
            lines += [] if self.differences else [_NOTHING]
            lines.append(f"compared with trace {self.compared_with}")
        if self.before:
            programs = "program" if self.before == 1 else "programs"
            lines.append(f"not its first call: it had up to {self.before} {programs}, whose arguments were not seen")
        if self.event == "count":
            lines.append("the arguments could not be compared, so traces are only counted")
        return "\n    ".join([*lines, self.unseen] if self.unseen else lines)

    def __repr__(self) -> str:
        return str(self)

    def _headline(self) -> str:
        last = self.number % 10 if self.number % 100 not in {11, 12, 13} else 0
        ordinal = f"{self.number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(last, 'th') }{' observed' if self.before else ''}"
        seconds = "" if self.seconds is None else f", {_seconds(self.seconds)}"
        if self.programs > 1 and self.total_seconds is not None:
            seconds += f"; {self.programs} programs so far, {_seconds(self.total_seconds)}"
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


def is_of_loop(function: Any) -> bool:
    """Whether this is the function that a `loop` jits."""
    code = getattr(function, "__code__", None)
    return (
        code is not None
        and code.co_filename == loop.__init__.__code__.co_filename
        and code.co_qualname.startswith("loop.")
    )


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


def fix_for(difference: Difference) -> str:
    """The fix for a difference; empty if no general one is known."""
    cause = getattr(difference.reason, "name", difference.kind)
    if difference.kind == "function":
        if difference.right.code is not None and difference.right.code.code.co_qualname.startswith(f"{loop.__name__}."):
            cause = "other loop"
        return _FIXES_OF_FUNCTIONS.get(cause, _FIXES_OF_FUNCTIONS["function"])
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
        return _onto_devices(old, new)
    return "set its sharding once, before the loop: jax.device_put"


def _of_placements(old: LeafType, new: LeafType) -> str:
    is_anywhere = [side.placement is None or side.placement.sharding is None for side in (old, new)]
    is_numpy = any(side.placement is not None and side.placement.is_numpy for side in (old, new))
    placed = [side.placement.sharding for side in (old, new) if side.placement is not None and side.placement.sharding]
    if any(is_anywhere) and (is_numpy or any(len(sharding.device_set) > 1 for sharding in placed)):
        return _onto_devices(old, new)
    return "move it once, before the loop: jax.device_put"


def _onto_devices(old: LeafType, new: LeafType) -> str:
    """The fix for an array that is on its devices in one of two calls."""
    if any(side.placement is not None and side.placement.is_numpy for side in (old, new)):
        return "put every batch, or none, on its devices: jax.device_put(batch, sharding)"
    return (
        "create it under the mesh (with jax.set_mesh(mesh):), or move the whole tree once, before the loop: "
        "jax.device_put(state, shardings(state, mesh, rules))"
    )


def _of_classes(old: Any, new: Any) -> str:
    if any(is_ref_type(getattr(side, "aval", None)) for side in (old, new)):
        return "create the ref once, before the first call: jax.new_ref"
    classes = {getattr(tree, "cls", None) for tree in (old, new)}
    if type(None) in classes:
        return "pass the same type in each call, such as an array of zeros instead of None"
    return "use one of the two" if classes == {list, tuple} else ""


def _of_values(old: Any, new: Any) -> str:
    classes = {type(value.value if isinstance(value, LeafType) else value) for value in (old, new)}
    if not classes <= {int, float, complex}:
        return ""
    return "if it is only used in arithmetic, pass it as a traced argument; a shape or a length must be static"


# The fix for each cause, and for each kind of difference without a cause.
FIXES: Mapping[str, str | Callable[[Any, Any], str]] = types.MappingProxyType(
    {
        "redefined class": "define the class once, in a separate module, and recreate the objects",
        "other class": "use one type",
        "changed in place": "create a new object instead of changing this one; a frozen dataclass can't change",
        "recreated function": "define it once, before the loop, and reuse it",
        "recreated optimiser": "build the optimiser once and reuse it",
        "other numbers": "a number that changes, such as a rate, belongs in the optimiser's state: build it once, by "
        "optax.inject_hyperparams(optax.adam)(learning_rate=rate), and set "
        "opt_state.hyperparams['learning_rate'] = jnp.asarray(rate, jnp.float32), or the parameters' dtype",
        "other function": "use the same function in all calls",
        "other method": "reuse one object, or pass the object to a plain function as an argument",
        "other arguments": "create it once, and pass the changing values as arguments",
        "wrapped again": "create it once and reuse it",
        "nan": "use None for a missing value, or reuse one NaN object such as math.nan",
        "identity": "define __eq__ and __hash__, for example with a frozen dataclass, or create it once and reuse it",
        "same text": "create it once and reuse it",
        "unequal hashes": "equal values must have equal hashes",
        "default passed": "passing a default explicitly adds an argument: always pass it, or never",
        "default replaced": "pass it in every call",
        "None replaced": "pass the same type in each call, such as an array of zeros instead of None",
        "other statics": "jit the function once, with one set of static arguments",
        "shape": _of_shapes,
        "dtype": _of_dtypes,
        "weak_type": _of_dtypes,
        "sharding": _of_shardings,
        "placement": _of_placements,
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
_FIXES_OF_FUNCTIONS: Mapping[str, str] = types.MappingProxyType(
    {
        "other loop": "each loop compiles its own program: create it once, pass the changing values as inputs, and "
        "assign run.state to begin again",
        "function": "jit compiles each function object separately: create and jit it once, before the loop, and pass "
        "the changing values as arguments",
        "other method": "jit one function that takes the object as an argument: traced if it is a node, else static, "
        "with __eq__ and __hash__",
        "other decorators": "",
        "other options": "",
    }
)
