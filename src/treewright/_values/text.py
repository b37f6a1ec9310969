"""A value as text, the one place for it: in full, bounded, or as another process would write it.

Nothing here reads the data of an array (but `portable_text`, where it is asked to), fails on what a transformation puts
into a node (tracers, `object()`, `None`, specs), or follows a cycle. A node class is known by its `__node_spec__`, of
which only `fields` is read.
"""

import array
import collections
import dataclasses
import difflib
import enum
import functools
import hashlib
import itertools
import re
import reprlib
import sys
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._jax_refs import is_ref
from treewright._values import reach
from treewright._values.reach import class_of

LENGTH = 80  # characters of a bounded text
_FEW = 6  # items of a container, and levels of containers, in a bounded text
_MANY = 100  # items of a container in a portable text that is kept
_KEPT = 4000  # characters of a portable text that is kept
_DEPTH = 60  # levels of containers in any text; Python's own stack ends at a few hundred
_NAMED = 3  # names that a message lists
_DTYPE_KINDS = types.MappingProxyType({"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"})
_DTYPE_NAME = re.compile(r"(float|bfloat|int|uint|complex)(\d.*)")
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|\b0x[0-9a-fA-F]{8,}")
_MARKS: tuple[tuple[type[Any], str], ...] = (
    (Tracer, "(traced)"),
    (jax.Array, ""),
    (np.ndarray, "(numpy)"),
    (jax.ShapeDtypeStruct, "(abstract)"),
)
# Classes as `Any`: after `isinstance` with them the parts of a value are still `Any`, and not unknown.
_OBJECT: Any = object
_SETS: Any = (set, frozenset)
_SEQUENCES: Any = (tuple, list)
_DICT: Any = dict
_DEQUE: Any = collections.deque
_SLICED = frozenset({str, bytes, bytearray, array.array})  # whose text begins as that of their beginning
_MAPPING: Any = Mapping


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
        return f"<{class_of(value).__name__}>"
    return f"{shape_text(dtype, shape)}{mark if label is None else label()}"


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


class _Text:
    """One walk through a value, in full.

    Attributes:
        most: How many items of a container are written; None for all.
        depth: How many levels of containers are written.
        inside: The ids of the containers that are being written; one that is met again is written as `...`.
    """

    most: int | None = None
    depth: int = _DEPTH

    def __init__(self, *, with_module: bool = False) -> None:
        self.with_module = with_module
        self.inside: list[int] = []

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
            return f"({self.items(value)}{',' if len(value) == 1 else ''})"
        if kind is list:
            return f"[{self.items(value)}]"
        if isinstance(value, _SETS):
            members = f"{{{self.joined(sorted(self.members(value)))}}}" if value else ""
            return members if members and kind is set else f"{self.class_name(kind)}({members})"
        if isinstance(value, functools.partial):
            keywords = self.arguments(value.keywords.items())
            texts = itertools.chain(map(self.of, (value.func, *value.args)), keywords)
            return f"{self.class_name(kind)}({self.joined(texts)})"
        if isinstance(value, _DICT):
            return self.entries(value) if kind is dict else f"{self.class_name(kind)}({self.entries(value)})"
        names = names_in(kind)
        if names:
            return self.call(kind, zip(names, value, strict=True))
        if hasattr(kind, "__node_spec__") and getattr(kind, "__repr__") is node_repr:  # noqa: B009  untyped
            return self.call(kind, shown_fields(value))
        return self.whole(value)

    def class_name(self, kind: type[Any]) -> str:
        """What the text of a container begins with."""
        return str(kind.__qualname__ if hasattr(kind, "__node_spec__") else kind.__name__)

    def whole(self, value: Any) -> str:
        """The text of what is not opened, and has no name."""
        return repr(value)

    def joined(self, texts: Iterable[str]) -> str:
        """The first of these texts, and dots for the others, which are not written."""
        texts = iter(texts)
        first = list(itertools.islice(texts, self.most))
        return ", ".join([*first, *("..." for _ in itertools.islice(texts, 1))])

    def items(self, values: Iterable[Any]) -> str:
        return self.joined(map(self.of, values))

    def members(self, values: Collection[Any]) -> Iterable[str]:
        """The texts of what a set holds, in any order."""
        return map(self.of, values)

    def arguments(self, pairs: Iterable[tuple[str, Any]]) -> Iterator[str]:
        return (f"{name}={self.of(value)}" for name, value in pairs)

    def call(self, kind: type[Any], pairs: Iterable[tuple[str, Any]]) -> str:
        return f"{self.class_name(kind)}({self.joined(self.arguments(pairs))})"

    def entries(self, mapping: Mapping[Any, Any]) -> str:
        return f"{{{self.joined(f'{self.of(key)}: {self.of(value)}' for key, value in mapping.items())}}}"


