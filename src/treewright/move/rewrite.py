"""The codemod: classes, fields, names and imports of one file rewritten."""

from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst
from libcst import matchers
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, RemoveImportsVisitor

from treewright.move import libraries
from treewright.move.libraries import Base, Decorator, Library, Marker, Renamed, Rule, Specifier, Stays
from treewright.move.notes import look
from treewright.move.program import (
    Field,
    NodeClass,
    Program,
    Source,
    argument,
    arguments_of,
    first_name,
    function_of,
    items_of,
    keyword_of,
)


def moved(program: Program) -> Iterator[tuple[Source, bytes]]:
    """The new text of each file of a program that was read. What has to be looked at is noted in the files."""
    for source in program.sources.values():
        if not program.concerns(source):
            yield source, source.content
            continue
        rewriter = Rewriter(source, program)
        module = source.module.visit(rewriter)
        rewriter.note_what_is_left()
        yield source, _with_imports(module, rewriter).bytes if rewriter.changed else source.content
    look(program)


def _with_imports(module: cst.Module, rewriter: "Rewriter") -> cst.Module:
    """A rewritten file with the imports that it needs, and without those that it needs no more."""
    module = AddImportsVisitor(rewriter.context).transform_module(module)
    module = _RemovedImports(rewriter.context).transform_module(module)
    guards = _EmptyGuards()
    module = module.visit(guards)
    if guards.removed:
        module = RemoveImportsVisitor(CodemodContext(), [("typing", "TYPE_CHECKING", None)]).transform_module(module)
    return module


class _RemovedImports(RemoveImportsVisitor):
    """Removes imports; the comments and blank lines above them go to the next import."""

    _above: tuple[cst.EmptyLine, ...] | None = None

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        lines, above = updated_node.leading_lines, self._above
        if above is not None:
            lines = (*above, *(line for line in lines if line.comment))
        self._above = None if updated_node.body else tuple(lines)
        is_import = isinstance(original_node.body[0], cst.Import | cst.ImportFrom)
        return updated_node.with_changes(leading_lines=lines) if is_import else updated_node


class _EmptyGuards(cst.CSTTransformer):
    """Removes conditions and `try` around imports that are gone."""

    def __init__(self) -> None:
        super().__init__()
        self.removed = False

    def leave_If(self, original_node: cst.If, updated_node: cst.If) -> Any:
        orelse = updated_node.orelse
        if isinstance(orelse, cst.Else) and not orelse.body.body:
            self.removed, orelse = True, None
        if updated_node.body.body:
            return updated_node.with_changes(orelse=orelse)
        self.removed = True
        if isinstance(orelse, cst.Else):
            test = cst.UnaryOperation(
                cst.Not(), updated_node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
            )
            bare = isinstance(updated_node.test, cst.Name | cst.Attribute)
            test = test.with_changes(expression=updated_node.test) if bare else test
            return updated_node.with_changes(test=test, body=orelse.body, orelse=None)
        return updated_node if orelse is not None else cst.RemoveFromParent()

    def leave_Try(self, original_node: cst.Try, updated_node: cst.Try) -> Any:
        after = (updated_node.orelse, updated_node.finalbody)
        return updated_node if updated_node.body.body or any(after) else cst.RemoveFromParent()


