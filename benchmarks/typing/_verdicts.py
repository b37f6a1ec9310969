"""From what a checker says to a verdict on each expression."""

import re
from collections.abc import Iterable, Mapping
from typing import Literal

from _checkers import Complaint, Complaints
from _expression import Expression
from _programs import Program

Verdict = Literal["right", "wrongly accepted", "wrongly refused", "Any"]

# What strict mode says where it has no types to go by, rather than where it found a mistake.
UNTYPED = re.compile(r"no-untyped-call|untyped-decorator|no-any-\w+|reportUnknown\w+|reportUntyped\w+")
ANY = re.compile(
    r'(?:is of type|received) "[^"]*\b(?:Any|Unknown)\b|\(has type "Any"\)'
    r"|Type `[^`]*\b(?:Any|Unknown)\b[^`]*` does not match asserted|assert_type\([^,]*\b(?:Any|Unknown)\b"
)


def verdicts(written: Program, said: Complaints) -> Mapping[str, Verdict]:
    """The verdict on each expression that the program asks."""
    about = {
        one.name: tuple(
            complaint for line in sorted(written.lines[one.name]) for complaint in said.get((written.file, line), ())
        )
        for one in written.asked
    }
    reached = {one.name: (written.file, written.canaries[one.name]) in said for one in written.asked}
    return {one.name: _verdict(one, about, reached=reached[one.name]) for one in written.asked}


def _verdict(one: Expression, about: Mapping[str, tuple[Complaint, ...]], *, reached: bool) -> Verdict:
    mistakes = _mistakes(about[one.name])
    if one.asked == "refuse":
        if mistakes - _mistakes(about[one.beside]):
            return "right"
        return "wrongly refused" if mistakes else "wrongly accepted"
    if mistakes:
        return "wrongly refused"
    return "Any" if about[one.name] or not reached else "right"


def _mistakes(complaints: Iterable[Complaint]) -> set[str]:
    """The codes of what a checker found wrong, without its regret that it can't see types."""
    return {one.code for one in complaints if not UNTYPED.fullmatch(one.code) and not ANY.search(one.message)}
