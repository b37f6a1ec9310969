"""The rules of the house: each is a function from files to sentences about what breaks it, and has to find none."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import pytest

from tests.conftest import SLOW

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "treewright"

FILE_LINES = 600
FUNCTION_LINES = 60
COMPLEXITY = 10

# Module-level names that may change all the same, as "module.name". Intern tables live on the classes that they serve;
# what is traced anywhere in the process, and who wants to hear of it, has no smaller place. What code reads never
# changes, and is found once.
MUTABLE_STATE = {
    "_nodes.make_class._MAKING",  # the lock under which a class is made at its first use
    *("_jax._RELAY", "_nodes.init._pairing", "_nodes.others._MADE_AGAIN", "_values.reach.code_reads"),
    *("checkpoint.atomic._HELD", "checkpoint.ending.UNFINISHED"),
    "retrace.traced.PROCESS",
    "sharding.constrain._RULES",
}

TOP_LEVEL = {
    *(".ci", ".git", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md"),
    *("benchmarks", "docs", "examples", "mkdocs.yml", "pyproject.toml", "src", "tests", "typings"),
}

# What may be called at module level: these make nothing that can change.
HARMLESS_CALLS = {
    *(
        "GetAttrKey",
        "Library",
        "MappingProxyType",
        "NewType",
        "ParamSpec",
        "Placement",
        "TypeVar",
        "TypeVarTuple",
        "Way",
        "_Factory",
        "attrgetter",
    ),
    *(
        "classmethod",
        "compile",
        "frozenset",
        "itemgetter",
        "methodcaller",
        "namedtuple",
        "object",
        "removesuffix",
        "tuple",
    ),
}


def python_files(*folders: Path) -> list[Path]:
    return sorted(path for folder in folders for path in folder.rglob("*.py*") if path.suffix in {".py", ".pyi"})


def our_files() -> list[Path]:
    return python_files(*(ROOT / name for name in ("src", "tests", "typings", "examples", "benchmarks")))


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def modules_in(package: Path) -> dict[str, Path]:
    """Each module of a package by its dotted name inside it; the package's own `__init__` is ""."""
    found: dict[str, Path] = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        found[".".join(part for part in parts if part != "__init__")] = path
    return found


def hold(breaches: Iterable[str]) -> None:
    """Pass if there are none, else show them all."""
    found = list(breaches)
    assert not found, "\n" + "\n".join(found)


# Size


def long_files(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        lines = len(path.read_text(encoding="utf-8").splitlines())
        if lines > FILE_LINES:
            yield f"{path} has {lines} lines"


def long_functions(files: Iterable[Path]) -> Iterator[str]:
    for path in files:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES:
                    yield f"{path}:{node.lineno}: {node.name} has {lines} lines"


def complex_functions(*paths: Path) -> list[str]:
    """Ruff's findings with our settings, and nobody's `noqa`."""
    command = (sys.executable, "-m", "ruff", "check", "--config", str(ROOT / "pyproject.toml"), "--select", "C901")
    options = ("--ignore-noqa", "--no-cache", "--output-format=concise", "--quiet")
    run = subprocess.run([*command, *options, *map(str, paths)], capture_output=True, text=True, check=False)
    assert not run.stderr
    return run.stdout.splitlines()


def test_no_file_is_longer_than_600_lines() -> None:
    hold(long_files(our_files()))


def test_no_function_is_longer_than_60_lines() -> None:
    hold(long_functions(our_files()))


def test_no_function_is_more_complex_than_10() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    assert settings["tool"]["ruff"]["lint"]["mccabe"]["max-complexity"] == COMPLEXITY
    hold(complex_functions(ROOT / "src", ROOT / "tests"))


def test_long_files_and_functions_are_found(tmp_path: Path) -> None:
    allowed, too_long = tmp_path / "allowed.py", tmp_path / "too_long.py"
    allowed.write_text("def f():\n" + "    pass\n" * 59 + "x = 1\n" * 540)
    too_long.write_text("def f():\n" + "    pass\n" * 60 + "x = 1\n" * 540)

    assert list(long_files([allowed, too_long])) == [f"{too_long} has 601 lines"]
    assert list(long_functions([allowed, too_long])) == [f"{too_long}:1: f has 61 lines"]


def test_complex_functions_are_found(tmp_path: Path) -> None:
    for name, branches in (("allowed", 9), ("too_complex", 10)):
        body = "".join(f"    if x == {n}:\n        x += 1\n" for n in range(branches))
        (tmp_path / f"{name}.py").write_text(f"def {name}(x):  # noqa: C901\n{body}    return x\n")

    (finding,) = complex_functions(tmp_path)
    assert "`too_complex` is too complex (11 > 10)" in finding


# Names


def names_of_types(package: Path) -> Iterator[tuple[str, str]]:
    """Each class and type alias of the package, with its module; a class that a module writes in two ways is one."""
    for module, path in modules_in(package).items():
        code = tree(path)
        names = {node.name for node in ast.walk(code) if isinstance(node, ast.ClassDef)}
        for statement in code.body:
            match statement:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias")):
                    names.add(name)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript(value=ast.Name(id="Literal"))):
                    names.add(name)
                case _:
                    pass
        yield from ((name.lstrip("_"), module) for name in names)


def types_of_one_name(package: Path) -> Iterator[str]:
    homes: dict[str, list[str]] = {}
    for name, module in names_of_types(package):
        homes.setdefault(name, []).append(module)
    yield from (f"{name} is a type in {' and in '.join(modules)}" for name, modules in homes.items() if modules[1:])


