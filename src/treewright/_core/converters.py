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

from treewright._core.fields import JDC_MARK, MISSING, specifier_in
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


# Reading annotations


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


def looked_through(annotation: Any, cls: type[Any]) -> Any:
    """An annotation without what only names or qualifies it: strings, aliases of both kinds, `Final`, `InitVar`."""
    for _ in range(16):  # `type Tree = Tree | int` has no end
        annotation = resolved(annotation, cls)
        origin = typing.get_origin(annotation)
        if isinstance(annotation, _ALIASES) or isinstance(origin, _ALIASES):
            annotation = (origin or annotation).__value__
        elif isinstance(annotation, dataclasses.InitVar):
            annotation = annotation.type
        elif origin in {typing.Final, ClassVar}:
            annotation = typing.get_args(annotation)[0]
        else:
            break
    return annotation


def optional_part(annotation: Any) -> Any:
    """`X` for `X | None`, and any other annotation as it is."""
    if typing.get_origin(annotation) not in _UNIONS:
        return annotation
    parts = [part for part in typing.get_args(annotation) if part is not types.NoneType]
    return parts[0] if len(parts) == 1 else annotation


# Converters


def converter_in(annotation: Any, cls: type[Any], name: str) -> Callable[[Any], Any] | None:
    """The converter that the annotation of a field names, however it is spelt, or None.

    Raises:
        NodeDefinitionError: If it names one in a place where none can run.
    """
    place = f"{cls.__qualname__}.{name}"
    hint = looked_through(annotation, cls)
    inner = looked_through(optional_part(hint), cls)
    if isinstance(inner, str):
        if re.search(r"\b(AsArray|Convert(er|ed))\b", inner):
            raise NodeDefinitionError(
                f"{place}: the annotation {inner!r} can't be resolved when the class is made, so its converter would "
                f"not run. Import what it names at the top of the module, not under TYPE_CHECKING."
            )
        return None
    if hasattr(inner, "_is_static_wrapper_"):  # an alias has what its class has
        wrapper = inner.__origin__ if typing.get_origin(inner) is Annotated else inner
        held = ", ".join(annotation_text(part, cls) for part in typing.get_args(wrapper)) or "..."
        return functools.partial(only_static, place, f"{name}: {held} = static()")
    _refuse_specifiers(hint, cls, name)
    found = _converters(inner, cls)
    if len(found) > 1:
        raise NodeDefinitionError(f"{place} has {len(found)} converters. Make them one function.")
    if found:
        return found[0] if inner is hint else functools.partial(unless_none, found[0])
    if typing.get_origin(inner) is Annotated:
        return converter_in(inner.__origin__, cls, name)
    if any(_converters(part, cls) for part in _parts(hint, cls)):
        raise NodeDefinitionError(
            f"{place}: the converter inside {annotation_text(annotation, cls)} would not run, since it is not about "
            f"the whole value. Convert the whole: {name}: ... = field(converter=...)."
        )
    return None


def _converters(hint: Any, cls: type[Any]) -> list[Callable[[Any], Any]]:
    """The functions of the `Converter`s of an `Annotated`, those of one inside it too."""
    hint = looked_through(hint, cls)
    if typing.get_origin(hint) is not Annotated:
        return []
    own = [part.function for part in hint.__metadata__ if isinstance(part, Converter)]
    return own + _converters(hint.__origin__, cls)


def _parts(hint: Any, cls: type[Any]) -> list[Any]:
    """All arguments of a generic annotation, and theirs."""
    parts: list[Any] = []
    waiting = list(typing.get_args(hint))
    while waiting and len(parts) < 100:
        part = looked_through(waiting.pop(), cls)
        parts.append(part)
        waiting.extend(part if isinstance(part, list) else typing.get_args(part))
    return parts


def unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    """The converter of a field that is annotated with `... | None`."""
    return None if value is None else convert(value)


# Specifiers that other libraries, and ours in a slip, put into an annotation.
_MARKS = types.MappingProxyType({JDC_MARK: "jax_dataclasses.Static", "__static__": "flax.nnx.Static"})


def _refuse_specifiers(hint: Any, cls: type[Any], name: str) -> None:
    """Refuse `Annotated[int, static()]`: nothing reads a specifier there."""
    for part in hint.__metadata__ if typing.get_origin(hint) is Annotated else ():
        specifier = specifier_in(part)
        foreign = _MARKS.get(part) if isinstance(part, str) else None
        if specifier is not None or foreign is not None:
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{name} has {foreign or f'{specifier}()'} in its annotation, where nothing reads "
                f"it, and would be a plain child. Write {name}: {annotation_text(hint.__origin__, cls)} = "
                f"{specifier or 'static'}()."
            )


def only_static(place: str, line: str, value: Any) -> Any:
    """The value of a field that is annotated with `Static`: an instance, or None, which is no leaf either."""
    if value is None or hasattr(type(value), "_is_static_wrapper_"):
        return value
    given = short_text(value)
    raise StaticFieldError(
        f"{place} is annotated with Static, which is a node around a static value, and is given {given}. That would be "
        f"a plain child, traced by jit. Write {line} in the class, for a field that holds {given} itself, or give it "
        f"Static({given})."
    )


def converter_of(cls: type[Any], field: "dataclasses.Field[Any]", given: Any, *, is_static: bool) -> Any:
    """The converter of a field: the one that its specifier names, or its annotation."""
    annotated = converter_in(field.type, cls, field.name)
    if getattr(annotated, "func", None) is only_static:
        if is_static or given is not None:
            return given
        if field.default is not MISSING:
            annotated(field.default)  # type: ignore[misc]
    elif annotated is not None and given is not None:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{field.name} has a converter in its annotation and another in converter=, and one of "
            f"them would not run. Drop one."
        )
    return given or annotated


# Types that no static can have

_UNHASHABLE = (list, dict, set, bytearray, np.ndarray, jax.Array)


def unhashable_in(annotation: Any, cls: type[Any]) -> str | None:
    """The part of an annotation that no static can hold, looking into unions, tuples and frozensets."""
    hint = looked_through(annotation, cls)
    hint = getattr(hint, "array_type", hint)  # jaxtyping's Float[Array, "..."]
    origin = None if isinstance(hint, type) else typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin is Annotated:
        return unhashable_in(arguments[0], cls)
    if origin in _UNIONS and np.dtype in [typing.get_origin(part) or part for part in arguments]:
        return None  # numpy's and jax's DTypeLike, which takes lists among much else
    if origin in {tuple, frozenset, *_UNIONS}:
        try:
            return next(filter(None, (unhashable_in(part, cls) for part in arguments)), None)
        except RecursionError:  # type Nested = tuple[Nested, ...] | int
            return None
    kind: Any = origin or hint
    if not isinstance(kind, type) or not issubclass(kind, _UNHASHABLE):
        return None
    if kind is jax.Array or kind.__hash__ is None:
        return {jax.Array: "jax.Array", np.ndarray: "numpy.ndarray"}.get(kind, kind.__name__)
    return None
