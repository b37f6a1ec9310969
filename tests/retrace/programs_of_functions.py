"""Programs in which a function is made again, and programs with `pmap`."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from tests.retrace.programs import KINDS, f32, says

__all__ = ["KINDS"]  # with the programs of both files

OTHER_ONE = "trace 2: the function itself: "


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, x: Any) -> Any:
        return x * self.factor


@dataclasses.dataclass(frozen=True)
class Comparable:
    factor: float

    def __call__(self, x: Any) -> Any:
        return x * self.factor


OFFSET = 0.0
CALLS: Any = []


def affine(a: Any, b: Any, c: Any = 1.0) -> Any:
    return a * b + c


def scale(factor: Any, x: Any) -> Any:
    return factor * x


def double(x: Any) -> Any:
    return x * 2


def total(x: Any) -> Any:
    return (x * x).sum()


# Functions made again


@says("made again", OTHER_ONE + "a partial of scale made again, with argument 0: 1.0 -> 2.0")
def a_partial_is_jitted_with_another_number() -> None:
    for factor in (1.0, 2.0):
        jax.jit(functools.partial(scale, factor))(f32(4))


@says("made again", OTHER_ONE + "a partial of scale made again, with x: 1 -> 2")
def a_partial_is_jitted_with_another_keyword() -> None:
    for x in (1, 2):
        jax.jit(functools.partial(scale, x=x))(f32(4))


@says(
    "made again",
    OTHER_ONE
    + "a partial of affine made again, with other arguments: partial(affine, 1.0) -> partial(affine, 1.0, c=2.0)",
)
def a_partial_is_jitted_with_one_argument_more() -> None:
    jax.jit(functools.partial(affine, 1.0))(f32(4))
    jax.jit(functools.partial(affine, 1.0, c=2.0))(f32(4))


@says("made again", OTHER_ONE + "made again by the same code, which captured factor: 1.0 -> 2.0")
def a_partial_of_a_function_made_anew_is_jitted() -> None:
    for factor in (1.0, 2.0):
        jax.jit(functools.partial(lambda a, b: a * b * factor, 1.0))(f32(4))  # noqa: B023


@says("made again", OTHER_ONE + "made again by the same code, which reads the global OFFSET: 0.0 -> 1.0")
def a_global_that_a_new_function_reads_is_another() -> None:
    for offset in (0.0, 1.0):
        globals()["OFFSET"] = offset
        jax.jit(lambda x: x + OFFSET)(f32(4))


@says("made again", OTHER_ONE + "made again by the same code, which reads the global CALLS")
def the_trace_appends_to_a_global_list() -> None:
    for _ in range(2):
        jax.jit(lambda x: CALLS.append(1) or x)(f32(4))


@says("made again", OTHER_ONE + "a partial of scale made again, with the same arguments")
def a_partial_is_jitted_again() -> None:
    for _ in range(2):
        jax.jit(functools.partial(scale, 1.0))(f32(4))


@says("made again", OTHER_ONE + "a partial of scale made again, with argument 0: another f32[4]")
def a_partial_holds_another_array() -> None:
    for value in (1.0, 2.0):
        jax.jit(functools.partial(scale, jnp.full(4, value)))(f32(4))


@says("made again", OTHER_ONE + "Scaled has no __eq__, so each instance is a value of its own; here factor: 1.0 -> 2.0")
def a_callable_object_is_jitted_with_another_attribute() -> None:
    for factor in (1.0, 2.0):
        jax.jit(Scaled(factor))(f32(4))


@says("made again", OTHER_ONE + "Comparable(factor=1.0) -> Comparable(factor=2.0)")
def a_callable_dataclass_is_jitted_with_another_field() -> None:
    for factor in (1.0, 2.0):
        jax.jit(Comparable(factor))(f32(4))


@says(
    "made again",
    OTHER_ONE + "made again by the same code, which captured factor: 1.0 -> 2.0 | x: float32[1] -> float32[2]",
)
def a_lambda_is_made_anew_and_an_argument_changes() -> None:
    for factor in (1.0, 2.0):
        jax.jit(lambda x: x * factor)(f32(int(factor)))  # noqa: B023


@says("made again", OTHER_ONE + "made again by the same code, which captured calls")
def the_trace_appends_to_a_captured_list() -> None:
    calls: Any = []
    for _ in range(2):
        jax.jit(lambda x: calls.append(1) or x)(f32(4))


@says("made again", OTHER_ONE + "made again by the same code, which captured names, seen")
def the_trace_writes_into_a_list_in_a_captured_dict() -> None:
    seen: dict[str, Any] = {"shapes": []}
    names = ("a", "b")
    for _ in range(2):
        jax.jit(lambda x: (seen["shapes"].append(len(names)), x)[1])(f32(4))


@says("made again", OTHER_ONE + "made again by the same code, which captured config['rate']: 0.1 -> 0.2")
def a_captured_dict_is_another_one() -> None:
    kept = []
    for rate in (0.1, 0.2):
        config = {"rate": rate, "name": "net"}
        kept.append(config)
        jax.jit(lambda x: x * config["rate"])(f32(4))  # noqa: B023


@says("made again", OTHER_ONE + "made again by the same code, which captured the same function")
def a_lambda_is_made_anew_for_nothing() -> None:
    function = double
    for _ in range(2):
        jax.jit(lambda x: function(x))(f32(4))


@says("made again", OTHER_ONE + "made again by the same code, which captured f.factor: 1.0 -> 2.0")
def what_a_captured_function_captured_changes() -> None:
    def times(factor: float) -> Any:
        return lambda x: x * factor

    for factor in (1.0, 2.0):
        f = times(factor)
        jax.jit(lambda x: f(x))(f32(4))  # noqa: B023


@says("made again", OTHER_ONE + "the same function, decorated and jitted again")
def a_function_is_mapped_and_jitted_again() -> None:
    for _ in range(2):
        jax.jit(jax.vmap(double))(f32(4))


OTHER = "trace 2: the function itself: the same function"


@says("made again", f"{OTHER} under other decorators: grad -> value_and_grad")
def a_function_is_jitted_under_another_transformation() -> None:
    jax.jit(jax.grad(total))(f32(4))
    jax.jit(jax.value_and_grad(total))(f32(4))


@says("made again", f"{OTHER} under other decorators: none -> checkpoint")
def a_function_is_jitted_without_a_transformation_and_with_one() -> None:
    jax.jit(double)(f32(4))
    jax.jit(jax.checkpoint(double))(f32(4))


@says("made again", f"{OTHER}, decorated with argnums: 0 -> 1")
def a_function_is_differentiated_by_another_argument() -> None:
    def product(a: Any, b: Any) -> Any:
        return (a * b).sum()

    jax.jit(jax.grad(product))(f32(4), f32(4))
    jax.jit(jax.grad(product, argnums=1))(f32(4), f32(4))


@says("made again", f"{OTHER}, decorated with in_axes: 0 -> 1, out_axes: 0 -> 1")
def a_function_is_mapped_over_another_axis() -> None:
    jax.jit(jax.vmap(double))(f32(4, 4))
    jax.jit(jax.vmap(double, in_axes=1, out_axes=1))(f32(4, 4))


@says("made again", OTHER_ONE + "the same method of another object")
def a_method_is_jitted_on_another_object() -> None:
    class Model:
        def step(self, x: Any) -> Any:
            return x * 2

    for _ in range(2):
        jax.jit(Model().step)(f32(4))


# pmap


@says("pmap", "trace 2: x: float32[1,4] -> float32[1,3]")
def a_pmapped_function_gets_another_shape() -> None:
    mapped: Any = jax.pmap(lambda x: x * 2)
    for x in (f32(1, 4), f32(1, 3), f32(1, 4)):
        mapped(x)


@says("pmap", "trace 2: n (static): 1 -> 2")
def a_static_of_a_pmapped_function_changes() -> None:
    mapped: Any = jax.pmap(lambda x, n: x * n, static_broadcasted_argnums=1)
    for n in (1, 2, 1):
        mapped(f32(1, 4), n)


@says("pmap", "trace 2: in_axes of pmap (setting): 0 -> 1")
def a_function_is_pmapped_over_another_axis() -> None:
    def function(x: Any) -> Any:
        return x * 2

    jax.pmap(function)(f32(2, 2))
    jax.pmap(function, in_axes=1)(f32(2, 2))


@says("pmap", "trace 2: d['y'] (added): float32[1,4]")
def a_pmapped_function_gets_another_key() -> None:
    mapped: Any = jax.pmap(lambda d: d["x"] * 2)
    mapped({"x": f32(1, 4)})
    mapped({"x": f32(1, 4), "y": f32(1, 4)})


@says("pmap", "trace 2: x: float32[2,4] -> float32[2,3]")
def pmap_splits_an_array_by_an_operation_of_its_own() -> None:
    mapped: Any = jax.pmap(lambda x: x * 2)
    for x in (jnp.ones((2, 4)), jnp.ones((2, 3)), jnp.ones((2, 4))):
        mapped(x)
