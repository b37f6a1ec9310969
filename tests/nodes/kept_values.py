"""Values of each kind that pickles hold, for test_pickled.py."""

from typing import Any

import jax
import numpy as np

from treewright import Module, Static, TrainState, buffer, freeze, pytree_dataclass, static


def halved(x: Any) -> Any:
    return x / 2


@jax.jit
def squared(x: Any) -> Any:
    return x * x


class Descent:
    """An optimiser without a state, pickled by name."""

    def __reduce__(self) -> str:
        return "DESCENT"

    def init(self, params: Any) -> Any:
        return ()

    def update(self, grads: Any, state: Any, params: Any) -> Any:
        return grads, state


@pytree_dataclass
class Layer:
    kernel: Any
    mean: Any = buffer(default=0.5)
    activation: Any = static(default=halved)


class Net(Module):
    layers: Any
    rate: float = static(default=0.5)

    def scaled(self, x: Any) -> Any:
        return x * self.rate


DESCENT = Descent()


def kept_values() -> dict[str, Any]:
    """One of each. No jax.Array: that would be a test of how JAX pickles."""
    net = Net((Layer(1.0), Layer(2.0, activation=squared)))
    state = TrainState.create(params=net, tx=DESCENT, apply_fn=halved)
    return {
        "node": Layer(3.0),
        "module": net,
        "method": net.scaled,
        "state": jax.tree.map(lambda leaf: 0 if isinstance(leaf, jax.Array) else leaf, state),
        "static": Static(("a", 1)),
        "mapping": freeze({"sizes": [1, 2]}),
        "array": freeze(np.arange(3, dtype=np.int8)),
        "statics": net.tree_flatten()[1],
    }
