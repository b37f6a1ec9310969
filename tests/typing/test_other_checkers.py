"""ty, pyrefly and zuban over a user's program: nothing in what is right, and an error at each line that is wrong.

basedpyright is here for `make exhaustive`: it differs from pyright, which reads all cases, by its defaults.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import skip_before_jax

SOURCE = Path(__file__).parents[2] / "src"
SCRIPTS = Path(sys.executable).parent

PROGRAM = """
from collections.abc import Callable
from typing import Generic, TypeVar, assert_type

import jax
from treewright import (
    AsArray, Converted, Module, TrainState, at, edit, field, freeze, partition, pytree_dataclass, replace,
    static, trainable,
)
from treewright.train import Transformation
from treewright.typed import cond, grad, hessian, jit, jit_method, scan, tree_map, value_and_grad, vmap

T = TypeVar("T")


@jit
def itself(x: T) -> T:
    return x


@pytree_dataclass
class Layer:
    kernel: jax.Array
    activation: Callable[[jax.Array], jax.Array] = static(default=jax.nn.relu)
    sizes: tuple[int, ...] = static(default=(), kw_only=True, converter=freeze)
    names: frozenset[str] = static(default=frozenset(), kw_only=True, converter=freeze)


@pytree_dataclass
class Box(Generic[T]):
    value: T


class Net(Module):
    layer: Layer
    scale: jax.Array
    width: int = static()
    kind: type[float] = static(default=float)

    def __init__(self, layer: Layer, width: int) -> None:
        self.layer = layer
        self.scale = layer.kernel.sum()
        self.width = width

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.layer.activation(x @ self.layer.kernel) * self.scale

    @jit
    def predict(self, x: jax.Array, times: int = 1) -> jax.Array:
        return self(x) * times

    @jit_method
    def step(self, x: jax.Array) -> jax.Array:
        return self(x)


class Deeper(Net):
    @jit_method
    def step(self, x: jax.Array) -> jax.Array:
        return 2 * self(x)


class Frozen(Module, frozen=True):
    layer: Layer
    name: str = static(default="net")
    rate: AsArray = Converted(0.1)


class WithKey(TrainState[Net]):
    key: jax.Array


def loss(net: Net, x: jax.Array) -> jax.Array:
    return net(x).sum()


def walk(net: Net, x: jax.Array) -> tuple[Net, jax.Array]:
    return net, net(x)


def right(net: Net, deeper: Deeper, frozen: Frozen, tx: Transformation, x: jax.Array) -> None:
    print(Frozen(net.layer, rate=2.0).rate)
    assert_type(net.predict(x, times=2), jax.Array)
    assert_type(net.predict.lower(net, x), jax.stages.Lowered)
    assert_type(deeper.step(x), jax.Array)
    assert_type(Box(3), Box[int])
    assert_type(replace(frozen, name="other"), Frozen)
    assert_type(grad(loss)(net, x), Net)
    assert_type(grad(loss, argnums=1)(net, x), jax.Array)
    assert_type(value_and_grad(loss)(net, x), tuple[jax.Array, Net])
    assert_type(jit(grad(loss))(net, x), Net)
    assert_type(vmap(loss, in_axes=(None, 0))(net, x), jax.Array)
    assert_type(scan(walk, net, x), tuple[Net, jax.Array])
    assert_type(tree_map(lambda leaf, slope: leaf - 0.1 * slope, net, net), Net)
    assert_type(cond(True, lambda net: net(x), lambda net: loss(net, x), net), jax.Array)
    assert_type(partition(net, trainable), tuple[Net, Net])
    assert_type(at(net, lambda net: net.layer.kernel).set(x), Net)
    assert_type(net.replace(width=4), Net)
    assert_type(vmap(lambda row: net(row))(x), jax.Array)
    itself(net)
    grad(lambda net: loss(net, x))(net)
    jit(grad(lambda net: loss(net, x)))(net)
    hessian(lambda x: (x**2).sum())(x)
    with edit(net) as draft:
        draft.width = 4
    state = TrainState.create(params=net, tx=tx)
    assert_type(state.params, Net)
    assert_type(state.apply_gradients(grads=net).params, Net)
    assert_type(WithKey.create(params=net, tx=tx, key=x), WithKey)
    assert_type(replace(state.apply_gradients(grads=net), step=x), TrainState[Net])


def wrong(net: Net, frozen: Frozen, layer: Layer, tx: Transformation, x: jax.Array) -> None:
    Layer("no")  # refused
    Layer(x, kernal=x)  # refused
    Box[int]("no")  # refused
    Net(layer)  # refused
    layer.kernel = x  # refused
    frozen.name = "other"  # refused
    net.width = "no"  # refused
    net.predict("no")  # refused
    net.predict(x, time=3)  # refused
    net.step(3)  # refused
    grad(loss)(x, x)  # refused
    jit(grad(loss))(net, 3)  # refused
    vmap(loss)(net, 3)  # refused
    print(net.layer.kernle)  # refused
    at(net, lambda net: net.width).set("no")  # refused
    state = TrainState.create(params=net, tx=tx)
    state.step = 3  # refused
    TrainState.create(params=net, tx=3)  # refused
    TrainState.create(params=net, tx=tx, kye=x)  # refused, not by zuban
    WithKey.create(params=net, tx=tx, kye=x)  # refused, not by zuban
    state.apply_gradients(grads=3)  # refused
    replace(state.apply_gradients(grads=net), kye=x)  # refused, not by ty, basedpyright

    class Wrong(Module, kw_only=True):
        a: list[int] = static()  # refused, not by ty, pyrefly
        b: list[int] = static(default_factory=list[int])  # refused
        c: float = static(default="no")  # refused
        d: float = field(default=1.0, nonsense=3)  # refused
        e: jax.Array = static()  # refused, not by ty, pyrefly

    print(Wrong)
