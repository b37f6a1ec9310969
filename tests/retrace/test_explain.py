"""`explain`: the report of a possible retrace; and the parts of a call that reports store."""

from __future__ import annotations

import functools
import gc
import weakref
from typing import TYPE_CHECKING, Any, Never

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from tests.retrace.programs import Foreign, Layer, f32, spread
from tests.retrace.support import details, explained, fresh
from treewright import Module, explain

if TYPE_CHECKING:
    from collections.abc import Callable


class Net(Module):
    kernel: Any

    def apply(self, x: Any) -> Never:
        raise AssertionError("was run")


def step(state: Any, batch: Any, *, train: bool = True) -> Never:
    raise AssertionError("was run")


def double(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf * 2, tree)


def test_explain_names_every_difference_and_runs_nothing() -> None:
    report = explain(
        jax.jit(step),
        ({"model": Layer(jnp.ones(2))}, jnp.ones((32, 784))),
        ({"model": Layer(jnp.ones(2), "gelu")}, jnp.ones((31, 784))),
    )

    assert str(report).splitlines() == [
        "step would retrace",
        "    state['model'].setting (static): 'relu' -> 'gelu'",
        "    batch: float32[32,784] -> float32[31,784]",
        "        axis 0: 32 -> 31; if this is the smaller last batch of an epoch, drop or pad it",
    ]
    assert (report.event, report.is_retrace) == ("would trace", False)


@pytest.mark.devices(2)
def test_explain_distinguishes_cached_calls_from_recompiles() -> None:
    old, new = jnp.ones(2), jax.device_put(jnp.ones(2), jax.devices()[1])

    same = explain(step, (old, old), (old, jnp.zeros(2)))
    moved = explain(step, (old, old), (old, new))

    assert str(same) == "step would not retrace"
    assert str(moved).splitlines() == [
        "step would recompile, without a trace",
        f"    batch (placement): uncommitted -> committed to {jax.devices()[1]}",
        "        move it once, before the loop: jax.device_put",
    ]


def test_explain_recognises_static_arguments() -> None:
    jitted = jax.jit(step, static_argnames="train")

    report = explain(jitted, (1, 2), (1, 2), old_kwargs={"train": True}, new_kwargs={"train": False})

    assert details(report) == ["train (static): True -> False"]
    assert not explain(step, (1, 2), (1, 2), old_kwargs={"train": True}, new_kwargs={"train": False}).differences


@pytest.mark.parametrize(
    "function", [Net(1.0).apply, jax.jit(Net(1.0).apply), eqx.filter_jit(lambda x: x), jax.jit(lambda x: x), max]
)
def test_explain_uses_the_functions_parameter_names(function: Any) -> None:
    struct: Any = jax.ShapeDtypeStruct

    line = details(explain(function, (struct((2,), jnp.float32),), (jnp.ones(3),)))[0]

    assert line == ("args[0]" if function is max else "x") + ": float32[2] -> float32[3]"


def under_a_mesh() -> Any:
    with jax.set_mesh(jax.make_mesh((2, 2), ("data", "model"), (AxisType.Auto, AxisType.Auto))):
        return jnp.ones(2)


def in_memory(kind: str) -> Any:
    sharding = spread(jax.devices(), "d")
    return jax.device_put(f32(8), NamedSharding(sharding.mesh, sharding.spec, memory_kind=kind))


@pytest.mark.devices(4)
def test_explain_names_a_mesh_that_is_part_of_the_type() -> None:
    text = details(explain(double, (jnp.ones(2),), (under_a_mesh(),)))[1]

    assert text.startswith("    created under no mesh, and now under a mesh of data=2, model=2 (Auto); create it")


def test_explain_names_a_memory_space_that_is_part_of_the_type() -> None:
    text = details(explain(double, (in_memory("device"),), (in_memory("pinned_host"),)))[1]

    assert text.startswith("    the memory space is part of the type")


def test_explain_compares_deep_trees() -> None:
    def nested(tree: Any) -> Any:
        for _ in range(300):
            tree = Net(tree)
        return tree

    assert explain(double, (nested(1.0),), (nested([1.0]),)).event == "would trace"
    assert not explain(double, (nested(1.0),), (nested(2.0),)).differences


# Stored calls


class Big:
    def __init__(self, inner: Any = None) -> None:
        self.inner = inner


def are_deleted(*references: weakref.ref[Any]) -> bool:
    gc.collect()
    return all(reference() is None for reference in references)


@pytest.mark.slow
@pytest.mark.parametrize("run", [lambda f, x: f(x), lambda f, x: f.lower(x)])
def test_reports_keep_no_array_alive(run: Callable[[Any, Any], object]) -> None:
    jitted = jax.jit(fresh(double))
    references: list[weakref.ref[Any]] = []

    def calls() -> None:
        for length in (2, 3, 4):
            array = jnp.ones(length)
            references.append(weakref.ref(array))
            run(jitted, Layer(array))
            run(jitted, {"a": array, "b": None})

    reports = explained(calls, lambda: are_deleted(*references) or pytest.fail("kept in the block"))

    assert len(reports) == 5
    assert are_deleted(*references)


@pytest.mark.parametrize("levels", [0, 97, 98, 99, 150])
@pytest.mark.parametrize("around", [lambda inner: Big(inner), lambda inner: [inner]])
def test_reports_keep_no_identity_static_alive(levels: int, around: Callable[[Any], Any]) -> None:
    array, new = np.ones(3), Big()
    old = Big(functools.reduce(lambda inner, _: around(inner), range(levels), array))
    references = weakref.ref(old), weakref.ref(new), weakref.ref(array)

    report = explain(double, (Foreign(1.0, (old, array)),), (Foreign(1.0, (new, array)),))
    del old, new, array

    assert details(report)[0].startswith("tree.setting[0] (static): <")
    assert are_deleted(*references)


def test_later_mutations_do_not_change_recorded_calls() -> None:
    jitted: Any = jax.jit(lambda tree: tree.weight)
    sizes, options, names = [1, 2], {"a": [1]}, {"x"}

    def calls() -> None:
        jitted(Foreign(1.0, [sizes, options, names, functools.partial(max, sizes)]))
        sizes.append(3)
        options["a"].append(2)
        names.add("y")
        jitted(Foreign(jnp.ones(2), [sizes, options, names, functools.partial(max, sizes)]))

    [report] = explained(calls)

    assert [line for line in details(report) if "(static)" in line] == [
        "tree.setting[0] (static): [1, 2] -> [1, 2, 3]",
        "tree.setting[1]['a'] (static): [1] -> [1, 2]",
        "tree.setting[2] (static): {'x'} -> {'x', 'y'}",
        "tree.setting[3] (static): partial(max, [1, 2]) -> partial(max, [1, 2, 3])",
    ]
