"""The statics of an instance: one interned object for each combination of values, compared by identity.

It is the `aux_data` of the node. `jit` compares it on every call; since equality is identity, that runs no Python code,
neither ours nor that of a static value.
"""

import enum
import importlib
import operator
import threading
import types
import weakref
from collections.abc import Hashable
from typing import Any, cast

import numpy as np

from treewright._nodes.classes import class_of, import_path, own_annotations
from treewright._nodes.exact import NoExactKeyError, compared_by_itself, exact_key
from treewright._nodes.representation import text
from treewright.errors import StaticFieldError

_WeakTable = dict[Hashable, "weakref.ref[Statics]"]


class Statics:
    """All static values of a node. Interned: two are equal exactly when they are one object."""

    __slots__ = ("__weakref__", "table", "values")

    def __init__(self, table: "StaticTable", values: tuple[Any, ...]) -> None:
        self.table: StaticTable = table
        self.values: tuple[Any, ...] = values

    def __repr__(self) -> str:
        """The names of the fields: JAX prints this in its own messages."""
        pairs = zip(self.table.names, self.values, strict=True)
        return ", ".join(f"{name}={text(value, with_module=True)}" for name, value in pairs)

    def __copy__(self) -> "Statics":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Statics":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (interned, (self.table, self.table.names, tuple(map(_by_name, self.values))))


class StaticTable:
    """The statics of one class that are in use, held weakly.

    `known` finds most of them without computing a key: it maps `(*types, *values)` to a weak reference, for
    combinations in which type and `==` are exact. The generated `__init__` reads it directly.
    """

    __slots__ = ("_by_key", "_lock", "content", "empty", "known", "names", "owner")

    def __init__(self, owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...]) -> None:
        self.owner: type[Any] = owner
        self.names: tuple[str, ...] = names
        self.content: tuple[bool, ...] = content
        self.known: _WeakTable = {}
        self._by_key: _WeakTable = {}
        # Taken to add and to forget, never to find. Reentrant, since the garbage collector may run while it is held.
        self._lock = threading.RLock()
        self.empty: Statics | None = None if names else self.intern(())

    def __reduce__(self) -> tuple[Any, ...]:
        return (table_of, (self.owner, self.names, self.content))

    def __len__(self) -> int:
        """How many combinations are in use."""
        return len(self._by_key)

    def find(self, values: tuple[Any, ...]) -> Statics:
        """`intern`, by the short way where there is one: what the generated `__init__` does in its own text."""
        try:
            found = self.known[*map(type, values), *values]()
        except (KeyError, TypeError):
            found = None
        return self.intern(values) if found is None else found

    def intern(self, values: tuple[Any, ...]) -> Statics:
        """The one object for these values, which are in the order of the fields.

        Raises:
            StaticFieldError: If a value has no exact key; nothing is stored then.
        """
        keys = tuple(map(self._key, self.names, values, self.content))
        reference = self._by_key.get(keys)
        found = None if reference is None else reference()
        if found is not None:
            return found
        with self._lock:
            reference = self._by_key.get(keys)
            found = None if reference is None else reference()
            if found is None:
                found = Statics(self, values)
                self._remember(self._by_key, keys, found)
                if all(map(_found_by_value, values, keys)):
                    self._remember(self.known, (*map(type, values), *values), found)
        return found

    def _remember(self, table: "_WeakTable", key: Hashable, statics: Statics) -> None:
        def forget(reference: "weakref.ref[Statics]") -> None:
            with self._lock:
                if table.get(key) is reference:
                    del table[key]

        table[key] = weakref.ref(statics, forget)

    def _key(self, name: str, value: object, content: bool) -> Hashable:  # noqa: FBT001  mapped over columns
        try:
            return exact_key(value, content=content)
        except NoExactKeyError as problem:
            raise StaticFieldError(
                f"{self.owner.__qualname__}.{name} is static but holds {problem.found}. {problem.consequence} Make "
                f"{name} a child (drop static()), give it a hashable form such as a tuple, by hand or with "
                f"static(converter=treewright.freeze), or wrap it in a class with __hash__ and __eq__."
            ) from None


class _Named:
    """A value that a pickle holds by its import path, as pickle holds functions."""

    def __init__(self, module: str, name: str) -> None:
        self.path = (module, name)

    def __reduce__(self) -> tuple[Any, ...]:
        return (imported, self.path)


def _by_name(value: Any) -> Any:
    """Jitted functions such as `jnp.tanh` can't be pickled themselves, but most can be found again."""
    path = import_path(value) if callable(value) else None
    if path is None or isinstance(value, type | types.FunctionType) or path[0] == "__main__":
        return value
    return _Named(*path)


_INERT = frozenset({str, int, bool, bytes, float, complex, types.NoneType, types.EllipsisType})


def _found_by_value(value: Any, key: Hashable) -> bool:
    """Whether a value can stand for its exact key in `known`.

    Its `==` must be exact, or identity, and it must not refer to a node: a value that did would keep the node alive,
    and with it the entry of the table. What a module holds lives on anyway.
    """
    kind = class_of(value)
    if kind in _INERT or issubclass(kind, np.dtype | enum.Enum):
        return compared_by_itself(value, key)
    return kind.__eq__ is cast("Any", object).__eq__ and callable(value) and import_path(value) is not None


def imported(module: str, name: str) -> Any:
    """The value at an import path."""
    return operator.attrgetter(name)(importlib.import_module(module))


def table_of(owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...]) -> StaticTable:
    """The table of a class; a new one for a class that `cloudpickle` is just bringing, whose spec is still to come."""
    spec: Any = vars(owner).get("__node_spec__")
    if spec is None or (spec.table.names != names and not own_annotations(owner)):  # a Module begins without them
        return StaticTable(owner, names, content)
    table: StaticTable = spec.table
    return table


def interned(table: StaticTable, names: tuple[str, ...], values: tuple[Any, ...]) -> Statics:
    """The statics of a class with these values, by name: how pickles come back.

    Raises:
        TypeError: If the class has other static fields today than when it was pickled.
    """
    if set(names) != set(table.names):
        raise TypeError(
            f"The pickle holds the static fields {', '.join(names) or 'none'} of {table.owner.__qualname__}, which now "
            f"has {', '.join(table.names) or 'none'}. It was written by another version of the class."
        )
    by_name = dict(zip(names, values, strict=True))
    return table.intern(tuple(by_name[name] for name in table.names))
