"""Explain why two similar-looking statics differ: snapshots, nested differences, causes."""

import dataclasses
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from treewright._base.functions import (
    METHOD_TYPES,
    is_generated,
    is_library,
    is_library_function,
    is_standard_class,
)
from treewright._base.jax_private import Path, path_text
from treewright._base.text import short_text
from treewright._contents import PartKey, contents, is_plain, unwrap_api_boundary
from treewright._core import By, Comparison, equal_keys, exact_key, is_node, within
from treewright._reports import first_names
from treewright._trees.difference import ABSENT

_MAX_LEVELS = 100  # levels of a value in its snapshot: Python's stack ends at a few hundred
_MAX_PARTS = 400  # parts of objects that are compared by identity, because these only describe them
_MAX_CHANGED = 16  # changed items of one container that are listed; with more, the whole container is
_MAX_PLACES = 256  # changed places in one value that are listed; with more, as if a part is shared, the whole value is
_MAX_SHOWN = 3  # changes listed in a cause
# Values that need no snapshot, like plain values: they can't change and refer to no arrays.
_CONSTANTS: tuple[Any, ...] = (types.NotImplementedType, type, types.ModuleType, types.BuiltinFunctionType)
_ARRAYS = (jax.Array, np.ndarray)
_CONTAINERS = frozenset({list, dict, set, bytearray})  # the same object may have other contents later
# How a report introduces the parts of a function, by role.
_VERBS = (
    *(("which captured", "captured"), ("which reads the global", "global")),
    *(("with the default", "default"), ("with", "attribute")),
)


class Cause(str):
    """Why two values differ: a sentence, and the name under which a report has the fix."""

    __slots__ = ("name",)
    name: str

    def __new__(cls, name: str, sentence: str) -> Self:
        """A cause with a name from `treewright.retrace.fixes.FIXES`."""
        cause = super().__new__(cls, sentence)
        cause.name = name
        return cause


# Snapshots


_FUNCTION, _SELF = PartKey("object", "__func__"), PartKey("object", "self")


class Code(NamedTuple):
    """The code of a Python function, with its file, which `==` of code ignores."""

    code: types.CodeType
    file: str
    is_library: bool

    @property
    def place(self) -> str:
        """The file and line of the definition: `train.py:12`."""
        return f"{self.file.rpartition('/')[2]}:{self.code.co_firstlineno}"


@dataclasses.dataclass(slots=True, eq=False, repr=False)
class Snapshot:
    """A record of a value that is not plain. It keeps no array, and later changes of the value do not affect it.

    Attributes:
        cls: The class of the value.
        text: The value in one line.
        parts: Snapshots of its `contents`.
        foreign: How `jit` compares it as a static of a foreign class: "value" is its own `==`.
        exact: How nodes compare it as a static.
        can_change: How it can change, so that nodes compare it by identity.
        code: The code of a Python function.
        reference: Returns the value itself while it is alive: a weak reference, or a strong one to a value whose class
            defines `==` and allows no weak reference. None for others, whose `address` identifies them.
    """

    cls: type[Any]
    text: str
    parts: dict[Any, Any]
    foreign: By
    exact: By
    can_change: str
    code: Code | None
    address: int
    reference: Callable[[], Any] | None

    def __repr__(self) -> str:
        return self.text

    @property
    def kept(self) -> Any:
        """The value itself if it is known to be alive, and so its parts; else None. JAX's caches depend on that."""
        return None if self.reference is None else self.reference()

    @property
    def is_alive(self) -> bool:
        return self.kept is not None

    @property
    def inner(self) -> Any:
        """The function that a partial or a decorated function calls; any other value itself."""
        return next((part for key, part in self.parts.items() if getattr(key, "role", "") == "function"), self)


