"""The classes of a program that become nodes: by decorator, by base, or since a base of theirs does."""

import ast
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import libcst as cst

from treewright.move import libraries
from treewright.move.libraries import Base, Decorates, Library, Marks, Rule, Specifier
from treewright.move.source import Source, items_of, keyword_of, names_of_import, unsubscripted

Kind = Literal["child", "static", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field as it is declared.

    Attributes:
        annotation: What it is annotated with, without a marker.
        specifier: Whether a specifier stands behind the `=`.
        drops: The arguments of the specifier that say what `kind` says.
        inferred: Whether it is a static by its annotation alone: the library left such leaves out.
    """

    line: cst.AnnAssign
    annotation: cst.BaseExpression
    kind: Kind
    specifier: bool
    drops: tuple[cst.Arg, ...]
    inferred: bool


@dataclasses.dataclass(slots=True, eq=False)
class NodeClass:
    """A class that becomes a node, or stays one, by a decorator, base or call (`by`), or by one that it extends."""

    source: Source
    definition: cst.ClassDef
    library: Library
    rule: Decorates | Base
    by: cst.CSTNode | None
    mutable: bool = False
    fields: dict[str, Field] = dataclasses.field(default_factory=dict[str, Field])

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.definition.name.value


class CodeBase:
    """The files of a program, and the classes in them that become nodes, by their statements."""

    def __init__(self, sources: Sequence[Source], chosen: Iterable[Library]) -> None:
        self.sources = sources
        self.rules: Mapping[str, tuple[Rule, Library]] = {
            name: (rule, library) for library in chosen for name, rule in library.rules
        }
        self.classes: dict[cst.ClassDef, NodeClass] = {}
        self._modules = {part for source in sources for part in (source.path.stem, *source.path.parent.parts)}
        definitions = [(source, definition) for source in sources for definition in source.parts(cst.ClassDef)]
        registrations = {source: self._registrations(source) for source in sources}
        for source, definition in definitions:
            self._begin(source, definition, registrations[source].get(definition.name.value))
        while sum(self._extend(source, definition) for source, definition in definitions):
            pass
        for definition, node in list(self.classes.items()):
            node.fields = fields_of(node, self)
            statics = statics_of(node)
            if statics is None or not set(statics) <= set(node.fields):
                del self.classes[definition]  # what is static is said elsewhere, so it can't be said here

    def rule_of(self, source: Source, expression: cst.CSTNode) -> tuple[Rule | None, Library]:
        """The rule for what an expression stands for, and whose it is; None and ours if there is none."""
        known = (self.rules[name] for name in source.names_of(expression) if name in self.rules)
        return next(known, (None, libraries.OURS))

    def concerns(self, source: Source) -> bool:
        """Whether a file names anything that a rule is about, or holds a class that becomes a node."""
        known = {name for each in source.imported() for name in names_of_import(each)}
        is_known = any(rule == name or rule.startswith(f"{name}.") for rule in self.rules for name in known)
        return is_known or any(node.source is source for node in self.classes.values())

    def fields_with_bases(self, node: NodeClass) -> set[str]:
        """The names of the fields of a class, and of the classes of the program that it extends."""
        found, waiting = set[NodeClass](), [node]
        while waiting:
            each = waiting.pop()
            found.add(each)
            above = map(self.named, _bases(each.source, each.definition))
            waiting += [other for other in above if other is not None and other not in found]
        return {name for each in found for name in each.fields}

    def named(self, full_name: str) -> NodeClass | None:
        """The class of this name, wherever it is defined."""
        name = full_name.rpartition(".")[2]
        return next((node for node in self.classes.values() if node.name == name), None)

    def _registrations(self, source: Source) -> dict[str, cst.BaseExpression]:
        """The calls that register a class, by its name: `register_dataclass(Layer, ["kernel"], ["width"])`."""
        calls = [statement.value for statement in source.parts(cst.Expr) if arguments_of(statement.value)]
        rules = [self.rule_of(source, function_of(call))[0] for call in calls]
        return {
            source.code(arguments_of(call)[0].value): call
            for call, rule in zip(calls, rules, strict=True)
            if isinstance(rule, Decorates) and rule.registers
        }

    def _begin(self, source: Source, definition: cst.ClassDef, registration: cst.BaseExpression | None) -> None:
        """Note a class that a decorator, a base or a call makes a node."""
        plain = dataclass_of(source, definition)
        decorators = [each.decorator for each in definition.decorators]
        for by in decorators if registration is None or plain is None else [*decorators, registration]:
            rule, library = self.rule_of(source, registered(source, by) or function_of(by))
            if isinstance(rule, Decorates):
                frozen = option(arguments_of(plain if rule.registers else by), "frozen")
                mutable = (frozen or str(rule.frozen and not rule.registers)) != "True"
                self.classes[definition] = NodeClass(source, definition, library, rule, by, mutable)
        for base in definition.bases:
            rule, library = self.rule_of(source, unsubscripted(base.value))
            if isinstance(rule, Base) and not self._mixes(source, definition, library):
                mutable = rule.mutable is not None and option(definition.keywords, rule.mutable) == "True"
                self.classes[definition] = NodeClass(source, definition, library, rule, base, mutable)

    def _mixes(self, source: Source, definition: cst.ClassDef, library: Library) -> bool:
        """Whether a class also extends one of the library that does not move, as `equinox.nn.Linear`."""
        packages = {name.partition(".")[0] for name, _ in library.rules}
        others = (name for name in _bases(source, definition) if name not in self.rules)
        return any(name.partition(".")[0] in packages for name in others)

    def _extend(self, source: Source, definition: cst.ClassDef) -> bool:
        """Note a class that extends one which becomes a node; whether it is new."""
        if definition in self.classes:
            return False
        for name in _bases(source, definition):
            is_ours = "." not in name or name.partition(".")[0] in self._modules | {""}
            above = self.named(name) if is_ours else None
            if above is not None:
                self.classes[definition] = dataclasses.replace(
                    above, source=source, definition=definition, by=None, fields={}
                )
                return True
        return False


def _bases(source: Source, definition: cst.ClassDef) -> Iterator[str]:
    """The full names of the classes that a class extends."""
    return (name for base in definition.bases for name in source.names_of(unsubscripted(base.value)))


# Parts of expressions


def function_of(expression: cst.BaseExpression) -> cst.BaseExpression:
    """What is called, or the expression itself."""
    return expression.func if isinstance(expression, cst.Call) else expression


def arguments_of(expression: cst.CSTNode | None) -> Sequence[cst.Arg]:
    """The arguments of a call; none for what is not one."""
    return expression.args if isinstance(expression, cst.Call) else ()


def argument(arguments: Iterable[cst.Arg], name: str) -> cst.Arg | None:
    """The argument that is given by a keyword."""
    return next((each for each in arguments if keyword_of(each) == name), None)


def option(arguments: Iterable[cst.Arg], name: str) -> str | None:
    """The text of an option, where it is a bare word."""
    given = argument(arguments, name)
    return given.value.value if given is not None and isinstance(given.value, cst.Name) else None


def registered(source: Source, decorator: cst.BaseExpression) -> cst.BaseExpression | None:
    """The decorator `f` in `partial(f, ...)`."""
    if isinstance(decorator, cst.Call) and "functools.partial" in source.names_of(decorator.func) and decorator.args:
        return decorator.args[0].value
    return None


def dataclass_of(source: Source, definition: cst.ClassDef) -> cst.BaseExpression | None:
    """The standard library's decorator on a class."""
    decorators = (each.decorator for each in definition.decorators)
    return next((each for each in decorators if source.names_of(function_of(each)) & libraries.DATACLASS), None)


def literal(source: Source, expression: cst.BaseExpression) -> object:
    """The value of a literal; None for what is not one. `dict(static=True)` is one too."""
    try:
        parsed = ast.parse(source.code(expression).strip(), mode="eval").body
        if isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name) and parsed.func.id == "dict":
            return {keyword.arg: ast.literal_eval(keyword.value) for keyword in parsed.keywords}
        return ast.literal_eval(parsed)
    except (ValueError, SyntaxError):
        return None


