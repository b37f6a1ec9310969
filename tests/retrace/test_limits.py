"""Limits that nothing slips through: other threads, a caught error, a misspelt name, listeners that are gone."""

from __future__ import annotations

import contextlib
import gc
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from tests.conftest import skip_before_jax
from tests.retrace.support import details, fresh
from treewright.errors import RetraceWarning, TooManyTracesError

if TYPE_CHECKING:
    from treewright import RetraceReport


def double(x: Any) -> Any:
    return x * 2


clear: Any = jax.monitoring.clear_event_listeners


def on_two_devices(jitted: Any) -> None:
    for device in jax.devices()[:2]:
        jitted(jax.device_put(jnp.ones(2), device))


# ruff: noqa: PT012, SIM117  the block is what raises and warns

# Recompiles


def test_recompiles_can_be_forbidden() -> None:
    with treewright.max_traces(1):
        on_two_devices(jax.jit(fresh(double)))
    with treewright.max_traces(1, recompiles=1):
        on_two_devices(jax.jit(fresh(double)))
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1, recompiles=0):
        on_two_devices(jax.jit(fresh(double)))

    first, second, third, *_ = str(caught.value).splitlines()
    assert first == "double may not be recompiled here, and is:"
    assert second.startswith("double recompiled, without a trace (2nd compilation, ")
    assert third == f"    x (placement): committed to {jax.devices()[0]} -> committed to {jax.devices()[1]}"


# What slips through


def test_an_error_that_is_caught_in_the_block_is_raised_at_its_end() -> None:
    jitted: Any = jax.jit(fresh(double))
    message = (
        r"^double may be traced once here.*\n(.*\n)*\(This was raised in the block before, and did not leave it\.\)$"
    )

    with pytest.raises(TooManyTracesError, match=message), treewright.max_traces(1):
        jitted(jnp.ones(2))
        with contextlib.suppress(Exception):
            jitted(jnp.ones(3))


def test_another_error_stays_what_it_is() -> None:
    jitted: Any = jax.jit(fresh(double))

    def block() -> Never:
        with treewright.max_traces(0):
            with contextlib.suppress(TooManyTracesError):
                jitted(jnp.ones(2))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        block()


def test_one_object_counts_each_block_anew_and_in_one_another() -> None:
    limit = treewright.max_traces(1)
    jitted: Any = jax.jit(fresh(double))

    for length in (2, 3):
        with limit:
            jitted(jnp.ones(length))
    with limit, limit:
        jitted(jnp.ones(4))
    with pytest.raises(TooManyTracesError), limit:
        jitted(jnp.ones(5))
        with limit:
            jitted(jnp.ones(6))


def test_a_name_that_is_never_traced_is_told() -> None:
    jitted: Any = jax.jit(fresh(double))

    with (
        pytest.warns(
            RetraceWarning,
            match=r"only='duoble' has met nothing: .* \(did you mean double\?\) .* Traced were: double\.",
        ) as told,
        treewright.max_traces(1, only="duoble"),
    ):
        jitted(jnp.ones(2))

    assert told[0].filename == __file__
    with pytest.warns(RetraceWarning, match=r"no function of this name was traced .* Traced were: none\."):
        with treewright.max_traces(1, only="step"):
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with treewright.max_traces(0, only="step"):  # it was not to be traced, and was not
            jitted(jnp.ones(3))


# Listeners


@pytest.mark.parametrize("make", [treewright.explain_retraces, lambda: treewright.max_traces(1)])
def test_what_is_made_and_never_used_says_so_at_its_line(make: Any) -> None:
    with pytest.warns(
        RetraceWarning, match=r"was made here and never used, so it sees nothing: write `with .* or `@"
    ) as told:
        make()

    [warning] = told
    assert warning.filename == __file__


# What was traced before the block


class Hostile:
    """Tells nothing of itself."""

    def __getattribute__(self, name: str) -> Never:
        raise RuntimeError("no attributes")


def test_a_shared_trace_whose_arguments_can_not_be_read_is_not_counted() -> None:
    hostile, function = Hostile(), fresh(lambda x, _: x * 2)

    with treewright.max_traces(1):
        every: list[dict[str, Any]] = [{}, {"donate_argnums": ()}, {"keep_unused": True}]
        for options in every:
            jax.jit(function, static_argnums=1, **options)(np.ones(2, np.float32), hostile)


def test_listeners_that_were_cleared_are_registered_again() -> None:
    jitted: Any = jax.jit(fresh(double))

    with treewright.max_traces(0):
        clear()
    with pytest.raises(TooManyTracesError, match="double may not be traced here"), treewright.max_traces(0):
        jitted(jnp.ones(3))


def test_a_report_says_when_earlier_traces_are_forgotten() -> None:
    reports: list[RetraceReport] = []
    jitted: Any = jax.jit(fresh(double))

    with treewright.explain_retraces(on_report=reports.append):
        for length in range(1, 36):
            jitted.trace(jnp.ones(length))

    assert not reports[30].unseen
    assert reports[-1].unseen == "the closest of the last traces; 2 before them are not remembered"


