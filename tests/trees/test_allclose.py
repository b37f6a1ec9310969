"""`allclose` and `assert_trees_close`: equality up to rounding, or paths and errors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treewright import Module, allclose, diff, static
from treewright.errors import TracedComparisonError
from treewright.testing import assert_trees_close


class Layer(Module):
    kernel: Any
    activation: str = static(default="relu")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (Layer(jnp.ones(3)), Layer(jnp.ones(3) + 1e-6)),
        (Layer(jnp.ones(3)), Layer(np.ones(3))),
        ([1.0, 2, True, "a", None], [1.0 + 1e-7, 2, True, "a", None]),
        (jnp.array([jnp.nan, jnp.inf]), jnp.array([jnp.nan, jnp.inf])),
        (jnp.array([1 + 1j]), jnp.array([1 + 1j + 1e-7])),
        (jnp.ones(2, jnp.bfloat16), jnp.ones(2)),
        (jnp.zeros(0), jnp.zeros(0)),
        (1.0, jnp.asarray(1.0)),
        (jax.random.key(1), jax.random.key(1)),
    ],
)
def test_allclose_accepts_close_trees(actual: Any, expected: Any) -> None:
    result = allclose(actual, expected)

    assert result
    assert str(result) == "close"
    assert_trees_close(actual, expected)


@pytest.mark.parametrize(
    ("actual", "expected", "line"),
    [
        (
            Layer(jnp.ones((2, 3))),
            Layer(jnp.ones((2, 3)).at[1, 2].set(1.5).at[0, 0].set(1.25)),
            ".kernel: 2 of 6 elements are not close, worst at [1, 2]: 1.0 and 1.5, by 0.5",
        ),
        (Layer(1.0), Layer(1.0, "gelu"), ".activation (static): 'relu' -> 'gelu'"),
        (Layer(jnp.ones(2)), Layer(jnp.ones(3)), ".kernel (shape): float32[2] -> float32[3]; axis 0: 2 -> 3"),
        ({"a": 1}, {"b": 1}, "['a'] (removed): 1"),
        (1.0, 2.0, "the whole tree: 1 of 1 elements are not close, worst: 1.0 and 2.0, by 1"),
        (np.float32(1), 2, "the whole tree: 1 of 1 elements are not close, worst: 1.0 and 2.0, by 1"),
        (
            jnp.array([1.0, jnp.nan]),
            jnp.ones(2),
            "the whole tree: 1 of 2 elements are not close, worst at [1]: nan and 1.0, by nan",
        ),
        (
            jnp.array([jnp.inf, 5]),
            jnp.ones(2),
            "the whole tree: 2 of 2 elements are not close, worst at [0]: inf and 1.0, by inf",
        ),
        (
            jnp.array([True]),
            jnp.array([False]),
            "the whole tree: 1 of 1 elements are not close, worst at [0]: 1.0 and 0.0, by 1",
        ),
        ("a", "b", "the whole tree (value): 'a' -> 'b'"),
        (None, 1.0, "the whole tree (class): None -> 1.0"),
    ],
)
def test_assert_trees_close_reports_paths_and_errors(actual: Any, expected: Any, line: str) -> None:
    result = allclose(actual, expected)

    assert not result
    assert result.mismatches[0] == line
    with pytest.raises(AssertionError) as caught:
        assert_trees_close(actual, expected)
    assert str(caught.value).splitlines()[1].strip() == line


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_integers_above_two_to_the_53_are_not_rounded(kind: Any) -> None:
    one, other = np.array([2**53, 1], kind), np.array([2**53 + 1, 1], kind)

    assert allclose(one, other)
    assert allclose(one, other, rtol=0, atol=1)
    assert allclose(one, other, rtol=0, atol=0).mismatches == (
        "the whole tree: 1 of 2 elements are not close, worst at [0]: 9007199254740992 and 9007199254740993, by 1",
    )
    assert [difference.reason for difference in diff(one, other)] == ["1 of 2 elements differ, by at most 1"]
    assert not allclose(2**70, 2**70 + 1, rtol=0, atol=0)


@given(
    values=st.lists(st.tuples(st.floats(), st.floats(), st.booleans()), min_size=1),
    rtol=st.sampled_from([0.0, 1e-5, 0.5]),
    atol=st.sampled_from([0.0, 1e-8, 1.0]),
)
def test_allclose_agrees_with_numpy(values: list[tuple[float, float, bool]], rtol: float, atol: float) -> None:
    actual = np.array([x for x, _, _ in values])
    expected = np.array([x if is_equal else y for x, y, is_equal in values])
    with np.errstate(all="ignore"):
        answer = np.allclose(actual, expected, rtol=rtol, atol=atol, equal_nan=True)

    assert bool(allclose(actual, expected, rtol=rtol, atol=atol)) == answer


def test_at_most_twenty_differences_are_listed() -> None:
    result = allclose(list(range(30)), [value + 1 for value in range(30)])
    lines = str(result).splitlines()

    assert len(result.mismatches) == 30
    assert lines[0] == "not close in 30 places:"
    assert lines[-1] == "  and 10 more"
    assert len(lines) == 22
    assert repr(allclose(1, 2)).startswith("<not close in 1 place:\n  the whole tree")


def test_traced_values_cannot_be_compared() -> None:
    with pytest.raises(TracedComparisonError, match=r"^\.kernel is traced, so == has no value to compare"):
        jax.jit(lambda x: allclose(Layer(x), Layer(x + 1)))(1.0)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64])
def test_large_integers_are_compared_without_rounding_and_without_overflow(dtype: Any) -> None:
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    values = np.array([low, 0, 1, 2**60, 2**60 + 1, high - 1, high], dtype)

    for a in values:
        for b in values:
            left, right = np.array([a]), np.array([b])
            distance = abs(int(a) - int(b))
            assert bool(allclose(left, right, rtol=0.0, atol=0.0)) is (distance == 0)
            assert bool(allclose(left, right, rtol=0.0, atol=2.0)) is (distance <= 2)
            assert bool(allclose(left, right, rtol=0.5, atol=0.0)) is (distance <= 0.5 * abs(int(b)))
