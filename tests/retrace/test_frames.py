"""What is read from the call stack, and what happens where nothing can be."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

import treewright
from tests.retrace.support import details, fresh
from treewright._core.functions import innermost
from treewright.retrace import jax_private as _jax
from treewright.retrace.call import caller
from treewright.retrace.history import described

if TYPE_CHECKING:
    import pytest

    from treewright import RetraceReport


class Double:
    __name__ = "Double"

    def __call__(self, x: Any) -> Any:
        return 2 * x


def scale(factor: float, x: Any) -> Any:
    return factor * x


def test_without_a_frame_of_the_user_no_caller_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_jax, "frames_above", lambda: iter(()))

    assert caller() == ""
    assert _jax.call_on_stack() is None


def test_outside_of_jax_there_is_no_call() -> None:
    assert _jax.call_on_stack() is None
    assert not _jax.called_by_a_library()


def test_partials_are_reported_by_the_name_of_their_function() -> None:
    reports: list[RetraceReport] = []
    jitted: Any = jax.jit(functools.partial(functools.partial(fresh(scale)), 2.0))

    with treewright.explain_retraces(on_report=reports.append):
        jitted(jnp.ones(2))
        jitted(jnp.ones(3))

    assert [(report.function, details(report)[0]) for report in reports] == [("scale", "x: float32[2] -> float32[3]")]


def test_a_function_is_described_past_the_wrappers_of_libraries() -> None:
    class Callable:
        def __call__(self, x: Any) -> Any:
            return x

        def method(self, x: Any) -> Any:
            return x

    made = Callable()

    assert innermost(functools.partial(jax.jit(made.method))) is Callable.method
    assert described(made) == described(made) != described(Callable())
    assert described(made.method) == described(made.method) != described(Callable().method)
    decorated = (jax.vmap(jax.jit(scale)), treewright.traced(scale), scale)
    assert len({described(function).function for function in decorated}) == 1
    assert described(functools.partial(scale, 1.0)).function.func == described(scale).function


def test_callable_objects_are_watched_like_functions() -> None:
    reports: list[RetraceReport] = []
    with treewright.explain_retraces(on_report=reports.append):
        for length in (2, 3):
            double: Any = jax.jit(Double())
            double(jnp.ones(length))

    [report] = reports
    assert details(report)[0].startswith("the function itself: Double has no __eq__")
