"""A value as text, the one place for it: in full, over several lines, or bounded; and what messages are made of.

Nothing here reads the data of an array (but of scalars, where they are looked at), fails on what a transformation puts
into a node (tracers, `object()`, `None`, specs), or follows a cycle. A node class is known by its `__node_spec__`, of
which only `fields` is read.
"""

import difflib
import functools
import html
import itertools
import re
import reprlib
import textwrap
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core.jax_private import is_ref

LENGTH = 80  # characters of a bounded text
_FEW = 6  # items of a container, and levels of containers, in a bounded text
_MANY = 100  # items of a container, for a person
_PARTS = 1000  # parts of containers in a bounded text
_WIDTH = 88  # characters of a line for a person
_NUMERALS = "-.0123456789"  # what a number begins with, and dots
_DEPTH = 60  # levels of containers in any text; Python's own stack ends at a few hundred
PATIENCE = 1.0  # seconds that one look waits in all for what a device still computes
_DTYPE_KINDS = types.MappingProxyType({"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"})
_DTYPE_NAME = re.compile(r"(float|bfloat|int|uint|complex)(\d.*)")
_MARKS: tuple[tuple[type[Any], str], ...] = (
    (Tracer, "(traced)"),
    (jax.Array, ""),
    (np.ndarray, "(numpy)"),
    (jax.ShapeDtypeStruct, "(abstract)"),
)
_CUT = reprlib.Repr()
_CUT.maxstring = _CUT.maxother = LENGTH


# Arrays, functions, meshes


def short_dtype(dtype: object) -> str:
    """`f32` for `float32`, `bf16` for `bfloat16`, `key<fry>` for typed keys; other names as they are."""
    name = str(dtype)
    match = _DTYPE_NAME.fullmatch(name)
    return f"{_DTYPE_KINDS[match[1]]}{match[2]}" if match else name


def shape_text(dtype: object, shape: Iterable[object]) -> str:
    """`f32[784,128]`."""
    return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]"


def array_text(value: Any) -> str | None:
    """`f32[784,128]` for an array, marked if it is not a plain `jax.Array`; None for anything else."""
    mark = next((mark for kind, mark in _MARKS if isinstance(value, kind)), None)
    if is_ref(value):
        mark = "(traced ref)" if mark else "(ref)"
    if mark is None:
        return None
    label = getattr(value, "_label", None)  # of a FrozenArray
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:  # a tracer of something that is not an array, such as a token
        return f"<{type(value).__name__}>"
    return f"{shape_text(dtype, shape)}{mark if label is None else label()}"


def seen_array(value: Any, until: float) -> str | None:
    """`f32(0.5)` for a scalar whose value can be had until a time, `f32[2](deleted)`, else the `array_text`."""
    shown = array_text(value)
    if shown is None or isinstance(value, Tracer):
        return shown
    if getattr(value, "is_deleted", bool)():
        return f"{shown}(deleted)"
    is_number = isinstance(value, jax.Array | np.ndarray) and (
        value.dtype == bool or bool(jnp.issubdtype(value.dtype, jnp.number))
    )
    if not is_number or value.shape != () or (isinstance(value, jax.Array) and not _is_here(value, until)):
        return shown
    try:
        scalar = jax.device_get(value)[()]  # explicit, so that a transfer guard lets it through
    except RuntimeError:  # its computation failed, and where it is used JAX says so
        return shown
    # The brackets of complex numbers are there already.
    return shown.replace("[]", f"({str(scalar).strip('()')})", 1)


def _is_here(value: Any, until: float) -> bool:
    """Whether this process holds an array, and a device has computed it by a time of `time.monotonic`."""
    if not (value.is_fully_addressable or value.is_fully_replicated):
        return False
    while not value.is_ready():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


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


def mesh_text(mesh: Any) -> str:
    """`no mesh`, or a mesh by its axes: `a mesh of data=2, model=4 (Auto)`."""
    sizes: dict[str, int] = dict(getattr(mesh, "shape", None) or {})
    if not sizes:
        return "no mesh"
    kinds = dict.fromkeys(getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ())
    return f"a mesh of {', '.join(f'{axis}={size}' for axis, size in sizes.items())} ({', '.join(kinds)})"


