"""Statics that were rejected, or that can change: what they are, what would go wrong, and the value to pass instead."""

import argparse
import dataclasses
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableSequence, MutableSet
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from treewright._base.functions import (
    METHOD_TYPES,
    PLAIN_ARRAYS,
    foreign_library,
    has_author,
    instance_attributes,
    is_installed,
    is_standard_class,
    slots_of,
)
from treewright._base.text import short_text, text, text_with_class, with_article
from treewright._core.fields import reject_field_on_class
from treewright._core.mutable import GENERATORS, MUTABLE
from treewright.errors import StaticFieldError

_AS_CONSTANTS = "Its arrays would be constants of the compiled program, without gradients or updates."
_IN_PLACE = "a change in place would give stale results"
_IDENTITY = "static(identity=True)"
_OWN_HASH = (
    "a hashable value, such as a tuple, or define __hash__ and __eq__ on its class (@dataclass(frozen=True) does)"
)
# What `freeze` returns for a mutable value.
_FROZEN: Mapping[type[Any], str] = types.MappingProxyType(
    {
        bytearray: "bytes",
        types.SimpleNamespace: "treewright.freeze(config)",
        argparse.Namespace: "treewright.freeze(args)",
        MutableSequence: "a tuple",
        MutableSet: "a frozenset",
        dict: "treewright.freeze(the_dict)",
        Mapping: "treewright.freeze(config)",
    }
)


class Rejection(NamedTuple):
    """The parts of the message about a value that can't be static."""

    description: str
    consequence: str
    instead: str = ""  # the value to pass instead; empty if there is none
    can_freeze: bool = False  # whether `freeze` returns that value
    can_be_child: bool = True


Rule = Callable[[Any], Rejection]


@dataclasses.dataclass(eq=False)
class NoExactKeyError(TypeError):
    """A value that can't be static, and the rule that says why."""

    value: Any
    rule: Rule


# Values that can't be static


def tracer(value: Any) -> Rejection:
    """It would be used after its trace has ended."""
    consequence = "A tracer is valid only during its trace, but a static outlives it."
    return Rejection(f"a tracer, {text(value)}", consequence)


def ref(value: Any) -> Rejection:
    """It belongs to the program, not to the tree."""
    consequence = "A ref changes in place, but jit would treat it as part of the program, not of the tree."
    return Rejection(f"a ref, {text(value)}", consequence)


def generator(value: Any) -> Rejection:
    """A random generator, an iterator, an open file or a layer of nnx changes when it is used."""
    consequence = "It changes when it is used, but a compiled program keeps the state that it had during the trace."
    return Rejection(text_with_class(value), consequence, _IDENTITY, can_be_child=False)


def array(value: Any) -> Rejection:
    """Its `==` is no bool, and numpy's arrays change in place."""
    consequence = f"jit compares statics with ==, which returns an array, and {_IN_PLACE}."
    if isinstance(value, jax.Array):
        return Rejection(f"an array, {text(value)}", consequence)
    if type(value) not in PLAIN_ARRAYS:
        return Rejection(text_with_class(value), consequence)
    frozen = "treewright.freeze(array.tolist())" if value.dtype.hasobject else "treewright.freeze(table)"
    instead = f"{frozen}, for a constant table"
    return Rejection(f"an array, {text(value)}", consequence, instead, can_freeze=not value.dtype.hasobject)


def mutable(value: Any) -> Rejection:
    """A list that was changed in place would still be the same static: the program is stale."""
    consequence = f"jit compares statics and never copies them, so {_IN_PLACE}."
    return Rejection(text_with_class(value), consequence, *_frozen_form(value))


def bad_equality(value: Any, result: str) -> Rejection:
    """An `==` that raises, or that returns an array, fails in jitted functions of other instances."""
    consequence = f"{type(value).__qualname__}.__eq__ {result}, so jit can't tell whether it compiled for this value."
    return Rejection(text_with_class(value), consequence, _OWN_HASH)


def unhashable(value: Any) -> Rejection:
    """The author of its class says that no hash agrees with its `==`."""
    consequence = "It is not hashable, so jit can't tell whether it compiled for this value."
    return Rejection(text_with_class(value), consequence, *_frozen_form(value))


def reaches_arrays(node: Any) -> Rejection:
    """Training would never change them."""
    return Rejection(f"{with_article(type(node).__qualname__)} with arrays", _AS_CONSTANTS)


def reaches_unfinished_node(node: Any) -> Rejection:
    """A node would be a part of its own statics, with the arrays that it will have."""
    description = f"{with_article(type(node).__qualname__)} that is being built"
    return Rejection(description, _AS_CONSTANTS, can_be_child=False)


