"""The examples in docstrings run, and every public name has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import jax
import jax.numpy as jnp
import pytest

import treewright
from tests.conftest import skip_before_jax, skip_below_devices
from tests.public_names import public_names

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC = public_names()
NAMESPACE = {
    "__name__": "docstring",
    "jax": jax,
    "jnp": jnp,
    "Callable": Callable,
    "Iterable": Iterable,
    "Protocol": Protocol,
    **{name: getattr(treewright, name) for name in treewright.__all__},
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def defined_in(module: Any) -> list[str]:
    """The classes and functions defined in the file of a module, whatever their `__module__`."""
    statements = ast.parse(inspect.getsource(module)).body
    return sorted({statement.name for statement in statements if isinstance(statement, ast.FunctionDef | ast.ClassDef)})


def examples_of(value: Any, name: str, *, recurse: bool) -> list[doctest.DocTest]:
    tests = doctest.DocTestFinder(recurse=recurse).find(value, name, module=False, globs=NAMESPACE)
    return [test for test in tests if test.examples]


def examples_in_docstrings() -> Iterator[doctest.DocTest]:
    """The examples of every module, private ones too."""
    for name in ["treewright", *(module.name for module in pkgutil.walk_packages(treewright.__path__, "treewright."))]:
        module = importlib.import_module(name)
        yield from examples_of(module, name, recurse=False)
        for inner in defined_in(module):
            if hasattr(module, inner):  # names that exist only for checkers
                yield from examples_of(getattr(module, inner), f"{name}.{inner}", recurse=True)


EXAMPLES = {example.name: example for example in examples_in_docstrings()}


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_examples_print_their_output(name: str) -> None:
    if name.startswith("treewright.sharding."):  # the repr of a PartitionSpec
        skip_before_jax(0, 10)
    if "make_mesh" in (EXAMPLES[name].docstring or ""):
        skip_below_devices(4)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(EXAMPLES[name], out=report.append)

    for package in ("flax", "orbax"):  # without wheels for the newest Python
        if f"No module named '{package}'" in "".join(report):
            pytest.skip(f"{package} is not installed")
    assert not results.failed, "".join(report)


# JAX's own functions can't have our docstrings: the reference says what each type adds.
OF_JAX = [name for name in PUBLIC if name.startswith("treewright.typed.") and not name.endswith("WithReplace")]
# Types of arguments and results appear in the example of their function.
SHOWN_ELSEWHERE = {
    f"treewright.sharding.{name}"
    for name in ("Collective", "ProgramArray", "ProgramReport", "Rules", "ShardedLeaf", "ShardingReport")
}
WITH_AN_EXAMPLE = sorted(
    name for name in {*PUBLIC} - {*OF_JAX} - SHOWN_ELSEWHERE if not name.startswith("treewright.errors.")
)


def test_the_reference_says_what_each_type_adds() -> None:
    page = (Path(__file__).parents[1] / "docs" / "reference" / "types.md").read_text(encoding="utf-8")

    described = re.findall(r"^### .*{ #([\w.]+) }\n\n`jax\.[\w.]+`\. \S+ \S+", page, re.MULTILINE)
    assert sorted(described) == sorted(OF_JAX)


@pytest.mark.parametrize("name", WITH_AN_EXAMPLE)
def test_every_other_public_name_has_an_example(name: str) -> None:
    assert examples_of(PUBLIC[name], name, recurse=False)
