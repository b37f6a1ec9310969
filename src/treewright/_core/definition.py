"""Make node classes: the steps from a class as a user wrote it to a registered node class, and `pytree_dataclass`."""

import abc
import contextlib
import copy
import dataclasses
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar, dataclass_transform, overload

import jax
import numpy as np
import typing_extensions

from treewright._core import methods
from treewright._core.children import NODES_TO_SEE
from treewright._core.converters import annotation_text, converter_of, resolved, unhashable_in
from treewright._core.fields import (
    MISSING,
    FieldOptions,
    S,
    buffer,
    call_text,
    field,
    names_problem,
    options_of,
    specifier_in,
    static,
)
from treewright._core.freeze import FrozenArray
from treewright._core.functions import class_attribute, innermost, public
from treewright._core.init import make_init
from treewright._core.instance import PAIR, FieldView, install_views, replaced, sealing, with_close_matches
from treewright._core.jax_private import GetAttrKey
from treewright._core.registration import earlier_class, refuse_builtin_base, refuse_registered, register_once
from treewright._core.spec import FieldSpec, NodeSpec, Options
from treewright._core.statics import StaticTable
from treewright._core.text import first_text
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

_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})
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
    _refuse_methods(cls)
    _refuse_slips(cls, own, flavor.reserved, has_own_init=has_own_init)
    _read_fields(cls, options, own)
    _drop_overridden(cls, own)
    spec = _node_spec(cls, options, own, has_own_init=has_own_init)
    _install(spec, flavor, writer, init)
    register_once(cls)


# 1. What the class is before we touch it


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
        if name in own_annotations(cls) and not _is_class_variable(declared.type, cls):
            setattr(cls, name, copy.copy(declared))
    del cls.__dataclass_fields__, cls.__dataclass_params__
    said = {name: getattr(options, name) and getattr(params, name) for name in ("init", "repr", "eq")}
    asked = {name: getattr(options, name) or getattr(params, name) for name in ("order", "unsafe_hash")}
    return dataclasses.replace(options, **said, **asked, match_args=options.match_args and matched)


def _is_generated(value: Any) -> bool:
    """Whether `dataclasses` wrote a method: its code says so, whatever module it claims."""
    if not isinstance(value, types.FunctionType):
        return False
    written = inspect.unwrap(value)
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
    return True if spec is None else bool(spec.has_own_init)


# 2. Checks of the class body: definitions that can't work, and mistakes that Python runs without a word


