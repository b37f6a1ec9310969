"""The codemod: classes, fields and names of one file rewritten, and what has to be looked at noted."""

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers

from treewright.move import libraries
from treewright.move.fields import Field, argument, field_of, keyword_of
from treewright.move.imports import imports_without_use, with_imports
from treewright.move.program import NodeClass, Program, Source, first_name, function_of, items_of, unsubscripted


def moved(program: Program) -> Iterator[tuple[Source, bytes]]:
    """The new text of each file of a program. What has to be looked at is noted in the files."""
    for source in program.sources.values():
        _note_unresolved(source, program)
        uses = program.library_imports(source)
        if uses or any(node.source is source for node in program.nodes.values()):
            yield source, Rewriter(source, program, uses).text()
        else:
            yield source, source.content


def _note_unresolved(source: Source, program: Program) -> None:
    """Note star imports of a library, and subclasses of nodes that do not become nodes."""
    for module, line in source.stars.items():
        if program.has_rules_for(module):
            text = f"from {module} import *: what this brings can't be followed; import it by name"
            source.note(line, text, module, undecided=True)
    for definition in source.classes:
        for above, is_sure in program.above(source, definition) if definition not in program.nodes else ():
            name = definition.name.value
            text = f"{name} was left: its base, {above.name}, may be something else here"
            if is_sure:
                text = f"{name} was a leaf, and extends a node, {above.name}: decorate it with @pytree_dataclass"
            source.note(definition, text, above.origin, undecided=True)


