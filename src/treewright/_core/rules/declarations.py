"""Declarations of fields as a user writes them: which specifier a value is, and the line to write instead."""

import contextlib
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any

from treewright._base.functions import MISSING
from treewright._base.text import annotation_text, short_text
from treewright._core.fields import OPTIONS, SPECIFIERS, options_of

# The only string annotations that are evaluated: evaluating all took a quarter of the time of a class statement.
_SPECIFIER = re.compile(r"\b(static|field|buffer)\b", re.IGNORECASE)
_FIRST_NAME = re.compile(r"^(?:\s*(\w+)\s*\.)?\s*(\w*)")  # as in `dataclasses`
_MARKS_IN_ANNOTATIONS = ("__jax_dataclasses_static_field__", "__static__")  # jax_dataclasses.Static, flax.nnx.Static


def specifier_in_annotation(annotation: Any, cls: type[Any]) -> str | None:
    """The specifier in an annotation in the body of `cls`, as in `Annotated[int, static()]`; None without one."""
    if isinstance(annotation, str):
        if not _SPECIFIER.search(annotation):
            return None
        if "=" in annotation.partition("[")[0]:  # `n: "int = static()"`
            annotation = annotation.partition("=")[2].strip()
        with contextlib.suppress(Exception):  # a forward reference, or a name imported only for checkers
            annotation = eval(annotation, vars(sys.modules[cls.__module__]), dict(vars(cls)))  # noqa: S307
    return specifier_in(annotation)


def special_form(annotation: Any, cls: type[Any], modules: Collection[Any] = (typing,)) -> Any:
    """`ClassVar` for `ClassVar[int]`, also in a string, if `dataclasses` finds it there without evaluating.

    `dataclasses` knows one module.
    """
    if isinstance(annotation, str):
        module, name = _FIRST_NAME.findall(annotation)[0]
        names = vars(sys.modules[cls.__module__])
        is_of_typing = module == "" or any(names.get(module) is each for each in modules)
        annotation = (vars(typing) if module else names).get(name) if is_of_typing else None
    return typing.get_origin(annotation) or annotation


def specifier_in(value: Any) -> str | None:
    """The name of a specifier, found as a function, its result, or another library's `Static[...]`; None otherwise."""
    if type(value) is dataclasses.Field:
        return specifier_name(options_of(value).get("kind", "child"))
    if isinstance(value, types.FunctionType) and value in SPECIFIERS:
        return value.__name__
    if isinstance(value, str) and value in _MARKS_IN_ANNOTATIONS:
        return "static"
    return next(filter(None, map(specifier_in, typing.get_args(value))), None)


def specifier_name(kind: str) -> str:
    """The name of the specifier that declares a field of this kind."""
    return "field" if kind == "child" else kind


def specifier_text(kind: str, arguments: Mapping[str, Any]) -> str:
    """The call of a specifier as a user writes it: `static(default=3)`, with dots in place of a function."""
    shown = [f"{name}={'...' if callable(value) else short_text(value)}" for name, value in arguments.items()]
    return f"{specifier_name(kind)}({', '.join(shown)})"


def declaration(name: str, annotation: Any, cls: type[Any], value: str) -> str:
    """The line that declares a field in the body of `cls`: `width: int = static(default=3)`."""
    return f"{name}: {annotation_text(annotation, cls)} = {value}"


def declared_as(kind: str, field: Any, cls: type[Any]) -> str:
    """The line that declares a field as another kind, with its default."""
    return declaration(field.name, field.type, cls, specifier_text(kind, defaults_of(field)))


def defaults_of(field: Any) -> dict[str, Any]:
    """The default or the factory of a field, by the name of the option; empty if it has neither."""
    options = {name: getattr(field, name) for name in ("default", "default_factory")}
    return {name: value for name, value in options.items() if value is not MISSING}


def options_to_repeat(field: Any) -> dict[str, Any]:
    """The options of a field's specifier that differ from the default, which a subclass has to repeat."""
    repeated = [name for name, option in OPTIONS.items() if option.is_repeated]
    options = {name: getattr(field, name) for name in repeated}
    if field.hash is field.compare:
        options["hash"] = None
    return {name: value for name, value in options.items() if value is not OPTIONS[name].default}
