"""Format values as text: in full, over several lines for `repr`, or truncated for messages; and parts of messages.

Nothing here reads the data of an array (except scalars, for `repr`), fails on values that transformations put into
nodes (tracers, `object()`, `None`, specs), or follows a cycle. It reads only `__node_info__.fields` of a node class.
"""

import difflib
import functools
import inspect
import itertools
import re
import reprlib
import textwrap
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from treewright._base.functions import FrozenValue, NodeMethod, attribute_of
from treewright._base.jax_private import is_ref

LENGTH = 80  # maximum characters of a truncated text
_WIDTH = 88  # maximum characters of a line of `repr`
_INDENT = "    "
_MAX_DEPTH = 60  # levels of nested containers; Python's stack overflows at a few hundred
_MAX_SHORT = 32  # characters of an item, if several items of a tuple or list share a line
_NUMBER_DTYPE = re.compile(r"^(?:(b?f)loat|(u)int|(i)nt|(c)omplex)(?=\d)")
_MARKS: tuple[tuple[type[Any], str], ...] = (
    (Tracer, "(traced)"),
    (jax.Array, ""),
    (np.ndarray, "(numpy)"),
    (jax.ShapeDtypeStruct, "(abstract)"),
)


class _Cut(reprlib.Repr):
    """Python can't print ints above 4,300 digits: it raises, or since 3.12 prints an address."""

    def repr_int(self, x: int, level: int) -> str:
        return super().repr_int(x, level) if x.bit_length() < 14_000 else f"<int of {x.bit_length():,} bits>"


_CUT = _Cut()
_CUT.maxstring = _CUT.maxother = LENGTH


# Node classes


def is_node_class(cls: type[Any]) -> bool:
    """Whether a class is a node class."""
    return hasattr(cls, "__node_info__")


# Arrays and functions


def shape_text(dtype: object, shape: Iterable[object]) -> str:
    """`f32[784,128]`; `key<fry>[]` for typed keys; dtypes without a short name in full."""
    name = _NUMBER_DTYPE.sub(r"\1\2\3\4", str(dtype))
    return f"{name}[{','.join(map(str, shape))}]"


def array_text(value: Any, *, with_value: bool = False) -> str | None:
    """`f32[784,128]` for an array, with a mark unless it is a plain `jax.Array`; None for other values.

    With its value, a scalar is `f32(0.5)` and a deleted array `f32[2](deleted)`.
    """
    mark = next((mark for kind, mark in _MARKS if isinstance(value, kind)), None)
    if is_ref(value):
        mark = "(traced ref)" if mark else "(ref)"
    if mark is None:
        return None
    label = getattr(value, "_label", None)  # A FrozenArray has one.
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if shape is None or dtype is None:  # a tracer of another type than an array, such as a token
        return f"<{type(value).__name__}>"
    text = f"{shape_text(dtype, shape)}{mark if label is None else label()}"
    if not with_value or isinstance(value, Tracer):
        return text
    if getattr(value, "is_deleted", bool)():
        return f"{text}(deleted)"
    number = _scalar_number(value)  # Complex numbers already print with brackets.
    return text if number is None else text.replace("[]", f"({str(number).strip('()')})", 1)


def _scalar_number(value: Any) -> Any:
    """The number in a scalar array, waiting for its computation; None for other arrays, or if it can't be read."""
    is_scalar = isinstance(value, jax.Array | np.ndarray) and value.shape == ()
    if not is_scalar or not (value.dtype == bool or jnp.issubdtype(value.dtype, jnp.number)):
        return None
    if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
        return None
    try:
        return jax.device_get(value)[()]  # Explicit transfers pass a transfer guard.
    except RuntimeError:  # The computation failed; JAX reports it when the value is used.
        return None


def function_text(value: Any, *, with_module: bool = False) -> str | None:
    """The name of a function or class, or the file and line of a lambda; None for other values."""
    if type(value).__module__ in {"types", "typing"}:  # `list[int]` has the name of `list`
        return None
    name = attribute_of(value, "__qualname__")
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


_NO_VALUE = Verbatim("<no value>")  # for unset fields of an unfinished node


# Values


