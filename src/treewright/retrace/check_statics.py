"""`check_statics`: what in the statics of a tree will make `jit` trace again, or answer wrongly, before it does."""

import contextlib
import dataclasses
import enum
import functools
import sys
import timeit
import types
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np

from treewright._core import functions as reach
from treewright._core.fields import options_of
from treewright._core.functions import class_of, import_path, public
from treewright._core.instance import is_node
from treewright._core.jax_private import GetAttrKey, Path, SequenceKey, path_text
from treewright._core.keys import exact_key, why_itself_only
from treewright._core.plain import MUTABLE, NoExactKeyError
from treewright._core.text import first_names, short_text
from treewright._trees.level import Place, leaf_type_of, walk
from treewright._trees.why import parts_of, same_to_jit

HazardKind = Literal[
    "array",
    "captured array",
    "collision",
    "comparison",
    "function",
    "global",
    "identity",
    "leaf",
    "mutable",
    "nan",
    "slow",
    "unhashable",
]

_SLOW = 1e-3  # seconds of one hash()
_DEPTH = 6  # levels of a value that are looked into
_OBJECT: Any = object
_SINGLE = (types.NoneType, types.EllipsisType, types.NotImplementedType)
_FINE = (*_SINGLE, type, enum.Enum, types.ModuleType, types.BuiltinFunctionType)
_PLAIN = (*_SINGLE, bool, int, float, complex, str, bytes)
_FOLLOWED = 20  # functions that are looked into for what they read
_CONTAINERS = (tuple, frozenset, list, dict, set)


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

    Found in any class: functions made in place, functions that read globals or hold what can change, objects that
    compare by identity, values that are hashable and can change, functions that capture arrays, an `__eq__` that
    raises, values whose hash takes over a millisecond. A global that never changes is annotated `Final`. In
    classes of others (flax, equinox, `register_dataclass`) also what our own refuse or tell apart: values without a
    hash, arrays, NaN, and values of two types that are equal, such as `1` and `True`, in the same field of two nodes.

    What is not an array fails `jit` where it is a child: a text, a function, an instance of a class that is not a
    pytree. A `bool` is traced, and fails where it is looked at, unless its field is declared `field()` or `buffer()`.
    Outside of our nodes such leaves are looked at like statics, since `equinox.filter_jit` compares them too.
    Nothing is unflattened.

    Args:
        tree: Any tree.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     scale: object = static()
        >>> print(*check_statics([Layer(1.0, max), Layer(1.0, object())]))
        [1].scale: <object object>: object has no __eq__, so one made anew traces again; give it one, or make it once
    """
    return list(_in_tree(tree))


@dataclasses.dataclass(frozen=True, slots=True)
class _Comparison:
    """How the field that holds a value compares it: by `==` in foreign classes, else exactly.

    `content` says whether it compares functions by what they captured.
    """

    foreign: bool
    content: bool = False

    def why_itself_only(self, value: Any, *, content: bool = False) -> str | None:
        """Why one of our fields takes another value like this one for another static; None if it does not."""
        try:
            return why_itself_only(value, content=self.content or content)
        except NoExactKeyError as problem:
            return f"it holds {problem.found}"


def _in_tree(tree: Any) -> Iterator[Hazard]:
    seen: dict[tuple[type[Any], str], list[Any]] = {}  # in each field of a foreign class, the first value of each type
    for place in walk(Place(tree)):
        level = place.level
        if level is None:
            if leaf_type_of(place.value).aval is None or class_of(place.value) is bool:
                yield from _of_leaf(place)
            continue
        foreign = level.content is None
        content = level.content or (False,) * len(level.statics)
        for (key, value), by_content in zip(level.statics, content, strict=True):
            path = (*place.path, key)
            if foreign:
                yield from _collision(path, value, seen.setdefault((level.kind, str(key)), []))
            yield from _slow(path, value, foreign=foreign)
            yield from _hazards(path, value, _Comparison(foreign, by_content))


def _collision(path: Path, value: Any, earlier: list[Any]) -> Iterator[Hazard]:
    for other in earlier:
        if same_to_jit(other, value) and not _exactly(other, value):
            text = (
                f"jit takes it for the same as {short_text(other)} in this field of another node, and gives one the "
                f"program of the other; use one type"
            )
            yield Hazard(path, value, "collision", text)
            return
    earlier.append(value)


def _of_leaf(place: Place) -> Iterator[Hazard]:
    """Those of a leaf that is not an array, or is a `bool`."""
    way = place.way
    owners = [index for index, above in enumerate(way[:-1]) if class_of(above.value) not in _CONTAINERS]
    is_bool, kind = class_of(place.value) is bool, class_of(place.value)
    if not any(is_node(way[index].value) for index in owners):
        if not is_bool:
            yield from _hazards(place.path, place.value, _Comparison(foreign=True))
        return
    owner: Any = way[owners[-1]].value
    name, key = class_of(owner).__qualname__, way[owners[-1] + 1].key
    if not is_node(owner):
        cure = f"hold the {name} as treewright.adopt(...), which makes it a static"
    elif is_bool and options_of(class_of(owner).__dataclass_fields__[key.name]) is not None:
        return
    elif owners[-1] + 2 < len(way):
        cure = f"put Static(...) around it, or declare {name}.{key.name} static()"
    else:
        cure = f"declare {name}.{key.name} static()"
    if dataclasses.is_dataclass(kind):
        cure = f"make {kind.__qualname__} a node with @pytree_dataclass, or {cure}"
    why = (
        "it is a child, so jit traces it, and an if on it fails"
        if is_bool
        else f"it is a child, and a {kind.__name__} is not an array, so jit, grad and vmap fail"
    )
    yield Hazard(place.path, place.value, "leaf", f"{why}; {cure}")


def _exactly(left: Any, right: Any) -> bool:
    try:
        return bool(exact_key(left) == exact_key(right))
    except NoExactKeyError:
        return True


def _slow(path: Path, value: Any, *, foreign: bool) -> Iterator[Hazard]:
    try:
        seconds = min(timeit.repeat(lambda: hash(value), number=1, repeat=3))
    except Exception:  # noqa: BLE001  a user's `__hash__`; that it raises is another hazard
        return
    if seconds > _SLOW:
        why = "and jit compares it in each call" if foreign else "each time a node is made with it"
        text = f"its hash takes {seconds * 1e3:.2g} ms, {why}; make it smaller, or a child"
        yield Hazard(path, value, "slow", text)


def _hazards(path: Path, value: Any, compared: _Comparison, depth: int = _DEPTH) -> Iterator[Hazard]:
    """Those of a value, and of what it consists of."""
    refused = _what_our_own_refuse(path, value) if compared.foreign else None
    if refused is not None:
        yield refused
        return
    if isinstance(value, types.FunctionType):
        yield from _of_function(path, value, compared)
    elif isinstance(value, _FINE) or import_path(value) is not None:
        return
    elif isinstance(value, types.MethodType) or reach.wrapped_by(value) is not None:
        yield from _of_wrapper(path, value, compared)
    elif not isinstance(value, _CONTAINERS):
        yield from _of_object(path, value, compared)
    inside = [
        hazard
        for key, part in (_inside(value).items() if depth else ())
        for hazard in _hazards((*path, key), part, compared, depth - 1)
    ]
    yield from inside
    told = any(hazard.kind in {"function", "identity"} for hazard in inside)
    if isinstance(value, functools.partial) and not (told or compared.foreign):
        reason = compared.why_itself_only(value)
        if reason is not None:
            yield Hazard(path, value, "function", f"{reason}, so a partial made anew traces again; make it once")


def _inside(value: Any) -> dict[Any, Any]:
    if not isinstance(value, functools.partial):
        return parts_of(value)
    arguments = {SequenceKey(index): part for index, part in enumerate(value.args)}
    return {GetAttrKey("func"): value.func, **arguments, **parts_of(value.keywords)}


def _what_our_own_refuse(path: Path, value: Any) -> Hazard | None:
    if isinstance(value, jax.Array | np.ndarray):
        text = "jit compares statics with ==, which gives an array and no answer; make it a child"
        return Hazard(path, value, "array", text)
    if isinstance(value, (float, np.floating)) and value != value:  # noqa: PLR0124  NaN
        return Hazard(path, value, "nan", "NaN equals no other NaN, so one made anew traces again; use None")
    if not _is_hashable(value):
        text = "jit keeps it and does not copy it, so a change in place gives stale results; use a tuple, or freeze it"
        return Hazard(path, value, "unhashable", text)
    return None


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a user's `__hash__`
        return class_of(value) in {tuple, frozenset}  # whose parts tell
    return True


def _of_function(path: Path, function: types.FunctionType, compared: _Comparison) -> Iterator[Hazard]:
    captured = reach.held_by(function)
    array = next((name for name, part in captured.items() if _holds_array(part)), None)
    if array is not None:
        text = (
            f"it captures the array {array}, which becomes a constant of the program and gets no gradient; pass it as "
            f"an argument, or make it a child"
        )
        yield Hazard(path, function, "captured array", text)
    yield from _of_reads(path, function)
    reason = None if compared.foreign else compared.why_itself_only(function)
    if _is_of_module(function) or not (compared.foreign or reason):
        return
    what = reason or (f"it captures {first_names(captured)}" if captured else "it is made in place")
    helps = not compared.foreign and compared.why_itself_only(function, content=True) is None
    remedy = ', or declare the field static(compare="content")' if helps else ""
    where = reach.place_of(function)
    yield Hazard(path, function, "function", f"{what} ({where}), so one made anew traces again; define it once{remedy}")


# What a function reads, and holds, that can change


def _of_reads(path: Path, function: types.FunctionType) -> Iterator[Hazard]:
    where = reach.place_of(function)
    for reader, name in _globals_read(function, [function]):
        who = "it" if reader is function else f"it calls {reader.__name__}, which"
        text = (
            f"{who} reads the global {name} ({where}), which jit does not compare: after a change of it, what has been "
            f"compiled gives the old result; pass it as an argument, make it a field, or annotate it Final"
        )
        yield Hazard(path, function, "global", text)
    if reach.library_made(function):
        return
    for name, value in reach.held_by(function).items():
        if issubclass(class_of(value), MUTABLE) or _is_changeable_object(value):
            kind = class_of(value).__name__
            text = (
                f"it holds {name} ({where}), and a {kind} can change after jit has compiled for it: the result is then "
                f"stale; freeze it"
            )
            yield Hazard(path, function, "mutable", text)


def _globals_read(
    function: types.FunctionType, seen: list[types.FunctionType]
) -> Iterator[tuple[types.FunctionType, str]]:
    """The globals with data in them that a function reads, and those that the functions that it calls read."""
    read = reach.read_by(function)
    for name, value in read.items():
        if _is_data(value) and not _is_final(function, name):
            yield function, name
    for value in (*read.values(), *reach.held_by(function).values()):
        called = reach.innermost(value)
        if isinstance(called, types.FunctionType) and len(seen) < _FOLLOWED and called not in seen:
            seen.append(called)
            yield from _globals_read(called, seen)


def _is_data(value: Any) -> bool:
    """Whether a global is a value that a program computes with: plain, a container, an array, or of a user's class."""
    if isinstance(value, (*_PLAIN, *_CONTAINERS, jax.Array, np.ndarray, np.generic)):
        return True
    if callable(reach.innermost(value)) and import_path(reach.innermost(value)) is not None:
        return False
    foreign = reach.of_python(class_of(value)) or reach.is_library(class_of(value).__module__)
    return not isinstance(value, type | types.ModuleType) and not foreign


