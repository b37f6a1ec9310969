"""`replace`: a changed copy of a node, under types that know the fields.

Nobody uses it in this module: a checker takes the last definition of a name that it imports, but all of them in here.
"""

# The definition for mypy is not assignable to the one for pyright.
# pyright: reportAssignmentType=false

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

from treewright._nodes.node import replaced
from treewright._nodes.static_types import MYPY

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


class HasReplace(Protocol[P, R_co]):
    """What checkers give every dataclass from Python 3.13 on: a `__replace__` that takes its fields."""

    def __replace__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class ReplaceMethod(Protocol):
    """`replace` as a method, for checkers: it takes what `__replace__` takes, and gives the class of its node."""

    def __get__(self, node: HasReplace[P, Any], owner: type[T], /) -> Callable[P, T]: ...


if MYPY:
    # mypy knows this very function, and checks names and types of the fields on every Python version.
    from dataclasses import replace as replace  # type: ignore[unreachable]  # noqa: PLC0414
elif TYPE_CHECKING and sys.version_info >= (3, 13):

    def replace(node: HasReplace[P, T], /, *args: P.args, **changes: P.kwargs) -> T: ...

else:

    def replace(node: T, /, **changes: Any) -> T:
        """A copy of `node` with some fields replaced; everything else is shared, not copied.

        Converters and `__check_init__` run, the constructor and `__post_init__` do not. Changing a static changes the
        treedef, so jitted functions trace again.

        Args:
            node: An instance of a node class.
            **changes: New values by field name, statics and `init=False` fields among them.

        Raises:
            TypeError: If a name is not a field; the message lists the close ones. Also if `node` is no node.

        Examples:
            >>> @pytree_dataclass
            ... class Layer:
            ...     kernel: float
            ...     activation: str = static(default="relu")
            >>> replace(Layer(1.0), activation="gelu")
            Layer(kernel=1.0, activation='gelu')
        """
        if not hasattr(type(node), "__node_spec__"):
            raise TypeError(
                f"replace() takes an instance of a Module or of a class with @pytree_dataclass, "
                f"got {type(node).__name__!r}."
            )
        copy: T = replaced(node, **changes)
        return copy
