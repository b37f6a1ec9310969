"""Exact keys: when two static values are the same.

`==` is too coarse for a compiled program: `1 == True == 1.0` and `0.0 == -0.0`, yet each traces to a different program.
It is also too fine: `nan != nan`, and an optimiser that is built twice does not equal itself. An exact key is equal for
two values only if no program can tell them apart.

`comparison.py` decides how each value is compared; a key is a fold over these decisions. It is computed once, when a
node is created. The same walk raises if a static reaches a node with arrays.

Keys ignore class attributes: a program that assigns to one, or to a global that a method reads, is not protected.
"""

import dataclasses
import functools
import types
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from treewright._base.functions import BY_VALUE, C_METHOD_TYPES, METHOD_TYPES, instance_attributes, is_installed
from treewright._base.text import is_node_class
from treewright._core.comparison import Comparison, IdentityKey, Owner, Parts, Scope, Unchanged, comparison_of

_DATA = Scope()
_FUNCTIONS = frozenset({types.FunctionType, functools.partial, types.MethodType})  # can't change by assignments
_APART = frozenset({"member", "static", "annotation"})  # roles of parts with separate keys, as their order varies

Decided = tuple[Any, Comparison, Scope]  # a value, how it is compared, and where it is found


class _CanChangeError(Exception):
    """Instead of the key of a value inside a function: a part that can change."""

    def __init__(self, decided: Decided) -> None:
        self.decided = decided


def exact_key(value: object) -> Hashable:
    """A key that is equal for two values exactly if `jit` may share one trace between them.

    Raises:
        NoExactKeyError: If the value, or one inside it, is mutable, an array, a tracer, or not hashable.
    """
    return key_in(value, _DATA)


def identity_key(value: Any) -> Hashable:
    """A key for the object itself; for a method, which is created at each access, its function and instance."""
    if isinstance(value, METHOD_TYPES):
        return ("identity", IdentityKey(value.__func__), IdentityKey(value.__self__))
    return ("identity", value if type(value) in C_METHOD_TYPES else IdentityKey(value))  # their == compares identities


def compared_by_itself(value: object, key: Any) -> bool:
    """Whether `type` and `==` are already exact for this value."""
    return len(key) == 2 and key[0] is type(value) and key[1] is value


def key_in(value: Any, scope: Scope) -> Hashable:
    """The exact key of a value in a scope.

    Raises:
        NoExactKeyError: If it can't be static. Inside a function, the function is compared by identity instead.
        ArraysReachedError: If it reaches a node with arrays, also inside a function.
    """
    cls = type(value)
    if cls in BY_VALUE or (cls is float and value and value == value):  # noqa: PLR0124
        return (cls, value)
    visited = scope.visited
    if visited is not None and id(value) in visited:
        return visited[id(value)][0]
    how = comparison_of(value, scope)
    if how.is_callable:
        if visited is None:
            return _key_of_callable(value, how, scope)
        visited[id(value)] = len(visited), value
    if how.by == "author" and not how.parts:
        _check((value, how, scope))
    if how.by != "identity":
        return _key_of_parts(how, scope) if how.parts else how.own
    if how.problem is not None:
        raise how.problem()
    if how.reason and visited is not None:
        raise _CanChangeError((value, how, scope))
    if how.reason or how.parts:
        _check((value, how, scope))
    return identity_key(value)


def _key_of_callable(value: Any, how: Comparison, scope: Scope) -> Hashable:
    """The key of a function, partial or method by its parts; by identity if one of them can change.

    Because of cycles, an object that is entered again is represented by the number of its first visit.
    """
    if how.reason and not how.parts:
        return identity_key(value)
    known: list[Decided] = [(value, how, scope)]
    if not how.reason:
        try:
            return _key_of_parts(how, Scope(scope.owner, {id(value): (0, value)}, scope.doubts))
        except _CanChangeError as error:
            known.append(error.decided)
        except RecursionError:  # nested deeper than Python's own stack
            pass
    _check(*known)
    return identity_key(value)


