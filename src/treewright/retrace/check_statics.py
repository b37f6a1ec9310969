"""`check_statics`: what in the statics of a tree will make `jit` trace again, or answer wrongly, before it does."""

import dataclasses
import enum
import functools
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np

from treewright._core import (
    NoExactKeyError,
    exact_key,
    globals_read,
    import_path,
    innermost,
    is_library,
    is_node,
    of_python,
    public,
    spec_of,
    state_of,
)
from treewright._core.jax_private import Path, path_text
from treewright._core.text import first_names, short_text
from treewright._trees.level import Place, leaf_type_of, walk
from treewright.retrace.why import Part, contents, place_of

HazardKind = Literal["array", "buffer", "global", "identity", "mutable", "nan", "unhashable"]
Compare = Literal["==", "value", "content"]  # in a class of others, and in one of ours

_DEPTH = 6  # levels of a value that are looked into
_MADE_ONCE = (types.NoneType, types.EllipsisType, type, enum.Enum, types.ModuleType, types.BuiltinFunctionType)
_AGAIN = "so one made again traces again"
_STALE = "can change after jit has compiled for it, and the result is stale then"


@public("treewright")
@dataclasses.dataclass(frozen=True, slots=True)
class Hazard:
    """One value that can hurt, a static or what it holds. `str` gives it in one line.

    Args:
        path: Where it is in the tree, as JAX's keys; what functions and the like hold has a key of its name.
        value: The value.
        kind: What is wrong with it.
        text: What follows from it, and what to do.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     scale: object = static()
        >>> [hazard] = check_statics({"head": Layer(object())})
        >>> hazard.path, hazard.kind
        ((DictKey(key='head'), GetAttrKey(name='scale')), 'identity')
    """

    path: Path
    value: Any
    kind: HazardKind
    text: str

    def __str__(self) -> str:
        return f"{path_text(self.path) or 'the whole tree'}: {short_text(self.value)}: {self.text}"


def check_statics(tree: Any) -> list[Hazard]:
    """The hazards in the static fields of a tree, in the order of the tree.

    Found in any class: functions and objects of which one made again is another static, and what can change after `jit`
    has compiled for it: globals that a function reads, unless annotated `Final`, arrays, lists and objects that it
    holds, and objects whose attributes can be assigned. In classes of others (flax, equinox, `register_dataclass`) also
    what our own refuse: values without a hash, arrays and NaN.

    Leaves that are no arrays are looked at like statics, since `equinox.filter_jit` compares them too. In a state of
    optax, buffers are listed: optax alone trains them. Nothing is unflattened.

    Args:
        tree: Any tree.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     scale: object = static()
        >>> print(*check_statics([Layer(1.0, max), Layer(1.0, object())]))
        [1].scale: <object object>: object has no __eq__, so one made again traces again; give it one, or make it once
    """
    found: list[Hazard] = []
    for place in walk(Place(tree)):
        level = place.level
        if level is not None:
            by_content = itertools.repeat(None) if level.exact is None else level.aux.table.content
            for (key, value), content in zip(level.statics, by_content, strict=False):
                compare: Compare = "==" if content is None else "content" if content else "value"
                found += _of_static((*place.path, key), value, compare)
        elif leaf_type_of(place.value).aval is None:
            found += _of_static(place.path, place.value, "==")
        elif _is_trained_buffer(place):
            text = (
                "optax keeps it for a buffer, so Adam and weight decay change that buffer; make the optimiser's state "
                "for partition(params, trainable)[0], use optax.partition({True: tx, False: optax.set_to_zero()}, "
                "trainable), or a TrainState"
            )
            found.append(Hazard(place.path, place.value, "buffer", text))
    return found


def _is_trained_buffer(place: Place) -> bool:
    """Whether a leaf is what a state of optax keeps for a buffer."""
    way = itertools.dropwhile(lambda above: not type(above.value).__module__.startswith("optax"), place.way)
    nodes = [(above.value, below.key.name) for above, below in itertools.pairwise(way) if is_node(above.value)]
    return any(spec_of(node).by_name[name].kind == "buffer" for node, name in nodes)


