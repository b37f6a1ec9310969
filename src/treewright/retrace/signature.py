"""What `jit` looks at in a call: the signature of the call, and how two of them differ."""

import dataclasses
import inspect
import operator
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.core import Tracer

from treewright._core import NoExactKeyError, Statics, exact_key, flat_form
from treewright._core.jax_private import Key
from treewright._core.text import Verbatim, first_names, mesh_text, short_text
from treewright._loop import FlatTree
from treewright._trees.diff import ABSENT, Difference, DifferenceKind, StaticComparison, differences, static_difference
from treewright._trees.level import LeafType, Level, SureLeaves, leaf_type_of, level_of
from treewright.retrace.jax_private import (
    FLAX_NODES,
    UNNAMED_SETTINGS,
    Call,
    trace_settings,
)
from treewright.retrace.snapshot import Part, Snapshot, alike, same, snapshot
from treewright.retrace.why import Cause, cause_of

_DEPTH = 200  # levels of a tree that are remembered one by one; Python's own stack ends at a few hundred


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What `jit` looks at in a call. It keeps no array, and nothing in it changes later."""

    traced: Mapping[str, Level | LeafType]  # the trees of the arguments that are traced, by name
    compared: Mapping[str, Any]  # the arguments that are compared instead, by name
    passed: Mapping[str, str]  # how each argument was passed
    settings: Mapping[str, Any]  # of JAX
    options: Mapping[str, Any]  # of `jit`
    defaults: frozenset[str] = frozenset()  # the parameters that have a default

    def argument(self, name: str) -> Any:
        """What is kept of an argument; `ABSENT` if the call has none of this name."""
        return self.traced[name] if name in self.traced else self.compared.get(name, ABSENT)


# Signatures


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        return []


def _named(parameters: list[inspect.Parameter], call: Call) -> Iterator[tuple[str, Any, str]]:
    """The arguments by the function's own names for them, `x`, `args[0]`, `kwargs['y']`, and how each is passed."""
    kinds = inspect.Parameter
    named = [par.name for par in parameters if par.kind in {kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD}]
    rest = next((par.name for par in parameters if par.kind is kinds.VAR_POSITIONAL), "args")
    for index, value in enumerate(call.args):
        name = named[index] if index < len(named) else f"{rest}[{index - len(named)}]"
        yield name, value, "by position"
    names = {par.name for par in parameters if par.kind is not kinds.VAR_KEYWORD}
    others = next((par.name for par in parameters if par.kind is kinds.VAR_KEYWORD), "kwargs")
    for name in sorted(call.kwargs):
        yield name if name in names else f"{others}[{name!r}]", call.kwargs[name], "by keyword"


def signature_of(call: Call, like: Signature | None = None) -> Signature:
    """The signature of a call. What is as it was in `like`, an earlier one, is shared with it."""
    known: Mapping[str, Level | LeafType] = {} if like is None else like.traced
    remembering = _Remembering(live=call.live, fixed_numbers=call.fixed_numbers)
    traced: dict[str, Level | LeafType] = {}
    compared: dict[str, Any] = {}
    passed: dict[str, str] = {}
    parameters = _parameters(call.function)
    for place, (name, given, way) in enumerate(_named(parameters, call)):
        value = given.tree if isinstance(given, FlatTree) else given
        passed[name] = way
        if call.is_static(name, place):
            compared[name] = snapshot(value)
        else:
            traced[name] = remembering.tree(value, known.get(name), 0)
    settings: Mapping[str, Any] = {**trace_settings(), **call.settings}
    if like is not None and like.settings == settings:
        settings = like.settings
    of_loop = any(isinstance(value, FlatTree) for value in call.args)  # whose options follow from its state
    defaults = frozenset([par.name for par in parameters if par.default is not par.empty])
    return Signature(traced, compared, passed, settings, {} if of_loop else call.options, defaults)


# Trees


