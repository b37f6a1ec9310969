"""A program as a whole: its files, the full names in them, and the classes that become nodes with their fields."""

import ast
import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import libcst as cst
from libcst import helpers, matchers, metadata

from treewright.move import libraries
from treewright.move.libraries import Base, Decorator, Library, Marker, Rule, Specifier


class Notice(NamedTuple):
    """Something to look at. `undecided` if it has to be changed by hand."""

    line: int
    text: str
    page: str
    undecided: bool


class Source:
    """A file: its syntax tree, and what its names mean by its imports and scopes.

    Raises:
        ValueError: If it does not parse; the message names the line.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path, self.content = path, content
        parts = [*path.resolve().parent.parts, *([] if path.stem == "__init__" else [path.stem])]
        self.parts = [part.replace(".", "_") for part in parts]
        self.name = ".".join(self.parts)  # with all folders, so that relative imports lead to other files
        self.package = self.name if path.stem == "__init__" else ".".join(self.parts[:-1])
        self.notices = set[Notice]()
        try:
            self.module = cst.parse_module(content)
        except cst.ParserSyntaxError as error:
            raise ValueError(f"{path}:{error.raw_line}: this does not parse: {error.message}") from error
        except (SyntaxError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: this can't be read as Python: {error}") from error
        self.wrapper = metadata.MetadataWrapper(self.module, unsafe_skip_copy=True)  # parsed here: no part is shared

    @functools.cached_property
    def scopes(self) -> Any:
        return self.wrapper.resolve(metadata.ScopeProvider)

    @functools.cached_property
    def all_scopes(self) -> set[metadata.Scope]:
        return {scope for scope in self.scopes.values() if scope is not None}

    @functools.cached_property
    def assignments(self) -> list[metadata.BaseAssignment]:
        return [assignment for scope in self.all_scopes for assignment in scope.assignments]

    @functools.cached_property
    def defined(self) -> set[str]:
        """The names that classes and functions define."""
        definitions = (cst.ClassDef, cst.FunctionDef)
        return {each.name for each in self.assignments if isinstance(getattr(each, "node", None), definitions)}

    @functools.cached_property
    def reads(self) -> frozenset[int]:
        """The ids of the names that read a variable, the first of a dotted name."""
        return frozenset(id(first_name(access.node)) for scope in self.all_scopes for access in scope.accesses)

    @functools.cached_property
    def stars(self) -> list[str]:
        """The modules of `from module import *`."""
        imports = matchers.findall(self.module, matchers.ImportFrom(names=matchers.ImportStar()))
        absolute = helpers.get_absolute_module_from_package_for_import
        return [name for each in imports if isinstance(each, cst.ImportFrom) and (name := absolute(self.package, each))]

    def names_of(self, node: cst.CSTNode, text: str | None = None) -> frozenset[str]:
        """The full names that an expression may have, by the imports and assignments in its scope."""
        dotted = text or helpers.get_full_name_for_node(node)
        scope = self.scopes.get(first_name(node)) or self.scopes[self.module]
        if dotted is None or scope is None:
            return frozenset()
        found = frozenset(self._absolute(name) for name in scope.get_qualified_names_for(dotted))
        return found or frozenset(f"{module}.{dotted}" for module in self.stars)

    def _absolute(self, name: metadata.QualifiedName) -> str:
        if name.source is metadata.QualifiedNameSource.LOCAL:
            return f"{self.name}.{name.name}"
        bare = name.name.lstrip(".")
        dots = len(name.name) - len(bare)
        return ".".join([*self.package.split(".")[: 1 - dots or None], bare]) if dots else bare

    def code(self, node: cst.CSTNode) -> str:
        return self.module.code_for_node(node)

    def note(self, node: cst.CSTNode, text: str, library: Library, *, undecided: bool = False) -> None:
        """Note something to look at, by its line."""
        positions: Any = self.wrapper.resolve(metadata.PositionProvider)
        self.notices.add(Notice(positions[node].start.line, text, library.page, undecided))


Kind = Literal["child", "static", "unclear"]


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A line that declares a field: its type without a marker, its kind, and the arguments that say the kind."""

    line: cst.AnnAssign
    annotation: cst.BaseExpression
    kind: Kind
    specifier: bool = False
    drops: tuple[cst.Arg, ...] = ()
    inferred: bool = False


