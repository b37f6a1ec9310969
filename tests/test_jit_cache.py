"""The rules of jit's cache, one for each test: which changes retrace, and which never do.

Each call gets a new node, so that no value is equal only because it is the same object; calls differ only in their
statics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.conftest import CountedTraces, count_traces
from treewright import Module, TrainState, field, pytree_dataclass, static
from treewright.checkpoint import CheckpointManager, load, save

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

T = TypeVar("T")


def total(node: Any) -> Any:
    """The sum of all floats."""
    return sum(jnp.sum(leaf * 1.0) for leaf in jax.tree.leaves(node))


# The nodes: each function returns one for a setting.


@pytree_dataclass
class Decorated:
    x: Any
    setting: Any = static(default=None)

    def total(self) -> Any:
        return total(self)


class Plain(Module):
    x: Any
    setting: Any = static(default=None)

    def total(self) -> Any:
        return total(self)


class Nested(Module):
    layers: Any

    def total(self) -> Any:
        return total(self)


class Boxed(Module, Generic[T]):
    value: Any = field()
    setting: T | None = static(default=None)

    def total(self) -> Any:
        return total(self)


class Inherited(Plain):
    y: Any = 2.0


class State(TrainState[Any]):
    def total(self) -> Any:
        return total(self)


def state(setting: Any) -> State:
    return State.create(params=Plain(jnp.ones(2), setting), tx=optax.adam(1e-3))


NODES: dict[str, Callable[[Any], Any]] = {
    "pytree_dataclass": lambda setting: Decorated(jnp.ones(2), setting),
    "Module": lambda setting: Plain(jnp.ones(2), setting),
    "TrainState": state,
    "TrainState with a different optimiser": lambda setting: State.create(
        params={"w": jnp.ones(2)}, tx=optax.sgd(setting)
    ),
    "nested": lambda setting: Nested([Plain(jnp.ones(2)), {"head": Decorated(jnp.ones(2), setting)}]),
    "generic": lambda setting: Boxed(jnp.ones(2), setting),
    "inherited": lambda setting: Inherited(jnp.ones(2), setting, jnp.ones(3)),
}

# The ways of calling: each returns a function of a node that runs `counted` on its argument under jit.


def under_scan(counted: Any) -> Any:
    return jax.jit(lambda node: jax.lax.scan(lambda carry, _: (carry, counted(carry)), node, None, length=2)[1])


def under_grad(counted: Any) -> Any:
    return jax.jit(jax.grad(counted, allow_int=True))


def under_vmap(counted: Any) -> Any:
    jitted = jax.jit(jax.vmap(counted))
    return lambda node: jitted(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), node))


def under_lowering(counted: Any) -> Any:
    jitted = jax.jit(counted)
    return lambda node: jitted.lower(node).compile()(node)


def under_nested_jit(counted: Any) -> Any:
    inner = jax.jit(counted)
    return jax.jit(lambda node: inner(node) + inner(node))


WAYS: dict[str, Callable[[Any], Any]] = {
    "jit": jax.jit,
    "jit of grad": under_grad,
    "grad of jit": lambda counted: jax.grad(jax.jit(counted), allow_int=True),
    "jit of vmap": under_vmap,
    "jit of scan": under_scan,
    "jit in jit": under_nested_jit,
    "lower and compile": under_lowering,
}

each_node = pytest.mark.parametrize("make", NODES.values(), ids=NODES)
each_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


def traces_of(call: Any, counted: CountedTraces[Any, Any], *nodes: Any) -> list[bool]:
    """Whether each call traced."""
    retraced: list[bool] = []
    for node in nodes:
        before = counted.count
        call(node)
        retraced.append(counted.count > before)
    return retraced


# The contract


@each_way
@each_node
def test_only_a_changed_static_retraces(make: Any, way: Any) -> None:
    call = way(counted := count_traces(total))

    settings = (0.1, 0.1, 0.2, 0.1, 0.2, 0.2)

    assert traces_of(call, counted, *map(make, settings)) == [True, False, True, False, False, False]


@each_node
def test_methods_retrace_only_for_changed_statics(make: Any) -> None:
    counted = count_traces(type(make(0.1)).total)

    assert traces_of(jax.jit(counted), counted, *map(make, (0.1, 0.1, 0.2, 0.1))) == [True, False, True, False]


def test_a_result_passed_back_in_does_not_retrace() -> None:
    step: Any = jax.jit(counted := count_traces(lambda state: state.apply_gradients(grads=state.params)))
    current = step(state("relu"))

    for _ in range(3):
        current = step(current)

    assert counted.count == 1


@each_node
def test_a_tree_from_a_checkpoint_does_not_retrace(make: Any, tmp_path: Path) -> None:
    call: Any = jax.jit(counted := count_traces(total))
    save(tmp_path / "file", make(0.1))
    with CheckpointManager(tmp_path / "steps") as manager:
        manager.save(1, make(0.1))
        manager.wait()
        steps = manager.restore_latest_valid(like=jax.eval_shape(lambda: make(0.1)))
    assert steps is not None

    restored = load(tmp_path / "file", like=jax.eval_shape(lambda: make(0.1)))
    assert traces_of(call, counted, make(0.1), restored, steps.tree, make(0.1)) == [True, False, False, False]
