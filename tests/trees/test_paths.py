"""Paths: their text, what is there, and the patterns that match them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import pytest

from treewright import Module, static
from treewright._jax import path_text
from treewright._trees.paths import entries_of, parse


class Layer(Module):
    kernel: Any
    bias: Any
    activation: str = static(default="relu")


class Point(NamedTuple):
    x: Any


TREE = {"layers": [Layer(1, 2), Layer(3, None)], "rest": (Point(4), 5)}


def paths_in(tree: object) -> dict[str, Any]:
    return {path_text(path): path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]}


def test_a_path_reads_as_users_write_it() -> None:
    (path,) = (path for text, path in paths_in(TREE).items() if "bias" in text)

    assert path_text(path) == "['layers'][0].bias"
    assert path_text(path, "state") == "state['layers'][0].bias"


def test_the_entries_of_a_node_are_its_children_with_their_keys() -> None:
    assert [(str(key), child) for key, child in entries_of(Layer(1, 2)) or ()] == [(".kernel", 1), (".bias", 2)]


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        ([1, None], [("[0]", 1), ("[1]", None)]),
        ({"b": 1, "a": [2]}, [("['a']", [2]), ("['b']", 1)]),
        (Point((1,)), [(".x", (1,))]),
        (None, []),
        ((), []),
    ],
)
def test_the_entries_of_a_container_go_one_level_down(tree: object, expected: list[Any]) -> None:
    assert [(str(key), child) for key, child in entries_of(tree) or ()] == expected


def test_a_leaf_has_no_entries() -> None:
    assert entries_of(1) is None


@pytest.mark.parametrize(
    ("pattern", "places"),
    [
        ("['layers'][0].kernel", ["['layers'][0].kernel"]),
        ("['layers'][*].kernel", ["['layers'][0].kernel", "['layers'][1].kernel"]),
        ("**.bias", ["['layers'][0].bias"]),
        ("**.k*", ["['layers'][0].kernel", "['layers'][1].kernel"]),
        ("**[1]", ["['rest'][1]"]),
        ('["rest"][0].x', ["['rest'][0].x"]),
        (".kernel", []),
        (".layers", []),
        ("**", list(paths_in(TREE))),
    ],
)
def test_a_pattern_matches_the_places_it_leads_to(pattern: str, places: list[str]) -> None:
    assert [text for text, path in paths_in(TREE).items() if parse(pattern).matches(path)] == places


def test_a_pattern_covers_what_is_below_its_places() -> None:
    assert [text for text, path in paths_in(TREE).items() if parse("['layers'][0]").covers(path)] == [
        "['layers'][0].kernel",
        "['layers'][0].bias",
    ]


@pytest.mark.parametrize(("text", "rest"), [("a b", " b"), ("[x]", "[x]"), (".a..b", "..b"), (".a[", "[")])
def test_a_text_that_is_no_path_is_refused_at_the_step_that_is_wrong(text: str, rest: str) -> None:
    with pytest.raises(ValueError, match="is no path") as caught:
        parse(text)

    assert str(caught.value).startswith(f"{text!r} is no path: {rest!r} is not a step.")


class Foreign:
    """A class that was registered with a key of its own kind."""


jax.tree_util.register_pytree_with_keys(Foreign, lambda node: ((("left", 1), ("right", 2)), None), lambda *_: Foreign())


def test_a_foreign_key_is_matched_by_its_own_text() -> None:
    assert [text for text, path in paths_in(Foreign()).items() if parse("['left']").matches(path)] == ["left"]
