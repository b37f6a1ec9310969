"""Node classes: the steps from a user's class to a registered node class."""

import abc
import builtins
import dataclasses
import difflib
import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
import typing_extensions

from treewright._base.functions import foreign_library, is_generated, native_base, slots_of
from treewright._base.text import annotation_text, is_node_class, short_text, with_article
from treewright._core.field_checks import has_jax_arrays, reject_field_on_class
from treewright._core.field_views import ArgumentView, FieldView, as_view, field_view
from treewright._core.fields import (
    MISSING,
    defaults_of,
    options_of,
    options_to_repeat,
    specifier_in,
    specifier_in_annotation,
    specifier_name,
    specifier_text,
)
from treewright._core.info import FieldInfo, NodeInfo
from treewright._core.init import Docstring, make_init
from treewright._core.instance import FLAT_FORM_NAME, Unfinished, wrap_init
from treewright._core.methods import NODE_METHODS, replace_method, restore_class, wrap_methods
from treewright._core.registration import register_once
from treewright._core.rules import note
from treewright._core.statics import StaticTable
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning, warn_user

# These modules define an `__init__` for each protocol that only calls the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})
# The marks of `dataclasses` for fields and InitVars; private, but unchanged since Python 3.7.
_FIELD, _INIT_VAR = getattr(dataclasses, "_FIELD"), getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009
_ONE_FORM = "the class would have two flattened forms that could disagree; static fields are those declared static()"
_UNSUPPORTED = MappingProxyType(
    {
        "frozen": "a node must not change during a transformation",
        "slots": "a node stores all fields in one attribute",
        "weakref_slot": "nodes support weak references anyway",
    }
)
_NEVER_OVERRIDDEN = MappingProxyType(
    {
        "__slots__": "a node stores all fields in one attribute, so slots for them would stay empty",
        "__setattr__": "nodes define it to stay frozen. Assignments in __init__ work without it, and a field's "
        "converter= can check or change its value",
        "__delattr__": "nodes define it to stay frozen",
        "tree_flatten": _ONE_FORM,
        "tree_unflatten": _ONE_FORM,
    }
)


_FORWARDREF: Any = typing_extensions.Format.FORWARDREF
# The names of all methods of Python's built-in classes.
_PYTHONS_NAMES = frozenset([name for cls in vars(builtins).values() if isinstance(cls, type) for name in dir(cls)])
_DECLARING = frozenset({FLAT_FORM_NAME, "__dataclass_fields__"})  # A class with one of them declares fields.
_HOOKS = ("__init__", "__post_init__", "__check_init__")


class _Draft(NamedTuple):
    """A class that is becoming a node class: the body that the user wrote, and the inherited attributes."""

    cls: Any
    options: Mapping[str, bool]
    is_module: bool
    annotations: Mapping[str, Any]  # annotations in this class body, without inherited ones
    body: Mapping[str, Any]
    inherited: Mapping[str, Any]  # attributes of the bases in MRO order, without calling descriptors


def make_node_class(cls: Any, options: Mapping[str, bool], *, is_module: bool) -> None:
    """Turn `cls` into a node class in place. After an error it is not registered, and must not be used.

    Methods of the class body come first. For the rest, a decorated class gets ours, as from `dataclasses`; a Module
    prefers a method that a user wrote in a base class, as with any inheritance.
    """
    _reject_class(cls, options)
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base))
    annotations = typing_extensions.get_annotations(cls, format=_FORWARDREF)
    for name in (*annotations, *vars(cls)):
        if type(inherited.get(name)) is property:
            inherited[name] = as_view(inherited[name])
    draft = _Draft(cls, options, is_module, annotations, dict(vars(cls)), inherited)
    _reject_attributes(draft)
    _read_fields(draft)
    init, keeps_init = _init_of(draft)
    info, arguments = _node_info(draft, keeps_init=keeps_init)
    for field in info.fields:
        setattr(cls, field.name, field_view(field, info.table))
    for name, default in info.init_vars.items():
        if name in annotations and not (default is MISSING or hasattr(type(default), "__get__")):
            setattr(cls, name, ArgumentView(f"{cls.__qualname__}.{name}", default))
    cls.__node_info__, cls.__node_fields__ = info, info.by_name
    if options["init"] and not keeps_init:
        cls.__init__ = make_init(info, arguments)
    elif cls.__init__ is not init:
        cls.__init__ = init
    _install_methods(draft)
    _warn_of_post_init(cls, info)
    _warn_of_mixins(cls, info)
    cls.__doc__ = Docstring(draft.body.get("__doc__"))
    register_once(cls)


