"""The fields of a class that becomes a node: children, statics, and statics that need `freeze`."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import libcst as cst

from treewright.move import libraries
from treewright.move.evidence import Evidence
from treewright.move.program import NodeClass, Program
from treewright.move.source import Source, argument, arguments_of, bare, items_of, keyword_of, name_of, parts_of

Kind = Literal["child", "leaf", "static", "constant", "unclear"]
Types = list[frozenset[str]]

_DISPLAYS = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)
_NOT_PLAIN = (cst.Name, cst.Attribute, cst.Subscript, cst.IfExp, cst.Lambda, cst.Call)

# Notices, after the name of the field, and whether the line must be changed manually.
_CONSTANT = (
    "is a ClassVar now, and not in the tree: it is read on the class, and never differs from its default",
    False,
)
_STATIC = ("is static now, because of its type: jit compiles once for each value", False)
_LEAF = (
    "stays a leaf, as in equinox: jax.jit rejects a function or string, so use static() if it has no arrays",
    False,
)
_NUMBER = ("stays a leaf, as in equinox: jax.jit traces it, so use static() if it is a setting", False)
_FREEZES = ("is static and freezes its value: a list becomes a tuple, a dict a FrozenMapping", False)
_VARIABLE = ("is static depending on a variable: write static() or field()", True)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A line that declares a field.

    Attributes:
        kind: A leaf is a child that needs `field()`, because its type looks like a setting.
        annotation: Its type, without a marker.
        arguments: The arguments of the function that declares it; None if it has only a default, or none.
        markers: The arguments that specify its kind.
        is_ours: Whether it already has one of our specifiers.
    """

    line: cst.AnnAssign
    kind: Kind
    annotation: cst.BaseExpression
    arguments: tuple[cst.Arg, ...] | None = None
    markers: tuple[cst.Arg, ...] = ()
    is_ours: bool = False

    def argument(self, name: str) -> cst.BaseExpression | None:
        return argument(self.arguments or (), name)

    @property
    def default(self) -> cst.BaseExpression | None:
        return self.line.value if self.arguments is None else self.argument("default")


def rewrite_field(node: NodeClass, line: cst.AnnAssign, program: Program, evidence: Evidence) -> None:
    """Rewrite a line that declares a field, and note what to review."""
    source, name, field = node.source, name_of(line.target), _declared(node.source, line, program)
    obstacle, reads = _obstacle(node, name, field, program, evidence), evidence.reads.get((node, name), [])
    notes: list[tuple[str, bool]] = [_VARIABLE] if field.kind == "unclear" else []
    if reads and obstacle is None:
        field = dataclasses.replace(field, kind="constant")
        notes.append(_CONSTANT)
    elif field.kind == "child" and node.rule.filtered and not source.is_read_in_scope(line.target):
        types = _types(source, field.annotation, program)
        field = dataclasses.replace(field, kind=_filtered_kind(types))
        notes += {"static": [_STATIC], "leaf": [_LEAF]}.get(field.kind, [])
        if types and all(names & libraries.NUMBERS for names in types):
            notes.append(_NUMBER)
    if field.kind == "static" and not (field.argument("identity") or field.argument("converter")):
        notes += _notes_of_static(source, field, program)
    for text, undecided in notes:
        if undecided or not node.has_moved:
            source.note(line, f"{node.name}.{name} {text}", node.origin, undecided=undecided)
    for place, read in reads if obstacle is not None else ():
        text = f"{node.name}.{name} is a field, so the class has no value for it: read it on an instance, or declare"
        place.note(read, f"{text} a ClassVar ({obstacle})", node.origin, undecided=True)
    if field.kind == "constant":
        _write_constant(source, field)
    elif field.kind != "unclear" and not field.is_ours:
        _write_specifier(source, field, program, freezes=_FREEZES in notes)


def _declared(source: Source, line: cst.AnnAssign, program: Program) -> Field:
    """The field as its line declares it."""
    annotation, value, given = line.annotation.annotation, line.value, tuple(arguments_of(line.value))
    items, (rule, _) = items_of(annotation), program.rule_of(source, bare(annotation))
    is_static = len(items) == 1 and rule is not None and rule.kind == "marker"
    field = Field(line, "static" if is_static else "child", items[0] if is_static else annotation)
    if not isinstance(value, cst.Call):
        return field
    rule, name = program.rule_of(source, value.func)
    if rule is None or rule.kind != "specifier":
        is_field = "dataclasses.field" in program.names_of(source, value.func)
        return dataclasses.replace(field, arguments=given if is_field else None)
    field = dataclasses.replace(field, arguments=given, is_ours=name.startswith(libraries.OURS))
    if rule.static:
        return dataclasses.replace(field, kind="static")
    markers = tuple(arg for arg in given if arg.star or keyword_of(arg) in {None, rule.argument})
    words = {"" if arg.star else name_of(arg.value) for arg in markers}
    kind: Kind = field.kind if words <= {"True", "False"} else "unclear"
    return dataclasses.replace(field, markers=markers, kind="static" if words == {rule.static_if} else kind)


def _obstacle(node: NodeClass, name: str, field: Field, program: Program, evidence: Evidence) -> str | None:
    """Why a field can't become a constant of the class. A function can't: it would become a method."""
    if field.is_ours:
        return "it is a field of treewright"
    default = field.default
    is_plain = name_of(default) in {"None", "True", "False"} or not isinstance(default, _NOT_PLAIN)
    if default is None or not (is_plain or (isinstance(default, cst.Call) and contents(node.source, default, program))):
        return "its default is not a plain value"
    return evidence.obstacle(node, name)


