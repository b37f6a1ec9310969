"""Make node classes: the steps from a class as a user wrote it to a registered node class, and `pytree_dataclass`."""

import abc
import contextlib
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, overload

import jax
import numpy as np
import typing_extensions

from treewright._core import methods
from treewright._core.children import NODES_TO_SEE
from treewright._core.converters import annotation_text, converter_of, own_annotations, resolved, unhashable_in
from treewright._core.fields import (
    MISSING,
    FieldOptions,
    FieldSpec,
    NodeSpec,
    Options,
    S,
    buffer,
    call_text,
    field,
    options_of,
    specifier_in,
    static,
)
from treewright._core.freeze import FrozenArray
from treewright._core.functions import class_attribute, innermost, public
from treewright._core.init import make_init
from treewright._core.instance import PAIR, FieldView, install_views, replace, sealing
from treewright._core.jax_private import GetAttrKey
from treewright._core.registration import earlier_class, refuse_unregistrable, register_once
from treewright._core.statics import StaticTable
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError

C = TypeVar("C", bound=type[Any])

_METHODS = MappingProxyType({**methods.FROZEN, **methods.OTHERS})
# They give each protocol an `__init__` that only looks for the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})


def make_node_class(cls: type[Any], options: Options, *, is_module: bool) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used.

    A Module keeps the `__init__` and the methods of comparison that a user wrote in a base; a decorated class gets
    its own, as from `dataclasses`.
    """
    if "__node_registered__" not in vars(cls):
        refuse_unregistrable(cls)
    own = own_annotations(cls)
    init = _init_of(cls, is_module=is_module)
    _check_methods(cls)
    _check_body(cls, own, init, is_module=is_module)
    _read_fields(cls, options, own)
    _drop_overridden(cls, own)
    spec = _node_spec(cls, options, own, init)
    _install_fields(spec)
    _install_init(spec, init)
    _install_comparison(spec, is_module=is_module)
    _install_methods(cls, is_module=is_module)
    _document(spec)
    register_once(cls)


# 1. What the user wrote


@dataclasses.dataclass(frozen=True, slots=True)
class _Init:
    """The `__init__` that Python would run: its class, the function, and whether the node class keeps it."""

    writer: type[Any]
    function: Callable[..., None]
    is_kept: bool


def _init_of(cls: type[Any], *, is_module: bool) -> _Init:
    writers = (base for base in cls.__mro__ if "__init__" in vars(base))
    writer = next(base for base in writers if getattr(vars(base)["__init__"], "__module__", None) not in _PLACEHOLDERS)
    function = vars(writer)["__init__"]
    code = getattr(inspect.unwrap(function), "__code__", None)
    is_generated = writer is object or (code is not None and code.co_qualname.startswith("__create_fn__."))
    if writer is not cls and "__node_spec__" in vars(writer):
        is_generated = not vars(writer)["__node_spec__"].has_own_init
    return _Init(writer, function, not is_generated and (writer is cls or is_module))


_NEVER_OVERRIDDEN = MappingProxyType(
    {
        "__slots__": "a node keeps its fields in one flattened pair, so slots for them would stay empty",
        "__setattr__": "it keeps a node frozen; assignments in __init__ work without, and a field's converter= can "
        "check or change its value",
        "__delattr__": "it keeps a node frozen",
        "tree_flatten": "the class would have two forms that could disagree; mark static fields with static()",
        "tree_unflatten": "the class would have two forms that could disagree; mark static fields with static()",
    }
)
_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})


def is_special(name: str) -> bool:
    """Whether a name is Python's, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


def _check_methods(cls: type[Any]) -> None:
    """Refuse methods and slots that every node has in a form of its own."""
    if "__dataclass_params__" in vars(cls):
        raise NodeDefinitionError(f"{cls.__qualname__} is a dataclass already. Drop @dataclass: a node class is one.")
    for name, reason in _NEVER_OVERRIDDEN.items():
        if name in vars(cls):
            raise NodeDefinitionError(f"{cls.__qualname__} defines {name} itself. Remove it: {reason}.")


def _check_body(cls: type[Any], own: Mapping[str, Any], init: _Init, *, is_module: bool) -> None:
    """Refuse what Python runs without a word, and what means something else than it says."""
    for name in own:
        if name in _RESERVED or (is_module and name == "replace") or is_special(name):
            raise NodeDefinitionError(
                f"{cls.__qualname__} can't have a field {name}: every node uses this name itself. Rename it."
            )
    for name, value in list(vars(cls).items()):
        if is_special(name):
            continue
        if name in own:
            _check_default(cls, name, own[name], value)
        else:
            _check_unannotated(cls, name, value, init)


