"""Static values as JSON: exact forms that can be read back, and descriptions with digests of what can't.

A form is a plain scalar, or a list of the name of a kind and its parts, each of which is a form:
`["tuple", 1, ["complex", 0.5, 2.0]]`. Equal values have equal forms, whatever the order of a set.
"""

import hashlib
import importlib
import types
from collections.abc import Iterable
from typing import Any

from treewright._core.as_json import StaticCodec
from treewright._core.functions import found_at
from treewright._core.portable import portable_text as _portable_text
from treewright._core.portable import portable_text_and_modules
from treewright.errors import StaticSerializationError

Form = Any  # str, int, float, bool, None, or a list of a kind's name and its parts
_KEPT = 2000  # characters of a description


def encode(value: Any, *, describe: bool = False) -> Form:
    """The form of a static value.

    Args:
        value: The value.
        describe: Whether to describe what has no exact form: `["described", text, digest]`.

    Raises:
        StaticSerializationError: If a part has no exact form, unless it is described.
    """
    return (_Describing() if describe else StaticCodec()).encode(value)


def decode(form: Form, modules: Iterable[str | types.ModuleType] | None = None) -> Any:
    """The value of a form. Runs no code of the classes that it makes, and imports nothing but `modules`.

    Args:
        form: As `encode` gave it; it may come from a forged file.
        modules: The modules whose classes and functions a form may name; None for all that are imported.

    Raises:
        StaticSerializationError: If the form can't be read, or names something elsewhere, or is a description.
    """
    return _Reading(modules).decode(form)


def described(value: Any) -> Form:
    """`["described", text, digest]`: a bounded text for messages, and a digest of all that the value holds.

    Two values have one digest if they are made of the same code and hold the same values: arrays, captured variables
    and attributes included, in any process.
    """
    whole = portable_text(value)
    return ["described", whole[:_KEPT], hashlib.sha256(whole.encode()).hexdigest()]


def portable_text(value: Any) -> str:
    """The whole description as text, which is the same in another process for a value that does the same."""
    return _portable_text(value, exact=True)


def modules_in(value: Any) -> set[str]:
    """The modules of the functions and classes in a value."""
    return portable_text_and_modules(value)[1]


def shown(form: Form) -> str:
    """A form as a person would write the value."""
    if not isinstance(form, list):
        return repr(form)
    kind, *parts = form
    return str(parts[0]) if kind in {"name", "described"} else f"{kind}({', '.join(map(shown, parts))})"


class _Describing(StaticCodec):
    def unnamed(self, value: Any) -> Any:
        return described(value)


class _Reading(StaticCodec):
    def __init__(self, modules: Iterable[str | types.ModuleType] | None) -> None:
        self.modules = modules
        self.names = (
            None
            if modules is None
            else {m.__name__ if isinstance(m, types.ModuleType) else importlib.import_module(m).__name__ for m in modules}
        )

    def find(self, name: str) -> Any:
        module, _, qualname = str(name).partition(":")
        if self.names is None:
            return super().find(name)
        found = found_at(module, qualname) if module in {*self.names, "builtins"} else None
        if found is None:
            listed = ", ".join(self.names) or "none"
            raise StaticSerializationError(f"{name!r} is in none of the modules that may be used ({listed}).")
        return found


__all__ = ["Form", "StaticSerializationError", "decode", "described", "encode", "modules_in", "portable_text", "shown"]
