"""Only the `__init__` of a Module may assign to a field."""

from typing import Any, Final, assert_type

import jax
import jax.numpy as jnp

from treewright import Module, pytree_dataclass, static


@pytree_dataclass
class Layer:
    kernel: jax.Array
    activation: str = static(default="relu")


class Net(Module, frozen=True):
    layer: Layer
    width: int = static(default=3)


class Model(Module):
    layer: Layer
    width: int = static()

    def __init__(self, width: int) -> None:
        self.layer = Layer(jnp.ones(width))
        self.width = width


class Sealed(Module):
    layer: Final[Layer]
    width: int = static()

    def __init__(self, width: int) -> None:
        self.layer = Layer(jnp.ones(width))
        self.width = width


layer, net = Layer(jnp.ones(3)), Net(Layer(jnp.ones(3)))
assert_type(Model(3).layer, Layer)
assert_type(Sealed(3).width, int)


def rejected() -> Any:
    """Never called: each line is an error of the checkers."""
    layer.kernel = jnp.ones(3)  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    layer.activation = "gelu"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    net.width = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Sealed(3).layer = layer  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Model(3).width = "no"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]
    Model("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    class Thawed(Net):  # type: ignore[misc]  # pyright: ignore[reportGeneralTypeIssues]
        depth: int = 3

    return Thawed