class Rewriter(cst.CSTTransformer):
    """Rewrites one file, but for its imports, which `context` is told of."""

    def __init__(self, source: Source, program: Program) -> None:
        super().__init__()
        self.context = CodemodContext(
            wrapper=source.wrapper, full_module_name=source.name, full_package_name=source.package
        )
        self.changed = False
        self._source, self._program = source, program
        self._gone = set[int]()  # the ids of the names that are gone
        self._met: list[tuple[cst.BaseExpression, Rule, Library]] = []
        self._annotations = 0
        nodes = [node for node in program.nodes.values() if node.source is source]
        self._fields = {field.line: (node, field) for node in nodes for field in node.fields.values()}
        self._registrations = {id(node.by) for node in nodes}

    # Names

    def _ours(self, module: str, name: str, *instead_of: cst.CSTNode | None) -> cst.BaseExpression:
        """A name of ours in place of others."""
        self._forget(*instead_of)
        if any(
            each.name == name and f"{module}.{name}" not in self._source.names_of(self._source.module, name)
            for each in self._source.assignments
        ):
            AddImportsVisitor.add_needed_import(self.context, module)
            return cst.Attribute(cst.Name(module), cst.Name(name))
        AddImportsVisitor.add_needed_import(self.context, module, name)
        return cst.Name(name)

    def _forget(self, *nodes: cst.CSTNode | None) -> None:
        """Names that are gone, and what imported them, unless other files import it from here."""
        self.changed = True
        for node in filter(None, nodes):
            first = first_name(node)
            self._gone.add(id(first))
            local = first.value if isinstance(first, cst.Name) else ""
            if f"{self._source.name}.{local}" not in self._program.asked:
                RemoveImportsVisitor.remove_unused_import_by_node(self.context, node)

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        self._annotations -= 1
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._named(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return self._named(original_node, updated_node)

    def _named(self, original: cst.Name | cst.Attribute, updated: cst.BaseExpression) -> cst.BaseExpression:
        if id(first_name(original)) not in self._source.reads:
            return updated
        rule, library = self._program.rule_of(self._source, original)
        if rule is None or library is libraries.OURS:
            if rule is None and self._program.names_of(self._source, original) & self._program.rules.keys():
                text = f"{self._source.code(original)}: left, since it may be something else here"
                self._source.note(original, text, library, undecided=True)
            return updated
        if isinstance(rule, Renamed):
            return self._ours(rule.module, rule.name, original)
        if isinstance(rule, Base) and self._annotations:
            return self._ours("treewright", "Module", original)
        self._met.append((original, rule, library))
        return updated

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        rule, _ = self._program.rule_of(self._source, original_node.func)
        if not isinstance(rule, Renamed) or not rule.drops:
            return updated_node
        return updated_node.with_changes(
            args=_joined([a for a in updated_node.args if keyword_of(a) not in rule.drops])
        )

    def note_what_is_left(self) -> None:
        """Note each name of a library that was not rewritten."""
        for expression, rule, library in self._met:
            if id(first_name(expression)) not in self._gone:
                text, works = _advice(rule)
                self._source.note(expression, f"{self._source.code(expression)}: {text}", library, undecided=not works)

    # Classes

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        node = self._program.nodes.get(original_node)
        if node is None or node.library is libraries.OURS:
            return updated_node
        plain = self._program.dataclass_of(self._source, original_node)
        if isinstance(node.rule, Base):
            return self._based(node, node.rule, plain, updated_node)
        return self._decorated(node, node.rule, plain if node.rule.registers else None, updated_node)

    def _decorated(
        self, node: NodeClass, rule: Decorator, plain: cst.BaseExpression | None, updated: cst.ClassDef
    ) -> cst.ClassDef:
        """The class with `@pytree_dataclass` in place of the decorators that made it a pytree."""
        by: Any = node.by if plain is None else plain
        given = arguments_of(by)
        keeps_keywords = rule.keyword_only is not None and _word(given, rule.keyword_only) != "False"
        dropped = {None, *libraries.WITHOUT_USE, rule.keyword_only, *(["kw_only"] if keeps_keywords else [])}
        arguments = [arg for arg in given if keyword_of(arg) not in dropped]
        arguments += [_keyword("kw_only", cst.Name("True"))] if keeps_keywords else []
        gone = [part for each in {by, node.by} for part in (function_of(each), self._registered(each))]
        made = self._ours("treewright", "pytree_dataclass", *gone)
        if arguments:
            call = by if isinstance(by, cst.Call) else cst.Call(made)
            made = call.with_changes(func=made, args=_joined(arguments, given))
        decorators: list[cst.Decorator] = []
        for before, after in zip(node.definition.decorators, updated.decorators, strict=True):
            if before.decorator is by:
                decorators.append(after.with_changes(decorator=made))
            elif before.decorator is not node.by:
                decorators.append(after)
        return updated.with_changes(decorators=decorators)

    def _registered(self, decorator: cst.BaseExpression) -> cst.BaseExpression | None:
        return self._program.registered(self._source, decorator)

    def _based(
        self, node: NodeClass, rule: Base, plain: cst.BaseExpression | None, updated: cst.ClassDef
    ) -> cst.ClassDef:
        """The class with `Module` as its base, and the options of a `@dataclass` in the class statement."""
        before, bases = node.definition, list(updated.bases)
        if isinstance(node.by, cst.Arg):
            place = before.bases.index(node.by)
            value, old = bases[place].value, node.by.value
            module = self._ours("treewright", "Module", old.value if isinstance(old, cst.Subscript) else old)
            value = value.with_changes(value=module) if isinstance(value, cst.Subscript) else module
            bases[place] = bases[place].with_changes(value=value)
        keywords = [each for each in updated.keywords if keyword_of(each) not in rule.drops]
        decorators = list(updated.decorators)
        if plain is not None:
            self._forget(function_of(plain))
            keywords += [each for each in arguments_of(plain) if keyword_of(each) not in libraries.WITHOUT_USE]
            pairs = zip(before.decorators, updated.decorators, strict=True)
            decorators = [after for original, after in pairs if original.decorator is not plain]
        if len(keywords) != len(updated.keywords):
            every = _joined([*bases, *keywords], [*before.bases, *before.keywords])
            bases, keywords = every[: len(bases)], every[len(bases) :]
        return updated.with_changes(bases=bases, keywords=keywords, decorators=decorators)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> Any:
        """The statement that registers a class goes: a decorator does it now."""
        line = original_node.body[0]
        is_registration = isinstance(line, cst.Expr) and id(line.value) in self._registrations
        return cst.RemoveFromParent() if is_registration else updated_node

    # Fields

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        node, field = self._fields.get(original_node, (None, None))
        if node is None or field is None or (node.library is libraries.OURS and not field.specifier):
            return updated_node
        if field.kind == "unclear":
            noted = [] if original_node.value is None else [first_name(function_of(original_node.value))]
            self._gone.update(map(id, noted))  # with the fields
            return updated_node
        before = original_node.annotation.annotation
        if field.annotation is not before:
            self._forget(before.value if isinstance(before, cst.Subscript) else None)
            (unmarked,) = items_of(updated_node.annotation.annotation)
            updated_node = updated_node.with_changes(
                annotation=updated_node.annotation.with_changes(annotation=unmarked)
            )
        value = self._value(field, updated_node.value)
        if value is updated_node.value:
            return updated_node
        equal = updated_node.equal if isinstance(updated_node.equal, cst.AssignEqual) else cst.AssignEqual()
        return updated_node.with_changes(value=value, equal=equal)

    def _value(self, field: Field, updated: cst.BaseExpression | None) -> cst.BaseExpression | None:
        """What stands behind the `=` of a field: a specifier of ours, or what was there."""
        before, static = field.line.value, field.kind == "static"
        arguments, given = list[cst.Arg](), list[cst.Arg]()
        call = cst.Call(cst.Name("f"))
        if field.specifier and isinstance(before, cst.Call) and isinstance(updated, cst.Call):
            names = self._program.names_of(self._source, before.func)
            if names & libraries.OUR_SPECIFIERS or ("dataclasses.field" in names and not static):
                return updated
            self._forget(before.func)
            call, given = updated, list(before.args)
            kept = [after for arg, after in zip(before.args, updated.args, strict=True) if arg not in field.drops]
            arguments = [arg for arg in kept if not (static and keyword_of(arg) == "compare")]
        elif not static:
            return updated
        elif updated is not None:
            arguments = [_keyword("default", updated)]
        if static and self._program.freezes(self._source, field) and argument(arguments, "converter") is None:
            arguments.append(_keyword("converter", self._ours("treewright", "freeze")))
        made = self._ours("treewright", "static" if static else "field")
        return call.with_changes(func=made, args=_joined(arguments, given))


def _keyword(name: str, value: cst.BaseExpression) -> cst.Arg:
    space = cst.SimpleWhitespace("")
    return cst.Arg(value, keyword=cst.Name(name), equal=cst.AssignEqual(space, space))


def _word(arguments: Sequence[cst.Arg], name: str) -> str | None:
    """The text of an option that is a bare word."""
    value = argument(arguments, name)
    return value.value if isinstance(value, cst.Name) else None


def _joined(arguments: Sequence[cst.Arg], before: Sequence[cst.Arg] = ()) -> list[cst.Arg]:
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


def _advice(rule: Rule) -> tuple[str, bool]:
    """What to do about a name that was left, and whether it works as it is."""
    match rule:
        case Stays():
            return rule.advice, rule.works
        case Marker():
            return "left here, where it marks no field", True
        case Specifier():
            return "left outside of a class that moves: nodes read its static mark, and nothing else", True
        case Base():
            return "left here: a Module of ours is not an instance of it", False
        case _:
            return "left here, where it is used in a way that the command does not know", False
