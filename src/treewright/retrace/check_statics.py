"""`check_statics`: what in the statics of a tree will make `jit` trace again, or answer wrongly, before it does."""

import dataclasses
import enum
import functools
import sys
import types
from collections.abc import Iterator
from typing import Any, Literal

import jax
import numpy as np

from treewright._core import (
    NoExactKeyError,
    captured,
    defaults,
    exact_key,
    globals_read,
    import_path,
    innermost,
    is_node,
    public,
)
from treewright._core.jax_private import DictKey, GetAttrKey, Path, SequenceKey, path_text
from treewright._core.text import first_names, short_text
from treewright._trees.diff import parts_of
from treewright._trees.level import Place, leaf_type_of, walk
from treewright.retrace.jax_private import is_of_a_library
from treewright.retrace.snapshot import place_of

HazardKind = Literal[
    "array", "captured array", "function", "global", "identity", "leaf", "mutable", "nan", "unhashable"
]

_DEPTH = 6  # levels of a value that are looked into
_CALLED = 20  # functions that are looked into for the globals that they read
_ARRAYS = (jax.Array, np.ndarray)
_FINE = (types.NoneType, type, enum.Enum, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, complex)
_CHANGEABLE = (list, dict, set, bytearray)
_CONTAINERS = (tuple, frozenset, *_CHANGEABLE)
_LIBRARIES = frozenset({"jax", "jaxlib", "numpy", "flax", "equinox", "optax"}) | sys.stdlib_module_names
_NAMES = ("__qualname__", "__module__", "__doc__", "__annotations__", "__kwdefaults__")


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
    and what can change after `jit` has compiled for it: globals that a function reads, lists and objects that it
    holds, hashable objects whose attributes can be assigned. A global that never changes is annotated `Final`. In
    classes of others (flax, equinox, `register_dataclass`) also what our own refuse: values without a hash, arrays and
    NaN.

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
        [1].scale: <object object>: object has no __eq__, so one made again traces again; give it one, or make it once
    """
    found: list[Hazard] = []
    for place in walk(Place(tree)):
        level = place.level
        if level is not None:
            contents = level.content or (False,) * len(level.statics)
            for (key, value), content in zip(level.statics, contents, strict=True):
                check = _Check(foreign=level.content is None, content=content)
                found += check.value((*place.path, key), value, _DEPTH)
        elif leaf_type_of(place.value).aval is None or type(place.value) is bool:
            found += _of_leaf(place)
    return found


def _of_leaf(place: Place) -> Iterator[Hazard]:
    """Those of a leaf that is not an array, or is a `bool`."""
    way, kind = place.way, type(place.value)
    owners = [index for index, above in enumerate(way[:-1]) if type(above.value) not in _CONTAINERS]
    if not any(is_node(way[index].value) for index in owners):
        if kind is not bool:
            yield from _Check(foreign=True).value(place.path, place.value, _DEPTH)
        return
    owner, key = way[owners[-1]].value, way[owners[-1] + 1].key
    name = type(owner).__qualname__
    if not is_node(owner):
        cure = f"hold the {name} as treewright.adopt(...), which makes it a static"
    elif kind is bool and type(owner).__dataclass_fields__[key.name].metadata:  # declared field() or buffer()
        return
    elif owners[-1] + 2 < len(way):
        cure = f"put Static(...) around it, or declare {name}.{key.name} static()"
    else:
        cure = f"declare {name}.{key.name} static()"
    if dataclasses.is_dataclass(kind):
        cure = f"make {kind.__qualname__} a node with @pytree_dataclass, or {cure}"
    problem = f"it is a child, and a {kind.__name__} is not an array, so jit, grad and vmap fail"
    if kind is bool:
        problem = "it is a child, so jit traces it, and an if on it fails"
    yield Hazard(place.path, place.value, "leaf", f"{problem}; {cure}")


@dataclasses.dataclass(frozen=True, slots=True)
class _Check:
    """The hazards of values in a field: of a foreign class, which compares by `==`, or of ours, exactly."""

    foreign: bool
    content: bool = False

    def value(self, path: Path, value: Any, depth: int) -> list[Hazard]:
        """Those of a value, and of what it consists of."""
        found = list(_refused_by_ours(path, value)) if self.foreign else []
        if found or isinstance(value, (*_FINE, *_ARRAYS)):
            return found
        is_partial = isinstance(value, functools.partial)
        function = value if isinstance(value, types.FunctionType) else innermost(value)
        if isinstance(function, types.FunctionType) and not is_partial:
            found = list(_of_function(path, function))
        elif not is_partial and (import_path(value) is not None or not depth):
            return []
        else:
            parts = _parts_of_partial(value) if is_partial else dict(parts_of(value) or {})
            found = [hazard for key, part in parts.items() for hazard in self.value((*path, key), part, depth - 1)]
            if not is_partial:
                return found + ([] if isinstance(value, _CONTAINERS) else _of_object(path, value))
            if any(hazard.kind in {"function", "identity"} for hazard in found):
                return found
        return found + self._of_callable(path, value, function)

    def _of_callable(self, path: Path, value: Any, function: Any) -> list[Hazard]:
        """Whether one made again in the same way is another static."""
        if _is_of_module(value) or not self._is_other(value):
            return []
        if isinstance(value, types.MethodType):
            owner = type(value.__self__).__qualname__
            text = f"it equals only the method of the very same {owner}; define a function, and pass it the {owner}"
            return [Hazard(path, value, "identity", text)]
        if isinstance(value, functools.partial):
            text = "it is made in place, so a partial made again traces again; make it once"
        elif value is not function:
            text = "it is wrapped in place, so one wrapped again traces again; wrap it once"
        else:
            held, reads = first_names(captured(value) | defaults(value)), first_names(globals_read(value))
            what = f"it captures {held}" if held else f"it reads the global {reads}" if reads else "it is made in place"
            helps = not self.foreign and not dataclasses.replace(self, content=True)._is_other(value)
            remedy = ', or declare the field static(compare="content")' if helps else ""
            text = f"{what} ({place_of(value.__code__)}), so one made again traces again; define it once{remedy}"
        return [Hazard(path, value, "function", text)]

    def _is_other(self, value: Any) -> bool:
        if self.foreign:
            return True
        wrapped = getattr(value, "__wrapped__", None)
        if wrapped is not None and not isinstance(value, types.FunctionType):  # such as `jit`, of which ours know it
            return self._is_other(wrapped)
        try:
            return bool(exact_key(_made_again(value), content=self.content) != exact_key(value, content=self.content))
        except NoExactKeyError:
            return True


def _made_again(value: Any) -> Any:
    """Another function, partial or method with the same in it."""
    if isinstance(value, functools.partial):
        return functools.partial(value.func, *value.args, **value.keywords)
    if isinstance(value, types.MethodType):
        return types.MethodType(value.__func__, object.__new__(type(value.__self__)))
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, value.__closure__)
    for name in _NAMES:
        setattr(made, name, getattr(value, name))
    vars(made).update(vars(value))
    return made


def _parts_of_partial(value: Any) -> dict[Any, Any]:
    args = {SequenceKey(index): part for index, part in enumerate(value.args)}
    return {GetAttrKey("func"): value.func, **args, **{DictKey(name): part for name, part in value.keywords.items()}}


def _refused_by_ours(path: Path, value: Any) -> Iterator[Hazard]:
    if isinstance(value, _ARRAYS):
        text = "jit compares statics with ==, which gives an array and no answer; make it a child"
        yield Hazard(path, value, "array", text)
    elif isinstance(value, float | np.floating) and value != value:  # noqa: PLR0124  NaN
        yield Hazard(path, value, "nan", "NaN equals no other NaN, so one made again traces again; use None")
    elif not _is_hashable(value):
        text = "jit keeps it without a copy, so a change in place gives stale results; use a tuple, or freeze it"
        yield Hazard(path, value, "unhashable", text)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a user's `__hash__`
        return type(value) in {tuple, frozenset}  # whose parts tell
    return True


# What can change


def _of_function(path: Path, function: types.FunctionType) -> Iterator[Hazard]:
    """The globals that a function and those that it calls read, and what it holds that is an array or can change."""
    where = place_of(function.__code__)
    for reader, name in _reads(function, [function]):
        who = "it" if reader is function else f"it calls {reader.__name__}, which"
        text = (
            f"{who} reads the global {name} ({where}), which jit does not compare: after a change of it, what has been "
            f"compiled gives the old result; pass it as an argument, make it a field, or annotate it Final"
        )
        yield Hazard(path, function, "global", text)
    for name, value in () if is_of_a_library(function) else (captured(function) | defaults(function)).items():
        if _holds_array(value, 4):
            text = (
                f"it captures the array {name}, which becomes a constant of the program and gets no gradient; pass it "
                f"as an argument, or make it a child"
            )
            yield Hazard(path, function, "captured array", text)
        elif isinstance(value, _CHANGEABLE) or _can_change(value):
            kind = type(value).__name__
            text = (
                f"it holds {name} ({where}), and a {kind} can change after jit has compiled for it: the result is then "
                f"stale; freeze it"
            )
            yield Hazard(path, function, "mutable", text)


def _reads(function: types.FunctionType, seen: list[types.FunctionType]) -> Iterator[tuple[types.FunctionType, str]]:
    read = globals_read(function)
    for name, value in read.items():
        # A function or class under its own name is not data, though it can be rebound as well.
        is_own_name = getattr(value, "__name__", None) == name.rpartition(".")[2]
        if not (is_own_name or isinstance(value, types.ModuleType) or _is_final(function, name)):
            yield function, name
    for value in (*read.values(), *captured(function).values(), *defaults(function).values()):
        called = innermost(value)
        if isinstance(called, types.FunctionType) and len(seen) < _CALLED and called not in seen:
            seen.append(called)
            yield from _reads(called, seen)


def _is_final(function: types.FunctionType, name: str) -> bool:
    home: Any = sys.modules.get(function.__globals__.get("__name__", ""))
    *way, last = name.split(".")
    for part in way:
        home = getattr(home, part, None)
    try:
        return "Final" in str(getattr(home, "__annotations__", {}).get(last))
    except Exception:  # noqa: BLE001  an annotation that can't be read, PEP 649
        return False


def _is_of_module(value: Any) -> bool:
    """Whether it is made once, with its module, which knows it by some name; a cell of a notebook can run again."""
    if import_path(value) is not None:
        return True
    module = None if getattr(value, "__module__", "__main__") == "__main__" else sys.modules.get(value.__module__)
    return module is not None and any(value is known for known in vars(module).values())


def _of_object(path: Path, value: Any) -> list[Hazard]:
    kind: Any = type(value)
    name = kind.__qualname__
    if kind.__eq__ is not object.__eq__:
        text = f"a {name} can change after jit has compiled for it, and the result is stale then; freeze it"
        return [Hazard(path, value, "mutable", text)] if _can_change(value) else []
    # A class with another way of making instances may keep one for each value, as PartitionSpec and Mesh do.
    is_one_each = kind.__new__ is object.__new__ and type(kind).__call__ is type.__call__
    if not is_one_each or (kind.__module__.partition(".")[0] in _LIBRARIES - {"builtins"} and not vars(value)):
        return []
    text = f"{name} has no __eq__, so one made again traces again; give it one, or make it once"
    return [Hazard(path, value, "identity", text)]


def _can_change(value: Any) -> bool:
    """Whether the public attributes of an object can be assigned."""
    kind: Any = type(value)
    if isinstance(value, (*_FINE, *_CONTAINERS)) or callable(value) or is_node(value):
        return False
    if dataclasses.is_dataclass(kind):
        return not getattr(kind, "__dataclass_params__").frozen  # noqa: B009  untyped
    public_names = [name for name in getattr(value, "__dict__", {}) if not name.startswith("_")]
    is_own = kind.__module__.partition(".")[0] not in _LIBRARIES and kind.__setattr__ is object.__setattr__
    return is_own and bool(public_names)


def _holds_array(value: Any, depth: int) -> bool:
    if isinstance(value, _ARRAYS) or not depth:
        return isinstance(value, _ARRAYS)
    if isinstance(value, types.FunctionType):
        inside = captured(value)
    else:
        inside = _parts_of_partial(value) if isinstance(value, functools.partial) else dict(parts_of(value) or {})
    return any(_holds_array(part, depth - 1) for part in inside.values())
