"""Make node classes: the steps from a class as a user wrote it to a registered node class, and `pytree_dataclass`."""

import abc
import contextlib
import dataclasses
import functools
import inspect
import sys
import types
import typing
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, dataclass_transform, overload

import jax
import numpy as np
import typing_extensions

from treewright._core import methods
from treewright._core.fields import (
    MISSING,
    FieldSpec,
    NodeSpec,
    S,
    buffer,
    converter_of,
    field,
    options_of,
    resolved,
    specifier_in,
    static,
    unhashable_in,
)
from treewright._core.freeze import FrozenArray
from treewright._core.functions import public
from treewright._core.init import Docstring, make_init
from treewright._core.instance import PAIR, ChildView, FieldView, StaticView, replace, sealing
from treewright._core.jax_private import is_tree_node
from treewright._core.misfits import NODES_TO_SEE, annotation_text
from treewright._core.registration import refuse_base, register_once, registered_already
from treewright._core.statics import StaticTable
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError

if sys.version_info >= (3, 14):
    import annotationlib

C = TypeVar("C", bound=type[Any])

# They give each protocol an `__init__` that only looks for the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})
# Of `dataclasses`: its marks for fields and for InitVars, whose names have stood since 3.7.
_FIELD, _INIT_VAR = getattr(dataclasses, "_FIELD"), getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009
# The latest class of each name, to see that one is made again.
_LATEST: "weakref.WeakValueDictionary[str, type[Any]]" = weakref.WeakValueDictionary()
_ONE_FORM = "the class would have two forms that could disagree; mark static fields with static()"
_NEVER_OVERRIDDEN = MappingProxyType(
    {
        "__slots__": "a node keeps its fields in one flattened pair, so slots for them would stay empty",
        "__setattr__": "it keeps a node frozen; assignments in __init__ work without, and a field's converter= can "
        "check or change its value",
        "__delattr__": "it keeps a node frozen",
        "tree_flatten": _ONE_FORM,
        "tree_unflatten": _ONE_FORM,
    }
)
_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})


class _Draft(NamedTuple):
    """A class that is being made: as its user wrote it, and what it inherits."""

    cls: Any
    options: Mapping[str, bool]
    wrap_method: Callable[[Any], Any] | None
    annotations: Mapping[str, Any]
    inherited: Mapping[str, Any]  # what Python finds in the bases by name, without calling descriptors
    init: Callable[..., None]  # the one that Python would run
    keeps_init: bool
    is_sealing: bool  # whether that `__init__` seals the node already


