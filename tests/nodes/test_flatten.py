"""Flattening reads the pair: the same children in the same order whoever asks, with paths as users write them."""

from __future__ import annotations

import functools
import inspect
from typing import Any

import jax
import pytest

from treewright import Module, buffer, field, pytree_dataclass, static
from treewright.errors import UnfinishedNodeError


@pytree_dataclass
class Layer:
    kernel: Any
    bias: Any
    activation: str = static(default="tanh")


class ModuleLayer(Module):
    kernel: Any
    bias: Any = buffer()
    activation: str = static(default="tanh")


@pytree_dataclass
class Net:
    layers: Any
    head: Any = buffer()
    name: str = static(default="net")
    scale: float = field(default=2.0, kw_only=True)

    @functools.cached_property
    def double(self) -> float:
        return 2 * self.scale


class ModuleNet(Module):
    layers: Any
    head: Any = buffer()
    name: str = static(default="net")
    scale: float = field(default=2.0, kw_only=True)
    tail: Any = None

    @functools.cached_property
    def double(self) -> float:
        return 2 * self.scale

    def half(self) -> float:
        return self.scale / 2


NETS: list[Any] = [
    Net([Layer(1.0, 2.0), {"b": ModuleLayer(3.0, None), "a": 4.0}], (5.0, 6.0)),
    ModuleNet([Layer(1.0, 2.0), {"b": ModuleLayer(3.0, None), "a": 4.0}], (5.0, 6.0), tail=7.0, scale=3.0),
]


@pytest.mark.parametrize("net", NETS)
def test_paths_read_as_users_write_them(net: Any) -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(net)]

    expected = [
        *(".layers[0].kernel", ".layers[0].bias", ".layers[1]['a']", ".layers[1]['b'].kernel"),
        *(".head[0]", ".head[1]", ".tail", ".scale"),
    ]
    assert sorted(paths) == sorted(path for path in expected if hasattr(net, path.strip(".").partition("[")[0]))
    for path, leaf in jax.tree.leaves_with_path(net):
        assert eval(f"net{jax.tree_util.keystr(path)}", {"net": net}) == leaf
    (path, _), *_ = jax.tree.leaves_with_path(net)
    assert jax.tree_util.keystr(path, simple=True, separator="/") == "layers/0/kernel"


@pytest.mark.parametrize("make", [Layer, ModuleLayer])
def test_tree_flatten_and_tree_unflatten_are_public(make: Any) -> None:
    layer = make(1.0, [2.0], "relu")

    children, aux = layer.tree_flatten()

    assert children == (1.0, [2.0])
    assert repr(aux) == "activation='relu'"
    assert make.tree_unflatten(aux, children) == layer
    changed = layer.tree_unflatten(aux, iter(["any", None]))
    assert (changed.kernel, changed.bias, changed.activation) == ("any", None, "relu")
    assert make(3.0, 4.0, "relu").tree_flatten()[1] is aux
    assert make(3.0, 4.0, "tanh").tree_flatten()[1] != aux


@pytest.mark.parametrize("make", [Layer, ModuleLayer])
def test_tree_unflatten_refuses_what_does_not_fit_the_class(make: Any) -> None:
    _, aux = make(1.0, 2.0).tree_flatten()
    other: Any = Layer(1.0, 2.0) if make is ModuleLayer else ModuleLayer(1.0, 2.0)
    name = make.__qualname__

    with pytest.raises(ValueError, match=rf"{name} has the children kernel, bias, 2 in all, got 1\."):
        make.tree_unflatten(aux, (1.0,))
    for wrong in (other.tree_flatten()[1], None, ("tanh",)):
        with pytest.raises(
            TypeError, match=rf"{name}.tree_unflatten takes the aux_data of a {name}, got .*Take it from"
        ):
            make.tree_unflatten(wrong, (1.0, 2.0))


def test_an_unfinished_node_is_not_flattened() -> None:
    class Early(Module):
        weight: Any

        def __init__(self) -> None:
            with pytest.raises(UnfinishedNodeError, match=r"Early: its __init__ has not returned"):
                self.tree_flatten()
            with pytest.raises(ValueError, match=r"Early: its __init__ has not returned, so it can't be flattened yet"):
                jax.tree.leaves(self)
            self.weight = 1.0

    assert jax.tree.leaves(Early()) == [1.0]


@pytest.mark.parametrize("net", NETS)
def test_reading_attributes_does_not_change_the_tree(net: Any) -> None:
    leaves, treedef = jax.tree.flatten(net)

    assert net.double == 2 * net.scale
    assert dict(inspect.getmembers(net))["double"] == net.double
    hash(getattr(net, "half", None))

    assert "double" in vars(net)
    assert jax.tree.flatten(net) == (leaves, treedef)
    assert "double" not in vars(jax.tree.unflatten(treedef, leaves))
