"""Classes that others have made something of: `dataclasses`, and libraries that have registered a class with JAX."""

import abc
import copy
import dataclasses
import inspect
import sys
import types
from typing import Any

from treewright._core import dunders
from treewright._core.annotations import own_annotations
from treewright._core.fields import options_of
from treewright._core.functions import class_attribute
from treewright._core.instance import ChildView
from treewright._core.jax_private import is_tree_node
from treewright._core.spec import MISSING, Options, init_vars
from treewright.errors import NodeDefinitionError

_METHODS = (*dunders.FROZEN, *dunders.COMPARISON, *dunders.OTHERS, "replace")
_OURS = "treewright._core."
# What dataclasses was given and remembers; the others are in the fields or the body.
_OPTIONS = ("init", "repr", "eq")
_ASKED_FOR = ("order", "unsafe_hash")


class Hidden:
    """Stands in a class for something of its bases that its instances do not have; the class answers with None."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        reader = sys._getframe(1).f_globals.get("__name__")  # pyright: ignore[reportPrivateUsage]  public, by its docs
        if instance is None and reader != dataclasses.__name__:  # who would take it for a default
            return None
        raise AttributeError(f"{owner.__qualname__} has no attribute {self.name!r}")


def is_of_others(cls: type[Any]) -> bool:
    """Whether another library has registered a class, or does so when it makes the first instance: chex in a script."""
    init: Any = vars(cls).get("__init__")
    if not getattr(init, "__globals__", {}).get("__name__", "").startswith("chex."):
        return is_tree_node(cls)
    options = {field.name: options_of(field) for field in dataclasses.fields(cls)}
    statics = [name for name, option in options.items() if option is not None and option.kind == "static"]
    if statics:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is made by chex, which has no statics, so {', '.join(statics)} would become children. "
            f"Put @pytree_dataclass in the place of chex.dataclass."
        )
    return True


def refuse_registered(cls: type[Any]) -> None:
    """Refuse a class that JAX knows already, in a form that is not ours."""
    if not is_tree_node(cls):
        return
    above = [base for base in cls.__mro__[1:] if base is not object and not hasattr(base, "__node_spec__")]
    registers = [
        base.__qualname__
        for base in above
        if ("__init_subclass__" in vars(base) and base.__module__ != "typing") or type(base) not in {type, abc.ABCMeta}
    ]
    if registers:
        cause = (
            f"{registers[-1]}, of which it is a subclass, registers every subclass. Put treewright.Module in its place"
        )
    else:
        cause = "another decorator, or a call, has registered it. Drop that"
    raise NodeDefinitionError(
        f"{cls.__qualname__} is registered with JAX already, and JAX keeps one form of each class: {cause} first, or "
        f"leave {cls.__name__} as it is: a node may hold it in a field."
    )


def refuse_builtin_base(cls: type[Any]) -> None:
    """Refuse a subclass of `list`, `Exception` and the like, whose instances hold more than fields."""
    written_in_c = types.BuiltinFunctionType
    base = next((base for base in cls.__mro__ if isinstance(vars(base).get("__new__"), written_in_c)), object)
    if base is not object:
        raise NodeDefinitionError(
            f"{cls.__qualname__} is a subclass of {base.__qualname__}, and can't be a node: JAX takes instances apart "
            f"into their fields and puts them together from these, and what a {base.__qualname__} holds besides would "
            f"be lost. Drop the base, and keep what it held in a field."
        )


def refuse_metaclass(cls: type[Any]) -> None:
    """Refuse, while Python still makes the class, what its metaclass would register right after."""
    if type(cls).__module__.partition(".")[0] == "equinox":
        raise NodeDefinitionError(
            f"{cls.__qualname__} has bases of Treewright and of equinox, and the metaclass of equinox registers each "
            f"class as its own: JAX keeps one form of each class. Make the bases that are equinox.Modules nodes first, "
            f"or hold one in a field."
        )


def restore_body(cls: type[Any], options: Options) -> Options:
    """Bring a class that `dataclasses` has processed back to its body, so that we can read it.

    Its fields stand in the body again as they were declared; what `dataclasses` generated goes, and what a user wrote
    stays. Of the options, those that are true by default are false where either says so, and the others true.
    """
    if "__dataclass_params__" not in vars(cls) or "__node_spec__" in vars(cls):
        return options
    params: Any = vars(cls)["__dataclass_params__"]
    generated = [name for name, value in vars(cls).items() if written_by_dataclasses(value)]
    if "__eq__" in generated and vars(cls).get("__hash__", MISSING) is None:
        generated.append("__hash__")
    matched = [name for name in ("__match_args__",) if name in vars(cls)]
    for name in [*generated, *matched]:
        delattr(cls, name)
    fields = {field.name: field for field in dataclasses.fields(cls)} | init_vars(cls)
    for name in own_annotations(cls):
        if name in fields:
            setattr(cls, name, copy.copy(fields[name]))
    del cls.__dataclass_fields__, cls.__dataclass_params__
    told = {name: getattr(options, name) and getattr(params, name) for name in _OPTIONS}
    asked = {name: getattr(options, name) or getattr(params, name) for name in _ASKED_FOR}
    return dataclasses.replace(options, **told, **asked, match_args=options.match_args and bool(matched))


def written_by_dataclasses(value: Any) -> bool:
    """Whether `dataclasses` wrote a method: its code says so, whatever module it claims."""
    if not isinstance(value, types.FunctionType):
        return False
    written: Any = inspect.unwrap(value)
    return written.__module__ == dataclasses.__name__ or str(written.__code__.co_qualname).startswith("__create_fn__.")


def leave_to_others(cls: type[Any]) -> None:
    """Take what is ours out of a subclass of a node that another library has registered: it is that library's alone.

    Its instances keep their values in `__dict__`, and are read, copied and pickled as Python does it.
    """
    for name in {name for base in cls.__mro__ for name, value in vars(base).items() if isinstance(value, ChildView)}:
        if isinstance(class_attribute(cls, name), ChildView):
            default = cls.__dataclass_fields__[name].default
            setattr(cls, name, Hidden(name) if default is MISSING else default)
    for name in _METHODS:
        if str(getattr(class_attribute(cls, name), "__module__", "")).startswith(_OURS):
            setattr(cls, name, getattr(object, name, None) or Hidden(name))
    cls.__node_fields__ = {}
