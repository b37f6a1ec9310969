"""Names of classes and functions that hold from one program to the next, and what may be found under them."""

import importlib
import re
import types
from collections.abc import Iterable, Iterator
from typing import Any, cast

from treewright._nodes import reach
from treewright._nodes.classes import class_of, import_path
from treewright._nodes.representation import text
from treewright._nodes.static_json import StaticCodec
from treewright.errors import CheckpointError

DECLARED = "__checkpoint_name__"

_ADDRESS = re.compile(r" at 0x[0-9a-f]+|0x[0-9a-f]+")
_LENGTH, _DEPTH, _ITEMS = 4000, 16, 100  # of a description: characters, functions inside functions, items


def class_name(cls: type[Any]) -> str:
    """The name that the class itself declares as `__checkpoint_name__`, else `module:qualname`."""
    declared = vars(cls).get(DECLARED)
    if declared is None:
        return f"{cls.__module__}:{cls.__qualname__}"
    if not isinstance(declared, str) or not declared:
        raise CheckpointError(
            f"{cls.__qualname__}.{DECLARED} is {declared!r}, and must be a name such as 'mylib.{cls.__qualname__}'."
        )
    return declared


def same_name(one: str, other: str) -> bool:
    """Whether two names mean one class or function.

    A script calls its own classes `__main__:Net`, and a library may move what it keeps in private modules
    (`optax._src.transform`): then only what follows the colon, or the package and that, has to be the same.
    """
    if one == other:
        return True
    (module, _, name), (other_module, _, other_name) = one.partition(":"), other.partition(":")
    if not name or name != other_name:
        return False
    if "__main__" in {module, other_module}:
        return True
    packages = {module.partition(".")[0], other_module.partition(".")[0]}
    return len(packages) == 1 and ("._" in module or "._" in other_module)


class WritingCodec(StaticCodec):
    """Writes any static: what has no exact form is described, and compared softly."""

    def name_of(self, value: Any) -> str | None:
        """Classes go by the name that they declare."""
        if isinstance(value, type) and DECLARED in vars(value):
            return class_name(value)
        return super().name_of(value)

    def unnamed(self, value: Any) -> Any:
        """A description without addresses, so that it is the same in the next process."""
        return ["described", description(value)]


def description(value: Any) -> str:
    """A function by its name and what it captured, anything else by its class and short text."""
    return _described(value, ())


def _described(value: Any, inside: tuple[Any, ...]) -> str:
    """`inside` holds the functions that are being described: a closure may capture itself."""
    function = getattr(value, "__func__", value)
    if isinstance(function, types.FunctionType):
        name = f"{function.__module__}:{function.__qualname__}"
        if function in inside or len(inside) == _DEPTH:
            return name
        captured = ", ".join(_captured(function, (*inside, function)))
        return f"{name}({captured})"[:_LENGTH]
    if isinstance(value, tuple | list):
        items: Any = cast("Any", value)[:_ITEMS]
        return f"({', '.join(_described(item, inside) for item in items)})"[:_LENGTH]
    path = import_path(value)
    if path is not None:
        return ":".join(path)
    kind = class_of(value)
    try:
        shown = _ADDRESS.sub("", text(value))
    except Exception:  # noqa: BLE001  a __repr__ of the user's own, and a checkpoint is worth more than its text
        shown = "..."
    plain = kind in {int, float, str, bool, type(None)}
    return (shown if plain else f"{kind.__module__}:{kind.__qualname__} {shown}")[:_LENGTH]


def _captured(function: types.FunctionType, inside: tuple[Any, ...]) -> Iterator[str]:
    held = {**reach.captured(function), **_data(reach.read_by(function))}
    for name, value in held.items():
        yield f"{name}={_described(value, inside)}"


def _data(read: dict[str, Any]) -> dict[str, Any]:
    """What a function reads that is data: what a checkpoint would call another function for."""
    return {
        name: value for name, value in read.items() if not callable(value) and not isinstance(value, types.ModuleType)
    }


class ReadingCodec(StaticCodec):
    """Reads statics. Classes and functions are looked up among those of an explicit list of modules, and nowhere else.

    Names from a file are compared with names that exist; none is ever imported or followed.
    """

    def __init__(self, modules: Iterable[str | types.ModuleType] = ()) -> None:
        self.modules: tuple[types.ModuleType, ...] = tuple(
            importlib.import_module(module) if isinstance(module, str) else module for module in modules
        )
        self.known: tuple[tuple[str, Any], ...] = tuple(_named_in(self.modules))

    def find(self, name: str) -> Any:
        """What has this name in the modules.

        Raises:
            CheckpointError: If nothing has it, or two things do.
        """
        found = {id(value): value for known, value in self.known if same_name(known, str(name))}
        if len(found) == 1:
            return next(iter(found.values()))
        listed = ", ".join(module.__name__ for module in self.modules) or "none"
        if found:
            raise CheckpointError(f"{name!r} names several things in the modules that may be used ({listed}).")
        raise CheckpointError(
            f"{name!r} is in none of the modules that may be used ({listed}). If you trust the file, add the module "
            f"that holds it: load(path, modules=[...]). Or give a tree to load into: load(path, like=...)."
        )


def _named_in(modules: Iterable[types.ModuleType]) -> Iterator[tuple[str, Any]]:
    """The classes and functions of these modules by name, those of their own package alone."""
    for module in modules:
        package = module.__name__.partition(".")[0]
        for value in vars(module).values():
            yield from _named(value, package)


def _named(value: Any, package: str) -> Iterator[tuple[str, Any]]:
    home, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not callable(value) or not isinstance(home, str) or not isinstance(name, str):
        return
    if home.partition(".")[0] != package:  # `from os import system` in a module does not make it the module's own
        return
    if not isinstance(value, type):
        yield f"{home}:{name}", value
        return
    yield class_name(value), value
    for inner in vars(value).values():
        if isinstance(inner, type) and inner.__qualname__.startswith(f"{name}."):
            yield from _named(inner, package)
