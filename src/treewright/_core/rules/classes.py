"""Mistakes in the definition of a class. Each text names the class, the field or option, and what to write instead."""

import builtins
import difflib
import inspect
import types
from collections.abc import Iterable, Iterator
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
import typing_extensions

from treewright._base.functions import foreign_library, native_base
from treewright._base.text import annotation_text, is_node_class, short_text, with_article
from treewright._core.info import FLAT_FORM_NAME, Draft, NodeInfo
from treewright._core.rules.children import has_jax_arrays
from treewright._core.rules.fields import function_of, hides_field, specifier_not_called

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
# The names of all methods of Python's built-in classes.
_PYTHONS_NAMES = frozenset([name for cls in vars(builtins).values() if isinstance(cls, type) for name in dir(cls)])
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


BODY = (
    unsupported_option,
    base_written_in_c,
    base_of_other_library,
    decorated_twice,
    method_of_every_node,
    reserved_name,
)


# The attributes in the body


def lazy_hook(draft: Draft, name: str, value: Any) -> str | None:
    """Calling a generator or coroutine function runs nothing."""
    if name not in _HOOKS or not (inspect.isgeneratorfunction(value) or inspect.iscoroutinefunction(value)):
        return None
    return (
        f"{draft.cls.__qualname__}.{name} is a generator or coroutine, so its body would never run. Remove yield, "
        f"async and await"
    )


def misspelt_hook(draft: Draft, name: str, value: Any) -> str | None:
    """A hook with a wrong name never runs: neither Python, nor we, nor the class itself call it."""
    is_init = name == "__int__" and isinstance(value, types.FunctionType) and value.__code__.co_argcount > 1
    is_known = name in {*_HOOKS, "__call__"} or (name in _PYTHONS_NAMES and not is_init)
    if is_known or not isinstance(value, types.FunctionType) or not (name.startswith("_") and name.endswith("_")):
        return None
    bare = name.strip("_")
    close = difflib.get_close_matches(f"__{bare}__", [*_HOOKS, "__call__"], 1, 0.87 if name.startswith("__") else 1.0)
    if not close or close[0][2] != bare[:1] or name in draft.inherited:
        return None
    members = [member for base in draft.cls.__mro__[:-1] for member in vars(base).values()]
    if name in _names_used(members):
        return None
    return f"{draft.cls.__qualname__}.{name} never runs. Did you mean {close[0]}? Write def {close[0]}(self, ...)"


def array_without_annotation(draft: Draft, name: str, value: Any) -> str | None:
    """All instances would share the array, and jit would compile it as a constant: it would never be trained.

    Everything else is a class constant, as in Python: numbers, functions, registries, lookup tables, numpy arrays.
    """
    if name in draft.annotations or name in draft.inherited or _is_special(name):
        return None
    full_name = f"{draft.cls.__qualname__}.{name}"
    if value is jax.Array or value is np.ndarray:  # with `=` in place of `:`; `dtype = float` may be a constant
        text = "jax.Array" if value is jax.Array else "np.ndarray"
        return (
            f"{full_name} is the class {text}, not a field.\n"
            f"  Write {name}: {text}, or {name}: ClassVar = {text} for a constant."
        )
    if not has_jax_arrays(value):
        return None
    cls = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
    return (
        f"{full_name} = {short_text(value)} has no annotation, so it is not a field: all instances would share it, and "
        f"jit would compile its contents as constants.\n"
        f"  Write {name}: {cls} = field(default_factory=lambda: ...), or {name}: ClassVar[{cls}] = ... if this is "
        f"intended."
    )


ATTRIBUTE = (lazy_hook, misspelt_hook, specifier_not_called, hides_field, array_without_annotation)


# The finished class


def post_init_never_runs(cls: type[Any], info: NodeInfo) -> str | None:
    """Only a generated `__init__` calls `__post_init__`, unless the class's own does so by name."""
    if not info.has_own_init or not hasattr(cls, "__post_init__"):
        return None
    # The `__post_init__` of a class may call that of a base.
    methods = [value for base in cls.__mro__[:-1] for name, value in vars(base).items() if name != "__post_init__"]
    used = _names_used(methods)
    bases = [vars(base)["__node_info__"] for base in cls.__mro__[1:] if "__node_info__" in vars(base)]
    if "__post_init__" in used or ("__init__" in used and any(base.runs_post_init for base in bases)):
        return None
    return (
        f"{cls.__qualname__}.__post_init__ never runs, because only a generated __init__ calls it. Call it at the "
        f"end of __init__: self.__post_init__()"
    )


FINISHED = (post_init_never_runs,)


def mixin_values(cls: type[Any]) -> Iterator[tuple[type[Any], str]]:
    """The annotated names in each base that declares no fields, unless another node class has it as base."""
    others = [base for base in cls.__mro__[1:-1] if _DECLARING.isdisjoint(vars(base))]
    seen = {base for other in cls.__mro__[1:] if others and is_node_class(other) for base in other.__mro__}
    for base in others:
        if base not in seen and not getattr(base, "_is_protocol", False):
            yield from ((base, name) for name in _annotations(base) if name in vars(base))


def value_of_mixin(cls: type[Any], info: NodeInfo, base: type[Any], name: str) -> str | None:
    """Annotations in a base that is neither a node class nor a dataclass declare no fields, as in `dataclasses`."""
    value = vars(base)[name]
    is_method_or_used = hasattr(type(value), "__get__") or name in info.by_name or name in vars(cls)
    annotation = annotation_text(_annotations(base)[name], base)
    if is_method_or_used or "ClassVar" in annotation or "Final" in annotation:
        return None
    return (
        f"{base.__qualname__}.{name} is not a field of {cls.__qualname__}, because {base.__qualname__} is "
        f"neither a node class nor a dataclass: all instances share {short_text(value)}. Decorate "
        f"{base.__qualname__} with @pytree_dataclass, or write {name}: ClassVar = ... for a constant."
    )


def registered_twice(cls: type[Any]) -> str:
    """JAX would flatten the instances in one of two ways."""
    return (
        f"{cls.__qualname__} is already registered with JAX, by another decorator, a call or a base class, and JAX "
        f"allows only one registration. Remove it (treewright.Module can replace such a base), or keep "
        f"{cls.__name__} as it is and store it in a node's field."
    )


def _annotations(cls: type[Any]) -> dict[str, Any]:
    return typing_extensions.get_annotations(cls, format=typing_extensions.Format.FORWARDREF)


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _names_used(values: Iterable[Any]) -> set[str]:
    """The names that functions use, also in the functions inside them."""
    queue = [getattr(function_of(value), "__code__", None) for value in values]
    used: set[str] = set()
    for code in queue:  # It grows.
        if isinstance(code, types.CodeType):
            used.update(code.co_names)
            queue += code.co_consts
    return used
