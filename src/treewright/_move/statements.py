"""Class statements and the fields in them, rewritten."""

import libcst as cst

from treewright._move import libraries
from treewright._move.annotations import has_one_of, items_of
from treewright._move.calls import keyword, name_of, separated
from treewright._move.classes import (
    Field,
    NodeClass,
    argument,
    arguments_of,
    dataclass_of,
    function_of,
    option,
    registered,
)
from treewright._move.libraries import Base, Decorates
from treewright._move.source import first_name


def class_rewritten(node: NodeClass, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The statement of a class, by decorator or by base; `replaced` gets the ids of the names that are gone."""
    if node.library is libraries.OURS or (isinstance(node.rule, Decorates) and node.by is None):
        return updated
    if isinstance(node.rule, Decorates):
        return _decorated(node, node.rule, updated, replaced)
    return _based(node, node.rule, updated, replaced)


def _decorated(node: NodeClass, rule: Decorates, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The class with `@pytree_dataclass` in place of the decorators that made it a pytree."""
    plain = dataclass_of(node.source, node.definition) if rule.registers else None
    by = node.by if plain is None else plain
    given = arguments_of(by) if isinstance(by, cst.BaseExpression) else ()
    arguments = [arg for arg in given if _name(arg) not in {None, *libraries.WITHOUT_USE, rule.keyword_only}]
    if rule.keyword_only is not None and option(given, rule.keyword_only) != "False":
        arguments = [*(arg for arg in arguments if _name(arg) != "kw_only"), keyword("kw_only", cst.Name("True"))]
    made = name_of("treewright:pytree_dataclass")
    decorators: list[cst.Decorator] = []
    for before, after in zip(node.definition.decorators, updated.decorators, strict=True):
        if before.decorator is by:
            if arguments:
                call = after.decorator if isinstance(after.decorator, cst.Call) else cst.Call(made)
                made = call.with_changes(func=made, args=separated(arguments, given))
            decorators.append(after.with_changes(decorator=made))
        elif before.decorator is not node.by:
            decorators.append(after)
    for gone in [each for each in (by, node.by) if isinstance(each, cst.BaseExpression)]:
        _note(replaced, function_of(gone), registered(node.source, gone))
    return updated.with_changes(decorators=decorators)


def _based(node: NodeClass, rule: Base, updated: cst.ClassDef, replaced: set[int]) -> cst.ClassDef:
    """The class with `Module` as its base, and the options of a `@dataclass` in the class statement."""
    definition, bases = node.definition, list(updated.bases)
    if node.by is not None:
        place = next(place for place, base in enumerate(definition.bases) if base is node.by)
        value, module = bases[place].value, name_of("treewright:Module")
        _note(replaced, definition.bases[place].value)
        value = value.with_changes(value=module) if isinstance(value, cst.Subscript) else module
        bases[place] = bases[place].with_changes(value=value)
    keywords = [each for each in updated.keywords if _name(each) not in rule.drops]
    decorators, plain = list(updated.decorators), dataclass_of(node.source, definition)
    if plain is not None:
        _note(replaced, function_of(plain))
        keywords += [each for each in arguments_of(plain) if _name(each) not in libraries.WITHOUT_USE]
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
    is_foreign = isinstance(before, cst.Call) and not node.source.names_of(before.func) & libraries.OUR_SPECIFIERS
    if field.specifier and isinstance(before, cst.Call) and isinstance(updated, cst.Call):
        is_standard = "dataclasses.field" in node.source.names_of(before.func)
        if not is_foreign or (is_standard and not static):
            return updated
        _note(replaced, before.func)
        kept = [after for arg, after in zip(before.args, updated.args, strict=True) if arg not in field.drops]
        arguments = [arg for arg in kept if not (static and _name(arg) == "compare")]
    elif static:
        arguments = [] if updated is None else [keyword("default", updated)]
    else:
        return updated
    if (
        static
        and has_one_of(node.source, field.annotation, libraries.CAN_CHANGE)
        and not argument(arguments, "converter")
    ):
        arguments = [*arguments, keyword("converter", name_of("treewright:freeze"))]
    given = arguments_of(before) if field.specifier and before is not None else ()
    name = "treewright:static" if static else "treewright:field"
    call = updated if field.specifier and isinstance(updated, cst.Call) else cst.Call(name_of(name))
    return call.with_changes(func=name_of(name), args=separated(arguments, given))


def _name(arg: cst.Arg) -> str | None:
    return None if arg.keyword is None else arg.keyword.value


def _note(replaced: set[int], *expressions: cst.BaseExpression | None) -> None:
    for expression in expressions:
        if expression is not None:
            part = expression.value if isinstance(expression, cst.Subscript) else expression
            replaced.add(id(first_name(part)))
