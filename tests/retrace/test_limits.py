"""`max_traces` as a decorator: each use has its own limit. A trace counts for the use through which it is called."""

from __future__ import annotations

import functools
import gc
import threading
import unittest.mock
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from treewright import loop, max_traces
from treewright.errors import TooManyTracesError

if TYPE_CHECKING:
    from collections.abc import Callable

Use = Any  # a function of one array


def new_function() -> Any:
    def double(x: Any) -> Any:
        return 2 * x

    return double


def is_allowed(use: Use, length: int) -> bool:
    """Call with an array of this length; False if that is one trace too many."""
    try:
        use(jnp.ones(length))
    except TooManyTracesError:
        return False
    return True


def nnx_jit(function: Any) -> Any:
    from flax import nnx

    return nnx.jit(function)


def as_method(function: Any, jit: Callable[[Any], Any]) -> Use:
    class Model:
        step = max_traces(1)(jit(function))

    return Model.step


def through_a_decorator(function: Any) -> Use:
    """A decorator of the user's own, between the limit and `jit`."""
    jitted = jax.jit(function)

    @functools.wraps(jitted)
    def logged(x: Any) -> Any:
        return jitted(x)

    return max_traces(1)(logged)


def through_a_function(function: Any) -> Use:
    jitted = jax.jit(function)
    return lambda x: jitted(x)


def called_with(function: Any) -> Any:
    """A function of two arguments, the same one for each use."""
    if not hasattr(function, "with_number"):
        jitted = jax.jit(function)
        function.with_number = lambda _number, x: jitted(x)
    return function.with_number


class Calling:
    def __init__(self, function: Any) -> None:
        self.function = function

    def call(self, x: Any) -> Any:
        return self.function(x)

    @functools.partial(jax.jit, static_argnums=0)
    def jitted(self, x: Any) -> Any:
        return self.function(x)


class EquinoxCalling(eqx.Module):
    function: Any = eqx.field(static=True)

    def call(self, x: Any) -> Any:
        return self.function(x)

    @eqx.filter_jit
    def jitted(self, x: Any) -> Any:
        return self.function(x)


ABOVE: dict[str, Callable[[Any], Use]] = {
    "jit": lambda function: max_traces(1)(jax.jit(function)),
    "jit with options": lambda function: max_traces(1)(jax.jit(function, donate_argnums=0)),
    "filter_jit": lambda function: max_traces(1)(eqx.filter_jit(function)),
    "nnx.jit": lambda function: max_traces(1)(nnx_jit(function)),
    "attribute of a class": lambda function: as_method(function, jax.jit),
    "decorator around jit": through_a_decorator,
    "jit of jit": lambda function: jax.jit(max_traces(1)(jax.jit(function))),
    "under grad": lambda function: jax.grad(max_traces(1)(jax.jit(lambda x: function(x).sum()))),
    "loop of jit": lambda function: loop(
        max_traces(1)(jax.jit(lambda state, x: (state + function(x).sum(), None))), jnp.zeros(())
    ),
    "filter_jit of jit": lambda function: eqx.filter_jit(max_traces(1)(jax.jit(function))),
    "filter_jit of filter_jit": lambda function: eqx.filter_jit(eqx.filter_jit(max_traces(1)(lambda x: function(x)))),
    "jit of filter_jit": lambda function: jax.jit(max_traces(1)(eqx.filter_jit(function))),
    "jit of vmap of jit": lambda function: jax.jit(jax.vmap(max_traces(1)(jax.jit(function)))),
    "also explained": lambda function: max_traces(1)(treewright.explain_retraces()(jax.jit(function))),
    "partial": lambda function: max_traces(1)(functools.partial(called_with(function), 1)),
    "method": lambda function: max_traces(1)(Calling(jax.jit(function)).call),
    "method of equinox": lambda function: max_traces(1)(EquinoxCalling(jax.jit(function)).call),
    "jitted method": lambda function: max_traces(1)(Calling(function).jitted),
    "jitted method of equinox": lambda function: max_traces(1)(EquinoxCalling(function).jitted),
    "jit of a partial": lambda function: jax.jit(max_traces(1)(functools.partial(called_with(function), 1))),
    "static method": lambda function: max_traces(1)(staticmethod(through_a_function(function))),
    "cache": lambda function: max_traces(1)(functools.cache(through_a_function(function))).__wrapped__,
    "loop": lambda function: loop(max_traces(1)(lambda state, x: (state + function(x).sum(), None)), jnp.zeros(())),
}


