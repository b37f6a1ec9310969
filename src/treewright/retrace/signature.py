"""Call signatures: the parts of a call that `jit` compiles for, and their differences."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.jax_private import Key
from treewright._base.lines import mesh_text
from treewright._base.text import Verbatim, first_names, short_text
from treewright._contents import Part
from treewright._loop import FlatTree
from treewright._trees.diff import ABSENT, Comparison, Difference, DifferenceKind, differences, static_difference
from treewright._trees.level import LeafType, Level, leaf_type_of, level_of
from treewright._trees.why import Cause, Snapshot, alike, cause_of, kind_of, same, snapshot
from treewright.retrace.jax_private import FLAX_NODES, UNNAMED_SETTINGS, Call, trace_settings

_MAX_DEPTH = 200  # levels of a tree in its snapshot; Python's stack ends at a few hundred
_MAX_DEVICES = 8  # device ids in the text of a placement
_NOTHING = (None, None)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The parts of a call that `jit` compiles for. It keeps no array, and never changes."""

    arguments: Mapping[str, Any]  # name -> levels and leaf types if traced, a snapshot if static
    statics: frozenset[str]  # the names of static arguments
    passed: Mapping[str, str]  # "by position" or "by keyword"
    settings: Mapping[str, Any]  # JAX settings
    options: Mapping[str, Any]  # `jit` options
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict[str, Any])
    batch: tuple[int, ...] = ()  # the sizes of the axes that `vmap` maps the call over


# Signatures


