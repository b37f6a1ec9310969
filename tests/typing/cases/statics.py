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
from typing import Any, Literal, NamedTuple, Protocol, assert_type

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


# What a factory of each type looks like; none is ever called.
def g0() -> str:
    raise NotImplementedError


def g1() -> int | None:
    raise NotImplementedError


def g2() -> float:
    raise NotImplementedError


def g3() -> bool:
    raise NotImplementedError


def g4() -> complex:
    raise NotImplementedError


def g5() -> bytes:
    raise NotImplementedError


def g6() -> Color:
    raise NotImplementedError


def g7() -> np.dtype[Any]:
    raise NotImplementedError


def g8() -> type[int]:
    raise NotImplementedError


def g9() -> type:
    raise NotImplementedError


def g10() -> Callable[[int], int]:
    raise NotImplementedError


def g11() -> Callable[..., Any]:
    raise NotImplementedError


def g12() -> Callable[[jax.Array], jax.Array] | None:
    raise NotImplementedError


def g13() -> tuple[int, ...]:
    raise NotImplementedError


def g14() -> tuple[int, str]:
    raise NotImplementedError


def g15() -> tuple[()]:
    raise NotImplementedError


def g16() -> frozenset[str]:
    raise NotImplementedError


def g17() -> tuple[tuple[int, ...], ...]:
    raise NotImplementedError


def g18() -> Literal["a", "b"]:
    raise NotImplementedError


def g19() -> Literal["a"] | int:
    raise NotImplementedError


def g20() -> Path:
    raise NotImplementedError


def g21() -> Fraction:
    raise NotImplementedError


def g22() -> Decimal:
    raise NotImplementedError


def g23() -> datetime.date:
    raise NotImplementedError


def g24() -> range:
    raise NotImplementedError


def g25() -> Frozen:
    raise NotImplementedError


def g26() -> Point:
    raise NotImplementedError


def g27() -> Net:
    raise NotImplementedError


def g28() -> FrozenNet:
    raise NotImplementedError


def g29() -> Node:
    raise NotImplementedError


def g30() -> Schedule:
    raise NotImplementedError


def g31() -> Optimizer:
    raise NotImplementedError


def g32() -> functools.partial[int]:
    raise NotImplementedError


def g33() -> types.ModuleType:
    raise NotImplementedError


def g34() -> FrozenMapping[str, int]:
    raise NotImplementedError


def g35() -> FrozenArray:
    raise NotImplementedError


def g36() -> int | str:
    raise NotImplementedError


def g37() -> re.Pattern[str]:
    raise NotImplementedError


def g38() -> np.float32:
    raise NotImplementedError


def g39() -> Mesh:
    raise NotImplementedError


def g40() -> PartitionSpec:
    raise NotImplementedError


def g41() -> jnp.dtype:
    raise NotImplementedError


def g42() -> uuid.UUID:
    raise NotImplementedError


def b0() -> list[int]:
    raise NotImplementedError


def b1() -> dict[str, int]:
    raise NotImplementedError


def b2() -> set[int]:
    raise NotImplementedError


def b3() -> bytearray:
    raise NotImplementedError


def b4() -> OrderedDict[str, int]:
    raise NotImplementedError


def b5() -> deque[int]:
    raise NotImplementedError


def b6() -> np.ndarray[Any, Any]:
    raise NotImplementedError


def b7() -> npt.NDArray[np.float32]:
    raise NotImplementedError


def b8() -> jax.Array:
    raise NotImplementedError


