"""Reports of statics: exact at any depth and size, and with two texts that differ."""

from __future__ import annotations

import dataclasses
import functools
import uuid
import warnings
from typing import TYPE_CHECKING, Any, Literal

import jax
import numpy as np
import optax
import pytest

from tests.nodes.test_kinds import EXAMPLES, FUNCTIONS, NAMES, nested
from treewright import Module, diff, explain, explain_retraces, static
from treewright.errors import StaticWarning

if TYPE_CHECKING:
    from collections.abc import Callable

D = np.array(jax.devices())
SAFE = uuid.SafeUUID.safe


class Holder(Module):
    setting: Any = static()


@dataclasses.dataclass(frozen=True)
class Scale:
    factor: float

    def __call__(self, x: Any) -> Any:
        return x * self.factor


ALL = dict(zip(NAMES, EXAMPLES.values(), strict=True)) | FUNCTIONS


@pytest.mark.parametrize("kind", ALL)
def test_both_sides_of_a_difference_differ_or_a_reason_says_why(kind: str) -> None:
    first, second = ALL[kind]

    for difference in diff(Holder(first()), Holder(second())):
        for part in difference.parts or (difference,):
            left, _, right = part.change.partition(" -> ")
            assert left != right or part.reason


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (tuple(range(401)), tuple(range(402)), "these differ: [401]: 401 added"),
        (nested(1, 9), nested(2, 9), "s[0][0][0][0][0][0][0][0][0] (static): 1 -> 2"),
        (nested(1, 200), nested(2, 200), "[0][0]: 1 -> 2"),
        ((*((i, i) for i in range(300)), 1), (*((i, i) for i in range(300)), 2), "s[300] (static): 1 -> 2"),
        (nested(1, 200), nested(1, 200), "function would not retrace"),
        (functools.partial(max, float("nan")), functools.partial(max, float("nan")), "nan) -> partial(max, nan)\n"),
        (np.float32("nan"), np.float32("nan"), "NaN does not equal itself"),
        (jax.jit(Scale(1.0)), jax.jit(Scale(2.0)), "these differ: factor: 1.0 -> 2.0"),
    ],
)
def test_explain_finds_a_difference_at_any_depth_and_size(old: Any, new: Any, line: str) -> None:
    def function(x: Any, s: Any) -> Any:
        return x

    step: Any = jax.jit(function, static_argnums=1)

    assert line in str(explain(step, (1.0, old), (1.0, new)))


@pytest.mark.parametrize(
    ("old", "new", "change"),
    [
        (b"x" * 60 + b"a" + b"x" * 60, b"x" * 60 + b"b" + b"x" * 60, f"...{'x' * 13}a{'x' * 26}... -> ...{'x' * 13}b"),
        pytest.param(
            10**300, 10**300 + 10**100, "0952f4dd1000000000000000000... -> ...eaeb442e15d451", id="300 digits"
        ),
        pytest.param(10**5000, 10**5000 + 1, "...00000000000000 -> ...00000000000001", id="5000 digits"),
        (list[int], list[float], "list[int] -> list[float]"),
        (uuid.UUID(int=3), uuid.UUID(int=3, is_safe=SAFE), "000003') with <SafeUUID.unknown: None> -> "),
        (Literal[1], Literal[2], "typing.Literal[1] -> typing.Literal[2]"),
    ],
)
def test_a_difference_shows_where_two_similar_values_differ(old: Any, new: Any, change: str) -> None:
    [difference] = diff(Holder(old), Holder(new))

    assert change in str(difference)
    assert "same text" not in str(difference)


class FailsOnLookup:
    """A callable that reads attributes from a dict."""

    def __getattr__(self, name: str) -> Any:
        raise KeyError(name)

    def __call__(self) -> None: ...


class HasNoTruth:
    """A lazy data set: its length is not known before it is read."""

    mesh = np.arange(2)

    def __len__(self) -> int:
        raise RuntimeError("not loaded")


class FailsOnComparison:
    """A value that equals itself, and can't be compared with others."""

    def __eq__(self, other: object) -> bool:
        if self is not other:
            raise ValueError("not comparable")
        return True

    def __hash__(self) -> int:
        return 1


