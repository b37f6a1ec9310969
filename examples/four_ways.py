"""Four ways to make a class a pytree, with the same results, and the mistakes of each.

`register_pytree_node`, `register_pytree_node_class`, `flax.struct` and Treewright, each with a training state, a
container of fixed shape, linear parameters, and a dense layer that keeps its activation in `aux_data`.

Run `python examples/four_ways.py`. It needs flax: `pip install flax`.
"""

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from treewright import Module, static

try:
    from flax import struct
except ImportError as error:
    raise SystemExit("four_ways.py compares with flax.struct. Install it with: pip install flax") from error

Activation = Callable[[jax.Array], jax.Array]
Pair = tuple[tuple[Any, ...], Any]


# One: plain classes, and `register_pytree_node` with two functions for each


class PlainState:
    """Parameters, velocity and step."""

    def __init__(self, params: Any, velocity: Any, step: Any) -> None:
        self.params, self.velocity, self.step = params, velocity, step


class PlainBox:
    """A corner and the size."""

    def __init__(self, corner: Any, size: Any) -> None:
        self.corner, self.size = corner, size


class PlainLinear:
    """Weight and bias."""

    def __init__(self, weight: Any, bias: Any) -> None:
        self.weight, self.bias = weight, bias


class PlainDense:
    """Weight, and an activation outside the tree."""

    def __init__(self, weight: Any, activation: Any) -> None:
        self.weight, self.activation = weight, activation


jax.tree_util.register_pytree_node(
    PlainState, lambda node: ((node.params, node.velocity, node.step), None), lambda _, leaves: PlainState(*leaves)
)
jax.tree_util.register_pytree_node(
    PlainBox, lambda node: ((node.corner, node.size), None), lambda _, leaves: PlainBox(*leaves)
)
jax.tree_util.register_pytree_node(
    PlainLinear, lambda node: ((node.weight, node.bias), None), lambda _, leaves: PlainLinear(*leaves)
)
jax.tree_util.register_pytree_node(
    PlainDense, lambda node: ((node.weight,), node.activation), lambda aux, leaves: PlainDense(*leaves, aux)
)


# Two: the same two functions as methods, one of them inherited


class Unflattens:
    """Unflatten, for classes without `aux_data`."""

    @classmethod
    def tree_unflatten(cls, _: None, children: tuple[Any, ...]) -> Any:
        """Build an instance of the class."""
        return cls(*children)


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class ClassState(Unflattens):
    """Parameters, velocity and step."""

    params: Any
    velocity: Any
    step: Any

    def tree_flatten(self) -> Pair:
        """The children, without aux data."""
        return (self.params, self.velocity, self.step), None


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class ClassBox(Unflattens):
    """A corner and the size."""

    corner: Any
    size: Any

    def tree_flatten(self) -> Pair:
        """The children, without aux data."""
        return (self.corner, self.size), None


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class ClassLinear(Unflattens):
    """Weight and bias."""

    weight: Any
    bias: Any

    def tree_flatten(self) -> Pair:
        """The children, without aux data."""
        return (self.weight, self.bias), None


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class ClassDense:
    """Weight, and an activation outside the tree."""

    weight: Any
    activation: Any

    def tree_flatten(self) -> Pair:
        """The weight is a child, the activation `aux_data`."""
        return (self.weight,), self.activation

    @classmethod
    def tree_unflatten(cls, activation: Any, children: tuple[Any, ...]) -> "ClassDense":
        """Unflatten."""
        (weight,) = children
        return cls(weight, activation)


# Three: `flax.struct`


@struct.dataclass
class FlaxState:
    """Parameters, velocity and step."""

    params: Any
    velocity: Any
    step: Any


@struct.dataclass
class FlaxBox:
    """A corner and the size."""

    corner: Any
    size: Any


@struct.dataclass
class FlaxLinear:
    """Weight and bias."""

    weight: Any
    bias: Any


@struct.dataclass
class FlaxDense:
    """Weight, and an activation outside the tree."""

    weight: Any
    activation: Any = struct.field(pytree_node=False)  # type: ignore[no-untyped-call]  # flax leaves it untyped


# Four: with `Module`


class OurState(Module):
    """Parameters, velocity and step."""

    params: Any
    velocity: Any
    step: Any


class OurBox(Module):
    """A corner and the size."""

    corner: Any
    size: Any


class OurLinear(Module):
    """Weight and bias."""

    weight: Any
    bias: Any


class OurDense(Module):
    """Weight, and an activation outside the tree."""

    weight: Any
    activation: Any = static()


@dataclasses.dataclass(frozen=True)
class Way:
    """The four classes of one way."""

    name: str
    state: type[Any]
    box: type[Any]
    linear: type[Any]
    dense: type[Any]


WAYS = (
    Way("register_pytree_node", PlainState, PlainBox, PlainLinear, PlainDense),
    Way("register_pytree_node_class", ClassState, ClassBox, ClassLinear, ClassDense),
    Way("flax.struct", FlaxState, FlaxBox, FlaxLinear, FlaxDense),
    Way("treewright", OurState, OurBox, OurLinear, OurDense),
)


# The same results


