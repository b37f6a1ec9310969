"""`explain_retraces` and `max_traces`: every jitted function of the process, for the time of a block."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import treewright
from tests.retrace.support import details, fresh
from treewright import TrainState
from treewright.errors import TooManyTracesError

if TYPE_CHECKING:
    from collections.abc import Callable

    from treewright import RetraceReport

Spec: Any = PartitionSpec  # without a type of its own

pytestmark = pytest.mark.filterwarnings("ignore:Some donated buffers were not usable")


def double(x: Any) -> Any:
    return x * 2


def explained(*calls: Callable[[], object]) -> list[RetraceReport]:
    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        for call in calls:
            call()
    return reports


# Compilations without a trace


def recompile(first: Any, second: Any) -> RetraceReport:
    jitted: Any = jax.jit(fresh(double))
    [report] = explained(lambda: jitted(first), lambda: jitted(second))
    assert report.event == "recompile"
    assert str(report).startswith("double recompiled, without a trace (2nd compilation, ")
    return report


def test_another_sharding_on_automatic_axes_recompiles() -> None:
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Auto,))
    whole, split = (jax.device_put(jnp.ones(8), NamedSharding(mesh, spec)) for spec in (Spec(), Spec("data")))

    line = details(recompile(whole, split))[0]

    assert line.startswith("x (placement): sharded P")
    assert "'data'" in line
    assert line.endswith("over 2 devices")


# What is seen, and what is not


def test_functions_jitted_by_equinox_are_reported_in_their_own_words() -> None:
    @eqx.filter_jit
    def apply(model: eqx.nn.Linear, x: jax.Array, times: int) -> jax.Array:
        return model(x) * times

    key = jax.random.key(0)
    [report] = explained(
        lambda: apply(eqx.nn.Linear(2, 3, key=key), jnp.ones(2), 1),
        lambda: apply(eqx.nn.Linear(2, 3, use_bias=False, key=key), jnp.ones(2), 2),
    )

    assert report.function == "apply"
    assert [line for line in details(report) if not line.startswith(" ")] == [
        "model.use_bias (static): True -> False",
        "model.bias: float32[3] -> None",
        "times (static): 1 -> 2",
        "compared with trace 1",
    ]


def test_functions_jitted_by_flax_are_reported_in_their_own_words() -> None:
    from flax import nnx

    @nnx.jit
    def apply(model: nnx.Linear, x: jax.Array) -> jax.Array:
        return model(x)

    [report] = explained(
        lambda: apply(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 2))),
        lambda: apply(nnx.Linear(2, 3, precision="high", rngs=nnx.Rngs(0)), jnp.ones((4, 2))),
    )

    assert report.function == "apply"
    assert details(report)[:2] == ["model.precision (static): None -> 'high'", "x: float32[1,2] -> float32[4,2]"]


def test_static_arguments_of_functions_jitted_by_flax_are_known() -> None:
    nnx = pytest.importorskip("flax.nnx")
    jitted = nnx.jit(lambda x, exponent: x**exponent, static_argnums=1)

    [report] = explained(lambda: jitted(jnp.ones(2), 2), lambda: jitted(jnp.ones(2), 3))

    assert details(report)[0] == "exponent (static): 2 -> 3"


def test_callers_are_named_past_the_libraries_between() -> None:
    jitted: Any = jax.jit(fresh(double))

    def train() -> None:
        for length in (2, 3):
            jax.tree.map(jitted, [jnp.ones(length)])

    [report] = explained(train)

    assert report.caller.startswith("test_blocks.py:")
    assert report.caller.endswith("in test_callers_are_named_past_the_libraries_between.train")


def test_several_threads_are_told_apart() -> None:
    functions = [jax.jit(fresh(double)) for _ in range(4)]

    def run(function: Any) -> None:
        for length in (2, 3, 2, 4):
            function(jnp.ones(length))

    def in_threads() -> None:
        threads = [threading.Thread(target=run, args=(function,)) for function in functions]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    reports = explained(in_threads)

    assert sorted(report.number for report in reports) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_a_trace_that_was_not_compiled_is_reported_at_the_end() -> None:
    jitted: Any = jax.jit(fresh(double))

    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        jitted.lower(jnp.ones(2))
        jitted.lower(jnp.ones(3))
        assert not reports

    assert [details(report)[0] for report in reports] == ["x: float32[2] -> float32[3]"]


# Limits


def test_a_function_may_be_traced_as_often_as_the_block_allows() -> None:
    jitted: Any = jax.jit(fresh(double))
    jitted(jnp.ones(1))

    with treewright.max_traces(0):
        jitted(jnp.ones(1))
    with treewright.max_traces(2):
        for length in (1, 2, 3, 2, 1):
            jitted(jnp.ones(length))
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1):  # noqa: PT012
        jitted(jnp.ones(4))
        jitted(jnp.ones(5))

    assert "double may be traced once here, and is traced once more:\ndouble retraced (2nd trace" in str(caught.value)
    assert "x: float32[4] -> float32[5]" in str(caught.value)


def test_calls_that_are_no_traces_are_not_counted() -> None:
    jitted: Any = jax.jit(fresh(double))
    jitted(jnp.ones(2))

    with treewright.max_traces(0):
        jitted(jnp.ones(2))
        double(jnp.ones(3))
        jax.vmap(double)(jnp.ones((2, 3)))
        jax.grad(lambda x: double(x).sum())(jnp.ones(3))


def test_a_function_made_again_counts_as_one() -> None:
    def loop(times: int) -> None:
        for factor in range(times):
            jax.jit(lambda x: x * factor)(1.0)  # noqa: B023

    with treewright.max_traces(2):
        loop(2)
    with (
        pytest.raises(TooManyTracesError, match=r"may be traced 2 times .*\n.*\n.*made again"),
        treewright.max_traces(2),
    ):
        loop(3)


def test_the_limit_can_be_for_one_function() -> None:
    def other(x: Any) -> Any:
        return x * 3

    jitted: Any = jax.jit(double)
    other_jitted: Any = jax.jit(other)
    for only in ("other", other, other_jitted):
        other_jitted.clear_cache()
        with treewright.max_traces(1, only=only):
            for length in (1, 2):
                jitted(jnp.ones(length))
            other_jitted(1.0)
        other_jitted.clear_cache()
        with pytest.raises(TooManyTracesError, match="other may not"), treewright.max_traces(0, only=only):
            other_jitted(1.0)


def test_a_training_state_steps_without_a_retrace() -> None:
    optax = pytest.importorskip("optax")
    step: Any = jax.jit(lambda state: state.apply_gradients(grads=jax.tree.map(jnp.ones_like, state.params)))

    with treewright.max_traces(1):
        for _ in range(2):
            state = TrainState.create(params={"w": jnp.ones(2)}, tx=optax.adam(1e-3))
            for _ in range(3):
                state = step(state)
