"""`explain`: the report of a retrace that has not happened."""

from __future__ import annotations

from typing import Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.retrace.support import details
from treewright import Module, explain, static

pytestmark = pytest.mark.slow


class Layer(Module):
    kernel: Any
    activation: str = static(default="relu")

    def apply(self, x: Any) -> Never:
        raise AssertionError("was run")


def step(state: Any, batch: Any, *, train: bool = True) -> Never:
    raise AssertionError("was run")


def test_every_difference_is_named_and_nothing_is_run() -> None:
    report = explain(
        jax.jit(step),
        ({"model": Layer(jnp.ones(2))}, jnp.ones((32, 784))),
        ({"model": Layer(jnp.ones(2), "gelu")}, jnp.ones((31, 784))),
    )

    assert str(report).splitlines() == [
        "step would retrace",
        "    state['model'].activation (static): 'relu' -> 'gelu'",
        "    batch: float32[32,784] -> float32[31,784]",
        "        axis 0: 32 -> 31; if this is a last, smaller batch, drop or pad it",
    ]
    assert (report.event, report.is_retrace) == ("would trace", False)


def test_a_call_that_needs_no_trace_is_told_from_one_that_compiles_again() -> None:
    old, new = jnp.ones(2), jax.device_put(jnp.ones(2), jax.devices()[1])

    same = explain(step, (old, old), (old, jnp.zeros(2)))
    moved = explain(step, (old, old), (old, new))

    assert str(same) == "step would not retrace"
    assert str(moved).splitlines() == [
        "step would be compiled again, without a trace",
        f"    batch (placement): uncommitted -> committed to {jax.devices()[1]}",
        "        put it there once, before the loop: jax.device_put",
    ]


def test_static_arguments_of_the_jitted_function_are_known() -> None:
    jitted = jax.jit(step, static_argnames="train")

    report = explain(jitted, (1, 2), (1, 2), old_kwargs={"train": True}, new_kwargs={"train": False})

    assert details(report) == ["train (static): True -> False"]
    assert not explain(step, (1, 2), (1, 2), old_kwargs={"train": True}, new_kwargs={"train": False}).differences


def test_methods_and_functions_of_others_go_by_their_own_names() -> None:
    old, new = (jnp.ones(2),), (jnp.ones(3),)

    for function in (
        Layer(1.0).apply,
        jax.jit(Layer(1.0).apply),
        eqx.filter_jit(lambda x: x),
        jax.jit(lambda x: x),
    ):
        assert details(explain(function, old, new))[0] == "x: float32[2] -> float32[3]"
    assert details(explain(max, old, new))[0] == "args[0]: float32[2] -> float32[3]"


def test_abstract_arguments_will_do() -> None:
    struct: Any = jax.ShapeDtypeStruct
    abstract = struct((32, 7), jnp.float32)

    assert details(explain(jax.jit(step), (1, abstract), (1, jnp.ones((31, 7)))))[0] == (
        "batch: float32[32,7] -> float32[31,7]"
    )


@pytest.mark.parametrize("number", [60])
def test_a_report_of_very_many_lines_is_cut(number: int) -> None:
    def tree(length: int) -> dict[str, Any]:
        return {f"x{index}": np.ones((length, index + 1), np.float32) for index in range(number)}

    lines = details(explain(jax.jit(lambda tree: tree), (tree(4),), (tree(3),)))

    assert len(lines) == 51
    assert lines[-1] == f"... and {2 * number - 50} more lines"