class _Remembering:
    """Trees of levels and leaf types in place of the live trees in a call.

    It runs inside of every trace, so what is as it was in `like`, an earlier result, is shared and not made again.
    """

    def __init__(self, *, live: bool, fixed_numbers: bool) -> None:
        self.live, self.fixed_numbers = live, fixed_numbers
        self.leaves = SureLeaves()

    def tree(self, tree: Any, like: Any, depth: int) -> Level | LeafType:
        """What to keep of a tree that hangs so deep in the whole."""
        kind = type(tree)
        if self.leaves[kind]:
            return self.leaf(tree, like)
        if hasattr(kind, "__node_spec__") and isinstance(like, Level) and like.kind is kind and depth < _DEPTH:
            parts, statics = flat_form(tree)
            if type(like.aux) is weakref.ref and like.aux() is statics and len(parts) == len(like.children):
                below = zip(parts, like.children, strict=True)
                return _with_children(like, [self.tree(part, old, depth + 1) for part, (_, old) in below])
        level = level_of(tree)
        if level is None:
            return self.leaf(tree, like)
        if depth == _DEPTH:
            return LeafType(None, kind, jax.tree.structure(tree))
        return self.level(level, like if isinstance(like, Level) and like.kind is level.kind else None, depth)

    def leaf(self, leaf: Any, like: Any) -> LeafType:
        """What to keep of a leaf."""
        kept = leaf_type_of(leaf, like)
        if kept.value is not None:
            kept = dataclasses.replace(kept, value=snapshot(kept.value))
        if kept.python is not None and self.fixed_numbers:
            kept = LeafType(None, kept.python, leaf)
        else:
            placement = placement_of(leaf) if self.live else None
            if kept.placement is not placement and kept.placement != placement:
                kept = LeafType(kept.aval, kept.python, kept.value, placement)
        return like if kept is like or (isinstance(like, LeafType) and _same_leaf(kept, like)) else kept

    def level(self, level: Level, like: Level | None, depth: int) -> Level:
        """What to keep of a level that is not known to be as it was."""
        known = {} if like is None else dict(like.children)
        children = [(key, self.tree(child, known.get(key), depth + 1)) for key, child in level.children]
        # A weak reference: equal to another one of the same living object, and 10 times cheaper than a snapshot.
        aux = weakref.ref(level.aux) if isinstance(level.aux, Statics) else snapshot(level.aux)
        if like is not None and list(known) == [key for key, _ in children] and same(like.aux, aux):
            return _with_children(like, [child for _, child in children])
        statics = tuple((key, snapshot(value)) for key, value in level.statics)
        return Level(level.kind, aux, statics, tuple(children), level.content)


def _with_children(like: Level, children: list[Any]) -> Level:
    """An earlier level with these children, or that very one if it has them. They share equal pairs."""
    pairs = tuple(
        [old if old[1] is child else (old[0], child) for old, child in zip(like.children, children, strict=True)]
    )
    return (
        like
        if all(map(operator.is_, pairs, like.children))
        else Level(like.kind, like.aux, like.named, pairs, like.content)
    )


def _same_leaf(leaf: LeafType, other: LeafType) -> bool:
    return (
        (leaf.aval is other.aval or leaf.aval == other.aval)
        and leaf.python is other.python
        and leaf.placement == other.placement
        and (same(leaf.value, other.value) and alike(leaf.value, other.value))
    )


# Where arrays lie


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
        spec = getattr(self.sharding, "spec", None)
        return f"sharded {short_text(self.sharding)}" if spec is None else f"sharded {spec} over {len(devices)} devices"


ANYWHERE = Placement(None)


def placement_of(value: Any) -> Placement | None:
    """Where a leaf lies: nothing for tracers, and anywhere for numpy arrays and Python numbers."""
    if isinstance(value, Tracer | LeafType):
        return None
    if isinstance(value, jax.Ref) or (isinstance(value, jax.Array) and value.committed):
        return Placement(value.sharding)
    return ANYWHERE


# Differences


class _Remembered(StaticComparison):
    """How remembered statics are compared. Without `reasons` it is for counting differences, in a third of the time."""

    def __init__(self, *, reasons: bool) -> None:
        self.same = same
        self._reasons = reasons

    def changed(self, old: Level, new: Level) -> list[tuple[Key, Any, Any]] | None:
        """The static fields that differ, of our own nodes by the statics themselves as long as these live."""
        if old.content is None:
            return super().changed(old, new)
        live = [aux() if type(aux) is weakref.ref else None for aux in (old.aux, new.aux)]
        if live[0] is live[1] and live[0] is not None:
            return None
        values = [() if statics is None else statics.values for statics in live]
        found: list[tuple[Key, Any, Any]] = []
        for index, ((key, value), (_, other)) in enumerate(zip(old.statics, new.statics, strict=True)):
            pair = values[0][index : index + 1] + values[1][index : index + 1]
            if _differ(pair, value, other, content=old.content[index]):
                found.append((key, value, other))
        return found

    def parts(self, left: Any, right: Any) -> tuple[Mapping[Key, Any], Mapping[Key, Any]]:
        """The parts of containers; those of callables, and of one object that has changed, are told by the reason."""
        if not isinstance(left, Snapshot) or not isinstance(right, Snapshot) or left.kind is not right.kind:
            return {}, {}
        is_one = left.is_alive and left.is_object_of(right)
        is_container = not any(isinstance(key, Part) for key in left.parts)
        return (left.parts, right.parts) if is_container and not is_one else ({}, {})

    def reason(self, left: Any, right: Any) -> str:
        """The cause in words; empty where the texts say it all."""
        return (cause_of(left, right) or "") if self._reasons else ""


