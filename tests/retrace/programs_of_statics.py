"""Programs in which a static changes, each in a way that its text does not tell."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import treewright
from tests.retrace.programs import f32, says
from tests.retrace.programs_of_functions import KINDS
from treewright import Module, static

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["KINDS"]  # with the programs of all files

Spec: Any = jax.sharding.PartitionSpec


class Node(Module):
    w: Any
    s: Any = static()


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    w: Any
    s: Any = dataclasses.field(metadata={"static": True})


@dataclasses.dataclass(unsafe_hash=True)
class Config:
    k: float


class Equal:
    """Compares by a number that its text does not show."""

    def __init__(self, k: int) -> None:
        self.k = k

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.k == other.k

    def __hash__(self) -> int:
        return hash(self.k)


def told(*makes: Callable[[], Any], cls: Any = Node) -> None:
    """A jitted function called with nodes that hold these statics, each made after the call before."""
    jitted: Any = jax.jit(lambda n: n.w)
    kept = []
    for make in makes:
        kept.append(cls(f32(), make()))
        jitted(kept[-1])


def same_code(factor: float = 1.0) -> Any:
    return lambda x: x * factor


def named(name: str, k: int | None = None) -> Any:
    def act(x: Any) -> Any:
        return x

    act.__name__ = name
    if k is not None:
        act.k = k  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]
    return act


AGAIN = "made again by the same code"


@says(
    "values",
    f"trace 2: n.s (static): {Spec('x')} -> {Spec('y')}",
)
def another_partition_spec() -> None:
    told(lambda: Spec("x"), lambda: Spec("y"))


@says(
    "values",
    "trace 2: n.s (static): f64[2](frozen [1.0, 2.0]) -> f64[2](frozen [1.0, 3.0])",
)
def another_frozen_array() -> None:
    told(*(functools.partial(treewright.freeze, np.array([1.0, last])) for last in (2.0, 3.0)))


@says(
    "values",
    (
        "trace 2: n.s (static): Config(k=1.0) -> Config(k=2.0); the same object, changed in place: k: 1.0 -> 2.0; "
        "make another object instead of changing this one, and best freeze it"
    ),
)
def an_object_is_changed_in_place() -> None:
    config = Config(1.0)

    def changed() -> Config:
        config.k = 2.0
        return config

    told(lambda: config, changed)


@says(
    "values",
    "trace 2: n.s (static): <Equal object> -> <Equal object>; here k: 1 -> 2",
)
def an_object_with_its_own_equality_holds_another_number() -> None:
    told(lambda: Equal(1), lambda: Equal(2))


@says(
    "values",
    (
        "trace 2: n.s (static): named.<locals>.act -> named.<locals>.act; made again by the same code, with "
        "__name__: 'a' -> 'b'; define it once, outside of what calls it, and reuse it"
    ),
)
def a_function_has_another_name() -> None:
    told(lambda: named("a"), lambda: named("b"), cls=Foreign)


@says(
    "values",
    (
        "trace 2: n.s (static): named.<locals>.act -> named.<locals>.act; made again by the same code, with k: 1 "
        "-> 2; define it once, outside of what calls it, and reuse it"
    ),
)
def a_function_has_another_attribute() -> None:
    told(lambda: named("a", 1), lambda: named("a", 2))


@says(
    "values",
    (
        "trace 2: n.s (static): <lambda at <a>:1> -> <lambda at <b>:1>; two functions, defined at <a>:1 and <b>:1;"
        " use one and the same function in all calls"
    ),
)
def equal_functions_stand_in_two_files() -> None:
    told(*(functools.partial(eval, compile("lambda x: x", file, "eval")) for file in ("<a>", "<b>")))


# Inside of what was made of a function


@says(
    "inside",
    (
        "trace 2: n.s (static): same_code.<locals>.<lambda> -> same_code.<locals>.<lambda>; a function made again "
        "by the same code, decorated with keep_unused: False -> True"
    ),
)
def a_function_is_jitted_with_another_option() -> None:
    told(*(lambda keep=keep: jax.jit(same_code(), keep_unused=keep) for keep in (False, True)))


@says(
    "inside",
    (
        "trace 2: the function itself: a partial of "
        "a_partial_of_a_function_that_logs_gets_another_rate.<locals>.step made again, with lr: 0.1 -> 0.2; jit "
        "keeps programs for each function object: make and jit it once, outside of the loop"
    ),
)
def a_partial_of_a_function_that_logs_gets_another_rate() -> None:
    log: list[Any] = []

    def step(x: Any, lr: float) -> Any:
        log.append(x.shape)
        return x * lr

    for lr in (0.1, 0.2):
        jax.jit(functools.partial(step, lr=lr))(f32())


@says(
    "inside",
    "trace 2: the function itself: the same function, decorated with in_axes: 0 -> (0, 1)",
)
def a_function_that_logs_is_mapped_over_other_axes() -> None:
    log: list[Any] = []

    def product(x: Any, y: Any) -> Any:
        log.append(1)
        return x * y

    jax.jit(jax.vmap(product))(f32(2, 2), f32(2, 2))
    jax.jit(jax.vmap(product, in_axes=(0, 1)))(f32(2, 2), f32(2, 2))


@says(
    "inside",
    (
        "trace 2: the function itself: a partial of a_gradient_of_a_partial_gets_another_rate.<locals>.loss made "
        "again, with rate: 1.0 -> 2.0; jit keeps programs for each function object: make and jit it once, outside "
        "of the loop"
    ),
)
def a_gradient_of_a_partial_gets_another_rate() -> None:
    def loss(x: Any, rate: float) -> Any:
        return (x * rate).sum()

    for rate in (1.0, 2.0):
        jax.jit(jax.value_and_grad(functools.partial(loss, rate=rate)))(f32(2))


@says(
    "inside",
    (
        "trace 2: the function itself: a partial of a_partial_has_its_keywords_in_another_order.<locals>.function "
        "made again, with keywords in another order: a, b -> b, a; jit keeps programs for each function object: "
        "make and jit it once, outside of the loop"
    ),
)
def a_partial_has_its_keywords_in_another_order() -> None:
    def function(x: Any, **options: Any) -> Any:
        return x * next(iter(options.values()))

    for options in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        jax.jit(functools.partial(function, **options))(f32())


@says(
    "inside",
    (
        "trace 2: n.s.init (static): masked.<locals>.init_fn -> masked.<locals>.init_fn; made again by the same "
        "code, which captured mask['w'] (changed in place): True -> False; build the optimiser once and reuse it, "
        "or keep it in a TrainState | n.s.update (static): masked.<locals>.update_fn -> masked.<locals>.update_fn;"
        " made again by the same code, which captured mask['w'] (changed in place): True -> False; build the "
        "optimiser once and reuse it, or keep it in a TrainState"
    ),
)
def an_entry_of_the_mask_of_an_optimiser_changes() -> None:
    mask = {"w": True, "b": True}

    def changed() -> Any:
        mask["w"] = False
        return optax.masked(optax.sgd(0.1), mask)

    told(lambda: optax.masked(optax.sgd(0.1), mask), changed, cls=Foreign)


# Arguments


@says(
    "arguments",
    "trace 2: others[0] (added): float32[2]",
)
def an_argument_more_is_no_default_that_was_passed() -> None:
    @jax.jit
    def function(x: Any, *others: Any) -> Any:
        return x

    function(f32(2))
    function(f32(2), f32(2))


@says(
    "arguments",
    (
        "trace 2: n: 2 -> Python int; static before, and traced now; jit the function once, with one set of static"
        " arguments"
    ),
)
def an_argument_is_static_in_one_jit_and_traced_in_another() -> None:
    def function(x: Any, n: int) -> Any:
        return x * n

    jax.jit(function, static_argnums=1)(f32(2), 2)
    jax.jit(function)(f32(2), 2)


@says(
    "arguments",
    (
        "trace 2: length (static): 3 -> 4; if only its value is computed with, pass it as an array that is traced;"
        " a shape or a length must be static"
    ),
)
def the_length_of_a_scan_is_static() -> None:
    @functools.partial(jax.jit, static_argnums=1)
    def function(x: Any, length: int) -> Any:
        return jax.lax.scan(lambda carry, _: (carry + 1, None), x, length=length)

    for length in (3, 4):
        function(f32(), length)


@says(
    "arguments",
    (
        "trace 2: the function itself: made again by the same code, which captured k: 1 -> 2; jit keeps programs "
        "for each function object: make and jit it once, outside of the loop | x: float32[1] -> float32[2]; axis "
        "0: 1 -> 2"
    ),
)
def of_another_function_no_remedy_is_given_for_its_arguments() -> None:
    for k in (1, 2):
        jax.jit(lambda x: x * k)(f32(k))  # noqa: B023


@says("attributes", "trace 2: model.extra (added): Param")
def an_attribute_of_a_flax_module_is_added() -> None:
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):  # type: ignore[misc, name-defined]
        def __init__(self, *names: str) -> None:
            for name in names:
                setattr(self, name, nnx.Param(jnp.ones(2)))

    jitted: Any = jax.jit(lambda model: 0)
    for names in (("kernel",), ("kernel", "extra")):
        jitted(Model(*names))


@says("attributes", "trace 2: jax.ensure_compile_time_eval (setting): False -> True")
def a_function_is_called_while_jax_evaluates_at_compile_time() -> None:
    jitted: Any = jax.jit(lambda x: x * 2)
    jitted(f32(2))
    with jax.ensure_compile_time_eval():
        jitted(f32(2))