def nested_too_deeply(value: Any) -> Rejection:
    """Python's stack ends before the value does."""
    description = f"{with_article(type(value).__qualname__)} that is nested too deeply"
    return Rejection(description, "Its parts are compared one inside the other, up to a few hundred.")


def unreadable(owner: type[Any], name: str, error: BaseException) -> str:
    """A static is compared by its class and attributes; the value's own code raised when they were read."""
    return (
        f"{owner.__qualname__}.{name} has a value that nodes can't compare: reading it, or what is in it, raised "
        f"{error!r}. Use a value whose class and attributes can be read."
    )


_REACHED: tuple[Rule, ...] = (reaches_arrays, reaches_unfinished_node)
_BY_TYPE: tuple[tuple[Any, Rule], ...] = (
    (Tracer, tracer),
    (jax.Ref, ref),
    (GENERATORS, generator),
    ((np.ndarray, jax.Array), array),
    (MUTABLE, mutable),
)


def rule_of(value: Any) -> Rule:
    """The rule about a value that can change in place, or that has no hash."""
    by_type = [rule for types_of_rule, rule in _BY_TYPE if isinstance(value, types_of_rule)]
    last = generator if foreign_library(type(value)) == "nnx" else unhashable
    return [*by_type, last][0]


def _frozen_form(value: Any) -> tuple[str, bool]:
    """The value to pass instead, and whether `freeze` returns it."""
    cls: Any = type(value)
    for kind, frozen in _FROZEN.items():
        if isinstance(value, kind):
            return frozen, True
    if cls.__hash__ is None and dataclasses.is_dataclass(cls):
        instead = "treewright.freeze(dataclasses.asdict(config)), or decorate its class with @dataclass(frozen=True)"
        return instead, False
    return _OWN_HASH, False


# The error of a new node


def static_field_error(
    cls: type[Any], values: Mapping[str, Any], problems: Mapping[str, NoExactKeyError]
) -> StaticFieldError:
    """The error for the static fields of a new node that have a problem: the first in full, the others by name."""
    name, problem = next(iter(problems.items()))
    reject_field_on_class(problem.value)
    rejections = {other: each.rule(each.value) for other, each in problems.items()}
    rejection = rejections.pop(name)
    lines = [
        f"{cls.__qualname__}.{name} is static but {_found(values[name], problem, rejection)}.",
        rejection.consequence,
        *(
            _fixes(cls, name, values[name], problem, rejection)
            or ["Store it outside the node, and pass it as an argument."]
        ),
    ]
    if rejections:
        lines.append(f"Other static fields of {cls.__qualname__} that must change:")
        lines += [f"  {other}: {each.description}" for other, each in rejections.items()]
    return StaticFieldError("\n".join(lines))


def _found(value: Any, problem: NoExactKeyError, rejection: Rejection) -> str:
    """The value with the problem, and the value of the static field that contains it."""
    if problem.value is value:
        return f"holds {rejection.description}"
    if problem.rule in _REACHED:
        return f"reaches {rejection.description}, through {text_with_class(value)}"
    return f"holds {rejection.description}, inside {text_with_class(value)}"


def _fixes(cls: type[Any], name: str, value: Any, problem: NoExactKeyError, rejection: Rejection) -> list[str]:
    """The fixes; empty if there is none."""
    is_own, can_be_child, declared = _is_ours(cls), rejection.can_be_child, f"  {name}: ... = static("
    if problem.rule in _REACHED and problem.value is not value:
        fixes, can_be_child = [_instead_of_reaching(value, rejection)], can_be_child and isinstance(value, METHOD_TYPES)
    elif rejection.instead is _IDENTITY:
        fixes = [f"Pass the values that it returns as arguments. Or, to keep this object:\n{declared}identity=True)"]
    elif rejection.can_freeze and not is_own and (problem.value is value or isinstance(value, tuple | frozenset)):
        fixes = [f"Pass {rejection.instead}, or let the field freeze it:\n{declared}converter=treewright.freeze)"]
    else:
        fixes = [f"Pass {rejection.instead}."] if rejection.instead else []
    if can_be_child and not is_own:
        fixes.append(f"{'Or make' if fixes else 'Make'} {name} a child: remove static().")
    return fixes


def _is_ours(cls: type[Any]) -> bool:
    """Whether a class is one of this package, whose fields a user can't declare differently."""
    return cls.__module__.partition(".")[0] == "treewright"


