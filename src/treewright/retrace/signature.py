"""What `jit` looks at in a call: the signature of the call, and how two of them differ."""

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._core.jax_private import Key
from treewright._core.text import Verbatim, first_names, short_text
from treewright._lines import mesh_text
from treewright._loop import FlatTree
from treewright._trees.diff import ABSENT, Comparison, Difference, DifferenceKind, differences, static_difference
from treewright._trees.level import LeafType, Level, leaf_type_of, level_of
from treewright.retrace.jax_private import FLAX_NODES, UNNAMED_SETTINGS, Call, trace_settings
from treewright.retrace.why import Cause, Part, Snapshot, alike, cause_of, kind_of, same, snapshot

_DEPTH = 200  # levels of a tree that are remembered one by one; Python's own stack ends at a few hundred
_DEVICES = 8  # devices that are named
_NOTHING = (None, None)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What `jit` looks at in a call. It keeps no array, and nothing in it changes later."""

    arguments: Mapping[str, Any]  # by name: the trees of those that are traced, and what is kept of static ones
    statics: frozenset[str]  # the arguments that are static
    passed: Mapping[str, str]  # how each argument was passed
    settings: Mapping[str, Any]  # of JAX
    options: Mapping[str, Any]  # of `jit`
    defaults: frozenset[str] = frozenset()  # the parameters that have a default


# Signatures


def signature_of(call: Call, like: Signature | None = None) -> Signature:
    """The signature of a call. What is as it was in `like`, an earlier one, is shared with it."""
    try:
        parameters = list(inspect.signature(call.function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        parameters = []
    arguments: dict[str, Any] = {}
    statics: list[str] = []
    passed: dict[str, str] = {}
    options = call.options
    for place, (name, value, way) in enumerate(_named(parameters, call)):
        if isinstance(value, FlatTree):
            value, options = value.tree, {}  # noqa: PLW2901  the options of a loop follow from its state
        passed[name] = way
        if not call.statics.isdisjoint((name, place)):
            statics.append(name)
            arguments[name] = snapshot(value)
        else:
            arguments[name] = _remembered(value, None if like is None else like.arguments.get(name), call)
    settings: Mapping[str, Any] = {**trace_settings(), **call.settings}
    if like is not None and like.settings == settings:
        settings = like.settings
    defaults = frozenset([par.name for par in parameters if par.default is not par.empty])
    return Signature(arguments, frozenset(statics), passed, settings, options, defaults)


def _named(parameters: list[inspect.Parameter], call: Call) -> Iterator[tuple[str, Any, str]]:
    """The arguments by the function's own names for them, `x`, `args[0]`, `kwargs['y']`, and how each is passed."""
    names: dict[Any, list[str]] = {}
    for parameter in parameters:
        names.setdefault(parameter.kind, []).append(parameter.name)
    kinds = inspect.Parameter
    named = [*names.get(kinds.POSITIONAL_ONLY, ()), *names.get(kinds.POSITIONAL_OR_KEYWORD, ())]
    [rest] = names.get(kinds.VAR_POSITIONAL, ["args"])
    [others] = names.get(kinds.VAR_KEYWORD, ["kwargs"])
    known = {*named, *names.get(kinds.KEYWORD_ONLY, ())}
    for index, value in enumerate(call.args):
        yield named[index] if index < len(named) else f"{rest}[{index - len(named)}]", value, "by position"
    for name in sorted(call.kwargs):
        yield name if name in known else f"{others}[{name!r}]", call.kwargs[name], "by keyword"


def _remembered(tree: Any, like: Any, call: Call, depth: int = 0) -> Level | LeafType:
    """What to keep of a tree: levels and leaf types; of what is as it was in `like`, an earlier one, that very object.

    So the comparison with many earlier calls passes over what did not change.
    """
    # A test that spares arrays all others: a miss with 600 leaves takes 3.7 ms of CPU in place of 5.4.
    is_array = type(like) is LeafType and isinstance(tree, jax.Array | np.ndarray)
    level = None if is_array else level_of(tree)
    if level is None:
        return _remembered_leaf(tree, like, call)
    if depth == _DEPTH:
        return LeafType(None, type(tree), jax.tree.structure(tree))
    like = like if isinstance(like, Level) and like.kind is level.kind else None
    children: list[tuple[Any, Any]] = []
    is_same = like is not None and len(like.children) == len(level.children)
    # By place: where keys differ, what was at a place only serves to be shared.
    for (key, child), (other, known) in zip_longest(level.children, like.children if like else (), fillvalue=_NOTHING):
        if key is not None:
            kept = _remembered(child, known, call, depth + 1)
            is_same = is_same and kept is known and (key is other or key == other)
            children.append((key, kept))
    aux = snapshot(level.aux) if level.exact is None else level.exact
    if like is None or not (aux is like.aux if like.exact is not None else same(like.aux, aux)):
        named = [(key, snapshot(value)) for key, value in level.statics]
        return Level(level.kind, aux, named, tuple(children), level.exact)
    return like if is_same else Level(level.kind, like.aux, like.named, tuple(children), level.exact)


