"""Field specifiers, and specs: what a node class and each of its fields consist of."""

# What is not for mypy it finds unreachable.
# mypy: disable-error-code="unreachable"
# mypy: always-false=TYPE_CHECKING_WITH_PYREFLY
import dataclasses
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, overload

from typing_extensions import TypeVar

from treewright._core.functions import public
from treewright._core.statics import StaticTable
from treewright._core.text import short_text

if sys.version_info >= (3, 14):
    pass

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

OPTIONS_KEY = "treewright"
# How JAX and equinox, flax and simple_pytree, and jax_dataclasses mark a static. Ours have all of these marks, for a
# decorator of theirs on a subclass.
STATIC_MARKS = types.MappingProxyType({"static": True, "pytree_node": False, "__jax_dataclasses_static_field__": True})
MISSING: Any = dataclasses.MISSING


@dataclasses.dataclass(frozen=True, slots=True)
class FieldOptions:
    """What Treewright knows of a field beyond `dataclasses.Field`."""

    kind: FieldKind = "child"
    converter: Callable[[Any], Any] | None = None
    compare: Compare = "value"
    sharding: Sharding | None = None
    stack: Stack | None = None
    local: bool = False
    doc: str | None = None
    foreign: bool = False  # marked by metadata alone, as other libraries do it


def options_of(field: "dataclasses.Field[Any]") -> FieldOptions | None:
    """The options that a specifier wrote, or None for a field without one.

    `metadata={"static": True}` makes a field static as well, as `jax.tree_util.register_dataclass` has it, and so do
    the marks of other libraries, such as `{"pytree_node": False}`, as `flax.struct.field` writes it.
    """
    try:
        if not field.metadata:
            return None
        options = field.metadata.get(OPTIONS_KEY)
        if isinstance(options, FieldOptions) and options.kind != "child":
            return options
        marked = any(bool(field.metadata.get(mark, not says)) is says for mark, says in STATIC_MARKS.items())
    except (AttributeError, TypeError):  # dataclasses takes any mapping, and some have no `get`
        return None
    if isinstance(options, FieldOptions):
        return dataclasses.replace(options, kind="static") if marked else options
    return FieldOptions("static", foreign=True) if marked else None


_OURS = ("converter", "sharding", "stack", "local", "doc")


def _specify(kind: FieldKind, given: dict[str, Any]) -> Any:
    """A `dataclasses.Field` from the arguments of a specifier, with those that are ours in its metadata."""
    converter = given["converter"]
    if converter is not None and not callable(converter):
        raise TypeError(f"converter must be a function of one value, got {short_text(converter)}.")
    ours = {name: given.pop(name) for name in _OURS if name in given}
    if isinstance(given["compare"], str):  # how a static is compared; whether `==` looks at it is for dataclasses
        ours["compare"] = given.pop("compare")
    marks: Mapping[str, bool] = STATIC_MARKS if kind == "static" else {}
    given["metadata"] = {**(given["metadata"] or {}), OPTIONS_KEY: FieldOptions(kind, **ours), **marks}
    if sys.version_info >= (3, 14):
        given["doc"] = ours["doc"]
    return dataclasses.field(**given)


def call_text(name: str, given: Mapping[str, Any]) -> str:
    """The call of a specifier as a user writes it: `static(default=3)`."""
    return f"{name}({', '.join(f'{option}={short_text(value)}' for option, value in given.items())})"


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
    def static(*, init: bool = ..., repr: bool = ...,  # pyright: ignore[reportOverlappingOverload]
               hash: bool | None = ..., compare: StaticCompare = ..., metadata: Mapping[Any, Any] | None = ...,
               kw_only: bool = ..., doc: str | None = ..., local: bool = ...,
               converter: None = ...) -> "Declared | Any": ...
else:  # pyrefly takes no type from the declaration
    @overload
    def static(*, init: bool = ..., repr: bool = ...,  # pyright: ignore[reportOverlappingOverload]
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
        compare: How functions that capture variables are compared. `"value"`: by identity, so that one made anew is
            another static. `"content"`: by their code and by what they captured, so that a rebuilt
            `optax.adam(1e-3)` is the same static; only for functions whose captured variables are not bound anew.
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


def specifier_in(value: Any) -> str | None:
    """`static` for the function itself and for its result; None for any other value."""
    if isinstance(value, types.FunctionType):
        return value.__name__ if value in {field, static, buffer, dataclasses.field} else None
    if type(value) is not dataclasses.Field:
        return None
    options = options_of(value)
    return "field" if options is None or options.kind == "child" else options.kind


# Specs


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field. `index` is its place among the children, or among the statics."""

    name: str
    kind: FieldKind
    index: int
    type: Any
    default: Any
    default_factory: Any
    init: bool
    repr: bool
    hash: bool
    equal: bool
    kw_only: bool
    converter: Callable[[Any], Any] | None
    compare: Compare
    sharding: Sharding | None
    stack: Stack | None
    local: bool
    doc: str | None

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

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what is MISSING: `pickle` makes another object of it, which no `is` finds.
        given = {slot: getattr(self, slot) for slot in self.__slots__}
        return (field_spec, ({slot: value for slot, value in given.items() if value is not MISSING},))


def field_spec(given: dict[str, Any]) -> FieldSpec:
    """A field that comes back from a pickle, which leaves out what is MISSING."""
    return FieldSpec(**{"default": MISSING, "default_factory": MISSING, **given})


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """The options of a class: see `pytree_dataclass`."""

    init: bool = True
    repr: bool = True
    eq: bool = True
    order: bool = False
    unsafe_hash: bool = False
    kw_only: bool = False
    match_args: bool = True


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NodeSpec:
    """A node class: its fields in order, its table of statics, and how its instances are made."""

    cls: type[Any]
    fields: tuple[FieldSpec, ...]
    by_name: dict[str, FieldSpec]
    children: tuple[FieldSpec, ...]
    statics: tuple[FieldSpec, ...]
    table: StaticTable
    keys: tuple[Any, ...]  # of GetAttrKey
    checks: tuple[Callable[[Any], None], ...]  # each `__check_init__`, bases first
    options: Options
    has_own_init: bool
    has_post_init: bool
    runs_post_init: bool  # the constructor does, if it is a generated one
    init_vars: dict[str, Any]  # the default of each, or MISSING
    plain_children: frozenset[str]  # those without a specifier
    unseen: list[None]  # one for each of the next nodes whose children are looked at: see `children.py`


def spec_of(node_or_class: Any) -> NodeSpec:
    """The spec of a node or of its class."""
    spec: NodeSpec = node_or_class.__node_spec__
    return spec