def is_special(name: str) -> bool:
    """Whether a name is Python's, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


def _refuse_methods(cls: type[Any]) -> None:
    """Refuse methods and slots that every node has in a form of its own."""
    name, body = cls.__qualname__, vars(cls)
    if "__slots__" in body:
        raise NodeDefinitionError(
            f"{name} declares __slots__. A node keeps its fields in one flattened pair, so slots for them would stay "
            f"empty. Remove __slots__."
        )
    for method in ("__setattr__", "__delattr__"):
        if method in body:
            raise NodeDefinitionError(
                f"Cannot overwrite attribute {method} in class {name}: it keeps a node frozen. Remove it; assignments "
                f"in __init__ work without, and a field's converter= can check or change its value."
            )
    for method in ("tree_flatten", "tree_unflatten"):
        if method in body:
            raise NodeDefinitionError(
                f"{name} defines {method} itself, and would have two forms that could disagree. Remove it and mark "
                f"static fields with static(), or keep it and use jax.tree_util.register_pytree_node_class alone."
            )


def _refuse_slips(
    cls: type[Any], own: Mapping[str, Any], reserved: frozenset[str], *, has_own_init: bool
) -> None:
    for name in own:
        if name in _RESERVED or name in reserved or is_special(name):
            raise NodeDefinitionError(
                f"{cls.__qualname__} can't have a field {name}: every node uses this name itself. Rename it."
            )
    for name, value in list(vars(cls).items()):
        if is_special(name):
            continue
        if name in own:
            _refuse_default(cls, name, own[name], value)
        else:
            _refuse_unannotated(cls, name, value)
            _refuse_shadow(cls, name, value, has_own_init=has_own_init)
    for base in cls.__mro__:
        is_read = base is cls or not ("__node_spec__" in vars(base) or hasattr(base, "__dataclass_params__"))
        if is_read and base.__module__ not in _PYTHONS:
            _refuse_arrays(cls, base, own if base is cls else {})


def _refuse_default(cls: type[Any], name: str, annotation: Any, value: Any) -> None:
    """Refuse a default that is not a value, and an array, which all instances would share."""
    place = f"{cls.__qualname__}.{name}"
    default = value.default if type(value) is dataclasses.Field else value
    if isinstance(default, str | int | float | types.NoneType) or default is MISSING:
        return
    array = _first_array_in(default)
    if array is not None and not _is_class_variable(annotation, cls):
        what = "an array" if array is default else f"a {type(default).__qualname__} that holds {first_text(array)}"
        raise NodeDefinitionError(
            f"{place} has {what} as default: one array that all instances would share, made when the module is "
            f"imported. Use field(default_factory=lambda: ...)."
        )
    specifier, function = specifier_in(default), innermost(default)
    line = f"{name}: {annotation_text(annotation, cls)} = "
    if specifier is not None:
        raise NodeDefinitionError(
            f"{place} has the function {specifier} itself as default, which would be a leaf. Write the parentheses: "
            f"{line}{specifier}()."
        )
    if isinstance(default, tuple | list) and len(default) == 1 and specifier_in(default[0]) is not None:
        raise NodeDefinitionError(
            f"{place} has a {type(default).__name__} around {specifier_in(default[0])}() as default, which would be a "
            f"leaf. Drop the comma or the brackets: {line}{specifier_in(default[0])}()."
        )
    is_property = isinstance(default, property | functools.cached_property)
    is_property = is_property and not getattr(default, "__isabstractmethod__", False)  # which a subclass overrides
    if is_property or (isinstance(function, types.FunctionType) and function.__qualname__ == place):
        what = "property" if is_property else "method"
        raise NodeDefinitionError(
            f"{place} is a field and a {what} of one name, so the {what} would become the field's default. Rename one "
            f"of them."
        )


def _refuse_unannotated(cls: type[Any], name: str, value: Any) -> None:
    specifier = specifier_in(value)
    if specifier is None:
        return
    default = MISSING if isinstance(value, types.FunctionType) else value.default
    line = call_text(specifier, {} if default is MISSING else {"default": default})
    kind = "..." if default is MISSING or callable(default) else type(default).__name__
    raise NodeDefinitionError(
        f"{cls.__qualname__}.{name}: {name!r} is a field but has no type annotation, and only annotated names are "
        f"fields.\n  Write {name}: {kind} = {line}"
    )


def _refuse_shadow(cls: type[Any], name: str, value: Any, *, has_own_init: bool) -> None:
    """Refuse a value, property or method that would hide an inherited field which the constructor takes.

    Where the constructor takes none of that name, the field is overridden: see `_drop_overridden`.
    """
    holder = next((base for base in cls.__mro__[1:] if name in vars(base)), object)
    hidden = vars(holder).get(name)
    if not isinstance(hidden, FieldView) or has_own_init or not hidden.field.init:
        return
    kind = hidden.field.kind
    line = first_text(value) if kind == "child" else call_text(kind, {"default": value})
    declared = f"{name}: {annotation_text(hidden.field.type, holder)} = {line}"
    cure = f"For a new default repeat the annotation:\n  {declared}\nElse rename it."
    if hasattr(type(value), "__get__"):
        cure = "It is a method or property: rename it."
    raise NodeDefinitionError(
        f"{cls.__qualname__}.{name} would hide the field {name} of {holder.__qualname__}. {cure} (A field that "
        f"__init__ does not take, by init=False or as {cls.__qualname__} writes its own, may be overridden.)"
    )


def _refuse_arrays(cls: type[Any], base: type[Any], fields: Mapping[str, Any]) -> None:
    """Refuse an array in the body of a class, or of a base that is not a node, where it is not a field."""
    for name, value in list(vars(base).items()):
        if name in fields or is_special(name):
            continue
        array = _first_array_in(value)
        if array is None or getattr(cls, name, None) is not value:  # hidden by another class
            continue
        if _is_class_variable(own_annotations(base).get(name), base):
            continue
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        raise NodeDefinitionError(
            f"{base.__qualname__}.{name} {'is an array' if value is array else f'is a {kind} that holds an array'}, "
            f"{first_text(array)}, and is not a field of {cls.__qualname__}: no leaf of an instance, never trained, "
            f"and a constant in what jit compiles. Write {name}: {kind} = field(default_factory=lambda: ...) in "
            f"{cls.__qualname__}, or {name}: ClassVar[{kind}] = ... if a constant is meant."
        )


def _is_class_variable(annotation: Any, cls: type[Any]) -> bool:
    """Whether an annotation in the body of `cls` says `ClassVar`."""
    hint = resolved(annotation, cls)
    if isinstance(hint, str):  # what is in the brackets is unknown
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


def _first_array_in(value: Any) -> Any:
    """An array that a value is, or that it holds as a tree; None if there is none."""
    if isinstance(value, str | int | float | property | type | types.FunctionType):
        return None
    seen: set[int] = set()

    def stops(part: Any) -> bool:  # a list may contain itself, and JAX does not come back from there
        known = id(part) in seen
        seen.add(id(part))
        return known

    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # keys that can't be sorted, a node whose __init__ has not returned
        leaves = jax.tree.leaves(value, is_leaf=stops)
    arrays = (leaf for leaf in leaves if isinstance(leaf, jax.Array | np.ndarray) and type(leaf) is not FrozenArray)
    return next(arrays, None)


# 3. The fields, as `dataclasses` reads them


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


# 4. The spec


def _node_spec(cls: type[Any], options: Options, own: Mapping[str, Any], *, has_own_init: bool) -> NodeSpec:
    """The spec of a class that `dataclasses.dataclass` has processed."""
    declared: dict[str, Any] = cls.__dataclass_fields__
    mark = getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009  the only word of them; its name has stood since 3.7
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
            _refuse_field(cls, spec, specified)
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
        init_vars={name: _or_missing(given.default) for name, given in declared.items() if given._field_type is mark},
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
    """`MISSING` itself for a copy of it: `cloudpickle` makes one. (From 3.15 on it is a sentinel, and stays itself.)"""
    return MISSING if type(value).__name__ == "_MISSING_TYPE" else value


def _declarer(cls: type[Any], name: str) -> type[Any]:
    """The nearest class whose body annotates a field."""
    return next((base for base in cls.__mro__ if name in own_annotations(base)), cls)


def _refuse_field(cls: type[Any], field_: FieldSpec, specified: FieldOptions | None) -> None:
    """Refuse what shows once a field is known: a changed kind, a lost sharding, a static that can't be one."""
    place = f"{cls.__qualname__}.{field_.name}"
    if specified is None:
        bases = (vars(base).get("__node_spec__") for base in cls.__mro__[1:])
        inherited = next((spec.by_name[field_.name] for spec in bases if spec and field_.name in spec.by_name), None)
        if inherited is not None:
            _refuse_loss(cls, field_, inherited)
        return
    problem = None if field_.sharding is None or callable(field_.sharding) else names_problem(field_.sharding)
    if problem is not None:
        raise NodeDefinitionError(f"{place}: sharding={field_.sharding!r} {problem}.")
    if field_.stack is not None and not isinstance(field_.stack, str) and not callable(field_.stack):
        raise NodeDefinitionError(
            f'{place}: stack={field_.stack!r} is not a name. It takes the name of one leading axis, such as '
            f'stack="layers", or a function of the node that gives it.'
        )
    # A field that was marked for another library was annotated for it too: there the value is what counts.
    if not field_.is_static or field_.converter is not None or specified.foreign or field_.type in _HASHABLE:
        return
    part = unhashable_in(field_.type, cls)
    if part is not None:
        what, cure = _NO_STATIC.get(part, _NO_STATIC["bytearray"])
        raise NodeDefinitionError(
            f"{place} is static, but its annotation holds {part}. jit compares statics and never copies them: {what}.\n"
            f"  {cure.format(name=field_.name)}"
        )


