"""The fields of a class that becomes a node: children and statics, and which statics have to be frozen."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import libcst as cst

from treewright.move import libraries
from treewright.move.program import NodeClass, Program, Source, items_of, unsubscripted

Kind = Literal["child", "static", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A line that declares a field.

    Attributes:
        annotation: Its type, without a marker.
        arguments: The arguments of the function that declares it; None where it has only a default, or none.
        markers: Those of the arguments that say its kind.
        inferred: Whether it is static by its type alone.
        freezes: Whether it is a static whose type or default is a list, dict, set or array.
    """

    annotation: cst.BaseExpression
    kind: Kind
    arguments: tuple[cst.Arg, ...] | None
    markers: tuple[cst.Arg, ...]
    inferred: bool
    freezes: bool

    def notes(self) -> Iterator[tuple[str, bool]]:
        """Each change of meaning, and whether it has to be changed by hand."""
        if self.kind == "unclear":
            yield "is static or not as a variable says: write static() or field()", True
        if isinstance(self.annotation, cst.SimpleString) and "Static[" in self.annotation.value:
            yield "is marked in a text: write the type alone, and static() behind the =", True
        if self.inferred:
            yield "is static now, since its type is not an array: jit compiles once for each value", False
        if self.freezes:
            yield "is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping", False
        if self.kind == "static" and argument(self.arguments or (), "compare") is not None:
            yield "is static, and statics always take part in ==: compare= is dropped", False


def field_of(node: NodeClass, line: cst.AnnAssign, program: Program) -> Field | None:
    """The field that a line declares; None for a class variable."""
    source, annotation = node.source, line.annotation.annotation
    outer = unsubscripted(annotation)
    if "typing.ClassVar" in program.names_of(source, outer):
        return None
    items = items_of(annotation)
    rule, _ = program.rule_of(source, outer)
    marked = len(items) == 1 and rule is not None and rule.kind == "marker"
    annotation = items[0] if marked else annotation
    kind, arguments, markers = _declaration(source, line.value, program)
    filtered = node.rule.filtered and kind == "child"
    parts = _parts(source, annotation, program)
    inferred = filtered and bool(parts) and all(part & libraries.NEVER_ARRAYS for part in parts)
    kind = "static" if marked or inferred else kind
    freezes = (
        kind == "static"
        and argument(arguments or (), "converter") is None
        and (any(part & libraries.CAN_CHANGE for part in parts) or _default_can_change(source, line, program))
    )
    return Field(annotation, kind, arguments, markers, inferred, freezes)


def keyword_of(arg: cst.Arg) -> str | None:
    """The keyword that an argument is given by."""
    return None if arg.keyword is None else arg.keyword.value


def argument(arguments: tuple[cst.Arg, ...], name: str) -> cst.BaseExpression | None:
    """The value of the argument that is given by a keyword."""
    return next((each.value for each in arguments if keyword_of(each) == name), None)


def _declaration(
    source: Source, value: cst.BaseExpression | None, program: Program
) -> tuple[Kind, tuple[cst.Arg, ...] | None, tuple[cst.Arg, ...]]:
    """The kind that stands behind the `=`, the arguments of a specifier there, and those that say the kind."""
    if not isinstance(value, cst.Call):
        return "child", None, ()
    rule, _ = program.rule_of(source, value.func)
    given = tuple(value.args)
    if rule is None or rule.kind != "specifier":
        is_field = "dataclasses.field" in program.names_of(source, value.func)
        return "child", given if is_field else None, ()
    if rule.static:
        return "static", given, ()
    markers = tuple(arg for arg in given if arg.star or keyword_of(arg) in {None, rule.argument})
    words = {arg.value.value if isinstance(arg.value, cst.Name) and not arg.star else "" for arg in markers}
    if words == {rule.static_if}:
        return "static", given, markers
    return "child" if words <= {"True", "False"} else "unclear", given, markers


# Types


def _parts(source: Source, annotation: cst.BaseExpression, program: Program) -> list[frozenset[str]]:
    """The full names of the types of a union, without None."""
    if isinstance(annotation, cst.SimpleString):
        try:
            annotation = cst.parse_expression(str(annotation.evaluated_value))
        except cst.ParserSyntaxError:
            return []
    names = program.names_of(source, unsubscripted(annotation))
    if isinstance(annotation, cst.BinaryOperation):
        inner = [annotation.left, annotation.right]
    elif isinstance(annotation, cst.Subscript) and names & libraries.UNIONS:
        inner = items_of(annotation)
    else:
        return [] if isinstance(annotation, cst.Name) and annotation.value == "None" else [names]
    return [part for each in inner for part in _parts(source, each, program)]


def _default_can_change(source: Source, line: cst.AnnAssign, program: Program) -> bool:
    """Whether the default of a field is a list, dict or set, or made by a factory of one."""
    given = tuple(line.value.args) if isinstance(line.value, cst.Call) else ()
    default, factory = argument(given, "default") or line.value, argument(given, "default_factory")
    if isinstance(factory, cst.Lambda):
        default = factory.body
    by_factory = factory is not None and program.names_of(source, factory) & libraries.CAN_CHANGE
    return bool(by_factory) or isinstance(default, cst.List | cst.Dict | cst.Set)