def _key_of_parts(how: Comparison, scope: Scope) -> Hashable:
    """The own part of a comparison, and the keys of the parts with their roles and names."""
    inner: Scope | None = scope if how.owner is scope.owner else None
    keys: list[Any] = [*how.own]
    for role, parts in how.parts:
        keys.append(role)
        values = parts
        if type(parts) is dict:
            keys += parts
            values = parts.values()
        elif role in _APART:
            apart = Scope(_owner_of(role, how), None if scope.visited is None else {}, scope.doubts)
            separate = [key_in(part, apart) for part in parts]
            keys.append(frozenset(separate) if role == "member" else tuple(separate))
            continue
        for part in values:
            cls = type(part)
            if cls in BY_VALUE:
                keys.append((cls, part))
            else:
                inner = inner or Scope(how.owner, scope.visited, scope.doubts)
                keys.append(key_in(part, inner))
    return tuple(keys)


# What a static reaches, by whatever route and however it is compared


def within(value: Any, scope: Scope, *known: Decided, skip: Callable[[Any], bool] | None = None) -> Iterator[Decided]:
    """The value and all that it reaches, each once, with its comparison and scope.

    The walk enters the parts, captured variables, defaults and instances, and the fields of frozen dataclasses.
    """
    decisions = {id(each): how for each, how, _ in known}
    seen: dict[int, Any] = {}
    queue = [(value, scope)]
    for each, where in queue:  # It grows.
        if id(each) in seen or (skip is not None and skip(each)):
            continue
        seen[id(each)] = each
        how = decisions.get(id(each)) or comparison_of(each, where)
        yield each, how, where
        for role, parts in how.parts or _uncompared_fields(each, how):
            inner = Scope(_owner_of(role, how), {}, scope.doubts)
            queue += [(part, inner) for part in _values(parts) if type(part) not in BY_VALUE]


def _values(parts: Any) -> Iterable[Any]:
    return parts.values() if isinstance(parts, dict) else parts


def _owner_of(role: str, how: Comparison) -> Owner:
    """The owner of the parts of a role. A list in an annotation is no constant of a program."""
    return "package" if role == "annotation" else "user" if role == "uncompared" else how.owner


def _uncompared_fields(value: Any, how: Comparison) -> Parts:
    """The fields of a user's frozen dataclass that is compared by identity, or by its author's `==`."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    if how.by in {"value", "parts"} or how.problem or not getattr(parameters, "frozen", False):
        return ()
    return () if is_installed(type(value).__module__) else (("uncompared", instance_attributes(value)),)


def _check(*known: Decided) -> None:
    """Raise if the first value reaches a node with arrays. Note what can change below it.

    The others are parts of it. Most functions have no other parts.
    """
    value, _, scope = known[0]
    decided = {id(each) for each, _, _ in known}
    groups = [parts for each, how, _ in known for _, parts in how.parts or _uncompared_fields(each, how)]
    is_all = all(type(part) in BY_VALUE or id(part) in decided for parts in groups for part in _values(parts))
    for part, how, where in known if is_all else within(value, scope, *known):
        if how.problem is not None:
            raise how.problem()
        if scope.doubts is not None and how.by in {"author", "identity"} and type(part) not in _FUNCTIONS:
            scope.doubts.append((part, where.owner))


def how_compared(value: Any) -> Comparison:
    """How nodes compare a static: by identity if a part of a function, partial or method can change."""
    how = comparison_of(value, _DATA)
    if how.is_callable and not how.reason:
        for _, each, _ in within(value, _DATA, (value, how, _DATA)):
            if each.reason:
                return dataclasses.replace(how, by="identity", reason=each.reason)
    return how


def watched_below(value: Any, key: Hashable) -> list[Unchanged] | None:
    """The containers that must be unchanged for an object to have the same key again; None if functions may change."""
    if isinstance(key, tuple) and key[0] == "identity":
        return []
    watched: list[Unchanged] = []
    for part, how, _ in within(value, _DATA):
        is_users = type(part) is types.FunctionType and how.by == "parts" and how.owner != "library"
        if is_users or how.by == "author":
            return None
        watched += [each for each in how.own if isinstance(each, Unchanged)]
    return watched


def reaches(function: Any, node: Any) -> bool:
    """Whether a function, partial or method reaches this node, which is being built."""

    def is_other_node(value: Any) -> bool:
        return is_node_class(type(value)) and value is not node

    return any(value is node for value, _, _ in within(function, Scope("user"), skip=is_other_node))
