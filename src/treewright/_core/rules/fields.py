"""Mistakes in the declaration of a field: its default, its annotation, and what a subclass loses."""

import dataclasses
import inspect
import keyword
import types
import typing
from collections.abc import Iterator
from typing import Any

from treewright._base.functions import attribute_of
from treewright._base.text import short_text
from treewright._core.field_views import FieldView
from treewright._core.fields import options_of
from treewright._core.info import Draft, FieldInfo
from treewright._core.rules.declarations import (
    declaration,
    defaults_of,
    options_to_repeat,
    special_form,
    specifier_in,
    specifier_in_annotation,
    specifier_name,
    specifier_text,
)


def field_and_method(draft: Draft) -> str | None:
    """The method would be the default of the field, or hide the field of a base."""
    for name, value in draft.body.items():
        is_inherited = name not in draft.annotations
        if is_inherited:
            is_both = isinstance(draft.inherited.get(name), FieldView) and hasattr(type(value), "__get__")
        else:
            is_both = _is_defined_in(draft.cls, name, _default_in(value)) and not _is_class_var(draft, name)
        if is_both:
            other = ", or declare it in the base class as an abstract property or method" if is_inherited else ""
            return f"{draft.cls.__qualname__}.{name} is both a field and a method. Rename one of them{other}."
    return None


def specifier_not_called(draft: Draft) -> str | None:
    """`x: int = static` would make the function `static` the default of a child."""
    for name, annotation in draft.annotations.items():
        default = _default_in(draft.body.get(name))
        specifier = specifier_in(default[0] if type(default) in {tuple, list} and len(default) == 1 else default)
        if specifier is not None:
            return (
                f"{draft.cls.__qualname__}.{name} has {specifier} as default, but without parentheses or with a comma "
                f"after them, so it would be a leaf.\n"
                f"  Write {declaration(name, annotation, draft.cls, f'{specifier}()')}"
            )
    return None


def specifier_in_the_annotation(draft: Draft) -> str | None:
    """A specifier is read only as a default: annotations may be strings, which nobody evaluates."""
    own = [(draft.cls, name, annotation, draft.body.get(name)) for name, annotation in draft.annotations.items()]
    for owner, name, annotation, value in (*own, *_fields_of_dataclasses(draft)):
        specifier = specifier_in_annotation(annotation, owner)
        if specifier is not None and annotation is not value:  # `x: x = field()` is fine.
            return (
                f"{draft.cls.__qualname__}.{name} has {specifier} in its annotation, where it would be ignored.\n"
                f"  Write {name}: ... = {specifier}()"
            )
    return None


def declared_again_otherwise(draft: Draft) -> str | None:
    """A value alone would hide the field that stays in the tree; without its specifier, a static becomes a child."""
    for name, base, given in _redeclared_fields(draft):
        loss, kind = _loss(base), specifier_name(base.kind)
        line, field = _repeated(draft, name, base, given), f"{draft.cls.__qualname__}.{name}"
        if name not in draft.annotations:
            return (
                f"{field} would hide an inherited field. For a new default, repeat the annotation:\n  {line}\n"
                f"For a constant, write {name}: ClassVar = ..."
            )
        if loss is not None and not (options_of(given) or _is_class_var(draft, name)):
            return (
                f"{field} redeclares a {kind}() field without {kind}(), which would {loss}.\n"
                f"  Write {line}, or {specifier_text('child', defaults_of(given))} for a plain child."
            )
    return None


def _fields_of_dataclasses(draft: Draft) -> Iterator[tuple[type[Any], str, Any, Any]]:
    """The fields that come from bases which are dataclasses, but not node classes: class, name, annotation, field."""
    for base in draft.cls.__mro__[1:-1]:
        if "__node_info__" not in vars(base):
            for name, field in vars(base).get("__dataclass_fields__", {}).items():
                if name not in draft.annotations:
                    yield base, name, field.type, field


def _redeclared_fields(draft: Draft) -> Iterator[tuple[str, FieldInfo, Any]]:
    """The fields of bases that the body declares again, each with its new `dataclasses.Field`."""
    for name in {**draft.annotations, **draft.body}:
        view = draft.inherited.get(name)
        if isinstance(view, FieldView):
            value = draft.body.get(name, view.field.default)
            is_field = type(value) is dataclasses.Field
            if not is_field or name in draft.annotations:  # `dataclasses` rejects a field without annotation.
                yield name, view.field, value if is_field else dataclasses.field(default=value)


def _repeated(draft: Draft, name: str, base: FieldInfo, given: Any) -> str:
    """The line that declares a field again, with all options of the base."""
    options = options_to_repeat(base)
    is_plain = base.kind == "child" and not options
    call = short_text(given.default) if is_plain else specifier_text(base.kind, defaults_of(given) | options)
    return declaration(name, draft.annotations.get(name, base.type), draft.cls, call)


def _loss(base: FieldInfo) -> str | None:
    """What happens to a field without its specifier."""
    if base.kind != "child":
        return "turn it into a plain child"
    options = options_to_repeat(base)
    if "sharding" in options:
        return "store it whole on every device"
    return f"lose its {' and '.join(options)}" if options else None


DECLARATIONS = (field_and_method, specifier_not_called, specifier_in_the_annotation, declared_again_otherwise)


def no_identifier(cls: type[Any], name: str) -> str | None:
    """A parameter of the generated `__init__` needs an identifier."""
    if name.isidentifier() and not keyword.iskeyword(name):
        return None
    return f"{cls.__qualname__} has a field named {name!r}, which is not an identifier. Rename it."


def default_before(cls: type[Any], name: str, other: str) -> str:
    """Python has no parameters without a default after those with one."""
    return (
        f"{cls.__qualname__}: non-default argument {name!r} follows default argument {other!r}. Add a default "
        f"to {name}, or make it keyword-only: field(kw_only=True)."
    )


def _default_in(value: Any) -> Any:
    """The default that a value in a class body gives to its field."""
    return value.default if type(value) is dataclasses.Field else value


def _is_class_var(draft: Draft, name: str) -> bool:
    return special_form(draft.annotations[name], draft.cls) is typing.ClassVar


def _is_defined_in(cls: type[Any], name: str, value: Any) -> bool:
    """Whether a value is a property, or a method whose `def` is in the class body."""
    function = function_of(value)
    if isinstance(value, property) or not isinstance(function, types.FunctionType):
        return isinstance(value, property)
    return (function.__module__, function.__qualname__) == (cls.__module__, f"{cls.__qualname__}.{name}")


def function_of(value: Any) -> Any:
    """The function inside a property, method or wrapper; any other value as it is."""
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        value = attribute_of(value, attribute) or value
    return inspect.unwrap(value) if isinstance(value, types.FunctionType) else value
