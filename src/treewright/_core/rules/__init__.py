"""Rules: mistakes that a program can make with nodes, each a function that returns the text for the user.

A rule looks at what happened, changes nothing, and returns None if all is well. Its docstring says what goes wrong
without it. `tests/slips` has its wrong and right programs, and the site prints them (docs/reference/mistakes.md).

`_core` itself has no advice. It asks the rules at these points, by list or by name:

    classes     a class is read (BODY, ATTRIBUTE, FIELD: the first text is the error) or finished (FINISHED: warnings)
    children    a node is made: children that are unlikely (warnings)
    statics     a node is made: statics that were rejected (the error), or that can change (warnings)
    instances   an attribute is rejected, or an error passes through a constructor, a copy or a method (notes)
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from treewright.errors import warn_user

Rule = Callable[..., str | None]


def reject(rules: Iterable[Rule], error: Callable[[str], Exception], *context: Any) -> None:
    """Raise an error for the first problem that one of the rules finds."""
    for rule in rules:
        problem = rule(*context)
        if problem is not None:
            raise error(problem)


def warn(rules: Iterable[Rule], category: type[Warning], *context: Any) -> None:
    """Warn of each problem that the rules find."""
    for rule in rules:
        problem = rule(*context)
        if problem is not None:
            warn_user(problem, category)


def note(rules: Iterable[Rule], error: BaseException, *context: Any) -> None:
    """Add what the rules know about an error to it. A rule that fails must not replace the error."""
    for rule in rules:
        with contextlib.suppress(Exception):
            text = rule(error, *context)
            if text is not None and text not in getattr(error, "__notes__", ()):
                error.add_note(text)
