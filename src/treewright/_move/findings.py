"""What a moved program means that it did not mean before, and what no rule can change: by place, with what to do."""

import re
from collections.abc import Iterator

import libcst as cst

from treewright._move import libraries
from treewright._move.annotations import has_one_of, is_one_of
from treewright._move.classes import CodeBase, Field, NodeClass, argument, arguments_of
from treewright._move.libraries import Base, Decorates, Library
from treewright._move.source import Source

_CONSTRUCTORS = frozenset({"__init__", "__post_init__"})


def look(program: CodeBase) -> None:
    """Note all such places of a program."""
    for node in program.classes.values():
        if node.library is not libraries.OURS:
            for part, text, undecided in _of_class(node, program):
                node.source.find(part, text, node.library.page, undecided=undecided)
            for field in node.fields.values():
                for words, undecided in _of_field(node, field):
                    text = f"{node.name}.{field.name} {words}"
                    node.source.find(field.line, text, node.library.page, undecided=undecided)
    for source in program.sources:
        for statement in source.import_statements:
            library = _brought_unseen(source, statement, program)
            if library is not None:
                text = f"{source.code(statement)}: what this brings can't be followed; import it by name"
                source.find(statement, text, library.page, undecided=True)
        places = _Places(source, program)
        if places.may_be_in(source.module.code):
            source.module.visit(places)


def _brought_unseen(source: Source, statement: cst.Import | cst.ImportFrom, program: CodeBase) -> Library | None:
    """The library of which an import brings all names that rules are about."""
    if not isinstance(statement, cst.ImportFrom) or not isinstance(statement.names, cst.ImportStar):
        return None
    module = "" if statement.module is None else source.code(statement.module)
    found = [library for name, (_, library) in program.rules.items() if name.rpartition(".")[0] == module]
    return found[0] if found else None


_Noted = Iterator[tuple[cst.CSTNode, str, bool]]


def _of_class(node: NodeClass, program: CodeBase) -> _Noted:
    """What is to be said of a class: the place, the words, and whether it has to be changed."""
    methods = {part.name.value: part for part in node.definition.body.body if isinstance(part, cst.FunctionDef)}
    if isinstance(node.rule, Decorates):
        if node.by is None:
            yield node.definition, f"{node.name} has no decorator: it was a leaf, and is a node now", False
        if "__post_init__" in methods:
            text = (
                "runs where an instance is made, and no longer where JAX puts one together, under vmap or in tree.map"
            )
            yield methods["__post_init__"], f"{node.name}.__post_init__ {text}", False
    elif not node.rule.declared and "__init__" in methods:
        declared = program.fields_with_bases(node)
        for line, name in _assigned(methods["__init__"]):
            if name not in declared:
                yield (
                    line,
                    f"{node.name}.{name} is not declared: annotate it in the class body, with static() if it was",
                    True,
                )


def _assigned(method: cst.FunctionDef) -> list[tuple[cst.CSTNode, str]]:
    """The attributes of `self` that a method assigns to."""
    found: list[tuple[cst.CSTNode, str]] = []

    class Visitor(cst.CSTVisitor):
        def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
            self.look_at(node.target)

        def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
            self.look_at(node.target)

        def look_at(self, target: cst.BaseExpression) -> None:
            match target:
                case cst.Attribute(value=cst.Name(value="self")):
                    found.append((target, target.attr.value))
                case cst.Tuple() | cst.List():
                    for element in target.elements:
                        self.look_at(element.value)
                case _:
                    pass

    method.visit(Visitor())
    return found


def _of_field(node: NodeClass, field: Field) -> Iterator[tuple[str, bool]]:
    """What is to be said of a field: the words, and whether it has to be changed."""
    source, annotation, arguments = node.source, field.annotation, arguments_of(field.line.value)
    if field.kind == "unclear":
        yield "is static or not as a variable says: write static() or field()", True
    if isinstance(annotation, cst.SimpleString) and "Static[" in annotation.value:
        yield "is marked in a text: write the type alone, and static() behind the =", True
    if field.kind == "static":
        if has_one_of(source, annotation, libraries.ARRAYS):
            yield (
                "is static and holds an array, which is refused: make it a child, or buffer() if it must not train",
                True,
            )
        if has_one_of(source, annotation, libraries.CAN_CHANGE) and argument(arguments, "converter") is None:
            yield "is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping", False
        if has_one_of(source, annotation, libraries.MAY_CHANGE):
            yield "is static, and a list or dict in it is refused: give a tuple, or static(converter=freeze)", False
        if field.specifier and argument(arguments, "compare") is not None:
            yield "is static, and statics always take part in ==: compare= is dropped", False
    if field.inferred:
        yield "is static now, since its type is not an array: jit compiles once for each value", False
    elif isinstance(node.rule, Base) and node.rule.filtered and is_one_of(source, annotation, libraries.FLOATS):
        yield (
            "is trained by jax.grad, and filter_grad left floats alone: buffer() keeps it, or static() a constant",
            False,
        )