def test_the_name_of_a_type_stands_once_in_the_package() -> None:
    hold(types_of_one_name(SOURCE))


def test_types_of_one_name_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("class Leaf: ...\nif 1:\n    class Twice: ...\nelse:\n    class Twice: ...\n")
    (tmp_path / "two.py").write_text("Kind = Literal['a']\ndef f():\n    class _Leaf: ...\n")
    (tmp_path / "six.py").write_text("Kind: TypeAlias = str\nleaf = 1\n")

    assert sorted(types_of_one_name(tmp_path)) == [
        "Kind is a type in six and in two",
        "Leaf is a type in one and in two",
    ]


# State and generated code


def run_on_import(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, also those inside `if`, `try`, `with` and loops."""
    for statement in statements:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for block in ("body", "orelse", "finalbody"):
                yield from run_on_import(getattr(statement, block, ()))
            for handler in getattr(statement, "handlers", ()):
                yield from run_on_import(handler.body)


def name_of(callee: ast.expr) -> str:
    match callee:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(value=inner) | ast.Call(func=inner):
            return name_of(inner)
        case _:
            return ""


def can_change(value: ast.expr | None, *, in_class: bool) -> bool:
    """Whether an expression makes something mutable; calls in a class body are mostly specifiers of fields."""
    if isinstance(value, ast.Call):
        return not in_class and name_of(value.func) not in HARMLESS_CALLS
    return isinstance(value, ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp)


def changeable_names(statements: Iterable[ast.stmt], *, in_class: bool = False) -> Iterator[str]:
    for statement in run_on_import(statements):
        match statement:
            case ast.Assign(targets=targets, value=value) if can_change(value, in_class=in_class):
                yield from map(ast.unparse, targets)
            case ast.AnnAssign(target=target, value=value) if can_change(value, in_class=in_class):
                yield ast.unparse(target)
            case ast.ClassDef(name=name, body=body):
                yield from (f"{name}.{inside}" for inside in changeable_names(body, in_class=True))
            case ast.FunctionDef(name=name, decorator_list=decorators):
                if {name_of(decorator) for decorator in decorators} & {"cache", "lru_cache"}:
                    yield name
            case _:
                pass


def mutable_state(package: Path) -> Iterator[str]:
    """Names bound on import to something that can change, functions with a cache, and names declared `global`.

    `__all__` is left out: it is a list by custom.
    """
    for module, path in modules_in(package).items():
        code = tree(path)
        names = [*changeable_names(code.body)]
        names += [name for node in ast.walk(code) if isinstance(node, ast.Global) for name in node.names]
        yield from (f"{module or package.name}.{name}" for name in names if name != "__all__")


def files_that_exec(package: Path) -> list[str]:
    def is_exec(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "exec"

    return [name for name, path in modules_in(package).items() if any(map(is_exec, ast.walk(tree(path))))]


def test_nothing_changes_at_module_level_but_what_is_listed() -> None:
    hold(name for name in mutable_state(SOURCE) if name not in MUTABLE_STATE)


def test_at_most_one_file_runs_generated_code() -> None:
    assert len(files_that_exec(SOURCE)) <= 1


def test_mutable_state_is_found(tmp_path: Path) -> None:
    (tmp_path / "state.py").write_text(
        "import functools, types, weakref\n"
        "FINE = types.MappingProxyType({}), (), frozenset(), 1\n"
        "__all__ = ['fine']\nseen = set()\n"
        "table: weakref.WeakValueDictionary[str, object] = weakref.WeakValueDictionary()\n"
        "if FINE:\n    generic = dict[str, int]()\n"
        "class Room:\n    doors = []\n    fine = field()\n"
        "@functools.lru_cache(maxsize=None)\ndef cached(): ...\n"
        "def fine():\n    mine = []\n    global counter\n    counter = 1\n"
    )

    found = ["state.seen", "state.table", "state.generic", "state.Room.doors", "state.cached", "state.counter"]
    assert list(mutable_state(tmp_path)) == found


def test_files_that_run_generated_code_are_found(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("exec('x = 1')\n")
    (tmp_path / "two.py").write_text("def f():\n    return exec('1')\n")
    (tmp_path / "none.py").write_text("import re\nre.compile('exec(x)')\n")

    assert files_that_exec(tmp_path) == ["one", "two"]


# The top level, the settings


def strangers(root: Path) -> set[str]:
    """What stands at the top level, is not one of its names, and is not ignored by git."""
    lines = (line.strip().rstrip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").splitlines())
    ignored = [line for line in lines if line and not line.startswith("#")]
    names = {path.name for path in root.iterdir()} - TOP_LEVEL
    return {name for name in names if not any(fnmatch(name, pattern) for pattern in ignored)}


def test_the_top_level_stays_small() -> None:
    hold(strangers(ROOT))


def test_strangers_at_the_top_level_are_found(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("# caches\n.venv/\n*.egg-info/\n")
    for name in ("src", ".venv", "x.egg-info", "setup.py", "scripts"):
        (tmp_path / name).mkdir()

    assert strangers(tmp_path) == {"setup.py", "scripts"}


def test_what_make_quick_leaves_out_exists() -> None:
    hold(name for name in sorted(SLOW) if not (ROOT / "tests" / name).exists())


def test_tests_see_four_cpu_devices_and_no_rank_promotion() -> None:
    assert len(jax.devices("cpu")) == 4
    with pytest.raises(ValueError, match="rank_promotion"):
        jnp.add(jnp.ones((2, 3)), jnp.ones(3))
