"""Make node classes: the steps from a class as a user wrote it to a registered node class, and `pytree_dataclass`."""

import abc
import dataclasses
import inspect
import typing
import weakref
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, dataclass_transform, overload

import jax
import numpy as np
import typing_extensions

from treewright._core.fields import (
    MISSING,
    FieldSpec,
    NodeSpec,
    buffer,
    converter_of,
    field,
    options_of,
    specifier_in,
    static,
)
from treewright._core.freeze import FrozenArray
from treewright._core.init import Docstring, make_init
from treewright._core.instance import PAIR, ChildView, FieldView, StaticView, Unfinished, replace, sealing
from treewright._core.methods import METHODS
from treewright._core.misfits import NODES_TO_SEE, annotation_text
from treewright._core.registration import refuse_base, register_once
from treewright._core.statics import StaticTable
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError

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


class _Draft(NamedTuple):
    """A class that is being made: as its user wrote it, and what it inherits."""

    cls: Any
    options: Mapping[str, bool]
    is_module: bool
    annotations: Mapping[str, Any]  # of its own
    body: Mapping[str, Any]
    inherited: Mapping[str, Any]  # what Python finds in the bases by name, without calling descriptors


def make_node_class(cls: Any, options: Mapping[str, bool], wrap_method: Callable[[Any], Any] | None = None) -> None:
    """Make `cls` a node class in place. After an error it is not registered, and not to be used.

    Whose method it has is one rule: the body's, else ours, else an inherited one. A Module, which wraps its methods,
    prefers one that a user wrote in a base to ours, as with any inheritance; a decorated class gets ours, as from
    `dataclasses`.
    """
    is_module = wrap_method is not None
    _refuse_class(cls, options)
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base))
    annotations = typing_extensions.get_annotations(cls, format=typing_extensions.Format.FORWARDREF)
    draft = _Draft(cls, options, is_module, annotations, dict(vars(cls)), inherited)
    _refuse_slips(draft)
    _read_fields(draft)
    init, keeps_init = _init_of(draft)
    spec, arguments = _node_spec(draft, keeps_init=keeps_init)
    _install_views(spec, inherited)
    if options["init"] and not keeps_init:
        cls.__init__ = make_init(spec, arguments)
    elif cls.__init__ is not init:
        cls.__init__ = init
    _install_methods(draft, wrap_method)
    cls.__doc__ = Docstring(draft.body.get("__doc__"))
    register_once(cls)


# 1. What the user wrote


def _refuse_class(cls: type[Any], options: Mapping[str, bool]) -> None:
    """Refuse what no node class can be."""
    for option in ("frozen", "slots", "weakref_slot"):
        if options[option] != OPTIONS[option]:
            raise NodeDefinitionError(
                f"{option}={options[option]} for {cls.__qualname__}: a node is frozen, since one that changes in place "
                f"would change under a running transformation, and keeps its fields in one flattened pair. Drop "
                f"{option}=...; treewright.replace(node, field=...) gives a changed copy."
            )
    refuse_base(cls)
    if "__dataclass_params__" in vars(cls):
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a dataclass already, and so is every node class. Drop what made it one: another "
            f"decorator, a base class that decorates its subclasses, or this decorator on a Module, whose options "
            f"stand in the class statement: class {cls.__name__}(Module, kw_only=True)."
        )
    for name, reason in _NEVER_OVERRIDDEN.items():
        if name in vars(cls):
            raise NodeDefinitionError(f"{cls.__qualname__} defines {name} itself. Remove it: {reason}.")