class _Places(cst.CSTVisitor):
    """What stands outside of declarations: assignments to nodes, and nodes that are used as mappings."""

    def __init__(self, source: Source, program: CodeBase) -> None:
        super().__init__()
        self._source = source
        self._classes = program.classes
        nodes = list(program.classes.values())
        self._mutable = {name: node for node in nodes if node.mutable for name in node.fields}
        self._mapped = {name: node for node in nodes if node.library.name == "chex" for name in node.fields}
        self._mappings = {node.name: node for node in nodes if node.library.name == "chex"}
        self._inside: list[cst.ClassDef | cst.FunctionDef] = []

    def may_be_in(self, code: str) -> bool:
        """Whether a text has a word of what is looked for: most files have none, and a visit takes long."""
        words = [rf"\.{name}\b[^=\n]*=" for name in self._mutable]
        words += [rf"\[[\"']{name}[\"']\]" for name in self._mapped]
        words += [rf"\b{name}\([^)]*\*\*" for name in self._mappings]
        return re.search("|".join([r"__setattr__|\bvars\(|\.(to|from)_tuple\b", *words]), code) is not None

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._inside.append(node)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._inside.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._inside.append(node)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inside.pop()

    @property
    def _own(self) -> NodeClass | None:
        """The class that `self` is an instance of."""
        classes = [each for each in self._inside if isinstance(each, cst.ClassDef)]
        return self._classes.get(classes[-1]) if classes else None

    @property
    def _is_constructor(self) -> bool:
        return any(each.name.value in _CONSTRUCTORS for each in self._inside)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._look_at_target(node.target)

    def visit_AugAssign(self, node: cst.AugAssign) -> None:
        self._look_at_target(node.target)

    def _look_at_target(self, target: cst.BaseExpression) -> None:
        if not isinstance(target, cst.Attribute) or target.attr.value not in self._mutable:
            return
        is_self = isinstance(target.value, cst.Name) and target.value.value == "self"
        if is_self and (self._own is None or self._is_constructor):
            return
        node = self._mutable[target.attr.value]
        text = (
            f"assigns to {target.attr.value}, a field of {node.name}: nodes are frozen. Use replace, or edit for many"
        )
        self._find(target, text, node)

    def visit_Call(self, node: cst.Call) -> None:
        names = self._source.names_of(node.func)
        own = self._own
        if own is not None and own.library is not libraries.OURS:
            if self._source.code(node.func) == "object.__setattr__" and not self._is_constructor:
                self._find(node, "changes a node in place, which is frozen: return a changed copy, by replace", own)
            if "builtins.vars" in names:
                self._find(node, "vars() of a node has no fields in it: use dataclasses.fields", own)
        called = next(
            (self._mappings[name.rpartition(".")[2]] for name in names if name.rpartition(".")[2] in self._mappings),
            None,
        )
        for arg in node.args:
            if called is not None and arg.star == "**" and isinstance(arg.value, cst.Name | cst.Attribute):
                text = f"**{self._source.code(arg.value)}: if this is a node, it is not a mapping; name the fields"
                self._find(node, text, called)

    def visit_Subscript(self, node: cst.Subscript) -> None:
        index = node.slice[0].slice
        key = index.value if isinstance(index, cst.Index) else None
        name = key.evaluated_value if isinstance(key, cst.SimpleString) else None
        if isinstance(name, str) and name in self._mapped:
            text = (
                f"[{name!r}]: if this is an instance of {self._mapped[name].name}, it is not a mapping; write .{name}"
            )
            self._find(node, text, self._mapped[name])

    def visit_Attribute(self, node: cst.Attribute) -> None:
        if node.attr.value in {"to_tuple", "from_tuple"} and self._mappings:
            any_class = next(iter(self._mappings.values()))
            self._find(node, f".{node.attr.value} of chex is gone: dataclasses.astuple, or the constructor", any_class)

    def _find(self, place: cst.CSTNode, text: str, node: NodeClass) -> None:
        self._source.find(place, text, node.library.page, undecided=True)
