"""The first hour: `help`, completion, the version, and tracebacks that show the user's own lines."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
import types

import pytest

import treewright
from treewright.errors import missing_extra

pytestmark = pytest.mark.slow

FAILING = """
import traceback, jax, jax.numpy as jnp
from treewright import Module

class Layer(Module):
    kernel: jax.Array
    def __call__(self, x):
        raise ValueError("of the user's")

class Net(Module):
    layer: Layer
    def __call__(self, x):
        return self.layer(x)

net = Net(Layer(jnp.ones(2)))
try:
    jax.jit(lambda net, x: net(x))(net, jnp.ones(2))
except ValueError as error:
    print(*(frame.filename for frame in traceback.extract_tb(error.__traceback__)), sep="\\n")
"""


def output_of(*arguments: str, **environment: str) -> str:
    command = [sys.executable, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, env={**os.environ, **environment}).stdout


def test_help_starts_with_a_working_example(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = (treewright.__doc__ or "").split("By topic")[0].splitlines()[1:]
    module = types.ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", module)

    exec(textwrap.dedent("\n".join(lines)), vars(module))

    assert repr(vars(module)["dense"]) == "Dense(kernel=f32[3,2], activation='relu')"


def test_help_lists_the_public_names_by_topic() -> None:
    listed = (treewright.__doc__ or "").split("By topic")[1]
    results = {"Difference", "RetraceReport"}  # results of functions, which users do not look up by name

    assert [name for name in treewright.__all__ if name not in results and name not in listed] == []


@pytest.mark.parametrize("module", ["", ".checkpoint", ".errors", ".sharding"])
def test_completion_offers_only_public_names(module: str) -> None:
    package = importlib.import_module(f"treewright{module}")

    assert [name for name in dir(package) if not name.startswith("__")] == sorted(package.__all__)


def test_the_version_is_printed() -> None:
    assert output_of("-m", "treewright", "--version") == f"treewright {treewright.__version__}\n"


def test_the_error_for_a_missing_package_has_a_working_install_command() -> None:
    assert str(missing_extra("TrainState", "optax", "train")) == (
        "TrainState needs optax. Install it with: pip install optax\n"
        "In a checkout of Treewright, this installs everything for it: pip install '.[train]'"
    )


@pytest.mark.parametrize(("filtering", "visible"), [("auto", False), ("off", True)])
def test_tracebacks_hide_internal_frames(filtering: str, visible: bool) -> None:
    frames = output_of("-c", FAILING, JAX_TRACEBACK_FILTERING=filtering)

    assert ("treewright" in frames.replace("treewright-", "")) == visible