def snapshot(value: Any) -> Any:
    """A snapshot of a value; a plain value itself.

    It has all parts by which `jit` or a node compares the value, and of objects that are compared by identity the first
    ones. So of `(1, Trainer())` it has both items, and a part of the trainer's attributes. Below a hundred levels, a
    part by which a value is compared is the value itself.
    """
    budget = iter(range(_MAX_PARTS))
    visited: dict[int, tuple[Any, Any]] = {}  # id -> the value, to keep the id in use, and its snapshot

    def snapshot_of(value: Any, level: int, *, is_compared: bool) -> Any:
        named = [*contents(value).items()]
        is_lowest = level == _MAX_LEVELS and bool(named)
        if is_plain(type(value)) or (isinstance(value, _CONSTANTS) and not named):
            return value
        if id(value) in visited and not is_lowest:
            return visited[id(value)][1]
        snap = _snapshot_without_parts(value)
        is_compared = is_compared and not snap.foreign == snap.exact == "identity"
        if is_lowest:
            return value if is_compared else snap
        visited[id(value)] = value, ("...", len(visited))  # for a value inside itself
        if not is_compared:
            # One level before the next, so that no part hides its neighbours by its size.
            named = [item for item, _ in zip(named, budget, strict=False)]
        for key, part in named:
            # A global function may in turn read half a program.
            is_global = isinstance(key, PartKey) and key.role == "global" and isinstance(part, types.FunctionType)
            snap.parts[key] = (
                _snapshot_without_parts(part) if is_global else snapshot_of(part, level + 1, is_compared=is_compared)
            )
        visited[id(value)] = value, snap
        return snap

    try:
        return value if isinstance(value, Snapshot) else snapshot_of(value, 0, is_compared=True)
    finally:
        visited.clear()  # `snapshot_of` refers to itself, so it would keep the values alive, and JAX their traces


def class_of(value: Any) -> type[Any]:
    """The class of a value, or of the value that a snapshot was taken from."""
    return value.cls if isinstance(value, Snapshot) else type(value)


def _how_compared(value: Any) -> Comparison:
    """How nodes compare a static: by identity if a part of a function, partial or method can change."""
    decisions = within(value, "field", only_compared=True)
    _, how, _ = next(decisions)
    if how.may_recur and how.by == "parts":
        for _, each, _ in decisions:
            if each.can_change:
                return dataclasses.replace(how, by="identity", can_change=each.can_change)
    return how


def _snapshot_without_parts(value: Any) -> Snapshot:
    cls: Any = type(value)
    is_tuple = isinstance(value, tuple) and cls.__eq__ is tuple.__eq__
    foreign: By = "value"
    is_container = is_tuple or cls in {*_CONTAINERS, frozenset} or is_node(value)
    if cls.__eq__ is object.__eq__ or isinstance(value, _ARRAYS):
        foreign = "identity"
    elif is_container or is_generated(cls.__eq__) or isinstance(value, METHOD_TYPES):
        foreign = "parts"
    function = unwrap_api_boundary(value)
    code: Code | None = None
    if isinstance(function, types.FunctionType):
        code = Code(function.__code__, function.__code__.co_filename, is_library_function(function))
    reference: Callable[[], Any] | None
    try:
        reference = None if cls in _CONTAINERS else weakref.ref(value)
    except TypeError:
        reference = (lambda: value) if foreign == "value" else None
    how = _how_compared(value)
    exact = foreign if how.problem is not None else how.by
    return Snapshot(cls, short_text(value), {}, foreign, exact, how.can_change, code, id(value), reference)


# Differences

Known = dict[tuple[int, int, bool], bool]  # whether two snapshots are one static, by their ids and `exactly`


def one_static(left: Any, right: Any, *, exactly: bool = False, known: Known | None = None) -> bool:
    """Whether `jit` treats two values, or what two snapshots were taken from, as one static.

    By `==`, as statics of foreign classes; or `exactly`, as statics of nodes:

        one_static((1,), (True,))                              # True
        one_static((1,), (True,), exactly=True)                # False
        one_static(optax.sgd(0.1), optax.sgd(0.1))             # False: a tuple of two new functions
        one_static(optax.sgd(0.1), optax.sgd(0.1), exactly=True)  # True

    `known` has the answers for the pairs of snapshots so far, because a shared part occurs many times.
    """
    if left is right:
        return True
    if isinstance(left, Snapshot) and isinstance(right, Snapshot):
        known, pair = {} if known is None else known, (id(left), id(right), exactly)
        if pair not in known:
            known[pair] = _one_static_then(left, right, known, exactly=exactly)
        return known[pair]
    try:
        if exactly:
            return equal_keys(exact_key(left), exact_key(right))
    except Exception:  # noqa: BLE001  no exact key, or nested too deeply
        if type(left) is not type(right):
            return False
    return equal_keys(left, right)  # by their own `==`


