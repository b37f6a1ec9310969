"""`@pytree_dataclass`: a class with annotated fields becomes a node class, and stays the same object."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform, overload

from treewright._nodes.fields import S, buffer, field, static
from treewright._nodes.foreign import refuse_metaclass
from treewright._nodes.make_class import (
    DECORATED,
    await_first_use,
    await_first_use_of_subclasses,
    await_no_more,
    body_of,
    make_node_class,
    refuse_keywords,
    undo,
    use_bases,
)
from treewright._nodes.spec import Options
from treewright._values.reach import public
from treewright._values.text import first_text
from treewright.errors import NodeDefinitionError

C = TypeVar("C", bound=type[Any])

# The options of `dataclasses.dataclass` that are false for every node, and `frozen`, which is true for every node.
_FIXED = MappingProxyType(
    {
        "frozen": "a node that changes in place would change under a running transformation. treewright.replace(node, "
        "field=...) gives a changed copy",
        "slots": "a node keeps its fields in one flattened pair, and slots would need a second class",
        "weakref_slot": "weakref_slot is True but slots is False, as for every node, which can be weakly referenced as "
        "it is",
    }
)


@overload
def pytree_dataclass(cls: C, /) -> C: ...
@overload
def pytree_dataclass(
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = True,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Callable[[C], C]: ...
@dataclass_transform(
    frozen_default=True, field_specifiers=(field, static, buffer, dataclasses.field, dataclasses.Field)
)
def pytree_dataclass(
    cls: Any = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    order: bool = False,
    unsafe_hash: bool = False,
    frozen: bool = True,
    match_args: bool = True,
    kw_only: bool = False,
    slots: bool = False,
    weakref_slot: bool = False,
) -> Any:
    """Make a class a pytree node: its fields are children, those marked `static()` go to `aux_data`.

    What `dataclasses.dataclass(frozen=True)` does, and on top of it `tree_flatten`, `tree_unflatten`, key paths by
    field name, and statics that `jit` compares exactly. The class is registered with JAX and stays the same object.
    Where it is a dataclass already, its fields are taken over, statics by any mark among them; `order` and
    `unsafe_hash` are on, and the other options off, if either decorator says so.

    Args:
        cls: The class.
        init: Generate `__init__`. One that the class body defines is kept; it assigns the fields as usual.
        repr: Generate a short `__repr__`.
        eq: Generate `__eq__`, which gives a plain `bool` for any leaves, and `__hash__` by value.
        order: Generate `<`, `<=`, `>` and `>=`, which compare the fields in order, as a tuple of them does. An array of
            several values has no single answer, and raises: leave such a field out with `field(compare=False)`.
        unsafe_hash: Generate `__hash__` with `eq=False` too, or beside an `__eq__` of your own.
        frozen: Always true.
        match_args: Generate `__match_args__`.
        kw_only: All fields of this class are taken by keyword.
        slots: Refused.
        weakref_slot: Refused.

    Raises:
        NodeDefinitionError: If the class can't be a node; the message names the field or option and the cure.
        TypeError: If `order` or `unsafe_hash` would overwrite a method of the class body, as `dataclasses` says it.
        ValueError: If `order` is given without `eq`.

    Examples:
        >>> @pytree_dataclass
        ... class Layer:
        ...     kernel: jax.Array
        ...     activation: str = static(default="relu")
        >>> layer = Layer(jnp.ones((3, 2)))
        >>> layer
        Layer(kernel=f32[3,2], activation='relu')
        >>> jax.tree.map(jnp.shape, layer)
        Layer(kernel=(3, 2), activation='relu')

    Source: the dataclass protocol of PEP 557 and PEP 681; JAX, "Custom pytree nodes".
    """
    given = dict(locals())

    def decorate(cls: type[Any]) -> type[Any]:
        return _decorated(cls, class_options("pytree_dataclass", cls, given))

    return decorate if cls is None else decorate(cls)


def class_options(where: str, cls: type[Any], given: Mapping[str, Any]) -> Options:
    """The options that were given for a class.

    Raises:
        NodeDefinitionError: For one that a node can't have, with the reason.
    """
    for option, reason in _FIXED.items():
        asked = bool(given[option])
        if asked is not (option == "frozen"):
            raise NodeDefinitionError(f"{where}({option}={asked}) for {cls.__qualname__}: {reason}.")
    return Options(**{option: bool(given[option]) for option in Options.__match_args__})


def _decorated(cls: Any, options: Options) -> type[Any]:
    if not isinstance(cls, type):
        raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {first_text(cls)}.")
    await_no_more(cls)
    if "__node_spec__" in vars(cls):
        before = vars(cls).get("__before_node__")
        if before is None:
            raise NodeDefinitionError(
                f"{cls.__qualname__} is a node class already, by a decorator or as a Module. Drop @pytree_dataclass; "
                f"options of a Module stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
            )
        undo(cls, before)
    before = body_of(cls)
    try:
        make_node_class(cls, options, DECORATED)
    except BaseException:
        undo(cls, before)
        raise
    _watch_subclasses(cls)
    await_first_use_of_subclasses(cls)
    return cls


def _watch_subclasses(cls: type[Any]) -> None:
    """Let undecorated subclasses become nodes, since JAX would take their instances for leaves."""
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: type[Any], **keywords: Any) -> None:  # noqa: N807  it is what it says
        refuse_metaclass(subclass)
        if own is not None:
            own.__get__(None, subclass)(**keywords)
        else:
            cure = "Options of a decorated class stand in its decorator: @pytree_dataclass(kw_only=True)."
            refuse_keywords(subclass, cls, keywords, cure)
            super(cls, subclass).__init_subclass__(**keywords)
        use_bases(subclass)  # their decorators are through
        if not {"__node_spec__", "__node_exported__"} & vars(subclass).keys():  # no other base has come first
            await_first_use(subclass)
            if "__init_subclass__" in vars(subclass):
                _watch_subclasses(subclass)

    setattr(cls, "__init_subclass__", classmethod(cast("Any", __init_subclass__)))  # noqa: B010  no checker takes it


@pytree_dataclass
@public("treewright")
class Static(Generic[S]):
    """A node without leaves that holds one static value, for places that have no field to mark.

    Attributes:
        value: Anything that a static field can hold.

    Raises:
        StaticFieldError: If the value can't be static.

    Examples:
        >>> settings = {"scale": 2.0, "mode": Static("train")}
        >>> jax.tree.leaves(settings)
        [2.0]
        >>> settings["mode"].value
        'train'
    """

    value: S = static()

    _is_static_wrapper_: ClassVar[bool] = True