def accepted() -> None:
    """Never called, since the values are none."""

    class WithDefault(Module):
        d0: str = static(default=g0())
        f0: str = static(default_factory=g0)
        d1: int | None = static(default=g1())
        f1: int | None = static(default_factory=g1)
        d2: float = static(default=g2())
        f2: float = static(default_factory=g2)
        d3: bool = static(default=g3())
        f3: bool = static(default_factory=g3)
        d4: complex = static(default=g4())
        f4: complex = static(default_factory=g4)
        d5: bytes = static(default=g5())
        f5: bytes = static(default_factory=g5)
        d6: Color = static(default=g6())
        f6: Color = static(default_factory=g6)
        d7: np.dtype[Any] = static(default=g7())
        f7: np.dtype[Any] = static(default_factory=g7)
        d8: type[int] = static(default=g8())
        f8: type[int] = static(default_factory=g8)
        d9: type = static(default=g9())
        f9: type = static(default_factory=g9)
        d10: Callable[[int], int] = static(default=g10())
        f10: Callable[[int], int] = static(default_factory=g10)
        d11: Callable[..., Any] = static(default=g11())
        f11: Callable[..., Any] = static(default_factory=g11)
        d12: Callable[[jax.Array], jax.Array] | None = static(default=g12())
        f12: Callable[[jax.Array], jax.Array] | None = static(default_factory=g12)
        d13: tuple[int, ...] = static(default=g13())
        f13: tuple[int, ...] = static(default_factory=g13)
        d14: tuple[int, str] = static(default=g14())
        f14: tuple[int, str] = static(default_factory=g14)
        d15: tuple[()] = static(default=g15())
        f15: tuple[()] = static(default_factory=g15)
        d16: frozenset[str] = static(default=g16())
        f16: frozenset[str] = static(default_factory=g16)
        d17: tuple[tuple[int, ...], ...] = static(default=g17())
        f17: tuple[tuple[int, ...], ...] = static(default_factory=g17)
        d18: Literal["a", "b"] = static(default=g18())
        f18: Literal["a", "b"] = static(default_factory=g18)
        d19: Literal["a"] | int = static(default=g19())
        f19: Literal["a"] | int = static(default_factory=g19)
        d20: Path = static(default=g20())
        f20: Path = static(default_factory=g20)
        d21: Fraction = static(default=g21())
        f21: Fraction = static(default_factory=g21)
        d22: Decimal = static(default=g22())
        f22: Decimal = static(default_factory=g22)
        d23: datetime.date = static(default=g23())
        f23: datetime.date = static(default_factory=g23)
        d24: range = static(default=g24())
        f24: range = static(default_factory=g24)
        d25: Frozen = static(default=g25())
        f25: Frozen = static(default_factory=g25)
        d26: Point = static(default=g26())
        f26: Point = static(default_factory=g26)
        d27: Net = static(default=g27())
        f27: Net = static(default_factory=g27)
        d28: FrozenNet = static(default=g28())
        f28: FrozenNet = static(default_factory=g28)
        d29: Node = static(default=g29())
        f29: Node = static(default_factory=g29)
        d30: Schedule = static(default=g30())
        f30: Schedule = static(default_factory=g30)
        d31: Optimizer = static(default=g31())
        f31: Optimizer = static(default_factory=g31)
        d32: functools.partial[int] = static(default=g32())
        f32: functools.partial[int] = static(default_factory=g32)
        d33: types.ModuleType = static(default=g33())
        f33: types.ModuleType = static(default_factory=g33)
        d34: FrozenMapping[str, int] = static(default=g34())
        f34: FrozenMapping[str, int] = static(default_factory=g34)
        d35: FrozenArray = static(default=g35())
        f35: FrozenArray = static(default_factory=g35)
        d36: int | str = static(default=g36())
        f36: int | str = static(default_factory=g36)
        d37: re.Pattern[str] = static(default=g37())
        f37: re.Pattern[str] = static(default_factory=g37)
        d38: np.float32 = static(default=g38())
        f38: np.float32 = static(default_factory=g38)
        d39: Mesh = static(default=g39())
        f39: Mesh = static(default_factory=g39)
        d40: PartitionSpec = static(default=g40())
        f40: PartitionSpec = static(default_factory=g40)
        d41: jnp.dtype = static(default=g41())
        f41: jnp.dtype = static(default_factory=g41)
        d42: uuid.UUID = static(default=g42())
        f42: uuid.UUID = static(default_factory=g42)

    Static(g0())
    Static(g1())
    Static(g2())
    Static(g3())
    Static(g4())
    Static(g5())
    Static(g6())
    Static(g7())
    Static(g8())
    Static(g9())
    Static(g10())
    Static(g11())
    Static(g12())
    Static(g13())
    Static(g14())
    Static(g15())
    Static(g16())
    Static(g17())
    Static(g18())
    Static(g19())
    Static(g20())
    Static(g21())
    Static(g22())
    Static(g23())
    Static(g24())
    Static(g25())
    Static(g26())
    Static(g27())
    Static(g28())
    Static(g29())
    Static(g30())
    Static(g31())
    Static(g32())
    Static(g33())
    Static(g34())
    Static(g35())
    Static(g36())
    Static(g37())
    Static(g38())
    Static(g39())
    Static(g40())
    Static(g41())
    Static(g42())
    print(WithDefault)


assert_type(Static((1, 2)).value, tuple[int, int])  # pyright: ignore[reportAssertTypeFailure]


class Converted(Module):
    sizes: tuple[int, ...] = static(default_factory=list, converter=tuple)
    table: FrozenMapping[str, int] = static(converter=freeze, kw_only=True)


assert_type(Converted(table=freeze({"a": 1})).sizes, tuple[int, ...])


def refused() -> None:
    """Never called: each line is an error of the checkers."""

    class Wrong(Module, kw_only=True):
        n0: list[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d0: list[int] = static(default=b0())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f0: list[int] = static(default_factory=b0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n1: dict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d1: dict[str, int] = static(default=b1())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f1: dict[str, int] = static(default_factory=b1)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n2: set[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d2: set[int] = static(default=b2())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f2: set[int] = static(default_factory=b2)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n3: bytearray = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d3: bytearray = static(default=b3())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f3: bytearray = static(default_factory=b3)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n4: OrderedDict[str, int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d4: OrderedDict[str, int] = static(default=b4())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f4: OrderedDict[str, int] = static(default_factory=b4)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n5: deque[int] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d5: deque[int] = static(default=b5())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f5: deque[int] = static(default_factory=b5)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n6: np.ndarray[Any, Any] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d6: np.ndarray[Any, Any] = static(default=b6())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f6: np.ndarray[Any, Any] = static(default_factory=b6)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n7: npt.NDArray[np.float32] = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d7: npt.NDArray[np.float32] = static(default=b7())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f7: npt.NDArray[np.float32] = static(default_factory=b7)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        n8: jax.Array = static()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
        d8: jax.Array = static(default=b8())  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]
        f8: jax.Array = static(default_factory=b8)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUnknownVariableType]

    Static(b0())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b1())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b2())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b3())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b4())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b5())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b6())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b7())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Static(b8())  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    print(Wrong)
