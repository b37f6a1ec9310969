"""Detect wrong field values: values that can't be static, and settings in child fields; each with a fix."""

import argparse
import collections.abc
import dataclasses
import enum
import random
import types
from collections.abc import Iterator, Mapping, MutableMapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import (
    METHOD_TYPES,
    FrozenValue,
    foreign_library,
    has_author,
    instance_attributes,
    is_installed,
    is_standard_class,
    slots_of,
)
from treewright._base.jax_private import jax_trees
from treewright._base.text import annotation_text, function_text, short_text, text, text_with_class, with_article
from treewright._core.fields import defaults_of, specifier_text
from treewright.errors import ChildWarning, NodeInitError, StaticFieldError, warn_user

# Statics

_GENERATORS: tuple[type[Any], ...] = (
    collections.abc.Iterator,  # open files among them
    *(random.Random, np.random.Generator, np.random.BitGenerator, np.random.RandomState),
)
MUTABLE: tuple[type[Any], ...] = (
    *(list, dict, set, bytearray, MutableMapping, MutableSequence, MutableSet, collections.abc.MappingView),
    *(types.SimpleNamespace, argparse.Namespace),
    *(np.ndarray, np.void, jax.Array, jax.Ref),  # a row of a structured array is a view of it
    *_GENERATORS,
)
IDENTITY = "static(identity=True)"
_OWN_HASH = (
    "a hashable value, such as a tuple, or define __hash__ and __eq__ on its class (@dataclass(frozen=True) does)"
)
_AS_ARRAY = "treewright.freeze(numpy.asarray(...)), for a constant table"
# What `freeze` returns for a mutable value.
_FROZEN: Mapping[type[Any], str] = types.MappingProxyType(
    {
        bytearray: "bytes",
        types.SimpleNamespace: "treewright.freeze(config)",
        argparse.Namespace: "treewright.freeze(args)",
        np.ndarray: "treewright.freeze(table), for a constant table",
        MutableSequence: "a tuple",
        MutableSet: "a frozenset",
        dict: "treewright.freeze(the_dict)",
        Mapping: "treewright.freeze(config)",
    }
)
# The value to pass instead of one that `freeze` does not accept or freezes differently, by package and class.
_FIXES = types.MappingProxyType(
    {
        ("omegaconf", "ListConfig"): "treewright.freeze(OmegaConf.to_container(config, resolve=True))",
        ("pydantic", "BaseModel"): (
            "treewright.freeze(config.model_dump()), or set model_config = ConfigDict(frozen=True) on its class"
        ),
        ("numpy", "MaskedArray"): "treewright.freeze((array.data, array.mask)), for a constant table",
        ("numpy", "matrix"): _AS_ARRAY,
        ("numpy", "recarray"): _AS_ARRAY,
    }
)


@dataclasses.dataclass(eq=False)
class NoExactKeyError(TypeError):
    """A value that can't be static: its description, the consequence, and the value to pass instead, if any."""

    value: Any
    description: str
    consequence: str
    fix: str  # the value to pass instead; empty if there is none
    can_freeze: bool = False  # whether `freeze` returns that value
    can_be_child: bool = True


class ArraysReachedError(NoExactKeyError):
    """A value that reaches a node with arrays, or one that is being built."""


def problem_of(value: Any) -> NoExactKeyError:
    """Why a value can't be static."""
    if isinstance(value, Tracer):
        consequence = "A tracer is valid only during its trace, but a static outlives it."
        return NoExactKeyError(value, f"a tracer, {text(value)}", consequence, "")
    if type(value) is jax.Ref:
        consequence = "A ref changes in place, but jit would treat it as part of the program, not of the tree."
        return NoExactKeyError(value, f"a ref, {text(value)}", consequence, "")
    if isinstance(value, _GENERATORS) or foreign_library(type(value)) == "nnx":
        consequence = "It changes when it is used, but a compiled program keeps the state that it had during the trace."
        return NoExactKeyError(value, text_with_class(value), consequence, IDENTITY, can_be_child=False)
    fix, can_freeze = _fix(value)
    if isinstance(value, np.ndarray | jax.Array):
        consequence = (
            "jit compares statics with ==, which returns an array, and a change in place would give stale results."
        )
        fix = "" if fix is _OWN_HASH else fix
        return NoExactKeyError(value, f"an array, {text(value)}", consequence, fix, can_freeze)
    consequence = "It is not hashable, so jit can't tell whether it compiled for this value."
    if isinstance(value, MUTABLE):
        consequence = "jit compares statics and never copies them, so a change in place would give stale results."
    return NoExactKeyError(value, text_with_class(value), consequence, fix, can_freeze)


