"""`apply_gradients(buffers=...)`: the state gets the statistics that a loss returns, under every transformation."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from tests.conftest import count_traces
from treewright import Module, TrainState, buffer, combine, loop, partition, replace, static, trainable
from treewright.testing import assert_trees_close

pytestmark = pytest.mark.slow

lax: Any = jax.lax  # JAX leaves pmean untyped.


class Norm(Module):
    """Batch norm that counts its batches, with a key that nothing trains."""

    scale: jax.Array
    mean: jax.Array = buffer()
    count: jax.Array = buffer()
    key: Any = buffer(default=None)
    axis: str | None = static(default=None)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, Norm]:
        mean = x.mean(axis=0)
        if self.axis is not None:
            mean = lax.pmean(mean, self.axis)
        new = replace(self, mean=0.9 * self.mean + 0.1 * mean, count=self.count + 1)
        return (x - mean[None]) * self.scale[None], new


class Net(Module):
    kernel: jax.Array
    norm: Norm

    def __call__(self, x: jax.Array) -> tuple[jax.Array, Net]:
        y, norm = self.norm(x @ self.kernel)
        return y, replace(self, norm=norm)


X = jnp.arange(24.0).reshape(8, 3) / 24
NET = Net(jnp.ones((3, 2)), Norm(jnp.ones(2), jnp.zeros(2), jnp.zeros((), jnp.int32), jax.random.key(1)))
OTHER_AXIS = replace(NET, norm=replace(NET.norm, axis="data"))


def loss_of(net: Net, x: jax.Array) -> tuple[jax.Array, Net]:
    y, net = net(x)
    return jnp.mean((y - 1.0) ** 2), net


def gradients(net: Net, x: jax.Array = X) -> tuple[Any, Net]:
    """Gradients and the new network. Integers and keys, which may be buffers, have no gradients."""
    grads_and_net: tuple[Any, Net] = jax.grad(loss_of, has_aux=True, allow_int=True)(net, x)
    return grads_and_net


def new_state(net: Net = NET) -> TrainState[Net]:
    return TrainState.create(params=net, tx=optax.adamw(0.1))


def training_step(state: TrainState[Net], x: jax.Array) -> tuple[TrainState[Net], None]:
    grads, net = gradients(state.params, x)
    return state.apply_gradients(grads=grads, buffers=net), None


jitted_step = jax.jit(training_step)


def after_three() -> TrainState[Net]:
    state = new_state()
    for _ in range(3):
        state, _ = jitted_step(state, X)
    return state


def test_apply_gradients_with_buffers_matches_partition_and_combine() -> None:
    @jax.jit
    def by_hand(state: TrainState[Net]) -> Net:
        weights, buffers = partition(state.params, trainable)
        grads, new = jax.grad(lambda weights: loss_of(combine(weights, buffers), X), has_aux=True)(weights)
        updated, _ = partition(state.apply_gradients(grads=grads).params, trainable)
        combined: Net = combine(updated, partition(new, trainable)[1])
        return combined

    stepped, _ = jitted_step(new_state(), X)

    assert_trees_close(stepped.params, by_hand(new_state()))
    assert stepped.params.norm.mean.tolist() != [0.0, 0.0]
    assert int(stepped.params.norm.count) == 1
    assert jax.tree.structure(stepped) == jax.tree.structure(new_state())


# Ways to run a step


def test_states_with_buffers_trace_once_and_work_in_scan_and_loop() -> None:
    expected = after_three()
    jitted = jax.jit(counted := count_traces(training_step))
    state = new_state()
    for _ in range(3):
        state, _ = jitted(state, X)
    scanned, _ = jax.lax.scan(lambda state, _: training_step(state, X), new_state(), length=3)
    run = loop(training_step, jax.tree.map(jnp.copy, new_state()))
    for _ in range(3):
        run(X)

    assert counted.count == 1
    for result in (state, scanned, run.state):
        assert_trees_close(result, expected, atol=1e-6)


# Rejected buffers


def spoiled(**changes: Any) -> Any:
    return replace(NET, norm=replace(NET.norm, **changes))


OTHERS: dict[str, tuple[Any, str]] = {
    "an axis of the batch": (spoiled(mean=jnp.zeros((8, 2))), r"params\.norm\.mean \(shape\): .*\[2\] -> .*\[8,2\]"),
    "a dtype": (spoiled(mean=jnp.zeros(2, jnp.bfloat16)), r"params\.norm\.mean \(dtype\): float32\[2\] -> bfloat16"),
    "a lost count": (spoiled(count=jnp.zeros(())), r"params\.norm\.count \(dtype\): int32\[\] -> float32\[\]"),
    "a buffer less": (spoiled(key=None), r"params\.norm\.key \(class\): .* -> None"),
    "a static": (OTHER_AXIS, r"params\.norm\.axis \(static\): None -> 'data'"),
    "only the layer": (NET.norm, r"params \(class\): Net\(kernel, norm\) -> Norm\(scale, mean"),
    "a dict": ({"mean": jnp.zeros(2)}, r"params \(class\): Net\(kernel, norm\) -> dict\('mean'\)"),
    "a pair": ((NET, None), r"params \(class\): Net\(kernel, norm\) -> tuple"),
}


@pytest.mark.parametrize(("buffers", "difference"), OTHERS.values(), ids=OTHERS)
def test_buffers_that_would_change_the_type_of_the_state_are_rejected(buffers: Any, difference: str) -> None:
    grads, _ = jax.eval_shape(gradients, NET)
    with pytest.raises(ValueError, match=rf"^TrainState\.apply_gradients\(buffers=\.\.\.\) would.*\n  {difference}"):
        new_state().apply_gradients(grads=grads, buffers=buffers)


def test_weakly_typed_buffers_match_their_dtype() -> None:
    grads, new = jax.jit(gradients)(NET)
    weak = replace(new, norm=replace(new.norm, mean=jnp.full(2, 1.0), count=jnp.asarray(1)))

    assert new_state().apply_gradients(grads=grads, buffers=weak).params.norm.mean.tolist() == [1.0, 1.0]
