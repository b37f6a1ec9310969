"""A file rewritten: its classes and fields, and every call and name that the tables know."""

from collections.abc import Iterator, Sequence

import libcst as cst

from treewright.move import libraries
from treewright.move.calls import REWRITTEN, name_of, with_comments
from treewright.move.classes import CodeBase, NodeClass, function_of
from treewright.move.findings import look
from treewright.move.imports import with_imports
from treewright.move.libraries import Base, Called, Filtered, Library, Marks, Renamed, Rule, Specifier, Stays
from treewright.move.source import Source, first_name, gap, items_of, keyword_of
from treewright.move.statements import class_rewritten, field_rewritten


def moved(sources: Sequence[Source], chosen: Sequence[Library]) -> Iterator[bytes]:
    """The new text of each file of a program. What has to be looked at is noted in the sources."""
    program = CodeBase(sources, [*chosen, libraries.OURS])
    for source in sources:
        if not program.concerns(source):
            yield source.content
            continue
        rewriter = Rewriter(source, program)
        yield with_imports(rewriter.rewritten(), source, rewriter.replaced).bytes
    look(program)


class Rewriter(cst.CSTTransformer):
    """Rewrites one file. Names that its imports have to bring are written as `module:name`."""

    def __init__(self, source: Source, program: CodeBase) -> None:
        super().__init__()
        self.replaced: set[int] = set()  # the ids of the names that are gone: what imported them may go too
        self._source, self._program = source, program
        self._registrations = {id(node.by) for node in program.classes.values()}
        self._fields = {
            field.line: (node, field) for node in program.classes.values() for field in node.fields.values()
        }
        self._told: set[int] = set()  # of which more is said where fields are looked at
        self._annotations = 0
        self._met: list[tuple[cst.BaseExpression, Rule, Library]] = []

    def rewritten(self) -> cst.Module:
        """The file with its new text, before its imports are put right. What was left is noted as a finding."""
        module = self._source.module.visit(self)
        for expression, rule, library in self._met:
            if id(first_name(expression)) not in self.replaced | self._told:
                text, works = _advice(self._source.code(expression), rule)
                self._source.find(expression, text, library.page, undecided=not works)
        return module

    # Names

    def visit_Annotation(self, node: cst.Annotation) -> None:
        self._annotations += 1

    def leave_Annotation(self, original_node: cst.Annotation, updated_node: cst.Annotation) -> cst.Annotation:
        self._annotations -= 1
        return updated_node

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        return self._named(original_node, updated_node)

    def leave_Attribute(self, original_node: cst.Attribute, updated_node: cst.Attribute) -> cst.BaseExpression:
        return self._named(original_node, updated_node)

    def _named(self, original: cst.Name | cst.Attribute, updated: cst.Name | cst.Attribute) -> cst.BaseExpression:
        first = first_name(original)
        if id(first) not in self._source.reads:
            return updated
        rule, library = self._program.rule_of(self._source, original)
        if rule is None or library is libraries.OURS:
            return updated
        self._met.append((original, rule, library))
        if isinstance(rule, Renamed) or (isinstance(rule, Base) and self._annotations):
            self.replaced.add(id(first))
            return name_of(rule.to if isinstance(rule, Renamed) else "treewright:Module")
        return updated

    # Calls

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:
        rule, library = self._program.rule_of(self._source, original_node.func)
        made: cst.Call | None = None
        if isinstance(rule, Called):
            made = REWRITTEN[rule.by](self._source, original_node, updated_node, library)
            made = made and with_comments(made, updated_node)
        elif isinstance(rule, Filtered) and self._takes_plain(rule, original_node):
            made = updated_node.with_changes(func=name_of(rule.to))
        if made is None:
            return updated_node
        self.replaced.add(id(first_name(original_node.func)))
        return made

    def _takes_plain(self, rule: Filtered, call: cst.Call) -> bool:
        """Whether a transformation is given a function of the file whose annotations are plain."""
        options = {keyword_of(arg) for arg in call.args[1:]}
        name = call.args[0].value if call.args else None
        functions = [
            each
            for each in self._source.parts(cst.FunctionDef)
            if isinstance(name, cst.Name) and each.name.value == name.value
        ]
        return options <= {"has_aux"} and len(functions) == 1 and self._is_plain(rule, functions[0])

    def leave_FunctionDef(self, original_node: cst.FunctionDef, updated_node: cst.FunctionDef) -> cst.FunctionDef:
        decorators = list(updated_node.decorators)
        for place, before in enumerate(original_node.decorators):
            rule, _ = self._program.rule_of(self._source, before.decorator)
            if isinstance(rule, Filtered) and self._is_plain(rule, original_node):
                self.replaced.add(id(first_name(before.decorator)))
                decorators[place] = decorators[place].with_changes(decorator=name_of(rule.to))
        return updated_node.with_changes(decorators=decorators)

    def _is_plain(self, rule: Filtered, function: cst.FunctionDef) -> bool:
        """Whether the annotations of a function say that it is given arrays alone, floats first where it must be."""
        given = function.params
        params = [*given.posonly_params, *given.params]
        has_stars = isinstance(given.star_arg, cst.Param) or given.star_kwarg is not None
        if not params if rule.first else has_stars:
            return False
        arrays = libraries.FLOAT_ARRAYS if rule.first else libraries.ARRAYS
        return all(
            param.annotation is not None
            and param.default is None
            and self._holds(arrays, self._source, param.annotation.annotation, ())
            for param in (params[:1] if rule.first else [*params, *given.kwonly_params])
        )

    def _holds(
        self, arrays: frozenset[str], source: Source, annotation: cst.BaseExpression, inside: tuple[NodeClass, ...]
    ) -> bool:
        """Whether all leaves of a value are arrays, by its annotation."""
        annotation = source.unquoted(annotation)
        kinds = source.kinds_of(annotation)
        if kinds & libraries.CONTAINERS:
            items = [item for item in items_of(annotation) if not isinstance(item, cst.Ellipsis)]
            items = items[1:] if kinds & libraries.DICTS else items
            return bool(items) and all(self._holds(arrays, source, item, inside) for item in items)
        return bool(kinds & arrays) or any(
            node in inside
            or all(
                field.kind == "static" or self._holds(arrays, node.source, field.annotation, (*inside, node))
                for field in node.fields.values()
            )
            for node in map(self._program.named, kinds)
            if node is not None and node.by is not None  # without either it has fields of its bases too
        )

    # Classes

    def leave_ClassDef(self, original_node: cst.ClassDef, updated_node: cst.ClassDef) -> cst.ClassDef:
        node = self._program.classes.get(original_node)
        return updated_node if node is None else class_rewritten(node, updated_node, self.replaced)

    def leave_AnnAssign(self, original_node: cst.AnnAssign, updated_node: cst.AnnAssign) -> cst.AnnAssign:
        node, field = self._fields.get(original_node, (None, None))
        if node is None or field is None:
            return updated_node
        if field.kind == "unclear" and original_node.value is not None:
            self._told.add(id(first_name(function_of(original_node.value))))
            return updated_node
        return field_rewritten(node, field, updated_node, self.replaced)

    def leave_SimpleStatementLine(
        self, original_node: cst.SimpleStatementLine, updated_node: cst.SimpleStatementLine
    ) -> cst.SimpleStatementLine:
        """The statement that registers a class goes: a decorator does it now."""
        line = original_node.body[0]
        if isinstance(line, cst.Expr) and id(line.value) in self._registrations:
            self.replaced.add(id(first_name(function_of(line.value))))
            return updated_node.with_changes(body=[gap()])
        return updated_node


def _advice(name: str, rule: Rule) -> tuple[str, bool]:
    """What to do about a name that was left, and whether it works as it is."""
    match rule:
        case Stays():
            return f"{name}: {rule.advice}", rule.works
        case Filtered():
            to = rule.to.replace(":", ".")
            what = "floats" if rule.first else "arrays"
            return (
                f"{name} runs on nodes, and was left: the annotations do not say that it is given {what} alone. "
                f"Where it is, {to} does the same"
            ), True
        case Marks():
            return f"{name} was left on an argument: jdc.jit reads it", True
        case Specifier():
            return f"{name} was left outside of a class that moves: nodes read its static mark, and nothing else", True
        case Called(works=True):
            return f"{name} runs on nodes, and was left: `treewright` has nothing that takes these arguments", True
        case Base():
            return f"{name} was left here: a Module of ours is not an instance of it", False
        case _:
            return f"{name} is used here in a way that the command does not know", False