def _fix(value: Any) -> tuple[str, bool]:
    """The value to pass instead, and whether `freeze` returns it."""
    cls: Any = type(value)
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return "treewright.freeze(array.tolist()), for a constant table", False
    if isinstance(value, collections.abc.MappingView):
        return "a tuple", False
    names = [(str(base.__module__).partition(".")[0], base.__name__) for base in cls.__mro__]
    known = [_FIXES[name] for name in names if name in _FIXES]
    if known:
        return known[0], False
    frozen = [fix for kind, fix in _FROZEN.items() if isinstance(value, kind)]
    if frozen:
        return frozen[0], True
    if hasattr(cls, "__attrs_attrs__"):
        return "treewright.freeze(attrs.asdict(config)), or decorate its class with @attrs.frozen", False
    if cls.__hash__ is None and dataclasses.is_dataclass(cls):
        fix = "treewright.freeze(dataclasses.asdict(config)), or decorate its class with @dataclass(frozen=True)"
        return fix, False
    return _OWN_HASH, False


def arrays_reached(node: Any, *, is_built: bool = True) -> ArraysReachedError:
    """Why a value that reaches a node with arrays, or an unfinished node, can't be static."""
    state = "with arrays" if is_built else "that is being built"
    return ArraysReachedError(
        node,
        f"{with_article(type(node).__qualname__)} {state}",
        "Its arrays would be constants of the compiled program, without gradients or updates.",
        "",
        can_be_child=is_built,
    )


def nested_too_deeply(value: Any) -> NoExactKeyError:
    """Why a value that is nested more deeply than Python's stack can't be static."""
    description = f"{with_article(type(value).__qualname__)} that is nested too deeply"
    return NoExactKeyError(value, description, "Its parts are compared one inside the other, up to a few hundred.", "")


def comparison_problem(value: Any, *, with_equality: bool) -> NoExactKeyError | None:
    """Why an object can't be compared: its hash raises, or its custom `==` does not return a bool."""
    try:
        hash(value)
    except Exception:  # noqa: BLE001  a user's
        return problem_of(value)
    if not with_equality:
        return None
    try:
        answer = value == value  # noqa: PLR0124
        if isinstance(answer, bool | np.bool_):
            return None
        result = f"returns {short_text(answer)}, not a bool"
    except Exception as error:  # noqa: BLE001  a user's
        result = f"raises {type(error).__name__}: {error}"
    consequence = f"{type(value).__qualname__}.__eq__ {result}, so jit can't tell whether it compiled for this value."
    return NoExactKeyError(value, text_with_class(value), consequence, _OWN_HASH)


def has_arrays(value: Any) -> bool:
    """Whether an object is a pytree with arrays among its leaves, but not a mapping."""
    try:
        if jax_trees.default_registry.flatten_one_level(value) is None or isinstance(value, Mapping):
            return False
        leaves = jax_trees.tree_leaves(value)
        return any(isinstance(leaf, jax.Array | np.ndarray) and not isinstance(leaf, FrozenValue) for leaf in leaves)
    except Exception:  # noqa: BLE001  a user's flatten function, with an unfinished object
        return False


def has_jax_arrays(value: Any) -> bool:
    """Whether a value has arrays of JAX among its leaves, or is a layer of flax.nnx, which keeps them in variables."""
    try:
        return foreign_library(type(value)) == "nnx" or any(
            isinstance(leaf, jax.Array) for leaf in jax_trees.tree_leaves(value)
        )
    except Exception:  # noqa: BLE001  a dict that JAX can't sort, or a user's flatten function
        return False


def rejection(cls: type[Any], values: Mapping[str, Any], problems: Mapping[str, NoExactKeyError]) -> StaticFieldError:
    """The error for the static fields of a new node that have a problem: the first in full, the others by name."""
    (name, problem), *others = problems.items()
    reject_field_on_class(problem.value)
    lines = [
        _found(f"{cls.__qualname__}.{name}", values[name], problem),
        problem.consequence,
        *(_fixes(cls, name, values[name], problem) or ["Store it outside the node, and pass it as an argument."]),
    ]
    if others:
        lines.append(f"Other static fields of {cls.__qualname__} that must change:")
        lines += [f"  {other}: {each.description}" for other, each in others]
    return StaticFieldError("\n".join(lines))


def _found(full_name: str, value: Any, problem: NoExactKeyError) -> str:
    """The value with the problem, and the value of the static field that contains it."""
    if problem.value is value:
        return f"{full_name} is static but holds {problem.description}."
    if isinstance(problem, ArraysReachedError):
        return f"{full_name} is static but reaches {problem.description}, through {text_with_class(value)}."
    return f"{full_name} is static but holds {problem.description}, inside {text_with_class(value)}."


