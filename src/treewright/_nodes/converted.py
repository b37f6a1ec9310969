"""Annotations that convert: `kernel: AsArray` takes whatever is array-like and reads as a `jax.Array`, to checkers too.

mypy does not look at `field(converter=...)`. Both checkers know descriptors: what a field takes is the value of
`__set__`, what it reads as is the result of `__get__` (PEP 681, "descriptor-typed field support").
"""

import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeAlias, TypeVar, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from treewright._nodes.classes import class_of, declarer_of, resolved
from treewright.errors import NodeDefinitionError

Given_contra = TypeVar("Given_contra", contravariant=True)
Kept_co = TypeVar("Kept_co", covariant=True)


class Converted(Generic[Given_contra, Kept_co]):
    """The type of a field that is given one type and keeps another; `Annotated` with the `Converter` between them.

    A default stands in `Converted(...)`, for checkers; at run time that is the default itself.

    Examples:
        >>> AsTuple = Annotated[Converted[Iterable[int], tuple[int, ...]], Converter(tuple)]
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: AsArray = Converted(0.0)
        ...     sizes: AsTuple = static(default=Converted((3, 3)))
        >>> Layer([1.0, 2.0])
        Layer(kernel=f32[2], sizes=(3, 3))

    Source: PEP 681, "Descriptor-typed field support".
    """

    if TYPE_CHECKING:

        def __init__(self, default: Given_contra, /) -> None: ...
        @overload
        def __get__(self, node: None, owner: Any, /) -> Self: ...
        @overload
        def __get__(self, node: object, owner: Any, /) -> Kept_co: ...
        def __get__(self, node: Any, owner: Any, /) -> Any: ...
        def __set__(self, node: object, value: Given_contra, /) -> None: ...
    else:

        def __new__(cls, default: Any, /) -> Any:
            """The default, as it is."""
            return default


class Converter:
    """In an `Annotated` annotation: the function that each value of the field passes, as `field(converter=...)` has it.

    Args:
        function: Takes the given value and returns the one to keep.

    Raises:
        TypeError: If `function` can't be called.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     rate: Annotated[Converted[int, float], Converter(float)]
        >>> Layer(1).rate
        1.0
    """

    __slots__ = ("function",)
    function: Callable[[Any], Any]

    def __init__(self, function: Callable[[Any], Any]) -> None:
        if not callable(function):
            raise TypeError(f"Converter takes a function of one value, got {function!r}.")
        self.function = function

    def __repr__(self) -> str:
        return f"Converter({getattr(self.function, '__qualname__', self.function)})"


AsArray: TypeAlias = Annotated[Converted[ArrayLike, jax.Array], Converter(jnp.asarray)]


def annotated_converter(cls: type[Any], name: str, annotation: Any) -> Callable[[Any], Any] | None:
    """The converter in the annotation of a field of `cls`, or None.

    Raises:
        NodeDefinitionError: If the annotation is a text that speaks of a converter and can't be resolved.
    """
    found = resolved(annotation, declarer_of(cls, name))
    if isinstance(found, str):
        if "AsArray" in found or "Convert" in found:
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{name}: the annotation {found!r} can't be resolved when the class is made, so its "
                f"converter would not run. Import what it names at the top of the module, not under TYPE_CHECKING."
            )
        return None
    if typing.get_origin(found) is not Annotated:
        return None
    converters = [part.function for part in found.__metadata__ if class_of(part) is Converter]
    if len(converters) > 1:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{name} has {len(converters)} converters. Make them one function."
        )
    return converters[0] if converters else None
