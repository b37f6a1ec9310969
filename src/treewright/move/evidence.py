"""How a program uses the fields of its nodes: reads on the class, and calls and assignments that set them."""

import re
from collections import defaultdict

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
        self._set = set[str]()  # names that a call passes a value by, or that a statement assigns to as an attribute
        self._open = set[NodeClass]()  # classes with a constructor call that has positional arguments or **kwargs
        names = {name for fields in self._fields.values() for name in fields}
        for source in program.sources.values():
            for part in every_part(source.module):
                match part:
                    case cst.Call():
                        self._call(source, part)
                    case cst.Attribute() if part.attr.value in names:
                        self._read(source, part)
                    case cst.AssignTarget() | cst.AnnAssign() | cst.AugAssign() | cst.For():
                        for each in every_part(part.target):
                            if isinstance(each, cst.Attribute):
                                self._assign(source, each)
                    case _:
                        pass

    def _call(self, source: Source, call: cst.Call) -> None:
        self._set.update(arg.keyword.value for arg in call.args if arg.keyword is not None)
        texts = (arg.value for arg in call.args[1:2] if isinstance(arg.value, cst.SimpleString))
        self._set.update(str(text.evaluated_value) for text in texts)  # setattr(node, "name", value)
        if name_of(call.func) == "__new__" and call.args and self._class(source, call.args[0].value):
            text = f"{source.text_of(call.func)}: {libraries.NEW}"
            source.note(call, text, "treewright", undecided=True)
        node = self._class(source, call.func)
        if node is not None and any(arg.keyword is None for arg in call.args):
            self._open.update(self._program.bases(node))

    def _read(self, source: Source, attribute: cst.Attribute) -> None:
        name, node = attribute.attr.value, self._class(source, attribute.value)
        if node is not None:
            owners = (base for base in self._program.bases(node) if name in self._fields[base])
            self.reads[next(owners, node), name].append((source, attribute))

    def _assign(self, source: Source, target: cst.Attribute) -> None:
        name = target.attr.value
        self._set.add(name)
        for full in self._program.names_of(source, target.value) if name in self._assignable else ():
            node, method = self._assignable[name], _SELF.fullmatch(full)
            is_init = method is not None and method[2] in {"__init__", "__post_init__"}
            if not is_init and (method is None or self._program.nodes_named([method[1]])):
                text = f"{source.text_of(target)} = ...: nodes are frozen. Use replace, if this is an instance of"
                source.note(target, f"{text} {node.name}", node.origin)

    def _class(self, source: Source, node: cst.CSTNode) -> NodeClass | None:
        """The node class that an expression names."""
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
