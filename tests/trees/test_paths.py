"""Paths: their text, existing paths in errors, and patterns."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewright import Module, at, static
from treewright.errors import MissingPlaceError


class Layer(Module):
    kernel: Any
    bias: Any
    activation: str = static(default="relu")


class Point(NamedTuple):
    x: Any


TREE = {"layers": [Layer(1, 2), Layer(3, None)], "rest": (Point(4), {"*": 5}), "a*": 6}


class Pair(Module):
    """A node whose fields have the names of the steps below."""

    a: Any
    ab: Any


# What a step may be, as a regular expression for the text of a path.
STEPS = {"**": r"(\.\w+|\[.*?\])*", ".a": r"\.a", ".ab": r"\.ab", ".*b": r"\.\w*b", "[1]": r"\[1\]", "[*]": r"\[.*?\]"}
TREES: Any = st.recursive(
    st.integers(0, 9),
    lambda inner: st.builds(Pair, inner, inner) | st.lists(inner, max_size=3) | st.dictionaries(st.just("a"), inner),
    max_leaves=12,
)


def selected(tree: Any, where: Any) -> list[str]:
    try:
        return list(at(tree, where).get())
    except MissingPlaceError:
        return []


@given(
    st.builds(Pair, TREES, st.builds(Pair, TREES, TREES)), st.lists(st.sampled_from([*STEPS]), min_size=1, max_size=3)
)
def test_a_pattern_selects_the_topmost_places_in_the_order_of_the_tree(tree: Any, steps: list[str]) -> None:
    expression = re.compile("".join(STEPS[step] for step in ["**", *steps]))

    assert selected(tree, "".join(["**", *steps])) == selected(tree, lambda path, _: bool(expression.fullmatch(path)))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("layers.0.bias", "layers[0].bias"),
        (".layers.0", ".layers[0]"),
        ("**.0.1.x", "**[0][1].x"),
        ("['layers'].*.bias", "['layers'][*].bias"),
    ],
)
def test_indices_written_with_dots_suggest_the_right_path(text: str, meant: str) -> None:
    with pytest.raises((ValueError, MissingPlaceError), match=re.escape(f" Did you mean {meant!r}?")):
        at(TREE, text).get()


class Foreign:
    """A class registered with custom keys."""

    def __init__(self, left: Any = 1, right: Any = 2) -> None:
        self.left, self.right = left, right


jax.tree_util.register_pytree_with_keys(
    Foreign,
    lambda node: ((("left", node.left), (jax.tree_util.FlattenedIndexKey(1), node.right)), None),
    lambda _, children: Foreign(*children),
)


@pytest.mark.parametrize("where", ["['left']", "**['left']"])
def test_foreign_keys_are_selected_by_their_text(where: Any) -> None:
    changed = at(Foreign(), where).set(3)

    assert (changed.left, changed.right) == (3, 2)


KEYS = st.one_of(
    st.text(st.sampled_from("ab\\\n'\"]*[.1 "), max_size=5),
    st.integers(-3, 12),
    st.integers(0, 12).map(str),
    st.binary(max_size=2),
    st.tuples(st.text(st.sampled_from("a]',\\"), max_size=3), st.integers()),
    *([st.none()] if jax.__version_info__ >= (0, 10) else []),  # before, JAX has no DictKey(None)
)


@given(st.lists(KEYS, min_size=1, max_size=4))
def test_a_printed_path_can_be_read_back(keys: list[Any]) -> None:
    tree: Any = object()
    leaf = tree
    for key in keys:
        tree = [{key: tree}] if key == 0 else {key: tree}
    ((path, _),) = jax.tree_util.tree_leaves_with_path(tree)

    assert at(tree, jax.tree_util.keystr(path)).get() is leaf
    assert list(at(tree, lambda _, value: value is leaf).get()) == [jax.tree_util.keystr(path)]
    assert at(tree, "[*]" * len(path)).get() == {jax.tree_util.keystr(path): leaf}


@pytest.mark.parametrize(
    ("where", "end"),
    [
        (".x.y", "without a place .y below it."),
        (".x[0]", "below it. To change a part of an array, use .apply(lambda array: array.at[...].set(...))."),
        (".x.T", "below it. Places are not values: to compute with the array, use .apply(lambda array: ...)."),
        (".n[0]", "Mask.n is a leaf, 1, without a place [0] below it."),
        (".n.real", "Mask.n is a leaf, 1, without a place .real below it."),
    ],
)
def test_only_a_part_of_an_array_gets_the_hint_about_arrays(where: str, end: str) -> None:
    class Mask(Module):
        x: Any
        n: int

    with pytest.raises(MissingPlaceError, match=re.escape(end) + "$"):
        at(Mask(jnp.ones(2), 1), where)
