"""Other libraries' tests of their classes, run on nodes; `test_suites.py` checks how many pass.

The tests are downloaded when needed; this repository contains none of them. An adapter replaces the library's decorator
or base class by ours before the tests are imported, and changes nothing else. `Suite.excluded` lists tests of features
that nodes lack, which are not counted; `Suite.otherwise` lists counted failures with a known reason.

Each suite has a folder in `TREEWRIGHT_SUITES`, by default in the folder for temporary files; you can also create it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import importlib.util
import inspect
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

SECONDS_TO_FETCH = 240


class OfflineError(Exception):
    """The tests could not be downloaded."""


# Sources of the tests


def from_source_distribution(name: str, folder: Path) -> None:
    """The source distribution of the installed version, downloaded by pip."""
    with tempfile.TemporaryDirectory() as downloads:
        requirement = f"{name}=={importlib.metadata.version(name)}"
        pip = ("pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", downloads, requirement)
        _run(sys.executable, "-m", *pip)
        (archive,) = Path(downloads).glob("*.tar.gz")
        with tarfile.open(archive) as tar:
            tar.extractall(downloads, filter="data")
        next(path for path in Path(downloads).iterdir() if path.is_dir()).rename(folder)


def from_repository(name: str, folder: Path) -> None:
    """The tag of the installed version, if the source distribution has no tests."""
    tag = f"v{importlib.metadata.version(name)}"
    _run("git", "clone", "--quiet", "--depth=1", f"--branch={tag}", f"https://github.com/patrick-kidger/{name}", folder)


def from_installed_package(name: str, folder: Path) -> None:
    """The package itself, if it contains its tests."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    folder.unlink(missing_ok=True)
    folder.symlink_to(Path(spec.origin).parent)


