"""What a moved program means that it did not mean before, and what no rule can change: by place, with what to do."""

from collections.abc import Iterator

import libcst as cst
from libcst import matchers

from treewright.move import libraries
from treewright.move.libraries import Base, Decorator
from treewright.move.program import Field, NodeClass, Program, Source, argument, arguments_of

_FROZEN = "nodes are frozen. Use replace, or edit for many"
_TARGETS = matchers.AssignTarget() | matchers.AugAssign()
_READ_BY_KEY = matchers.Subscript(slice=[matchers.SubscriptElement(matchers.Index(matchers.SimpleString()))])
_CONSTRUCTORS = frozenset({"__init__", "__post_init__"})


def look(program: Program) -> None:
    """Note all such places of a program."""
    for node in program.nodes.values():
        if node.library is not libraries.OURS:
            _look_at_class(node, program)
            _look_at_methods(node)
            for name, field in node.fields.items():
                for text, undecided in _words(node, field, program):
                    place = f"{node.name}.{name} {text}"
                    node.source.note(field.line, place, node.library, undecided=undecided)
    for source in program.sources.values():
        for module in source.stars:
            rules = [library for name, (_, library) in program.rules.items() if name.rpartition(".")[0] == module]
            if rules:
                text = f"from {module} import *: what this brings can't be followed; import it by name"
                source.note(source.module.body[0], text, rules[0], undecided=True)
        _look_at_subclasses(source, program)
        _look_at_uses(source, program)


def _look_at_class(node: NodeClass, program: Program) -> None:
    methods = {part.name.value: part for part in node.definition.body.body if isinstance(part, cst.FunctionDef)}
    if isinstance(node.rule, Decorator) and "__post_init__" in methods:
        text = (
            f"{node.name}.__post_init__ runs where an instance is made, and no longer where JAX puts one together, "
            f"under vmap or in tree.map"
        )
        node.source.note(methods["__post_init__"], text, node.library)
    if isinstance(node.rule, Base) and not node.rule.declared and "__init__" in methods:
        above = [each for each in program.above(node.source, node.definition) if each is not None]
        declared = {name for each in (node, *above) for name in each.fields}
        for place in _assigned(methods["__init__"]):
            if place.attr.value not in declared:
                text = (
                    f"{node.name}.{place.attr.value} is not declared: annotate it in the class body, with static() if"
                )
                node.source.note(place, f"{text} it was", node.library, undecided=True)


def _assigned(method: cst.CSTNode) -> Iterator[cst.Attribute]:
    """The attributes of `self` that a method assigns to."""
    targets = matchers.AssignTarget() | matchers.AnnAssign() | matchers.AugAssign()
    of_self = matchers.Attribute(value=matchers.Name("self"))
    for statement in matchers.findall(method, targets):
        target = getattr(statement, "target", statement)
        found = [target] if matchers.matches(target, of_self) else []
        elements = matchers.findall(target, matchers.Element(value=of_self)) if not found else []
        found += [each.value for each in elements if isinstance(each, cst.Element)]
        yield from (each for each in found if isinstance(each, cst.Attribute))


def _words(node: NodeClass, field: Field, program: Program) -> Iterator[tuple[str, bool]]:
    """What to say about a field, and whether it has to be changed."""
    source, annotation = node.source, field.annotation
    if field.kind == "unclear":
        yield "is static or not as a variable says: write static() or field()", True
    if isinstance(annotation, cst.SimpleString) and "Static[" in annotation.value:
        yield "is marked in a text: write the type alone, and static() behind the =", True
    if field.inferred:
        yield "is static now, since its type is not an array: jit compiles once for each value", False
    if field.kind == "static":
        if program.has_one_of(source, annotation, libraries.ARRAYS):
            yield (
                "is static and holds an array, which is refused: make it a child, or buffer() if it must not train",
                True,
            )
        if program.freezes(source, field) and argument(arguments_of(field.line.value), "converter") is None:
            yield "is static and freezes what it is given: a list becomes a tuple, a dict a FrozenMapping", False
        if field.specifier and argument(arguments_of(field.line.value), "compare") is not None:
            yield "is static, and statics always take part in ==: compare= is dropped", False


def _look_at_subclasses(source: Source, program: Program) -> None:
    for definition in matchers.findall(source.module, matchers.ClassDef()):
        if isinstance(definition, cst.ClassDef) and definition not in program.nodes:
            for above in program.above(source, definition):
                name = definition.name.value
                if above is None:
                    text = f"{name} was left: its base may be a class that moves, or another one of this name"
                    source.note(definition, text, libraries.OURS, undecided=True)
                elif above.library is not libraries.OURS:
                    text = f"{name} was a leaf, and extends a node, {above.name}: decorate it with @pytree_dataclass"
                    source.note(definition, text, above.library, undecided=True)


def _look_at_methods(node: NodeClass) -> None:
    """Note where methods of a node change it in place."""
    methods = (part for part in node.definition.body.body if isinstance(part, cst.FunctionDef))
    for method in (each for each in methods if each.name.value not in _CONSTRUCTORS):
        places: list[cst.CSTNode] = [place for place in _assigned(method) if place.attr.value in node.fields]
        calls = matchers.findall(method, matchers.Call(func=matchers.Attribute(attr=matchers.Name("__setattr__"))))
        for place in [*places, *calls]:
            node.source.note(place, f"changes {node.name} in place: {_FROZEN}", node.library, undecided=True)


def _look_at_uses(source: Source, program: Program) -> None:
    """Note what may change a node in place or read it as a mapping, by the names of fields."""
    nodes = [node for node in program.nodes.values() if node.library is not libraries.OURS]
    mutable = {name: node for node in nodes if node.mutable for name in node.fields}
    mappings = {name: node for node in nodes if node.library.name == "chex" for name in node.fields}
    found: list[tuple[cst.CSTNode, NodeClass | None, str]] = []
    for target in matchers.findall(source.module, _TARGETS) if mutable else ():
        place = getattr(target, "target", target)
        if isinstance(place, cst.Attribute) and source.code(place.value) != "self":
            name = place.attr.value
            found.append((place, mutable.get(name), f"assigns .{name}. If that is a field of {{}}: {_FROZEN}"))
    for read in matchers.findall(source.module, _READ_BY_KEY) if mappings else ():
        name = source.code(read).rpartition("[")[2].strip("\"']")
        found.append((read, mappings.get(name), f"reads [{name!r}]. If that is a field of {{}}: write .{name}"))
    for call in matchers.findall(source.module, matchers.Call()) if mappings else ():
        name = source.code(call.func) if isinstance(call, cst.Call) else ""
        owner = next((node for node in mappings.values() if node.name == name.rpartition(".")[2]), None)
        stars = [arg for arg in arguments_of(call) if arg.star == "**" and isinstance(arg.value, cst.Name)]
        found += [(arg, owner, "unpacks a mapping into {}. If it is a node: name the fields") for arg in stars]
    for place, owner, text in found:
        if owner is not None:
            source.note(place, text.format(owner.name), owner.library, undecided=True)
