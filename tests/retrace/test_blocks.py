"""`explain_retraces` and `max_traces`, as a block or a decorator: what is seen, counted and refused."""

from __future__ import annotations

import contextlib
import functools
import gc
import threading
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
from tests.retrace.support import details, explained, fresh
from treewright.errors import RetraceWarning, TooManyTracesError

if TYPE_CHECKING:
    from treewright import RetraceReport


def double(x: Any) -> Any:
    return x * 2


def made(function: Any = double) -> Any:
    return jax.jit(fresh(function))


def lengths(jitted: Any, *numbers: int) -> None:
    for number in numbers:
        jitted(np.ones(number, np.float32))


def on_two_devices(jitted: Any) -> None:
    for device in jax.devices()[:2]:
        jitted(jax.device_put(jnp.ones(2), device))


# ruff: noqa: PT012, SIM117  the block is what raises and warns

# What is seen


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


def test_callers_are_named_past_the_libraries_between() -> None:
    jitted = made()

    def train() -> None:
        for length in (2, 3):
            jax.tree.map(jitted, [jnp.ones(length)])

    [report] = explained(train)

    assert report.caller.startswith("test_blocks.py:")
    assert report.caller.endswith("in test_callers_are_named_past_the_libraries_between.train")


def test_several_threads_are_told_apart() -> None:
    def in_threads() -> None:
        threads = [threading.Thread(target=lengths, args=(made(), 2, 3, 2, 4)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(report.number for report in explained(in_threads)) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_a_trace_that_was_not_compiled_is_reported_at_the_end() -> None:
    reports: list[RetraceReport] = []
    jitted = made()

    with treewright.explain_retraces(on_report=reports.append):
        jitted.lower(jnp.ones(2))
        jitted.lower(jnp.ones(3))
        assert not reports

    assert [details(report)[0] for report in reports] == ["x: float32[2] -> float32[3]"]


def test_one_function_of_a_block_can_be_watched() -> None:
    jitted, other = made(), made(lambda y: y)

    for only in ("double", jitted):
        jitted.clear_cache()
        calls = [functools.partial(lengths, each, 1, 2) for each in (jitted, other)]
        reports = explained(*calls, only=only)
        assert [report.function for report in reports] == ["double"]


def test_a_report_says_when_earlier_traces_are_forgotten() -> None:
    jitted = made(lambda x: 0)

    reports = explained(lambda: [jitted.trace(np.ones(length)) for length in range(1, 36)])

    assert not reports[30].unseen
    assert reports[-1].unseen == "the closest of the last traces; 2 before them are not remembered"


def test_listeners_that_were_cleared_are_registered_again() -> None:
    jitted, clear = made(), jax.monitoring.clear_event_listeners

    with treewright.max_traces(0):
        clear()  # type: ignore[no-untyped-call]
    with pytest.raises(TooManyTracesError, match="double may not be traced here"), treewright.max_traces(0):
        lengths(jitted, 3)


# What was called before the block


@pytest.mark.parametrize("jit", [jax.jit, eqx.filter_jit])
def test_a_block_around_one_slow_call_says_that_the_earlier_trace_was_not_seen(jit: Any) -> None:
    skip_before_jax(0, 10)  # whose cache does not show earlier calls
    jitted: Any = jit(fresh(double))
    lengths(jitted, 2)

    first, second = explained(lambda: lengths(jitted, 3, 4))

    assert str(first).splitlines()[0].startswith("double retraced (1st trace, ")
    assert (first.is_retrace, first.compared_with) == (True, 0)
    [line] = details(first)
    assert line.startswith("JAX has traces for a call from before the block, whose arguments were not seen; now x: ")
    assert details(second)[0] == "x: float32[3] -> float32[4]"


def test_a_first_call_and_one_after_a_cleared_cache_are_not_reported() -> None:
    jitted = made()

    for _ in range(2):
        assert not explained(lambda: lengths(jitted, 2))
        jitted.clear_cache()


def test_what_was_traced_before_the_block_and_is_compiled_in_it_is_reported() -> None:
    jitted = made()
    jitted(np.ones(2, np.float32))

    with treewright.max_traces(0):
        first, second = explained(lambda: on_two_devices(jitted))

    assert (first.event, second.event) == ("recompile", "recompile")
    placement = f"x: float32[2] (committed to {jax.devices()[0]})"
    assert details(first) == [f"traced before the block, which was not seen; compiled in it for {placement}"]
    assert details(second)[0] == f"x (placement): committed to {jax.devices()[0]} -> committed to {jax.devices()[1]}"


# Limits


def test_a_function_may_be_traced_as_often_as_the_block_allows() -> None:
    jitted = made()
    lengths(jitted, 1)

    with treewright.max_traces(0):
        lengths(jitted, 1)
    with treewright.max_traces(2):
        lengths(jitted, 1, 2, 3, 2, 1)
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1):
        lengths(jitted, 4, 5)

    assert "double may be traced once here, and is traced once more:\ndouble retraced (2nd trace" in str(caught.value)
    assert "x: float32[4] -> float32[5]" in str(caught.value)


def test_a_function_made_again_counts_as_one() -> None:
    def loop(times: int) -> None:
        for factor in range(times):
            jax.jit(lambda x: x * factor)(1.0)  # noqa: B023

    with treewright.max_traces(2):
        loop(2)
    with pytest.raises(TooManyTracesError, match=r"may be traced 2 times .*\n.*\n.*made again"):
        with treewright.max_traces(2):
            loop(3)


def test_recompiles_can_be_forbidden() -> None:
    for recompiles in (None, 1):
        with treewright.max_traces(1, recompiles=recompiles):
            on_two_devices(made())
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1, recompiles=0):
        on_two_devices(made())

    first, second, third, *_ = str(caught.value).splitlines()
    assert first == "double may not be recompiled here, and is:"
    assert second.startswith("double recompiled, without a trace (2nd compilation, ")
    assert third == f"    x (placement): committed to {jax.devices()[0]} -> committed to {jax.devices()[1]}"