def _differ(live: tuple[Any, ...], old: Any, new: Any, *, content: bool) -> bool:
    """Whether two values of a static field differ: by exact keys where both values live, else by what is kept."""
    if len(live) < 2 or live[0] is live[1]:
        return not alike(old, new)
    try:
        keys = [exact_key(value, content=content) for value in live]
        return keys[0] != keys[1] or hash(keys[0]) != hash(keys[1])
    except NoExactKeyError:
        return not alike(old, new)


def call_differences(old: Signature, new: Signature, *, reasons: bool = True) -> list[Difference]:
    """The differences between two calls: of arguments, then of settings and options."""
    compare = _Remembered(reasons=reasons)
    found = list(_of_arguments(old, new, compare))
    if any(difference.kind in {"added", "removed"} for difference in found):  # which flax lists once more
        found = [difference for difference in found if str(difference.path[-1]) != FLAX_NODES]
    if old.settings is not new.settings:
        settings = list(_by_name("setting", old.settings, new.settings))
        named = [difference for difference in settings if difference.path != (UNNAMED_SETTINGS,)]
        # All settings are among those without a name: these tell nothing more, if as many of them have changed.
        unnamed = zip(*(each.settings.get(UNNAMED_SETTINGS, ()) for each in (old, new)), strict=True)
        found += named if sum(not same(a, b) for a, b in unnamed) <= len(named) else settings
    options = {difference.path: difference for difference in _by_name("option", old.options, new.options)}
    if ("donate_argnums",) in options:
        options.pop(("donate_argnames",), None)  # which jit makes of the numbers
    return [*found, *options.values()]


def _of_arguments(old: Signature, new: Signature, compare: StaticComparison) -> Iterator[Difference]:
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.argument(name), new.argument(name)
        if a is ABSENT or b is ABSENT:
            passed = Cause("default passed", "") if name in new.defaults else ""
            yield Difference((name,), a, b, "added" if a is ABSENT else "removed", passed)
        elif (name in old.traced) is not (name in new.traced):
            ways = ("static before, and traced now", "traced before, and static now")
            yield Difference((name,), a, b, "class", Cause("other statics", ways[name in old.traced]))
        else:
            if name in old.compared and not (_kind(a) is _kind(b) and same(a, b)):
                yield static_difference((name,), a, b, compare)
            if old.passed[name] != new.passed[name]:
                yield Difference((name,), old.passed[name], new.passed[name], "passing")
            if name in old.traced:
                found = differences(a, b, values=False, path=(name,), compare=compare)
                yield from map(_with_devices, found)


def _kind(value: Any) -> type[Any]:
    return value.kind if isinstance(value, Snapshot) else type(value)


def _with_devices(difference: Difference) -> Difference:
    """A difference of placements that print alike, with the devices; any other as it is."""
    if difference.kind != "placement" or str(difference.left.placement) != str(difference.right.placement):
        return difference
    old, new = (first_names(_device_ids(side.placement.sharding)) for side in (difference.left, difference.right))
    return dataclasses.replace(difference, reason=f"devices {old} -> devices {new}")


def _device_ids(sharding: Any) -> list[str]:
    mesh = getattr(sharding, "mesh", None)
    return [] if mesh is None else [str(device.id) for device in mesh.devices.flat]


def _by_name(kind: DifferenceKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in dict.fromkeys((*old, *new)):
        a, b = old.get(name, ABSENT), new.get(name, ABSENT)
        if a is not b and not same(a, b):
            old_value, new_value = (_setting(a), _setting(b)) if kind == "setting" else (snapshot(a), snapshot(b))
            yield static_difference((name,), old_value, new_value, _Remembered(reasons=False), kind)


def _setting(value: Any) -> Any:
    """A setting as it is shown."""
    meshes = (jax.sharding.Mesh, jax.sharding.AbstractMesh)
    is_stack = type(value) is tuple and all(isinstance(mesh, meshes) for mesh in value)
    mesh = (value or (None,))[-1] if is_stack else value  # as `with mesh:` makes it
    if is_stack or isinstance(mesh, meshes):
        return Verbatim(mesh_text(mesh))
    axes = getattr(value, "axis_sizes", None)  # of the named axes, as vmap and pmap bring into scope
    return snapshot(value if axes is None else dict(axes))


def is_placement(difference: Difference) -> bool:
    """Whether `jit` compiles again for this difference, but does not trace."""
    return difference.kind in {"placement", "option"}
