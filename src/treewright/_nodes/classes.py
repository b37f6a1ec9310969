"""Small readers of classes, typed so that `Any` stays `Any` for both type checkers."""

from typing import Any


def class_of(value: object) -> type[Any]:
    """`type(value)`, of which any attribute may be read."""
    return type(value)


def own_annotations(cls: type[Any]) -> dict[str, Any]:
    """What the class body itself annotates, unevaluated."""
    annotations: dict[str, Any] = vars(cls).get("__annotations__", {})
    return annotations


def class_attribute(cls: type[Any], name: str) -> Any:
    """What a class or the nearest of its bases holds under this name, without calling descriptors; None if nothing."""
    return next((vars(base)[name] for base in cls.__mro__ if name in vars(base)), None)
