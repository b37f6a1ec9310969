"""Nodes under JAX's transformations: each gives the values that it gives for the same arrays in nested tuples."""

from __future__ import annotations

import io
import logging
import re
import warnings
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tests.conftest import count_traces
from treewright import Module, field, pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable

Arrays: TypeAlias = tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


@pytree_dataclass
class DataLinear:
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


@pytree_dataclass
class DataNet:
    first: DataLinear
    second: DataLinear
    scale: float = static(default=2.0)


class ModuleLinear(Module):
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


class ModuleNet(Module):
    first: ModuleLinear
    second: ModuleLinear
    scale: float = static(default=2.0)


Net: TypeAlias = DataNet | ModuleNet
X = jnp.linspace(-1.0, 1.0, 3)
ARRAYS: Arrays = (
    (jnp.linspace(-0.5, 0.5, 6).reshape(3, 2), jnp.array([0.1, -0.2])),
    (jnp.linspace(0.4, -0.4, 4).reshape(2, 2), jnp.array([0.3, 0.0])),
)


def apply(net: Any, x: Any) -> Any:
    for layer in (net.first, net.second):
        x = getattr(jnp, layer.activation)(x @ layer.kernel + layer.bias)
    return net.scale * x


def plain_apply(arrays: Any, x: Any) -> Any:
    for kernel, bias in arrays:
        x = jnp.tanh(x @ kernel + bias)
    return 2.0 * x


def loss(net: Any, x: Any) -> Any:
    return jnp.sum(apply(net, x) ** 2)


def plain_loss(arrays: Any, x: Any) -> Any:
    return jnp.sum(plain_apply(arrays, x) ** 2)


def arrays_of(net: Any) -> Any:
    return ((net.first.kernel, net.first.bias), (net.second.kernel, net.second.bias))


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: 2 * leaf, tree)


@pytest.fixture(params=[DataNet, ModuleNet])
def net(request: pytest.FixtureRequest) -> Net:
    """Two layers inside a node, as decorated classes and as Modules."""
    layer = DataLinear if request.param is DataNet else ModuleLinear
    made: Net = request.param(*(layer(*pair) for pair in ARRAYS))
    return made


