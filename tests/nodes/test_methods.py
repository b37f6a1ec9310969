"""Methods of a Module: looked up on an instance, a method is a pytree that holds the instance."""

from __future__ import annotations

import functools
import inspect
import pydoc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.conftest import count_traces
from treewright import Module, pytree_dataclass, static


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
    """Overrides a method and calls the one of its base."""

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


def test_a_method_goes_through_vmap_scan_cond_and_grad() -> None:
    stacked = Linear(jnp.stack([linear().kernel, 2 * linear().kernel]))

    np.testing.assert_array_equal(jax.vmap(call, in_axes=(0, None))(stacked.step, X), [[2.0, 40.0], [4.0, 80.0]])
    carry, each = jax.lax.scan(lambda method, x: (method, method(x)), linear().step, jnp.stack([X, -X]))
    np.testing.assert_array_equal(carry(X), [2.0, 40.0])
    np.testing.assert_array_equal(each, [[2.0, 40.0], [-2.0, -40.0]])
    _, layered = jax.lax.scan(lambda x, method: (method(x), None), X, stacked.step)
    assert layered is None
    chosen = jax.lax.cond(True, lambda m: m, lambda m: m, linear().step)
    np.testing.assert_array_equal(chosen(X), [2.0, 40.0])
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
    held = make(linear().step)
    assert [leaf.shape for leaf in jax.tree.leaves(held)] == [(2, 2)]
    assert held == make(linear().step)
    assert held != make(linear().__call__)
    assert Holder(Holder(linear().step).run).run(X)[1] == 40.0


# Methods in the class body


def test_a_jitted_method_takes_the_instance_as_an_argument() -> None:
    cache: Any = Linear.compiled
    cache.clear_cache()

    for factor in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(Linear(factor * linear().kernel).compiled(X), [2.0 * factor, 40.0 * factor])

    assert cache._cache_size() == 1
    np.testing.assert_array_equal(linear().raised(X, power=2), [4.0, 1600.0])
    np.testing.assert_array_equal(jax.jit(call)(linear().compiled, X), [2.0, 40.0])
    np.testing.assert_array_equal(jax.jit(linear().compiled)(X), [2.0, 40.0])


def test_a_jitted_method_can_be_lowered_and_compiled() -> None:
    model = linear()

    # On the class and on an instance the function is the same, as for any jitted function in a class body.
    for lowered in (Linear.compiled.lower(model, X), model.compiled.lower(model, X)):
        np.testing.assert_array_equal(lowered.compile()(model, X), [2.0, 40.0])
    np.testing.assert_array_equal(jax.jit(model.step).lower(X).compile()(X), [2.0, 40.0])
    assert Linear.raised.lower(model, X, power=2).compile()(model, X)[1] == 1600.0


def test_super_calls_the_method_of_the_base() -> None:
    deep = Deep(linear().kernel)

    np.testing.assert_array_equal(deep.step(X, shift=1.0), [103.0, 141.0])
    np.testing.assert_array_equal(deep.compiled(X), [102.0, 140.0])
    np.testing.assert_array_equal(jax.jit(call)(deep.step, X), [102.0, 140.0])
    np.testing.assert_array_equal(super(Deep, deep).step(X), [2.0, 40.0])


def test_static_methods_class_methods_and_properties_are_what_they_were() -> None:
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

        @functools.lru_cache  # noqa: B019  # what is looked at is how it is bound
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


def test_a_method_tells_its_name_signature_and_documentation() -> None:
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


def test_a_method_takes_no_attributes() -> None:
    method: Any = linear().step

    with pytest.raises(AttributeError, match=r"cannot assign 'count' to the method .*; assign it to the function"):
        method.count = 1
    with pytest.raises(AttributeError, match="nothing"):
        _ = method.nothing
