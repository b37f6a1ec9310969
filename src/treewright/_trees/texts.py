"""What values look like in one line of a readable length."""

import functools
import reprlib
import types
from typing import Any

from treewright._nodes.classes import class_of
from treewright._nodes.representation import array_text, function_text

LENGTH = 80  # characters of a value that are shown

_OBJECT: Any = object


class _ShortText(reprlib.Repr):
    """`repr` that never writes more than a few parts of a value, however large it is."""

    def __init__(self, *, with_module: bool) -> None:
        super().__init__()
        self.maxstring = self.maxother = LENGTH
        self.with_module = with_module

    def repr1(self, x: Any, level: int) -> str:
        """One value, in one line."""
        found = array_text(x) or function_text(x, with_module=self.with_module)
        if found is not None:
            return found
        kind = class_of(x)
        if isinstance(x, functools.partial):
            keywords = (f"{name}={self.repr1(item, level - 1)}" for name, item in x.keywords.items())
            arguments = [x.func, *x.args]
            return f"{kind.__name__}({', '.join([*(self.repr1(item, level - 1) for item in arguments), *keywords])})"
        if kind is types.MethodType:
            return f"{x.__func__.__qualname__} of {self.repr1(x.__self__, level - 1)}"
        if kind.__repr__ is _OBJECT.__repr__:  # its address would say nothing
            return f"<{kind.__qualname__} object>"
        names = names_in(kind)
        if names and level > 0:
            fields = (f"{name}={self.repr1(getattr(x, name), level - 1)}" for name in names)
            return f"{kind.__name__}({', '.join(fields)})"
        return " ".join(super().repr1(x, level).split())


def short_text(value: Any, *, with_module: bool = False) -> str:
    """One line of at most 80 characters for any value; functions and classes with their module if asked."""
    shown = _ShortText(with_module=with_module).repr(value)
    return shown if len(shown) <= LENGTH else f"{shown[: LENGTH - 3]}..."


def short_texts(left: Any, right: Any) -> tuple[str, str]:
    """The texts of two values that differ: as short as one alone, and different wherever that is possible."""
    texts = short_text(left), short_text(right)
    if texts[0] != texts[1]:
        return texts
    if isinstance(left, str) and isinstance(right, str):
        start = max(0, _first_difference(left, right) - LENGTH // 4)
        return _window(left, start), _window(right, start)
    return short_text(left, with_module=True), short_text(right, with_module=True)


def _first_difference(left: str, right: str) -> int:
    pairs = enumerate(zip(left, right, strict=False))
    return next((index for index, (a, b) in pairs if a != b), min(len(left), len(right)))


def _window(value: str, start: int) -> str:
    shown = repr(value[start : start + LENGTH // 2])
    return f"{'...' if start else ''}{shown}{'...' if start + LENGTH // 2 < len(value) else ''} at character {start}"


def names_in(kind: type[Any]) -> tuple[str, ...]:
    """The names of a named tuple; none for other classes."""
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return names if tuple in kind.__mro__ else ()


def mesh_text(mesh: Any) -> str:
    """`no mesh`, or a mesh by its axes: `a mesh of data=2, model=4 (Auto)`."""
    sizes: dict[str, int] = dict(getattr(mesh, "shape", None) or {})
    if not sizes:
        return "no mesh"
    kinds = dict.fromkeys(getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ())
    return f"a mesh of {', '.join(f'{axis}={size}' for axis, size in sizes.items())} ({', '.join(kinds)})"
