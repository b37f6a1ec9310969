"""Laws of the tools for trees, over generated classes."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.nodes.test_laws import LEAVES, STATICS, are_identical, nodes
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
    stack,
    summary,
    trainable,
    unstack,
)
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


class Place(NamedTuple):
    path: str
    value: Any
    is_static: bool


def places_in(tree: Any) -> list[Place]:
    """The fields of all nodes in a tree."""
    values: dict[str, Any] = {}

    def note(path: str, value: Any) -> bool:
        values[path] = value
        return False

    with contextlib.suppress(MissingPlaceError):  # it is called for each place, and never true
        at(tree, note)
    fields: list[Place] = []
    for path, value in values.items():
        parent, _, name = path.rpartition(".")
        node: Any = at(tree, parent).get() if "." in path else None
        if dataclasses.is_dataclass(node):
            kinds = {field.name: "static" in field.metadata for field in dataclasses.fields(node)}
            fields += [Place(path, value, kinds[name])] if name in kinds else []
    return fields


@st.composite
def trees_and_places(draw: st.DrawFn) -> tuple[Any, Place]:
    tree = draw(trees())
    places = places_in(tree)
    assume(places)
    return tree, draw(st.sampled_from(places))


def new_value(data: st.DataObject, place: Place) -> Any:
    return data.draw(STATICS if place.is_static else LEAVES)


def keystr(path: Any) -> str:
    return "".join(map(str, path))


def by_function(path: str) -> Any:
    """A function of the tree that returns the place of the path."""
    return eval(f"lambda tree: tree{path}")


# Updates


@given(trees_and_places(), st.data())
def test_setting_what_a_predicate_gets_is_the_identity(tree_and_place: tuple[Any, Place], data: st.DataObject) -> None:
    tree, place = tree_and_place
    paths = {place.path, *data.draw(st.sets(st.sampled_from([other.path for other in places_in(tree)])))}
    selected = at(tree, lambda path, _: path in paths)

    assert diff(tree, selected.set(selected.get())) == []
    assert diff(tree, selected.set(dict(reversed(selected.get().items())))) == []


@given(trees_and_places(), st.data())
def test_set_changes_only_the_selected_place(tree_and_place: tuple[Any, Place], data: st.DataObject) -> None:
    tree, place = tree_and_place
    first, second = new_value(data, place), new_value(data, place)
    changed = at(tree, place.path).set(first)

    assert are_identical(at(changed, place.path).get(), first)
    assert are_identical(at(at(tree, by_function(place.path)).set(first), by_function(place.path)).get(), first)
    assert are_identical(at(changed, place.path).set(second), at(tree, place.path).set(second))
    assert diff(tree, at(tree, place.path).set(place.value)) == []
    assert all(keystr(difference.path).startswith(place.path) for difference in diff(tree, changed))
    for other in places_in(tree):
        if not other.path.startswith(place.path) and not place.path.startswith(other.path):
            assert at(changed, other.path).get() is other.value


@given(trees_and_places(), st.data())
def test_edit_matches_at(tree_and_place: tuple[Any, Place], data: st.DataObject) -> None:
    tree, place = tree_and_place
    value = new_value(data, place)
    outer = Outer(tree, None)
    with edit(outer) as draft:
        parent, _, name = place.path.rpartition(".")
        setattr(by_function(f".left{parent}")(draft), name, value)
    with edit(outer) as unchanged:
        pass

    assert are_identical(draft, at(outer, f".left{place.path}").set(value))
    assert outer.left is tree is unchanged.left


# Differences


def apply_differences(tree: Any, differences: list[Any]) -> Any:
    """The left tree with the right value at each difference. Lists grow and shrink at the end."""
    for difference in differences:
        parent, place = keystr(difference.path[:-1]), keystr(difference.path)
        if difference.kind == "added":
            tree = at(tree, parent).set([*at(tree, parent).get(), difference.right])
        elif difference.kind == "removed":
            tree = at(tree, parent).set(at(tree, parent).get()[:-1])
        else:
            tree = at(tree, place).set(difference.right)
    return tree


@given(trees_and_places(), st.data())
def test_applying_a_diff_turns_one_tree_into_the_other(tree_and_place: tuple[Any, Place], data: st.DataObject) -> None:
    tree, place = tree_and_place
    other = at(tree, place.path).set(new_value(data, place))
    for changed in reversed(places_in(tree)):  # innermost first
        if data.draw(st.booleans()) and not changed.path.startswith(place.path):
            other = at(other, changed.path).set(new_value(data, changed))
    for right in (other, data.draw(trees())):
        result = apply_differences(tree, diff(tree, right))
        assert diff(result, right) == []
        assert jax.tree.structure(result) == jax.tree.structure(right)
    assert diff(tree, jax.tree.map(lambda leaf: leaf, tree)) == []


@given(trees(), trees())
def test_treedef_differences_agree_with_jax(left: Any, right: Any) -> None:
    a, b = jax.tree.structure(left), jax.tree.structure(right)

    assert (diff(a, b) == []) == (a == b)
    assert allclose(left, jax.tree.map(lambda leaf: leaf, left))
    assert a == b or not allclose(left, right)


# Specs and partitions


@given(trees_and_places())
def test_a_rule_applies_only_to_leaves_below_its_place(tree_and_place: tuple[Any, Place]) -> None:
    tree, place = tree_and_place
    assume(not place.is_static and jax.tree.leaves(place.value))
    spec = spec_like(tree, "other", {place.path: "here"})
    settings = {jax.tree_util.keystr(key): setting for key, setting in jax.tree_util.tree_leaves_with_path(spec)}

    assert jax.tree.structure(spec) == jax.tree.structure(trainable(tree)) == jax.tree.structure(tree)
    for path, setting in settings.items():
        assert (setting == "here") == (path == place.path or path.startswith((f"{place.path}.", f"{place.path}[")))


@given(trees(), st.data())
def test_combine_after_partition_is_the_identity(tree: Any, data: st.DataObject) -> None:
    assume(jax.tree.leaves(tree))
    mask = jax.tree.map(lambda _: data.draw(st.booleans()), tree)
    for where in (mask, trainable, lambda path, leaf: len(path) % 2 == 0):
        first, rest = partition(tree, where)
        assert diff(tree, combine(first, rest)) == []
        assert len(jax.tree.leaves(first)) + len(jax.tree.leaves(rest)) == len(jax.tree.leaves(tree))


# Batches and sizes


@given(trees(), st.integers(1, 3))
def test_unstack_after_stack_is_the_identity(tree: Any, copies: int) -> None:
    arrays = jax.tree.map(lambda leaf: jnp.full(2, len(repr(leaf))), tree)
    assume(jax.tree.leaves(arrays))
    several = [jax.tree.map(lambda leaf, step=step: leaf + step, arrays) for step in range(copies)]
    stacked = stack(several)

    assert jax.tree.structure(stacked) == jax.tree.structure(tree)
    assert diff(unstack(stacked), several) == []
    assert diff(node_at(stacked, copies - 1), several[-1]) == []


@given(trees())
def test_sizes_of_parts_add_up(tree: Any) -> None:
    total, rows = sum(np.size(leaf) for leaf in jax.tree.leaves(tree)), summary(tree, depth=1).rows

    assert count(tree) == total == sum(row.count for row in rows)
    assert nbytes(tree) == sum(row.nbytes for row in rows)