class _Walk:
    """One walk through a value, in full or with the first `most` items of each container and a limit for all.

    With a width, as for `repr`, it wraps containers that do not fit into a line.
    """

    def __init__(self, most: int | None = None, *, with_module: bool = False, width: int | None = None) -> None:
        self.most, self.with_module, self.width = most, with_module, width
        self.depth = min(most or _MAX_DEPTH, _MAX_DEPTH)
        self.left = 1000  # After this many items, a walk with a limit writes containers as `Layer(...)`.
        self.inside: list[int] = []  # The ids of the enclosing values; a cycle to one of them is written as `...`.

    def text(self, value: Any, reserved_width: int = 0) -> str:
        """The text of a value. On its last line, `reserved_width` characters remain free."""
        name = array_text(value, with_value=self.width is not None)
        name = name or function_text(value, with_module=self.with_module)
        if name is not None:
            return name
        if id(value) in self.inside or len(self.inside) > self.depth:
            return "..."
        self.inside.append(id(value))
        try:
            container = self.delimiters_and_items(value)
            return self.plain_text(value) if container is None else self.join(*container, reserved_width)
        except Exception:  # a user's `items` or `__repr__`, which must not replace the message about it
            if self.most is None or self.width is not None:
                raise
            return f"<{type(value).__qualname__} object>"
        finally:
            self.inside.pop()

    def delimiters_and_items(self, value: Any) -> tuple[str, Iterable[str], str] | None:
        """The opening delimiter of a container, the texts of its items, and the closing one; None for other values.

        Not as in `level_of` and `contents`, which say what JAX and exact keys see: here are only classes that Python
        prints by their items, without fields of `repr=False`, and items are read only as far as they are shown.
        """
        cls: Any = type(value)
        name, items, pairs = cls.__name__, self.items, self.pairs
        match value:
            case _ if is_node_class(cls):
                is_root = self.width is not None and len(self.inside) == 1  # Its custom `__repr__` may have called us.
                if cls.__repr__ is not node_repr and not is_root:
                    return None
                names = [field.name for field in cls.__node_info__.fields if field.repr]
                return f"{cls.__qualname__}(", pairs((name, getattr(value, name, _NO_VALUE)) for name in names), ")"
            case tuple() if hasattr(cls, "_fields"):
                return f"{name}(", pairs(zip(cls._fields, value, strict=True)), ")"
            case tuple() if cls is tuple:
                return "(", items(value), ",)" if len(value) == 1 else ")"
            case list() if cls is list:
                return "[", items(value), "]"
            case set() | frozenset() if value:
                first = itertools.islice(value, None if self.most is None else self.most + 1)
                opening, closing = ("{", "}") if cls is set else (f"{name}({{", "})")
                return opening, sorted(items(first)), closing
            case functools.partial():
                return f"{name}(", itertools.chain(items((value.func, *value.args)), pairs(value.keywords.items())), ")"
            case Mapping() if isinstance(value, dict) or issubclass(cls, FrozenValue):  # FrozenMapping
                opening, closing = ("{", "}") if cls is dict else (f"{name}({{", "})")
                return opening, pairs(((self.text(key), item) for key, item in value.items()), sign=": "), closing
            case _:
                return None

    def items(self, values: Iterable[Any]) -> Iterator[str]:
        return (self.text(value, reserved_width=1) for value in values)  # for a comma

    def pairs(self, items: Iterable[tuple[str, Any]], sign: str = "=") -> Iterator[str]:
        for name, value in items:
            yield f"{name}{sign}{self.text(value, reserved_width=len(name) + len(sign) + 1)}"

    def join(self, opening: str, texts: Iterable[str], closing: str, reserved_width: int) -> str:
        """A container in Python syntax: on one line if it fits, otherwise with a line for each item."""
        parts = _truncated(texts, self.most if self.most is None or self.left > 0 else 0)
        self.left -= len(parts)
        line = f"{opening}{', '.join(parts)}{closing}"
        if self.width is None or not parts:
            return line
        room = self.width - len(_INDENT) * (len(self.inside) - 1)
        if "\n" not in line and len(line) + reserved_width <= room:
            return line
        lines = [f"{part}," for part in parts]
        if opening in {"(", "["} and max(map(len, parts)) <= _MAX_SHORT and "\n" not in line:
            # Several items in a line; "\0" protects the spaces inside an item.
            atoms = ", ".join(part.replace(" ", "\0") for part in parts)
            wrapper = textwrap.TextWrapper(max(room - len(_INDENT), 1), break_long_words=False, break_on_hyphens=False)
            lines = [wrapped.replace("\0", " ") for wrapped in wrapper.wrap(atoms)]
        return "\n".join([opening, textwrap.indent("\n".join(lines), _INDENT), closing.lstrip(",")])

    def plain_text(self, value: Any) -> str:
        """The `repr` of a value that is not a container; on one line unless the walk has a width."""
        if self.width is not None:
            return repr(value)
        cls: Any = type(value)
        if cls is types.MethodType:
            function = function_text(value.__func__) or self.text(value.__func__)
            return f"{function} of {self.text(value.__self__)}"
        if self.most is None:
            text = repr(value)
        elif cls.__repr__ is object.__repr__:  # The address is useless.
            text = f"<{cls.__qualname__} object>"
        else:
            text = _CUT.repr(value)
        return " ".join(text.split()) if "\n" in text else text


