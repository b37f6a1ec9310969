"""Pickles of statics: functions that `pickle` rejects, such as jitted and numpy functions, become import paths."""

import functools
import pickle
import pkgutil
import types
from collections.abc import Callable
from typing import Any

from treewright._base.functions import import_path, is_pickled_by
from treewright._core.kinds import kind_of, partial_parts, with_parts
from treewright._core.rules.statics import function_without_name


class Recipe:
    """Replaces a value in a pickle: the call that returns the value when the pickle is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def portable(value: Any, full_name: str) -> Any:
    """A copy of a value in which recipes replace the functions that `pickle` rejects.

    Raises:
        PicklingError: If it contains a function without an import path, and the pickler finds functions by name.
    """
    cls = type(value)
    if cls is functools.partial:  # A partial can't be built with a recipe as its function.
        parts = partial_parts(value)
        return value if parts is None else Recipe(_partial_of, *[portable(part, full_name) for part in parts])
    if kind_of(cls) is not None:
        return with_parts(value, lambda part: portable(part, full_name))
    path = import_path(value) if callable(value) else None
    if path is not None:
        plain = isinstance(value, type | types.FunctionType) or path[0] == "__main__"
        return value if plain else Recipe(pkgutil.resolve_name, ":".join(path))
    if isinstance(value, types.FunctionType) and not is_pickled_by("cloudpickle", "dill"):
        raise pickle.PicklingError(function_without_name(full_name, value))
    return value


def _partial_of(function: Any, args: tuple[Any, ...], keywords: tuple[Any, ...]) -> functools.partial[Any]:
    return functools.partial(function, *args, **dict(keywords))
