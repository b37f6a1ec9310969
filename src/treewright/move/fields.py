"""The fields of a class that becomes a node: children, statics, and statics that need `freeze`."""

import dataclasses
from typing import Literal

import libcst as cst

from treewright.move import libraries
from treewright.move.evidence import Evidence
from treewright.move.program import NodeClass, Program, Source, field_lines, is_field, items_of, name_of, unsubscripted

Kind = Literal["child", "static", "constant", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A line that declares a field.

    Attributes:
        annotation: Its type, without a marker.
        arguments: The arguments of the function that declares it; None where it has only a default, or none.
        markers: The arguments that specify its kind.
        is_marked: Whether a child has to be declared by `field()`, since its type looks like that of a static.
        freezes: Whether it is a static whose type or value has a list, dict, set or array of numpy.
        is_ours: Whether it already has one of our specifiers.
        notes: The reasons for a review, each with whether it needs a change by hand.
    """

    annotation: cst.BaseExpression
    kind: Kind
    arguments: tuple[cst.Arg, ...] | None
    markers: tuple[cst.Arg, ...]
    is_marked: bool = False
    freezes: bool = False
    is_ours: bool = False
    notes: tuple[tuple[str, bool], ...] = ()

    @property
    def default(self) -> cst.BaseExpression | None:
        return argument(self.arguments or (), "default")


def field_of(node: NodeClass, line: cst.AnnAssign, program: Program, evidence: Evidence) -> Field | None:
    """The field that a line declares; None for a class variable."""
    source, annotation = node.source, line.annotation.annotation
    outer = unsubscripted(annotation)
    if not is_field(line, node, program):
        return None
    items = items_of(annotation)
    rule, _ = program.rule_of(source, outer)
    marked = len(items) == 1 and rule is not None and rule.kind == "marker"
    annotation = items[0] if marked else annotation
    kind, arguments, markers = _declaration(source, line.value, program)
    is_ours = isinstance(line.value, cst.Call) and program.rule_of(source, line.value.func)[1].startswith(
        libraries.OURS
    )
    field = Field(annotation, "static" if marked else kind, arguments, markers, is_ours=is_ours)
    notes = list[tuple[str, bool]]()
    name = name_of(line.target)
    if evidence.reads(node, name):
        default = line.value if arguments is None else field.default
        obstacle = "it is a field of treewright" if is_ours else evidence.obstacle(node, name, default)
        if obstacle is None:
            text = "is read on the class and never given another value: it is a ClassVar now, and not in the tree"
            return dataclasses.replace(field, kind="constant", notes=((text, False),))
        for place, read in evidence.reads(node, name):
            text = (
                f"{node.name}.{name} is a field, so the class has no value for it: read it on an instance, or declare"
            )
            place.note(read, f"{text} a ClassVar ({obstacle})", node.origin, undecided=True)
    if field.kind == "child" and node.rule.filtered:
        is_static, text = _inference(node, line, field, program, evidence)
        notes += [(text, False)] if text else []
        field = dataclasses.replace(field, kind="static" if is_static else "child", is_marked=bool(text))
    if field.kind == "unclear":
        notes.append(("is static or not as a variable says: write static() or field()", True))
    if isinstance(annotation, cst.SimpleString) and "Static[" in annotation.value:
        notes.append(("is marked in a text: write the type alone, and static() behind the =", True))
    if field.kind == "static":
        freezes, static_notes = _static(node, line, field, program, evidence)
        field = dataclasses.replace(field, freezes=freezes)
        notes += static_notes
    return dataclasses.replace(field, notes=tuple(each for each in notes if each[1] or not node.has_moved))


def _inference(
    node: NodeClass, line: cst.AnnAssign, field: Field, program: Program, evidence: Evidence
) -> tuple[bool, str]:
    """Whether a field of equinox is static in effect, by its type and the values that it is given; and what changes."""
    parts = _parts(node.source, field.annotation, program)
    if not parts or not all(part & libraries.NEVER_ARRAYS for part in parts):
        return False, ""
    name, default = name_of(line.target), line.value if field.arguments is None else field.default
    kinds = evidence.kinds_given(node, name) | {evidence.kind_of(node.source, default) if default else None}
    if evidence.is_reached(name):
        return False, "stays a leaf, since tree_at or inference_mode changes it: jax.jit traces or refuses its value"
    if kinds & {"array", "node"}:
        return False, "stays a leaf, since an array or a node is passed for it"
    if any(part & libraries.CALLABLES for part in parts) and ("function" not in kinds or "unknown" in kinds):
        return False, "stays a leaf: which functions are passed for it is not in sight. Plain ones want static()"
    if all(part & libraries.NUMBERS for part in parts) and not evidence.is_filtered:
        return False, ""  # which jax.jit traces, before and after
    return True, "is static now, since its type is not an array: jit compiles once for each value"


def _static(
    node: NodeClass, line: cst.AnnAssign, field: Field, program: Program, evidence: Evidence
) -> tuple[bool, list[tuple[str, bool]]]:
    """Whether a static has to freeze its value, and the notes for a review."""
    given = field.arguments or ()
    converter = argument(given, "converter")
    if argument(given, "identity") is not None:
        return False, []
    parts = _parts(node.source, field.annotation, program, libraries.CONTAINERS)
    default = line.value if field.arguments is None else field.default
    factory = argument(given, "default_factory")
    kinds = {evidence.kind_of(node.source, default) if default else None}
    kinds |= {evidence.kind_returned(node.source, factory) if factory else None}
    kinds |= evidence.kinds_given(node, name_of(line.target))
    notes = list[tuple[str, bool]]()
    has_array = "array" in kinds or any(name.startswith(libraries.ARRAYS) for part in parts for name in part)
    holders = [each for part in parts for each in program.nodes_named(part) if _has_arrays(each, program)]
    if has_array or "node" in kinds or holders:
        what = "an array of JAX" if has_array else holders[0].name if holders else "a node"
        text = f"is static and holds {what}, which is refused: make it a child, by field() or without a specifier"
        return False, [(text, True)]
    if converter is not None:
        if evidence.kind_returned(node.source, converter) == "container":
            notes.append(("is static, and its converter returns a container: freeze what it returns", True))
        return False, notes
    freezes = "container" in kinds or any(part & libraries.CAN_CHANGE for part in parts)
    if freezes:
        notes.append(("is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping", False))
    if argument(given, "compare") is not None:
        notes.append(("is static, and statics always take part in ==: compare= is dropped", False))
    return freezes, notes


def _has_arrays(node: NodeClass, program: Program) -> bool:
    """Whether a child of a node, or of a base of it, is annotated as an array."""
    for line in field_lines(node.definition):
        if _declaration(node.source, line.value, program)[0] == "child":
            parts = _parts(node.source, line.annotation.annotation, program, libraries.CONTAINERS)
            if any(name.startswith(libraries.ARRAYS) for part in parts for name in part):
                return True
    return any(_has_arrays(base, program) for base, _ in program.above(node.source, node.definition))


def keyword_of(arg: cst.Arg) -> str | None:
    """The keyword of an argument."""
    return None if arg.keyword is None else arg.keyword.value


def argument(arguments: tuple[cst.Arg, ...], name: str) -> cst.BaseExpression | None:
    """The value of the argument with a keyword."""
    return next((each.value for each in arguments if keyword_of(each) == name), None)


def _declaration(
    source: Source, value: cst.BaseExpression | None, program: Program
) -> tuple[Kind, tuple[cst.Arg, ...] | None, tuple[cst.Arg, ...]]:
    """The kind declared after the `=`, the arguments of the specifier, and those that specify the kind."""
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


def _parts(
    source: Source, annotation: cst.BaseExpression, program: Program, within: frozenset[str] = frozenset()
) -> list[frozenset[str]]:
    """The full names of the types of a union, without None, and of the items of containers `within`."""
    if isinstance(annotation, cst.SimpleString):
        try:
            annotation = cst.parse_expression(str(annotation.evaluated_value))
        except cst.ParserSyntaxError:
            return []
    names = program.names_of(source, unsubscripted(annotation))
    if isinstance(annotation, cst.BinaryOperation):
        own, inner = [], [annotation.left, annotation.right]
    elif isinstance(annotation, cst.Subscript) and names & (libraries.UNIONS | within):
        own, inner = [names] if names & within else [], items_of(annotation)
    else:
        return [] if isinstance(annotation, cst.Name) and annotation.value == "None" else [names]
    return own + [part for each in inner for part in _parts(source, each, program, within)]
