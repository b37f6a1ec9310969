"""Annotations that convert: `Converted`, `Converter`, `AsArray` and `AsRef`; and what an annotation must not hold."""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Generic, Self, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from typing_extensions import TypeVar

from treewright._core.annotations import annotation_text
from treewright._core.fields import JDC_MARK, specifier_in
from treewright._core.functions import class_of, kept_in_pickles, public
from treewright._core.jax_refs import is_ref
from treewright._core.text import first_text
from treewright.errors import NodeDefinitionError, StaticFieldError

Given_contra = TypeVar("Given_contra", contravariant=True)
Kept_co = TypeVar("Kept_co", covariant=True)


@public("treewright")
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


@public("treewright")
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


# Refs

if TYPE_CHECKING:

    class Ref(jax.Ref):
        """An array that changes in place. `ref[...]` is what it holds, and `ref[...] = value` changes it."""

        @property
        def shape(self) -> tuple[int, ...]: ...
        def __getitem__(self, idx: Any) -> jax.Array: ...
        def __setitem__(self, idx: Any, x: ArrayLike) -> None: ...
        def __len__(self) -> int: ...
        def addupdate(self, x: ArrayLike, idx: Any = ()) -> None: ...

    def new_ref(init_val: ArrayLike, /) -> Ref:
        """A ref that holds a copy of an array."""
        ...
else:
    from jax import Ref

    from treewright._core.jax_refs import new_ref


def as_ref(value: Any) -> Ref:
    """A ref as it is; of an array, a random key or a number a new one, which is not weakly typed."""
    if is_ref(value):
        ref: Ref = value
        return ref
    array = jnp.asarray(value)
    weak = getattr(array, "weak_type", False)  # random keys have none
    return new_ref(array.astype(array.dtype) if weak else array)


AsRef: TypeAlias = Annotated[Converted[ArrayLike | jax.Ref, Ref], Converter(as_ref)]


# In the annotations of a class


def annotated_converter(cls: type[Any], name: str, hint: Any) -> Callable[[Any], Any] | None:
    """The converter in the annotation of a field of `cls`, which is resolved, or None."""
    if isinstance(hint, str):
        if "AsArray" in hint or "Convert" in hint:
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{name}: the annotation {hint!r} can't be resolved when the class is made, so its "
                f"converter would not run. Import what it names at the top of the module, not under TYPE_CHECKING."
            )
        return None
    if issubclass(type(hint), type) and not hasattr(hint, "_is_static_wrapper_"):  # a class, which holds neither
        return None
    _refuse_marks(cls, name, hint)
    if typing.get_origin(hint) is not Annotated:
        return _only_static_in(hint, cls, name)
    converters = [part.function for part in hint.__metadata__ if class_of(part) is Converter]
    if len(converters) > 1:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{name} has {len(converters)} converters. Make them one function."
        )
    return converters[0] if converters else _only_static_in(typing.get_args(hint)[0], cls, name)


# What others put into an annotation to make a field static.
_MARKS = types.MappingProxyType({JDC_MARK: "jax_dataclasses.Static", "__static__": "flax.nnx.Static"})


def _refuse_marks(cls: type[Any], name: str, hint: Any) -> None:
    """Refuse what stands in an annotation and would say something after the `=`."""
    place, specifier = f"{cls.__qualname__}.{name}", specifier_in(hint)
    if specifier is not None and class_of(hint) is not dataclasses.Field:  # as in x: x = field()
        raise NodeDefinitionError(
            f"{place} is annotated with {specifier}, which is not a type, and would be a plain child. Write {name}: "
            f"... = {specifier}()."
        )
    for part in hint.__metadata__ if typing.get_origin(hint) is Annotated else ():
        specifier = specifier_in(part)
        foreign = _MARKS.get(part) if isinstance(part, str) else None
        if specifier is not None or foreign is not None:
            raise NodeDefinitionError(
                f"{place} has {foreign or f'{specifier}()'} in its annotation, where nothing reads it, and would be a "
                f"plain child. Write {name}: {annotation_text(hint.__origin__, cls)} = {specifier or 'static'}()."
            )


def _only_static_in(hint: Any, cls: type[Any], name: str) -> Callable[[Any], Any] | None:
    """The check of a field that is annotated with `Static`, or with `Static` or None; None for any other."""
    is_union = typing.get_origin(hint) in {typing.Union, types.UnionType}
    wrappers = [part for part in typing.get_args(hint) if part is not types.NoneType] if is_union else [hint]
    if len(wrappers) != 1 or not hasattr(wrappers[0], "_is_static_wrapper_"):  # an alias has what its class has
        return None
    held = ", ".join(annotation_text(part, cls) for part in typing.get_args(wrappers[0])) or "..."
    return functools.partial(only_static, f"{cls.__qualname__}.{name}", f"{name}: {held} = static()")


@kept_in_pickles
def only_static(place: str, line: str, value: Any) -> Any:
    """The value of a field that is annotated with `Static`: an instance, or None, which is no leaf either."""
    if value is None or hasattr(class_of(value), "_is_static_wrapper_"):
        return value
    given = first_text(value)
    raise StaticFieldError(
        f"{place} is annotated with Static, which is a node around a static value, and is given {given}. That would be "
        f"a plain child, traced by jit. Write {line} in the class, for a field that holds {given} itself, or give it "
        f"Static({given})."
    )
