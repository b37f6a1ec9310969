"""The fields of a class that becomes a node: children, statics, and statics that need `freeze`."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import libcst as cst

from treewright.move import libraries
from treewright.move.evidence import Evidence
from treewright.move.libraries import ValueKind
from treewright.move.program import NodeClass, Program, Source, field_lines, is_field, items_of, name_of, unsubscripted

Kind = Literal["child", "static", "constant", "unclear"]

# What a notice says after the name of the field, and whether the line has to be changed by hand.
_CONSTANT = ("is a ClassVar now and not in the tree: it is read on the class, and only has its default", False)
_STATIC = ("is static now, because its type is not an array: jit compiles once for each value", False)
_REACHED = ("stays a leaf, because tree_at or inference_mode changes it: jax.jit traces or rejects its value", False)
_ARRAY = ("stays a leaf, because it receives an array or a node", False)
_UNKNOWN = ("stays a leaf, because not all of its values can be determined: if they are plain, use static()", False)
_FREEZES = ("is static and freezes its value: a list becomes a tuple, a dict a FrozenMapping", False)
_COMPARED = ("is static, and statics always take part in ==: compare= is dropped", False)
_CONTAINER = ("is static, and its converter returns a container: freeze what it returns", True)
_VARIABLE = ("is static or not as a variable says: write static() or field()", True)
_IN_STRING = ("is marked in a string: write only the type, and static() after the =", True)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A line that declares a field.

    Attributes:
        annotation: Its type, without a marker.
        arguments: The arguments of the function that declares it; None if it has only a default, or none.
        markers: The arguments that specify its kind.
        is_ours: Whether it already has one of our specifiers.
        is_marked: Whether a child has to be declared by `field()`, since its type looks like that of a static.
        freezes: Whether it is a static whose type or value has a list, dict, set or array of numpy.
    """

    annotation: cst.BaseExpression
    kind: Kind
    arguments: tuple[cst.Arg, ...] | None
    markers: tuple[cst.Arg, ...]
    is_ours: bool
    is_marked: bool = False
    freezes: bool = False

    def argument(self, name: str) -> cst.BaseExpression | None:
        return argument(self.arguments or (), name)


def field_of(node: NodeClass, line: cst.AnnAssign, program: Program, evidence: Evidence) -> Field | None:
    """The field that a line declares, with notes for a review; None for a class variable."""
    if not is_field(line, node, program):
        return None
    field = _declared(node.source, line, program)
    default = line.value if field.arguments is None else field.argument("default")
    factory = field.argument("default_factory")
    values = [default] if default is not None else [cst.Call(factory)] if factory is not None else []
    name, source = name_of(line.target), node.source
    kinds = evidence.kinds_given(node, name).union(*(evidence.kinds_of(source, each) for each in values))
    notes: list[tuple[str, bool]] = [_VARIABLE] if field.kind == "unclear" else []
    obstacle = "it is a field of treewright" if field.is_ours else evidence.obstacle(node, name, default)
    if (node, name) in evidence.reads and obstacle is None:
        field = dataclasses.replace(field, kind="constant")
        notes.append(_CONSTANT)
    elif field.kind == "child" and node.rule.filtered:
        inferred = _inferred(_parts(source, field.annotation, program), kinds, name, evidence)
        notes += [inferred] if inferred is not None else []
        is_static = inferred == _STATIC
        field = dataclasses.replace(field, kind="static" if is_static else "child", is_marked=inferred is not None)
    if isinstance(field.annotation, cst.SimpleString) and "Static[" in field.annotation.value:
        notes.append(_IN_STRING)
    if field.kind == "static":
        notes += _notes_of_static(node.source, field, kinds, program, evidence)
    for text, undecided in notes:
        if undecided or not node.has_moved:
            source.note(line, f"{node.name}.{name} {text}", node.origin, undecided=undecided)
    if field.kind != "constant":
        _note_reads(node, line, field, obstacle, evidence)
    return dataclasses.replace(field, freezes=_FREEZES in notes)


