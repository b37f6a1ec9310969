"""What the tests of retraces share."""

from __future__ import annotations

import itertools
import re
import types
from typing import TYPE_CHECKING, Any

import jax

import treewright

if TYPE_CHECKING:
    from collections.abc import Callable

    from treewright import RetraceReport

    Call = Callable[[Any], object]


def details(report: RetraceReport) -> list[str]:
    """The lines below the headline, without addresses."""
    return [re.sub(r"0x[0-9a-f]+", "0x...", line[4:]) for line in str(report).splitlines()[1:]]


_numbers = itertools.count()


def fresh(function: Any) -> Any:
    """A function like this one, as if it stood at a place of its own in the program."""
    code = function.__code__.replace(co_consts=(*function.__code__.co_consts, f"copy {next(_numbers)}"))
    made = types.FunctionType(code, function.__globals__, None, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def reported(function: Callable[..., Any], *calls: Call, **options: Any) -> list[RetraceReport]:
    """The reports for calls of the jitted function."""
    reports: list[RetraceReport] = []
    jitted = jax.jit(fresh(function), **options)
    with treewright.explain_retraces(on_report=reports.append):
        for call in calls:
            call(jitted)
    return reports
