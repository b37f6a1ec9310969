"""Exact keys: when two static values are the same.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to a different program.
It is also too fine: `nan != nan`, and an optimiser that is built twice does not equal itself. An exact key is equal for
two values only if no program can tell them apart.

`comparison.py` decides how each value is compared; a key is a fold over these decisions. It is computed once, when a
node is created. `within` walks over the same decisions, for what a static reaches however it is compared.

Keys ignore class attributes: a program that assigns to one, or to a global that a method reads, is not protected.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from treewright._base.functions import BY_VALUE, C_METHOD_TYPES, METHOD_TYPES, is_library_function
from treewright._base.text import is_node_class
from treewright._core.comparison import Comparison, Holder, IdentityKey, Unchanged, comparison_of

_FUNCTIONS = frozenset({types.FunctionType, functools.partial, types.MethodType})  # can't change by assignments
# Inside a function or the like: the callables entered so far, by `id`, with their numbers. And the keys of all other
# parts. Both keep their values, so that the ids stay in use.
Entered = dict[int, tuple[int, Any]]
Known = dict[tuple[int, Holder], tuple[Hashable, Any]]
Doubts = list[tuple[Any, Holder]]  # values that are not compared by value, and their holders


def exact_key(value: object, doubts: Doubts | None = None) -> Hashable:
    """A key that is equal for two values exactly if `jit` may share one trace between them.

    It adds the values that are not compared by value to `doubts`.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable; or if it
            reaches a node with arrays, also inside a function.
    """
    return _key(value, "field", {}, {}, [] if doubts is None else doubts)


def equal_keys(left: Any, right: Any) -> bool:
    """Whether two keys, or tuples of keys, are equal; False if an author's `==` raises or returns an array."""
    try:
        return bool(left == right)
    except Exception:  # noqa: BLE001  a user's
        return False


