"""How a program uses the fields of its nodes: reads on the class, and the values assigned to the fields."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import libcst as cst

from treewright.move import libraries
from treewright.move.libraries import ValueKind
from treewright.move.program import NodeClass, Program, Source, field_lines, is_field, items_of, name_of, unsubscripted

_SPACES = cst.BaseParenthesizableWhitespace | cst.TrailingWhitespace | cst.EmptyLine
_DISPLAYS = cst.List | cst.Dict | cst.Set | cst.ListComp | cst.DictComp | cst.SetComp
_COMPOUND = (
    *(cst.Tuple, cst.IfExp, cst.BooleanOperation, cst.UnaryOperation, cst.BinaryOperation),
    *(cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp, cst.BaseElement, cst.BaseDictElement),
)
# `cls` in a method is the class, and `self.x` an attribute of it.
_OF_CLASS = re.compile(r"\.\w+\.<locals>\.(cls\b|self\.__class__\b|self(?=\.))")


class Evidence:
    """The reads, values and calls in all files of a program that concern fields of nodes.

    Attributes:
        reads: By node class and field, the places that read the field on the class, also through a variable.
        reached: The names of fields that `tree_at` or `inference_mode` changes, which only leaves allow.
        is_filtered: Whether the program uses a filtered transformation of equinox.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        nodes = program.nodes.values()
        self._above = {node: [above for above, _ in program.above(node.source, node.definition)] for node in nodes}
        self._fields = {
            node: [name_of(line.target) for line in field_lines(node.definition) if is_field(line, node, program)]
            for node in nodes
        }
        self._lines = {line for node in nodes for line in field_lines(node.definition)}
        self._related = defaultdict[NodeClass, set[NodeClass]](set)  # a class with its bases and subclasses
        for each in nodes:
            for base in self._bases(each):
                self._related[base].add(each)
                self._related[each].add(base)
        # By full name: the values of variables, parameters, and attributes of classes and their instances.
        self._values = defaultdict[str, list[tuple[Source, cst.CSTNode]]](list)
        self.reads: dict[tuple[NodeClass, str], list[tuple[Source, cst.CSTNode]]] = defaultdict(list)
        self._set = set[str]()  # names that a call passes a value by, or that a statement assigns to as an attribute
        self.reached: set[str] = set()
        self._open = set[NodeClass]()  # classes with a constructor call whose arguments are not all in sight
        self.is_filtered: bool = False
        for name, (source, function) in program.functions.items():
            for param in _params(function):
                values = [param] if function.name.value != "__init__" else [param.default] if param.default else []
                self._values[f"{name}.<locals>.{param.name.value}"] += [(source, value) for value in values]
        code = [(source, node) for source in program.sources.values() for node in _every(source.module)]
        for source, part in code:
            self._collect(source, part)
        names = {name for fields in self._fields.values() for name in fields}
        for source, part in code:
            if isinstance(part, cst.Attribute) and part.attr.value in names:
                for owner in self._kinds_of(source, part.value, set()):
                    if isinstance(owner, NodeClass):
                        self.reads[self._owner(owner, part.attr.value), part.attr.value].append((source, part))

    # Collection

    def _collect(self, source: Source, node: cst.CSTNode) -> None:
        match node:
            case cst.Call():
                self._call(source, node)
            case cst.Assign():
                for each in node.targets:
                    self._assignment(source, each.target, node.value)
            case cst.For() | cst.CompFor():
                self._assignment(source, node.target, node.iter)
            case cst.AnnAssign() | cst.AugAssign() if node not in self._lines:
                self._assignment(source, node.target, node.value)
            case _:
                pass

    def _assignment(self, source: Source, target: cst.BaseExpression, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                self._assignment(source, element.value, value)
        if isinstance(target, cst.Attribute):
            self._set.add(target.attr.value)
        if isinstance(target, cst.Name | cst.Attribute) and value is not None:
            for name in self._names(source, target):
                self._values[name].append((source, value))

    def _call(self, source: Source, call: cst.Call) -> None:
        self._set.update(arg.keyword.value for arg in call.args if arg.keyword is not None)
        texts = (arg.value for arg in call.args[1:2] if isinstance(arg.value, cst.SimpleString))
        self._set.update(str(text.evaluated_value) for text in texts)  # setattr(node, "name", value)
        names = self._names(source, call.func)
        if name_of(call.func) == "__new__" and call.args and self._nodes(source, call.args[0].value):
            text = f"{source.module.code_for_node(call.func)}: {libraries.NEW}"
            source.note(call, text, "treewright", undecided=True)
        self.is_filtered |= any(name.startswith("equinox.filter_") for name in names)
        if names & {"equinox.nn.inference_mode", "equinox.tree_inference"}:
            self.reached.add("inference")
        if "equinox.tree_at" in names and call.args:
            attributes = (each for each in _every(call.args[0].value) if isinstance(each, cst.Attribute))
            self.reached |= {each.attr.value for each in attributes}
        for name in names & self._program.functions.keys():
            self._pass(source, call, [f"{name}.<locals>"], _positional(self._program.functions[name][1]))
        for node in self._nodes(source, call.func):
            inits = [f"{each.full_name}.__init__.<locals>" for each in self._bases(node)]
            passed = self._pass(source, call, [node.full_name, *inits], self._parameters(node))
            self._set.update(passed)
            if len(passed) < len(call.args):
                self._open.add(node)

    def _pass(self, source: Source, call: cst.Call, prefixes: Sequence[str], parameters: Sequence[str]) -> list[str]:
        """The parameters that the arguments of a call are values of, as far as they can be followed."""
        passed = list[str]()
        for place, arg in enumerate(call.args):
            if not arg.star and (arg.keyword is not None or place < len(parameters)):
                passed.append(arg.keyword.value if arg.keyword is not None else parameters[place])
                for prefix in prefixes:
                    self._values[f"{prefix}.{passed[-1]}"].append((source, arg.value))
        return passed

    def _names(self, source: Source, node: cst.CSTNode) -> set[str]:
        return {_OF_CLASS.sub("", name) for name in self._program.names_of(source, node)}

    def _nodes(self, source: Source, node: cst.CSTNode) -> list[NodeClass]:
        """The node class that an expression names."""
        nodes = self._program.nodes_named(self._names(source, node))
        return nodes if len(nodes) == 1 else []

    def _owner(self, node: NodeClass, name: str) -> NodeClass:
        """The class that declares a field, among a class and its bases."""
        if name in self._fields[node]:
            return node
        return next(
            (owner for base in self._above[node] if name in self._fields[owner := self._owner(base, name)]), node
        )

    def _parameters(self, node: NodeClass) -> list[str]:
        """The parameters of a constructor, by position: of a method `__init__`, or the fields."""
        for part in node.definition.body.body:
            if isinstance(part, cst.FunctionDef) and part.name.value == "__init__":
                return _positional(part)
        inherited = [name for base in self._above[node] for name in self._parameters(base)]
        return list(dict.fromkeys([*inherited, *self._fields[node]]))

    def inherited(self, node: NodeClass) -> set[str]:
        """The names of the fields that a node class inherits."""
        return {name for each in self._bases(node) - {node} for name in self._fields[each]}

    def _bases(self, node: NodeClass) -> set[NodeClass]:
        return {node}.union(*map(self._bases, self._above[node]))

    # Conclusions

    def obstacle(self, node: NodeClass, name: str, default: cst.BaseExpression | None) -> str | None:
        """Why a field can't become a constant of the class."""
        if default is None or self.kinds_of(node.source, default) & {"function", "unknown"}:
            return "its default is not a plain value"
        if name in self._set or self._program.is_set_elsewhere(name):
            return "the program also passes or assigns a value by this name"
        is_open = self._related[node] & self._open
        return "a constructor call has arguments that can't be followed, as *args or **kwargs" if is_open else None

    def kinds_given(self, node: NodeClass, name: str) -> set[ValueKind]:
        """The kinds of the values of a field, in assignments and constructor calls."""
        every = [self._values[f"{each.full_name}.{name}"] for each in self._related[node]]
        return {kind for values in every for source, value in values for kind in self.kinds_of(source, value)}

    def kinds_of(self, source: Source, value: cst.CSTNode) -> set[ValueKind]:
        """The kinds of an expression's values; none if only callers of a constructor decide, none of them in sight."""
        return {kind for kind in self._kinds_of(source, value, set()) if not isinstance(kind, NodeClass)}

    def _kinds_of(self, source: Source, value: cst.CSTNode, seen: set[str]) -> set[ValueKind | NodeClass]:
        """The kinds of an expression's values, and the node classes among its values."""
        kinds = set[ValueKind | NodeClass]()
        match value:
            case cst.Call():
                return self._kinds_of_call(source, value, seen)
            case cst.Name() | cst.Attribute():
                return self._kinds_of_name(source, value, seen)
            case cst.Subscript():
                kinds = self._kinds_of(source, value.value, seen)
                return (
                    {"plain"}
                    if kinds == {"plain"}
                    else {"unknown", *(each for each in kinds if isinstance(each, NodeClass))}
                )
            case cst.Param():
                annotation = value.annotation.annotation if value.annotation is not None else cst.Name("None")
                is_type = name_of(unsubscripted(annotation)) in {"type", "Type"}
                kinds = {node for each in items_of(annotation) if is_type for node in self._nodes(source, each)}
                default = value.default or cst.Name("None")
                return {"unknown", *kinds, *self._kinds_of(source, default, seen)}
            case cst.Lambda():
                return {"function"}
            case _:
                pass
        if not isinstance(value, _COMPOUND):
            return {"plain"}
        kinds = {"container"} if isinstance(value, _DISPLAYS) else set()
        return kinds.union(*(self._kinds_of(source, part, seen) for part in _parts(value)))

    def _kinds_of_name(
        self, source: Source, value: cst.Name | cst.Attribute, seen: set[str]
    ) -> set[ValueKind | NodeClass]:
        names, classes = self._names(source, value), self._nodes(source, value)
        if classes or (isinstance(value, cst.Name) and value.value in {"None", "True", "False"}):
            return {*classes} or {"plain"}
        if any(name in self._program.functions or name.startswith(("jax.", "numpy.")) for name in names):
            return {"function"}
        known = names & self._values.keys()
        values = [each for name in known - seen for each in self._values[name]]
        seen |= known
        kinds: set[ValueKind | NodeClass] = {kind for each in values for kind in self._kinds_of(*each, seen)}
        is_plain = isinstance(value, cst.Attribute) and value.attr.value in libraries.PLAIN_ATTRIBUTES
        if known:
            return kinds
        return {"plain"} if is_plain else {"unknown"}

    def _kinds_of_call(self, source: Source, call: cst.Call, seen: set[str]) -> set[ValueKind | NodeClass]:
        if isinstance(call.func, cst.Lambda):
            return self._kinds_of(source, call.func.body, seen)
        names = self._names(source, call.func)
        if self._nodes(source, call.func):
            return {"node"}
        if names == {"builtins.type"} and len(call.args) == 1:  # type(self)
            return {*self._nodes(source, cst.Attribute(call.args[0].value, cst.Name("__class__")))} or {"unknown"}
        own = names & self._program.functions.keys()
        if not own:
            calls = libraries.CALLS.items()
            kinds: list[ValueKind] = [kind for name in names for kind, starts in calls if name.startswith(starts)]
            return {kinds[0]} if kinds else {"unknown"}
        results = [result for name in own - seen for result in self._returns(name)]
        seen |= own
        return {kind for result in results for kind in self._kinds_of(*result, seen)}

    def _returns(self, name: str) -> Iterator[tuple[Source, cst.BaseExpression]]:
        """The expressions that a function of the program returns."""
        source, definition = self._program.functions[name]
        for each in _every(definition.body):
            if isinstance(each, cst.Return) and each.value is not None:
                yield source, each.value


def _parts(node: Any) -> Iterator[cst.CSTNode]:
    """The parts of a syntax tree's node that are code: libcst's own visitors also visit each space."""
    for name in node.__dataclass_fields__:
        value = getattr(node, name)
        for each in value if isinstance(value, list | tuple) else (value,):
            if isinstance(each, cst.CSTNode) and not isinstance(each, _SPACES):
                yield each


def _every(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    yield node
    for part in _parts(node):
        yield from _every(part)


def _params(function: cst.FunctionDef) -> list[cst.Param]:
    params = function.params
    return [*params.posonly_params, *params.params, *params.kwonly_params]


def _positional(function: cst.FunctionDef) -> list[str]:
    """The parameters of a function by position, without the first of a method."""
    names = [each.name.value for each in (*function.params.posonly_params, *function.params.params)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names
