"""Statics that were refused, or that can change: what they are, what would go wrong, and the value to pass instead."""

import argparse
import collections.abc
import dataclasses
import types
from collections.abc import Mapping, MutableSequence, MutableSet
from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import METHOD_TYPES, foreign_library, has_author
from treewright._base.text import short_text, text, text_with_class, with_article
from treewright._core.mutable import GENERATORS, MUTABLE, is_assignable
from treewright._core.rules.declarations import reject_field_on_class
from treewright.errors import StaticFieldError

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
    if isinstance(value, GENERATORS) or foreign_library(type(value)) == "nnx":
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
