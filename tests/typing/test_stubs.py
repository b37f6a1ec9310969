"""The stubs in `typings/` against the modules that they describe: the same names, parameters, defaults and properties.

Compiled functions have no `inspect.signature`; nanobind, which made them, keeps its own text of it.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.conftest import skip_before_jax

if TYPE_CHECKING:
    from collections.abc import Iterator

STUBS = Path(__file__).parents[2] / "typings"


def shape(arguments: ast.arguments) -> tuple[int, tuple[str, ...], int]:
    """How many parameters go by place alone, the names of the others, and how many have defaults."""
    named = [one.arg for one in (*arguments.args, *arguments.kwonlyargs)]
    defaults = len(arguments.defaults) + sum(one is not None for one in arguments.kw_defaults)
    return len(arguments.posonlyargs), tuple(named), defaults


def real_shape(function: Any) -> tuple[int, tuple[str, ...], int]:
    """The same of a function at run time."""
    texts = getattr(function, "__nb_signature__", None)
    text = texts[0][0] if texts else f"def {function.__name__}{inspect.signature(function)}"
    text = re.sub(r"\\\d+", "...", text).replace("def (", "def nameless(")
    if type(function).__name__ == "nb_func":
        text = text.replace("(self, ", "(")  # one text has a self too many: nanobind's static methods are nb_func
    (definition,) = ast.parse(f"{text}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    return shape(definition.args)


def members(body: list[ast.stmt], holder: str = "") -> Iterator[tuple[str, ast.FunctionDef | None]]:
    """The dotted names that a stub defines, functions with their definition."""
    for statement in body:
        match statement:
            case ast.ClassDef(name=name):
                yield holder + name, None
                yield from members(statement.body, f"{holder}{name}.")
            case ast.FunctionDef(name=name):
                yield holder + name, statement
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield holder + name, None
            case _:
                pass


def differences(stubs: Path) -> Iterator[str]:
    """What the stubs say and the real modules do not have so."""
    for path in sorted(stubs.rglob("*.pyi")):
        module = ".".join(part for part in path.relative_to(stubs).with_suffix("").parts if part != "__init__")
        real = importlib.import_module(module)
        for name, stub in members(ast.parse(path.read_text(encoding="utf-8")).body):
            if name.startswith("_"):
                continue  # a type variable, for the stub alone
            holder, _, last = name.rpartition(".")
            found = inspect.getattr_static(getattr(real, holder, real), last, None)
            if found is None:
                yield f"{module}.{name} does not exist"
            elif stub is not None and (difference := of_function(stub, found)):
                yield f"{module}.{name} {difference}"


def of_function(stub: ast.FunctionDef, found: Any) -> str:
    decorators = [ast.unparse(decorator) for decorator in stub.decorator_list]
    if ("property" in decorators) != isinstance(found, property):
        return f"is a {type(found).__name__}"
    function = found.__func__ if isinstance(found, staticmethod) else found
    if isinstance(found, property) or shape(stub.args) == real_shape(function):
        return ""  # a property takes nothing but its object
    return f"has {real_shape(function)}, not {shape(stub.args)}"


def test_the_stubs_say_what_is_there_at_run_time() -> None:
    skip_before_jax(0, 10, 2)
    assert "\n".join(differences(STUBS)) == ""


def test_a_stub_that_says_something_else_is_found(tmp_path: Path) -> None:
    (tmp_path / "fractions.pyi").write_text(
        "def nothing() -> None: ...\n"
        "class Fraction:\n"
        "    def limit_denominator(self, max_denominator: int = ...) -> Fraction: ...\n"
        "    def as_integer_ratio(self, sign: int) -> tuple[int, int]: ...\n"
        "    def numerator(self) -> int: ...\n"
        "    def cube(self) -> Fraction: ...\n"
    )

    assert list(differences(tmp_path)) == [
        "fractions.nothing does not exist",
        "fractions.Fraction.as_integer_ratio has (0, ('self',), 0), not (0, ('self', 'sign'), 0)",
        "fractions.Fraction.numerator is a property",
        "fractions.Fraction.cube does not exist",
    ]


def only_for_checkers(statement: ast.stmt) -> bool:
    decorators = getattr(statement, "decorator_list", [])
    return any(ast.unparse(decorator) == "type_check_only" for decorator in decorators)


def unknown_at_run_time(stub: str, real: Any) -> set[str]:
    """The dotted names in a stub of ours that its module lacks; type variables and what is only for checkers aside."""
    body: list[ast.stmt] = [
        statement
        for statement in ast.parse(stub).body
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and not only_for_checkers(statement)
    ]
    return {name for name, _ in members(body) if not has(real, name)}


def has(real: Any, dotted: str) -> bool:
    holder, _, last = dotted.rpartition(".")
    found = getattr(real, holder, None) if holder else real
    return found is not None and inspect.getattr_static(found, last, None) is not None


def test_our_own_stubs_name_what_is_there() -> None:
    from treewright import train, typed

    assert unknown_at_run_time(Path(typed.__file__).with_suffix(".pyi").read_text(encoding="utf-8"), typed) == set()
    assert unknown_at_run_time(Path(train.__file__).with_suffix(".pyi").read_text(encoding="utf-8"), train) == set()
    assert unknown_at_run_time("class TrainState:\n    nope: int\n\n    def create(self): ...\n", train) == {
        "TrainState.nope"
    }


def test_the_stub_of_train_has_the_fields_in_order() -> None:
    from treewright import train

    stub = ast.parse(Path(train.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    (state,) = (one for one in stub.body if isinstance(one, ast.ClassDef) and one.name == "TrainState")
    written = [
        one.target.id for one in state.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
    ]

    assert written == [field.name for field in dataclasses.fields(train.TrainState)]
