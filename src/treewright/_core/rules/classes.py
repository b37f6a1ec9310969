"""Mistakes in the definition of a class. Each text names the class, the field or option, and what to write instead."""

import builtins
import difflib
import inspect
import types
import typing
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import jax
import typing_extensions
from typing_extensions import Format

from treewright._base.functions import foreign_library, native_base
from treewright._base.text import is_node_class, short_text, with_article
from treewright._core.info import FLAT_FORM_NAME, Draft, NodeInfo
from treewright._core.rules.children import has_jax_arrays
from treewright._core.rules.declarations import special_form
from treewright._core.rules.fields import function_of

_ONE_FORM = "the class would have two flattened forms that could disagree; static fields are those declared static()"
_ONE_ATTRIBUTE = "a node stores all fields in one attribute"
_UNSUPPORTED = MappingProxyType(
    {
        "frozen": "a node must not change during a transformation",
        "slots": _ONE_ATTRIBUTE,
        "weakref_slot": "nodes support weak references anyway",
    }
)
_NEVER_OVERRIDDEN = MappingProxyType(
    {
        "__slots__": f"{_ONE_ATTRIBUTE}, so slots for them would stay empty",
        "__setattr__": "nodes define it to stay frozen. Assignments in __init__ work without it, and a field's "
        "converter= can check or change its value",
        "__delattr__": "nodes define it to stay frozen",
        "tree_flatten": _ONE_FORM,
        "tree_unflatten": _ONE_FORM,
    }
)
_HOOKS = ("__init__", "__post_init__", "__check_init__")
# The hooks, and the names of all methods of Python's built-in classes.
_KNOWN = frozenset([name for cls in vars(builtins).values() if isinstance(cls, type) for name in dir(cls)]) | {*_HOOKS}
_DECLARING = frozenset({FLAT_FORM_NAME, "__dataclass_fields__"})  # A class with one of them declares fields.


# The body


def unsupported_option(draft: Draft) -> str | None:
    """The option would have no effect."""
    for option, reason in _UNSUPPORTED.items():
        if draft.options[option] != (option == "frozen"):
            return (
                f"{draft.cls.__qualname__}: {option}={draft.options[option]} is not supported, because {reason}. "
                f"Remove it; use treewright.replace(node, field=...) for a changed copy."
            )
    return None


def base_written_in_c(draft: Draft) -> str | None:
    """Flattening would lose what a list, a dict or an exception contains."""
    native = native_base(draft.cls)
    if native is None:
        return None
    return (
        f"{draft.cls.__qualname__} is a subclass of {native.__qualname__}, so it can't be a node: JAX flattens a node "
        f"into its fields and rebuilds it from them, so all other contents of {with_article(native.__qualname__)} "
        f"would be lost. Remove the base class, and store its contents in a field."
    )


def base_of_other_library(draft: Draft) -> str | None:
    """Equinox and flax register each subclass of their Module in their own way."""
    library = foreign_library(draft.cls) or foreign_library(type(draft.cls))
    if library is None:
        return None
    package = "equinox" if library == "equinox" else "flax"
    return (
        f"{draft.cls.__qualname__} is a node class, but {package}'s Module registers each subclass as a different kind "
        f"of pytree. Choose one of the two bases: class {draft.cls.__name__}(treewright.Module). The fields of a node "
        f"may contain layers of {package}."
    )


def decorated_twice(draft: Draft) -> str | None:
    """The second decorator would read the fields again, with other options."""
    if "__dataclass_params__" not in vars(draft.cls):
        return None
    return (
        f"{draft.cls.__qualname__} is already a dataclass, as every node class is. Remove the extra decorator: another "
        f"library's, a base class's, or this one on a Module. A Module takes its options in the class statement: "
        f"class {draft.cls.__name__}(Module, kw_only=True)."
    )


def method_of_every_node(draft: Draft) -> str | None:
    """A class's own version would break what JAX relies on: frozen instances with one flattened form."""
    name = next((name for name in _NEVER_OVERRIDDEN if name in draft.body), None)
    if name is None:
        return None
    return f"{draft.cls.__qualname__} defines {name} itself. Remove it: {_NEVER_OVERRIDDEN[name]}."


def reserved_name(draft: Draft) -> str | None:
    """The field would replace a part of every node."""
    for name in draft.annotations:
        if name in {FLAT_FORM_NAME, *_NEVER_OVERRIDDEN} or (name == "replace" and draft.is_module) or _is_special(name):
            return (
                f"{draft.cls.__qualname__} can't have a field named {name}: every node uses this name. Rename the "
                f"field."
            )
    return None


def lazy_hook(draft: Draft) -> str | None:
    """Calling a generator or coroutine function runs nothing, and a subclass that calls it drops what it returns."""
    for name in _HOOKS:
        hook = draft.body.get(name)
        if inspect.isgeneratorfunction(hook) or inspect.iscoroutinefunction(hook):
            return (
                f"{draft.cls.__qualname__}.{name} is a generator or coroutine, so its body would never run. Remove "
                f"yield, async and await"
            )
    return None


