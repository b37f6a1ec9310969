"""Operations on all parameters of a model: each takes a line or two of `jax.tree`, and works under `jit`.

Run `python examples/tree_operations.py`. It prints each operation with its result.
"""

import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax

from treewright import Module, at, count, pytree_dataclass, static
from treewright.typed import tree_map

T = TypeVar("T")


# The nodes


class Dense(Module):
    """`activation(x @ kernel + bias)`."""

    kernel: jax.Array
    bias: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jnp.tanh)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[outputs]` from `f32[inputs]`."""
        return self.activation(x @ self.kernel + self.bias)


class Net(Module):
    """Two layers by name."""

    layers: Mapping[str, Dense]

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[2]` from `f32[3]`."""
        for layer in self.layers.values():
            x = layer(x)
        return x


@pytree_dataclass
class Batch:
    """Inputs and targets."""

    inputs: jax.Array
    targets: jax.Array


def small_net(key: jax.Array) -> Net:
    """Kernels are random, biases are ones."""
    first, second = jax.random.split(key)
    return Net(
        {
            "hidden": Dense(jax.random.normal(first, (3, 4)), jnp.ones(4)),
            "output": Dense(jax.random.normal(second, (4, 2)), jnp.ones(2)),
        }
    )


def loss(net: Net, batch: Batch) -> jax.Array:
    """The mean squared error."""
    return jnp.mean((jax.vmap(net)(batch.inputs) - batch.targets) ** 2)


# The operations. `T` is any tree: a net, its gradients, a dict of nets


@jax.jit
def doubled(tree: T) -> T:
    """Each leaf twice as large."""
    return tree_map(lambda leaf: 2 * leaf, tree)


@jax.jit
def norm(tree: object) -> jax.Array:
    """The length of all leaves as one vector."""
    return jnp.sqrt(jax.tree.reduce(operator.add, jax.tree.map(lambda leaf: jnp.sum(leaf**2), tree)))


@jax.jit
def descended(params: T, grads: T, rate: float) -> T:
    """A step against the gradients: a map over two trees of one structure."""
    return tree_map(lambda param, grad: param - rate * grad, params, grads)


@jax.jit
def with_momentum(params: T, grads: T, velocity: T, rate: float = 0.1, keep: float = 0.9) -> tuple[T, T]:
    """New parameters and velocity, from three trees of one structure."""
    velocity = tree_map(lambda v, grad: keep * v - rate * grad, velocity, grads)
    return tree_map(operator.add, params, velocity), velocity


@jax.jit
def clipped_by_leaf(grads: T, most: float) -> T:
    """Shorten each leaf that is longer than `most`; keep the others."""
    return tree_map(lambda grad: grad * jnp.minimum(1, most / (jnp.linalg.norm(grad.ravel()) + 1e-12)), grads)


@jax.jit
def with_noise(tree: T, key: jax.Array, scale: float) -> T:
    """Noise on each leaf, from a separate key."""

    def noisy(leaf: jax.Array, key: jax.Array) -> jax.Array:
        return leaf + scale * jax.random.normal(key, leaf.shape, leaf.dtype)

    any_tree: Any = tree  # optax's types have no classes of your own
    keys: Any = optax.tree.split_key_like(key, any_tree)
    return tree_map(noisy, tree, keys)


@jax.jit
def decayed(params: T, factor: float) -> T:
    """Each leaf times `factor`, except in fields named `bias`."""

    def decay(path: tuple[object, ...], leaf: jax.Array) -> jax.Array:
        return leaf if path[-1] == jax.tree_util.GetAttrKey("bias") else factor * leaf

    decayed: T = jax.tree_util.tree_map_with_path(decay, params)
    return decayed


def one_of_lists(trees: Sequence[T]) -> T:
    """A tree whose leaves are lists, from a list of trees."""
    return tree_map(lambda *leaves: list(leaves), trees[0], *trees[1:])


def transposed(trees: Sequence[T]) -> T:
    """The same by `jax.tree.transpose`, which needs both structures and no function."""
    inner = jax.tree.structure(trees[0])
    outer = jax.tree.structure([0] * len(trees))
    turned: T = jax.tree.transpose(outer, inner, list(trees))
    return turned


def list_of_trees(tree: T, length: int) -> list[T]:
    """The inverse: a list of trees, from a tree whose leaves are lists."""
    inner = jax.tree.structure(tree, is_leaf=lambda node: isinstance(node, list))
    trees: list[T] = jax.tree.transpose(inner, jax.tree.structure([0] * length), tree)
    return trees


# Output


def show(title: str, result: object) -> None:
    """One line for each line of the result."""
    first, *others = str(result).splitlines()
    print(f"{title:38}{first}")
    for line in others:
        print(f"{'':38}{line}")


def lengths(tree: object) -> str:
    """The length of each leaf, with its path."""
    found = jax.tree_util.tree_leaves_with_path(tree)
    return "\n".join(f"{jax.tree_util.keystr(path):26}{jnp.linalg.norm(leaf.ravel()):7.3f}" for path, leaf in found)


def show_arithmetic(net: Net, grads: Net) -> None:
    """Operations that return a new tree of the same structure."""
    show("double", lengths(doubled(net)))
    show("a step against the gradients", lengths(descended(net, grads, 0.1)))
    zeros = tree_map(jnp.zeros_like, net)
    show("zeros, and their norm", f"{zeros!r}\n{norm(zeros):.3f}")
    params, velocity = net, zeros
    for _ in range(3):
        params, velocity = with_momentum(params, grads, velocity)
    show("velocity after three steps", lengths(velocity))
    show("each leaf clipped to 0.1", lengths(clipped_by_leaf(grads, 0.1)))
    noisy = with_noise(net, jax.random.key(2), 0.01)
    show("how far noise moved each leaf", lengths(descended(noisy, net, 1.0)))
    show("decay, but not of the biases", lengths(decayed(net, 0.5)))


def show_structure(net: Net, batch: Batch) -> None:
    """Containers of nodes, lists of trees, and errors for different structures."""
    nested: dict[str, Any] = {"ensemble": [net.layers["hidden"], None], "data": (batch, 3)}
    show("leaves of nested containers", [jnp.shape(leaf) for leaf in jax.tree.leaves(nested)])
    show("their structure", jax.tree.structure(nested))
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(nested)]
    show("their paths", "\n".join(paths))

    layers = [net.layers["hidden"], doubled(net.layers["hidden"]), tree_map(jnp.zeros_like, net.layers["hidden"])]
    turned = transposed(layers)
    show("a list of layers, turned inside out", turned)
    show("and back", list_of_trees(turned, len(layers)))
    try:
        jax.tree.map(operator.add, net, at(net, "layers['hidden']").set(None))
    except ValueError as error:
        show("a different structure", error)
    try:
        jax.tree.map(operator.add, layers[0], layers[0].replace(activation=jax.nn.relu))
    except ValueError as error:
        show("a different static", error)


def main() -> int:
    """Each operation on a small net and its gradients."""
    net = small_net(jax.random.key(0))
    batch = Batch(jax.random.normal(jax.random.key(1), (8, 3)), jnp.zeros((8, 2)))
    grads = jax.jit(jax.grad(loss))(net, batch)
    show("the net", net)
    show("its gradients are a net", grads)
    show("parameters, norm of all", f"{count(net)}, {norm(net):.3f}")
    show("the largest leaf, by tree.reduce", jax.tree.reduce(max, tree_map(jnp.size, net)))
    show_arithmetic(net, grads)
    show_structure(net, batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