def _run(*command: str | Path) -> None:
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS_TO_FETCH)
    except (OSError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", None) or b""
        raise OfflineError(f"{error} {stderr.decode(errors='replace')[-300:]}") from error


# Replace each library's decorator or base class by ours


def adapt_flax() -> None:
    import flax.struct

    import treewright

    theirs: Callable[..., Any] = flax.struct.field

    def dataclass(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, **options)
        if "__node_info__" in vars(cls):  # flax accepts a class twice, and one that its base class has processed
            return cls
        node = treewright.pytree_dataclass(**options)(cls)
        node._flax_dataclass = True
        return node

    def field(*, pytree_node: bool = True, **arguments: Any) -> Any:
        if pytree_node:
            return theirs(**arguments)
        return treewright.static(converter=treewright.freeze, **arguments)

    untyped: Any = flax.struct
    untyped.dataclass, untyped.field, untyped.PyTreeNode = dataclass, field, treewright.Module


def adapt_chex() -> None:
    from chex._src import dataclass as chex_dataclass

    import treewright

    def dataclass(cls: Any = None, *, mappable_dataclass: bool = True, frozen: bool = True, **options: Any) -> Any:
        if cls is None:
            return functools.partial(dataclass, mappable_dataclass=mappable_dataclass, **options)
        return treewright.pytree_dataclass(**{"kw_only": mappable_dataclass, **options})(cls)

    untyped: Any = chex_dataclass
    untyped.dataclass = dataclass


def adapt_jax_dataclasses() -> None:
    import jax_dataclasses
    from jax_dataclasses._dataclasses import JDC_STATIC_MARKER

    import treewright

    def pytree_dataclass(cls: Any = None, **options: Any) -> Any:
        if cls is None:
            return functools.partial(pytree_dataclass, **options)
        annotations = inspect.get_annotations(cls)
        for name, annotation in [*annotations.items()]:
            in_text = isinstance(annotation, str) and "Static[" in annotation
            if in_text or JDC_STATIC_MARKER in getattr(annotation, "__metadata__", ()):
                _make_static(cls, name, treewright.static)
                annotations[name] = Any  # the mark would be rejected
        cls.__annotations__ = annotations
        return treewright.pytree_dataclass(**options)(cls)

    def static_field(**arguments: Any) -> Any:
        return treewright.static(converter=_hashable, **arguments)

    untyped: Any = jax_dataclasses
    untyped.pytree_dataclass, untyped.static_field = pytree_dataclass, static_field


def _make_static(cls: Any, name: str, static: Callable[..., Any]) -> None:
    value = vars(cls).get(name, dataclasses.MISSING)
    if isinstance(value, dataclasses.Field):
        value.metadata = {**value.metadata, "static": True}  # type: ignore[assignment]
    else:
        setattr(cls, name, static(default=value, converter=_hashable))


def _hashable(value: Any) -> Any:
    return value if isinstance(value, Hashable) else _ByContent(value)


@dataclasses.dataclass(frozen=True, eq=False)
class _ByContent:
    """A static that its class makes unhashable, wrapped as the error message says."""

    value: Any

    def __eq__(self, other: object) -> bool:
        return bool(self.value == (other.value if isinstance(other, _ByContent) else other))

    def __hash__(self) -> int:
        return hash(repr(self.value))


def adapt_equinox() -> None:
    import equinox

    import treewright

    def field(*, static: bool = False, converter: Any = None, **arguments: Any) -> Any:
        if converter is not None:
            return (treewright.static if static else treewright.field)(converter=converter, **arguments)
        metadata = {**(arguments.pop("metadata", None) or {}), **({"static": True} if static else {})}
        return dataclasses.field(metadata=metadata, **arguments)

    untyped: Any = equinox
    untyped.Module, untyped.field = treewright.Module, field


# The suites


@dataclasses.dataclass(frozen=True)
class Suite:
    """The tests of one library.

    Attributes:
        name: The library, as it is imported.
        fetch: The function that downloads its tests into a folder.
        files: The files of tests, in that folder.
        adapt: The function that replaces the library's classes by ours.
        floor: The least number of passing tests.
        excluded: Tests of features that nodes lack, by a part of their names, with the reason. They are not counted.
        otherwise: Tests of behaviour that differs for nodes, with the reason. They are counted.
    """

    name: str
    fetch: Callable[[str, Path], None]
    files: tuple[str, ...]
    adapt: Callable[[], None]
    floor: int
    excluded: Mapping[str, str]
    otherwise: Mapping[str, str] = dataclasses.field(default_factory=dict[str, str])


MUTABLE = "a node is frozen"
MAPPING = "a node is not a mapping or a tuple"
IDLE = "a __post_init__ that no constructor runs is not warned of, as with dataclasses"
FIELDS_IN_DICT = "a node keeps its fields in one pair, and not in __dict__"

SUITES = {
    suite.name: suite
    for suite in (
        Suite(
            "flax",
            from_source_distribution,
            ("tests/struct_test.py",),
            adapt_flax,
            floor=10,
            excluded={"test_mutable": MUTABLE, "test_slots": MUTABLE},
        ),
        Suite(
            "chex",
            from_installed_package,
            ("_src/dataclass_test.py",),
            adapt_chex,
            floor=22,
            excluded={
                "testFlatten": MAPPING,
                "testMapStructure": MAPPING,
                "testTraverse": MAPPING,
                "test_disallowed_fields": MAPPING,
                "test_keys_and_values": MAPPING,
                "test_tuple": MAPPING,
                "requires_kwargs_by_default": "the words of chex's own error",
                "test_unexpected_kwargs": "the words of chex's own error",
                "unfrozen_dataclass_is_mutable": MUTABLE,
                "frozen_dataclass_raise_error": MUTABLE,
                "inheritance_from_empty_frozen_base": MUTABLE,
                "test_get_and_set_state": MUTABLE,
                "flatten_respects_post_init": "unflatten runs no code of a class",
                "flatten_roundtrip_ordering1": "leaves come in the order of the fields",
            },
            otherwise={"test_dataclass_instance_fields": FIELDS_IN_DICT, "roundtrip_serialization": FIELDS_IN_DICT},
        ),
        Suite(
            "jax_dataclasses",
            from_source_distribution,
            tuple(f"tests/test_{part}.py" for part in ("dataclass", "serialization", "vmap")),
            adapt_jax_dataclasses,
            floor=8,
            excluded={},
            otherwise={
                "test_serialization": "flax does not know node classes until three lines register them",
                "test_vmap": "unflatten runs no code of a class",
            },
        ),
        Suite(
            "equinox",
            from_repository,
            ("tests/test_module.py", "tests/test_abstract.py"),
            adapt_equinox,
            floor=48,
            excluded={
                "test_abstract_attribute": "AbstractVar",
                "test_abstract_class_attribute": "AbstractVar",
                "test_init_subclass_and_abstract_class_var": "AbstractVar",
                "test_init_and_postinit": IDLE,
                "test_post_init_warning": IDLE,
            },
            otherwise={
                "test_check_init": "checks of bases come first",
                "test_class_attribute_of_static_field": "a field that is also a method is rejected",
                "test_converter_annotations": "the parameter of a converted field is annotated as the field",
                "test_converter_monkeypatched_postinit": "converters run at the assignment",
                "test_converter_subclass_post_init": "converters run at the assignment",
                "test_converter": "converters run at the assignment",
                "test_inherit_doc": "a generated __init__ has no docstring, as with dataclasses",
                "test_init_as_abstract": "a method must not hide an inherited field",
                "test_init_fields": "expects the text of equinox's error",
                "test_jax_transform_warn": "a jitted function in a field causes no warning",
                "test_method_assignment": "a node can't have its own method in a field",
                "test_no_jax_array_static": "an array in a static is rejected; equinox warns",
                "test_not_weakrefable": "__slots__ in a class body are rejected",
                "test_orig_class": "Box[int](x) and Box(x) are the same node",
                "test_wrap_method": "a bound method is a node, and not an instance of Module",
            },
        ),
    )
}


def suite_folder(suite: Suite) -> Path:
    """The folder with the tests of a suite, downloaded if missing.

    Raises:
        OfflineError: If they can't be.
    """
    cache = Path(os.environ.get("TREEWRIGHT_SUITES", Path(tempfile.gettempdir(), "treewright-suites")))
    folder = cache / suite.name
    if folder.is_symlink() or not folder.exists():  # a link may lead into a different environment
        cache.mkdir(parents=True, exist_ok=True)
        suite.fetch(suite.name, folder)
    return folder


@dataclasses.dataclass(frozen=True)
class Results:
    """The results of a suite: tests that passed, failures with messages, and excluded tests with reasons."""

    suite: Suite
    passed: tuple[str, ...]
    failed: Mapping[str, str]
    excluded: Mapping[str, str]

    def __str__(self) -> str:
        unexpected = {test: message for test, message in self.failed.items() if not _reason(self.suite.otherwise, test)}
        return f"{self.suite.name}: {len(self.passed)} pass; for no known reason fail {unexpected}"


def _reason(reasons: Mapping[str, str], test: str) -> str | None:
    return next((reason for part, reason in reasons.items() if part in test), None)


def results_of(name: str) -> Results:
    """Run a suite in a separate process.

    Raises:
        OfflineError: If its tests can't be fetched.
    """
    folder = suite_folder(SUITES[name])
    process = subprocess.run([sys.executable, __file__, name], cwd=folder, capture_output=True, text=True, check=False)
    try:
        return Results(SUITES[name], **json.loads(process.stdout.splitlines()[-1]))
    except (IndexError, ValueError):
        raise RuntimeError(process.stdout + process.stderr) from None


def run_suite(name: str) -> None:
    """Run a suite in this process, whose working directory holds it, and print the results as JSON."""
    import pytest

    suite, passed, failed, excluded = SUITES[name], list[str](), dict[str, str](), dict[str, str]()

    class Recorder:
        def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
            test = report.nodeid.partition("::")[2]
            reason = _reason(suite.excluded, test)
            if reason is not None:
                excluded[test] = reason
            elif report.failed:
                crash = getattr(report.longrepr, "reprcrash", None)
                failed[test] = str(report.longrepr if crash is None else crash.message).strip().splitlines()[0][:200]
            elif report.when == "call" and report.passed:
                passed.append(test)

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    suite.adapt()
    options = ("-q", "--no-header", "--tb=short", "-p", "no:cacheprovider", f"-c{os.devnull}", "--rootdir=.")
    pytest.main([*options, *suite.files], plugins=[Recorder()])
    print("\n" + json.dumps({"passed": passed, "failed": failed, "excluded": excluded}))  # noqa: T201


if __name__ == "__main__":
    run_suite(sys.argv[1])
