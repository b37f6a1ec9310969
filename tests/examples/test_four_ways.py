"""Four ways to make a class a pytree: the results are the same, and the table of faults says what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

pytest.importorskip("flax")

from examples import four_ways
from examples.four_ways import RESULTS, WAYS, WRONGS

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize(("title", "function"), RESULTS, ids=[title for title, _ in RESULTS])
def test_all_four_ways_give_the_same_result(title: str, function: Callable[[four_ways.Way], object]) -> None:
    first, *others = [function(way) for way in WAYS]

    assert others == [first] * 3


def test_the_linear_model_is_learnt() -> None:
    assert four_ways.trained(WAYS[3]) < 1e-4


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (four_ways.shared_trace, ["an integer", "an integer", "an integer", "right"]),
        (four_ways.stale_list, ["the old result", "the old result", "the old result", "refused"]),
        (four_ways.retraces, ["3 in 3 calls", "3 in 3 calls", "3 in 3 calls", "1 in 3 calls"]),
        (four_ways.assigned, ["changed", "changed", "changed", "frozen"]),
        (four_ways.compared, ["False", "an error", "an error", "True"]),
        (four_ways.named_path, ["[<flat index 0>]", "[<flat index 0>]", ".corner", ".corner"]),
        (four_ways.inherited, ["one opaque leaf", "one opaque leaf", "one opaque leaf", "a node"]),
        (four_ways.exported, ["an error", "an error", "an error", "works"]),
    ],
)
def test_what_each_way_gets_wrong(function: Callable[[four_ways.Way], str], expected: list[str]) -> None:
    assert [function(way) for way in WAYS] == expected
    assert function in [probe for _, probe in WRONGS]


def test_it_prints_both_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert four_ways.main() == 0

    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 * 3 + len(RESULTS) + len(WRONGS)
    assert lines[1] == "The same results"
    assert lines[-1].split("  ")[0] == "jax.export"
