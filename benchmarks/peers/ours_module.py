"""treewright.Module."""

from typing import Any

import jax

from treewright import Module, static


class Norm(Module):
    scale: jax.Array
    epsilon: float = static()


class Attention(Module):
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: int = static()


class MLP(Module):
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: str = static()


class Eight(Module):
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: int = static()


class Block(Module):
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
