"""`typed.pyi` and the JAX that runs: every option of a function is in its stub, and nothing else is."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import treewright
from treewright import typed

STUB = ast.parse((Path(treewright.__file__).parent / "typed.pyi").read_text(encoding="utf-8"))
FUNCTIONS = sorted({*typed.__all__} - {"Ref", "WithReplace", "hessian", "jacfwd", "jacrev"})
# Options that JAX deprecates, ignores or keeps private
LEFT_OUT = {"device", "backend", "concrete", "reduce_axes", "operand", "_split_transpose"}
# Options that some supported JAX versions lack.
NEWER = {"kind", "memory_space", "pin", "static_argnames", "sum_match", "unroll"}


def definitions(name: str) -> list[ast.FunctionDef]:
    in_classes = {id(node) for cls in ast.walk(STUB) if isinstance(cls, ast.ClassDef) for node in ast.walk(cls)}
    functions = (node for node in ast.walk(STUB) if isinstance(node, ast.FunctionDef) and node.name == name)
    return [function for function in functions if id(function) not in in_classes]


def options_of(arguments: ast.arguments) -> set[str]:
    """The names of arguments that callers may pass by name."""
    return {argument.arg for argument in (*arguments.args, *arguments.kwonlyargs)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_stub_has_the_options_of_jax(name: str) -> None:
    parameters = inspect.signature(getattr(typed, name)).parameters.values()
    ours = set[str]().union(*(options_of(definition.args) for definition in definitions(name)))
    theirs = {p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}}
    of_a_call = {"fun"} if name == "eval_shape" else set[str]()  # it passes its options to the function

    left_out = LEFT_OUT - {"device"} if name == "device_put" else LEFT_OUT
    assert theirs - ours <= left_out | of_a_call
    assert ours - theirs <= NEWER


@pytest.mark.parametrize("name", FUNCTIONS)
def test_stubs_accept_the_positional_arguments_of_jax(name: str) -> None:
    parameters = inspect.signature(getattr(typed, name)).parameters.values()
    theirs = [p.name for p in parameters if p.kind in {p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD}]
    ours = [[argument.arg for argument in (*stub.args.posonlyargs, *stub.args.args)] for stub in definitions(name)]

    expected = [parameter for parameter in theirs if parameter not in LEFT_OUT | NEWER]
    assert expected in [[argument for argument in taken if argument in expected] for taken in ours]