def text(value: Any, *, with_module: bool = False) -> str:
    """A value on one line, in full: arrays by shape and dtype, functions by name, nodes by their fields."""
    return _Walk(with_module=with_module).text(value)


def short_text(value: Any, *, with_module: bool = False) -> str:
    """A value on one line of at most 80 characters; optionally with the modules of functions and classes."""
    return cut_text(_Walk(6, with_module=with_module).text(value))


def node_repr(self: Any) -> str:
    """The text of a node: arrays as f32[784,128], scalars as f32(0.5), statics in full.

    It uses one line of at most 88 characters, or several lines; dots replace everything after a thousand values.
    """
    # Not recursive_repr itself: rich replaces a dataclass's `__repr__` if it is defined in reprlib's file.
    return _repr_once(self)


@reprlib.recursive_repr()
def _repr_once(node: Any) -> str:
    return _Walk(100, width=_WIDTH).text(node)


# Parts of messages


def cut_text(text: str, length: int = LENGTH) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."


def with_article(name: str) -> str:
    """`a Net`, `an Adam`, `an MLP`."""
    vowels = "AEFHILMNORSX" if name[:2].isupper() else "aeiouAEIO"
    return f"{'an' if name[0] in vowels else 'a'} {name}"


def class_name(value: Any) -> str:
    """The name of a value's class; `jax.Array` for JAX's arrays and tracers, whose classes are private like ours."""
    if isinstance(value, NodeMethod):
        return "method"
    return "jax.Array" if isinstance(value, jax.Array) else type(value).__name__


def text_with_class(value: Any) -> str:
    """`a list, [64, 64]`."""
    return f"{with_article(class_name(value))}, {short_text(value)}"


def annotation_text(annotation: Any, cls: type[Any]) -> str:
    """An annotation as a user writes it in the body of `cls`, or three dots if that is unknown."""
    source = annotation.__forward_arg__ if isinstance(annotation, typing.ForwardRef) else annotation
    if isinstance(source, str):
        return source
    # The __module__ of jax.Array is private.
    text = inspect.formatannotation(source, cls.__module__)
    text = text.replace("jax.jaxlib._jax.", "jax.").replace("collections.abc.", "")
    return "..." if "._" in text or "<" in text else text


def did_you_mean(wrong: str, names: Iterable[str], *, show: Callable[[str], str] = str) -> str:
    """` (did you mean kernel?)`, to append to a wrong name; empty if no name is close."""
    close = difflib.get_close_matches(wrong, list(names), 1)
    return f" (did you mean {show(close[0])}?)" if close else ""


def with_close_matches(wrong: Iterable[str], names: Collection[str]) -> str:
    """Wrong names, each followed by the closest valid name."""
    return ", ".join([f"{name}{did_you_mean(name, names)}" for name in wrong])


def _truncated(texts: Iterable[str], count: int | None) -> list[str]:
    """The first of these texts, and dots for the rest, which are not computed."""
    texts = iter(texts)
    return [*itertools.islice(texts, count), *("..." for _ in itertools.islice(texts, 1))]