def _fixes(cls: type[Any], name: str, value: Any, problem: NoExactKeyError) -> list[str]:
    """The fixes; empty if there is none."""
    is_own, can_be_child = _is_ours(cls), problem.can_be_child
    declared = f"  {name}: ... = static("
    if isinstance(problem, ArraysReachedError) and problem.value is not value:
        fixes, can_be_child = [_fix_for_reached(value, problem)], can_be_child and isinstance(value, METHOD_TYPES)
    elif problem.fix is IDENTITY:
        fixes = [f"Pass the values that it returns as arguments. Or, to keep this object:\n{declared}identity=True)"]
    elif problem.can_freeze and not is_own and (problem.value is value or isinstance(value, tuple | frozenset)):
        fixes = [f"Pass {problem.fix}, or let the field freeze it:\n{declared}converter=treewright.freeze)"]
    else:
        fixes = [f"Pass {problem.fix}."] if problem.fix else []
    if can_be_child and not is_own:
        fixes.append(f"{'Or make' if fixes else 'Make'} {name} a child: remove static().")
    return fixes


def _is_ours(cls: type[Any]) -> bool:
    """Whether a class is one of this package, whose fields a user can't declare differently."""
    return cls.__module__.partition(".")[0] == "treewright"


def _fix_for_reached(value: Any, problem: ArraysReachedError) -> str:
    """The value to pass instead of a method or function that reaches a node."""
    if isinstance(value, METHOD_TYPES):
        return f"Pass {value.__func__.__qualname__}, and pass the node as its first argument."
    if problem.can_be_child:
        return "Pass the node as an argument."
    return "Write a method, and look it up where you call it."


def is_assignable(value: Any) -> bool:
    """Whether public attributes of an object can be assigned, and users can edit its class."""
    cls: Any = type(value)
    if cls.__setattr__ is not object.__setattr__ or is_standard_class(cls) or is_installed(cls.__module__):
        return False
    return any(not name.startswith("_") for name in (*instance_attributes(value), *_settable_names(cls)))


def _settable_names(cls: type[Any]) -> Iterator[str]:
    """The slots and properties of a class that can be assigned, and its values that an instance can replace."""
    yield from slots_of(cls)
    for base in cls.__mro__:
        for name, member in () if is_standard_class(base) else vars(base).items():
            is_value = cls.__dictoffset__ != 0 and not callable(member) and not hasattr(type(member), "__get__")
            if is_value or getattr(member, "fset", None) is not None:
                yield name


def can_change_in_place(value: Any, holder: str) -> bool:
    """Whether an object that no key follows can change: a container of a user's function, or an assignable object."""
    if not isinstance(value, MUTABLE):
        return is_assignable(value)
    is_frozen = isinstance(value, np.ndarray) and not value.flags.writeable
    return holder == "user" and not is_frozen and not isinstance(value, jax.Array | jax.Ref)


def doubt_text(owner: type[Any], name: str, value: Any, changing: Any) -> str:
    """The warning for a static that holds an object or a container that can change without a retrace."""
    full_name = f"{owner.__qualname__}.{name}"
    inside = "" if changing is value else f", inside {text_with_class(value)}"
    declared = f"\nIf it is meant to change, declare:\n  {name}: ... = static(identity=True)"
    declared = "" if _is_ours(owner) else declared
    if isinstance(changing, MUTABLE):
        return (
            f"{full_name} is static and holds {text_with_class(changing)}{inside}, which can change in place. jit "
            f"compares it by identity: it ignores later changes.\n"
            f"{_instead(problem_of(changing), 'If it is constant, use')}.{declared}"
        )
    cls = type(changing).__name__
    return (
        f"{full_name} is static and holds {text_with_class(changing)}{inside}, whose attributes can be assigned. jit "
        f"ignores later assignments, and {'may retrace' if has_author(type(changing)) else 'retraces'} for a different "
        f"{cls}.\nIf it contains settings, freeze its class:\n  @dataclass(frozen=True)\n  class {cls}: ...{declared}"
    )


def _instead(problem: NoExactKeyError, use: str) -> str:
    """The advice for a value that can change."""
    return "Pass the values that it returns as arguments" if problem.fix is IDENTITY else f"{use} {problem.fix}"


def why_it_can_change(value: Any) -> str:
    """Why an object can't be frozen, with the fix; empty if it is immutable."""
    cls: Any = type(value)
    if isinstance(value, MUTABLE) or cls.__hash__ is None or foreign_library(cls) == "nnx":
        problem = problem_of(value)
        return f"{problem.description}. {_instead(problem, 'Use')}."
    if has_author(cls) or not is_assignable(value):
        return ""
    return (
        f"{text_with_class(value)}, whose attributes can be assigned. Decorate its class with "
        f"@dataclasses.dataclass(frozen=True), or freeze its attributes: treewright.freeze(vars(...))."
    )


