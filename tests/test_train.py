"""`TrainState`: the step never retraces, optimisers are compared by content, and programs for flax's run unchanged."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, TrainState, replace, spec_like, static

pytestmark = pytest.mark.slow

flax: Any = importorskip("flax", "flax.linen", "flax.training.train_state")
nn: Any = flax.linen


class Net(Module):
    kernel: jax.Array
    bias: jax.Array
    activation: str = static(default="tanh")

    def __call__(self, x: jax.Array) -> jax.Array:
        activation: Any = getattr(jnp, self.activation)
        return jnp.asarray(activation(x @ self.kernel + self.bias[None, :]))


class Dense(nn.Module):  # type: ignore[misc]  # Any
    features: int
    scale: float = 1.0

    @nn.compact  # type: ignore[untyped-decorator]  # Any
    def __call__(self, x: Any) -> Any:
        return self.scale * nn.Dense(self.features)(x)


KERNEL, BIAS = jnp.arange(6.0).reshape(3, 2), jnp.array([0.5, -1.0])
PARAMS: dict[str, Any] = {
    "Module": Net(KERNEL, BIAS),
    "dict": {"kernel": KERNEL, "bias": BIAS},
    "tuple": (KERNEL, [BIAS]),
    "array": KERNEL,
}
if isinstance(flax, ModuleType):
    PARAMS["FrozenDict"] = flax.core.FrozenDict({"dense": {"kernel": KERNEL, "bias": BIAS}})
    PARAMS["flax parameters"] = Dense(2).init(jax.random.key(0), jnp.ones((4, 3)))["params"]


def loss_of(params: Any) -> Any:
    return sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def training_step(state: Any) -> Any:
    return state.apply_gradients(grads=jax.grad(loss_of)(state.params))


def is_step(step: Any, value: int) -> bool:
    """Whether `step` is the strong int32 of this value."""
    return (step.dtype, step.shape, step.weak_type, int(step)) == (jnp.int32, (), False, value)


# The step


def test_the_step_is_a_strong_int32_wherever_it_comes_from() -> None:
    state = TrainState.create(params=PARAMS["dict"], tx=optax.sgd(0.1))

    assert is_step(state.step, 0)
    assert is_step(training_step(state).step, 1)
    assert is_step(jax.jit(training_step)(state).step, 1)
    constructor: Any = TrainState  # annotated for arrays, and takes any number
    for step in (3, np.int64(3), np.array(3), jnp.asarray(3), jnp.array(3, jnp.int8)):
        assert is_step(state.replace(step=step).step, 3)
        assert is_step(replace(state, step=step).step, 3)
        made = constructor(step=step, apply_fn=None, params=1, tx=optax.sgd(0.1), opt_state=())
        assert is_step(made.step, 3)


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_five_steps_and_a_replaced_step_trace_once(params: Any) -> None:
    jitted = jax.jit(counted := count_traces(training_step))
    state = TrainState.create(params=params, tx=optax.adam(1e-3))

    for _ in range(5):
        state = jitted(state)
    state = jitted(state.replace(step=3))

    assert is_step(state.step, 4)
    assert counted.count == 1
    assert jax.tree.structure(state.params) == jax.tree.structure(params)


# Updates


@pytest.mark.parametrize("params", PARAMS.values(), ids=PARAMS)
def test_apply_gradients_does_what_optax_does_by_hand(params: Any) -> None:
    tx = optax.adamw(0.1, weight_decay=0.1)
    state = TrainState.create(params=params, tx=tx)
    by_hand, opt_state = params, tx.init(params)

    for _ in range(3):
        grads = jax.grad(loss_of)(by_hand)
        state = state.apply_gradients(grads=grads)
        updates, opt_state = tx.update(grads, opt_state, by_hand)
        by_hand = optax.apply_updates(by_hand, updates)

    jax.tree.map(np.testing.assert_array_equal, state.params, by_hand)
    jax.tree.map(np.testing.assert_array_equal, state.opt_state, opt_state)
    assert is_step(state.step, 3)
    assert loss_of(state.params) < loss_of(params)


# More fields


class BatchState(TrainState[Any]):
    batch_stats: Any
    key: jax.Array
    note: str = static(default="")


def test_a_subclass_adds_fields_and_create_takes_them() -> None:
    key = jax.random.key(1)
    state = BatchState.create(params=PARAMS["dict"], tx=optax.sgd(0.1), batch_stats={"mean": jnp.zeros(2)}, key=key)

    @jax.jit
    def step(state: BatchState) -> BatchState:
        grads = jax.grad(loss_of)(state.params)
        key, _ = jax.random.split(state.key)
        return state.apply_gradients(grads=grads, batch_stats={"mean": state.batch_stats["mean"] + 1}, key=key)

    updated = step(step(state))

    assert type(updated) is BatchState
    assert (is_step(updated.step, 2), updated.note) == (True, "")
    assert updated.batch_stats["mean"].tolist() == [2.0, 2.0]
    assert updated.key.dtype == key.dtype
    assert updated.replace(note="a").note == "a"


# What is refused


def test_the_constructor_makes_the_optimisers_state_where_none_is_given() -> None:
    tx = optax.adam(0.1)
    created = TrainState.create(params=PARAMS["Module"], tx=tx)
    state = TrainState(params=PARAMS["Module"], tx=tx)

    assert state == created
    assert state.replace(opt_state=()).opt_state == ()
    with pytest.raises(
        TypeError, match=r"^TrainState\.create\(params=\.\.\.\) takes the parameters, and was given the cl"
    ):
        TrainState(params=Net, tx=tx)


def test_what_the_optimiser_can_not_compute_with_is_named() -> None:
    params: Any = {"w": jnp.ones(2), "n": jnp.arange(2)}
    state = TrainState.create(params=params, tx=optax.adam(0.1))
    grads = jax.grad(lambda params: params["w"].sum(), allow_int=True)(params)

    with pytest.raises(
        ValueError, match=r"params\['n'\] holds integers, which have no gradient.*static\(\), or as buffer\(\)"
    ):
        state.apply_gradients(grads=grads)


def test_labels_that_optax_would_call_get_a_note() -> None:
    net: Any = PARAMS["Module"]
    tx = optax.partition({"a": optax.sgd(0.1)}, spec_like(net, "a"))

    with pytest.raises(TypeError) as caught:
        TrainState.create(params=net, tx=tx)
    (note,) = caught.value.__notes__
    assert note.startswith("tx.init(params) raised this. Optax calls a mask or labels that can be called, as a spec of")


def test_without_optax_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    state = TrainState.create(params=PARAMS["dict"], tx=optax.sgd(0.1))
    monkeypatch.setitem(sys.modules, "optax", None)

    with pytest.raises(
        ImportError, match=r"^TrainState\.apply_gradients needs optax\. Install it with: pip install optax\n"
    ):
        training_step(state)


# A program for flax's TrainState


class Block(nn.Module):  # type: ignore[misc]  # Any
    @nn.compact  # type: ignore[untyped-decorator]  # Any
    def __call__(self, x: Any, *, train: bool) -> Any:
        x = nn.Dense(8)(x)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.Dropout(0.3, deterministic=not train)(nn.relu(x))
        return nn.Dense(1)(x)


class FlaxState(flax.training.train_state.TrainState):  # type: ignore[misc]  # Any
    batch_stats: Any
    key: jax.Array


class OurState(TrainState[Any]):
    batch_stats: Any
    key: jax.Array


def flax_program(state_class: Any) -> tuple[list[float], Any]:
    """Trains with batch statistics and dropout, as flax's guides write it."""
    pytest.importorskip("flax")
    model = Block()
    key = jax.random.key(0)
    x = jax.random.normal(key, (16, 4))
    variables = model.init(key, x, train=False)
    state: Any = state_class.create(
        apply_fn=model.apply,
        params=variables["params"],
        batch_stats=variables["batch_stats"],
        key=key,
        tx=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(optax.cosine_decay_schedule(0.1, 10))),
    )

    @jax.jit
    def train_step(state: Any, x: jax.Array, y: jax.Array) -> tuple[Any, jax.Array]:
        dropout = jax.random.fold_in(key=state.key, data=state.step)

        def loss_of(params: Any) -> Any:
            logits, updates = state.apply_fn(
                {"params": params, "batch_stats": state.batch_stats},
                x,
                train=True,
                mutable=["batch_stats"],
                rngs={"dropout": dropout},
            )
            return jnp.mean(optax.l2_loss(logits, y)), updates

        (loss, updates), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        return state.apply_gradients(grads=grads).replace(batch_stats=updates["batch_stats"]), loss

    losses: list[float] = []
    while state.step < 5:
        state, loss = train_step(state, x, x.sum(axis=1, keepdims=True))
        losses.append(loss.item())
    return losses, (int(state.step), state.params, state.batch_stats, state.opt_state)


def test_a_program_for_flax_gives_the_same_numbers_with_the_import_changed() -> None:
    losses, results = flax_program(OurState)
    expected_losses, expected = flax_program(FlaxState)

    assert losses == expected_losses
    assert losses[-1] < losses[0]
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, results, expected)


def test_a_field_that_flax_keeps_out_of_the_tree_is_static() -> None:
    class State(TrainState[Any]):
        loss_fn: Any = flax.struct.field(pytree_node=False)
        metrics: Any = flax.struct.field(pytree_node=True, default=None)

    state = State.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.1), loss_fn=optax.l2_loss, metrics={"n": 1})
    stepped = jax.jit(training_step)(state)

    assert (stepped.loss_fn, int(stepped.metrics["n"])) == (optax.l2_loss, 1)


def test_an_optimiser_that_assigns_to_what_it_captured_stays_the_same_static() -> None:
    # cosine_decay_schedule makes a float of its number of steps when it is first called.
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20)
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(schedule))

    updated = state.apply_gradients(grads=state.params)

    assert jax.tree.structure(updated) == jax.tree.structure(state)
