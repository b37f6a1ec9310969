"""CPython's own tests of dataclasses, with `treewright.pytree_dataclass` in place of `dataclasses.dataclass`.

The tests are read from the running interpreter, so they fit its version and are not copied here. They run twice. The
first time, `dataclass` is the standard library's, with `frozen=True` unless the test sets it: the tests that pass then
are the contract of a frozen dataclass. The second time it is `pytree_dataclass`, which must pass the same tests except
the exclusions in `exclusions.toml`, each with its reason.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import importlib.machinery
import sys
import sysconfig
import tomllib
import types
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import treewright

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    # Used bare, with options, or with a class and options, as `dataclasses.dataclass` is.
    Decorator = Callable[..., Any]

UNSUPPORTED_OPTIONS = ("slots", "weakref_slot")  # and frozen=False

# The least number of tests that nodes pass. exclusions.toml has the others, each with its reason.
FLOORS = {(3, 11): 148, (3, 12): 156, (3, 13): 159, (3, 14): 172, (3, 15): 175}


def source_files() -> dict[str, Path]:
    """The files of CPython's test by module name: "" is the test itself, the others contain classes that it imports."""
    tests = Path(sysconfig.get_path("stdlib"), "test")
    package = tests / "test_dataclasses"
    if package.is_dir():
        return {"" if file.stem == "__init__" else file.stem: file for file in sorted(package.glob("*.py"))}
    # The first releases of 3.11 keep the same files side by side.
    siblings = {file.stem: file for file in sorted(tests.glob("dataclass_*.py"))}
    return {"": tests / "test_dataclasses.py", **siblings}


if not source_files()[""].is_file():
    pytest.skip("this interpreter ships without test.test_dataclasses", allow_module_level=True)


# Many of these classes have `str` fields, but no transformation of JAX is applied to them.
pytestmark = pytest.mark.filterwarnings("ignore::treewright.errors.ChildWarning")


# These two keep their own names, which appear in the names of modules, and show the signature of the original.
@functools.wraps(dataclasses.dataclass, assigned=())
def frozen_by_default(cls: type | None = None, /, **options: Any) -> Any:
    decorator: Decorator = dataclasses.dataclass
    return decorator(cls, **{"frozen": True, **options})


def requests_unsupported_option(options: Mapping[str, Any]) -> bool:
    return any(options.get(option) for option in UNSUPPORTED_OPTIONS) or not options.get("frozen", True)


class LateError:
    """A placeholder for a class that could not be created; it raises the error in the test that uses it."""

    def __init__(self, error: TypeError) -> None:
        self.error = error

    def __call__(self, *args: object, **kwargs: object) -> object:
        raise self.error

    def __getattr__(self, name: str) -> object:
        raise self.error


def decorator_with_late_errors(decorator: Decorator) -> Decorator:
    """As `decorator`, but a rejected option does not stop the import of the module whose classes ask for it."""

    @functools.wraps(decorator)
    def dataclass(cls: type | None = None, /, **options: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, **options)
        try:
            return decorator(cls, **options)
        except TypeError as error:  # NodeDefinitionError among them
            if not requests_unsupported_option(options):
                raise
            return LateError(error)

    return dataclass


def make_dataclass_with(decorator: Decorator) -> Decorator:
    """The standard library's `make_dataclass` with a different decorator, frozen unless the caller passes `frozen`."""

    def dataclass(cls: type, **options: Any) -> Any:
        # make_dataclass passes every option, and False means that an option was not requested.
        requested = {option: value for option, value in options.items() if value or option not in UNSUPPORTED_OPTIONS}
        return decorator(cls, **requested)

    original = cast("types.FunctionType", dataclasses.make_dataclass)
    # A copy, not a wrapper, because make_dataclass reads __module__ from the frame of its caller.
    copy = types.FunctionType(original.__code__, {**original.__globals__, "dataclass": dataclass})
    copy.__kwdefaults__ = {**(original.__kwdefaults__ or {}), "frozen": True}
    if "decorator" in copy.__kwdefaults__:  # since 3.14, and bound when `dataclasses` was imported
        copy.__kwdefaults__["decorator"] = dataclass
    return copy


class InPlaceOfDataclasses(ast.NodeTransformer):
    """Import `dataclass` and `make_dataclass` from a different module; everything else is unchanged.

    The name `dataclasses` stays with the real module: that is how "dataclasses.InitVar[int]" in a string is recognised.
    """

    def __init__(self, *, tests: str, dataclasses: str) -> None:
        self.moved = {"test.test_dataclasses": tests, "dataclasses": dataclasses}
        self.dataclasses = dataclasses

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.ImportFrom:
        node.module = self.moved.get(node.module or "", node.module)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.Attribute:
        match node:
            case ast.Attribute(value=ast.Name(id="dataclasses") as module, attr="dataclass" | "make_dataclass"):
                module.id = self.dataclasses
            case _:
                self.generic_visit(node)
        return node


