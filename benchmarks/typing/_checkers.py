"""mypy and pyright, run on the programs: what each says about each line."""

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path

# Names without a use are what the programs are made of.
UNUSED = ("Class", "Expression", "Function", "Import", "Variable")


@dataclasses.dataclass(frozen=True, slots=True)
class Complaint:
    """An error: mypy's code or pyright's rule, and the message."""

    code: str
    message: str


# By the name of the file and the line.
Complaints = Mapping[tuple[str, int], tuple[Complaint, ...]]


def mypy(folder: Path, files: Iterable[str], target: str, *options: str) -> Complaints:
    """What `mypy --strict` says, without any setting of this repository."""
    arguments = ("--strict", "--config-file=", f"--python-version={target}", "--output=json", *options)
    caches = f"--cache-dir={folder / '.mypy_cache'}"
    source = _source_of("treewright")
    path = {"MYPYPATH": str(source)} if source is not None else {}
    run = _run("mypy", *arguments, caches, *files, folder=folder, environment=path)
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"mypy failed:\n{run.stdout}{run.stderr}")
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return _by_line(
        (Path(one["file"]).name, one["line"], Complaint(one["code"] or "", one["message"]))
        for one in said
        if one["severity"] == "error"
    )


def pyright(folder: Path, files: Iterable[str], target: str) -> Complaints:
    """What pyright says in strict mode, without any setting of this repository."""
    source = _source_of("treewright")
    settings = {
        "include": list(files),
        "typeCheckingMode": "strict",
        "pythonVersion": target,
        "extraPaths": [str(source)] if source is not None else [],
        **{f"reportUnused{name}": False for name in UNUSED},
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    run = _run("pyright", "--outputjson", f"--project={folder}", f"--pythonpath={sys.executable}", folder=folder)
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"pyright failed:\n{run.stdout}{run.stderr}")
    return _by_line(
        (
            Path(one["file"]).name,
            one["range"]["start"]["line"] + 1,
            Complaint(one.get("rule", ""), one["message"]),
        )
        for one in json.loads(run.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    )


def version(distribution: str) -> str:
    """The version of a checker or a library, or "not installed as a package"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _run(
    module: str, *arguments: str, folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    # pyright's wheel would ask the network for a newer one.
    variables = {**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1", **(environment or {})}
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)  # noqa: S603


def _by_line(said: Iterable[tuple[str, int, Complaint]]) -> Complaints:
    found: dict[tuple[str, int], tuple[Complaint, ...]] = {}
    for file, line, complaint in said:
        found[file, line] = (*found.get((file, line), ()), complaint)
    return found


def _source_of(package: str) -> Path | None:
    """The folder that a package is imported from, unless checkers find it by themselves."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).resolve().parents[1]
    return None if folder.name == "site-packages" else folder
