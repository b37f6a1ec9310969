"""jarp, whose classes can be changed."""

from typing import Any

import jarp
import jax


@jarp.define
class Norm:
    scale: jax.Array
    epsilon: float = jarp.static()


@jarp.define
class Attention:
    query: jax.Array
    key: jax.Array
    value: jax.Array
    out: jax.Array
    heads: int = jarp.static()


@jarp.define
class MLP:
    gate: jax.Array
    up: jax.Array
    down: jax.Array
    activation: str = jarp.static()


@jarp.define
class Eight:
    c0: jax.Array
    c1: jax.Array
    c2: jax.Array
    c3: jax.Array
    c4: jax.Array
    c5: jax.Array
    c6: jax.Array
    c7: jax.Array
    width: int = jarp.static()


@jarp.define
class Block:
    norm1: Any
    attention: Any
    norm2: Any
    mlp: Any
