"""Six type checkers behind one interface: the lines of a program at which each reports an error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
SCRIPTS = Path(sys.executable).parent
INTERPRETER = f"--python-executable={sys.executable}"
PYTHON = "3.12"  # Some checkers get this version: they understand more of `replace` since 3.13.

# The options of each, with strict mode if it has one, and the beginning of its error lines.
CHECKERS = {
    "mypy": (("--strict", INTERPRETER), "error:"),
    "pyright": ((f"--pythonpath={sys.executable}",), "error:"),
    "basedpyright": (("--level=error", f"--pythonpath={sys.executable}"), "error:"),
    "ty": (
        (
            *("check", "--output-format=concise", f"--python-version={PYTHON}"),
            *(f"--python={sys.prefix}", f"--extra-search-path={SOURCE}"),
        ),
        "error[",
    ),
    "pyrefly": (
        ("check", "--output-format=min-text", f"--python-interpreter-path={sys.executable}", f"--search-path={SOURCE}"),
        "ERROR",
    ),
    "zuban": (("check", "--strict", INTERPRETER), "error:"),
}


def errors(checker: str, program: str, folder: Path, *options: str, mode: str = "standard") -> dict[int, str]:
    """The first message of a checker at each line; `mode` applies to pyright and basedpyright."""
    if not (SCRIPTS / checker).exists():
        pytest.skip(f"{checker} is not installed")
    (folder / "program.py").write_text(program, encoding="utf-8")
    settings = {
        "include": ["program.py"],
        "typeCheckingMode": mode,
        "pythonVersion": PYTHON,
        "extraPaths": [str(SOURCE)],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "pyrefly.toml").touch()
    paths = {"PATH": f"{SCRIPTS}:{os.environ['PATH']}", "MYPYPATH": str(SOURCE), "PYTHONPATH": str(SOURCE)}
    run = subprocess.run(
        [str(SCRIPTS / checker), *CHECKERS[checker][0], *options, "program.py"],
        cwd=folder,
        env={**paths, "HOME": str(folder), "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in {0, 1}, run.stdout + run.stderr
    about = [line for line in (run.stdout + run.stderr).splitlines() if CHECKERS[checker][1] in line]
    places = [(re.search(r"program\.py:(\d+)", line), line) for line in reversed(about)]
    return {int(place[1]): line for place, line in places if place}
