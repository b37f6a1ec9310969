"""Classes, functions and trees that the tests of checkpoints save; other processes import them too."""

import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import functools
import pathlib
import re
import uuid
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from treewright import Module, StaticValue, TrainState, buffer, field, freeze, partition, static, trainable

# jax.sharding's own annotations leave it untyped.
spec: Any = jax.sharding.PartitionSpec


class Color(enum.Enum):
    RED = "r"
    BLUE = "b"


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()


class Size(NamedTuple):
    width: int
    height: int


@dataclasses.dataclass(frozen=True)
class Setting:
    rate: float
    name: str = "plain"


class Dense(Module):
    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[Any], Any] = static(default=jax.nn.relu)

    @classmethod
    def of(cls, inputs: int, outputs: int) -> "Dense":
        # Made by numpy, whose bits are those of the kept checkpoints with every JAX.
        kernel = np.arange(inputs * outputs, dtype=np.float32).reshape(outputs, inputs) * np.float32(1 / 7)
        return cls(jnp.asarray(kernel), jnp.zeros(outputs))

    def __call__(self, x: Any) -> Any:
        return self.activation(self.kernel @ x + self.bias)


class Net(Module):
    layers: tuple[Dense, ...]
    count: jax.Array = buffer()
    width: int = static(default=3)

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class Other(Module):
    layers: Any
    count: Any
    width: int = static(default=3)


class Settings(Module):
    """A static of each kind."""

    value: StaticValue = static()
    x: Any = field(default=0.0)


def twice(x: Any) -> Any:
    return x * 2


def scaled(factor: float) -> Callable[[float], float]:
    return lambda x: factor * x


HOUR = dt.timedelta(hours=1)
MESH: Any = jax.sharding.AbstractMesh((2, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
STATICS: tuple[Any, ...] = (
    *(None, True, 2**70, -(16**600), 0.1, -0.0, float("-inf"), 1 + 2j, "relu, \u2200 \U0001f333", b"\0a"),
    *((1, ("a",)), frozenset({1}), freeze({"a": [1]}), freeze(np.array([1, 2], np.int16)), np.float32(0.5)),
    *(jnp.dtype("bfloat16"), Color.BLUE, Access.READ | Access.WRITE, Size(2, 3), Setting(0.5), Settings(3, "inside")),
    *(twice, Net, functools.partial(twice, x=1), slice(1, None, -2), range(3, 10, 2)),
    *(decimal.Decimal("-1.10E+9"), fractions.Fraction(-1, 3), uuid.UUID(int=7)),
    *(dt.date(2024, 2, 29), dt.time(1, 2, 3, 4, fold=1), dt.datetime(2024, 2, 29, 1, tzinfo=dt.timezone(HOUR, "here"))),
    *(dt.UTC, -HOUR, re.compile("a+(?i:b)", re.MULTILINE), re.compile(b"a")),
    *(pathlib.PosixPath("a/../b"), pathlib.PureWindowsPath("c:/a")),
    *(spec("a", ("b", "c"), None, spec.UNCONSTRAINED), MESH, jax.sharding.NamedSharding(MESH, spec("a"))),
)


def net() -> Net:
    return Net((Dense.of(4, 3), Dense.of(3, 2)), jnp.float32(7))


def train_state() -> TrainState[Net]:
    """With moments that are not zero."""
    state: TrainState[Net] = TrainState.create(params=net(), tx=optax.adam(1e-2))
    grads, _ = partition(jax.tree.map(jnp.ones_like, state.params), trainable)
    return state.replace(opt_state=state.tx.update(grads, state.opt_state)[1])
