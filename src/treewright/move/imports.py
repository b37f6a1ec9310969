"""Imports of a rewritten file: remove unused ones and add ours, in one pass."""

import re
from collections.abc import Mapping
from typing import Any

import libcst as cst
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor

from treewright.move.program import Program, Source, first_name


def imports_without_use(source: Source, gone: set[int], program: Program) -> set[int]:
    """The ids of the names in import statements whose every use is gone.

    An import that another file takes from here stays, and so does one whose name stands in a text, as in `__all__`.
    """
    uses: dict[int, set[int]] = {}
    for each in source.imports:
        is_text = re.search(rb"[\"']%s[\"']" % each.name.encode(), source.content) is not None
        kept = {0} if is_text or f"{source.name}.{each.name}" in program.passed_on else set()
        own = {id(first_name(access.node)) for access in each.references}
        uses.setdefault(id(each.as_name), set()).update(own | kept)
    return {name for name, used in uses.items() if used and used <= gone}


def with_imports(module: cst.Module, needed: set[tuple[str, str | None]], removed: Mapping[int, Any]) -> cst.Module:
    """A file with the imports that it needs, and without some: their aliases, by their ids."""
    context = CodemodContext()
    for name, attribute in needed:
        AddImportsVisitor.add_needed_import(context, name, attribute)
    module = module.visit(_Removal(removed))
    # Imports are added to the first block of them: the rest of the file need not be visited.
    end = next((i for i, line in enumerate(module.body) if not isinstance(line, cst.SimpleStatementLine)), None)
    head = AddImportsVisitor(context).transform_module(module.with_changes(body=module.body[:end]))
    return head.with_changes(body=[*head.body, *(module.body[end:] if end is not None else ())])


class _Removal(cst.CSTTransformer):
    """Removes imports, and the conditions and `try` around them that hold nothing else."""

    def __init__(self, removed: Mapping[int, Any]) -> None:
        super().__init__()
        self._removed = removed
        self._waiting: list[cst.EmptyLine] = []  # the lines above a removed statement, for the next one
        self._above: dict[cst.CSTNode, list[cst.EmptyLine]] = {}

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            self._above[node], self._waiting = self._waiting, []
        statements = cst.Module | cst.BaseSuite | cst.BaseCompoundStatement | cst.SimpleStatementLine
        return isinstance(node, statements | cst.Else | cst.Import | cst.ImportFrom)

    def on_leave(self, original_node: Any, updated_node: Any) -> Any:
        updated, above = updated_node, self._above.pop(original_node, [])
        if isinstance(original_node, cst.Import | cst.ImportFrom):
            return self._without(updated, original_node.names)
        if isinstance(original_node, cst.Module):
            return updated.with_changes(footer=[*self._waiting, *updated.footer])
        has_more = any(getattr(updated, part, None) for part in ("orelse", "finalbody"))
        if isinstance(original_node, cst.If | cst.Else | cst.Try) and not updated.body.body and not has_more:
            updated = cst.RemoveFromParent()
        if not isinstance(original_node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            return updated
        own = list(original_node.leading_lines)
        has_comment = any(line.comment for line in above)
        while above and own and not own[0].comment and (not has_comment or not above[-1].comment):
            above = above[:-1]  # Merge two adjacent blank lines
        if updated is cst.RemovalSentinel.REMOVE or (isinstance(updated, cst.SimpleStatementLine) and not updated.body):
            self._waiting = [*above, *own]
            return updated
        return updated.with_changes(leading_lines=[*above, *updated.leading_lines]) if above else updated

    def _without(self, updated: cst.Import | cst.ImportFrom, names: Any) -> Any:
        if isinstance(names, cst.ImportStar):
            return updated
        kept = [alias for alias in names if id(alias) not in self._removed]
        if len(kept) == len(names):
            return updated
        if not kept:
            return cst.RemoveFromParent()
        kept[-1] = kept[-1].with_changes(comma=names[-1].comma)
        return updated.with_changes(names=kept)
