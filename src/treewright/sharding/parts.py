"""A traced function taken apart: one program for what is small, and one for each kind of large array."""

import dataclasses
import functools
import itertools
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
        outputs: The variables that it gives.
        leaves: The numbers of the function's results among its outputs, which begin with these.
        run: The program, as a function of arrays.
        key: Equal for two parts that do the same with their inputs.
    """

    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    leaves: tuple[int, ...]
    run: Callable[..., list[Any]]
    key: Hashable


def parts_of(jaxpr: Any, placed: Sequence[Hashable]) -> tuple[Part, list[Part]]:
    """A function in parts: one that makes all that is small, and the others, which take what that one gives.

    Equations that depend on a large array stand together with it, and so do large arrays of which one is made from
    another. What no result depends on is left out.

    Args:
        jaxpr: The closed jaxpr of the function.
        placed: For each of its results where it is to be: results in unequal places are not made by equal programs.
    """
    whole: Any = jaxpr.jaxpr
    groups = _Groups()
    early: list[Any] = []
    for equation in _needed(whole):
        variables = [one for one in equation.invars if not _is_literal(one)]
        if groups.knows(variables) or any(map(_is_large, (*variables, *equation.outvars))):
            groups.add(equation, variables)
        else:
            early.append(equation)

    results = [*enumerate(whole.outvars)]
    late: dict[int, list[int]] = {group: [] for group in groups.equations}
    for place, variable in results:
        if not _is_literal(variable) and groups.knows([variable]):
            late[groups.of(variable)].append(place)
    parts: list[Part] = []
    make = functools.partial(_part, jaxpr, whole, placed)
    for group, leaves in late.items():
        equations = groups.equations[group]
        parts.append(make(equations, inputs=_inputs_of(equations), leaves=leaves))
    made_early = {variable for equation in early for variable in equation.outvars}
    between = dict.fromkeys(variable for part in parts for variable in part.inputs if variable in made_early)
    others = {place for leaves in late.values() for place in leaves}
    leaves = [place for place, _ in results if place not in others]
    return make(early, inputs=tuple(whole.invars), leaves=leaves, more=tuple(between)), parts


def _part(
    jaxpr: Any,
    whole: Any,
    placed: Sequence[Hashable],
    equations: Sequence[Any],
    *,
    inputs: tuple[Any, ...],
    leaves: Sequence[int],
    more: tuple[Any, ...] = (),
) -> Part:
    constants = {*whole.constvars}
    inputs = tuple(variable for variable in inputs if variable not in constants)
    outputs = (*(whole.outvars[place] for place in leaves), *more)
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
    return Part(inputs, outputs, tuple(leaves), run, key)


def _needed(whole: Any) -> list[Any]:
    """The equations that some result depends on, or that do something besides."""
    wanted = {*filter(lambda one: not _is_literal(one), whole.outvars)}
    kept: list[Any] = []
    for equation in reversed(whole.eqns):
        if equation.effects or not wanted.isdisjoint(equation.outvars):
            kept.append(equation)
            wanted.update(one for one in equation.invars if not _is_literal(one))
    return kept[::-1]


def _inputs_of(equations: Iterable[Any]) -> tuple[Any, ...]:
    """The variables that equations take and do not give, in the order in which they take them."""
    given: set[Any] = set()
    taken: dict[Any, None] = {}
    for equation in equations:
        taken.update(dict.fromkeys(one for one in equation.invars if not _is_literal(one) and one not in given))
        given.update(equation.outvars)
    return tuple(taken)


class _Groups:
    """Equations in groups: those that a variable joins are in one."""

    def __init__(self) -> None:
        self.equations: dict[int, list[Any]] = {}
        self._group_of: dict[Any, int] = {}
        self._joined: dict[int, int] = {}
        self._numbers = itertools.count()

    def knows(self, variables: Iterable[Any]) -> bool:
        return any(variable in self._group_of for variable in variables)

    def of(self, variable: Any) -> int:
        group = self._group_of[variable]
        while group in self._joined:
            group = self._joined[group]
        return group

    def add(self, equation: Any, variables: Iterable[Any]) -> None:
        groups = sorted({self.of(variable) for variable in variables if variable in self._group_of})
        group = groups[0] if groups else next(self._numbers)
        for other in groups[1:]:
            self._joined[other] = group
            self.equations[group] += self.equations.pop(other)
        self.equations.setdefault(group, []).append(equation)
        self._group_of.update(dict.fromkeys(equation.outvars, group))


def _is_literal(variable: Any) -> bool:
    return hasattr(variable, "val")


def _is_large(variable: Any) -> bool:
    aval: Any = variable.aval
    return math.prod(getattr(aval, "shape", ())) * _itemsize(aval) > SMALL


def _itemsize(aval: Any) -> int:
    return int(getattr(getattr(aval, "dtype", None), "itemsize", 0))


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
