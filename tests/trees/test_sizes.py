"""`count`, `nbytes` and `find_aliases`: on arrays, abstract arrays and tracers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, buffer, count, find_aliases, freeze, nbytes, partition, static, trainable

# jax's own constructors of these have no types.
PARTITION: Any = jax.P


class Layer(Module):
    kernel: Any
    mean: Any = buffer(default=None)
    table: Any = static(default=None)


class Net(Module):
    layers: Any
    rate: Any = 0.1


def small_net() -> Net:
    half = jnp.ones((3, 1), jnp.bfloat16)
    return Net([Layer(jnp.ones((2, 3)), np.zeros(3)), Layer({"a": half, "s": "text", "f": len}, table=(1, 2))])


def test_count_includes_all_numbers() -> None:
    net = small_net()

    assert (count(net), nbytes(net)) == (6 + 3 + 3 + 1, 24 + 24 + 6 + 4)
    assert count(partition(net, trainable)[0]) == 10
    assert (count(None), nbytes([])) == (0, 0)
    assert (count([True, 1, 1.0, 1j, np.float32(1)]), nbytes([True, 1, 1.0, 1j])) == (5, 1 + 4 + 4 + 8)
    assert (count(jax.random.key(0)), nbytes(jax.random.key(0))) == (1, 8)
    shaped = [SimpleNamespace(shape=(3,)), SimpleNamespace(shape=3, dtype=np.dtype(int))]  # no arrays
    assert (count(shaped), nbytes(shaped)) == (0, 0)


def test_abstract_arrays_and_tracers_have_sizes() -> None:
    sizes: list[Any] = []

    def measure(net: Any) -> Any:
        sizes.append((count(net), nbytes(net)))
        return net

    net = Net([Layer(jnp.ones((2, 3)))], 1.0)
    abstract = jax.eval_shape(lambda: net)
    jax.jit(measure)(net)
    jax.vmap(measure)(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), net))
    measure(abstract)

    assert sizes == [(7, 28)] * 3


# Aliases


def test_find_aliases_finds_shared_arrays() -> None:
    array, other = jnp.ones(3), np.ones(3)
    tree = Net([Layer(array, other), Layer(array, other)], array)

    assert find_aliases(tree) == [
        (".layers[0].kernel", ".layers[1].kernel", ".rate"),
        (".layers[0].mean", ".layers[1].mean"),
    ]
    frozen = freeze(other)
    assert find_aliases(Net([Layer(array, table=frozen), Layer(array.copy(), table=frozen)])) == []


@pytest.mark.devices(4)
def test_two_objects_with_one_buffer_are_one_array() -> None:
    array = jnp.arange(8.0)

    assert find_aliases({"a": array, "b": jax.device_put(array), "c": array[:], "d": array + 0}) == [
        ("['a']", "['b']", "['c']")
    ]
    mesh = jax.make_mesh((4,), ("x",))
    sharded = jax.device_put(array, jax.NamedSharding(mesh, PARTITION("x")))
    assert find_aliases([sharded, sharded, array]) == [("[0]", "[1]")]


@pytest.mark.devices(4)
def test_deleted_and_traced_arrays_are_distinguished() -> None:
    mesh = jax.make_mesh((4,), ("x",))
    for sharding in (None, jax.NamedSharding(mesh, PARTITION("x"))):
        deleted, other = jax.device_put(np.ones(4), sharding), jax.device_put(np.ones(4), sharding)
        deleted.delete()
        other.delete()
        assert find_aliases([deleted, other, deleted]) == [("[0]", "[2]")]

    aliases: list[Any] = []
    jax.jit(lambda a, b: aliases.append(find_aliases([a, b, a])))(1.0, 2.0)
    assert aliases == [[("[0]", "[2]")]]
