"""What reports remember: no array, a bounded history that dies with the function, and nothing that changes later."""

from __future__ import annotations

import dataclasses
import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import treewright
from tests.retrace.support import details, fresh
from treewright import Module, static

if TYPE_CHECKING:
    from collections.abc import Callable

    from treewright import RetraceReport


class Layer(Module):
    kernel: Any
    setting: Any = static(default=None)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    kernel: Any
    setting: Any = dataclasses.field(default=None, metadata={"static": True})


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, tree)


class Big:
    """Compares by identity, and can be referred to weakly."""


def gone(*references: weakref.ref[Any]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.parametrize("run", [lambda f, x: f(x), lambda f, x: f.lower(x), jax.eval_shape])
def test_no_array_is_kept_alive(run: Callable[[Any, Any], object]) -> None:
    reports: list[RetraceReport] = []
    jitted = jax.jit(fresh(double))
    references: list[weakref.ref[Any]] = []

    with treewright.explain_retraces(on_report=reports.append):
        for length in (2, 3, 4):
            array = jnp.ones(length)
            references.append(weakref.ref(array))
            run(jitted, Layer(array))
            run(jitted, {"a": array, "b": None})
            del array
        assert gone(*references)

    assert len(reports) == 5
    assert gone(*references)


def test_no_static_that_goes_by_identity_is_kept_alive() -> None:
    old, new = Big(), Big()
    references = weakref.ref(old), weakref.ref(new)

    report = treewright.explain(double, (Foreign(1.0, old),), (Foreign(1.0, [new, new]),))
    del old, new

    assert details(report)[0] == "tree.setting (static): <Big object> -> [<Big object>, <Big object>]"
    assert gone(*references)


def test_an_array_in_a_static_of_anybody_is_not_kept_alive() -> None:
    made: Any = np.ones(3)
    reference = weakref.ref(made)

    report = treewright.explain(double, (Foreign(1.0, (1, made)),), (Foreign(1.0, (2, made)),))
    del made

    assert details(report)[0] == "tree.setting[0] (static): 1 -> 2"
    assert gone(reference)


def test_a_list_that_changes_later_does_not_rewrite_history() -> None:
    reports: list[RetraceReport] = []
    jitted: Any = jax.jit(fresh(lambda tree: tree.kernel), static_argnums=())
    sizes, options, names = [1, 2], {"a": [1]}, {"x"}
    partial = functools.partial(max, sizes)

    with treewright.explain_retraces(on_report=reports.append):
        jitted(Foreign(1.0, [sizes, options, names, partial]))
        sizes.append(3)
        options["a"].append(2)
        names.add("y")
        jitted(Foreign(jnp.ones(2), [sizes, options, names, functools.partial(max, sizes)]))

    assert [line for line in details(reports[0]) if "(static)" in line] == [
        "tree.setting[0] (static): [1, 2] -> [1, 2, 3]",
        "tree.setting[1]['a'] (static): [1] -> [1, 2]",
        "tree.setting[2] (static): {'x'} -> {'x', 'y'}",
        "tree.setting[3] (static): partial(max, [1, 2]) -> partial(max, [1, 2, 3])",
    ]


def test_a_tree_too_deep_for_pythons_stack_is_remembered_in_outline() -> None:
    def nested(tree: Any) -> Any:
        for _ in range(300):
            tree = Layer(tree)
        return tree

    report = treewright.explain(double, (nested(1.0),), (nested([1.0]),))

    assert report.event == "would trace"
    assert not treewright.explain(double, (nested(1.0),), (nested(2.0),)).differences


def test_a_recursive_function_is_remembered() -> None:
    def make() -> Any:
        def again(n: int) -> int:
            return again(n - 1) if n else 0

        return again

    report = treewright.explain(double, (Foreign(1.0, make()),), (Foreign(1.0, make()),))

    assert "made again by the same code" in str(report)
