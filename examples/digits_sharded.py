"""Train on handwritten digits over 8 devices: data parallel, fully sharded or tensor parallel, in 1, 2 or 4 processes.

One model and one set of rules; the layouts differ only by the mesh. Every machine has the devices: they are parts of
its CPU. In a checkout: `python -m examples.digits_sharded --layout tensor --processes 2`, where
`pip install ".[examples]"` has been done.
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from examples.digits import CLASSES, PIXELS, Images, train_and_test_images
from examples.processes import command, options
from treewright import Module, TrainState, field, static
from treewright.checkpoint import CheckpointManager
from treewright.sharding import (
    Rules,
    abstract_state,
    assert_same_on_all_processes,
    constrain,
    sharded_init,
    sharding_report,
)

BATCH = 32
AXES = ("data", "fsdp", "tensor")
LAYOUTS = ("data", "fully-sharded", "tensor")

# The model names its axes; the rules map the names to a mesh. An axis of one device splits nothing, so one
# set of rules serves all three layouts, and a laptop without any.
RULES: Rules = MappingProxyType({"embed": "fsdp", "pixels": "fsdp", "hidden": "tensor", "classes": None})


def mesh_of(layout: str, devices: int) -> Mesh:
    """All devices of all processes, for a layout."""
    tensor = math.gcd(devices, 4)
    shapes = {"data": (devices, 1, 1), "fully-sharded": (1, devices, 1), "tensor": (devices // tensor, 1, tensor)}
    shape = shapes[layout]
    return jax.make_mesh(shape, AXES, axis_types=(AxisType.Auto,) * len(AXES))


# The model


class Linear(Module):
    """`x @ kernel + bias`; the names of its axes are a static."""

    kernel: jax.Array = field(sharding=lambda linear: linear.axes)
    bias: jax.Array = field(sharding=lambda linear: linear.axes[1:])
    axes: tuple[str, str] = static()

    def __init__(self, sizes: tuple[int, int], axes: tuple[str, str], key: jax.Array) -> None:
        self.kernel = jax.random.normal(key, sizes) * math.sqrt(2 / sizes[0])
        self.bias = jnp.zeros(sizes[1])
        self.axes = axes

    def __call__(self, x: jax.Array) -> jax.Array:
        """`f32[outputs]` from `f32[inputs]`."""
        return x @ self.kernel + self.bias


class MLP(Module):
    """Three linear layers; the values between the first two are split like their kernels."""

    first: Linear
    second: Linear
    last: Linear

    def __init__(self, hidden: int, embed: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 3)
        self.first = Linear((PIXELS, hidden), ("pixels", "hidden"), keys[0])
        self.second = Linear((hidden, embed), ("hidden", "embed"), keys[1])
        self.last = Linear((embed, CLASSES), ("embed", "classes"), keys[2])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The logits of one image, `f32[10]`."""
        x = constrain(jax.nn.relu(self.first(x)), "hidden", rules=RULES)
        return self.last(jax.nn.relu(self.second(x)))