def _one_static_then(left: Snapshot, right: Snapshot, known: Known, *, exactly: bool) -> bool:
    """Whether two values were one static when the snapshots were taken."""
    how = left.exact if exactly else left.foreign
    if how == "identity":
        return is_same_object(left, right, known)
    if not exactly and left.cls is right.cls is types.MethodType:
        functions, owners = ([each.parts[key] for each in (left, right)] for key in (_FUNCTION, _SELF))
        return one_static(*functions, known=known) and is_same_object(owners[0], owners[1], known)
    old, new = left.kept, right.kept
    if how == "parts" and (left.parts or old is None or new is None):
        return one_content(left, right, known, exactly=exactly)
    if old is None or new is None:  # One is deleted, and its parts do not show whether they were equal.
        return False
    is_changed = exactly and is_same_object(left, right, known) and not one_content(left, right, known)
    return one_static(old, new, exactly=exactly) and not is_changed


def one_content(left: Any, right: Any, known: Known | None = None, *, exactly: bool = True) -> bool:
    """Whether two snapshots have the same class, code and parts."""
    if not _same_definition(left, right) or left.parts.keys() != right.parts.keys():
        return False
    if exactly and [*left.parts] != [*right.parts]:  # A program can read the order of keywords and items.
        return False
    known = {} if known is None else known
    return all(one_static(left.parts[key], right.parts[key], exactly=exactly, known=known) for key in left.parts)


def _same_definition(left: Any, right: Any) -> bool:
    both = isinstance(left, Snapshot) and isinstance(right, Snapshot)
    return both and left.cls is right.cls and left.code == right.code


def is_same_object(left: Any, right: Any, known: Known | None = None) -> bool:
    """Whether two values, or what two snapshots were taken from, are the same object.

    An object without weak references is identified by its `id`, which may be reused. So the contents must be equal
    too, unless it is a list, a dict or the like, which may have changed.
    """
    if not isinstance(left, Snapshot) or not isinstance(right, Snapshot):
        return left is right
    if left.reference is None or right.reference is None:
        is_same_id = left.cls is right.cls and left.reference is right.reference and left.address == right.address
        return is_same_id and (left.cls in _CONTAINERS or one_content(left, right, known))
    return left.is_alive and left.reference() is right.reference()


class Change(NamedTuple):
    """An innermost difference between two values."""

    path: Path
    left: Any
    right: Any
    is_in_place: bool = False  # in an object that both values have

    def __str__(self) -> str:
        where = f"{path_text(self.path).lstrip('.')}{' (changed in place)' * self.is_in_place}"
        if self.left is ABSENT or self.right is ABSENT:
            side, verb = (self.right, "added") if self.left is ABSENT else (self.left, "removed")
            return f"{where}: {short_text(side)} {verb}"
        old, new = short_text(self.left), short_text(self.right)
        return f"{where}: {f'a different {new}' if old == new else f'{old} -> {new}'}"


def changes(left: Any, right: Any) -> list[Change]:
    """The innermost differences between two values. Those in an object changed in place come last.

    A new object with the same contents is listed only if nothing else differs.
    """
    found = sorted(innermost(left, right), key=lambda change: change.is_in_place)
    return [change for change in found if not _is_bare(change)] or found


class _Search(NamedTuple):
    only_containers: bool
    exactly: bool
    known: dict[tuple[int, int], tuple[Any, Any, list[Change]]]  # by the ids of two values, which stay in use