# What was called before the block


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit])
def test_a_block_around_one_slow_call_says_that_the_earlier_trace_was_not_seen(jit: Any) -> None:
    skip_before_jax(0, 10)  # whose cache does not show earlier calls
    reports: list[RetraceReport] = []
    jitted: Any = jit(fresh(double))
    jitted(jnp.ones(2))

    with treewright.explain_retraces(on_report=reports.append):
        jitted(jnp.ones(3))
        jitted(jnp.ones(4))

    first, second = reports
    assert str(first).splitlines()[0].startswith("double retraced (1st trace, ")
    assert (first.is_retrace, first.compared_with) == (True, 0)
    [line] = details(first)
    assert line.startswith("JAX has traces for a call from before the block, whose arguments were not seen; now x: ")
    assert details(second)[0] == "x: float32[3] -> float32[4]"


def test_a_first_call_and_one_after_a_cleared_cache_are_not_reported() -> None:
    reports: list[RetraceReport] = []
    jitted: Any = jax.jit(fresh(double))

    for _ in range(2):
        with treewright.explain_retraces(on_report=reports.append):
            jitted(np.ones(2, np.float32))
        jitted.clear_cache()

    assert not reports


def test_what_was_traced_before_the_block_and_is_compiled_in_it_is_reported() -> None:
    jitted: Any = jax.jit(fresh(double))
    jitted(np.ones(2, np.float32))
    reports: list[RetraceReport] = []

    with treewright.max_traces(0), treewright.explain_retraces(on_report=reports.append):
        for device in jax.devices()[:2]:
            jitted(jax.device_put(np.ones(2, np.float32), device))

    first, second = reports
    assert (first.event, second.event) == ("recompile", "recompile")
    placement = f"x: float32[2] (committed to {jax.devices()[0]})"
    assert details(first) == [f"traced before the block, which was not seen; compiled in it for {placement}"]
    assert details(second)[0] == (f"x (placement): committed to {jax.devices()[0]} -> committed to {jax.devices()[1]}")


# Decorators


@pytest.mark.parametrize("order", ["above", "below"])
def test_a_decorator_above_or_below_jit_watches_its_function_for_as_long_as_it_lives(order: str) -> None:
    reports: list[RetraceReport] = []
    watch = treewright.explain_retraces(on_report=reports.append)
    limit = treewright.max_traces(2)
    function = fresh(double)
    jitted: Any = limit(watch(jax.jit(function))) if order == "above" else jax.jit(limit(watch(function)))
    other: Any = jax.jit(fresh(double))

    for length in (1, 2, 1, 2):
        jitted(jnp.ones(length))
        other(jnp.ones(length))
    for _ in range(2):  # each time
        with pytest.raises(TooManyTracesError, match="double may be traced 2 times here, and is traced once more:"):
            jitted(jnp.ones(3))

    assert [details(report)[0] for report in reports][:1] == ["x: float32[1] -> float32[2]"]


def test_a_decorator_gives_the_function_itself_and_lets_it_die() -> None:
    function = fresh(double)
    decorated = treewright.max_traces(1)(treewright.explain_retraces()(function))
    assert decorated is function
    jax.jit(decorated)(1.0)
    reference = weakref.ref(function)

    del function, decorated
    gc.collect()

    assert reference() is None


def test_a_method_of_a_node_can_be_decorated() -> None:
    class Scale(treewright.Module):
        factor: Any

        @jax.jit
        @treewright.max_traces(1)
        def apply(self, x: Any) -> Any:
            return self.factor * x

    Scale(2.0).apply(jnp.ones(2))
    with pytest.raises(TooManyTracesError, match="apply may be traced once here"):
        Scale(2.0).apply(jnp.ones(3))


def test_a_decorator_is_refused_what_only_a_block_can_have() -> None:
    for watch in (treewright.max_traces(1, only="double"), treewright.explain_retraces(only=double)):
        with pytest.raises(TypeError, match=r"only=...\) decorates double, and a decorator watches its function alone"):
            watch(double)
    wrong: Any = treewright.max_traces(1)
    with pytest.raises(TypeError, match="@max_traces decorates a function, got 3"):
        wrong(3)


def test_explain_retraces_can_watch_one_function_of_a_block() -> None:
    jitted, other = (jax.jit(fresh(function)) for function in (double, lambda y: y))

    for only in ("double", jitted):
        reports: list[RetraceReport] = []
        jitted.clear_cache()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # a method that the stub leaves out
        with treewright.explain_retraces(on_report=reports.append, only=only):
            for length in (1, 2):
                jitted(jnp.ones(length))
                other(jnp.ones(length))
        assert [report.function for report in reports] == ["double"]