_HASHABLE: tuple[Any, ...] = (str, int, float, bool, "str", "int", "float", "bool", Any, "Any")
_CHANGES = "a change in place would give stale results"
_NO_TRUTH = ("an array has no single truth value", "Make it a child: drop static().")
_NO_STATIC = MappingProxyType(
    {
        "jax.Array": _NO_TRUTH,
        "numpy.ndarray": _NO_TRUTH,
        "list": (
            _CHANGES,
            "Make it a tuple, keep it as one with static(converter=tuple), or make it a child: drop static().",
        ),
        "set": (
            _CHANGES,
            "Make it a frozenset, keep it as one with static(converter=frozenset), or make it a child: drop static().",
        ),
        "dict": (
            _CHANGES,
            "Freeze it: {name}: ... = static(converter=treewright.freeze), or make it a child: drop static().",
        ),
        "bytearray": (_CHANGES, "Make it a hashable type, such as a tuple, or a child: drop static()."),
    }
)


def _refuse_loss(cls: type[Any], field_: FieldSpec, inherited: FieldSpec) -> None:
    """Refuse an annotation without a specifier, where a base declared the field with more."""
    place = f"{cls.__qualname__}.{field_.name}"
    if inherited.kind != "child":
        kind, given = inherited.kind, {} if field_.default is MISSING else {"default": field_.default}
        raise NodeDefinitionError(
            f"{place} is annotated anew without {kind}(), so a {kind} field would become a plain child.\n"
            f"  Write {field_.name}: {annotation_text(field_.type, cls)} = {call_text(kind, given)}, or "
            f"{call_text('field', given)} if a child is meant."
        )
    if inherited.sharding or inherited.stack:
        raise NodeDefinitionError(
            f"{place} is annotated anew without field(), so its sharding would be lost and every device would hold all "
            f"of it. Write {field_.name}: ... = field(...) with the sharding= or stack= that it is to have, or a bare "
            f"field() for none."
        )


