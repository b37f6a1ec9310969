"""`freeze`: hashable, immutable copies of lists, dicts, sets, numpy arrays and config objects, for static fields."""

# mypy: always-true=TYPE_CHECKING_WITH_PYREFLY
import argparse
import datetime as dt
import functools
import sys
import types
import zlib
from collections.abc import Callable, Hashable, Iterator, Mapping, MutableSequence, MutableSet
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, SupportsIndex, TypeVar, cast, overload

import jax
import numpy as np

from treewright._base.functions import BY_VALUE, PLAIN_ARRAYS, ComputedArray, FrozenValue, public
from treewright._base.text import is_node_class, short_text
from treewright._core import Kind, can_change, kind_of, with_parts

TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False  # pyrefly assumes True, and so does mypy in this file.

K = TypeVar("K")
T = TypeVar("T")
V_co = TypeVar("V_co", covariant=True)
Fixed = TypeVar("Fixed", bound=Hashable)


@public
class FrozenMapping(FrozenValue, Mapping[K, V_co], Generic[K, V_co]):
    """An immutable dict, which can be static. `freeze` creates it.

    Items whose keys are names can also be read as attributes. `==` ignores the order, as for any mapping, but statics
    with different orders are different, because a program can read the order.

    Examples:
        >>> sizes = freeze({"hidden": [64, 64]})
        >>> sizes["hidden"]
        (64, 64)
    """

    __slots__ = ("_items",)
    _items: Mapping[K, V_co]
    _kind_: ClassVar[Kind] = Kind(
        "FrozenMapping", lambda value: tuple(value.items()), make=lambda *items: FrozenMapping(dict(items))
    )

    def __init__(self, items: Mapping[K, V_co]) -> None:
        object.__setattr__(self, "_items", types.MappingProxyType(dict(items)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"can't change {name}: a FrozenMapping is immutable. Create a new one.")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    if not TYPE_CHECKING:  # Otherwise checkers would accept misspelt methods.

        def __getattr__(self, name: str) -> Any:
            """Read an item as an attribute, as in the original namespace or config."""
            if name == "_items":  # not set yet, in an instance that `__new__` created
                raise AttributeError(name)
            if name in self._items:
                return self._items[name]
            names = ", ".join(map(str, self._items)) or "none"
            raise AttributeError(f"This FrozenMapping has no {name!r}, and is immutable. Its items: {names}.")

    def __getitem__(self, key: K) -> V_co:
        return self._items[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Mapping) or self.keys() != other.keys():
            return False
        # As in a dict, a NaN equals itself; `==` of a frozen array and a number is an array.
        pairs = [(value, other[key]) for key, value in self.items()]
        return all(
            a is b or (isinstance(a, FrozenArray) is isinstance(b, FrozenArray) and bool(a == b)) for a, b in pairs
        )

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return f"FrozenMapping({dict(self._items)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMapping, (dict(self._items),))


def frozen_array(dtype: Any, shape: tuple[int, ...], data: bytes) -> "FrozenArray":
    """A frozen array from bytes in C order."""
    # With a bytes object as buffer, the array can't be made writeable. Even an empty array needs one.
    array: FrozenArray = np.ndarray.__new__(FrozenArray, shape, dtype, data or b"\0")
    return array


def _bytes_of(array: Any) -> bytes:
    """The bytes of a frozen array in C order; its buffer if possible, because bytes objects cache their hash."""
    base: Any = array.base
    is_buffer = type(base) is bytes and len(base) == array.nbytes and array.flags.c_contiguous
    data: bytes = base if is_buffer else array.tobytes()
    return data


def _is_whole(array: Any) -> bool:
    """Whether a frozen array is no view of another one."""
    return type(array.base) is bytes


# What numpy broadcasts, as data: numbers and sequences, and for arrays of text or dates the same of theirs.
_DATA = (np.ndarray, np.generic, int, float, complex, list, tuple)
_DATA_OF_TEXTS = (*_DATA, str, bytes, dt.date, dt.timedelta)


@public
class FrozenArray(FrozenValue, np.ndarray[Any, Any]):
    """An immutable numpy array, which can be static. `freeze` creates it.

    It computes like any numpy array. `==` of two frozen arrays is one bool, as for any hashable value: whether dtype,
    shape and bytes are equal. Then they are also the same static. With numbers, sequences and other arrays, and of
    views, it is elementwise, so a tuple with a frozen array can't be compared with a tuple that has a number in its
    place; `numpy.equal` always is. As a static it becomes a constant of the compiled program. Results computed from it
    are ordinary arrays, which must be frozen before they can be static.

    Examples:
        >>> import numpy as np
        >>> table = freeze(np.array([1.0, 2.0]))
        >>> table.flags.writeable
        False
    """

    _kind_: ClassVar[Kind] = Kind("FrozenArray", lambda value: (value.dtype, value.shape, _bytes_of(value)))

    def __new__(cls, *args: object, **kwargs: object) -> Self:  # noqa: ARG004  numpy's signature
        """Raises, because numpy would create a mutable array."""
        raise TypeError("FrozenArray can't be called. Use treewright.freeze(array).")

    def __array_finalize__(self, source: object) -> None:
        # numpy calls this for every array it creates with this class. Only views of a bytes object are immutable.
        base = cast("Any", self).base
        while isinstance(base, np.ndarray):
            base = base.base
        if not isinstance(base, bytes):
            object.__setattr__(self, "__class__", ComputedArray)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"can't change {name}: a FrozenArray is immutable. Create a new one.")

    def __setstate__(self, state: object) -> None:
        raise TypeError("can't set the state of a FrozenArray, which is immutable. Use treewright.freeze(array).")

    def __eq__(self, other: object) -> Any:
        data = _DATA_OF_TEXTS if self.dtype.kind in "SUTMm" else _DATA
        if not isinstance(other, FrozenArray) and _is_whole(self) and not isinstance(other, data):
            return NotImplemented
        if not (isinstance(other, FrozenArray) and _is_whole(self) and _is_whole(other)):
            return super().__eq__(other)  # also of a view, as in `ids[:, None] == ids[None, :]`
        same = (self.dtype, self.shape) == (other.dtype, other.shape) and _bytes_of(self) == _bytes_of(other)
        return np.bool_(same)  # numpy's, for which `.all()` works too

    def __ne__(self, other: object) -> Any:
        return np.logical_not(self == other)

    def __hash__(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # numpy's can change
        return hash((self.dtype, self.shape, _bytes_of(self)))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return (frozen_array, (self.dtype, self.shape, _bytes_of(self)))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> Self:
        return self

    def _label(self) -> str:
        """A label for `repr` that distinguishes frozen arrays with the same shape."""
        return f"(frozen {self.tolist()})" if self.size <= 8 else f"(frozen #{zlib.crc32(self.tobytes()):08x})"


class _AsConverter:
    """A dummy type. In `static(converter=freeze)` checkers use its overload, the first, so the annotation decides."""


# Hidden from ty, which combines the results of all overloads of a converter. Types that a union can't express are Any.
if TYPE_CHECKING and (TYPE_CHECKING_WITH_PYREFLY or sys.version_info.major < 3):

    @overload
    def freeze(value: _AsConverter) -> Any: ...
    @overload
    def freeze(value: list[Any] | tuple[Any, ...]) -> tuple[Any, ...]: ...
    @overload
    def freeze(value: dict[K, Any] | FrozenMapping[K, Any]) -> FrozenMapping[K, Any]: ...
    @overload
    def freeze(value: set[T] | frozenset[T]) -> frozenset[T]: ...
    @overload
    def freeze(value: bytearray) -> bytes: ...
    @overload
    def freeze(value: np.ndarray[Any, Any]) -> FrozenArray: ...
    @overload
    def freeze(value: Fixed) -> Fixed: ...
    @overload
    def freeze(value: Any) -> Any: ...


def freeze(value: Any) -> Any:
    """A hashable, immutable copy of settings: `static(converter=treewright.freeze)`.

    Lists become tuples, sets frozensets, bytearrays bytes and numpy arrays read-only `FrozenArray`s. Dicts and other
    mappings (including OmegaConf configs), `argparse.Namespace` and `types.SimpleNamespace` become `FrozenMapping`s,
    whose items are also attributes. This applies at every depth, also in named tuples and frozen dataclasses. Immutable
    values, such as numbers, strings and functions, are returned unchanged.

    It is not for parameters. To exclude those from training, declare them `buffer()`, or set `optax.set_to_zero()` for
    their leaves, with `optax.partition` and a mask such as `trainable`.

    Raises:
        TypeError: If the value can't be frozen: an object whose attributes can be assigned, a random generator, an
            iterator, an open file, or a numpy array with more than its data. Also for a node with children and a JAX
            array, which are part of the tree, not settings.

    Examples:
        >>> freeze({"sizes": [64, 64], "names": {"a"}})
        FrozenMapping({'sizes': (64, 64), 'names': frozenset({'a'})})
    """
    return _frozen(value, known={})


def _frozen(value: Any, known: dict[int, tuple[Any, Any]]) -> Any:
    """The frozen form of a value; a shared value is frozen once, and so is shared again."""
    if type(value) in BY_VALUE:
        return value
    if id(value) not in known:
        known[id(value)] = value, _frozen_form(value, functools.partial(_frozen, known=known))
    return known[id(value)][1]


def _frozen_form(value: Any, frozen: Callable[[Any], Any]) -> Any:
    cls: Any = type(value)
    _reject_part_of_model(value)
    if cls in PLAIN_ARRAYS and not value.dtype.hasobject:
        return frozen_array(value.dtype, value.shape, value.tobytes())
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, MutableSequence):
        return tuple(map(frozen, value))
    if isinstance(value, MutableSet):
        return frozenset(map(frozen, value))
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        _reject_hidden(value)
        value = vars(value)
    if kind_of(type(value)) is not None:
        return with_parts(value, frozen)
    if isinstance(value, Mapping):
        return FrozenMapping({key: frozen(item) for key, item in value.items()})
    problem = can_change(value)
    if problem is not None:
        raise TypeError(f"freeze can't freeze {problem}")
    return value


def _reject_hidden(namespace: Any) -> None:
    hidden = [name for name in vars(namespace) if hasattr(FrozenMapping, name)]
    if hidden:
        raise TypeError(
            f"freeze can't freeze {short_text(namespace)}: a FrozenMapping has methods of these names: "
            f"{', '.join(hidden)}. Rename the attributes, or freeze vars(...) and read them as items: "
            f"config[{hidden[0]!r}]."
        )


def _reject_part_of_model(value: Any) -> None:
    is_node = is_node_class(type(value)) and bool(jax.tree.leaves(value))
    if is_node or isinstance(value, jax.Array):
        description = "a node with children" if is_node else "a JAX array, which may be part of a model"
        raise TypeError(
            f"freeze is for settings, but {short_text(value)} is {description}. Make the field a child: remove "
            f"static(). To exclude it from training, declare it buffer(), or set optax.set_to_zero() for its leaves. "
            f"For a constant table, use freeze(numpy.asarray(...))."
        )
