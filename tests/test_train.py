"""`TrainState`: the step never retraces, optimisers are compared by content, and programs for flax's run unchanged."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, TrainState, buffer, max_traces, replace, spec_like, static

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


def test_the_step_is_always_a_strong_int32() -> None:
    state = TrainState.create(params=PARAMS["dict"], tx=optax.sgd(0.1))

    assert is_step(state.step, 0)
    assert is_step(training_step(state).step, 1)
    assert is_step(jax.jit(training_step)(state).step, 1)
    constructor: Any = TrainState  # annotated for arrays, but accepts any number
    for step in (3, np.int64(3), np.array(3), jnp.asarray(3), jnp.array(3, jnp.int8)):
        assert is_step(state.replace(step=step).step, 3)
        assert is_step(replace(state, step=step).step, 3)
        created = constructor(step=step, apply_fn=None, params=1, tx=optax.sgd(0.1), opt_state=())
        assert is_step(created.step, 3)


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
def test_apply_gradients_matches_optax_by_hand(params: Any) -> None:
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


def test_create_accepts_fields_of_subclasses() -> None:
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


# Rejected gradients


def test_the_constructor_initialises_the_optimiser_state() -> None:
    tx = optax.adam(0.1)
    created = TrainState.create(params=PARAMS["Module"], tx=tx)
    state = TrainState(params=PARAMS["Module"], tx=tx)

    assert state == created
    assert state.replace(opt_state=()).opt_state == ()
    with pytest.raises(TypeError, match=r"^TrainState\.create\(\) needs an instance, but got the class Net"):
        TrainState(params=Net, tx=tx)


def test_the_error_without_optax_has_an_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    state = TrainState.create(params=PARAMS["dict"], tx=optax.sgd(0.1))
    monkeypatch.setitem(sys.modules, "optax", None)

    with pytest.raises(
        ImportError, match=r"^TrainState\.apply_gradients needs optax\. Install it with: pip install optax\n"
    ):
        training_step(state)


# Gradients of other shapes and dtypes

F32, BF16, C64 = jnp.float32, jnp.bfloat16, jnp.complex64
WRONG_GRADIENTS: dict[str, tuple[Any, Any, str]] = {
    "one for each example": (
        jnp.ones(3),
        jnp.ones((8, 3)),
        r"one gradient for each example.*32\[3\] -> float32\[8,3\]",
    ),
    "one scalar for each example": (jnp.ones(()), jnp.ones(8), r"one gradient for each example.*-> float32\[8\]"),
    "a scalar that broadcasts": (jnp.ones(3), jnp.ones(()), r"\(shape\): float32\[3\] -> float32\[\]"),
    "one axis of two": (jnp.ones((2, 3)), jnp.ones(3), r"\(shape\): float32\[2,3\] -> float32\[3\]"),
    "complex numbers": (jnp.ones(3), jnp.ones(3, C64), r"\(dtype\): float32\[3\] -> complex64"),
    "a mask": (jnp.ones(3), jnp.ones(3, bool), r"\(dtype\): float32\[3\] -> bool\[3\]"),
    "floats for integers": (jnp.arange(3), jnp.ones(3), r"\(dtype\): int32\[3\] -> float32\[3\]"),
    "no entry": (jnp.ones(3), None, r"\['w'\] \(class\)"),
}


@pytest.mark.parametrize(("params", "grads", "message"), WRONG_GRADIENTS.values(), ids=WRONG_GRADIENTS)
def test_apply_gradients_rejects_gradients_that_would_change_params(params: Any, grads: Any, message: str) -> None:
    state = TrainState.create(params={"w": params}, tx=optax.sgd(0.1))

    def update(state: Any, grads: Any) -> Any:
        return state.apply_gradients(grads={"w": grads})

    for step in (update, jax.jit(update)):
        with pytest.raises(ValueError, match=f"(?s)^TrainState\\.apply_gradients: grads .*{message}"):
            step(state, grads)


@pytest.mark.parametrize(
    "dtypes", [(F32, BF16), (BF16, F32), (BF16, BF16), (C64, C64), (C64, F32), (F32, jnp.int8)], ids=str
)
@pytest.mark.parametrize("tx", [optax.sgd(0.1), optax.adam(0.1)], ids=["sgd", "adam"])
def test_apply_gradients_keeps_the_dtype_of_params(tx: Any, dtypes: Any) -> None:
    params, grads = ({"w": jnp.ones(3, dtype)} for dtype in dtypes)

    updated = jax.jit(TrainState.apply_gradients)(TrainState.create(params=params, tx=tx), grads=grads)

    assert jax.typeof(updated.params["w"]) == jax.typeof(params["w"])
    assert (updated.params["w"].real < 1).all()


def test_apply_gradients_accepts_partial_trees_vmapped_states_and_integers() -> None:
    masked: Any = TrainState.create(
        params={"w": jnp.ones(3), "n": jnp.arange(2), "gap": None},
        tx=optax.partition(
            {"train": optax.sgd(0.5), "keep": optax.set_to_zero()}, {"w": "train", "n": "keep", "gap": None}
        ),
    )
    grads = {"w": jnp.ones(3), "n": jnp.zeros(2, jnp.int32), "gap": None}
    assert masked.apply_gradients(grads=grads).params["w"].tolist() == [0.5] * 3

    state: Any = TrainState.create(params={"w": jnp.ones(3)}, tx=optax.adam(0.1))
    states = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), state)
    each = jax.vmap(lambda state, grads: state.apply_gradients(grads=grads))(states, {"w": jnp.ones((2, 3))})
    assert each.params["w"].shape == (2, 3)


def test_per_example_gradients_reach_the_optimiser() -> None:
    def clipped_mean(updates: Any, state: Any, params: Any = None) -> Any:
        del params
        return jax.tree.map(lambda grad: jnp.clip(grad, -1, 1).mean(0), updates), state

    averaging: Any = optax.GradientTransformation(
        lambda params: (params, ())[1], clipped_mean
    )  # optax.contrib.dpsgd starts this way
    private: Any = TrainState.create(params={"w": jnp.ones(3)}, tx=optax.chain(averaging, optax.adam(0.1)))
    updated = jax.jit(TrainState.apply_gradients)(private, grads={"w": jnp.ones((8, 3))})
    assert updated.params["w"].shape == (3,)

    scaled: Any = TrainState.create(params={"w": jnp.ones(3)}, tx=optax.clip_by_global_norm(1.0))
    with pytest.raises(ValueError, match=r"one gradient for each example"):
        scaled.apply_gradients(grads={"w": jnp.ones((8, 3))})


def test_updates_that_would_be_truncated_are_rejected() -> None:
    state: Any = TrainState.create(params={"n": jnp.arange(3)}, tx=optax.sgd(0.5))

    with pytest.raises(ValueError, match=r"returned updates that can't be added.*\n  params\['n'\] \(dtype\): int32"):
        state.apply_gradients(grads={"n": jnp.arange(3)})


# Optimisers that need more than gradients


class Bowl(Module):
    centre: jax.Array
    scale: jax.Array = buffer()


def bowl_loss(bowl: Bowl) -> jax.Array:
    return jnp.sum(bowl.scale * (bowl.centre - 3) ** 2)


def test_a_line_search_receives_the_loss_of_the_whole_model() -> None:
    @count_traces
    def step(state: TrainState[Bowl]) -> TrainState[Bowl]:
        value, grads = jax.value_and_grad(bowl_loss)(state.params)
        return state.apply_gradients(grads=grads, value=value, value_fn=bowl_loss)

    jitted = jax.jit(step)
    state = TrainState.create(params=Bowl(jnp.zeros(2), jnp.array([1.0, 10.0])), tx=optax.lbfgs())
    for _ in range(8):
        state = jitted(state)

    assert step.count == 1
    assert jnp.allclose(state.params.centre, 3, atol=1e-3)
    assert state.params.scale.tolist() == [1.0, 10.0]


def test_reduce_on_plateau_receives_the_value() -> None:
    tx = optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=1, factor=0.5, cooldown=0))
    state: Any = TrainState.create(params={"w": jnp.ones(2)}, tx=tx)
    for _ in range(3):
        state = state.apply_gradients(grads={"w": jnp.zeros(2)}, value=jnp.ones(()))
    assert optax.tree.get(state.opt_state, "scale") == 0.25

    class Valued(TrainState[Any]):
        value: jax.Array

    valued = Valued.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.1), value=jnp.zeros(()))
    assert valued.apply_gradients(grads={"w": jnp.ones(2)}, value=jnp.ones(())).value == 1


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
    """Trains with batch statistics and dropout, as in flax's guides."""
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


