"""Nodes at work: what is rejected in a constructor, on an attribute or in a copy, and notes on others' errors."""

from collections.abc import Collection, Iterable, MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
from jax.core import Tracer

from treewright._base.functions import earlier_class_hint, is_cached_property
from treewright._base.text import (
    annotation_text,
    class_name,
    did_you_mean,
    short_text,
    with_article,
    with_close_matches,
)
from treewright._core.fields import MISSING
from treewright._core.info import FLAT_FORM_NAME, FieldInfo, NodeInfo
from treewright._core.rules.declarations import declared_as

# Classes and attributes


def copy_with_slots(cls: type[Any]) -> str | None:
    """Slots have no place for the values of a node."""
    if "__node_info__" not in vars(cls) or cls.__dictoffset__:
        return None
    return (
        f"{cls.__qualname__} is a copy of a node class with slots, which have no place for the values of a node. "
        f"Another decorator made it, such as attrs.define. Remove that decorator."
    )


def not_decorated(cls: type[Any]) -> str | None:
    """A subclass without the decorator has fields that flattening would lose, and is a leaf to JAX."""
    if "__node_info__" in vars(cls):
        return None
    base = next((base.__qualname__ for base in cls.__mro__ if "__node_info__" in vars(base)), "Module")
    problem, fix = "not decorated", f"Put @pytree_dataclass above class {cls.__name__}"
    if hasattr(cls, FLAT_FORM_NAME):  # Module.__init_subclass__ did not run.
        problem = "not a node class itself"
        fix = "Call super().__init_subclass__() in every __init_subclass__ of its bases"
    return (
        f"{cls.__qualname__} is a subclass of the node class {base} but {problem}: its own fields would be lost, and "
        f"JAX would treat its instances as leaves. {fix}."
    )


NOT_A_NODE_CLASS = (copy_with_slots, not_decorated)


def not_a_node(value: Any) -> str:
    """A dataclass or a namedtuple has a `replace` of its own."""
    return (
        f"replace() needs an instance of a Module or of a class with @pytree_dataclass, got "
        f"{with_article(class_name(value))}."
    )


def no_init_has_run(cls: Any) -> str:
    """An instance without values: `__new__` reads it, `init=False` left it without `__init__`, or autoreload did."""
    return f"no __init__ has finished it. Assign the fields in __init__, and call {cls.__qualname__}(...) again"


def frozen(info: NodeInfo, name: str) -> str:
    """A node does not change after its constructor."""
    cls = info.cls.__qualname__
    if name not in info.by_name:
        return (
            f"cannot assign to {name!r}: {cls} has no field of this name{did_you_mean(name, info.by_name)}, and nodes "
            f"are frozen after __init__."
        )
    return (
        f"cannot assign to field {name!r} of {with_article(cls)}, it is frozen: use treewright.replace(node, "
        f"{name}=...) for a changed copy, or assign in `with treewright.edit(node) as draft:`."
    )


def init_on_finished(cls: type[Any]) -> str:
    """A second call of `__init__` would change a frozen node."""
    name = cls.__qualname__
    return (
        f"{name}.__init__ was called on a finished {name}, but nodes are frozen. Call {name}(...) for a new one, "
        f"or treewright.replace(node, ...) for a changed copy."
    )


def field_read_on_class(field: FieldInfo, owner: type[Any], problem: str) -> str:
    """`Tiles.WALL == 1` would silently be False, because only instances have a value."""
    constant = "..." if field.default is MISSING else short_text(field.default)
    line = f"{field.name}: ClassVar[{annotation_text(field.type, owner)}] = {constant}"
    return (
        f"{owner.__qualname__}.{field.name} is a field, so on the class it {problem}: only instances have one. Read it "
        f"on an instance. For a class constant, declare a ClassVar:\n"
        f"  {line.replace('[...]', '')}\n"
        f"For the default: {{field.name: field.default for field in dataclasses.fields({owner.__name__})}}"
        f"[{field.name!r}]"
    )


def dataclass_on_node_class(name: str) -> str:
    """`@dataclass` would take the views of the fields for their defaults."""
    return (
        f"{name} is a node class or has one as base, so it is already a dataclass. Remove @dataclass, or replace it "
        f"with @pytree_dataclass if this is a subclass of a decorated class."
    )


def init_var_read(full_name: str) -> str:
    """Instances would silently return the default of the argument."""
    return (
        f"{full_name} is an InitVar: an argument of __init__ that instances do not store. Use the parameter of "
        f"__post_init__, or declare a field."
    )


def older_definition(cls: type[Any], names: Iterable[str], missing: str = "") -> str:
    """The class statement ran again, with other fields, and autoreload made the old instances ones of the new class."""
    return (
        f"This {cls.__qualname__} {f'has no field {missing}: it ' if missing else ''}belongs to an older definition of "
        f"the class, with the fields {', '.join(names) or 'none'}. Recreate the object."
    )


# Construction


def contains_itself(cls: type[Any], name: str) -> str:
    """Flattening would never end, or a static would hold arrays."""
    return (
        f"{cls.__qualname__}.{name} is the node itself, one of its methods, or a function that captured it, so the "
        f"node would contain itself. Write a method, and look it up where you call it."
    )


def slot_of_base(cls: type[Any], slot: str) -> str:
    """Flattening loses the slots of a base that is not a node class."""
    name = cls.__qualname__
    return (
        f"{name}.{slot} was assigned, but it is a slot of a base class, not a field: flattening would lose it. "
        f"Declare it in {name} ({slot}: ...)."
    )


