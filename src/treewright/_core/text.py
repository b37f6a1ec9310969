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
from typing import Any, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._core import functions as reach
from treewright._core.functions import class_of

F = TypeVar("F", bound=Callable[..., Any])
Cure = Callable[[tuple[Any, ...], Mapping[str, Any]], str]
LENGTH = 80  # characters of a bounded text
_FEW = 6  # items of a container, and levels of containers, in a bounded text
MANY = 100  # items of a container, for a person and in a portable text that is kept
_PARTS = 1000  # parts of containers that are written for a person; what is below others is left out
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
# Classes as `Any`: after `isinstance` with them the parts of a value are still `Any`, and not unknown.
_OBJECT: Any = object
_SETS: Any = (set, frozenset)
_DICT: Any = dict
_MAPPING: Any = Mapping
_ARRAYS: Any = (jax.Array, np.ndarray)


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
    if type(value) is jax.Ref or type(getattr(value, "aval", None)).__name__ == "AbstractRef":
        mark = "(traced ref)" if mark else "(ref)"
    if mark is None:
        return None
    label = getattr(value, "_label", None)  # of a FrozenArray
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:  # a tracer of something that is not an array, such as a token
        return f"<{class_of(value).__name__}>"
    return f"{shape_text(dtype, shape)}{mark if label is None else label()}"


def seen_array(value: Any, until: float) -> str | None:
    """`f32(0.5)` for a scalar whose value can be had until a time, `f32[2](deleted)`, else the `array_text`."""
    shown = array_text(value)
    if shown is None or isinstance(value, Tracer):
        return shown
    if getattr(value, "is_deleted", bool)():
        return f"{shown}(deleted)"
    scalar = scalar_of(value, until)
    # The brackets of complex numbers are there already.
    return shown if scalar is None else shown.replace("[]", f"({str(scalar).strip('()')})", 1)


def scalar_of(value: Any, until: float) -> Any | None:
    """The number or bool in an array of rank 0, for a person who looks at it; None where it can't be had at once.

    It can't be had of a tracer, of an array that was deleted or donated, of one that other processes hold, of one that
    no device has computed by the time `until`, on the clock of `time.monotonic`, and of one whose computation failed.
    """
    if isinstance(value, Tracer) or not isinstance(value, _ARRAYS) or value.shape != ():
        return None
    if not (jnp.issubdtype(value.dtype, jnp.number) or value.dtype == bool):  # keys, times, texts
        return None
    if isinstance(value, jax.Array) and not _is_here(value, until):
        return None
    try:
        return jax.device_get(value)[()]  # explicit, so that a transfer guard lets it through
    except RuntimeError:  # its computation failed, which is said where it is used
        return None


def _is_here(value: Any, until: float) -> bool:
    if value.is_deleted() or not (value.is_fully_addressable or value.is_fully_replicated):
        return False
    while not value.is_ready():
        if time.monotonic() > until:
            return False
        time.sleep(0.001)
    return True


def function_text(value: object, *, with_module: bool = False) -> str | None:
    """The name of a function or class, the place of a lambda; None for anything that has no name of its own."""
    name = getattr(value, "__qualname__", None)
    if isinstance(value, types.MethodType) or not callable(value) or not isinstance(name, str):
        return None
    code = reach.code_of(value)
    if code is not None and name.endswith("<lambda>"):
        return f"<lambda at {reach.place_of(code)}>"
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if with_module and module not in {None, "builtins"} else name


def mesh_text(mesh: Any) -> str:
    """`no mesh`, or a mesh by its axes: `a mesh of data=2, model=4 (Auto)`."""
    sizes: dict[str, int] = dict(getattr(mesh, "shape", None) or {})
    if not sizes:
        return "no mesh"
    kinds = dict.fromkeys(getattr(kind, "name", str(kind)) for kind in mesh.axis_types or ())
    return f"a mesh of {', '.join(f'{axis}={size}' for axis, size in sizes.items())} ({', '.join(kinds)})"