def make_node_class(cls: Any, options: Mapping[str, bool], wrap_method: Callable[[Any], Any] | None = None) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used.

    A Module, which wraps its methods, keeps the `__init__` and the methods of comparison that a user wrote in a base; a
    decorated class gets its own, as from `dataclasses`.
    """
    is_module = wrap_method is not None
    _check_class(cls, options, is_module=is_module)
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base))
    draft = _Draft(cls, options, wrap_method, _own_annotations(cls), inherited, *_init_of(cls, is_module=is_module))
    _check_body(draft)
    doc = vars(cls).get("__doc__")
    _read_fields(draft)
    spec, arguments = _node_spec(draft)
    _install_views(spec, inherited)
    if options["init"] and not draft.keeps_init:
        cls.__init__ = make_init(spec, arguments)
    elif draft.init is not object.__init__ and not (draft.is_sealing and cls.__init__ is draft.init):
        cls.__init__ = draft.init if draft.is_sealing else sealing(draft.init)
    _install_methods(draft)
    has_own_doc = doc is not None and all(field_.doc is None for field_ in spec.fields)
    cls.__doc__ = doc if has_own_doc else Docstring(doc)
    register_once(cls)


# 1. What the user wrote


def _own_annotations(cls: type[Any]) -> dict[str, Any]:
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


def _init_of(cls: type[Any], *, is_module: bool) -> tuple[Callable[..., None], bool, bool]:
    """The last three of a draft."""
    for base in cls.__mro__[:-1]:
        init: Any = vars(base).get("__init__")
        if init is None or getattr(init, "__module__", None) in _PLACEHOLDERS:
            continue
        if base is not cls and "__node_spec__" in vars(base):
            return init, vars(base)["__node_spec__"].has_own_init and is_module, True
        code = getattr(inspect.unwrap(init), "__code__", None)
        is_generated = code is not None and code.co_qualname.startswith("__create_fn__.")  # by dataclasses
        return init, not is_generated and (base is cls or is_module), False
    return object.__init__, False, False


def _check_class(cls: type[Any], options: Mapping[str, bool], *, is_module: bool) -> None:
    """Refuse what no node class can be, and methods that every node has in a form of its own."""
    if not options["frozen"]:
        raise NodeDefinitionError(
            f"{'Module' if is_module else 'pytree_dataclass'}(frozen=False) for {cls.__qualname__}: a node that "
            f"changes in place would change under a running transformation. treewright.replace(node, field=...) gives "
            f"a changed copy."
        )
    for option in ("slots", "weakref_slot"):
        if options[option]:
            raise NodeDefinitionError(
                f"{'Module' if is_module else 'pytree_dataclass'}({option}=True) for {cls.__qualname__}: a node keeps "
                f"its fields in one flattened pair, and can be weakly referenced as it is. Drop {option}=True."
            )
    refuse_base(cls)
    if "__dataclass_params__" in vars(cls):
        if is_tree_node(cls):
            raise registered_already(cls)
        raise NodeDefinitionError(f"{cls.__qualname__} is a dataclass already. Drop @dataclass: a node class is one.")
    for name, reason in _NEVER_OVERRIDDEN.items():
        if name in vars(cls):
            raise NodeDefinitionError(f"{cls.__qualname__} defines {name} itself. Remove it: {reason}.")


def _check_body(draft: _Draft) -> None:
    """Refuse what Python runs without a word, and what means something else than it says; wrap methods."""
    cls, wrap_method = draft.cls, draft.wrap_method
    for name in draft.annotations:
        is_replace = name == "replace" and wrap_method is not None
        if name in _RESERVED or is_replace or (name.startswith("__") and name.endswith("__")):
            raise NodeDefinitionError(
                f"{cls.__qualname__} can't have a field {name}: every node uses this name itself. Rename it."
            )
    for name, value in list(vars(cls).items()):
        if name in draft.annotations:
            _check_default(cls, name, draft.annotations[name], value)
        elif name == "__call__" or not (name.startswith("__") and name.endswith("__")):
            _check_unannotated(draft, name, value)
            if wrap_method is not None and (method := wrap_method(value)) is not None:
                setattr(cls, name, method)


def _check_default(cls: type[Any], name: str, annotation: Any, value: Any) -> None:
    """Refuse a default that is not a value, and an array, which all instances would share."""
    place = f"{cls.__qualname__}.{name}"
    default: Any = value.default if type(value) is dataclasses.Field else value
    if default is MISSING:
        return
    array = _array_in(default)
    if array is not None and "ClassVar" not in str(resolved(annotation, cls)):
        kind = "an array" if array is default else f"a {type(default).__qualname__} that holds {short_text(array)}"
        raise NodeDefinitionError(
            f"{place} has {kind} as default: one array that all instances would share, made when the module is "
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
    is_abstract = getattr(default, "__isabstractmethod__", False)  # which a subclass overrides
    is_property = isinstance(default, property | functools.cached_property) and not is_abstract
    if is_property or getattr(default, "__qualname__", None) == place:
        kind = "property" if is_property else "method"
        raise NodeDefinitionError(
            f"{place} is a field and a {kind} of one name, so the {kind} would become the field's default. Rename one "
            f"of them."
        )


def _check_unannotated(draft: _Draft, name: str, value: Any) -> None:
    """Refuse a specifier without an annotation, what would hide a field, and what all instances would share.

    A field that no constructor takes may be hidden: then it is overridden, see `_read_fields`. Numbers, strings and
    the like are constants of the class, as in Python; so is what a base has under the name.
    """
    cls, hidden, specifier = draft.cls, draft.inherited.get(name, MISSING), specifier_in(value)
    place = f"{cls.__qualname__}.{name}"
    if specifier is not None:
        default = MISSING if isinstance(value, types.FunctionType) else value.default
        kind = "..." if default is MISSING or callable(default) else type(default).__name__
        raise NodeDefinitionError(
            f"{place}: {name!r} is a field but has no type annotation, and only annotated names are fields.\n"
            f"  Write {name}: {kind} = {_call_text(specifier, default)}"
        )
    if isinstance(hidden, FieldView) and hidden.field.init and not draft.keeps_init:
        line = short_text(value) if hidden.field.kind == "child" else _call_text(hidden.field.kind, value)
        line = f"{name}: {annotation_text(hidden.field.type, cls)} = {line}"
        cure = f"For a new default repeat the annotation:\n  {line}\nElse rename it."
        owner = next(base for base in cls.__mro__[1:] if name in vars(base))
        raise NodeDefinitionError(
            f"{place} would hide the field {name} of {owner.__qualname__}. "
            f"{'Rename it.' if hasattr(type(value), '__get__') else cure}"
        )
    array = _array_in(value)
    if hidden is MISSING and (array is not None or isinstance(value, list | dict | set)):
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        held = "" if array is None else f" that holds {short_text(array)}"
        found = f"an array, {short_text(array)}," if value is array else f"a {kind}{held}"
        raise NodeDefinitionError(
            f"{place} is {found} without an annotation, so it is not a field: all instances share it, and what it "
            f"holds is a constant in what jit compiles.\n"
            f"  Write {name}: {kind} = field(default_factory=lambda: ...), or {name}: ClassVar[{kind}] = ... if that "
            f"is meant."
        )


def _array_in(value: Any) -> Any:
    """An array that a value is, or that it holds as a tree; None if there is none."""
    if isinstance(value, str | int | float | property | type | types.FunctionType):
        return None
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # keys that can't be sorted, a list in itself, an unfinished node
        leaves = jax.tree.leaves(value)
    for leaf in leaves:
        if isinstance(leaf, jax.Array | np.ndarray) and type(leaf) is not FrozenArray:
            return leaf
    return None


def _call_text(specifier: str, default: Any) -> str:
    """The call of a specifier as a user writes it: `static(default=3)`."""
    return f"{specifier}({'' if default is MISSING else f'default={short_text(default)}'})"


# 2. The fields, as `dataclasses` reads them


def _read_fields(draft: _Draft) -> None:
    """Let the standard library read the fields; what it would generate is ours, or is not needed."""
    cls, options, annotations, inherited = draft.cls, draft.options, draft.annotations, draft.inherited
    for name in annotations:
        base = inherited.get(name)
        if name in vars(cls):
            continue
        if isinstance(base, FieldView):  # repeated without a value: it keeps its default
            setattr(cls, name, dataclasses.field(default=base.field.default))
        elif hasattr(type(base), "__get__"):  # in place of an inherited property or method
            setattr(cls, name, dataclasses.field())
    bases = [vars(base) for base in cls.__mro__[1:]]
    frozen = {body["__dataclass_params__"].frozen for body in bases if "__dataclass_params__" in body}
    cls.__doc__ = "placeholder"  # else dataclasses builds one from the signature, which is made later
    ours = {*methods.FROZEN, "__eq__", "__hash__", "__replace__"} - vars(cls).keys()
    dataclasses.dataclass(
        init=False,
        repr=False,
        eq=options["order"] and options["eq"],  # which order asks for
        order=options["order"],
        unsafe_hash=options["unsafe_hash"],
        frozen=True in frozen,
        match_args=options["match_args"],
        kw_only=options["kw_only"],
    )(cls)
    for name in ours & vars(cls).keys():
        delattr(cls, name)
    params: Any = cls.__dataclass_params__
    params.frozen = False not in frozen  # else dataclasses refuses a subclass of both kinds
    # A field is overridden where this class, or a node class that it inherits, has a value in place of its view.
    for name in cls.__dataclass_fields__.keys() - annotations.keys():
        holders = [base for base in cls.__mro__ if name in vars(base)]
        if not holders or isinstance(vars(holders[0])[name], FieldView):
            continue
        is_node = holders[0] is cls or "__node_spec__" in vars(holders[0])
        if is_node and any(isinstance(vars(base)[name], FieldView) for base in holders):
            del cls.__dataclass_fields__[name]


# 3. The spec


def _node_spec(draft: _Draft) -> tuple[NodeSpec, list[FieldSpec]]:
    """The spec of a class that `dataclasses.dataclass` has processed, and what its constructor takes."""
    cls = draft.cls
    by_name: dict[str, FieldSpec] = {}
    children: list[FieldSpec] = []
    statics: list[FieldSpec] = []
    arguments: list[FieldSpec] = []
    init_vars: dict[str, Any] = {}
    for field_ in cls.__dataclass_fields__.values():
        if field_._field_type not in {_FIELD, _INIT_VAR}:
            continue
        spec = _field_spec(draft, field_)
        if field_._field_type is _INIT_VAR:
            init_vars[spec.name] = spec.default
        else:
            side = statics if spec.kind == "static" else children
            if spec.index != len(side):
                spec = dataclasses.replace(spec, index=len(side))
            side.append(spec)
            by_name[spec.name] = spec
        arguments.append(spec)
    child_names = tuple([spec.name for spec in children])
    names = tuple([spec.name for spec in statics])
    content = tuple([spec.compare == "content" for spec in statics])
    node_spec = NodeSpec(
        cls=cls,
        fields=tuple(by_name.values()),
        by_name=by_name,
        children=tuple(children),
        statics=tuple(statics),
        table=StaticTable(cls, names, content, child_names),
        checks=tuple([vars(base)["__check_init__"] for base in cls.__mro__[::-1] if "__check_init__" in vars(base)]),
        has_own_init=draft.keeps_init,
        runs_post_init=draft.options["init"] and not draft.keeps_init and hasattr(cls, "__post_init__"),
        init_vars=init_vars,
        unseen=[None] * NODES_TO_SEE,
    )
    return node_spec, arguments


def _field_spec(draft: _Draft, field_: Any) -> FieldSpec:
    """The spec of a field or an InitVar; that of the base where a node class has the field."""
    cls = draft.cls
    is_own = field_.name in draft.annotations or field_._field_type is _INIT_VAR
    for base in [] if is_own else cls.__mro__[1:]:
        body = vars(base)
        if "__node_spec__" in body and body.get("__dataclass_fields__", {}).get(field_.name) is field_:
            known: FieldSpec = body["__node_spec__"].by_name[field_.name]
            return known
    options = options_of(field_)
    given: dict[str, Any] = {"doc": getattr(field_, "doc", None), "is_plain": not options, **options}
    if not isinstance(field_.type, type) or hasattr(field_.type, "_is_static_wrapper_"):  # a class converts nothing
        # The annotation is read where it stands: in this class, or in a dataclass that is not a node.
        bases = (base for base in reversed(cls.__mro__) if "__dataclass_fields__" in vars(base))
        owner = next(base for base in bases if vars(base)["__dataclass_fields__"].get(field_.name) is field_)
        given["converter"] = converter_of(owner, field_, options)
    for name in ("name", "type", "init", "repr", "kw_only", "default", "default_factory"):
        value = getattr(field_, name)
        # Before 3.15, where it is not yet a sentinel, `cloudpickle` makes a copy of it.
        given[name] = MISSING if type(value).__name__ == "_MISSING_TYPE" else value
    hashed = field_.compare if field_.hash is None else field_.hash
    spec = FieldSpec(index=0, equal=field_.compare, hash=hashed, **given)
    if field_.name in draft.annotations:
        view = draft.inherited.get(field_.name)
        _check_field(cls, spec, options, view.field if isinstance(view, FieldView) else None)
    return spec


def _check_field(cls: type[Any], spec: FieldSpec, options: Mapping[str, Any], base: FieldSpec | None) -> None:
    """Refuse what shows once a field is known: a changed kind, a lost sharding, a static that can't be one."""
    place = f"{cls.__qualname__}.{spec.name}"
    if not options:
        if base is not None and (base.kind != "child" or base.sharding or base.stack):
            kind = "field" if base.kind == "child" else base.kind
            lost = "every device would hold it all" if kind == "field" else f"a {kind} field would become a plain child"
            raise NodeDefinitionError(
                f"{place} is annotated anew without {kind}(), so {lost}.\n"
                f"  Write {spec.name}: {annotation_text(spec.type, cls)} = {_call_text(kind, spec.default)}, or "
                f"{_call_text('field', spec.default)} if a child is meant."
            )
        return
    names: Any = spec.sharding
    is_tuple = isinstance(names, tuple) and all(name is None or (isinstance(name, str) and name) for name in names)
    if names is not None and not is_tuple and not callable(names):
        cure = f"({names!r},)" if isinstance(names, str) and names else '("embed", None)'
        raise NodeDefinitionError(
            f"{place}: sharding={names!r} is not a tuple with a name or None for each axis of the array. Write a "
            f"tuple, such as {cure}."
        )
    if spec.stack is not None and not isinstance(spec.stack, str) and not callable(spec.stack):
        raise NodeDefinitionError(
            f"{place}: stack={spec.stack!r} is not a name. It takes the name of one leading axis, such as "
            f'stack="layers", or a function of the node that gives it.'
        )
    # A field that was marked for another library was annotated for it too: there the value is what counts.
    is_ours = "converter" in options
    part = unhashable_in(spec.type, cls) if spec.kind == "static" and is_ours and spec.converter is None else None
    if part is not None:
        frozen = "" if part == "jax.Array" else ", or keep it frozen: static(converter=treewright.freeze)"
        raise NodeDefinitionError(
            f"{place} is static, but its annotation holds {part}, which has no hash, and jit compares statics. Make it "
            f"a child: drop static(){frozen}."
        )