# 1. The class as the user wrote it


def _reject_class(cls: type[Any], options: Mapping[str, bool]) -> None:
    """Raise for options, bases and attributes that a node class can't have."""
    for option in _UNSUPPORTED:
        if options[option] != (option == "frozen"):
            raise NodeDefinitionError(
                f"{cls.__qualname__}: {option}={options[option]} is not supported, because {_UNSUPPORTED[option]}. "
                f"Remove it; use treewright.replace(node, field=...) for a changed copy."
            )
    native = native_base(cls)
    if native is not None:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a subclass of {native.__qualname__}, so it can't be a node: JAX flattens a node "
            f"into its fields and rebuilds it from them, so all other contents of {with_article(native.__qualname__)} "
            f"would be lost. Remove the base class, and store its contents in a field."
        )
    library = foreign_library(cls) or foreign_library(type(cls))
    if library is not None:
        package = "equinox" if library == "equinox" else "flax"
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a node class, but {package}'s Module registers each subclass as a different kind "
            f"of pytree. Choose one of the two bases: class {cls.__name__}(treewright.Module). The fields of a node "
            f"may contain layers of {package}."
        )
    if "__dataclass_params__" in vars(cls):
        raise NodeDefinitionError(
            f"{cls.__qualname__} is already a dataclass, as every node class is. Remove the extra decorator: another "
            f"library's, a base class's, or this one on a Module. A Module takes its options in the class statement: "
            f"class {cls.__name__}(Module, kw_only=True)."
        )
    for name, reason in _NEVER_OVERRIDDEN.items():
        if name in vars(cls):
            raise NodeDefinitionError(f"{cls.__qualname__} defines {name} itself. Remove it: {reason}.")


def _reject_attributes(draft: _Draft) -> None:
    """Raise for names and values in the body that Python accepts but the user did not intend."""
    for name in draft.annotations:
        if name in {FLAT_FORM_NAME, *_NEVER_OVERRIDDEN} or (name == "replace" and draft.is_module) or _is_special(name):
            raise NodeDefinitionError(
                f"{draft.cls.__qualname__} can't have a field named {name}: every node uses this name. Rename the "
                f"field."
            )
    for name, value in draft.body.items():
        problem = _name_problem(draft, name, value)
        if problem is None and not _is_special(name):
            if name in draft.annotations:
                problem = _default_problem(draft, name, value)
            elif name in draft.inherited:
                problem = _hiding_problem(draft, name, value)
            else:
                problem = _constant_problem(name, value)
        if problem is not None:
            raise NodeDefinitionError(f"{draft.cls.__qualname__}.{name} {problem}")


def _name_problem(draft: _Draft, name: str, function: Any) -> str | None:
    """Why a function never runs: its name is close to a hook's, but Python, we and the class itself never call it."""
    if not isinstance(function, types.FunctionType):
        return None
    if name in _HOOKS:
        is_lazy = inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function)
        problem = "is a generator or coroutine, so its body would never run. Remove yield, async and await"
        return problem if is_lazy else None
    is_init = name == "__int__" and function.__code__.co_argcount > 1
    written = name.removeprefix(f"_{draft.cls.__name__.lstrip('_')}")  # Python adds it to names like `__check_init`.
    if not written.startswith("__") or (name in _PYTHONS_NAMES and not is_init):
        return None
    hook = next((hook for hook in _HOOKS if _is_misspelt(written, hook)), None)
    if hook is None or name in _names_used(vars(draft.cls).values()):
        return None
    return f"never runs. Did you mean {hook}? Write def {hook}(self, ...)"