def _is_final(function: types.FunctionType, name: str) -> bool:
    module = reach.home_of(function)
    for part in name.split(".")[:-1]:
        module = getattr(module, part, None)
    annotation = None
    with contextlib.suppress(Exception):  # of an annotation that can't be read, PEP 649
        annotation = getattr(module, "__annotations__", {}).get(name.rpartition(".")[2])
    return "Final" in str(annotation)


def _is_changeable_object(value: Any) -> bool:
    kind = class_of(value)
    if reach.library_class(kind) or isinstance(value, (type, types.FunctionType, enum.Enum)):
        return False
    return _can_change(value, by_content=False)


def _is_of_module(function: types.FunctionType) -> bool:
    """Whether it is made once, with its module, which knows it by some name; a cell of a notebook can run again."""
    if import_path(function) is not None:
        return True
    module = None if function.__module__ == "__main__" else sys.modules.get(function.__module__)
    return any(function is one for one in getattr(module, "__dict__", {}).values())


def _of_wrapper(path: Path, value: Any, compared: _Comparison) -> Iterator[Hazard]:
    function = reach.innermost(value)
    if isinstance(function, types.FunctionType):
        yield from _of_reads(path, function)
    if not compared.foreign and compared.why_itself_only(value) is None:
        return
    if isinstance(value, types.MethodType):
        owner = class_of(value.__self__).__qualname__
        text = f"it equals only the method of the very same {owner}; define a function, and pass it the {owner}"
        yield Hazard(path, value, "identity", text)
        return
    yield Hazard(path, value, "function", "it is wrapped in place, so one made anew traces again; wrap it once")


