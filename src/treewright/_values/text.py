"""A value as one line: `f32[784,128]` for arrays, names for functions, fields for nodes; and why one has no exact key.

Never reads the data of an array, never fails on what a transformation puts into a node (tracers, `object()`, `None`,
specs), and stops at cycles. A node class is known by its `__node_spec__`, of which only `fields` is read here.
"""

import difflib
import functools
import itertools
import re
import reprlib
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._values.classes import class_of

_DTYPE_KINDS = types.MappingProxyType({"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"})
_DTYPE_NAME = re.compile(r"(float|bfloat|int|uint|complex)(\d.*)")


_DEPTH = 60  # levels of containers that are printed; Python's own stack ends at a few hundred


def short_dtype(dtype: object) -> str:
    """`f32` for `float32`, `bf16` for `bfloat16`, `key<fry>` for typed keys; other names as they are."""
    name = str(dtype)
    match = _DTYPE_NAME.fullmatch(name)
    return f"{_DTYPE_KINDS[match[1]]}{match[2]}" if match else name


def array_text(value: Any) -> str | None:
    """`f32[784,128]` for an array, with what it is when it is no plain `jax.Array`; None for anything else."""
    if isinstance(value, Tracer):
        kind = "(traced)"
    elif isinstance(value, jax.Array):
        kind = ""
    elif isinstance(value, np.ndarray):
        label: Any = _attribute(value, "_label")  # of a FrozenArray
        kind = "(numpy)" if label is None else label()
    elif isinstance(value, jax.ShapeDtypeStruct):
        kind = "(abstract)"
    else:
        return None
    shape, dtype = _attribute(value, "shape"), _attribute(value, "dtype")
    if shape is None or dtype is None:  # a tracer of something that is no array, such as a token
        return f"<{_attribute(value, '__class__').__name__}>"
    return f"{short_dtype(dtype)}[{','.join(map(str, shape))}]{kind}"


def _attribute(value: Any, name: str) -> Any:
    return getattr(value, name, None)


def function_text(value: object, *, with_module: bool = False) -> str | None:
    """The name of a function or class, the place of a lambda; None for anything that has no name of its own."""
    name = getattr(value, "__qualname__", None)
    if isinstance(value, types.MethodType) or not callable(value) or not isinstance(name, str):
        return None
    code = getattr(value, "__code__", None)
    if name.endswith("<lambda>") and isinstance(code, types.CodeType):
        return f"<lambda at {code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}>"
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if with_module and module not in {None, "builtins"} else name


def text(value: Any, *, with_module: bool = False, inside: frozenset[int] = frozenset()) -> str:
    """One line for any value.

    Args:
        value: Anything.
        with_module: Print functions and classes as `module.name`, for messages that must tell two of them apart.
        inside: The ids of the containers that are being printed; one that is met again prints as `...`.
    """
    found = array_text(value) or function_text(value, with_module=with_module)
    if found is not None:
        return found
    if id(value) in inside or len(inside) > _DEPTH:
        return "..."
    inside |= {id(value)}

    def inner(item: Any) -> str:
        return text(item, with_module=with_module, inside=inside)

    kind = class_of(value)
    if kind is tuple:
        return f"({', '.join(map(inner, value))}{',' if len(value) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(map(inner, value))}]"
    if isinstance(value, functools.partial):
        keywords = (f"{key}={inner(item)}" for key, item in value.keywords.items())
        return f"{kind.__name__}({', '.join([inner(value.func), *map(inner, value.args), *keywords])})"
    if issubclass(kind, dict):
        items = f"{{{', '.join(f'{key!r}: {inner(item)}' for key, item in value.items())}}}"
        return items if kind is dict else f"{kind.__name__}({items})"
    names = _attribute(kind, "_fields")
    if names and issubclass(kind, tuple):
        return _call_text(str(kind.__name__), zip(names, map(inner, value), strict=True))
    if hasattr(kind, "__node_spec__") and _attribute(kind, "__repr__") is node_repr:
        return _call_text(_attribute(kind, "__qualname__"), ((name, inner(item)) for name, item in shown_fields(value)))
    return repr(value)


def _call_text(name: str, arguments: Iterable[tuple[str, str]]) -> str:
    return f"{name}({', '.join(f'{key}={item}' for key, item in arguments)})"


class Verbatim:
    """Text that prints without quotes."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown


def shown_fields(node: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that `repr` shows, also of a node that is half built."""
    fields: Any = class_of(node).__node_spec__.fields
    for field in fields:
        if field.repr:
            yield field.name, getattr(node, field.name, Verbatim("<no value>"))


# What a node class takes over


@reprlib.recursive_repr()
def node_repr(self: Any) -> str:
    """One line: arrays as `f32[784,128]`, statics in full."""
    return text(self)


def node_rich_repr(self: Any) -> Iterator[tuple[str, Any]]:
    """For `rich`: the fields, arrays as short text."""
    for name, value in shown_fields(self):
        yield name, _shortened(value, frozenset())


