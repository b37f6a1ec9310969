"""Concurrent threads, with the GIL and without."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.threads import THREADS, run

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[1]
TURNS = 2  # For `make test`; a turn runs everything in eight threads, with separate values
NAMES = ("python3.15t", "python3.14t", "python3.13t")


@pytest.mark.parametrize("turns", [TURNS, pytest.param(20, marks=pytest.mark.exhaustive)])
def test_eight_threads_see_no_wrong_state(turns: int) -> None:
    assert run(turns) == THREADS * turns


def python_without_gil() -> str | None:
    """A Python on the path without the GIL and with JAX; None if there is none."""
    for name in filter(None, map(shutil.which, NAMES)):
        ask = "import sys, jax, typing_extensions; sys.exit(sys._is_gil_enabled())"
        if subprocess.run([name, "-c", ask], capture_output=True, check=False).returncode == 0:
            return name
    return None


def test_eight_threads_without_the_gil_see_no_wrong_state() -> None:
    python = python_without_gil()
    if python is None:
        pytest.skip(f"none of {', '.join(NAMES)} is on the path with JAX installed")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    command = [python, "-X", "gil=0", str(ROOT / "tests" / "threads.py"), str(TURNS)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)

    assert done.stdout == f"{THREADS * TURNS} turns\n", done.stderr