def trained(way: Way) -> float:
    """The loss after 20 steps with momentum: a linear model and its training state pass through jit and grad."""
    x = jnp.linspace(-1, 1, 16)

    def loss(linear: Any) -> jax.Array:
        return jnp.mean((linear.weight * x + linear.bias - (3 * x + 1)) ** 2)

    @jax.jit
    def step(state: Any) -> Any:
        grads = jax.grad(loss)(state.params)
        velocity = jax.tree.map(lambda v, grad: 0.5 * v - 0.2 * grad, state.velocity, grads)
        return way.state(jax.tree.map(jnp.add, state.params, velocity), velocity, state.step + 1)

    linear = way.linear(jnp.asarray(0.0), jnp.asarray(0.0))
    state = way.state(linear, jax.tree.map(jnp.zeros_like, linear), jnp.asarray(0))
    for _ in range(20):
        state = step(state)
    return float(loss(state.params))


def scanned(way: Way) -> float:
    """The area of a box that grows ten times in a scan."""
    box = way.box(jnp.zeros(2), jnp.ones(2))
    grown, _ = jax.lax.scan(lambda box, _: (way.box(box.corner - 0.1, box.size * 1.1), None), box, length=10)
    return float(jnp.prod(grown.size))


def activated(way: Way) -> tuple[float, float]:
    """A dense layer under jit with relu, and with tanh: the activation is part of the compiled program."""
    apply = jax.jit(lambda dense, x: jnp.sum(dense.activation(dense.weight @ x)))
    weight, x = jnp.asarray([[1.0, -2.0], [0.5, 1.0]]), jnp.ones(2)
    relu, tanh = (float(apply(way.dense(weight, act), x)) for act in (jax.nn.relu, jnp.tanh))
    return relu, tanh


def batched(way: Way) -> list[float]:
    """Three linear models as one, under vmap."""
    many = way.linear(jnp.asarray([1.0, 2.0, 3.0]), jnp.zeros(3))
    outputs: list[float] = jax.vmap(lambda linear: linear.weight * 2 + linear.bias)(many).tolist()
    return outputs


RESULTS: tuple[tuple[str, Callable[[Way], object]], ...] = (
    ("loss after 20 steps", trained),
    ("area of the scanned box", scanned),
    ("dense with relu, with tanh", activated),
    ("three models under vmap", batched),
)


# Mistakes of some of them. Each function returns its result in a few words


def shared_trace(way: Way) -> str:
    """A static is 1, then True: is the result of the second call a bool?"""
    apply = jax.jit(lambda dense: jnp.asarray(dense.activation))
    apply(way.dense(jnp.ones(1), 1))
    return "right" if apply(way.dense(jnp.ones(1), True)).dtype == bool else "an integer"  # noqa: FBT003


def stale_list(way: Way) -> str:
    """A list in a static field grows in place: does the second call see it?"""
    scales = [2.0]
    apply = jax.jit(lambda dense: sum(dense.activation))
    try:
        dense = way.dense(jnp.ones(1), scales)
        apply(dense)
    except TypeError:
        return "rejected"
    scales.append(3.0)
    return "right" if float(apply(dense)) == 5 else "the old result"


def retraces(way: Way) -> str:
    """The activation is a lambda that is recreated for each call."""
    traces: list[str] = []

    @jax.jit
    def apply(dense: Any) -> jax.Array:
        traces.append("Python runs only while jit traces")
        result: jax.Array = dense.activation(dense.weight)
        return result

    for _ in range(3):
        apply(way.dense(jnp.ones(1), lambda x: 2 * x))
    return f"{len(traces)} in 3 calls"


def assigned(way: Way) -> str:
    """Can a field of the object be changed by force?"""
    box = way.box(1, 2)
    try:
        object.__setattr__(box, "size", 3)
    except AttributeError:
        return "frozen"
    return "changed"


def compared(way: Way) -> str:
    """`==` of two equal boxes of arrays."""
    first, second = (way.box(jnp.zeros(2), jnp.ones(2)) for _ in range(2))
    try:
        return str(first == second)
    except ValueError:
        return "an error"


def named_path(way: Way) -> str:
    """JAX's name for the path of a child."""
    (path, _), *_ = jax.tree_util.tree_leaves_with_path(way.box(1, 2))
    return jax.tree_util.keystr(path)


def inherited(way: Way) -> str:
    """A subclass without a registration."""
    subclass = type("Sub", (way.box,), {})
    leaves = len(jax.tree.leaves(subclass(1, 2)))
    return "a node" if leaves == 2 else "one opaque leaf"


def exported(way: Way) -> str:
    """`jax.export` of a function that takes a box, to bytes."""
    compiled = jax.export.export(jax.jit(lambda box: box.size * 2))(way.box(jnp.ones(2), jnp.ones(2)))
    try:
        compiled.serialize()
    except ValueError:
        return "an error"
    return "works"


WRONGS: tuple[tuple[str, Callable[[Way], str]], ...] = (
    ("static 1, then True", shared_trace),
    ("a static list grows", stale_list),
    ("traces for equal lambdas", retraces),
    ("object.__setattr__", assigned),
    ("== with arrays inside", compared),
    ("path of a child", named_path),
    ("an unregistered subclass", inherited),
    ("jax.export", exported),
)


def main() -> int:
    """Two tables: equal results, and mistakes."""
    for title, rows in (("The same results", RESULTS), ("Mistakes of each", WRONGS)):
        print(f"\n{title}")
        print(f"{'':28}" + "".join(f"{way.name:28}" for way in WAYS))
        for name, function in rows:
            print(f"{name:28}" + "".join(f"{text_of(function(way)):28}" for way in WAYS))
    return 0


def text_of(result: object) -> str:
    """Numbers with four digits."""
    if isinstance(result, tuple | list):
        return ", ".join(map(text_of, result))
    return f"{result:.4g}" if isinstance(result, float) else str(result)


if __name__ == "__main__":
    sys.exit(main())
