"""Which types a static field may have, as a plain field, with a default, with a factory, and in a `Static`."""

import dataclasses
import datetime
import enum
import functools
import re
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from decimal import Decimal
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
    s3: bool = static()
    s4: complex = static()
    s5: bytes = static()
    s6: Color = static()
    s7: np.dtype[Any] = static()
    s8: type[int] = static()
    s9: type = static()
    s10: Callable[[int], int] = static()
    s11: Callable[..., Any] = static()
    s12: Callable[[jax.Array], jax.Array] | None = static()
    s13: tuple[int, ...] = static()
    s14: tuple[int, str] = static()
    s15: tuple[()] = static()
    s16: frozenset[str] = static()
    s17: tuple[tuple[int, ...], ...] = static()
    s18: Literal["a", "b"] = static()
    s19: Literal["a"] | int = static()
    s20: Path = static()
    s21: Fraction = static()
    s22: Decimal = static()
    s23: datetime.date = static()
    s24: range = static()
    s25: Frozen = static()
    s26: Point = static()
    s27: Net = static()
    s28: FrozenNet = static()
    s29: Node = static()
    s30: Schedule = static()
    s31: Optimizer = static()
    s32: functools.partial[int] = static()
    s33: types.ModuleType = static()
    s34: FrozenMapping[str, int] = static()
    s35: FrozenArray = static()
    s36: int | str = static()
    s37: re.Pattern[str] = static()
    s38: np.float32 = static()
    s39: Mesh = static()
    s40: PartitionSpec = static()
    s41: jnp.dtype = static()
    s42: uuid.UUID = static()


class Given:
    """A value of each type, for checkers alone."""

    g0: str
    g1: int | None
    g2: float
    g3: bool
    g4: complex
    g5: bytes
    g6: Color
    g7: np.dtype[Any]
    g8: type[int]
    g9: type
    g10: Callable[[int], int]
    g11: Callable[..., Any]
    g12: Callable[[jax.Array], jax.Array] | None
    g13: tuple[int, ...]
    g14: tuple[int, str]
    g15: tuple[()]
    g16: frozenset[str]
    g17: tuple[tuple[int, ...], ...]
    g18: Literal["a", "b"]
    g19: Literal["a"] | int
    g20: Path
    g21: Fraction
    g22: Decimal
    g23: datetime.date
    g24: range
    g25: Frozen
    g26: Point
    g27: Net
    g28: FrozenNet
    g29: Node
    g30: Schedule
    g31: Optimizer
    g32: functools.partial[int]
    g33: types.ModuleType
    g34: FrozenMapping[str, int]
    g35: FrozenArray
    g36: int | str
    g37: re.Pattern[str]
    g38: np.float32
    g39: Mesh
    g40: PartitionSpec
    g41: jnp.dtype
    g42: uuid.UUID
    b0: list[int]
    b1: dict[str, int]
    b2: set[int]
    b3: bytearray
    b4: OrderedDict[str, int]
    b5: deque[int]
    b6: np.ndarray[Any, Any]
    b7: npt.NDArray[np.float32]
    b8: jax.Array


given = Given()


