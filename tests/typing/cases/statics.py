"""Types of static fields: as a plain field, with a default, with a factory, and in a `Static`."""

import dataclasses
import enum
import functools
from collections import OrderedDict, deque
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, assert_type

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, PartitionSpec

from treewright import FrozenArray, FrozenMapping, Module, Static, StaticValue, freeze, pytree_dataclass, static
from treewright.train import Optimizer


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: int


@pytree_dataclass
class Node:
    x: int


class Net(Module):
    x: int


class FrozenNet(Module, frozen=True):
    x: int


class Schedule(StaticValue, Protocol):
    def __call__(self, step: int, /) -> float: ...


class Accepted(Module, kw_only=True):
    s0: str = static()
    s1: int | None = static()
    s2: float = static()
    s6: Color = static()
    s7: np.dtype[Any] = static()
    s8: type[int] = static()
    s10: Callable[[int], int] = static()
    s12: Callable[[jax.Array], jax.Array] | None = static()
    s13: tuple[int, ...] = static()
    s16: frozenset[str] = static()
    s18: Literal["a", "b"] = static()
    s20: Path = static()
    s21: Fraction = static()
    s25: Frozen = static()
    s26: Point = static()
    s28: FrozenNet = static()
    s29: Node = static()
    s30: Schedule = static()
    s31: Optimizer = static()
    s32: functools.partial[int] = static()
    s34: FrozenMapping[str, int] = static()
    s35: FrozenArray = static()
    s39: Mesh = static()
    s40: PartitionSpec = static()
    s41: jnp.dtype = static()


class Given:
    """A value of each type, only for checkers."""

    g0: str
    g1: int | None
    g10: Callable[[int], int]
    g13: tuple[int, ...]
    g31: Optimizer
    b0: list[int]
    b1: dict[str, int]
    b6: np.ndarray[Any, Any]
    b8: jax.Array


given = Given()


if TYPE_CHECKING:
    # Only for checkers: there are no values.

    class WithDefault(Module):
        d0: str = static(default=given.g0)
        f0: str = static(default_factory=lambda: given.g0)
        d1: int | None = static(default=given.g1)
        f1: int | None = static(default_factory=lambda: given.g1)
        d10: Callable[[int], int] = static(default=given.g10)
        f10: Callable[[int], int] = static(default_factory=lambda: given.g10)
        d13: tuple[int, ...] = static(default=given.g13)
        f13: tuple[int, ...] = static(default_factory=lambda: given.g13)
        d31: Optimizer = static(default=given.g31)
        f31: Optimizer = static(default_factory=lambda: given.g31)

    Static(given.g0)
    Static(given.g1)
    Static(given.g10)
    Static(given.g13)
    Static(given.g31)


assert_type(Static[tuple[int, ...]]((1, 2)).value, tuple[int, ...])


class SameObject(Module):
    log: list[str] = static(identity=True)
    table: dict[str, int] = static(identity=True, default_factory=dict, kw_only=True)


assert_type(SameObject([]).log, list[str])


class Converted(Module):
    sizes: tuple[int, ...] = static(default_factory=list, converter=tuple)
    table: FrozenMapping[str, int] = static(converter=freeze, kw_only=True)


assert_type(Converted(table=freeze({"a": 1})).sizes, tuple[int, ...])


def rejected() -> None:
    """Never called: each line is an error of the checkers."""

    class Wrong(Module, kw_only=True):
        n0: list[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d0: list[int] = static(default=given.b0)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f0: list[int] = static(default_factory=lambda: given.b0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n1: dict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d1: dict[str, int] = static(default=given.b1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f1: dict[str, int] = static(default_factory=lambda: given.b1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n2: set[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        n3: bytearray = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        n4: OrderedDict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        n5: deque[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        n6: np.ndarray[Any, Any] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d6: np.ndarray[Any, Any] = static(default=given.b6)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f6: np.ndarray[Any, Any] = static(default_factory=lambda: given.b6)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n7: npt.NDArray[np.float32] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        n8: jax.Array = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d8: jax.Array = static(default=given.b8)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f8: jax.Array = static(default_factory=lambda: given.b8)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    Static(given.b0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b6)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b8)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    print(Wrong)
