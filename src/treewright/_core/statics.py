"""The statics of an instance: one interned object for each combination of values, compared by identity.

It is the `aux_data` of the node. `jit` compares it on every call. Because equality is identity, the comparison runs no
Python code.
"""

import collections
import dataclasses
import enum
import functools
import operator
import threading
import types
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Self

import numpy as np

from treewright._base.functions import CONSTANTS, import_path, library_of
from treewright._base.jax_private import GetAttrKey
from treewright._base.text import text
from treewright._core.comparison import Holder, Unchanged
from treewright._core.keys import Doubts, compared_by_itself, equal_keys, exact_key, identity_key, watched_below
from treewright._core.pickles import portable
from treewright._core.rules import first_text
from treewright._core.rules.statics import CHANGING, NoExactKeyError, nested_too_deeply, static_field_error, unreadable
from treewright.errors import StaticFieldError, StaticWarning, warn_user

MAX_KEPT = 64  # statics of one class that are kept without a node
_MAX_LENGTH = 1000  # of a string or tuple in them, and bits of an int
MAX_CHECKED_NODES = 64  # Checking all nodes of a class makes those with 8 children 20 % slower to create.


@dataclasses.dataclass(eq=False, repr=False)
class Statics:
    """All static values of a node, interned: two `Statics` are equal exactly if they are the same object.

    Attributes:
        table: The table that contains them.
        values: The values in the order of the fields.
        keys: Their exact keys.
        watched: What must be unchanged in each value when the same objects come again; None if that can't be known.
    """

    __slots__ = ("__weakref__", "keys", "table", "values", "watched")
    table: "StaticTable"
    values: tuple[Any, ...]
    keys: tuple[Hashable, ...]
    watched: Sequence[list[Unchanged] | None]

    def __repr__(self) -> str:
        """The fields and values, which JAX prints in its messages.

        Two lambdas of one line have one text, so a text that is not the whole value ends with a number for its key.
        """
        parts = []
        for name, value, key in zip(self.table.names, self.values, self.keys, strict=True):
            shown = text(value, with_module=True)
            mark = f" #{hash(str(hash(key))) & 0xFFFF:04x}" if "<" in shown and type(value) is not str else ""
            parts.append(f"{name}={shown}{mark}")
        return ", ".join(parts)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Statics":
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        cls, names = self.table.owner.__qualname__, self.table.names
        values = [portable(value, f"{cls}.{name}") for name, value in zip(names, self.values, strict=True)]
        return (interned, (self.table, names, tuple(values)))


class _Entry(weakref.ref[Statics]):
    """A weak reference to statics that equals another one with the same keys, while both are alive."""

    __slots__ = ("hash",)
    hash: int

    def __new__(cls, statics: Statics, callback: Callable[[Any], Any]) -> Self:
        entry = super().__new__(cls, statics, callback)
        entry.hash = hash(statics.keys)
        return entry

    def __eq__(self, other: object) -> bool:
        ours, theirs = self(), other() if isinstance(other, _Entry) else None
        return self is other or (ours is not None and theirs is not None and equal_keys(ours.keys, theirs.keys))

    def __hash__(self) -> int:
        return self.hash