class ClassFailsOnComparison(type):
    def __eq__(cls, other: object) -> bool:
        raise ValueError("not comparable")

    def __hash__(cls) -> int:
        return 1


@pytest.mark.parametrize(
    ("make", "part"),
    [
        (lambda: FailsOnLookup(), "create it once and reuse it"),
        (lambda: HasNoTruth(), "HasNoTruth has no __eq__"),
        (lambda: (FailsOnLookup(),), "create it once and reuse it"),
        (lambda: FailsOnComparison(), "a different FailsOnComparison with the same text"),
        (lambda: ClassFailsOnComparison("Model", (), {}), "two classes are named Model"),
        (lambda: [FailsOnComparison()].append, "list.append -> list.append"),
        (iter([slice(1), slice(True)]).__next__, "slice(None, 1, None) -> slice(None, True, None)"),
    ],
)
def test_explain_reports_values_whose_methods_fail(make: Callable[[], Any], part: str) -> None:
    def function(holder: Holder) -> Any:
        return 0

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", StaticWarning)
        holders = [Holder(make()), Holder(make())]

    assert part in str(explain(jax.jit(function), (holders[0],), (holders[1],)))
    assert " -> " in str(diff(*holders)[0])


@pytest.mark.parametrize(
    ("schedule", "line"),
    [
        (lambda n: optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, n), "decay_steps: 90 -> 190"),
        (lambda n: optax.join_schedules([optax.linear_schedule(0.0, 0.1, 5)], [n]), "boundaries[0]: 100 -> 200"),
        (lambda n: optax.cosine_decay_schedule(0.1, n), "decay_steps: 100 -> 200"),
    ],
)
def test_a_number_deep_in_an_optimiser_is_named(schedule: Callable[[int], Any], line: str) -> None:
    [difference] = diff(Holder(optax.adam(schedule(100))), Holder(optax.adam(schedule(200))))

    assert line in str(difference)


def static_mesh(step: Any, mesh: Any) -> None:
    jax.jit(step, static_argnums=1)(np.ones(4), mesh)


def output_sharding(step: Any, mesh: Any) -> None:
    spec: Any = jax.sharding.PartitionSpec("x")  # type: ignore[no-untyped-call]
    jax.jit(step, out_shardings=jax.sharding.NamedSharding(mesh, spec))(np.ones(4))


def mesh_in_use(step: Any, mesh: Any) -> None:
    with warnings.catch_warnings():  # since JAX 0.10, `with mesh` is deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        with mesh:
            jax.jit(step)(np.ones(4))


def mesh_of_set_mesh(step: Any, mesh: Any) -> None:
    with jax.set_mesh(mesh):
        jitted = vars(step).setdefault("jitted", jax.jit(step))
        jitted(np.ones(4))


def placement(step: Any, mesh: Any) -> None:
    spec: Any = jax.sharding.PartitionSpec("x")  # type: ignore[no-untyped-call]
    jax.jit(step)(jax.device_put(np.ones(4), jax.sharding.NamedSharding(mesh, spec)))


@pytest.mark.parametrize("run", [static_mesh, output_sharding, mesh_in_use, mesh_of_set_mesh, placement])
def test_meshes_over_different_devices_have_different_texts(run: Callable[[Any, Any], None]) -> None:
    def step(x: Any, _mesh: Any = None) -> Any:
        return x

    reports: list[Any] = []
    with explain_retraces(on_report=reports.append, only=step):
        for devices in (D[:2], D[2:4]):
            run(step, jax.sharding.Mesh(devices, ("x",)))

    [report] = reports
    check_devices(report.differences)
    assert "create it once and reuse it" not in str(report)


def check_devices(differences: Any) -> None:
    [difference] = differences
    left, _, right = (difference.parts or (difference,))[0].change.partition(" -> ")
    assert (left.endswith("over devices 0, 1"), right.endswith("over devices 2, 3")) == (True, True)


def test_meshes_as_leaves_have_different_texts() -> None:
    check_devices(diff(*[jax.sharding.Mesh(devices, ("x",)) for devices in (D[:2], D[2:4])]))
