"""Exported programs contain our treedefs with their statics: plain values, names, and containers of them."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from treewright import Module, freeze, pytree_dataclass, static
from treewright.errors import StaticSerializationError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import ModuleType

pytestmark = pytest.mark.slow

MODELS = """
import dataclasses
import enum
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from treewright import Module, freeze, pytree_dataclass, static


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # an alias


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Pair(NamedTuple):
    left: Any
    right: Any = None


class Single(NamedTuple):
    only: Any


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: Any


def twice(x):
    return 2 * x


class Outer:
    class Inner:
        @staticmethod
        def helper(x):
            return x


@pytree_dataclass
class Settings:
    rate: float
    mode: str = static(default="train")


@pytree_dataclass
class DataNet:
    weight: Any
    value: Any = static()


class ModuleNet(Module):
    weight: Any
    inner: Any
    value: Any = static()
    name: str = static(default="net")

    def times(self, x):
        return x * self.weight["w"]


def net(value):
    return ModuleNet({"w": jnp.arange(3.0)}, DataNet(jnp.ones(2), value), value)


def double(tree):
    return jax.tree.map(twice, tree)


def nets():
    return {name: net(value) for name, value in VALUES.items()}


VALUES = {
    "text": "snow \\u2603 and a lone surrogate \\ud800",
    "big int": -(10**30),
    "True": True,
    "-0.0": -0.0,
    "NaN": float("nan"),
    "None": None,
    "tuple": (1, (True, -0.0, "x"), None),
    "frozenset": frozenset({1, "a", (2, None)}),
    "enum alias": Color.CRIMSON,
    "flag": Mode.READ,
    "frozen mapping": freeze({"sizes": [64, 64], "flags": {True}, (1, 2): {"x": None}}),
    "named tuple": Pair(1, ("a", Single(2.0))),
    "frozen dataclass": Config((1, 2)),
    "function": twice,
    "builtin": len,
    "jax.nn.relu": jax.nn.relu,
    "class": Settings,
    "jnp.float32": jnp.float32,
    "nested class": Outer.Inner,
    "static method": Outer.Inner.helper,
}
"""

READER = """
import pathlib, pickle, sys
import jax
import numpy as np
import exported_models as models

def reject(*args, **kwargs):
    raise AssertionError("something was unpickled")

pickle.loads = pickle.load = pickle.Unpickler = reject
exported = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes())
nets = models.nets()
for name, result in exported.call(nets).items():
    assert jax.tree.structure(result) == jax.tree.structure(nets[name]), f"{name}: the treedef differs"
    assert result.value is nets[name].value, f"{name}: the static differs"
    jax.tree.map(np.testing.assert_array_equal, result, models.double(nets[name]))
    print(name)
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The module `exported_models`, imported here; other processes import it from the same file."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "exported_models.py").write_text(MODELS, encoding="utf-8")
    sys.path.insert(0, str(folder))
    yield importlib.import_module("exported_models")
    sys.path.remove(str(folder))


def test_an_exported_program_carries_its_statics_to_a_new_process(models: Any, tmp_path: Path) -> None:
    (tmp_path / "program").write_bytes(jax.export.export(jax.jit(models.double))(models.nets()).serialize())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONHASHSEED": "7"}

    command = [sys.executable, "-c", READER, str(tmp_path / "program")]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)

    assert (run.returncode, sorted(run.stdout.splitlines())) == (0, sorted(models.VALUES)), run.stderr


# Rejected


@pytree_dataclass
class Holder:
    leaf: Any
    value: Any = static()


class ModuleHolder(Module):
    leaf: Any
    value: Any = static()


def exported(node: Any) -> bytes:
    program: Any = jax.export.export(jax.jit(lambda same: same))(node)
    return bytes(program.serialize())


