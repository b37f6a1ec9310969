"""Each operation on a tree, by its numbers and under `jit`; and that the program tells of each."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import tree_operations as ops
from tests.conftest import skip_before_jax
from treewright import count
from treewright.typed import grad, tree_map


@pytest.fixture
def net() -> ops.Net:
    return ops.small_net(jax.random.key(0))


@pytest.fixture
def grads(net: ops.Net) -> ops.Net:
    batch = ops.Batch(jax.random.normal(jax.random.key(1), (8, 3)), jnp.zeros((8, 2)))
    return grad(ops.loss)(net, batch)


def as_vector(tree: object) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def test_gradients_and_every_result_are_nets_of_the_same_structure(net: ops.Net, grads: ops.Net) -> None:
    results = [
        grads,
        ops.doubled(net),
        ops.descended(net, grads, 0.1),
        *ops.with_momentum(net, grads, jax.tree.map(jnp.zeros_like, net)),
        ops.clipped_by_leaf(grads, 0.1),
        ops.with_noise(net, jax.random.key(2), 0.1),
        ops.decayed(net, 0.5),
    ]

    assert {jax.tree.structure(result) for result in results} == {jax.tree.structure(net)}
    assert all(isinstance(result, ops.Net) for result in results)


def test_arithmetic_is_that_of_one_long_vector(net: ops.Net, grads: ops.Net) -> None:
    params, grad = as_vector(net), as_vector(grads)
    velocity = tree_map(jnp.ones_like, net)

    moved, faster = ops.with_momentum(net, grads, velocity, 0.1, 0.9)

    np.testing.assert_allclose(as_vector(ops.doubled(net)), 2 * params, rtol=1e-6)
    np.testing.assert_allclose(ops.norm(net), np.linalg.norm(params), rtol=1e-6)
    np.testing.assert_allclose(as_vector(ops.descended(net, grads, 0.1)), params - 0.1 * grad, rtol=1e-5)
    np.testing.assert_allclose(as_vector(faster), 0.9 - 0.1 * grad, rtol=1e-5)
    np.testing.assert_allclose(as_vector(moved), params + 0.9 - 0.1 * grad, rtol=1e-5)
    assert count(net) == len(params) == 26


def test_a_leaf_is_clipped_only_if_it_is_longer(grads: ops.Net) -> None:
    lengths = [float(jnp.linalg.norm(leaf.ravel())) for leaf in jax.tree.leaves(grads)]
    border = sorted(lengths)[2]

    clipped = [float(jnp.linalg.norm(leaf.ravel())) for leaf in jax.tree.leaves(ops.clipped_by_leaf(grads, border))]

    np.testing.assert_allclose(clipped, np.minimum(lengths, border), rtol=1e-5)


def test_noise_has_a_key_of_its_own_for_each_leaf() -> None:
    same = [jnp.zeros(1000), jnp.zeros(1000)]

    first, second = ops.with_noise(same, jax.random.key(0), 1.0)

    assert abs(float(jnp.std(first)) - 1) < 0.1
    assert abs(float(jnp.corrcoef(first, second)[0, 1])) < 0.1


def test_decay_leaves_fields_named_bias_alone(net: ops.Net) -> None:
    decayed = ops.decayed(net, 0.5)

    for name, layer in net.layers.items():
        np.testing.assert_array_equal(decayed.layers[name].bias, layer.bias)
        np.testing.assert_array_equal(decayed.layers[name].kernel, 0.5 * layer.kernel)


def test_a_list_of_trees_turns_inside_out_and_back(net: ops.Net) -> None:
    layers = [net.layers["hidden"], ops.doubled(net.layers["hidden"])]

    assert ops.transposed(layers) == ops.one_of_lists(layers)
    assert [len(leaf) for leaf in (ops.transposed(layers).kernel, ops.transposed(layers).bias)] == [2, 2]
    assert ops.list_of_trees(ops.transposed(layers), 2) == layers


def test_it_tells_of_each_operation(capsys: pytest.CaptureFixture[str]) -> None:
    skip_before_jax(0, 10, 2)
    assert ops.main() == 0

    printed = capsys.readouterr().out
    assert "parameters, norm of all               26," in printed
    assert "CustomNode(Dense[activation=jax.numpy.tanh], [*, *])" in printed
    assert "['ensemble'][0].kernel" in printed
    assert "tree_map tree.layers['hidden']" in printed
    assert "- activation=jax.numpy.tanh" in printed
