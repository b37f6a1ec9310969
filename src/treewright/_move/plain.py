"""Where JAX's own transformations do as well as filtered ones: where all that they are given is arrays."""

import libcst as cst

from treewright._move import libraries
from treewright._move.annotations import items_of, kinds_of
from treewright._move.classes import CodeBase, NodeClass
from treewright._move.libraries import Filtered
from treewright._move.source import Source


def is_plain(program: CodeBase, source: Source, rule: Filtered, function: cst.FunctionDef) -> bool:
    """Whether the annotations of a function say that the transformation is given arrays alone, floats where it must."""
    given = function.params
    if rule.first:
        first = (*given.posonly_params, *given.params)[:1]
        return bool(first) and _takes_arrays(program, source, first[0], floats=True)
    if isinstance(given.star_arg, cst.Param) or given.star_kwarg is not None:
        return False
    every = (*given.posonly_params, *given.params, *given.kwonly_params)
    return all(_takes_arrays(program, source, param, floats=False) for param in every)


def _takes_arrays(program: CodeBase, source: Source, param: cst.Param, *, floats: bool) -> bool:
    if param.annotation is None or param.default is not None:
        return False
    return _Plain(program, floats=floats).holds(source, param.annotation.annotation, ())


class _Plain:
    """Whether all leaves of a value are arrays, by its annotation."""

    def __init__(self, program: CodeBase, *, floats: bool) -> None:
        self._program = program
        self._arrays = libraries.ARRAYS - libraries.NOT_FLOATS if floats else libraries.ARRAYS

    def holds(self, source: Source, annotation: cst.BaseExpression, inside: tuple[NodeClass, ...]) -> bool:
        annotation = source.unquoted(annotation)
        kinds = kinds_of(source, annotation)
        if kinds & libraries.CONTAINERS:
            items = [item for item in items_of(annotation) if not isinstance(item, cst.Ellipsis)]
            items = items[1:] if kinds & libraries.DICTS else items
            return bool(items) and all(self.holds(source, item, inside) for item in items)
        nodes = [self._program.named(name.rpartition(".")[2]) for name in kinds]
        return bool(kinds & self._arrays) or any(node is not None and self._in_class(node, inside) for node in nodes)

    def _in_class(self, node: NodeClass, inside: tuple[NodeClass, ...]) -> bool:
        if node.by is None:  # it has fields of its bases too
            return False
        return node in inside or all(
            field.kind == "static" or self.holds(node.source, field.annotation, (*inside, node))
            for field in node.fields.values()
        )