if TYPE_CHECKING:
    # For checkers alone, since the values are none.

    class WithDefault(Module):
        d0: str = static(default=given.g0)
        f0: str = static(default_factory=lambda: given.g0)
        d1: int | None = static(default=given.g1)
        f1: int | None = static(default_factory=lambda: given.g1)
        d2: float = static(default=given.g2)
        f2: float = static(default_factory=lambda: given.g2)
        d3: bool = static(default=given.g3)
        f3: bool = static(default_factory=lambda: given.g3)
        d4: complex = static(default=given.g4)
        f4: complex = static(default_factory=lambda: given.g4)
        d5: bytes = static(default=given.g5)
        f5: bytes = static(default_factory=lambda: given.g5)
        d6: Color = static(default=given.g6)
        f6: Color = static(default_factory=lambda: given.g6)
        d7: np.dtype[Any] = static(default=given.g7)
        f7: np.dtype[Any] = static(default_factory=lambda: given.g7)
        d8: type[int] = static(default=given.g8)
        f8: type[int] = static(default_factory=lambda: given.g8)
        d9: type = static(default=given.g9)
        f9: type = static(default_factory=lambda: given.g9)
        d10: Callable[[int], int] = static(default=given.g10)
        f10: Callable[[int], int] = static(default_factory=lambda: given.g10)
        d11: Callable[..., Any] = static(default=given.g11)
        f11: Callable[..., Any] = static(default_factory=lambda: given.g11)
        d12: Callable[[jax.Array], jax.Array] | None = static(default=given.g12)
        f12: Callable[[jax.Array], jax.Array] | None = static(default_factory=lambda: given.g12)
        d13: tuple[int, ...] = static(default=given.g13)
        f13: tuple[int, ...] = static(default_factory=lambda: given.g13)
        d14: tuple[int, str] = static(default=given.g14)
        f14: tuple[int, str] = static(default_factory=lambda: given.g14)
        d15: tuple[()] = static(default=given.g15)
        f15: tuple[()] = static(default_factory=lambda: given.g15)
        d16: frozenset[str] = static(default=given.g16)
        f16: frozenset[str] = static(default_factory=lambda: given.g16)
        d17: tuple[tuple[int, ...], ...] = static(default=given.g17)
        f17: tuple[tuple[int, ...], ...] = static(default_factory=lambda: given.g17)
        d18: Literal["a", "b"] = static(default=given.g18)
        f18: Literal["a", "b"] = static(default_factory=lambda: given.g18)
        d19: Literal["a"] | int = static(default=given.g19)
        f19: Literal["a"] | int = static(default_factory=lambda: given.g19)
        d20: Path = static(default=given.g20)
        f20: Path = static(default_factory=lambda: given.g20)
        d21: Fraction = static(default=given.g21)
        f21: Fraction = static(default_factory=lambda: given.g21)
        d22: Decimal = static(default=given.g22)
        f22: Decimal = static(default_factory=lambda: given.g22)
        d23: datetime.date = static(default=given.g23)
        f23: datetime.date = static(default_factory=lambda: given.g23)
        d24: range = static(default=given.g24)
        f24: range = static(default_factory=lambda: given.g24)
        d25: Frozen = static(default=given.g25)
        f25: Frozen = static(default_factory=lambda: given.g25)
        d26: Point = static(default=given.g26)
        f26: Point = static(default_factory=lambda: given.g26)
        d27: Net = static(default=given.g27)
        f27: Net = static(default_factory=lambda: given.g27)
        d28: FrozenNet = static(default=given.g28)
        f28: FrozenNet = static(default_factory=lambda: given.g28)
        d29: Node = static(default=given.g29)
        f29: Node = static(default_factory=lambda: given.g29)
        d30: Schedule = static(default=given.g30)
        f30: Schedule = static(default_factory=lambda: given.g30)
        d31: Optimizer = static(default=given.g31)
        f31: Optimizer = static(default_factory=lambda: given.g31)
        d32: functools.partial[int] = static(default=functools.partial(int))  # read from an object, it binds
        f32: functools.partial[int] = static(default_factory=lambda: functools.partial(int))
        d33: types.ModuleType = static(default=given.g33)
        f33: types.ModuleType = static(default_factory=lambda: given.g33)
        d34: FrozenMapping[str, int] = static(default=given.g34)
        f34: FrozenMapping[str, int] = static(default_factory=lambda: given.g34)
        d35: FrozenArray = static(default=given.g35)
        f35: FrozenArray = static(default_factory=lambda: given.g35)
        d36: int | str = static(default=given.g36)
        f36: int | str = static(default_factory=lambda: given.g36)
        d37: re.Pattern[str] = static(default=given.g37)
        f37: re.Pattern[str] = static(default_factory=lambda: given.g37)
        d38: np.float32 = static(default=given.g38)
        f38: np.float32 = static(default_factory=lambda: given.g38)
        d39: Mesh = static(default=given.g39)
        f39: Mesh = static(default_factory=lambda: given.g39)
        d40: PartitionSpec = static(default=given.g40)
        f40: PartitionSpec = static(default_factory=lambda: given.g40)
        d41: jnp.dtype = static(default=given.g41)
        f41: jnp.dtype = static(default_factory=lambda: given.g41)
        d42: uuid.UUID = static(default=given.g42)
        f42: uuid.UUID = static(default_factory=lambda: given.g42)

    Static(given.g0)
    Static(given.g1)
    Static(given.g2)
    Static(given.g3)
    Static(given.g4)
    Static(given.g5)
    Static(given.g6)
    Static(given.g7)
    Static(given.g8)
    Static(given.g9)
    Static(given.g10)
    Static(given.g11)
    Static(given.g12)
    Static(given.g13)
    Static(given.g14)
    Static(given.g15)
    Static(given.g16)
    Static(given.g17)
    Static(given.g18)
    Static(given.g19)
    Static(given.g20)
    Static(given.g21)
    Static(given.g22)
    Static(given.g23)
    Static(given.g24)
    Static(given.g25)
    Static(given.g26)
    Static(given.g27)
    Static(given.g28)
    Static(given.g29)
    Static(given.g30)
    Static(given.g31)
    Static(given.g32)
    Static(given.g33)
    Static(given.g34)
    Static(given.g35)
    Static(given.g36)
    Static(given.g37)
    Static(given.g38)
    Static(given.g39)
    Static(given.g40)
    Static(given.g41)
    Static(given.g42)


assert_type(Static[tuple[int, ...]]((1, 2)).value, tuple[int, ...])


class Converted(Module):
    sizes: tuple[int, ...] = static(default_factory=list, converter=tuple)
    table: FrozenMapping[str, int] = static(converter=freeze, kw_only=True)


assert_type(Converted(table=freeze({"a": 1})).sizes, tuple[int, ...])


def refused() -> None:
    """Never called: each line is an error of the checkers."""

    class Wrong(Module, kw_only=True):
        n0: list[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d0: list[int] = static(default=given.b0)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f0: list[int] = static(default_factory=lambda: given.b0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n1: dict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d1: dict[str, int] = static(default=given.b1)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f1: dict[str, int] = static(default_factory=lambda: given.b1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n2: set[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d2: set[int] = static(default=given.b2)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f2: set[int] = static(default_factory=lambda: given.b2)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n3: bytearray = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d3: bytearray = static(default=given.b3)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f3: bytearray = static(default_factory=lambda: given.b3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n4: OrderedDict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d4: OrderedDict[str, int] = static(default=given.b4)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f4: OrderedDict[str, int] = static(default_factory=lambda: given.b4)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n5: deque[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d5: deque[int] = static(default=given.b5)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f5: deque[int] = static(default_factory=lambda: given.b5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n6: np.ndarray[Any, Any] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d6: np.ndarray[Any, Any] = static(default=given.b6)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f6: np.ndarray[Any, Any] = static(default_factory=lambda: given.b6)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n7: npt.NDArray[np.float32] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d7: npt.NDArray[np.float32] = static(default=given.b7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f7: npt.NDArray[np.float32] = static(default_factory=lambda: given.b7)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n8: jax.Array = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d8: jax.Array = static(default=given.b8)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f8: jax.Array = static(default_factory=lambda: given.b8)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    Static(given.b0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b2)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b4)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b6)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b7)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(given.b8)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    print(Wrong)