# Fields


def fields_of(node: NodeClass, program: CodeBase) -> dict[str, Field]:
    """The fields that a class declares itself."""
    body = node.definition.body
    within = [part for line in body.body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    return {
        line.target.value: _field(node, line, line.target.value, program)
        for line in (*body.body, *within)
        if isinstance(line, cst.AnnAssign)
        and isinstance(line.target, cst.Name)
        and "typing.ClassVar" not in node.source.names_of(unsubscripted(line.annotation.annotation))
    }


def _field(node: NodeClass, line: cst.AnnAssign, name: str, program: CodeBase) -> Field:
    source, annotation = node.source, line.annotation.annotation
    items = items_of(annotation)
    marked = len(items) == 1 and isinstance(program.rule_of(source, unsubscripted(annotation))[0], Marks)
    annotation = items[0] if marked else annotation
    kind, specifier, drops = _specified(source, line.value, program)
    if marked or name in (statics_of(node) or ()):
        kind = "static"
    filtered = isinstance(node.rule, Base) and node.rule.filtered
    inferred = filtered and kind == "child" and source.is_one_of(annotation, libraries.NEVER_ARRAYS)
    return Field(line, annotation, "static" if inferred else kind, specifier, drops, inferred)


def _specified(
    source: Source, value: cst.BaseExpression | None, program: CodeBase
) -> tuple[Kind, bool, tuple[cst.Arg, ...]]:
    """What stands behind the `=`: the kind of the field, whether a specifier says so, and by which arguments."""
    if not isinstance(value, cst.Call):
        return "child", False, ()
    rule = program.rule_of(source, value.func)[0]
    if isinstance(rule, Specifier):
        if any(arg.star for arg in value.args):
            return "unclear", True, ()
        markers = tuple(arg for arg in value.args if keyword_of(arg) in {None, rule.marker})
        words = {arg.value.value if isinstance(arg.value, cst.Name) else "" for arg in markers}
        if rule.static or words == {rule.static_if}:
            return "static", True, markers
        return ("child" if words <= {"True", "False"} else "unclear"), True, markers
    names = source.names_of(value.func)
    if not names & {"dataclasses.field", *libraries.OUR_SPECIFIERS}:
        return "child", False, ()
    metadata = argument(value.args, "metadata")
    if metadata is not None and literal(source, metadata.value) in ({"static": True}, {"pytree_node": False}):
        return "static", True, (metadata,)
    return "static" if "treewright.static" in names else "child", True, ()


def statics_of(node: NodeClass) -> tuple[str, ...] | None:
    """The names that the registration of a class lists as statics; None if they can't be read there."""
    arguments = arguments_of(node.by)
    if argument(arguments, "drop_fields") is not None:
        return None
    third = arguments[2] if len(arguments) > 2 and arguments[2].keyword is None else None
    given = argument(arguments, "meta_fields") or third
    if given is None:
        return ()
    names = literal(node.source, given.value)
    return tuple(map(str, cast("Sequence[Any]", names))) if isinstance(names, list | tuple) else None
