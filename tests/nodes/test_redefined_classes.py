"""Interactive use: classes whose statement runs again, in a cell or a reloaded module."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import optax
import pytest

import treewright
from treewright import TrainState, replace
from treewright.errors import NodeDefinitionError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SOURCE = """
import jax
import treewright

class Net(treewright.Module):
    weight: jax.Array
    rate: float = treewright.static(default={rate})

    def times(self):
        return {times}

@treewright.pytree_dataclass
class Data:
    x: float
    y: float = {rate}
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "edited.py"
    path.write_text(SOURCE.format(rate=0.1, times=1))
    loaded: Any = importlib.import_module("edited")
    loaded.path = path
    yield loaded
    del sys.modules["edited"]


def reload(module: Any, **values: Any) -> Any:
    module.path.write_text(SOURCE.format(**values))
    importlib.invalidate_caches()
    return importlib.reload(module)


@pytest.mark.parametrize("options", [{}, {"frozen": True}])
def test_dataclass_on_a_node_class_is_rejected(options: dict[str, bool]) -> None:
    class Net(treewright.Module):
        x: Any
        y: Any = 2.0

    @treewright.pytree_dataclass
    class Data:
        x: Any

    class Below(Data):
        x: Any

    for cls in (Net, Data, Below):
        with pytest.raises(NodeDefinitionError) as caught:
            dataclasses.dataclass(**options)(cls)
        assert str(caught.value) == (
            f"{cls.__qualname__} is a node class or has one as base, so it is already a dataclass. Remove @dataclass, "
            "or replace it with @pytree_dataclass if this is a subclass of a decorated class."
        )
    assert jax.tree.leaves([Net(1.0), Data(3.0)]) == [1.0, 2.0, 3.0]


EARLIER = (
    r"This Net belongs to an older definition of the class: the class statement has run again, for example in a "
    r"notebook cell or a reloaded module\. Recreate the object\."
)


def test_the_error_names_a_field_missing_from_an_old_instance(module: Any) -> None:
    old = module.Net(jnp.ones(2))

    with pytest.raises(TypeError, match=r"Its fields: weight, rate\.$"):
        replace(old, bias=1)
    reload(module, rate=0.1, times=1)
    with pytest.raises(TypeError, match=EARLIER):
        replace(old, bias=1)
    for where in (lambda net: net.bias, "bias"):
        with pytest.raises(AttributeError, match=EARLIER):
            treewright.at(old, where)
    with pytest.raises(TypeError, match=EARLIER), treewright.edit(old) as draft:
        draft.bias = 1


OTHER_CLASS = "pytree structure error|Custom node type mismatch"  # JAX's messages, since 0.10 and before
TWICE = (
    "Two classes are named Net: the class statement ran twice, for example in a notebook cell or a reloaded "
    "module. Recreate all objects with the current class."
)


def test_the_error_mentions_a_redefined_class(module: Any) -> None:
    old = module.Net(jnp.ones(2))
    new = reload(module, rate=0.1, times=1).Net(jnp.ones(2))
    state = TrainState.create(params={"net": old}, tx=optax.sgd(0.1))

    for call, pattern in (
        (lambda: state.apply_gradients(grads={"net": new}), "grads must have the structure, shapes"),
        (lambda: treewright.combine({"net": old}, {"net": new}), OTHER_CLASS),
        (lambda: treewright.partition(old, jax.tree.map(lambda _: True, new)), "where= is not a prefix"),
    ):
        with pytest.raises(ValueError, match=pattern) as caught:
            call()
        assert caught.value.__notes__ == [TWICE]
    with pytest.raises(ValueError, match="two classes are named Net"):
        treewright.stack([old, new])
