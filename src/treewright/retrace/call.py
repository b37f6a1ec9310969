"""What `jit` looks at in a call: the signature of the call, and how two of them differ."""

import dataclasses
import inspect
import operator
import types
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.core import Tracer

from treewright._core.functions import class_of
from treewright._core.instance import finished_pair
from treewright._core.jax_refs import is_ref
from treewright._core.statics import Statics
from treewright._core.text import first_names, mesh_text, short_text
from treewright._loop import FlatTree
from treewright._trees.diff import ABSENT, Difference, DifferenceKind, Why, differences, static_difference
from treewright._trees.level import LeafType, Level, SureLeaves, leaf_type_of, level_of
from treewright._trees.snapshot import Remembered, facts_of, remembered
from treewright._trees.why import same_exactly, same_to_jit, why
from treewright.retrace.jax_private import UNNAMED_SETTINGS, Call, trace_settings, user_frame


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """What `jit` looks at in a call. It keeps no array, and nothing in it changes later."""

    traced: Mapping[str, Level | LeafType]  # the trees of the arguments that are traced, by name
    compared: Mapping[str, Any]  # the arguments that are compared instead, by name
    passed: Mapping[str, str]  # how each argument was passed
    settings: Mapping[str, Any]  # of JAX
    options: Mapping[str, Any]  # of `jit`

    def argument(self, name: str) -> Any:
        """What is kept of an argument; `ABSENT` if the call has none of this name."""
        return self.traced[name] if name in self.traced else self.compared.get(name, ABSENT)


class MeshInUse:
    """A mesh that prints short."""

    def __init__(self, mesh: Any) -> None:
        self._mesh = mesh

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MeshInUse) and bool(self._mesh == other._mesh)

    def __hash__(self) -> int:
        return hash(self._mesh)

    def __repr__(self) -> str:
        return mesh_text(self._mesh)


def caller() -> str:
    """The nearest place in the user's own code: `train.py:69 in main`."""
    frame = user_frame()
    return "" if frame is None else place_in(frame)


def place_in(frame: types.FrameType) -> str:
    """The line that a frame is at: `train.py:69 in main`."""
    file = frame.f_code.co_filename.replace("\\", "/").rpartition("/")[2]
    name = frame.f_code.co_qualname.replace(".<locals>", "")
    return f"{file}:{frame.f_lineno}" + ("" if name == "<module>" else f" in {name}")


# Signatures


def _arguments(call: Call) -> Iterator[tuple[str, Any, str]]:
    """The arguments by the function's own names for them, `x`, `args[0]`, `kwargs['y']`, and how each is passed."""
    try:
        parameters = list(inspect.signature(call.function).parameters.values())
    except (TypeError, ValueError):  # built-in functions
        parameters = []
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
    remembering = _Remembering(call)
    traced: dict[str, Level | LeafType] = {}
    compared: dict[str, Any] = {}
    passed: dict[str, str] = {}
    for place, (name, given, way) in enumerate(_arguments(call)):
        value = given.tree if isinstance(given, FlatTree) else given
        passed[name] = way
        if call.is_static(name, place, value):
            holds_arrays = any(isinstance(part, jax.Array) for part in jax.tree.leaves(value))
            compared[name] = Remembered(value) if holds_arrays else remembered(value)
        else:
            traced[name] = remembering.tree(value, known.get(name), 0)
    settings: Mapping[str, Any] = {
        name: _setting(value) for name, value in (trace_settings() | dict(call.settings)).items()
    }
    if like is not None and like.settings == settings:
        settings = like.settings
    of_loop = any(isinstance(value, FlatTree) for value in call.args)  # whose options follow from its state
    options = {} if of_loop else {name: remembered(value) for name, value in call.options.items()}
    return Signature(traced, compared, passed, settings, options)


def _is_mesh(value: object) -> bool:
    return isinstance(value, jax.sharding.Mesh | jax.sharding.AbstractMesh)


def _setting(value: Any) -> Any:
    """What to keep of a setting: its value, or what prints short in its place."""
    is_stack = class_of(value) is tuple and all(map(_is_mesh, value))
    mesh = (value or (None,))[-1] if is_stack else value  # as `with mesh:` makes it
    if is_stack or _is_mesh(mesh):
        return MeshInUse(mesh)
    axes = getattr(value, "axis_sizes", None)  # of the named axes, as vmap and pmap bring into scope
    return remembered(value if axes is None else dict(axes))


# Trees


_DEPTH = 200  # levels of a tree that are remembered one by one; Python's own stack ends at a few hundred


