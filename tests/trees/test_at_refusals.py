"""What `at` refuses, and what it says then."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest

from tests.trees.test_at import Linear, Net, small_net
from treewright import at
from treewright.errors import MissingPlaceError


def test_a_place_that_is_not_there_is_an_error_that_says_what_is() -> None:
    net = small_net()

    def message(where: Any) -> str:
        with pytest.raises(MissingPlaceError) as caught:
            at(net, where)
        return str(caught.value)

    assert message(lambda net: net.layers[0].kernle) == (
        "Net.layers[0] (Linear) has no .kernle (did you mean .kernel?). It has .kernel, .bias, .mean, .activation."
    )
    assert message(".layers[0].kernle") == message(lambda net: net.layers[0].kernle)
    assert message(lambda net: net.layers[2]) == "Net.layers (tuple) has no [2]. It has [0] to [1]."
    assert message(lambda net: net.layers[-3]) == "Net.layers (tuple) has no [-3]. It has [0] to [1]."
    assert message(lambda net: net.table["c"]) == "Net.table (dict) has no ['c']. It has ['b'], ['a']."
    assert message(lambda net: net.layers[0].kernel.x) == "Net.layers[0].kernel is 1.0, a leaf, and has no .x."
    assert message(lambda net: net.layers[1].bias["x"]) == "Net.layers[1].bias (None) has no ['x']. It has nothing."
    assert message(lambda net: net.table["b"][0][2]) == "Net.table['b'][0] (Pair) has no [2]. It has .left, .right."
    assert message("bais") == (
        "Net has no place bais (did you mean bias?). The names in it: .activation, .bias, .kernel, .layers, .left, "
        ".mean, .name, .right, .table, ['a'], ['b']."
    )
    assert message(".layers[*].x.y").startswith("Net has no place .layers[*].x.y. The names in it:")
    assert message(lambda path, value: path == "x") == (
        "Net has no place where the predicate is true. It is asked of paths such as '.layers'."
    )
    net = Net((Linear(jnp.ones(3)),), {str(index): index for index in range(20)})
    assert message(".layers[0].kernel[0]") == (
        "Net.layers[0].kernel is f32[3], a leaf, and has no [0]. To change a part of an array, use .apply(lambda "
        "array: array.at[...].set(...))."
    )
    assert message(lambda net: net.table["x"]).endswith("['10'], ['11'], and 8 more.")


def test_a_name_alone_that_leads_to_several_places_is_refused_with_the_places() -> None:
    def message(tree: Any, name: str = "bias") -> str:
        with pytest.raises(ValueError, match=f"^'{name}' leads to ") as caught:
            at(tree, name)
        return str(caught.value)

    assert message(small_net()) == (
        "'bias' leads to 2 places in Net: .layers[0].bias, .layers[1].bias. To mean all of them, write \"**.bias\"; to "
        "mean one, write its path."
    )
    entries = message([{"bias": index} for index in range(9)])
    assert entries.startswith("'bias' leads to 9 places in list: [0]['bias'], [1]['bias'], [2]['bias'], ")
    assert "[4]['bias'], and 4 more. To mean all of them, write \"**['bias']\"; to mean one, " in entries
    both = message({"bias": 1, "layer": Linear(1.0, 2.0)})
    assert 'To mean all of them, write "**[\'bias\']" and "**.bias"; to mean one, write its path.' in both
    assert "places in dict: ['a'], ['a']['a']." in message({"a": {"a": 1}}, "a")


def test_what_returns_no_places_is_refused() -> None:
    for where in (lambda net: 3, lambda net: None, lambda net: (net.name, 3), lambda net: (n for n in net.layers)):
        with pytest.raises(
            TypeError, match=r"^The function that says where must return a place of the tree, or a tupl"
        ):
            at(small_net(), where)
    with pytest.raises(TypeError, match=r"^where= takes a function, a path or a predicate, got 3\.$"):
        at(small_net(), 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


def test_values_can_not_be_computed_with() -> None:
    where: Any
    for where in (
        lambda net: net.name == "net",
        lambda net: net.name != "net",
        lambda net: net.name < "net",
        lambda net: net.layers if net.name else net.table,
        lambda net: net.name(),
    ):
        with pytest.raises(TypeError, match=r"^A function that says where runs on places.*Net\.name can't be compared"):
            at(small_net(), where)
    with pytest.raises(TypeError, match=r"^Net\.name is 'net', which has no entries to go through\.$"):
        at(small_net(), lambda net: list(net.name))
    with pytest.raises(TypeError, match=r"unhashable|runs on places, not on values"):  # the latter from 3.14 on
        at(small_net(), lambda net: {net.name})


def test_a_value_of_another_structure_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^set\(\) takes a value for each place, in the structure .*, got 3\.$"):
        at(small_net(), lambda net: (net.name, net.table)).set(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_places_that_overlap_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^Net\.name is selected twice, and could be given two values\. Select it onc"
    ):
        at(small_net(), lambda net: (net.name, net.name))
    with pytest.raises(
        ValueError, match=r"^Net\.layers\[0\]\.bias is inside Net\.layers, which is selected too: one change would undo"
    ):
        at(small_net(), lambda net: (net.layers[0].bias, net.layers))


def test_places_and_selections_print_where_they_are() -> None:
    assert repr(at(small_net(), "**.bias")) == "<at Net.layers[0].bias, Net.layers[1].bias>"

    def where(net: Net) -> Any:
        raise RuntimeError(repr(net.layers[0]))

    with pytest.raises(RuntimeError, match=r"^<the place Net\.layers\[0\]>$"):
        at(small_net(), where)
