"""`@pytree_dataclass`: a class with annotated fields becomes a node class, and stays the same object."""

import copy
import dataclasses
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Generic, TypeVar, cast, dataclass_transform, overload

from treewright._nodes import dunders
from treewright._nodes.fields import S, buffer, field, static
from treewright._nodes.make_class import define, document, install, install_comparison, node_bases, register_once, undo
from treewright._nodes.spec import Options, spec_of
from treewright._values.reach import class_of
from treewright.errors import NodeDefinitionError

C = TypeVar("C", bound=type[Any])

REFUSED_OPTIONS = MappingProxyType(
    {
        "order": "comparing nodes by < would compare arrays, which gives no single answer. Compare their fields",
        "unsafe_hash": "a node is frozen, so it has a hash by value already",
        "slots": "a node keeps its fields in one flattened pair, and slots would need a second class",
        "weakref_slot": "it belongs to slots=True; nodes can be weakly referenced as they are",
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

    Args:
        cls: The class.
        init: Generate `__init__`. One that the class body defines is kept; it assigns the fields as usual.
        repr: Generate a short `__repr__`.
        eq: Generate `__eq__`, which gives a plain `bool` for any leaves, and `__hash__` by value.
        order: Refused.
        unsafe_hash: Refused.
        frozen: Always true.
        match_args: Generate `__match_args__`.
        kw_only: All fields of this class are taken by keyword.
        slots: Refused.
        weakref_slot: Refused.

    Raises:
        NodeDefinitionError: If the class can't be a node; the message names the field or option and the cure.

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
    given = {"order": order, "unsafe_hash": unsafe_hash, "slots": slots, "weakref_slot": weakref_slot}
    options = Options(init=bool(init), repr=bool(repr), eq=bool(eq), kw_only=bool(kw_only), match_args=bool(match_args))

    def decorate(cls: type[Any]) -> type[Any]:
        refuse_options("pytree_dataclass", cls, given, frozen=frozen)
        return _decorated(cls, options)

    return decorate if cls is None else decorate(cls)


def refuse_options(where: str, cls: type[Any], given: dict[str, Any], *, frozen: bool) -> None:
    """Refuse the options of `dataclasses.dataclass` that no node can have, each with its reason."""
    if not frozen:
        raise NodeDefinitionError(
            f"{where}(frozen=False) for {cls.__qualname__}: a node that changes in place would change under a running "
            f"transformation. treewright.replace(node, field=...) gives a changed copy."
        )
    for option, value in given.items():
        if value:
            raise NodeDefinitionError(f"{where}({option}=True) for {cls.__qualname__}: {REFUSED_OPTIONS[option]}.")


def _decorated(cls: Any, options: Options) -> type[Any]:
    if not isinstance(cls, type):
        raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {cls!r}.")
    if "__node_spec__" in vars(cls) or "__pending_node__" in vars(cls):
        before = vars(cls).get("__before_node__")
        if before is None:
            raise NodeDefinitionError(
                f"{cls.__qualname__} is a node class already, by a decorator or as a Module. Drop @pytree_dataclass; "
                f"options of a Module stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
            )
        undo(cls, before)
    _make_node(cls, options)
    return cls


def _make_node(cls: type[Any], options: Options, *, undecorated: bool = False) -> None:
    define(cls, options, inherits_init=undecorated)
    if not undecorated:  # then it inherits those of the decorated class, or of the user's own
        install_comparison(cls, options)
    install(cls, {**dunders.FROZEN, **dunders.OTHERS})
    _watch_subclasses(cls)
    document(cls)


def _watch_subclasses(cls: type[Any]) -> None:
    """Make undecorated subclasses nodes, since JAX would take their instances for leaves."""
    own = vars(cls).get("__init_subclass__")

    def __init_subclass__(subclass: type[Any], **keywords: Any) -> None:  # noqa: N807  it is what it says
        if own is not None:
            own.__get__(None, subclass)(**keywords)
        else:
            super(cls, subclass).__init_subclass__(**keywords)
        if "__node_spec__" not in vars(subclass):  # no Module, and no other base has come first
            _make_undecorated(subclass)

    setattr(cls, "__init_subclass__", classmethod(cast("Any", __init_subclass__)))  # noqa: B010  no checker takes it


def _make_undecorated(cls: type[Any]) -> None:
    """A decorator that follows starts over, with its own options, from the class as it was written.

    What is wrong with the class is said by the decorator, or where none follows, by the first call of the class.
    """
    before = {name: _as_written(value) for name, value in vars(cls).items()}
    try:
        _make_node(cls, spec_of(next(node_bases(cls))).options, undecorated=True)
    except (TypeError, ValueError) as error:
        undo(cls, before)
        _refuse_instances(cls, error)
    cls.__before_node__ = before


def _as_written(value: Any) -> Any:
    """A copy of a field, since dataclasses writes into it whether it is keyword-only; else the value."""
    return copy.copy(value) if class_of(value) is dataclasses.Field else value


def _refuse_instances(cls: type[Any], error: Exception) -> None:
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: ARG001, N807
        raise NodeDefinitionError(f"{cls.__qualname__} is no node yet: {error}") from error

    cls.__init__ = __init__
    cls.__pending_node__ = True
    register_once(cls)


@pytree_dataclass
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
