"""The generated `__init__`: source text that reads like handwritten code, compiled once per class.

This is the only file in `_core` that calls `exec`. Names in the text are parameters, which are the fields' names and
checked to be identifiers, and helpers like `__table__`, which can't be field names. For this class:

    class Layer(Module):
        kernel: jax.Array = field(converter=jnp.asarray)
        activation: str = static(default="relu")
        steps: list[int] = field(default_factory=list)

the text is, inside a function whose parameters are the helpers:

    def __init__(self, kernel, activation=__default_activation__, steps=__factory__):
      nonlocal __own__, __table__, __store__, __assign__, __build__, __check__, __absent__, __Exception__, __type__
      try: __is_own__ = __type__(self) is __own__.cls_a3df0c31
      except __Exception__: __is_own__ = False
      if not __is_own__: return __build__(self, __assign__, __own__, {'kernel': kernel, ...}, None)
      kernel = __own__.cls.__node_fields__['kernel'].call('converter', __own__.cls, kernel)
      if steps is __own__.factory: steps = __own__.cls.__node_fields__['steps'].call('default_factory', __own__.cls)
      try: __statics__ = __table__.known.get((__type__(activation), activation), __absent__)()
      except __Exception__: __statics__ = None
      __store__(self, ((kernel, steps, ), __statics__ or __table__.intern_by_key((activation,))))
      if __table__.to_check: __check__(self)
"""

import contextlib
import dataclasses
import inspect
import linecache
import sys
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from typing_extensions import Format, get_annotations

from treewright._core.fields import MISSING
from treewright._core.info import FLAT_FORM_NAME, FieldInfo, NodeInfo
from treewright._core.instance import check, run_init, run_post_init, set_attribute
from treewright._core.rules import fields as rules
from treewright._core.rules import reject
from treewright.errors import NodeDefinitionError

_NAMES_MAY_BE_UNKNOWN: Any = {"annotation_format": Format.FORWARDREF} if sys.version_info >= (3, 14) else {}


class _Own:
    """The variables of one class's `__init__`. The code finds the class under a name made from the code.

    IPython's autoreload writes new code into the old function, which keeps its variables. So all these functions have
    the same variables, and new code with those of an old class does not find the class.
    """

    def __init__(self, info: NodeInfo) -> None:
        self.cls = info.cls
        # The default of a parameter whose field has a factory; prints as `<factory>`. cloudpickle copies it.
        self.factory: Any = getattr(dataclasses, "_HAS_DEFAULT_FACTORY")  # noqa: B009


def make_init(info: NodeInfo, arguments: Sequence[FieldInfo]) -> Callable[..., None]:
    """The `__init__` that `dataclasses.dataclass` would generate, except that it stores the flat form.

    The arguments are the fields and `InitVar`s in the order of their declaration.
    """
    cls, own = info.cls, _Own(info)
    slot: Any = getattr(cls, FLAT_FORM_NAME, None)  # A Module has a slot; setting it directly is 10 % faster.
    helpers = {"__own__": own, "__table__": info.table, "__store__": slot.__set__ if slot else object.__setattr__}
    helpers |= {"__assign__": assign, "__build__": run_init, "__check__": check, "__absent__": types.NoneType}
    helpers |= {"__Exception__": Exception, "__type__": type}  # A module or a field may have these names.
    me = "__self__" if "self" in info.by_name or "self" in info.init_vars else "self"
    defaults: dict[str, Any] = {"__factory__": own.factory}
    header = f"  def __init__({', '.join([me, *_parameters(cls, arguments, defaults)])}):"
    body = "\n    ".join([header, f"nonlocal {', '.join(helpers)}", *_body(info, me, own)])
    source = f"def make({', '.join([*helpers, *defaults])}):\n{body}\n  return __init__\n"
    # Tracebacks and `inspect` find the source under this name; classes of one name may have different sources.
    filename = f"<treewright: {cls.__module__}.{cls.__qualname__}.__init__ {zlib.crc32(source.encode()):08x}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    # The globals of the class's own module, so that typing.get_type_hints resolves string annotations.
    module = sys.modules.get(cls.__module__)
    made: dict[str, Any] = {}
    exec(compile(source, filename, "exec"), {} if module is None else vars(module), made)  # noqa: S102
    init: Callable[..., None] = made["make"](**helpers, **defaults)
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    init.__module__ = cls.__module__
    _annotate(init, cls, [argument for argument in arguments if argument.init])
    return init


