"""The generated `__init__`: source text that reads like handwritten code, compiled once per class.

This is the only file in `_core` that calls `exec`. Names in the text are parameters, which are the fields' names and
checked to be identifiers, and helpers like `__table__`, which can't be field names. For this class:

    class Layer(Module):
        kernel: jax.Array = field(converter=jnp.asarray)
        activation: str = static(default="relu")
        steps: list[int] = field(default_factory=list)

the text is, inside a function whose parameters are the helpers:

    def __init__(self, kernel, activation=__default_activation__, steps=__factory__):
      if steps is __factory__: steps = __make_steps__()
      try: __own__ = __type__(self) is __table__.owner_a3df0c31
      except __Exception__: __own__ = False
      if not __own__: return __build__(self, __assign__, {'kernel': kernel, ...}, None)
      kernel = __convert_kernel__(kernel)
      try: __statics__ = __table__.known[__type__(activation), activation]()
      except __Exception__: __statics__ = None
      __store__(self, ((kernel, steps, ), __statics__ or __table__.intern_by_key((activation,))))
      if __table__.to_check: __check__(self)
"""

import contextlib
import dataclasses
import functools
import inspect
import keyword
import linecache
import sys
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Format, get_annotations

from treewright._core.fields import MISSING
from treewright._core.info import FLAT_FORM_NAME, FieldInfo, NodeInfo
from treewright._core.instance import assign, check, run_init
from treewright._core.rules import fields as rules
from treewright.errors import NodeDefinitionError

_NAMES_MAY_BE_UNKNOWN: Any = {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}
# The default of a parameter whose field has a factory; prints as `<factory>`.
FACTORY: Any = getattr(dataclasses, "_HAS_DEFAULT_FACTORY")  # noqa: B009


def make_init(info: NodeInfo, arguments: Sequence[FieldInfo]) -> Callable[..., None]:
    """The `__init__` that `dataclasses.dataclass` would generate, except that it stores the flat form.

    The arguments are the fields and `InitVar`s in the order of their declaration.
    """
    cls = info.cls
    helpers: dict[str, Any] = {"__factory__": FACTORY, "__build__": run_init, "__assign__": assign}
    for argument in arguments:
        if not argument.name.isidentifier() or keyword.iskeyword(argument.name):
            raise NodeDefinitionError(rules.no_identifier(cls, argument.name))
    me = "__self__" if "self" in info.by_name or "self" in info.init_vars else "self"
    header = f"  def __init__({', '.join([me, *_parameters(cls, arguments, helpers)])}):"
    body = "\n    ".join([header, *_body(info, me, helpers)])
    source = f"def make({', '.join(helpers)}):\n{body}\n  return __init__\n"
    # Tracebacks and `inspect` find the source under this name; classes of one name may have different sources.
    filename = f"<treewright: {cls.__module__}.{cls.__qualname__}.__init__ {zlib.crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # The globals of the class's own module, so that typing.get_type_hints resolves string annotations.
    module = sys.modules.get(cls.__module__)
    made: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), {} if module is None else vars(module), made)  # noqa: S102
    init: Callable[..., None] = made["make"](**helpers)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    _annotate(init, cls, [argument for argument in arguments if argument.init])
    return init


def _parameters(cls: type[Any], arguments: Sequence[FieldInfo], helpers: dict[str, Any]) -> list[str]:
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
            raise NodeDefinitionError(rules.default_before(cls, name, with_default))
    return [*positional, "*", *by_keyword] if by_keyword else positional