def _is_misspelt(name: str, hook: str) -> bool:
    """Whether a name was probably meant to be a hook's. One that ends without underscores may be a private helper's."""
    if not name.endswith("__"):
        return name.replace("_", "") == hook.replace("_", "")
    bare, intended = name.strip("_"), hook.strip("_")
    is_close = sorted(bare) == sorted(intended) or difflib.SequenceMatcher(None, bare, intended).ratio() > 0.85
    return bare[:1] == intended[0] and is_close


def _names_used(values: Iterable[Any]) -> set[str]:
    """The names that functions use, also in the functions inside them."""
    queue = [getattr(_function_of(value), "__code__", None) for value in values]
    used: set[str] = set()
    for code in queue:  # It grows.
        if isinstance(code, types.CodeType):
            used.update(code.co_names)
            queue += code.co_consts
    return used


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _default_problem(draft: _Draft, name: str, value: Any) -> str | None:
    """Why the default of a field is wrong: it is a specifier that was not called, or a field read on its class."""
    default: Any = value.default if type(value) is dataclasses.Field else value
    reject_field_on_class(default)
    specifier = specifier_in(default[0] if type(default) in {tuple, list} and len(default) == 1 else default)
    if specifier is None:
        return None
    return (
        f"has {specifier} as default, but without parentheses or with a comma after them, so it would be a leaf.\n"
        f"  Write {name}: {annotation_text(draft.annotations[name], draft.cls)} = {specifier}()"
    )


def _hiding_problem(draft: _Draft, name: str, value: Any) -> str | None:
    """Why a value without an annotation is wrong below a base with this name: the name is a field."""
    hidden = draft.inherited[name]
    if not isinstance(hidden, FieldView) or type(value) is dataclasses.Field:  # `dataclasses` rejects a Field.
        return None
    field = hidden.field
    options = options_to_repeat(field)
    call = (
        specifier_text(field.kind, {"default": value} | options)
        if options or field.kind != "child"
        else short_text(value)
    )
    line = f"{name}: {annotation_text(field.type, draft.cls)} = {call}"
    fix = f"For a new default, repeat the annotation:\n  {line}\nFor a constant, write {name}: ClassVar = ..."
    if hasattr(type(value), "__get__"):
        fix = "Rename it, or declare it in the base class as an abstract property or method."
    return f"would hide an inherited field. {fix}"


def _constant_problem(name: str, value: Any) -> str | None:
    """Why a value without an annotation was probably meant as a field: it has arrays to train, or is their type.

    Everything else is a class constant, as in Python: numbers, functions, registries, lookup tables, numpy arrays.
    """
    if value is jax.Array or value is np.ndarray:  # with `=` in place of `:`; `dtype = float` may be a constant
        text = "jax.Array" if value is jax.Array else "np.ndarray"
        return (
            f"is the class {text}, not a field.\n  Write {name}: {text}, or {name}: ClassVar = {text} for a constant."
        )
    if not has_jax_arrays(value):
        return None
    cls = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
    return (
        f"= {short_text(value)} has no annotation, so it is not a field: all instances would share it, and jit "
        f"would compile its contents as constants.\n"
        f"  Write {name}: {cls} = field(default_factory=lambda: ...), or {name}: ClassVar[{cls}] = ... if this is "
        f"intended."
    )


def _warn_of_post_init(cls: type[Any], info: NodeInfo) -> None:
    """Warn of a `__post_init__` that no `__init__` calls: neither a generated one, nor the user's by name."""
    if not info.has_own_init or not hasattr(cls, "__post_init__"):
        return
    # The `__post_init__` of a class may call that of a base.
    methods = [value for base in cls.__mro__[:-1] for name, value in vars(base).items() if name != "__post_init__"]
    used = _names_used(methods)
    bases = [vars(base)["__node_info__"] for base in cls.__mro__[1:] if "__node_info__" in vars(base)]
    is_reached = "__init__" in used and any(base.runs_post_init for base in bases)
    if "__post_init__" not in used and not is_reached:
        warn_user(
            f"{cls.__qualname__}.__post_init__ never runs, because only a generated __init__ calls it. Call it at the "
            f"end of __init__: self.__post_init__()",
            NodeDefinitionWarning,
        )