def _refuse_slips(draft: _Draft) -> None:
    """Refuse names and values of the body that Python takes without a word, and that mean something else."""
    for name in draft.annotations:
        if name in {PAIR, *_NEVER_OVERRIDDEN} or (name == "replace" and draft.is_module) or _is_special(name):
            raise NodeDefinitionError(
                f"{draft.cls.__qualname__} can't have a field {name}: every node uses this name itself. Rename it."
            )
    for name, value in draft.body.items():
        slip = None if _is_special(name) else _slip_in(draft, name, value)
        if slip is not None:
            raise NodeDefinitionError(f"{draft.cls.__qualname__}.{name} {slip}")


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _slip_in(draft: _Draft, name: str, value: Any) -> str | None:
    """What is wrong with a value: it is no field though it looks like one, hides a field, or can be changed in place.

    Numbers, strings and the like without an annotation are constants of the class, as in Python; so is what a base has
    under the name.
    """
    hidden = draft.inherited.get(name, MISSING)
    is_shared = isinstance(value, list | dict | set | jax.Array | np.ndarray) and type(value) is not FrozenArray
    if name in draft.annotations:
        default: Any = value.default if type(value) is dataclasses.Field else value
        specifier = specifier_in(default[0] if type(default) in {tuple, list} and len(default) == 1 else default)
        if specifier is not None:
            return (
                f"has {specifier} as default, without parentheses or with a comma after them, which would be a leaf.\n"
                f"  Write {name}: {annotation_text(draft.annotations[name], draft.cls)} = {specifier}()"
            )
    elif isinstance(hidden, FieldView) and type(value) is not dataclasses.Field:  # which `dataclasses` refuses
        call = short_text(value) if hidden.field.kind == "child" else _call_text(hidden.field.kind, value)
        line = f"{name}: {annotation_text(hidden.field.type, draft.cls)} = {call}"
        cure = f"For a new default repeat the annotation:\n  {line}\nFor a constant write {name}: ClassVar = ..."
        if hasattr(type(value), "__get__"):
            cure = "Rename it, or let the base declare it as an abstract property or method."
        return f"would hide an inherited field. {cure}"
    elif hidden is MISSING and is_shared:
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        return (
            f"is {short_text(value)} without an annotation, so it is not a field: all instances share it, and what it "
            f"holds is a constant in what jit compiles.\n"
            f"  Write {name}: {kind} = field(default_factory=lambda: ...), or {name}: ClassVar[{kind}] = ... if that "
            f"is meant."
        )
    return None


def _call_text(specifier: str, default: Any) -> str:
    """The call of a specifier as a user writes it: `static(default=3)`."""
    return f"{specifier}({'' if default is MISSING else f'default={short_text(default)}'})"


# 2. The fields, as `dataclasses` reads them


def _read_fields(draft: _Draft) -> None:
    """Let the standard library read the fields; what it would generate is ours, or is not needed."""
    cls, options = draft.cls, draft.options
    for name in draft.annotations:
        base = draft.inherited.get(name)
        if name not in draft.body and hasattr(type(base), "__get__"):  # a property, or a field that keeps its default
            default = base.field.default if isinstance(base, FieldView) else MISSING
            setattr(cls, name, dataclasses.field(default=default))
    are_frozen = {
        vars(base)["__dataclass_params__"].frozen for base in cls.__mro__ if "__dataclass_params__" in vars(base)
    }
    cls.__doc__ = "placeholder"  # else dataclasses builds one from the signature, which is made later
    dataclasses.dataclass(
        init=False,
        repr=False,
        eq=options["order"] and options["eq"],  # which order asks for
        order=options["order"],
        unsafe_hash=options["unsafe_hash"],
        frozen=True in are_frozen,  # dataclasses asks for what its bases are; where there is none, it only takes time
        match_args=options["match_args"],
        kw_only=options["kw_only"],
    )(cls)
    cls.__dataclass_params__.frozen = False not in are_frozen


# 3. The spec


def _node_spec(draft: _Draft, *, keeps_init: bool) -> tuple[NodeSpec, list[FieldSpec]]:
    """The spec of a class that `dataclasses.dataclass` has processed, and what its constructor takes."""
    cls = draft.cls
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
            side = statics if spec.is_static else children
            if spec.index != len(side):
                spec = dataclasses.replace(spec, index=len(side))
            side.append(spec)
        arguments.append(spec)
    fields = tuple([spec for spec in arguments if spec.name not in init_vars])
    names = tuple([spec.name for spec in statics])
    content = tuple([spec.compare == "content" for spec in statics])
    node_spec = NodeSpec(
        cls=cls,
        fields=fields,
        by_name={spec.name: spec for spec in fields},
        children=tuple(children),
        statics=tuple(statics),
        table=StaticTable(cls, names, content, tuple([spec.name for spec in children])),
        checks=tuple([vars(base)["__check_init__"] for base in cls.__mro__[::-1] if "__check_init__" in vars(base)]),
        has_own_init=keeps_init,
        runs_post_init=draft.options["init"] and not keeps_init and hasattr(cls, "__post_init__"),
        init_vars=init_vars,
        unfinished=Unfinished(cls),
        unseen=[None] * NODES_TO_SEE,
    )
    return node_spec, arguments