@pytest.mark.parametrize("make", ABOVE.values(), ids=ABOVE)
def test_a_second_use_neither_lends_nor_takes_a_limit(make: Callable[[Any], Use]) -> None:
    function = new_function()
    first, second = make(function), make(function)

    assert [is_allowed(first, length) for length in (1, 2)] == [True, False]
    assert [is_allowed(second, length) for length in (3, 3, 4)] == [True, True, False]


@pytest.mark.parametrize("make", ABOVE.values(), ids=ABOVE)
def test_the_limit_of_the_last_trial_of_a_sweep_is_its_own(make: Callable[[Any], Use]) -> None:
    function = new_function()
    for length in range(1, 6):
        assert is_allowed(make(function), length)
    gc.collect()

    last = make(function)
    assert [is_allowed(last, length) for length in (6, 7, 8)] == [True, False, False]


@pytest.mark.parametrize("make", [ABOVE["jit"], ABOVE["filter_jit"], ABOVE["decorator around jit"]])
def test_calls_that_do_not_go_through_the_use_do_not_count(make: Callable[[Any], Use]) -> None:
    function = new_function()
    limited, free = make(function), jax.jit(function)

    assert all(is_allowed(free, length) for length in (1, 2, 3))
    assert [is_allowed(limited, length) for length in (4, 5)] == [True, False]


def test_calls_around_a_limited_decorator_do_not_count() -> None:
    logged = through_a_decorator(new_function())

    assert all(is_allowed(logged.__wrapped__, length) for length in (1, 2, 3))
    assert [is_allowed(logged, length) for length in (4, 5)] == [True, False]


def test_a_shared_trace_counts_for_no_second_use() -> None:
    function = new_function()
    first, second = (max_traces(1)(jax.jit(function)) for _ in range(2))

    assert is_allowed(first, 1)
    assert is_allowed(second, 1)  # JAX has one cache for both
    assert [is_allowed(second, length) for length in (2, 3)] == [True, False]


def test_below_jit_all_that_jit_the_function_count() -> None:
    function = max_traces(1)(new_function())
    first, second = jax.jit(function), jax.jit(function)
    step = max_traces(1)(lambda state, x: (state + x.sum(), None))
    loops = [loop(step, jnp.zeros(())) for _ in range(2)]

    assert [is_allowed(first, 1), is_allowed(second, 1), is_allowed(second, 2)] == [True, True, False]
    assert [is_allowed(run, 1) for run in loops] == [True, False]


def test_an_object_that_has_every_attribute_is_returned() -> None:
    mock = unittest.mock.MagicMock()

    assert max_traces(1)(mock) is mock


@pytest.mark.parametrize("kind", ["jitted", "function", "below jit"])
def test_the_same_line_run_again_keeps_its_one_limit_and_begins_a_new_count(kind: str) -> None:
    function = new_function()
    jitted = jax.jit(function)
    limited = {"jitted": jitted, "function": lambda x: jitted(x), "below jit": function}[kind]
    called = jitted if kind == "below jit" else limited

    for length in range(1, 6):  # a cell of a notebook, or a trial of a sweep
        assert max_traces(1)(limited) is limited
        assert is_allowed(called, length)
    assert not is_allowed(called, 6)


def test_a_function_that_is_limited_again_while_it_runs_has_its_limit_from_then_on() -> None:
    step, allowed = jax.jit(new_function()), list[bool]()

    @max_traces(9)
    def train() -> None:
        for watch in (max_traces(1), treewright.explain_retraces()):
            watch(train)
        allowed.extend(is_allowed(step, length) for length in (1, 2))

    train()

    assert allowed == [True, False]