def _shortened(value: Any, inside: frozenset[int]) -> Any:
    """The value with short text in place of its arrays, in lists, tuples and dicts too."""
    short = array_text(value)
    if short is not None:
        return Verbatim(short)
    kind = class_of(value)
    if kind not in {list, tuple, dict}:
        return value
    if id(value) in inside:
        return Verbatim("...")
    inside |= {id(value)}
    if kind is dict:
        return cast("Any", {key: _shortened(item, inside) for key, item in value.items()})
    return cast("Any", kind)(_shortened(item, inside) for item in value)


def node_wadler_lindig(self: Any, **options: Any) -> Any:
    """For `wadler_lindig`, which lays out long representations over several lines."""
    import wadler_lindig

    return wadler_lindig.bracketed(
        begin=wadler_lindig.TextDoc(f"{type(self).__qualname__}("),
        docs=cast("Any", wadler_lindig).named_objs(shown_fields(self), **options),
        sep=wadler_lindig.comma,
        end=wadler_lindig.TextDoc(")"),
        indent=options["indent"],
    )


_STATIC_STYLE = "color: #b45309; font-style: italic"


def node_treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    """For `treescope`: a foldable object with its fields; statics and buffers are told apart from plain children."""
    from treescope import rendering_parts as parts

    kinds = {field.name: field.kind for field in class_of(self).__node_spec__.fields}
    shown = list(shown_fields(self))
    lines: list[Any] = []
    for index, (name, value) in enumerate(shown, 1):
        label, kind = parts.text(name), kinds[name]
        if kind == "static":
            label = parts.custom_style(label, _STATIC_STYLE)
        note = "" if kind == "child" else f"  # {kind}"
        end = parts.fold_condition(
            collapsed=parts.text("" if index == len(shown) else ", "),
            expanded=parts.siblings(",", parts.comment_color(parts.text(note))),
        )
        child = subtree_renderer(value, path=None if path is None else f"{path}.{name}")
        line = parts.siblings_with_annotations(label, "=", child)
        lines.append(parts.build_full_line_with_annotations(line, end))
    return parts.build_foldable_tree_node_from_children(
        prefix=parts.siblings(parts.maybe_qualified_type_name(class_of(self)), "("),
        children=lines,
        suffix=")",
        path=path,
    )


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


MUTABLE = (list, dict, set, bytearray)
_NAMED = 3  # names that a reason lists
_ANSWERS = (bool, np.bool_)


class NoExactKeyError(TypeError):
    """A value that can't be compared exactly, with the words for an error message."""

    def __init__(self, found: str, consequence: str) -> None:
        super().__init__(found)
        self.found = found
        self.consequence = consequence


class ItselfOnlyError(Exception):
    """A value inside a function, partial or method makes the whole equal to itself only; with the reason in words."""


def problem_of(value: Any) -> NoExactKeyError:
    """Why `value` can't be a static, in words."""
    if isinstance(value, Tracer):
        return NoExactKeyError(
            f"a tracer, {text(value)}",
            "A tracer stands for a value of one trace only, and a static outlives the trace.",
        )
    if isinstance(value, np.ndarray | jax.Array):
        return NoExactKeyError(
            f"an array, {text(value)}",
            "jit compares statics with ==, which gives an array and no answer, and changes of its values "
            "would give stale results.",
        )
    if isinstance(value, MUTABLE):
        return NoExactKeyError(
            shown(value), "jit compares statics and never copies them, so a change in place would give stale results."
        )
    return NoExactKeyError(
        shown(value), "It can't be hashed, so jit could not tell whether it is the value that it compiled for."
    )


def shown(value: Any) -> str:
    """`a list, [64, 64]`."""
    kind = class_of(value)
    article = "an" if kind.__name__[0].lower() in "aeiou" else "a"
    shown = text(value)
    return f"{article} {kind.__name__}, {shown if len(shown) <= 80 else shown[:77] + '...'}"


def unanswered(value: Any, why: Exception | object) -> NoExactKeyError:
    """Why a value can't be a static whose `==` raised this error, or gave this answer."""
    name = class_of(value).__qualname__
    raised = f"raises {type(why).__name__}: {why}" if isinstance(why, Exception) else f"gives {text(why)}, no bool"
    return NoExactKeyError(
        shown(value),
        f"{name}.__eq__ {raised}, so jit could not tell whether it is the value that it compiled for.",
    )


def refuse_equality(value: Any) -> None:
    """Ask a user's `==` once, where the class and the field can still be named."""
    try:
        answer = value == value  # noqa: PLR0124
    except Exception as error:
        raise unanswered(value, error) from error
    if not isinstance(answer, _ANSWERS):
        raise unanswered(value, answer)


def listed(names: Iterable[str]) -> str:
    """The first of these names, and dots for the others."""
    first = list(itertools.islice(names, _NAMED + 1))
    return ", ".join([*first[:_NAMED], *(["..."] if len(first) > _NAMED else [])])
