"""The law: a report and an exact key never disagree about a static, at any depth and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
import pytest

from tests.nodes.test_kinds import EXAMPLES, NAMES
from treewright import Module, diff, explain, explain_retraces, static
from treewright._core import exact_key
from treewright._trees.causes import alike, snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

D = np.array(jax.devices())


class Holder(Module):
    setting: Any = static()


def nested(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = (value,)
    return value


# Where a value is in a static: deeper and further than a report lists.
PLACES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda value: value,
    "below 9 levels": lambda value: nested(value, 9),
    "below 120 levels": lambda value: nested(value, 120),
    "after 450 parts": lambda value: (*range(450), value),
    "after 300 pairs": lambda value: (*((i, i) for i in range(300)), (0, value)),
}
MORE: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "closed function": (lambda: lambda x: x, lambda: lambda x: x + 1),
    "optimiser": (lambda: optax.adam(0.1), lambda: optax.adam(0.2)),
    "optimiser with a deep schedule": (
        lambda: optax.chain(optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100))),
        lambda: optax.chain(optax.adam(optax.warmup_cosine_decay_schedule(0.0, 0.1, 10, 101))),
    ),
}
ALL = dict(zip(NAMES, EXAMPLES.values(), strict=True)) | MORE


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ALL)
def test_a_report_and_a_key_agree(kind: str, place: str) -> None:
    first, second = ALL[kind]
    made = [PLACES[place](make()) for make in (first, first, second)]
    keys, snapshots = [*map(exact_key, made)], [*map(snapshot, made)]

    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert alike(snapshots[i], snapshots[j]) is (keys[i] == keys[j])

    assert keys[0] != keys[2]


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
        (nested(1, 200), nested(2, 200), "they differ more than 100 levels below"),
        ((*((i, i) for i in range(300)), 1), (*((i, i) for i in range(300)), 2), "s[300] (static): 1 -> 2"),
        (nested(1, 200), nested(1, 200), "function would not retrace"),
    ],
)
def test_explain_finds_a_difference_at_any_depth_and_size(old: Any, new: Any, line: str) -> None:
    def function(x: Any, s: Any) -> Any:
        return x

    step: Any = jax.jit(function, static_argnums=1)

    assert line in str(explain(step, (1.0, old), (1.0, new)))


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
    with pytest.warns(DeprecationWarning, match="with mesh"), mesh:
        jax.jit(step)(np.ones(4))


def placement(step: Any, mesh: Any) -> None:
    spec: Any = jax.sharding.PartitionSpec("x")  # type: ignore[no-untyped-call]
    jax.jit(step)(jax.device_put(np.ones(4), jax.sharding.NamedSharding(mesh, spec)))


@pytest.mark.parametrize("run", [static_mesh, output_sharding, mesh_in_use, placement])
def test_meshes_over_different_devices_have_different_texts(run: Callable[[Any, Any], None]) -> None:
    def step(x: Any, _mesh: Any = None) -> Any:
        return x

    reports: list[Any] = []
    with explain_retraces(on_report=reports.append, only=step):
        for devices in (D[:2], D[2:4]):
            run(step, jax.sharding.Mesh(devices, ("x",)))

    [report] = reports
    [difference] = report.differences
    left, _, right = (difference.parts or (difference,))[0].change.partition(" -> ")
    assert (left.endswith("over devices 0, 1"), right.endswith("over devices 2, 3")) == (True, True)
    assert "create it once and reuse it" not in str(report)
