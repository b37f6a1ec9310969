"""Hashable, immutable forms of lists, dicts, sets, numpy arrays and objects of settings, for static fields."""

import argparse
import types
import zlib
from collections.abc import Iterator, Mapping, MutableSequence, MutableSet
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, SupportsIndex, TypeVar, cast

import jax
import numpy as np

from treewright._core.functions import public
from treewright._core.kinds import Kind, kind_of, with_parts
from treewright._core.text import short_text

K = TypeVar("K")
V_co = TypeVar("V_co", covariant=True)


@public("treewright")
class FrozenMapping(Mapping[K, V_co], Generic[K, V_co]):
    """A dict that can't change, so that it can be static. Made by `freeze`.

    Items whose keys are names can be read as attributes, too. Order is part of it: `==` is that of mappings, but two
    statics are the same only when the order is the same, since a program can read it.

    Examples:
        >>> sizes = freeze({"hidden": [64, 64]})
        >>> sizes["hidden"]
        (64, 64)
    """

    __slots__ = ("_items",)
    _items: dict[K, V_co]
    _kind_: ClassVar[Kind] = Kind(
        "FrozenMapping", lambda value: tuple(value.items()), lambda *items: FrozenMapping(dict(items))
    )

    def __init__(self, items: Mapping[K, V_co]) -> None:
        object.__setattr__(self, "_items", dict(items))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FrozenMapping can't change, and keeps its {name}. Make a new one.")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    if not TYPE_CHECKING:  # or no checker would find a misspelt method

        def __getattr__(self, name: str) -> Any:
            """An item by attribute, as in the namespace or config that it was made of."""
            if name in self._items:
                return self._items[name]
            known = ", ".join(map(str, self._items)) or "none"
            raise AttributeError(f"This FrozenMapping has no {name!r}, and can't change. Its items: {known}.")

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

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenMapping, (self._items,))


def _frozen_array(dtype: Any, shape: tuple[int, ...], data: bytes) -> "FrozenArray":
    """The frozen array with these bytes, which are in C order."""
    # The buffer is a bytes object, so that nobody can make the array writeable; even an empty array has to have one.
    array: FrozenArray = np.ndarray.__new__(FrozenArray, shape, dtype, data or b"\0")
    return array


@public("treewright")
class FrozenArray(np.ndarray[Any, Any]):
    """A numpy array whose data can't change, so that it can be static. Made by `freeze`.

    It computes like any numpy array, `==` is elementwise, and `hash` is that of its dtype, shape and bytes. As a static
    it becomes a constant of the compiled program; two are the same static when dtype, shape and bytes are. What is
    computed from it is an ordinary array, and can't be static until it is frozen.

    Examples:
        >>> import numpy as np
        >>> table = freeze(np.array([1.0, 2.0]))
        >>> table.flags.writeable
        False
    """

    _kind_: ClassVar[Kind] = Kind(
        "FrozenArray", lambda value: (value.dtype, value.shape, value.tobytes()), _frozen_array
    )

    def __new__(cls, *args: object, **kwargs: object) -> Self:  # noqa: ARG004  of numpy's, refused
        """Refused: numpy would make an array that can change."""
        raise TypeError("FrozenArray can't be called. treewright.freeze(array) makes one.")

    def __array_finalize__(self, source: object) -> None:
        # Called for whatever numpy makes in this class. Views of a bytes object stay; all else can be written.
        base = cast("Any", self).base
        while isinstance(base, np.ndarray):
            base = base.base
        if not isinstance(base, bytes):
            object.__setattr__(self, "__class__", ComputedArray)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"FrozenArray can't change, and keeps its {name}. Make a new one.")

    def __setstate__(self, state: object) -> None:
        raise TypeError("FrozenArray can't change, so it takes no state. treewright.freeze(array) makes a new one.")

    def __hash__(self) -> int:  # type: ignore[override]  # pyright: ignore[reportIncompatibleVariableOverride]  # numpy's can change
        return hash((self.dtype, self.shape, self.tobytes()))

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return (_frozen_array, (self.dtype, self.shape, self.tobytes()))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any] | None, /) -> Self:
        return self

    def _label(self) -> str:
        """For representations: what tells two frozen arrays of one shape apart."""
        return f"(frozen {self.tolist()})" if self.size <= 8 else f"(frozen #{zlib.crc32(self.tobytes()):08x})"


class ComputedArray(np.ndarray[Any, Any]):
    """What numpy computed from frozen arrays: an array like any other, which prints and is pickled as one."""

    def __repr__(self) -> str:
        return repr(np.asarray(self))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return np.asarray(self).__reduce_ex__(protocol)


def freeze(value: Any) -> Any:
    """A hashable form of settings that can't change: `static(converter=treewright.freeze)`.

    Lists become tuples, sets frozensets, bytearrays bytes and numpy arrays read-only `FrozenArray`s. Dicts and other
    mappings, configs of OmegaConf among them, `argparse.Namespace` and `types.SimpleNamespace` become
    `FrozenMapping`s, whose items are attributes too. All the way down, in named tuples and frozen dataclasses as well.
    Anything else is returned as it is.

    It is not for parameters. To keep those from training, declare them `buffer()`, or give their leaves
    `optax.set_to_zero()`, by `optax.partition` and a mask such as `trainable`.

    Raises:
        TypeError: For a node with children, or an array of JAX: these are part of the tree, not settings.

    Examples:
        >>> freeze({"sizes": [64, 64], "names": {"a"}})
        FrozenMapping({'sizes': (64, 64), 'names': frozenset({'a'})})
    """
    cls = type(value)
    is_node = hasattr(cls, "__node_spec__") and bool(jax.tree.leaves(value))
    if is_node or isinstance(value, jax.Array):
        what = "a node with children" if is_node else "an array of JAX, which may be a part of a model"
        raise TypeError(
            f"freeze makes settings static, and {short_text(value)} is {what}. Declare it as a child: drop static(). "
            f"To keep it from training, declare it buffer(), or give its leaves optax.set_to_zero(). For a table that "
            f"never changes, freeze(numpy.asarray(...))."
        )
    if cls in {np.ndarray, ComputedArray}:  # masked arrays and the like hold more than their data
        return value if value.dtype.hasobject else _frozen_array(value.dtype, value.shape, value.tobytes())
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, MutableSequence):
        return tuple(map(freeze, value))
    if isinstance(value, MutableSet):
        return frozenset(map(freeze, value))
    if isinstance(value, types.SimpleNamespace | argparse.Namespace):
        value = vars(value)
    if isinstance(value, Mapping) and kind_of(cls) is None:
        return FrozenMapping({key: freeze(item) for key, item in value.items()})
    return with_parts(value, freeze)
