"""Values as short text: `f32[784,128]` for arrays, names for functions, fields for nodes.

Never reads the data of an array, never fails on what a transformation puts into a node (tracers, `object()`, `None`,
specs), and stops at cycles. A node class is known by its `__node_spec__`, of which only `fields` is read here.
"""

import functools
import re
import reprlib
import types
from collections.abc import Iterable, Iterator
from typing import Any, cast

import jax
import numpy as np
from jax.core import Tracer

from treewright._nodes.classes import class_of

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