def _check_default(cls: type[Any], name: str, annotation: Any, value: Any) -> None:
    """Refuse a default that is not a value, and an array, which all instances would share."""
    place = f"{cls.__qualname__}.{name}"
    default: Any = value.default if type(value) is dataclasses.Field else value
    array = _first_array_in(default)
    if array is not None and "ClassVar" not in str(resolved(annotation, cls)):
        what = "an array" if array is default else f"a {type(default).__qualname__} that holds {short_text(array)}"
        raise NodeDefinitionError(
            f"{place} has {what} as default: one array that all instances would share, made when the module is "
            f"imported. Use field(default_factory=lambda: ...)."
        )
    is_wrapped = type(default) in {tuple, list} and len(default) == 1
    specifier = specifier_in(default[0] if is_wrapped else default)
    if specifier is not None:
        slip = "a comma or brackets around it" if is_wrapped else "no parentheses"
        raise NodeDefinitionError(
            f"{place} has {specifier} as default with {slip}, which would be a leaf. Write {name}: "
            f"{annotation_text(annotation, cls)} = {specifier}()."
        )
    is_property = isinstance(default, property | functools.cached_property)
    is_property = is_property and not getattr(default, "__isabstractmethod__", False)  # which a subclass overrides
    function = innermost(default)
    if is_property or (isinstance(function, types.FunctionType) and function.__qualname__ == place):
        what = "property" if is_property else "method"
        raise NodeDefinitionError(
            f"{place} is a field and a {what} of one name, so the {what} would become the field's default. Rename one "
            f"of them."
        )


def _check_unannotated(cls: type[Any], name: str, value: Any, init: _Init) -> None:
    """Refuse a specifier without an annotation, an array, and what would hide a field that the constructor takes.

    Where the constructor takes none of that name, the field is overridden: see `_drop_overridden`.
    """
    place, specifier, array = f"{cls.__qualname__}.{name}", specifier_in(value), _first_array_in(value)
    if specifier is not None:
        default = MISSING if isinstance(value, types.FunctionType) else value.default
        line = call_text(specifier, {} if default is MISSING else {"default": default})
        kind = "..." if default is MISSING or callable(default) else type(default).__name__
        raise NodeDefinitionError(
            f"{place}: {name!r} is a field but has no type annotation, and only annotated names are fields.\n"
            f"  Write {name}: {kind} = {line}"
        )
    holder = next((base for base in cls.__mro__[1:] if name in vars(base)), object)
    hidden = vars(holder).get(name)
    if isinstance(hidden, FieldView) and hidden.field.init and not init.is_kept:
        line = short_text(value) if hidden.field.kind == "child" else call_text(hidden.field.kind, {"default": value})
        declared = f"{name}: {annotation_text(hidden.field.type, holder)} = {line}"
        is_method = hasattr(type(value), "__get__")
        cure = "Rename it." if is_method else f"For a new default repeat the annotation:\n  {declared}\nElse rename it."
        raise NodeDefinitionError(f"{place} would hide the field {name} of {holder.__qualname__}. {cure}")
    if array is not None:
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        raise NodeDefinitionError(
            f"{place} {'is an array' if value is array else f'is a {kind} that holds an array'}, {short_text(array)}, "
            f"and is not a field: no leaf of an instance, never trained, and a constant in what jit compiles. Write "
            f"{name}: {kind} = field(default_factory=lambda: ...), or {name}: ClassVar[{kind}] = ... if a constant is "
            f"meant."
        )


def _first_array_in(value: Any) -> Any:
    """An array that a value is, or that it holds as a tree; None if there is none."""
    if isinstance(value, str | int | float | property | type | types.FunctionType):
        return None
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # keys that can't be sorted, a list in itself, an unfinished node
        leaves = jax.tree.leaves(value)
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray) and type(leaf) is not FrozenArray)
    return next(arrays, None)


# 2. The fields, as `dataclasses` reads them


def _read_fields(cls: type[Any], options: Options, own: Mapping[str, Any]) -> None:
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


