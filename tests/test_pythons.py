"""What is said of Python and JAX, in the five places where it is said, is the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tests.typing.test_typing import TARGETS

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MARK = "Programming Language :: Python :: "

PYTHONS = [one.removeprefix(MARK) for one in PROJECT["classifiers"] if one.startswith(MARK)]
WITHOUT_ALL_WHEELS = ["3.15"]  # `make test` and CI take a Python on which nothing is skipped


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_classifiers_are_what_the_checkers_are_asked_about() -> None:
    assert list(TARGETS) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_make_tries_the_newest_python_first_on_which_all_runs() -> None:
    (tried,) = re.findall(r"^PYTHONS := .*,((?: ?python3\.\d+)+) python3\)$", text("Makefile"), re.MULTILINE)
    all_runs = [version for version in PYTHONS if version not in WITHOUT_ALL_WHEELS]

    assert tried.split() == [f"python{version}" for version in reversed(all_runs)]
    assert f"Python {all_runs[0]} to {all_runs[-1]}" in text("CONTRIBUTING.md")


def test_the_readme_says_which_python_and_jax_it_takes() -> None:
    (floor,) = [one.partition(">=")[2] for one in PROJECT["dependencies"] if one.startswith("jax>=")]

    assert f"jaxlib>={floor}" in PROJECT["dependencies"]
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]} with JAX {floor} or newer" in text("README.md")
    assert f"make test JAX={floor}.0" in text("CONTRIBUTING.md").replace("\n", " ")
    assert f"from {floor}.0 to the newest" in text("src/treewright/_core/jax_private.py")
