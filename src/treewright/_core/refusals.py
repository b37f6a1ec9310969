"""What can't be a node, or is a slip that Python runs without a word: said before the class is registered."""

import contextlib
import dataclasses
import functools
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import jax
import numpy as np

from treewright._core.annotations import annotation_text, own_annotations, resolved
from treewright._core.converters import only_static
from treewright._core.fields import FieldOptions, call_text, default_of, names_problem, options_of, specifier_in
from treewright._core.freeze import FrozenArray
from treewright._core.functions import class_of, code_of, innermost, innermost_code, wrapped_by
from treewright._core.instance import PAIR, ChildView, leaves_once
from treewright._core.jax_refs import is_ref
from treewright._core.spec import MISSING, FieldSpec, NodeSpec, or_missing
from treewright._core.text import Verbatim, first_text
from treewright.errors import NodeDefinitionError, NodeDefinitionWarning, warn_user

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
_AROUND = (typing.Annotated, typing.Final, ClassVar)
_TRANSPARENT = (tuple, frozenset, *_UNIONS)
_PYTHONS = frozenset({"abc", "builtins", "typing", "typing_extensions"})
_NO_TREES = (str, types.FunctionType, type, int, float, property, type(dataclasses.MISSING))


def refuse_class_body(
    cls: type[Any], annotations: Mapping[str, Any], reserved: frozenset[str], *, has_own_init: bool
) -> None:
    """Refuse what can be seen before `dataclasses` reads the class."""
    name, body = cls.__qualname__, dict(vars(cls))
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
    plain = {name: value for name, value in body.items() if not is_special(name)}
    _refuse_slips(cls, annotations, plain)
    for field in annotations:
        _refuse_field(cls, field, reserved, body.get(field, MISSING))
    for attribute in plain.keys() - annotations.keys():
        _refuse_shadow(cls, attribute, has_own_init=has_own_init)


def is_special(name: str) -> bool:
    """Whether a name is Python's, such as `__call__`."""
    return name.startswith("__") and name.endswith("__")


def _refuse_field(cls: type[Any], field: str, reserved: frozenset[str], value: Any) -> None:
    name = cls.__qualname__
    if field in _RESERVED | reserved or is_special(field):
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
    annotation = annotation_text(own_annotations(cls)[name], cls)
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
            declared = f"{attribute}: {annotation_text(hidden.field.type, base)} = {line}"
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


def refuse_annotations(spec: NodeSpec, own: Collection[str]) -> None:
    """Refuse what shows once the fields are known: a field that changed its kind, a static that can't be one."""
    cls, inherited = spec.cls, dict[str, Any]()
    for base in reversed(cls.__mro__[1:]):
        inherited.update(vars(base).get("__dataclass_fields__", {}))
    for field in spec.fields:
        if field.name not in own:
            continue
        if getattr(field.converter, "func", None) is only_static and field.default is not MISSING:
            field.convert(field.default)
        declared = options_of(cls.__dataclass_fields__[field.name])
        if declared is None and field.name in inherited:
            _refuse_loss(field, cls, options_of(inherited[field.name]) or FieldOptions())
        _refuse_sharding(field, cls)
        # A field that was marked for another library was annotated for it too: there the value is what counts.
        part = None if declared is None or declared.foreign else _no_static_of(field, cls)
        if part is not None:
            what, cure = _WHY_NO_STATIC.get(part, _NO_KNOWN)
            raise NodeDefinitionError(
                f"{cls.__qualname__}.{field.name} is static, but its annotation holds {part}. jit compares statics and "
                f"never copies them: {what}.\n  {cure.format(name=field.name)}"
            )


def _refuse_loss(field: FieldSpec, cls: type[Any], inherited: FieldOptions) -> None:
    """Refuse an annotation without a specifier, where a base declared the field with more."""
    if inherited.kind != "child":
        kind, given = inherited.kind, {} if field.default is MISSING else {"default": field.default}
        raise NodeDefinitionError(
            f"{cls.__qualname__}.{field.name} is annotated anew without {kind}(), so a {kind} field would become a "
            f"plain child.\n  Write {field.name}: {annotation_text(field.type, cls)} = {call_text(kind, given)}, "
            f"or {call_text('field', given)} if a child is meant."
        )
    if inherited.sharding or inherited.stack:
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


def _no_static_in(annotation: Any) -> str | None:
    """The part of an annotation that no static can hold, looking into unions, tuples and frozensets."""
    annotation = getattr(annotation, "__value__", annotation)  # type Sizes = tuple[int, ...]
    annotation = getattr(annotation, "array_type", annotation)  # jaxtyping's Float[Array, "..."]
    origin = None if isinstance(annotation, type) else typing.get_origin(annotation)
    if origin in _AROUND:
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


# Slips


def _refuse_slips(cls: type[Any], annotations: Mapping[str, Any], body: Mapping[str, Any]) -> None:
    """Refuse a default that is not a value, and an array that is not a field."""
    for name, value in body.items():
        if name in annotations:
            problem = _problem_of(f"{cls.__qualname__}.{name}", value)
            if problem is not None:
                line = f"{name}: {annotation_text(annotations[name], cls)} = "
                raise NodeDefinitionError(f"{cls.__qualname__}.{name} {problem.format(line=line)}")
        elif class_of(value) is not dataclasses.Field:  # which dataclasses refuses
            specifier = specifier_in(value) or specifier_in(wrapped_by(value))
            if specifier is not None:
                raise NodeDefinitionError(
                    f"{cls.__qualname__}.{name} = {specifier} has neither an annotation nor parentheses, so it would "
                    f"be a method. Write {name}: ... = {specifier}()."
                )
    _refuse_arrays(cls, cls, annotations)
    for base in cls.__mro__[1:]:
        is_read = "__node_spec__" in vars(base) or hasattr(base, "__dataclass_params__")
        if not is_read and base.__module__ not in _PYTHONS:
            _refuse_arrays(cls, base, {})


