"""optax: each transformation trains a node with a buffer as it trains a dict without one, in one trace."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces, importorskip
from treewright import Module, TrainState, buffer

if TYPE_CHECKING:
    from collections.abc import Callable

optax: Any = importorskip("optax")
pytestmark = pytest.mark.slow


class Net(Module):
    bias: jax.Array
    kernel: jax.Array  # after bias, as in a dict: some transformations draw noise in the order of the leaves
    mean: jax.Array = buffer()


BIAS, KERNEL = jnp.linspace(-1.0, 1.0, 4), jnp.linspace(-1.0, 2.0, 12).reshape(3, 4)
MEAN = jnp.full(4, 5.0)
# Called with the rate alone, or without arguments.
WITH_RATE = """
adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw novograd
optimistic_adam_v2 optimistic_gradient_descent radam rmsprop rprop sgd sign_sgd signum sm3 yogi ema adaptive_grad_clip
add_decayed_weights clip clip_by_block_rms clip_by_global_norm keep_params_nonnegative scale zero_nans
normalize_by_update_norm scale_by_adam scale_by_belief scale_by_factored_rms scale_by_learning_rate scale_by_lion
scale_by_param_block_norm scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rss scale_by_sign scale_by_sm3
scale_by_stddev scale_by_trust_ratio scale_by_yogi trace set_to_zero
"""
WITHOUT = """
keep_params_nonnegative zero_nans normalize_by_update_norm scale_by_adam scale_by_belief scale_by_factored_rms
scale_by_lion scale_by_param_block_norm scale_by_param_block_rms scale_by_radam scale_by_rms scale_by_rss scale_by_sign
scale_by_sm3 scale_by_stddev scale_by_trust_ratio scale_by_yogi set_to_zero
"""
CONTRIBUTED = """
acprop ademamix adopt cocob dadapt_adamw dog dowg madgrad muon prodigy schedule_free_adamw simplified_ademamix
"""
OTHERS: dict[str, Callable[[], Any]] = {
    "add_noise": lambda: optax.chain(optax.sgd(0.1), optax.add_noise(0.1, 0.5, 0)),
    "apply_every": lambda: optax.chain(optax.sgd(0.1), optax.apply_every(2)),
    "centralize": lambda: optax.chain(optax.centralize(), optax.sgd(0.1)),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.adam(0.1), 3),
    "flatten": lambda: optax.flatten(optax.adam(0.1)),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "MultiSteps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1),
    "warmup": lambda: optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 2, 10)),
}
QUICK = {"adam", "adamw", "sgd", "lion", "clip_by_global_norm", "add_noise", "inject_hyperparams"}


def make(name: str) -> Any:
    if name in OTHERS:
        return OTHERS[name]()
    factory = getattr(optax.contrib if name in CONTRIBUTED.split() else optax, name, None)
    if factory is None:
        pytest.skip(f"this optax has no {name}")
    arguments = {"ema": (0.9,), "cocob": (), "trace": (0.9,)}.get(name, () if name in WITHOUT.split() else (0.1,))
    return factory(*arguments)


def loss_of(params: Any) -> Any:
    bias, kernel = (params["bias"], params["kernel"]) if isinstance(params, dict) else (params.bias, params.kernel)
    return jnp.sum((jnp.ones(3) @ kernel + bias - 0.5) ** 2)


def trained(params: Any, tx: Any) -> Any:
    """The parameters after four steps, which are one trace."""
    counted = count_traces(lambda state: state.apply_gradients(grads=jax.grad(loss_of)(state.params)))
    state: Any = TrainState.create(params=params, tx=tx)
    step = jax.jit(counted)
    for _ in range(4):
        state = step(state)
    assert counted.count == 1
    return state.params


NAMES = [*WITH_RATE.split(), *CONTRIBUTED.split(), *OTHERS]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in NAMES]
)
def test_a_transformation_trains_a_node_with_a_buffer_as_a_dict_without(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optax's, about its own functions
        tx = make(name)
    theirs: Any = {"bias": BIAS, "kernel": KERNEL}
    opt_state = tx.init(theirs)

    @jax.jit
    def step(params: Any, opt_state: Any) -> Any:
        updates, opt_state = tx.update(jax.grad(loss_of)(params), opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    for _ in range(4):
        theirs, opt_state = step(theirs, opt_state)
    ours = trained(Net(BIAS, KERNEL, MEAN), tx)

    for mine, other in ((ours.bias, theirs["bias"]), (ours.kernel, theirs["kernel"])):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-6)
    assert ours.mean.tolist() == MEAN.tolist()
