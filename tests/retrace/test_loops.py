"""Retraces of a loop's step: reported by the user's names and paths, and limited as for any function."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

import treewright
from tests.retrace.support import explained
from treewright import Module, TrainState, loop, static
from treewright.errors import TooManyTracesError


class Net(Module):
    kernel: Any
    activation: str = static(default="tanh")


def train_state(activation: str = "tanh") -> Any:
    return TrainState.create(params=Net(jnp.arange(3.0), activation), tx=optax.adam(0.1))


def training_step(state: Any, x: Any) -> tuple[Any, Any]:
    loss, grads = jax.value_and_grad(lambda net: jnp.sum((net.kernel * x) ** 2))(state.params)
    return state.apply_gradients(grads=grads), loss


def count(state: Any) -> tuple[Any, Any]:
    return state + 1, None


def test_retraces_of_a_loop_are_reported_by_state_and_input_paths() -> None:
    def train() -> None:
        run = loop(training_step, train_state())
        for size in (3, 3, 1):
            run(jnp.ones(size))
        run.state = train_state("sin")
        run(jnp.ones(1))

    reports = explained(train)

    assert [report.function for report in reports] == ["training_step"] * 2
    assert [str(difference) for difference in reports[0].differences] == [
        "x (shape): float32[3] -> float32[1]; axis 0: 3 -> 1"
    ]
    assert [str(difference) for difference in reports[1].differences] == [
        f"state.{place}.activation (static): 'tanh' -> 'sin'"
        for place in ("params", "opt_state[0].mu", "opt_state[0].nu")
    ]
    assert "test_loops.py" in reports[0].caller


def test_max_traces_counts_the_step_of_a_loop() -> None:
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state + x.sum(), None

    run = loop(step, jnp.zeros(()))

    def train() -> None:
        with treewright.max_traces(1, only=step):
            run(jnp.ones(1))
            loop(count, jnp.zeros(1))()
            loop(count, jnp.zeros(2))()
            run(jnp.ones(2))

    with pytest.raises(TooManyTracesError, match=r"x: float32\[1\] -> float32\[2\]"):
        train()

    assert run.state == 1.0


def test_jax_errors_name_the_path_in_the_state() -> None:
    def step(state: Any, x: Any) -> tuple[Any, Any]:
        return state, float(state["net"].kernel[0])

    with pytest.raises(jax.errors.ConcretizationTypeError, match=r"state\['net'\]\.kernel"):
        loop(step, {"net": Net(jnp.ones(3))})(1.0)


@pytest.mark.devices(4)
def test_a_state_on_a_different_device_is_reported_as_a_recompile() -> None:
    def move() -> None:
        run = loop(count, jnp.zeros(2))
        for place in (0, 1):
            run.state = jax.device_put(jnp.zeros(2), jax.devices()[place])
            run()

    [report] = explained(move)
    assert report.event == "recompile"
    assert [str(difference).partition(":")[0] for difference in report.differences] == ["state (placement)"]
