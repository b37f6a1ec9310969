"""What can't be a node, said when the class is made: before an instance, before `jit`, before it is registered."""

import contextlib
import dataclasses
import re
import types
import typing
from typing import Any, ClassVar

import jax
import numpy as np

from treewright._jax_refs import is_ref
from treewright._nodes.annotations import annotation_text, own_annotations, resolved
from treewright._nodes.fields import (
    FieldOptions,
    call_text,
    default_of,
    names_problem,
    only_static,
    options_of,
    specifier_in,
)
from treewright._nodes.node import PAIR, ChildView
from treewright._nodes.slips import first_array_in, is_class_variable, refuse_slips
from treewright._nodes.spec import MISSING, FieldSpec, NodeSpec, or_missing
from treewright._values.reach import class_of
from treewright._values.text import Verbatim, first_text
from treewright.errors import NodeDefinitionError

_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})
_NO_STATICS = (list, dict, set, bytearray, np.ndarray, jax.Array)
_CHANGES = "a change in place would give stale results"
_NO_TRUTH = ("an array has no single truth value", "Make it a child: drop static().")
_NO_KNOWN = (_CHANGES, "Make it a hashable type, such as a tuple, or a child: drop static().")
_WHY_NO_STATIC = types.MappingProxyType(
    {
        "jax.Array": _NO_TRUTH,
        "numpy.ndarray": _NO_TRUTH,
        "list": (
            _CHANGES,
            "Make it a tuple, keep it as one with static(converter=tuple), or make it a child: drop static().",
        ),
        "set": (
            _CHANGES,
            "Make it a frozenset, keep it as one with static(converter=frozenset), or make it a child: drop static().",
        ),
        "dict": (
            _CHANGES,
            "Freeze it: {name}: ... = static(converter=treewright.freeze), or make it a child: drop static().",
        ),
    }
)
_UNIONS = (typing.Union, types.UnionType)
_TRANSPARENT = (tuple, frozenset, *_UNIONS)


def refuse_class_body(cls: type[Any], reserved: frozenset[str], *, has_own_init: bool) -> None:
    """Refuse what can be seen before `dataclasses` reads the class.

    Raises:
        NodeDefinitionError: With the class, the name, and what to write instead.
    """
    name, body, annotations = cls.__qualname__, vars(cls), own_annotations(cls)
    if "__slots__" in body:
        raise NodeDefinitionError(
            f"{name} declares __slots__. A node keeps its fields in one flattened pair, so slots for them would stay "
            f"empty. Remove __slots__."
        )
    for method in ("__setattr__", "__delattr__"):
        if method in body:
            raise NodeDefinitionError(
                f"Cannot overwrite attribute {method} in class {name}: it keeps a node frozen. Remove it; assignments "
                f"in __init__ work without, and a field's converter= can check or change its value."
            )
    for method in ("tree_flatten", "tree_unflatten"):
        if method in body:
            raise NodeDefinitionError(
                f"{name} defines {method} itself, and would have two forms that could disagree. Remove it and mark "
                f"static fields with static(), or keep it and use jax.tree_util.register_pytree_node_class alone."
            )
    refuse_slips(cls)
    for field in annotations:
        _refuse_field(cls, field, reserved, body.get(field, dataclasses.MISSING))
    for attribute in set(body) - set(annotations):
        _refuse_shadow(cls, attribute, has_own_init=has_own_init)


def _refuse_field(cls: type[Any], field: str, reserved: frozenset[str], value: Any) -> None:
    name = cls.__qualname__
    if field in _RESERVED | reserved or (field.startswith("__") and field.endswith("__")):
        raise NodeDefinitionError(f"{name} can't have a field {field}: every node uses this name itself. Rename it.")
    default = getattr(value, "default", value) if class_of(value) is dataclasses.Field else value
    array = first_array_in(default)
    if array is not None and not is_class_variable(own_annotations(cls)[field], cls):
        what = "ref" if is_ref(array) else "array"
        held = "" if array is default else f" that holds {first_text(array)}"
        kind = f"a{'' if is_ref(array) else 'n'} {what}" if array is default else f"a {class_of(default).__qualname__}"
        raise NodeDefinitionError(
            f"{name}.{field} has {kind}{held} as default: one {what} that all instances would share, made when the "
            f"module is imported. Use field(default_factory=lambda: ...)."
        )