def misspelt_hook(draft: Draft) -> str | None:
    """A hook with a wrong name never runs: neither Python, nor we, nor the class itself call it."""
    for name, method in draft.body.items():
        if not (_is_special(name) and isinstance(method, types.FunctionType)):
            continue
        is_init = name == "__int__" and method.__code__.co_argcount > 1
        close = difflib.get_close_matches(name, _HOOKS, 1, 0.87) if name not in _KNOWN or is_init else []
        if close and close[0][2] == name[2] and not _is_used(draft, name):
            return f"{draft.cls.__qualname__}.{name} never runs. {_did_you_mean(close[0])}"
    return None


def array_without_annotation(draft: Draft) -> str | None:
    """All instances would share the array, and jit would compile it as a constant: it would never be trained.

    Everything else is a class constant, as in Python: numbers, functions, registries, lookup tables, numpy arrays.
    """
    for name, value in draft.body.items():
        is_function = type(value) is types.FunctionType  # for speed
        if is_function or name in draft.annotations or name in draft.inherited or _is_special(name):
            continue
        if not has_jax_arrays(value):
            continue
        cls = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        return (
            f"{draft.cls.__qualname__}.{name} = {short_text(value)} has no annotation, so it is not a field: all "
            f"instances would share it, and jit would compile its contents as constants.\n"
            f"  Write {name}: {cls} = field(default_factory=lambda: ...), or {name}: ClassVar[{cls}] = ... if this is "
            f"intended."
        )
    return None


BODY = (
    unsupported_option,
    base_written_in_c,
    base_of_other_library,
    decorated_twice,
    method_of_every_node,
    reserved_name,
    lazy_hook,
    misspelt_hook,
    array_without_annotation,
)


# The finished class


def hook_with_single_underscores(draft: Draft, info: NodeInfo) -> str | None:  # noqa: ARG001  a rule's form
    """`_init_` never runs either; but it may be a helper that others call, so this is a warning."""
    for hook in (*_HOOKS, "__call__"):
        name = hook[1:-1]
        if isinstance(draft.body.get(name), types.FunctionType) and not _is_used(draft, name):
            return f"Nothing calls {draft.cls.__qualname__}.{name} in its class. {_did_you_mean(hook)}"
    return None


def post_init_never_runs(draft: Draft, info: NodeInfo) -> str | None:
    """Only a generated `__init__` calls `__post_init__`, unless the class's own does so by name."""
    if not info.has_own_init or not hasattr(draft.cls, "__post_init__"):
        return None
    used = _names_used(draft.cls, without="__post_init__")  # That of a class may call that of a base.
    bases = [vars(base)["__node_info__"] for base in draft.cls.__mro__[1:] if "__node_info__" in vars(base)]
    if "__post_init__" in used or ("__init__" in used and any(base.runs_post_init for base in bases)):
        return None
    return (
        f"{draft.cls.__qualname__}.__post_init__ never runs, because only a generated __init__ calls it. Call it at "
        f"the end of __init__: self.__post_init__()"
    )


def values_of_mixin(draft: Draft, info: NodeInfo) -> str | None:
    """Annotations in a base that is neither a node class nor a dataclass declare no fields, as in `dataclasses`."""
    texts = [
        f"{base.__qualname__}.{name} is not a field of {info.cls.__qualname__}, because {base.__qualname__} is "
        f"neither a node class nor a dataclass: all instances share {short_text(vars(base)[name])}. Decorate "
        f"{base.__qualname__} with @pytree_dataclass, or write {name}: ClassVar = ... for a constant."
        for base in _mixins(draft.cls)
        for name, annotation in typing_extensions.get_annotations(base, format=Format.FORWARDREF).items()
        if name in vars(base) and not (name in info.by_name or name in draft.body)
        if not hasattr(type(vars(base)[name]), "__get__")
        if special_form(annotation, base, (typing, typing_extensions)) not in (typing.ClassVar, typing.Final)
    ]
    return "\n".join(texts) or None


FINISHED = (hook_with_single_underscores, post_init_never_runs, values_of_mixin)


def registered_twice(cls: type[Any]) -> str:
    """JAX would flatten the instances in one of two ways."""
    return (
        f"{cls.__qualname__} is already registered with JAX, by another decorator, a call or a base class, and JAX "
        f"allows only one registration. Remove it (treewright.Module can replace such a base), or keep "
        f"{cls.__name__} as it is and store it in a node's field."
    )


def _mixins(cls: type[Any]) -> Iterator[type[Any]]:
    """The bases that declare no fields, unless another node class has them as base."""
    others = [base for base in cls.__mro__[1:-1] if _DECLARING.isdisjoint(vars(base))]
    seen = {base for other in cls.__mro__[1:] if others and is_node_class(other) for base in other.__mro__}
    return (base for base in others if base not in seen and not getattr(base, "_is_protocol", False))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_used(draft: Draft, name: str) -> bool:
    """Whether a method overrides one of a base, or the class or a base uses its name."""
    return name in draft.inherited or name in _names_used(draft.cls)


def _did_you_mean(hook: str) -> str:
    return f"Did you mean {hook}? Write def {hook}(self, ...)"


def _names_used(cls: type[Any], without: str = "") -> set[str]:
    """The names and strings in the methods of a class and its bases, also in the functions inside them."""
    members = [member for base in cls.__mro__[:-1] for name, member in vars(base).items() if name != without]
    queue = [getattr(function_of(member), "__code__", None) for member in members]
    used: set[str] = set()
    for code in queue:  # It grows.
        if isinstance(code, types.CodeType):
            used.update(code.co_names, (text for text in code.co_consts if isinstance(text, str)))
            queue += code.co_consts
    return used
