"""Rules: mistakes that a program can make with nodes, each a function that returns the text for the user.

A rule looks at what happened, changes nothing, and returns None if all is well. Its name is the mistake, its docstring
the reason. `tests/slips` has its wrong and right programs, and the site prints them (docs/mistakes.py).

`_core` itself has no text of more than one line. It asks the rules at these points, by tuple or by name:

    classes     a class is read (BODY, ATTRIBUTE: the first text is the error) or finished (FINISHED: warnings)
    fields      a class is read, field by field (FIELD)
    children    a node is made: children that are unlikely (CHILD: warnings)
    statics     a node is made: statics that were rejected (the error), or that can change (CHANGING: warnings); a node
                is written or read, as a pickle or in an exported program
    instances   an attribute is rejected, a copy is made, or an error passes through (CONSTRUCTOR, COPY, METHOD: notes)
"""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

from treewright.errors import warn_user

Rule = Callable[..., str | None]


def first_text(rules: Iterable[Rule], *context: Any) -> str | None:
    """The text of the first rule that applies."""
    return next((text for rule in rules if (text := rule(*context)) is not None), None)


def reject(rules: Iterable[Rule], error: Callable[[str], Exception], *context: Any) -> None:
    """Raise an error for the first problem that one of the rules finds."""
    problem = first_text(rules, *context)
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