def innermost(left: Any, right: Any, *, only_containers: bool = False, exactly: bool = True) -> list[Change]:
    """The innermost differences between two values, or of their snapshots; empty if their contents are equal.

        (1, (2, 3)) -> (1, (2, 4))                 [1][1]: 3 -> 4
        Trainer(log) -> Trainer(log), other log    log[0]: 'a' -> 'b'
        Trainer(log), then the same log changed    log[0] (changed in place): 'a' -> 'b'

    With `only_containers`, functions, objects and containers with other keys are not opened. What is compared `exactly`
    is as in `one_static`.
    """
    found = _innermost(left, right, _Search(only_containers, exactly, {}), 0)
    return [] if only_containers and len(found) > _MAX_PLACES else found


def _opened(left: Any, right: Any, *, only_containers: bool) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
    """The parts of two values with the same class and code; empty for what is not opened."""
    if not only_containers:
        return (left.parts, right.parts) if _same_definition(left, right) else ({}, {})
    if class_of(left) is not class_of(right):
        return {}, {}
    ours, theirs = (side.parts if isinstance(side, Snapshot) else contents(side) for side in (left, right))
    is_closed = ours.keys() != theirs.keys() or any(isinstance(key, PartKey) for key in ours)
    is_changed = isinstance(left, Snapshot) and left.is_alive and is_same_object(left, right)
    return ({}, {}) if is_closed or is_changed else (ours, theirs)


def _innermost(
    left: Any, right: Any, search: _Search, level: int, *, explains: bool = False, alive: bool = False
) -> list[Change]:
    """The innermost differences, from one comparison of each pair of parts.

    In a value that is compared by identity, changes in place explain the difference (`explains`). A list is known to be
    the same one if a value around it is `alive`: its id may be reused once its owner is deleted.
    """
    found: list[Change] = []
    ours, theirs = _opened(left, right, only_containers=search.only_containers) if level < _MAX_LEVELS else ({}, {})
    if ours or theirs:
        search.known[id(left), id(right)] = left, right, found
    if isinstance(left, Snapshot):
        explains, alive = explains or left.exact == "identity", alive or left.is_alive
    for key in dict.fromkeys((*ours, *theirs)):
        old, new = ours.get(key, ABSENT), theirs.get(key, ABSENT)
        is_one = isinstance(old, Snapshot) and (alive or old.is_alive) and is_same_object(old, new)
        known = search.known.get((id(old), id(new)))
        if one_static(old, new, exactly=search.exactly) and not (is_one and explains):
            continue
        if known is not None and not search.only_containers:  # A report names it once.
            continue
        inner = _innermost(old, new, search, level + 1, explains=explains, alive=alive) if known is None else known[2]
        if not inner and not is_one:
            inner = [Change((), old, new)]
        found += [Change((key, *path), a, b, is_one or in_place) for path, a, b, in_place in inner]
        if search.only_containers and len({each.path[0] for each in found}) > _MAX_CHANGED:
            found.clear()
            break
        if search.only_containers and len(found) > _MAX_PLACES:
            break
    return found


def _is_bare(change: Change) -> bool:
    """Whether two values that are compared by identity differ in nothing else, as far as their own parts show."""
    old, new = change.left, change.right
    return _same_definition(old, new) and "identity" in {old.foreign, old.exact} and not issubclass(old.cls, _ARRAYS)


def is_recreated(old: Any, new: Any) -> bool:
    """Whether two functions, methods or wrappers, and all that differs in them, differ only in their identity."""
    is_function = isinstance(old, Snapshot) and (old.code is not None or old.inner is not old or _SELF in old.parts)
    return is_function and _same_definition(old, new) and all(map(_is_bare, changes(old, new)))


def _listed(differences: Iterable[Change]) -> str:
    """`f.factor: 1.0 -> 2.0, config['rate'] (changed in place): 1 -> 2`, by path."""
    return first_names(map(str, differences), _MAX_SHOWN)


# The cause


