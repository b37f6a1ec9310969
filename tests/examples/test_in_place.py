"""The program that changes all of its state in place."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from examples import in_place
from treewright import TrainState, from_refs, summary, to_refs
from treewright._core.jax_refs import STATE_KIND

pytestmark = pytest.mark.skipif(STATE_KIND is None, reason="before its refs had kinds, JAX refused such writes")


def test_an_epoch_reads_most_digits(capsys: pytest.CaptureFixture[str]) -> None:
    in_place.main(["--epochs", "1"])

    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("epoch 1: loss ")
    assert float(last.rpartition(" ")[2]) > 0.6


def test_one_step_moves_statistics_keys_weights_and_metrics() -> None:
    net = in_place.Net((4, 8), jax.random.key(0))
    state = to_refs(TrainState.create(params=net, tx=optax.adamw(1e-2)))
    metrics: Any = to_refs({"loss": 0.0, "hits": 0, "seen": 0})
    before = from_refs(state)
    for _ in range(2):  # in the first, the zeros of the head let no gradient through
        in_place.step(state, metrics, jax.random.normal(jax.random.key(1), (6, 4)), jnp.arange(6))
    after = from_refs(state)

    same = [
        row.path
        for row, old, new in zip(
            (row for row in summary(after).rows if row.kind != "static" and row.dtype),
            jax.tree.leaves(before),
            jax.tree.leaves(after),
            strict=True,
        )
        if bool(jnp.all(old == new))
    ]
    assert same == []
    assert int(metrics["seen"][...]) == 12