def test_flax_programs_give_the_same_numbers_with_a_changed_import() -> None:
    losses, results = flax_program(OurState)
    expected_losses, expected = flax_program(FlaxState)

    assert losses == expected_losses
    assert losses[-1] < losses[0]
    assert jax.tree.structure(results) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, results, expected)


def test_fields_outside_flax_trees_are_static() -> None:
    class State(TrainState[Any]):
        loss_fn: Any = flax.struct.field(pytree_node=False)
        metrics: Any = flax.struct.field(pytree_node=True, default=None)

    state = State.create(params={"w": jnp.ones(2)}, tx=optax.sgd(0.1), loss_fn=optax.l2_loss, metrics={"n": 1})
    stepped = jax.jit(training_step)(state)

    assert (stepped.loss_fn, int(stepped.metrics["n"])) == (optax.l2_loss, 1)


def test_an_optimiser_with_a_mutated_closure_stays_equal() -> None:
    # At its first call, cosine_decay_schedule converts its number of steps to a float.
    schedule = optax.warmup_cosine_decay_schedule(0.0, 1e-2, 2, 20)
    state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(schedule))

    updated = state.apply_gradients(grads=state.params)

    assert jax.tree.structure(updated) == jax.tree.structure(state)


ONES = {"w": jnp.ones(2), "f": jnp.ones(2)}


