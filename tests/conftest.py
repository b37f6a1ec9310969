"""Settings for all tests, `count_traces`, which tests are slow, and what is skipped where a package is missing."""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import os
import resource
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

# Before jax is imported, and in the environment so that processes started by tests have them too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["JAX_NUM_CPU_DEVICES"] = "4"
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # a fourth of the time of tests that compile
# The newer code generators of XLA take half of what is left, and a tenth goes into cutting small programs into parts
# that cores could compile side by side. XLA ends a process that names a flag which it does not know.
os.environ.setdefault(
    "XLA_FLAGS",
    " ".join(
        flag
        for flag, releases in (
            ("--xla_cpu_use_fusion_emitters=false", ("0.9.", "0.10.", "0.11.0")),
            ("--xla_cpu_parallel_codegen_split_count=1", ("0.9.", "0.10.", "0.11.", "0.12.")),
        )
        if version("jaxlib").startswith(releases)
    ),
)

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

pytest_plugins = ["treewright.testing.plugin"]  # from here, and not by itself, so that coverage sees it

# A shell starts what runs in its background with Ctrl-C ignored, and all processes below inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Until all tests are imported: that makes little garbage and much that stays, and to look through it takes 4 s of 15.
gc.disable()

P = ParamSpec("P")
R = TypeVar("R")

# `make test` says the same each time; `make exhaustive` draws anew, and twenty times as much.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("exhaustive", deadline=None, max_examples=1000, print_blob=True)
hypothesis.settings.load_profile("repeatable")