def _instead_of_reaching(value: Any, rejection: Rejection) -> str:
    """The value to pass instead of a method or function that reaches a node."""
    if isinstance(value, METHOD_TYPES):
        return f"Pass {value.__func__.__qualname__}, and pass the node as its first argument."
    if rejection.can_be_child:
        return "Pass the node as an argument."
    return "Write a method, and look it up where you call it."


# Values that can change


def captured_container(owner: type[Any], name: str, value: Any, changing: Any, holder: str) -> str | None:
    """A list that a user's function captured is compared by identity, so its changes cause no retrace."""
    if holder != "user" or not isinstance(changing, MUTABLE) or isinstance(changing, jax.Array | jax.Ref):
        return None
    if isinstance(changing, np.ndarray) and not changing.flags.writeable:
        return None
    advice = _advice(rule_of(changing)(changing), "\nIf it is constant, use")
    return (
        f"{_holds(owner, name, value, changing)}, which can change in place. jit compares it by identity: it ignores "
        f"later changes.{advice}{_if_meant(owner, name)}"
    )


def captured_array(owner: type[Any], name: str, value: Any, changing: Any, holder: str) -> str | None:
    """An array that a user's function captured looks like a parameter, but `jit` compiles it into the program."""
    if holder != "user" or not isinstance(changing, jax.Array) or isinstance(changing, jax.Ref):
        return None
    return (
        f"{_holds(owner, name, value, changing)}. jit compiles it in as a constant: no gradient reaches it, and no "
        f"update.\n"
        f"If it is a parameter, make it a child. If it is a constant table, use treewright.freeze(numpy.asarray(...))."
    )


def assignable_object(owner: type[Any], name: str, value: Any, changing: Any, _holder: str) -> str | None:
    """An object is compared by identity, so an assignment to its attributes causes no retrace."""
    if isinstance(changing, MUTABLE) or not _is_assignable(changing):
        return None
    cls = type(changing).__name__
    return (
        f"{_holds(owner, name, value, changing)}, whose attributes can be assigned. jit ignores later assignments, and "
        f"{'may retrace' if has_author(type(changing)) else 'retraces'} for a different {cls}.\n"
        f"If it contains settings, freeze its class:\n  @dataclass(frozen=True)\n  class {cls}: ..."
        f"{_if_meant(owner, name)}"
    )


CHANGING = (captured_container, captured_array, assignable_object)  # at most one of them warns


def can_change(value: Any) -> str | None:
    """`freeze` would return a value that is no constant."""
    cls: Any = type(value)
    if isinstance(value, MUTABLE) or cls.__hash__ is None or foreign_library(cls) == "nnx":
        rejection = rule_of(value)(value)
        return f"{rejection.description}.{_advice(rejection, ' Use')}"
    if has_author(cls) or not _is_assignable(value):
        return None
    return (
        f"{text_with_class(value)}, whose attributes can be assigned. Decorate its class with "
        f"@dataclasses.dataclass(frozen=True), or freeze its attributes: treewright.freeze(vars(...))."
    )


def _is_assignable(value: Any) -> bool:
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


def _holds(owner: type[Any], name: str, value: Any, changing: Any) -> str:
    inside = "" if changing is value else f", inside {text_with_class(value)}"
    is_array = isinstance(changing, jax.Array)
    description = f"an array, {text(changing)}" if is_array else text_with_class(changing)
    return f"{owner.__qualname__}.{name} is static and holds {description}{inside}"


def _if_meant(owner: type[Any], name: str) -> str:
    """The declaration of a static that is meant to change."""
    declared = f"\nIf it is meant to change, declare:\n  {name}: ... = static(identity=True)"
    return "" if _is_ours(owner) else declared


def _advice(rejection: Rejection, use: str) -> str:
    """The value to use instead of one that can change."""
    if rejection.instead is _IDENTITY:
        return f"{use[0]}Pass the values that it returns as arguments."
    return f"{use} {rejection.instead}." if rejection.instead else ""


# Pickles that do not fit


def function_without_name(full_name: str, value: Any) -> str:
    """`pickle` writes a function as its import path, and would say so without the field."""
    return (
        f"{full_name} holds {short_text(value)}, a function that pickle can't find by its name. Use "
        f"cloudpickle.dumps(...) instead of pickle.dumps(...)."
    )


def pickle_of_other_fields(cls: type[Any], written: Iterable[str], names: Iterable[str]) -> str:
    """The class has changed since, so a value would be lost or missing."""
    return (
        f"The pickle contains the fields {_listed(written)} of {cls.__qualname__}, which now has {_listed(names)}. It "
        f"was written by a different version of the class. Load it with that version, or recreate the object."
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"
