"""`check_statics`: what in the statics of a tree will make `jit` trace again, or answer wrongly, before it does."""

import dataclasses
import enum
import functools
import itertools
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jax
import numpy as np

from treewright._core import (
    NoExactKeyError,
    bound_variables,
    exact_key,
    globals_read,
    import_path,
    innermost,
    is_node,
    public,
    spec_of,
)
from treewright._core.jax_private import DictKey, GetAttrKey, Path, SequenceKey, path_text
from treewright._core.text import first_names, short_text
from treewright._trees.diff import parts_of
from treewright._trees.level import Place, leaf_type_of, walk
from treewright.retrace.jax_private import is_of_a_library
from treewright.retrace.why import place_of

HazardKind = Literal[
    "array", "buffer", "captured array", "function", "global", "identity", "leaf", "mutable", "nan", "unhashable"
]

_DEPTH = 6  # levels of a value that are looked into
_ARRAYS = (jax.Array, np.ndarray)
_FINE = (types.NoneType, type, enum.Enum, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, complex)
_CONTAINERS = (tuple, frozenset, list, dict, set, bytearray)
_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "flax", "equinox", "optax"}) | sys.stdlib_module_names
_AGAIN = "so one made again traces again"


@public("treewright")
@dataclasses.dataclass(frozen=True, slots=True)
class Hazard:
    """One value that can hurt, a static or one that should be. `str` gives it in one line.

    Args:
        path: Where it is in the tree, as JAX's keys.
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
    """The hazards in the static fields of a tree, and children that should be static, in the order of the tree.

    Found in any class: functions and objects of which one made again is another static, functions that capture arrays,
    and what can change after `jit` has compiled for it: globals that a function reads, unless annotated `Final`, lists
    and objects that it holds, hashable objects whose attributes can be assigned. In classes of others (flax, equinox,
    `register_dataclass`) also what our own refuse: values without a hash, arrays and NaN.

    A child that is not an array fails `jit`, as does a `bool` where it is looked at, unless its field is declared
    `field()` or `buffer()`. Outside of our nodes such leaves are looked at like statics, since `equinox.filter_jit`
    compares them too. In a state of optax, buffers are listed: optax alone trains them. Nothing is unflattened.

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
            contents = itertools.repeat(None) if level.exact is None else level.aux.table.content
            for (key, value), content in zip(level.statics, contents, strict=False):
                compare = None if content is None else "content" if content else "value"
                found += _of_static((*place.path, key), value, compare, _DEPTH)
        elif leaf_type_of(place.value).aval is None or type(place.value) is bool:
            found += _of_leaf(place)
        else:
            found += _of_trained(place)
    return found


def _of_leaf(place: Place) -> list[Hazard]:
    """Those of a leaf that is not an array, or is a `bool`."""
    way, kind = place.way, type(place.value)
    owners = [index for index, above in enumerate(way[:-1]) if type(above.value) not in _CONTAINERS]
    if not any(is_node(way[index].value) for index in owners):
        return [] if kind is bool else _of_static(place.path, place.value, None, _DEPTH)
    owner, key = way[owners[-1]].value, way[owners[-1] + 1].key
    name = type(owner).__qualname__
    cure = f"declare {name}.{key.name} static()" if is_node(owner) else f"hold the {name} as treewright.adopt(...)"
    problem = f"a {kind.__name__} is not an array, so jit, grad and vmap fail"
    if kind is bool:
        problem = "so jit traces it, and an if on it fails"
        if is_node(owner) and type(owner).__dataclass_fields__[key.name].metadata:  # declared field() or buffer()
            return []
    return [Hazard(place.path, place.value, "leaf", f"it is a child, {problem}; {cure}")]


def _of_trained(place: Place) -> list[Hazard]:
    """Those of an array: a buffer for which optax keeps something."""
    steps = list(itertools.pairwise(place.way))
    in_optax = any(type(above.value).__module__.partition(".")[0] == "optax" for above, _ in steps)
    nodes = [(spec_of(above.value), below.key) for above, below in steps if in_optax and is_node(above.value)]
    if not any(spec.by_name[key.name].kind == "buffer" for spec, key in nodes):
        return []
    text = (
        "optax keeps it for a buffer, so Adam and weight decay change that buffer; make the optimiser's state for "
        "partition(params, trainable)[0], use optax.partition({True: tx, False: optax.set_to_zero()}, trainable), or a "
        "TrainState"
    )
    return [Hazard(place.path, place.value, "buffer", text)]


def _of_static(path: Path, value: Any, compare: str | None, depth: int) -> list[Hazard]:
    """Those of a static and its parts; `compare` is None in a class of others, which compares by `==`."""
    if isinstance(value, _FINE):
        return []
    function = value if isinstance(value, types.FunctionType) else innermost(value)
    is_call = isinstance(value, functools.partial) or isinstance(function, types.FunctionType)
    parts: Mapping[Any, Any] = {}
    found: list[Hazard] = []
    if isinstance(value, functools.partial):
        args = {SequenceKey(index): part for index, part in enumerate(value.args)}
        parts = {
            GetAttrKey("func"): value.func,
            **args,
            **{DictKey(name): part for name, part in value.keywords.items()},
        }
    elif is_call:
        found += _of_function(path, function)
    elif import_path(value) is None and depth:
        parts = parts_of(value)
    found += [hazard for key, part in parts.items() for hazard in _of_static((*path, key), part, compare, depth - 1)]
    refusal = None if found or compare is not None else _refusal(value)
    if refusal is not None:
        return [Hazard(path, value, *refusal)]
    is_told = any(hazard.kind in {"function", "identity"} for hazard in found)
    if not (is_told or isinstance(value, _CONTAINERS) or _is_of_module(value)):
        found += _of_callable(path, value, compare) if is_call else _of_object(path, value)
    return found