def _filtered_kind(types: Types) -> Kind:
    """The kind of a field whose value filtered transformations skip unless it is an array, by its types."""
    if types and all(names & libraries.SETTINGS for names in types):
        return "static"
    is_array = not all(names & (libraries.SETTINGS | libraries.NUMBERS | libraries.CALLABLES) for names in types)
    return "child" if is_array or all(names & libraries.NUMBERS for names in types) else "leaf"


def _notes_of_static(source: Source, field: Field, program: Program) -> Iterator[tuple[str, bool]]:
    factory, default = field.argument("default_factory"), field.default
    if factory is not None:
        default = factory.body if isinstance(factory, cst.Lambda) else cst.Call(factory)
    inside = set() if default is None else contents(source, default, program)
    types = _types(source, field.annotation, program, libraries.CONTAINERS)
    holders = [each.name for names in types for each in program.nodes_named(names) if _has_arrays(each, program)]
    if "array" in inside or _is_array(types):
        holders.append("an array of JAX")
    if holders:
        yield f"is static and holds {holders[0]}, which is rejected: make it a child, without a specifier", True
    elif "container" in inside or any(names & libraries.FREEZABLE for names in types):
        yield _FREEZES


def _is_array(types: Types) -> bool:
    return any(name.startswith(libraries.ARRAYS) for names in types for name in names)


def _has_arrays(node: NodeClass, program: Program) -> bool:
    """Whether a field of a node is annotated as an array."""
    lines = [(each.source, line.annotation.annotation) for each in program.bases(node) for line in program.fields(each)]
    return any(_is_array(_types(*line, program, libraries.CONTAINERS)) for line in lines)


def contents(source: Source, value: cst.CSTNode, program: Program, seen: set[str] | None = None) -> set[str]:
    """Whether a value visibly contains a "container" that can change, or an "array". Variables are followed once."""
    seen = set() if seen is None else seen
    if isinstance(value, cst.Lambda):
        return set()
    if isinstance(value, cst.Call):
        names = program.names_of(source, value.func) - libraries.DTYPES
        return {kind for kind, starts in libraries.CALLS.items() if any(name.startswith(starts) for name in names)}
    known = (program.names_of(source, value) & program.values.keys()) - seen
    seen |= known
    parts = [*((source, part) for part in parts_of(value)), *(program.values[name] for name in known)]
    own = {"container"} if isinstance(value, _DISPLAYS) else set()
    return own.union(*(contents(*part, program, seen) for part in parts))


def _types(
    source: Source,
    annotation: cst.BaseExpression,
    program: Program,
    within: frozenset[str] = frozenset(),
    seen: frozenset[str] = frozenset(),
) -> Types:
    """The full names of the types of a union, without None, and of the items of containers `within`."""
    if isinstance(annotation, cst.SimpleString):
        try:
            annotation = cst.parse_expression(str(annotation.evaluated_value))
        except cst.ParserSyntaxError:
            return []
    names = program.names_of(source, bare(annotation))
    own, parts = Types(), [(source, each) for each in items_of(annotation)]
    if isinstance(annotation, cst.BinaryOperation):
        parts = [(source, annotation.left), (source, annotation.right)]
    elif aliases := (names & program.values.keys()) - seen:
        parts += [program.values[name] for name in aliases]
    elif parts and names & (libraries.UNIONS | within):
        own = [names & libraries.CAN_CHANGE] if names & within else []
    else:
        return [] if name_of(annotation) == "None" else [names]
    return own + [type_ for each in parts for type_ in _types(*each, program, within, seen | names)]


# Writing


def _write_constant(source: Source, field: Field) -> None:
    """A `ClassVar` with the default of the field."""
    value, default = field.line.value, field.default
    if isinstance(value, cst.Call) and field.arguments is not None and default is not None:
        source.unwrap(value, default)
        source.ours("", value.func)
    source.unwrap(field.line.annotation.annotation, field.annotation, f"{source.ours('typing.ClassVar')}[", "]")


def _write_specifier(source: Source, field: Field, program: Program, *, freezes: bool) -> None:
    """Our specifier after the `=` of a field, or the original value."""
    line, value = field.line, field.line.value
    if line.annotation.annotation is not field.annotation:
        source.unwrap(line.annotation.annotation, field.annotation)
        source.ours("", bare(line.annotation.annotation))
    call = value if isinstance(value, cst.Call) and field.arguments is not None else None
    is_field = call is not None and "dataclasses.field" in program.names_of(source, call.func)
    if field.kind == "child" and (call is None or is_field):
        return
    function = source.ours(
        "treewright.static" if field.kind == "static" else "treewright.field",
        *([call.func] if call is not None else []),
    )
    added = [f"converter={source.ours('treewright.freeze')}"] if freezes else []
    if call is not None:
        source.replace(call.func, function)
        source.arguments(call, [each for each in call.args if each not in field.markers], added)
    elif value is None:
        end = source.end(line)
        source.edit(end, end, f" = {function}({', '.join(added)})")
    else:
        source.edit(source.start(value), source.start(value), f"{function}(default=")
        source.edit(source.end(value), source.end(value), "".join(f", {each}" for each in added) + ")")
