"""The layers to copy match equinox's layers with the same weights, and the page names each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import layers
from treewright import replace

pytestmark = pytest.mark.slow

KEY, OTHER = jax.random.split(jax.random.key(0))
PAGE = Path(__file__).parents[2] / "docs" / "layers.md"


def weights_of(linear: Any) -> dict[str, jax.Array]:
    return {"kernel": linear.weight.T, "bias": linear.bias}


def assert_close(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_linear_matches_equinox() -> None:
    theirs, x = eqx.nn.Linear(3, 2, key=KEY), jax.random.normal(OTHER, (3,))

    assert_close(replace(layers.Linear(3, 2, key=KEY), **weights_of(theirs))(x), theirs(x))


def test_mlp_matches_equinox() -> None:
    theirs, x = eqx.nn.MLP(3, 2, 8, 2, key=KEY), jax.random.normal(OTHER, (3,))
    ours = layers.MLP((3, 8, 8, 2), key=KEY)

    pairs = zip(ours.layers, theirs.layers, strict=True)
    ours = replace(ours, layers=tuple(replace(layer, **weights_of(linear)) for layer, linear in pairs))

    assert_close(ours(x), theirs(x))


def test_embedding_matches_equinox() -> None:
    theirs = eqx.nn.Embedding(7, 4, key=KEY)
    ours = replace(layers.Embedding(7, 4, key=KEY), table=theirs.weight)

    assert_close(ours(jnp.asarray(5)), theirs(jnp.asarray(5)))
    assert_close(ours.attend(jnp.ones(4)), theirs.weight @ jnp.ones(4))


@pytest.mark.parametrize("stride", [1, 2])
def test_conv_matches_equinox(stride: int) -> None:
    theirs = eqx.nn.Conv2d(3, 4, 3, stride, padding="SAME", key=KEY)
    ours = replace(
        layers.Conv(3, 4, 3, stride, key=KEY),
        kernel=theirs.weight.transpose(2, 3, 1, 0),
        bias=theirs.bias[:, 0, 0],  # type: ignore[index]  # it has a bias
    )
    x = jax.random.normal(OTHER, (8, 8, 3))

    assert_close(ours(x), theirs(x.transpose(2, 0, 1)).transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(layers.LayerNorm(6), eqx.nn.LayerNorm(6)), (layers.RMSNorm(6), eqx.nn.RMSNorm(6, eps=1e-6, use_bias=False))],
    ids=["LayerNorm", "RMSNorm"],
)
def test_norms_match_equinox(ours: Any, theirs: Any) -> None:
    x = 3 + 2 * jax.random.normal(OTHER, (6,))
    scale = jnp.arange(6.0)

    assert_close(replace(ours, scale=scale)(x), eqx.tree_at(lambda norm: norm.weight, theirs, scale)(x))
    assert ours(x.astype(jnp.bfloat16)).dtype == jnp.bfloat16


def test_batch_norm_matches_equinox() -> None:
    theirs, state = eqx.nn.make_with_state(eqx.nn.BatchNorm)(4, "batch", momentum=0.5, mode="batch")
    ours = replace(layers.BatchNorm(4), momentum=0.5)
    batched = jax.vmap(theirs, axis_name="batch", in_axes=(0, None), out_axes=(0, None))

    for key in jax.random.split(OTHER, 40):  # enough to forget the first statistics, which differ
        x = 3 + 2 * jax.random.normal(key, (32, 4))
        y, ours = ours(x, train=True)
        expected, state = batched(x, state)
        assert_close(y, expected)

    evaluated = jax.vmap(eqx.nn.inference_mode(theirs), axis_name="batch", in_axes=(0, None), out_axes=(0, None))
    assert_close(ours(x, train=False)[0], evaluated(x, state)[0])  # type: ignore[possibly-undefined]  # there are keys
    assert_close(ours(x, train=False)[1].mean, ours.mean)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_matches_equinox(causal: bool) -> None:
    theirs = eqx.nn.MultiheadAttention(2, 8, use_query_bias=True, use_key_bias=True, use_value_bias=True,
                                       use_output_bias=True, key=KEY)  # fmt: skip
    ours = layers.Attention(8, 2, key=KEY)
    projections = {"query": theirs.query_proj, "key": theirs.key_proj, "value": theirs.value_proj}
    projections["output"] = theirs.output_proj
    ours = replace(ours, **{name: replace(getattr(ours, name), **weights_of(p)) for name, p in projections.items()})
    x = jax.random.normal(OTHER, (5, 8))
    mask = jnp.tril(jnp.ones((5, 5), bool)) if causal else None

    assert_close(ours(x, causal=causal), theirs(x, x, x, mask=mask))


def test_dropout_matches_equinox() -> None:
    x = jnp.ones(10_000)
    ours = layers.Dropout(0.25)

    assert_close(ours(x, KEY), eqx.nn.Dropout(0.25)(x, key=KEY))
    assert_close(ours(x, train=False), x)
    with pytest.raises(ValueError, match=r"Dropout needs a key in training; in evaluation, pass train=False\."):
        ours(x)


def test_the_page_names_each_layer_to_copy() -> None:
    names = [name for name, value in vars(layers).items() if getattr(value, "__module__", "") == layers.__name__]
    page = PAGE.read_text(encoding="utf-8").partition("## Layers to copy")[2]

    assert len(names) == 9
    assert [name for name in names if f"`{name}`" not in page] == []