def test_the_limit_can_be_for_one_function() -> None:
    def other(x: Any) -> Any:
        return x * 3

    jitted, other_jitted = made(), jax.jit(other)
    for only in ("other", other, other_jitted):
        other_jitted.clear_cache()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]  # a method that the stub leaves out
        with treewright.max_traces(1, only=only):
            lengths(jitted, 1, 2)
            other_jitted(1.0)
        other_jitted.clear_cache()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        with pytest.raises(TooManyTracesError, match="other may not"), treewright.max_traces(0, only=only):
            other_jitted(1.0)


def test_an_error_that_is_caught_in_the_block_is_raised_at_its_end() -> None:
    message = (
        r"^double may be traced once here.*\n(.*\n)*\(This was raised in the block before, and did not leave it\.\)$"
    )

    with pytest.raises(TooManyTracesError, match=message), treewright.max_traces(1):
        with contextlib.suppress(Exception):
            lengths(made(), 2, 3)


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(KeyError, match="mine"), treewright.max_traces(0):
        with contextlib.suppress(TooManyTracesError):
            lengths(made(), 2)
        raise KeyError("mine")


def test_one_object_counts_each_block_anew_and_in_one_another() -> None:
    limit, jitted = treewright.max_traces(1), made()

    for length in (2, 3):
        with limit:
            lengths(jitted, length)
    with limit, limit:
        lengths(jitted, 4)
    with pytest.raises(TooManyTracesError), limit:
        lengths(jitted, 5)
        with limit:
            lengths(jitted, 6)


def test_a_name_that_is_never_traced_is_told() -> None:
    jitted = made()
    unknown = r"only='duoble' has met nothing: .* \(did you mean double\?\) .* Traced were: double\."

    with pytest.warns(RetraceWarning, match=unknown) as told, treewright.max_traces(1, only="duoble"):
        lengths(jitted, 2)

    assert told[0].filename == __file__
    with pytest.warns(RetraceWarning, match=r"no function of this name was traced .* Traced were: none\."):
        with treewright.max_traces(1, only="step"):
            pass
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with treewright.max_traces(0, only="step"):  # it was not to be traced, and was not
            lengths(jitted, 3)


def test_a_shared_trace_whose_arguments_can_not_be_read_is_not_counted() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Never:
            raise RuntimeError("no attributes")

    hostile, function = Hostile(), fresh(lambda x, _: x * 2)

    with treewright.max_traces(1):
        every: list[dict[str, Any]] = [{}, {"donate_argnums": ()}, {"keep_unused": True}]
        for options in every:
            jax.jit(function, static_argnums=1, **options)(np.ones(2, np.float32), hostile)


# Decorators


@pytest.mark.parametrize("order", ["above", "below"])
def test_a_decorator_above_or_below_jit_watches_its_function_for_as_long_as_it_lives(order: str) -> None:
    reports: list[RetraceReport] = []
    watch, limit = treewright.explain_retraces(on_report=reports.append), treewright.max_traces(2)
    function = fresh(double)
    jitted: Any = limit(watch(jax.jit(function))) if order == "above" else jax.jit(limit(watch(function)))
    other = made()

    for length in (1, 2, 1, 2):
        lengths(jitted, length)
        lengths(other, length)
    for _ in range(2):  # each time
        with pytest.raises(TooManyTracesError, match="double may be traced 2 times here, and is traced once more:"):
            lengths(jitted, 3)

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


@pytest.mark.parametrize("make", [treewright.explain_retraces, lambda: treewright.max_traces(1)])
def test_what_is_made_and_never_used_says_so_at_its_line(make: Any) -> None:
    with pytest.warns(
        RetraceWarning, match=r"was made here and never used, so it sees nothing: write `with .* or `@"
    ) as told:
        make()

    [warning] = told
    assert warning.filename == __file__
