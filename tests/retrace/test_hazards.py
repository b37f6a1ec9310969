"""`check_statics`: what in a tree will make jit trace again or answer wrongly, said before it does."""

from __future__ import annotations

import enum
import re
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import importorskip
from tests.retrace import programs
from tests.retrace.programs import Foreign, Layer, times
from tests.retrace.support import Program, programs_in
from treewright import Module, TrainState, buffer, check_statics, partition, static, trainable
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable

flax: Any = importorskip("flax", "flax.struct", "flax.training.train_state")
PROGRAMS = programs_in(Path(__file__).with_name("hazards.txt"))
mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))


class ByContent(Module):
    setting: Any = static(compare="content")


class EqxLayer(eqx.Module):
    kernel: Any = 1.0
    setting: Any = eqx.field(static=True, default=None)


@flax.struct.dataclass
class FlaxLayer:
    kernel: Any = 1.0
    setting: Any = flax.struct.field(pytree_node=False, default=None)


FOREIGN: list[Any] = [EqxLayer, FlaxLayer, Foreign]


class Encapsulated:
    def __init__(self, size: int) -> None:
        self._size = size

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Encapsulated) and self._size == other._size

    def __hash__(self) -> int:
        return self._size


class Letter(enum.StrEnum):
    A = "a"


class Reader:
    def __init__(self) -> None:
        self.rate = 1

    def read(self, x: Any) -> Any:
        return x * RATE


RATE = 2
READER = Reader()
TABLE = {"v": 2}
FIXED: Final = 3
SETTINGS = types.ModuleType("settings")
vars(SETTINGS).update(RATE=2)
by_the_module = lambda x: x


def identity(x: Any) -> Any:
    return x


def helper(x: Any) -> Any:
    return x * RATE


def reads_everything(x: Any) -> Any:
    return [x * RATE * TABLE["v"] * FIXED for _ in range(3)]


def reads_a_module(x: Any) -> Any:
    return x * SETTINGS.RATE


def local() -> Callable[[Any], Any]:
    return lambda x: x


def make_importing() -> Callable[[Any], Any]:
    def importing(x: Any) -> Any:
        import os

        return x * int(os.environ.get("RATE", "1"))

    return importing


def lines(tree: Any) -> list[str]:
    """The kind and the text of each hazard."""
    texts = [f"{hazard.kind}: {hazard}" for hazard in check_statics(tree)]
    return [re.sub(r"([\w<>]+\.(py|txt)|<string>):\d+", "FILE", text) for text in texts]


def told(value: Any) -> str:
    """What is listed of a value in a class of ours, and in those of others, which all say the same."""
    [others] = {tuple(lines(cls(1.0, setting=value))) for cls in FOREIGN}
    try:
        ours = tuple(lines(Layer(1.0, value)))
    except StaticFieldError:
        ours = ("refused",)
    groups = {"anywhere": ours} if ours == others else {"ours": ours, "others": others}
    return "".join("\n   ".join([f"{name}:", *found]) + "\n" for name, found in groups.items() if any(groups.values()))


@pytest.mark.filterwarnings("ignore:A JAX array is being set as static")
@pytest.mark.parametrize("program", PROGRAMS, ids=[program.name for program in PROGRAMS])
def test_the_hazards_of_a_value_are_listed_and_nothing_else(program: Program) -> None:
    value = eval(program.code.strip(), {**vars(programs), **globals()})

    for each in value if program.name.startswith("harmless") else [value]:
        assert told(each) == program.told


def test_what_a_field_takes_for_the_same_is_not_listed() -> None:
    assert lines(ByContent(times(2))) == []
    assert lines(TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(1e-3))) == []
    assert [text.partition(":")[0] for text in lines(ByContent(times([2])))] == ["unhashable", "identity"]


def test_a_function_that_captures_itself_is_looked_at_once() -> None:
    sizes = [2]

    def again(x: Any) -> Any:
        return again(x) if sizes else x

    found = lines(Layer(1.0, again))

    assert [text.split(": ")[:2] for text in found] == [["unhashable", ".setting.sizes"], ["identity", ".setting"]]


def test_what_a_library_captured_is_not_listed() -> None:
    mask = {"w": True, "b": False}

    found = lines(EqxLayer(1.0, optax.masked(optax.adam(1e-3), mask)))

    assert [text.split(": ")[:2] for text in found] == [["identity", ".setting.init"], ["identity", ".setting.update"]]


def test_an_optimizer_in_a_foreign_state_is_listed() -> None:
    state = flax.training.train_state.TrainState.create(
        apply_fn=identity, params={"w": jnp.ones(2)}, tx=optax.adam(1e-3)
    )

    assert [text.split(": ")[1] for text in lines(state)] == [".tx.init", ".tx.update"]


def test_the_order_is_that_of_the_tree() -> None:
    tree = [Layer(Layer(1.0, object()), object()), Layer(1.0, object())]

    assert [text.split(": ")[1] for text in lines(tree)] == ["[0].setting", "[0].weight.setting", "[1].setting"]


# Leaves


def test_leaves_that_are_no_arrays_are_looked_at_like_statics() -> None:
    mlp = eqx.nn.MLP(2, 2, 2, 2, activation=local(), key=jax.random.key(0))
    assert lines([{"mode": "train", "flag": True}, EqxLayer("relu"), Layer(True)]) == []

    assert [text.split(": ")[:2] for text in lines(mlp)] == [["identity", ".activation"]]
    [line] = lines(object())
    assert line.startswith("identity: the whole tree: <object object>: object has no __eq__, so one made again traces")


# Buffers


class Norm(Module):
    scale: Any
    mean: Any = buffer()


def test_buffers_that_optax_trains_are_listed_and_what_is_told_leaves_them_alone() -> None:
    params: Any = {"norm": Norm(jnp.ones(2), jnp.ones(2))}
    tx = optax.adamw(0.1, weight_decay=0.5)

    found = lines((params, tx.init(params)))

    assert [text.split(": ")[:2] for text in found] == [
        ["buffer", f"[1][0].{moment}['norm'].mean"] for moment in ("mu", "nu")
    ]
    assert found[0].endswith(
        "f32[2]: optax keeps it for a buffer, so Adam and weight decay change that buffer; make the optimiser's state "
        "for partition(params, trainable)[0], use optax.partition({True: tx, False: optax.set_to_zero()}, trainable), "
        "or a TrainState"
    )
    parts: Any = optax.partition({True: tx, False: optax.set_to_zero()}, trainable)
    for state in (
        tx.init(partition(params, trainable)[0]),
        parts.init(params),
        TrainState.create(params=params, tx=tx),
    ):
        assert lines((params, state)) == []
    updates, _ = parts.update(jax.tree.map(jnp.ones_like, params), parts.init(params), params)
    updated: Any = optax.apply_updates(params, updates)
    assert updated["norm"].mean.tolist() == [1, 1]
