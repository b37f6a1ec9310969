"""Limits that nothing slips through: other threads, a caught error, a misspelt name, listeners that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import warnings
from typing import TYPE_CHECKING, Any, Never

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src import monitoring

import treewright
from tests.retrace.support import fresh
from treewright.errors import RetraceWarning, TooManyTracesError
from treewright.retrace import jax_private as _jax
from treewright.retrace import watch
from treewright.retrace.jax_private import EventListener
from treewright.retrace.traced import PROCESS

if TYPE_CHECKING:
    from treewright import RetraceReport


def double(x: Any) -> Any:
    return x * 2


clear: Any = jax.monitoring.clear_event_listeners


def on_two_devices(jitted: Any) -> None:
    for device in jax.devices()[:2]:
        jitted(jax.device_put(jnp.ones(2), device))


# ruff: noqa: PT012, PT031, SIM117  the block is what raises and warns

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


def test_recompiles_are_refused_where_they_can_not_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(PROCESS), "hears_compilations", False)

    with pytest.raises(RuntimeError, match=r"can't count recompiles: JAX .* Drop recompiles=, or update Treewright"):
        treewright.max_traces(1, recompiles=0).__enter__()
    with treewright.max_traces(1):
        pass


@pytest.mark.parametrize("options", [{"only": "double"}, {"recompiles": 0}])
def test_a_decorator_is_not_given_what_is_for_a_block(options: Any) -> None:
    [name] = options

    with pytest.raises(TypeError, match=rf"max_traces\(1, {name}=...\) decorates double, and a decorator counts"):
        treewright.max_traces(1, **options)(double)


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


def test_an_error_in_another_thread_is_raised_at_the_end_of_the_block() -> None:
    jitted: Any = jax.jit(fresh(double))

    def run() -> None:
        with contextlib.suppress(TooManyTracesError):
            jitted(jnp.ones(2))

    def block() -> None:
        with treewright.max_traces(0):
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()

    with pytest.raises(TooManyTracesError, match="double may not be traced here"):
        block()


def test_an_error_in_a_task_is_raised_at_the_end_of_the_block() -> None:
    jitted: Any = jax.jit(fresh(double))

    async def main() -> None:
        with treewright.max_traces(0):
            await asyncio.gather(asyncio.to_thread(jitted, jnp.ones(2)), return_exceptions=True)

    with pytest.raises(TooManyTracesError, match="double may not be traced here"):
        asyncio.run(main())


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
            match=r"only='duoble'\) has counted nothing: .* \(did you mean double\?\) .* Traced were: double\.",
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
    with pytest.warns(RetraceWarning, match=r"was made here and never used, so it sees nothing: write `with ") as told:
        make()

    [warning] = told
    assert warning.filename == __file__


def test_what_was_used_does_not_say_that_it_was_not() -> None:
    for block in (treewright.explain_retraces(on_report=str), treewright.max_traces(1)):
        with block, block:
            pass
    treewright.max_traces(1)(double)
    with pytest.raises(TypeError, match="decorates double"):
        treewright.max_traces(1, only="double")(double)


def test_listeners_that_were_cleared_are_made_anew_and_a_block_says_so() -> None:
    jitted: Any = jax.jit(fresh(double))
    others = list(monitoring.get_event_duration_listeners())

    with pytest.warns(RetraceWarning, match="clear_event_listeners.* was called meanwhile"):
        with treewright.max_traces(0):
            clear()
            jitted(jnp.ones(2))
    outer = EventListener()
    clear()
    with pytest.raises(TooManyTracesError), treewright.max_traces(0):
        jitted(jnp.ones(3))
    assert outer.has_heard
    outer.stop()
    for listener in others:
        jax.monitoring.register_event_duration_secs_listener(listener)


def test_a_block_ends_where_unregistering_would_fail() -> None:
    reports: list[RetraceReport] = []

    with pytest.warns(RetraceWarning), treewright.explain_retraces(on_report=reports.append):
        clear()

    assert not PROCESS.listeners
    assert not _jax._RELAY.is_known_to_jax()


@pytest.mark.parametrize("form", ["traced", "explain_retraces"])
def test_a_program_goes_on_where_on_report_raises(form: str) -> None:
    def refuse(report: RetraceReport) -> Never:
        raise KeyError(report.function)

    jitted: Any = jax.jit(treewright.traced(fresh(double), on_report=refuse) if form == "traced" else fresh(double))
    block = treewright.explain_retraces(on_report=refuse) if form != "traced" else contextlib.nullcontext()

    with (
        pytest.warns(RetraceWarning, match=r"on_report=.*refuse raised KeyError: 'double'\. The program goes on; .*"),
        block,
    ):
        results = [jitted(jnp.ones(length)).shape for length in (2, 3)]

    assert results == [(2,), (3,)]


# Without what tells a trace from a shared one


def test_without_the_outcome_of_a_call_signatures_tell_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax, "TRACE_LOCALS", ("fun", "dbg", "renamed"))
    monkeypatch.setitem(vars(PROCESS), "sight", _jax.look())
    jitted: Any = jax.jit(fresh(double))
    reports: list[RetraceReport] = []

    with (
        pytest.warns(RetraceWarning, match="does not show .* whether a call was traced or got the trace of another"),
        treewright.explain_retraces(on_report=reports.append),
    ):
        jitted(jnp.ones(2))
        jitted(jnp.ones(3))
        jax.jit(jitted.__wrapped__, keep_unused=True)(jnp.ones(3))
        jitted.clear_cache()
        jitted(jnp.ones(3))

    assert [(report.event, report.number) for report in reports][:1] == [("trace", 2)]
    assert reports[-1].event == "trace"
    assert not PROCESS.sight.outcomes


def test_a_trace_from_before_the_block_is_known_as_such() -> None:
    function = fresh(double)
    jax.jit(function)(jnp.ones(2))
    reports: list[RetraceReport] = []

    with treewright.max_traces(1), treewright.explain_retraces(on_report=reports.append):
        jax.jit(function, donate_argnums=0)(jnp.ones(2))
        jax.jit(function)(jnp.ones(3))

    [report] = reports
    assert str(report).splitlines()[0].startswith("double retraced (1st trace, ")
    assert str(report).splitlines()[-1] == (
        "    compared with a trace that was not seen: from before the block, or inside of another"
    )


def test_what_was_traced_before_the_block_is_compiled_in_it_in_silence() -> None:
    jitted: Any = jax.jit(fresh(double))
    jitted(np.ones(2, np.float32))
    reports: list[RetraceReport] = []

    with treewright.max_traces(0), treewright.explain_retraces(on_report=reports.append):
        jitted(jax.device_put(np.ones(2, np.float32), jax.devices()[0]))
        assert not reports
        jitted(jax.device_put(np.ones(2, np.float32), jax.devices()[1]))

    [report] = reports
    assert (report.event, report.compared_with) == ("recompile", 0)


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


def test_a_shared_trace_that_can_not_be_looked_at_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    read: Any = _jax.call_on_stack
    monkeypatch.setattr(watch, "call_on_stack", lambda: dataclasses.replace(read(), outcome="shared"))
    monkeypatch.setattr(watch, "signature_of", None)

    with treewright.max_traces(0):
        jax.jit(fresh(double))(np.ones(2, np.float32))


def test_a_report_says_when_earlier_traces_are_forgotten() -> None:
    reports: list[RetraceReport] = []
    jitted: Any = jax.jit(treewright.traced(fresh(double), on_report=reports.append))

    for length in range(1, 36):
        jitted.trace(jnp.ones(length))

    assert not reports[30].unseen
    assert reports[-1].unseen == "the closest of the last traces; 2 before them are not remembered"


def test_each_argument_has_a_line_however_many_places_of_another_changed() -> None:
    def tree(length: int) -> dict[str, Any]:
        return {f"x{index}": np.ones((length, index + 1), np.float32) for index in range(60)}

    report = treewright.explain(lambda tree, other: tree, (tree(4), 1.0), (tree(3), jnp.ones(3)))

    lines = str(report).splitlines()
    assert len(lines) == 52
    assert lines[3] == "    other: Python float -> float32[3]"
    assert lines[-1] == "    ... and 71 more lines"
