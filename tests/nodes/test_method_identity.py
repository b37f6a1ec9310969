"""Which method of a Module is which: looked up again it is the same, it is freed, copied, pickled, and never leaks."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces
from treewright import Module, field, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


class Linear(Module):
    kernel: Any
    scale: float = static(default=2.0)

    def __call__(self, x: Any) -> Any:
        return self.scale * (x @ self.kernel)

    def step(self, x: Any) -> Any:
        return self(x)


class Settings(Module):
    """Only statics and numbers: it can be hashed."""

    rate: float = static(default=0.5)

    def schedule(self, step: Any) -> Any:
        return self.rate * step


X = jnp.array([1.0, 2.0])


def linear(scale: float = 2.0) -> Linear:
    return Linear(jnp.array([[1.0, 0.0], [0.0, 10.0]]), scale)


def call(method: Any, x: Any) -> Any:
    return method(x)


# Looking a method up again never traces again


class Number(Module):
    value: Any
    note: Any = field(default=None, compare=False)

    def get(self, x: Any) -> Any:
        return x * self.value if self.note is None else x + self.note


ALIKE = {
    "0.0 and -0.0": (Number(0.0), Number(-0.0), 2.0, [0.0, -0.0]),
    "1 and True": (Number(1), Number(True), True, [1, True]),
    "fields that == leaves out": (Number(1.0, 5.0), Number(1.0, 7.0), 2.0, [7.0, 9.0]),
    "numpy zeros": (Number(np.float32(0.0)), Number(np.float32(-0.0)), 2.0, [0.0, -0.0]),
}


@pytest.mark.parametrize(("first", "second", "x", "expected"), ALIKE.values(), ids=list(ALIKE))
def test_methods_of_nodes_that_are_only_alike_share_no_program(first: Any, second: Any, x: Any, expected: Any) -> None:
    values = [jax.jit(node.get)(x) for node in (first, second)]

    assert [str(value) for value in values] == [str(jnp.asarray(value)) for value in expected]
    assert first.get != second.get


# Equality and hash


def test_methods_are_equal_when_function_and_instance_are() -> None:
    model = linear()

    assert model.step == model.step
    assert hash(model.step) == hash(model.step)
    assert model.step != model.__call__
    assert model.step != linear().step  # arrays: only one instance is the same
    assert model.step != model
    assert Settings().schedule == Settings().schedule
    assert hash(Settings().schedule) == hash(Settings(0.5).schedule)
    assert Settings(0.5).schedule != Settings(0.25).schedule
    assert len({Settings().schedule, Settings().schedule, model.step, model.step}) == 2


def test_a_method_can_be_a_static_argument() -> None:
    jitted = jax.jit(counted := count_traces(call), static_argnums=0)

    assert [float(jitted(Settings(rate).schedule, 8.0)) for rate in (0.5, 0.25, 0.5)] == [4.0, 2.0, 4.0]
    assert counted.count == 2


class Trainer(Module):
    weight: Any
    schedule: Any = static()

    def __call__(self, step: Any) -> Any:
        return self.weight * self.schedule(step)


def test_a_method_of_a_traced_node_is_refused_as_a_static() -> None:
    with pytest.raises(StaticFieldError, match=r"Trainer\.schedule is static but holds .*tracer"):
        jax.jit(lambda model: Trainer(1.0, model.step).weight)(linear())


def test_a_method_can_be_called_while_init_runs() -> None:
    class Net(Module):
        weight: Any
        doubled: Any

        def __init__(self, weight: Any) -> None:
            self.weight = weight
            self.doubled = [self.twice(), jax.vmap(self.times)(jnp.ones(2))]

        def twice(self) -> Any:
            return 2 * self.weight

        def times(self, x: Any) -> Any:
            return x * self.weight

    net = Net(3.0)
    assert net.doubled[0] == 6.0
    np.testing.assert_array_equal(net.doubled[1], [3.0, 3.0])


# Copies, pickles, the end of a model


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickled_method_works(protocol: int) -> None:
    method = pickle.loads(pickle.dumps(linear().step, protocol))

    np.testing.assert_array_equal(method(X), [2.0, 40.0])
    assert jax.tree.structure(method) == jax.tree.structure(linear().step)
    assert pickle.loads(pickle.dumps(Settings().schedule, protocol)) == Settings().schedule


USES: dict[str, Callable[[Any], Any]] = {
    "looked up": lambda model: model.step(X),
    "as an argument": lambda model: jax.jit(call)(model.step, X),
    "jitted": lambda model: jax.jit(model.step)(X),
    "jitted inside of a trace": lambda model: jax.jit(lambda x: jax.jit(model.step)(x))(X),
    "of a traced model": lambda model: jax.jit(lambda traced: jax.jit(traced.step)(X))(model),
    "mapped": lambda model: jax.vmap(model.step)(jnp.stack([X, X])),
    "in a set": lambda model: {model.step},
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_a_model_whose_method_was_used_is_freed(use: Callable[[Any], Any]) -> None:
    model = linear()
    use(model)
    model_freed, array_freed = weakref.ref(model), weakref.ref(model.kernel)

    del model
    gc.collect()

    assert model_freed() is None
    assert array_freed() is None


def test_a_method_that_nobody_hashed_needs_no_garbage_collector() -> None:
    model = linear()
    model.step(X)
    freed = weakref.ref(model)

    gc.disable()
    try:
        del model
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_methods_used_inside_of_a_trace_leak_no_tracers(use: Callable[[Any], Any]) -> None:
    with jax.checking_leaks():
        jax.jit(lambda kernel: (use(Linear(kernel)), kernel)[1])(linear().kernel)
        use(linear())