class Verbatim:
    """Text that prints without quotes."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __repr__(self) -> str:
        return self.content


def shown_fields(node: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that `repr` shows, also of a node that is half built."""
    fields: Any = type(node).__node_spec__.fields
    for field in fields:
        if field.repr:
            yield field.name, getattr(node, field.name, Verbatim("<no value>"))


# The walk


class _Container(str):
    """The text of a container in one line, with what it takes to write it over several."""

    __slots__ = ("closing", "opening", "parts")

    opening: str
    parts: list[str]
    closing: str

    def __new__(cls, opening: str, parts: list[str], closing: str) -> Self:
        self = super().__new__(cls, f"{opening}{', '.join(parts)}{closing}")
        self.opening, self.parts, self.closing = opening, parts, closing
        return self


class _Walk:
    """One walk through a value: in full, or with the first `most` items of each container.

    A walk for a person has the values of scalars too, and an end however large the value is.
    """

    def __init__(
        self, most: int | None = None, *, with_module: bool = False, for_person: bool = False, asking: Any = None
    ) -> None:
        self.most, self.with_module = most, with_module
        self.depth = min(most or _DEPTH, _DEPTH)
        self.until = time.monotonic() + PATIENCE if for_person else None
        self.asking = asking  # the node whose own `__repr__` asks for its fields
        self.inside: list[int] = []  # the ids of the containers that are being written, which end as `...` if met again
        self.written = 0  # parts so far; from a thousand on, a bounded walk writes containers as `Layer(...)`

    def of(self, value: Any) -> str:
        """The text of a value, or of one inside it."""
        array = array_text(value) if self.until is None else seen_array(value, self.until)
        name = array or function_text(value, with_module=self.with_module)
        if name is not None:
            return name
        if id(value) in self.inside or len(self.inside) > self.depth:
            return "..."
        self.inside.append(id(value))
        try:
            return self.opened(value)
        finally:
            self.inside.pop()

    def opened(self, value: Any) -> str:
        """The text of a container by its parts, of anything else as a whole."""
        kind: Any = type(value)
        is_node = hasattr(kind, "__node_spec__")
        name = kind.__qualname__ if is_node else kind.__name__
        if kind is tuple:
            return self.container("(", map(self.of, value), ",)" if len(value) == 1 else ")")
        if kind is list:
            return self.container("[", map(self.of, value), "]")
        if isinstance(value, set | frozenset) and value:
            few = itertools.islice(value, None if self.most is None else self.most + 1)
            opening, closing = ("{", "}") if kind is set else (f"{name}({{", "})")
            return self.container(opening, sorted(map(self.of, few)), closing)
        if isinstance(value, functools.partial):
            keywords = self.labelled(value.keywords.items())
            return self.container(f"{name}(", itertools.chain(map(self.of, (value.func, *value.args)), keywords), ")")
        if isinstance(value, dict) or (hasattr(kind, "_kind_") and isinstance(value, Mapping)):  # FrozenMapping
            opening, closing = ("{", "}") if kind is dict else (f"{name}({{", "})")
            return self.container(opening, self.labelled(value.items(), key=self.of, sign=": "), closing)
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self.container(f"{name}(", self.labelled(zip(kind._fields, value, strict=True)), ")")  # pyright: ignore[reportAttributeAccessIssue]
        if is_node and (value is self.asking or kind.__repr__ is node_repr):
            return self.container(f"{name}(", self.labelled(shown_fields(value)), ")")
        return self.whole(value)

    def whole(self, value: Any) -> str:
        """The text of what is not opened, and has no name: whatever its `__repr__` gives, in messages in one line."""
        if self.until is not None:
            return repr(value)
        kind: Any = type(value)
        if self.most is None:
            shown = repr(value)
            return " ".join(shown.split()) if "\n" in shown else shown
        if kind is types.MethodType:
            return f"{value.__func__.__qualname__} of {self.of(value.__self__)}"
        if kind.__repr__ is object.__repr__:  # its address would say nothing
            return f"<{kind.__qualname__} object>"
        return " ".join(_CUT.repr(value).split())

    def container(self, opening: str, texts: Iterable[str], closing: str) -> str:
        most = 0 if self.most is not None and self.written >= _PARTS else self.most
        parts = _first(texts, most)
        self.written += len(parts)
        return _Container(opening, parts, closing) if parts else f"{opening}{closing}"

    def labelled(
        self, pairs: Iterable[tuple[Any, Any]], *, key: Callable[[Any], str] = str, sign: str = "="
    ) -> Iterator[str]:
        for name, value in pairs:
            label, shown = f"{key(name)}{sign}", self.of(value)
            if isinstance(shown, _Container):
                yield _Container(label + shown.opening, shown.parts, shown.closing)
            else:
                yield label + shown


