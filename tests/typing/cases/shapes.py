"""Shapes in annotations: `jaxtyping` on fields and functions, which checkers read as the array type."""

from typing import Any, assert_type

import jax
import jax.numpy as jnp
from beartype import beartype
from jaxtyping import Array, Float, Int, jaxtyped  # pyright: ignore[reportUnknownVariableType]

from treewright import Module, pytree_dataclass, replace, static
from treewright.typed import jit, tree_map, vmap


@jaxtyped(typechecker=beartype)
@pytree_dataclass
class Dense:
    kernel: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]
    name: str = static(default="dense")


class Net(Module):
    first: Dense
    steps: Int[Array, ""]

    @jaxtyped(typechecker=beartype)
    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        return x @ self.first.kernel + self.first.bias


@jaxtyped(typechecker=beartype)
def loss(net: Net, x: Float[Array, " inputs"]) -> Float[Array, ""]:
    return jnp.sum(net(x))


def itself(net: Net) -> Net:
    return net


net = Net(Dense(jnp.ones((3, 2)), jnp.ones(2)), jnp.asarray(0))
x = jnp.ones(3)
assert_type(net.first.kernel, jax.Array)
assert_type(net(x), jax.Array)
assert_type(loss(net, x), jax.Array)
assert_type(replace(net.first, bias=jnp.zeros(2)), Dense)

# JAX's substitutes for arrays never pass a constructor.
assert_type(tree_map(lambda leaf: leaf.shape, net), Net)
assert_type(vmap(itself, in_axes=None, axis_size=2)(net), Net)
assert_type(jit(loss)(net, x), jax.Array)


def rejected() -> list[Any]:
    """Never called: each line is an error of the checkers."""
    return [  # pyright: ignore[reportUnknownVariableType]
        Dense("no", jnp.ones(2)),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        net("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        loss(net),  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ]