def identity_key(value: Any) -> Hashable:
    """A key for the object itself; for a method, which is created at each access, its function and instance."""
    if isinstance(value, METHOD_TYPES):
        return ("identity", IdentityKey(value.__func__), IdentityKey(value.__self__))
    return ("identity", value if type(value) in C_METHOD_TYPES else IdentityKey(value))  # their == compares identities


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` are already exact for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


def _key(value: Any, holder: Holder, entered: Entered, known: Known, doubts: Doubts) -> Hashable:
    """The exact key of a value; None if it can change inside a function, which is then compared by identity.

    Inside a function, partial or method, what is entered again gets the number of its first visit:

        (1, 2.0)                -> (tuple, "item", (int, 1), (float, 2.0))
        partial(f, 1)           -> (partial, Unchanged(...), "function", "func", key of f, "argument", (int, 1))
        partial(f, [1])         -> ("identity", IdentityKey(...)), because the key of [1] is None
        def g(): return g       -> (..., "captured", "g", 0): g is the callable that was entered first
        (v, v)                  -> (tuple, "item", key of v, key of v): v is opened once, however often it is in there
    """
    cls = type(value)
    if cls in BY_VALUE or (cls is float and value and value == value):  # noqa: PLR0124
        return (cls, value)
    return _key_of_object(value, holder, entered, known, doubts)


def _key_of_object(value: Any, holder: Holder, entered: Entered, known: Known, doubts: Doubts) -> Hashable:
    """The key of a value that is more than a plain number or text, and that was not met before."""
    how = comparison_of(value, holder)
    if how.problem is not None:
        raise how.problem()
    if (how.can_change or how.by == "author") and type(value) not in _FUNCTIONS:
        doubts.append((value, holder))
    callables = len(entered)
    if how.may_recur:
        if not callables:
            entered, known = {}, {}
        entered[id(value)] = callables, value
    try:
        key = _key_of_parts(how, entered, known, doubts) if how.parts else how.own
    except RecursionError:  # nested deeper than Python's own stack
        if callables or not how.may_recur:
            raise
        _reject_arrays(value, holder)
        key = None
    if how.by == "identity" or (key is None and not callables):
        return None if how.can_change and callables else identity_key(value)
    return key


def _key_of_parts(how: Comparison, entered: Entered, known: Known, doubts: Doubts) -> Hashable:
    """The own part of a comparison, and the keys of the parts with their roles and names; None if a part can change.

    It enters all parts in any case, because each may reach a node with arrays.
    """
    keys: list[Any] = [*how.own]
    can_change = False
    for role, holder, parts in how.parts:
        if role == "member":  # in any order, so without common numbers
            members = frozenset([_key(part, holder, {0: (0, None)} if entered else {}, {}, doubts) for part in parts])
            can_change = can_change or None in members
            keys.append(members)
            continue
        if role == "uncompared":  # A function that is in a part too must have its key there, not a number.
            apart = Comparison("parts", (), (("item", holder, tuple(parts.values())),))
            _key_of_parts(apart, dict(entered), {}, doubts)
            continue
        keys.append(role)
        values = parts
        if type(parts) is dict:
            values = parts.values()
            if role == "entry":  # whose names can be anything
                values = (*parts, *values)
            else:
                keys += parts
        for part in values:
            cls = type(part)
            if cls in BY_VALUE or (cls is float and part and part == part):  # noqa: PLR0124  as in `_key`, but faster
                keys.append((cls, part))
                continue
            before = entered.get(id(part)) or known.get((id(part), holder))
            if before is None:
                callables = len(entered)
                before = _key_of_object(part, holder, entered, known, doubts), part
                if len(entered) == callables:
                    known[id(part), holder] = before
            can_change = can_change or before[0] is None
            keys.append(before[0])
    return None if can_change else tuple(keys)


def _reject_arrays(value: Any, holder: Holder) -> None:
    """Raise if a value that is nested too deeply for a key reaches a node with arrays."""
    for _, how, _ in within(value, holder):
        if how.problem is not None:
            raise how.problem()


# What a static reaches, by whatever route and however it is compared


def within(
    value: Any, holder: Holder, *, only_compared: bool = False, skip: Callable[[Any], bool] = lambda _: False
) -> Iterator[tuple[Any, Comparison, Holder]]:
    """The value and all that it reaches, or only what is compared, each once, with its comparison and holder.

    The walk enters the parts, captured variables, defaults and instances, and the fields of frozen dataclasses.
    """
    seen: dict[int, Any] = {}
    queue: list[tuple[Any, Holder]] = [(value, holder)]
    for each, where in queue:  # It grows.
        if id(each) in seen or skip(each):
            continue
        seen[id(each)] = each
        how = comparison_of(each, where)
        yield each, how, where
        for role, inner, parts in how.parts:
            if only_compared and role == "uncompared":
                continue
            values = parts if type(parts) is tuple else (*parts, *parts.values()) if role == "entry" else parts.values()
            queue.extend((part, inner) for part in values if type(part) not in BY_VALUE)


def watched_below(value: Any, key: Hashable) -> list[Unchanged] | None:
    """The containers and dataclasses that must be unchanged for an object to have the same key again.

    None if that can't be known: a user's function or an object with its author's `==` may have changed.
    """
    if isinstance(key, tuple) and key[0] == "identity":
        return []
    watched: list[Unchanged] = []
    for part, how, _ in within(value, "field"):
        is_users = type(part) is types.FunctionType and how.by == "parts" and not is_library_function(part)
        if is_users or how.by == "author":
            return None
        watched += [each for each in how.own if isinstance(each, Unchanged)]
        if how.by == "parts" and dataclasses.is_dataclass(part) and not is_node_class(type(part)):
            watched.append(Unchanged(part))  # `object.__setattr__` changes frozen ones too
    return watched


def reaches(function: Any, node: Any) -> bool:
    """Whether a function, partial or method reaches this node, which is being built."""
    walk = within(function, "user", skip=lambda value: is_node_class(type(value)) and value is not node)
    return any(value is node for value, _, _ in walk)
