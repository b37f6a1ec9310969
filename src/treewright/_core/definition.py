"""Make node classes: the steps from a class as a user wrote it to a registered node class, and `pytree_dataclass`."""

import abc
import contextlib
import copy
import dataclasses
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, overload

import typing_extensions

from treewright._core import methods
from treewright._core.children import NODES_TO_SEE
from treewright._core.class_body import is_class_variable, refuse_converter, refuse_field, refuse_methods, refuse_slips
from treewright._core.converters import converter_of, own_annotations
from treewright._core.fields import (
    MISSING,
    FieldOptions,
    S,
    buffer,
    field,
    options_of,
    static,
)
from treewright._core.functions import class_attribute, innermost, public
from treewright._core.init import make_init
from treewright._core.instance import FieldView, install_views, replace, sealing, with_close_matches
from treewright._core.jax_private import GetAttrKey
from treewright._core.registration import earlier_class, refuse_builtin_base, refuse_registered, register_once
from treewright._core.spec import FieldSpec, NodeSpec, Options
from treewright._core.statics import StaticTable
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning, warn_user

if sys.version_info >= (3, 14):
    import annotationlib

C = TypeVar("C", bound=type[Any])


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """How decorated classes and Modules differ.

    Attributes:
        inherits: Whether an `__init__`, `__eq__`, `__hash__` or `__repr__` that a user wrote in a base is kept, and not
            generated over.
        methods: The methods that the class is given, where its body does not write them.
        reserved: Names that no field may have, besides those that no node's field may have.
    """

    inherits: bool
    methods: Mapping[str, Any]
    reserved: frozenset[str] = frozenset()


_METHODS = MappingProxyType({**methods.FROZEN, **methods.OTHERS})
DECORATED = Flavor(inherits=False, methods=_METHODS)
MODULE = Flavor(inherits=True, methods=MappingProxyType({}), reserved=frozenset({"replace"}))  # Module has them

# They give each protocol an `__init__` that only looks for the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})
_PYTHONS = frozenset({"abc", "builtins", *_PLACEHOLDERS})


