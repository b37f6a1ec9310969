"""Node classes: the steps from a user's class to a registered node class."""

import abc
import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

import typing_extensions

from treewright._base.functions import is_generated, slots_of
from treewright._core.bound import wrap_methods
from treewright._core.field_views import ArgumentView, FieldView, field_view
from treewright._core.fields import MISSING, options_of, reject_field_on_class
from treewright._core.info import FLAT_FORM_NAME, Draft, FieldInfo, NodeInfo
from treewright._core.init import Signature, make_init
from treewright._core.instance import Unfinished, wrap_init
from treewright._core.methods import NODE_METHODS, replace_method
from treewright._core.registration import register_once
from treewright._core.repair import as_view, restore_class, restore_init
from treewright._core.rules import reject, warn
from treewright._core.rules.classes import BODY, FINISHED
from treewright._core.rules.fields import DECLARATIONS
from treewright._core.statics import StaticTable
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning

# These modules define an `__init__` for each protocol that only calls the next one.
_PLACEHOLDERS = frozenset({typing.__name__, typing_extensions.__name__})
# The marks of `dataclasses` for fields and InitVars; private, but unchanged since Python 3.7.
_FIELD, _INIT_VAR = getattr(dataclasses, "_FIELD"), getattr(dataclasses, "_FIELD_INITVAR")  # noqa: B009


def make_node_class(cls: Any, options: Mapping[str, bool], *, is_module: bool) -> None:
    """Turn `cls` into a node class in place. After an error it is not registered, and must not be used.

    Methods of the class body come first. For the rest, a decorated class gets ours, as from `dataclasses`; a Module
    prefers a method that a user wrote in a base class, as with any inheritance.
    """
    draft = _draft(cls, options, is_module=is_module)
    reject(BODY, NodeDefinitionError, draft)
    for name in draft.annotations:
        value = draft.body.get(name)
        reject_field_on_class(value.default if type(value) is dataclasses.Field else value)
    reject(DECLARATIONS, NodeDefinitionError, draft)
    _read_fields(draft)
    init, keeps_init = _init_of(draft)
    info, arguments = _node_info(draft, keeps_init=keeps_init)
    # Before the fields: where IPython's autoreload can't replace the code of `__init__`, it keeps the old fields.
    if options["init"] and not keeps_init:
        cls.__init__ = make_init(info, arguments)
    elif cls.__init__ is not init:
        cls.__init__ = init
    for field in info.fields:
        setattr(cls, field.name, field_view(field, info.table))
    for name, default in info.init_vars.items():
        if name in draft.annotations and not (default is MISSING or hasattr(type(default), "__get__")):
            setattr(cls, name, ArgumentView(f"{cls.__qualname__}.{name}", default))
    cls.__node_info__, cls.__node_fields__ = info, info.by_name
    _install_methods(draft)
    warn(FINISHED, NodeDefinitionWarning, draft, info)
    cls.__doc__ = draft.body.get("__doc__") or Signature()
    register_once(cls)


def _draft(cls: Any, options: Mapping[str, bool], *, is_module: bool) -> Draft:
    inherited: dict[str, Any] = {}
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base))
    annotations = typing_extensions.get_annotations(cls, format=typing_extensions.Format.FORWARDREF)
    for name in (*annotations, *vars(cls)):
        if type(inherited.get(name)) is property:
            inherited[name] = as_view(inherited[name])
    return Draft(cls, options, is_module, annotations, dict(vars(cls)), inherited)


# 1. The fields, as `dataclasses` reads them


def _read_fields(draft: Draft) -> None:
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
    decorate(cls)
    cls.__dataclass_params__.frozen = False not in are_frozen


# 2. The description of the class and its fields


def _node_info(draft: Draft, *, keeps_init: bool) -> tuple[NodeInfo, list[FieldInfo]]:
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
        restore_init=restore_init,
    )
    return node_spec, arguments


def _field_info(draft: Draft, field_: Any, next_indices: tuple[int, int]) -> FieldInfo:
    """The description of a field or an InitVar, taken from a base node class if it is inherited.

    The indices are those of the next child and the next static.
    """
    name = field_.name
    for base in reversed(draft.cls.__mro__):
        info: FieldInfo | None = getattr(vars(base).get("__node_info__"), "by_name", {}).get(name)
        if info is not None and vars(base)["__dataclass_fields__"][name] is field_:
            return info
    options = options_of(field_)
    values: dict[str, Any] = {"doc": getattr(field_, "doc", None), "is_plain": not options, **options}
    copied = ("type", "init", "repr", "compare", "kw_only", "default", "default_factory")
    values |= {attribute: getattr(field_, attribute) for attribute in copied}
    view = draft.inherited.get(name)
    if isinstance(view, FieldView) and values["doc"] is None:
        values["doc"] = view.field.doc
    is_static = values.get("kind") == "static"
    return FieldInfo(
        name=name,
        index=next_indices[is_static],
        hash=field_.compare if field_.hash is None else field_.hash,
        is_static=is_static,
        set_only_in_post_init=not field_.init and field_.default is field_.default_factory is MISSING,
        **values,
    )


# 3. The attributes of the finished class


def _init_of(draft: Draft) -> tuple[Callable[..., None], bool]:
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


def _install_methods(draft: Draft) -> None:
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


def _is_inherited_from_user(draft: Draft, name: str, ours: Any) -> bool:
    """Whether a base class has its own version of one of our methods. That of a dataclass would miss fields."""
    inherited = draft.inherited.get(name)
    writer = next((base for base in draft.cls.__mro__[1:] if name in vars(base)), object)
    is_of_dataclass = "__dataclass_params__" in vars(writer) and "__node_info__" not in vars(writer)
    return not (inherited is ours or inherited is getattr(object, name, None) or is_of_dataclass)
