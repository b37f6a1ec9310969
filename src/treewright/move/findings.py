"""What a moved program means that it did not mean before, and what no rule can change: by place, with what to do."""

import re
from collections.abc import Iterator

import libcst as cst
from libcst import matchers

from treewright.move import libraries
from treewright.move.classes import CodeBase, Field, NodeClass, argument, arguments_of
from treewright.move.libraries import Base, Decorates
from treewright.move.source import Source

_CONSTRUCTORS = frozenset({"__init__", "__post_init__"})
_Noted = Iterator[tuple[cst.CSTNode, str, bool]]  # the place, the words, and whether it has to be changed


def look(program: CodeBase) -> None:
    """Note all such places of a program."""
    for node in program.classes.values():
        if node.library is not libraries.OURS:
            fields = (noted for name, field in node.fields.items() for noted in _of_field(node, name, field))
            for part, text, undecided in (*_of_class(node, program), *fields):
                node.source.find(part, f"{node.name}{text}", node.library.page, undecided=undecided)
    for source in program.sources:
        for statement in source.parts(cst.ImportFrom):
            module = "" if statement.module is None else source.code(statement.module)
            for name, (_, library) in program.rules.items() if isinstance(statement.names, cst.ImportStar) else ():
                if name.rpartition(".")[0] == module:
                    text = f"{source.code(statement)}: what this brings can't be followed; import it by name"
                    source.find(statement, text, library.page, undecided=True)
                    break
        places = _Places(source, program)
        if places.may_be_in(source.module.code):
            source.module.visit(places)


def _of_class(node: NodeClass, program: CodeBase) -> _Noted:
    methods = {part.name.value: part for part in node.definition.body.body if isinstance(part, cst.FunctionDef)}
    if isinstance(node.rule, Decorates):
        if node.by is None:
            yield node.definition, " has no decorator: it was a leaf, and is a node now", False
        if "__post_init__" in methods:
            text = (
                ".__post_init__ runs where an instance is made, and no longer where JAX puts one together, under vmap "
                "or in tree.map"
            )
            yield methods["__post_init__"], text, False
    elif not node.rule.declared and "__init__" in methods:
        declared = program.fields_with_bases(node)
        for place, name in _assigned(methods["__init__"]):
            if name not in declared:
                text = f".{name} is not declared: annotate it in the class body, with static() if it was"
                yield place, text, True


def _assigned(method: cst.FunctionDef) -> Iterator[tuple[cst.CSTNode, str]]:
    """The attributes of `self` that a method assigns to."""
    statements = matchers.findall(method, matchers.AssignTarget() | matchers.AnnAssign())
    targets: list[cst.BaseExpression] = [
        each.target for each in statements if isinstance(each, cst.AssignTarget | cst.AnnAssign)
    ]
    while targets:
        match targets.pop(0):
            case cst.Attribute(value=cst.Name(value="self")) as target:
                yield target, target.attr.value
            case cst.Tuple() | cst.List() as target:
                targets += [element.value for element in target.elements]
            case _:
                pass


def _of_field(node: NodeClass, name: str, field: Field) -> _Noted:
    source, annotation, arguments = node.source, field.annotation, arguments_of(field.line.value)
    words: list[tuple[str, bool]] = []
    if field.kind == "unclear":
        words.append(("is static or not as a variable says: write static() or field()", True))
    if isinstance(annotation, cst.SimpleString) and "Static[" in annotation.value:
        words.append(("is marked in a text: write the type alone, and static() behind the =", True))
    if field.kind == "static":
        if source.has_one_of(annotation, libraries.ARRAYS):
            text = "is static and holds an array, which is refused: make it a child, or buffer() if it must not train"
            words.append((text, True))
        if source.has_one_of(annotation, libraries.CAN_CHANGE) and argument(arguments, "converter") is None:
            text = "is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping"
            words.append((text, False))
        if source.has_one_of(annotation, libraries.MAY_CHANGE):
            text = "is static, and a list or dict in it is refused: give a tuple, or static(converter=freeze)"
            words.append((text, False))
        if field.specifier and argument(arguments, "compare") is not None:
            words.append(("is static, and statics always take part in ==: compare= is dropped", False))
    if field.inferred:
        words.append(("is static now, since its type is not an array: jit compiles once for each value", False))
    elif isinstance(node.rule, Base) and node.rule.filtered and source.is_one_of(annotation, libraries.FLOATS):
        text = "is trained by jax.grad, and filter_grad left floats alone: buffer() keeps it, or static() a constant"
        words.append((text, False))
    return ((field.line, f".{name} {text}", undecided) for text, undecided in words)