def _field_spec(draft: _Draft, field_: Any) -> FieldSpec:
    """The spec of a field or an InitVar; that of the base where a node class has the field."""
    cls, name = draft.cls, field_.name
    # The annotation is read where it stands: in this class, or in a dataclass that is not a node.
    owners = (base for base in reversed(cls.__mro__) if vars(base).get("__dataclass_fields__", {}).get(name) is field_)
    owner: Any = next(owners)
    known = vars(owner).get("__node_spec__")
    if known is not None and name in known.by_name:
        inherited: FieldSpec = known.by_name[name]
        return inherited
    options = options_of(field_)
    given: dict[str, Any] = {"doc": getattr(field_, "doc", None), "is_plain": not options, **options}
    if not isinstance(field_.type, type):  # a class converts nothing
        given["converter"] = converter_of(owner, field_, options)
    given |= {slot: getattr(field_, slot) for slot in ("type", "init", "repr", "kw_only", "default", "default_factory")}
    hashed = field_.compare if field_.hash is None else field_.hash
    spec = FieldSpec(name=name, index=0, equal=field_.compare, hash=hashed, **given)
    view = draft.inherited.get(name)
    if isinstance(view, FieldView) and name in draft.annotations and not options:
        _refuse_lost_options(cls, spec, view.field)
    return spec


def _refuse_lost_options(cls: type[Any], spec: FieldSpec, base: FieldSpec) -> None:
    """Refuse a field that is annotated again without the specifier of its base, and would be a plain child."""
    if base.kind == "child" and not base.sharding and not base.stack:
        return
    kind = "field" if base.kind == "child" else base.kind
    lost = "every device would hold it all" if kind == "field" else f"a {kind} field would become a plain child"
    raise NodeDefinitionError(
        f"{cls.__qualname__}.{spec.name} is annotated anew without {kind}(), so {lost}.\n"
        f"  Write {spec.name}: {annotation_text(spec.type, cls)} = {_call_text(kind, spec.default)}, or "
        f"{_call_text('field', spec.default)} if a child is meant."
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


def _init_of(draft: _Draft) -> tuple[Callable[..., None], bool]:
    """The `__init__` that Python would run, and that seals the node; and whether a user wrote it and it stays."""
    for base in draft.cls.__mro__[:-1]:
        init: Any = vars(base).get("__init__")
        if init is None or getattr(init, "__module__", None) in _PLACEHOLDERS:
            continue
        known = vars(base).get("__node_spec__")
        if known is not None:
            return init, draft.is_module and known.has_own_init
        code = getattr(inspect.unwrap(init), "__code__", None)
        is_written = code is None or not code.co_qualname.startswith("__create_fn__.")  # by dataclasses
        return sealing(init), is_written and (base is draft.cls or draft.is_module)
    return object.__init__, False


def _install_methods(draft: _Draft, wrap_method: Callable[[Any], Any] | None) -> None:
    """The methods of every node, for comparison those that the options ask for; and the methods of a Module wrapped.

    Abstract methods are as of `abc.ABC`: Python itself refuses the instance, whatever the metaclass of its class.
    """
    cls, options, body = draft.cls, draft.options, draft.body
    asked = {"__eq__": options["eq"], "__hash__": options["eq"] or options["unsafe_hash"], "__repr__": options["repr"]}
    for name, ours in METHODS.items():
        inherited, pythons, is_asked = draft.inherited.get(name), getattr(object, name, None), asked.get(name, True)
        # Beside an `__eq__`, Python puts `__hash__ = None` into the body by itself, and that says nothing.
        unsaid = is_asked and name == "__hash__" and "__eq__" in body and body.get(name, name) is None
        if name in body and not unsaid:
            continue
        keeps = not (inherited is ours or inherited is pythons or unsaid or _is_of_dataclass(cls, name))
        keeps = keeps and (draft.is_module or not is_asked)
        method = inherited if keeps else ours if is_asked else pythons
        if name in vars(cls):  # by `dataclasses`
            delattr(cls, name)
        if inherited is not method:
            setattr(cls, name, method)
    if not draft.is_module and "replace" not in {*body, *draft.inherited, *draft.annotations}:
        cls.replace = replace
    for name, value in body.items():
        is_method = name not in draft.annotations and (name == "__call__" or not _is_special(name))
        if wrap_method is not None and is_method and (method := wrap_method(value)) is not None:
            setattr(cls, name, method)
    cls.__abstractmethods__ = frozenset()
    abc.update_abstractmethods(cls)


def _is_of_dataclass(cls: type[Any], name: str) -> bool:
    """Whether a class inherits a method from a dataclass that is not a node, whose methods read other attributes."""
    writer = next((base for base in cls.__mro__[1:] if name in vars(base)), object)
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
        make_node_class(cls, options)
        return cls

    return decorate if cls is None else decorate(cls)


OPTIONS: Mapping[str, bool] = MappingProxyType(pytree_dataclass.__kwdefaults__ or {})
