"""A file: its syntax tree, the full names in it, edits to its text, and places to review."""

import functools
import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst import helpers, metadata

from treewright.move.libraries import OURS, PAGES

_SPACES = cst.BaseParenthesizableWhitespace | cst.TrailingWhitespace | cst.EmptyLine


class Notice(NamedTuple):
    """A place to review, by its offset. `undecided` if it must be changed manually."""

    start: int
    text: str
    page: str
    undecided: bool


class Source:
    """A file, and the edits to it by offset. New text contains full names of Treewright between NULs until the end.

    Attributes:
        name: The full name of its module, with all folders, so that relative imports lead to other files.
        values: The expressions that the module assigns to names, each assigned once.
        replaced: The ids of names in expressions that the edits delete.

    Raises:
        ValueError: If it does not parse; the message names the line.
    """

    def __init__(self, path: Path, content: bytes) -> None:
        self.path: Path = path
        self.content: bytes = content
        parts = [*path.resolve().parent.parts, *([] if path.stem == "__init__" else [path.stem])]
        self.parts: list[str] = [part.replace(".", "_") for part in parts]
        self.name: str = ".".join(self.parts)
        self._package = self.name if path.stem == "__init__" else ".".join(self.parts[:-1])
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
        self.imports: list[Any] = [each for each in self.assignments if isinstance(each, metadata.ImportAssignment)]
        nodes = [getattr(each, "node", None) for each in self.assignments]
        self.classes: list[cst.ClassDef] = [node for node in nodes if isinstance(node, cst.ClassDef)]
        lines = [(name, line) for name, line in assignments_in(self.module.body) if line.value]
        once = [(name, line) for name, line in lines if len(self._scopes[self.module][name]) == 1]
        self.values: dict[str, Any] = {name: line.value for name, line in once}
        self.notices: set[Notice] = set()
        self.edits: list[tuple[int, int, str]] = []
        self._lines_added: list[tuple[int, int]] = []
        self.replaced: set[int] = set()

    # Names

    @functools.cached_property
    def stars(self) -> dict[str, cst.ImportFrom]:
        """Each `from module import *`, by the full name of the module."""
        froms = [each for each in _small_statements(self.module.body) if isinstance(each, cst.ImportFrom)]
        imports = [each for each in froms if isinstance(each.names, cst.ImportStar)]
        names = [helpers.get_absolute_module_from_package_for_import(self._package, each) for each in imports]
        return {name: each for name, each in zip(names, imports, strict=True) if name}

    def names_of(self, node: cst.CSTNode, text: str | None = None) -> frozenset[str]:
        """The possible full names of an expression, by the imports and assignments in its scope."""
        dotted = helpers.get_full_name_for_node(node) if isinstance(first_name(node), cst.Name) else text
        scope = self._scopes.get(first_name(node)) or self._scopes[self.module]
        if dotted is None or scope is None:
            return frozenset()
        names = frozenset(self._absolute(name) for name in scope.get_qualified_names_for(dotted))
        return names or frozenset(f"{module}.{dotted}" for module in self.stars)

    def full_names(self, each: metadata.ImportAssignment) -> set[str]:
        """The full names that an import binds its name to."""
        return {self._absolute(name) for name in each.get_qualified_names_for(each.name)}

    def _absolute(self, name: metadata.QualifiedName) -> str:
        """A name, prefixed with the package if it is relative, or with the module if it is defined here."""
        if name.source is metadata.QualifiedNameSource.LOCAL:
            return f"{self.name}.{name.name}"
        bare = name.name.lstrip(".")
        dots = len(name.name) - len(bare)
        return ".".join([*self._package.split(".")[: 1 - dots or None], bare]) if dots else bare

    def is_read_in_scope(self, target: cst.CSTNode) -> bool:
        """Whether the scope of a target reads it: in a class body, its statements and not its methods."""
        scope = self._scopes[target]
        accesses = (access for each in scope[name_of(target)] for access in each.references)
        return any(access.scope is scope and not access.is_annotation for access in accesses)

    # Places

    @functools.cached_property
    def _code(self) -> bytes:
        return self.module.code.encode()

    @functools.cached_property
    def _spans(self) -> Mapping[cst.CSTNode, Any]:
        return self._wrapper.resolve(metadata.ByteSpanPositionProvider)

    def start(self, node: cst.CSTNode) -> int:
        """Where a node begins, with its parentheses."""
        parens = node.lpar if isinstance(node, cst.BaseExpression) else ()
        start: int = self._spans[parens[0] if parens else node].start
        return start

    def end(self, node: cst.CSTNode) -> int:
        parens = node.rpar if isinstance(node, cst.BaseExpression) else ()
        span = self._spans[parens[-1] if parens else node]
        end: int = span.start + span.length
        return end

    def lines_of(self, node: cst.CSTNode) -> tuple[int, int]:
        """The start of the first line of a statement, and the end of its last line."""
        end = self._code.find(b"\n", self.end(node)) + 1
        return self._code.rfind(b"\n", 0, self.start(node)) + 1, end or len(self._code)

    def text(self, start: int, end: int) -> str:
        return self._code[start:end].decode()

    def text_of(self, node: cst.CSTNode) -> str:
        return self.text(self.start(node), self.end(node))

    def note(self, node: cst.CSTNode, text: str, name: str, *, undecided: bool = False) -> None:
        """Note a place to review, with the page about the library of a full name."""
        page = {**PAGES, OURS: "docs/migrating/command.md"}[name.partition(".")[0]]
        self.notices.add(Notice(self.start(node), text, page, undecided))

    # Edits

    def ours(self, full: str, *instead_of: cst.CSTNode) -> str:
        """Text for a full name of Treewright that replaces other names."""
        self.replaced.update(id(first_name(each)) for each in instead_of)
        return f"\0{full}\0"

    def edit(self, start: int, end: int, text: str = "") -> None:
        self.edits.append((start, end, text))

    def replace(self, node: cst.CSTNode, text: str) -> None:
        self.edit(self.start(node), self.end(node), text)

    def unwrap(self, outer: cst.CSTNode, inner: cst.CSTNode, before: str = "", after: str = "") -> None:
        """Replace the text around a part of a node."""
        self.edit(self.start(outer), self.start(inner), before)
        self.edit(self.end(inner), self.end(outer), after)

    def keep(self, items: Sequence[cst.CSTNode], kept: Collection[cst.CSTNode], added: Sequence[str] = ()) -> None:
        """Delete the other items of a list with their separators, and add some. At least one is kept."""
        last = max(place for place, each in enumerate(items) if each in kept)
        for each, after in itertools.pairwise(items[: last + 1]):
            if each not in kept:
                self.edit(self.start(each), self.start(after))
        start, end = self.end(items[last]), self.end(items[-1])
        separator = self.text(self.end(items[0]), self.start(items[1])) if len(items) > 1 else ", "
        self.edit(start, start, "".join(re.sub(r"\s*#.*", "", separator) + each for each in added))
        self.edit(start, end)

    def arguments(self, call: cst.Call, kept: Sequence[cst.Arg], added: Sequence[str] = ()) -> None:
        """Delete the other arguments of a call, and add some."""
        if kept:
            self.keep(call.args, kept, added)
        else:
            end = self._spans[call].start + self._spans[call].length  # without parentheses around the call
            self.edit(self.end(call.func), end, f"({', '.join(added)})")

    def delete_lines(self, node: cst.CSTNode) -> None:
        """Delete the lines of a statement, and the blank lines below it if there is one above it."""
        start, end = self.lines_of(node)
        blank = re.compile(rb"(\s*\n)?").match(self._code, end)
        is_after_blank = self._code[:start].endswith((b"\n\n", b"\n\r\n"))
        self.edit(start, blank.end() if blank and is_after_blank else end)

    def rewritten(self, names: Mapping[str, str]) -> bytes:
        """The file after the edits, with Treewright's names as it imports them. Nested edits are dropped."""
        parts, place = list[bytes](), 0
        for start, end, text in sorted(self.edits, key=lambda edit: edit[:2]):
            if start >= place:
                new = re.sub("\0(.*?)\0", lambda name: names[name[1]], text)
                parts += [self._code[place:start], new.encode()]
                place = end
                self._lines_added.append((start, new.count("\n") - self._code.count(b"\n", start, end)))
        return b"".join([*parts, self._code[place:]]).decode().encode(self.module.encoding)

    def line(self, place: int, *, written: bool) -> int:
        """The line number of a place, in the original file or after the edits."""
        added = sum(added for start, added in self._lines_added if start < place) if written else 0
        return self._code.count(b"\n", 0, place) + 1 + added