def loss_of(model: MLP, pixels: jax.Array, digits: jax.Array) -> jax.Array:
    """The mean cross entropy."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(pixels), digits))


def make_state(key: jax.Array) -> TrainState[MLP]:
    """A new model and its optimiser."""
    return TrainState.create(params=MLP(128, 64, key), tx=optax.adamw(1e-3))


@jax.jit
def update(state: TrainState[MLP], pixels: jax.Array, digits: jax.Array) -> TrainState[MLP]:
    """The state after one step."""
    return state.apply_gradients(grads=jax.grad(loss_of)(state.params, pixels, digits))


# Training


def train(
    step: Callable[..., TrainState[MLP]],
    state: TrainState[MLP],
    batches: Sequence[Images],
    put: Callable[[np.ndarray], jax.Array],
) -> TrainState[MLP]:
    """The state after one step for each batch."""
    for batch in batches:
        state = step(state, put(batch.pixels), put(batch.digits))
    return state


def putting(mesh: Mesh) -> Callable[[np.ndarray], jax.Array]:
    """A function that turns a batch into an array on the mesh. Each process passes the images of its devices."""
    spec: Callable[..., PartitionSpec] = PartitionSpec  # whose constructor has no annotations
    sharding = NamedSharding(mesh, spec(("data", "fsdp")))
    return lambda batch: jax.make_array_from_callback(batch.shape, sharding, lambda index: batch[index])


def numpy_leaves(tree: object) -> list[np.ndarray]:
    """All leaves as numpy arrays, gathered from the processes that store parts of them."""
    leaves: list[jax.Array] = jax.tree.leaves(tree)
    return [
        np.asarray(leaf if leaf.is_fully_addressable else multihost_utils.process_allgather(leaf, tiled=True))
        for leaf in leaves
    ]


def largest_difference(left: object, right: object) -> float:
    """The largest difference between the leaves of two trees."""
    return max(float(np.max(np.abs(a - b))) for a, b in zip(numpy_leaves(left), numpy_leaves(right), strict=True))


def restore(layout: str, folder: Path) -> None:
    """Restore the state of an earlier run, saved from any devices, onto the devices of this run; print differences."""
    mesh, key = mesh_of(layout, jax.device_count()), jax.random.key(0)
    target = abstract_state(make_state, key, mesh=mesh, rules=RULES)
    assert_same_on_all_processes(target)
    with CheckpointManager(folder / layout) as manager:
        state = manager.restore(like=target)
    steps = int(state.step)
    reference = train(update, make_state(key), batches_of(steps), jnp.asarray)
    places = jax.tree.map(lambda leaf, like: leaf.sharding.is_equivalent_to(like.sharding, leaf.ndim), state, target)
    if jax.process_index() == 0:
        print(f"\n{layout}: restored step {steps} on {jax.device_count()} devices")
    difference = largest_difference(state.params, reference.params)
    if jax.process_index() == 0:
        print(f"every leaf where it belongs: {all(jax.tree.leaves(places))}")
        print(f"largest difference to one device: {difference:.1e}")


def batches_of(steps: int) -> list[Images]:
    """The batches of this number of steps, the same in each process."""
    images, _ = train_and_test_images(seed=0)
    epoch = list(images.batches(BATCH, np.random.default_rng(0)))
    return [epoch[number % len(epoch)] for number in range(steps)]


def train_in(layout: str, steps: int, folder: Path | None) -> None:
    """Train on all devices, and on one; print the differences."""
    mesh = mesh_of(layout, jax.device_count())
    say = print if jax.process_index() == 0 else lambda *_: None
    key = jax.random.key(0)
    batches = batches_of(steps)

    # Before anything is computed: a process with different settings would train a different model, or wait forever.
    target = abstract_state(make_state, key, mesh=mesh, rules=RULES)
    assert_same_on_all_processes(target)
    say(f"\n{layout}: {steps} steps on {jax.device_count()} devices in {jax.process_count()} processes")
    say(sharding_report(target.params, mesh, RULES))

    with jax.set_mesh(mesh):
        put = putting(mesh)
        state = sharded_init(make_state, key, mesh=mesh, rules=RULES)
        lowered = update.lower(state, put(batches[0].pixels), put(batches[0].digits))
        assert_same_on_all_processes(lowered)
        state = train(lowered.compile(), state, batches, put)

    reference = train(update, make_state(key), batches, jnp.asarray)
    if folder is not None:
        with CheckpointManager(folder / layout) as manager:
            manager.save(steps, state)
    say(f"largest difference to one device: {largest_difference(state.params, reference.params):.1e}")


# The command line


def work(layout: str, settings: argparse.Namespace) -> None:
    """Train in a layout, or restore a saved state."""
    if settings.restore is None:
        train_in(layout, settings.steps, settings.save)
    else:
        restore(layout, settings.restore)


def main(argv: Sequence[str] | None = None) -> int:
    """Start the processes, or be one of them."""
    parser = options(__doc__, LAYOUTS, steps=20)
    add = parser.add_argument
    add("--save", metavar="FOLDER", type=Path, help="save the last step of each layout there")
    add(
        "--restore",
        metavar="FOLDER",
        type=Path,
        help="do not train, but restore the state saved there",
    )
    return command("examples.digits_sharded", parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