# What a value consists of


def names_in(kind: type[Any]) -> tuple[str, ...]:
    """The names of a named tuple; none for other classes."""
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return names if tuple in kind.__mro__ else ()


class Verbatim:
    """Text that prints without quotes."""

    def __init__(self, content: str) -> None:
        self.content = content

    def __repr__(self) -> str:
        return self.content


def shown_fields(node: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that `repr` shows, also of a node that is half built."""
    fields: Any = class_of(node).__node_spec__.fields
    for field in fields:
        if field.repr:
            yield field.name, getattr(node, field.name, Verbatim("<no value>"))


# The walk


class FullText:
    """One walk through a value, in full."""

    most: int | None = None  # items of a container that are written; None for all
    depth: int = _DEPTH  # levels of containers that are written
    asking: Any = None  # the node whose own `__repr__` asks for its fields

    def __init__(self, *, with_module: bool = False) -> None:
        self.with_module = with_module
        self.inside: list[int] = []  # the ids of the containers that are being written, which end as `...` if met again

    def of(self, value: Any) -> str:
        """The text of a value, or of one inside it."""
        name = self.name(value)
        if name is not None:
            return name
        if id(value) in self.inside or len(self.inside) > self.depth:
            return "..."
        self.inside.append(id(value))
        try:
            return self.opened(value)
        finally:
            self.inside.pop()

    def name(self, value: Any) -> str | None:
        """The text of what is not opened: an array, a function or a class; None for anything else."""
        return array_text(value) or function_text(value, with_module=self.with_module)

    def opened(self, value: Any) -> str:
        """The text of a container by its parts, of anything else as a whole."""
        kind = class_of(value)
        if kind is tuple:
            return self.bracketed("(", map(self.of, value), ",)" if len(value) == 1 else ")")
        if kind is list:
            return self.bracketed("[", map(self.of, value), "]")
        if isinstance(value, _SETS):
            name = self.class_name(kind)
            opening, closing = ("{", "}") if kind is set else (f"{name}({{", "})")
            return self.bracketed(opening, sorted(self.members(value)), closing) if value else f"{name}()"
        if isinstance(value, functools.partial):
            keywords = self.arguments(value.keywords.items())
            texts = itertools.chain(map(self.of, (value.func, *value.args)), keywords)
            return self.bracketed(f"{self.class_name(kind)}(", texts, ")")
        if isinstance(value, _DICT) or (hasattr(kind, "_kind_") and isinstance(value, _MAPPING)):  # FrozenMapping
            return self.entries(value, "" if kind is dict else self.class_name(kind))
        names = names_in(kind)
        if names:
            return self.call(kind, zip(names, value, strict=True))
        is_node = hasattr(kind, "__node_spec__")
        if is_node and (value is self.asking or getattr(kind, "__repr__") is node_repr):  # noqa: B009  untyped
            return self.call(kind, shown_fields(value))
        return self.whole(value)

    def class_name(self, kind: type[Any]) -> str:
        """What the text of a container begins with."""
        return str(kind.__qualname__ if hasattr(kind, "__node_spec__") else kind.__name__)

    def whole(self, value: Any) -> str:
        """The text of what is not opened, and has no name: in one line, whatever its `__repr__` gives."""
        shown = repr(value)
        return " ".join(shown.split()) if "\n" in shown else shown

    def bracketed(self, opening: str, texts: Iterable[str], closing: str) -> str:
        return f"{opening}{self.joined(texts)}{closing}"

    def labelled(self, label: str, value: Any) -> str:
        return f"{label}{self.of(value)}"

    def joined(self, texts: Iterable[str]) -> str:
        return ", ".join(_first(texts, self.most))

    def members(self, values: Collection[Any]) -> Iterable[str]:
        """The texts of what a set holds, in any order."""
        return map(self.of, values)

    def arguments(self, pairs: Iterable[tuple[str, Any]]) -> Iterator[str]:
        return (self.labelled(f"{name}=", value) for name, value in pairs)

    def call(self, kind: type[Any], pairs: Iterable[tuple[str, Any]]) -> str:
        return self.bracketed(f"{self.class_name(kind)}(", self.arguments(pairs), ")")

    def entries(self, mapping: Mapping[Any, Any], name: str = "") -> str:
        """The text of a mapping, within the name of its class if it has one."""
        opening, closing = (f"{name}({{", "})") if name else ("{", "}")
        texts = (self.labelled(f"{self.of(key)}: ", value) for key, value in mapping.items())
        return self.bracketed(opening, texts, closing)


def text(value: Any, *, with_module: bool = False) -> str:
    """One line for any value, in full: arrays by shape and dtype, functions by name, nodes by their fields."""
    return FullText(with_module=with_module).of(value)


# To be looked at


class _Breakable(str):
    """The text of a container in one line, with what it takes to write it over several."""

    __slots__ = ("closing", "opening", "parts")

    opening: str
    parts: list[str]
    closing: str

    def __new__(cls, opening: str, parts: list[str], closing: str) -> Self:
        self = super().__new__(cls, f"{opening}{', '.join(parts)}{closing}")
        self.opening, self.parts, self.closing = opening, parts, closing
        return self


class _LookedAt(FullText):
    """One walk for a person: containers as groups, scalars with their values, and an end however large the value is."""

    most = MANY

    def __init__(self) -> None:
        super().__init__()
        self.written = 0  # parts so far; from a thousand on containers are written as `Layer(...)`
        self.until = time.monotonic() + PATIENCE  # when it has waited enough for what a device still computes

    def name(self, value: Any) -> str | None:
        return seen_array(value, self.until) or super().name(value)

    def whole(self, value: Any) -> str:
        return repr(value)

    def members(self, values: Collection[Any]) -> Iterable[str]:
        return super().members(list(itertools.islice(values, MANY + 1)))

    def bracketed(self, opening: str, texts: Iterable[str], closing: str) -> str:
        texts = iter(texts)
        parts = list(itertools.islice(texts, MANY if self.written < _PARTS else 0))
        self.written += len(parts)
        parts += _first(texts, 0)
        return _Breakable(opening, parts, closing) if parts else f"{opening}{closing}"

    def labelled(self, label: str, value: Any) -> str:
        shown = self.of(value)
        if isinstance(shown, _Breakable):
            return _Breakable(label + shown.opening, shown.parts, shown.closing)
        return label + shown


def _lines(shown: str, indent: str = "", end: str = "") -> Iterator[str]:
    """A text as a Python programmer would write it: in one line where it fits, else with a line for each part."""
    fits = "\n" not in shown and len(indent) + len(shown) + len(end) <= _WIDTH
    if fits or not isinstance(shown, _Breakable):
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


@reprlib.recursive_repr()
def node_repr(self: Any) -> str:
    """The `__repr__` of a node: arrays as `f32[784,128]`, scalars as `f32(0.5)`, statics in full.

    In one line of at most 88 characters, or over several; with dots for what is beyond a thousand values.
    """
    walk = _LookedAt()
    walk.asking = self
    return "\n".join(_lines(walk.of(self)))


def in_html(shown: str) -> str:
    return f"<pre>{html.escape(shown)}</pre>"


# Bounded


class _BoundedText(FullText):
    """One walk that writes a few parts of a value, however large it is."""

    most = _FEW
    depth = _FEW

    def __init__(self, *, with_module: bool) -> None:
        super().__init__(with_module=with_module)
        self.cut = reprlib.Repr()
        self.cut.maxstring = self.cut.maxother = LENGTH

    def members(self, values: Collection[Any]) -> Iterable[str]:
        return super().members(list(itertools.islice(values, _FEW + 1)))

    def whole(self, value: Any) -> str:
        kind = class_of(value)
        if kind is types.MethodType:
            return f"{value.__func__.__qualname__} of {self.of(value.__self__)}"
        if kind.__repr__ is _OBJECT.__repr__:  # its address would say nothing
            return f"<{kind.__qualname__} object>"
        return " ".join(self.cut.repr(value).split())


def short_text(value: Any, *, with_module: bool = False) -> str:
    """One line of at most 80 characters for any value; functions and classes with their module if asked."""
    return cut_text(_BoundedText(with_module=with_module).of(value))


def cut_text(whole: str, length: int = LENGTH) -> str:
    return whole if len(whole) <= length else f"{whole[: length - 3]}..."


def text_with_class(value: Any) -> str:
    """`a list, [64, 64]`."""
    name = class_of(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, {short_text(value)}"


def short_texts(left: Any, right: Any) -> tuple[str, str]:
    """The texts of two values that differ: as short as one alone, and different wherever that is possible."""
    texts = short_text(left), short_text(right)
    if texts[0] != texts[1]:
        return texts
    if isinstance(left, str) and isinstance(right, str):
        start = _excerpt_start((left, right), LENGTH // 2)
        old, new = excerpts((left, right), LENGTH // 2, show=repr)
        return f"{old} at character {start}", f"{new} at character {start}"
    return short_text(left, with_module=True), short_text(right, with_module=True)


def did_you_mean(wrong: str, names: Iterable[str], *, show: Callable[[str], str] = str) -> str:
    """` (did you mean kernel?)`, to follow a wrong name; empty where none of the names is close."""
    close = difflib.get_close_matches(wrong, list(names), 1)
    return f" (did you mean {show(close[0])}?)" if close else ""


def first_difference(texts: Sequence[Sequence[object]]) -> int:
    """The place where not all are the same; the end of the shortest where they are until there."""
    same = itertools.takewhile(lambda parts: all(part == parts[0] for part in parts), zip(*texts, strict=False))
    return sum(1 for _ in same)


def excerpts(texts: Sequence[str], width: int, *, show: Callable[[str], str] = str) -> list[str]:
    """Texts that differ, those longer than `width` from a little before the place where they begin to differ."""
    start = _excerpt_start(texts, width)
    end = start + width
    return [
        text
        if len(text) <= width
        else f"{'...' if start else ''}{show(text[start:end])}{'...' if end < len(text) else ''}"
        for text in texts
    ]


def _excerpt_start(texts: Sequence[str], width: int) -> int:
    return max(0, first_difference(texts) - width // 3)


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


# Calls with arguments that a function does not take


def cured(cure: Cure) -> Callable[[F], F]:
    """A decorator: where Python refuses the arguments of a call, `cure(args, kwargs)` follows in the same `TypeError`.

    Errors from inside the function are not touched. `inspect` sees the function's own signature.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                entered = getattr(error.__traceback__, "tb_next", None) is not None
                if entered:
                    raise
                # Python 3.13 begins to guess the keyword that was meant.
                said = str(error).partition(". Did you mean")[0]
                meant = cure(args, kwargs)
                raise TypeError(f"{said}{'' if meant.startswith(' (') else '. '}{meant}") from None

        return cast("F", called)

    return decorate


def options_cure(*names: str, positional: str = "", **elsewhere: str) -> Cure:
    """The close match of an option that a function does not take, or all options; other libraries' names by ours."""

    def cure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        if positional and len(args) > 1:
            return f"Write {positional}."
        unknown = [name for name in kwargs if name not in names]
        told = [f"Write {elsewhere[name]} instead of {name}=." for name in unknown if name in elsewhere]
        if told:
            return told[0]
        return with_guess(unknown, names, f"Its options: {', '.join(names)}.")

    return cure


def with_guess(unknown: Iterable[str], names: Sequence[str], cure: str) -> str:
    """The cure after the close match of the first unknown name that has one; it continues a sentence of Python's."""
    meant = next(filter(None, (did_you_mean(name, names) for name in unknown)), "")
    return f"{meant}. {cure}" if meant else cure
