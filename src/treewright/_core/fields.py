"""Fields: `field`, `static`, `buffer`, annotations that convert, and specs, which sum up a class and its fields."""

# What is not for mypy it finds unreachable.
# mypy: disable-error-code="unreachable"
# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
import contextlib
import copyreg
import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, Protocol, Self, TypeAlias, overload

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from typing_extensions import TypeAliasType, TypeVar

from treewright._core.functions import public
from treewright._core.misfits import annotation_text
from treewright._core.statics import StaticTable
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError

# mypy takes a variable of this name for true, every other checker reads False: the two can be told different things.
MYPY: Literal[False] = False
# The same of pyrefly, which follows such a name inside a group of overloads, but no other variable.
TYPE_CHECKING_WITH_PYREFLY: Literal[False] = False


@public("treewright")
class StaticValue(Protocol):
    """What `jit` needs of a static: a hash, and a comparison that says yes or no.

    Lists and dicts have no hash, and arrays compare item by item, so they can't be static. mypy takes a protocol of
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
    """In a checker's message: the declared type of a static field can't be that of a static."""


# Classes, functions and None are static values too, but mypy does not find the methods of the protocol on them.
AnyStatic: TypeAlias = StaticValue | type[Any] | Callable[..., Any] | None
S = TypeVar("S", bound=AnyStatic)
Declared = TypeVar("Declared", bound=AnyStatic, default=NoStaticValue)


T = TypeVar("T")
FieldKind = Literal["child", "static", "buffer"]
Compare = Literal["value", "content"]
StaticCompare: TypeAlias = Compare | bool
AxisNames: TypeAlias = tuple[str | None, ...]
Sharding: TypeAlias = AxisNames | Callable[[Any], AxisNames | None]
Stack: TypeAlias = str | Callable[[Any], str | None]

MISSING: Any = dataclasses.MISSING
if sys.version_info < (3, 15):  # else a pickle of a class has a copy of it, which no `is` finds
    copyreg.pickle(type(MISSING), lambda _: "MISSING")
# How JAX and equinox, flax and simple_pytree, and jax_dataclasses mark a static. Ours have all of these marks, for
# their decorators on a dataclass with fields of ours.
_STATIC_MARKS = types.MappingProxyType({"static": True, "pytree_node": False, "__jax_dataclasses_static_field__": True})
_MARKS_IN_ANNOTATIONS = ("__jax_dataclasses_static_field__", "__static__")  # jax_dataclasses.Static, flax.nnx.Static
_OPTIONS_KEY = "treewright"  # in the metadata of a field: the options that `dataclasses.field` does not know
_OURS = ("converter", "sharding", "stack", "local", "doc")


# Specifiers


def _specify(kind: FieldKind, given: dict[str, Any]) -> Any:
    """A `dataclasses.Field` from the arguments of a specifier, with those that are ours in its metadata."""
    if given["converter"] is not None and not callable(given["converter"]):
        raise TypeError(f"converter must be a function of one value, got {short_text(given['converter'])}.")
    ours: dict[str, Any] = {"kind": kind, **{name: given.pop(name) for name in _OURS if name in given}}
    names, stack = ours.get("sharding"), ours.get("stack")
    is_names = isinstance(names, tuple) and all(name is None or (isinstance(name, str) and name) for name in names)
    if not (names is None or is_names or callable(names)):
        raise TypeError(
            f"sharding={names!r} is not a tuple with a name or None for each axis of the array, such as "
            f'("embed", None).'
        )
    if not (stack is None or isinstance(stack, str) or callable(stack)):
        raise TypeError(f'stack={stack!r} is not the name of one leading axis, such as "layers".')
    if isinstance(given["compare"], str):  # how a static is compared; whether `==` looks at it is for dataclasses
        ours["compare"] = given.pop("compare")
    marks: Mapping[str, bool] = _STATIC_MARKS if kind == "static" else {}
    given["metadata"] = {**(given["metadata"] or {}), _OPTIONS_KEY: ours, **marks}
    if sys.version_info >= (3, 14):
        given["doc"] = ours["doc"]
    return dataclasses.field(**given)


def options_of(field: "dataclasses.Field[Any]") -> Mapping[str, Any]:
    """The options that a specifier wrote; none for a field without one.

    `metadata={"static": True}` makes a field static as well, as `jax.tree_util.register_dataclass` has it, and so do
    the marks of other libraries, such as `{"pytree_node": False}`, as `flax.struct.field` writes it.
    """
    metadata = field.metadata
    try:
        options: Mapping[str, Any] = metadata.get(_OPTIONS_KEY, {})
    except AttributeError:  # dataclasses takes any mapping, and some have no `get`
        return {}
    if metadata and options.get("kind", "child") == "child":
        for mark, says in _STATIC_MARKS.items():
            if bool(metadata.get(mark, not says)) is says:
                return {**options, "kind": "static"}
    return options


def specifier_in(value: Any) -> str | None:
    """`static` for the function itself, its result and the marks of others' `Static[...]`; None for any other value."""
    if type(value) is dataclasses.Field:
        kind: str = options_of(value).get("kind", "child")
        return "field" if kind == "child" else kind
    if isinstance(value, types.FunctionType) and value in _SPECIFIERS:
        return value.__name__
    return "static" if isinstance(value, str) and value in _MARKS_IN_ANNOTATIONS else None


