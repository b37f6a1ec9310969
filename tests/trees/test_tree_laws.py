"""Laws of the tools for trees, over generated classes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.nodes.test_laws import LEAVES, STATICS, nodes, same
from treewright import (
    Module,
    allclose,
    at,
    combine,
    count,
    diff,
    edit,
    nbytes,
    node_at,
    partition,
    spec_like,
    split_key_like,
    stack,
    summary,
    trainable,
    unstack,
)
from treewright._core.jax_private import path_text
from treewright._trees.sizes import items_of
from treewright.errors import MissingPlaceError

pytestmark = pytest.mark.slow


class Outer(Module):
    left: Any
    rest: Any


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """A tree of generated nodes."""
    first, second = draw(nodes())[0], draw(nodes())[0]
    return draw(st.sampled_from([first, Outer(first, [second, first]), {"a": (first,), "b": Outer(second, None)}]))


@st.composite
def trees_and_places(draw: st.DrawFn) -> tuple[Any, str, str]:
    """A tree, the path of a field in it, and the field's kind."""
    tree = draw(trees())
    found = [item for item in items_of(tree) if item.path and "GetAttrKey" in type(item.path[-1]).__name__]
    assume(found)
    item = draw(st.sampled_from(found))
    return tree, path_text(item.path), item.kind


def new_value(data: st.DataObject, kind: str) -> Any:
    return data.draw(STATICS if kind == "static" else LEAVES)


def by_function(path: str) -> Any:
    """The function over the tree that goes where the path leads."""
    return eval(f"lambda tree: tree{path}")


# Updates


@given(trees_and_places(), st.data())
def test_get_after_set_gives_what_was_set(made: tuple[Any, str, str], data: st.DataObject) -> None:
    tree, path, kind = made
    value = new_value(data, kind)

    assert same(at(at(tree, path).set(value), path).get(), value)
    assert same(at(at(tree, by_function(path)).set(value), by_function(path)).get(), value)


@given(trees_and_places(), st.data())
def test_of_two_sets_the_second_counts(made: tuple[Any, str, str], data: st.DataObject) -> None:
    tree, path, kind = made
    first, second = new_value(data, kind), new_value(data, kind)

    assert same(at(at(tree, path).set(first), path).set(second), at(tree, path).set(second))


@given(trees_and_places())
def test_setting_what_is_there_changes_nothing(made: tuple[Any, str, str]) -> None:
    tree, path, _ = made
    again = at(tree, path).set(at(tree, path).get())

    assert diff(tree, again) == []
    assert jax.tree.structure(again) == jax.tree.structure(tree)


@given(trees_and_places(), st.data())
def test_a_set_changes_no_other_place(made: tuple[Any, str, str], data: st.DataObject) -> None:
    tree, path, kind = made
    changed = at(tree, path).set(new_value(data, kind))

    assert all(path_text(difference.path).startswith(path) for difference in diff(tree, changed))
    for item in items_of(tree):
        text = path_text(item.path)
        if not text.startswith(path):
            assert at(changed, text).get() is item.value


@given(trees_and_places(), st.data())
def test_a_draft_does_what_at_does(made: tuple[Any, str, str], data: st.DataObject) -> None:
    tree, path, kind = made
    value = new_value(data, kind)
    outer = Outer(tree, None)
    with edit(outer) as draft:
        above, _, name = path.rpartition(".")
        setattr(by_function(f".left{above}")(draft), name, value)

    assert same(draft, at(outer, f".left{path}").set(value))
    assert outer.left is tree


@given(trees())
def test_an_empty_edit_shares_everything(tree: Any) -> None:
    outer = Outer(tree, 1)
    with edit(outer) as draft:
        pass

    assert draft.left is tree


# Differences


def patched(tree: Any, differences: list[Any]) -> Any:
    """The tree with what is right put where it differs. Lists grow and shrink at the end."""
    for difference in differences:
        parent, place = path_text(difference.path[:-1]), path_text(difference.path)
        if difference.kind == "added":
            tree = at(tree, parent).set([*at(tree, parent).get(), difference.right])
        elif difference.kind == "removed":
            tree = at(tree, parent).set(at(tree, parent).get()[:-1])
        else:
            tree = at(tree, place).set(difference.right)
    return tree


