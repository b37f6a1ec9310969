"""mypy and pyright on the files in `cases/`: each error is announced by a comment on its line.

A missing announced error is a failure too. The files also run, so code that checkers accept works at run time.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conftest import skip_before_jax

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
CASES = Path(__file__).parent / "cases"
TARGETS = ("3.11", "3.12", "3.13", "3.14", "3.15")
RUNNING = f"{sys.version_info.major}.{sys.version_info.minor}"

# Neither reads the suppressions of the other, and each reports its own stale ones.
PYRIGHT = {
    "typeCheckingMode": "strict",
    "enableTypeIgnoreComments": False,
    "reportUnnecessaryTypeIgnoreComment": True,
}

# One cache for each process: all its runs share the parsed JAX, and two processes must not write into one cache.
CACHE = ROOT / ".mypy_cache" / os.environ.get("PYTEST_XDIST_WORKER", "alone")

# No calls of jax.numpy: for pyright, their types are only partly known.
PROGRAM = """
import jax
from treewright import Module, TrainState, replace, static
from treewright.typed import grad, jit
from treewright.train import Optimizer


class Net(Module):
    kernel: jax.Array
    scale: float = static(default=1.0)

    def __init__(self, kernel: jax.Array) -> None:
        self.kernel = kernel

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.kernel * x * self.scale


def loss(net: Net, x: jax.Array) -> jax.Array:
    return net(x).sum()


@jit
def step(state: TrainState[Net], x: jax.Array) -> TrainState[Net]:
    return state.apply_gradients(grads=grad(loss)(state.params, x))


def train(tx: Optimizer, x: jax.Array) -> Net:
    return replace(step(TrainState.create(params=Net(x), tx=tx), x).params, scale=2.0)
"""

# Not a file of cases: the syntax needs 3.12, and the tools here run on 3.11.
PEP_695 = """
from typing import assert_type

from treewright import Module, TrainState, pytree_dataclass, replace, static
from treewright.typed import jit


@pytree_dataclass
class Box[T]:
    value: T
    label: str = static(default="")


class Pair[A, B: Module](Module):
    left: A
    right: B

    @jit
    def swap(self, x: A) -> "Pair[A, B]":
        return replace(self, left=x)


class Unit(Module):
    size: int = static(default=1)


class Averaged[M](TrainState[M]):
    average: M


type Rows = tuple[Box[int], ...]

assert_type(Box(3), Box[int])
assert_type(Box[int](3).value, int)
assert_type(replace(Box(3), value=4), Box[int])
assert_type(Pair(1.0, Unit()).right, Unit)
assert_type(Pair(1.0, Unit()).swap(2.0), Pair[float, Unit])
rows: Rows = (Box(3), Box(4))


def rejected() -> None:
    Box[int]("no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Box(3, label=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    replace(Box(3), value="no")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    replace(Box(3), nope=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Pair(1.0, 2.0)  # type: ignore[type-var]  # pyright: ignore[reportArgumentType]
    Pair(1.0, Unit()).swap(Unit())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


print(rejected)
"""


def mypy(*arguments: str, target: str, cwd: Path = ROOT) -> str:
    """The output of mypy."""
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--python-version", target]
    cache = ["--cache-dir", str(CACHE)]
    run = subprocess.run([*command, *cache, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    return run.stdout + run.stderr


def pyright(*arguments: str, target: str, cwd: Path = ROOT) -> str:
    """The errors of pyright, one a line."""
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonversion", target]
    run = subprocess.run([*command, *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    found = json.loads(run.stdout)["generalDiagnostics"]
    return "".join(f"{Path(one['file']).name}: {one['message']}\n" for one in found if one["severity"] == "error")


def checked(path: Path, target: str) -> tuple[str, str]:
    relative = str(path.relative_to(ROOT))
    with ThreadPoolExecutor() as pool:
        of_mypy = pool.submit(mypy, relative, target=target)
        of_pyright = pool.submit(pyright, "--pythonpath", sys.executable, relative, target=target)
        return of_mypy.result(), of_pyright.result()


# For the running Python, `make test` checks all cases with both, along with everything else.
@pytest.mark.exhaustive
@pytest.mark.parametrize("target", [target for target in TARGETS if target != RUNNING])
def test_checkers_report_exactly_the_annotated_errors(target: str) -> None:
    skip_before_jax(0, 10, 2)
    assert checked(CASES, target) == ("", "")


def test_accepted_cases_run() -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    every = "import runpy, sys\nfor path in sys.argv[1:]:\n    print(path)\n    runpy.run_path(path)"

    run = subprocess.run(
        [sys.executable, "-c", every, *map(str, sorted(CASES.glob("*.py")))],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert run.returncode == 0, run.stdout + run.stderr


def install_into(folder: Path, source: Path) -> Path:
    """The Python of a new environment with all packages of this one, and `source` installed as the package."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    shutil.copytree(source, packages / "treewright")
    (packages / "rest.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of an environment with the package installed as for users."""
    return str(install_into(tmp_path_factory.mktemp("venv"), ROOT / "src" / "treewright"))


@pytest.fixture
def programs(tmp_path: Path) -> dict[str, str]:
    """The programs of a user, in a folder."""
    programs = {"program.py": PROGRAM, "pep_695.py": PEP_695}
    for name, program in programs.items():
        (tmp_path / name).write_text(program, encoding="utf-8")
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(PYRIGHT))
    return programs


def test_strict_mode_shows_no_errors_in_the_package(installed: str, programs: dict[str, str], tmp_path: Path) -> None:
    assert pyright("--pythonpath", installed, *programs, target="3.13", cwd=tmp_path) == ""
    runs = [name for name in programs if name == "program.py" or sys.version_info >= (3, 12)]
    for name in runs:
        subprocess.run([installed, name], cwd=tmp_path, check=True, timeout=120)


# mypy reads JAX again for another target than that of `make test`: half a minute with an empty cache.
@pytest.mark.exhaustive
def test_mypy_shows_no_errors_in_the_package(installed: str, programs: dict[str, str], tmp_path: Path) -> None:
    assert mypy("--python-executable", installed, *programs, target="3.13", cwd=tmp_path) == ""


def test_the_types_of_all_public_names_are_known(installed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyright", "--verifytypes", "treewright", "--ignoreexternal", "--outputjson"]
    environment = {**os.environ, "PATH": f"{Path(installed).parent}:{os.environ['PATH']}"}  # it takes no --pythonpath

    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    symbols = json.loads(run.stdout)["typeCompleteness"]["symbols"]
    unknown = {one["name"] for one in symbols if one["isExported"] and not one["isTypeKnown"]}
    unknown -= {"treewright.checkpoint.handler.StepHandler"}  # its base is Orbax's
    assert symbols
    assert not unknown
