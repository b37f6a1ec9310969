"""Class statements and the fields in them, rewritten."""

import libcst as cst

from treewright.move import libraries
from treewright.move.calls import keyword, name_of, separated, with_comments
from treewright.move.classes import (
    Field,
    NodeClass,
    argument,
    arguments_of,
    dataclass_of,
    function_of,
    option,
    registered,
)
from treewright.move.libraries import Base, Decorates
from treewright.move.source import first_name, items_of, keyword_of, unsubscripted


def class_rewritten(node: NodeClass, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The statement of a class, by decorator or by base; `replaced` gets the ids of the names that are gone."""
    if isinstance(node.rule, Base):
        return updated if node.library is libraries.OURS else _based(node, node.rule, updated, replaced)
    if node.library is libraries.OURS or node.by is None:
        return updated
    return _decorated(node, node.rule, updated, replaced)


def _decorated(node: NodeClass, rule: Decorates, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The class with `@pytree_dataclass` in place of the decorators that made it a pytree."""
    plain = dataclass_of(node.source, node.definition) if rule.registers else None
    by = node.by if plain is None else plain
    given = arguments_of(by)
    arguments = [arg for arg in given if keyword_of(arg) not in {None, *libraries.WITHOUT_USE, rule.keyword_only}]
    if rule.keyword_only is not None and option(given, rule.keyword_only) != "False":
        arguments = [*(arg for arg in arguments if keyword_of(arg) != "kw_only"), keyword("kw_only", cst.Name("True"))]
    decorators: list[cst.Decorator] = []
    for before, after in zip(node.definition.decorators, updated.decorators, strict=True):
        if before.decorator is by:
            made = name_of("treewright:pytree_dataclass")
            if arguments:
                call = after.decorator if isinstance(after.decorator, cst.Call) else cst.Call(made)
                made = with_comments(call.with_changes(func=made, args=separated(arguments, given)), call)
            decorators.append(after.with_changes(decorator=made))
        elif before.decorator is not node.by:
            decorators.append(after)
    for gone in [each for each in (by, node.by) if isinstance(each, cst.BaseExpression)]:
        _note(replaced, function_of(gone), registered(node.source, gone))
    return updated.with_changes(decorators=decorators)


def _based(node: NodeClass, rule: Base, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The class with `Module` as its base, and the options of a `@dataclass` in the class statement."""
    definition, bases = node.definition, list(updated.bases)
    if isinstance(node.by, cst.Arg):
        place, module = definition.bases.index(node.by), name_of("treewright:Module")
        _note(replaced, node.by.value)
        value = bases[place].value
        value = value.with_changes(value=module) if isinstance(value, cst.Subscript) else module
        bases[place] = bases[place].with_changes(value=value)
    keywords = [each for each in updated.keywords if keyword_of(each) not in rule.drops]
    decorators, plain = list(updated.decorators), dataclass_of(node.source, definition)
    if plain is not None:
        _note(replaced, function_of(plain))
        keywords += [each for each in arguments_of(plain) if keyword_of(each) not in libraries.WITHOUT_USE]
        kept = zip(definition.decorators, updated.decorators, strict=True)
        decorators = [after for before, after in kept if before.decorator is not plain]
    if len(keywords) != len(updated.keywords):
        every = separated([*bases, *keywords], [*definition.bases, *definition.keywords])
        bases, keywords = every[: len(bases)], every[len(bases) :]
    return updated.with_changes(bases=bases, keywords=keywords, decorators=decorators)


def field_rewritten(node: NodeClass, field: Field, updated: cst.AnnAssign, replaced: set[int]) -> cst.AnnAssign:
    """The line that declares a field."""
    before = field.line.annotation.annotation
    if field.annotation is not before:
        _note(replaced, before)
        (unmarked,) = items_of(updated.annotation.annotation)
        updated = updated.with_changes(annotation=updated.annotation.with_changes(annotation=unmarked))
    value = _value(node, field, updated.value, replaced)
    if value is updated.value:
        return updated
    equal = updated.equal if isinstance(updated.equal, cst.AssignEqual) else cst.AssignEqual()
    return updated.with_changes(value=value, equal=equal)


def _value(
    node: NodeClass, field: Field, updated: cst.BaseExpression | None, replaced: set[int]
) -> cst.BaseExpression | None:
    """What stands behind the `=` of a field: a specifier of ours, or what was there."""
    before, static = field.line.value, field.kind == "static"
    made = name_of("treewright:static" if static else "treewright:field")
    call, given, arguments = cst.Call(made), list[cst.Arg](), list[cst.Arg]()
    if field.specifier and isinstance(before, cst.Call) and isinstance(updated, cst.Call):
        names = node.source.names_of(before.func)
        if names & libraries.OUR_SPECIFIERS or ("dataclasses.field" in names and not static):
            return updated
        _note(replaced, before.func)
        call, given = updated, list(before.args)
        kept = [after for arg, after in zip(before.args, updated.args, strict=True) if arg not in field.drops]
        arguments = [arg for arg in kept if not (static and keyword_of(arg) == "compare")]
    elif not static:
        return updated
    elif updated is not None:
        arguments = [keyword("default", updated)]
    if (
        static
        and node.source.has_one_of(field.annotation, libraries.CAN_CHANGE)
        and not argument(arguments, "converter")
    ):
        arguments.append(keyword("converter", name_of("treewright:freeze")))
    return with_comments(call.with_changes(func=made, args=separated(arguments, given)), call)


def _note(replaced: set[int], *expressions: cst.BaseExpression | None) -> None:
    replaced.update(id(first_name(unsubscripted(each))) for each in expressions if each is not None)
