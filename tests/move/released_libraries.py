"""Move a released library: `python tests/move/released_libraries.py mctx` runs it before and after.

Each program in `programs/` is run on the library as it was released and as the command has left it, and must give the
same numbers, bit by bit, with as many traces. `RELEASED` lists the lines that were also changed manually.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from treewright.__main__ import main as treewright

PROGRAMS = Path(__file__).parent / "programs"
SOURCE = Path(__file__).parents[2] / "src"


@dataclasses.dataclass(frozen=True)
class Released:
    """A library in the version that was tried.

    Attributes:
        version: The release.
        dependencies: Other releases that it imports, which are fetched with it and not moved.
        by_hand: Lines that are changed by hand afterwards: the file, the line, and what takes its place.
    """

    version: str
    dependencies: tuple[str, ...] = ()
    by_hand: tuple[tuple[str, str, str], ...] = ()


RELEASED = {
    "diffrax": Released(
        "0.7.2",
        dependencies=("lineax==0.1.1", "optimistix==0.1.0"),
        by_hand=(
            (
                "diffrax/_solver/base.py",
                "class _MetaAbstractSolver(type(eqx.Module), type):\n",
                "class _MetaAbstractSolver(type):\n",
            ),
            (
                "diffrax/_solver/base.py",
                "    term_structure: AbstractClassVar[PyTree[type[AbstractTerm]]]\n",
                "    term_structure: ClassVar[PyTree[type[AbstractTerm]]]\n",
            ),
            (
                "diffrax/_solver/runge_kutta.py",
                "    tableau: AbstractClassVar[ButcherTableau | MultiButcherTableau]\n",
                "    tableau: ClassVar[ButcherTableau | MultiButcherTableau]\n",
            ),
            (
                "diffrax/_step_size_controller/pid.py",
                "class _MetaPID(type(eqx.Module)):\n",
                "class _MetaPID(type):\n",
            ),
        ),
    ),
    "distreqx": Released(
        "0.0.3",
        dependencies=("ihoop==0.1.4",),
        by_hand=(
            (
                "distreqx/_custom_meta.py",
                "class AbstractStrictModule(Module, ihoop.Strict, metaclass=_StrictEqxMeta):\n",
                "class AbstractStrictModule(Module):\n",
            ),
        ),
    ),
    "evosax": Released("0.3.2"),
    "exponax": Released("0.2.0"),
    "flashbax": Released(
        "0.1.3",
        by_hand=(
            (
                "flashbax/buffers/prioritised_trajectory_buffer.py",
                "        **state,\n",
                "        **{name: getattr(state, name) for name in state.__dataclass_fields__},\n",
            ),
        ),
    ),
    "flowjax": Released(
        "19.1.2",
        dependencies=("paramax==0.0.5",),
        by_hand=(
            (
                "flowjax/bijections/bijection.py",
                "                setattr(cls, meth, _unwrap_check_and_cast(cls.__dict__[meth]))\n",
                (
                    "                setattr(cls, meth, _unwrap_check_and_cast(cls.__dict__[meth]))\n"
                    "        super().__init_subclass__()\n"
                ),
            ),
        ),
    ),
    "gymnax": Released("1.0.1"),
    "jaxlie": Released("1.5.0"),
    "jaxoplanet": Released("0.2.0"),
    "jumanji": Released(
        "1.1.2",
        dependencies=(
            *(
                "dm-env==1.6",
                "dm-tree==0.1.10",
                "gymnasium==1.4.0",
                "farama-notifications==0.0.6",
                "cloudpickle==3.1.2",
            ),
            *("esquilax==2.1.0", "jax-tqdm==0.4.0", "huggingface-hub==0.36.0", "filelock==4.2.12"),
        ),
        by_hand=(
            (
                "jumanji/environments/packing/job_shop/env.py",
                """        state.action_mask = self._create_action_mask(
            state.machines_job_ids,
            state.machines_remaining_times,
            state.ops_machine_ids,
            state.ops_mask,
        )
""",
                """        state = state.replace(action_mask=self._create_action_mask(
            state.machines_job_ids,
            state.machines_remaining_times,
            state.ops_machine_ids,
            state.ops_mask,
        ))
""",
            ),
            (
                "jumanji/environments/routing/maze/env.py",
                "        state.action_mask = self._compute_action_mask(state.walls, state.agent_position)\n",
                (
                    "        action_mask = self._compute_action_mask(state.walls, state.agent_position)\n"
                    "        state = state.replace(action_mask=action_mask)\n"
                ),
            ),
        ),
    ),
    "lineax": Released("0.1.1"),
    "mctx": Released("0.0.71"),
    "optimistix": Released("0.1.0"),
    "tinygp": Released("0.3.1"),
    "xminigrid": Released("0.9.3"),
}

# What every program begins and ends with.
_BEFORE = """
import hashlib
import jax
import numpy as np

