"""Nodes have the annotations of a frozen dataclass on the running Python."""

import dataclasses
import inspect
import pydoc
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from tests.expected_text import without_varying_parts
from treewright import Module, pytree_dataclass, static

LAZY = sys.version_info >= (3, 14)
since_3_12 = pytest.mark.skipif(sys.version_info < (3, 12), reason="type parameters are new in Python 3.12")
since_3_14 = pytest.mark.skipif(not LAZY, reason="__annotate__ is new in Python 3.14")

HEADER = """
import dataclasses, typing
from dataclasses import KW_ONLY, InitVar, dataclass, field, make_dataclass
from typing import Annotated, Any, ClassVar, Generic, Optional, TypeVar
"""

# A class C, and names that are defined only after it. Without quotes around these names, Python up to 3.13 rejects both
# classes.
SOURCES = {
    "plain": "@node\nclass C:\n    x: int\n    y: Optional[str] = None\n    z: Any = field(default_factory=list)\n",
    "itself": "@node\nclass C:\n    x: int\n    parent: C | None = None\n",
    "later": "@node\nclass C:\n    x: Later\n    y: list[Later]\n    z: dict[str, Later | None] | None = None\n",
    "unknown": (
        "@node\nclass C:\n    x: Unknown\n    y: Unknown.inside[int] = 3\n    z: Annotated[Unknown, 'of nobody'] = 3\n"
    ),
    "strings": "@node\nclass C:\n    x: 'int'\n    y: 'Later'\n    z: 'Unknown | C' = 3\n    w: 'InitVar[int]' = 4\n",
    "future": "from __future__ import annotations\n"
    + HEADER
    + "@node\nclass C:\n    parent: C | None = None\n    later: Later | Unknown = 3\n",
    "InitVar and ClassVar": (
        "@node\nclass C:\n    total: ClassVar[int] = 3\n    others: ClassVar['Later | None'] = None\n    x: int\n"
        "    seed: InitVar[int] = 0\n    later: 'InitVar[Later]' = 0\n    __post_init__ = lambda self, *given: None\n"
    ),
    "InitVar": "@node\nclass C:\n    total: ClassVar[Later] = 3\n    x: InitVar[Later]\n    y: InitVar[int] = 3\n",
    "kw_only": "@node\nclass C:\n    x: int\n    _: KW_ONLY\n    y: 'C'\n    z: int = field(default=3, init=False)\n",
    "generic": "T = TypeVar('T')\n@node\nclass C(Generic[T]):\n    x: T\n    y: 'C[T] | None' = None\n",
    "PEP 695": "@node\nclass C[T]:\n    x: T\n    y: list[T] = None\n    z: C[T] | None = None\n    w: Later = 3\n",
    "bounds": "type Pair[T] = tuple[T, Later]\n@node\nclass C[S: Later, *Ts]:\n    x: Pair[S]\n    y: tuple[*Ts]\n",
    "bases": "@node\nclass A:\n    x: Later\n    y: int\n@node\nclass C(A):\n    z: 'C'\n    y: float\n",
    "decorated": "@node\nclass A:\n    x: Later\nclass C(A):\n    y: list[C | Later] | None = None\nC = node(C)\n",
    "explicit __annotate__": (
        "class C:\n    def __annotate__(format):\n        if format > 2: raise NotImplementedError(format)\n"
        "        return {'x': int, 'y': Later}\n    y = 3\nC = node(C)\n"
    ),
    "in the namespace": "C = node(type('C', (), {'__annotations__': {'x': int, 'y': 'Later'}, 'y': 3}))\n",
    "replaced": "class C:\n    x: int\nC.__annotations__ = {'x': str, 'y': 'Later'}\nC = node(C)\n",
    "make_dataclass": "C = make_dataclass('C', ['x', ('y', int), ('z', 'Later', 3)], decorator=node)\n",
    "make_dataclass with a base": (
        "@node\nclass A:\n    w: int\n"
        "C = make_dataclass('C', ['x', ('z', 'Later', 3)], bases=(A,), namespace={'two': 2}, decorator=node)\n"
    ),
    "local": (
        "def make():\n    class Inside: pass\n    @node\n"
        "    class C:\n        x: Inside\n        y: Later\n        z: After\n"
        "    class After: pass\n    return C\nC = make()\n"
    ),
}
NEWER = {
    **dict.fromkeys(("PEP 695", "bounds"), since_3_12),
    **dict.fromkeys(("explicit __annotate__", "make_dataclass", "make_dataclass with a base"), since_3_14),
}
CASES = [pytest.param(source, id=name, marks=NEWER.get(name, ())) for name, source in SOURCES.items()]


def outcome(look: Callable[[], object]) -> str:
    """The result or error of an inspection, as text without addresses."""
    try:
        text = repr(look())
    except Exception as error:  # noqa: BLE001  to be compared with the other's
        text = f"{type(error).__name__}: {error}"
    return without_varying_parts(text)