def make_node_class(cls: type[Any], options: Options, flavor: Flavor) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used."""
    if "__node_registered__" not in vars(cls):
        refuse_registered(cls)
        refuse_builtin_base(cls)
    if "__dataclass_params__" in vars(cls):
        options = _restore_body(cls, options)
    own = own_annotations(cls)
    writer, init = _written_init(cls)
    has_own_init = _has_own_init(cls, flavor, writer, init)
    refuse_methods(cls)
    refuse_slips(cls, own, flavor.reserved, has_own_init=has_own_init)
    _read_fields(cls, options, own)
    _drop_overridden(cls, own)
    spec = _node_spec(cls, options, own, has_own_init=has_own_init)
    _install(spec, flavor, writer, init)
    register_once(cls)


# 1. What the class is before we touch it


def _restore_body(cls: type[Any], options: Options) -> Options:
    """Bring a class that `dataclasses` has processed back to its body: its fields as declared, nothing generated.

    Of the options, those that are true by default are false where either decorator says so, and the others true.
    """
    params: Any = vars(cls)["__dataclass_params__"]
    generated = [name for name, value in vars(cls).items() if _is_generated(value)]
    if "__eq__" in generated and vars(cls).get("__hash__", MISSING) is None:
        generated.append("__hash__")
    matched = "__match_args__" in vars(cls)
    for name in [*generated, *(["__match_args__"] if matched else [])]:
        delattr(cls, name)
    for name, declared in cls.__dataclass_fields__.items():
        if name in own_annotations(cls) and not is_class_variable(declared.type, cls):
            setattr(cls, name, copy.copy(declared))
    del cls.__dataclass_fields__, cls.__dataclass_params__
    said = {name: getattr(options, name) and getattr(params, name) for name in ("init", "repr", "eq")}
    asked = {name: getattr(options, name) or getattr(params, name) for name in ("order", "unsafe_hash")}
    return dataclasses.replace(options, **said, **asked, match_args=options.match_args and matched)


def _is_generated(value: Any) -> bool:
    """Whether `dataclasses` wrote a method: its code says so, whatever module it claims."""
    if not isinstance(value, types.FunctionType):
        return False
    written: types.FunctionType = inspect.unwrap(value)
    return written.__module__ == dataclasses.__name__ or written.__code__.co_qualname.startswith("__create_fn__.")


def _written_init(cls: type[Any]) -> tuple[type[Any], Callable[..., None]]:
    """The class in the MRO that has the `__init__` which Python runs, and the function."""
    for base in cls.__mro__:
        init = vars(base).get("__init__")
        if init is not None and getattr(init, "__module__", None) not in _PLACEHOLDERS:
            return base, init
    raise AssertionError("object has an __init__")


def _has_own_init(cls: type[Any], flavor: Flavor, writer: type[Any], init: Callable[..., None]) -> bool:
    """Whether the class keeps an `__init__` that a user wrote: in its body, or in the base where Python finds one."""
    if writer is object or (writer is not cls and not flavor.inherits) or _is_generated(init):
        return False
    spec = None if writer is cls else vars(writer).get("__node_spec__")
    own: bool = spec is None or spec.has_own_init
    return own


# 2. The fields, as `dataclasses` reads them


def _read_fields(cls: type[Any], options: Options, own: Iterable[str]) -> None:
    """Let the standard library read the fields; what it would generate is ours, or is not needed."""
    for name in own:
        inherited = class_attribute(cls, name)
        if name in vars(cls):
            continue
        if isinstance(inherited, FieldView):  # repeated without a value: it keeps its default
            setattr(cls, name, dataclasses.field(default=inherited.field.default))
        elif hasattr(type(inherited), "__get__"):  # in place of an inherited property or method
            setattr(cls, name, dataclasses.field())
    bases = [vars(base)["__dataclass_params__"] for base in cls.__mro__[1:] if "__dataclass_params__" in vars(base)]
    doc = cls.__doc__ if "__doc__" in vars(cls) else None
    cls.__doc__ = "placeholder"  # else dataclasses builds one from the signature, which is made later
    ours = {*methods.FROZEN, "__eq__", "__hash__", "__replace__"} - vars(cls).keys()
    try:
        dataclasses.dataclass(
            init=False,
            repr=False,
            eq=options.order and options.eq,  # which order asks for
            order=options.order,
            unsafe_hash=options.unsafe_hash,
            frozen=any(base.frozen for base in bases),
            match_args=options.match_args,
            kw_only=options.kw_only,
        )(cls)
    finally:
        cls.__doc__ = doc
    for name in ours & vars(cls).keys():
        delattr(cls, name)
    params: Any = cls.__dataclass_params__
    params.init, params.repr, params.eq = options.init, options.repr, options.eq
    params.frozen = all(base.frozen for base in bases)  # else dataclasses refuses a subclass of both kinds


def _drop_overridden(cls: type[Any], own: Iterable[str]) -> None:
    """Forget the fields that the body of this class, or of a node class that it inherits, overrides by a value."""
    fields: dict[str, Any] = cls.__dataclass_fields__
    for name in fields.keys() - own:
        holders = [base for base in cls.__mro__ if name in vars(base)]
        if not holders or isinstance(vars(holders[0])[name], FieldView):
            continue
        is_node = holders[0] is cls or "__node_spec__" in vars(holders[0])
        hidden = (vars(base)[name] for base in holders if base in holders[0].__mro__[1:])
        if is_node and any(isinstance(value, FieldView) for value in hidden):
            del fields[name]


# 3. The spec


def _node_spec(cls: type[Any], options: Options, own: Mapping[str, Any], *, has_own_init: bool) -> NodeSpec:
    """The spec of a class that `dataclasses.dataclass` has processed."""
    declared: dict[str, Any] = cls.__dataclass_fields__
    mark = getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009  the only word of them; its name has stood since 3.7
    variables = {name: given for name, given in declared.items() if given._field_type is mark}
    for name in variables.keys() & own.keys():
        refuse_converter(cls, name, own[name])
    fields: list[FieldSpec] = []
    plain: set[str] = set()
    counts = {True: 0, False: 0}
    for field_ in dataclasses.fields(cls):
        specified = options_of(field_)
        said = specified or FieldOptions()
        is_static = said.kind == "static"
        spec = _field_spec(cls, field_, said, counts[is_static])
        counts[is_static] += 1
        fields.append(spec)
        if specified is None:
            plain.add(spec.name)
        if spec.name in own:
            refuse_field(cls, spec, specified)
    children = tuple([spec for spec in fields if not spec.is_static])
    statics = tuple([spec for spec in fields if spec.is_static])
    names = tuple([spec.name for spec in statics])
    content = tuple([spec.compare == "content" for spec in statics])
    has_post_init = hasattr(cls, "__post_init__")
    return NodeSpec(
        cls=cls,
        fields=tuple(fields),
        by_name={spec.name: spec for spec in fields},
        children=children,
        statics=statics,
        table=StaticTable(cls, names, content, tuple([spec.name for spec in children])),
        keys=tuple([GetAttrKey(spec.name) for spec in children]),
        checks=tuple([vars(base)["__check_init__"] for base in cls.__mro__[::-1] if "__check_init__" in vars(base)]),
        options=options,
        has_own_init=has_own_init,
        has_post_init=has_post_init,
        runs_post_init=has_post_init and options.init and not has_own_init,
        init_vars={name: _or_missing(given.default) for name, given in variables.items()},
        plain_children=frozenset(plain),
        unseen=[None] * NODES_TO_SEE,
    )


def _field_spec(cls: type[Any], field_: Any, options: FieldOptions, index: int) -> FieldSpec:
    converter, is_static = options.converter, options.kind == "static"
    if not isinstance(field_.type, type) or hasattr(field_.type, "_is_static_wrapper_"):  # a class converts nothing
        converter = converter_of(_declarer(cls, field_.name), field_, converter, is_static=is_static)
    doc: str | None = getattr(field_, "doc", None)  # of a standard field, on 3.14 and newer
    return FieldSpec(
        name=field_.name,
        kind=options.kind,
        index=index,
        type=field_.type,
        default=_or_missing(field_.default),
        default_factory=_or_missing(field_.default_factory),
        init=field_.init,
        repr=field_.repr,
        hash=field_.compare if field_.hash is None else field_.hash,
        equal=field_.compare,
        kw_only=bool(field_.kw_only),
        converter=converter,
        compare=options.compare,
        sharding=options.sharding,
        stack=options.stack,
        local=options.local,
        doc=options.doc if doc is None else doc,
    )


def _or_missing(value: Any) -> Any:
    """`MISSING` itself for the copy that `cloudpickle` makes of it, where it is not yet a sentinel, as before 3.15."""
    return MISSING if type(value).__name__ == "_MISSING_TYPE" else value


def _declarer(cls: type[Any], name: str) -> type[Any]:
    """The nearest class whose body annotates a field."""
    return next((base for base in cls.__mro__ if name in own_annotations(base)), cls)


# 4. What the class gets


def _install(spec: NodeSpec, flavor: Flavor, writer: type[Any], init: Callable[..., None]) -> None:
    cls = spec.cls
    _warn_of_idle_post_init(spec, init)
    final_init = _init_of(spec, writer, init)
    earlier = earlier_class(cls)
    install_views(spec, by_name=earlier is not None and _may_become(earlier, spec))
    cls.__node_spec__ = spec
    cls.__node_fields__ = spec.by_name
    if final_init is not None:
        cls.__init__ = final_init
    _install_comparison(spec, flavor)
    _install_methods(cls, flavor)
    _enforce_abstract_methods(cls)
    _document(spec)


def _may_become(earlier: type[Any], spec: NodeSpec) -> bool:
    """Whether an instance of an earlier class, if a tool assigns it the new class, has fields in other places."""
    table, views = spec.table, (vars(earlier).get(field_.name) for field_ in spec.fields)
    old = getattr(vars(earlier).get("__node_spec__"), "table", table)
    return (old.children, old.names) != (table.children, table.names) or any(type(view) is FieldView for view in views)


def _warn_of_idle_post_init(spec: NodeSpec, init: Any) -> None:
    """Warn of a `__post_init__` beside an `__init__` that does not call it, or another `__init__`."""
    code = getattr(innermost(init), "__code__", None)
    if not (spec.has_own_init and spec.has_post_init) or code is None or "__init__" in code.co_names:
        return
    called = (getattr(innermost(value), "__code__", None) for base in spec.cls.__mro__ for value in vars(base).values())
    if not any("__post_init__" in getattr(other, "co_names", ()) for other in called):
        warn_user(
            f"{spec.cls.__module__}.{spec.cls.__qualname__} has an `__init__` method and a `__post_init__`, which only "
            f"a generated `__init__` runs. Call it at the end of yours, or name it `__check_init__`, which runs after "
            f"either.",
            NodeDefinitionWarning,
        )


def _init_of(spec: NodeSpec, writer: type[Any], init: Callable[..., None]) -> Callable[..., None] | None:
    """A generated `__init__`, or one that a user wrote, made to seal the node when it returns; None to inherit it."""
    if spec.options.init and not spec.has_own_init:
        made = make_init(spec)
        if hasattr(init, "__globals__"):  # not object's, whose docstring says nothing
            made.__doc__ = init.__doc__
        return made
    # What a user wrote in a base that is a node has been made to seal.
    inherits = writer is object or (writer is not spec.cls and "__node_spec__" in vars(writer))
    if inherits and (writer is object or class_attribute(spec.cls, "__init__") is init):
        return None
    return sealing(init)


def _install_comparison(spec: NodeSpec, flavor: Flavor) -> None:
    """Install `__eq__`, `__hash__` and `__repr__`: the body's own stay, the options decide on the rest.

    An option that is true puts ours in place, and one that is false Python's. One that a user wrote in a base stays,
    but where a decorator generates over it, as `dataclasses` does.
    """
    cls, body, options = spec.cls, dict(vars(spec.cls)), spec.options
    asked = (options.eq, options.eq or options.unsafe_hash, options.repr)
    for (name, ours), wanted in zip(methods.COMPARISON.items(), asked, strict=True):
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        inherited, pythons = class_attribute(cls, name), getattr(object, name)
        generated = inherited is ours or inherited is pythons or _is_of_dataclass(cls, name)
        method = ours if wanted else pythons
        if inherited is not method and (generated or (wanted and (unsaid or not flavor.inherits))):
            setattr(cls, name, method)


def _is_of_dataclass(cls: type[Any], name: str) -> bool:
    """Whether a class inherits a method from a dataclass that is not a node."""
    writer = next((base for base in cls.__mro__ if name in vars(base)), object)
    return "__dataclass_params__" in vars(writer) and "__node_spec__" not in vars(writer)


def _install_methods(cls: type[Any], flavor: Flavor) -> None:
    """The other methods of a node, over those that `dataclasses` generated for a base."""
    body = dict(vars(cls))
    for name, method in _METHODS.items():
        inherited = class_attribute(cls, name)
        if name not in body and inherited is not method and (name in flavor.methods or _is_of_dataclass(cls, name)):
            setattr(cls, name, method)
    if "replace" not in cls.__dataclass_fields__ and class_attribute(cls, "replace") is None:
        cls.replace = replace


def _enforce_abstract_methods(cls: type[Any]) -> None:
    """As `abc.ABC` does: Python itself refuses the instance, whatever the metaclass of its class."""
    inherited = any(getattr(base, "__abstractmethods__", ()) for base in cls.__bases__)
    if inherited or any(getattr(value, "__isabstractmethod__", False) for value in vars(cls).values()):
        cls.__abstractmethods__ = frozenset()
        abc.update_abstractmethods(cls)


def _signature(cls: type[Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        signature = inspect.signature(cls, annotation_format=annotationlib.Format.FORWARDREF)
    else:  # before 3.14
        signature = inspect.signature(cls)
    return signature


def _document(spec: NodeSpec) -> None:
    """Write the docstring: the signature where there is none, as `dataclasses` does, and a section for the fields."""
    cls = spec.cls
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__
        with contextlib.suppress(TypeError, ValueError):  # a metaclass with a __call__ that has no signature
            cls.__doc__ = cls.__name__ + str(_signature(cls)).replace(" -> None", "")
    documented = [(field_.name, field_.doc) for field_ in spec.fields if field_.doc is not None]
    if documented:
        lines = [f"    {name}: {inspect.cleandoc(doc)}".replace("\n", "\n        ") for name, doc in documented]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or cls.__name__), "", "Attributes:", *lines])


# Decorated classes


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
        raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {short_text(cls)}.")
    if "__node_spec__" in vars(cls):
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a node class already, by a decorator or as a Module. Drop @pytree_dataclass; "
            f"options of a Module stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
        )
    make_node_class(cls, options, DECORATED)
    return cls


def refuse_keywords(cls: type[Any], after: type[Any], keywords: Mapping[str, Any], cure: str) -> None:
    """Refuse keywords of a class statement that the bases behind `after` do not take."""
    behind = cls.__mro__[cls.__mro__.index(after) + 1 :]
    takers = [base for base in behind if "__init_subclass__" in vars(base) and base.__module__ not in _PYTHONS]
    if keywords and not takers:
        wrong = ", ".join(with_close_matches(keywords, Options.__match_args__))
        raise NodeDefinitionError(
            f"{cls.__qualname__} is given {wrong} in its class statement, and no base takes that. {cure}"
        )


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

    def __bool__(self) -> bool:
        """That of the value, so that a flag can be asked as it is: `if settings["train"]:`."""
        return bool(self.value)