def _warn_of_mixins(cls: type[Any], info: NodeInfo) -> None:
    """Warn of the annotated values of a base that is neither a node class nor a dataclass: they are not fields."""
    others = [base for base in cls.__mro__[1:-1] if _DECLARING.isdisjoint(vars(base))]
    seen = {base for other in cls.__mro__[1:] if others and is_node_class(other) for base in other.__mro__}
    for base in others:
        if base in seen or getattr(base, "_is_protocol", False):
            continue
        for name, annotation in typing_extensions.get_annotations(base, format=_FORWARDREF).items():
            value = vars(base).get(name, MISSING)
            is_method_or_used = hasattr(type(value), "__get__") or name in info.by_name or name in vars(cls)
            is_constant = any(word in annotation_text(annotation, base) for word in ("ClassVar", "Final"))
            if not (value is MISSING or is_method_or_used or is_constant):
                warn_user(
                    f"{base.__qualname__}.{name} is not a field of {cls.__qualname__}, because {base.__qualname__} is "
                    f"neither a node class nor a dataclass: all instances share {short_text(value)}. Decorate "
                    f"{base.__qualname__} with @pytree_dataclass, or write {name}: ClassVar = ... for a constant.",
                    NodeDefinitionWarning,
                )


def _is_defined_in(cls: type[Any], name: str, value: Any) -> bool:
    """Whether a value is a method or property whose `def` is in the class body."""
    function = _function_of(value)
    path = (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
    return isinstance(function, types.FunctionType) and path == (cls.__module__, f"{cls.__qualname__}.{name}")


def _function_of(value: Any) -> Any:
    """The function inside a property, method or wrapper; any other value as it is."""
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        value = getattr(value, attribute, None) or value
    return inspect.unwrap(value) if isinstance(value, types.FunctionType) else value


# 2. The fields, as `dataclasses` reads them


def _read_fields(draft: _Draft) -> None:
    """Let the standard library read the fields, without generating methods that we write ourselves."""
    cls, options = draft.cls, draft.options
    for name in draft.annotations:
        base = draft.inherited.get(name)
        if name not in draft.body and hasattr(type(base), "__get__"):  # A property, or a field that keeps its default.
            default = base.default if isinstance(base, FieldView | ArgumentView) else MISSING
            setattr(cls, name, dataclasses.field(default=default))
    are_frozen = {
        vars(base)["__dataclass_params__"].frozen for base in cls.__mro__ if "__dataclass_params__" in vars(base)
    }
    cls.__doc__ = "placeholder"  # Without it, dataclasses would build one from the signature, which does not exist yet.
    decorate = dataclasses.dataclass(
        init=False,
        repr=False,
        eq=options["order"] and options["eq"],  # `order` requires it.
        order=options["order"],
        unsafe_hash=options["unsafe_hash"],
        frozen=True in are_frozen,  # Must agree with base dataclasses; without any, True would only be slower.
        match_args=options["match_args"],
        kw_only=options["kw_only"],
    )
    try:
        decorate(cls)
    except ValueError as error:
        note((_shared_default,), error, draft)
        raise
    cls.__dataclass_params__.frozen = False not in are_frozen


def _shared_default(error: BaseException, draft: _Draft) -> str | None:
    """`dataclasses` refuses a default that all instances would share, but does not know our specifiers."""
    for name, annotation in draft.annotations.items():
        value = draft.body.get(name)
        options = options_of(value) if isinstance(value, dataclasses.Field) else {}
        default: Any = value.default if isinstance(value, dataclasses.Field) else value
        if type(default).__hash__ is None and f" {name} " in str(error):
            kind = options.get("kind", "child")
            shown = "..." if hasattr(default, "dtype") else short_text(default)
            constant = "numpy.asarray(...)" if isinstance(default, jax.Array) else shown
            fixes = [f"static(default=treewright.freeze({constant}))"]
            if kind != "static":
                fixes.insert(0, f"{specifier_name(kind)}(default_factory=lambda: {shown})")
            return f"Write {name}: {annotation_text(annotation, draft.cls)} = {', or '.join(fixes)}"
    return None


# 3. The description of the class and its fields


def _node_info(draft: _Draft, *, keeps_init: bool) -> tuple[NodeInfo, list[FieldInfo]]:
    """The description of a class that `dataclasses.dataclass` has processed, and the parameters of its constructor."""
    cls = draft.cls
    children: list[FieldInfo] = []
    statics: list[FieldInfo] = []
    arguments: list[FieldInfo] = []
    init_vars: dict[str, Any] = {}
    for field_ in cls.__dataclass_fields__.values():
        if field_._field_type not in {_FIELD, _INIT_VAR}:
            continue
        info = _field_info(draft, field_, (len(children), len(statics)))
        if field_._field_type is _INIT_VAR:
            init_vars[info.name] = info.default
        else:
            side = statics if info.is_static else children
            if info.index != len(side):  # inherited, after other fields
                info = dataclasses.replace(info, index=len(side))
            side.append(info)
        arguments.append(info)
    fields = tuple([info for info in arguments if info.name not in init_vars])
    names = tuple([info.name for info in statics])
    identity = tuple([info.identity for info in statics])
    node_spec = NodeInfo(
        cls=cls,
        fields=fields,
        by_name={info.name: info for info in fields},
        children=tuple(children),
        statics=tuple(statics),
        table=StaticTable(cls, names, identity, tuple([info.name for info in children])),
        checks=tuple([vars(base)["__check_init__"] for base in cls.__mro__[::-1] if "__check_init__" in vars(base)]),
        has_own_init=keeps_init,
        has_getattr=hasattr(cls, "__getattr__"),
        has_own_new=cls.__new__ is not object.__new__,
        runs_post_init=draft.options["init"] and not keeps_init and hasattr(cls, "__post_init__"),
        init_vars=init_vars,
        unfinished=Unfinished(cls),
        slots=tuple([name for name in slots_of(cls) if name not in {FLAT_FORM_NAME, *cls.__dataclass_fields__}]),
        restore_class=restore_class,
    )
    return node_spec, arguments


def _field_info(draft: _Draft, field_: Any, next_indices: tuple[int, int]) -> FieldInfo:
    """The description of a field or an InitVar, taken from a base node class if it is inherited.

    The indices are those of the next child and the next static.
    """
    cls, name = draft.cls, field_.name
    # The annotation is read in the class that contains it: this one, or a base dataclass that is not a node.
    owners = (base for base in reversed(cls.__mro__) if vars(base).get("__dataclass_fields__", {}).get(name) is field_)
    owner: Any = next(owners)
    owner_info: NodeInfo | None = vars(owner).get("__node_info__")
    if owner_info is not None and name in owner_info.by_name:
        return owner_info.by_name[name]
    if name in draft.annotations and (
        isinstance(field_.default, property) or _is_defined_in(cls, name, field_.default)
    ):
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{name} is both a field and a method, so the method would be the field's default. "
            f"Rename one of them."
        )
    options = options_of(field_)
    values: dict[str, Any] = {"doc": getattr(field_, "doc", None), "is_plain": not options, **options}
    specifier = specifier_in_annotation(field_.type, owner)
    if specifier is not None and field_.type is not field_:  # `x: x = field()` is fine.
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{name} has {specifier} in its annotation, where it would be ignored.\n"
            f"  Write {name}: ... = {specifier}()"
        )
    copied = ("type", "init", "repr", "kw_only", "default", "default_factory")
    values |= {attribute: getattr(field_, attribute) for attribute in copied}
    hashed = field_.compare if field_.hash is None else field_.hash
    is_static = values.get("kind") == "static"
    info = FieldInfo(
        name=name,
        index=next_indices[is_static],
        equal=field_.compare,
        hash=hashed,
        is_static=is_static,
        set_only_in_post_init=not field_.init and field_.default is field_.default_factory is MISSING,
        **values,
    )
    view = draft.inherited.get(name)
    if isinstance(view, FieldView) and name in draft.annotations and not options:
        _reject_lost_options(cls, info, view.field)
    return info


