"""Fields that convert: by `converter=`, or in a custom `__init__`, whose parameters all checkers know."""

from collections.abc import Iterable
from typing import Any, assert_type

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from treewright import Module, field, replace, static


class Net(Module):
    kernel: jax.Array
    sizes: tuple[int, ...] = static()

    def __init__(self, kernel: ArrayLike, sizes: Iterable[int] = (3, 3)) -> None:
        self.kernel = jnp.asarray(kernel)
        self.sizes = tuple(sizes)


class Plain(Module):
    kernel: jax.Array = field(converter=jnp.asarray)


net = Net(1.0, sizes={1, 2})
assert_type(net.kernel, jax.Array)
assert_type(net.sizes, tuple[int, ...])
assert_type(replace(net, kernel=jnp.ones(3)), Net)
assert_type(Plain(jnp.ones(3)).kernel, jax.Array)
assert isinstance(net.kernel, jax.Array)
assert (net.sizes, Net(1.0).sizes) == ((1, 2), (3, 3))


def rejected() -> Any:
    """Never called: each line is an error of the checkers."""
    return [
        Net("no"),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        Net(1.0, sizes=3),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ]
