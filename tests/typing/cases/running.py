"""A program that trains in a loop and saves its state keeps all types."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, assert_type

import jax
import jax.numpy as jnp
import optax

from treewright import (
    FrozenArray,
    FrozenMapping,
    Module,
    TrainState,
    buffer,
    freeze,
    loop,
    replace,
    static,
)
from treewright.checkpoint import CheckpointManager, Mismatch, load, save
from treewright.errors import CheckpointMismatchError
from treewright.train import Transformation
from treewright.typed import Ref, new_ref, value_and_grad


class Net(Module):
    w: jax.Array
    mean: jax.Array = buffer()
    sizes: tuple[int, ...] = static(converter=freeze, default=())
    table: FrozenMapping[str, int] = static(converter=freeze, default_factory=dict[str, int])
    scales: FrozenArray | None = static(converter=freeze, default=None)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.w * x - self.mean


class Counter(Module):
    count: Ref


class State(TrainState[Net]):
    key: jax.Array


def loss(net: Net, x: jax.Array) -> tuple[jax.Array, Net]:
    return net(x).sum(), net


def step(state: State, x: jax.Array) -> tuple[State, jax.Array]:
    (value, seen), grads = value_and_grad(loss, has_aux=True)(state.params, x)
    return state.apply_gradients(grads=grads, buffers=seen, key=state.key), value


def train(tx: Transformation, x: jax.Array, batches: Iterable[jax.Array]) -> State:
    run = loop(step, State.create(params=Net(x, x), tx=tx, key=x), donate=False)
    for batch in batches:
        assert_type(run(batch), jax.Array)
    return run.state


def shown(differences: Sequence[Mismatch]) -> list[str]:
    return [difference.path for difference in differences]


def saved(state: State, folder: Path) -> State:
    """Never called: it needs Orbax."""
    save(folder / "state", state)
    assert_type(load(folder / "state", like=state), State)
    with CheckpointManager(folder) as manager:
        manager.save(3, state, metrics={"loss": 1.0}, items={"batches": 1})
        assert_type(manager.items(3), dict[str, Any])
        restored = manager.restore_latest_valid(like=state)
        if restored is not None:
            state, start = restored
            assert_type(state, State)
            assert_type(start, int)
        try:
            return manager.restore(like=state)
        except CheckpointMismatchError as error:
            print(shown(error.differences))
            raise


x = jnp.ones(3)
state = train(optax.sgd(0.1), x, [x, x])
assert_type(state, State)
assert_type(replace(state.apply_gradients(grads=state.params), key=x), State)
counter = Counter(new_ref(x))
counter.count[...] = counter.count[...] + 1
assert_type(counter.count, Ref)
assert_type(new_ref(x)[...], jax.Array)

assert_type(Net(x, x, sizes=(3,)).sizes, tuple[int, ...])
sizes: tuple[int, ...] = freeze([3, 3])
table: FrozenMapping[str, int] = freeze({"a": 1})
names: frozenset[str] = freeze({"a"})
