"""simple_pytree."""

from typing import Any

import jax
import simple_pytree


@simple_pytree.dataclass
class Norm(simple_pytree.Pytree):
    scale: jax.Array
    epsilon: float = simple_pytree.static_field()


@simple_pytree.dataclass
class Attention(simple_pytree.Pytree):
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: int = simple_pytree.static_field()


@simple_pytree.dataclass
class MLP(simple_pytree.Pytree):
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: str = simple_pytree.static_field()


@simple_pytree.dataclass
class Eight(simple_pytree.Pytree):
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: int = simple_pytree.static_field()


@simple_pytree.dataclass
class Block(simple_pytree.Pytree):
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
