"""Nodes under JAX's transformations: each gives the values that it gives for the same arrays in nested tuples."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding

from tests.conftest import count_traces
from treewright import Module, pytree_dataclass, static

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


@pytree_dataclass
class DataLinear:
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


@pytree_dataclass
class DataNet:
    first: Any
    second: Any
    scale: float = static(default=2.0)


class ModuleLinear(Module):
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


class ModuleNet(Module):
    first: Any
    second: Any
    scale: float = static(default=2.0)


Net: TypeAlias = DataNet | ModuleNet
Spec: Any = jax.sharding.PartitionSpec  # JAX leaves its constructor untyped
X = jnp.linspace(-1.0, 1.0, 3)
ARRAYS = (
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
    made: Net = request.param(first=layer(*ARRAYS[0]), second=layer(*ARRAYS[1]))
    return made


@pytest.fixture
def batch(net: Net) -> Any:
    """Four nets in one: each leaf has a leading axis."""
    return jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf, leaf + 1]), net)


def assert_same(result: Any, expected: Any, net: Net) -> None:
    """`result` is a net of the same class and statics and holds the arrays `expected`."""
    assert jax.tree.structure(result) == jax.tree.structure(net)
    jax.tree.map(
        lambda got, want: np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-6), arrays_of(result), expected
    )


# Derivatives


def test_grad_gives_a_node_of_gradients(net: Net) -> None:
    assert_same(jax.grad(loss)(net, X), jax.grad(plain_loss)(ARRAYS, X), net)


def test_value_and_grad_carries_a_node_as_auxiliary_value(net: Net) -> None:
    (value, aux), grads = jax.value_and_grad(lambda n, x: (loss(n, x), double(n)), has_aux=True)(net, X)

    expected, expected_grads = jax.value_and_grad(plain_loss)(ARRAYS, X)
    np.testing.assert_allclose(value, expected, rtol=1e-6)
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

    np.testing.assert_allclose(value, plain_loss(ARRAYS, X), rtol=1e-6)
    _, expected = jax.jvp(lambda a: plain_loss(a, X), (ARRAYS,), (ARRAYS,))
    np.testing.assert_allclose(push(net), expected, rtol=1e-5)


@pytest.mark.parametrize("jacobian", [jax.jacfwd, jax.jacrev])
def test_a_jacobian_is_a_node_of_jacobians(net: Net, jacobian: Any) -> None:
    assert_same(jax.jit(jacobian(apply))(net, X), jax.jit(jacobian(plain_apply))(ARRAYS, X), net)


def test_a_hessian_is_a_node_of_nodes(net: Net) -> None:
    hessian, expected = jax.jit(jax.hessian(loss))(net, X), jax.jit(jax.hessian(plain_loss))(ARRAYS, X)

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

    np.testing.assert_allclose(energy(net), plain_loss(ARRAYS, X), rtol=1e-6)
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


# Control flow


def test_scan_carries_a_node_and_stacks_nodes(net: Net) -> None:
    carry, stacked = jax.lax.scan(
        lambda n, factor: (jax.tree.map(lambda leaf: leaf * factor, n), n), net, jnp.arange(1.0, 4.0)
    )

    assert_same(carry, jax.tree.map(lambda leaf: 6 * leaf, ARRAYS), net)
    assert_same(stacked, jax.tree.map(lambda leaf: jnp.stack([leaf, leaf, 2 * leaf]), ARRAYS), net)


def test_scan_goes_through_a_batch_of_nodes(net: Net, batch: Any) -> None:
    total, each = jax.lax.scan(lambda sum_, n: (sum_ + loss(n, X), double(n)), 0.0, batch)

    ones = [jax.tree.map(lambda leaf, i=i: leaf[i], arrays_of(batch)) for i in range(4)]
    np.testing.assert_allclose(total, sum(plain_loss(one, X) for one in ones), rtol=1e-5)
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

    values = [jitted(DataNet(None, None, scale), jnp.ones(2))[0] for scale in (2.0, 3.0, 2.0)]

    assert values == [2.0, 3.0, 2.0]
    assert counted.count == 2


def test_eval_shape_gives_a_node_of_shapes(net: Net) -> None:
    shapes = jax.eval_shape(double, net)

    assert jax.tree.structure(shapes) == jax.tree.structure(net)
    assert all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in jax.tree.leaves(shapes))
    assert [leaf.shape for leaf in jax.tree.leaves(shapes)] == [(3, 2), (2,), (2, 2), (2,)]


def test_a_function_is_lowered_from_shapes_and_compiled_ahead_of_time(net: Net) -> None:
    compiled = jax.jit(double).lower(jax.eval_shape(lambda: net)).compile()

    assert_same(compiled(net), double(ARRAYS), net)


@pytest.mark.filterwarnings("ignore:.*pmap.*:DeprecationWarning")
def test_pmap_over_a_batch_of_nodes(net: Net, batch: Any) -> None:
    assert_same(jax.pmap(double)(batch), double(arrays_of(batch)), net)


def mesh() -> Mesh:
    return jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,))


def test_shard_map_takes_and_gives_nodes_of_partition_specs(net: Net, batch: Any) -> None:
    split = jax.tree.map(lambda _: Spec("data"), net)

    sum_over: Any = jax.lax.psum

    def share(part: Any) -> Any:
        assert part.first.bias.shape == (1, 2)
        return double(part), jax.tree.map(lambda leaf: sum_over(leaf, "data"), part)

    whole = jax.tree.map(lambda _: Spec(), net)
    doubled, summed = jax.shard_map(share, mesh=mesh(), in_specs=(split,), out_specs=(split, whole))(batch)

    assert_same(doubled, double(arrays_of(batch)), net)
    assert_same(summed, jax.tree.map(lambda leaf: leaf.sum(0, keepdims=True), arrays_of(batch)), net)


def test_device_put_takes_a_node_of_shardings(net: Net, batch: Any) -> None:
    shardings = jax.tree.map(lambda leaf: NamedSharding(mesh(), Spec("data", *[None] * (leaf.ndim - 1))), batch)

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
    assert repr(given.first).endswith("(kernel=f32[3,2](deleted), bias=f32[2](deleted), activation='tanh')")
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        np.asarray(given.first.kernel)


def test_an_exported_function_takes_and_gives_nodes(net: Net) -> None:
    exported: Any = jax.export.deserialize(jax.export.export(jax.jit(double))(net).serialize())

    assert_same(exported.call(net), double(ARRAYS), net)


# Nodes that do not match: another class of the same shape, another static


LEFT = ModuleLinear(jnp.ones((3, 2)), jnp.zeros(2))
OTHER_CLASS = DataLinear(jnp.ones((3, 2)), jnp.zeros(2))
OTHER_STATIC = ModuleLinear(jnp.ones((3, 2)), jnp.zeros(2), "relu")


def compiled(other: Any) -> Any:
    return jax.jit(double).lower(LEFT).compile()(other)


def exported(other: Any) -> Any:
    program: Any = jax.export.export(jax.jit(double))(LEFT)
    return program.call(other)


MIXES = {
    "tree.map": lambda other: jax.tree.map(jnp.add, LEFT, other),
    "cond": lambda other: jax.lax.cond(True, lambda: LEFT, lambda: other),
    "switch": lambda other: jax.lax.switch(0, [lambda: LEFT, lambda: other]),
    "scan": lambda other: jax.lax.scan(lambda _, x: (other, x), LEFT, jnp.ones(2)),
    "while_loop": lambda other: jax.lax.while_loop(lambda _: True, lambda _: other, LEFT),
    "fori_loop": lambda other: jax.lax.fori_loop(0, 2, lambda _, __: other, LEFT),
    "an executable": compiled,
    "an exported program": exported,
    "the pullback of vjp": jax.vjp(double, LEFT)[1],
    "in_axes": lambda other: jax.vmap(double, in_axes=(jax.tree.map(lambda _: 0, other),))(LEFT),
    "device_put": lambda other: jax.device_put(LEFT, jax.tree.map(lambda _: jax.devices()[0], other)),
}


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_two_classes_of_one_shape_are_not_mixed(mix: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"DataLinear") as raised:
        mix(OTHER_CLASS)

    assert "ModuleLinear" in str(raised.value)


@pytest.mark.parametrize("mix", MIXES.values(), ids=MIXES)
def test_jax_names_the_static_field_that_differs(mix: Callable[[Any], object]) -> None:
    with pytest.raises((TypeError, ValueError), match=r"activation='tanh'") as raised:
        mix(OTHER_STATIC)

    assert "activation='relu'" in str(raised.value)


def test_treedefs_of_two_classes_of_one_shape_differ() -> None:
    mine, other = jax.tree.structure(LEFT), jax.tree.structure(OTHER_CLASS)

    assert mine != other
    assert mine.num_leaves == other.num_leaves
    assert jax.tree.structure([LEFT]) != jax.tree.structure([OTHER_CLASS])
    assert mine == jax.tree.structure(double(LEFT))


def test_jit_runs_the_method_of_the_class_it_is_given() -> None:
    jitted = jax.jit(counted := count_traces(lambda node: jnp.float32(type(node) is DataLinear)))

    assert [float(jitted(node)) for node in (LEFT, OTHER_CLASS, LEFT, OTHER_CLASS)] == [0.0, 1.0, 0.0, 1.0]
    assert counted.count == 2


def test_explain_cache_misses_names_the_place_and_the_static(caplog: pytest.LogCaptureFixture) -> None:
    jitted = jax.jit(lambda net: double(net))
    jitted(ModuleNet(LEFT, LEFT))

    with jax.explain_cache_misses(True):
        jitted(ModuleNet(LEFT, OTHER_STATIC))

    assert "at input path [0][0].second" in caplog.text
    assert "with pytree metadata activation='relu' and before" in caplog.text
    assert "with pytree metadata activation='tanh', so" in caplog.text