def _body(info: NodeInfo, me: str, helpers: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    values: list[str] = []
    is_simple = not info.has_own_new and not info.runs_post_init
    for field in info.fields:
        name = field.name
        if field.default_factory is not MISSING:
            helpers[f"__make_{name}__"] = functools.partial(field.call, "default_factory", info.cls)
            lines.append(f"{f'if {name} is __factory__: ' if field.init else ''}{name} = __make_{name}__()")
        elif not field.init and field.default is not MISSING:
            lines.append(f"{name} = __default_{name}__")
        if field.set_only_in_post_init:
            is_simple = False
        else:
            values.append(f"{name!r}: {name}")
    variables = f"({''.join(f'{name}, ' for name in info.init_vars)})" if info.runs_post_init else "None"
    assigning = f"__build__({me}, __assign__, {{{', '.join(values)}}}, {variables})"
    return [*lines, *_storing(info, me, assigning, helpers)] if is_simple else [*lines, assigning]


def _storing(info: NodeInfo, me: str, assigning: str, helpers: dict[str, Any]) -> list[str]:
    """The lines that store the flat form directly. If a subclass's `__init__` called this one, they assign instead.

    IPython's autoreload writes new code into the old function, which keeps its old table: only a table of the same
    fields has an attribute of this name.
    """
    # Not a variable with the class: `attrs.define` copies the class and would replace it.
    lines = [
        f"try: __own__ = __type__({me}) is __table__.{info.table.owner_name}",
        "except __Exception__: __own__ = False",
        f"if not __own__: return {assigning}",
    ]
    helpers.update(__type__=type, __check__=check, __table__=info.table, __Exception__=Exception)
    for field in info.fields:
        if field.converter is not None:
            helpers[f"__convert_{field.name}__"] = functools.partial(field.call, "converter", info.cls)
            lines.append(f"{field.name} = __convert_{field.name}__({field.name})")
    children = "".join([f"{field.name}, " for field in info.children])
    statics = "__statics__"
    if info.statics:
        names = ", ".join(info.table.names)
        kinds = ", ".join([f"__type__({name})" for name in info.table.names])
        lines.append(f"try: __statics__ = __table__.known[{kinds}, {names}]()")
        lines.append("except __Exception__: __statics__ = None")
        statics = f"__statics__ or __table__.intern_by_key(({names},))"
    else:
        helpers["__statics__"] = info.table.empty
    slot: Any = getattr(info.cls, FLAT_FORM_NAME, None)  # A Module has a slot; setting it directly is 10 % faster.
    helpers["__store__"] = object.__setattr__ if slot is None else slot.__set__
    lines.append(f"__store__({me}, {'' if slot else f'{FLAT_FORM_NAME!r}, '}(({children}), {statics}))")
    # The first nodes of a class are checked for wrong children.
    return [*lines, f"{'' if info.checks else 'if __table__.to_check: '}__check__({me})"]


def _annotate(init: Any, cls: type[Any], arguments: Sequence[FieldInfo]) -> None:
    """Annotate a generated `__init__` like `dataclasses`: from Python 3.14 on lazily, so that later names resolve.

    The parameter of a field with a converter has no annotation, because the converter says what it accepts.
    """
    annotated = {argument.name: argument.type for argument in arguments if argument.converter is None}
    if sys.version_info >= (3, 14):

        def __annotate__(format: Any, /) -> dict[str, Any]:  # noqa: N807  Python's name
            if format not in {Format.VALUE, Format.FORWARDREF, Format.STRING}:
                raise NotImplementedError(format)
            declared: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                declared.update(get_annotations(base, format=format))
            parameters = {name: declared[name] for name in annotated if name in declared}
            return {**parameters, "return": "None" if format == Format.STRING else None}

        __annotate__.__qualname__ = f"{cls.__qualname__}.__init__.__annotate__"
        __annotate__.__module__ = cls.__module__
        init.__annotate__ = __annotate__
    else:  # before 3.14
        init.__annotations__ = {**annotated, "return": None}


class Signature:
    """The docstring of a class without one, as `dataclasses` writes it: the signature, built when it is first read."""

    def __get__(self, node: Any, cls: Any = None) -> str:
        doc: str = cls.__name__
        with contextlib.suppress(TypeError, ValueError):
            doc += str(inspect.signature(cls, **_NAMES_MAY_BE_UNKNOWN)).replace(" -> None", "")
        cls.__doc__ = doc
        return doc