def incomplete(info: NodeInfo, pending: Iterable[str]) -> str | None:
    """A field without a value, or a value without a field, which flattening would lose."""
    missing = [name for name in info.by_name if name not in pending]
    # Values of a cached_property were computed from an unfinished node: they are dropped.
    others = [name for name in pending if name not in info.by_name and name != FLAT_FORM_NAME]
    undeclared = [name for name in others if not is_cached_property(info.cls, name)]
    method, fix = _setter_of(info, is_complete=not missing)
    problems, fixes = ([f"did not set {', '.join(missing)}"], [fix]) if missing else ([], [])
    if undeclared:
        are_no_fields = "is not a field" if len(undeclared) == 1 else "are not fields"
        problems.append(f"set {with_close_matches(undeclared, info.by_name)}, which {are_no_fields}")
        fixes.append(f"Declare new fields in the class body ({undeclared[0]}: ...).")
    return f"{method} {', and '.join(problems)}. {' '.join(fixes)}" if problems else None


def _setter_of(info: NodeInfo, *, is_complete: bool) -> tuple[str, str]:
    """The method that has to set the fields, and what to do if it does not."""
    cls = info.cls.__qualname__
    method = f"{cls}.__post_init__" if info.runs_post_init else info.cls.__init__.__qualname__
    owner, _, name = method.rpartition(".")
    if owner == cls or is_complete:
        return method, f"Set every field in {name}."
    line = f"class {info.cls.__name__}(..., init=False)"
    fix = f"Write an __init__ in {cls}. Or declare defaults and, for type checkers, write {line}."
    return f"{method}, which {cls} inherits,", fix


# Copies


def unknown_fields(info: NodeInfo, changes: Iterable[str], names: Collection[str]) -> str:
    """A name in `replace` is no field; the instance may belong to an older definition of the class."""
    wrong = [name for name in changes if name not in names]
    return (
        f"{info.cls.__qualname__} has no field {with_close_matches(wrong, names)}. "
        f"Its fields: {', '.join(names) or 'none'}.{earlier_class_hint(info.cls)}"
    )


def none_in_place_of_container(node: Any, name: str) -> str | None:
    """`node.layers.append(layer)` is None, and would be the field's new value."""
    field, value = type(node).__node_info__.by_name.get(name), getattr(node, name, None)
    if field is None or not isinstance(value, MutableSequence | MutableMapping | MutableSet):
        return None
    annotation = annotation_text(field.type, type(node))
    if field.default is None or "None" in annotation or "Optional" in annotation:
        return None
    return (
        f"replace() stores None in {type(node).__qualname__}.{name}, which is {with_article(class_name(value))}. "
        f"append(), update() and other methods that change it in place return None. Pass a changed copy, or store None "
        f"with treewright.at(node, '.{name}').set(None)."
    )


def init_var_missing(info: NodeInfo, name: str) -> str:
    """`__post_init__` runs again for a copy, but instances do not store its arguments."""
    return (
        f"{info.cls.__qualname__}.__post_init__ needs {name}, an InitVar that instances do not store. Pass it: "
        f"replace(node, {name}=..., ...). treewright.at() and edit() change fields without __post_init__."
    )


def derived_field(info: NodeInfo, name: str) -> str:
    """The value that was passed to `replace` would be lost."""
    return (
        f"{info.cls.__qualname__}.{name} is derived: __post_init__ assigned it again, so the value passed "
        f"to replace() would be lost. Replace the fields that it is derived from, or use treewright.at("
        f"node, lambda node: node.{name}).set(...) to change only this field, without __post_init__."
    )


# Methods


def traced_setting(error: BaseException, node: Any) -> str | None:
    """A bool or int that is a child is traced under jit. JAX suggests static_argnums, for the whole node."""
    message = str(error)
    needs_value = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
    if not (isinstance(error, needs_value) or "concrete value" in message):
        return None
    texts = [
        f"{type(node).__qualname__}.{field.name} is a child, so it is traced and has no value here. If it is a "
        f"setting, make it static:\n  {declared_as('static', field, type(node))}"
        for field in type(node).__node_info__.children
        if field.type in (bool, int, "bool", "int") and isinstance(getattr(node, field.name), Tracer)
        if "depends on the value of the argument" not in message or f".{field.name}" in message
    ]
    return "\n".join(texts) or None


METHOD = (traced_setting,)


def wrong_aux_data(cls: type[Any], aux_data: object) -> str:
    """The statics of another class would give the node other fields."""
    return (
        f"{cls.__qualname__}.tree_unflatten needs the aux_data of {with_article(cls.__qualname__)}, got "
        f"{short_text(aux_data)}. Pass the aux_data that tree_flatten() of an instance returns."
    )


def traced_comparison(place: str) -> str:
    """`==` returns a bool, which a traced value can't give."""
    return (
        f"{place} is traced, so == has no value to compare and can't return a bool. Compare outside jit, or compare "
        f"the arrays themselves with jnp.array_equal."
    )


def unhashable_child(node: Any) -> str:
    """Python's own error names neither the node nor the reason that JAX hashes it."""
    as_function = (
        " If it was passed as a function, to jit, checkpoint, scan, fori_loop, while_loop, cond, switch or a callback, "
        "pass its method: node.__call__."
    )
    return (
        f"unhashable type {type(node).__qualname__!r}: a child of {short_text(node)} has no hash. A traced argument of "
        f"a jitted function needs no hash; a static argument or dict key does, and then every child must be hashable."
        f"{as_function if callable(node) else ''}"
    )
