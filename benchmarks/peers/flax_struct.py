"""flax.struct."""

from typing import Any

import jax
from flax import struct


@struct.dataclass
class Norm:
    scale: jax.Array
    epsilon: float = struct.field(pytree_node=False)


@struct.dataclass
class Attention:
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: int = struct.field(pytree_node=False)


@struct.dataclass
class MLP:
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: str = struct.field(pytree_node=False)


@struct.dataclass
class Eight:
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: int = struct.field(pytree_node=False)


@struct.dataclass
class Block:
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
