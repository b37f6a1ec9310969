"""Settings for all tests, and `count_traces`."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import re
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

# Before jax is imported, and in the environment so that processes started by tests have them too.
# `make test DEVICE=cuda` sets other platforms: tests then get the devices that the machine has, and say what they need.
os.environ["JAX_NUMPY_RANK_PROMOTION"] = "raise"
if os.environ.setdefault("JAX_PLATFORMS", "cpu") == "cpu":
    os.environ.setdefault("JAX_NUM_CPU_DEVICES", "4")
    # Most programs here run once, so compilation must be cheap: without most optimisations (a third of the time of the
    # docs), and with XLA's older emitters, which take half as long with JAX 0.10. Newer versions ignore the option.
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_extra_options=xla_cpu_disable_new_fusion_emitters")

import hypothesis
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
R = TypeVar("R")

# `make test` draws the same examples each time; `make exhaustive` draws new ones, and sixty times as many.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True, max_examples=50, print_blob=True)
hypothesis.settings.register_profile("exhaustive", deadline=None, max_examples=3000, print_blob=True)
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

    `make(x, setting)` returns a node with a child `x`.
    """
    import jax
    import jax.numpy as jnp

    jitted = jax.jit(counted := count_traces(lambda node: node.x))
    counts: list[int] = []
    for setting in settings:
        jitted(make(jnp.ones(2), setting))
        counts.append(counted.count)
    return counts


def one_line(value: object) -> str:
    """The representation of a value without its line breaks."""
    return re.sub(r"(?<=[(\[{]) |,? (?=[)\]}])", "", re.sub(r"\s*\n\s*", " ", repr(value)))


def skip_before_jax(*release: int) -> None:
    """Skip a test that depends on messages or names that JAX has only since a release."""
    import jax

    if jax.__version_info__ < release:
        pytest.skip(f"repeats a message of JAX since {'.'.join(map(str, release))}")


def skip_below_devices(count: int) -> None:
    """Skip a case of a table that needs several devices; a test has `@pytest.mark.devices(count)`."""
    import jax

    if jax.device_count() < count:
        pytest.skip(f"needs {count} devices, and finds {jax.device_count()}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect the tests without garbage collections (a third of the time), and leave what they made out of later ones.

    All imported modules and all tests live as long as the process: without this, a `gc.collect()` takes half a second.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that asks for devices which this machine lacks."""
    import jax

    for marker in item.iter_markers("devices"):
        skip_below_devices(marker.args[0])
    if item.get_closest_marker("cpu") and jax.default_backend() != "cpu":
        pytest.skip(f"is for CPU devices, and finds {jax.default_backend()}")


def importorskip(name: str, *modules: str) -> Any:
    """A package, with these modules imported; if it is not installed, the file is skipped."""
    for module in (name, *modules):
        pytest.importorskip(module)
    return importlib.import_module(name)