"""

# The options of each, and how it begins a line about an error.
CHECKERS = {
    "ty": (("check", "--output-format=concise", f"--python={sys.prefix}", f"--extra-search-path={SOURCE}"), "error["),
    "pyrefly": (
        ("check", "--output-format=min-text", f"--python-interpreter-path={sys.executable}", f"--search-path={SOURCE}"),
        "ERROR",
    ),
    "zuban": (("check", "--strict"), "error:"),
    "basedpyright": (("--level=error",), "error:"),
    "mypy": (("--strict",), "error:"),
}
# Where a checker finds JAX, unless it is told above.
HERE = {
    "zuban": (f"--python-executable={sys.executable}",),
    "basedpyright": (f"--pythonpath={sys.executable}",),
}


def said(checker: str, program: str, folder: Path, *options: str) -> str:
    """What a checker prints about a program."""
    script = SCRIPTS / checker
    if not script.exists():
        pytest.skip(f"{checker} is not installed")
    (folder / "program.py").write_text(program, encoding="utf-8")
    settings = {"typeCheckingMode": "standard", "pythonVersion": "3.12", "extraPaths": [str(SOURCE)]}
    (folder / "pyrightconfig.json").write_text(json.dumps({"include": ["program.py"], **settings}), encoding="utf-8")
    (folder / "pyrefly.toml").write_text("", encoding="utf-8")
    run = subprocess.run(
        [str(script), *CHECKERS[checker][0], *options, "program.py"],
        cwd=folder,
        env={"PATH": str(SCRIPTS), "HOME": str(folder), "MYPYPATH": str(SOURCE), "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode in {0, 1}, run.stdout + run.stderr
    return run.stdout + run.stderr


def lines_with_errors(checker: str, program: str, folder: Path, *options: str) -> set[int]:
    found = said(checker, program, folder, *HERE.get(checker, ()), *options)
    about = [line for line in found.splitlines() if CHECKERS[checker][1] in line]
    return {int(line) for text in about for line in re.findall(r"program\.py:(\d+)", text)[:1]}


@pytest.mark.parametrize(
    "checker", ["ty", "pyrefly", "zuban", pytest.param("basedpyright", marks=pytest.mark.exhaustive)]
)
def test_a_users_program_is_understood_by(checker: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)  # the checkers read its annotations
    # From 3.13 on more is refused; pyrightconfig.json says it for basedpyright.
    target = () if checker == "basedpyright" else ("--python-version=3.12",)
    announced = {
        number
        for number, line in enumerate(PROGRAM.splitlines(), 1)
        if "  # refused" in line and checker not in line.partition("not by")[2]
    }

    assert lines_with_errors(checker, PROGRAM, tmp_path, *target) == announced


def test_ty_knows_what_replace_takes_from_3_13_on(tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    program = (
        "from treewright import Module, replace\n\nclass Net(Module):\n    width: int\n\n"
        "print(Net(3).replace(width=4).width)\nNet(3).replace(widht=4)\nreplace(Net(3), widht=4)\n"
    )

    assert lines_with_errors("ty", program, tmp_path, "--python-version=3.13") == {7, 8}


@pytest.mark.parametrize("checker", ["ty", "pyrefly", "zuban"])
def test_a_program_that_trains_in_place_in_a_loop_and_saves_has_no_error_in(checker: str, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    program = (Path(__file__).parent / "cases" / "running.py").read_text(encoding="utf-8")

    assert lines_with_errors(checker, program, tmp_path) == set()


# What JAX needs: a user may have nothing else.
NEEDED = ("jax", "jaxlib", "numpy", "ml_dtypes", "opt_einsum", "typing_extensions")
EVERY_MODULE = """
import treewright
import treewright.checkpoint
import treewright.sharding
import treewright.testing
import treewright.train
import treewright.typed

print(treewright, treewright.checkpoint, treewright.sharding, treewright.testing, treewright.train, treewright.typed)
"""


def without_optional_packages(folder: Path) -> Path:
    """The Python of a new environment that has only what JAX needs."""
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for name in NEEDED:
        spec = importlib.util.find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        found = Path(spec.origin).parent if spec.submodule_search_locations else Path(spec.origin)
        (packages / found.name).symlink_to(found)
    return folder / "bin" / "python"


@pytest.mark.exhaustive
@pytest.mark.parametrize("bare", [True, False])
def test_a_checkout_on_the_path_shows_no_error_of_ours_in_mypy(bare: bool, tmp_path: Path) -> None:
    skip_before_jax(0, 10, 2)
    python = without_optional_packages(tmp_path / "venv") if bare else Path(sys.executable)

    assert "Success" in said("mypy", EVERY_MODULE, tmp_path, f"--python-executable={python}")