# fmt: off
@overload
def field(*, default: T, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
          metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def field(*, default_factory: Callable[[], T], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
          compare: bool = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def field(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
          hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
          kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: Callable[[Any], T]) -> T: ...
@overload
def field(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
          metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
          sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> Any: ...
# fmt: on
def field(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    sharding: Sharding | None = None,
    stack: Stack | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """A child: a field whose value is part of the tree. A plain annotation means the same.

    Args:
        default: The value when none is given. A mutable one, an array among them, is refused.
        default_factory: A function without arguments that makes the default anew for each instance.
        init: Whether the generated `__init__` takes it.
        repr: Whether `repr` shows it.
        hash: Whether `hash` uses it; None means as `compare` says.
        compare: Whether `==` uses it.
        metadata: Anything, for other tools; `{"static": True}` makes the field static, as in JAX.
        kw_only: Whether `__init__` takes it by keyword only.
        doc: What the field is, in words. It stands in the docstring of the class, and so in `help()`; on Python 3.14
            and newer it is `dataclasses.Field.doc` too.
        converter: Applied to each value given to the field: by the constructor, by an assignment in `__init__`, by
            `replace`. Never by unflatten.
        sharding: A name for each axis of the array, or None for an axis that is never split: `("embed", "mlp")`. Which
            axes of a mesh a name stands for is said elsewhere, by rules; see `treewright.sharding`. A function of the
            node may give the names, from its statics. They hold for all arrays of the field, but not inside nodes,
            whose own fields say it. They are not part of the tree: other names do not trace again.
        stack: The name of one more leading axis, of all arrays in the field and in the nodes below it: for layers that
            `vmap` has made and `scan` runs through. Or a function of the node that gives it.

    Examples:
        >>> import jax.numpy as jnp
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array = field(converter=jnp.asarray)
        >>> Layer([1.0, 2.0])
        Layer(kernel=f32[2])
    """
    return _specify("child", locals())


# A static without a default takes its type from the declaration, and that must be one of `AnyStatic`. pyright looks at
# the declaration where the result is a bare type variable, and mypy where it is anything but one.
# fmt: off
@overload
def static(*, default: S, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: StaticCompare = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
           converter: None = ...) -> S: ...
@overload
def static(*, default_factory: Callable[[], S], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
           compare: StaticCompare = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ...,
           doc: str | None = ..., local: bool = ..., converter: None = ...) -> S: ...
@overload
def static(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
           hash: bool | None = ..., compare: StaticCompare = ..., metadata: Mapping[Any, Any] | None = ...,
           kw_only: bool = ..., doc: str | None = ..., local: bool = ..., converter: Callable[[Any], S]) -> S: ...
if not TYPE_CHECKING_WITH_PYREFLY and not MYPY:
    @overload
    def static(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: StaticCompare = ...,
               metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               converter: None = ...) -> Declared: ...
elif not TYPE_CHECKING_WITH_PYREFLY:
    @overload
    def static(*, init: bool = ..., repr: bool = ...,
               hash: bool | None = ..., compare: StaticCompare = ..., metadata: Mapping[Any, Any] | None = ...,
               kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               converter: None = ...) -> "Declared | Any": ...
else:  # pyrefly takes no type from the declaration
    @overload
    def static(*, init: bool = ..., repr: bool = ...,
               hash: bool | None = ..., compare: StaticCompare = ..., metadata: Mapping[Any, Any] | None = ...,
               kw_only: bool = ..., doc: str | None = ..., local: bool = ..., converter: None = ...) -> Any: ...
# fmt: on
def static(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: StaticCompare = "value",
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    local: bool = False,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """A static: a field kept in `aux_data`, which is part of `jit`'s cache key.

    An equal value never traces again, another one always does. "Equal" is exact: `1`, `True` and `1.0` are three
    statics, `0.0` and `-0.0` are two, and NaN is one. Lists, dicts, sets, arrays and whatever else can't be hashed
    are refused when an instance is made.

    Args:
        default: As for `field`.
        default_factory: As for `field`.
        init: As for `field`.
        repr: As for `field`.
        hash: As for `field`.
        compare: How functions that capture variables are compared. `"value"`: yours by identity, so that one made anew
            is another static; those that a library made, such as `optax.adam(1e-3)`, by what they captured.
            `"content"`: yours too; only for functions whose captured variables are not bound anew.
            `False` leaves the field out of `==` and `hash` of the node, as for `field`, and of nothing else: `jit`
            always compares it. `True` is `"value"`.
        metadata: As for `field`.
        kw_only: As for `field`.
        doc: As for `field`.
        local: Whether the value may differ between the processes of one run, such as a name to log with:
            `treewright.sharding.assert_same_on_all_processes` leaves it out.
        converter: As for `field`; `treewright.freeze` makes lists, dicts, sets and numpy arrays hashable.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: float
        ...     activation: str = static(default="relu")
        >>> jax.tree.leaves(Layer(2.0))
        [2.0]
    """
    if compare not in {"value", "content", True, False}:
        raise TypeError(f'static(compare=...) is "value", "content", True or False, got {compare!r}.')
    return _specify("static", locals())


# fmt: off
@overload
def buffer(*, default: T, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> T: ...
@overload
def buffer(*, default_factory: Callable[[], T], init: bool = ..., repr: bool = ..., hash: bool | None = ...,
           compare: bool = ..., metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ...,
           doc: str | None = ..., sharding: Sharding | None = ..., stack: Stack | None = ...,
           converter: None = ...) -> T: ...
@overload
def buffer(*, default: Any = ..., default_factory: Callable[[], Any] = ..., init: bool = ..., repr: bool = ...,
           hash: bool | None = ..., compare: bool = ..., metadata: Mapping[Any, Any] | None = ...,
           kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: Callable[[Any], T]) -> T: ...
@overload
def buffer(*, init: bool = ..., repr: bool = ..., hash: bool | None = ..., compare: bool = ...,
           metadata: Mapping[Any, Any] | None = ..., kw_only: bool = ..., doc: str | None = ...,
           sharding: Sharding | None = ..., stack: Stack | None = ..., converter: None = ...) -> Any: ...
# fmt: on
def buffer(
    *,
    default: Any = MISSING,
    default_factory: Any = MISSING,
    init: bool = True,
    repr: bool = True,
    hash: bool | None = None,
    compare: bool = True,
    metadata: Mapping[Any, Any] | None = None,
    kw_only: Any = MISSING,
    doc: str | None = None,
    sharding: Sharding | None = None,
    stack: Stack | None = None,
    converter: Callable[[Any], Any] | None = None,
) -> Any:
    """A child that training leaves alone: running statistics, fixed tables.

    Takes what `field` takes. To JAX it is a child like any other; the field's kind says that it is not trained.

    Examples:
        >>> @pytree_dataclass
        ... class Norm:
        ...     scale: float
        ...     mean: float = buffer(default=0.0)
        >>> jax.tree.leaves(Norm(1.0))
        [1.0, 0.0]
    """
    return _specify("buffer", locals())


_SPECIFIERS: tuple[Any, ...] = (field, static, buffer, dataclasses.field)


# Converters

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
@dataclasses.dataclass(frozen=True, repr=False)
class Converter:
    """In an `Annotated` annotation: the function that each value of the field passes, as `field(converter=...)` has it.

    Args:
        function: Takes the given value and returns the one to keep.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     rate: Annotated[Converted[int, float], Converter(float)]
        >>> Layer(1).rate
        1.0
    """

    function: Callable[[Any], Any]

    def __repr__(self) -> str:
        return f"Converter({getattr(self.function, '__qualname__', self.function)})"


AsArray: TypeAlias = Annotated[Converted[ArrayLike, jax.Array], Converter(jnp.asarray)]


# Annotations

_UNIONS = (typing.Union, types.UnionType)
_ALIASES = tuple({TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType)})


def converter_of(cls: type[Any], field: "dataclasses.Field[Any]", options: Mapping[str, Any]) -> Any:
    """The converter of a field that the body of `cls` declares: of its specifier, or in its annotation.

    Raises:
        NodeDefinitionError: If the annotation holds a converter or a specifier that would not be read.
    """
    given = options.get("converter")
    converters = [*([] if given is None else [given]), *_converters(field.type, cls)]
    if None in converters or len(converters) > 1:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{field.name}: not all of {annotation_text(field.type, cls)} would be read. An "
            f"annotation may hold one converter, for the whole value, with names that are known when the class is made "
            f"and not only to checkers, and no specifier. Write {field.name}: ... = field(converter=...), or static()."
        )
    return converters[0] if converters else None


def _converters(annotation: Any, cls: type[Any], depth: int = 8) -> list[Callable[[Any], Any] | None]:
    """The converters in an annotation; None for one that is not about the whole value or unknown, and for a specifier.

    They are found behind strings, aliases of both kinds, `Final` and `| None`, and leave that None alone. `depth` ends
    an alias that names itself.
    """
    annotation = _resolved(annotation, cls)
    origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
    below = functools.partial(_converters, cls=cls, depth=depth - 1)
    if isinstance(annotation, str):
        return [None] if re.search(r"\b(AsArray|Convert(er|ed))\b", annotation) else []
    if isinstance(annotation, _ALIASES) or isinstance(origin, _ALIASES):
        with contextlib.suppress(NameError):  # of a name that is unknown yet
            return below((origin or annotation).__value__) if depth > 0 else []
    if origin is Annotated:
        named = [part for part in parts[1:] if isinstance(part, Converter) or specifier_in(part)]
        return [*below(parts[0]), *[part.function if isinstance(part, Converter) else None for part in named]]
    if origin is typing.Final:
        return below(parts[0])
    if origin in _UNIONS and len(parts) == 2 and types.NoneType in parts:
        found = below(parts[parts[0] is types.NoneType])
        return [convert and functools.partial(_unless_none, convert) for convert in found]
    inside = (annotation.type,) if isinstance(annotation, dataclasses.InitVar) else parts
    return [None for part in inside if not isinstance(part, str) and below(part)]  # a string of a Literal


def _resolved(annotation: Any, cls: type[Any]) -> Any:
    """The type that a string annotation in the body of `cls` names; the string itself where a name is unknown."""
    text = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if not isinstance(text, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    try:
        return eval(text, {} if module is None else vars(module), dict(vars(cls)))  # noqa: S307
    except Exception:  # noqa: BLE001  a forward reference, or a name that only checkers import
        return text


def _unless_none(convert: Callable[[Any], Any], value: Any) -> Any:
    """The converter of a field that is annotated with `... | None`."""
    return None if value is None else convert(value)


# What is known of a class and its fields


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. `index` is its place among the children, or among the statics."""

    name: str
    index: int
    type: Any
    init: bool
    repr: bool
    hash: bool
    equal: bool
    kw_only: bool
    default: Any
    default_factory: Any
    kind: FieldKind = "child"
    converter: Callable[[Any], Any] | None = None
    compare: Compare = "value"
    sharding: Sharding | None = None
    stack: Stack | None = None
    local: bool = False
    doc: str | None = None
    is_plain: bool = False  # declared without a specifier

    @property
    def is_static(self) -> bool:
        """Whether the field is kept in `aux_data`."""
        return self.kind == "static"

    @property
    def is_left_open(self) -> bool:
        """Whether only `__post_init__` can give the field its value."""
        return not self.init and self.default is MISSING and self.default_factory is MISSING

    def convert(self, value: Any) -> Any:
        """The value as the field keeps it."""
        return value if self.converter is None else self.converter(value)

    def value_in(self, pair: tuple[Any, Any]) -> Any:
        """The field's value in an instance's `(children, statics)`."""
        return pair[1].values[self.index] if self.is_static else pair[0][self.index]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NodeSpec:
    """A node class: its fields in order, its table of statics, and how its instances are made."""

    cls: type[Any]
    fields: tuple[FieldSpec, ...]
    by_name: dict[str, FieldSpec]
    children: tuple[FieldSpec, ...]
    statics: tuple[FieldSpec, ...]
    table: StaticTable
    checks: tuple[Callable[[Any], None], ...]  # each `__check_init__`, bases first
    has_own_init: bool
    runs_post_init: bool  # the constructor does, if it is a generated one
    init_vars: dict[str, Any]  # the default of each, or MISSING
    unfinished: Any  # what an instance holds until it is sealed
    unseen: list[None]  # one for each of the next nodes whose children are looked at: see `check_children`


def spec_of(node_or_class: Any) -> NodeSpec:
    """The spec of a node or of its class."""
    spec: NodeSpec = node_or_class.__node_spec__
    return spec