@dataclasses.dataclass(eq=False, repr=False)
class StaticTable:
    """Weak references to the statics of one class that are in use.

    `in_use` finds them by their keys, `known` without computing a key:

        Net(x, "relu")   # in `known`, as (str, "relu"): type and `==` are exact. The generated `__init__` reads it.
        Net(x, adam)     # by its key: its parts are many
        Net(x, adam)     # by its key; the same object came twice, so `known` has its id now, and what must not change
        Net(x, adam)     # in `known`, if what must not change has not

    Without an equal node, a node would build the key of its statics again, in ten times as long (benchmarks: node). So
    the last statics that contain only constants are kept alive; those with an object of the user's live as long as
    their nodes.
    """

    owner: type[Any]
    names: tuple[str, ...]
    identity: tuple[bool, ...]  # for each static, whether it is compared by identity
    children: tuple[str, ...]  # the other fields of the class

    def __post_init__(self) -> None:
        self.keys: tuple[Any, ...] = tuple(map(GetAttrKey, self.children))
        self.to_check = MAX_CHECKED_NODES  # how many more nodes of the class are checked closely
        self.warned: set[str] = set()  # children with a warning: one for each field
        self.known: dict[Any, Callable[[], Statics | None]] = {}
        self.in_use: dict[_Entry, _Entry] = {}
        self._kept: collections.deque[Statics] = collections.deque(maxlen=MAX_KEPT)
        self._doubted: weakref.WeakSet[type[Any]] = weakref.WeakSet()  # classes of values with a warning
        # Reentrant, because the garbage collector or a user's `__eq__` may run while it is locked.
        self._lock = threading.RLock()
        self.empty: Statics | None = None if self.names else self.intern_by_key(())

    def __reduce__(self) -> tuple[Any, ...]:
        return (table_of, (self.owner, self.names, self.identity, self.children))

    def intern(self, values: tuple[Any, ...]) -> Statics:
        """The unique `Statics` for these values, in the order of the fields. The generated `__init__` inlines this."""
        try:
            statics = self.known.get((*map(type, values), *values), types.NoneType)()
        except Exception:  # noqa: BLE001  a user's __hash__; intern_by_key reports it with class and field
            statics = None
        return self.intern_by_key(values) if statics is None else statics

    def intern_by_key(self, values: tuple[Any, ...]) -> Statics:
        """The unique `Statics` for values that `known` does not have by value: by their ids, or by their keys."""
        by_id = tuple(map(id, values))
        same = self.known.get(by_id, types.NoneType)()
        if same is not None and all(
            each is not None and all(map(Unchanged.is_unchanged, each)) for each in same.watched
        ):
            return same
        keys = self._keys_of(values)
        new = Statics(self, values, keys, ())
        entry = _Entry(new, self._forget)
        statics = None
        with self._lock:
            while statics is None:  # Another thread may free equal statics at this moment.
                statics = self.in_use.setdefault(entry, entry)()
            if statics is new:
                is_constant = all(map(_is_constant, values))
                if is_constant:
                    self._kept.append(statics)
                if all(map(_can_find_by_value, values, keys)):
                    self._remember((*map(type, values), *values), statics)
                elif is_constant:
                    self._remember(by_id, statics)
            elif by_id not in self.known and all(map(operator.is_, values, statics.values)):
                statics.watched = list(map(watched_below, values, keys))
                self._remember(by_id, statics)
        return statics

    def _forget(self, entry: _Entry) -> None:
        self.in_use.pop(entry, None)

    def _keys_of(self, values: tuple[Any, ...]) -> tuple[Hashable, ...]:
        """The exact key of each value. Warns for each mutable object that may be meant as a constant."""
        keys: list[Hashable] = []
        problems: dict[str, NoExactKeyError] = {}
        for name, value, by_identity in zip(self.names, values, self.identity, strict=True):
            doubts: Doubts = []
            try:
                keys.append(identity_key(value) if by_identity else exact_key(value, doubts))
            except NoExactKeyError as problem:
                problems[name] = problem
            except RecursionError:
                problems[name] = NoExactKeyError(value, nested_too_deeply)
            except Exception as error:  # a user's `__getattribute__` or property
                raise StaticFieldError(unreadable(self.owner, name, error)) from error
            while doubts and not problems:
                self._doubt(name, value, *doubts.pop())
        if problems:
            raise static_field_error(self.owner, dict(zip(self.names, values, strict=True)), problems)
        return tuple(keys)

    def _doubt(self, name: str, value: Any, changing: Any, holder: Holder) -> None:
        """Warn about a mutable object that may be meant as a constant, once for each class."""
        cls = type(changing)
        problem = None if cls in self._doubted else first_text(CHANGING, self.owner, name, value, changing, holder)
        if problem is not None:
            warn_user(problem, StaticWarning)
            self._doubted.add(cls)  # not if the warning was an error, which must come again

    def _remember(self, key: Hashable, statics: Statics) -> None:
        """Add an entry to `known` that lives as long as the statics, and keeps none of their values alive."""
        self.known[key] = weakref.ref(statics, functools.partial(self.known.pop, key))


def _can_find_by_value(value: Any, key: Any) -> bool:
    """Whether a value can replace its exact key in `known`.

    Its hash and `==` must be exact or by identity. And it must not refer to a node, because it would keep the node
    alive, and so the table's entry. Importable values live forever anyway.
    """
    cls: Any = type(value)
    if key[0] != "identity":
        return (cls in CONSTANTS or issubclass(cls, enum.Enum)) and compared_by_itself(value, key)
    is_exact = cls.__eq__ is object.__eq__ and cls.__hash__ is object.__hash__
    return is_exact and callable(value) and import_path(value) is not None


def _is_constant(value: Any, room: int = _MAX_LENGTH) -> bool:
    """Whether a value is small, can't change and holds nothing of the user's: a number, or a library's function."""
    cls = type(value)
    if cls is str or cls is bytes:
        return len(value) <= room
    if cls is int:
        return bool(value.bit_length() <= _MAX_LENGTH)
    if cls is tuple:  # whose parts share the room
        return len(value) <= room and all(_is_constant(part, room // (len(value) + 1)) for part in value)
    return cls in CONSTANTS or (isinstance(value, np.dtype) and value.isbuiltin == 1) or library_of(value) != ""


# Pickles


def table_of(
    owner: type[Any], names: tuple[str, ...], identity: tuple[bool, ...], children: tuple[str, ...]
) -> StaticTable:
    """The table of a class; a new one while `cloudpickle` rebuilds the class, which has no `NodeInfo` yet."""
    info: Any = getattr(owner, "__node_info__", None)
    if info is None or ({*info.table.names}, {*info.table.children}) != ({*names}, {*children}):
        return StaticTable(owner, names, identity, children)
    table: StaticTable = info.table
    return table


def interned(table: StaticTable, names: tuple[str, ...], values: tuple[Any, ...]) -> Statics:
    """The statics of a class with these values, by name."""
    by_name = dict(zip(names, values, strict=True))
    return table.intern_by_key(tuple(by_name[name] for name in table.names))
