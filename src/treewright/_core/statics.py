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
from collections.abc import Callable, Hashable
from typing import Any, cast

from treewright._core.annotations import own_annotations
from treewright._core.functions import CONSTANTS, class_attribute, class_of, import_path, kept_in_pickles
from treewright._core.keys import NoExactKeyError, by_identity, compared_by_itself, exact_key, problem_of, unanswered
from treewright._core.text import text, text_with_class
from treewright.errors import StaticFieldError

_WeakTable = dict[Hashable, "weakref.ref[Statics]"]
_Keys = tuple[Hashable, ...]


class Statics:
    """All static values of a node. Interned: two are equal exactly when they are one object.

    Attributes:
        table: The table that they stand in.
        values: In the order of the fields.
        keys: The exact key of each value. They live here, and not in the table: a value may refer to its own node.
    """

    __slots__ = ("__weakref__", "keys", "table", "values")

    def __init__(self, table: "StaticTable", values: tuple[Any, ...], keys: _Keys) -> None:
        self.table: StaticTable = table
        self.values: tuple[Any, ...] = values
        self.keys: _Keys = keys

    @property
    def names(self) -> tuple[str, ...]:
        """The fields, in the order of `values`."""
        return self.table.names

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

    The others stand under the hash of their keys. Keys are hashed and compared, which may run code of the user's, while
    no lock is held: an entry goes in only if those that it was compared with are still all that there are.
    """

    __slots__ = ("_buckets", "_lock", "content", "empty", "known", "names", "owner")

    def __init__(self, owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...]) -> None:
        self.owner: type[Any] = owner
        self.names: tuple[str, ...] = names
        self.content: tuple[bool, ...] = content
        self.known: _WeakTable = {}
        self._buckets: dict[int, tuple[weakref.ref[Statics], ...]] = {}
        # Taken to add and to forget, never to find. Reentrant, since the garbage collector may run while it is held.
        self._lock = threading.RLock()
        self.empty: Statics | None = None if names else self.intern(())

    def __reduce__(self) -> tuple[Any, ...]:
        return (table_of, (self.owner, self.names, self.content))

    def __len__(self) -> int:
        """How many combinations are in use."""
        return sum(map(len, list(self._buckets.values())))

    def find(self, values: tuple[Any, ...]) -> Statics:
        """`intern`, by the short way where there is one: what the generated `__init__` does in its own text."""
        try:
            found = self.known[*map(type, values), *values]()
        except Exception:  # noqa: BLE001  a __hash__ of the user's; intern refuses it by class and field
            found = None
        return self.intern(values) if found is None else found

    def intern(self, values: tuple[Any, ...]) -> Statics:
        """The one object for these values, which are in the order of the fields."""
        keys = tuple([self._keyed(*column) for column in zip(self.names, values, self.content, strict=True)])
        place = hash(keys)
        made, by_value = None, False
        compared: tuple[weakref.ref[Statics], ...] = ()
        while True:
            bucket = self._buckets.get(place, ())
            for reference in bucket:
                found = None if any(reference is one for one in compared) else reference()
                if found is not None and self._equal(values, found.keys, keys):
                    return found
            compared = bucket
            if made is None:
                made = Statics(self, values, keys)
                by_value = all(map(_found_by_value, values, keys))
            with self._lock:
                if self._buckets.get(place, ()) is not bucket:  # another thread came first, or one was forgotten
                    continue
                self._buckets[place] = (*bucket, weakref.ref(made, self._forgetting(place)))
                if by_value:
                    self._remember(made)
            return made

    def _keep(self, place: int, references: "list[weakref.ref[Statics]]") -> None:
        if references:
            self._buckets[place] = tuple(references)
        else:
            self._buckets.pop(place, None)

    def _forgetting(self, place: int) -> Callable[["weakref.ref[Statics]"], None]:
        def forget(reference: "weakref.ref[Statics]") -> None:
            with self._lock:
                self._keep(place, [one for one in self._buckets.get(place, ()) if one is not reference])

        return forget

    def _remember(self, statics: Statics) -> None:
        key = (*map(type, statics.values), *statics.values)

        def forget(reference: "weakref.ref[Statics]") -> None:
            with self._lock:
                if self.known.get(key) is reference:
                    del self.known[key]

        self.known[key] = weakref.ref(statics, forget)

    def _keyed(self, name: str, value: object, content: bool) -> Hashable:  # noqa: FBT001
        try:
            return exact_key(value, content=content)
        except NoExactKeyError as problem:
            raise self._refusal(name, value, problem) from None
        except RecursionError:  # nested deeper than Python's own stack
            return by_identity(value)

    def _equal(self, values: tuple[Any, ...], left: _Keys, right: _Keys) -> bool:
        """Whether two combinations are one; the field is named whose `==` fails."""
        for name, value, old, new in zip(self.names, values, left, right, strict=True):
            try:
                if old != new:
                    return False
            except Exception as error:
                raise self._refusal(name, value, unanswered(value, error)) from error
        return True

    def _refusal(self, name: str, value: object, problem: NoExactKeyError) -> StaticFieldError:
        is_whole = problem.found in {problem_of(value).found, text_with_class(value)}
        inside = "" if is_whole else f", inside of {text_with_class(value)}"
        cures = [f"{problem.instead}."] if problem.instead else []
        if self.owner.__module__.partition(".")[0] != "treewright":  # whose fields nobody else declares
            if problem.freezes and (is_whole or isinstance(value, tuple | frozenset)):
                line = f"{name}: ... = static(converter=treewright.freeze)"
                cures = [f"{problem.instead}, or let the field freeze it:\n  {line}"]
            cures.append(f"{'Or make' if cures else 'Make'} {name} a child: drop static().")
        return StaticFieldError(
            "\n".join(
                [f"{self.owner.__qualname__}.{name} is static but holds {problem.found}{inside}.", problem.consequence]
                + (cures or ["Keep it outside, and pass it as an argument."])
            )
        )


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


def _found_by_value(value: Any, key: Hashable) -> bool:
    """Whether a value can stand for its exact key in `known`.

    Its hash and its `==` must be exact, or identity, and it must not refer to a node: a value that did would keep the
    node alive, and with it the entry of the table. What a module holds lives on anyway.
    """
    kind = class_of(value)
    if kind in CONSTANTS or issubclass(kind, enum.Enum):
        return compared_by_itself(value, key)
    identical = all(class_attribute(kind, name) is getattr(object, name) for name in ("__eq__", "__hash__"))
    return identical and callable(value) and import_path(value) is not None


@kept_in_pickles
def imported(module: str, name: str) -> Any:
    """The value at an import path."""
    return operator.attrgetter(name)(importlib.import_module(module))


@kept_in_pickles
def table_of(owner: type[Any], names: tuple[str, ...], content: tuple[bool, ...]) -> StaticTable:
    """The table of a class; a new one for a class that `cloudpickle` is just bringing, whose spec is still to come."""
    table = table_in(owner)
    if table is None or (table.names != names and not own_annotations(owner)):  # a Module begins without them
        return StaticTable(owner, names, content)
    return table


def table_in(owner: type[Any]) -> StaticTable | None:
    """The table of a class that is a node or that `register_dataclass` has registered."""
    spec: Any = getattr(owner, "__node_spec__", None)
    table: StaticTable | None = vars(owner).get("__node_statics__") if spec is None else spec.table
    return table


@kept_in_pickles
def interned(table: StaticTable, names: tuple[str, ...], values: tuple[Any, ...]) -> Statics:
    """The statics of a class with these values, by name: how pickles come back."""
    if set(names) != set(table.names):
        raise TypeError(
            f"The pickle holds the static fields {', '.join(names) or 'none'} of {table.owner.__qualname__}, which now "
            f"has {', '.join(table.names) or 'none'}. It was written by another version of the class."
        )
    by_name = dict(zip(names, values, strict=True))
    return table.intern(tuple(by_name[name] for name in table.names))
