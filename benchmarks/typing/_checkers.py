"""The checkers, run on the programs: what each says about each line."""

import dataclasses
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
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
    run = _run("mypy", *arguments, caches, *files, folder=folder, environment=_mypy_path())
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"mypy failed:\n{run.stdout}{run.stderr}")
    said = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return _by_line(
        (Path(one["file"]).name, one["line"], Complaint(one["code"] or "", one["message"]))
        for one in said
        if one["severity"] == "error"
    )


def pyright(folder: Path, files: Iterable[str], target: str, *, module: str = "pyright") -> Complaints:
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
    run = _run(module, "--outputjson", f"--project={folder}", f"--pythonpath={sys.executable}", folder=folder)
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"{module} failed:\n{run.stdout}{run.stderr}")
    return _by_line(
        (
            Path(one["file"]).name,
            one["range"]["start"]["line"] + 1,
            Complaint(one.get("rule", ""), one["message"]),
        )
        for one in json.loads(run.stdout)["generalDiagnostics"]
        if one["severity"] == "error"
    )


def basedpyright(folder: Path, files: Iterable[str], target: str) -> Complaints:
    """The same of its fork, with the fork's own rules left off: they are about style."""
    return pyright(folder, files, target, module="basedpyright")


def ty(folder: Path, files: Iterable[str], target: str) -> Complaints:
    """What ty says. It has no strict mode."""
    arguments = ("--output-format=gitlab", "--python", sys.prefix, "--python-version", target, "--no-progress")
    run = _run("ty", "check", *arguments, *_searched("--extra-search-path"), *files, folder=folder)
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"ty failed:\n{run.stdout}{run.stderr}")
    return _by_line(
        (Path(one["location"]["path"]).name, one["location"]["positions"]["begin"]["line"], _of_ty(one))
        for one in json.loads(run.stdout)
        if one["severity"] in {"major", "critical", "blocker"}
    )


def _of_ty(said: Mapping[str, str]) -> Complaint:
    return Complaint(said["check_name"], said["description"])


def pyrefly(folder: Path, files: Iterable[str], target: str) -> Complaints:
    """What pyrefly says by default: its strict preset adds rules of style, such as `@override` at each overriding."""
    (folder / "pyrefly.toml").write_text("", encoding="utf-8")
    arguments = ("--output-format=json", f"--python-version={target}", f"--python-interpreter-path={sys.executable}")
    run = _run("pyrefly", "check", *arguments, *_searched("--search-path"), *files, folder=folder)
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"pyrefly failed:\n{run.stdout}{run.stderr}")
    return _by_line(
        (Path(one["path"]).name, one["line"], Complaint(one["name"], one["description"]))
        for one in json.loads(run.stdout)["errors"]
        if one["severity"] == "error"
    )


def zuban(folder: Path, files: Iterable[str], target: str) -> Complaints:
    """What zuban says in strict mode. It writes text only."""
    arguments = ("--strict", f"--python-version={target}", f"--python-executable={sys.executable}")
    run = _run("zuban", "check", *arguments, *files, folder=folder, environment=_mypy_path())
    if run.returncode not in {0, 1}:
        raise RuntimeError(f"zuban failed:\n{run.stdout}{run.stderr}")
    line = re.compile(r"(?P<file>[^:\n]+):(?P<line>\d+): error: (?P<message>.*?)(?:  \[(?P<code>[\w-]+)\])?")
    found = (line.fullmatch(text) for text in run.stdout.splitlines())
    return _by_line(
        (Path(one["file"]).name, int(one["line"]), Complaint(one["code"] or "", one["message"]))
        for one in found
        if one is not None
    )


def cpu_seconds(checker: str, folder: Path, file: str, target: str) -> float:
    """How much processor time a checker takes for one file, its imports included."""
    before = os.times()
    CHECKERS[checker](folder, [file], target)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


CHECKERS: Mapping[str, Callable[[Path, Iterable[str], str], Complaints]] = {
    "mypy": mypy,
    "pyright": pyright,
    "basedpyright": basedpyright,
    "ty": ty,
    "pyrefly": pyrefly,
    "zuban": zuban,
}


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
    script = Path(sys.executable).parent / module  # zuban can't be run as a module
    command = [str(script)] if script.exists() else [sys.executable, "-m", module]
    return subprocess.run(  # noqa: S603
        [*command, *arguments], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )


def _by_line(said: Iterable[tuple[str, int, Complaint]]) -> Complaints:
    found: dict[tuple[str, int], tuple[Complaint, ...]] = {}
    for file, line, complaint in said:
        found[file, line] = (*found.get((file, line), ()), complaint)
    return found


def _mypy_path() -> Mapping[str, str]:
    source = _source_of("treewright")
    return {"MYPYPATH": str(source)} if source is not None else {}


def _searched(option: str) -> tuple[str, ...]:
    source = _source_of("treewright")
    return () if source is None else (option, str(source))


def _source_of(package: str) -> Path | None:
    """The folder that a package is imported from, unless checkers find it by themselves."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).resolve().parents[1]
    return None if folder.name == "site-packages" else folder