class _Places(cst.CSTVisitor):
    """What stands outside of declarations: assignments to nodes, and nodes that are used as mappings."""

    def __init__(self, source: Source, program: CodeBase) -> None:
        super().__init__()
        self._source = source
        self._classes = program.classes
        nodes = list(program.classes.values())
        mappings = [node for node in nodes if node.library.name == "chex"]
        self._mutable = {name: node for node in nodes if node.mutable for name in node.fields}
        self._mapped = {name: node for node in mappings for name in node.fields}
        self._mappings = {node.name: node for node in mappings}
        self._inside: list[cst.ClassDef | cst.FunctionDef] = []

    def may_be_in(self, code: str) -> bool:
        """Whether a text has a word of what is looked for: most files have none, and a visit takes long."""
        words = [rf"\.{name}\b[^=\n]*=" for name in self._mutable]
        words += [rf"\[[\"']{name}[\"']\]" for name in self._mapped]
        words += [rf"\b{name}\([^)]*\*\*" for name in self._mappings]
        return re.search("|".join([r"__setattr__|\bvars\(|\.(to|from)_tuple\b", *words]), code) is not None

    def on_visit(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.ClassDef() | cst.FunctionDef():
                self._inside.append(node)
            case cst.AssignTarget(target=cst.Attribute() as target) | cst.AugAssign(target=cst.Attribute() as target):
                self._look_at_target(target)
            case cst.Call():
                self._look_at_call(node)
            case cst.Subscript(slice=[cst.SubscriptElement(slice=cst.Index(value=cst.SimpleString() as key)), *_]):
                self._look_at_key(node, str(key.evaluated_value))
            case cst.Attribute(attr=cst.Name(value="to_tuple" | "from_tuple" as name)) if self._mappings:
                text = f".{name} of chex is gone: dataclasses.astuple, or the constructor"
                self._find(node, text, next(iter(self._mappings.values())))
            case _:
                pass
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.ClassDef | cst.FunctionDef):
            self._inside.pop()

    @property
    def _own(self) -> NodeClass | None:
        """The class that `self` is an instance of."""
        classes = [each for each in self._inside if isinstance(each, cst.ClassDef)]
        return self._classes.get(classes[-1]) if classes else None

    @property
    def _is_constructor(self) -> bool:
        return any(each.name.value in _CONSTRUCTORS for each in self._inside)

    def _look_at_target(self, target: cst.Attribute) -> None:
        name, node = target.attr.value, self._mutable.get(target.attr.value)
        is_self = isinstance(target.value, cst.Name) and target.value.value == "self"
        if node is not None and not (is_self and (self._own is None or self._is_constructor)):
            text = f"assigns to {name}, a field of {node.name}: nodes are frozen. Use replace, or edit for many"
            self._find(target, text, node)

    def _look_at_call(self, node: cst.Call) -> None:
        names, own = self._source.names_of(node.func), self._own
        if own is not None and own.library is not libraries.OURS:
            if self._source.code(node.func) == "object.__setattr__" and not self._is_constructor:
                self._find(node, "changes a node in place, which is frozen: return a changed copy, by replace", own)
            if "builtins.vars" in names:
                self._find(node, "vars() of a node has no fields in it: use dataclasses.fields", own)
        called = [self._mappings[last] for name in names if (last := name.rpartition(".")[2]) in self._mappings]
        for arg in node.args if called else ():
            if arg.star == "**" and isinstance(arg.value, cst.Name | cst.Attribute):
                text = f"**{self._source.code(arg.value)}: if this is a node, it is not a mapping; name the fields"
                self._find(node, text, called[0])

    def _look_at_key(self, place: cst.Subscript, key: str) -> None:
        node = self._mapped.get(key)
        if node is not None:
            text = f"[{key!r}]: if this is an instance of {node.name}, it is not a mapping; write .{key}"
            self._find(place, text, node)

    def _find(self, place: cst.CSTNode, text: str, node: NodeClass) -> None:
        self._source.find(place, text, node.library.page, undecided=True)