@pytest.fixture
def batch(net: Net) -> Any:
    """Four nets in one: each leaf has a leading axis."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf, leaf + 1]), net)


def assert_same(result: Any, expected: Any, net: Net) -> None:
    """`result` is a net of the same class and statics and holds the arrays `expected`."""
    assert jax.tree.structure(result) == jax.tree.structure(net)
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6), arrays_of(result), expected)


# Derivatives


def test_grad_gives_a_node_of_gradients(net: Net) -> None:
    assert_same(jax.grad(loss)(net, X), jax.grad(plain_loss)(ARRAYS, X), net)


def test_value_and_grad_carries_a_node_as_auxiliary_value(net: Net) -> None:
    (value, aux), grads = jax.value_and_grad(lambda n, x: (loss(n, x), double(n)), has_aux=True)(net, X)

    expected, expected_grads = jax.value_and_grad(plain_loss)(ARRAYS, X)
    assert value == pytest.approx(expected, rel=1e-6)
    assert_same(aux, double(ARRAYS), net)
    assert_same(grads, expected_grads, net)


def test_jvp_takes_and_gives_nodes_as_tangents(net: Net) -> None:
    primal, tangent = jax.jvp(double, (net,), (net,))

    assert_same(primal, double(ARRAYS), net)
    assert_same(tangent, double(ARRAYS), net)


def test_vjp_pulls_a_node_back_to_a_node(net: Net) -> None:
    value, pull = jax.vjp(lambda n: jax.tree.map(jnp.sin, n), net)

    assert_same(value, jax.tree.map(jnp.sin, ARRAYS), net)
    (cotangent,) = pull(net)
    assert_same(cotangent, jax.tree.map(lambda leaf: jnp.cos(leaf) * leaf, ARRAYS), net)


def test_linearize_gives_a_linear_map_of_nodes(net: Net) -> None:
    value, push = jax.linearize(lambda n: loss(n, X), net)

    assert value == pytest.approx(plain_loss(ARRAYS, X), rel=1e-6)
    _, expected = jax.jvp(lambda a: plain_loss(a, X), (ARRAYS,), (ARRAYS,))
    assert push(net) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_a_jacobian_is_a_node_of_jacobians(net: Net, jacobian: Any) -> None:
    assert_same(jacobian(apply)(net, X), jacobian(plain_apply)(ARRAYS, X), net)


def test_a_hessian_is_a_node_of_nodes(net: Net) -> None:
    hessian, expected = jax.hessian(loss)(net, X), jax.hessian(plain_loss)(ARRAYS, X)

    # By blocks: the Hessian at (kernel, kernel), (kernel, bias), ... of the two layers.
    assert type(hessian) is type(net)
    assert type(hessian.second.bias) is type(net)
    assert_same(hessian.second.bias, expected[1][1], net)
    assert_same(hessian.first.kernel, expected[0][0], net)


def test_custom_vjp_gets_and_gives_nodes(net: Net) -> None:
    @jax.custom_vjp
    def energy(n: Net) -> Any:
        return loss(n, X)

    energy.defvjp(lambda n: (energy(n), n), lambda n, g: (jax.tree.map(lambda leaf: g * 10 * leaf, n),))

    assert energy(net) == pytest.approx(plain_loss(ARRAYS, X), rel=1e-6)
    assert_same(jax.grad(lambda n: 3 * energy(n))(net), jax.tree.map(lambda leaf: 30 * leaf, ARRAYS), net)


def test_custom_jvp_gets_and_gives_nodes(net: Net) -> None:
    @jax.custom_jvp
    def twice(n: Net) -> Any:
        return double(n)

    twice.defjvp(lambda primals, tangents: (twice(*primals), jax.tree.map(lambda leaf: 7 * leaf, tangents[0])))

    primal, tangent = jax.jvp(twice, (net,), (net,))
    assert_same(primal, double(ARRAYS), net)
    assert_same(tangent, jax.tree.map(lambda leaf: 7 * leaf, ARRAYS), net)


def test_checkpoint_computes_the_same_gradients(net: Net) -> None:
    assert_same(jax.grad(jax.checkpoint(loss))(net, X), jax.grad(plain_loss)(ARRAYS, X), net)


# Batches


def test_vmap_over_a_batch_of_nodes(batch: Any, net: Net) -> None:
    values = jax.vmap(apply, in_axes=(0, None))(batch, X)

    expected = jnp.stack([plain_apply(jax.tree.map(lambda leaf, i=i: leaf[i], arrays_of(batch)), X) for i in range(4)])
    np.testing.assert_allclose(values, expected, rtol=1e-6)
    assert_same(jax.vmap(double)(batch), double(arrays_of(batch)), net)


def test_vmap_takes_in_axes_and_out_axes_made_by_the_class(net: Net, batch: Any) -> None:
    make = type(net.first)
    layer = make(kernel=batch.first.kernel, bias=net.first.bias)

    def scaled(one: Any) -> Any:
        assert one.kernel.ndim == 2
        return make(one.kernel * 2, one.bias + 1)

    spec = make(kernel=0, bias=None)
    result = jax.vmap(scaled, in_axes=(spec,), out_axes=make(kernel=2, bias=None))(layer)

    np.testing.assert_array_equal(result.kernel, jnp.moveaxis(layer.kernel * 2, 0, 2))
    np.testing.assert_array_equal(result.bias, layer.bias + 1)


def test_in_axes_of_a_nested_node_can_stop_at_an_inner_node(net: Net, batch: Any) -> None:
    mixed = net.first.__class__(batch.first.kernel, batch.first.bias)
    whole = type(net)(first=mixed, second=net.second)  # type: ignore[arg-type]

    values = jax.vmap(apply, in_axes=(type(net)(first=0, second=None), None))(whole, X)  # type: ignore[arg-type]

    for i in range(4):
        one = ((batch.first.kernel[i], batch.first.bias[i]), ARRAYS[1])
        np.testing.assert_allclose(values[i], plain_apply(one, X), rtol=1e-6)


class Strict(Module):
    """Takes only matrices: an axis number is refused by its check and changed by its converters."""

    kernel: Any = field(converter=jnp.asarray)
    bias: Any = field(default=0.0, converter=jnp.asarray)
    activation: str = static(default="tanh", converter=str.lower)

    def __check_init__(self) -> None:
        if self.kernel.ndim != 2:
            raise ValueError(f"a kernel is a matrix, got {self.kernel.ndim} axes")


@pytree_dataclass
class Lenient:
    """Its converter and check accept axis numbers, so a spec can be written as a call of the class."""

    kernel: Any = field(converter=lambda value: value if isinstance(value, int) else jnp.asarray(value))
    bias: Any = None
    activation: str = static(default="tanh", converter=str.lower)

    def __check_init__(self) -> None:
        if not hasattr(jnp, self.activation):
            raise ValueError(f"no such activation: {self.activation}")


def test_in_axes_made_by_a_class_with_converters_and_checks_that_accept_them() -> None:
    layer = Lenient(jnp.arange(24.0).reshape(4, 3, 2), jnp.ones(2), "TANH")

    total = jax.vmap(lambda one: one.kernel.sum(0) + one.bias, in_axes=(Lenient(kernel=0, bias=None),))(layer)

    np.testing.assert_array_equal(total, layer.kernel.sum(1) + 1)


@pytest.mark.parametrize("spelling", ["tree.map", "tree_unflatten", "a prefix"])
def test_in_axes_pass_by_converters_and_checks_that_would_refuse_them(spelling: str) -> None:
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(Strict([[1.0, 2.0]], i) for i in (1.0, 2.0, 3.0)))
    specs = {
        "tree.map": lambda: jax.tree.map(lambda _: 0, stacked),
        "tree_unflatten": lambda: Strict.tree_unflatten(stacked.tree_flatten()[1], (0, 0)),
        "a prefix": lambda: 0,
    }

    total = jax.vmap(lambda one: one.kernel.sum() + one.bias, in_axes=(specs[spelling](),))(stacked)

    np.testing.assert_array_equal(total, [4.0, 5.0, 6.0])


def test_a_spec_with_none_passes_by_converters_and_checks() -> None:
    layer = Strict([[1.0, 2.0]], 5.0)
    stacked = Strict.tree_unflatten(layer.tree_flatten()[1], (jnp.ones((3, 1, 2)), layer.bias))
    spec = Strict.tree_unflatten(layer.tree_flatten()[1], (0, None))

    result = jax.vmap(double, in_axes=(spec,), out_axes=spec)(stacked)

    assert isinstance(result, Strict)
    np.testing.assert_array_equal(result.kernel, jnp.full((3, 1, 2), 2.0))
    assert result.bias == 10.0


# Control flow


def test_scan_carries_a_node_and_stacks_nodes(net: Net) -> None:
    carry, stacked = jax.lax.scan(lambda n, factor: (jax.tree.map(lambda leaf: leaf * factor, n), n), net, jnp.arange(1.0, 4.0))

    assert_same(carry, jax.tree.map(lambda leaf: 6 * leaf, ARRAYS), net)
    assert_same(stacked, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, 2 * leaf]), ARRAYS), net)


def test_scan_goes_through_a_batch_of_nodes(net: Net, batch: Any) -> None:
    total, each = jax.lax.scan(lambda sum_, n: (sum_ + loss(n, X), double(n)), 0.0, batch)

    ones = [jax.tree.map(lambda leaf, i=i: leaf[i], arrays_of(batch)) for i in range(4)]
    assert total == pytest.approx(sum(plain_loss(one, X) for one in ones), rel=1e-5)
    assert_same(each, double(arrays_of(batch)), net)


def test_while_loop_carries_a_node(net: Net) -> None:
    result = jax.lax.while_loop(lambda n: n.first.bias[0] < 1.0, double, net)

    assert_same(result, jax.tree.map(lambda leaf: 16 * leaf, ARRAYS), net)


def test_fori_loop_carries_a_node(net: Net) -> None:
    assert_same(jax.lax.fori_loop(0, 3, lambda _, n: double(n), net), jax.tree.map(lambda leaf: 8 * leaf, ARRAYS), net)


@pytest.mark.parametrize("yes", [True, False])
def test_cond_takes_and_gives_a_node(net: Net, yes: bool) -> None:
    result = jax.jit(lambda p, n: jax.lax.cond(p, double, lambda same: same, n))(yes, net)

    assert_same(result, double(ARRAYS) if yes else ARRAYS, net)


# Compiling, placing, exporting


def test_jit_traces_once_for_nodes_with_equal_statics(net: Net) -> None:
    jitted = jax.jit(counted := count_traces(double))

    assert_same(jitted(net), double(ARRAYS), net)
    assert_same(jitted(double(net)), double(double(ARRAYS)), net)
    assert counted.count == 1


def test_a_node_without_arrays_can_be_a_static_argument() -> None:
    jitted = jax.jit(counted := count_traces(lambda spec, x: x * spec.scale), static_argnums=0)

    values = [jitted(DataNet(None, None, scale), jnp.ones(2))[0] for scale in (2.0, 3.0, 2.0)]  # type: ignore[arg-type]

    assert values == [2.0, 3.0, 2.0]
    assert counted.count == 2


def test_eval_shape_gives_a_node_of_shapes(net: Net) -> None:
    shapes = jax.eval_shape(double, net)

    assert jax.tree.structure(shapes) == jax.tree.structure(net)
    assert arrays_of(shapes) == jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), ARRAYS)


def test_a_function_is_lowered_from_shapes_and_compiled_ahead_of_time(net: Net) -> None:
    compiled = jax.jit(double).lower(jax.eval_shape(lambda: net)).compile()

    assert_same(compiled(net), double(ARRAYS), net)


@pytest.mark.filterwarnings("ignore:.*pmap.*:DeprecationWarning")
def test_pmap_over_a_batch_of_nodes(net: Net, batch: Any) -> None:
    assert_same(jax.pmap(double)(batch), double(arrays_of(batch)), net)


def mesh() -> Mesh:
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def test_shard_map_takes_and_gives_nodes_of_partition_specs(net: Net, batch: Any) -> None:
    split = jax.tree.map(lambda _: PartitionSpec("data"), net)

    def share(part: Any) -> Any:
        assert part.first.bias.shape == (1, 2)
        return double(part), jax.tree.map(lambda leaf: jax.lax.psum(leaf, "data"), part)

    whole = jax.tree.map(lambda _: PartitionSpec(), net)
    doubled, summed = jax.shard_map(share, mesh=mesh(), in_specs=(split,), out_specs=(split, whole))(batch)

    assert_same(doubled, double(arrays_of(batch)), net)
    assert_same(summed, jax.tree.map(lambda leaf: leaf.sum(0, keepdims=True), arrays_of(batch)), net)


def test_device_put_takes_a_node_of_shardings(net: Net, batch: Any) -> None:
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh(), PartitionSpec("data", *[None] * (leaf.ndim - 1))), batch)

    placed = jax.device_put(batch, shardings)
    result = jax.jit(double, in_shardings=(shardings,), out_shardings=shardings)(placed)

    assert_same(placed, arrays_of(batch), net)
    assert_same(result, double(arrays_of(batch)), net)
    for leaf in jax.tree.leaves((placed, result)):
        assert len(leaf.sharding.device_set) == 4
        assert leaf.sharding.shard_shape(leaf.shape)[0] == 1


def test_a_donated_node_gives_its_buffers_away(net: Net) -> None:
    given = double(net)

    result = jax.jit(double, donate_argnums=0)(given)

    assert_same(result, double(double(ARRAYS)), net)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    assert repr(given.first).endswith("(kernel=f32[3,2], bias=f32[2], activation='tanh')")
    with pytest.raises(RuntimeError, match="deleted or donated"):
        double(given)


def test_an_exported_function_takes_and_gives_nodes(net: Net) -> None:
    exported = jax.export.deserialize(jax.export.export(jax.jit(double))(net).serialize())

    assert_same(exported.call(net), double(ARRAYS), net)
