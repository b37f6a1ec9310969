"""A program as a whole: its files, the full names in them, and the classes that become nodes."""

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst import helpers, metadata

from treewright.move.libraries import ABSTRACT, OURS, PAGES, RULES, Rule


class Notice(NamedTuple):
    """A place to look at. `undecided` if it has to be changed by hand."""

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
        self.path: Path = path
        self.content: bytes = content
        parts = [*path.resolve().parent.parts, *([] if path.stem == "__init__" else [path.stem])]
        self.parts: list[str] = [part.replace(".", "_") for part in parts]
        self.name: str = ".".join(self.parts)  # with all folders, so that relative imports lead to other files
        self.package: str = self.name if path.stem == "__init__" else ".".join(self.parts[:-1])
        self.notices: set[Notice] = set()
        try:
            self.module: cst.Module = cst.parse_module(content)
        except cst.ParserSyntaxError as error:
            raise ValueError(f"{path}:{error.raw_line}: this does not parse: {error.message}") from error
        except (SyntaxError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: this can't be read as Python: {error}") from error
        self._wrapper = metadata.MetadataWrapper(self.module, unsafe_skip_copy=True)  # parsed here: no part is shared
        self._scopes: Any = self._wrapper.resolve(metadata.ScopeProvider)
        scopes = dict.fromkeys(scope for scope in self._scopes.values() if scope is not None)
        self.assignments: list[Any] = [assignment for scope in scopes for assignment in scope.assignments]
        self.imports: list[metadata.ImportAssignment] = [
            each for each in self.assignments if isinstance(each, metadata.ImportAssignment)
        ]
        nodes = [getattr(each, "node", None) for each in self.assignments]
        self.classes: list[cst.ClassDef] = [node for node in nodes if isinstance(node, cst.ClassDef)]
        self.functions: list[cst.FunctionDef] = [node for node in nodes if isinstance(node, cst.FunctionDef)]

    @functools.cached_property
    def stars(self) -> dict[str, cst.ImportFrom]:
        """Each `from module import *`, by the full name of the module."""
        lines = [part for line in self.module.body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
        froms = [each for each in lines if isinstance(each, cst.ImportFrom)]
        imports = [each for each in froms if isinstance(each.names, cst.ImportStar)]
        names = [helpers.get_absolute_module_from_package_for_import(self.package, each) for each in imports]
        return {name: each for name, each in zip(names, imports, strict=True) if name}

    def names_of(self, node: cst.CSTNode, text: str | None = None) -> frozenset[str]:
        """The full names that an expression may have, by the imports and assignments in its scope."""
        dotted = text or helpers.get_full_name_for_node(node)
        scope = self._scopes.get(first_name(node)) or self._scopes[self.module]
        if dotted is None or scope is None:
            return frozenset()
        found = frozenset(self.absolute(name) for name in scope.get_qualified_names_for(dotted))
        return found or frozenset(f"{module}.{dotted}" for module in self.stars)

    def full_names(self, each: metadata.ImportAssignment) -> set[str]:
        """The full names that an import binds its name to."""
        return {self.absolute(name) for name in each.get_qualified_names_for(each.name)}

    def absolute(self, name: metadata.QualifiedName) -> str:
        """A name with the package in front, where it is relative or of this file."""
        if name.source is metadata.QualifiedNameSource.LOCAL:
            return f"{self.name}.{name.name}"
        bare = name.name.lstrip(".")
        dots = len(name.name) - len(bare)
        return ".".join([*self.package.split(".")[: 1 - dots or None], bare]) if dots else bare

    def reads_in_scope(self, target: cst.BaseExpression) -> set[cst.CSTNode]:
        """The places in the scope of a target that read it: in a class body, its statements and not its methods."""
        scope = self._scopes[target]
        every = {access for each in scope[name_of(target)] for access in each.references}
        return {access.node for access in every if access.scope is scope and not access.is_annotation}

    def note(self, node: cst.CSTNode, text: str, name: str, *, undecided: bool = False) -> None:
        """Note a place to look at, by its line, with the page about the library of a full name."""
        page = {**PAGES, OURS: "docs/migrating/command.md"}[name.partition(".")[0]]
        positions: Any = self._wrapper.resolve(metadata.PositionProvider)
        self.notices.add(Notice(positions[node].start.line, text, page, undecided))


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class NodeClass:
    """A class that becomes a node, by a decorator or a base of this full name; `by` is None for a subclass of one."""

    source: Source
    definition: cst.ClassDef
    origin: str
    by: Any

    @property
    def rule(self) -> Rule:
        return RULES[self.origin]

    @property
    def name(self) -> str:
        return self.definition.name.value

    @property
    def full_name(self) -> str:
        names = self.source.names_of(self.definition.name)
        return next(name for name in names if name.startswith(f"{self.source.name}."))

    @property
    def has_moved(self) -> bool:
        return self.origin.startswith(OURS)


class Program:
    """The files of a program, and the classes in them that become nodes."""

    def __init__(self, files: dict[Path, bytes], libraries: Iterable[str]) -> None:
        words = {*libraries, OURS}
        self._rules = {name: rule for name, rule in RULES.items() if name.partition(".")[0] in words}
        self.sources: dict[Path, Source] = {}
        self.nodes: dict[cst.ClassDef, NodeClass] = {}
        self.passed_on: set[str] = set()  # full names that a file imports from another one
        self.functions: dict[str, tuple[Source, cst.FunctionDef]] = {}
        self._classes: dict[str, list[cst.ClassDef]] = {}
        self._modules: dict[str, list[Source]] = {}
        waiting = dict(files)
        while found := [path for path, content in waiting.items() if _has_word(content, words)]:
            for path in found:
                self._load(path, waiting.pop(path))
            self._find_nodes()
            words |= {definition.name.value for definition in self.nodes}
            words |= {each.name for path in found for each in self.library_imports(self.sources[path])}
        self._unread: bytes = b"\n".join(waiting.values())

    def _load(self, path: Path, content: bytes) -> None:
        source = self.sources[path] = Source(path, content)
        for end in range(len(source.parts)):
            if not Path(*path.resolve().parts[:end] or ["."], "__init__.py").exists():  # a folder to import from
                self._modules.setdefault(".".join(source.parts[end:]), []).append(source)
        self._modules[source.name] = [source]
        for definition in source.classes:
            for name in source.names_of(definition.name):
                self._classes.setdefault(name, []).append(definition)
        for function in source.functions:
            self.functions |= dict.fromkeys(source.names_of(function.name), (source, function))

    # Names

    def library_imports(self, source: Source) -> list[Any]:
        """The imports of a file that bind a library, or a name from one."""

        def is_known(name: str) -> bool:
            theirs = (rule for rule in self._rules if not rule.startswith(OURS))
            return any(rule == name or rule.startswith(f"{name}.") for rule in theirs)

        every = [(each, source.full_names(each)) for each in source.imports]
        return [each for each, names in every if any(is_known(self._origin(name)) for name in names)]

    def names_of(self, source: Source, node: cst.CSTNode, text: str | None = None) -> frozenset[str]:
        """The full names of an expression, each where it is defined."""
        return frozenset(self._origin(name) for name in source.names_of(node, text))

    def _origin(self, name: str, depth: int = 0) -> str:
        """`package.base.Layer` for `package.Layer`, if the package imports it from there.

        Imports can lead in circles, as `from .shapes import shapes` of a file that was not read: 30 are followed.
        """
        parts = name.split(".")
        for end in range(len(parts) - 1, 0, -1):
            sources = self._modules.get(".".join(parts[:end]), [])
            if len(sources) == 1:
                source, rest = sources[0], ".".join(parts[end:])
                local = f"{source.name}.{rest}"
                if local in self._classes or depth == 30:
                    return local
                self.passed_on.add(f"{source.name}.{parts[end]}")
                found = source.names_of(source.module, rest)
                return local if len(found) != 1 or local in found else self._origin(next(iter(found)), depth + 1)
        return name

    def rule_of(self, source: Source, node: cst.CSTNode) -> tuple[Rule | None, str]:
        """The rule for a name and its full name; no rule where the name may also be something else.

        The standard library's `dataclass` and `ClassVar` do not count: libraries stand in for them `if TYPE_CHECKING`.
        """
        names = self.names_of(source, node) - {"dataclasses.dataclass", "typing.ClassVar"}
        full = next((name for name in names if name in self._rules), "")
        return (self._rules.get(full) if len(names) == 1 else None), full

    def has_rules_for(self, module: str) -> bool:
        """Whether a module of a library has names that move."""
        return module != OURS and any(name.rpartition(".")[0] == module for name in self._rules)

    def classes_of(self, source: Source, node: cst.CSTNode) -> set[cst.ClassDef]:
        """The classes of the program that an expression may stand for."""
        return {each for name in self.names_of(source, node) for each in self._classes.get(name, [])}

    def nodes_named(self, names: Iterable[str]) -> list[NodeClass]:
        """The node classes of these full names."""
        classes = (each for name in names for each in self._classes.get(name, []))
        return [self.nodes[each] for each in classes if each in self.nodes]

    def is_set_elsewhere(self, name: str) -> bool:
        """Whether a file that was not read, since it names no node class, may give a field of this name a value."""
        return re.search(rb"\b%s\b" % name.encode(), self._unread) is not None

    # Classes

    def _find_nodes(self) -> None:
        every = [(source, definition) for source in self.sources.values() for definition in source.classes]
        for source, definition in every:
            if definition not in self.nodes:
                self._begin(source, definition)
        while sum(self._extend(source, definition) for source, definition in every):  # until none is added
            pass

    def _begin(self, source: Source, definition: cst.ClassDef) -> None:
        """Add a class that a decorator or a base makes a node."""
        for each in definition.decorators:
            rule, name = self.rule_of(source, function_of(each.decorator))
            if rule is not None and rule.kind == "decorator":
                self.nodes[definition] = NodeClass(source, definition, name, each.decorator)
        for base in definition.bases:
            rule, name = self.rule_of(source, unsubscripted(base.value))
            if rule is not None and rule.kind == "base" and not self._mixes(source, definition):
                self.nodes[definition] = NodeClass(source, definition, name, base)

    def _mixes(self, source: Source, definition: cst.ClassDef) -> bool:
        """Whether a class also extends one of a library that does not move, as `equinox.nn.Linear`."""
        packages = {name.partition(".")[0] for name in self._rules}
        bases = {name for base in definition.bases for name in self.names_of(source, unsubscripted(base.value))}
        return any(name.partition(".")[0] in packages for name in bases - self._rules.keys())

    def above(self, source: Source, definition: cst.ClassDef) -> Iterator[tuple[NodeClass, bool]]:
        """The nodes that a class extends, and whether each base can't be something else."""
        for base in definition.bases:
            classes = self.classes_of(source, unsubscripted(base.value))
            nodes = [self.nodes[other] for other in classes if other in self.nodes]
            if nodes:
                yield nodes[0], len(classes) == 1

    def _extend(self, source: Source, definition: cst.ClassDef) -> bool:
        """Add a class that extends one which becomes a `Module`, also if it has a decorator; whether it was added."""
        if definition in self.nodes and self.nodes[definition].rule.kind == "base":
            return False
        for above, is_sure in self.above(source, definition):
            if is_sure and above.rule.kind == "base":
                self.nodes[definition] = NodeClass(source, definition, above.origin, None)
                return True
        return False


def _has_word(content: bytes, words: Iterable[str]) -> bool:
    return re.search(rb"\b(%s)\b" % b"|".join(re.escape(word.encode()) for word in words), content) is not None


# Parts of syntax trees


def statements(definition: cst.ClassDef) -> Iterator[Any]:
    """The lines of a class body that annotate a name, or assign to one alone."""
    body = definition.body.body
    lines = [part for line in body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    for each in (*body, *lines):  # In a class on one line, only the first
        targets = [each.target] if isinstance(each, cst.AnnAssign) else []
        targets += [target.target for target in each.targets] if isinstance(each, cst.Assign) else []
        if len(targets) == 1 and isinstance(targets[0], cst.Name):
            yield each


def field_lines(definition: cst.ClassDef) -> list[cst.AnnAssign]:
    """The annotated names of a class body."""
    return [each for each in statements(definition) if isinstance(each, cst.AnnAssign)]


def is_field(line: cst.AnnAssign, node: NodeClass, program: Program) -> bool:
    """Whether an annotated name is a field, and not a class variable or an abstract one."""
    names = program.names_of(node.source, unsubscripted(line.annotation.annotation))
    return not names & {"typing.ClassVar", *ABSTRACT}


def name_of(node: cst.CSTNode) -> str:
    """The last part of a dotted name; empty for any other expression."""
    last = node.attr if isinstance(node, cst.Attribute) else node
    return last.value if isinstance(last, cst.Name) else ""


def first_name(node: cst.CSTNode) -> cst.CSTNode:
    """The name that a dotted name begins with."""
    return first_name(node.value) if isinstance(node, cst.Attribute) else node


def function_of(expression: cst.BaseExpression) -> cst.BaseExpression:
    """The function of a call, or the expression itself."""
    return expression.func if isinstance(expression, cst.Call) else expression


def unsubscripted(expression: cst.BaseExpression) -> cst.BaseExpression:
    """`a` for `a[b]`; any other expression as it is."""
    return expression.value if isinstance(expression, cst.Subscript) else expression


def items_of(annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The items in the brackets of an annotation."""
    slices = annotation.slice if isinstance(annotation, cst.Subscript) else ()
    return [each.slice.value for each in slices if isinstance(each.slice, cst.Index)]