@given(trees())
def test_nothing_differs_from_itself_or_from_a_copy(tree: Any) -> None:
    assert diff(tree, tree) == []
    assert diff(tree, jax.tree.map(lambda leaf: leaf, tree)) == []


@given(trees_and_places(), st.data())
def test_the_differences_put_into_one_tree_make_it_the_other(made: tuple[Any, str, str], data: st.DataObject) -> None:
    tree, path, kind = made
    other = at(tree, path).set(new_value(data, kind))
    for item in items_of(tree):
        if data.draw(st.booleans()) and item.path:
            other = at(other, path_text(item.path)).set(new_value(data, item.kind))
    for right in (other, data.draw(trees())):
        result = patched(tree, diff(tree, right))
        assert diff(result, right) == []
        assert jax.tree.structure(result) == jax.tree.structure(right)


# Specs and partitions


@given(trees())
def test_a_spec_has_the_treedef_of_its_tree(tree: Any) -> None:
    structure = jax.tree.structure(tree)

    assert jax.tree.structure(spec_like(tree, default=True)) == structure
    assert jax.tree.structure(trainable(tree)) == structure
    assert jax.tree.structure(split_key_like(jax.random.key(0), tree)) == structure


@given(trees_and_places())
def test_a_rule_is_for_the_leaves_below_its_place_and_no_others(made: tuple[Any, str, str]) -> None:
    tree, path, kind = made
    assume(kind != "static")
    spec = spec_like(tree, "other", {path: "here"})
    found = {jax.tree_util.keystr(key): setting for key, setting in jax.tree_util.tree_leaves_with_path(spec)}

    for place, setting in found.items():
        assert (setting == "here") == (place == path or place.startswith((f"{path}.", f"{path}[")))


@given(trees(), st.data())
def test_combine_after_partition_is_the_identity(tree: Any, data: st.DataObject) -> None:
    mask = jax.tree.map(lambda _: data.draw(st.booleans()), tree)
    for chosen in (mask, trainable, lambda path, leaf: len(path) % 2 == 0):
        first, rest = partition(tree, chosen)
        assert diff(tree, combine(first, rest)) == []
        assert len(jax.tree.leaves(first)) + len(jax.tree.leaves(rest)) == len(jax.tree.leaves(tree))


@given(trees())
def test_exactly_what_is_below_a_buffer_is_not_trainable(tree: Any) -> None:
    kinds = [item.kind for item in items_of(tree) if item.kind != "static" and item.value is not None]

    assert jax.tree.leaves(trainable(tree)) == [kind == "child" for kind in kinds]


# Batches and sizes


@given(trees(), st.integers(1, 3))
def test_unstack_after_stack_gives_the_trees_back(tree: Any, copies: int) -> None:
    arrays = jax.tree.map(lambda leaf: jnp.full(2, len(repr(leaf))), tree)
    assume(jax.tree.leaves(arrays))
    several = [jax.tree.map(lambda leaf, step=step: leaf + step, arrays) for step in range(copies)]
    stacked = stack(several)

    assert jax.tree.structure(stacked) == jax.tree.structure(tree)
    assert diff(unstack(stacked), several) == []
    assert diff(node_at(stacked, copies - 1), several[-1]) == []


@given(trees())
def test_the_parts_add_up(tree: Any) -> None:
    total = sum(np.size(leaf) for leaf in jax.tree.leaves(tree))

    for size in (count, nbytes):
        assert sum(size(tree, by="field").values()) == sum(size(tree, by="class").values()) == size(tree)
    assert count(tree) == total == sum(row.count for row in summary(tree, depth=1).rows)


@given(trees(), trees())
def test_trees_are_close_to_themselves_and_to_no_others(tree: Any, other: Any) -> None:
    assert allclose(tree, jax.tree.map(lambda leaf: leaf, tree))
    if jax.tree.structure(tree) != jax.tree.structure(other):
        assert not allclose(tree, other)


@given(trees())
def test_a_place_that_is_not_there_is_named(tree: Any) -> None:
    try:
        at(tree, ".no_such_field")
    except MissingPlaceError as error:
        assert "has no .no_such_field" in str(error)  # noqa: PT017  hypothesis runs it many times
    else:
        raise AssertionError
