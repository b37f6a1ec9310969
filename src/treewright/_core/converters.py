"""Annotations of fields: reading them, those that convert (`Converted`, `Converter`, `AsArray`), and `Static[...]`."""

import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Self, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from typing_extensions import TypeAliasType, TypeVar

from treewright._core.fields import specifier_in
from treewright._core.functions import public
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError, StaticFieldError

if sys.version_info >= (3, 14):
    import annotationlib

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


# Annotations


def own_annotations(cls: type[Any]) -> dict[str, Any]:
    """What the class body itself annotates, as `dataclasses` reads it: names that are unknown yet stay unevaluated."""
    if sys.version_info >= (3, 14):
        try:
            return annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF)
        except Exception as error:
            raise NodeDefinitionError(
                f"{cls.__qualname__}: an annotation can't be read: evaluating it raised {type(error).__name__}"
                f"({error}). Correct it, or write it as a string. Only names may be unknown when the class is made."
            ) from error
    else:  # before 3.14
        annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
        return annotations


def resolved(annotation: Any, cls: type[Any]) -> Any:
    """The type that a string annotation in the body of `cls` names; the string itself where a name is unknown."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    try:
        return eval(text, {} if module is None else vars(module), dict(vars(cls)))  # noqa: S307
    except Exception:  # noqa: BLE001  a forward reference, or a name that only checkers import
        return text


def annotation_text(annotation: Any, cls: type[Any]) -> str:
    """An annotation as a user writes it in the body of `cls`, or three dots where that is unknown."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if isinstance(text, str):
        return text
    shown = inspect.formatannotation(text, cls.__module__)
    # jax.Array has the __module__ of where it is made.
    shown = shown.replace("jax.jaxlib._jax.", "jax.").replace("collections.abc.", "")
    return "..." if "._" in shown or "<" in shown else shown


_UNIONS = (typing.Union, types.UnionType)
_ALIASES = tuple({TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType)})


def looked_through(annotation: Any, cls: type[Any]) -> tuple[Any, list[Callable[[Any], Any]]]:
    """The type and the converters that an annotation in the body of `cls` comes to.

    The type is what stands behind strings, aliases of both kinds, `Final`, `ClassVar`, `InitVar`, `Annotated` and
    `| None`; a text where a name is unknown. A converter inside `| None` leaves a None alone.
    """
    converters: list[Callable[[Any], Any]] = []
    takes_none = False
    for _ in range(16):  # `type Tree = Tree | int` has no end
        annotation = resolved(annotation, cls)
        origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
        if isinstance(annotation, _ALIASES) or isinstance(origin, _ALIASES):
            annotation = (origin or annotation).__value__
        elif isinstance(annotation, dataclasses.InitVar):
            annotation = annotation.type
        elif origin is Annotated:
            found = [part.function for part in annotation.__metadata__ if isinstance(part, Converter)]
            converters += [functools.partial(unless_none, one) for one in found] if takes_none else found
            annotation = annotation.__origin__
        elif origin in {typing.Final, ClassVar}:
            annotation = parts[0]
        elif origin in _UNIONS and len(parts) == 2 and types.NoneType in parts:
            takes_none, annotation = True, parts[parts[0] is types.NoneType]
        else:
            break
    return annotation, converters


# In `jax_dataclasses.Static[...]` and `flax.nnx.Static[...]`.
_STATIC_MARKS = frozenset({"__jax_dataclasses_static_field__", "__static__"})


def converter_of(cls: type[Any], field: "dataclasses.Field[Any]", given: Any, *, is_static: bool) -> Any:
    """The converter of a field: the one that its specifier names, or its annotation.

    Raises:
        NodeDefinitionError: If the annotation names one in a place where none can run, or there are two.
    """
    place = f"{cls.__qualname__}.{field.name}"
    hint, converters = looked_through(field.type, cls)
    for part in getattr(field.type, "__metadata__", ()):
        specifier = "static" if isinstance(part, str) and part in _STATIC_MARKS else specifier_in(part)
        if specifier is not None:
            raise NodeDefinitionError(
                f"{place} is marked in its annotation, where nothing reads it, and would be a plain child. Write "
                f"{field.name}: {annotation_text(hint, cls)} = {specifier}()."
            )
    if isinstance(hint, str) and re.search(r"\b(AsArray|Convert(er|ed))\b", hint):
        raise NodeDefinitionError(
            f"{place}: the annotation {hint!r} can't be resolved when the class is made, so its converter would "
            f"not run. Import what it names at the top of the module, not under TYPE_CHECKING."
        )
    if any(looked_through(part, cls)[1] for part in typing.get_args(hint) if not isinstance(part, str)):
        raise NodeDefinitionError(
            f"{place}: the converter inside {annotation_text(field.type, cls)} would not run, since it is not about "
            f"the whole value. Convert the whole: {field.name}: ... = field(converter=...)."
        )
    found = [*([] if given is None else [given]), *converters]
    if len(found) > 1:
        raise NodeDefinitionError(
            f"{place} has {len(found)} converters, in its annotation and in converter=, and one of them would not run. "
            f"Make them one function."
        )
    if not found and not is_static and hasattr(hint, "_is_static_wrapper_"):  # an alias has what its class has
        held = ", ".join(annotation_text(part, cls) for part in typing.get_args(hint)) or "..."
        return functools.partial(only_static, place, f"{field.name}: {held} = static()")
    return found[0] if found else None


def unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    """The converter of a field that is annotated with `... | None`."""
    return None if value is None else convert(value)


def only_static(place: str, line: str, value: Any) -> Any:
    """The value of a field that is annotated with `Static`: an instance, or None, which is no leaf either."""
    if value is None or hasattr(type(value), "_is_static_wrapper_"):
        return value
    raise StaticFieldError(
        f"{place} is annotated with Static, a node around a static value, and is given {short_text(value)}, which "
        f"would be a plain child, traced by jit. Write {line} in the class, or give it Static({short_text(value)})."
    )


_UNHASHABLE = (list, dict, set, bytearray, np.ndarray, jax.Array)


def unhashable_in(annotation: Any, cls: type[Any]) -> str | None:
    """The part of an annotation that no static can hold, looking into unions, tuples and frozensets."""
    hint = looked_through(annotation, cls)[0]
    hint = getattr(hint, "array_type", hint)  # jaxtyping's Float[Array, "..."]
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS and np.dtype in [typing.get_origin(part) or part for part in parts]:
        return None  # numpy's and jax's DTypeLike, which takes lists among much else
    if origin in {tuple, frozenset, *_UNIONS}:
        try:
            return next(filter(None, (unhashable_in(part, cls) for part in parts)), None)
        except RecursionError:  # type Nested = tuple[Nested, ...] | int
            return None
    kind: Any = origin or hint
    if kind is jax.Array:
        return "jax.Array"
    is_refused = isinstance(kind, type) and issubclass(kind, _UNHASHABLE) and kind.__hash__ is None
    return kind.__qualname__ if is_refused else None
