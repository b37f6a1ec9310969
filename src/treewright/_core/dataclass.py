"""`@pytree_dataclass` makes a class a node class, and `register_dataclass` one of somebody else's a pytree as it is."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, cast, dataclass_transform, overload

from treewright._core.definition import (
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
from treewright._core.fields import S, buffer, field, options_of, static
from treewright._core.foreign import refuse_builtin_base, refuse_metaclass, refuse_registered
from treewright._core.functions import public
from treewright._core.instance import with_close_matches
from treewright._core.jax_private import GetAttrKey, jax_trees
from treewright._core.others import register_for_export, register_for_flax
from treewright._core.spec import Options
from treewright._core.statics import Statics, StaticTable
from treewright._core.text import first_text
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
    """The options that were given for a class."""
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
        if await_first_use(subclass) and "__init_subclass__" in vars(subclass):  # no other base has come first
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


# As it is


def register_dataclass(cls: C, /, *, static: Iterable[str] = ()) -> C:
    """Let JAX take instances of an existing dataclass apart: for one that you can't decorate, such as a third party's.

    As `jax.tree_util.register_dataclass`, but the statics are compared as exactly as those of a node, two classes never
    have equal treedefs, and what JAX puts together runs no constructor, `__post_init__` or check. The class is not made
    a node: its methods and instances stay what they are, those that were made before work too, and a static that can't
    be one is refused when JAX takes an instance apart. A class that you can edit is better decorated with
    `pytree_dataclass`, which refuses it when the instance is made, and costs less in every call.

    All fields count, those with `init=False` too; other attributes are lost. A subclass needs a call of its own. If the
    class is not frozen, JAX sees the values of the moment.

    Args:
        cls: A dataclass, by `dataclasses` or a library that uses it.
        static: Names of fields that are static, besides those whose metadata says so: `{"static": True}`, flax's
            `{"pytree_node": False}`, or `treewright.static()`.

    Returns:
        The class.

    Raises:
        NodeDefinitionError: If it is not a dataclass, is a pytree already, has a base such as `dict` whose instances
            hold more than fields, or has no field of a name. Nothing is registered then.

    Examples:
        >>> import dataclasses, treewright
        >>> @dataclasses.dataclass(frozen=True)
        ... class Grid:  # of some package
        ...     values: jax.Array
        ...     spacing: float
        ...     periodic: bool = False
        >>> _ = treewright.register_dataclass(Grid, static=["spacing", "periodic"])
        >>> jax.jit(lambda grid: grid.values / grid.spacing)(Grid(jnp.ones(2), 0.5)).tolist()
        [2.0, 2.0]
    """
    names = _field_names(cls)
    if isinstance(static, str):
        raise NodeDefinitionError(
            f"register_dataclass: static={static!r} is a text, and would be read as the names of "
            f"{len(static)} fields. Write static=[{static!r}]."
        )
    wanted = set(static)
    wrong = sorted(wanted - {*names})
    if wrong:
        raise NodeDefinitionError(
            f"register_dataclass: {cls.__qualname__} has no field {', '.join(with_close_matches(wrong, names))}. Its "
            f"fields: {', '.join(names) or 'none'}."
        )
    options = {field.name: options_of(field) for field in dataclasses.fields(cls)}
    statics = tuple(
        name for name, option in options.items() if name in wanted or (option is not None and option.kind == "static")
    )
    table = StaticTable(
        cls, statics, tuple(option is not None and option.compare == "content" for option in map(options.get, statics))
    )
    _register(cls, tuple(name for name in names if name not in statics), table)
    return cls


def _field_names(cls: Any) -> list[str]:
    if not isinstance(cls, type) or "__dataclass_fields__" not in vars(cls):
        raise NodeDefinitionError(
            f"register_dataclass takes a class that is a dataclass itself, got {first_text(cls)}. Decorate your own "
            f"class with @pytree_dataclass."
        )
    if hasattr(cls, "__node_spec__"):
        raise NodeDefinitionError(f"register_dataclass: {cls.__qualname__} is a node already. Drop the call.")
    refuse_registered(cls)
    refuse_builtin_base(cls)
    return [field.name for field in dataclasses.fields(cls)]


def _register(cls: type[Any], children: tuple[str, ...], table: StaticTable) -> None:
    keys = [GetAttrKey(name) for name in children]
    store: Any = object.__setattr__

    def flatten(instance: Any) -> tuple[tuple[Any, ...], Statics]:
        statics = table.find(tuple([getattr(instance, name) for name in table.names]))
        return tuple([getattr(instance, name) for name in children]), statics

    def flatten_with_keys(instance: Any) -> tuple[tuple[tuple[Any, Any], ...], Statics]:
        values, statics = flatten(instance)
        return tuple(zip(keys, values, strict=True)), statics

    def unflatten(statics: Statics, values: Iterable[Any]) -> Any:
        instance = object.__new__(cls)
        for name, value in zip(children, values, strict=True):
            store(instance, name, value)
        for name, value in zip(table.names, statics.values, strict=True):
            store(instance, name, value)
        return instance

    jax_trees.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    setattr(cls, "__node_statics__", table)  # noqa: B010  pickles of treedefs find it there, and jax.export
    register_for_export(cls, unflatten)
    register_for_flax(
        cls,
        lambda instance: dict(zip(children, flatten(instance)[0], strict=True)),
        lambda instance, values: unflatten(flatten(instance)[1], values),
    )
