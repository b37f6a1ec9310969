"""The statics of an instance: one interned object for each combination of values, compared by identity.

It is the `aux_data` of the node. `jit` compares it on every call; since equality is identity, that runs no Python code,
neither ours nor that of a static value.
"""

import enum
import threading
import types
import weakref
from collections.abc import Hashable
from typing import Any

from treewright._core.functions import CONSTANTS, class_attribute, import_path
from treewright._core.jax_private import GetAttrKey
from treewright._core.keys import compared_by_itself, exact_key
from treewright._core.misfits import NoExactKeyError
from treewright._core.pickling import portable
from treewright._core.text import text, text_with_class
from treewright.errors import StaticFieldError


class _Keys:
    """The exact keys of some statics. Only the statics hold it, so the table forgets what nobody uses."""

    __slots__ = ("__weakref__", "hash", "of_values")

    def __init__(self, of_values: tuple[Hashable, ...]) -> None:
        self.of_values = of_values
        self.hash = hash(of_values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Keys) and self.of_values == other.of_values

    def __hash__(self) -> int:
        return self.hash


class Statics:
    """All static values of a node. Interned: two are equal exactly when they are one object.

    Attributes:
        table: The table that they stand in.
        values: In the order of the fields.
    """

    __slots__ = ("__weakref__", "_keys", "table", "values")

    def __init__(self, table: "StaticTable", values: tuple[Any, ...], keys: _Keys) -> None:
        self.table: StaticTable = table
        self.values: tuple[Any, ...] = values
        self._keys = keys

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, in the order of `values`."""
        return self.table.names

    @property
    def keys(self) -> tuple[Hashable, ...]:
        """The exact key of each value."""
        return self._keys.of_values

    def __repr__(self) -> str:
        """The names of the fields: JAX prints this in its own messages."""
        pairs = zip(self.table.names, self.values, strict=True)
        return ", ".join(f"{name}={text(value, with_module=True)}" for name, value in pairs)

    def __copy__(self) -> "Statics":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Statics":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return (interned, (self.table, self.table.names, tuple(map(portable, self.values))))


class StaticTable:
    """The statics of one class that are in use, held weakly.

    `known` finds most of them without computing a key: it maps `(*types, *values)` to a weak reference, for
    combinations in which type and `==` are exact. The generated `__init__` reads it directly.
    """

    __slots__ = ("_lock", "_statics", "children", "content", "empty", "keys", "known", "names", "owner")

    def __init__(
        self, owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...], children: tuple[str, ...]
    ) -> None:
        self.owner: type[Any] = owner
        self.names: tuple[str, ...] = names
        self.content: tuple[bool, ...] = content  # whether a function counts by what it captured
        self.children: tuple[str, ...] = children  # the other fields of the class, when this table was made
        self.keys: tuple[Any, ...] = tuple(map(GetAttrKey, children))
        self.known: dict[Hashable, weakref.ref[Statics]] = {}
        self._statics: weakref.WeakKeyDictionary[_Keys, weakref.ref[Statics]] = weakref.WeakKeyDictionary()
        # Reentrant: the garbage collector, and an `__eq__` of the user's, may run while it is held.
        self._lock = threading.RLock()
        self.empty: Statics | None = None if names else self.intern(())

    def __reduce__(self) -> tuple[Any, ...]:
        return (table_of, (self.owner, self.names, self.content, self.children))

    def __len__(self) -> int:
        """How many combinations are in use."""
        return len(self._statics)

    def find(self, values: tuple[Any, ...]) -> Statics:
        """`intern`, by the short way where there is one: what the generated `__init__` does in its own text."""
        try:
            statics = self.known[*map(type, values), *values]()
        except Exception:  # noqa: BLE001  a __hash__ of the user's; intern refuses it by class and field
            statics = None
        return self.intern(values) if statics is None else statics

    def intern(self, values: tuple[Any, ...]) -> Statics:
        """The one object for these values, which are in the order of the fields."""
        of_values: list[Hashable] = []
        for name, value, content in zip(self.names, values, self.content, strict=True):
            try:
                of_values.append(exact_key(value, content=content))
            except NoExactKeyError as problem:
                raise self._refusal(name, value, problem) from None
        keys = _Keys(tuple(of_values))
        with self._lock:
            reference = self._statics.get(keys)
            statics = None if reference is None else reference()
            if statics is None:
                self._statics.pop(keys, None)  # else an entry of equal keys that is about to go takes this one along
                statics = Statics(self, values, keys)
                self._statics[keys] = weakref.ref(statics)
                if all(map(_found_by_value, values, keys.of_values)):
                    self._remember(statics)
        return statics

    def _remember(self, statics: Statics) -> None:
        key = (*map(type, statics.values), *statics.values)

        def forget(reference: "weakref.ref[Statics]") -> None:
            with self._lock:
                if self.known.get(key) is reference:
                    del self.known[key]

        self.known[key] = weakref.ref(statics, forget)

    def _refusal(self, name: str, value: object, problem: NoExactKeyError) -> StaticFieldError:
        is_whole = problem.value is value
        inside = "" if is_whole else f", inside of {text_with_class(value)}"
        cures = [f"{problem.instead}."] if problem.instead else []
        if self.owner.__module__.partition(".")[0] != "treewright":  # whose fields nobody else declares
            if problem.freezes and (is_whole or isinstance(value, tuple | frozenset)):
                line = f"{name}: ... = static(converter=treewright.freeze)"
                cures = [f"{problem.instead}, or let the field freeze it:\n  {line}"]
            cures.append(f"{'Or make' if cures else 'Make'} {name} a child: drop static().")
        lines = [f"{self.owner.__qualname__}.{name} is static but holds {problem.found}{inside}.", problem.consequence]
        return StaticFieldError("\n".join([*lines, *(cures or ["Keep it outside, and pass it as an argument."])]))


def _found_by_value(value: Any, key: Hashable) -> bool:
    """Whether a value can stand for its exact key in `known`.

    Its hash and its `==` must be exact, or identity, and it must not refer to a node: a value that did would keep the
    node alive, and with it the entry of the table. What a module holds lives on anyway.
    """
    kind = type(value)
    if kind in CONSTANTS or issubclass(kind, enum.Enum):
        return compared_by_itself(value, key)
    identical = kind is types.FunctionType or all(
        class_attribute(kind, name) is getattr(object, name) for name in ("__eq__", "__hash__")
    )
    return identical and callable(value) and import_path(value) is not None


# Pickles


def table_in(owner: type[Any]) -> StaticTable | None:
    """The table of a class that is a node or that `register_dataclass` has registered."""
    spec: Any = getattr(owner, "__node_spec__", None)
    table: StaticTable | None = vars(owner).get("__node_statics__") if spec is None else spec.table
    return table


def table_of(
    owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...], children: tuple[str, ...]
) -> StaticTable:
    """The table of a class; a new one while `cloudpickle` rebuilds the class, whose spec is still to come."""
    table = table_in(owner)
    if table is None or ({*table.names}, {*table.children}) != ({*names}, {*children}):
        return StaticTable(owner, names, content, children)
    return table


def interned(table: StaticTable, names: tuple[str, ...], values: tuple[Any, ...]) -> Statics:
    """The statics of a class with these values, by name."""
    by_name = dict(zip(names, values, strict=True))
    return table.intern(tuple(by_name[name] for name in table.names))