def test_the_note_about_callable_labels_is_added_only_if_optax_called_them() -> None:
    net: Any = PARAMS["Module"]
    labels = spec_like(net, "train")
    transforms: Any = {"train": optax.sgd(0.1)}

    def notes(tx: Any) -> list[str]:
        with pytest.raises(Exception) as caught:  # noqa: PT011  any error of tx.init
            TrainState.create(params=net, tx=tx)
        return [note for note in getattr(caught.value, "__notes__", []) if note.startswith("tx.init(params) raised")]

    assert len(notes(optax.partition(transforms, labels))) == 1
    assert notes(optax.partition(transforms, lambda params: spec_like(params, "other"))) == []
    assert (
        notes(optax.GradientTransformation(lambda params: len(jax.tree.leaves(params)) // 0, optax.sgd(0.1).update))
        == []
    )
    TrainState.create(params=net, tx=optax.partition(transforms, lambda params: spec_like(params, "train")))


class UnreadableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_a_note_that_fails_replaces_no_error_of_the_optimiser() -> None:
    def fail(*_: Any) -> Any:
        raise UnreadableError

    bowl, make = Bowl(jnp.ones(2), jnp.ones(2)), cast("Any", optax.GradientTransformation)
    for tx in (make(fail, fail), make(optax.sgd(0.1).init, fail)):
        with pytest.raises(UnreadableError):
            TrainState.create(params=bowl, tx=tx).apply_gradients(grads=bowl)


def test_new_values_of_extra_fields_keep_their_type() -> None:
    class Keyed(TrainState[Any]):
        key: Any
        mean: Any = None

    state: Any = Keyed.create(params=ONES, tx=optax.sgd(0.1), key=jax.random.key(0))

    with pytest.raises(ValueError, match=r"(?s)key=\.\.\.\) would change the type of .*key<fry>\[\] -> uint32\[2\]\n"):
        state.apply_gradients(grads=ONES, key=jax.random.PRNGKey(0))
    new = state.apply_gradients(grads=ONES, key=jax.random.key(1), mean=jnp.ones(2))
    assert new.mean.tolist() == [1, 1]
    assert state.replace(key=jax.random.PRNGKey(0)).key.shape == (2,)


@pytest.mark.parametrize("axis_type", [jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit], ids=str)
def test_a_state_is_created_next_to_committed_parameters(axis_type: Any) -> None:
    mesh = jax.make_mesh((2,), ("d",), axis_types=(axis_type,))
    place = jax.sharding.NamedSharding(mesh, jax.P())  # type: ignore[no-untyped-call]
    step = jax.jit(lambda state: state.apply_gradients(grads=state.params))

    state: Any = TrainState.create(params=jax.device_put(ONES, place), tx=optax.adam(0.1))

    assert state.step.sharding == state.opt_state[0].count.sharding == place
    with max_traces(1, recompiles=0):
        for _ in range(3):
            state = step(state)