def of_mutable_default(cls: type[Any], error: ValueError) -> str:
    """What `dataclasses` says of a default that all instances would share, with the class and the line to write."""
    said = str(error)
    told = re.search(r"mutable default .* for field (\w+) is", said)
    if told is None:
        return said
    name, value = told[1], vars(cls)[told[1]]
    specified = class_of(value) is dataclasses.Field
    default, specifier = value.default if specified else value, specifier_in(value) or "field"
    cure = call_text(specifier, default_of(default))
    makers: dict[Any, Any] = {list: tuple, set: frozenset}
    frozen = makers.get(class_of(default))
    if specifier == "static" and frozen is not None:
        cure = call_text(specifier, {"default": frozen(default)})
    elif specifier == "static" and isinstance(default, dict):
        cure = call_text(specifier, {"default": Verbatim(f"treewright.freeze({first_text(default)})")})
    annotation = annotation_text(own_annotations(cls)[name])
    return f"{cls.__qualname__}.{name}: {said}, or all instances would share it.\n  Write {name}: {annotation} = {cure}"


def _refuse_shadow(cls: type[Any], attribute: str, *, has_own_init: bool) -> None:
    """A value, property or method in the class body that would hide an inherited field which the constructor takes.

    Where it takes none of that name, the field is overridden: see `make_class`.
    """
    own = vars(cls)[attribute]
    if isinstance(own, dataclasses.Field):
        raise NodeDefinitionError(_unannotated(cls, attribute, own))
    for base in cls.__mro__[1:]:
        hidden = vars(base).get(attribute)
        if isinstance(hidden, ChildView):
            if has_own_init or not hidden.field.init:
                return
            kind = hidden.field.kind
            line = first_text(own) if kind == "child" else call_text(kind, {"default": own})
            declared = f"{attribute}: {annotation_text(hidden.field.type)} = {line}"
            cure = f"For a new default repeat the annotation:\n  {declared}\nElse rename it."
            if hasattr(class_of(own), "__get__"):
                cure = "It is a method or property: rename it."
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{attribute} would hide the field {attribute} of {base.__qualname__}. {cure} (A "
                f"field that __init__ does not take, by init=False or as {cls.__qualname__} writes its own, may be "
                f"overridden.)"
            )
        if attribute in vars(base):
            return


def _unannotated(cls: type[Any], name: str, field: Any) -> str:
    """What to say of a specifier on a name without an annotation; `dataclasses` has the first words of it."""
    default, specifier = or_missing(field.default), specifier_in(field) or "field"
    given = {} if default is MISSING else {"default": default}
    annotation = "..." if default is MISSING or callable(default) else class_of(default).__name__
    return (
        f"{cls.__qualname__}.{name}: {name!r} is a field but has no type annotation, and only annotated names are "
        f"fields.\n  Write {name}: {annotation} = {call_text(specifier, given)}"
    )


def refuse_annotations(spec: NodeSpec) -> None:
    """Refuse what shows once the fields are known: a field that changed its kind, a static that can't be one.

    Raises:
        NodeDefinitionError: With the class, the field, and what to write instead.
    """
    cls, own = spec.cls, own_annotations(spec.cls)
    for field in spec.fields:
        if field.name not in own:
            continue
        if getattr(field.converter, "func", None) is only_static and field.default is not dataclasses.MISSING:
            field.convert(field.default)
        declared = options_of(cls.__dataclass_fields__[field.name])
        inherited = _inherited_options(cls, field.name)
        if declared is None and inherited is not None and inherited.kind != "child":
            kind, given = inherited.kind, {} if field.default is MISSING else {"default": field.default}
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{field.name} is annotated anew without {kind}(), so a {kind} field would become a "
                f"plain child.\n  Write {field.name}: {annotation_text(field.type)} = {call_text(kind, given)}, or "
                f"{call_text('field', given)} if a child is meant."
            )
        _refuse_lost_sharding(field, cls, declared, inherited)
        _refuse_sharding(field, cls)
        # A field that was marked for another library was annotated for it too: there the value is what counts.
        part = None if declared is None or declared.foreign else _no_static_of(field, cls)
        if part is not None:
            what, cure = _WHY_NO_STATIC.get(part, _NO_KNOWN)
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{field.name} is static, but its annotation holds {part}. jit compares statics and "
                f"never copies them: {what}.\n  {cure.format(name=field.name)}"
            )