def _remembered_leaf(leaf: Any, like: Any, call: Call) -> LeafType:
    seen = leaf_type_of(leaf)
    is_compared = seen.aval is None or (seen.python is not None and call.fixed_numbers)
    aval = None if is_compared else seen.aval
    value = (snapshot(leaf) if seen.aval is None else leaf) if is_compared else None
    placement = placement_of(leaf) if call.live and not is_compared else None
    if type(like) is LeafType and like.python is seen.python and like.placement == placement and like.aval == aval:
        is_same = value is like.value or (same(like.value, value) and alike(like.value, value))
        return like if is_same else LeafType(aval, seen.python, value, placement)
    return LeafType(aval, seen.python, value, placement)


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where an array lies, as far as `jit` compiles for it. `sharding` is None where the array may go anywhere."""

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
        return f"sharded {spec} over devices {first_names((str(device.id) for device in mesh.devices.flat), _DEVICES)}"


_ANYWHERE = Placement(None)


def placement_of(value: Any) -> Placement | None:
    """Where a leaf lies: nothing for tracers, and anywhere for numpy arrays and Python numbers."""
    if isinstance(value, Tracer | LeafType):
        return None
    is_array = isinstance(value, jax.Array)
    if value.committed if is_array else isinstance(value, jax.Ref):
        return Placement(value.sharding)
    return _ANYWHERE


# Differences


def _parts_of_both(left: Any, right: Any) -> tuple[Mapping[Key, Any], Mapping[Key, Any]]:
    """The parts of containers; those of callables, and of one object that has changed, are told by the reason."""
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.kind is not right.kind:
        return {}, {}
    is_told = any(isinstance(key, Part) for key in left.parts) or (left.is_alive and left.is_object_of(right))
    return ({}, {}) if is_told else (left.parts, right.parts)


_WITHOUT_REASONS = Comparison(same, _parts_of_both, lambda _left, _right: "", alike)  # to count: in a third of the time
_WITH_REASONS = Comparison(same, _parts_of_both, lambda left, right: cause_of(left, right) or "", alike)


def call_differences(old: Signature, new: Signature, *, reasons: bool = True) -> list[Difference]:
    """The differences between two calls: of arguments, then of settings and options."""
    found = list(_of_arguments(old, new, _WITH_REASONS if reasons else _WITHOUT_REASONS))
    if any(difference.kind in {"added", "removed"} for difference in found):  # which flax lists once more
        found = [difference for difference in found if str(difference.path[-1]) != FLAX_NODES]
    if old.settings is not new.settings:
        settings = list(_by_name("setting", old.settings, new.settings))
        named = [difference for difference in settings if difference.path != (UNNAMED_SETTINGS,)]
        # All settings are among those without a name: these tell nothing more, if as many of them have changed.
        unnamed = zip(*(each.settings.get(UNNAMED_SETTINGS, ()) for each in (old, new)), strict=True)
        found += named if sum(not same(a, b) for a, b in unnamed) <= len(named) else settings
    return [*found, *_by_name("option", old.options, new.options)]


def _of_arguments(old: Signature, new: Signature, compare: Comparison) -> Iterator[Difference]:
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.arguments.get(name, ABSENT), new.arguments.get(name, ABSENT)
        if a is ABSENT or b is ABSENT:
            cause = Cause("default passed" if name in new.defaults else "argument", "")
            yield Difference((name,), a, b, "added" if a is ABSENT else "removed", cause)
        elif (name in old.statics) is not (name in new.statics):
            ways = ("traced before, and static now", "static before, and traced now")
            yield Difference((name,), a, b, "class", Cause("other statics", ways[name in old.statics]))
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
    """A setting as it is shown: a mesh, or a stack of them as `with mesh:` makes it, by its axes."""
    mesh = next(reversed(value), None) if type(value) is tuple else value
    if value == () or isinstance(mesh, jax.sharding.Mesh | jax.sharding.AbstractMesh):
        return Verbatim(mesh_text(mesh))
    axes = getattr(value, "axis_sizes", None)  # of the named axes, as vmap and pmap bring into scope
    return snapshot(value if axes is None else dict(axes))


def without_placement(differences: list[Difference]) -> list[Difference]:
    """The differences for which `jit` traces; for the others it compiles again, with the same trace."""
    return [difference for difference in differences if difference.kind not in {"placement", "option"}]