digest, traces = hashlib.sha256(), []

def counted(function):
    def traced(*args, **kwargs):
        traces.append(1)
        return function(*args, **kwargs)
    return traced

def note(*trees):
    for leaf in map(np.asarray, jax.tree.leaves(trees)):
        digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
"""
_AFTER = "\nprint(digest.hexdigest(), len(traces))\n"


class CanNotFetchError(Exception):
    """The package index can't be reached, or does not have the release."""


@dataclasses.dataclass(frozen=True)
class Moved:
    """The result of moving a library.

    Attributes:
        before: The digest of all numbers and the count of traces, of the release.
        after: The same after the move.
        lines: How many lines the command changed, and how many were changed manually.
        files: The files that the command changed.
    """

    before: str
    after: str
    lines: tuple[int, int]
    files: int


def moved(name: str, folder: Path) -> Moved:
    """A release fetched into an empty folder, moved there, and run before and after.

    Raises:
        CanNotFetchError: If it can't be fetched.
    """
    old, new = folder / "old", folder / "new"
    _fetch(name, folder)
    shutil.copytree(old, new)
    lines = [line for line in _written(new, statuses={0, 1}).splitlines() if line.startswith("+")]
    assert not _written(new, statuses={0, 1})  # a second run changes nothing more
    files = sum(line.startswith("+++ ") for line in lines)
    by_hand = 0
    for path, line, instead in RELEASED[name].by_hand:
        text = (new / path).read_text(encoding="utf-8")
        assert text.count(line) == 1
        (new / path).write_text(text.replace(line, instead), encoding="utf-8")
        by_hand += sum(part not in line.splitlines() for part in instead.splitlines())
    program = (PROGRAMS / f"{name}.txt").read_text(encoding="utf-8")
    return Moved(_run(program, old), _run(program, new), (len(lines) - files, by_hand), files)


def _written(path: Path, *, statuses: set[int]) -> str:
    """Move a file or a folder. Returns the diff."""
    with contextlib.redirect_stdout(io.StringIO()) as diff, contextlib.redirect_stderr(io.StringIO()):
        status = treewright(["move", str(path), "--write"])
    assert status in statuses
    return diff.getvalue()


def _fetch(name: str, folder: Path) -> None:
    """Download the release to `folder/old`, and its dependencies to `folder/dependencies`."""
    for release in (f"{name}=={RELEASED[name].version}", *RELEASED[name].dependencies):
        place = folder / "wheels" / release
        asked = ("download", "--quiet", "--no-deps", "--only-binary=:all:", f"--dest={place}", release)
        run = subprocess.run([sys.executable, "-m", "pip", *asked], capture_output=True, text=True, check=False)
        if run.returncode:
            raise CanNotFetchError(f"pip can't fetch {release}: {run.stderr.strip().splitlines()[-1:]}")
        with zipfile.ZipFile(next(place.glob("*.whl"))) as wheel:
            wheel.extractall(folder / ("dependencies" if release in RELEASED[name].dependencies else "old"))


def _run(program: str, library: Path) -> str:
    path = os.pathsep.join(
        [str(library), str(library.parent / "dependencies"), str(SOURCE), os.environ.get("PYTHONPATH", "")]
    )
    settings = {"PYTHONPATH": path, "JAX_NUMPY_RANK_PROMOTION": "allow", "JAX_PLATFORMS": "cpu"}
    settings["XLA_FLAGS"] = ""  # with the tests' older emitters, the order of leaves changes mctx's last bits
    command_line = [sys.executable, "-W", "ignore", "-c", _BEFORE + program + _AFTER]
    run = subprocess.run(command_line, capture_output=True, text=True, check=False, env={**os.environ, **settings})
    if run.returncode:
        raise RuntimeError(f"This does not run in {library.name}:\n{run.stderr}")
    return run.stdout.strip()


def main() -> None:
    """Move the libraries named on the command line, or all, and print the results."""
    for name in sys.argv[1:] or RELEASED:
        with tempfile.TemporaryDirectory() as folder:
            result = moved(name, Path(folder))
        same = "the same" if result.before == result.after else f"{result.before} became {result.after}"
        by_command, by_hand = result.lines
        text = f"{by_command} lines in {result.files} files by command, {by_hand} by hand; numbers and traces: {same}"
        sys.stdout.write(f"{name} {RELEASED[name].version}: {text}\n")


if __name__ == "__main__":
    main()