def _drop_overridden(cls: type[Any], own: Mapping[str, Any]) -> None:
    """Forget the fields that the body of this class, or of a node class that it inherits, overrides by a value."""
    fields: dict[str, Any] = cls.__dataclass_fields__
    for name in fields.keys() - own.keys():
        holders = [base for base in cls.__mro__ if name in vars(base)]
        if not holders or isinstance(vars(holders[0])[name], FieldView):
            continue
        is_node = holders[0] is cls or "__node_spec__" in vars(holders[0])
        hidden = (vars(base)[name] for base in holders if base in holders[0].__mro__[1:])
        if is_node and any(isinstance(value, FieldView) for value in hidden):
            del fields[name]


# 3. The spec


def _node_spec(cls: type[Any], options: Options, own: Mapping[str, Any], init: _Init) -> NodeSpec:
    """The spec of a class that `dataclasses.dataclass` has processed."""
    declared: dict[str, Any] = cls.__dataclass_fields__
    mark = getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009  the only word of them; its name has stood since 3.7
    fields: list[FieldSpec] = []
    plain: set[str] = set()
    counts = {True: 0, False: 0}
    for field_ in dataclasses.fields(cls):
        specified = options_of(field_)
        given = specified or FieldOptions()
        is_static = given.kind == "static"
        spec = _field_spec(cls, field_, given, counts[is_static])
        counts[is_static] += 1
        fields.append(spec)
        if specified is None:
            plain.add(spec.name)
        if spec.name in own:
            _check_field(cls, spec, specified)
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
        has_own_init=init.is_kept,
        has_post_init=has_post_init,
        runs_post_init=has_post_init and options.init and not init.is_kept,
        init_vars={name: _or_missing(one.default) for name, one in declared.items() if one._field_type is mark},
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


def _check_field(cls: type[Any], field_: FieldSpec, specified: FieldOptions | None) -> None:
    """Refuse what shows once a field is known: a changed kind, a lost sharding, a static that can't be one."""
    place = f"{cls.__qualname__}.{field_.name}"
    if specified is None:
        _check_repeated(cls, field_)
        return
    names: Any = () if field_.sharding is None or callable(field_.sharding) else field_.sharding
    if not isinstance(names, tuple) or not all(name is None or (isinstance(name, str) and name) for name in names):
        cure = f"({names!r},)" if isinstance(names, str) and names else '("embed", None)'
        raise NodeDefinitionError(
            f"{place}: sharding={names!r} is not a tuple with a name or None for each axis of the array. Write a "
            f"tuple, such as {cure}."
        )
    if field_.stack is not None and not isinstance(field_.stack, str) and not callable(field_.stack):
        raise NodeDefinitionError(
            f"{place}: stack={field_.stack!r} is not a name. It takes the name of one leading axis, such as "
            f'stack="layers", or a function of the node that gives it.'
        )
    # A field that was marked for another library was annotated for it too: there the value is what counts.
    if not field_.is_static or field_.converter is not None or specified.foreign:
        return
    part = unhashable_in(field_.type, cls)
    if part is not None:
        frozen = "" if part == "jax.Array" else ", or keep it frozen: static(converter=treewright.freeze)"
        raise NodeDefinitionError(
            f"{place} is static, but its annotation holds {part}, which has no hash, and jit compares statics. Make it "
            f"a child: drop static(){frozen}."
        )


def _check_repeated(cls: type[Any], field_: FieldSpec) -> None:
    """Refuse an annotation without a specifier, where a base declared the field with more."""
    place = f"{cls.__qualname__}.{field_.name}"
    specs = (vars(base).get("__node_spec__") for base in cls.__mro__[1:])
    inherited = next((spec.by_name[field_.name] for spec in specs if spec and field_.name in spec.by_name), None)
    if inherited is not None and inherited.kind != "child":
        kind, given = inherited.kind, {} if field_.default is MISSING else {"default": field_.default}
        raise NodeDefinitionError(
            f"{place} is annotated anew without {kind}(), so a {kind} field would become a plain child.\n"
            f"  Write {field_.name}: {annotation_text(field_.type, cls)} = {call_text(kind, given)}, or "
            f"{call_text('field', given)} if a child is meant."
        )
    if inherited is not None and (inherited.sharding or inherited.stack):
        raise NodeDefinitionError(
            f"{place} is annotated anew without field(), so its sharding would be lost and every device would hold all "
            f"of it. Write {field_.name}: ... = field(...) with the sharding= or stack= that it is to have, or a bare "
            f"field() for none."
        )


# 4. What the class gets


