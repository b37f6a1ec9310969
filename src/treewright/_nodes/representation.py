"""Values as short text: `f32[784,128]` for arrays, names for functions, fields for nodes.

Never reads the data of an array, never fails on what a transformation puts into a node (tracers, `object()`, `None`,
specs), and stops at cycles.
"""

import re
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np

_DTYPE_KINDS = {"float": "f", "bfloat": "bf", "int": "i", "uint": "u", "complex": "c"}
_DTYPE_NAME = re.compile(r"(float|bfloat|int|uint|complex)(\d.*)")


def short_dtype(dtype: object) -> str:
    """`f32` for `float32`, `bf16` for `bfloat16`, `key<fry>` for typed keys; other names as they are."""
    name = str(dtype)
    match = _DTYPE_NAME.fullmatch(name)
    return f"{_DTYPE_KINDS[match[1]]}{match[2]}" if match else name


def array_text(value: Any) -> str | None:
    """`f32[784,128]` for an array, with what it is when it is no plain `jax.Array`; None for anything else."""
    match value:
        case jax.core.Tracer():
            kind = "(traced)"
        case jax.Array():
            kind = ""
        case np.ndarray():
            kind = "(numpy)"
        case jax.ShapeDtypeStruct():
            kind = "(abstract)"
        case _:
            return None
    try:
        return f"{short_dtype(value.dtype)}[{','.join(map(str, value.shape))}]{kind}"
    except Exception:  # a tracer of something that is no array (a token, a ref), or a subclass that is half made
        return f"<{type(value).__name__}>"


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


def text(value: object, *, with_module: bool = False, inside: frozenset[int] = frozenset()) -> str:
    """One line for any value.

    Args:
        value: Anything.
        with_module: Print functions and classes as `module.name`, for messages that must tell two of them apart.
        inside: The ids of the containers that are being printed; one that is met again prints as `...`.
    """
    found = array_text(value) or function_text(value, with_module=with_module)
    if found is not None:
        return found
    if id(value) in inside:
        return "..."
    deeper = inside | {id(value)}

    def texts(values: Iterable[object]) -> Iterator[str]:
        return (text(item, with_module=with_module, inside=deeper) for item in values)

    kind: type = type(value)
    if kind is tuple:
        items = tuple(cast("tuple[object, ...]", value))
        return f"({', '.join(texts(items))}{',' if len(items) == 1 else ''})"
    if kind is list:
        return f"[{', '.join(texts(cast('list[object]', value)))}]"
    if kind is dict:
        items = cast("Mapping[object, object]", value).items()
        return f"{{{', '.join(f'{key!r}: {item}' for (key, _), item in zip(items, texts(v for _, v in items), strict=True))}}}"
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return call_text(kind.__name__, zip(kind._fields, texts(value), strict=True))
    if hasattr(kind, "__node_spec__") and kind.__repr__ is node_repr:
        return call_text(kind.__qualname__, ((name, *texts([item])) for name, item in node_fields(value)))
    return repr(value)


def call_text(name: str, arguments: Iterable[tuple[str, str]]) -> str:
    """`Name(a=1, b=2)`."""
    return f"{name}({', '.join(f'{key}={item}' for key, item in arguments)})"


# Nodes. A class is known by its `__node_spec__`; what is read of it is `fields`, and of an instance its fields.


class _NoValue:
    """Stands for the value of a field that has none yet."""

    def __repr__(self) -> str:
        return "<no value yet>"


def node_fields(node: Any) -> Iterator[tuple[str, Any]]:
    """The names and values that `repr` shows, also of a node that is half built."""
    for field in type(node).__node_spec__.fields:
        if field.repr:
            try:
                yield field.name, getattr(node, field.name)
            except AttributeError:
                yield field.name, _NoValue()


def node_repr(self: Any) -> str:
    """One line: arrays as `f32[784,128]`, statics in full."""
    return text(self)


def node_rich_repr(self: Any) -> Iterator[tuple[str, Any]]:
    """For `rich`: the fields, arrays as short text."""
    for name, value in node_fields(self):
        short = array_text(value)
        yield name, value if short is None else _Verbatim(short)


def node_wadler_lindig(self: Any, **options: Any) -> Any:
    """For `wadler_lindig`, which lays out long representations over several lines."""
    import wadler_lindig

    pairs = wadler_lindig.named_objs(node_fields(self), **options)
    return wadler_lindig.bracketed(
        begin=wadler_lindig.TextDoc(type(self).__qualname__ + "("),
        docs=pairs,
        sep=wadler_lindig.comma,
        end=wadler_lindig.TextDoc(")"),
        indent=options["indent"],
    )


def node_treescope_repr(self: Any, path: str | None, subtree_renderer: Any) -> Any:
    """For `treescope`: a foldable object with its fields."""
    from treescope import repr_lib

    return repr_lib.render_object_constructor(
        object_type=type(self),
        attributes=dict(node_fields(self)),
        path=path,
        subtree_renderer=subtree_renderer,
        roundtrippable=True,
    )


class _Verbatim:
    """Text that prints without quotes."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    def __repr__(self) -> str:
        return self.shown
