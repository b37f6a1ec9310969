"""Statics in checkpoints: exact ones come back and are compared, and a change of any other is never without a word."""

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
from tests.checkpoint.models import STATICS, Settings
from treewright.checkpoint import load, read_manifest, save
from treewright.errors import CheckpointError, CheckpointMismatchError, CheckpointWarning

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("value", STATICS, ids=lambda value: type(value).__name__)
def test_every_kind_of_static_is_compared_and_comes_back_from_its_file_alone(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(value))

    found = load(tmp_path / "x", modules=[models])
    assert type(found.value) is type(value)
    assert found == load(tmp_path / "x", like=Settings(value)) == Settings(value)
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
        {str(i): optax.sgd(0.1) for i in range(11)} | {"last": optax.sgd(rate)},  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # its library names fewer types than it takes
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
def test_a_static_without_an_exact_form_is_loaded_without_a_word_and_warned_of_by_path_once_it_changed(
    name: str, engine: Any
) -> None:
    old, new = CHANGED[name]
    engine.save(Settings(old()))

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.load(like=Settings(old()))  # made again
        engine.load(like=Settings(new()), on_static="ignore")
    with pytest.raises(CheckpointMismatchError, match=r"\.value: static .* saved, 3 in the tree"):
        engine.load(like=Settings(3))
    wanted = Settings(new())
    with pytest.warns(CheckpointWarning, match=r"the tree, which keeps its own:\n  \.value: static .* saved, "):
        assert engine.load(like=wanted).value is wanted.value


@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: (1, value)])
def test_two_descriptions_that_differ_behind_what_is_shown_are_told_apart_by_their_digests(
    wrap: Any, tmp_path: Path
) -> None:
    lists = [Warmup([0.5] * 3000 + [end]) for end in (1.0, 2.0)]  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    save(tmp_path / "x", Settings(wrap(lists[0])))

    with pytest.warns(CheckpointWarning, match=r"static .*#(\w{8})\)* saved, .*#(?!\1)\w{8}\)* in the tree$"):
        load(tmp_path / "x", like=Settings(wrap(lists[1])))


def test_a_function_of_a_script_is_not_one_of_a_library_without_a_word(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
def test_a_static_that_its_form_would_change_comes_back_exactly_or_not_at_all(value: Any, tmp_path: Path) -> None:
    save(tmp_path / "x", Settings(value))

    assert load(tmp_path / "x", like=Settings(value)) == Settings(value)
    try:
        found = load(tmp_path / "x", modules=[models]).value
    except CheckpointError as error:
        assert re.search("the static value: (.* can't be read|It was saved as a description only)", str(error))  # noqa: PT017
    else:
        assert repr(found) == repr(value)


def test_a_mesh_is_saved_by_its_axes(tmp_path: Path) -> None:
    kinds = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)
    mesh: Any = jax.make_mesh((2, 1), ("a", "b"), axis_types=kinds)
    saved = Settings((mesh, NamedSharding(mesh, models.spec(None, "a"), memory_kind="unpinned_host")))
    save(tmp_path / "x", saved)

    assert load(tmp_path / "x", like=saved) == saved
    assert load(tmp_path / "x", modules=[models]) == saved
    with pytest.raises(CheckpointMismatchError, match=r"\.value: static .*Mesh"):
        load(tmp_path / "x", like=Settings((jax.make_mesh((1, 2), ("a", "b"), axis_types=kinds), 1)))


def test_a_zone_of_the_database_is_saved_by_its_key(tmp_path: Path) -> None:
    try:
        zone = zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError:
        pytest.skip("this machine has no time zones")
    saved = Settings(dt.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1))
    save(tmp_path / "x", saved)

    assert "Europe/Berlin" in str(read_manifest(tmp_path / "x").branches[0].statics["value"])
    assert load(tmp_path / "x", modules=[models]) == saved


class Key:
    def __lt__(self, other: object) -> bool:
        return False


def test_a_key_that_has_no_form_needs_a_template(tmp_path: Path) -> None:
    key = Key()
    save(tmp_path / "x", {key: 1})

    assert load(tmp_path / "x", like={key: 0}) == {key: 1}
    with pytest.raises(CheckpointError, match=r"saved as a description only, .*Key"):
        load(tmp_path / "x")
