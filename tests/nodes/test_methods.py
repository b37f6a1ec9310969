"""Methods of a Module: a method is a pytree with the instance as its child; identity and lifetime."""

from __future__ import annotations

import functools
import gc
import inspect
import pickle
import pydoc
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces
from treewright import Module, field, pytree_dataclass, static
from treewright.errors import StaticFieldError

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


class Linear(Module):
    kernel: Any
    scale: float = static(default=2.0)

    def __call__(self, x: Any) -> Any:
        return self.scale * (x @ self.kernel)

    def step(self, x: Any, *, shift: float = 0.0) -> Any:
        """One step from `x`."""
        return self(x) + shift

    @jax.jit
    def compiled(self, x: Any) -> Any:
        return self.step(x)

    @functools.partial(jax.jit, static_argnames="power")
    def raised(self, x: Any, *, power: int) -> Any:
        return self.step(x) ** power


class Deep(Linear):
    """Overrides a method and calls it on its base."""

    def step(self, x: Any, *, shift: float = 0.0) -> Any:
        return super().step(x, shift=shift) + 100.0


X = jnp.array([1.0, 2.0])


def linear(scale: float = 2.0) -> Linear:
    return Linear(jnp.array([[1.0, 0.0], [0.0, 10.0]]), scale)


def call(method: Any, x: Any) -> Any:
    return method(x)


# A method is a pytree


def test_a_method_is_a_tree_whose_child_is_the_instance() -> None:
    model = linear()

    leaves, treedef = jax.tree.flatten(model.step)
    paths = jax.tree.leaves_with_path(model.step)
    doubled = jax.tree.map(lambda leaf: 2 * leaf, model.step)

    assert leaves[0] is model.kernel
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".__self__.kernel"]
    assert treedef == jax.tree.structure(linear().step) != jax.tree.structure(model.__call__)
    assert treedef != jax.tree.structure(linear(scale=3.0).step)
    np.testing.assert_array_equal(doubled(X), 2 * model(X))


def test_a_method_as_an_argument_of_a_jitted_function_traces_once() -> None:
    jitted = jax.jit(counted := count_traces(call))
    model = linear()

    for _ in range(3):
        np.testing.assert_array_equal(jitted(model.step, X), [2.0, 40.0])
    np.testing.assert_array_equal(jitted(jax.tree.map(lambda leaf: 3 * leaf, model).step, X), [6.0, 120.0])
    assert counted.count == 1
    np.testing.assert_array_equal(jitted(linear(scale=3.0).step, X), [3.0, 60.0])
    assert counted.count == 2


def test_methods_work_under_vmap_scan_cond_and_grad() -> None:
    stacked = Linear(jnp.stack([linear().kernel, 2 * linear().kernel]))

    np.testing.assert_array_equal(jax.vmap(call, in_axes=(0, None))(stacked.step, X), [[2.0, 40.0], [4.0, 80.0]])
    carry, each = jax.lax.scan(lambda method, x: (method, method(x)), linear().step, jnp.stack([X, -X]))
    np.testing.assert_array_equal(carry(X), [2.0, 40.0])
    np.testing.assert_array_equal(each, [[2.0, 40.0], [-2.0, -40.0]])
    _, layered = jax.lax.scan(lambda x, method: (method(x), None), X, stacked.step)
    assert layered is None
    method = jax.lax.cond(True, lambda m: m, lambda m: m, linear().step)
    np.testing.assert_array_equal(method(X), [2.0, 40.0])
    gradient = jax.grad(lambda method: method(X).sum())(linear().step)
    np.testing.assert_array_equal(gradient.__self__.kernel, 2 * jnp.outer(X, jnp.ones(2)))
    assert jax.eval_shape(linear().step, X).shape == (2,)
    np.testing.assert_array_equal(jax.vmap(linear().step)(jnp.stack([X, X]))[1], [2.0, 40.0])


class Holder(Module):
    function: Any
    label: str = static(default="held")

    def run(self, x: Any) -> Any:
        return self.function(x)


@pytree_dataclass
class DataHolder:
    function: Any
    label: str = static(default="held")


@pytest.mark.parametrize("make", [Holder, DataHolder])
def test_a_method_can_be_a_child_of_another_node(make: Any) -> None:
    jitted = jax.jit(counted := count_traces(lambda holder, x: holder.function(x)))

    for scale in (1.0, 2.0):
        model = Linear(scale * linear().kernel)
        np.testing.assert_array_equal(jitted(make(model.step), X), [scale * 2.0, scale * 40.0])

    assert counted.count == 1
    holder = make(linear().step)
    assert [leaf.shape for leaf in jax.tree.leaves(holder)] == [(2, 2)]
    assert holder == make(linear().step)
    assert holder != make(linear().__call__)
    assert Holder(Holder(linear().step).run).run(X)[1] == 40.0


# Methods in the class body