class CountedTraces(Generic[P, R]):
    """A function that counts how often its Python body runs: under `jit`, once a trace.

    A cached call of a jitted function runs no Python, so the count is exact and costs the call nothing.
    """

    count: int

    def __init__(self, function: Callable[P, R]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self.count = 0

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        self.count += 1
        return self._function(*args, **kwargs)


def count_traces(function: Callable[P, R]) -> CountedTraces[P, R]:
    """`function` with a `.count` of its traces, to be jitted: `jax.jit(counted := count_traces(f))`."""
    return CountedTraces(function)


def trace_counts(make: Callable[[Any, Any], Any], *settings: Any) -> list[int]:
    """How often one jitted function has been traced after its call with each of the settings.

    `make(x, setting)` gives a node with a child `x`.
    """
    import jax
    import jax.numpy as jnp

    jitted = jax.jit(counted := count_traces(lambda node: node.x))
    counts: list[int] = []
    for setting in settings:
        jitted(make(jnp.ones(2), setting))
        counts.append(counted.count)
    return counts


# What `make quick` leaves out: whatever starts processes, trains, compiles much, or draws many examples.
SLOW = {
    "checkpoint",
    "examples",
    "interop",
    "move",
    "nodes/test_cloudpickle.py",
    "nodes/test_export.py",
    "nodes/test_first_use.py",
    "nodes/test_laws.py",
    "nodes/test_method_identity.py",
    "nodes/test_static_law.py",
    "nodes/test_static_wrapper.py",
    "nodes/test_treescope_page.py",
    "retrace/test_command.py",
    "nodes/test_transforms.py",
    "retrace/test_command_programs.py",
    "retrace/test_explain.py",
    "retrace/test_hash_seeds.py",
    "sharding/test_constrain.py",
    "sharding/test_describe.py",
    "sharding/test_init.py",
    "sharding/test_processes.py",
    "sharding/test_program.py",
    "test_docs.py",
    "test_import_cost.py",
    "test_jit_cache.py",
    "test_loop.py",
    "test_site.py",
    "test_threads.py",
    "test_train.py",
    "test_train_buffers.py",
    "test_train_statistics.py",
    "testing",
    "trees/test_tree_laws.py",
    "typing",
}


# Where coverage would cost as much as half of the tests, and find no line that other tests do not run.
WITHOUT_COVERAGE = {
    "examples",
    "move/test_moved.py",
    "nodes/test_laws.py",
    "nodes/test_static_law.py",
    "nodes/test_transforms.py",
    "retrace/test_command_programs.py",
    "retrace/test_law.py",
    "test_docs.py",
    "test_house.py",
    "test_jit_cache.py",
    "test_layers.py",
    "test_map.py",
    "test_site.py",
    "test_threads.py",
    "trees/test_tree_laws.py",
    "typing",
}


def is_in(path: Path, listed: set[str]) -> bool:
    """Whether a file or folder of tests stands in a list."""
    inside = path.relative_to(Path(__file__).parent)
    return any(str(part) in listed for part in (inside, *inside.parents))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m "not slow"`, do not even import slow files: that alone would take a third of the minute."""
    return (config.option.markexpr == "not slow" and is_in(collection_path, SLOW)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if is_in(item.path, SLOW):
            item.add_marker("slow")
        if is_in(item.path, WITHOUT_COVERAGE) and config.pluginmanager.hasplugin("pytest_cov"):
            item.add_marker("no_cover")

    # What takes seconds comes first, so that no worker is left alone with it at the end.
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)

    # What takes too long for `make test` runs only where it is asked for by its marker, as `make exhaustive` does.
    if "exhaustive" not in config.option.markexpr:
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def set_aside() -> None:
    """What lives now lives until the end, so later collections of garbage need not look through it each time."""
    gc.collect()
    # From 3.14 on Hypothesis asks for referrers, and those that are frozen are not found.
    if sys.version_info < (3, 14):
        gc.freeze()


def pytest_collection_finish() -> None:
    set_aside()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def garbage_of_this_file_only(request: pytest.FixtureRequest) -> None:
    """Full collections that tests ask for need not look through what thousands of tests before have left in JAX."""
    if hasattr(request.module, "gc"):
        set_aside()


@pytest.fixture(scope="module", autouse=True)
def memory_of_few_files() -> None:
    """JAX keeps what it compiled until the process ends, 3 GB in all. Above 2, the files to come begin anew."""
    pages = Path("/proc/self/statm")
    if pages.exists() and int(pages.read_text(encoding="ascii").split()[1]) * resource.getpagesize() > 2 << 30:
        import jax

        clear_caches: Any = jax.clear_caches  # which has no annotations
        clear_caches()
        gc.collect()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc keeps it for itself otherwise
        if trim is not None:
            trim(0)


# Orbax needs tensorstore, flax needs both, and tensorstore has no wheels for the newest Python yet. What imports one of
# them in vain is skipped: no version is asked, so with the wheels all of it runs.
WITHOUT_WHEELS = ("flax", "orbax")


def missing_package(error: BaseException | None) -> str | None:
    """Which of those packages is missing, where an error came from its import."""
    while error is not None:
        name = str(getattr(error, "name", None)).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and name in WITHOUT_WHEELS:
            return name
        error = error.__cause__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None]:
    try:
        yield
    except ImportError as error:
        package = missing_package(error)
        if package is None:
            raise
        pytest.skip(f"{package} is not installed")


def skip_before_jax(*release: int) -> None:
    """Skip a test that holds words or names which JAX itself has had only since a release, and we repeat."""
    import jax

    if jax.__version_info__ < release:
        pytest.skip(f"says what JAX says since {'.'.join(map(str, release))}")


class Absent:
    """Stands for a package that is not installed: its parts can be named, and a test that uses one is skipped."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __getattr__(self, name: str) -> Any:
        return self

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        self()
        return ()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        if "PYTEST_CURRENT_TEST" in os.environ:
            pytest.skip(f"{self.name} is not installed")
        return self


def package_or_absent(name: str, *modules: str) -> Any:
    """A package whose modules are imported, or `Absent`."""
    try:
        for module in (name, *modules):
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        if missing_package(error) is None:
            raise
        return Absent(name)
    return importlib.import_module(name)