def _problem_of(place: str, value: Any) -> str | None:
    """What is wrong with the default of a field, in words that follow its place; `{line}` is how its line begins."""
    options, default = (options_of(value), value.default) if class_of(value) is dataclasses.Field else (None, value)
    if default is MISSING:
        return _lost_converter(value)
    function, specifier = innermost(default), specifier_in(default)
    is_property = isinstance(default, (property, functools.cached_property))
    is_property = is_property and not getattr(default, "__isabstractmethod__", False)  # which a subclass overrides
    if is_property or (isinstance(function, types.FunctionType) and function.__qualname__ == place):
        what = "property" if is_property else "method"
        return (
            f"is a field and a {what} of one name, so the {what} would become the field's default. Rename one of them."
        )
    if specifier is not None:
        return (
            f"has the function {specifier} itself as default, which would be a leaf. Write the parentheses: "
            f"{{line}}{specifier}()."
        )
    items: tuple[Any, ...] = tuple(default) if class_of(default) in {tuple, list} else ()
    inside = next(filter(None, map(specifier_in, items)), None)
    if inside is not None:
        return (
            f"has a {class_of(default).__name__} around {inside}() as default, which would be a leaf. Drop the comma "
            f"or the brackets: {{line}}{inside}()."
        )
    if (
        isinstance(default, type)
        and hasattr(default, "__node_spec__")
        and (options is None or options.kind != "static")
    ):
        name = default.__qualname__
        return (
            f"has the class {name} itself as default, which would be a leaf. Write {{line}}field(default_factory="
            f"{name}) for an instance, or static(default={name}) for the class."
        )
    return _lost_converter(value)


def _lost_converter(value: Any) -> str | None:
    """What is wrong with a field of `equinox.field`, whose converter stands where only equinox looks."""
    converter = None
    if class_of(value) is dataclasses.Field and "equinox" in sys.modules:
        with contextlib.suppress(AttributeError):  # dataclasses takes any mapping, and some have no `get`
            converter = value.metadata.get("converter")
    if not callable(converter):
        return None
    return (
        f"has a converter from equinox.field, which would not run. Write {{line}}field(converter="
        f"{first_text(converter)}), with the field of treewright."
    )


def _refuse_arrays(cls: type[Any], base: type[Any], fields: Collection[str]) -> None:
    """Refuse an array in the body of a class, or of a base that is not a node, where it is not a field."""
    for name, value in list(vars(base).items()):  # from 3.14 on, reading the annotations stores them in there
        if name in fields or is_special(name):
            continue
        array = first_array_in(value)
        if array is None or getattr(cls, name, None) is not value:  # hidden by another class
            continue
        if is_class_variable(own_annotations(base).get(name), base):
            continue
        is_array = value is array
        kind = "jax.Array" if isinstance(value, jax.Array) else class_of(value).__qualname__
        raise NodeDefinitionError(
            f"{base.__qualname__}.{name} {'is an array' if is_array else f'is a {kind} that holds an array'}, "
            f"{first_text(array)}, and is not a field of {cls.__qualname__}: no leaf of an instance, never trained, "
            f"and a constant in what jit compiles. Write {name}: {kind} = field(default_factory=lambda: ...) in "
            f"{cls.__qualname__}, or {name}: ClassVar[{kind}] = ... if a constant is meant."
        )


def is_class_variable(annotation: Any, cls: type[Any]) -> bool:
    """Whether an annotation in the body of `cls` says `ClassVar`."""
    hint = resolved(annotation, cls)
    if isinstance(hint, str):  # it can't be told what is in the brackets
        return hint.partition("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or typing.get_origin(hint) is ClassVar


def first_array_in(value: Any) -> Any:
    """An array that a value is, or that it holds as a tree; None if there is none."""
    if isinstance(value, _NO_TREES):
        return None
    leaves: list[Any] = []
    with contextlib.suppress(Exception):  # keys that can't be sorted, a node whose __init__ has not returned
        leaves = leaves_once(value, _is_array)
    return next((leaf for leaf in leaves if _is_array(leaf)), None)


def _is_array(leaf: Any) -> bool:
    return is_ref(leaf) or (isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, FrozenArray))


def warn_of_idle_post_init(spec: NodeSpec, init: Any) -> None:
    """Where nothing calls a `__post_init__`, for an `__init__` that calls neither it nor another `__init__`."""
    cls: Any = spec.cls
    code = innermost_code(init) if spec.has_own_init and spec.has_post_init else None
    if code is None or "__init__" in code.co_names or any(map(_calls_post_init, map(vars, cls.__mro__))):
        return
    warn_user(
        f"{cls.__module__}.{cls.__qualname__} has an `__init__` method and a `__post_init__`, which only a generated "
        f"`__init__` runs. Call it at the end of yours, or name it `__check_init__`, which runs after either.",
        NodeDefinitionWarning,
    )


def _calls_post_init(body: Mapping[str, Any]) -> bool:
    codes = (code_of(innermost(value)) for name, value in body.items() if name != "__post_init__")
    return any(code is not None and "__post_init__" in code.co_names for code in codes)