def reject_field_on_class(value: Any) -> None:
    """Raise if a value is a field that was read on its class: `Dense(width=Other.width)`."""
    reject_use: Any = getattr(value, "reject_use", None) if isinstance(value, property) else None  # a FieldView's
    if reject_use is not None:
        reject_use()


# Children

# Only the first nodes of each class are checked: checking all makes nodes with 8 children 20 % slower to create.
MAX_CHECKED_NODES = 64
_COMMON = frozenset({tuple, dict, types.NoneType, np.ndarray, bool, int, float, complex})
_SETTINGS = (str, bytes, enum.Enum, type, np.dtype)
# Iterables such as `map` and `dict.values()`, which JAX treats as leaves.
_ITERABLES = (collections.abc.Iterator, collections.abc.Set, collections.abc.MappingView, range)


def check_fields(node: Any) -> None:
    """Warn about children of a new node that are invalid leaves, unless declared with `field()`.

    Raises:
        NodeInitError: If the value of a field is a field marker, such as `static()`.
    """
    info, (children, statics) = node.__node_info__, object.__getattribute__(node, "_node")
    info.table.to_check = max(info.table.to_check - 1, 0)
    for field, value in zip((*info.children, *info.statics), (*children, *statics.values), strict=True):
        if type(value) in _COMMON or isinstance(value, jax.Array):
            continue
        reject_field_on_class(value)
        if isinstance(value, dataclasses.Field):
            raise NodeInitError(
                f"{type(node).__qualname__}.{field.name} was assigned a field marker, such as static(), which would be "
                f"its value. Declare the field in the class body, and assign its value in __init__:\n"
                f"  {field.name}: {annotation_text(field.type, type(node))} = static()"
            )
        if field.is_plain and field.name not in info.table.warned:
            problem = _child_problem(type(node), field, value)
            if problem is not None:
                warn_user(problem, ChildWarning)
                info.table.warned.add(field.name)  # not if the warning was an error, which must come again


def _child_problem(cls: type[Any], field: Any, value: Any) -> str | None:
    """The warning for a child; None if it is fine."""
    full_name, value_cls = f"{cls.__qualname__}.{field.name}", type(value)
    if foreign_library(value_cls) is not None:
        leaves = jax.tree.leaves(value)  # The layer itself is a leaf if its library has not registered it.
        if all(
            leaf is not value and (hasattr(leaf, "dtype") or isinstance(leaf, int | float | complex)) for leaf in leaves
        ):
            return None
        fix = (
            f"Wrap the layer with adopt, which makes its arrays children and its settings statics:\n"
            f"  {field.name} = treewright.adopt(...)"
        )
    elif not jax.tree_util.all_leaves([value]) or hasattr(value_cls, "dtype") or hasattr(value_cls, "__jax_array__"):
        return None
    elif isinstance(value, _ITERABLES):
        fix = f"Pass a tuple: {field.name} = tuple(...)."
    elif isinstance(value, _SETTINGS) or callable(value) or dataclasses.is_dataclass(value_cls):
        fix = f"If it is a setting, make it static:\n  {_static_line(cls, field)}\n"
        if dataclasses.is_dataclass(value_cls):
            fix += f"If it contains arrays, decorate {value_cls.__qualname__} with @pytree_dataclass.\n"
        fix += "To keep it as a leaf anyway, declare it with field()."
    else:
        return None
    function = function_text(value)
    description = text_with_class(value) if function is None else f"the function {function}"
    leaves_are = "jit, grad and vmap accept only arrays and numbers as leaves"
    return f"{full_name} is a child but holds {description}. {leaves_are}.\n{fix}"


def _static_line(cls: type[Any], field: Any) -> str:
    """The declaration of a child as a static."""
    return f"{field.name}: {annotation_text(field.type, cls)} = {specifier_text('static', defaults_of(field))}"


def traced_setting(error: BaseException, node: Any, field: Any) -> str | None:
    """A bool or int that is a child is traced under jit. JAX suggests `static_argnums`, for the whole node."""
    message = str(error)
    needs_value = (jax.errors.ConcretizationTypeError, jax.errors.TracerIntegerConversionError)
    if not (isinstance(error, needs_value) or "concrete value" in message):
        return None
    is_number = field.type in (bool, int, "bool", "int")
    is_blamed = "depends on the value of the argument" not in message or f".{field.name}" in message
    if not (is_number and is_blamed and isinstance(getattr(node, field.name), Tracer)):
        return None
    return (
        f"{type(node).__qualname__}.{field.name} is a child, so it is traced and has no value here. If it is a "
        f"setting, make it static:\n  {_static_line(type(node), field)}"
    )
