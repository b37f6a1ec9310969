"""Plain JAX and optax, compiled more often than it should be: `python -m treewright retraces` explains why.

Run `python -m treewright retraces examples/recompiles.py`, fix the reported causes, and run it again.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

Params = dict[str, jax.Array]
TX = optax.adam(0.01)


def loss(params: Params, x: jax.Array, y: jax.Array, dropout: float) -> jax.Array:
    """The mean squared error of a hidden layer, which is scaled as dropout would scale it."""
    hidden = jnp.tanh(x @ params["hidden"]) * (1 - dropout)
    return jnp.mean((hidden @ params["out"] - y) ** 2)


@partial(jax.jit, static_argnames="dropout")
def step(params: Params, state: Any, batch: tuple[jax.Array, jax.Array], dropout: float) -> tuple[Any, Any, jax.Array]:
    """One update of Adam."""
    value, grads = jax.value_and_grad(loss)(params, *batch, dropout)
    updates, state = TX.update(grads, state)
    return optax.apply_updates(params, updates), state, value


def main() -> None:
    """Two epochs over 100 points, 32 at a time, the second with less dropout."""
    random = np.random.default_rng(0)
    x = random.normal(size=(100, 3)).astype(np.float32)
    y = x.sum(axis=1, keepdims=True)
    params: Any = {"hidden": random.normal(size=(3, 8)).astype(np.float32), "out": np.zeros((8, 1), np.float32)}
    state: Any = TX.init(params)
    value: Any = None
    for epoch in range(2):
        dropout = 0.1 / (epoch + 1)
        for start in range(0, 100, 32):
            batch: Any = x[start : start + 32], y[start : start + 32]
            params, state, value = step(params, state, batch, dropout)
        print(f"epoch {epoch}: loss {value:.3f}")


if __name__ == "__main__":
    main()
