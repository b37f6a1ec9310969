"""What a static costs where a node is made, by what it is: a string, a library's function, a lambda, an optimiser."""

import dataclasses
import itertools
import timeit
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _lines import table
from _report import duration
from _targets import Results
from _timing import Case, Key, statement

from treewright import pytree_dataclass, static
from treewright._core.keys import exact_key

NAME = "statics"
ALONE = "statics, key alone"


@pytree_dataclass
class Plain:
    """A node with one child and one static."""

    child: jax.Array
    value: Any = static()


@pytree_dataclass
class ByContent:
    """The same; what a function of the user's captured is compared."""

    child: jax.Array
    value: Any = static(compare="content")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of static, and how one is made; `anew` gives another one to each node."""

    name: str
    make: Callable[[], Any]
    anew: bool = False
    node: Callable[[jax.Array, Any], Any] = Plain

    def values(self, number: int) -> Iterator[Any]:
        """So many statics."""
        if not self.anew:
            return itertools.repeat(self.make(), number)
        return iter([self.make() for _ in range(number)])


def _closure() -> Any:
    slope = 0.1
    return lambda x: x * slope


# The first is what the others are compared with.
KINDS = (
    Kind("str", lambda: "relu"),
    Kind("jax.nn.relu", lambda: jax.nn.relu),
    Kind("jnp.float32", lambda: jnp.float32),
    Kind("np.dtype", lambda: np.dtype("float32")),
    Kind("lambda x: x, the same", lambda: _IDENTITY),
    Kind("lambda x: x, anew", lambda: lambda x: x, anew=True),
    Kind("lambda x: jnp.tanh(x), anew", lambda: lambda x: jnp.tanh(x), anew=True),  # noqa: PLW0108
    Kind("closure, anew", _closure, anew=True),
    Kind("closure, anew, by content", _closure, anew=True, node=ByContent),
    Kind("optax.adamw(1e-3), the same", lambda: _ADAMW),
    Kind("optax.adamw(1e-3), anew", lambda: optax.adamw(1e-3), anew=True),
)
_IDENTITY = lambda x: x  # noqa: E731
_ADAMW = optax.adamw(1e-3)


class _Timer(timeit.Timer):
    """A timer of a statement that reads `next(values)`; what is made anew is made before the clock starts."""

    def __init__(self, text: str, kind: Kind, **names: Any) -> None:
        super().__init__(text)
        self._text, self._kind, self._names = text, kind, names

    def timeit(self, number: int = 1) -> float:
        """The seconds of so many runs."""
        values = self._kind.values(number)
        return statement(self._text, next=next, values=values, **self._names).timeit(number)


def cases() -> Iterator[Case]:
    """Construction of a node with each kind of static, and the key alone.

    One node of each kind lives all the while, as in a training loop: what is equal to its static is found, not stored.
    """
    child = jax.device_put(np.float32(0))
    for kind in KINDS:
        first = kind.node(child, kind.make())
        timer = _Timer("Node(child, next(values))", kind, Node=kind.node, child=child, first=first)
        yield Case(Key(NAME, 1, kind.name), timer)
    for kind in KINDS:
        timer = _Timer("key(next(values), content=content)", kind, key=exact_key, content=kind.node is ByContent)
        yield Case(Key(ALONE, 1, kind.name), timer)


def text(results: Results) -> str:
    """A row for each kind of static: times as median / minimum, and the ratios to a `str`."""
    base = results[Key(NAME, 1, KINDS[0].name)]
    rows = [["construction, 1 child and 1 static", "median / fastest", f"to a {KINDS[0].name}", "its key alone"]]
    for kind in KINDS:
        whole, alone = results[Key(NAME, 1, kind.name)], results[Key(ALONE, 1, kind.name)]
        rows.append(
            [
                kind.name,
                f"{duration(whole.median)} / {duration(whole.minimum)}",
                f"{whole.median / base.median:.2f} / {whole.minimum / base.minimum:.2f}",
                f"{duration(alone.median)} / {duration(alone.minimum)}",
            ]
        )
    return table(rows)