def _refusal(value: Any) -> tuple[HazardKind, str] | None:
    """Why our own fields would refuse a value, or jit never find it again."""
    if isinstance(value, float | np.floating) and value != value:  # noqa: PLR0124  NaN
        return "nan", f"NaN equals no other NaN, {_AGAIN}; use None"
    try:
        exact_key(value)
    except NoExactKeyError as problem:
        cure = "Make it a child" if problem.instead is None else problem.instead
        return "array" if problem.found.startswith("an array") else "unhashable", f"{problem.consequence} {cure}."
    return None


def _of_callable(path: Path, value: Any, compare: str | None) -> Iterator[Hazard]:
    """Of a function, method or partial of which another, made in the same way, is another static."""

    def goes_by_identity(compare: str) -> bool:
        key: Any = exact_key(value, content=compare == "content")
        return isinstance(key, tuple) and key[0] == "identity"

    if compare is not None and not goes_by_identity(compare):
        return
    if isinstance(value, types.MethodType):
        owner = type(value.__self__).__qualname__
        text = f"it equals only the method of the very same {owner}; define a function, and pass it the {owner}"
        yield Hazard(path, value, "identity", text)
    elif not isinstance(value, types.FunctionType):
        yield Hazard(path, value, "function", f"it is made in place, {_AGAIN}; make it once")
    else:
        held, reads = first_names(bound_variables(value)), first_names(globals_read(value))
        what = f"it captures {held}" if held else f"it reads the global {reads}" if reads else "it is made in place"
        helps = compare == "value" and not goes_by_identity("content")
        cure = 'define it once, or declare the field static(compare="content")' if helps else "define it once"
        yield Hazard(path, value, "function", f"{what} ({place_of(value.__code__)}), {_AGAIN}; {cure}")


def _is_of_module(value: Any) -> bool:
    """Whether it is made once, with its module, which knows it by some name; a cell of a notebook can run again."""
    name = getattr(value, "__module__", "__main__")
    module = None if name == "__main__" else sys.modules.get(name)
    return import_path(value) is not None or any(value is known for known in vars(module or object).values())


def _of_object(path: Path, value: Any) -> Iterator[Hazard]:
    kind: Any = type(value)
    name = kind.__qualname__
    # A class with another way of making instances may keep one for each value, as PartitionSpec and Mesh do.
    is_one_each = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__
    if kind.__eq__ is not object.__eq__:
        if _can_change(value):
            text = "its attributes can change after jit has compiled for it, and the result is stale then; freeze it"
            yield Hazard(path, value, "mutable", text)
    elif is_one_each and (_is_of_user(kind) or kind is object or vars(value)):
        yield Hazard(path, value, "identity", f"{name} has no __eq__, {_AGAIN}; give it one, or make it once")


# What can change


def _of_function(path: Path, function: types.FunctionType) -> Iterator[Hazard]:
    """The globals that a function reads, and what it holds that is an array or can change."""
    where = place_of(function.__code__)
    for name, value in globals_read(function).items():
        # A function or class under its own name is not data, though it can be rebound as well.
        is_own_name = getattr(value, "__name__", None) == name.rpartition(".")[2]
        if not (is_own_name or isinstance(value, types.ModuleType) or _is_final(function, name)):
            text = (
                f"it reads the global {name} ({where}), which jit does not compare: after a change of it, what has "
                f"been compiled gives the old result; pass it as an argument, make it a field, or annotate it Final"
            )
            yield Hazard(path, function, "global", text)
    for name, value in () if is_of_a_library(function) else bound_variables(function).items():
        if any(isinstance(leaf, _ARRAYS) for leaf in jax.tree.leaves(value)):
            text = (
                f"it captures the array {name}, which becomes a constant of the program and gets no gradient; pass it "
                f"as an argument, or make it a child"
            )
            yield Hazard(path, function, "captured array", text)
        elif _can_change(value):
            text = f"it holds {name} ({where}), which can change after jit has compiled for it"
            yield Hazard(path, function, "mutable", f"{text}, and the result is stale then; freeze it")


def _is_final(function: types.FunctionType, name: str) -> bool:
    *way, last = name.split(".")
    try:
        home = functools.reduce(getattr, way, sys.modules[function.__globals__["__name__"]])
        return "Final" in str(home.__annotations__[last])
    except Exception:  # noqa: BLE001  no annotation, or one that can't be read, PEP 649
        return False


def _can_change(value: Any) -> bool:
    """Whether it is a list or the like, or an object of a user's class whose public attributes can be assigned."""
    kind: Any = type(value)
    has_public = any(not name.startswith("_") for name in getattr(value, "__dict__", ()))
    is_plain = not callable(value) and kind.__setattr__ is object.__setattr__ and _is_of_user(kind)
    return isinstance(value, list | dict | set | bytearray) or (has_public and is_plain)


def _is_of_user(kind: type[Any]) -> bool:
    return kind.__module__.partition(".")[0] not in _LIBRARIES