def help_on_init(cls: type) -> list[str]:
    return [line for line in pydoc.plain(pydoc.render_doc(cls)).splitlines() if "__init__(" in line]


def docstring(cls: Any) -> str:
    """A class's docstring: Python 3.14 writes it with the dataclass, 3.15 and Treewright at the first access."""
    if sys.version_info >= (3, 14):
        import annotationlib

        if sys.version_info < (3, 15) and not hasattr(cls, "__node_info__") and "looked_at" not in vars(cls):
            signature = inspect.signature(cls, annotation_format=annotationlib.Format.FORWARDREF)
            cls.__doc__, cls.looked_at = cls.__name__ + str(signature).replace(" -> None", ""), True
    return str(cls.__doc__)


def views(cls: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Functions that show the annotations of a class, by name."""
    yield "fields", lambda: [(each.name, each.type) for each in dataclasses.fields(cls)]
    yield "signature", lambda: str(inspect.signature(cls))
    yield "docstring", lambda: docstring(cls)
    yield "help", lambda: help_on_init(cls)
    yield "annotations", lambda: cls.__init__.__annotations__
    yield "hints of __init__", lambda: typing.get_type_hints(cls.__init__, include_extras=True)
    yield "hints", lambda: typing.get_type_hints(cls)
    yield "module", lambda: cls.__module__
    if sys.version_info >= (3, 14):
        import annotationlib

        def signature(kind: annotationlib.Format) -> str:
            return str(inspect.signature(cls, annotation_format=kind))

        def called(kind: annotationlib.Format) -> object:
            return cls.__init__.__annotate__(kind)

        for kind in annotationlib.Format:
            yield f"{kind.name} of __init__", partial(annotationlib.get_annotations, cls.__init__, format=kind)
            yield f"{kind.name} called", partial(called, kind)
            yield f"{kind.name} signature", partial(signature, kind)
            yield f"{kind.name} of the class", partial(annotationlib.get_annotations, cls, format=kind)


def annotations_of(source: str, node: Callable[..., Any], name: str) -> dict[str, str]:
    """The annotations of a class from source, before and after the later names are defined."""
    module = sys.modules[name] = types.ModuleType(name)
    vars(module).update(node=node, Module=Module)
    annotations: dict[str, str] = {}
    try:
        code = source if source.startswith("from __future__") else HEADER + source
        annotations["made"] = outcome(lambda: exec(compile(code, name, "exec", dont_inherit=True), vars(module)))
        for time in ("before", "after"):
            if hasattr(module, "C"):
                annotations |= {f"{view}, {time}": outcome(value) for view, value in views(vars(module)["C"])}
            vars(module)["Later"] = int
    finally:
        del sys.modules[name]
    return annotations


def frozen(cls: Any = None, /, **options: Any) -> Any:
    decorator: Any = dataclasses.dataclass
    return decorator(cls, **{**options, "frozen": True})


def as_node(cls: Any = None, /, **options: Any) -> Any:
    decorator: Any = pytree_dataclass
    return decorator(cls, **{**options, "frozen": True})


def as_modules(source: str) -> str:
    """The same classes, with Module as base instead of the decorator."""

    def statement(match: re.Match[str]) -> str:
        indent, name, bases = match.groups()
        return f"{indent}class {name}({bases if bases == 'A' else ', '.join(filter(None, ['Module', bases]))}):"

    return re.sub(r" *@node\n( *)class (\w+(?:\[.*?\])?)(?:\((.*)\))?:", statement, source)


@pytest.mark.parametrize("source", CASES)
def test_nodes_show_annotations_like_a_frozen_dataclass(source: str) -> None:
    expected = annotations_of(source, frozen, "annotated")

    assert annotations_of(source, as_node, "annotated") == expected
    if not re.search(r"=node|node\(", source):
        assert annotations_of(as_modules(source), Module, "annotated") == expected


# Unreadable annotations


@pytest.mark.parametrize("text", ["1 / 0", "'text'[9]", "list[1 / 0]", "Unknown[1 / 0]", "[].nothing"])
@since_3_14
def test_an_unreadable_annotation_raises_its_own_error(text: str) -> None:
    source = f"@node\nclass C:\n    x: int\n    y: Later = 3\n    z: {text} = 3\n    w: int = 3\n"
    expected = annotations_of(source, frozen, "annotated")["made"]

    assert re.match(r"(ZeroDivision|Index|Attribute)Error: ", expected)
    assert annotations_of(source, as_node, "annotated")["made"] == expected
    assert annotations_of(as_modules(source), Module, "annotated")["made"] == expected


@since_3_14
def test_a_static_may_name_its_own_class() -> None:
    source = "@node\nclass C:\n    x: int\n    up: C | None = static(default=None)\nc = C(1, C(2))\n"
    module = types.ModuleType("annotated")
    vars(module).update(node=pytree_dataclass, static=static)

    exec(compile(HEADER + source, "annotated", "exec", dont_inherit=True), vars(module))

    assert module.c.up == module.C(2)
