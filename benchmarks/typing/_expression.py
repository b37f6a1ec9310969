"""What an expression is: a piece of code, and the verdict that is asked of it. Every library is asked the same.

The code is Python with five words that each library spells in its own way (`_libraries.py`):

    node Name(Base):             the class statement; `node Name keyword-only:`, `node Name own-init:` with that option
    name: type = static(...)     a static field
    name: type = converted(f)    a field whose values go through `f`
    replaced(obj, name=value)    a changed copy
    @jit_method                  jit for a method that subclasses override

`field`, `jit`, `grad`, `value_and_grad`, `vmap`, `tree_map`, `scan` and `while_loop` are imported under these names. A
verdict is asked of the lines that end in `#?`, or else of the last one.
"""

import dataclasses
from typing import Literal

Asked = Literal["accept", "refuse"]


@dataclasses.dataclass(frozen=True, slots=True)
class Expression:
    """One expression.

    A refusal counts only if the checker has something to say that it does not say of the right code in `beside`.
    `runs` is the reason why a checker should refuse what Python lets pass; without it, Python must raise on that line.
    `design` marks what no checker can give unless the library was made for it: jax's own types say `Any` there, or no
    field specifier of the usual form can see it.
    """

    name: str
    asked: Asked
    code: str
    beside: str = ""
    runs: str = ""
    design: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Expressions about one subject; `setup` stands before them in every program that has any of them."""

    letter: str
    title: str
    setup: str
    expressions: tuple[Expression, ...]


def accept(name: str, code: str, *, design: bool = False) -> Expression:
    """Right code."""
    return Expression(name, "accept", code, design=design)


def reveal(name: str, type_: str, code: str, *, design: bool = False) -> Expression:
    """Right code, whose last line is an expression that must have exactly this type."""
    *before, last = code.splitlines()
    # By way of a variable: pyright would infer the expression with the type that is asked in view.
    lines = [*before, f"found = {last}  #?", f"assert_type(found, {type_})  #?"]
    return Expression(name, "accept", "\n".join(lines), design=design)


def refuse(name: str, beside: str, code: str, *, runs: str = "", design: bool = False) -> Expression:
    """Wrong code; `beside` is the same done right."""
    return Expression(name, "refuse", code, beside, runs, design)


def declared(field: str) -> str:
    """A class with one field."""
    return f"node Holder:\n    {field}"


UNCHECKED = "Python does not compare values with annotations"
STALE = "jit compares statics and never copies them, so one that changes in place gives stale results"
NO_HASH = "jit needs a hash and a plain ==, and arrays have neither"