# 5. What the class gets


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
    """`__eq__`, `__hash__` and `__repr__`: the body's own stay, the options decide on the rest.

    An option that is true puts ours in place, and one that is false Python's. One that a user wrote in a base stays too,
    but where a decorator generates over it, as `dataclasses` does.
    """
    cls, body, options = spec.cls, dict(vars(spec.cls)), spec.options
    asked = (options.eq, options.eq or options.unsafe_hash, options.repr)
    by_dataclasses = [name for name in methods.COMPARISON if _is_generated(class_attribute(cls, name))]
    if "__eq__" in by_dataclasses and class_attribute(cls, "__hash__") is None:
        by_dataclasses.append("__hash__")
    for (name, ours), wanted in zip(methods.COMPARISON.items(), asked, strict=True):
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        inherited, pythons = class_attribute(cls, name), getattr(object, name)
        generated = inherited is ours or inherited is pythons or name in by_dataclasses
        method = ours if wanted else pythons
        if inherited is not method and (generated or (wanted and (unsaid or not flavor.inherits))):
            setattr(cls, name, method)


def _install_methods(cls: type[Any], flavor: Flavor) -> None:
    """The other methods of a node, over those that `dataclasses` generated for a base."""
    body = dict(vars(cls))
    for name, method in _METHODS.items():
        inherited = class_attribute(cls, name)
        if name not in body and inherited is not method and (name in flavor.methods or _is_generated(inherited)):
            setattr(cls, name, method)
    if "replace" not in cls.__dataclass_fields__ and class_attribute(cls, "replace") is None:
        cls.replace = replaced


def _enforce_abstract_methods(cls: type[Any]) -> None:
    """As `abc.ABC` does: Python itself refuses the instance, whatever the metaclass of its class."""
    inherited = any([getattr(base, "__abstractmethods__", ()) for base in cls.__bases__])
    if inherited or any([getattr(value, "__isabstractmethod__", False) for value in vars(cls).values()]):
        cls.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]  which the next line fills
        abc.update_abstractmethods(cls)


def _document(spec: NodeSpec) -> None:
    """The docstring: the signature where the class has none, as `dataclasses` writes it, and a section for the fields."""
    cls = spec.cls
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__
        formats = {"annotation_format": annotationlib.Format.FORWARDREF} if sys.version_info >= (3, 14) else {}
        with contextlib.suppress(TypeError, ValueError):  # a metaclass with a __call__ that has no signature
            cls.__doc__ = cls.__name__ + str(inspect.signature(cls, **formats)).replace(" -> None", "")
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
        raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {first_text(cls)}.")
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
