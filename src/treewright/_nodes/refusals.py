"""What can't be a node, said when the class is made: before an instance, before `jit`, before it is registered."""

import contextlib
import dataclasses
import types
import typing
from typing import Any, ClassVar

import jax
import numpy as np

from treewright._jax_refs import is_ref
from treewright._nodes.annotations import own_annotations, resolved
from treewright._nodes.fields import FieldOptions, names_problem, options_of
from treewright._nodes.node import PAIR, ChildView
from treewright._nodes.spec import FieldSpec, NodeSpec
from treewright._values.freeze import FrozenArray
from treewright._values.reach import class_of
from treewright.errors import NodeDefinitionError

_RESERVED = frozenset({PAIR, "tree_flatten", "tree_unflatten"})
_NO_STATICS = (list, dict, set, bytearray, np.ndarray, jax.Array)
_UNIONS = (typing.Union, types.UnionType)
_TRANSPARENT = (tuple, frozenset, *_UNIONS)


def refuse_class_body(cls: type[Any], reserved: frozenset[str]) -> None:
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
    for field in annotations:
        _refuse_field(cls, field, reserved, body.get(field, dataclasses.MISSING))
    for attribute in set(body) - set(annotations):
        _refuse_shadow(cls, attribute)


def _refuse_field(cls: type[Any], field: str, reserved: frozenset[str], value: Any) -> None:
    name = cls.__qualname__
    if field in _RESERVED | reserved or (field.startswith("__") and field.endswith("__")):
        raise NodeDefinitionError(f"{name} can't have a field {field}: every node uses this name itself. Rename it.")
    if isinstance(value, types.FunctionType) and value.__qualname__ == f"{name}.{field}":
        raise NodeDefinitionError(
            f"{name}.{field} is a field and a method of one name, so the method would become the field's default. "
            f"Rename one of them."
        )
    default = getattr(value, "default", value) if class_of(value) is dataclasses.Field else value
    is_array = isinstance(default, np.ndarray | jax.Array) and not isinstance(default, FrozenArray)
    if is_array or is_ref(default):
        kind = "array" if is_array else "ref"
        raise NodeDefinitionError(
            f"{name}.{field} has {'an' if is_array else 'a'} {kind} as default: one {kind} that all instances would "
            f"share, made when the module "
            f"is imported. Use field(default_factory=lambda: ...)."
        )


def _refuse_shadow(cls: type[Any], attribute: str) -> None:
    """A value or method in the class body that would hide an inherited field."""
    own = vars(cls)[attribute]
    if isinstance(own, ChildView | dataclasses.Field):  # dataclasses itself refuses a field() without an annotation
        return
    for base in cls.__mro__[1:]:
        hidden = vars(base).get(attribute)
        if isinstance(hidden, ChildView):
            kind = hidden.field.kind
            line = repr(own) if kind == "child" else f"{kind}(default={own!r})"
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{attribute} would hide the field {attribute} of {base.__qualname__}. For a new "
                f"default repeat the annotation: {attribute}: ... = {line}. Else rename it."
            )
        if attribute in vars(base):
            return


def refuse_annotations(spec: NodeSpec) -> None:
    """Refuse what shows once the fields are known: a field that changed its kind, a static that can't be one.

    Raises:
        NodeDefinitionError: With the class, the field, and what to write instead.
    """
    cls, own = spec.cls, own_annotations(spec.cls)
    for field in spec.fields:
        if field.name not in own:
            continue
        declared = options_of(cls.__dataclass_fields__[field.name])
        inherited = _inherited_options(cls, field.name)
        if declared is None and inherited is not None and inherited.kind != "child":
            kind = inherited.kind
            default = "" if field.default is dataclasses.MISSING else f"default={field.default!r}"
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{field.name} is annotated anew without {kind}(), so a {kind} field would "
                f"become a plain child. Write {field.name}: ... = {kind}({default}), or field({default}) if a child is "
                f"meant."
            )
        _refuse_lost_sharding(field, cls, declared, inherited)
        _refuse_sharding(field, cls)
        part = _no_static_of(field, cls)
        if part is not None:
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{field.name} is static, but its annotation holds {part}. jit compares statics "
                f"and never copies them: an array has no single truth value, and a change in place would give stale "
                f"results. Make it a child (drop static()), or a hashable type such as a tuple."
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
