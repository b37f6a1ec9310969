"""The generated `__init__`: text that reads like the function it makes, compiled once for each class; and docstrings.

The only file that calls `exec`. Names in the text are parameters, which are those of the fields and checked to be
identifiers, and helpers like `__cls__`, which no field can have.
"""

import contextlib
import dataclasses
import inspect
import keyword
import linecache
import sys
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Format, get_annotations

from treewright._core.fields import MISSING, FieldSpec, NodeSpec
from treewright._core.instance import PAIR, assign, build, check
from treewright.errors import NodeDefinitionError

_NAMES_MAY_BE_UNKNOWN: Any = {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}
# In place of a default that a factory makes; prints as `<factory>`.
FACTORY: Any = getattr(dataclasses, "_HAS_DEFAULT_FACTORY")  # noqa: B009


def make_init(spec: NodeSpec, arguments: Sequence[FieldSpec]) -> Callable[..., None]:
    """The `__init__` that `dataclasses.dataclass` would give the class, storing the pair instead of attributes.

    The arguments are the fields and each `InitVar`, as they are declared.
    """
    cls = spec.cls
    helpers: dict[str, Any] = {"__cls__": cls, "__factory__": FACTORY, "__build__": build, "__assign__": assign}
    for argument in arguments:
        if not argument.name.isidentifier() or keyword.iskeyword(argument.name):
            raise NodeDefinitionError(f"{cls.__qualname__} has a field {argument.name!r}, which is not an identifier.")
    me = "__self__" if "self" in spec.by_name or "self" in spec.init_vars else "self"
    header = f"  def __init__({', '.join([me, *_parameters(cls, arguments, helpers)])}):"
    body = "\n    ".join([header, *_body(spec, me, helpers)])
    source = f"def make({', '.join(helpers)}):\n{body}\n  return __init__\n"
    filename = f"<treewright: {cls.__module__}.{cls.__qualname__}.__init__>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # The globals of the class's own module, so that typing.get_type_hints resolves string annotations.
    module = sys.modules.get(cls.__module__)
    made: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), {} if module is None else vars(module), made)  # noqa: S102
    init: Callable[..., None] = made["make"](**helpers)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    _annotate(init, cls, {argument.name: argument.type for argument in arguments if argument.init})
    return init


def _parameters(cls: type[Any], arguments: Sequence[FieldSpec], helpers: dict[str, Any]) -> list[str]:
    positional: list[str] = []
    by_keyword: list[str] = []
    with_default = None
    for argument in arguments:
        name = parameter = argument.name
        if argument.default is not MISSING:
            helpers[f"__default_{name}__"] = argument.default
            parameter = f"{name}=__default_{name}__"
        elif argument.default_factory is not MISSING:
            parameter = f"{name}=__factory__"
        if not argument.init:
            continue
        if argument.kw_only:
            by_keyword.append(parameter)
            continue
        positional.append(parameter)
        if parameter != name:
            with_default = name
        elif with_default is not None:
            raise NodeDefinitionError(
                f"{cls.__qualname__}: non-default argument {name!r} follows default argument {with_default!r}. Give "
                f"{name} a default, or take it by keyword: field(kw_only=True)."
            )
    return [*positional, "*", *by_keyword] if by_keyword else positional


def _body(spec: NodeSpec, me: str, helpers: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    values: list[str] = []
    is_simple = not spec.runs_post_init
    for field in spec.fields:
        name = field.name
        if field.default_factory is not MISSING:
            helpers[f"__make_{name}__"] = field.default_factory
            lines.append(f"{f'if {name} is __factory__: ' if field.init else ''}{name} = __make_{name}__()")
        elif not field.init and field.default is not MISSING:
            lines.append(f"{name} = __default_{name}__")
        if field.is_left_open:
            is_simple = False
        else:
            values.append(f"{name!r}: {name}")
    variables = f"({''.join(f'{name}, ' for name in spec.init_vars)})" if spec.runs_post_init else "None"
    assigning = f"__build__({me}, __assign__, {{{', '.join(values)}}}, {variables})"
    return [*lines, *_storing(spec, me, assigning, helpers)] if is_simple else [*lines, assigning]


def _storing(spec: NodeSpec, me: str, assigning: str, helpers: dict[str, Any]) -> list[str]:
    """The lines that store the pair directly; to an instance of a subclass, whose `__init__` runs, they assign."""
    lines = [f"if __type__({me}) is not __cls__: return {assigning}"]
    helpers.update(__type__=type, __check__=check, __unseen__=spec.unseen)
    for field in spec.fields:
        if field.converter is not None:
            helpers[f"__convert_{field.name}__"] = field.converter
            lines.append(f"{field.name} = __convert_{field.name}__({field.name})")
    children = "".join([f"{field.name}, " for field in spec.children])
    statics = "__statics__"
    if spec.statics:
        helpers.update(__table__=spec.table, __Exception__=Exception)
        names = ", ".join(spec.table.names)
        kinds = ", ".join([f"__type__({name})" for name in spec.table.names])
        lines.append(f"try: __statics__ = __table__.known[{kinds}, {names}]()")
        lines.append("except __Exception__: __statics__ = None")
        statics = f"__statics__ or __table__.intern(({names},))"
    else:
        helpers["__statics__"] = spec.table.empty
    slot: Any = getattr(spec.cls, PAIR, None)  # a Module has one, and storing past the name is a tenth faster
    helpers["__store__"] = object.__setattr__ if slot is None else slot.__set__
    lines.append(f"__store__({me}, {'' if slot else f'{PAIR!r}, '}(({children}), {statics}))")
    # Without a check of the user's only the first nodes of the class are looked at.
    lines.append(f"{'' if spec.checks else 'if __unseen__: '}__check__({me})")
    return lines


def _annotate(init: Any, cls: type[Any], types: dict[str, Any]) -> None:
    """Annotate a generated `__init__` as `dataclasses` does: from 3.14 on when asked, so that later names are found."""
    if sys.version_info >= (3, 14):

        def __annotate__(format: Any, /) -> dict[str, Any]:  # noqa: N807  its name in Python
            if format not in {Format.VALUE, Format.FORWARDREF, Format.STRING}:
                raise NotImplementedError(format)
            declared: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                declared.update(get_annotations(base, format=format))
            given = {name: declared[name] for name in types if name in declared}
            return {**given, "return": "None" if format == Format.STRING else None}

        __annotate__.__qualname__ = f"{cls.__qualname__}.__init__.__annotate__"
        __annotate__.__module__ = cls.__module__
        init.__annotate__ = __annotate__
    else:  # before 3.14
        init.__annotations__ = {**types, "return": None}


@dataclasses.dataclass(frozen=True)
class Docstring:
    """The docstring of a class, made when first read: its signature if it has none, and a section for the fields."""

    written: str | None

    def __get__(self, node: Any, cls: Any = None) -> str:
        doc = self.written
        if doc is None:
            doc = cls.__name__
            with contextlib.suppress(TypeError, ValueError):
                doc += str(inspect.signature(cls, **_NAMES_MAY_BE_UNKNOWN)).replace(" -> None", "")
        documented = [field_ for field_ in cls.__node_spec__.fields if field_.doc is not None]
        if documented:
            lines = [f"    {one.name}: {inspect.cleandoc(one.doc)}".replace("\n", "\n        ") for one in documented]
            doc = "\n".join([inspect.cleandoc(doc), "", "Attributes:", *lines])
        cls.__doc__ = doc
        return doc
