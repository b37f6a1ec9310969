"""A traced function taken apart: one program for what is small, and one for each kind of large array."""

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from treewright._jax_processes import equation_setting, some_equations
from treewright._values.reach import class_of

SMALL = 2**16  # bytes of an array, up to which every device may hold it whole while the others are made


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """Some equations of a function, to be a program.

    Attributes:
        inputs: The variables that it takes.
        leaves: The numbers of the function's results that it gives, first.
        more: The variables that it gives besides, which other parts take.
        run: The program, as a function of arrays.
        key: Equal for two parts that do the same with their inputs.
    """

    inputs: tuple[Any, ...]
    leaves: tuple[int, ...]
    more: tuple[Any, ...]
    run: Callable[..., list[Any]]
    key: Hashable


def parts_of(jaxpr: Any, placed: Sequence[Hashable]) -> list[Part]:
    """A function in parts: first one that makes all that is small, then others, which take what that one gives.

    Equations that depend on a large array stand together with it, and so do large arrays of which one is made from
    another. What no result depends on is left out.

    Args:
        jaxpr: The closed jaxpr of the function.
        placed: For each of its results where it is to be: results in unequal places are not made by equal programs.
    """
    whole: Any = jaxpr.jaxpr
    early: list[Any] = []
    group_of: dict[Any, list[Any]] = {}  # by variable the equations that one of them gives: a list for each group
    for equation in _needed(whole):
        variables = _variables_in(equation.invars)
        joined = _distinct(group_of[variable] for variable in variables if variable in group_of)
        if not joined and not (equation.outvars and any(map(_is_large, (*variables, *equation.outvars)))):
            early.append(equation)
            continue
        group = max(joined, key=len, default=list[Any]())
        for other in joined:
            if other is not group:
                group += other
                group_of.update((variable, group) for moved in other for variable in moved.outvars)
        group.append(equation)
        group_of.update(dict.fromkeys(equation.outvars, group))

    leaves_of: dict[int, list[int]] = {}
    for place, variable in enumerate(whole.outvars):
        group = early if _is_literal(variable) else group_of.get(variable, early)
        leaves_of.setdefault(id(group), []).append(place)
    parts = [
        _part(jaxpr, placed, group, inputs=_inputs_of(group), leaves=leaves_of.get(id(group), []))
        for group in _distinct(group_of.values())
    ]
    made_early = {variable for equation in early for variable in equation.outvars}
    between = dict.fromkeys(variable for part in parts for variable in part.inputs if variable in made_early)
    return [_part(jaxpr, placed, early, inputs=whole.invars, leaves=leaves_of.get(id(early), []), more=between), *parts]


def _part(
    jaxpr: Any,
    placed: Sequence[Hashable],
    equations: Sequence[Any],
    *,
    inputs: Iterable[Any],
    leaves: Sequence[int],
    more: Iterable[Any] = (),
) -> Part:
    whole: Any = jaxpr.jaxpr
    constants = {*whole.constvars}
    inputs = tuple(variable for variable in inputs if variable not in constants)
    outputs = [*(whole.outvars[place] for place in leaves), *more]
    run = some_equations(jaxpr, equations, inputs, outputs)
    numbers = {variable: number for number, variable in enumerate(inputs)}
    steps: list[Hashable] = [tuple(variable.aval for variable in inputs)]
    for equation in equations:
        taken = tuple(_operand(one, numbers) for one in equation.invars)
        numbers.update({variable: len(numbers) + place for place, variable in enumerate(equation.outvars)})
        given = tuple(variable.aval for variable in equation.outvars)
        setting = equation_setting(equation)
        steps.append((equation.primitive, _comparable(tuple(equation.params.items())), taken, given, setting))
    ends = tuple(_operand(one, numbers) for one in outputs)
    key = (tuple(steps), ends, tuple(placed[place] for place in leaves))
    return Part(inputs, tuple(leaves), tuple(more), run, key)


def _needed(whole: Any) -> list[Any]:
    """The equations that some result depends on, or that do something besides."""
    wanted = {*_variables_in(whole.outvars)}
    kept: list[Any] = []
    for equation in reversed(whole.eqns):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(_variables_in(equation.invars))
    return kept[::-1]


def _inputs_of(equations: Iterable[Any]) -> tuple[Any, ...]:
    """The variables that equations take and do not give, in the order in which they take them."""
    given: set[Any] = set()
    taken: dict[Any, None] = {}
    for equation in equations:
        taken.update(dict.fromkeys(one for one in _variables_in(equation.invars) if one not in given))
        given.update(equation.outvars)
    return tuple(taken)


def _distinct(groups: Iterable[list[Any]]) -> list[list[Any]]:
    return [*{id(group): group for group in groups}.values()]


def _variables_in(operands: Iterable[Any]) -> list[Any]:
    return [one for one in operands if not _is_literal(one)]


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _is_large(variable: Any) -> bool:
    aval: Any = variable.aval
    itemsize = getattr(getattr(aval, "dtype", None), "itemsize", 0)
    return math.prod(getattr(aval, "shape", ())) * int(itemsize) > SMALL


def _operand(variable: Any, numbers: dict[Any, int]) -> Hashable:
    if _is_literal(variable):
        value = np.asarray(variable.val)
        return (variable.aval, str(value.dtype), value.tobytes())
    number: Hashable = numbers.get(variable, variable)  # a constant is itself
    return number


def _comparable(value: Any) -> Hashable:
    """Equal only for what is the same setting of an equation; what can't be compared equals itself alone."""
    kind = class_of(value)
    if kind in {tuple, list}:
        return (kind, *map(_comparable, value))
    try:
        hash(value)
    except TypeError:
        return id(value)
    return (kind, value)
