"""How a program uses the fields of its nodes: reads on the class, and the values assigned to the fields."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any, Literal

import libcst as cst

from treewright.move import libraries
from treewright.move.program import NodeClass, Program, Source, field_lines, function_of, is_field, name_of

ValueKind = Literal["array", "node", "container", "function", "unknown"]

_SPACES = (
    cst.BaseParenthesizableWhitespace,
    cst.TrailingWhitespace,
    cst.EmptyLine,
    cst.Comma,
    cst.AssignEqual,
    cst.Dot,
)


class Evidence:
    """The reads, values and calls in all files of a program that concern fields of nodes.

    Attributes:
        is_filtered: Whether the program uses a filtered transformation of equinox.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._above: dict[cst.ClassDef, list[cst.ClassDef]] = {
            node.definition: [above.definition for above, _ in program.above(node.source, node.definition)]
            for node in program.nodes.values()
        }
        self._fields: dict[cst.ClassDef, list[str]] = {
            node.definition: [
                name_of(line.target) for line in field_lines(node.definition) if is_field(line, node, program)
            ]
            for node in program.nodes.values()
        }
        self._field_names = {name for fields in self._fields.values() for name in fields}
        self._class_names = {node.name for node in program.nodes.values()}
        self._class_names |= {each.name for source in program.sources.values() for each in source.imports}
        self._reads = defaultdict[tuple[cst.ClassDef, str], list[tuple[Source, cst.CSTNode]]](list)
        self._given = defaultdict[tuple[cst.ClassDef, str], list[tuple[Source, cst.BaseExpression]]](list)
        self._set = set[str]()  # names that a call passes a value by, or that a statement assigns to as an attribute
        self._reached = set[str]()  # attributes in functions that are passed to tree_at
        self._open = set[cst.ClassDef]()  # classes with a constructor call whose arguments are not all in sight
        self._related = defaultdict[cst.ClassDef, set[cst.ClassDef]](set)  # a class with its bases and subclasses
        for each in self._above:
            for base in self._bases(each):
                self._related[base].add(each)
                self._related[each].add(base)
        self.is_filtered: bool = False
        for source in program.sources.values():
            self._walk(source, source.module, None)

    # Collection

    def _walk(self, source: Source, node: Any, cls: cst.ClassDef | None) -> None:
        if isinstance(node, cst.ClassDef):
            cls = node
        elif isinstance(node, cst.Call):
            self._call(source, node, cls)
        elif isinstance(node, cst.Attribute) and node.attr.value in self._field_names:
            for owner in self._classes_of(source, node.value, cls):
                self._reads[self._owner(owner, node.attr.value), node.attr.value].append((source, node))
        elif isinstance(node, cst.AssignTarget | cst.AnnAssign | cst.AugAssign):
            self._assignment(source, node, cls)
        for part in _parts(node):
            if isinstance(node, cst.Assign) and isinstance(part, cst.AssignTarget):
                self._assignment(source, part, cls, node.value)
            self._walk(source, part, cls)

    def _assignment(self, source: Source, node: Any, cls: Any, value: cst.BaseExpression | None = None) -> None:
        if not isinstance(node.target, cst.Attribute):
            name = name_of(node.target)
            if value is not None and name in self._fields.get(cls, ()):  # a parameter with a new value
                self._given[cls, name].append((source, value))
            return
        name = node.target.attr.value
        if cls in self._above and name_of(node.target.value) == "self":
            value = value or getattr(node, "value", None)
            self._given[cls, name] += [(source, value)] if value is not None else []
        if isinstance(node.target.value, cst.Name | cst.Attribute):
            self._set.add(name)

    def _call(self, source: Source, call: cst.Call, cls: cst.ClassDef | None) -> None:
        self._set.update(arg.keyword.value for arg in call.args if arg.keyword is not None)
        self._set.update(text for arg in call.args[1:2] if (text := _text_of(arg.value)))  # setattr(node, "name", ...)
        name = name_of(call.func)
        if name == "__new__" and call.args and any(self._classes_of(source, call.args[0].value, cls)):
            source.note(call, f"{_code(source, call)}: {libraries.NEW}", "treewright", undecided=True)
        if name.startswith("filter_") or name in {"tree_at", "inference_mode", "tree_inference"}:
            names = self._program.names_of(source, call.func)
            self.is_filtered |= any(full.startswith("equinox.filter_") for full in names)
            if names & {"equinox.nn.inference_mode", "equinox.tree_inference"}:
                self._reached.add("inference")
            if "equinox.tree_at" in names and call.args:
                self._reached |= set(_attributes(call.args[0].value))
        for owner in self._classes_of(source, call.func, cls):
            parameters = self._parameters(owner)
            for place, arg in enumerate(call.args):
                keyword = arg.keyword.value if arg.keyword is not None else None
                if arg.star or (keyword is None and place >= len(parameters)):
                    self._open.add(owner)
                else:
                    self._given[owner, keyword or parameters[place]].append((source, arg.value))
                    self._set.add(keyword or parameters[place])

    def _classes_of(self, source: Source, node: cst.CSTNode, cls: cst.ClassDef | None) -> list[cst.ClassDef]:
        """The node class that an expression stands for."""
        own = isinstance(node, cst.Name) and node.value in {"cls", "__class__"}
        if isinstance(node, cst.Call | cst.Attribute) and name_of(function_of(node)) in {"type", "__class__"}:
            own = source.module.code_for_node(node) in {"type(self)", "self.__class__"}
        if own:
            return [cls] if cls in self._above else []
        if name_of(node) not in self._class_names:
            return []
        classes = self._program.classes_of(source, node)
        return [each for each in classes if each in self._above] if len(classes) == 1 else []

    def _owner(self, cls: cst.ClassDef, name: str) -> cst.ClassDef:
        """The class that declares a field, among a class and its bases."""
        if name in self._fields[cls]:
            return cls
        return next((owner for base in self._above[cls] if name in self._fields[owner := self._owner(base, name)]), cls)

    def _parameters(self, cls: cst.ClassDef) -> list[str]:
        """The parameters of a constructor, by position: of a method `__init__`, or the fields."""
        for part in cls.body.body:
            if isinstance(part, cst.FunctionDef) and part.name.value == "__init__":
                return [param.name.value for param in part.params.params[1:]]
        inherited = [name for base in self._above[cls] for name in self._parameters(base)]
        return list(dict.fromkeys([*inherited, *self._fields[cls]]))

    def inherited(self, node: NodeClass) -> set[str]:
        """The names of the fields that a node class inherits."""
        return {name for each in self._bases(node.definition) - {node.definition} for name in self._fields[each]}

    def _bases(self, cls: cst.ClassDef) -> set[cst.ClassDef]:
        return {cls}.union(*map(self._bases, self._above[cls]))

    # Conclusions

    def reads(self, node: NodeClass, name: str) -> list[tuple[Source, cst.CSTNode]]:
        """The places that read a field on its class."""
        return self._reads.get((node.definition, name), [])

    def obstacle(self, node: NodeClass, name: str, default: cst.BaseExpression | None) -> str | None:
        """Why a field can't become a constant of the class."""
        if default is None or self.kind_of(node.source, default) in {"function", "unknown"}:
            return "its default is not a plain value"
        if name in self._set or self._program.is_set_elsewhere(name):
            return "the program also passes or assigns a value by this name"
        is_open = self._related[node.definition] & self._open
        return "a constructor call has arguments that can't be followed, as *args or **kwargs" if is_open else None

    def is_reached(self, name: str) -> bool:
        """Whether `tree_at` or `inference_mode` changes this field, which only leaves allow."""
        return name in self._reached

    def kinds_given(self, node: NodeClass, name: str) -> set[ValueKind | None]:
        """The kinds of the values of a field, in assignments and constructor calls."""
        every = [self._given.get((cls, name), ()) for cls in self._related[node.definition]]
        return {self.kind_of(source, value) for values in every for source, value in values}

    def kind_of(self, source: Source, value: cst.CSTNode, depth: int = 0) -> ValueKind | None:
        """The kind of an expression's value; None for a number, string or the like."""
        if isinstance(value, cst.Lambda):
            return "function"
        if isinstance(value, cst.List | cst.Dict | cst.Set | cst.ListComp | cst.DictComp | cst.SetComp):
            return "container"
        if isinstance(value, cst.Call):
            return self._kind_of_call(source, value)
        if isinstance(value, cst.Tuple | cst.IfExp | cst.BooleanOperation | cst.UnaryOperation | cst.BinaryOperation):
            kinds = [self.kind_of(source, part, depth) for part in _parts(value)]
            order: tuple[ValueKind, ...] = ("array", "node", "container", "function", "unknown")
            return next((kind for kind in order if kind in kinds), None)
        if isinstance(value, cst.Element | cst.Expr):
            return self.kind_of(source, value.value, depth)
        if not isinstance(value, cst.Name | cst.Attribute):
            return "unknown" if isinstance(value, cst.Subscript) else None
        if isinstance(value, cst.Name) and value.value in {"None", "True", "False"}:
            return None
        names = self._program.names_of(source, value)
        if any(name in self._program.functions or name.startswith(("jax.", "numpy.")) for name in names):
            return "function"
        for name in names & self._program.values.keys() if depth < 5 else ():
            return self.kind_of(*self._program.values[name], depth + 1)
        return "unknown" if isinstance(value, cst.Attribute) else None  # a parameter: the calls show its values

    def _kind_of_call(self, source: Source, call: cst.Call) -> ValueKind | None:
        names = self._program.names_of(source, call.func)
        if names & (libraries.CAN_CHANGE | libraries.FLATTENING) or any(name.startswith("numpy.") for name in names):
            return "container"
        if names & libraries.PLAIN_CALLS:
            return None
        if names & libraries.FUNCTION_CALLS:
            return "function"
        if any(name.startswith(("equinox.", *libraries.PARTIALS)) for name in names):
            return "node"
        if any(name.startswith(("jax.numpy.", "jax.random.", "jax.lax.", "jax.device_put")) for name in names):
            return "array"
        return "node" if any(each in self._above for each in self._program.classes_of(source, call.func)) else "unknown"

    def kind_returned(self, source: Source, function: cst.BaseExpression) -> ValueKind | None:
        """The kind of a function's result, as far as its `return` statements show."""
        if isinstance(function, cst.Lambda):
            return self.kind_of(source, function.body)
        names = self._program.names_of(source, function)
        if names & libraries.CAN_CHANGE or any(name.startswith("numpy.") for name in names):
            return "container"
        for name in names & self._program.functions.keys():
            other, definition = self._program.functions[name]
            every = [each for each in _every(definition.body) if isinstance(each, cst.Return) and each.value]
            kinds = {self.kind_of(other, each.value) for each in every if each.value is not None}
            order: tuple[ValueKind, ...] = ("array", "node", "container")
            return next((kind for kind in order if kind in kinds), None)
        return "array" if any(name.startswith("jax.numpy.") for name in names) else None


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


def _attributes(function: cst.BaseExpression) -> Iterator[str]:
    return (each.attr.value for each in _every(function) if isinstance(each, cst.Attribute))


def _text_of(value: cst.BaseExpression) -> str | None:
    return str(value.evaluated_value) if isinstance(value, cst.SimpleString) else None


def _code(source: Source, node: Any) -> str:
    return source.module.code_for_node(function_of(node))
