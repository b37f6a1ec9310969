"""The transformer: it learns with one trace, sees no future, computes in bfloat16, and leaves its buffer alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from examples import transformer
from treewright import TrainState, loop, max_traces
from treewright.typed import value_and_grad

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SMALL = ["--width", "32", "--layers", "2", "--context", "32", "--batch-size", "8"]


@pytest.fixture(scope="module")
def model() -> transformer.Transformer:
    return transformer.Transformer(20, 16, jax.random.key(0), width=16, layers=2, heads=2)


def lines_of(capsys: pytest.CaptureFixture[str], arguments: Sequence[str]) -> list[str]:
    assert transformer.main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_it_learns_traces_once_is_restored_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = lines_of(capsys, [*SMALL, "--steps", "80", "--letters", "40", "--output", str(tmp_path)])

    before, after = (float(found[1]) for line in lines if (found := re.match(r"loss on unseen text: ([\d.]+)", line)))
    assert before > 4.3
    assert after < 3.3  # of about 4.6 where every character is as likely
    assert any(line.startswith(f"{tmp_path / transformer.CHECKPOINT} restored, one more step; ") for line in lines)
    (given,) = (index for index, line in enumerate(lines) if line.startswith("given: "))
    assert len("\n".join(lines[given + 2 :])) >= 30


def test_no_character_sees_a_later_one(model: transformer.Transformer) -> None:
    text = jnp.arange(16) % 20
    changed = text.at[9].set(19)

    logits = jax.jit(model.replace(compute=jnp.float32).__call__)
    same = np.equal(logits(text), logits(changed)).all(axis=1).tolist()

    assert same == [True] * 9 + [False] * 7


def test_layers_are_one_stacked_module_and_the_loop_over_them_is_recomputed(model: transformer.Transformer) -> None:
    texts = jnp.zeros((2, 17), jnp.int32)

    program = str(jax.make_jaxpr(value_and_grad(transformer.loss_of))(model, texts))

    assert model.blocks.up_kernel.shape == (2, 16, 64)
    assert "scan[" in program
    assert "remat" in program or "checkpoint" in program
    assert "bf16[2,16,64]" in program  # a batch of activations of the feed-forward part


def test_parameters_stay_float32_and_the_buffer_stays_what_it_is(model: transformer.Transformer) -> None:
    rotation = np.asarray(model.rotation)
    state: TrainState[transformer.Transformer] = TrainState.create(
        params=jax.tree.map(jnp.copy, model.replace(compute=jnp.float32)), tx=transformer.optimiser(3, 1e-2)
    )
    run = loop(max_traces(1)(transformer.update), state)

    for _ in range(3):
        run(jnp.arange(34).reshape(2, 17) % 20)

    assert {leaf.dtype for leaf in jax.tree.leaves(run.state.params)} == {jnp.dtype("float32")}
    np.testing.assert_array_equal(run.state.params.rotation, rotation)


def test_only_kernels_decay(model: transformer.Transformer) -> None:
    mask: Any = transformer.kernels(model)

    assert mask.blocks.up_kernel is True
    assert [mask.embedding, mask.scale, mask.rotation, mask.blocks.thought_scale] == [False] * 4


def test_the_text_is_pythons_own() -> None:
    text = transformer.Text.of_python()

    train, test = text.split()
    assert len(train) + len(test) == len(text.numbers) > 400_000
    assert "Boolean operations" in text.read(text.numbers.tolist())