@pytest.mark.parametrize("wrap", [lambda f: f, lambda f: (1, f), lambda f: frozenset({f})])
def test_exporting_a_static_lambda_names_class_and_field(wrap: Any) -> None:
    message = r"Holder\.value: .*<lambda at test_export.* can't be saved in an exported program.*top level"
    with pytest.raises(StaticSerializationError, match=message):
        exported([Holder(1.0, wrap(lambda x: x))])


def test_exporting_a_lambda_inside_a_static_names_the_outer_class_and_field() -> None:
    with pytest.raises(StaticSerializationError, match=r"^ModuleHolder\.value: Holder"):
        exported(ModuleHolder(1.0, Holder(2.0, lambda x: x)))


class NamedLike(tuple[int, ...]):
    """An instance of a subclass of tuple that is not a named tuple."""

    __slots__ = ()


class NamedBase(NamedTuple):
    value: int


class NamedMore(NamedBase):
    """Has a `__dict__`."""


@dataclasses.dataclass(frozen=True)
class More:
    value: int


def with_attribute(value: Any) -> Any:
    vars(value)["more"] = 1
    return value


UNNAMEABLE = {
    "a local class": type("Local", (), {}),
    "an object": object(),
    "a complex number": 1j,
    "bytes": b"a",
    "two flags": re.ASCII | re.IGNORECASE,
    "a dtype": np.dtype("float32"),
    "a numpy scalar": np.float32(1),
    "a frozen array": freeze(np.ones(2)),
    "a partial": functools.partial(print),
    "an instance of a subclass of tuple": NamedLike((1, 2)),
    "a named tuple with attributes": with_attribute(NamedMore(1)),
    "a dataclass with attributes that are not fields": with_attribute(More(1)),
    "a function with the name of a different one": type(
        "Fake", (), {"__module__": __name__, "__qualname__": "exported"}
    )(),
}


@pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")
@pytest.mark.parametrize("value", UNNAMEABLE.values(), ids=list(UNNAMEABLE))
def test_export_rejects_objects_without_an_import_path(value: object) -> None:
    with pytest.raises(StaticSerializationError, match=r"^Holder\.value: .* can't be saved in an exported program"):
        exported(Holder(1.0, value))


def test_loading_an_exported_program_names_a_missing_function(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    program = exported(Holder(1.0, models.twice))
    monkeypatch.delattr(models, "twice")

    message = r"exported_models.twice was not found.*Import exported_models before reading"
    with pytest.raises(StaticSerializationError, match=message):
        jax.export.deserialize(bytearray(program))


def test_loading_an_exported_program_imports_no_modules(monkeypatch: pytest.MonkeyPatch, models: Any) -> None:
    program = exported(Holder(1.0, models.Color.RED))
    monkeypatch.delitem(sys.modules, "exported_models")

    with pytest.raises(
        StaticSerializationError, match=r"exported_models.Color.RED was not found.*Import exported_models"
    ):
        jax.export.deserialize(bytearray(program))

    assert "exported_models" not in sys.modules


def test_loading_an_exported_program_rejects_a_class_with_different_statics() -> None:
    program = exported(Holder(1.0, 3))
    assert b'{"value": 3}' in program

    message = r"exported program has the static fields other of Holder, which now has value\. Export it again"
    with pytest.raises(StaticSerializationError, match=message):
        jax.export.deserialize(bytearray(program.replace(b'{"value": 3}', b'{"other": 3}')))


# Classes with the same name


def local_class() -> Any:
    class Net(Module):
        weight: Any
        name: str = static(default="net")

    return Net


def test_export_distinguishes_two_classes_of_the_same_name() -> None:
    nodes = [local_class()(jnp.ones(2)) for _ in range(3)]

    read: list[Any] = [jax.export.deserialize(bytearray(exported(node))) for node in nodes]

    for program, node in zip(read, nodes, strict=True):
        assert type(program.call(node)) is type(node)
        assert program.in_tree == jax.tree.structure(((node,), {}))
    with pytest.raises(ValueError, match="their Python types differ"):
        read[0].call(nodes[1])
