"""The imports of a file that was rewritten: what it needs now, and without what nothing needs any more."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TypeGuard, TypeVar

import libcst as cst
from libcst import RemovalSentinel
from libcst.metadata import ImportAssignment

from treewright.move.source import Source, decoded, first_name, found

S = TypeVar("S", bound=cst.CSTNode)
_Alias = tuple[int, int]  # the number of the import statement in its file, and that of the name in it


def with_imports(module: cst.Module, source: Source, replaced: set[int]) -> cst.Module:
    """The rewritten module with each `module:name` in it as a name, and with the imports for them.

    An import goes if all that read its name have been replaced. `replaced` holds the ids of the nodes that did.
    """
    wanted = _Wanted()
    module.visit(wanted)
    plan = _planned(source, replaced, wanted.targets)
    return module if plan is None else module.visit(_Imports(plan))


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """What becomes of the imports.

    Attributes:
        gone: The names that no import brings any more.
        new: The import statements that are added.
        names: The names of Treewright that one import brings.
        spelled: How each `module:name` is written.
    """

    gone: set[_Alias]
    new: list[str]
    names: list[str]
    spelled: dict[str, str]


def _planned(source: Source, replaced: set[int], targets: set[str]) -> _Plan | None:
    """What becomes of the imports of a file; None if nothing does."""
    wanted = [tuple(target.split(":")) for target in sorted(targets)]
    modules = {home for home, _ in wanted}
    unread = [
        each
        for each in source.imported()
        if each.references and all(id(read.node) in replaced for read in each.references) and not _names(each) & modules
    ]
    unread += _only_asked_for(source, unread)
    if not unread and not wanted:
        return None
    kept = [each for each in source.imported() if each not in unread]
    bound = {name: each.name for each in kept for name in _names(each) if "." not in each.name}
    needed = {name.partition(".")[0] for home, name in wanted if home == "treewright"}
    taken = source.bound(without=[*unread, *(each for each in kept if _names(each) & {f"treewright.{n}" for n in needed})])
    dotted = "treewright" in bound or bool(needed & taken)
    spelled, new = {}, set[str]()
    for home, name in wanted:
        if home != "treewright" or dotted:
            spelled[f"{home}:{name}"] = f"{bound.get(home, home)}.{name}"
            new |= set() if home in bound else {f"import {home}"}
        else:
            first, point, rest = name.partition(".")
            spelled[f"{home}:{name}"] = f"{bound.get(f'treewright.{first}', first)}{point}{rest}"
    names = [] if dotted else sorted(name for name in needed if f"treewright.{name}" not in bound)
    return _Plan(_aliases(source, unread), sorted(new), names, spelled)


def _names(assignment: ImportAssignment) -> set[str]:
    return {name.name for name in assignment.get_qualified_names_for(assignment.name)}


def _aliases(source: Source, unread: list[ImportAssignment]) -> set[_Alias]:
    """The places of the names that some imports bind."""
    gone: set[_Alias] = set()
    statements = [each for each in found(source, cst.BaseSmallStatement) if isinstance(each, cst.Import | cst.ImportFrom)]
    for each in unread:
        number = next(number for number, statement in enumerate(statements) if statement is each.node)
        names = statements[number].names
        if not isinstance(names, cst.ImportStar):
            gone |= {(number, place) for place, alias in enumerate(names) if _bound_by(alias) == each.name}
    return gone


def _bound_by(alias: cst.ImportAlias) -> str:
    return alias.evaluated_alias or alias.evaluated_name.partition(".")[0]


def _only_asked_for(source: Source, unread: list[ImportAssignment]) -> list[ImportAssignment]:
    """The import of `TYPE_CHECKING`, if all that asked for it was whether to import what is gone."""
    gone = {id(each.node) for each in unread}
    asked = set[int]()
    for choice in found(source, cst.If):
        lines = [*_lines(choice.body), *(() if choice.orelse is None else _lines(choice.orelse.body))]
        if isinstance(choice.orelse, cst.If) or not all(id(line) in gone for line in lines):
            continue
        asked.add(id(first_name(choice.test)))
    return [
        each for each in source.imported() if each.references and all(id(read.node) in asked for read in each.references)
    ]


def _lines(block: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    for statement in block.body:
        yield from statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]


class _Wanted(cst.CSTVisitor):
    """The names in a file that imports have to bring."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: set[str] = set()

    def visit_Name(self, node: cst.Name) -> None:
        target = decoded(node.value)
        if target is not None:
            self.targets.add(target)


