"""A program as a whole: its files, the full names in them, and the classes that become nodes."""

import dataclasses
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import libcst as cst

from treewright.move.libraries import ABSTRACT, OURS, RULES, Rule
from treewright.move.source import Source, assignments_in, bare


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
        # By full name: the expressions that modules assign to names, such as aliases of classes and types.
        self.values: dict[str, tuple[Source, cst.BaseExpression]] = {}
        self._classes: dict[str, list[cst.ClassDef]] = {}
        self._modules: dict[str, list[Source]] = {}
        waiting = dict(files)
        while loaded := [path for path, content in waiting.items() if _has_word(content, words)]:
            for path in loaded:
                self._load(path, waiting.pop(path))
            self._find_nodes()
            words |= {definition.name.value for definition in self.nodes}
            words |= {each.name for path in loaded for each in self.library_imports(self.sources[path])}
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
        self.values |= {f"{source.name}.{name}": (source, value) for name, value in source.values.items()}

    # Names

    def library_imports(self, source: Source) -> list[Any]:
        """The imports of a file that bind a library, or a name from one."""

        def is_known(name: str) -> bool:
            theirs = (rule for rule in self._rules if not rule.startswith(OURS))
            return any(rule == name or rule.startswith(f"{name}.") for rule in theirs)

        every = [(each, source.full_names(each)) for each in source.imports]
        return [each for each, names in every if any(is_known(self._origin(name)) for name in names)]

    def names_of(self, source: Source, node: cst.CSTNode) -> frozenset[str]:
        """The full names of an expression, each where it is defined."""
        return frozenset(self._origin(name) for name in source.names_of(node))

    def _origin(self, name: str, depth: int = 0) -> str:
        """`package.base.Layer` for `package.Layer`, if the package imports it from there, or assigns it.

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
                names = source.names_of(source.module, rest)
                value = source.values.get(parts[end])
                if isinstance(value, cst.Name | cst.Attribute):  # an alias
                    names = frozenset(".".join([each, *parts[end + 1 :]]) for each in source.names_of(value))
                return local if len(names) != 1 or local in names else self._origin(next(iter(names)), depth + 1)
        return name

    def rule_of(self, source: Source, node: cst.CSTNode) -> tuple[Rule | None, str]:
        """The rule for a name and its full name; no rule if the name may have a different meaning.

        The standard library's `dataclass` and `ClassVar` do not count: libraries stand in for them `if TYPE_CHECKING`.
        """
        names = self.names_of(source, node) - {"dataclasses.dataclass", "typing.ClassVar"}
        full = next((name for name in names if name in self._rules), "")
        return (self._rules.get(full) if len(names) == 1 else None), full

    def has_rules_for(self, module: str) -> bool:
        """Whether a module of a library has names that move."""
        return module != OURS and any(name.rpartition(".")[0] == module for name in self._rules)

    def nodes_named(self, names: Iterable[str]) -> list[NodeClass]:
        """The node classes of these full names."""
        classes = (each for name in names for each in self._classes.get(name, []))
        return [self.nodes[each] for each in classes if each in self.nodes]

    def is_set_elsewhere(self, name: str) -> bool:
        """Whether a file without node classes, which was not read, may assign a field of this name."""
        return re.search(rb"\b%s\b" % name.encode(), self._unread) is not None

    # Classes

    def fields(self, node: NodeClass) -> list[cst.AnnAssign]:
        """The fields in the body of a class: annotated names, but no class variables or abstract ones."""
        lines = [line for _, line in assignments_in(node.definition.body.body) if isinstance(line, cst.AnnAssign)]
        kinds = [self.names_of(node.source, bare(line.annotation.annotation)) for line in lines]
        return [line for line, kind in zip(lines, kinds, strict=True) if not kind & {"typing.ClassVar", *ABSTRACT}]

    def bases(self, node: NodeClass) -> list[NodeClass]:
        """A node class and all its bases, each once."""
        every = [node]
        for each in every:
            every += [above for above in self.above(each.source, each.definition) if above not in every]
        return every

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
            rule, name = self.rule_of(source, bare(each.decorator))
            if rule is not None and rule.kind == "decorator":
                self.nodes[definition] = NodeClass(source, definition, name, each.decorator)
        for base in definition.bases:
            rule, name = self.rule_of(source, bare(base.value))
            if rule is not None and rule.kind == "base" and not self._mixes(source, definition):
                self.nodes[definition] = NodeClass(source, definition, name, base)

    def _mixes(self, source: Source, definition: cst.ClassDef) -> bool:
        """Whether a class also extends a class of a library that does not move, such as `equinox.nn.Linear`."""
        packages = {name.partition(".")[0] for name in self._rules}
        bases = {name for base in definition.bases for name in self.names_of(source, bare(base.value))}
        return any(name.partition(".")[0] in packages for name in bases - self._rules.keys())

    def above(self, source: Source, definition: cst.ClassDef) -> Iterator[NodeClass]:
        """The nodes that a class extends; not a base that may also be a different class."""
        for base in definition.bases:
            names = self.names_of(source, bare(base.value))
            classes = {each for name in names for each in self._classes.get(name, [])}
            if len(classes) == 1:
                yield from (self.nodes[each] for each in classes if each in self.nodes)

    def _extend(self, source: Source, definition: cst.ClassDef) -> bool:
        """Add a class whose base becomes a `Module`, even if it has a decorator. Returns whether it was added."""
        if definition in self.nodes and self.nodes[definition].rule.kind == "base":
            return False
        for above in self.above(source, definition):
            if above.rule.kind == "base":
                self.nodes[definition] = NodeClass(source, definition, above.origin, None)
                return True
        return False


def _has_word(content: bytes, words: Iterable[str]) -> bool:
    return re.search(rb"\b(%s)\b" % b"|".join(re.escape(word.encode()) for word in words), content) is not None
