"""The cost of tree operations: updates, comparison, walks through 10,000 nodes, and construction of deep trees."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import jax
import numpy as np
from interleaved import Statement, group
from peers import arrays, nodes

import treewright
from treewright import Module, static

sys.setrecursionlimit(5000)  # 400 nested modules


class Net(Module):
    """All the nodes, in a list."""

    layers: list[Any]


def edited(net: Any, value: Any) -> Any:
    """One leaf changed in a draft."""
    with treewright.edit(net) as draft:
        draft.layers[500].query = value
    return draft


def where(net: Any) -> Any:
    """The place to change."""
    return net.layers[500].query


def equinox_update() -> Statement:
    import equinox

    class EquinoxNet(equinox.Module):
        layers: list[Any]

    net = EquinoxNet(nodes("equinox", 4, 1000))
    return "tree_at(where, net, value)", {"tree_at": equinox.tree_at, "net": net}


def jdc_update() -> Statement:
    import jax_dataclasses as jdc

    @jdc.pytree_dataclass
    class JdcNet:
        layers: list[Any]

    def changed(net: Any, value: Any) -> Any:
        with jdc.copy_and_mutate(net) as copy:
            copy.layers[500].query = value
        return copy

    return "changed(net, value)", {"changed": changed, "net": JdcNet(nodes("jax_dataclasses", 4, 1000))}


OURS_CHANGE = {
    "treewright.at": "treewright.at(net, where).set(value)",
    "treewright.at, by text": "treewright.at(net, '.layers[500].query').set(value)",
    "treewright.edit": "edited(net, value)",
    "copy of the list": "net.layers[:]",
}


@group(*OURS_CHANGE, "equinox.tree_at", "jax_dataclasses.copy_and_mutate", title="set one leaf among 1,000 nodes")
def test_update(name: str) -> Statement:
    theirs = {"equinox.tree_at": equinox_update, "jax_dataclasses.copy_and_mutate": jdc_update}
    text, names = (
        theirs[name]() if name in theirs else (OURS_CHANGE[name], {"net": Net(nodes("treewright.Module", 4, 1000))})
    )
    return text, {"treewright": treewright, "edited": edited, "where": where, "value": arrays(1)[0], **names}


REPLACE = {
    "dataclasses.replace, register_dataclass": "register_dataclass",
    "dataclasses.replace, equinox": "equinox",
    "dataclasses.replace, jax_dataclasses": "jax_dataclasses",
    "treewright.replace": "treewright.Module",
}


@group(*REPLACE, title="replace one field of a node")
def test_replace(name: str) -> Statement:
    replace = treewright.replace if name == "treewright.replace" else dataclasses.replace
    return "replace(node, query=a)", {"replace": replace, "node": nodes(REPLACE[name], 4, 1)[0], "a": arrays(1)[0]}


# By operation on two equal trees of 1,000 nodes, `net` and `other` with the same arrays, `equal` with equal ones.
COMPARE = {
    "jax.tree.flatten of both": "jax.tree.flatten(net); jax.tree.flatten(other)",
    "treewright.diff, the same arrays": "treewright.diff(net, other)",
    "treewright.diff, equal arrays, without values": "treewright.diff(net, equal, values=False)",
    "treewright.diff, equal arrays": "treewright.diff(net, equal)",
}


@group(*COMPARE, title="compare two trees of 1,000 nodes", rounds=15)
def test_compare(name: str) -> Statement:
    layers = nodes("treewright.Module", 4, 1000)
    net = Net(layers)
    other, equal = Net([treewright.replace(layer) for layer in layers]), jax.tree.map(lambda leaf: leaf + 0, net)
    return COMPARE[name], {"jax": jax, "treewright": treewright, "net": net, "other": other, "equal": equal}


WALK = {
    "jax.tree.map": "jax.tree.map(identity, net)",
    "treewright.count": "treewright.count(net)",
    "treewright.partition, trainable": "treewright.partition(net, treewright.trainable)",
    "treewright.summary": "treewright.summary(net)",
    "treewright.summary, as text": "str(treewright.summary(net))",
}


@group(*WALK, title="once through 10,000 nodes", rounds=7, loops=1)
def test_walk(name: str) -> Statement:
    net = Net(nodes("treewright.Module", 1, 10_000))
    return WALK[name], {"jax": jax, "treewright": treewright, "net": net, "identity": lambda leaf: leaf}


class Nested(Module):
    """Contains one module of the level below."""

    inner: Any

    def __init__(self, levels: int) -> None:
        self.inner = Nested(levels - 1) if levels > 1 else None


def equinox_nested() -> Any:
    """The same."""
    import equinox

    class EquinoxNested(equinox.Module):
        inner: Any

        def __init__(self, levels: int) -> None:
            self.inner = EquinoxNested(levels - 1) if levels > 1 else None

    return EquinoxNested


@group("equinox", "treewright.Module", title="400 nested modules with a custom __init__", rounds=15)
def test_nested(name: str) -> Statement:
    return "make(400)", {"make": Nested if name == "treewright.Module" else equinox_nested()}


class OwnInit(Module):
    """Two children and two statics."""

    kernel: jax.Array
    bias: jax.Array
    name: str = static()
    width: int = static()

    def __init__(self, kernel: Any, bias: Any, name: str, width: int) -> None:
        self.kernel, self.bias, self.name, self.width = kernel, bias, name, width


class PlainOwnInit:
    """The same, not registered with JAX."""

    def __init__(self, kernel: Any, bias: Any, name: str, width: int) -> None:
        self.kernel, self.bias, self.name, self.width = kernel, bias, name, width


def equinox_own_init() -> Any:
    """The same."""
    import equinox

    class EquinoxOwnInit(equinox.Module):
        kernel: jax.Array
        bias: jax.Array
        name: str = equinox.field(static=True)
        width: int = equinox.field(static=True)

        def __init__(self, kernel: Any, bias: Any, name: str, width: int) -> None:
            self.kernel, self.bias, self.name, self.width = kernel, bias, name, width

    return EquinoxOwnInit


@group("a plain class", "equinox", "treewright.Module", title="an __init__ of one's own, 2 children and 2 statics")
def test_own_init(name: str) -> Statement:
    makers = {"a plain class": lambda: PlainOwnInit, "equinox": equinox_own_init, "treewright.Module": lambda: OwnInit}
    make, a = makers[name](), np.float32(1)
    return "make(a, a, 'layer', 3)", {"make": make, "a": a, "first": make(a, a, "layer", 3)}