def load(name: str, decorator: Decorator) -> types.ModuleType:
    """CPython's test module under a different name, with `decorator` as its `dataclass`."""
    ours = new_module(f"{name}_decorators")
    vars(ours).update({public: getattr(dataclasses, public) for public in dataclasses.__all__})
    vars(ours).update(dataclass=decorator_with_late_errors(decorator), make_dataclass=make_dataclass_with(decorator))
    in_place = InPlaceOfDataclasses(tests=name, dataclasses=ours.__name__)
    tests = new_module(name)
    for stem, file in source_files().items():
        module = new_module(f"{name}.{stem}") if stem else tests
        vars(module)[ours.__name__] = ours
        vars(tests)[stem] = module
        code = compile(in_place.visit(ast.parse(file.read_bytes())), str(file), "exec", dont_inherit=True)
        with contextlib.suppress(RuntimeError):  # since 3.15, one of the files fails on purpose
            exec(code, vars(module))
    # From here on the error is raised in the test with the unsupported option.
    vars(tests)["dataclass"] = decorator
    return tests


def new_module(name: str) -> types.ModuleType:
    """An empty module where pickle, string annotations and the tests' own imports find it."""
    # With a loader, because 3.15 warns if a traceback passes through a module without one.
    module = sys.modules[name] = types.ModuleType(name)
    module.__loader__ = importlib.machinery.SourceFileLoader(name, "")
    module.__spec__ = importlib.machinery.ModuleSpec(name, module.__loader__)
    return module


@functools.cache
def suite_of(decorator: Decorator) -> types.ModuleType:
    return load(f"cpython_tests_of_{decorator.__name__}", decorator)


def cases(module: types.ModuleType) -> dict[str, unittest.TestCase]:
    """The tests of a module by name, such as "TestFrozen.test_inherit"; each can run once."""
    suites = cast("Iterator[unittest.TestSuite]", iter(unittest.TestLoader().loadTestsFromModule(module)))
    tests = [cast("unittest.TestCase", case) for suite in suites for case in suite]
    return {case.id().removeprefix(f"{module.__name__}."): case for case in tests}


def failures_of(case: unittest.TestCase) -> str:
    """The tracebacks of a test and its subtests, or "" when all pass."""
    result = unittest.TestResult()
    case.run(result)
    skips = [f"skipped: {reason}" for _, reason in result.skipped]
    return "\n\n".join([*(text for _, text in [*result.errors, *result.failures]), *skips])


@functools.cache
def names_passed_by_a_frozen_dataclass() -> tuple[str, ...]:
    by_name = cases(suite_of(frozen_by_default))
    return tuple(name for name, case in by_name.items() if not failures_of(case))


def listed_exclusions() -> Iterator[tuple[str, str]]:
    """The tests that a node of this Python can't pass, with the reason."""
    groups = tomllib.loads(Path(__file__).with_name("exclusions.toml").read_text(encoding="utf-8"))["exclusions"]
    for group in groups:
        for since, tests in group["since"].items():
            first = tuple(int(number) for number in since.split("."))
            if first <= sys.version_info and (len(first) == 2 or first[:2] == sys.version_info[:2]):
                yield from ((test, group["reason"]) for test in tests)


EXCLUSIONS = dict(listed_exclusions())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    passed = names_passed_by_a_frozen_dataclass()
    parameters = {
        "expected": [test for test in passed if test not in EXCLUSIONS],
        "excluded": [test for test in passed if test in EXCLUSIONS],
    }
    for name in parameters.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(name, parameters[name])


def test_nodes_pass_the_tests_of_frozen_dataclasses(expected: str) -> None:
    report = failures_of(cases(suite_of(treewright.pytree_dataclass))[expected])

    if report:
        pytest.fail(report, pytrace=False)


def test_an_excluded_test_fails(excluded: str) -> None:
    report = failures_of(cases(suite_of(treewright.pytree_dataclass))[excluded])

    assert report, f"{excluded} passes, so take it off the list. It says: {EXCLUSIONS[excluded]}"


def test_each_exclusion_names_a_test_that_a_frozen_dataclass_passes() -> None:
    passed = set(names_passed_by_a_frozen_dataclass())

    assert EXCLUSIONS.keys() <= passed
    assert len(passed - EXCLUSIONS.keys()) >= FLOORS[sys.version_info[:2]]