def _note_reads(node: NodeClass, line: cst.AnnAssign, field: Field, obstacle: str | None, evidence: Evidence) -> None:
    """Note the reads of a field on its class, and of a specifier in the class body, where neither has a value."""
    name = name_of(line.target)
    for place, read in evidence.reads.get((node, name), ()):
        text = f"{node.name}.{name} is a field, so the class has no value for it: read it on an instance, or declare"
        place.note(read, f"{text} a ClassVar ({obstacle})", node.origin, undecided=True)
    is_specifier = field.arguments is not None or field.kind == "static" or field.is_marked
    for read in node.source.reads_in_scope(line.target) if is_specifier else ():
        text = "is declared by static() or field(), so the class body can't read its default: repeat the value"
        node.source.note(read, f"{node.name}.{name} {text}", node.origin, undecided=True)


def _inferred(
    parts: list[frozenset[str]], kinds: set[ValueKind], name: str, evidence: Evidence
) -> tuple[str, bool] | None:
    """Whether a field of equinox is static in effect, by its type and the values that it receives: the notice."""
    if not parts or not all(part & libraries.NEVER_ARRAYS for part in parts):
        return None
    is_callable = any(part & libraries.CALLABLES for part in parts)
    is_number = all(part & libraries.NUMBERS for part in parts)
    if name in evidence.reached:
        return _REACHED
    if kinds & {"array", "node"}:
        return _ARRAY
    if is_number and not evidence.is_filtered:
        return None  # jax.jit traces it, before and after
    if (is_callable and "function" not in kinds) or ((is_callable or is_number) and "unknown" in kinds):
        return _UNKNOWN
    return _STATIC


def _notes_of_static(
    source: Source, field: Field, kinds: set[ValueKind], program: Program, evidence: Evidence
) -> Iterator[tuple[str, bool]]:
    if field.argument("identity") is not None:
        return
    parts = _parts(source, field.annotation, program, libraries.CONTAINERS)
    is_array = any(name.startswith(libraries.ARRAYS) for part in parts for name in part)
    holders = [each.name for part in parts for each in program.nodes_named(part) if _has_arrays(each, program)]
    if not parts or not all(
        part & libraries.CALLABLES for part in parts
    ):  # the author chose the functions by their type
        is_array |= "array" in kinds
        holders += ["a node"] if "node" in kinds else []
    holders += ["an array of JAX"] if is_array else []
    converter = field.argument("converter")
    if holders:
        yield f"is static and holds {holders[0]}, which is rejected: make it a child, without a specifier", True
    elif converter is None and ("container" in kinds or any(part & libraries.CAN_CHANGE for part in parts)):
        yield _FREEZES
    elif converter is not None and "container" in evidence.kinds_of(source, cst.Call(converter)):
        yield _CONTAINER
    if field.argument("compare") is not None:
        yield _COMPARED


def _declared(source: Source, line: cst.AnnAssign, program: Program) -> Field:
    """The field as its line declares it."""
    annotation = line.annotation.annotation
    items, (rule, _) = items_of(annotation), program.rule_of(source, unsubscripted(annotation))
    is_static = len(items) == 1 and rule is not None and rule.kind == "marker"
    kind, arguments, markers = _declaration(source, line.value, program)
    function = program.rule_of(source, line.value.func)[1] if isinstance(line.value, cst.Call) else ""
    is_ours = function.startswith(libraries.OURS)
    return Field(items[0] if is_static else annotation, "static" if is_static else kind, arguments, markers, is_ours)


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
        own, inner = [names & libraries.CAN_CHANGE] if names & within else [], items_of(annotation)
    else:
        return [] if isinstance(annotation, cst.Name) and annotation.value == "None" else [names]
    return own + [part for each in inner for part in _parts(source, each, program, within)]