def _refuse_lost_sharding(
    field: FieldSpec, cls: type[Any], declared: FieldOptions | None, inherited: FieldOptions | None
) -> None:
    if declared is None and inherited is not None and (inherited.sharding or inherited.stack):
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{field.name} is annotated anew without field(), so its sharding would be lost and "
            f"every device would hold all of it. Write {field.name}: ... = field(...) with the sharding= or stack= "
            f"that it is to have, or a bare field() for none."
        )


def _refuse_sharding(field: FieldSpec, cls: type[Any]) -> None:
    """Refuse a sharding that no array can have, or that stands on a field without arrays."""
    name, sharding, stack = f"{cls.__qualname__}.{field.name}", field.sharding, field.stack
    if field.is_static and (sharding is not None or stack is not None):
        raise NodeDefinitionError(
            f"{name} is static and has a sharding, but a static is not an array and is the same on every device. Drop "
            f"sharding= and stack=, or make it a child (drop static)."
        )
    problem = None if sharding is None or callable(sharding) else names_problem(sharding)
    if problem is not None:
        raise NodeDefinitionError(f"{name}: sharding={sharding!r} {problem}.")
    if stack is not None and not isinstance(stack, str) and not callable(stack):
        raise NodeDefinitionError(
            f'{name}: stack={stack!r} is not a name. It takes the name of one leading axis, such as stack="layers", or '
            f"a function of the node that gives it."
        )


def _no_static_of(field: FieldSpec, cls: type[Any]) -> str | None:
    """The part of a static field's annotation that no static can hold; a converter answers for itself."""
    part = None
    if field.is_static and field.converter is None:
        with contextlib.suppress(RecursionError):  # type Nested = tuple[Nested, ...] | int
            part = _no_static_in(resolved(field.type, cls))
    return part


def _inherited_options(cls: type[Any], name: str) -> FieldOptions | None:
    for base in cls.__mro__[1:]:
        fields = vars(base).get("__dataclass_fields__", {})
        if name in fields:
            return options_of(fields[name])
    return None


def _no_static_in(annotation: Any) -> str | None:
    """The part of an annotation that no static can hold, looking into unions, tuples and frozensets."""
    annotation = getattr(annotation, "__value__", annotation)  # type Sizes = tuple[int, ...]
    annotation = getattr(annotation, "array_type", annotation)  # jaxtyping's Float[Array, "..."]
    origin = typing.get_origin(annotation)
    if origin in {typing.Annotated, typing.Final, ClassVar}:
        return _no_static_in(typing.get_args(annotation)[0])
    if origin in _UNIONS and np.dtype in [typing.get_origin(part) or part for part in typing.get_args(annotation)]:
        return None  # numpy's and jax's DTypeLike, which takes lists among much else
    if origin in _TRANSPARENT:
        return next(filter(None, map(_no_static_in, typing.get_args(annotation))), None)
    kind: Any = origin or annotation
    hashable = getattr(kind, "__hash__", None) is not None and kind is not jax.Array
    if isinstance(kind, type) and issubclass(kind, _NO_STATICS) and not hashable:
        names: dict[Any, str] = {jax.Array: "jax.Array", np.ndarray: "numpy.ndarray"}
        return names.get(kind, kind.__name__)
    return None
