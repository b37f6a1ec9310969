"""Statics in checkpoints: exact ones are restored and compared; a change in any other static is always reported."""

from __future__ import annotations

import datetime as dt
import fractions
import re
import uuid
import warnings
import zoneinfo
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding

from tests.checkpoint import models
from tests.checkpoint.engines import assert_same
from tests.checkpoint.models import STATICS, Settings
from treewright import TrainState
from treewright.checkpoint import load, read_manifest, save
from treewright.errors import CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::treewright.errors.StaticWarning")]


@pytest.mark.parametrize("value", STATICS, ids=lambda value: type(value).__name__)
def test_every_type_of_static_is_compared(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(value))

    assert load(tmp_path / "x", like=Settings(value)) == Settings(value)
    with pytest.raises(CheckpointMismatchError, match=r"\.value: static .* saved, 'another' in the tree"):
        load(tmp_path / "x", like=Settings("another"))


class Warmup:
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def __call__(self, step: Any) -> Any:
        return step / self.steps

    def at(self, step: Any) -> Any:
        return step + self.steps


def table_of(values: Any) -> Any:
    return lambda step: values[step]


def accumulated(rate: float, steps: int) -> Any:
    return optax.MultiSteps(optax.adamw(rate), steps)


def decay_over(steps: int) -> Any:
    return optax.cosine_decay_schedule(0.1, steps)


def with_rate(rate: float) -> Any:
    return optax.multi_transform(
        {str(i): optax.sgd(0.1) for i in range(11)} | {"last": optax.sgd(rate)},  # type: ignore[arg-type]  # its library names fewer types than it takes
        lambda _: "last",
    )


# Each makes something without an exact form; and the twin does something else.
CHANGED: dict[str, tuple[Any, Any]] = {
    "a rate that is an array": (lambda: optax.adam(jnp.float32(1e-3)), lambda: optax.adam(jnp.float32(0.5))),
    "an object": (lambda: Warmup(10), lambda: Warmup(1000)),
    "a method": (lambda: Warmup(10).at, lambda: Warmup(1000).at),
    "a captured numpy array": (lambda: table_of(np.arange(3)), lambda: table_of(np.arange(3) + 1)),
    "a captured jax array": (lambda: table_of(jnp.arange(3)), lambda: table_of(jnp.arange(3) + 1)),
    "the body of a lambda": (lambda: lambda x: x + 1, lambda: lambda x: x + 2),
    "accumulated steps": (lambda: accumulated(1e-3, 4), lambda: accumulated(0.5, 8)),
    "the last of many rates": (lambda: with_rate(1e-3), lambda: with_rate(0.5)),
    "a float rate": (lambda: optax.adam(1e-3), lambda: optax.adam(0.5)),
    "a closure": (lambda: models.scaled(0.5), lambda: models.scaled(2.0)),
    "a schedule": (lambda: optax.adamw(decay_over(10)), lambda: optax.adamw(decay_over(20))),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_static_without_exact_form_warns_by_path(name: str, engine: Any) -> None:
    old, new = CHANGED[name]
    engine.save(Settings(old()))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.load(like=Settings(old()))  # recreated
        engine.load(like=Settings(new()), on_static="ignore")
    with pytest.raises(CheckpointMismatchError, match=r"\.value: static .* saved, 3 in the tree"):
        engine.load(like=Settings(3))
    wanted = Settings(new())
    shown = r"(static .* saved, |a different optimiser, or different settings)"
    with pytest.warns(CheckpointWarning, match=rf"tree differ\. The tree keeps its own values:\n  \.value: {shown}"):
        assert engine.load(like=wanted).value is wanted.value


OPTIMISERS: dict[str, tuple[Any, Any, str]] = {
    "a rate": (optax.adamw(1e-3), optax.adamw(1e-4), ": step_size=-0.001 saved, step_size=-0.0001 in the tree"),
    "two settings": (
        optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1, b1=0.9)),
        optax.chain(optax.clip_by_global_norm(2.0), optax.adam(0.1, b1=0.8)),
        ": max_norm=1.0, b1=0.9 saved, max_norm=2.0, b1=0.8 in the tree",
    ),
    "a schedule": (
        optax.sgd(decay_over(10)),
        optax.sgd(decay_over(20)),
        ": decay_steps=10 saved, decay_steps=20",
    ),
    "an array": (optax.sgd(jnp.float32(0.5)), optax.sgd(jnp.float32(1)), "$"),
    "a different one of the same state": (optax.sgd(0.1), optax.sign_sgd(0.1), "$"),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_a_changed_optimiser_is_reported_by_its_settings(name: str, tmp_path: Path) -> None:
    saved, wanted, message = OPTIMISERS[name]
    params = {"w": jnp.ones(3)}
    save(tmp_path / "x", TrainState.create(params=params, tx=saved))

    with pytest.warns(CheckpointWarning, match=rf"\.tx: a different optimiser, or different settings{message}"):
        load(tmp_path / "x", like=TrainState.create(params=params, tx=wanted))