def _reject_lost_options(cls: type[Any], info: FieldInfo, base: FieldInfo) -> None:
    """Raise if a field is annotated again without its base's specifier, whose options would be lost."""
    options = options_to_repeat(base)
    if base.kind == "child" and not options:
        return
    kind = specifier_name(base.kind)
    loss = "turn it into a plain child" if kind != "field" else f"lose its {' and '.join(options)}"
    if kind == "field" and "sharding" in options:
        loss = "store it whole on every device"
    defaults = defaults_of(info)
    kept, plain = specifier_text(base.kind, defaults | options), specifier_text("child", defaults)
    raise NodeDefinitionError(
        f"{cls.__qualname__}.{info.name} redeclares a {kind}() field without {kind}(), which would {loss}.\n"
        f"  Write {info.name}: {annotation_text(info.type, cls)} = {kept}, or {plain} for a plain child."
    )


# 4. The attributes of the finished class


def _init_of(draft: _Draft) -> tuple[Callable[..., None], bool]:
    """The `__init__` that Python would run, wrapped to seal the node; and whether to keep it, as a user wrote it."""
    for base in draft.cls.__mro__[:-1]:
        init: Any = vars(base).get("__init__")
        if init is None or getattr(init, "__module__", None) in _PLACEHOLDERS:
            continue
        info = vars(base).get("__node_info__")
        if info is not None:
            return init, draft.is_module and info.has_own_init
        return wrap_init(init), not is_generated(inspect.unwrap(init)) and (base is draft.cls or draft.is_module)
    return object.__init__, False