# Parts of syntax trees


def every_part(node: Any) -> Iterator[cst.CSTNode]:
    """A node and its parts at every depth: libcst's own visitors also visit each space."""
    yield node
    for part in parts_of(node):
        yield from every_part(part)


def parts_of(node: Any) -> Iterator[cst.CSTNode]:
    """The parts of a node that are code."""
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, cst.CSTNode) and not isinstance(each, _SPACES):
                yield each


def name_of(node: cst.CSTNode | None) -> str:
    """The last part of a dotted name; empty for any other expression."""
    last = node.attr if isinstance(node, cst.Attribute) else node
    return last.value if isinstance(last, cst.Name) else ""


def first_name(node: cst.CSTNode) -> cst.CSTNode:
    """The name that a dotted name begins with."""
    return first_name(node.value) if isinstance(node, cst.Attribute) else node


def bare(expression: cst.BaseExpression) -> cst.BaseExpression:
    """`a` for `a(b)` and `a[b]`; any other expression as it is."""
    if isinstance(expression, cst.Call):
        return expression.func
    return expression.value if isinstance(expression, cst.Subscript) else expression


def items_of(annotation: cst.BaseExpression) -> list[cst.BaseExpression]:
    """The items in the brackets of an annotation."""
    slices = annotation.slice if isinstance(annotation, cst.Subscript) else ()
    return [each.slice.value for each in slices if isinstance(each.slice, cst.Index)]


def arguments_of(expression: Any) -> Sequence[cst.Arg]:
    """The arguments of a call; none of any other expression."""
    return expression.args if isinstance(expression, cst.Call) else ()


def keyword_of(arg: cst.Arg) -> str | None:
    """The keyword of an argument."""
    return None if arg.keyword is None else arg.keyword.value


def argument(arguments: Sequence[cst.Arg], name: str | None) -> cst.BaseExpression | None:
    """The value of the argument with a keyword."""
    return next((each.value for each in arguments if name and keyword_of(each) == name), None)


def _small_statements(body: Any) -> list[Any]:
    """The statements of a module or a class body that are not compound."""
    lines = [part for line in body if isinstance(line, cst.SimpleStatementLine) for part in line.body]
    return [each for each in (*body, *lines) if isinstance(each, cst.BaseSmallStatement)]


def assignments_in(body: Any) -> Iterator[tuple[str, Any]]:
    """The statements of a module or a class body that annotate or assign one name, by that name."""
    for each in _small_statements(body):
        targets = [each.target] if isinstance(each, cst.AnnAssign) else []
        targets += [target.target for target in each.targets] if isinstance(each, cst.Assign) else []
        if len(targets) == 1 and isinstance(targets[0], cst.Name):
            yield targets[0].value, each
