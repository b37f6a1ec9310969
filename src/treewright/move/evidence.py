"""How a program uses the fields of its nodes: reads on the class, and calls and assignments that set them."""

import re
from collections import defaultdict
from collections.abc import Iterator

import libcst as cst

from treewright.move import libraries
from treewright.move.program import NodeClass, Program
from treewright.move.source import Source, argument, arguments_of, every_part, name_of

# `cls` in a method is the class, and `self` an instance of it.
_CLASS = re.compile(r"\.\w+\.<locals>\.(cls|self\.__class__)$")
_SELF = re.compile(r"(.*)\.(\w+)\.<locals>\.self")


class Evidence:
    """The reads, calls and assignments in all files of a program that concern fields of nodes.

    Attributes:
        reads: By node class and field, the places that read the field on the class.
        tested: The names in `hasattr(class, name)`, with the class and with each of its bases.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._fields = {
            node: {name_of(line.target) for line in program.fields(node)} for node in program.nodes.values()
        }
        self._assignable = {
            name: node for node, names in self._fields.items() if _is_assignable(node) for name in names
        }
        self.reads: dict[tuple[NodeClass, str], list[tuple[Source, cst.CSTNode]]] = defaultdict(list)
        self.tested: set[tuple[NodeClass, str]] = set()
        self._set = set[str]()  # names that a call passes a value by, or that a statement assigns to as an attribute
        self._open = set[NodeClass]()  # classes with a constructor call that has positional arguments or **kwargs
        self._names = {name for fields in self._fields.values() for name in fields}
        for source in program.sources.values():
            for part in every_part(source.module):
                match part:
                    case cst.Call():
                        self._call(source, part)
                    case cst.Attribute():
                        self._read(source, part, part.value, part.attr.value)
                    case cst.AssignTarget() | cst.AnnAssign() | cst.AugAssign() | cst.For():
                        for each in every_part(part.target):
                            if isinstance(each, cst.Attribute):
                                self._assign(source, each)
                    case _:
                        pass

    def _call(self, source: Source, call: cst.Call) -> None:
        self._set.update(arg.keyword.value for arg in call.args if arg.keyword is not None)
        function = name_of(call.func)
        texts = [arg.value for arg in call.args[1:2] if isinstance(arg.value, cst.SimpleString)]
        for name in (str(text.evaluated_value) for text in texts):
            if function in {"getattr", "hasattr"}:
                self._read(source, call, call.args[0].value, name)
            else:
                self._set.add(name)  # setattr(node, "name", value)
            tested = self._class(source, call.args[0].value) if function == "hasattr" else None
            self.tested.update((base, name) for base in (self._program.bases(tested) if tested else ()))
        if function == "vars" and len(call.args) == 1:
            self._read(source, call, call.args[0].value, "__dict__")
        if function == "__new__" and call.args and self._class(source, call.args[0].value):
            text = f"{source.text_of(call.func)}: {libraries.NEW}"
            source.note(call, text, "treewright", undecided=True)
        node = self._class(source, call.func)
        if node is not None and any(arg.keyword is None for arg in call.args):
            self._open.update(self._program.bases(node))

    def _read(self, source: Source, place: cst.CSTNode, value: cst.CSTNode, name: str) -> None:
        if name == "__dict__" and any(self._program.nodes_named([each]) for each, _ in self._methods(source, value)):
            source.note(place, f"{source.text_of(place)}: {libraries.DICT}", "treewright", undecided=True)
        node = self._class(source, value) if name in self._names else None
        if node is not None:
            owners = (base for base in self._program.bases(node) if name in self._fields[base])
            self.reads[next(owners, node), name].append((source, place))

    def _assign(self, source: Source, target: cst.Attribute) -> None:
        name = target.attr.value
        self._set.add(name)
        for class_, method in self._methods(source, target.value) if name in self._assignable else ():
            is_init = method in {"__init__", "__post_init__"}
            if not is_init and (not class_ or self._program.nodes_named([class_])):
                node = self._assignable[name]
                text = f"{source.text_of(target)} = ...: nodes are frozen. Use replace, if this is an instance of"
                source.note(target, f"{text} {node.name}", node.origin)

    def _methods(self, source: Source, node: cst.CSTNode) -> Iterator[tuple[str, str]]:
        """For each meaning of an expression, the class and the method whose `self` it is; empty if none."""
        for full in self._program.names_of(source, node):
            method = _SELF.fullmatch(full)
            yield (method[1], method[2]) if method else ("", "")

    def _class(self, source: Source, node: cst.CSTNode) -> NodeClass | None:
        """The node class that an expression names."""
        if isinstance(node, cst.Call) and name_of(node.func) == "type" and len(node.args) == 1:
            node = cst.Attribute(node.args[0].value, cst.Name("__class__"))
        nodes = self._program.nodes_named({_CLASS.sub("", name) for name in self._program.names_of(source, node)})
        return nodes[0] if len(nodes) == 1 else None

    def obstacle(self, node: NodeClass, name: str) -> str | None:
        """Why not all instances have the default of a field."""
        if name in self._set or self._program.is_set_elsewhere(name):
            return "the program also passes or assigns a value by this name"
        return "a constructor call has positional arguments or **kwargs" if node in self._open else None


def _is_assignable(node: NodeClass) -> bool:
    """Whether instances of a class allow assignments until it moves: chex classes that are not frozen."""
    return node.rule.keyword_only is not None and name_of(argument(arguments_of(node.by), "frozen")) != "True"
