"""Pickles and exported programs that do not fit: values that can't be written, and fields that have changed since."""

from collections.abc import Iterable
from typing import Any

from treewright._base.text import short_text


def function_without_name(full_name: str, value: Any) -> str:
    """`pickle` writes a function as its import path, and would say so without the field."""
    return (
        f"{full_name} holds {short_text(value)}, a function that pickle can't find by its name. Use "
        f"cloudpickle.dumps(...) instead of pickle.dumps(...)."
    )


def pickle_of_other_fields(cls: type[Any], written: Iterable[str], names: Iterable[str]) -> str:
    """The class has changed since, so a value would be lost or missing."""
    return (
        f"The pickle contains the fields {_listed(written)} of {cls.__qualname__}, which now has {_listed(names)}. It "
        f"was written by a different version of the class. Load it with that version, or recreate the object."
    )


def export_of_other_statics(cls: type[Any], written: Iterable[str], names: Iterable[str]) -> str:
    """The class has changed since, so the program was compiled for another one."""
    return (
        f"The exported program has the static fields {_listed(written)} of {cls.__qualname__}, which now has "
        f"{_listed(names)}. Export it again with this version of the class."
    )


def static_without_json(full_name: str, value: Any) -> str:
    """Another process could not make the value from its text."""
    return (
        f"{full_name}: {short_text(value)} can't be saved in an exported program. Use numbers, strings, enums, "
        f"functions and classes at the top level of a module, or tuples and frozen dataclasses of them."
    )


def unknown_name(module: str, name: str) -> str:
    """Reading a program imports nothing, because the file may come from anywhere."""
    return (
        f"{module}.{name} was not found, but the exported program needs it. Import {module} before reading the program."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