def _of_object(path: Path, value: Any, compared: _Comparison) -> Iterator[Hazard]:
    kind = class_of(value)
    name = kind.__qualname__
    if not _can_be_compared(value):
        text = f"{name}.__eq__ raises for another type, and jit then fails for any function that sees both"
        yield Hazard(path, value, "comparison", text)
    elif _is_sentinel(value):
        return
    elif kind.__eq__ is _OBJECT.__eq__ and (compared.foreign or not isinstance(value, functools.partial)):
        text = f"{name} has no __eq__, so one made anew traces again; give it one, or make it once"
        yield Hazard(path, value, "identity", text)
    elif _can_change(value):
        text = f"a {name} can change after jit has compiled for it, and the result is stale then; freeze it"
        yield Hazard(path, value, "mutable", text)


def _is_sentinel(value: Any) -> bool:
    """Whether it is an object of a library that holds nothing, such as those that stand for no argument."""
    kind = class_of(value)
    return not reach.of_python(kind) and reach.library_class(kind) and not reach.state_of(value)


def _can_be_compared(value: Any) -> bool:
    try:
        bool(value == _OBJECT())
    except Exception:  # noqa: BLE001  a user's `__eq__`
        return False
    return True


def _can_change(value: Any, *, by_content: bool = True) -> bool:
    """Whether a value, only one that compares by its content if asked, lets its public attributes be assigned."""
    kind = class_of(value)
    if by_content and kind.__eq__ is _OBJECT.__eq__:
        return False
    if dataclasses.is_dataclass(kind):
        return not getattr(kind, "__dataclass_params__").frozen and not hasattr(kind, "__node_spec__")  # noqa: B009
    attributes = getattr(value, "__dict__", {})
    return kind.__setattr__ is _OBJECT.__setattr__ and any(not name.startswith("_") for name in attributes)


def _holds_array(value: Any, depth: int = 4) -> bool:
    if isinstance(value, jax.Array | np.ndarray):
        return True
    if not depth:
        return False
    inside = reach.held_by(value) if isinstance(value, types.FunctionType) else _inside(value)
    return any(_holds_array(part, depth - 1) for part in inside.values())
