"""Small readers of classes, typed so that `Any` stays `Any` for both type checkers."""

import sys
from typing import Any


def class_of(value: object) -> type[Any]:
    """`type(value)`, of which any attribute may be read."""
    return type(value)


def own_annotations(cls: type[Any]) -> dict[str, Any]:
    """What the class body itself annotates, unevaluated."""
    annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
    return annotations


def declarer_of(cls: type[Any], name: str) -> type[Any]:
    """The nearest class in the MRO whose body annotates this name."""
    return next(base for base in cls.__mro__ if name in own_annotations(base))


def resolved(annotation: Any, cls: type[Any]) -> Any:
    """The type that a string annotation in the body of `cls` names; the string itself where it can't be told yet."""
    if not isinstance(annotation, str):
        return annotation
    module = sys.modules.get(cls.__module__)
    try:
        return eval(annotation, {} if module is None else vars(module), dict(vars(cls)))  # noqa: S307
    except Exception:  # noqa: BLE001  a forward reference, or a name that only checkers import
        return annotation


def class_attribute(cls: type[Any], name: str) -> Any:
    """What a class or the nearest of its bases holds under this name, without calling descriptors; None if nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)


def found_at(module: str, name: str) -> Any:
    """What an imported module holds under a dotted name, without importing it; None if nothing."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def import_path(value: Any) -> tuple[str, str] | None:
    """The module and the name under which this very object is found; None for what has no such name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or found_at(module, name) is not value:
        return None
    return module, name
