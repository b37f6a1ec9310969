"""The codemod: rewrite classes, fields and names in one file, and note places to review."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers

from treewright.move import libraries
from treewright.move.evidence import Evidence
from treewright.move.fields import Field, argument, field_of, keyword_of
from treewright.move.imports import imports_without_use, with_imports
from treewright.move.program import (
    NodeClass,
    Program,
    Source,
    first_name,
    function_of,
    items_of,
    name_of,
    statements,
    unsubscripted,
)


def moved(program: Program) -> Iterator[tuple[Source, bytes]]:
    """The new text of each file of a program. Places to review are noted in the sources."""
    evidence = Evidence(program)
    for source in program.sources.values():
        _note_unresolved(source, program)
    files = {id(node.source) for node in program.nodes.values()}
    lines = {id(source): dict(_lines(source, program, evidence)) for source in program.sources.values()}
    for source in program.sources.values():
        uses = program.library_imports(source)
        is_touched = uses or id(source) in files
        yield source, _moved(source, program, uses, lines[id(source)]) if is_touched else source.content


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


def _moved(source: Source, program: Program, uses: list[Any], lines: dict[Any, Field | None]) -> bytes:
    """The new text of a file. A name of ours that an import still binds to something else gets its module in front."""
    rewriter = Rewriter(source, program, uses, lines)
    text = rewriter.text()
    return Rewriter(source, program, uses, lines, rewriter.clashes).text() if rewriter.clashes else text


def _note_class(node: NodeClass, program: Program) -> None:
    """Note features that a node class can't have: a metaclass, or an `__init_subclass__` without `super()`."""
    for keyword in node.definition.keywords:
        if keyword_of(keyword) == "metaclass" and program.names_of(node.source, keyword.value) != {"abc.ABCMeta"}:
            text = f"{node.name} has a metaclass, which may register the class a second time: drop metaclass="
            node.source.note(node.definition, text, node.origin, undecided=True)
    for part in node.definition.body.body:
        is_hook = isinstance(part, cst.FunctionDef) and part.name.value == "__init_subclass__"
        if is_hook and "super()" not in node.source.module.code_for_node(part):
            text = f"{node.name}.__init_subclass__ has to end with super().__init_subclass__(), which makes nodes"
            node.source.note(part, text, node.origin, undecided=True)


def _lines(
    source: Source, program: Program, evidence: Evidence
) -> Iterator[tuple[cst.BaseSmallStatement, Field | None]]:
    """Each line of a node's body that changes: with its field; None for an abstract variable or a shared array."""
    for node in (program.nodes[each] for each in source.classes if each in program.nodes):
        _note_class(node, program)
        inherited = evidence.inherited(node)
        for line in statements(node.definition):
            field = field_of(node, line, program, evidence) if isinstance(line, cst.AnnAssign) else None
            name = name_of(line.target if isinstance(line, cst.AnnAssign) else line.targets[0].target)
            if isinstance(line, cst.AnnAssign):
                outer = unsubscripted(line.annotation.annotation)
                if field is not None or program.names_of(source, outer) & libraries.ABSTRACT:
                    yield line, field
            elif name in inherited:
                text = f"{node.name}.{name} hides a field: repeat its annotation, or make it a ClassVar in both classes"
                source.note(line, text, node.origin, undecided=True)
            elif evidence.kinds_of(source, line.value) & {"array", "container"}:
                yield line, None


