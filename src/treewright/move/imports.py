"""The imports of a file that was rewritten: what it needs now, and without what nothing needs any more."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard, TypeVar

import libcst as cst
from libcst import RemovalSentinel
from libcst.metadata import ImportAssignment

from treewright.move.calls import separated
from treewright.move.source import Source, decoded, first_name, gap, id_of_read, is_gap, names_of_import, targets_in

S = TypeVar("S", bound=cst.CSTNode)
_Alias = tuple[int, int]  # the number of the import statement in its file, and that of the name in it


def with_imports(module: cst.Module, source: Source, replaced: set[int]) -> cst.Module:
    """The rewritten module with each `module:name` in it as a name, and with the imports for them.

    An import goes if all that read its name have been replaced. `replaced` holds the ids of the nodes that did.
    """
    wanted = [target.split(":") for target in sorted(targets_in(module.code))]
    gone = _gone(source, replaced, {home for home, _ in wanted})
    if not gone and not wanted:
        return module
    unread = [each for bound in gone.values() for each in bound]
    kept = [each for each in source.imported() if each not in unread]
    bound = {name: each.name for each in kept for name in names_of_import(each) if "." not in each.name}
    needed = {name.partition(".")[0] for home, name in wanted if home == "treewright"}
    ours = [each for each in kept if names_of_import(each) & {f"treewright.{name}" for name in needed}]
    dotted = "treewright" in bound or bool(needed & source.bound(without=[*unread, *ours]))
    spelled, new = dict[str, str](), set[str]()  # how each is written, and the statements that are added
    for home, name in wanted:
        if home != "treewright" or dotted:
            spelled[f"{home}:{name}"] = f"{bound.get(home, home)}.{name}"
            new |= set() if home in bound else {f"import {home}"}
        else:
            first, point, rest = name.partition(".")
            spelled[f"{home}:{name}"] = f"{bound.get(f'treewright.{first}', first)}{point}{rest}"
    names = [] if dotted else sorted(name for name in needed if f"treewright.{name}" not in bound)
    return module.visit(_Imports(set(gone), sorted(new), names, spelled))


def _gone(source: Source, replaced: set[int], modules: set[str]) -> dict[_Alias, list[ImportAssignment]]:
    """The names that no import brings any more, each with what it bound: `import a.b` binds `a`, read as `a.b`."""
    imported = list(source.imported())
    bound_by_place = {
        (number, place): [
            each
            for each in imported
            if each.node is statement
            and f"{alias.evaluated_alias or alias.evaluated_name}.".startswith(f"{each.name}.")
        ]
        for number, statement in enumerate(source.import_statements)
        for place, alias in enumerate(_aliases(statement.names))
    }
    gone = {
        place: bound
        for place, bound in bound_by_place.items()
        if _all_in(replaced, bound)
        and not any(names_of_import(each) & modules or source.exports(each.name) for each in bound)
    }
    asked = _asked_for(source, gone)
    return gone | {place: bound for place, bound in bound_by_place.items() if _all_in(asked, bound)}


def _aliases(names: Sequence[cst.ImportAlias] | cst.ImportStar) -> Sequence[cst.ImportAlias]:
    return () if isinstance(names, cst.ImportStar) else names


def _all_in(replaced: set[int], bound: Iterable[ImportAssignment]) -> bool:
    """Whether there are reads of what an import binds, and all of them are among some nodes."""
    reads = {id_of_read(read.node) for each in bound for read in each.references}
    return bool(reads) and reads <= replaced


def _asked_for(source: Source, gone: Mapping[_Alias, list[ImportAssignment]]) -> set[int]:
    """The reads of `TYPE_CHECKING` and the like, where all that hangs on them is imports that are gone."""
    statements = {
        id(statement)
        for number, statement in enumerate(source.import_statements)
        if all((number, place) in gone for place in range(len(_aliases(statement.names)) or 1))
    }
    choices = (choice for choice in source.parts(cst.If) if all(id(line) in statements for line in _lines(choice)))
    return {id(first_name(choice.test)) for choice in choices}


def _lines(statement: cst.If | cst.Try) -> list[cst.CSTNode]:
    """What a statement runs: the lines in it and in its `else`, and an `elif` or `finally` as it is."""
    rest, end = statement.orelse, getattr(statement, "finalbody", None)
    blocks = [statement.body, *([rest.body] if isinstance(rest, cst.Else) else [])]
    parts = [part for block in blocks for part in block.body]
    lines = [line for part in parts for line in (part.body if isinstance(part, cst.SimpleStatementLine) else [part])]
    return [*lines, *(each for each in (rest, end) if isinstance(each, cst.If | cst.Finally))]


class _Imports(cst.CSTTransformer):
    """Takes away what is gone, and adds `new` and `names` of ours at the first import at the top that goes."""

    def __init__(self, gone: set[_Alias], new: list[str], names: list[str], spelled: Mapping[str, str]) -> None:
        super().__init__()
        self._gone, self._new, self._names, self._spelled = gone, new, names, spelled
        self._number = -1
        self._depth = 0
        self._dropped: list[cst.CSTNode] = []

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        target = decoded(updated_node.value)
        return updated_node if target is None else cst.parse_expression(self._spelled[target])

    # The statements

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.BaseSmallStatement:
        kept = self._kept(updated_node.names)
        return updated_node.with_changes(names=kept) if kept else gap()

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.BaseSmallStatement:
        kept = self._kept(updated_node.names)
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        if self._depth == 0 and isinstance(updated_node.module, cst.Name) and updated_node.module.value == "treewright":
            new, self._names = [cst.ImportAlias(cst.Name(name)) for name in self._names], []
            kept = separated([*kept, *new], kept)
        return updated_node.with_changes(names=kept) if kept else gap()

    def _kept(self, names: Sequence[cst.ImportAlias] | cst.ImportStar) -> list[cst.ImportAlias]:
        self._number += 1
        kept = [alias for place, alias in enumerate(_aliases(names)) if (self._number, place) not in self._gone]
        return [*kept[:-1], kept[-1].with_changes(comma=_aliases(names)[-1].comma)] if kept else []

    # What stands around them

    def visit_IndentedBlock(self, node: cst.IndentedBlock) -> None:
        self._depth += 1

    def leave_IndentedBlock(
        self, original_node: cst.IndentedBlock, updated_node: cst.IndentedBlock
    ) -> cst.IndentedBlock:
        self._depth -= 1
        kept = [line for line in updated_node.body if not _is_empty(line)]
        return updated_node.with_changes(body=kept or [cst.SimpleStatementLine([cst.Pass()])])

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | RemovalSentinel:
        return updated_node if self._stays(original_node, updated_node) else cst.RemoveFromParent()

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> cst.Try | RemovalSentinel:
        return updated_node if self._stays(original_node, updated_node) else cst.RemoveFromParent()

    def _stays(self, original: cst.If | cst.Try, updated: cst.If | cst.Try) -> bool:
        if not _is_bare(updated) or _is_bare(original):
            return True
        self._dropped.append(original)
        return False

    def leave_SimpleStatementSuite(
        self, original_node: cst.SimpleStatementSuite, updated_node: cst.SimpleStatementSuite
    ) -> cst.SimpleStatementSuite:
        kept = [part for part in updated_node.body if not is_gap(part)]
        return updated_node.with_changes(body=kept or [cst.Pass()])

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        kept = [part for part in updated_node.body if not is_gap(part)]
        return updated_node.with_changes(body=kept) if kept else updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        lines = [*self._new, *([f"from treewright import {', '.join(self._names)}"] if self._names else [])]
        new = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in lines]
        body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        above: list[cst.EmptyLine] = []
        before_use: int | None = None  # the place of the first statement that needs what is imported
        originals = [line for line in original_node.body if line not in self._dropped]
        for original, line in zip(originals, updated_node.body, strict=True):
            if before_use is None and targets_in(original_node.code_for_node(original)):
                before_use = len(body)
            if not _is_empty(line):
                body.append(_under(above, line))
                above = []
            elif new and before_use is None:
                body += [_under([*above, *line.leading_lines], new[0]), *new[1:]]
                new, above = [], []
            else:
                above += line.leading_lines
        place = _after_imports(body[:before_use])
        if place == 1 and new and _is_docstring(body[0]):
            new[0] = _under([cst.EmptyLine(indent=False)], new[0])
        return updated_node.with_changes(body=[*body[:place], *new, *body[place:]])


def _is_empty(line: cst.CSTNode) -> TypeGuard[cst.SimpleStatementLine]:
    return isinstance(line, cst.SimpleStatementLine) and all(is_gap(part) for part in line.body)


def _is_bare(statement: cst.If | cst.Try) -> bool:
    """Whether all that a statement runs is `pass`, which raises nothing that it could handle."""
    return all(isinstance(line, cst.Pass) for line in _lines(statement))


def _under(above: Sequence[cst.EmptyLine], line: S) -> S:
    """A statement with what stood above a line that is gone: its comments, and the space where there is none."""
    own: Sequence[cst.EmptyLine] = getattr(line, "leading_lines", ())
    comments = [each for each in above if each.comment is not None]
    leading = [*comments, *own] if own else above
    return line.with_changes(leading_lines=leading) if above else line


def _after_imports(body: Sequence[cst.CSTNode]) -> int:
    """Where an import can be added: after the last one at the top, or else after the docstring."""
    place = 0
    for number, line in enumerate(body):
        if isinstance(line, cst.ClassDef | cst.FunctionDef):
            break
        first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if (number == 0 and _is_docstring(line)) or isinstance(first, cst.Import | cst.ImportFrom):
            place = number + 1
    return place


def _is_docstring(line: cst.CSTNode) -> bool:
    first = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    return isinstance(first, cst.Expr) and isinstance(first.value, cst.SimpleString)
