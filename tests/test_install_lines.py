"""The install line of a page installs all that the programs on the page import."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_docs import PAGES, ROOT, blocks_of, text_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.slow
LINE = re.compile(r"^pip install (.+?)(?: +#.*)?$", re.MULTILINE)

# Runs the blocks of a page in one module. A block may raise where the page shows the error as its output.
RUNNER = """
import json, sys, types
module = types.ModuleType("page")
sys.modules["page"] = module
for code, error in json.load(open(sys.argv[1], encoding="utf-8")):
    try:
        exec(compile(code, "page.py", "exec"), vars(module))
    except Exception as raised:
        if type(raised).__name__ not in error:
            raise
"""


def whole_text_of(page: Path) -> str:
    """A page, with the parts of other files that it includes."""

    def included(match: re.Match[str]) -> str:
        file, name = match[1], match[2]
        part = re.search(rf"\[start:{name}\] -->\n(.*?)<!--", (ROOT / file).read_text(encoding="utf-8"), re.DOTALL)
        assert part is not None
        return part[1]

    return re.sub(r'^--8<-- "([^:"]+):(\w+)"$', included, text_of(page), flags=re.MULTILINE)


def requirements_on(page: Path) -> list[str]:
    """The requirements that a page's lines install: `.[train]`, `equinox`."""
    lines = [
        line for block in blocks_of(whole_text_of(page)) if block.language == "sh" for line in LINE.findall(block.text)
    ]
    return [word.strip("'\"") for line in lines for word in line.split()]


WITH_LINES = [page for page in PAGES if requirements_on(page)]


def imported_by(page: Path) -> set[str]:
    """The packages that the programs on a page import, without Python's own."""
    modules: set[str] = set()
    for block in blocks_of(whole_text_of(page)):
        if block.language == "python":
            for node in ast.walk(ast.parse(block.text)):
                if isinstance(node, ast.Import):
                    modules |= {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module:
                    modules.add(node.module)
    if "treewright.checkpoint" in modules:
        modules.add("safetensors")  # imported at the first save or load
    return {name.partition(".")[0] for name in modules} - sys.stdlib_module_names


@functools.cache
def providers() -> Mapping[str, list[str]]:
    """The distributions that provide each top-level module."""
    return importlib.metadata.packages_distributions()


@functools.cache
def closure(requirement: str) -> frozenset[str]:
    """The distributions that a requirement installs."""
    wanted, seen = [Requirement(requirement)], set[tuple[str, str]]()
    while wanted:
        needed = wanted.pop()
        for extra in ("", *sorted(needed.extras)):
            if (key := (canonicalize_name(needed.name), extra)) not in seen:
                seen.add(key)
                wanted += [
                    below
                    for text in importlib.metadata.requires(needed.name) or ()
                    if (below := Requirement(text)).marker is None or below.marker.evaluate({"extra": extra})
                ]
    return frozenset(name for name, _ in seen)


@pytest.mark.parametrize("page", WITH_LINES, ids=lambda page: page.name)
def test_the_line_of_a_page_installs_the_packages_that_its_programs_import(page: Path) -> None:
    names = [re.sub(r"^\.", "treewright", requirement) for requirement in requirements_on(page)]
    installed = frozenset[str]().union(*map(closure, names))

    missing = {
        package
        for package in imported_by(page)
        if not {canonicalize_name(name) for name in providers().get(package, [package])} & installed
    }
    assert missing == set(), f"{page.name} says: pip install {' '.join(requirements_on(page))}"


def test_the_pages_that_newcomers_read_have_an_install_line() -> None:
    assert {"README.md", "index.md", "start.md", "layers.md", "checkpoints.md"} <= {page.name for page in WITH_LINES}


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    subprocess.run(command, check=True)
    (file,) = folder.glob("treewright-*.whl")
    return file


@pytest.mark.exhaustive
@pytest.mark.parametrize("page", WITH_LINES, ids=lambda page: page.name)
def test_the_programs_of_a_page_run_in_a_fresh_environment_with_its_line(
    page: Path, wheel: Path, tmp_path: Path
) -> None:
    import json
    import venv

    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = [re.sub(r"^\.|^treewright", str(wheel), requirement) for requirement in requirements_on(page)]
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *constraints, *packages], check=True)

    blocks = blocks_of(whole_text_of(page))
    following = [*blocks[1:], None]
    programs = [
        (block.text, after.text if after is not None and after.language == "text" else "")
        for block, after in zip(blocks, following, strict=True)
        if block.language == "python"
    ]
    (tmp_path / "blocks.json").write_text(json.dumps(programs), encoding="utf-8")
    run = subprocess.run(
        [python, "-c", RUNNER, "blocks.json"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert run.returncode == 0, run.stderr
