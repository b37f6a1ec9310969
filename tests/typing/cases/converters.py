"""Fields with converters: the accepted types, and the types they read as."""

from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, assert_type

import jax
import jax.numpy as jnp

from treewright import AsArray, Converted, Converter, Module, buffer, field, pytree_dataclass, replace, static

AsTuple: TypeAlias = Annotated[Converted[Iterable[int], tuple[int, ...]], Converter(tuple)]


@pytree_dataclass
class Layer:
    kernel: AsArray
    bias: AsArray = Converted(0.0)
    scale: AsArray = field(default=Converted(1), kw_only=True)
    mean: AsArray = buffer(default_factory=lambda: Converted(jnp.zeros(3)), kw_only=True)
    sizes: AsTuple = static(default=Converted((3, 3)), kw_only=True)


class Net(Module):
    kernel: AsArray

    def __init__(self, value: float) -> None:
        self.kernel = value


class Plain(Module):
    kernel: jax.Array = field(converter=jnp.asarray)


layer = Layer(1.0, 2, scale=True, sizes={1, 2})
assert_type(layer.kernel, jax.Array)
assert_type(layer.bias, jax.Array)
assert_type(layer.scale, jax.Array)
assert_type(layer.mean, jax.Array)
assert_type(layer.sizes, tuple[int, ...])
assert_type(replace(layer, kernel=3), Layer)
assert_type(Net(3.0).kernel, jax.Array)
assert_type(Plain(jnp.ones(3)).kernel, jax.Array)
assert isinstance(layer.kernel, jax.Array)
assert isinstance(layer.bias, jax.Array)
assert isinstance(layer.scale, jax.Array)
assert isinstance(replace(layer, kernel=3).kernel, jax.Array)
assert isinstance(Net(3.0).kernel, jax.Array)
assert layer.sizes == (1, 2)
assert Layer(1.0).sizes == (3, 3)


def rejected() -> Any:
    """Never called: each line is an error of the checkers."""
    layer.kernel = 3.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    Net(3.0).kernel = "no"  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]

    class Wrong(Module):
        kernel: AsArray = 3.0  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]

    return [
        Wrong,
        Layer("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Layer(1.0, sizes=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
