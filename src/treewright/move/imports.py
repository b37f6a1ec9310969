"""Imports of a rewritten file: remove unused ones and add ours."""

import itertools
import re
from typing import Any

import libcst as cst
from libcst import metadata

from treewright.move.program import Program
from treewright.move.source import Source, every_part, first_name


def with_imports(source: Source, program: Program) -> bytes:
    """The file after the edits, without unused imports, and with the imports of our names.

    Raises:
        ValueError: If it does not parse.
    """
    unused = _imports_without_use(source, program)
    names, needed = dict[str, str](), dict[str, list[str]]()
    for full in sorted({name for *_, text in source.edits for name in re.findall("\0(.+?)\0", text)}):
        module, _, name = full.rpartition(".")
        bound = [
            each for each in source.assignments if each.name == name and getattr(each, "as_name", None) not in unused
        ]
        ours = [each for each in source.imports if each in bound and source.full_names(each) == {full}]
        names[full] = name if len(ours) == len(bound) else full
        if names[full] == full:
            needed[f"import {module}"] = []
        elif not any(isinstance(each.scope, metadata.GlobalScope) for each in ours):
            needed.setdefault(f"from {module} import ", []).append(name)
    _add_imports(source, [start + ", ".join(words) for start, words in needed.items()], unused)
    _delete_imports(source, unused)
    text = source.rewritten(names)
    try:
        cst.parse_module(text)
    except cst.ParserSyntaxError as error:
        raise ValueError(f"{source.path}: a bug in this command: the rewritten file would not parse.") from error
    return text


def _imports_without_use(source: Source, program: Program) -> set[Any]:
    """The names in import statements that nothing uses after the edits.

    An import that another file takes from here stays, and so does one whose name stands in a text, as in `__all__`.
    """
    uses: dict[Any, set[int]] = {}
    for each in source.imports:
        is_text = re.search(rb"[\"']%s[\"']" % each.name.encode(), source.content) is not None
        kept = {0} if is_text or f"{source.name}.{each.name}" in program.passed_on else set()
        own = {id(first_name(access.node)) for access in each.references}
        uses.setdefault(each.as_name, set()).update(own | kept)
    return {name for name, used in uses.items() if used and used <= source.replaced}


def _is_unused(node: Any, unused: set[Any]) -> bool:
    """Whether a statement only imports unused names."""
    match node:
        case cst.ImportAlias():
            return (node.asname or node).name in unused
        case cst.Import() | cst.ImportFrom():
            return not isinstance(node.names, cst.ImportStar) and all(_is_unused(each, unused) for each in node.names)
        case cst.SimpleStatementLine() | cst.BaseSuite():
            return all(_is_unused(each, unused) for each in node.body)
        case cst.Else():
            return _is_unused(node.body, unused)
        case cst.If():
            return _is_unused(node.body, unused) and (node.orelse is None or _is_unused(node.orelse, unused))
        case cst.Try():
            return _is_unused(node.body, unused) and node.orelse is None and node.finalbody is None
        case _:
            return False


def _add_imports(source: Source, lines: list[str], unused: set[Any]) -> None:
    """Add imports in place of the first line that is deleted, or below the imports at the top of the file."""
    top = [*itertools.takewhile(_is_import_or_docstring, source.module.body)]
    place = next((line for line in top if _is_unused(line, unused)), None)
    if place is not None and lines:
        source.replace(place, source.module.default_newline.join(lines))
        return
    first: Any = source.module.body[0]
    start = source.lines_of(top[-1])[1] if top else source.lines_of([*getattr(first, "decorators", ()), first][0])[0]
    source.edit(start, start, "".join(f"{line}{source.module.default_newline}" for line in lines))


def _is_import_or_docstring(line: Any) -> bool:
    parts = line.body if isinstance(line, cst.SimpleStatementLine) else [line]
    return all(isinstance(part, cst.Import | cst.ImportFrom | cst.Expr) for part in parts)


def _delete_imports(source: Source, unused: set[Any]) -> None:
    """Delete the unused names of import statements, and each `if` or `try` that contains nothing else."""
    for block in every_part(source.module):
        items: Any = ()
        if isinstance(block, cst.Module | cst.BaseSuite | cst.SimpleStatementLine):
            items = block.body
        elif isinstance(block, cst.Import | cst.ImportFrom) and not isinstance(block.names, cst.ImportStar):
            items = block.names
        kept = [each for each in items if not _is_unused(each, unused)]
        if len(kept) == len(items):
            continue
        if isinstance(block, cst.Module) or (isinstance(block, cst.IndentedBlock) and kept):
            for each in (part for part in items if part not in kept):
                source.delete_lines(each)
        elif kept:
            source.keep(items, kept)
        elif isinstance(block, cst.BaseSuite):
            source.edit(source.start(items[0]), source.end(items[-1]), "pass")
