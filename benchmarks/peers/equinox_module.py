"""equinox.Module."""

from typing import Any

import equinox as eqx
import jax


class Norm(eqx.Module):
    scale: jax.Array
    epsilon: float = eqx.field(static=True)


class Attention(eqx.Module):
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: int = eqx.field(static=True)


class MLP(eqx.Module):
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: str = eqx.field(static=True)


class Eight(eqx.Module):
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: int = eqx.field(static=True)


class Block(eqx.Module):
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
