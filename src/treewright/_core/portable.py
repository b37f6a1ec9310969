"""Former names, until nobody imports them."""

from typing import Any

from treewright._json import modules_in
from treewright._json import portable_text as _portable_text


def portable_text(value: object, *, exact: bool) -> str:
    whole = _portable_text(value)
    return whole if exact else whole[:4000]


def portable_text_and_modules(value: object) -> tuple[str, set[str]]:
    return _portable_text(value), modules_in(value)


def full_name(value: Any) -> str:
    """`module.name` of a class or function; classes of Python itself without a module."""
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")
