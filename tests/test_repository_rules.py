"""Repository rules that no linter checks. import-linter checks imports, ruff the sizes of functions."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import pytest

from tests.expected_text import compare_with_snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "treewright"
FILE_LINES = 600
FILES_THAT_IMPORT_PRIVATE_MODULES = 14

# Mutable names at module level that are allowed, as "module.name"
MUTABLE_STATE = {
    # Caches: code and text never change, and neither do shardings, names of classes and the contents of a JAX version.
    *(
        "_base.functions.code_key",
        "_base.functions.assigned_by",
        "_base.functions.code_reads",
        "_base.jax_private.private",
        "_trees.pattern.parse",
        "_trees.twin._proxy_class",
        "retrace.jax_private._names_of_settings",
        "retrace.jax_private.can_read_calls",
        "retrace.jax_private.can_observe_compilations",
    ),
    "checkpoint.steps._SAVING",  # managers, for the exit of the program
    "retrace.jax_private._WITH_OWN_CODE",  # decorated functions: each gets one copy of its code
}
PUBLIC = {"treewright.checkpoint", "treewright.sharding", "treewright.testing"}
NAMED_IN_DOCS = {f"treewright.{name}" for name in ("__main__", "errors", "testing.plugin", "train", "typed")}
MUTABLE = re.compile(r"^(dict|list|set|defaultdict|OrderedDict|deque|local|Lock|RLock|Weak\w+|\w*ContextVar)$")


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py*") if path.suffix != ".pyc")


@functools.cache
def modules() -> dict[str, ast.Module]:
    """The package's modules by dotted name, without the package's own."""
    return {
        ".".join(part for part in path.relative_to(SOURCE).with_suffix("").parts if part != "__init__"): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(SOURCE.rglob("*.py"))
    }


def test_no_file_is_longer_than_600_lines() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in python_files("src", "tests")}

    assert {path: count for path, count in lines.items() if count > FILE_LINES} == {}


def private_imports(path: Path) -> set[str]:
    """The private modules of the package that a file imports."""
    imports = re.findall(
        r"^\s*(?:from (\S+) )?import ([\w.]+(?:, \w+)*)", path.read_text(encoding="utf-8"), re.MULTILINE
    )
    names = {module or name for module, name in imports}
    for module, listed in imports:
        public = importlib.import_module(module).__all__ if module in {"treewright", *PUBLIC} else ()
        names |= {f"{module}.{name}" for name in listed.split(", ") if name not in public}
    return names & ({f"treewright.{name}" for name in modules()} - PUBLIC - NAMED_IN_DOCS)


def test_few_test_files_import_private_modules() -> None:
    files = [str(path.relative_to(ROOT)) for path in python_files("tests") if private_imports(path)]

    assert len(files) <= FILES_THAT_IMPORT_PRIVATE_MODULES, files


def mutable_names(code: ast.Module) -> Iterator[str]:
    """Names of mutable values in a module, names that it declares `global`, and functions with a cache."""
    for node in code.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            value, targets = node.value, node.targets if isinstance(node, ast.Assign) else [node.target]
            callee = value.func if isinstance(value, ast.Call) else None
            callee = callee.value if isinstance(callee, ast.Subscript) else callee
            made_by = getattr(callee, "attr", getattr(callee, "id", ""))
            if isinstance(value, ast.List | ast.Dict | ast.Set) or MUTABLE.match(made_by):
                yield from map(ast.unparse, targets)
        elif isinstance(node, ast.FunctionDef) and any(
            "cache" in ast.unparse(decorator) for decorator in node.decorator_list
        ):
            yield node.name
    yield from (name for node in ast.walk(code) if isinstance(node, ast.Global) for name in node.names)


def test_mutable_module_state_is_listed() -> None:
    names = {f"{module}.{name}" for module, code in modules().items() for name in mutable_names(code)}

    assert {name for name in names if not name.endswith(".__all__")} - MUTABLE_STATE == set()


def test_only_two_modules_call_exec() -> None:
    executing = [
        module
        for module, code in modules().items()
        if any(isinstance(node, ast.Call) and ast.unparse(node.func) == "exec" for node in ast.walk(code))
    ]

    assert executing == ["_core.init", "retrace.command"]


# The maps in src/README.md and tests/README.md


def house_map(folder: Path, width: int) -> str:
    """Each Python file below a folder with the first line of its docstring, folders first."""
    lines, above = [f"{folder.relative_to(ROOT)}/"], folder
    for path in sorted(folder.rglob("*.py"), key=lambda path: (path.parent == folder, path.parent, path.name)):
        depth = len(path.parent.relative_to(folder).parts)
        is_package = path.name == "__init__.py" and depth
        if path.parent not in {above, folder} and not is_package:
            lines.append(f"  {path.parent.relative_to(folder)}/")
        above = path.parent
        name = f"{path.parent.relative_to(folder)}/" if is_package else "  " * min(depth, 1) + path.name
        stub = " (+ .pyi)" if path.with_suffix(".pyi").exists() else ""
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "(no docstring)"
        lines.append(f"  {name + stub:<{width}} {docstring.splitlines()[0]}")
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("page", "folder", "width"), [("src/README.md", SOURCE, 21), ("tests/README.md", ROOT / "tests", 32)]
)
def test_a_map_lists_every_file(page: str, folder: Path, width: int) -> None:
    path = ROOT / page
    before, fence, rest = path.read_text(encoding="utf-8").partition("```text\n")
    written, end, after = rest.partition("\n```")
    assert end, "the page has no map between fences"

    def rewrite(listed: str) -> None:
        path.write_text(f"{before}{fence}{listed}{end}{after}", encoding="utf-8")

    compare_with_snapshot(lambda: house_map(folder, width), written, rewrite)


def missing_files(page: Path, *folders: Path) -> Iterable[str]:
    text = re.sub(r"```text\n.*?\n```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)  # without the map
    named = re.findall(r"`([\w/]+\.py)`", text)
    return (name for name in named if not any((folder / name).is_file() for folder in folders))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/internals.md", "tests/README.md"])
def test_files_named_on_pages_exist(page: str) -> None:
    assert [*missing_files(ROOT / page, SOURCE, ROOT, ROOT / "tests")] == []


@pytest.mark.cpu
@pytest.mark.devices(4)
def test_tests_see_four_cpu_devices_and_no_rank_promotion() -> None:
    assert len(jax.devices("cpu")) == 4
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.add(jnp.ones((2, 3)), jnp.ones(3))
