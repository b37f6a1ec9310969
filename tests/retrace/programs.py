"""The names that the programs in `programs.txt` use."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import math
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding

import treewright
from tests.retrace.support import fresh
from treewright import Module, TrainState, freeze, static

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = [
    "AxisType",
    "SingleDeviceSharding",
    "TrainState",
    "freeze",
    "functools",
    "jnp",
    "math",
    "nnx",
    "optax",
    "treewright",
]

OrderedDict, defaultdict = collections.OrderedDict, collections.defaultdict
Spec: Any = jax.sharding.PartitionSpec  # untyped


def run(function: Any, *calls: Any, jit: Any = jax.jit, **options: Any) -> list[Any]:
    """The results of a jitted function for several calls."""
    jitted = jit(fresh(function), **options)
    return [jitted(*given) if isinstance(given, tuple) else jitted(given) for given in calls]


def under(setting: Callable[[], Any]) -> None:
    """Call a jitted function before, under and after a setting."""
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(4))
    with setting():
        jitted(f32(4))
    jitted(f32(4))


@contextlib.contextmanager
def updated(name: str, value: Any) -> Generator[None]:
    before, update = getattr(jax.config, name), jax.config.update
    update(name, value)  # type: ignore[no-untyped-call]
    yield
    update(name, before)  # type: ignore[no-untyped-call]


# Arrays


def f32(*shape: int) -> Any:
    return np.ones(shape, np.float32)


def committed(*shape: int, device: int = 0) -> Any:
    return jax.device_put(f32(*shape), jax.devices()[device])


def spread(devices: Any, *axes: str) -> NamedSharding:
    return NamedSharding(Mesh(np.array(devices), ("d",)), Spec(*axes))


# Functions


def step(state: Any, batch: Any = None, scale: Any = 1.0) -> Any:
    return 0


def double(x: Any) -> Any:
    return x * 2


def scaled(x: Any, n: Any) -> Any:
    return x * n


def affine(a: Any, b: Any, c: Any = 1.0) -> Any:
    return a * b + c


def total(x: Any) -> Any:
    return (x * x).sum()


def call(f: Any, x: Any) -> Any:
    return f(x) if callable(f) else x


def times(factor: Any) -> Callable[[Any], Any]:
    return lambda x: x * factor


def named(name: str, k: int | None = None) -> Any:
    def act(x: Any) -> Any:
        return x

    act.__name__ = name
    if k is not None:
        act.k = k  # type: ignore[attr-defined]
    return act


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor


# Nodes


class Layer(Module):
    weight: Any
    setting: Any = static(default="relu")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    """An instance of a foreign class: jit compares its static with `==`."""

    weight: Any
    setting: Any = dataclasses.field(metadata={"static": True})


class EqxScale(eqx.Module):
    factor: jax.Array

    def __call__(self, x: Any) -> Any:
        return self.factor * x


# Statics


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...]
    rate: float = 0.1


@dataclasses.dataclass
class Changeable:
    k: float

    def __hash__(self) -> int:
        return hash(self.k)


class Size(enum.Enum):
    SMALL = 1
    LARGE = 2


class Plain:
    """Compares by identity."""

    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, x: Any) -> Any:
        return x * self.size

    def scale(self, factor: Any, x: Any) -> Any:
        return x * factor * self.size


class Equal:
    """Compared by a number that its repr does not show."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.k == other.k

    def __hash__(self) -> int:
        return hash(self.k)


class Unequal:
    """Equal to all others, with a custom hash."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unequal)

    def __hash__(self) -> int:
        return id(self)
