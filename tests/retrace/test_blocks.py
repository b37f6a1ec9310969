"""`explain_retraces` and `max_traces`, as a block or a decorator: observed calls, counts, and errors."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import threading
import warnings
import weakref
from typing import TYPE_CHECKING, Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treewright
from tests.expected_text import without_varying_parts
from tests.retrace.support import details, explained, fresh
from treewright.errors import RetraceWarning, TooManyTracesError

if TYPE_CHECKING:
    from treewright import RetraceReport


def double(x: Any) -> Any:
    return x * 2


def jitted_copy(function: Any = double) -> Any:
    return jax.jit(fresh(function))


def call_with_lengths(jitted: Any, *numbers: int) -> None:
    for number in numbers:
        jitted(np.ones(number, np.float32))


def on_two_devices(jitted: Any) -> None:
    for device in jax.devices()[:2]:
        jitted(jax.device_put(jnp.ones(2), device))


# ruff: noqa: PT012, SIM117  the block is what raises and warns

# Observed calls


def test_the_reported_caller_is_the_users_line() -> None:
    jitted = jitted_copy()

    def train() -> None:
        for length in (2, 3):
            jax.tree.map(jitted, [jnp.ones(length)])

    [report] = explained(train)

    assert report.caller.startswith("test_blocks.py:")
    assert report.caller.endswith("in test_the_reported_caller_is_the_users_line.train")


def test_reports_distinguish_threads() -> None:
    def in_threads() -> None:
        threads = [threading.Thread(target=call_with_lengths, args=(jitted_copy(), 2, 3, 2, 4)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert sorted(report.number for report in explained(in_threads)) == [2, 2, 2, 2, 3, 3, 3, 3]


def test_an_uncompiled_trace_is_reported_at_the_end() -> None:
    reports: list[RetraceReport] = []
    jitted = jitted_copy()

    with treewright.explain_retraces(on_report=reports.append):
        jitted.lower(jnp.ones(2))
        jitted.lower(jnp.ones(3))
        assert not reports

    assert [details(report)[0] for report in reports] == ["x: float32[2] -> float32[3]"]


# Calls before the block


def test_a_new_trace_of_a_function_with_earlier_programs_is_reported() -> None:
    jitted: Any = jax.jit(fresh(double))
    call_with_lengths(jitted, 2, 6, 7)

    first, second = explained(lambda: call_with_lengths(jitted, 2, 3, 4, 2))

    assert str(first).startswith("double traced (1st observed trace, ")
    assert details(first) == ["it had up to 3 programs before, whose arguments were not seen"]
    assert (first.is_retrace, first.compared_with, first.before) == (True, None, 3)
    assert (second.is_retrace, second.compared_with, second.before) == (True, 1, 0)
    assert details(second)[0] == "x: float32[3] -> float32[4]"


def test_equinox_has_one_cache_for_functions_of_one_name_so_earlier_programs_are_unknown() -> None:
    jitted: Any = eqx.filter_jit(fresh(double))
    call_with_lengths(jitted, 2)

    [report] = explained(lambda: call_with_lengths(jitted, 3, 4))

    assert (report.is_retrace, report.compared_with) == (True, 1)


def test_the_first_trace_of_a_function_is_no_retrace_even_if_others_of_its_definition_had_programs() -> None:
    def times(factor: float) -> Any:
        return jax.jit(lambda x: x * factor)

    call_with_lengths(times(1.0), 1)

    assert not explained(lambda: call_with_lengths(times(2.0), 1))


@pytest.mark.parametrize("where", ["before", "inside"])
def test_a_call_that_failed_is_no_retrace(where: str) -> None:
    jitted = jitted_copy(lambda x: x.reshape(3))

    def fail() -> None:
        with pytest.raises(TypeError):
            call_with_lengths(jitted, 2)

    if where == "before":
        fail()
        reports = explained(lambda: call_with_lengths(jitted, 3))
        # JAX keeps an entry for it, so the report does not say "retraced", and "up to" one program.
        assert [str(report).partition(" (")[0] for report in reports] == ["<lambda> traced"]
    else:
        assert not explained(fail, lambda: call_with_lengths(jitted, 3))


def test_calls_that_other_threads_have_begun_are_earlier_calls() -> None:
    inside = threading.Barrier(4)
    seen = set[int]()

    def wait(x: Any) -> Any:
        if x.size not in seen:
            seen.add(x.size)
            inside.wait()
        return x

    jitted = jitted_copy(wait)

    def in_threads() -> None:
        threads = [threading.Thread(target=call_with_lengths, args=(jitted, length)) for length in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    reports = explained(in_threads)

    assert 3 in {report.before for report in reports} <= {0, 3}
    assert not any(report.differences for report in reports if report.before)


def test_limits_count_the_new_traces_of_a_function_with_earlier_programs() -> None:
    jitted = jitted_copy()
    call_with_lengths(jitted, 1)

    with treewright.max_traces(1):
        call_with_lengths(jitted, 1, 2)
    with pytest.raises(TooManyTracesError, match="up to 2 programs before, whose arguments"), treewright.max_traces(0):
        call_with_lengths(jitted, 3)


@pytest.mark.parametrize(
    "trace",
    [
        jax.eval_shape,
        lambda function, x: jax.make_jaxpr(function)(x),
        lambda function, x: jax.jit(function).trace(x),
        lambda function, x: jax.jit(function).eval_shape(x),  # type: ignore[no-untyped-call]
        lambda function, x: eqx.filter_eval_shape(function, x),
    ],
    ids=["eval_shape", "make_jaxpr", "trace", "method", "equinox"],
)
def test_traces_for_no_program_are_neither_reported_nor_counted(trace: Any) -> None:
    def trace_both() -> None:
        for length in (2, 3):
            trace(lambda x: x * 2, np.ones(length, np.float32))

    with treewright.max_traces(0):
        assert not explained(trace_both)


def test_a_trace_for_no_program_counts_once_a_call_uses_it() -> None:
    jitted = jitted_copy()

    def shapes_first(*lengths: int) -> None:
        for length in lengths:
            x = np.ones(length, np.float32)
            jax.eval_shape(jitted, x)
            jitted(x)
            jax.eval_shape(jitted, x)

    [report] = explained(lambda: shapes_first(2, 2), lambda: shapes_first(3))

    assert (report.event, report.number, details(report)[0]) == ("trace", 2, "x: float32[2] -> float32[3]")
    with pytest.raises(TooManyTracesError, match="double was traced twice"), treewright.max_traces(1):
        shapes_first(4, 5)


def test_calls_after_a_cleared_cache_are_not_reported() -> None:
    jitted = jitted_copy()

    for _ in range(2):
        assert not explained(lambda: call_with_lengths(jitted, 2))
        jitted.clear_cache()


@pytest.mark.devices(2)
def test_functions_traced_before_the_block_are_reported_when_they_recompile() -> None:
    jitted = jitted_copy()
    jitted(np.ones(2, np.float32))

    with treewright.max_traces(0):
        first, report = explained(lambda: on_two_devices(jitted))

    assert str(first).startswith("double recompiled, without a trace (1st observed compilation, ")
    assert (first.event, report.event) == ("recompile", "recompile")
    places = [without_varying_parts(str(device)) for device in jax.devices()[:2]]
    assert details(report)[0] == f"x (placement): committed to {places[0]} -> committed to {places[1]}"


# Limits


def test_max_traces_allows_traces_up_to_its_limit() -> None:
    jitted = jitted_copy()
    call_with_lengths(jitted, 1)

    with treewright.max_traces(0):
        call_with_lengths(jitted, 1)
    with treewright.max_traces(2):
        call_with_lengths(jitted, 1, 2, 3, 2, 1)
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1):
        call_with_lengths(jitted, 4, 5)

    assert "double was traced twice; the limit is 1:\ndouble retraced (2nd trace" in str(caught.value)
    assert "x: float32[4] -> float32[5]" in str(caught.value)


def test_a_recreated_function_counts_as_the_same_function() -> None:
    def loop(times: int) -> None:
        for factor in range(times):
            jax.jit(lambda x: x * factor)(1.0)  # noqa: B023

    with treewright.max_traces(2):
        loop(2)
    with pytest.raises(TooManyTracesError, match=r"was traced 3 times; the limit is 2:\n.*\n.*recreated"):
        with treewright.max_traces(2):
            loop(3)


@pytest.mark.devices(2)
def test_max_traces_can_forbid_recompiles() -> None:
    for recompiles in (None, 1):
        with treewright.max_traces(1, recompiles=recompiles):
            on_two_devices(jitted_copy())
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1, recompiles=0):
        on_two_devices(jitted_copy())

    first, second, third, *_ = str(caught.value).splitlines()
    assert first == "double was recompiled; the limit is 0:"
    assert second.startswith("double recompiled, without a trace (2nd compilation, ")
    assert third == f"    x (placement): committed to {jax.devices()[0]} -> committed to {jax.devices()[1]}"


def test_max_traces_can_limit_one_function() -> None:
    def other(x: Any) -> Any:
        return x * 3

    jitted, other_jitted = jitted_copy(), jax.jit(other)
    for only in ("other", other, other_jitted):
        other_jitted.clear_cache()  # type: ignore[attr-defined]  # a method that the stub leaves out
        with treewright.max_traces(1, only=only):
            call_with_lengths(jitted, 1, 2)
            other_jitted(1.0)
        other_jitted.clear_cache()  # type: ignore[attr-defined]
        with (
            pytest.raises(TooManyTracesError, match="other was traced; the limit is 0"),
            treewright.max_traces(0, only=only),
        ):
            other_jitted(1.0)


def test_the_name_of_a_class_limits_its_objects_and_the_class_itself() -> None:
    for name, jitted in (("Scale", jax.jit(Scale(2.0))), ("EquinoxScale", jax.jit(EquinoxScale))):
        with (
            pytest.raises(TooManyTracesError, match=f"^{name} was traced; the limit is 0"),
            treewright.max_traces(0, only=name),
        ):
            jitted(1.0)


def test_a_caught_limit_error_is_raised_at_the_end_of_the_block() -> None:
    message = r"^double was traced twice.*\n(.*\n)*\(The error was raised inside the block, but caught there or .*$"

    with pytest.raises(TooManyTracesError, match=message), treewright.max_traces(1):
        with contextlib.suppress(Exception):
            call_with_lengths(jitted_copy(), 2, 3)


def test_other_errors_pass_through_the_block() -> None:
    with pytest.raises(KeyError, match="mine"), treewright.max_traces(0):
        with contextlib.suppress(TooManyTracesError):
            call_with_lengths(jitted_copy(), 2)
        raise KeyError("mine")


def test_max_traces_counts_each_block_separately() -> None:
    limit, jitted = treewright.max_traces(1), jitted_copy()

    for length in (2, 3):
        with limit:
            call_with_lengths(jitted, length)
    with limit, limit:
        call_with_lengths(jitted, 4)
    with pytest.raises(TooManyTracesError), limit:
        call_with_lengths(jitted, 5)
        with limit:
            call_with_lengths(jitted, 6)


def test_max_traces_fails_if_only_matches_no_function() -> None:
    jitted = jitted_copy()
    unknown = r"only='duoble' matched nothing: .* \(did you mean double\?\)\. Traced functions: double\. If it was"

    with pytest.raises(ValueError, match=unknown), treewright.max_traces(1, only="duoble"):
        call_with_lengths(jitted, 2)
    with treewright.max_traces(1, only="step"):  # nothing was traced: a finished run that is started again
        call_with_lengths(jitted, 2)
    with treewright.max_traces(1, only="step"):  # only a function of a library: `step` was compiled before the block
        jax.jit(fresh(optax.tree.norm))(jnp.ones(2))
    with pytest.raises(KeyError, match="mine"), treewright.max_traces(1, only="step"):
        raise KeyError("mine")
    with treewright.max_traces(1, only=jitted):  # a function that was compiled before the block
        call_with_lengths(jitted, 2)


def test_max_traces_warns_if_only_is_misspelt() -> None:
    jitted = jitted_copy()

    with pytest.warns(RetraceWarning, match=r"only='duoble' matched nothing: .* double") as warned:
        with treewright.max_traces(0, only="duoble"):
            call_with_lengths(jitted, 2)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with treewright.max_traces(0, only="step"):  # correct: it must not be traced
            call_with_lengths(jitted, 3)


def test_traces_with_unreadable_arguments_are_counted_once_and_reported() -> None:
    class Hostile:
        def __getattribute__(self, name: str) -> Never:
            raise RuntimeError("no attributes")

    hostile, function = Hostile(), fresh(lambda x, _: x * 2)

    def call(length: int) -> None:
        every: list[dict[str, Any]] = [{}, {"donate_argnums": ()}, {"keep_unused": True}]
        for options in every:
            jax.jit(function, static_argnums=1, **options)(np.ones(length, np.float32), hostile)

    with treewright.max_traces(2):
        [report] = explained(lambda: call(2), lambda: call(3))
    assert details(report) == ["the arguments could not be compared, because an __eq__ or __hash__ failed"]


# Decorators


@pytest.mark.parametrize("order", ["above", "below"])
def test_a_decorator_above_or_below_jit_watches_its_function(order: str) -> None:
    reports: list[RetraceReport] = []
    watch, limit = treewright.explain_retraces(on_report=reports.append), treewright.max_traces(2)
    function = fresh(double)
    jitted: Any = limit(watch(jax.jit(function))) if order == "above" else jax.jit(limit(watch(function)))
    other = jitted_copy()

    for length in (1, 2, 1, 2):
        call_with_lengths(jitted, length)
        call_with_lengths(other, length)
    for _ in range(2):  # each time
        with pytest.raises(TooManyTracesError, match="double was traced 3 times; the limit is 2:"):
            call_with_lengths(jitted, 3)

    assert [details(report)[0] for report in reports][:1] == ["x: float32[1] -> float32[2]"]


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: Any

    def __call__(self, x: Any) -> Any:
        return x * self.factor


class EquinoxScale(eqx.Module):
    factor: Any

    def __call__(self, x: Any) -> Any:
        return x * self.factor


class EqualScale:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, EqualScale) and other.factor == self.factor

    def __hash__(self) -> int:
        return hash(self.factor)

    def __call__(self, x: Any) -> Any:
        return x * self.factor


@pytest.mark.parametrize("cls", [Scale, EquinoxScale, EqualScale])
def test_reports_keep_no_array_of_a_captured_object_alive(cls: Any) -> None:
    def call_with_new_array() -> weakref.ref[Any]:
        scale = cls(jnp.ones(2))
        jax.jit(lambda x: scale(x))(1.0)
        return weakref.ref(scale.factor)

    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        references = [call_with_new_array(), call_with_new_array()]
    jax.clear_caches()  # type: ignore[no-untyped-call]
    gc.collect()

    assert len(reports) == 1
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("cls", [Scale, EquinoxScale, EqualScale])
def test_a_block_does_not_change_the_number_of_traces(cls: Any) -> None:
    """JAX shares the trace of an equal function only while the first one is alive."""

    def call_equal_functions() -> None:
        for _ in range(3):
            jax.jit(cls(2.0))(1.0)

    assert len(explained(call_equal_functions)) == 2


def test_retraces_of_the_functions_that_a_plain_function_calls_are_reported() -> None:
    reports: list[RetraceReport] = []

    @treewright.explain_retraces(on_report=reports.append)
    def epoch(step: Any) -> None:
        call_with_lengths(step, 2, 3)

    epoch(jitted_copy())

    assert [details(report)[0] for report in reports] == ["x: float32[2] -> float32[3]"]


@pytest.mark.parametrize("order", [*itertools.permutations(("vmap", "grad", "plain"))])
def test_a_plain_call_beside_transformations_is_no_recompile(order: tuple[str, ...]) -> None:
    function: Any = jax.jit(fresh(lambda x: x.sum() * 2))
    calls = {"vmap": jax.vmap(function), "grad": jax.grad(function), "plain": function}

    with treewright.max_traces(1, recompiles=0):
        for name in order * 2:
            calls[name](jnp.ones((4, 3)) if name == "vmap" else jnp.ones(3))


def test_batch_sizes_under_vmap_count_as_recompiles_and_gradients_do_not() -> None:
    jitted = jax.jit(fresh(lambda x: (x * x).sum()))

    def batches(function: Any, *sizes: int) -> None:
        for size in sizes:
            jax.vmap(function)(np.ones((size, 2), np.float32))

    with treewright.max_traces(1, recompiles=0):
        for _ in range(2):
            jax.grad(jitted)(np.ones(2, np.float32))
        batches(jax.grad(jitted), 3, 3)
        batches(jitted, 3)
    with treewright.max_traces(1, recompiles=1):
        batches(jitted, 3, 4, 3)
    with pytest.raises(TooManyTracesError) as caught, treewright.max_traces(1, recompiles=0):
        batches(jitted_copy(lambda x: x + 1), 3, 4)

    first, _, third, *_ = str(caught.value).splitlines()
    assert first == "<lambda> was recompiled; the limit is 0:"
    assert third == "    the size of vmap: 3 -> 4"


def test_a_method_of_a_node_can_be_decorated() -> None:
    class Scale(treewright.Module):
        factor: Any

        @jax.jit
        @treewright.max_traces(1)
        def apply(self, x: Any) -> Any:
            return self.factor * x

    Scale(2.0).apply(jnp.ones(2))
    with pytest.raises(TooManyTracesError, match="apply was traced twice; the limit is 1"):
        Scale(2.0).apply(jnp.ones(3))


def test_a_decorator_rejects_options_of_blocks() -> None:
    for watch in (treewright.max_traces(1, only="double"), treewright.explain_retraces(only=double)):
        with pytest.raises(
            TypeError, match=r"only=...\) decorates double, but a decorator tracks only its own function"
        ):
            watch(double)
    for wrong, text in ((3, r"3\.$"), (Scale, r"Scale\. Write only='Scale'\.$")):
        with pytest.raises(TypeError, match=r"@max_traces needs a function, got (3|Scale)"):
            treewright.max_traces(1)(wrong)  # type: ignore[type-var]
        with pytest.raises(TypeError, match=r"max_traces\(only=...\) needs a function or its name, got " + text):
            treewright.max_traces(1, only=wrong)  # type: ignore[arg-type]
    bare: Any = treewright.explain_retraces
    with pytest.raises(TypeError, match=r"takes no positional argument, got .*double\. Write @explain_retraces\(\)"):
        bare(double)


@pytest.mark.parametrize("make", [treewright.explain_retraces, lambda: treewright.max_traces(1)])
def test_an_unused_block_warns_at_its_line(make: Any) -> None:
    with pytest.warns(
        RetraceWarning, match=r"was created here but never used, so it has no effect. Write `with .* or `@"
    ) as warnings_of_block:
        make()

    [warning] = warnings_of_block
    assert warning.filename == __file__