def test_a_schedule_is_the_same_optimiser_before_and_after_its_first_call(tmp_path: Path) -> None:
    def state() -> TrainState:
        return TrainState.create(params=jnp.ones(2), tx=optax.adam(optax.cosine_decay_schedule(1e-3, 400)))

    step: Any = jax.jit(lambda state: state.apply_gradients(grads=state.params))
    trained = step(state())  # The schedule replaces its captured 400 by 400.0.
    save(tmp_path / "x", trained)

    assert_same(load(tmp_path / "x", like=state()), trained)
    assert step(state()).tx is trained.tx
    assert step._cache_size() == 1


def test_an_optimiser_with_a_different_state_is_rejected_with_a_fix(
    tmp_path: Path,
) -> None:
    params = {"w": jnp.ones(3)}
    save(tmp_path / "x", TrainState.create(params=params, tx=optax.adam(0.1)))
    with pytest.raises(CheckpointMismatchError, match=r"to do:\n  Different optimiser: load only .* part="):
        load(tmp_path / "x", like=TrainState.create(params=params, tx=optax.sgd(0.1)))
    assert_same(load(tmp_path / "x", part="params", like=params), params)


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: (1, value)])
def test_truncated_descriptions_are_compared_by_digest(wrap: Any, tmp_path: Path) -> None:
    lists = [Warmup([0.5] * 3000 + [end]) for end in (1.0, 2.0)]  # type: ignore[arg-type]
    save(tmp_path / "x", Settings(wrap(lists[0])))

    with pytest.warns(CheckpointWarning, match=r"static .*#(\w{8})\)* saved, .*#(?!\1)\w{8}\)* in the tree$"):
        load(tmp_path / "x", like=Settings(wrap(lists[1])))


def test_a_script_function_in_place_of_a_library_function_warns(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import __main__

    def relu(x: Any) -> Any:
        return x

    relu.__module__, relu.__qualname__ = "__main__", "relu"
    monkeypatch.setattr(__main__, "relu", relu, raising=False)
    engine.save(Settings(relu))

    with pytest.warns(CheckpointWarning, match=r"\.value: static __main__.relu saved, jax\..*relu in the tree"):
        engine.load(like=Settings(jax.nn.relu))


@pytest.mark.parametrize(
    "value",
    [
        uuid.UUID(int=1, is_safe=uuid.SafeUUID.safe),
        re.compile("a" * 10_001),
        fractions.Fraction(10**30, 7),
        models.spec("a", unreduced={"b"}),
    ],
    ids=["uuid", "pattern", "fraction", "spec"],
)
def test_statics_with_inexact_json_forms_are_compared(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(value))

    assert load(tmp_path / "x", like=Settings(value)) == Settings(value)


@pytest.mark.devices(4)
def test_a_mesh_is_saved_by_its_axes(tmp_path: Path) -> None:
    kinds = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    mesh: Any = jax.make_mesh((2, 1), ("a", "b"), axis_types=kinds)
    saved = Settings((mesh, NamedSharding(mesh, models.spec(None, "a"), memory_kind="unpinned_host")))
    save(tmp_path / "x", saved)

    assert load(tmp_path / "x", like=saved) == saved
    with pytest.raises(CheckpointMismatchError, match=r"\.value: static .*Mesh"):
        load(tmp_path / "x", like=Settings((jax.make_mesh((1, 2), ("a", "b"), axis_types=kinds), 1)))


def test_a_time_zone_is_saved_by_its_key(tmp_path: Path) -> None:
    try:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("this machine has no time zones")
    saved = Settings(dt.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1))
    save(tmp_path / "x", saved)

    assert "Europe/Berlin" in str(read_manifest(tmp_path / "x").nodes[0].statics["value"])
    assert load(tmp_path / "x", like=saved) == saved


class Key:
    def __lt__(self, other: object) -> bool:
        return False


def test_a_dict_key_without_json_form_becomes_a_string(tmp_path: Path) -> None:
    key = Key()
    save(tmp_path / "x", {key: 1})

    assert load(tmp_path / "x", like={key: 0}) == {key: 1}
    assert load(tmp_path / "x") == {str(key): 1}
