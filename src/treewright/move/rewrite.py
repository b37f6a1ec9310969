"""Rewrite the classes, names and imports of a program, and note places to review."""

from collections.abc import Iterator
from typing import Any

import libcst as cst

from treewright.move import libraries
from treewright.move.evidence import Evidence
from treewright.move.fields import contents, rewrite_field
from treewright.move.imports import with_imports
from treewright.move.program import NodeClass, Program
from treewright.move.source import (
    Source,
    argument,
    arguments_of,
    assignments_in,
    bare,
    every_part,
    first_name,
    items_of,
    keyword_of,
)


def moved(program: Program) -> Iterator[tuple[Source, bytes]]:
    """The new text of each file of a program. Places to review are noted in the sources."""
    evidence = Evidence(program)
    for node in program.nodes.values():
        _rewrite_body(node, program, evidence)
        for keyword in node.definition.keywords:
            if keyword_of(keyword) == "metaclass" and program.names_of(node.source, keyword.value) != {"abc.ABCMeta"}:
                text = f"{node.name} has a metaclass, which may register the class a second time: drop metaclass="
                node.source.note(node.definition, text, node.origin, undecided=True)
        if not node.has_moved or node.by is None:
            _write_base(node, program) if node.rule.kind == "base" else _write_decorator(node)
    for source in program.sources.values():
        for module, line in source.stars.items():
            if program.has_rules_for(module):
                text = f"from {module} import *: the imported names are unknown; import them by name"
                source.note(line, text, module, undecided=True)
        _rewrite_names(source, program)
        yield source, with_imports(source, program) if source.edits else source.content


# Names


def _rewrite_names(source: Source, program: Program) -> None:
    """Rename the uses of imports from libraries, and note the uses that remain."""
    every = [access for each in program.library_imports(source) for access in each.references]
    uses = {id(first_name(access.node)): access for access in every}
    for part in every_part(source.module) if uses else ():
        used = first_name(part.func if isinstance(part, cst.Call) else part)
        if id(used) in uses and isinstance(part, cst.Call | cst.Name | cst.Attribute):
            rule, name = program.rule_of(source, bare(part))
            if isinstance(part, cst.Call):
                kept = [each for each in part.args if rule is None or keyword_of(each) not in rule.drops]
                if rule is not None and rule.kind == "renamed" and len(kept) < len(part.args):
                    source.arguments(part, kept, ())
            elif rule is not None and rule.kind == "renamed":
                source.replace(part, source.ours(rule.becomes, part))
            elif id(used) in source.replaced:
                pass
            elif rule is not None and rule.kind == "base" and uses[id(used)].is_annotation:
                source.replace(part, source.ours("treewright.Module", part))
            elif name and (rule is None or rule.kind != "unaware" or program.nodes):
                text, undecided = "left, because it has two possible meanings", True
                if rule is not None:
                    text, undecided = libraries.LEFT.get(rule.kind, (rule.advice, True))
                source.note(part, f"{source.text_of(part)}: {text}", name, undecided=undecided)


# Classes


def _write_decorator(node: NodeClass) -> None:
    """`@pytree_dataclass` in place of a decorator."""
    rule, by, source = node.rule, node.by, node.source
    given = arguments_of(by)
    option = argument(given, rule.keyword_only)
    keywords_only = rule.keyword_only is not None and getattr(option, "value", None) != "False"
    dropped = {None, *libraries.WITHOUT_USE, rule.keyword_only, *(["kw_only"] if keywords_only else [])}
    kept = [each for each in given if keyword_of(each) not in dropped]
    added = ["kw_only=True"] if keywords_only else []
    name = source.ours("treewright.pytree_dataclass", bare(by))
    if isinstance(by, cst.Call) and (kept or added):
        source.replace(by.func, name)
        source.arguments(by, kept, added)
    else:
        source.replace(by, f"{name}({added[0]})" if added else name)
    if rule.advice:
        source.note(node.definition, f"{node.name} {rule.advice}", node.origin)
    for part in node.definition.body.body:
        if isinstance(part, cst.FunctionDef) and part.name.value == "__post_init__":
            text = f"{node.name}.__post_init__ runs in the constructor, but not when JAX unflattens, as in tree.map"
            source.note(part, text, node.origin)


def _write_base(node: NodeClass, program: Program) -> None:
    """`Module` as the base of a class, and the options of a `@dataclass` in the class statement."""
    source, definition = node.source, node.definition
    if isinstance(node.by, cst.Arg):
        base = bare(node.by.value)
        source.replace(base, source.ours("treewright.Module", base))
    arguments = [*definition.bases, *definition.keywords]
    added = list[str]()
    for each in definition.decorators:
        function = bare(each.decorator)
        names = program.names_of(source, function)
        if names and names <= libraries.DATACLASSES:
            source.ours("", function)
            source.delete_lines(each.decorator)
            given = [arg for arg in arguments_of(each.decorator) if keyword_of(arg) not in libraries.WITHOUT_USE]
            added += map(source.text_of, given)
    source.keep(arguments, [each for each in arguments if keyword_of(each) not in node.rule.drops], added)


def _rewrite_body(node: NodeClass, program: Program, evidence: Evidence) -> None:
    """Rewrite the lines in a class body that declare a field, an abstract variable, or a shared array."""
    source, fields = node.source, program.fields(node)
    for name, line in assignments_in(node.definition.body.body):
        if line in fields:
            rewrite_field(node, line, program, evidence)
        elif isinstance(line, cst.AnnAssign):
            names = program.names_of(source, bare(line.annotation.annotation))
            if names & libraries.ABSTRACT and (node, name) not in evidence.tested:
                _write_abstract_property(source, line)
        elif contents(source, line.value, program):
            end = source.end(line.targets[0].target)
            source.edit(end, end, f": {source.ours('typing.ClassVar')}")


def _write_abstract_property(source: Source, line: cst.AnnAssign) -> None:
    """An abstract property in place of `name: AbstractVar[type]`, on a line of its own."""
    start, end = source.start(line), source.end(line)
    space = source.text(source.lines_of(line)[0], start)
    if space.strip() or isinstance(line.semicolon, cst.Semicolon):
        return
    types: list[Any] = items_of(line.annotation.annotation)
    break_ = f"{source.module.default_newline}{space}"
    function = f"def {source.text_of(line.target)}(self) -> "
    before = f"@property{break_}@{source.ours('abc.abstractmethod')}{break_}{function}"
    source.ours("", bare(line.annotation.annotation))
    source.edit(start, source.start(types[0]) if types else end, before)
    source.edit(source.end(types[-1]) if types else end, end, ": ..." if types else "object: ...")