@dataclasses.dataclass(slots=True, eq=False)
class NodeClass:
    """A class that is a node, or becomes one, by a decorator, a base or a call; `by` is None for a subclass of one."""

    source: Source
    definition: cst.ClassDef
    library: Library
    rule: Base | Decorator
    by: cst.BaseExpression | cst.Arg | None
    mutable: bool = False  # before
    fields: dict[str, Field] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.definition.name.value


class Program:
    """The files of a program, and the classes in them that become nodes."""

    def __init__(self, files: dict[Path, bytes], chosen: Iterable[Library]) -> None:
        self.rules = {name: (rule, library) for library in [*chosen, libraries.OURS] for name, rule in library.rules}
        self.sources: dict[Path, Source] = {}
        self.nodes: dict[cst.ClassDef, NodeClass] = {}
        self.asked = set[str]()  # full names that a file imports from another one
        self._classes: dict[str, list[tuple[Source, cst.ClassDef]]] = {}
        self._modules: dict[str, list[Source]] = {}
        self._waiting = dict(files)
        words = {*libraries.WORDS}
        while found := [path for path, content in self._waiting.items() if _has_word(content, words)]:
            for path in found:
                self._load(path)
            self._find_nodes()
            words |= {node.name for node in self.nodes.values()}
            words |= {each.name for path in found for each in self.sources[path].assignments if self._is_known(each)}
        for node in self.nodes.values():
            node.fields.update(_fields_of(node, self))

    def _load(self, path: Path) -> None:
        source = self.sources[path] = Source(path, self._waiting.pop(path))
        for end in range(len(source.parts)):
            if not Path(*path.resolve().parts[:end] or ["."], "__init__.py").exists():  # a folder to import from
                self._modules.setdefault(".".join(source.parts[end:]), []).append(source)
        self._modules[source.name] = [source]
        for definition in matchers.findall(source.module, matchers.ClassDef()):
            if isinstance(definition, cst.ClassDef):
                for name in source.names_of(definition.name):
                    self._classes.setdefault(name, []).append((source, definition))

    def _is_known(self, assignment: metadata.BaseAssignment) -> bool:
        """Whether an import binds a library, or a name from one."""
        if not isinstance(assignment, metadata.ImportAssignment):
            return False
        names = {name.name for name in assignment.get_qualified_names_for(assignment.name)}
        return any(rule == name or rule.startswith(f"{name}.") for name in names - {"jax"} for rule in self.rules)

    def concerns(self, source: Source) -> bool:
        """Whether a file has anything to rewrite: a class that becomes a node, or a name of a library."""
        nodes = any(node.source is source for node in self.nodes.values())
        return nodes or b"register_dataclass" in source.content or any(map(self._is_known, source.assignments))

    # Names

    def names_of(self, source: Source, node: cst.CSTNode, text: str | None = None) -> frozenset[str]:
        """The full names of an expression, each where it is defined."""
        return frozenset(self._origin(name) for name in source.names_of(node, text))

    def _origin(self, name: str, seen: tuple[str, ...] = ()) -> str:
        """`package.base.Layer` for `package.Layer`, if the package imports it from there."""
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            sources = self._modules.get(".".join(parts[:end]), [])
            if len(sources) == 1:
                source, rest = sources[0], ".".join(parts[end:])
                local = f"{source.name}.{rest}"
                if local in self._classes or name in seen:
                    return local
                self.asked.add(f"{source.name}.{parts[end]}")
                found = source.names_of(source.module, rest)
                return self._origin(next(iter(found)), (*seen, name)) if len(found) == 1 else local
        return name

    def rule_of(self, source: Source, node: cst.BaseExpression) -> tuple[Rule | None, Library]:
        """What becomes of a name; nothing where it may also be a class or function of the program."""
        names = self.names_of(source, node)
        rules = {self.rules[name] for name in names & self.rules.keys()}
        local = {name.removeprefix(f"{source.name}.").partition(".")[0] for name in names - self.rules.keys()}
        return (None, libraries.OURS) if len(rules) != 1 or local & source.defined else rules.pop()

    # Classes

    def _find_nodes(self) -> None:
        classes = [each for classes in self._classes.values() for each in classes]
        for source in self.sources.values():
            registrations = self._registrations(source)
            for _, definition in (each for each in classes if each[0] is source):
                if definition not in self.nodes:
                    self._begin(source, definition, registrations.get(definition.name.value))
        while any(self._extend(source, definition) for source, definition in classes):
            pass

    def _registrations(self, source: Source) -> dict[str, cst.BaseExpression]:
        """The calls that register a class of the file, by its name: `register_dataclass(Layer, ["kernel"], [])`."""
        found: dict[str, cst.BaseExpression] = {}
        for line in source.module.body:
            statement = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
            call = statement.value if isinstance(statement, cst.Expr) else None
            if isinstance(call, cst.Call) and call.args and isinstance(call.args[0].value, cst.Name):
                rule, _ = self.rule_of(source, call.func)
                if isinstance(rule, Decorator) and rule.registers:
                    found[call.args[0].value.value] = call
        return found

    def _begin(self, source: Source, definition: cst.ClassDef, registration: cst.BaseExpression | None) -> None:
        """Note a class that a decorator, a base or a call makes a node."""
        candidates: list[Any] = [each.decorator for each in definition.decorators]
        if registration is not None and self.dataclass_of(source, definition) is not None:
            candidates.append(registration)
        for by in candidates:
            rule, library = self.rule_of(source, self.registered(source, by) or function_of(by))
            statics = isinstance(rule, Decorator) and listed_statics(source, by)
            if isinstance(rule, Decorator) and statics is not None:
                given = arguments_of(self.dataclass_of(source, definition) if rule.registers else by)
                frozen = literal(source, argument(given, "frozen"))
                mutable = not (frozen if frozen is not None else rule.frozen and not rule.registers)
                self.nodes[definition] = NodeClass(source, definition, library, rule, by, mutable)
        for base in definition.bases:
            rule, library = self.rule_of(source, unsubscripted(base.value))
            if isinstance(rule, Base) and not self._mixes(source, definition, library):
                mutable = literal(source, argument(definition.keywords, "mutable")) is True
                self.nodes[definition] = NodeClass(source, definition, library, rule, base, mutable)

    def _mixes(self, source: Source, definition: cst.ClassDef, library: Library) -> bool:
        """Whether a class also extends one of the library that does not move, as `equinox.nn.Linear`."""
        packages = {name.partition(".")[0] for name, _ in library.rules}
        others = {name for base in definition.bases for name in self._bases(source, base)} - self.rules.keys()
        return any(name.partition(".")[0] in packages for name in others)

    def _bases(self, source: Source, base: cst.Arg) -> frozenset[str]:
        return self.names_of(source, unsubscripted(base.value))

    def above(self, source: Source, definition: cst.ClassDef) -> Iterator[NodeClass | None]:
        """The nodes that a class extends; None for each base that may be one, and may be something else."""
        for base in definition.bases:
            found = [each for name in self._bases(source, base) for each in self._classes.get(name, [])]
            nodes = {self.nodes.get(other) for _, other in found}
            if any(nodes):
                yield nodes.pop() if len(nodes) == 1 else None

    def _extend(self, source: Source, definition: cst.ClassDef) -> bool:
        """Note a class that extends one which becomes a `Module`; whether it is new."""
        above = None if definition in self.nodes else next(filter(None, self.above(source, definition)), None)
        if above is None or not isinstance(above.rule, Base):
            return False
        self.nodes[definition] = NodeClass(source, definition, above.library, above.rule, None)
        return True

    def dataclass_of(self, source: Source, definition: cst.ClassDef) -> cst.BaseExpression | None:
        """The standard library's decorator on a class."""
        decorators = (each.decorator for each in definition.decorators)
        return next((e for e in decorators if self.names_of(source, function_of(e)) & libraries.DATACLASS), None)

    def registered(self, source: Source, decorator: cst.BaseExpression) -> cst.BaseExpression | None:
        """The decorator `f` in `partial(f, ...)`."""
        is_partial = isinstance(decorator, cst.Call) and "functools.partial" in self.names_of(source, decorator.func)
        return decorator.args[0].value if is_partial and isinstance(decorator, cst.Call) and decorator.args else None

    # Types

    def has_one_of(self, source: Source, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
        """Whether some part of a union, or of a container in it, is one of some types."""
        return any(
            kinds & names
            or (kinds & libraries.CONTAINERS and any(self.has_one_of(source, item, names) for item in items_of(part)))
            for part, kinds in self._parts(source, annotation)
        )

    def freezes(self, source: Source, field: Field) -> bool:
        """Whether a static is given a list, dict, set or array, by its type or its default."""
        default, factory = (argument(arguments_of(field.line.value), name) for name in ("default", "default_factory"))
        made = factory.body if isinstance(factory, cst.Lambda) else None
        return (
            self.has_one_of(source, field.annotation, libraries.CAN_CHANGE)
            or (factory is not None and bool(self.names_of(source, factory) & libraries.MUTABLE_FACTORIES))
            or any(isinstance(e, cst.List | cst.Dict | cst.Set) for e in (default, field.line.value, made))
        )

    def is_one_of(self, source: Source, annotation: cst.BaseExpression, names: frozenset[str]) -> bool:
        """Whether every part of a union, but None, is one of some types."""
        parts = self._parts(source, annotation)
        return bool(parts) and all(kinds & names for _, kinds in parts)

    def _parts(self, source: Source, annotation: cst.BaseExpression) -> list[tuple[cst.BaseExpression, frozenset[str]]]:
        """The parts of a union, without None, each with the full names of its type."""
        if isinstance(annotation, cst.SimpleString):
            try:
                annotation = cst.parse_expression(str(annotation.evaluated_value))
            except cst.ParserSyntaxError:
                return []
        kinds = self.names_of(source, unsubscripted(annotation))
        if isinstance(annotation, cst.BinaryOperation):
            inner = [annotation.left, annotation.right]
        elif isinstance(annotation, cst.Subscript) and kinds & libraries.UNIONS:
            inner = items_of(annotation)
        else:
            return [] if isinstance(annotation, cst.Name) and annotation.value == "None" else [(annotation, kinds)]
        return [part for each in inner for part in self._parts(source, each)]


def _has_word(content: bytes, words: Iterable[str]) -> bool:
    return re.search(rb"\b(%s)\b" % b"|".join(re.escape(word.encode()) for word in words), content) is not None


# Parts of expressions


def first_name(node: cst.CSTNode) -> cst.CSTNode:
    """The name that a dotted name begins with."""
    return first_name(node.value) if isinstance(node, cst.Attribute) else node


def function_of(expression: cst.BaseExpression) -> cst.BaseExpression:
    """What is called, or the expression itself."""
    return expression.func if isinstance(expression, cst.Call) else expression


def arguments_of(expression: cst.CSTNode | None) -> Sequence[cst.Arg]:
    """The arguments of a call; none for what is not one."""
    return expression.args if isinstance(expression, cst.Call) else ()


def keyword_of(arg: cst.Arg) -> str | None:
    """The keyword that an argument is given by."""
    return None if arg.keyword is None else arg.keyword.value


def argument(arguments: Iterable[cst.Arg], name: str) -> cst.BaseExpression | None:
    """The value of the argument that is given by a keyword."""
    return next((each.value for each in arguments if keyword_of(each) == name), None)


def unsubscripted(expression: cst.BaseExpression) -> cst.BaseExpression:
    """`a` for `a[b]`; any other expression as it is."""
    return expression.value if isinstance(expression, cst.Subscript) else expression


def items_of(annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The items in the brackets of an annotation."""
    slices = annotation.slice if isinstance(annotation, cst.Subscript) else ()
    return [each.slice.value for each in slices if isinstance(each.slice, cst.Index)]


def literal(source: Source, expression: cst.BaseExpression | None) -> object:
    """The value of a literal, also of `dict(static=True)`; None for what is not one."""
    try:
        parsed = ast.parse("None" if expression is None else source.code(expression).strip(), mode="eval").body
        if isinstance(parsed, ast.Call) and isinstance(parsed.func, ast.Name) and parsed.func.id == "dict":
            return {keyword.arg: ast.literal_eval(keyword.value) for keyword in parsed.keywords}
        return ast.literal_eval(parsed)
    except (ValueError, SyntaxError):
        return None


def listed_statics(source: Source, by: cst.CSTNode | None) -> tuple[str, ...] | None:
    """The names that the registration of a class lists as statics; None if they can't be read there."""
    arguments = arguments_of(by)
    if argument(arguments, "drop_fields") is not None:
        return None
    third = arguments[2].value if len(arguments) > 2 and arguments[2].keyword is None else None
    given = argument(arguments, "meta_fields") or third
    names = () if given is None else literal(source, given)
    return tuple(map(str, names)) if isinstance(names, list | tuple) else None


# Fields


def _fields_of(node: NodeClass, program: Program) -> dict[str, Field]:
    """The fields that a class declares itself."""
    body = node.definition.body
    within = [part for line in body.body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    return {
        line.target.value: _field(node, line, line.target.value, program)
        for line in (*body.body, *within)
        if isinstance(line, cst.AnnAssign)
        and isinstance(line.target, cst.Name)
        and "typing.ClassVar" not in program.names_of(node.source, unsubscripted(line.annotation.annotation))
    }


def _field(node: NodeClass, line: cst.AnnAssign, name: str, program: Program) -> Field:
    source, annotation = node.source, line.annotation.annotation
    items = items_of(annotation)
    marked = len(items) == 1 and isinstance(program.rule_of(source, unsubscripted(annotation))[0], Marker)
    annotation = items[0] if marked else annotation
    kind, specifier, drops = _specified(source, line.value, program)
    if marked or name in (listed_statics(source, node.by) or ()):
        kind = "static"
    filtered = isinstance(node.rule, Base) and node.rule.filtered and kind == "child"
    inferred = filtered and program.is_one_of(source, annotation, libraries.NEVER_ARRAYS)
    return Field(line, annotation, "static" if inferred else kind, specifier, drops, inferred)


def _specified(
    source: Source, value: cst.BaseExpression | None, program: Program
) -> tuple[Kind, bool, tuple[cst.Arg, ...]]:
    """What stands behind the `=`: the kind of the field, whether a specifier says so, and by which arguments."""
    if not isinstance(value, cst.Call):
        return "child", False, ()
    rule, names = program.rule_of(source, value.func)[0], program.names_of(source, value.func)
    if isinstance(rule, Specifier):
        if any(arg.star for arg in value.args):
            return "unclear", True, ()
        markers = tuple(arg for arg in value.args if keyword_of(arg) in {None, rule.marker})
        words = {arg.value.value if isinstance(arg.value, cst.Name) else "" for arg in markers}
        if rule.static or words == {rule.static_if}:
            return "static", True, markers
        return ("child" if words <= {"True", "False"} else "unclear"), True, markers
    if not names & {"dataclasses.field", *libraries.OUR_SPECIFIERS}:
        return "child", False, ()
    metadata = next((arg for arg in value.args if keyword_of(arg) == "metadata"), None)
    if metadata is not None and literal(source, metadata.value) in ({"static": True}, {"pytree_node": False}):
        return "static", True, (metadata,)
    return "static" if "treewright.static" in names else "child", True, ()