def test_a_jitted_method_traces_its_instance() -> None:
    cache: Any = Linear.compiled
    cache.clear_cache()

    for factor in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(Linear(factor * linear().kernel).compiled(X), [2.0 * factor, 40.0 * factor])

    assert cache._cache_size() == 1
    np.testing.assert_array_equal(linear().raised(X, power=2), [4.0, 1600.0])
    np.testing.assert_array_equal(jax.jit(call)(linear().compiled, X), [2.0, 40.0])
    np.testing.assert_array_equal(jax.jit(linear().compiled)(X), [2.0, 40.0])


def test_super_calls_the_method_of_the_base() -> None:
    deep = Deep(linear().kernel)

    np.testing.assert_array_equal(deep.step(X, shift=1.0), [103.0, 141.0])
    np.testing.assert_array_equal(deep.compiled(X), [102.0, 140.0])
    np.testing.assert_array_equal(jax.jit(call)(deep.step, X), [102.0, 140.0])
    np.testing.assert_array_equal(super(Deep, deep).step(X), [2.0, 40.0])


def test_static_methods_class_methods_and_properties_are_unchanged() -> None:
    class Net(Module):
        weight: Any

        @staticmethod
        def helper(x: Any) -> Any:
            return x + 1

        @classmethod
        def zero(cls) -> Any:
            return cls(0.0)

        @property
        def negative(self) -> Any:
            return -self.weight

        @functools.cached_property
        def cached(self) -> Any:
            return 2 * self.weight

        def __len__(self) -> int:
            return 7

        @functools.lru_cache  # noqa: B019  # only the binding is tested
        def remembered(self, x: int) -> Any:
            return x

    net = Net(1.0)
    assert net.helper(1) == Net.helper(1) == 2
    assert inspect.isfunction(net.helper)
    assert inspect.ismethod(net.zero)
    assert type(net.zero()) is Net
    assert (net.negative, net.cached, len(net)) == (-1.0, 2.0, 7)
    assert inspect.ismethod(net.__len__)
    assert net.remembered(3) == 3
    assert jax.tree.leaves(net.remembered) == [1.0]


def test_a_method_has_a_name_signature_and_docstring() -> None:
    method: Any = linear().step

    assert method.__name__ == "step"
    assert method.__qualname__ == "Linear.step"
    assert method.__doc__ == inspect.getdoc(method) == "One step from `x`."
    assert method.__func__ is Linear.step
    assert list(inspect.signature(method).parameters) == ["x", "shift"]
    assert list(inspect.signature(Linear.step).parameters) == ["self", "x", "shift"]
    assert inspect.signature(linear().compiled) == inspect.signature(linear().__call__)
    assert "def step" in inspect.getsource(Linear.step)
    for text in (pydoc.render_doc(method), pydoc.render_doc(Linear), pydoc.render_doc(linear())):
        assert "One step from `x`." in text
    assert repr(method) == "<method Linear.step of Linear(kernel=f32[2,2], scale=2.0)>"
    assert callable(method)


def test_a_method_rejects_attribute_assignment() -> None:
    method: Any = linear().step

    with pytest.raises(AttributeError, match="object has no attribute 'count'"):
        method.count = 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = method.nothing


# Equality and hash


class Settings(Module):
    """Only statics and numbers: it can be hashed."""

    rate: float = static(default=0.5)

    def schedule(self, step: Any) -> Any:
        return self.rate * step


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
def test_methods_of_similar_nodes_share_no_program(first: Any, second: Any, x: Any, expected: Any) -> None:
    values = [jax.jit(node.get)(x) for node in (first, second)]

    assert [str(value) for value in values] == [str(jnp.asarray(value)) for value in expected]
    assert first.get != second.get


def test_methods_with_equal_functions_and_instances_are_equal() -> None:
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


def test_a_method_of_a_traced_node_cannot_be_static() -> None:
    with pytest.raises(
        StaticFieldError, match=r"Trainer\.schedule is static but reaches a Linear with arrays, through a method"
    ):
        jax.jit(lambda model: Trainer(1.0, model.step).weight)(linear())


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
    "jitted under a trace": lambda model: jax.jit(lambda x: jax.jit(model.step)(x))(X),
    "of a traced model": lambda model: jax.jit(lambda traced: jax.jit(traced.step)(X))(model),
    "mapped": lambda model: jax.vmap(model.step)(jnp.stack([X, X])),
    "in a set": lambda model: {model.step},
}


def test_a_model_whose_method_was_used_is_freed() -> None:
    def watched(use: Callable[[Any], Any]) -> tuple[Any, Any]:
        model = linear()
        use(model)
        return weakref.ref(model), weakref.ref(model.kernel)

    references = {name: watched(use) for name, use in USES.items()}
    gc.collect()

    assert {name: (model(), kernel()) for name, (model, kernel) in references.items()} == dict.fromkeys(
        USES, (None, None)
    )


def test_an_unhashed_method_is_freed_by_reference_counting() -> None:
    model = linear()
    model.step(X)
    freed = weakref.ref(model)

    gc.disable()
    try:
        del model
        assert freed() is None
    finally:
        gc.enable()


def test_methods_used_under_tracing_leak_no_tracers() -> None:
    with jax.checking_leaks():
        for use in USES.values():
            jax.jit(lambda kernel, use=use: (use(Linear(kernel)), kernel)[1])(linear().kernel)
            use(linear())
