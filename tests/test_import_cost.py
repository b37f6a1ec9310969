"""The cost of imports, counted in modules: a count is the same on every machine, a time is not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.public_names import MODULES

pytestmark = pytest.mark.slow
OPTIONAL = {
    "flax",
    "matplotlib",
    "optax",
    "orbax",
    "rich",
    "safetensors",
    "sklearn",
    "tqdm",
    "treescope",
    "wadler_lindig",
}


def modules_added_by(statement: str, *, after: str = "pass") -> set[str]:
    """The names in `sys.modules` of a new process that `statement` adds to those that `after` needs."""
    program = (
        f"import json, sys\n{after}\nbefore = set(sys.modules)\n{statement}\n"
        "print(json.dumps(sorted(set(sys.modules) - before)))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(json.loads(run.stdout))


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_import_treewright_loads_few_modules() -> None:
    added = modules_added_by("import treewright")

    assert packages(added) - sys.stdlib_module_names == {"treewright"}
    assert len(added) <= 20


def test_module_adds_at_most_40_modules_to_jax() -> None:
    added = modules_added_by("from treewright import Module", after="import jax")

    assert "treewright" in added
    assert len(added) <= 40
    assert not packages(added) & OPTIONAL


def test_listing_the_public_names_loads_none_of_them() -> None:
    listed = "import treewright\nassert {'Module', 'typed'} < {*dir(treewright)}"

    assert modules_added_by(listed) == modules_added_by("import treewright")


def test_a_public_module_is_an_attribute_of_the_package_and_loaded_on_first_use() -> None:
    look = f"for name in {MODULES!r}: assert getattr(treewright, name) is sys.modules[f'treewright.{{name}}']"

    assert {f"treewright.{name}" for name in MODULES} <= modules_added_by(look, after="import treewright")


def test_no_public_name_needs_an_optional_library() -> None:
    added = modules_added_by("import treewright\nfor name in treewright.__all__: getattr(treewright, name)")

    assert {"treewright.train", *(f"treewright.{name}" for name in MODULES)} <= added
    assert not packages(added) & OPTIONAL