class _Remembering:
    """Trees of levels and leaf types in place of the live trees in a call.

    It runs inside of every trace, so what is as it was in `like`, an earlier result, is shared and not made anew.
    """

    def __init__(self, call: Call) -> None:
        self.live, self.fixed_numbers = call.live, call.fixed_numbers
        self.leaves = SureLeaves()

    def tree(self, tree: Any, like: Any, depth: int) -> Level | LeafType:
        """What to keep of a tree that hangs so deep in the whole."""
        kind = class_of(tree)
        if self.leaves[kind]:
            return self.leaf(tree, like)
        if hasattr(kind, "__node_spec__") and isinstance(like, Level) and like.kind is kind and depth < _DEPTH:
            parts, statics = finished_pair(tree)
            if class_of(like.aux) is weakref.ref and like.aux() is statics and len(parts) == len(like.children):
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
            kept = dataclasses.replace(kept, value=remembered(kept.value))
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
        # A weak reference: equal to another one of the same living object, and 10 times cheaper than a Remembered.
        aux = weakref.ref(level.aux) if isinstance(level.aux, Statics) else remembered(level.aux)
        if like is not None and list(known) == [key for key, _ in children] and same_to_jit(like.aux, aux):
            return _with_children(like, [child for _, child in children])
        statics = tuple((key, remembered(value)) for key, value in level.statics)
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
        and (same_to_jit(leaf.value, other.value) and same_exactly(leaf.value, other.value))
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
    if isinstance(value, Tracer):
        return None
    if is_ref(value) or (isinstance(value, jax.Array) and value.committed):
        return Placement(value.sharding)
    return ANYWHERE


# Differences


def call_differences(old: Signature, new: Signature, why: Why = why) -> list[Difference]:
    """The differences between two calls: of arguments, then of settings and options."""
    of_options = _differences_by_name("option", old.options, new.options)
    options = {difference.path: difference for difference in of_options}
    if ("donate_argnums",) in options:
        options.pop(("donate_argnames",), None)  # which jit makes of the numbers
    return [*_differences_of_arguments(old, new, why), *_differences_of_settings(old, new), *options.values()]


def _differences_of_settings(old: Signature, new: Signature) -> list[Difference]:
    found = list(_differences_by_name("setting", old.settings, new.settings))
    named = [difference for difference in found if difference.path != (UNNAMED_SETTINGS,)]
    if len(named) == len(found):
        return named
    # Those without names hold those with a name too.
    unnamed = zip(old.settings[UNNAMED_SETTINGS], new.settings[UNNAMED_SETTINGS], strict=True)
    return named if sum(not same_to_jit(a, b) for a, b in unnamed) <= len(named) else found


def _differences_of_arguments(old: Signature, new: Signature, why: Why) -> Iterator[Difference]:
    for name in dict.fromkeys((*old.passed, *new.passed)):
        a, b = old.argument(name), new.argument(name)
        if a is ABSENT or b is ABSENT:
            yield Difference((name,), a, b, "added" if a is ABSENT else "removed")
        elif (name in old.traced) is not (name in new.traced):
            yield Difference((name,), a, b, "class")
        else:
            if name in old.compared and not (facts_of(a).kind is facts_of(b).kind and same_to_jit(a, b)):
                yield static_difference((name,), a, b, same_exactly, why=why)
            if old.passed[name] != new.passed[name]:
                yield Difference((name,), old.passed[name], new.passed[name], "passing")
            if name in old.traced:
                yield from map(_told_apart, differences(a, b, values=False, path=(name,), why=why))


def _told_apart(difference: Difference) -> Difference:
    """A difference of placements that print alike, with the devices; any other as it is."""
    if difference.kind != "placement" or str(difference.left.placement) != str(difference.right.placement):
        return difference
    old, new = (first_names(_device_ids(side.placement.sharding)) for side in (difference.left, difference.right))
    return dataclasses.replace(difference, reason=f"devices {old} -> devices {new}")


def _device_ids(sharding: Any) -> list[str]:
    mesh = getattr(sharding, "mesh", None)
    return [] if mesh is None else [str(device.id) for device in mesh.devices.flat]


def _differences_by_name(kind: DifferenceKind, old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Difference]:
    for name in () if old is new else dict.fromkeys((*old, *new)):
        a, b = old.get(name, ABSENT), new.get(name, ABSENT)
        if not same_to_jit(a, b):
            yield static_difference((name,), a, b, same_to_jit, kind)


def distance(old: Signature, new: Signature) -> tuple[int, int]:
    """How far two calls are apart: first the number of differences for which `jit` traces, then that of all."""
    # Most of what it takes to compare is to say why statics differ.
    found = call_differences(old, new, why=lambda _old, _new: "")
    return sum(not is_placement(difference) for difference in found), len(found)


def is_placement(difference: Difference) -> bool:
    """Whether `jit` compiles again for this difference, but does not trace."""
    return difference.kind in {"placement", "option"}