def count_trackers() -> int:
    gc.collect()
    return sum(type(each).__name__ == "RetraceTracker" for each in gc.get_objects())


# Of what a `filter_jit` goes through, equinox keeps the function in its cache.
@pytest.mark.parametrize("make", [make for name, make in ABOVE.items() if not name.startswith("filter_jit of")])
def test_dead_uses_leave_nothing_behind(make: Callable[[Any], Use]) -> None:
    function = new_function()
    make(function)
    before = count_trackers()

    for length in (1, 2, 3):
        is_allowed(make(function), length)

    assert count_trackers() == before


def test_limits_count_all_threads() -> None:
    use, answers = max_traces(2)(jax.jit(new_function())), list[bool]()
    threads = [threading.Thread(target=lambda n=n: answers.append(is_allowed(use, n))) for n in range(1, 5)]
    for thread in threads:
        thread.start()
        thread.join()

    assert answers == [True, True, False, False]


# ruff: noqa: PT012  the block is what raises


def test_a_block_counts_what_runs_in_it_for_all_uses() -> None:
    function = new_function()
    with pytest.raises(TooManyTracesError, match=r"double was traced twice; the limit is 1"), max_traces(1):
        for length in (1, 2):
            max_traces(1)(jax.jit(function))(jnp.ones(length))


def test_a_limit_on_a_plain_function_counts_the_jitted_functions_that_it_calls() -> None:
    step, other = jax.jit(new_function()), jax.jit(lambda x: x + 1)

    @max_traces(1)
    def epoch(*numbers: int) -> None:
        for number in numbers:
            step(jnp.ones(number))
            other(jnp.ones(1))

    epoch(2, 2)
    assert all(is_allowed(step, length) for length in (5, 6))  # not a call of the decorated function
    with pytest.raises(TooManyTracesError, match="double was traced twice; the limit is 1"):
        epoch(3)


def test_a_limit_on_a_jitted_function_ignores_the_functions_that_its_eager_calls_trace() -> None:
    step = jax.jit(new_function())

    def epoch(number: int) -> None:
        step(jnp.ones(number))

    max_traces(1)(jax.jit(epoch, static_argnums=0))(1)
    epoch(2)
    epoch(3)


def test_a_limit_of_recompiles_is_the_uses_own() -> None:
    function = new_function()
    uses = [max_traces(9, recompiles=0)(jax.jit(function)) for _ in range(2)]
    uses[0](jnp.ones(2))
    with pytest.raises(TooManyTracesError, match=r"double was recompiled; the limit is 0"):
        uses[0](jax.device_put(jnp.ones(2), jax.devices()[-1]))


def test_closures_of_one_def_have_limits_of_their_own() -> None:
    jitted = jax.jit(new_function())

    def new_trial() -> Use:
        @max_traces(1)
        def trial(x: Any) -> Any:
            return jitted(x)

        return trial

    trials = [new_trial() for _ in range(3)]

    assert [is_allowed(trial, length) for length, trial in enumerate(trials)] == [True, True, True]
    assert not is_allowed(trials[0], 9)


class WithoutWeakReferences:
    __slots__ = ()

    def __call__(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("function", "fix"),
    [
        (
            loop(lambda state: (state, None), 0.0),
            r"jits its step: write loop\(max_traces\(...\)\(step\), state\), or only=",
        ),
        (eqx.filter_pmap(new_function()), r"Write `with max_traces\(...\):` around the calls, without only=\."),
        (np.sin, r"Its class allows no weak references, which jit needs too: use a function that calls it\."),
        (WithoutWeakReferences(), r"Its class allows no weak references"),
    ],
)
def test_what_can_not_be_tracked_is_refused(function: Any, fix: str) -> None:
    for use in (max_traces(1), lambda function: max_traces(1, only=function)):
        with pytest.raises(TypeError, match=r"max_traces can't track the calls of .*\. .*" + fix):
            use(function)
