"""The three bodies: they come back, energy stays, each setting is one trace, and an ensemble is its single worlds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np
import pytest
from matplotlib.image import imread

from examples import simulation
from examples.simulation import Simulation

if TYPE_CHECKING:
    from pathlib import Path


def test_the_careful_method_comes_back_and_keeps_the_energy() -> None:
    start = simulation.eight()

    last, way = simulation.CountedRuns().of_one(Simulation("leapfrog", 1000), start)

    np.testing.assert_allclose(last.bodies.place, start.bodies.place, atol=2e-3)
    assert simulation.drift(way) < 1e-4
    assert int(last.clock.ticks) == 1000
    assert float(last.clock.time) == pytest.approx(simulation.PERIOD, rel=1e-4)
    assert way.bodies.place.shape == (1000, 3, 2)


def test_a_setting_is_static_and_an_equal_one_made_anew_is_the_same() -> None:
    runs, start = simulation.CountedRuns(), simulation.eight()

    for setting in (Simulation("euler", 10), Simulation("leapfrog", 10), Simulation("euler", 10)):
        runs.of_one(setting, start)

    assert runs.traces == 2
    assert jax.tree.leaves(Simulation("euler", 10)) == []


def test_an_ensemble_gives_what_its_worlds_give_alone() -> None:
    starts = simulation.ensemble(simulation.eight(), 3, 1e-3, jax.random.key(0))
    runs, setting = simulation.CountedRuns(), Simulation("leapfrog", 100)

    together, _ = runs.of_many(setting, starts)

    for index in range(3):
        alone, _ = runs.of_one(setting, jax.tree.map(lambda leaf, index=index: leaf[index], starts))
        np.testing.assert_allclose(together.bodies.place[index], alone.bodies.place, atol=1e-5)


def test_it_prints_its_table_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert simulation.main(["--members", "4", "--periods", "2", "--output", str(tmp_path)]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["World(", "    bodies=Bodies(place=f32[3,2], speed=f32[3,2], mass=f32[3]),"]
    assert "traces: 4, one for each setting" in lines
    assert "traces after an equal setting made anew: 4" in lines
    picture = imread(tmp_path / simulation.PICTURE)
    assert picture.shape[1] > 1000
    assert picture.std() > 0.05  # not blank
