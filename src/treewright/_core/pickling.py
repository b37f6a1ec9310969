"""Pickle static values that Python can't: jitted functions, and closures that a library's function made.

`pickle` holds a function by its import path. `jnp.tanh` is found at one and is no plain function; the `init` and
`update` of an optimiser are made by a function inside of optax. Such a closure is its code, which is found again inside
the function that made it, and what it captured, which is pickled like any other value.
"""

import functools
import importlib
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

from treewright._core.functions import captured, import_path, library_made
from treewright._core.kinds import KINDS, kind_of, with_parts

_PARTIAL = KINDS[functools.partial]
_ATTRIBUTES = ("__defaults__", "__kwdefaults__", "__name__", "__qualname__", "__module__", "__doc__")


class Recipe:
    """Stands for a value in a pickle: the call that gives the value when the pickle is read."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


def portable(value: Any) -> Any:
    """A value, with a recipe in place of each function in it that `pickle` would refuse."""
    cls = type(value)
    if cls is list:
        return [*map(portable, value)]
    if cls is dict:
        return {key: portable(item) for key, item in value.items()}
    if cls is functools.partial:  # which takes no recipe for its function
        parts = _PARTIAL.parts(value)
        return value if parts is None else Recipe(_PARTIAL.make, *map(portable, parts))
    if kind_of(cls) is not None:
        return with_parts(value, portable)
    path = import_path(value) if callable(value) else None
    if path is not None:
        plain = isinstance(value, type | types.FunctionType) or path[0] == "__main__"
        return value if plain else Recipe(imported, *path)
    if isinstance(value, types.FunctionType) and library_made(value):
        return _closure_recipe(value) or value
    return value


def _closure_recipe(function: types.FunctionType) -> Recipe | None:
    """How to make a library's closure again; None where its code is not found again, or it captured itself."""
    module, code = function.__globals__["__name__"], function.__code__
    maker, _, path = code.co_qualname.partition(".<locals>.")
    places = [place for place, inner in _codes_in(module, maker).items() if inner == code]
    if not path or len(places) != 1:
        return None
    try:
        contents = portable(captured(function))
    except RecursionError:  # it captured itself
        return None
    attributes = vars(function) | {name: getattr(function, name) for name in _ATTRIBUTES}
    return Recipe(closure, module, maker, places[0], code.co_qualname, contents, portable(attributes))


def _codes_in(module: str, maker: str) -> dict[tuple[int, ...], types.CodeType]:
    """The code objects inside the function at an import path, by their places among the constants."""
    try:
        found: Any = inspect.unwrap(imported(module, maker))
    except (ImportError, AttributeError):
        return {}
    waiting: list[tuple[tuple[int, ...], Any]] = [((), getattr(found, "__code__", None))]
    for place, code in waiting:  # which grows
        inner = [((*place, index), item) for index, item in enumerate(getattr(code, "co_consts", ()))]
        waiting += [pair for pair in inner if isinstance(pair[1], types.CodeType)]
    return dict(waiting[1:])


def imported(module: str, name: str) -> Any:
    """The value at an import path."""
    return operator.attrgetter(name)(importlib.import_module(module))


def closure(  # noqa: PLR0917  a pickle gives them by position
    module: str, maker: str, place: tuple[int, ...], name: str, contents: dict[str, Any], attributes: dict[str, Any]
) -> types.FunctionType:
    """A library's closure that comes back from a pickle.

    Raises:
        TypeError: If the library's code is another than the one that the pickle was written with.
    """
    code = _codes_in(module, maker).get(place)
    if code is None or code.co_qualname != name or {*code.co_freevars} != contents.keys():
        raise TypeError(
            f"The pickle holds {name} of {module}, which is not what this version of {module.partition('.')[0]} has "
            f"there. It was written with another version: make the object again, or install that one."
        )
    cells = tuple(types.CellType(contents[variable]) for variable in code.co_freevars)
    function = types.FunctionType(code, vars(importlib.import_module(module)), code.co_name, None, cells)
    for attribute, value in attributes.items():
        setattr(function, attribute, value)
    return function
