"""All files name the same versions of Python, JAX and Treewright, and the lock covers each Python."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging import version
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.typing.test_typing import TARGETS

ROOT = Path(__file__).parents[1]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
MARK = "Programming Language :: Python :: "

PYTHONS = [classifier.removeprefix(MARK) for classifier in PROJECT["classifiers"] if classifier.startswith(MARK)]
WITHOUT_ALL_WHEELS = ["3.15"]  # `make test` and CI need a Python that skips no test
TESTED = [python for python in PYTHONS if python not in WITHOUT_ALL_WHEELS]
(JAX,) = [dependency.partition(">=")[2] for dependency in PROJECT["dependencies"] if dependency.startswith("jax>=")]

# Where JAX has wheels: `sys_platform` and `platform_machine`.
SYSTEMS = [("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


LOCKED = [Requirement(line) for line in text("constraints.txt").splitlines() if not line.startswith("#")]


def workflows() -> dict[str, Any]:
    return {
        path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob(".github/workflows/*.yml")
    }


def makefile_value(name: str) -> str:
    (value,) = re.findall(rf"^{name} := (.*)$", text("Makefile"), re.MULTILINE)
    return str(value)


# Versions of Python


def test_checkers_test_the_pythons_in_the_classifiers() -> None:
    assert list(TARGETS) == PYTHONS
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"


def test_the_checkers_read_the_code_as_the_oldest_and_as_the_newest_python() -> None:
    tools = PYPROJECT["tool"]

    assert tools["pyright"]["pythonVersion"] == TESTED[0]
    assert makefile_value("NEWEST") == TESTED[-1]
    assert makefile_value("MYPY") == "--python-version $(NEWEST)"
    assert "python_version" not in tools["mypy"]  # stubtest would follow it
    assert tools["ruff"]["target-version"] == f"py{TESTED[0].replace('.', '')}"


def test_make_prefers_the_newest_supported_python() -> None:
    tried = re.findall(r"python3\.\d+", makefile_value("PYTHONS"))

    assert tried == [f"python{python}" for python in reversed(TESTED)]
    assert makefile_value("OLDEST") == TESTED[0]
    assert f"sys.version_info < ({TESTED[0].replace('.', ', ')})" in text("Makefile")
    assert f"No Python {TESTED[0]} or newer found" in text("Makefile")


@pytest.mark.parametrize("page", ["Makefile", "README.md", "CONTRIBUTING.md"])
def test_pages_name_the_pythons_that_make_accepts(page: str) -> None:
    assert f"Python {TESTED[0]} to {TESTED[-1]}" in text(page)


def test_the_first_page_names_the_required_python_and_jax() -> None:
    required = f"Python {PYTHONS[0]} to {PYTHONS[-1]} and JAX {JAX} or newer ([tested versions](limits.md#tested-with))"

    assert required in text("docs/start.md").replace("\n", " ")


def minor(release: str) -> tuple[int, ...]:
    return version.parse(release).release[:2]


def test_ci_runs_each_python_with_the_locked_jax_and_each_minor_release_of_jax() -> None:
    matrix = workflows()["tests.yml"]["jobs"]["test"]["strategy"]["matrix"]
    jax = {job["jax"] for job in matrix["include"]}
    locked = [str(pin.specifier).removeprefix("==") for pin in LOCKED if pin.name == "jax"]
    newest = max(map(minor, locked))

    assert matrix["python"] == TESTED
    assert matrix["jax"] == [""]
    assert min(map(version.parse, jax)) == version.parse(JAX)
    assert {minor(release) for release in {*jax, *locked}} == {
        (newest[0], number) for number in range(minor(JAX)[1], newest[1] + 1)
    }
    assert workflows()["newest.yml"]["jobs"]["test"]["strategy"]["matrix"]["python"] == TESTED


def test_docs_name_the_versions_that_ci_runs_in_one_table() -> None:
    matrix = workflows()["tests.yml"]["jobs"]["test"]["strategy"]["matrix"]
    run = {(job["jax"], job["python"]) for job in matrix["include"]}
    for python in TESTED:
        place = {"python_version": python, "python_full_version": f"{python}.0"}
        pins = [pin for pin in LOCKED if pin.name == "jax" and (pin.marker is None or pin.marker.evaluate(place))]
        run |= {(str(pin.specifier).removeprefix("=="), python) for pin in pins}
    rows = re.findall(r"^\| ([\d., ]+) \| ([\d., ]+) \|$", text("docs/limits.md"), re.MULTILINE)

    assert {(jax, python) for row in rows for jax in row[0].split(", ") for python in row[1].split(", ")} == run


def test_workflows_name_only_supported_pythons() -> None:
    jobs = [job for workflow in workflows().values() for job in workflow["jobs"].values()]
    named = re.findall(r"'python-version': '([^']*)'|'python': '([^']*)'", repr(jobs))

    assert len(jobs) > 4
    assert {python for pair in named for python in pair if python} <= {*TESTED, "${{ matrix.python }}"}


# Commands


def test_ci_and_the_readme_name_the_same_commands() -> None:
    targets = set(re.findall(r"^([a-z]+):.* ## ", text("Makefile"), re.MULTILINE))
    jobs = [job for workflow in workflows().values() for job in workflow["jobs"].values()]
    commands = [step["run"].split() for job in jobs for step in job["steps"] if "run" in step]

    assert (
        {command[1] for command in commands if command[0] == "make"}
        == {"test", "quick", "coverage", "docs", "dist"}
        <= targets
    )
    assert text(".ci/run").splitlines()[-1] == "make test"
    assert re.findall(r"^make (\w+)", text("README.md"), re.MULTILINE) == ["demo", "test"]
    assert set(re.findall(r"^make (\w+)  ", text("CONTRIBUTING.md"), re.MULTILINE)) == targets


# The lock


def requirements(*extras: str) -> list[Requirement]:
    """Requirements of the package and some extras, without markers, also from extras that they name."""
    needed = [Requirement(line) for extra in extras for line in EXTRAS[extra]]
    own = [requirement for requirement in needed if requirement.name == PROJECT["name"]]
    added = {extra for requirement in own for extra in requirement.extras} - set(extras)
    return requirements(*extras, *sorted(added)) if added else [each for each in needed if each not in own]


@pytest.mark.parametrize("system", SYSTEMS, ids="-".join)
@pytest.mark.parametrize("python", TESTED)
def test_the_lock_has_one_version_within_the_range_of_each_requirement(python: str, system: tuple[str, str]) -> None:
    place = {"python_version": python, "python_full_version": f"{python}.0"}
    place |= dict(zip(("sys_platform", "platform_machine"), system, strict=True))
    pins: dict[str, list[str]] = {}
    for requirement in LOCKED:
        if requirement.marker is None or requirement.marker.evaluate(place):
            pins.setdefault(requirement.name, []).append(str(requirement.specifier).removeprefix("=="))
    (mlxtend,) = re.findall(r"'(.*)'", makefile_value("MLXTEND"))
    always = map(Requirement, (*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"], mlxtend))
    needed = [*always, *requirements("exhaustive"), *requirements("bench")]

    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}
    for requirement in needed:
        if requirement.marker is None or requirement.marker.evaluate(place):
            (pin,) = pins[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(pin), requirement


def test_the_lock_contains_only_pinned_packages() -> None:
    assert len(LOCKED) > 100
    assert [str(pin) for pin in LOCKED if pin.url or not re.fullmatch(r"==[\w.+]+", str(pin.specifier))] == []


def test_installing_the_package_ignores_the_lock() -> None:
    installed = [
        *PROJECT["dependencies"],
        *(line for extra in ("train", "checkpoint", "move") for line in EXTRAS[extra]),
    ]

    assert {bound.operator for line in installed for bound in Requirement(line).specifier} == {">="}
    assert PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"] == {"packages": ["src/treewright"]}


@pytest.mark.skipif(shutil.which("make") is None, reason="asks make")
@pytest.mark.parametrize(("options", "locks"), [([], True), (["LATEST=1"], False), (["JAX=0.9.0"], False)], ids=str)
@pytest.mark.parametrize("extra", ["demo", "dev", "exhaustive", "bench"])
def test_make_installs_the_locked_versions_by_default(options: list[str], locks: bool, extra: str) -> None:
    from_outer_make = {"MAKEFLAGS", "MFLAGS", "MAKELEVEL", "JAX", "LATEST", "PYTHON", "VENV"}
    environment = {name: value for name, value in os.environ.items() if name not in from_outer_make}
    command = ["make", "--dry-run", "VENV=unmade", f"unmade/{extra}.installed", *options]
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    installs = [line for line in run.stdout.splitlines() if " -m pip install" in line]

    assert installs
    for line in installs:
        assert line.startswith("PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt ") == locks
        assert ("--upgrade" in line) == ("LATEST=1" in options)


# Versions of JAX and of the package


def test_the_oldest_jax_is_the_same_everywhere() -> None:
    assert f"jaxlib>={JAX}" in PROJECT["dependencies"]
    assert f"make test JAX={JAX}.0" in text("CONTRIBUTING.md").replace("\n", " ")
    assert f"from {JAX}.0 to the newest" in text("src/treewright/_base/jax_private.py").replace("\n", " ")


def test_the_citation_has_the_version_of_the_package() -> None:
    assert yaml.safe_load(text("CITATION.cff"))["version"] == PROJECT["version"]
