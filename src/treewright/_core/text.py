"""Format values as text: in full, over several lines for `repr`, or cut for messages; and parts of messages.

Nothing here reads the data of an array (but of scalars, for `repr`), fails on what a transformation puts into a node
(tracers, `object()`, `None`, specs), or follows a cycle. A node class is known by its `__node_spec__`, of which only
`fields` is read.
"""

import difflib
import functools
import itertools
import re
import reprlib
import textwrap
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core.jax_private import is_ref

LENGTH = 80  # characters of a bounded text
_WIDTH = 88  # characters of a line of `repr`
_INDENT = "    "
_DEPTH = 60  # levels of containers in any text; Python's own stack ends at a few hundred
_NUMERALS = "-.0123456789"  # what a number begins with, and dots
_NUMBER_DTYPE = re.compile(r"^(?:(b?f)loat|(u)int|(i)nt|(c)omplex)(?=\d)")
_MARKS: tuple[tuple[type[Any], str], ...] = (
    (Tracer, "(traced)"),
    (jax.Array, ""),
    (np.ndarray, "(numpy)"),
    (jax.ShapeDtypeStruct, "(abstract)"),
)
_CUT = reprlib.Repr()
_CUT.maxstring = _CUT.maxother = LENGTH


# Arrays and functions


def shape_text(dtype: object, shape: Iterable[object]) -> str:
    """`f32[784,128]`; `bf16[2]`, `key<fry>[]` for typed keys; dtypes of other names as they are."""
    name = _NUMBER_DTYPE.sub(r"\1\2\3\4", str(dtype))
    return f"{name}[{','.join(map(str, shape))}]"


def array_text(value: Any, *, with_value: bool = False) -> str | None:
    """`f32[784,128]` for an array, marked if it is not a plain `jax.Array`; None for anything else.

    With its value, a scalar is `f32(0.5)` and a deleted array `f32[2](deleted)`.
    """
    mark = next((mark for kind, mark in _MARKS if isinstance(value, kind)), None)
    if is_ref(value):
        mark = "(traced ref)" if mark else "(ref)"
    if mark is None:
        return None
    label = getattr(value, "_label", None)  # of a FrozenArray
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:  # a tracer of something that is not an array, such as a token
        return f"<{type(value).__name__}>"
    shown = f"{shape_text(dtype, shape)}{mark if label is None else label()}"
    if not with_value or isinstance(value, Tracer):
        return shown
    if getattr(value, "is_deleted", bool)():
        return f"{shown}(deleted)"
    # The brackets of complex numbers are there already.
    number = _number_in(value)
    return shown if number is None else shown.replace("[]", f"({str(number).strip('()')})", 1)


def _number_in(value: Any) -> Any:
    """The number in a scalar array, when it has been computed; None where this process can't have it."""
    is_scalar = isinstance(value, jax.Array | np.ndarray) and value.shape == ()
    if not is_scalar or not (value.dtype == bool or jnp.issubdtype(value.dtype, jnp.number)):
        return None
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        return None
    try:
        return jax.device_get(value)[()]  # explicit, so that a transfer guard lets it through
    except RuntimeError:  # its computation failed, and where it is used JAX says so
        return None


def function_text(value: Any, *, with_module: bool = False) -> str | None:
    """The name of a function or class, the place of a lambda; None for anything that has no name of its own."""
    name = getattr(value, "__qualname__", None)
    if isinstance(value, types.MethodType) or not callable(value) or not isinstance(name, str):
        return None
    if isinstance(value, types.FunctionType) and name.endswith("<lambda>"):
        code = value.__code__
        return f"<lambda at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}>"
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if with_module and module not in {None, "builtins"} else name