def _parameters(cls: type[Any], arguments: Sequence[FieldInfo], defaults: dict[str, Any]) -> list[str]:
    positional: list[str] = []
    by_keyword: list[str] = []
    with_default = None
    for argument in arguments:
        name = parameter = argument.name
        reject([rules.no_identifier], NodeDefinitionError, cls, name)
        if argument.default is not MISSING:
            defaults[f"__default_{name}__"] = argument.default
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


def _body(info: NodeInfo, me: str, own: _Own) -> list[str]:
    given = [field for field in info.fields if not field.set_only_in_post_init]
    values = ", ".join([f"{field.name!r}: {field.name if field.init else '__own__.factory'}" for field in given])
    variables = f"({''.join(f'{name}, ' for name in info.init_vars)})" if info.runs_post_init else "None"
    assigning = f"return __build__({me}, __assign__, __own__, {{{values}}}, {variables})"
    if info.has_own_new or info.runs_post_init or len(given) < len(info.fields):
        return [assigning]
    lines = _storing(info, me)
    name = f"cls_{zlib.crc32(repr(lines).encode()):08x}"
    setattr(own, name, info.cls)
    return [
        f"try: __is_own__ = __type__({me}) is __own__.{name}",
        "except __Exception__: __is_own__ = False",
        f"if not __is_own__: {assigning}",  # a subclass's `__init__` called this one
        *lines,
    ]


def _storing(info: NodeInfo, me: str) -> list[str]:
    """The lines that store the flat form directly."""
    lines: list[str] = []
    for field in info.fields:
        name, info_now = field.name, f"__own__.cls.__node_fields__[{field.name!r}]"  # which autoreload replaces
        has_factory = field.default_factory is not MISSING
        default = f"{info_now}.call('default_factory', __own__.cls)" if has_factory else f"{info_now}.default"
        if has_factory or not field.init:
            lines.append(f"{f'if {name} is __own__.factory: ' if field.init else ''}{name} = {default}")
        if field.converter is not None:
            lines.append(f"{name} = {info_now}.call('converter', __own__.cls, {name})")
    children = "".join([f"{field.name}, " for field in info.children])
    statics = "__table__.empty"
    if info.statics:
        names = ", ".join(info.table.names)
        kinds = ", ".join([f"__type__({name})" for name in info.table.names])
        lines.append(f"try: __statics__ = __table__.known.get(({kinds}, {names}), __absent__)()")
        lines.append("except __Exception__: __statics__ = None")
        statics = f"__statics__ or __table__.intern_by_key(({names},))"
    attribute = "" if hasattr(info.cls, FLAT_FORM_NAME) else f"{FLAT_FORM_NAME!r}, "
    lines.append(f"__store__({me}, {attribute}(({children}), {statics}))")
    # The first nodes of a class are checked for wrong children.
    return [*lines, f"{'' if info.checks else 'if __table__.to_check: '}__check__({me})"]


def assign(node: Any, own: _Own, values: Mapping[str, Any], post_init: Sequence[Any] | None) -> None:
    """Assign the fields from a generated `__init__` that has to do more than store the flat form."""
    for name, value in values.items():
        given = _default_of(name, own, node) if value is own.factory else value
        if given is not MISSING:  # otherwise sealing fills the field of new code
            set_attribute(node, name, given)
    if post_init is not None:
        run_post_init(node, post_init)


def _default_of(name: str, own: _Own, node: Any) -> Any:
    """The new default of a field of the class; a subclass may have a different one, which counts if it is a value."""
    field: FieldInfo | None = own.cls.__node_fields__.get(name)
    if field is not None and field.default_factory is not MISSING:
        return field.call("default_factory", own.cls)
    return getattr(node.__node_fields__.get(name), "default", MISSING)


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
