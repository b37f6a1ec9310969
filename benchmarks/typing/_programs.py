"""One program for each library: the same expressions, each in a function of its own, in the library's spelling."""

import ast
import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping

import _classes
import _real
import _uses
from _expression import Expression
from _libraries import Library

GROUPS = (*_classes.GROUPS, *_uses.GROUPS, *_real.GROUPS)

HEAD = """
import abc
import copy
import dataclasses
import enum
import functools
from collections.abc import Callable
from dataclasses import KW_ONLY, InitVar
from typing import Any, ClassVar, Final, Generic, Literal, Protocol, Self, TypeVar, assert_type, overload

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jaxtyping import Float
{imports}

K = TypeVar("K")
T = TypeVar("T")
kernel: jax.Array = jnp.ones((3, 3))
bias: jax.Array = jnp.ones(3)
x: jax.Array = jnp.ones((2, 3))
xs: jax.Array = jnp.ones((4, 2, 3))
"""

# Ends each function. A checker that finds nothing wrong here takes the function for one that never gets this far, so
# its silence about the lines above means nothing.
CANARY = 'reached: int = "not an int"'

ASKED = re.compile(r"\s*#\?$")
NODE = re.compile(r"(?P<indent> *)node (?P<name>\w+)(?:\((?P<bases>.*)\))?(?: (?P<option>[\w-]+))?:(?P<rest>.*)")
FIELD = re.compile(r"(?P<start> +\w+: )(?P<type>.+) = (?P<word>static|converted)\((?P<args>.*)\)(?P<rest>.*)")
COPY = re.compile(r"replaced\((?P<node>\w+(?:\(\))?), (?P<name>\w+)=(?P<value>[^)]+)\)")
DEFINED = re.compile(r"^(?:node|class|def) (\w+)", re.MULTILINE)
FOREIGN_BASES = ("Generic[", "abc.ABC")


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
    """The text, and for each expression the lines where its verdict is asked and the line of its canary."""

    library: Library
    text: str
    asked: tuple[Expression, ...]
    lines: Mapping[str, frozenset[int]]
    canaries: Mapping[str, int]

    @property
    def file(self) -> str:
        """The name of the file that it is written to."""
        return re.sub(r"\W", "_", self.library.name) + "_program.py"


def expressions() -> Iterator[Expression]:
    """All expressions, in order."""
    for group in GROUPS:
        yield from group.expressions


def reason_to_skip(library: Library, expression: Expression) -> str | None:
    """Why the library is not asked this; None if it is."""
    reasons = (why for start, why in library.lacks.items() if expression.name.startswith(start))
    return next(reasons, None)


def asked_of(library: Library) -> list[Expression]:
    """The expressions that the library is asked."""
    return [one for one in expressions() if reason_to_skip(library, one) is None]


def program(library: Library) -> Program:
    """The program of one library."""
    asked = asked_of(library)
    text = HEAD.format(imports=library.imports).strip().splitlines()
    for block in _setup(asked):
        text += ["", "", *_spelled(library, block)]
    lines: dict[str, frozenset[int]] = {}
    canaries: dict[str, int] = {}
    for one in asked:
        text += ["", "", f"def {one.name.lower()}() -> None:"]
        code = [f"    {line}" for line in _spelled(library, one.code)]
        marked = {len(text) + i for i, line in enumerate(code, 1) if ASKED.search(line)}
        lines[one.name] = frozenset(marked or {len(text) + len(code)})
        text += [*(ASKED.sub("", line) for line in code), f"    {CANARY}"]
        canaries[one.name] = len(text)
    return Program(library, "\n".join([*text, ""]), tuple(asked), lines, canaries)


def _setup(asked: Iterable[Expression]) -> list[str]:
    """The shared definitions that the expressions asked need; not all, since a library may be unable to have some."""
    blocks = [block for group in GROUPS for block in re.split(r"\n\n(?=\S)", group.setup.strip("\n"))]
    needed = "\n".join(one.code for one in asked)
    kept: list[str] = []
    for block in reversed(blocks):
        names = DEFINED.findall(block)
        if any(re.search(rf"\b{name}\b", needed) for name in names):
            kept.insert(0, block)
            needed += block
    return kept


def _spelled(library: Library, code: str) -> Iterator[str]:
    """The code in the library's own words."""
    for line in code.splitlines():
        if found := NODE.fullmatch(line):
            yield from _head(library, found)
        elif found := FIELD.fullmatch(line):
            yield found["start"] + _field(library, found) + found["rest"]
        elif found := COPY.search(line):
            yield line[: found.start()] + library.replaced.format(**found.groupdict()) + line[found.end() :]
        else:
            yield line.replace("@jit_method", f"@{library.jit_method}")


def _head(library: Library, found: re.Match[str]) -> Iterator[str]:
    """A class statement with its decorators."""
    bases = [base for base in re.split(r",\s*(?![^\[]*\])", found["bases"] or "") if base]
    inherits = any(not base.startswith(FOREIGN_BASES) for base in bases)
    option = found["option"] or ("heir" if inherits else "")
    if library.base and not inherits:
        bases = [library.base, *bases]
    keywords = library.keywords.get(option, library.keywords.get("", ""))
    inside = ", ".join([*bases, keywords] if keywords else bases)
    decorators = library.decorators.get(option, library.decorators.get("", ""))
    statement = f"class {found['name']}({inside}):" if inside else f"class {found['name']}:"
    for line in (*decorators.splitlines(), statement):
        yield found["indent"] + line + found["rest"]


def _field(library: Library, found: re.Match[str]) -> str:
    args, type_ = found["args"], found["type"]
    if found["word"] == "converted":
        return library.converted.format(type=type_, args=args)
    calls = ast.parse(f"f({args})", mode="eval").body
    assert isinstance(calls, ast.Call)
    given = {one.arg: ast.unparse(one.value) for one in calls.keywords}
    value = f" = {given['default']}" if [*given] == ["default"] else f" = field({args})" if args else ""
    return library.static.format(type=type_, args=args, more=f", {args}" if args else "", value=value)
