"""Causes that do not lie in the values of traced arguments: settings, meshes, static arguments, the function itself."""

from __future__ import annotations

import dataclasses
from typing import Any, Never

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import treewright
from tests.retrace.support import details, reported
from treewright import TrainState

Spec: Any = PartitionSpec  # without a type of its own


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Foreign:
    """A node of a class that is not ours: jit compares its static with `==`."""

    kernel: Any
    setting: Any = dataclasses.field(default="", metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...]


class Plain:
    """Compares by identity."""

    def __init__(self, size: int) -> None:
        self.size = size

    def grow(self, x: Any) -> Any:
        return x * self.size


def step(state: Any, batch: Any = None, scale: Any = 1.0) -> Any:
    return 0


def ones(*shape: int) -> Any:
    return jnp.ones(shape)


NUMBER = "if only its value is computed with, pass it as an array that is traced; a shape or a length must be static"
FIXED = "make the number an array of a fixed dtype: jnp.asarray(x, dtype)"


def test_a_python_number_is_told_from_an_array_where_it_can_be_seen() -> None:
    [report] = reported(step, lambda f: f(1), lambda f: f(jnp.ones((), int)))

    assert details(report)[:2] == [
        "state: Python int -> int32[]",
        f"    a Python int is weakly typed: its dtype gives way to that of others; {FIXED}",
    ]
    [report] = reported(step, lambda f: f(1), lambda f: f(ones(3)))
    assert details(report) == ["state: Python int -> float32[3]", "compared with trace 1"]


def test_an_array_made_under_another_mesh_is_named() -> None:
    mesh = jax.make_mesh((2, 2), ("data", "model"), (AxisType.Auto, AxisType.Auto))
    with jax.set_mesh(mesh):
        array = jnp.ones(2)

    report = treewright.explain(step, (jnp.ones(2),), (array,))

    assert details(report) == [
        "state: float32[2] -> float32[2]",
        (
            "    made under no mesh, and now under a mesh of data=2, model=2 (Auto); make it under the mesh that it is "
            "used with"
        ),
    ]


def test_an_explicit_sharding_is_part_of_the_type() -> None:
    mesh = jax.make_mesh((2,), ("data",), (AxisType.Explicit,))
    with jax.set_mesh(mesh):
        whole = jax.device_put(jnp.ones(8), NamedSharding(mesh, Spec()))
        split = jax.device_put(jnp.ones(8), NamedSharding(mesh, Spec("data")))
        [report] = reported(step, lambda f: f(whole), lambda f: f(split))

    assert details(report)[:2] == [
        "state: float32[8] -> float32[8@data]",
        (
            "    the sharding is part of the type on a mesh of explicit axes; give it one sharding before the loop: "
            "jax.device_put"
        ),
    ]


def test_an_optimizer_rebuilt_in_a_foreign_class_is_named() -> None:
    old, new = (Foreign(ones(), optax.adam(rate)) for rate in (1e-3, 1e-2))
    same = Foreign(ones(), optax.adam(1e-3))

    [changed] = reported(step, lambda f: f(old), lambda f: f(new))
    [rebuilt] = reported(step, lambda f: f(old), lambda f: f(same))

    assert any("which captured update_fns[1]" in line and "-0.001 -> -0.01" in line for line in details(changed))
    assert any("which captured the same update_fns" in line for line in details(rebuilt))
    assert all("keep it in a TrainState" in line for line in details(rebuilt)[1::2][:2])
    assert not reported(
        step,
        *(lambda f: f(TrainState.create(params=ones(2), tx=optax.adam(1e-3))) for _ in range(2)),
    )


class Hostile:
    """Tells nothing of itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return 1

    def __getattribute__(self, name: str) -> Never:
        raise RuntimeError("no attributes")


def test_where_arguments_can_not_be_read_traces_are_still_counted() -> None:
    [report] = reported(step, *(lambda f: f(1.0, Hostile()) for _ in range(2)), static_argnums=1)

    assert (report.event, report.number) == ("count", 2)
    assert details(report) == ["the arguments could not be read, so traces are only counted, by the function's name"]