def _install_methods(draft: _Draft) -> None:
    """Add the methods of every node, with those for comparison as the options specify, and wrap a Module's methods.

    Abstract methods work as with `abc.ABC`: Python raises for an instance of the class, whatever its metaclass.
    """
    cls, options, body, inherited = draft.cls, draft.options, draft.body, draft.inherited
    is_on = {"__eq__": options["eq"], "__repr__": options["repr"], "__hash__": options["eq"] or options["unsafe_hash"]}
    for name, ours in NODE_METHODS.items():
        method = ours if is_on.get(name, True) else getattr(object, name, None)
        if name in body:
            # If the body defines `__eq__`, Python adds `__hash__ = None`, which the user did not write.
            is_implicit = name == "__hash__" and "__eq__" in body and body[name] is None
            if not (is_implicit and is_on[name]):
                continue
        elif (draft.is_module or not is_on.get(name, True)) and _is_inherited_from_user(draft, name, ours):
            method = inherited[name]
        if name in vars(cls):  # Python or `dataclasses` added it.
            delattr(cls, name)
        if inherited.get(name) is not method:
            setattr(cls, name, method)
    if not draft.is_module and "replace" not in {*body, *inherited, *draft.annotations}:
        cls.replace = replace_method
    wrap_methods(cls)
    cls.__abstractmethods__ = frozenset()
    abc.update_abstractmethods(cls)


def _is_inherited_from_user(draft: _Draft, name: str, ours: Any) -> bool:
    """Whether a base class has its own version of one of our methods."""
    inherited = draft.inherited.get(name)
    return not (inherited is ours or inherited is getattr(object, name, None) or _is_of_dataclass(draft.cls, name))


def _is_of_dataclass(cls: type[Any], name: str) -> bool:
    """Whether a class inherits a method from a dataclass that is not a node: it would compare or show fewer fields."""
    writer = next((base for base in cls.__mro__[1:] if name in vars(base)), object)
    return "__dataclass_params__" in vars(writer) and "__node_info__" not in vars(writer)
