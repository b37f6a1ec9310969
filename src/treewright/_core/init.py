"""The generated `__init__`: text that reads like the function it makes, compiled once for each class.

The only file that calls `exec`. Names in the text are parameters, which are the fields' own names and checked to be
identifiers, and helpers, which get a name that no field has.
"""

import keyword
import linecache
import sys
from collections.abc import Callable
from typing import Any

from treewright._core.fields import MISSING, FieldSpec, NodeSpec
from treewright._core.functions import class_attribute
from treewright._core.instance import PAIR, assign_all, check
from treewright.errors import NodeDefinitionError

if sys.version_info >= (3, 14):
    import annotationlib


class _Factory:
    """The default of a parameter whose value a factory makes; prints as `dataclasses` prints it."""

    def __repr__(self) -> str:
        return "<factory>"


FACTORY = _Factory()


def make_init(spec: NodeSpec) -> Callable[..., None]:
    """The `__init__` that `dataclasses.dataclass` would give the class, storing the pair instead of attributes."""
    return _InitText(spec).compile()


class _InitText:
    """Collects the text of one `__init__` and the values its helper names stand for."""

    def __init__(self, spec: NodeSpec) -> None:
        self.spec = spec
        declared: dict[str, Any] = spec.cls.__dataclass_fields__
        variables = {name: declared[name] for name in spec.init_vars}
        self.init_vars = tuple(variables)
        fields: dict[str, Any] = {field.name: field for field in spec.fields}
        # In the order of declaration, InitVars among the fields.
        arguments = {**variables, **fields}
        self.arguments = [arguments[name] for name in declared if name in arguments]
        self.taken = {argument.name for argument in self.arguments}
        self.helpers: dict[str, Any] = {}
        for name in self.taken:
            if not name.isidentifier() or keyword.iskeyword(name):
                raise NodeDefinitionError(f"{spec.cls.__qualname__} has a field {name!r}, which is not an identifier.")

    def helper(self, name: str, value: Any) -> str:
        """A name for `value` that no field has."""
        if self.helpers.get(name, self) is not value:
            name = self.fresh(name)
        self.helpers[name] = value
        return name

    def fresh(self, name: str) -> str:
        """A name that neither a field nor a helper has."""
        while name in self.taken or name in self.helpers:
            name += "_"
        return name

    def parameters(self, self_name: str) -> str:
        taken = [argument for argument in self.arguments if argument.init]
        positional = [argument for argument in taken if not argument.kw_only]
        self.refuse_order(positional)
        by_keyword = [self.parameter(argument) for argument in taken if argument.kw_only]
        return ", ".join([self_name, *map(self.parameter, positional), *(["*", *by_keyword] if by_keyword else [])])

    def refuse_order(self, positional: list[Any]) -> None:
        default = None
        for argument in positional:
            if argument.default is not MISSING or argument.default_factory is not MISSING:
                default = argument.name
            elif default is not None:
                raise NodeDefinitionError(
                    f"{self.spec.cls.__qualname__}: non-default argument {argument.name!r} follows default argument "
                    f"{default!r}. Give {argument.name} a default, or take it by keyword: field(kw_only=True)."
                )

    def parameter(self, argument: Any) -> str:
        if argument.default is not MISSING:
            return f"{argument.name}={self.helper(f'default_{argument.name}', argument.default)}"
        if argument.default_factory is not MISSING:
            return f"{argument.name}={self.helper('factory_default', FACTORY)}"
        return str(argument.name)

    def prepare(self, field: FieldSpec) -> list[str]:
        """The lines that make a default where none was given."""
        lines: list[str] = []
        if field.default_factory is not MISSING:
            call = f"{field.name} = {self.helper(f'make_{field.name}', field.default_factory)}()"
            given = self.helper("factory_default", FACTORY)
            lines.append(f"if {field.name} is {given}: {call}" if field.init else call)
        elif not field.init and field.default is not MISSING:
            lines.append(f"{field.name} = {self.helper(f'default_{field.name}', field.default)}")
        return lines

    def assigning(self, self_name: str) -> str:
        """The call for a node whose fields are assigned one by one: see `assign_all`."""
        values = ", ".join(f"{field.name!r}: {field.name}" for field in self.spec.fields if not field.is_left_open)
        variables = f"({''.join(f'{name}, ' for name in self.init_vars)})" if self.spec.has_post_init else "None"
        return f"{self.helper('assign_all', assign_all)}({self_name}, {{{values}}}, {variables})"

    def storing(self, self_name: str) -> list[str]:
        """The lines that build the pair directly; to an instance of a subclass, whose `__init__` runs, they assign."""
        kind, cls = self.helper("type_", type), self.helper("class_", self.spec.cls)
        lines = [f"if {kind}({self_name}) is not {cls}: return {self.assigning(self_name)}"]
        lines += [
            f"{field.name} = {self.helper(f'convert_{field.name}', field.converter)}({field.name})"
            for field in self.spec.fields
            if field.converter is not None
        ]
        table, names = self.spec.table, [field.name for field in self.spec.statics]
        if names:
            statics, values = self.fresh("statics"), ", ".join(names)
            table_name = self.helper("table", table)
            lines += [
                f"try: {statics} = {table_name}.known[{', '.join(f'{kind}({name})' for name in names)}, {values}]()",
                f"except {self.helper('Exception_', Exception)}: {statics} = None",
            ]
            interned = f"{statics} or {table_name}.intern(({values},))"
        else:
            interned = self.helper("no_statics", table.empty)
        pair = f"(({''.join(f'{field.name}, ' for field in self.spec.children)}), {interned})"
        slot = class_attribute(self.spec.cls, PAIR)  # a Module has one, and storing past the name is a tenth faster
        if slot is None:
            lines.append(f"{self.helper('store', object.__setattr__)}({self_name}, {PAIR!r}, {pair})")
        else:
            lines.append(f"{self.helper('store_in_slot', slot.__set__)}({self_name}, {pair})")
        call = f"{self.helper('check', check)}({self_name})"
        # Without a check of the user's only the first nodes of the class are looked at.
        lines.append(call if self.spec.checks else f"if {self.helper('unseen', self.spec.unseen)}: {call}")
        return lines

    def body(self, self_name: str) -> list[str]:
        lines = [line for field in self.spec.fields for line in self.prepare(field)]
        if self.spec.has_post_init or any(field.is_left_open for field in self.spec.fields):
            return [*lines, self.assigning(self_name)]
        return [*lines, *self.storing(self_name)]

    def compile(self) -> Callable[..., None]:
        cls = self.spec.cls
        self_name = self.fresh("self")
        parameters = self.parameters(self_name)
        body = (f"    {line}" for line in self.body(self_name))
        lines = [f"  def __init__({parameters}):", *body, "  return __init__"]
        source = "\n".join([f"def make({', '.join(self.helpers)}):", *lines, ""])
        filename = f"<treewright: {cls.__module__}.{cls.__qualname__}.__init__>"
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        # The globals of the class's own module, so that typing.get_type_hints resolves string annotations.
        module = sys.modules.get(cls.__module__)
        made: dict[str, Any] = {}
        exec(compile(source, filename, "exec"), {} if module is None else vars(module), made)  # noqa: S102
        init: Callable[..., None] = made["make"](**self.helpers)
        init.__qualname__ = f"{cls.__qualname__}.__init__"
        init.__module__ = cls.__module__
        _annotate(init, cls, {argument.name: argument.type for argument in self.arguments if argument.init})
        return init


def _annotate(init: Any, cls: type[Any], types: dict[str, Any]) -> None:
    """Annotate a generated `__init__` as `dataclasses` does: from 3.14 on when asked, so that later names are found."""
    if sys.version_info >= (3, 14):
        kinds = annotationlib.Format

        def __annotate__(format: Any, /) -> dict[str, Any]:  # noqa: N807  its name in Python
            if format not in {kinds.VALUE, kinds.FORWARDREF, kinds.STRING}:
                raise NotImplementedError(format)
            declared: dict[str, Any] = {}
            for base in reversed(cls.__mro__):
                declared.update(annotationlib.get_annotations(base, format=format))
            given = {name: declared[name] for name in types if name in declared}
            return {**given, "return": "None" if format == kinds.STRING else None}

        __annotate__.__qualname__ = f"{cls.__qualname__}.__init__.__annotate__"
        __annotate__.__module__ = cls.__module__
        init.__annotate__ = __annotate__
    else:  # before 3.14
        init.__annotations__ = {**types, "return": None}