class Rewriter(cst.CSTTransformer):
    """Rewrites one file."""

    def __init__(
        self,
        source: Source,
        program: Program,
        uses: list[Any],
        lines: dict[Any, Field | None],
        taken: Iterable[str] = (),
    ) -> None:
        super().__init__()
        self._source, self._program = source, program
        self._uses = {id(first_name(access.node)) for each in uses for access in each.references}
        self._gone = set[int]()  # the ids of the names that are gone
        self._needed = set[tuple[str, str | None]]()
        self._aliases: list[tuple[cst.ImportAlias, cst.ImportAlias]] = []
        self._left: list[tuple[cst.BaseExpression, str]] = []
        self._annotations = 0
        self._lines = lines
        moving = {id(each) for each in uses}  # imports of a library: their names are free if nothing else uses them
        self._taken = {each.name for each in source.assignments if id(each) not in moving} | {*taken}
        self.clashes: set[str] = set()

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
        stay = {each.name: each for each in self._source.imports if id(each.as_name) not in names}
        for package, attribute in self._needed:
            other = stay.get(attribute or "")
            if other is not None and self._source.full_names(other) != {f"{package}.{attribute}"}:
                self.clashes.add(other.name)
        return with_imports(module, self._needed, removed).bytes

    # Names

    def _ours(self, full: str, *instead_of: cst.BaseExpression) -> cst.BaseExpression:
        """A name of ours in place of others; with its module where the file has another meaning for it."""
        self._gone.update(id(first_name(each)) for each in instead_of)
        module, _, name = full.rpartition(".")
        if name in self._taken and self._source.names_of(self._source.module, name) != {full}:
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
        if node is None or (node.has_moved and node.by is not None):
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
            names = self._program.names_of(self._source, function)
            if not names or not names <= libraries.DATACLASSES:
                decorators.append(after)
                continue
            self._gone.add(id(first_name(function)))
            given = before.decorator.args if isinstance(before.decorator, cst.Call) else ()
            keywords += [each for each in given if keyword_of(each) not in libraries.WITHOUT_USE]
        if len(keywords) != len(updated.keywords):
            every = _joined([*bases, *keywords], [*updated.bases, *updated.keywords])
            bases, keywords = every[: len(bases)], every[len(bases) :]
        return updated.with_changes(bases=bases, keywords=keywords, decorators=decorators)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.BaseStatement:
        """An abstract property in place of `name: AbstractVar[type]`, on a line of its own in the body of a node."""
        line = original_node.body[0]
        if (
            len(original_node.body) > 1
            or not isinstance(line, cst.AnnAssign)
            or self._lines.get(line, line) is not None
        ):
            return updated_node
        outer = unsubscripted(line.annotation.annotation)
        self._gone.add(id(first_name(outer)))
        annotation = cst.ensure_type(updated_node.body[0], cst.AnnAssign).annotation.annotation
        types = [self._source.module.code_for_node(each) for each in items_of(annotation)]
        decorator = self._source.module.code_for_node(self._ours("abc.abstractmethod"))
        text = f"@property\n@{decorator}\ndef {name_of(line.target)}(self) -> {', '.join(types) or 'object'}: ..."
        return cst.parse_statement(text, self._source.module.config_for_parsing).with_changes(
            leading_lines=updated_node.leading_lines
        )

    def leave_Assign(self, original_node: cst.Assign, updated_node: cst.Assign) -> cst.BaseSmallStatement:
        """A `ClassVar` in place of an array, list, dict or set that a node class has without an annotation."""
        if original_node not in self._lines:
            return updated_node
        annotation = cst.Annotation(self._ours("typing.ClassVar"))
        return cst.AnnAssign(updated_node.targets[0].target, annotation, updated_node.value)

    # Fields

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        field = self._lines.get(original_node)
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
        if field.kind == "constant":
            return self._constant(field, original_node, updated_node)
        value = self._value(field, original_node.value, updated_node.value)
        if value is updated_node.value:
            return updated_node
        equal = updated_node.equal if isinstance(updated_node.equal, cst.AssignEqual) else cst.AssignEqual()
        return updated_node.with_changes(value=value, equal=equal)

    def _constant(self, field: Field, original: cst.AnnAssign, updated: cst.AnnAssign) -> cst.AnnAssign:
        """A `ClassVar` with the default of the field."""
        if isinstance(original.value, cst.Call) and field.arguments is not None:
            self._gone.add(id(first_name(original.value.func)))
            updated = updated.with_changes(value=field.argument("default"))
        item = cst.SubscriptElement(cst.Index(updated.annotation.annotation))
        annotation = cst.Subscript(self._ours("typing.ClassVar"), [item])
        return updated.with_changes(annotation=updated.annotation.with_changes(annotation=annotation))

    def _value(
        self, field: Field, before: cst.BaseExpression | None, updated: cst.BaseExpression | None
    ) -> cst.BaseExpression | None:
        """The value after the `=` of a field: our specifier, or the original value."""
        static = field.kind == "static"
        if field.is_ours:
            return updated
        call, arguments = cst.Call(cst.Name("static")), list[cst.Arg]()
        if isinstance(before, cst.Call) and isinstance(updated, cst.Call) and field.arguments is not None:
            if not static and "dataclasses.field" in self._program.names_of(self._source, before.func):
                return updated
            self._gone.add(id(first_name(before.func)))
            pairs = zip(before.args, updated.args, strict=True)
            call, arguments = updated, [after for each, after in pairs if each not in field.markers]
            arguments = [each for each in arguments if not (static and keyword_of(each) == "compare")]
        elif not static and not field.is_marked:
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
    """Arguments with the commas and line breaks of the previous arguments."""
    end: Any = before[-1].comma if before else cst.MaybeSentinel.DEFAULT
    between: Any = before[0].comma if len(before) > 1 else cst.MaybeSentinel.DEFAULT
    if matchers.matches(between, matchers.Comma(whitespace_after=matchers.ParenthesizedWhitespace())):
        between = between.with_deep_changes(between.whitespace_after, first_line=cst.TrailingWhitespace())
    own = [
        each.comma if isinstance(each.comma, cst.Comma) and not each.comma.deep_equals(end) else between
        for each in arguments
    ]
    return [each.with_changes(comma=comma) for each, comma in zip(arguments, [*own[:-1], end], strict=False)]