# 4. What the class gets


def _install_views(spec: NodeSpec, inherited: Mapping[str, Any]) -> None:
    """The spec, and the views of the fields.

    They read by name in a class that was made before: `%autoreload` gives its instances, with fields in other places,
    this class.
    """
    cls, path = spec.cls, f"{spec.cls.__module__}.{spec.cls.__qualname__}"
    is_made_again = path in _LATEST
    _LATEST[path] = cls
    for field_ in spec.fields:
        kind = FieldView if is_made_again else StaticView if field_.is_static else ChildView
        view = vars(cls).get(field_.name, inherited.get(field_.name))
        if type(view) is not kind or view.field is not field_:
            setattr(cls, field_.name, kind(field_, field_.index))
    cls.__node_spec__ = spec
    cls.__node_fields__ = spec.by_name


def _install_methods(draft: _Draft) -> None:
    """The methods of every node. The body's own stay, and over those that `dataclasses` generated for a base go ours.

    For comparison an option that is true puts ours in place, and one that is false Python's. One that a user wrote in a
    base stays, but where a decorator generates over it, as `dataclasses` does. Abstract methods are as of `abc.ABC`:
    Python itself refuses the instance, whatever the metaclass of its class.
    """
    cls, options, inherited, is_module = draft.cls, draft.options, draft.inherited, draft.wrap_method is not None
    body = dict(vars(cls))
    asked = (options["eq"], options["eq"] or options["unsafe_hash"], options["repr"])
    for (name, ours), wanted in zip(methods.COMPARISON.items(), asked, strict=True):
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        known, pythons = body.get(name, inherited[name]), getattr(object, name)
        generated = known is ours or known is pythons or _is_of_dataclass(cls, name)
        method = ours if wanted else pythons
        if known is not method and (generated or (wanted and (unsaid or not is_module))):
            setattr(cls, name, method)
    for name, method in {**methods.FROZEN, **methods.OTHERS}.items():
        if name in body or inherited.get(name) is method:
            continue
        if not is_module or _is_of_dataclass(cls, name):
            setattr(cls, name, method)
    if not is_module and "replace" not in {*body, *inherited, *draft.annotations}:
        setattr(cls, "replace", replace)  # noqa: B010  no checker knows it
    is_abstract = any(getattr(base, "__abstractmethods__", ()) for base in cls.__bases__)
    if is_abstract or any(getattr(value, "__isabstractmethod__", False) for value in body.values()):
        cls.__abstractmethods__ = frozenset()
        abc.update_abstractmethods(cls)


