"""Rules: mistakes that a program can make with nodes, each a function that returns the text for the user.

A rule looks at what happened, changes nothing, and returns None if all is well. Its name is the mistake, its docstring
the reason. `tests/slips` has its wrong and right programs, and the site prints them (docs/mistakes.py).

`_core` itself has no text of more than one line. It asks the rules at these points, by tuple or by name:

    classes     a class is read (BODY: the first text is the error) or finished (FINISHED: warnings)
    fields      a class is read, its fields (DECLARATIONS: the first text is the error)
    children    a node is made: children that are unlikely (CHILD: the first text is the warning)
    statics     a node is made: statics that were rejected (the error), or that can change (CHANGING: warnings); a node
                is pickled
    instances   an attribute is rejected, a copy is made, or an error passes through (METHOD: notes)
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from treewright.errors import warn_user

Rule = Callable[..., str | None]


def _texts(rules: Iterable[Rule], *context: Any) -> Iterator[str]:
    """The text of each rule that applies. A rule that fails has none: it must not replace what it explains."""
    for rule in rules:
        try:
            text = rule(*context)
        except Exception:  # noqa: BLE001, S112  a user's `__repr__` or `__getattr__`; `suppress` takes 0.5 us
            continue
        if text is not None:
            yield text


def first_text(rules: Iterable[Rule], *context: Any) -> str | None:
    """The text of the first rule that applies."""
    return next(_texts(rules, *context), None)


def reject(rules: Iterable[Rule], error: Callable[[str], Exception], *context: Any) -> None:
    """Raise an error for the first problem that one of the rules finds. A rule that fails must not accept it."""
    for rule in rules:
        problem = rule(*context)
        if problem is not None:
            raise error(problem)


def warn(rules: Iterable[Rule], category: type[Warning], *context: Any) -> None:
    """Warn of each problem that the rules find."""
    for problem in _texts(rules, *context):
        warn_user(problem, category)


def note(rules: Iterable[Rule], error: BaseException, *context: Any) -> None:
    """Add what the rules know about an error to it."""
    for text in _texts(rules, error, *context):
        with contextlib.suppress(Exception):  # a user's `add_note`
            if text not in getattr(error, "__notes__", ()):
                error.add_note(text)