def cause_of(left: Any, right: Any) -> Cause | None:
    """Why two similar-looking values differ; None if their texts show it."""
    old, new = snapshot(left), snapshot(right)
    if any(isinstance(value, Snapshot) and value.inner is not value for value in (old, new)):
        return _of_wrappers(old, new)
    classes = (old, new) if isinstance(old, type) and isinstance(new, type) else (class_of(old), class_of(new))
    if classes[0] is not classes[1]:
        return _of_classes(old, new, *classes)
    if isinstance(old, float | complex | np.inexact) and old != old and new != new:  # noqa: PLR0124  NaN
        return Cause("nan", "NaN does not equal itself")
    if not isinstance(old, Snapshot) or not isinstance(new, Snapshot):
        return None
    if old.code is not None and new.code is not None:
        return _of_functions(old, new, old.code, new.code)
    if _SELF in old.parts and _SELF in new.parts:
        return _of_methods(old, new)
    return _of_objects(old, new)


def _of_classes(old: Any, new: Any, a: type[Any], b: type[Any]) -> Cause | None:
    if (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__):
        text = "its class statement ran twice, as in a notebook cell that runs again, a reloaded module or a function"
        return Cause("redefined class", f"two classes are named {a.__qualname__}: {text}")
    if isinstance(old, type) or short_text(old) != short_text(new):
        return None
    names = [f"{cls.__module__}.{cls.__qualname__}" for cls in (a, b)]
    return Cause("other class", f"same text, but {' -> '.join(names)}")


def _of_wrappers(old: Any, new: Any) -> Cause | None:
    """The cause for partials and for functions returned by `jit`, `grad`, `vmap` and the like."""
    (outer, function), (others, other) = _unwrapped(old), _unwrapped(new)
    is_one = one_static(function, other)
    if not is_one and not is_recreated(function, other):
        listed = _listed(changes(function, other))
        return cause_of(function, other) or (Cause("other attributes", f"these differ: {listed}") if listed else None)
    which = short_text(function) if is_one else "a different function with the same code"
    names, other_names = (list(map(_decorator, wrappers)) for wrappers in (outer, others))
    if names != other_names:
        both = " -> ".join(", ".join(each) or "none" for each in (names, other_names))
        return Cause("other transformations", f"{which} under other transformations: {both}")
    text = f"a new {' of a '.join(names)} of {which}"
    pairs = list(zip(outer, others, strict=True))
    differences = [change for pair in pairs for change in changes(*pair) if change.path[0].role != "function"]
    if not is_one:  # A rule that was created again with its function is no further reason.
        differences = [change for change in differences if not _is_bare(change)]
    if differences:
        is_argument = any(change.path[0].role == "argument" for change in differences)
        return Cause("other arguments" if is_argument else "other options", f"{text}, with {_listed(differences)}")
    if not is_one:
        return cause_of(function, other)
    is_reordered = not all(map(one_content, outer, others))
    return Cause("wrapped again", f"{text}, with keywords in a different order" if is_reordered else text)


def _unwrapped(value: Any) -> tuple[list[Snapshot], Any]:
    """The wrappers around a function, outermost first, and the function."""
    wrappers: list[Snapshot] = []
    while isinstance(value, Snapshot) and value.inner is not value:
        wrappers.append(value)
        value = value.inner
    return wrappers, value


def _decorator(wrapper: Snapshot) -> str:
    """The name of the decorator, such as `vmap`, from the wrapper's code or class."""
    if wrapper.cls.__name__ == "PjitFunction":
        return "jit"
    name = wrapper.cls.__qualname__ if wrapper.code is None else wrapper.code.code.co_qualname
    return name.partition(".")[0].strip("_")


def _of_functions(old: Snapshot, new: Snapshot, before: Code, after: Code) -> Cause | None:
    """The cause for two Python functions.

    def f(x): ...                         two functions, defined at train.py:1 and train.py:9
    lambda x: x * step                    recreated by the same code (train.py:3), which captured step: 1 -> 2
    optax.adam(0.1) and optax.adam(0.2)   recreated by the same code (transform.py:7), which captured step_size: ...
    optax.adam(lambda count: 0.1)         its learning_rate: recreated by the same code (train.py:5), ...
    """
    if before != after:
        text = f"two functions, defined at {' and '.join(dict.fromkeys((before.place, after.place)))}"
        return Cause("other function", text) if before.code.co_qualname == after.code.co_qualname else None
    differences = changes(old, new)
    is_optimiser = "optax" in after.file.replace("\\", "/").split("/")
    inner_cause = _cause_in_user_part(old, new, differences) if after.is_library else ""
    if inner_cause:
        return Cause("recreated optimiser" if is_optimiser else "recreated function", inner_cause)
    about = f"recreated by the same code ({after.place}){_changed_in_function(new, differences)}"
    return Cause(_name_of_optimiser(differences) if is_optimiser else "recreated function", about)


