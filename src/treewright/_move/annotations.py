"""What an annotation says of the values: arrays, floats, what can change in place, what is never an array."""

from collections.abc import Iterator

import libcst as cst

from treewright._move import libraries
from treewright._move.source import Source


def is_one_of(source: Source, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
    """Whether every part of a union, but None, is one of some types."""
    parts = list(_parts(source, annotation))
    return bool(parts) and all(kinds_of(source, part) & names for part in parts)


def has_one_of(source: Source, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
    """Whether some part of a union, or of a container in it, is one of some types."""
    for part in _parts(source, annotation):
        kinds = kinds_of(source, part)
        if kinds & names:
            return True
        if kinds & libraries.CONTAINERS and any(has_one_of(source, each, names) for each in items_of(part)):
            return True
    return False


def kinds_of(source: Source, annotation: cst.BaseExpression) -> frozenset[str]:
    """The full names of a type, without its parameters."""
    annotation = source.unquoted(annotation)
    return source.names_of(annotation.value if isinstance(annotation, cst.Subscript) else annotation)


def items_of(annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What stands in the brackets of an annotation."""
    slices = annotation.slice if isinstance(annotation, cst.Subscript) else ()
    return [each.slice.value for each in slices if isinstance(each.slice, cst.Index)]


def _parts(source: Source, annotation: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """The parts of a union, without None."""
    annotation = source.unquoted(annotation)
    if isinstance(annotation, cst.BinaryOperation):
        yield from _parts(source, annotation.left)
        yield from _parts(source, annotation.right)
    elif isinstance(annotation, cst.Subscript) and kinds_of(source, annotation) & libraries.UNIONS:
        for item in items_of(annotation):
            yield from _parts(source, item)
    elif not (isinstance(annotation, cst.Name) and annotation.value == "None"):
        yield annotation
