"""What a static field may be declared as: for type checkers, which refuse the rest where the class is written."""

# What is not for mypy it finds unreachable.
# mypy: disable-error-code="unreachable"

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from typing_extensions import TypeVar

# mypy takes a variable of this name for true, every other checker reads False: the two can be told different things.
MYPY: Literal[False] = False

if TYPE_CHECKING:
    if MYPY:

        class Unset(Any):  # type: ignore[misc]
            """What mypy takes for a value of any type: a static field without a default has none."""

    else:

        class Unset:
            """Nothing, to the other checkers, which do not need it."""


class StaticValue(Protocol):
    """What `jit` needs of a static: a hash, and a comparison that says yes or no.

    Lists and dicts have no hash, and arrays compare item by item, so none of them is one. mypy takes a protocol of
    your own as a static field's type when it extends this one.

    Examples:
        >>> class Schedule(StaticValue, Protocol):
        ...     def __call__(self, step: int) -> float: ...
        >>> @pytree_dataclass
        ... class Training:
        ...     rate: Schedule = static()
        >>> Training(rate=abs).rate(-2)
        2
    """

    def __hash__(self) -> int: ...

    def __eq__(self, other: object, /) -> bool: ...


class NoStaticValue:
    """In a checker's message: the declared type of a static field is one that no static can have."""


# Classes, functions and None are static values too, but mypy does not find the methods of the protocol on them.
AnyStatic: TypeAlias = StaticValue | type[Any] | Callable[..., Any] | None
S = TypeVar("S", bound=AnyStatic)
Declared = TypeVar("Declared", bound=AnyStatic, default=NoStaticValue)
