"""Rules: mistakes that a program can make, each a function that returns the text for the user, or None."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

Rule = Callable[..., str | None]


def note(rules: Iterable[Rule], error: BaseException, *context: Any) -> None:
    """Add what the rules know about an error to it. A rule that fails must not replace the error."""
    for rule in rules:
        with contextlib.suppress(Exception):
            text = rule(error, *context)
            if text is not None and text not in getattr(error, "__notes__", ()):
                error.add_note(text)
