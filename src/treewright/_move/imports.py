"""The imports of a file that was rewritten: what it needs now, and without what nothing needs any more."""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeGuard, TypeVar

import libcst as cst
from libcst import RemovalSentinel
from libcst.metadata import ImportAssignment

from treewright._move.source import Source, decoded, first_name, gap, id_of_read, is_gap, targets_in

S = TypeVar("S", bound=cst.CSTNode)
_Alias = tuple[int, int]  # the number of the import statement in its file, and that of the name in it


def with_imports(module: cst.Module, source: Source, replaced: set[int]) -> cst.Module:
    """The rewritten module with each `module:name` in it as a name, and with the imports for them.

    An import goes if all that read its name have been replaced. `replaced` holds the ids of the nodes that did.
    """
    plan = _planned(source, replaced, targets_in(module.code))
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
    wanted = [target.split(":") for target in sorted(targets)]
    modules = {home for home, _ in wanted}
    gone = {
        place: bound
        for place, bound in _bound_by_place(source).items()
        if _all_in(replaced, bound)
        and not any(source.names_of_import(each) & modules or source.exports(each.name) for each in bound)
    }
    asked = _asked_for(source, gone)
    gone |= {place: bound for place, bound in _bound_by_place(source).items() if _all_in(asked, bound)}
    if not gone and not wanted:
        return None
    unread = [each for bound in gone.values() for each in bound]
    kept = [each for each in source.imported() if each not in unread]
    bound = {name: each.name for each in kept for name in source.names_of_import(each) if "." not in each.name}
    needed = {name.partition(".")[0] for home, name in wanted if home == "treewright"}
    taken = source.bound(
        without=[
            *unread,
            *(each for each in kept if source.names_of_import(each) & {f"treewright.{n}" for n in needed}),
        ]
    )
    dotted = "treewright" in bound or bool(needed & taken)
    spelled, new = dict[str, str](), set[str]()
    for home, name in wanted:
        if home != "treewright" or dotted:
            spelled[f"{home}:{name}"] = f"{bound.get(home, home)}.{name}"
            new |= set() if home in bound else {f"import {home}"}
        else:
            first, point, rest = name.partition(".")
            spelled[f"{home}:{name}"] = f"{bound.get(f'treewright.{first}', first)}{point}{rest}"
    names = [] if dotted else sorted(name for name in needed if f"treewright.{name}" not in bound)
    return _Plan(set(gone), sorted(new), names, spelled)


def _bound_by_place(source: Source) -> dict[_Alias, list[ImportAssignment]]:
    """What each name in an import statement binds: `import a.b` binds `a`, and what is read as `a.b`."""
    bound: dict[_Alias, list[ImportAssignment]] = {}
    for number, statement in enumerate(source.import_statements):
        names = () if isinstance(statement.names, cst.ImportStar) else statement.names
        for place, alias in enumerate(names):
            name = alias.evaluated_alias or alias.evaluated_name
            bound[number, place] = [
                each for each in source.imported() if each.node is statement and f"{name}.".startswith(f"{each.name}.")
            ]
    return bound


def _all_in(replaced: Collection[int], bound: Iterable[ImportAssignment]) -> bool:
    """Whether there are reads of what an import binds, and all of them are among some nodes."""
    reads = [id_of_read(read.node) for each in bound for read in each.references]
    return bool(reads) and all(read in replaced for read in reads)


def _asked_for(source: Source, gone: Mapping[_Alias, list[ImportAssignment]]) -> set[int]:
    """The reads of `TYPE_CHECKING` and the like, where all that hangs on them is imports that are gone."""
    statements = {
        id(statement)
        for number, statement in enumerate(source.import_statements)
        if not isinstance(statement.names, cst.ImportStar)
        and all((number, place) in gone for place in range(len(statement.names)))
    }
    asked = set[int]()
    for choice in source.parts(cst.If):
        rest = choice.orelse.body if isinstance(choice.orelse, cst.Else) else None
        lines = [*_lines(choice.body), *(() if rest is None else _lines(rest))]
        if (rest is not None or choice.orelse is None) and all(id(line) in statements for line in lines):
            asked.add(id(first_name(choice.test)))
    return asked


def _lines(block: cst.BaseSuite) -> Iterator[cst.CSTNode]:
    for statement in block.body:
        yield from statement.body if isinstance(statement, cst.SimpleStatementLine) else [statement]


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
        self._dropped: list[cst.CSTNode] = []

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        target = decoded(updated_node.value)
        return updated_node if target is None else cst.parse_expression(self._plan.spelled[target])

    # The statements

    def visit_Import(self, node: cst.Import) -> None:
        self._number += 1

    def visit_ImportFrom(self, node: cst.ImportFrom) -> None:
        self._number += 1

    def leave_Import(self, original_node: cst.Import, updated_node: cst.Import) -> cst.BaseSmallStatement:
        kept = self._kept(updated_node.names)
        return updated_node.with_changes(names=kept) if kept else gap()

    def leave_ImportFrom(self, original_node: cst.ImportFrom, updated_node: cst.ImportFrom) -> cst.BaseSmallStatement:
        if isinstance(updated_node.names, cst.ImportStar):
            return updated_node
        kept = self._kept(updated_node.names)
        if self._depth == 0 and isinstance(updated_node.module, cst.Name) and updated_node.module.value == "treewright":
            new = [cst.ImportAlias(cst.Name(name)) for name in self._names]
            between = kept[0].comma if len(kept) > 1 else cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            end, self._names = kept[-1].comma, []
            kept = [alias.with_changes(comma=between) for alias in (*kept, *new)]
            kept[-1] = kept[-1].with_changes(comma=end)
        return updated_node.with_changes(names=kept) if kept else gap()

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
        return updated_node.with_changes(body=kept or [cst.SimpleStatementLine([cst.Pass()])])

    def visit_If(self, node: cst.If) -> None:
        self._removed_before.append(self._removed)

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> cst.If | RemovalSentinel:
        changed = self._removed > self._removed_before.pop()
        rest = updated_node.orelse
        is_empty = _passes(updated_node.body) and (rest is None or (isinstance(rest, cst.Else) and _passes(rest.body)))
        if not (changed and is_empty):
            return updated_node
        self._dropped.append(original_node)
        return cst.RemoveFromParent()

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        kept = [part for part in updated_node.body if not is_gap(part)]
        return updated_node.with_changes(body=kept) if kept else updated_node

    def leave_Module(self, original_node: cst.Module, updated_node: cst.Module) -> cst.Module:
        lines = [*self._plan.new, *([f"from treewright import {', '.join(self._names)}"] if self._names else [])]
        new = [cst.ensure_type(cst.parse_statement(line), cst.SimpleStatementLine) for line in lines]
        body: list[cst.SimpleStatementLine | cst.BaseCompoundStatement] = []
        above: list[cst.EmptyLine] = []
        before_use: int | None = None  # the place of the first statement that needs what is imported
        originals = [line for line in original_node.body if not any(line is dropped for dropped in self._dropped)]
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


def _passes(block: cst.BaseSuite) -> bool:
    return all(isinstance(line, cst.Pass) for line in _lines(block))


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
