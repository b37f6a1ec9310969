"""What a class body says by mistake, and Python runs without a word: said when the class is made."""

import contextlib
import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from treewright._jax_refs import is_ref
from treewright._nodes.annotations import own_annotations, resolved
from treewright._nodes.fields import annotation_text, options_of, specifier_in
from treewright._nodes.spec import NodeSpec
from treewright._values.freeze import FrozenArray
from treewright._values.reach import class_of, code_of, innermost, innermost_code, wrapped_by
from treewright._values.text import first_text
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning, warn_user

_PYTHONS = frozenset({"abc", "builtins", "typing", "typing_extensions"})


_NO_TREES = (str, types.FunctionType, type, int, float, property, type(dataclasses.MISSING))


def refuse_slips(cls: type[Any]) -> None:
    """Refuse a default that is not a value, and an array that is not a field.

    Raises:
        NodeDefinitionError: With the class, the name, and the line to write instead.
    """
    annotations = own_annotations(cls)
    for name, value in vars(cls).items():
        if name in annotations:
            problem = _problem_of(f"{cls.__qualname__}.{name}", value)
            if problem is not None:
                line = f"{name}: {annotation_text(annotations[name], cls)} = "
                raise NodeDefinitionError(f"{cls.__qualname__}.{name} {problem.format(line=line)}")
        elif class_of(value) is not dataclasses.Field:  # which dataclasses refuses
            specifier = specifier_in(value) or specifier_in(wrapped_by(value))
            if specifier is not None:
                raise NodeDefinitionError(
                    f"{cls.__qualname__}.{name} = {specifier} has neither an annotation nor parentheses, so it would "
                    f"be a method. Write {name}: ... = {specifier}()."
                )
    _refuse_arrays(cls, cls, annotations)
    for base in cls.__mro__[1:]:
        is_read = "__node_spec__" in vars(base) or hasattr(base, "__dataclass_params__")
        if not is_read and base.__module__ not in _PYTHONS:
            _refuse_arrays(cls, base, {})


def _problem_of(place: str, value: Any) -> str | None:
    """What is wrong with the default of a field, in words that follow its place; `{line}` is how its line begins."""
    options = options_of(value) if class_of(value) is dataclasses.Field else None
    default = value.default if class_of(value) is dataclasses.Field else value
    function, specifier = innermost(default), specifier_in(default)
    is_property = isinstance(default, (property, functools.cached_property))
    is_property = is_property and not getattr(default, "__isabstractmethod__", False)  # which a subclass overrides
    if is_property or (isinstance(function, types.FunctionType) and function.__qualname__ == place):
        what = "property" if is_property else "method"
        return (
            f"is a field and a {what} of one name, so the {what} would become the field's default. Rename one of them."
        )
    if specifier is not None:
        return (
            f"has the function {specifier} itself as default, which would be a leaf. Write the parentheses: "
            f"{{line}}{specifier}()."
        )
    items: tuple[Any, ...] = tuple(default) if class_of(default) in {tuple, list} else ()
    inside = next(filter(None, map(specifier_in, items)), None)
    if inside is not None:
        return (
            f"has a {class_of(default).__name__} around {inside}() as default, which would be a leaf. Drop the comma "
            f"or the brackets: {{line}}{inside}()."
        )
    if (
        isinstance(default, type)
        and hasattr(default, "__node_spec__")
        and (options is None or options.kind != "static")
    ):
        name = default.__qualname__
        return (
            f"has the class {name} itself as default, which would be a leaf. Write {{line}}field(default_factory="
            f"{name}) for an instance, or static(default={name}) for the class."
        )
    return _lost_converter(value)


def _lost_converter(value: Any) -> str | None:
    """What is wrong with a field of `equinox.field`, whose converter stands where only equinox looks."""
    converter = None
    if class_of(value) is dataclasses.Field and "equinox" in sys.modules:
        with contextlib.suppress(AttributeError):  # dataclasses takes any mapping, and some have no `get`
            converter = value.metadata.get("converter")
    if not callable(converter):
        return None
    return (
        f"has a converter from equinox.field, which would not run. Write {{line}}field(converter="
        f"{first_text(converter)}), with the field of treewright."
    )


def _refuse_arrays(cls: type[Any], base: type[Any], fields: Collection[str]) -> None:
    """Refuse an array in the body of a class, or of a base that is not a node, where it is not a field."""
    for name, value in list(vars(base).items()):  # from 3.14 on, reading the annotations stores them in there
        if name in fields or (name.startswith("__") and name.endswith("__")):
            continue
        array = first_array_in(value)
        if array is None or getattr(cls, name, None) is not value:  # hidden by another class
            continue
        if is_class_variable(own_annotations(base).get(name), base):
            continue
        is_array = value is array
        kind = "jax.Array" if isinstance(value, jax.Array) else class_of(value).__qualname__
        raise NodeDefinitionError(
            f"{base.__qualname__}.{name} {'is an array' if is_array else f'is a {kind} that holds an array'}, "
            f"{first_text(array)}, and is not a field of {cls.__qualname__}: no leaf of an instance, never trained, "
            f"and a constant in what jit compiles. Write {name}: {kind} = field(default_factory=lambda: ...) in "
            f"{cls.__qualname__}, or {name}: ClassVar[{kind}] = ... if a constant is meant."
        )


def is_class_variable(annotation: Any, cls: type[Any]) -> bool:
    """Whether an annotation in the body of `cls` says `ClassVar`."""
    hint = resolved(annotation, cls)
    if isinstance(hint, str):  # it can't be told what is in the brackets
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


def first_array_in(value: Any) -> Any:
    """An array that a value is, or that it holds as a tree; None if there is none."""
    if isinstance(value, _NO_TREES):
        return None
    seen: dict[int, Any] = {}  # a list may contain itself, and JAX does not come back from there

    def is_known(part: Any) -> bool:
        known = id(part) in seen
        seen[id(part)] = part
        return known

    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # keys that can't be sorted, a node whose __init__ has not returned
        leaves = jax.tree.leaves(value, is_leaf=is_known)
    return next((leaf for leaf in leaves if _is_array(leaf)), None)


def _is_array(leaf: Any) -> bool:
    return is_ref(leaf) or (isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, FrozenArray))


def warn_of_idle_post_init(spec: NodeSpec, init: Any) -> None:
    """Where nothing calls a `__post_init__`, for an `__init__` that calls neither it nor another `__init__`."""
    cls: Any = spec.cls
    code = innermost_code(init) if spec.has_own_init and spec.has_post_init else None
    if code is None or "__init__" in code.co_names or any(map(_calls_post_init, map(vars, cls.__mro__))):
        return
    warn_user(
        f"{cls.__module__}.{cls.__qualname__} has an `__init__` method and a `__post_init__`, which only a generated "
        f"`__init__` runs. Call it at the end of yours, or name it `__check_init__`, which runs after either.",
        NodeDefinitionWarning,
    )


def _calls_post_init(body: Mapping[str, Any]) -> bool:
    codes = (code_of(innermost(value)) for name, value in body.items() if name != "__post_init__")
    return any(code is not None and "__post_init__" in code.co_names for code in codes)
