"""A file as a syntax tree: what each name in it stands for, what its annotations say, and the line of each place."""

import dataclasses
import functools
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

import libcst as cst
from libcst import matchers, metadata

from treewright.move import libraries

N = TypeVar("N", bound=cst.CSTNode)
# What statements stand in: nothing else has to be looked into.
_OUTSIDE = (
    *(cst.Module, cst.BaseCompoundStatement, cst.BaseSuite, cst.SimpleStatementLine),
    *(cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.MatchCase),
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Notice:
    """What a user has to look at, by its line in the file as it was read; if `undecided`, it may have to be changed."""

    path: Path
    line: int
    undecided: bool
    text: str
    page: str


class Source:
    """A file, read and parsed.

    Raises:
        libcst.ParserSyntaxError: If it does not parse.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path = path
        self.content = content
        self.module = cst.parse_module(content)
        self.findings: list[Notice] = []
        self._of_texts: dict[cst.CSTNode, metadata.Scope] = {}  # the scopes of the names in annotations that are texts

    def find(self, node: cst.CSTNode, text: str, page: str, *, undecided: bool = False) -> None:
        """Note that a place has to be looked at."""
        self.findings.append(Notice(self.path, self._positions[node].start.line, undecided, text, page))

    def code(self, node: cst.CSTNode) -> str:
        """A part of the file as text."""
        return self.module.code_for_node(node)

    def names_of(self, node: cst.CSTNode) -> frozenset[str]:
        """The full names that an expression may stand for: `flax.struct.dataclass`, whatever it was imported as.

        More than one where branches import different things under one name; none for what is not a name.
        """
        first = first_name(node)
        scope = None if first is None else self._of_texts.get(first) or self._scopes.get(first)
        return frozenset() if scope is None else frozenset(name.name for name in scope.get_qualified_names_for(node))

    # Annotations

    def unquoted(self, annotation: cst.BaseExpression) -> cst.BaseExpression:
        """An annotation that is written as a text as an expression whose names can be followed; any other as it is."""
        if not isinstance(annotation, cst.SimpleString):
            return annotation
        try:
            parsed = cst.parse_expression(str(annotation.evaluated_value))
        except cst.ParserSyntaxError:
            return annotation
        names, scope = matchers.findall(parsed, matchers.Name()), self._scopes[annotation]
        self._of_texts.update((name, scope) for name in names)
        return parsed

    def kinds_of(self, annotation: cst.BaseExpression) -> frozenset[str]:
        """The full names of a type, without its parameters."""
        return self.names_of(unsubscripted(self.unquoted(annotation)))

    def is_one_of(self, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
        """Whether every part of a union, but None, is one of some types."""
        parts = self._parts(annotation)
        return bool(parts) and all(self.kinds_of(part) & names for part in parts)

    def has_one_of(self, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
        """Whether some part of a union, or of a container in it, is one of some types."""
        return any(
            self.kinds_of(part) & names
            or (self.kinds_of(part) & libraries.CONTAINERS and any(self.has_one_of(i, names) for i in items_of(part)))
            for part in self._parts(annotation)
        )

    def _parts(self, annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
        """The parts of a union, without None."""
        annotation = self.unquoted(annotation)
        if isinstance(annotation, cst.BinaryOperation):
            inner = [annotation.left, annotation.right]
        elif isinstance(annotation, cst.Subscript) and self.kinds_of(annotation) & libraries.UNIONS:
            inner = items_of(annotation)
        else:
            return [] if isinstance(annotation, cst.Name) and annotation.value == "None" else [annotation]
        return [part for each in inner for part in self._parts(each)]

    # Imports and statements

    def imported(self) -> Iterator[metadata.ImportAssignment]:
        """Each name that an import binds."""
        return (each for each in self._assignments() if isinstance(each, metadata.ImportAssignment))

    def exports(self, name: str) -> bool:
        """Whether `__all__` may list a name."""
        code = self.module.code
        return "__all__" in code and (f'"{name}"' in code or f"'{name}'" in code)

    def bound(self, *, without: Collection[metadata.ImportAssignment]) -> set[str]:
        """All names that anything in the file binds, but for some imports."""
        return {each.name.partition(".")[0] for each in self._assignments() if each not in without}

    @functools.cached_property
    def import_statements(self) -> list[cst.Import | cst.ImportFrom]:
        """All import statements in the file, in order."""
        return [part for part in self._statements if isinstance(part, cst.Import | cst.ImportFrom)]

    def parts(self, kind: type[N]) -> list[N]:
        """All statements of a kind in the file, in order; and all parts of `with` statements, as `WithItem`."""
        return [part for part in self._statements if isinstance(part, kind)]

    @functools.cached_property
    def _statements(self) -> list[cst.CSTNode]:
        return list(_statements_in(self.module))

    @functools.cached_property
    def opened(self) -> frozenset[str]:
        """The names that `with` statements bind: open files, for the most part."""
        return frozenset(self.code(item.asname.name) for item in self.parts(cst.WithItem) if item.asname is not None)

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        """The ids of the nodes that read a variable, the first of a dotted name."""
        return frozenset(id_of_read(access.node) for scope in self._all_scopes() for access in scope.accesses)

    @functools.cached_property
    def _wrapper(self) -> metadata.MetadataWrapper:
        return metadata.MetadataWrapper(self.module, unsafe_skip_copy=True)  # parsed here, so no part is shared

    @functools.cached_property
    def _scopes(self) -> Any:
        return self._wrapper.resolve(metadata.ScopeProvider)

    @functools.cached_property
    def _positions(self) -> Any:
        return self._wrapper.resolve(metadata.PositionProvider)

    def _all_scopes(self) -> set[metadata.Scope]:
        return {scope for scope in self._scopes.values() if scope is not None}

    def _assignments(self) -> Iterator[metadata.BaseAssignment]:
        return (assignment for scope in self._all_scopes() for assignment in scope.assignments)


def read(path: Path) -> Source:
    """A file, parsed.

    Raises:
        OSError: If it can't be read.
        ValueError: If it does not parse; the message names the line.
    """
    content = path.read_bytes()
    try:
        return Source(path, content)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"{path}:{error.raw_line}: this does not parse: {error.message}") from error
    except (SyntaxError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: this can't be read as Python: {error}") from error


def _statements_in(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """All statements, without a look into them: a visit of a whole file takes most of the time of all that is done."""
    for child in node.children:
        if isinstance(child, cst.BaseCompoundStatement | cst.BaseSmallStatement | cst.WithItem):
            yield child
        if isinstance(child, _OUTSIDE):
            yield from _statements_in(child)


# An identifier can have middle dots in it, and hardly any has two in a row.
def encoded(target: str) -> str:
    """`module:name` as an identifier, which stands in a syntax tree until imports are put right."""
    return target.replace(":", "··").replace(".", "·")


def targets_in(code: str) -> set[str]:
    """Every `module:name` in a text that is written so."""
    return {str(decoded(identifier)) for identifier in re.findall(r"\w+··[\w·]+", code)}


def decoded(identifier: str) -> str | None:
    """What `encoded` wrote; None for any other identifier."""
    return identifier.replace("··", ":").replace("·", ".") if "··" in identifier.strip("·") else None


# What stands for a statement that goes, until the lines around it are put right: libcst would drop them with it.
def gap() -> cst.Expr:
    """The statement."""
    return cst.Expr(cst.Name("gap··"))


def is_gap(statement: cst.CSTNode) -> bool:
    """Whether a statement is one of `gap()`."""
    return isinstance(statement, cst.Expr) and statement.deep_equals(gap())


def names_of_import(assignment: metadata.ImportAssignment) -> set[str]:
    """The full name that an import binds."""
    return {name.name for name in assignment.get_qualified_names_for(assignment.name)}


def unsubscripted(expression: cst.BaseExpression) -> cst.BaseExpression:
    """`a` for `a[b]`; any other expression as it is."""
    return expression.value if isinstance(expression, cst.Subscript) else expression


def items_of(annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
    """What stands in the brackets of an annotation."""
    slices = annotation.slice if isinstance(annotation, cst.Subscript) else ()
    return [each.slice.value for each in slices if isinstance(each.slice, cst.Index)]


def keyword_of(arg: cst.Arg) -> str | None:
    """The keyword that an argument is given by."""
    return None if arg.keyword is None else arg.keyword.value


def id_of_read(node: cst.CSTNode) -> int:
    """The id of the name that a read begins with; of a text, which is read as an annotation, its own."""
    return id(first_name(node) or node)


def first_name(node: cst.CSTNode) -> cst.Name | None:
    """The name that a dotted name begins with; None for what is not one."""
    while isinstance(node, cst.Attribute):
        node = node.value
    return node if isinstance(node, cst.Name) else None