class _Imports(cst.CSTTransformer):
    """Does what the plan says. The first import at the top that goes makes place for the new ones."""

    def __init__(self, plan: _Plan) -> None:
        super().__init__()
        self._plan = plan
        self._number = -1
        self._depth = 0
        self._removed = 0
        self._removed_before: list[int] = []
        self._names = plan.names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        target = decoded(updated_node.value)
        return updated_node if target is None else cst.parse_expression(self._plan.spelled[target])

    # The statements

    def visit_Import(self, node: cst.Import) -> None:
        self._number += 1

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        self._number += 1

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.Import | RemovalSentinel:
        kept = self._kept(updated_node.names)
        return updated_node.with_changes(names=kept) if kept else cst.RemoveFromParent()

    def leave_ImportFrom(
        self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom
    ) -> cst.ImportFrom | RemovalSentinel:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        kept = self._kept(updated_node.names)
        if self._depth == 0 and isinstance(updated_node.module, cst.Name) and updated_node.module.value == "treewright":
            kept = [*kept[:-1], kept[-1].with_changes(comma=_COMMA), *_aliases_of(self._names, kept[-1].comma)]
            self._names = []
        return updated_node.with_changes(names=kept) if kept else cst.RemoveFromParent()

    def _kept(self, names: Sequence[cst.ImportAlias]) -> list[cst.ImportAlias]:
        kept = [alias for place, alias in enumerate(names) if (self._number, place) not in self._plan.gone]
        self._removed += len(kept) < len(names)
        return [*kept[:-1], kept[-1].with_changes(comma=names[-1].comma)] if kept else []

    # What stands around them

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self._depth -= 1
        kept = [line for line in updated_node.body if not _is_empty(line)]
        return updated_node.with_changes(body=kept or [_PASS])

    def visit_If(self, node: cst.If) -> None:
        self._removed_before.append(self._removed)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | RemovalSentinel:
        changed = self._removed > self._removed_before.pop()
        rest = updated_node.orelse
        is_empty = _passes(updated_node.body) and (rest is None or (isinstance(rest, cst.Else) and _passes(rest.body)))
        return cst.RemoveFromParent() if changed and is_empty else updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        lines = [f"from treewright import {', '.join(self._names)}"] if self._names else []
        new = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in (*self._plan.new, *lines)]
        body: list[cst.BaseStatement | cst.SimpleStatementLine] = []
        comments: list[cst.EmptyLine] = []
        for line in updated_node.body:
            if not _is_empty(line):
                body.append(_under(comments, line))
                comments = []
            elif new:
                body += [_under([*comments, *line.leading_lines], new[0]), *new[1:]]
                new, comments = [], []
            else:
                comments += [each for each in line.leading_lines if each.comment is not None]
        place = _after_imports(body)
        return updated_node.with_changes(body=[*body[:place], *new, *body[place:]])


_COMMA = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
_PASS = cst.SimpleStatementLine([cst.Pass()])


def _aliases_of(names: Sequence[str], end: cst.Comma | cst.MaybeSentinel) -> list[cst.ImportAlias]:
    aliases = [cst.ImportAlias(cst.Name(name), comma=_COMMA) for name in names]
    return [*aliases[:-1], aliases[-1].with_changes(comma=end)] if aliases else []


def _is_empty(line: cst.CSTNode) -> TypeGuard[cst.SimpleStatementLine]:
    return isinstance(line, cst.SimpleStatementLine) and not line.body


def _passes(block: cst.BaseSuite) -> bool:
    return all(isinstance(line, cst.Pass) for line in _lines(block))


def _under(comments: Sequence[cst.EmptyLine], line: S) -> S:
    """A statement with lines above it."""
    leading: Sequence[cst.EmptyLine] = getattr(line, "leading_lines", ())
    return line.with_changes(leading_lines=[*comments, *leading]) if comments else line


def _after_imports(body: Sequence[cst.CSTNode]) -> int:
    """Where an import can be added: after the last one at the top, or else after the docstring."""
    place = 0
    for number, line in enumerate(body):
        if isinstance(line, cst.ClassDef | cst.FunctionDef):
            break
        first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        is_docstring = number == 0 and isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
        if is_docstring or isinstance(first, cst.Import | cst.ImportFrom):
            place = number + 1
    return place
