"""The statics of an instance: one interned object for each combination of values, compared by identity.

It is the `aux_data` of the node. `jit` compares it on every call; since equality is identity, that runs no Python code,
neither ours nor that of a static value.
"""

import threading
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from treewright._nodes.exact import NoExactKeyError, compared_by_itself, exact_key
from treewright._nodes.representation import text
from treewright.errors import StaticFieldError


class Statics:
    """All static values of a node. Interned: two are equal exactly when they are one object."""

    __slots__ = ("__weakref__", "table", "values")

    def __init__(self, table: "StaticTable", values: tuple[Any, ...]) -> None:
        self.table = table
        self.values = values

    def __repr__(self) -> str:
        """The names of the fields: JAX prints this in its own messages."""
        pairs = zip(self.table.names, self.values, strict=True)
        return ", ".join(f"{name}={text(value, with_module=True)}" for name, value in pairs)

    def __copy__(self) -> "Statics":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Statics":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (interned, (self.table.owner, self.table.names, self.values))


class StaticTable:
    """The statics of one class that are in use, held weakly.

    `known` finds most of them without computing a key: it maps `(*types, *values)` to a weak reference, for
    combinations in which type and `==` are exact. The generated `__init__` reads it directly.
    """

    __slots__ = ("_by_key", "_by_value", "_lock", "content", "known", "names", "owner")

    def __init__(self, owner: type, names: tuple[str, ...], content: tuple[bool, ...]) -> None:
        self.owner = owner
        self.names = names
        self.content = content
        self._lock = threading.Lock()
        self._by_key: weakref.WeakValueDictionary[Hashable, Statics] = weakref.WeakValueDictionary()
        self._by_value: weakref.WeakValueDictionary[Hashable, Statics] = weakref.WeakValueDictionary()
        self.known: dict[Hashable, Callable[[], Statics | None]] = self._by_value.data

    def __reduce__(self) -> tuple[Any, ...]:
        return (StaticTable, (self.owner, self.names, self.content))

    def __len__(self) -> int:
        """How many combinations are in use."""
        return len(self._by_key)

    def intern(self, values: tuple[Any, ...]) -> Statics:
        """The one object for these values, which are in the order of the fields.

        Raises:
            StaticFieldError: If a value has no exact key; nothing is stored then.
        """
        keys = tuple(map(self._key, self.names, values, self.content))
        found = self._by_key.get(keys)
        if found is not None:
            return found
        with self._lock:
            found = self._by_key.get(keys)
            if found is None:
                found = self._by_key[keys] = Statics(self, values)
                if all(map(compared_by_itself, values, keys)):
                    self._by_value[*map(type, values), *values] = found
        return found

    def _key(self, name: str, value: object, content: bool) -> Hashable:  # noqa: FBT001  mapped over three columns
        try:
            return exact_key(value, content=content)
        except NoExactKeyError as problem:
            raise StaticFieldError(
                f"{self.owner.__qualname__}.{name} is static but holds {problem.found}. {problem.consequence} Make "
                f"{name} a child (drop static()), give it a hashable form such as a tuple, by hand or with "
                f"static(converter=treewright.freeze), or wrap it in a class with __hash__ and __eq__."
            ) from None


def interned(owner: Any, names: tuple[str, ...], values: tuple[Any, ...]) -> Statics:
    """The statics of `owner` with these values, by name: how pickles come back.

    Raises:
        TypeError: If the class has other static fields today than when it was pickled.
    """
    table: StaticTable = owner.__node_spec__.table
    if set(names) != set(table.names):
        raise TypeError(
            f"The pickle holds the static fields {', '.join(names) or 'none'} of {owner.__qualname__}, which now has "
            f"{', '.join(table.names) or 'none'}. It was written by another version of the class."
        )
    by_name = dict(zip(names, values, strict=True))
    return table.intern(tuple(by_name[name] for name in table.names))
