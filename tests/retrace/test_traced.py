"""`traced`: a decorator under jit that counts exactly, reports, and can refuse."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import treewright
from tests.retrace.support import details
from treewright import Module, static
from treewright.errors import TooManyTracesError

if TYPE_CHECKING:
    from treewright.retrace.report import RetraceReport


class Scale(Module):
    factor: Any
    mode: str = static(default="a")

    @jax.jit
    @treewright.traced(max_traces=2)
    def apply(self, x: jax.Array) -> Any:
        return x * self.factor

    def plain(self, x: jax.Array) -> Any:
        return x * self.factor


def numbers(reports: list[RetraceReport]) -> list[int]:
    return [report.number for report in reports]


def test_the_first_trace_is_not_reported_and_each_further_one_is() -> None:
    reports: list[RetraceReport] = []

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def double(x: jax.Array) -> jax.Array:
        return 2 * x

    for length in (1, 1, 2, 2, 1, 3, 3):
        double(jnp.ones(length))

    assert numbers(reports) == [2, 3]
    assert [report.compared_with for report in reports] == [1, 2]
    assert all(report.seconds is not None and report.seconds > 0 for report in reports)
    assert [report.function for report in reports] == ["double", "double"]


def test_the_closest_earlier_signature_is_compared_with() -> None:
    reports: list[RetraceReport] = []

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def f(x: jax.Array, y: jax.Array, z: jax.Array) -> jax.Array:
        return x

    one, two, three = (jnp.ones(length) for length in (1, 2, 3))
    f(one, one, one)
    f(two, two, two)
    f(one, one, three)

    assert reports[-1].compared_with == 1
    assert details(reports[-1])[0] == "z: float32[1] -> float32[3]"


def test_calls_that_are_no_traces_are_not_counted() -> None:
    reports: list[RetraceReport] = []

    @treewright.traced(max_traces=1, on_report=reports.append)
    def double(x: jax.Array) -> jax.Array:
        return 2.0 * x

    for length in (1, 2, 3):
        double(jnp.ones(length))
        jax.vmap(double)(jnp.ones((2, length)))
        jax.grad(lambda x: double(x).sum())(jnp.ones(length))
        jax.jit(lambda x: double(x))(jnp.ones(length))  # a part of that trace
        jax.jit(lambda x: jax.tree.map(double, [x]))(jnp.ones(length))
    jax.jit(double)(jnp.ones(1))

    assert not reports


def test_a_trace_too_many_fails_before_anything_is_compiled() -> None:
    ran: list[int] = []

    @jax.jit
    @treewright.traced(max_traces=1)
    def double(x: jax.Array) -> jax.Array:
        ran.append(x.shape[0])
        return 2 * x

    double(jnp.ones(3))
    with pytest.raises(TooManyTracesError) as caught:
        double(jnp.ones(2))

    assert str(caught.value).splitlines() == [
        "double may be traced once here, and is traced once more:",
        str(caught.value).splitlines()[1],
        "    x: float32[3] -> float32[2]",
        "        axis 0: 3 -> 2; if this is a last, smaller batch, drop or pad it",
        "    compared with trace 1",
    ]
    assert str(caught.value).splitlines()[1].startswith("double retraced (2nd trace), called from test_traced.py:")
    assert ran == [3]
    double(jnp.ones(3))  # what was compiled still runs


def test_methods_are_counted_for_all_objects_together() -> None:
    scale = Scale(2.0)
    for _ in range(3):
        Scale(3.0).apply(jnp.ones(2))
        jax.jit(scale.apply)(jnp.ones(2))
    Scale(2.0, mode="b").apply(jnp.ones(2))

    with pytest.raises(TooManyTracesError, match=r"self.mode \(static\): '[ab]' -> 'c'"):
        Scale(2.0, mode="c").apply(jnp.ones(2))


def test_a_method_of_a_module_is_traced_where_it_is_jitted() -> None:
    reports: list[RetraceReport] = []
    method = treewright.traced(Scale(2.0).plain, on_report=reports.append)
    jitted: Any = jax.jit(method)

    jitted(jnp.ones(2))
    jitted(jnp.ones(3))

    assert [details(report)[0] for report in reports] == ["x: float32[2] -> float32[3]"]


def test_lowering_and_compiling_is_one_trace() -> None:
    reports: list[RetraceReport] = []

    def double(x: Any) -> Any:
        return 2 * x

    jitted: Any = jax.jit(treewright.traced(double, on_report=reports.append))

    compiled = jitted.lower(jnp.ones(2)).compile()
    compiled(jnp.ones(2))
    jitted(jnp.ones(2))
    jitted.lower(jnp.ones(3))

    assert numbers(reports) == [2]


def test_nested_jitted_functions_are_both_reported() -> None:
    reports: list[RetraceReport] = []
    watch = treewright.traced(on_report=reports.append)

    @jax.jit
    @watch
    def inner(x: jax.Array) -> jax.Array:
        return 2 * x

    @jax.jit
    @watch
    def outer(x: jax.Array) -> Any:
        return inner(x) + inner(x)

    outer(jnp.ones(2))
    outer(jnp.ones(3))

    assert [report.function for report in reports] == ["inner", "outer"]


def test_a_function_without_arguments_is_counted() -> None:
    reports: list[RetraceReport] = []

    def make() -> jax.Array:
        return jnp.ones(2)

    jitted: Any = jax.jit(treewright.traced(make, on_report=reports.append))

    jitted()
    jitted.clear_cache()
    jitted()

    assert numbers(reports) == [2]


def test_traces_are_counted_exactly_under_threads() -> None:
    reports: list[RetraceReport] = []
    ran: list[int] = []
    start = threading.Barrier(16)

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def double(x: jax.Array) -> jax.Array:
        ran.append(1)
        return 2 * x

    def call(index: int) -> None:
        start.wait()
        for length in range(1, 5):
            double(jnp.ones((index + length) % 4 + 1))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(call, range(16)))

    assert len(reports) == len(ran) - 1
    assert sorted(numbers(reports)) == list(range(2, len(ran) + 1))


def test_a_function_that_fails_is_not_compared_with() -> None:
    reports: list[RetraceReport] = []

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def picky(x: jax.Array) -> jax.Array:
        if x.shape[0] == 2:
            raise ValueError("two")
        return x

    with pytest.raises(ValueError, match="two"):
        picky(jnp.ones(2))
    picky(jnp.ones(3))
    with pytest.raises(ValueError, match="two"):
        picky(jnp.ones(2))
    picky(jnp.ones(4))

    assert [details(report)[0] for report in reports] == ["x: float32[3] -> float32[4]"]
    assert numbers(reports) == [2]


def test_what_is_jitted_by_equinox_and_flax_is_traced_too() -> None:
    from flax import nnx

    reports: list[RetraceReport] = []

    @eqx.filter_jit
    @treewright.traced(on_report=reports.append)
    def by_equinox(model: eqx.nn.Linear, x: jax.Array, times: int) -> jax.Array:
        return model(x) * times

    @nnx.jit
    @treewright.traced(on_report=reports.append)
    def by_flax(model: nnx.Linear, x: jax.Array) -> jax.Array:
        return model(x)

    by_equinox(eqx.nn.Linear(2, 3, key=jax.random.key(0)), jnp.ones(2), 1)
    by_equinox(eqx.nn.Linear(2, 3, key=jax.random.key(0)), jnp.ones(2), 2)
    by_flax(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((1, 2)))
    by_flax(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), jnp.ones((2, 2)))

    assert [details(report)[0] for report in reports] == [
        "times (static): 1 -> 2",
        "x: float32[1,2] -> float32[2,2]",
    ]


def test_arguments_go_by_their_own_names() -> None:
    reports: list[RetraceReport] = []

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def f(x: jax.Array, /, *args: jax.Array, key: jax.Array, **kwargs: jax.Array) -> jax.Array:
        return x

    for one in (jnp.ones(1), jnp.ones(2)):
        f(one, one, one, key=one, other=one)

    assert [line for line in details(reports[0]) if not line.startswith(" ")] == [
        "x: float32[1] -> float32[2]",
        "args[0]: float32[1] -> float32[2]",
        "args[1]: float32[1] -> float32[2]",
        "key: float32[1] -> float32[2]",
        "kwargs['other']: float32[1] -> float32[2]",
        "compared with trace 1",
    ]


def test_one_more_of_any_number_of_arguments_is_named() -> None:
    reports: list[RetraceReport] = []

    @jax.jit
    @treewright.traced(on_report=reports.append)
    def f(*parts: jax.Array, **named: jax.Array) -> Any:
        return parts

    one = jnp.ones(1)
    f(one)
    f(one, one)
    f(one, key=one)

    assert [details(report)[:2] for report in reports] == [
        ["parts[1] (added): float32[1]", "    keep the structure the same from call to call"],
        ["named['key'] (added): float32[1]", "    keep the structure the same from call to call"],
    ]


def test_the_wrong_order_of_decorators_is_refused() -> None:
    with pytest.raises(TypeError, match=r"<lambda> is jitted already, .* Put @traced or @max_traces below @jax.jit\."):
        treewright.traced(jax.jit(lambda x: x))


def test_the_decorated_function_keeps_its_name_and_signature() -> None:
    @treewright.traced
    def double(x: float, times: int = 2) -> float:
        """Twice."""
        return x * times

    assert (double.__name__, double.__doc__, double(2.0)) == ("double", "Twice.", 4.0)


def test_an_argument_that_was_static_and_is_traced_is_reported() -> None:
    reports: list[RetraceReport] = []
    function = treewright.traced(lambda x: x * 2, on_report=reports.append)

    static: Any = jax.jit(function, static_argnums=0)
    static(2)
    jax.jit(function)(2)

    assert details(reports[0])[0] == "x: 2 -> int32[] (weakly typed)"