def _changed_in_function(new: Snapshot, differences: list[Change]) -> str:
    if differences:
        by_verb = [(verb, [each for each in differences if each.path[0].role == role]) for verb, role in _VERBS]
        texts = [f"{verb} {_listed(of_verb)}" for verb, of_verb in by_verb if of_verb]
        return f", {' and '.join(texts)}" if texts else ""
    names = ", ".join(key.name for key in new.parts if key.role == "captured")
    return f", which captured equal values for {names}" if names else f", which {new.can_change or 'captures nothing'}"


def _name_of_optimiser(differences: list[Change]) -> str:
    """The name of the cause by the numbers that changed; optax has two names for the learning rate."""
    names = [str(each.path[-1]) for each in differences if type(each.right) in {int, float}]
    if any("learning_rate" in name or "step_size" in name for name in names):
        return "other rate"
    return "other numbers" if names else "recreated optimiser"


def _cause_in_user_part(old: Snapshot, new: Snapshot, differences: Iterable[Change]) -> str:
    """The cause in the first part of a library's function that is the user's function or object; else empty."""
    for change in differences:
        a: Any = old
        b: Any = new
        for key in change.path:
            a, b = (value.parts.get(key) if isinstance(value, Snapshot) else None for value in (a, b))
            cause = cause_of(a, b) if _is_users(a) and _is_users(b) else None
            if cause is not None:
                return f"its {str(key).strip('.')}: {cause}"
    return ""


def _is_users(value: Any) -> bool:
    if not isinstance(value, Snapshot) or is_standard_class(value.cls):
        return isinstance(value, Snapshot) and value.code is not None and not value.code.is_library
    return not is_library(value.cls.__module__)


def _of_methods(old: Snapshot, new: Snapshot) -> Cause | None:
    functions, owners = ([each.parts[key] for each in (old, new)] for key in (_FUNCTION, _SELF))
    if not one_static(*functions, exactly=True):
        return cause_of(*functions)
    if is_same_object(*owners):  # Whatever changed inside it, perhaps by the trace itself, jit does not look at.
        return Cause("method looked up again", "the same method of the same object, looked up again")
    differences = [change for change in changes(*owners) if not _is_bare(change)]
    about = f", with {_listed(differences)}" if differences else ""
    return Cause("other method", f"the same method of a different object{about}")


def _of_objects(old: Snapshot, new: Snapshot) -> Cause | None:
    cls: Any = old.cls
    a, b = old.kept, new.kept
    changed = changes(old, new)
    if changed and is_same_object(old, new) and new.is_alive:
        return Cause("changed in place", f"the same object, changed in place: {_listed(changed)}")
    if old.exact == "author" and a is not None and b is not None and one_static(old, new) and hash(a) != hash(b):
        return Cause("unequal hashes", f"{cls.__qualname__}.__eq__ returns True, but the hashes differ")
    changed = [change for change in changed if not _is_bare(change)]
    # A class with a custom way to create instances may keep one per value.
    is_default_new = cls.__new__ is object.__new__ and type(cls).__call__ is type.__call__
    by_identity = old.foreign == old.exact == "identity"
    if by_identity and is_default_new and not (is_same_object(old, new) or cls.__module__.startswith("jax")):
        nothing = "; these two have equal attributes" if old.parts else ""
        about = f"; these differ: {_listed(changed)}" if changed else nothing
        return Cause("identity", f"{cls.__qualname__} has no __eq__, so instances are compared by identity{about}")
    if old.text != new.text:
        return None
    if changed:
        return Cause("other attributes", f"these differ: {_listed(changed)}")
    return Cause("same text", f"a different {cls.__qualname__} with the same text")