def _install_fields(spec: NodeSpec) -> None:
    """The spec, and the views: by name where an instance of an earlier class, given this one, has other places."""
    cls, earlier, table = spec.cls, earlier_class(spec.cls), spec.table
    views = [vars(earlier).get(field_.name) for field_ in spec.fields] if earlier is not None else []
    old = getattr(vars(earlier).get("__node_spec__"), "table", table) if earlier is not None else table
    is_moved = (old.children, old.names) != (table.children, table.names)
    install_views(spec, by_name=is_moved or any(type(view) is FieldView for view in views))
    cls.__node_spec__ = spec
    cls.__node_fields__ = spec.by_name


def _install_init(spec: NodeSpec, init: _Init) -> None:
    """A generated `__init__`, or the one that a user wrote, made to seal the node when it returns."""
    cls, writer = spec.cls, init.writer
    if spec.options.init and not init.is_kept:
        cls.__init__ = make_init(spec)
        return
    # What a user wrote in a base that is a node has been made to seal.
    is_sealing = (
        writer is not cls and "__node_spec__" in vars(writer) and class_attribute(cls, "__init__") is init.function
    )
    if writer is not object and not is_sealing:
        cls.__init__ = sealing(init.function)


def _install_comparison(spec: NodeSpec, *, is_module: bool) -> None:
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
        if inherited is not method and (generated or (wanted and (unsaid or not is_module))):
            setattr(cls, name, method)


def _is_of_dataclass(cls: type[Any], name: str) -> bool:
    """Whether a class inherits a method from a dataclass that is not a node."""
    writer = next((base for base in cls.__mro__ if name in vars(base)), object)
    return "__dataclass_params__" in vars(writer) and "__node_spec__" not in vars(writer)


def _install_methods(cls: type[Any], *, is_module: bool) -> None:
    """The other methods of a node, over those that `dataclasses` generated for a base; a Module inherits them.

    Abstract methods are as of `abc.ABC`: Python itself refuses the instance, whatever the metaclass of its class.
    """
    body = dict(vars(cls))
    for name, method in _METHODS.items():
        inherited = class_attribute(cls, name)
        if name not in body and inherited is not method and (not is_module or _is_of_dataclass(cls, name)):
            setattr(cls, name, method)
    if "replace" not in cls.__dataclass_fields__ and class_attribute(cls, "replace") is None:
        cls.replace = replace
    inherits = any(getattr(base, "__abstractmethods__", ()) for base in cls.__bases__)
    if inherits or any(getattr(value, "__isabstractmethod__", False) for value in body.values()):
        cls.__abstractmethods__ = frozenset()
        abc.update_abstractmethods(cls)


def _document(spec: NodeSpec) -> None:
    """Write the docstring: the signature where there is none, as `dataclasses` does, and a section for the fields."""
    cls = spec.cls
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__
        with contextlib.suppress(TypeError, ValueError, NameError):  # a name that is unknown yet, from 3.14 on
            cls.__doc__ = cls.__name__ + str(inspect.signature(cls)).replace(" -> None", "")
    documented = [(field_.name, field_.doc) for field_ in spec.fields if field_.doc is not None]
    if documented:
        lines = [f"    {name}: {inspect.cleandoc(doc)}".replace("\n", "\n        ") for name, doc in documented]
        cls.__doc__ = "\n".join([inspect.cleandoc(cls.__doc__ or cls.__name__), "", "Attributes:", *lines])


# Decorated classes


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
) -> Any:
    """Make a class a pytree node: its fields are children, those marked `static()` go to `aux_data`.

    What `dataclasses.dataclass(frozen=True)` does, and on top of it `tree_flatten`, `tree_unflatten`, key paths by
    field name, and statics that `jit` compares exactly. The class is registered with JAX and stays the same object.

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

    def decorate(cls: Any) -> type[Any]:
        if not isinstance(cls, type):
            raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {short_text(cls)}.")
        if "__node_spec__" in vars(cls):
            raise NodeDefinitionError(
                f"{cls.__qualname__} is a node class already, by a decorator or as a Module. Drop @pytree_dataclass; "
                f"options of a Module stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
            )
        make_node_class(cls, class_options("pytree_dataclass", cls, given), is_module=False)
        return cls

    return decorate if cls is None else decorate(cls)


def class_options(where: str, cls: type[Any], given: Mapping[str, Any]) -> Options:
    """The options that were given for a class."""
    if not given["frozen"]:
        raise NodeDefinitionError(
            f"{where}(frozen=False) for {cls.__qualname__}: a node that changes in place would change under a running "
            f"transformation. treewright.replace(node, field=...) gives a changed copy."
        )
    return Options(**{option: bool(given[option]) for option in Options.__match_args__})


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
