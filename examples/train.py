"""A complete training script to copy: configuration, devices, resume, evaluation, log, checkpoints, SIGTERM.

`pip install ".[examples]"`, then `python train.py --folder runs/1`. The same line resumes, on any devices.
"""

import argparse
import dataclasses
import json
import signal
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

from treewright import Module, TrainState, loop
from treewright.checkpoint import CheckpointManager


@dataclasses.dataclass(frozen=True)
class Config:
    """Each field is an option of the command line."""

    folder: Path = Path("output/train")
    steps: int = 1000
    batch: int = 64  # the devices share it
    width: int = 64
    dropout: float = 0.1
    rate: float = 3e-3
    every: int = 100  # evaluate and save after as many steps
    seed: int = 0


def config_of(argv: Sequence[str] | None) -> Config:
    """The configuration of a command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    for field in dataclasses.fields(Config):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default, help=f"{field.default}")
    return Config(**vars(parser.parse_args(argv)))


class Net(Module):
    """Two layers with dropout. Without a key, nothing is dropped."""

    hidden: jax.Array
    output: jax.Array

    def __init__(self, width: int, key: jax.Array) -> None:
        first, second = jax.random.split(key)
        self.hidden = jax.random.normal(first, (64, width)) / 8
        self.output = jax.random.normal(second, (width, 10)) / width**0.5

    def __call__(self, x: jax.Array, dropout: float = 0.0, key: jax.Array | None = None) -> jax.Array:
        """The logits of a batch of images, `f32[batch, 10]`."""
        x = jax.nn.relu(x @ self.hidden)
        if key is not None:
            x = jnp.where(jax.random.bernoulli(key, 1 - dropout, x.shape), x / (1 - dropout), 0)
        return x @ self.output


def cross_entropy(logits: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean over a batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, digits).mean()


@jax.jit
def evaluate(net: Net, images: jax.Array, digits: jax.Array) -> dict[str, jax.Array]:
    """The loss and the accuracy."""
    logits = net(images)
    return {"test_loss": cross_entropy(logits, digits), "accuracy": jnp.mean(logits.argmax(-1) == digits)}


def main(argv: Sequence[str] | None = None) -> None:
    """Train, or resume."""
    config = config_of(argv)
    config.folder.mkdir(parents=True, exist_ok=True)
    # Each device has a copy of the state and an equal part of the batch: 4 of 6 devices share a batch of 64.
    used = max(n for n in range(1, jax.device_count() + 1) if config.batch % n == 0)
    mesh = jax.make_mesh((used,), ("data",), axis_types=(AxisType.Auto,))
    replicated, split = NamedSharding(mesh, PartitionSpec()), NamedSharding(mesh, PartitionSpec("data"))
    images, digits = load_digits(return_X_y=True)
    images, digits = images.astype(np.float32) / 16, digits.astype(np.int32)
    test = jax.device_put((images[:360], digits[:360]), replicated)
    images, digits = images[360:], digits[360:]

    def batch(number: int) -> tuple[jax.Array, jax.Array]:
        """The batch of a step, so that a resumed run goes on with the same ones."""
        epoch, place = divmod(number * config.batch, len(images) - len(images) % config.batch)
        chosen = np.random.default_rng((config.seed, epoch)).permutation(len(images))[place : place + config.batch]
        return jax.device_put((images[chosen], digits[chosen]), split)

    net_key, key = jax.random.split(jax.random.key(config.seed))
    tx = optax.adamw(optax.cosine_decay_schedule(config.rate, config.steps))
    state = jax.device_put(TrainState.create(params=Net(config.width, net_key), tx=tx), replicated)

    def step(state: TrainState[Net], batch: tuple[jax.Array, jax.Array]) -> tuple[TrainState[Net], jax.Array]:
        def loss_of(net: Net) -> jax.Array:
            return cross_entropy(net(batch[0], config.dropout, jax.random.fold_in(key, state.step)), batch[1])

        loss, grads = jax.value_and_grad(loss_of)(state.params)
        return state.apply_gradients(grads=grads), loss

    leaving: list[int] = []  # SIGTERM: clusters send it some seconds before they end a job
    signal.signal(signal.SIGTERM, lambda number, _: leaving.append(number))
    # Two steps are kept: the last one, and the one with the best accuracy.
    with CheckpointManager(config.folder / "steps", keep=1, keep_best=1, metric="accuracy", mode="max") as manager:
        state, start = manager.restore_latest_valid(like=state) or (state, 0)
        print(f"{'resumed' if start else 'started'} at step {start}, {jax.default_backend()} devices: {mesh.size}")
        run = loop(step, state)
        for number in range(start + 1, config.steps + 1):
            loss = run(batch(number))
            if leaving or number % config.every == 0 or number == config.steps:
                metrics = jax.tree.map(float, {"loss": loss, **evaluate(run.state.params, *test)})
                print(line := json.dumps({"step": number, **metrics}))
                with (config.folder / "log.jsonl").open("a") as log:
                    print(line, file=log)
                manager.save(number, run.state, metrics=metrics)
            if leaving:
                print(f"stopped by SIGTERM after step {number}: run the same line again")
                break
        manager.wait()
        if (best := manager.best_step()) is not None:
            print("best step:", best, manager.metrics(best))


if __name__ == "__main__":
    main()
