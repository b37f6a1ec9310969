"""Hashable, immutable forms of lists, dicts, sets and numpy arrays, for static fields."""

import zlib
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Generic, SupportsIndex, TypeVar, cast

import numpy as np

from treewright._values.exact import ExactKeys
from treewright._values.plain import is_frozen_mapping, mapping, problem_of
from treewright._values.reach import class_of, is_library

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)


class FrozenMapping(Mapping[K, V_co], Generic[K, V_co]):
    """A dict that can't change, so that it can be static. Made by `freeze`.

    Order is part of it: `==` is that of mappings, but two statics are the same only when the order is the same, since
    a program can read it.

    Examples:
        >>> sizes = freeze({"hidden": [64, 64]})
        >>> sizes["hidden"]
        (64, 64)
    """

    __slots__ = ("_items",)
    _items: dict[K, V_co]

    def __init__(self, items: Mapping[K, V_co]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FrozenMapping can't change: {name} was to be set to {value!r}. Make a new one.")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"FrozenMapping can't change: {name} was to be deleted. Make a new one.")

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMapping({self._items!r})"

    def __reduce__(self) -> tuple[type, tuple[dict[K, V_co]]]:
        return (FrozenMapping, (self._items,))

    def _exact_key_(self, keys: ExactKeys) -> Hashable:
        return mapping(self, keys.key)


class FrozenArray(np.ndarray[Any, Any]):
    """A numpy array whose data can't change, so that it can be static. Made by `freeze`.

    It computes like any numpy array, `==` is elementwise, and `hash` is that of its dtype, shape and bytes. As a static
    it becomes a constant of the compiled program; two are the same static when dtype, shape and bytes are. What is
    computed from it is an array of its own, and not a static until it is frozen again.

    Examples:
        >>> import numpy as np
        >>> table = freeze(np.array([1.0, 2.0]))
        >>> table.flags.writeable
        False
    """

    def __hash__(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # numpy's can change
        return hash(self._content())

    def __reduce__(self) -> tuple[Any, ...]:
        if self.flags.writeable:
            return (_as_result, (np.array(self),))
        return (_frozen_array, (self.dtype, self.shape, self.tobytes()))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return self.__reduce__()

    def __copy__(self) -> "FrozenArray":
        return self.copy() if self.flags.writeable else self

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> "FrozenArray":
        return self.__copy__()

    def _label(self) -> str:
        """For representations: what tells two frozen arrays of one shape apart."""
        if self.flags.writeable:
            return "(numpy)"
        return f"(frozen {self.tolist()})" if self.size <= 8 else f"(frozen #{zlib.crc32(self.tobytes()):08x})"

    def _content(self) -> tuple[Any, ...]:
        if self.flags.writeable:
            raise problem_of(np.asarray(self))
        return (self.dtype, self.shape, self.tobytes())

    def _exact_key_(self, keys: ExactKeys) -> Hashable:
        dtype, *content = self._content()
        return (FrozenArray, keys.key(dtype), *content)


_FROZEN: tuple[tuple[type[Any], Any], ...] = ((list, tuple), (set, frozenset), (frozenset, frozenset))


def freeze(value: Any) -> Any:
    """A hashable form of `value` that can't change: `static(converter=treewright.freeze)`.

    Lists become tuples, dicts `FrozenMapping`s, sets frozensets, bytearrays bytes and numpy arrays read-only
    `FrozenArray`s, all the way down. Anything else is returned as it is.

    Examples:
        >>> freeze({"sizes": [64, 64], "names": {"a"}})
        FrozenMapping({'sizes': (64, 64), 'names': frozenset({'a'})})
    """
    kind = class_of(value)
    if kind is np.ndarray or kind is FrozenArray:  # no masked arrays and the like: they hold more than their data
        array: Any = value
        frozen = kind is FrozenArray and not array.flags.writeable
        return array if frozen or array.dtype.hasobject else _frozen_array(array.dtype, array.shape, array.tobytes())
    if hasattr(kind, "_fields") and issubclass(kind, tuple):
        return cast("Any", kind)(*map(freeze, value))
    if kind is tuple:
        return tuple(map(freeze, value))
    if issubclass(kind, dict | FrozenMapping):
        return FrozenMapping({key: freeze(item) for key, item in value.items()})
    if is_frozen_mapping(kind) and is_library(kind.__module__):  # such as frozendict
        return kind({key: freeze(item) for key, item in value.items()})
    for mutable, frozen in _FROZEN:
        if issubclass(kind, mutable):
            return frozen(map(freeze, value))
    return bytes(value) if issubclass(kind, bytearray) else value


def _frozen_array(dtype: Any, shape: tuple[int, ...], data: bytes) -> FrozenArray:
    # The buffer is a bytes object, so that the array can't be made writeable; even an empty array has to have one.
    return np.ndarray.__new__(FrozenArray, shape, dtype, data or b"\0")


def _as_result(value: np.ndarray[Any, Any]) -> FrozenArray:
    """What a computation with frozen arrays gave: of their class, and no longer frozen."""
    return value.view(FrozenArray)
