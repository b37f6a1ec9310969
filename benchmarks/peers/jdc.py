"""jax_dataclasses."""

from typing import Any

import jax
import jax_dataclasses as jdc


@jdc.pytree_dataclass
class Norm:
    scale: jax.Array
    epsilon: jdc.Static[float]


@jdc.pytree_dataclass
class Attention:
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: jdc.Static[int]


@jdc.pytree_dataclass
class MLP:
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: jdc.Static[str]


@jdc.pytree_dataclass
class Eight:
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: jdc.Static[int]


@jdc.pytree_dataclass
class Block:
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
