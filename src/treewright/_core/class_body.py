"""Validate class bodies and their fields: definitions that can't work, and mistakes that Python runs without a word."""

import contextlib
import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import jax
import numpy as np
import typing_extensions

from treewright._core.converters import annotation_text, converter_in, own_annotations, resolved, unhashable_in
from treewright._core.fields import MISSING, FieldOptions, call_text, names_problem, specifier_in
from treewright._core.freeze import FrozenArray
from treewright._core.functions import innermost
from treewright._core.instance import PAIR, FieldView
from treewright._core.spec import FieldSpec
from treewright._core.text import short_text
from treewright.errors import NodeDefinitionError

_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})
_PYTHONS = frozenset({"abc", "builtins", typing.__name__, typing_extensions.__name__})


def is_special(name: str) -> bool:
    """Whether a name is Python's, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


def refuse_methods(cls: type[Any]) -> None:
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


def refuse_slips(cls: type[Any], own: Mapping[str, Any], reserved: frozenset[str], *, has_own_init: bool) -> None:
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
    if array is not None and not is_class_variable(annotation, cls):
        what = "an array" if array is default else f"a {type(default).__qualname__} that holds {short_text(array)}"
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
    line = short_text(value) if kind == "child" else call_text(kind, {"default": value})
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
        if is_class_variable(own_annotations(base).get(name), base):
            continue
        kind = "jax.Array" if isinstance(value, jax.Array) else type(value).__qualname__
        raise NodeDefinitionError(
            f"{base.__qualname__}.{name} {'is an array' if value is array else f'is a {kind} that holds an array'}, "
            f"{short_text(array)}, and is not a field of {cls.__qualname__}: no leaf of an instance, never trained, "
            f"and a constant in what jit compiles. Write {name}: {kind} = field(default_factory=lambda: ...) in "
            f"{cls.__qualname__}, or {name}: ClassVar[{kind}] = ... if a constant is meant."
        )


def is_class_variable(annotation: Any, cls: type[Any]) -> bool:
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


def refuse_field(cls: type[Any], field_: FieldSpec, specified: FieldOptions | None) -> None:
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
            f"{place}: stack={field_.stack!r} is not a name. It takes the name of one leading axis, such as "
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


def refuse_converter(cls: type[Any], name: str, annotation: Any) -> None:
    """Refuse a converter in the annotation of an `InitVar`, which is no field."""
    if converter_in(annotation, cls, name) is not None:
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{name}: the converter in {annotation_text(annotation, cls)} would not run, since an "
            f"InitVar is not a field. Convert it in __post_init__."
        )