def _is_of_dataclass(cls: type[Any], name: str) -> bool:
    """Whether a class inherits a method from a dataclass that is not a node."""
    writer = next((base for base in cls.__mro__ if name in vars(base)), object)
    return "__dataclass_params__" in vars(writer) and "__node_spec__" not in vars(writer)


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
        order: Generate `<`, `<=`, `>` and `>=`, which compare the fields in order, as a tuple of them does. An array of
            several values has no single answer, and raises: leave such a field out with `field(compare=False)`.
        unsafe_hash: Generate `__hash__` with `eq=False` too, or beside an `__eq__` of your own.
        frozen: Always true.
        match_args: Generate `__match_args__`.
        kw_only: All fields of this class are taken by keyword.
        slots: Always false: a node keeps its fields in one flattened pair. `dataclasses.make_dataclass` passes it.
        weakref_slot: Always false: a node can be weakly referenced as it is.

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
    options: dict[str, Any] = dict(locals())

    def decorate(cls: Any) -> type[Any]:
        if not isinstance(cls, type):
            raise NodeDefinitionError(f"pytree_dataclass decorates a class, got {short_text(cls)}.")
        if "__node_spec__" in vars(cls):
            raise NodeDefinitionError(
                f"{cls.__qualname__} is a node class already, by a decorator or as a Module. Drop @pytree_dataclass; "
                f"options of a Module stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
            )
        make_node_class(cls, options)
        return cls

    return decorate if cls is None else decorate(cls)


OPTIONS: Mapping[str, bool] = MappingProxyType(pytree_dataclass.__kwdefaults__ or {})


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