def text(value: Any, *, with_module: bool = False) -> str:
    """One line for any value, in full: arrays by shape and dtype, functions by name, nodes by their fields.

    Args:
        value: Anything.
        with_module: Whether functions and classes are written as `module.name`, to tell two of one name apart.
    """
    return _Text(with_module=with_module).of(value)


@reprlib.recursive_repr()
def node_repr(self: Any) -> str:
    """The `__repr__` of a node, in one line: arrays as `f32[784,128]`, statics in full."""
    return text(self)


# Bounded


class _BoundedText(_Text):
    """One walk that writes a few parts of a value, however large it is."""

    most = _FEW
    depth = _FEW

    def __init__(self, *, with_module: bool) -> None:
        super().__init__(with_module=with_module)
        self.cut = reprlib.Repr()
        self.cut.maxstring = self.cut.maxother = LENGTH

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


class _FirstText(_Text):
    """One walk that writes what it would write in full, but ends where nobody reads on."""

    def whole(self, value: Any) -> str:
        kind = class_of(value)
        if kind in _SLICED:
            value = value[:LENGTH]
        elif kind is _DEQUE:
            value = _DEQUE(itertools.islice(value, LENGTH), value.maxlen)
        return super().whole(value)

    def joined(self, texts: Iterable[str]) -> str:
        written: list[str] = []
        length = 0
        for one in texts:
            written.append(one)
            length += len(one) + len(", ")
            if length > LENGTH:
                break
        return ", ".join(written)

    def members(self, values: Collection[Any]) -> Iterable[str]:
        return map(self.of, itertools.islice(values, LENGTH))


def first_text(value: Any) -> str:
    """The first 80 characters of the `text` of a value, however large it is: for messages."""
    return cut_text(_FirstText().of(value))


def cut_text(whole: str) -> str:
    """At most 80 characters of a text."""
    return whole if len(whole) <= LENGTH else f"{whole[: LENGTH - 3]}..."


def text_with_class(value: Any) -> str:
    """`a list, [64, 64]`."""
    name = class_of(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}, {first_text(value)}"


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
    """The lines of a table in plain text.

    Args:
        rows: Its cells; the first row is the head.
        right: The names of the columns that are aligned on the right.
        rule: Whether a line of dashes follows the head.
    """
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


def first_names(names: Iterable[str]) -> str:
    """The first three of these names, and dots for the others."""
    names = iter(names)
    first = list(itertools.islice(names, _NAMED))
    return ", ".join([*first, *("..." for _ in itertools.islice(names, 1))])


# The same in another process


def portable_text(value: object, *, exact: bool) -> str:
    """A text without addresses, which is equal in another process for values that do the same.

    Functions that can be imported count by their name, others by their name and what they hold and read; objects of
    classes that are not known here count by their `repr`. Fields that are local to a process are left out.

    Args:
        value: Anything.
        exact: Whether the text also tells apart values that do not do the same, for processes that run the same Python
            and the same versions of libraries: by the code of functions, the data of arrays, and all items of
            containers. Otherwise it is bounded, and fit to be kept.
    """
    written = _PortableText(exact=exact).of(value)
    return written if exact else written[:_KEPT]


def portable_text_and_modules(value: object) -> tuple[str, set[str]]:
    """The exact text of a value, and the modules of the functions and classes in it."""
    walk = _PortableText(exact=True)
    return walk.of(value), walk.modules


def full_name(value: Any) -> str:
    """`module.name` of a class or function; classes of Python itself without a module."""
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}".removeprefix("builtins.")


