"""The examples in docstrings run, and every public name has one."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import jax
import jax.numpy as jnp
import pytest

import treewright
import treewright.checkpoint
from tests.conftest import skip_before_jax
from treewright import sharding

if TYPE_CHECKING:
    from collections.abc import Iterator

PUBLIC: list[str] = [name for name in treewright.__all__ if not inspect.ismodule(getattr(treewright, name))]
NAMESPACE = {
    "__name__": "docstring",
    "jax": jax,
    "jnp": jnp,
    "Annotated": Annotated,
    "Callable": Callable,
    "Iterable": Iterable,
    "Protocol": Protocol,
    **{name: getattr(treewright, name) for name in [*PUBLIC, "errors"]},
}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def examples_in_docstrings() -> Iterator[doctest.DocTest]:
    """Those of every module, private ones too."""
    names = [module.name for module in pkgutil.walk_packages(treewright.__path__, "treewright.")]
    for name in ["treewright", *names]:
        yield from doctest.DocTestFinder().find(importlib.import_module(name), name, globs=NAMESPACE)
    for module in (treewright, treewright.checkpoint, sharding):  # a public class says that it is from there
        for name in module.__all__:
            value = getattr(module, name)
            if isinstance(value, type):
                yield from doctest.DocTestFinder().find(value, f"{module.__name__}.{name}", False, globs=NAMESPACE)


EXAMPLES = {example.name: example for example in examples_in_docstrings() if example.examples}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_prints_what_it_says(name: str) -> None:
    if name.startswith("treewright.sharding."):  # the repr of a PartitionSpec
        skip_before_jax(0, 10)
    report: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(EXAMPLES[name], out=report.append)

    assert not results.failed, "".join(report)


# JAX's own functions, and an alias, can't have docstrings of ours: the guide shows each.
ELSEWHERE = ["AsArray", *(name for name in PUBLIC if not getattr(treewright, name).__module__.startswith("treewright"))]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_every_public_name_without_a_docstring_of_ours_is_in_the_guide(name: str) -> None:
    guide = (Path(__file__).parents[1] / "docs" / "types.md").read_text(encoding="utf-8")

    assert f"`{name}`" in guide or f"{name}(" in guide or f"@{name}" in guide


@pytest.mark.parametrize("name", sorted({*sharding.__all__} - {"Rules", "ShardedLeaf", "ShardingReport"}))
def test_every_function_of_sharding_has_an_example(name: str) -> None:
    home = getattr(sharding, name).__module__

    assert f"{home}.{name}" in EXAMPLES


@pytest.mark.parametrize("name", sorted({*PUBLIC} - {*ELSEWHERE}))
def test_every_public_name_has_an_example(name: str) -> None:
    home = getattr(treewright, name).__module__

    assert f"{home}.{name}" in EXAMPLES


@pytest.mark.parametrize("name", treewright.checkpoint.__all__)
def test_every_public_name_of_checkpoints_has_an_example(name: str) -> None:
    home = getattr(treewright.checkpoint, name).__module__

    assert f"{home}.{name}" in EXAMPLES