class Rewriter(cst.CSTTransformer):
    """Rewrites one file."""

    def __init__(self, source: Source, program: Program, uses: list[Any]) -> None:
        super().__init__()
        self._source, self._program = source, program
        self._uses = {id(first_name(access.node)) for each in uses for access in each.references}
        self._gone = set[int]()  # the ids of the names that are gone
        self._needed = set[tuple[str, str | None]]()
        self._aliases: list[tuple[cst.ImportAlias, cst.ImportAlias]] = []
        self._left: list[tuple[cst.BaseExpression, str]] = []
        self._annotations = 0
        self._fields = dict(self._fields_by_line())

    def text(self) -> bytes:
        """The file rewritten; its content as it was where nothing has to change."""
        module = self._source.module.visit(self)
        for expression, name in self._left:
            if id(first_name(expression)) not in self._gone:
                rule = libraries.RULES[name]
                text, undecided = libraries.LEFT.get(rule.kind, (rule.advice, True))
                text = f"{self._source.module.code_for_node(expression)}: {text}"
                self._source.note(expression, text, name, undecided=undecided)
        if not self._gone and not self._needed:
            return self._source.content
        names = imports_without_use(self._source, self._gone, self._program)
        removed = {id(new): new for old, new in self._aliases if id((old.asname or old).name) in names}
        return with_imports(module, self._needed, removed).bytes

    # Names

    def _ours(self, full: str, *instead_of: cst.BaseExpression) -> cst.BaseExpression:
        """A name of ours in place of others; with its module where the file has another meaning for it."""
        self._gone.update(id(first_name(each)) for each in instead_of)
        module, _, name = full.rpartition(".")
        is_taken = any(each.name == name for each in self._source.assignments)
        if is_taken and self._source.names_of(self._source.module, name) != {full}:
            self._needed.add((module, None))
            return cst.Attribute(cst.Name(module), cst.Name(name))
        self._needed.add((module, name))
        return cst.Name(name)

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        self._annotations -= 1
        return updated_node

    def leave_ImportAlias(self, original_node: cst.ImportAlias, updated_node: cst.ImportAlias) -> cst.ImportAlias:
        self._aliases.append((original_node, updated_node))
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._renamed(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return self._renamed(original_node, updated_node)

    def _renamed(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression:
        if id(first_name(original)) not in self._uses:
            return updated
        rule, name = self._program.rule_of(self._source, original)
        if rule is not None and rule.kind == "renamed":
            return self._ours(rule.becomes, original)
        if rule is not None and rule.kind == "base" and self._annotations:
            return self._ours("treewright.Module", original)
        if rule is not None:
            self._left.append((original, name))
        elif name:
            text = f"{self._source.module.code_for_node(original)}: left, since it may be something else here"
            self._source.note(original, text, name, undecided=True)
        return updated

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        is_used = id(first_name(original_node.func)) in self._uses
        rule = self._program.rule_of(self._source, original_node.func)[0] if is_used else None
        if rule is None or rule.kind != "renamed" or not rule.drops:
            return updated_node
        kept = [each for each in updated_node.args if keyword_of(each) not in rule.drops]
        return updated_node.with_changes(args=_joined(kept, original_node.args))

    # Classes

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        node = self._program.nodes.get(original_node)
        if node is None:
            return updated_node
        return (self._with_base if node.rule.kind == "base" else self._with_decorator)(node, updated_node)

    def _with_decorator(self, node: NodeClass, updated: cst.ClassDef) -> cst.ClassDef:
        """The class with `@pytree_dataclass` in place of its decorator."""
        rule, by = node.rule, node.by
        given = by.args if isinstance(by, cst.Call) else ()
        option = argument(tuple(given), rule.keyword_only or "")
        keywords_only = rule.keyword_only is not None and getattr(option, "value", None) != "False"
        dropped = {None, *libraries.WITHOUT_USE, rule.keyword_only, *(["kw_only"] if keywords_only else [])}
        arguments = [each for each in given if keyword_of(each) not in dropped]
        arguments += [_keyword("kw_only", cst.Name("True"))] if keywords_only else []
        place = [each.decorator for each in node.definition.decorators].index(by)
        decorators = list(updated.decorators)
        made = self._ours("treewright.pytree_dataclass", function_of(by))
        if arguments:
            call = by if isinstance(by, cst.Call) else cst.Call(made)
            made = call.with_changes(func=made, args=_joined(arguments, given))
        decorators[place] = decorators[place].with_changes(decorator=made)
        if rule.advice is not None:
            self._source.note(node.definition, f"{node.name} {rule.advice}", node.origin)
        for part in node.definition.body.body:
            if isinstance(part, cst.FunctionDef) and part.name.value == "__post_init__":
                text = "runs where an instance is made, and no longer where JAX puts one together, under vmap or in "
                self._source.note(part, f"{node.name}.__post_init__ {text}tree.map", node.origin)
        return updated.with_changes(decorators=decorators)

    def _with_base(self, node: NodeClass, updated: cst.ClassDef) -> cst.ClassDef:
        """The class with `Module` as its base, and the options of a `@dataclass` in the class statement."""
        bases, decorators = list(updated.bases), list[cst.Decorator]()
        if isinstance(node.by, cst.Arg):
            place = node.definition.bases.index(node.by)
            value, module = bases[place].value, self._ours("treewright.Module", unsubscripted(node.by.value))
            value = value.with_changes(value=module) if isinstance(value, cst.Subscript) else module
            bases[place] = bases[place].with_changes(value=value)
        keywords = [each for each in updated.keywords if keyword_of(each) not in node.rule.drops]
        for before, after in zip(node.definition.decorators, updated.decorators, strict=True):
            function = function_of(before.decorator)
            if self._program.names_of(self._source, function) != {"dataclasses.dataclass"}:
                decorators.append(after)
                continue
            self._gone.add(id(first_name(function)))
            given = before.decorator.args if isinstance(before.decorator, cst.Call) else ()
            keywords += [each for each in given if keyword_of(each) not in libraries.WITHOUT_USE]
        if len(keywords) != len(updated.keywords):
            every = _joined([*bases, *keywords], [*updated.bases, *updated.keywords])
            bases, keywords = every[: len(bases)], every[len(bases) :]
        return updated.with_changes(bases=bases, keywords=keywords, decorators=decorators)

    # Fields

    def _fields_by_line(self) -> Iterator[tuple[cst.AnnAssign, Field]]:
        """Each line of the file that declares a field of a node; what it means now is noted."""
        for node in (each for each in self._program.nodes.values() if each.source is self._source):
            body = node.definition.body.body
            within = [part for line in body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
            lines: list[Any] = [*body, *within]
            for line in lines:
                is_field = isinstance(line, cst.AnnAssign) and isinstance(line.target, cst.Name)
                field = field_of(node, line, self._program) if is_field else None
                if field is not None:
                    name = f"{node.name}.{line.target.value}"  # pyright: ignore[reportAttributeAccessIssue]  # a Name
                    for text, undecided in field.notes():
                        self._source.note(line, f"{name} {text}", node.origin, undecided=undecided)
                    yield line, field

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        field = self._fields.get(original_node)
        if field is None:
            return updated_node
        if field.kind == "unclear":  # noted already
            function = function_of(original_node.value) if original_node.value else None
            self._left = [each for each in self._left if each[0] is not function]
            return updated_node
        before = original_node.annotation.annotation
        if field.annotation is not before:
            self._gone.add(id(first_name(unsubscripted(before))))
            (unmarked,) = items_of(updated_node.annotation.annotation)
            updated_node = updated_node.with_deep_changes(updated_node.annotation, annotation=unmarked)
        value = self._value(field, original_node.value, updated_node.value)
        if value is updated_node.value:
            return updated_node
        equal = updated_node.equal if isinstance(updated_node.equal, cst.AssignEqual) else cst.AssignEqual()
        return updated_node.with_changes(value=value, equal=equal)

    def _value(
        self, field: Field, before: cst.BaseExpression | None, updated: cst.BaseExpression | None
    ) -> cst.BaseExpression | None:
        """The value behind the `=` of a field: a specifier of ours, or the one that was there."""
        static = field.kind == "static"
        call, arguments = cst.Call(cst.Name("static")), list[cst.Arg]()
        if isinstance(before, cst.Call) and isinstance(updated, cst.Call) and field.arguments is not None:
            if not static and "dataclasses.field" in self._program.names_of(self._source, before.func):
                return updated
            self._gone.add(id(first_name(before.func)))
            pairs = zip(before.args, updated.args, strict=True)
            call, arguments = updated, [after for each, after in pairs if each not in field.markers]
            arguments = [each for each in arguments if not (static and keyword_of(each) == "compare")]
        elif not static:
            return updated
        elif updated is not None:
            arguments = [_keyword("default", updated)]
        if field.freezes:
            arguments.append(_keyword("converter", self._ours("treewright.freeze")))
        function = self._ours("treewright.static" if static else "treewright.field")
        return call.with_changes(func=function, args=_joined(arguments, call.args))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    space = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(space, space))


def _joined(arguments: Sequence[cst.Arg], before: Sequence[cst.Arg]) -> list[cst.Arg]:
    """Arguments with the commas, and the lines, of those that stood there before."""
    end: Any = before[-1].comma if before else cst.MaybeSentinel.DEFAULT
    between: Any = before[0].comma if len(before) > 1 else cst.MaybeSentinel.DEFAULT
    if matchers.matches(between, matchers.Comma(whitespace_after=matchers.ParenthesizedWhitespace())):
        between = between.with_deep_changes(between.whitespace_after, first_line=cst.TrailingWhitespace())
    own = [
        each.comma if isinstance(each.comma, cst.Comma) and not each.comma.deep_equals(end) else between
        for each in arguments
    ]
    return [each.with_changes(comma=comma) for each, comma in zip(arguments, [*own[:-1], end], strict=False)]