def _of_static(path: Path, value: Any, compare: Compare, above: tuple[Any, ...] = ()) -> list[Hazard]:
    """Those of a static and what it holds; `above` are the values that hold it, and may hold each other."""
    found: list[Hazard] = []
    above = (*above, value)
    for key, part in _held(value) if len(above) <= _DEPTH else ():
        if not any(part is known for known in above):
            found += _of_static((*path, key), part, compare, above)
    # What goes by identity for itself, or is made once, whatever it holds.
    if isinstance(value, types.FunctionType | types.MethodType) or import_path(value) is not None:
        found = [hazard for hazard in found if hazard.kind != "identity"]
    if isinstance(value, types.FunctionType):
        found += [Hazard(path, value, "global", text) for text in _changing_globals(value)]
    refusal = _refusal(value, compare)
    if refusal is not None:
        return found or [Hazard(path, value, *refusal)]
    if _can_change(value):
        found.append(Hazard(path, value, "mutable", f"its attributes {_STALE}; freeze it"))
    is_told = any(hazard.kind == "identity" for hazard in found)
    if not is_told and _goes_by_identity(value, compare) and not _is_made_once(value):
        found.append(Hazard(path, value, "identity", _identity_text(value, compare)))
    return found


def _held(value: Any) -> Iterator[tuple[Any, Any]]:
    """What can hurt in a value as the value can. What a library's function captured does not change."""
    of_library = isinstance(value, types.FunctionType) and is_library(value.__globals__.get("__name__"))
    roles = {"function", "argument", "item", "" if of_library else "captured"}
    for key, part in contents(value).items():
        if not isinstance(key, Part) or key.role in roles or key.name == "__func__":
            yield key, part


def _refusal(value: Any, compare: Compare) -> tuple[HazardKind, str] | None:
    """Why our own fields would refuse a value, or jit never find it again."""
    if compare == "==" and isinstance(value, float | np.floating) and value != value:  # noqa: PLR0124  NaN
        return "nan", f"NaN equals no other NaN, {_AGAIN}; use None"
    try:
        exact_key(value)
    except NoExactKeyError as problem:
        if isinstance(value, jax.Array | np.ndarray):
            cure = problem.instead or "Make it a child, or pass it as an argument"
            return "array", f"it is a constant of the program: it gets no gradient, and changes are not seen. {cure}."
        return "unhashable", f"{problem.consequence} {problem.instead}."
    return None


def _changing_globals(function: types.FunctionType) -> Iterator[str]:
    for name, value in globals_read(function).items():
        # A function or class under its own name is not data, though it can be rebound as well.
        is_own_name = getattr(value, "__name__", None) == name.rpartition(".")[2]
        if not (is_own_name or isinstance(value, types.ModuleType) or _is_final(function, name)):
            where = place_of(function.__code__)
            yield (
                f"it reads the global {name} ({where}), which jit does not compare, so it {_STALE}; pass it as an "
                f"argument, make it a field, or annotate it Final"
            )


def _is_final(function: types.FunctionType, name: str) -> bool:
    *way, last = name.split(".")
    try:
        home = functools.reduce(getattr, way, sys.modules[function.__globals__["__name__"]])
        return "Final" in str(home.__annotations__[last])
    except Exception:  # noqa: BLE001  no annotation, or one that can't be read, PEP 649
        return False


def _can_change(value: Any) -> bool:
    """Whether it is an object of a user's class whose public attributes can be assigned."""
    kind: Any = type(value)
    is_users = not (isinstance(value, type) or is_library(kind.__module__) or of_python(kind))
    is_open = is_users and kind.__setattr__ is object.__setattr__
    return is_open and any(not name.startswith("_") for name in state_of(value))


def _goes_by_identity(value: Any, compare: Compare) -> bool:
    kind: Any = type(value)
    if compare == "==":
        return kind.__eq__ is object.__eq__ or kind is types.MethodType
    key: Any = exact_key(value, content=compare == "content")
    return isinstance(key, tuple) and key[0] == "identity"


def _is_made_once(value: Any) -> bool:
    """Whether a module knows it by some name, or its class may keep one instance for each value, as a device's does."""
    if isinstance(value, _MADE_ONCE) or import_path(value) is not None:
        return True
    kind: Any = type(value)
    is_one_each = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__
    if innermost(value) is value and not (is_one_each or isinstance(value, types.FunctionType)):
        return True
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    return any(value is known for known in getattr(module, "__dict__", {}).values())


def _identity_text(value: Any, compare: Compare) -> str:
    if isinstance(value, types.FunctionType):
        names = first_names(key.name for key in contents(value) if key.role in {"captured", "global"})
        what = f"it depends on {names}" if names else "it is made in place"
        helps = compare == "value" and not _goes_by_identity(value, "content")
        cure = 'define it once, or declare the field static(compare="content")' if helps else "define it once"
        return f"{what} ({place_of(value.__code__)}), {_AGAIN}; {cure}"
    name = type(value).__qualname__
    if isinstance(value, types.MethodType):
        owner = type(value.__self__).__qualname__
        return f"it equals only the method of the very same {owner}; define a function, and pass it the {owner}"
    if innermost(value) is not value:
        return f"it is made in place, {_AGAIN}; make it once"
    return f"{name} has no __eq__, {_AGAIN}; give it one, or make it once"
