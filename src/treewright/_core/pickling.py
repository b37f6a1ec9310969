"""Pickle static values that Python can't: jitted functions and numpy functions, by their import path."""

import functools
import importlib
import operator
import pickle
import sys
import types
from collections.abc import Callable
from typing import Any

from treewright._base.functions import import_path
from treewright._base.text import short_text
from treewright._core.kinds import KINDS, kind_of, with_parts

_PARTIAL = KINDS[functools.partial]


class Recipe:
    """Replaces a value in a pickle: the call that returns the value when the pickle is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def portable(value: Any, place: str) -> Any:
    """A copy of a value in which recipes replace the functions that `pickle` rejects.

    Raises:
        PicklingError: If it contains a function without an import path, and the pickler finds functions by name.
    """
    cls = type(value)
    if cls is functools.partial:  # A partial can't be built with a recipe as its function.
        parts = _PARTIAL.parts(value)
        return value if parts is None else Recipe(_PARTIAL.make, *[portable(part, place) for part in parts])
    if kind_of(cls) is not None:
        return with_parts(value, lambda part: portable(part, place))
    path = import_path(value) if callable(value) else None
    if path is not None:
        plain = isinstance(value, type | types.FunctionType) or path[0] == "__main__"
        return value if plain else Recipe(imported, *path)
    if isinstance(value, types.FunctionType) and not _copies_functions():
        raise pickle.PicklingError(
            f"{place} holds {short_text(value)}, a function that pickle can't find by its name. Use "
            f"cloudpickle.dumps(...) instead of pickle.dumps(...)."
        )
    return value


def _copies_functions() -> bool:
    """Whether the current pickler writes functions by value, like dill and cloudpickle (also in Ray and joblib)."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if {"cloudpickle", "dill"} & {*str(frame.f_globals.get("__name__")).split(".")}:
            return True
        frame = frame.f_back
    return False


def imported(module: str, name: str) -> Any:
    """The value at an import path."""
    return operator.attrgetter(name)(importlib.import_module(module))
