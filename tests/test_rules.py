"""Rules: what the package says about mistakes. Each has a row in `tests/slips`, and none replaces an error."""

import ast
import importlib
import inspect
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import treewright
from tests.conftest import skip_before_jax
from tests.test_slips import TABLES, Row, rows_of, run, skip_without
from treewright import Module, field

PACKAGE = Path(inspect.getfile(treewright)).parent
# In `sharding`, a rule is for mesh axes.
FILES = [path for path in PACKAGE.rglob("*.py") if path.stem in {"rules", "mistakes"} or path.parent.name == "rules"]


def rules_of(path: Path) -> dict[str, ast.FunctionDef]:
    """The functions that have the form of a rule: they return the text for a user, or None."""
    functions = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)]
    room = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    return {
        f"{room}.{node.name}": node
        for node in functions
        if not node.name.startswith("_") and ast.unparse(node.returns or node) in {"str", "str | None", "Rejection"}
    }


# Its row would fail in the garbage collector of a table that has run for long, at the end of the stack.
WITHOUT_ROW = {"_core.rules.statics.nested_too_deeply"}  # tests/nodes/test_changing_statics.py
RULES = {
    name: node
    for path in FILES
    if path.stem not in {"declarations", "__init__"}
    for name, node in rules_of(path).items()
}
ROWS = [(table, row, re.sub(r"\n   (?! )", " ", row.message)) for table in TABLES for row in rows_of(table)]
LONGEST = 15  # lines of a rule


def telling_parts(rule: ast.FunctionDef) -> list[str]:
    """The parts of its texts that are the same for each program, unless they are too short to tell it from others."""
    first, *body = rule.body
    docstring = first.value if isinstance(first, ast.Expr) else None
    texts = [node for part in (first, *body) for node in ast.walk(part) if isinstance(node, ast.Constant)]
    return [
        part.strip()
        for node in texts
        if node is not docstring and isinstance(node.value, str)
        for part in node.value.splitlines()
        if len(part) > 10
    ]


def answers(name: str, row: Row, folder: Path) -> bool:
    """Whether a rule has a text about a row's program."""
    module, _, rule = name.rpartition(".")
    code = getattr(importlib.import_module(f"treewright.{module}"), rule).__code__
    texts: list[Any] = []

    def record(frame: types.FrameType, event: str, result: Any) -> None:
        if event == "return" and frame.f_code is code and result is not None:
            texts.append(result)

    profile = sys.getprofile()
    sys.setprofile(record)
    try:
        run(row.code, folder)
    finally:
        sys.setprofile(profile)
    return bool(texts)


@pytest.mark.parametrize("name", sorted(RULES.keys() - WITHOUT_ROW))
def test_each_rule_answers_a_row_in_the_tables(name: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    parts = telling_parts(RULES[name])
    rows = [(table, row) for table, row, message in ROWS if any(part in message for part in parts)]
    for table, _ in rows[:1]:
        skip_without(table)

    assert any(answers(name, row, tmp_path) for _, row in rows), f"no row for {name}, with a text like {parts}"


@pytest.mark.parametrize("name", RULES)
def test_each_rule_says_why_and_is_short(name: str) -> None:
    _, *body = RULES[name].body

    assert ast.get_docstring(RULES[name])
    assert (body[-1].end_lineno or 0) - body[0].lineno < LONGEST


MECHANISM = sorted((PACKAGE / "_core").glob("*.py"))


def long_texts(path: Path) -> list[str]:
    """The texts of more than one line in a file, without docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    texts = [
        node
        for node in nodes
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]
    return [
        f"{path.name}:{text.lineno} {ast.unparse(text)}"
        for text in texts
        if text.end_lineno != text.lineno and id(text) not in docstrings
    ]


def test_the_mechanism_has_no_text_of_more_than_one_line() -> None:
    assert [text for path in MECHANISM for text in long_texts(path)] == []


def test_the_mechanism_can_be_read_in_an_evening() -> None:
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in MECHANISM)

    assert lines <= 2_996, "A finding has two answers: a simpler mechanism, or a rule beside it."


class Unreadable:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class UnreadableDict(dict[str, int]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def fail(value: Any) -> Any:
    raise TypeError(value)


class InMethod(Module):
    x: float

    def run(self) -> None:
        fail(Unreadable())


class InInit(Module):
    x: float

    def __init__(self) -> None:
        fail(Unreadable())


class InConverter(Module):
    x: Any = field(converter=fail)


@pytest.mark.parametrize(
    "run",
    [InMethod(1.0).run, InInit, lambda: InConverter(UnreadableDict(a=1))],
    ids=["in a method", "in an __init__", "in a converter"],
)
def test_an_error_with_a_value_that_has_no_text_stays_itself(run: Callable[[], Any]) -> None:
    with pytest.raises(TypeError) as caught:
        run()
    assert type(caught.value.args[0]) in {Unreadable, UnreadableDict}


def test_the_note_on_a_converter_names_the_field_and_the_class_of_a_value_that_has_no_text() -> None:
    with pytest.raises(TypeError) as caught:
        InConverter(UnreadableDict(a=1))
    assert caught.value.__notes__ == [
        "Raised by the converter of InConverter.x, called with a UnreadableDict, <UnreadableDict object>."
    ]


class Unfriendly(type):
    def __getattr__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Odd(metaclass=Unfriendly):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __call__(self) -> None: ...


def test_a_value_whose_attributes_fail_is_a_child_and_a_default_like_any_other() -> None:
    odd = Odd()

    class Net(Module):
        act: Any = odd

    assert Net().act is Net(odd).act is odd


def test_a_rule_that_fails_rejects_but_gives_no_advice() -> None:
    runners: Any = importlib.import_module("treewright._core.rules")

    def failing(value: Any) -> str | None:
        raise RuntimeError(f"failed for {value}")

    with pytest.raises(RuntimeError, match=r"^failed for 1$"):
        runners.reject([failing], TypeError, 1)
    runners.warn([failing], UserWarning, 1)
    runners.note([failing], TypeError())
    assert runners.first_text([failing], 1) is None


def test_an_error_in_a_method_of_something_else_than_a_node_stays_itself() -> None:
    method: Any = InMethod(1.0).run
    method.__self__ = object()  # as in a spec of methods
    with pytest.raises(TypeError) as caught:
        method()
    assert type(caught.value.args[0]) is Unreadable


class Flags(Module):
    is_training: bool
    size: int

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        if self.is_training:
            pass


def test_an_error_of_jax_in_a_method_that_a_constructor_calls_is_explained() -> None:
    make: Any = Flags
    with pytest.raises(jax.errors.TracerBoolConversionError) as caught:
        jax.vmap(make)(jnp.array([True]), jnp.array([1]))
    (note,) = [note for note in caught.value.__notes__ if "static()" in note]
    assert note.splitlines() == [
        line
        for name, annotation in [("is_training", "bool"), ("size", "int")]
        for line in (
            f"Flags.{name} is a child, so it is traced and has no value here. If it is a setting, make it static:",
            f"  {name}: {annotation} = static()",
        )
    ]