def text(value: Any, *, with_module: bool = False) -> str:
    """One line for any value, in full: arrays by shape and dtype, functions by name, nodes by their fields."""
    return _Walk(with_module=with_module).of(value)


def short_text(value: Any, *, with_module: bool = False) -> str:
    """One line of at most 80 characters for any value; functions and classes with their module if asked."""
    return cut_text(_Walk(_FEW, with_module=with_module).of(value))


@reprlib.recursive_repr()
def node_repr(self: Any) -> str:
    """The `__repr__` of a node: arrays as `f32[784,128]`, scalars as `f32(0.5)`, statics in full.

    In one line of at most 88 characters, or over several; with dots for what is beyond a thousand values.
    """
    return "\n".join(_lines(_Walk(_MANY, for_person=True, asking=self).of(self)))


def _lines(shown: str, indent: str = "", end: str = "") -> Iterator[str]:
    """A text as a Python programmer would write it: in one line where it fits, else with a line for each part."""
    fits = "\n" not in shown and len(indent) + len(shown) + len(end) <= _WIDTH
    if fits or not isinstance(shown, _Container):
        yield from (f"{indent}{line}" for line in f"{shown}{end}".split("\n"))
        return
    inner = f"{indent}    "
    yield f"{indent}{shown.opening}"
    if all(part[0] in _NUMERALS for part in shown.parts):
        yield from textwrap.wrap(", ".join(shown.parts), _WIDTH, initial_indent=inner, subsequent_indent=inner)
    else:
        for part in shown.parts:
            yield from _lines(part, inner, ",")
    yield f"{indent}{shown.closing.lstrip(',')}{end}"


def in_html(shown: str) -> str:
    return f"<pre>{html.escape(shown)}</pre>"


# Parts of messages


def cut_text(whole: str, length: int = LENGTH) -> str:
    return whole if len(whole) <= length else f"{whole[: length - 3]}..."


def text_with_class(value: Any) -> str:
    """`a list, [64, 64]`."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, {short_text(value)}"


def did_you_mean(wrong: str, names: Iterable[str], *, show: Callable[[str], str] = str) -> str:
    """` (did you mean kernel?)`, to follow a wrong name; empty where none of the names is close."""
    close = difflib.get_close_matches(wrong, list(names), 1)
    return f" (did you mean {show(close[0])}?)" if close else ""


def table(rows: Sequence[Sequence[str]], *, right: Collection[str], rule: bool = False) -> list[str]:
    """The lines of a table in plain text, whose first row is the head, with the columns on the `right` by name."""
    head, *others = rows
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    rules = [["-" * width for width in widths]] if rule else []
    return [
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for name, cell, width in zip(head, row, widths, strict=True)
        ).rstrip()
        for row in (head, *rules, *others)
    ]


def first_of(lines: Sequence[str], count: int = 20, *, more: str = "more") -> list[str]:
    """Lines for a message, of which a person reads some: the first, and how many there are besides."""
    left = len(lines) - count
    return list(lines) if left <= 0 else [*lines[:count], f"and {left:,} {more}"]


def counted(count: int, one: str, many: str = "") -> str:
    """`1 trace`, `2,000 traces`."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def first_names(names: Iterable[str], count: int = 3) -> str:
    """The first of these names, and dots for the others."""
    return ", ".join(_first(names, count))


def _first(texts: Iterable[str], count: int | None) -> list[str]:
    """The first of these texts, and dots for the others, which are not made."""
    texts = iter(texts)
    return [*itertools.islice(texts, count), *("..." for _ in itertools.islice(texts, 1))]
