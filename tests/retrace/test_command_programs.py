"""What the command says of programs as people write them: tutorials in our words, with the mistakes that they have."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from treewright.retrace.record import Record, RecordReader
from treewright.retrace.recorder import EventRecorder
from treewright.retrace.tally import summed_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from treewright.retrace.tally import Run


def report_on(program: Callable[[], object], folder: Path) -> Run:
    recorder, began = EventRecorder(Record(folder / "record")), time.monotonic()
    recorder.start()
    try:
        program()
    finally:
        recorder.stop()
    lines = list(RecordReader(folder / "record").new_lines())
    return summed_up(lines, command=["x.py"], status=0, began=began, ended=time.monotonic())


def told(run: Run) -> dict[str, tuple[int, list[str], list[str]]]:
    """How often each function was compiled again, with the places and the cures."""
    return {
        group.first.function: (
            len(group.programs),
            [reason["path"] for reason in group.reasons],
            list(dict.fromkeys(reason["cure"] for reason in group.reasons)),
        )
        for group in run.groups()
    }


library: Any = eqx  # whose functions have types that leave much open


# A recurrent network in equinox, on batches of which the last is smaller


class Recurrent(eqx.Module):
    cell: eqx.nn.GRUCell
    out: eqx.nn.Linear

    def __init__(self, key: jax.Array) -> None:
        self.cell = eqx.nn.GRUCell(2, 4, key=key)
        self.out = eqx.nn.Linear(4, 1, key=key)

    def __call__(self, sequence: jax.Array) -> jax.Array:
        state, _ = jax.lax.scan(lambda state, x: (self.cell(x, state), None), jnp.zeros(4), sequence)
        return jax.nn.sigmoid(self.out(state))[0]


def batches(count: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    data = np.random.default_rng(0).normal(size=(count, 6, 2)).astype(np.float32)
    for start in range(0, count, size):
        part = data[start : start + size]
        yield part, (part.sum((1, 2)) > 0).astype(np.float32)


def classify() -> None:
    model = Recurrent(jax.random.key(0))
    optimizer = optax.adam(1e-2)
    state = optimizer.init(library.filter(model, eqx.is_array))

    @library.filter_jit  # type: ignore[untyped-decorator]
    def train(model: Any, state: Any, x: Any, y: Any) -> Any:
        def loss(model: Any) -> Any:
            mapped: Any = jax.vmap(model)
            entropy: Any = optax.sigmoid_binary_cross_entropy
            return entropy(mapped(x), y).mean()

        gradient: Any = library.filter_grad(loss)
        grads = gradient(model)
        updates, state = optimizer.update(grads, state)
        return library.apply_updates(model, updates), state

    for _ in range(2):
        for x, y in batches(20, 8):
            model, state = train(model, state, x, y)


def test_a_recurrent_network_whose_last_batch_is_smaller(tmp_path: Path) -> None:
    run = report_on(classify, tmp_path)

    assert told(run) == {"train": (1, ["x", "y"], ["if this is a last, smaller batch, drop or pad it"])}
    (row,) = [row for row in run.rows() if row.function == "train"]
    assert (row.traces, row.compilations) == (2, 2)
    assert run.operations()  # the model is made outside of jit


# A search for a learning rate, which jits the update anew for each


def search() -> None:
    def loss(weights: Any, x: Any) -> Any:
        return ((x @ weights) ** 2).sum()

    x = np.ones((4, 3), np.float32)
    for rate in (0.1, 0.01, 0.001):
        optimizer = optax.sgd(rate)
        weights = np.ones(3, np.float32)
        state = optimizer.init(weights)

        @jax.jit
        def update(weights: Any, state: Any) -> Any:
            updates, state = optimizer.update(jax.grad(loss)(weights, x), state)  # noqa: B023  the tutorial's way
            return optax.apply_updates(weights, updates), state

        for _ in range(3):
            weights, state = update(weights, state)


def test_a_search_that_jits_its_update_anew_for_each_rate(tmp_path: Path) -> None:
    run = report_on(search, tmp_path)

    anew = "jit keeps programs for each function object: make and jit it once, outside of the loop"
    again = told(run)["update"]
    assert again == (2, ["the function itself"], [anew])
    (group,) = [group for group in run.groups() if group.first.function == "update" and "itself" in str(group.reasons)]
    assert "optimizer" in group.reasons[0]["change"]


# A small language model that writes: its text grows, so each word is a program


def write() -> None:
    table = np.random.default_rng(0).normal(size=(11, 8)).astype(np.float32)

    @jax.jit
    def next_word(table: Any, words: Any) -> Any:
        seen = table[words]
        weights = jax.nn.softmax(seen @ seen[-1] / jnp.sqrt(8.0))
        return jnp.argmax(table @ (weights @ seen))

    words = np.zeros(1, np.int32)
    for _ in range(5):
        words = np.append(words, np.int32(next_word(table, words)))


def test_a_language_model_whose_text_grows(tmp_path: Path) -> None:
    run = report_on(write, tmp_path)

    assert told(run) == {"next_word": (4, ["words"], ["pad to one size, or to a few"])}
    (group,) = run.groups()
    assert group.reasons[0]["change"] == "int32[1] -> int32[2]"
    assert group.last_reasons[0]["change"] == "int32[4] -> int32[5]"
    assert group.seconds < run.compiling
    assert run.saveable == group.seconds