class _PortableText(_Text):
    """One walk for `portable_text`."""

    def __init__(self, *, exact: bool) -> None:
        super().__init__(with_module=True)
        self.exact = exact
        self.most = None if exact else _MANY
        self.modules: set[str] = set()

    def name(self, value: Any) -> str | None:
        kind = class_of(value)
        if kind in reach.CONSTANTS:
            return repr(value)
        if isinstance(value, enum.Enum):
            return f"{self.full_name(kind)}.{value.name or value.value}"
        if isinstance(value, np.ndarray | jax.Array):
            return self.array(value)
        if isinstance(value, type) or (callable(value) and reach.import_path(value) is not None):
            of_the_user = self.exact and isinstance(value, types.FunctionType) and not reach.library_made(value)
            code = f"#{_digest(self.code(value).encode())}" if of_the_user else ""  # hosts may have it from other files
            return f"{self.full_name(value)}{code}"
        return value.__name__ if isinstance(value, types.ModuleType) else None

    def array(self, value: Any) -> str | None:
        if not self.exact:
            return array_text(value)
        shown = shape_text(value.dtype, value.shape)
        if not getattr(value, "is_fully_addressable", True):
            return shown
        data = jax.random.key_data(value) if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key) else value
        return f"{shown}#{_digest(np.asarray(data).tobytes())}"

    def opened(self, value: Any) -> str:
        kind = class_of(value)
        if hasattr(kind, "__node_spec__"):
            names = [field.name for field in kind.__node_spec__.fields if not field.local]
            return self.call(kind, ((name, getattr(value, name)) for name in names))
        if dataclasses.is_dataclass(kind):
            return self.call(kind, ((field.name, getattr(value, field.name)) for field in dataclasses.fields(kind)))
        if hasattr(value, "__func__") and hasattr(value, "__self__"):
            return f"{self.of(value.__self__)}.{value.__func__.__name__}"
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, _MAPPING) and not isinstance(value, _DICT):
            return f"{self.full_name(kind)}({self.entries(value)})"
        if isinstance(value, _SEQUENCES) and kind not in _SEQUENCES and not names_in(kind):
            return f"{self.full_name(kind)}({self.items(value)})"
        if callable(value) and reach.wrapped_by(value) is not None:
            return f"{self.full_name(kind)}({self.of(reach.wrapped_by(value))})"
        return super().opened(value)

    def function(self, value: types.FunctionType) -> str:
        held = self.joined(self.arguments((reach.held_by(value) | reach.read_by(value)).items()))
        code = f"#{_digest(self.code(value).encode())}" if self.exact else ""
        return f"{self.full_name(value)}{code}({held})"

    def full_name(self, value: Any) -> str:
        self.modules.add(str(getattr(value, "__module__", None)))
        return full_name(value)

    def code(self, function: types.FunctionType | types.CodeType) -> str:
        parts, constants = reach.program_of(function)
        texts = (self.code(one) if isinstance(one, types.CodeType) else self.of(one) for one in constants)
        return " ".join([parts, *texts])

    def class_name(self, kind: type[Any]) -> str:
        return self.full_name(kind)

    def whole(self, value: Any) -> str:
        kind = class_of(value)
        held = self.held(value) if self.exact else {}
        if held and kind.__repr__ is _OBJECT.__repr__:
            return self.call(kind, held.items())
        try:
            shown = _ADDRESS.sub("", repr(value))
        except Exception:  # noqa: BLE001  a user's `__repr__`; the class alone must do
            shown = "..."
        attributes = f" ({self.joined(self.arguments(held.items()))})" if held else ""
        return f"{self.full_name(kind)}: {shown}{attributes}"

    def held(self, value: Any) -> dict[str, Any]:
        """What an object of a user's class consists of, whatever its `repr` tells, and without what it only keeps."""
        kind = class_of(value)
        if reach.library_class(kind) or kind.__module__.partition(".")[0] in sys.stdlib_module_names:
            return {}
        state = sorted(reach.state_of(value).items())
        return {name: part for name, part in state if not reach.is_cached_property(kind, name)}


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]
