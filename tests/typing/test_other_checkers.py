"""ty, pyrefly and zuban over a user's program: nothing in what is right, and an error at each line that is wrong.

basedpyright is here for `make exhaustive`: it differs from pyright, which reads all cases, by its defaults.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import skip_before_jax
from tests.typing.checkers import errors

pytestmark = pytest.mark.slow

PROGRAM = """
from collections.abc import Callable
from typing import Generic, TypeVar, assert_type

import jax
from treewright import (
    AsArray, Converted, Module, TrainState, at, edit, field, freeze, partition, pytree_dataclass, replace,
    static, trainable,
)
from treewright.train import Transformation
from treewright.typed import cond, grad, hessian, jit, jit_method, scan, tree_map, value_and_grad, vmap

T = TypeVar("T")


@jit
def itself(x: T) -> T:
    return x


@pytree_dataclass
class Layer:
    kernel: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)
    sizes: tuple[int, ...] = static(default=(), kw_only=True, converter=freeze)
    names: frozenset[str] = static(default=frozenset(), kw_only=True, converter=freeze)


@pytree_dataclass
class Box(Generic[T]):
    value: T


class Net(Module):
    layer: Layer
    scale: jax.Array
    width: int = static()
    kind: type[float] = static(default=float)

    def __init__(self, layer: Layer, width: int) -> None:
        self.layer = layer
        self.scale = layer.kernel.sum()
        self.width = width

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer.activation(x @ self.layer.kernel) * self.scale

    @jit
    def predict(self, x: jax.Array, times: int = 1) -> jax.Array:
        return self(x) * times

    @jit_method
    def step(self, x: jax.Array) -> jax.Array:
        return self(x)


class Deeper(Net):
    @jit_method
    def step(self, x: jax.Array) -> jax.Array:
        return 2 * self(x)


class Frozen(Module, frozen=True):
    layer: Layer
    name: str = static(default="net")
    rate: AsArray = Converted(0.1)


class WithKey(TrainState[Net]):
    key: jax.Array


def loss(net: Net, x: jax.Array) -> jax.Array:
    return net(x).sum()


def walk(net: Net, x: jax.Array) -> tuple[Net, jax.Array]:
    return net, net(x)


def right(net: Net, deeper: Deeper, frozen: Frozen, tx: Transformation, x: jax.Array) -> None:
    print(Frozen(net.layer, rate=2.0).rate)
    assert_type(net.predict(x, times=2), jax.Array)
    assert_type(net.predict.lower(net, x), jax.stages.Lowered)
    assert_type(deeper.step(x), jax.Array)
    assert_type(Box(3), Box[int])
    assert_type(replace(frozen, name="other"), Frozen)
    assert_type(grad(loss)(net, x), Net)
    assert_type(grad(loss, argnums=1)(net, x), jax.Array)
    assert_type(value_and_grad(loss)(net, x), tuple[jax.Array, Net])
    assert_type(jit(grad(loss))(net, x), Net)
    assert_type(vmap(loss, in_axes=(None, 0))(net, x), jax.Array)
    assert_type(scan(walk, net, x), tuple[Net, jax.Array])
    assert_type(tree_map(lambda leaf, slope: leaf - 0.1 * slope, net, net), Net)
    assert_type(cond(True, lambda net: net(x), lambda net: loss(net, x), net), jax.Array)
    assert_type(partition(net, trainable), tuple[Net, Net])
    assert_type(at(net, lambda net: net.layer.kernel).set(x), Net)
    assert_type(net.replace(width=4), Net)
    assert_type(vmap(lambda row: net(row))(x), jax.Array)
    itself(net)
    grad(lambda net: loss(net, x))(net)
    jit(grad(lambda net: loss(net, x)))(net)
    hessian(lambda x: (x**2).sum())(x)
    with edit(net) as draft:
        draft.width = 4
    state = TrainState.create(params=net, tx=tx)
    assert_type(state.params, Net)
    assert_type(state.apply_gradients(grads=net).params, Net)
    assert_type(WithKey.create(params=net, tx=tx, key=x), WithKey)
    assert_type(replace(state.apply_gradients(grads=net), step=x), TrainState[Net])


def wrong(net: Net, frozen: Frozen, layer: Layer, tx: Transformation, x: jax.Array) -> None:
    Layer("no")  # refused
    Layer(x, kernal=x)  # refused
    Box[int]("no")  # refused
    Net(layer)  # refused
    layer.kernel = x  # refused
    frozen.name = "other"  # refused
    net.width = "no"  # refused
    net.predict("no")  # refused
    net.predict(x, time=3)  # refused
    net.step(3)  # refused
    grad(loss)(x, x)  # refused
    jit(grad(loss))(net, 3)  # refused
    vmap(loss)(net, 3)  # refused
    print(net.layer.kernle)  # refused
    at(net, lambda net: net.width).set("no")  # refused
    state = TrainState.create(params=net, tx=tx)
    state.step = 3  # refused
    TrainState.create(params=net, tx=3)  # refused
    TrainState.create(params=net, tx=tx, kye=x)  # refused, not by zuban
    WithKey.create(params=net, tx=tx, kye=x)  # refused, not by zuban
    state.apply_gradients(grads=3)  # refused
    replace(state.apply_gradients(grads=net), kye=x)  # refused, not by ty, basedpyright

    class Wrong(Module, kw_only=True):
        a: list[int] = static()  # refused, not by ty, pyrefly
        b: list[int] = static(default_factory=list[int])  # refused
        c: float = static(default="no")  # refused
        d: float = field(default=1.0, nonsense=3)  # refused
        e: jax.Array = static()  # refused, not by ty, pyrefly

    print(Wrong)
"""


@pytest.mark.parametrize(
    "checker", ["ty", "pyrefly", "zuban", pytest.param("basedpyright", marks=pytest.mark.exhaustive)]
)
def test_a_users_program_is_understood_by(checker: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)  # the checkers read its annotations
    # From 3.13 on more is refused; pyrightconfig.json says it for basedpyright.
    target = () if checker == "basedpyright" else ("--python-version=3.12",)
    announced = {
        number
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # refused" in line and checker not in line.partition("not by")[2]
    }

    assert set(errors(checker, PROGRAM, tmp_path, *target)) == announced


@pytest.mark.parametrize("checker", ["ty", "pyrefly", "zuban"])
def test_a_program_that_trains_in_place_in_a_loop_and_saves_has_no_error_in(checker: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    program = (Path(__file__).parent / "cases" / "running.py").read_text(encoding="utf-8")

    assert errors(checker, program, tmp_path) == {}
