"""Interactive use: classes whose statement runs again, in a cell, a reloaded module, or by IPython's autoreload."""

from __future__ import annotations

import contextlib
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


def test_class_access_returns_a_field_view() -> None:
    class Net(treewright.Module):
        x: Any
        y: Any = 2.0

    assert [repr(view).rpartition(".")[2] for view in (Net.x, Net.y)] == ["x>", "y>"]


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


def update_class(old: type[Any], new: type[Any]) -> None:
    """Reload like IPython's autoreload: write the attributes of the new class into the old one."""
    for name in list(vars(old)):
        value = getattr(old, name)
        if not hasattr(new, name):
            delattr(old, name)
        elif (value == getattr(new, name)) is not True:
            try:
                setattr(old, name, getattr(new, name))
            except (AttributeError, TypeError):
                continue
    for name in vars(new).keys() - vars(old).keys():
        with contextlib.suppress(AttributeError, TypeError):
            setattr(old, name, getattr(new, name))


@pytest.mark.parametrize(("rate", "times"), [(0.1, 2), (0.2, 1)])
def test_autoreload_updates_the_old_class(module: Any, rate: float, times: int) -> None:
    old_net, old_data = module.Net, module.Data
    reload(module, rate=rate, times=times)

    update_class(old_net, module.Net)
    update_class(old_data, module.Data)

    for net, data in ((old_net, old_data), (module.Net, module.Data)):
        assert (net(jnp.ones(2), 0.5).rate, net(jnp.ones(2)).rate) == (0.5, rate)
        assert net(jnp.ones(2)).times() == times
        assert (data(1.0, 3.0).y, data(1.0).y) == (3.0, rate)
        assert jax.jit(lambda net: net)(net(jnp.ones(2), 0.5)).rate == 0.5


@pytest.mark.parametrize("becomes_new", [False, True], ids=["old class", "assigned the new class"])
def test_old_instances_keep_their_values_after_autoreload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, becomes_new: bool
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path, source = tmp_path / "reordered.py", "import treewright\nclass Net(treewright.Module):\n"
    path.write_text(source + "    mean: float\n    std: float\n    act: str = treewright.static(default='relu')\n")
    monkeypatch.delitem(sys.modules, "reordered", raising=False)
    module: Any = importlib.import_module("reordered")
    old, net = module.Net, module.Net(mean=1.0, std=2.0)
    path.write_text(source + "    bias: float\n    std: float\n    mean: float\n    mode: str = treewright.static()\n")
    importlib.invalidate_caches()
    importlib.reload(module)
    update_class(old, module.Net)
    if becomes_new:
        object.__setattr__(net, "__class__", module.Net)

    assert (net.mean, net.std, jax.tree.leaves(net)) == (1.0, 2.0, [1.0, 2.0])
    for missing in ("bias", "mode"):
        with pytest.raises(
            AttributeError, match=rf"has no field {missing}: it belongs to an older definition of the class"
        ):
            getattr(net, missing)


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
