"""The residual network: it learns, and it is the network of its twin in equinox, in no more lines."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import residual
from examples.digits import train_and_test_images
from treewright import at

ROOT = Path(__file__).parents[2]
compare: Any = importlib.import_module("benchmarks.lines.compare")


@pytest.fixture(autouse=True)
def broadcasting_of_ranks() -> Any:
    """As it is by default: the layers add what each feature has to whole batches."""
    with jax.numpy_rank_promotion("allow"):
        yield


def with_weights_of(twin: Any, net: residual.Net) -> residual.Net:
    """Our network with the weights of the twin's."""
    kernels = jnp.stack([block.linear.weight.T for block in twin.blocks])
    places = at(net, lambda net: (net.first, net.blocks.kernel, net.last))
    changed: residual.Net = places.set((twin.first.weight.T, kernels, twin.last.weight.T))
    return changed


def test_it_learns_and_its_steps_depend_on_the_key_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert residual.main(["--epochs", "2", "--depth", "2", "--width", "32"]) == 0

    steps, accuracy = capsys.readouterr().out.splitlines()
    assert steps.startswith("88 steps, loss ")
    assert float(accuracy.removeprefix("test accuracy: ")) > 0.85

    state = residual.new_state(32, 2, 0.1, jax.random.key(0))
    images, _ = train_and_test_images(0)
    x, y = images.pixels[:32], images.digits[:32]
    stepped, loss = residual.step(state, x, y)
    again, same_loss = residual.step(state, x, y)
    _, other_loss = residual.step(state.replace(key=jax.random.key(1)), x, y)
    assert stepped == again
    assert loss == same_loss
    assert loss != other_loss
    assert not jnp.array_equal(stepped.params.blocks.norm.mean, state.params.blocks.norm.mean)


def test_it_needs_no_more_lines_than_equinox_and_the_page_shows_how_many() -> None:
    lengths = [
        sum(map(len, compare.parts(path.read_text(encoding="utf-8"), compare.RESIDUAL_MARKERS)))
        for path in compare.RESIDUAL.values()
    ]

    assert lengths[0] <= lengths[1]
    assert compare.residual_counts() in (ROOT / "examples" / "README.md").read_text(encoding="utf-8")


@pytest.mark.exhaustive
def test_from_the_same_weights_it_has_the_losses_and_statistics_of_equinox() -> None:
    twin: Any = pytest.importorskip("benchmarks.lines.residual_equinox")
    images, test = train_and_test_images(0)
    key = jax.random.key(0)
    training, state = twin.new_state(32, 6, 0.0, key), residual.new_state(32, 6, 0.0, key)
    state = state.replace(params=with_weights_of(training[0], state.params))

    state, losses = residual.trained(state, images, 2)
    (net, statistics, _), expected = twin.trained(training, images, 2, key)

    np.testing.assert_allclose(losses, expected, rtol=1e-3)
    means = [statistics.get(block.norm.batch_state_index)[0] for block in net.blocks]
    np.testing.assert_allclose(state.params.blocks.norm.mean, jnp.stack(means), rtol=1e-2, atol=1e-4)
    ours = residual.accuracy(state.params, test.pixels, test.digits)
    assert abs(ours - twin.accuracy(net, statistics, test.pixels, test.digits)) < 0.02


@pytest.mark.exhaustive
def test_with_dropout_it_is_as_accurate_as_equinox() -> None:
    twin: Any = pytest.importorskip("benchmarks.lines.residual_equinox")
    images, test = train_and_test_images(0)
    key = jax.random.key(0)

    state, _ = residual.trained(residual.new_state(64, 20, 0.1, key), images, 5)
    (net, statistics, _), _ = twin.trained(twin.new_state(64, 20, 0.1, key), images, 5, key)

    ours = residual.accuracy(state.params, test.pixels, test.digits)
    theirs = twin.accuracy(net, statistics, test.pixels, test.digits)
    assert ours > 0.95
    assert abs(ours - theirs) < 0.03