class Verbatim:
    """Text that prints without quotes."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __repr__(self) -> str:
        return self.content


_NO_VALUE = Verbatim("<no value>")  # of a field of a node that is half built


# Values


class _Walk:
    """One walk through a value: in full, or with the first `most` items of each container and an end in all.

    With a width, which `repr` has, what does not fit into a line is written over several.
    """

    def __init__(self, most: int | None = None, *, with_module: bool = False, width: int | None = None) -> None:
        self.most, self.with_module, self.width = most, with_module, width
        self.depth = min(most or _DEPTH, _DEPTH)
        self.left = 1000  # parts; a bounded walk writes the containers after them as `Layer(...)`
        self.inside: list[int] = []  # the ids of the values that are being written, which end as `...` if met again

    def text(self, value: Any, beside: int = 0) -> str:
        """The text of a value that has so many other characters in its line."""
        name = array_text(value, with_value=self.width is not None)
        name = name or function_text(value, with_module=self.with_module)
        if name is not None:
            return name
        if id(value) in self.inside or len(self.inside) > self.depth:
            return "..."
        self.inside.append(id(value))
        try:
            container = self.opened(value)
            return self.whole(value) if container is None else self.joined(*container, beside)
        finally:
            self.inside.pop()

    def opened(self, value: Any) -> tuple[str, Iterable[str], str] | None:
        """What a container begins with, the texts of its parts, and what it ends with; None for anything else."""
        kind: Any = type(value)
        name, items, pairs = kind.__name__, self.items, self.pairs
        match value:
            case _ if hasattr(kind, "__node_spec__"):
                is_asked = self.width is not None and len(self.inside) == 1  # by a `__repr__` of its own, it may be
                if kind.__repr__ is not node_repr and not is_asked:
                    return None
                shown = [field.name for field in kind.__node_spec__.fields if field.repr]
                return f"{kind.__qualname__}(", pairs((name, getattr(value, name, _NO_VALUE)) for name in shown), ")"
            case tuple() if hasattr(kind, "_fields"):
                return f"{name}(", pairs(zip(kind._fields, value, strict=True)), ")"
            case tuple() if kind is tuple:
                return "(", items(value), ",)" if len(value) == 1 else ")"
            case list() if kind is list:
                return "[", items(value), "]"
            case set() | frozenset() if value:
                few = itertools.islice(value, None if self.most is None else self.most + 1)
                opening, closing = ("{", "}") if kind is set else (f"{name}({{", "})")
                return opening, sorted(items(few)), closing
            case functools.partial():
                return f"{name}(", itertools.chain(items((value.func, *value.args)), pairs(value.keywords.items())), ")"
            case Mapping() if isinstance(value, dict) or hasattr(kind, "_kind_"):  # FrozenMapping
                opening, closing = ("{", "}") if kind is dict else (f"{name}({{", "})")
                return opening, pairs(((self.text(key), item) for key, item in value.items()), sign=": "), closing
            case _:
                return None

    def items(self, values: Iterable[Any]) -> Iterator[str]:
        return (self.text(value, beside=1) for value in values)  # a comma

    def pairs(self, items: Iterable[tuple[str, Any]], sign: str = "=") -> Iterator[str]:
        for name, value in items:
            yield f"{name}{sign}{self.text(value, beside=len(name) + len(sign) + 1)}"

    def joined(self, opening: str, texts: Iterable[str], closing: str, beside: int) -> str:
        """As a Python programmer would write it: in one line where it fits, else with a line for each part."""
        parts = _first(texts, self.most if self.most is None or self.left > 0 else 0)
        self.left -= len(parts)
        line = f"{opening}{', '.join(parts)}{closing}"
        if self.width is None or not parts:
            return line
        room = self.width - len(_INDENT) * (len(self.inside) - 1)
        if "\n" not in line and len(line) + beside <= room:
            return line
        lines = [f"{part}," for part in parts]
        if all(part[:1] in _NUMERALS for part in parts):
            lines = textwrap.wrap(", ".join(parts), max(room - len(_INDENT), 1), break_long_words=False)
        return "\n".join([opening, textwrap.indent("\n".join(lines), _INDENT), closing.lstrip(",")])

    def whole(self, value: Any) -> str:
        """What has no name and is not opened: whatever its `__repr__` gives, outside of `repr` in one line."""
        if self.width is not None:
            return repr(value)
        kind: Any = type(value)
        if kind is types.MethodType:
            return f"{value.__func__.__qualname__} of {self.text(value.__self__)}"
        if self.most is None:
            shown = repr(value)
        elif kind.__repr__ is object.__repr__:  # its address would say nothing
            shown = f"<{kind.__qualname__} object>"
        else:
            shown = _CUT.repr(value)
        return " ".join(shown.split()) if "\n" in shown else shown


def text(value: Any, *, with_module: bool = False) -> str:
    """One line for any value, in full: arrays by shape and dtype, functions by name, nodes by their fields."""
    return _Walk(with_module=with_module).text(value)


def short_text(value: Any, *, with_module: bool = False) -> str:
    """One line of at most 80 characters for any value; functions and classes with their module if asked."""
    return cut_text(_Walk(6, with_module=with_module).text(value))


def node_repr(self: Any) -> str:
    """The `__repr__` of a node: arrays as `f32[784,128]`, scalars as `f32(0.5)`, statics in full.

    In one line of at most 88 characters, or over several; with dots for what is beyond a thousand values.
    """
    # Not the method itself: rich takes the `__repr__` of a dataclass by its file, and would print whole arrays.
    return _repr_once(self)


@reprlib.recursive_repr()
def _repr_once(node: Any) -> str:
    return _Walk(100, width=_WIDTH).text(node)


# Parts of messages


def cut_text(whole: str, length: int = LENGTH) -> str:
    return whole if len(whole) <= length else f"{whole[: length - 3]}..."


def common_start(texts: Collection[str]) -> str:
    """The characters with which all of these texts begin."""
    first, last = min(texts), max(texts)  # the texts between them in order begin as both do
    return next((first[:index] for index, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), first)


def text_with_class(value: Any) -> str:
    """`a list, [64, 64]`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, {short_text(value)}"


def did_you_mean(wrong: str, names: Iterable[str], *, show: Callable[[str], str] = str) -> str:
    """` (did you mean kernel?)`, to follow a wrong name; empty where none of the names is close."""
    close = difflib.get_close_matches(wrong, list(names), 1)
    return f" (did you mean {show(close[0])}?)" if close else ""


def with_close_matches(wrong: Iterable[str], names: Collection[str]) -> str:
    """Wrong names, each with the one that it may have meant."""
    return ", ".join([f"{name}{did_you_mean(name, names)}" for name in wrong])


def first_names(names: Iterable[str], count: int = 3) -> str:
    """The first of these names, and dots for the others."""
    return ", ".join(_first(names, count))


def _first(texts: Iterable[str], count: int | None) -> list[str]:
    """The first of these texts, and dots for the others, which are not made."""
    texts = iter(texts)
    return [*itertools.islice(texts, count), *("..." for _ in itertools.islice(texts, 1))]
