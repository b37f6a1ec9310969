"""Mistakes in the declaration of a field: its default, its annotation, and what a subclass loses."""

import dataclasses
import inspect
import types
from typing import Any

import jax

from treewright._base.text import short_text
from treewright._core.field_views import FieldView
from treewright._core.fields import options_of
from treewright._core.info import Draft, FieldInfo
from treewright._core.rules.declarations import (
    declaration,
    defaults_of,
    options_to_repeat,
    reject_field_on_class,
    specifier_in,
    specifier_in_annotation,
    specifier_name,
    specifier_text,
)

# The values in the body


def specifier_not_called(draft: Draft, name: str, value: Any) -> str | None:
    """`x: int = static` would make the function `static` the default of a child."""
    if name not in draft.annotations:
        return None
    default: Any = value.default if type(value) is dataclasses.Field else value
    reject_field_on_class(default)
    specifier = specifier_in(default[0] if type(default) in {tuple, list} and len(default) == 1 else default)
    if specifier is None:
        return None
    return (
        f"{draft.cls.__qualname__}.{name} has {specifier} as default, but without parentheses or with a comma after "
        f"them, so it would be a leaf.\n"
        f"  Write {declaration(name, draft.annotations[name], draft.cls, f'{specifier}()')}"
    )


def hides_field(draft: Draft, name: str, value: Any) -> str | None:
    """Instances would return this value, while the field stays in the tree with another."""
    view = draft.inherited.get(name)
    if name in draft.annotations or not isinstance(view, FieldView):
        return None
    if type(value) is dataclasses.Field:  # `dataclasses` rejects it.
        return None
    field = view.field
    options = options_to_repeat(field)
    is_plain = field.kind == "child" and not options
    call = short_text(value) if is_plain else specifier_text(field.kind, {"default": value} | options)
    fix = (
        f"For a new default, repeat the annotation:\n  {declaration(name, field.type, draft.cls, call)}\n"
        f"For a constant, write {name}: ClassVar = ..."
    )
    if hasattr(type(value), "__get__"):
        fix = "Rename it, or declare it in the base class as an abstract property or method."
    return f"{draft.cls.__qualname__}.{name} would hide an inherited field. {fix}"


# The fields that `dataclasses` has read


def method_as_default(draft: Draft, field: FieldInfo, owner: type[Any]) -> str | None:  # noqa: ARG001  a rule's form
    """A method with the name of a field would be its default."""
    is_method = isinstance(field.default, property) or _is_defined_in(draft.cls, field.name, field.default)
    if field.name not in draft.annotations or not is_method:
        return None
    return (
        f"{draft.cls.__qualname__}.{field.name} is both a field and a method, so the method would be the field's "
        f"default. Rename one of them."
    )


def specifier_in_the_annotation(draft: Draft, field: FieldInfo, owner: type[Any]) -> str | None:
    """A specifier is read only as a default: annotations may be strings, which nobody evaluates."""
    specifier = specifier_in_annotation(field.type, owner)
    if specifier is None or field.type is vars(owner)["__dataclass_fields__"][field.name]:  # `x: x = field()` is fine.
        return None
    return (
        f"{draft.cls.__qualname__}.{field.name} has {specifier} in its annotation, where it would be ignored.\n"
        f"  Write {field.name}: ... = {specifier}()"
    )


def lost_options(draft: Draft, field: FieldInfo, owner: type[Any]) -> str | None:  # noqa: ARG001  a rule's form
    """A field that is annotated again without its specifier loses its options: a static becomes a child."""
    view = draft.inherited.get(field.name)
    if not isinstance(view, FieldView) or field.name not in draft.annotations or not field.is_plain:
        return None
    base = view.field
    options = options_to_repeat(base)
    if base.kind == "child" and not options:
        return None
    kind = specifier_name(base.kind)
    loss = "turn it into a plain child" if kind != "field" else f"lose its {' and '.join(options)}"
    if kind == "field" and "sharding" in options:
        loss = "store it whole on every device"
    defaults = defaults_of(field)
    kept, plain = specifier_text(base.kind, defaults | options), specifier_text("child", defaults)
    return (
        f"{draft.cls.__qualname__}.{field.name} redeclares a {kind}() field without {kind}(), which would {loss}.\n"
        f"  Write {declaration(field.name, field.type, draft.cls, kept)}, or {plain} for a plain child."
    )


FIELD = (method_as_default, specifier_in_the_annotation, lost_options)


def default_before(cls: type[Any], name: str, other: str) -> str:
    """Python has no parameters without a default after those with one."""
    return (
        f"{cls.__qualname__}: non-default argument {name!r} follows default argument {other!r}. Add a default "
        f"to {name}, or make it keyword-only: field(kw_only=True)."
    )


def no_identifier(cls: type[Any], name: str) -> str:
    """`make_dataclass` accepts any string, but a parameter needs a name."""
    return f"{cls.__qualname__} has a field named {name!r}, which is not an identifier. Rename it."


def shared_default(error: BaseException, draft: Draft) -> str | None:
    """`dataclasses` rejects a default that all instances would share, but does not know our specifiers."""
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
            return f"Write {declaration(name, annotation, draft.cls, ', or '.join(fixes))}"
    return None


def _is_defined_in(cls: type[Any], name: str, value: Any) -> bool:
    """Whether a value is a method or property whose `def` is in the class body."""
    function = function_of(value)
    path = (getattr(function, "__module__", None), getattr(function, "__qualname__", None))
    return isinstance(function, types.FunctionType) and path == (cls.__module__, f"{cls.__qualname__}.{name}")


def function_of(value: Any) -> Any:
    """The function inside a property, method or wrapper; any other value as it is."""
    for attribute in ("fget", "func", "__func__", "__wrapped__"):
        value = getattr(value, attribute, None) or value
    return inspect.unwrap(value) if isinstance(value, types.FunctionType) else value
