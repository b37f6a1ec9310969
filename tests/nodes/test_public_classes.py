"""Public classes have importable names, also in exported programs."""

import copy
import importlib
import pickle
from typing import Any

import cloudpickle
import jax
import jax.numpy as jnp
import pytest

import treewright
from treewright import Static, TrainState, checkpoint, errors, sharding


@pytest.mark.parametrize("name", ["Static", "TrainState"])
def test_exported_programs_name_public_classes_by_public_path(name: str) -> None:
    value = {"Static": Static("a"), "TrainState": TrainState(step=0, params=1.0, opt_state=(), tx=None)}[name]  # type: ignore[arg-type]  # needs no optimizer
    exported = jax.export.export(jax.jit(lambda _, x: x))(value, jnp.ones(2)).serialize()

    assert f"{getattr(treewright, name).__module__}.{name}".encode() in exported
    assert b"treewright._" not in exported


PUBLIC = [
    pytest.param(module, name, id=f"{module.__name__}.{name}")
    for module in (treewright, checkpoint, sharding, errors)
    for name in getattr(module, "__all__", dir(module))
    if isinstance(getattr(module, name), type)
]


@pytest.mark.parametrize(("module", "name"), PUBLIC)
def test_public_classes_can_be_imported_from_their_module(module: Any, name: str) -> None:
    cls = getattr(module, name)

    assert not any(part.startswith("_") for part in cls.__module__.split("."))
    assert getattr(importlib.import_module(cls.__module__), name) is cls
    for dumps in (pickle.dumps, cloudpickle.dumps):
        assert pickle.loads(dumps(cls)) is cls
    assert copy.deepcopy(cls) is cls


def test_public_classes_can_be_statics() -> None:
    assert jax.tree.structure(Static(Static)) == jax.tree.structure(Static(Static))
    assert repr(jax.tree.structure(Static(Static))) == "PyTreeDef(CustomNode(Static[value=treewright.Static], []))"
