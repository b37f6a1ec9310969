"""A training step that changes its state in place: the same numbers, no copy, and words for what JAX refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.conftest import count_traces
from treewright import (
    AsRef,
    Module,
    TrainState,
    allclose,
    buffer,
    combine,
    diff,
    from_refs,
    partition,
    replace,
    to_refs,
    trainable,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Net(Module):
    kernel: jax.Array
    mean: AsRef = buffer()

    def __call__(self, x: jax.Array) -> jax.Array:
        mean = 0.9 * self.mean[...] + 0.1 * x.mean(0)
        self.mean[...] = mean
        return (x - mean[None]) @ self.kernel


class Averaged(TrainState[Any]):
    """With the mean of its weights over time, which every update moves."""

    average: Any

    def apply_gradients(self, *, grads: Any, **changes: Any) -> Self:
        state = super().apply_gradients(grads=grads, **changes)
        weights = partition(state.params, trainable)[0]
        average = jax.tree.map(lambda old, new: 0.5 * old + 0.5 * new, self.average, weights)
        return state.replace(average=average)


def net() -> Net:
    return Net(jnp.full((3, 2), 0.5), jnp.zeros(3))


def loss_of(weights: Any, buffers: Any, x: jax.Array) -> jax.Array:
    out: jax.Array = combine(weights, buffers)(x)
    return jnp.mean(out**2)


def in_place(state: TrainState[Any], x: jax.Array) -> jax.Array:
    loss: jax.Array
    weights, buffers = partition(state.params, trainable)
    loss, grads = jax.value_and_grad(loss_of)(from_refs(weights), buffers, x)
    state.update_in_place(grads=grads)
    return loss


def returning(state: TrainState[Any], x: jax.Array) -> tuple[TrainState[Any], jax.Array]:
    """The same by hand: the refs of the net are made inside, and what they hold is given back."""
    params = to_refs(state.params, "mean")
    weights, buffers = partition(params, trainable)
    loss, grads = jax.value_and_grad(loss_of)(weights, buffers, x)
    return state.apply_gradients(grads=grads).replace(params=combine(_applied(state, grads), from_refs(buffers))), loss


def _applied(state: TrainState[Any], grads: Any) -> Any:
    return partition(state.apply_gradients(grads=grads).params, trainable)[0]


BATCHES = jax.random.normal(jax.random.key(0), (4, 5, 3))


def injected() -> Any:
    return optax.chain(optax.clip_by_global_norm(1.0), optax.inject_hyperparams(optax.adam)(0.1))


def every_second() -> Any:
    return optax.MultiSteps(optax.sgd(0.1), 2)


@pytest.mark.parametrize(
    "tx",
    [
        lambda: optax.adamw(0.1),
        *(pytest.param(tx, marks=pytest.mark.exhaustive) for tx in (lambda: optax.sgd(0.1), injected, every_second)),
    ],
)
def test_a_step_in_place_gives_the_numbers_of_one_that_returns_its_state(tx: Callable[[], Any]) -> None:
    start = TrainState.create(params=from_refs(net()), tx=tx())
    refs, state = to_refs(start), start
    step, other = jax.jit(counted := count_traces(in_place)), jax.jit(returning)

    for x in BATCHES:
        loss = step(refs, x)
        state, expected = other(state, x)
        assert allclose(loss, expected)

    assert counted.count == 1
    assert allclose(from_refs(refs), state)
    assert diff(from_refs(refs), state, values=False) == []
    assert not allclose(from_refs(refs), start)


def test_the_program_takes_as_much_memory_as_with_a_donated_state() -> None:
    start = TrainState.create(params=from_refs(net()), tx=optax.adam(0.1))
    in_refs: Any = jax.jit(in_place).lower(to_refs(start), BATCHES[0]).compile().memory_analysis()
    donated: Any = jax.jit(returning, donate_argnums=0).lower(start, BATCHES[0]).compile().memory_analysis()

    assert in_refs.alias_size_in_bytes == donated.alias_size_in_bytes
    assert in_refs.output_size_in_bytes == donated.output_size_in_bytes


def test_each_ref_stays_the_same_object_and_nothing_is_used_up() -> None:
    start = TrainState.create(params=from_refs(net()), tx=optax.adam(0.1))
    refs = to_refs(start)
    before = [id(leaf) for leaf in jax.tree.leaves(refs)]
    jax.jit(in_place)(refs, BATCHES[0])

    assert [id(leaf) for leaf in jax.tree.leaves(refs)] == before
    assert int(refs.step[...]) == 1
    assert int(start.step) == 0


def test_an_update_outside_of_jit_and_of_a_subclass_with_more_fields() -> None:
    weights = partition(from_refs(net()), trainable)[0]
    start = Averaged.create(params=from_refs(net()), tx=optax.sgd(0.1), average=weights)
    grads = jax.tree.map(jnp.ones_like, weights)
    one, other = to_refs(start), to_refs(start)

    one.update_in_place(grads=grads)
    jax.jit(lambda state: state.update_in_place(grads=grads))(other)

    assert allclose(from_refs(one), start.apply_gradients(grads=grads))
    assert allclose(one, other)


def test_other_fields_are_changed_along_and_buffers_may_be_arrays() -> None:
    class WithKey(TrainState[Any]):
        key: Any
        seen: Any

    start = WithKey.create(params=from_refs(net()), tx=optax.sgd(0.1), key=jax.random.key(0), seen=jnp.zeros((), int))
    state = to_refs(start, lambda path, _: path != ".params.mean")

    @jax.jit
    def step(state: WithKey) -> jax.Array:
        key, now = jax.random.split(state.key[...])
        grads = jax.tree.map(jnp.ones_like, from_refs(partition(state.params, trainable)[0]))
        state.update_in_place(grads=grads, key=key, seen=state.seen[...] + 2)
        return jax.random.normal(now)

    drawn = {float(step(state)) for _ in range(3)}
    assert len(drawn) == 3
    assert int(state.seen[...]) == 6
    assert isinstance(state.params.mean, jax.Array)


# Refusals

GRADS: Any = jax.tree.map(jnp.ones_like, partition(from_refs(net()), trainable)[0])


class WithStats(TrainState[Any]):
    stats: Any


def state_of(params: Any, **fields: Any) -> TrainState[Any]:
    return TrainState.create(params=params, tx=optax.adam(0.1), **fields)


@pytest.mark.parametrize(
    ("state", "path"),
    [
        (to_refs(state_of(from_refs(net()))), "step"),
        (to_refs(state_of(from_refs(net())), "params"), "params.kernel"),
        (to_refs(state_of(from_refs(net())), "opt_state"), r"opt_state\[0\].count"),
    ],
)
def test_apply_gradients_says_what_to_do_with_refs_that_it_would_have_to_give_anew(state: Any, path: str) -> None:
    with pytest.raises(TypeError, match=rf"^TrainState\.{path} is a ref\. apply_gradients gives a new state") as error:
        state.apply_gradients(grads=GRADS)
    assert "state = to_refs(state) before the first step, and state.update_in_place(grads=...) in it" in str(
        error.value
    )


def test_apply_gradients_keeps_refs_of_buffers_and_refuses_where_jax_could_not_return_them() -> None:
    state = state_of(net())

    after = state.apply_gradients(grads=GRADS)
    assert after.params.mean is state.params.mean
    with pytest.raises(TypeError, match=r"^TrainState\.params\.mean is a ref\. .* JAX returns no refs from jit"):
        jax.jit(lambda state: state.apply_gradients(grads=GRADS))(state)
    arrays = jax.jit(lambda state: from_refs(state).apply_gradients(grads=GRADS))(state)
    assert allclose(arrays, after)


@pytest.mark.parametrize(
    ("state", "changes", "message"),
    [
        (state_of(from_refs(net())), {}, r"^TrainState\.step is i32\[\], not a ref, so its new value would be lost"),
        (
            to_refs(state_of(from_refs(net())), lambda path, _: "kernel" not in path or "opt" in path),
            {},
            r"^TrainState\.params\.kernel is f32\[3,2\], not a ref",
        ),
        (
            to_refs(WithStats.create(params=from_refs(net()), tx=optax.sgd(0.1), stats=jnp.ones(2))),
            {"stats": [jnp.ones(2)]},
            r"^WithStats can't change its structure in place: \.stats \(class\): ",
        ),
    ],
)
def test_an_update_that_would_be_lost_is_refused_and_nothing_is_written(state: Any, changes: Any, message: str) -> None:
    before = from_refs(state)
    with pytest.raises(TypeError, match=message):
        state.update_in_place(grads=GRADS, **changes)
    assert allclose(from_refs(state), before)


def test_a_value_of_another_shape_or_dtype_is_refused() -> None:
    state: Any = to_refs(WithStats.create(params=from_refs(net()), tx=optax.sgd(0.1), stats=jnp.ones(2)))
    for value in (jnp.ones(3), jnp.ones(2, int)):
        with pytest.raises(TypeError, match=r"^WithStats\.stats is f32\[2\]\(ref\), and can't hold [fi]32\[[23]\]\.$"):
            state.update_in_place(grads=GRADS, stats=value)
    assert state.stats[...].tolist() == [1, 1]


def test_a_changed_static_is_refused() -> None:
    class Twice(TrainState[Any]):
        def apply_gradients(self, *, grads: Any, **changes: Any) -> Self:
            return replace(super().apply_gradients(grads=grads, **changes), apply_fn=jnp.sin)

    state: Any = to_refs(Twice.create(params=from_refs(net()), tx=optax.sgd(0.1)))
    with pytest.raises(
        TypeError, match=r"Twice can't change its structure in place: \.apply_fn \(static\): None -> sin"
    ):
        state.update_in_place(grads=GRADS)