def signature_of(call: Call, like: Signature | None = None) -> Signature:
    """The signature of a call. Parts that equal those in `like`, an earlier one, are shared with it."""
    try:
        parameters = list(inspect.signature(call.function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        parameters = []
    arguments: dict[str, Any] = {}
    statics: list[str] = []
    passed: dict[str, str] = {}
    options = call.options
    for place, (name, key, value, passing) in enumerate(_named(parameters, call)):
        if isinstance(value, FlatTree):
            value, options = value.tree, {}  # noqa: PLW2901  a loop derives its options from its state
        passed[name] = passing
        if not call.statics.isdisjoint((key, place)):
            statics.append(name)
            arguments[name] = snapshot(value)
        else:
            arguments[name] = _tree_snapshot(value, None if like is None else like.arguments.get(name), call)
    settings: Mapping[str, Any] = {**trace_settings(), **call.settings}
    if like is not None and like.settings == settings:
        settings = like.settings
    defaults = {par.name: snapshot(par.default) for par in parameters if par.default is not par.empty}
    return Signature(arguments, frozenset(statics), passed, settings, options, defaults, call.batch)


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
    like = like if isinstance(like, Level) and like.kind is level.kind else None
    children: list[tuple[Any, Any]] = []
    is_same = like is not None and len(like.children) == len(level.children)
    # By position: if keys differ, the earlier child only serves to be shared.
    for (key, child), (other, earlier) in zip_longest(
        level.children, like.children if like else (), fillvalue=_NOTHING
    ):
        if key is not None:
            new = _tree_snapshot(child, earlier, call, depth + 1)
            is_same = is_same and new is earlier and (key is other or key == other)
            children.append((key, new))
    aux = snapshot(level.aux) if level.exact is None else level.exact
    if like is None or not (aux is like.aux if like.exact is not None else same(like.aux, aux)):
        named = [(key, snapshot(value)) for key, value in level.statics]
        return Level(level.kind, aux, named, tuple(children), level.exact)
    return like if is_same else Level(level.kind, like.aux, like.named, tuple(children), level.exact)


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


_ANYWHERE = Placement(None)


def placement_of(value: Any) -> Placement | None:
    """The placement of a leaf: None for tracers, uncommitted for numpy arrays and Python numbers."""
    if isinstance(value, Tracer | LeafType):
        return None
    is_array = isinstance(value, jax.Array)
    if value.committed if is_array else isinstance(value, jax.Ref):
        return Placement(value.sharding)
    return _ANYWHERE


# Differences


def _parts_of_both(left: Any, right: Any) -> tuple[Mapping[Key, Any], Mapping[Key, Any]]:
    """The parts of two containers; empty for callables and for one changed object, which the reason describes."""
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.kind is not right.kind:
        return {}, {}
    is_explained = any(isinstance(key, Part) for key in left.parts) or (left.is_alive and left.is_object_of(right))
    return ({}, {}) if is_explained else (left.parts, right.parts)


_WITHOUT_REASONS = Comparison(same, _parts_of_both, lambda _left, _right: "", alike)  # a third of the time
_WITH_REASONS = Comparison(same, _parts_of_both, lambda left, right: cause_of(left, right) or "", alike)


def call_differences(old: Signature, new: Signature, *, reasons: bool = True) -> list[Difference]:
    """The differences between two calls: arguments, then settings and options."""
    found = list(_of_arguments(old, new, _WITH_REASONS if reasons else _WITHOUT_REASONS))
    if any(difference.kind in {"added", "removed"} for difference in found):  # flax repeats them in a static
        found = [difference for difference in found if str(difference.path[-1]) != FLAX_NODES]
    if old.settings is not new.settings:
        settings = list(_by_name("setting", old.settings, new.settings))
        named = [difference for difference in settings if difference.path != (UNNAMED_SETTINGS,)]
        # The unnamed settings include the named ones: they are redundant if not more of them changed.
        unnamed = zip(*(each.settings.get(UNNAMED_SETTINGS, ()) for each in (old, new)), strict=True)
        found += named if sum(not same(a, b) for a, b in unnamed) <= len(named) else settings
    if old.batch != new.batch and len(old.batch) == len(new.batch):
        found.append(Difference(("the size of vmap",), _size(old.batch), _size(new.batch), "batch"))
    return [*found, *_by_name("option", old.options, new.options)]


def _size(batch: tuple[int, ...]) -> Any:
    return batch[0] if len(batch) == 1 else batch[::-1]  # the outermost axis first, as users write them


def _of_arguments(old: Signature, new: Signature, compare: Comparison) -> Iterator[Difference]:
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.arguments.get(name, ABSENT), new.arguments.get(name, ABSENT)
        default = new.defaults.get(name, ABSENT)
        passed, is_static = b if a is ABSENT else a, name in old.statics | new.statics
        if (a is ABSENT or b is ABSENT) and is_static and default is not ABSENT and not same(default, passed):
            both = (default, b) if a is ABSENT else (a, default)
            yield static_difference((name,), *both, compare)
        elif a is ABSENT or b is ABSENT:
            cause = Cause("argument" if default is ABSENT else "default passed", "")
            yield Difference((name,), a, b, "added" if a is ABSENT else "removed", cause)
        elif (name in old.statics) is not (name in new.statics):
            reasons = ("traced before, and static now", "static before, and traced now")
            yield Difference((name,), a, b, "class", Cause("other statics", reasons[name in old.statics]))
        else:
            if name in old.statics and not (kind_of(a) is kind_of(b) and same(a, b)):
                yield static_difference((name,), a, b, compare)
            if old.passed[name] != new.passed[name]:
                yield Difference((name,), old.passed[name], new.passed[name], "passing")
            if name not in old.statics:
                yield from differences(a, b, values=False, path=(name,), compare=compare)


def _by_name(kind: DifferenceKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, ABSENT), new.get(name, ABSENT)
        if a is not b and not same(a, b):
            old_value, new_value = (_setting(a), _setting(b)) if kind == "setting" else (snapshot(a), snapshot(b))
            yield static_difference((name,), old_value, new_value, _WITHOUT_REASONS, kind)


def _setting(value: Any) -> Any:
    """A setting as reports show it: a mesh, or the stack of meshes from `with mesh:`, by its axes."""
    mesh = next(reversed(value), None) if type(value) is tuple else value
    if value == () or isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return Verbatim(mesh_text(mesh))
    axes = getattr(value, "axis_sizes", None)  # named axes, from vmap and pmap
    return snapshot(value if axes is None else dict(axes))


def without_placement(differences: list[Difference]) -> list[Difference]:
    """The differences that make `jit` retrace; for the others it recompiles the same trace."""
    return [difference for difference in differences if difference.kind not in {"placement", "option", "batch"}]
