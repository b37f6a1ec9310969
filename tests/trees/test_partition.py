"""Settings and masks in trees of the same treedef; partition and combine."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from treewright import (
    Module,
    buffer,
    combine,
    field,
    partition,
    pytree_dataclass,
    spec_like,
    static,
    trainable,
)


class Layer(Module):
    kernel: Any = field(converter=jnp.asarray)
    bias: Any = None
    activation: str = static(default="relu")

    def __check_init__(self) -> None:
        if self.kernel.ndim != 2:
            raise ValueError("kernel must be a matrix")


@pytree_dataclass
class Norm:
    scale: Any = field()
    mean: Any = buffer(default=0.0)
    inner: Any = buffer(default=None)


class Statistics(Module):
    mean: Any = buffer()
    counts: Any = buffer()


class Net(Module):
    layers: tuple[Layer, ...]
    norm: Norm
    rest: Any = None


def small_net() -> Net:
    layers = Layer(jnp.ones((2, 3)), jnp.zeros(3)), Layer(jnp.ones((3, 1)))
    return Net(layers, Norm(jnp.ones(3), jnp.zeros(3), {"layer": Layer(jnp.ones((1, 1)))}), [1.0, None])


def settings_of(spec: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(spec, is_leaf=lambda leaf: leaf is None)
    return {jax.tree_util.keystr(path): leaf for path, leaf in leaves}


PARTIAL: Any = jax.tree_util.Partial
ALL = [
    *(".layers[0].kernel", ".layers[0].bias", ".layers[1].kernel", ".norm.scale", ".norm.mean"),
    *(".norm.inner['layer'].kernel", ".rest[0]"),
]


# spec_like


def test_a_spec_has_the_treedef_of_the_tree_and_runs_no_code_of_it() -> None:
    net = small_net()
    spec = spec_like(net, 0)

    assert jax.tree.structure(spec) == jax.tree.structure(net)
    assert jax.tree.leaves(spec) == [0] * len(ALL)
    assert type(spec.layers[0]) is Layer


def test_a_later_rule_wins() -> None:
    spec = spec_like(small_net(), 0, {"**.kernel": 1, ".layers": 2, ".layers[0].kernel": None})

    assert settings_of(spec.layers) == {"[0].kernel": None, "[0].bias": 2, "[1].kernel": 2, "[1].bias": None}
    assert spec.norm.inner["layer"].kernel == 1
    assert spec_like([[1, 2], 3], ["a", None]) == [["a", "a"], None]  # the default may be a prefix
    with pytest.raises(ValueError, match=r"^default= is not a prefix of the tree\."):
        spec_like([1, 2], [3])


@pytest.mark.parametrize("where", ["bias", ["bias"], lambda _path, _leaf: True])
def test_spec_like_rejects_anything_but_a_mapping(where: Any) -> None:
    with pytest.raises(
        TypeError, match=r"^where= of spec_like must be a mapping from places to settings, got .* Write spec_like\("
    ):
        spec_like(small_net(), True, where)


# trainable


def test_leaves_in_buffers_are_not_trainable() -> None:
    net = small_net()
    mask = trainable(net)

    assert jax.tree.structure(mask) == jax.tree.structure(net)
    assert [place for place, is_trained in settings_of(mask).items() if is_trained is False] == ALL[4:6]
    assert jax.tree.leaves(trainable({"a": [1, PARTIAL(len, net.norm)], "b": None})) == [*(True, True, False, False)]
    assert jax.tree.leaves(trainable(Statistics(jnp.ones(2), [1, 2]))) == [False] * 3


# partition and combine


def test_a_mask_is_a_prefix_of_bools() -> None:
    assert partition([[1, 2], 3], [True, False]) == ([[1, 2], None], [[None, None], 3])
    assert partition(jnp.ones(2), trainable)[1] is None
    with pytest.raises(TypeError, match=r"^A mask needs True or False for each leaf, got None\.$"):
        partition([1, 2], [True, None])


def test_combine_accepts_any_number_of_trees() -> None:
    net = small_net()
    kernels, rest = partition(net, "**.kernel")
    biases, rest = partition(rest, "**.bias")

    assert combine(biases, kernels, rest) == net
    assert combine(None, None) is None
    with pytest.raises(TypeError, match=r"^combine\(\) needs both halves returned by partition\(\): first, rest = "):
        combine(net)


def test_partition_limits_gradients_to_selected_leaves() -> None:
    net = Net((), Norm(jnp.ones(3), jnp.arange(3)))
    weights, rest = partition(net, trainable)
    grads = jax.grad(lambda weights: jnp.sum(combine(weights, rest).norm.scale * net.norm.mean))(weights)

    assert grads.norm.scale.tolist() == [0.0, 1.0, 2.0]
    assert grads.norm.mean is None
