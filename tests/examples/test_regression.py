"""The regression: it finds x squared, traces once, and draws."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from matplotlib.image import imread

from examples import regression

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_it_finds_x_squared_with_one_trace_and_draws_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert regression.main(["--steps", "500", "--output", str(tmp_path)]) == 0

    printed = capsys.readouterr().out
    (distance,) = (line.rsplit(maxsplit=1)[1] for line in printed.splitlines() if line.startswith("root mean square"))
    assert float(distance) < 0.15
    assert "traces of the training step: 1\n" in printed
    picture = imread(tmp_path / regression.PICTURE)
    assert picture.shape[1] > 1000
    assert picture.std() > 0.05  # not blank


def test_the_network_is_1_128_128_1() -> None:
    curve = regression.Curve(128, jax.random.key(0))

    assert [layer.kernel.shape for layer in curve.layers] == [(128, 1), (128, 128), (1, 128)]
    assert curve(jnp.asarray(0.5)).shape == ()
    assert [layer.activation for layer in curve.layers] == [jnp.tanh, jnp.tanh, None]
