"""chex, which has no static fields."""

from typing import Any

import chex
import jax

NO_STATICS = True


@chex.dataclass(frozen=True)
class Norm:
    scale: jax.Array


@chex.dataclass(frozen=True)
class Attention:
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array


@chex.dataclass(frozen=True)
class MLP:
    gate: jax.Array
    up: jax.Array
    down: jax.Array


@chex.dataclass(frozen=True)
class Eight:
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array


@chex.dataclass(frozen=True)
class Block:
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
