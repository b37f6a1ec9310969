"""A decoder with experts, in six layouts over 8 devices: data, fsdp, tensor, both, sequence and expert parallel.

One model, one mesh: the layouts differ only by their rules, and each has the losses of one device. Layers are stacked
under `lax.scan` and recomputed, they compute in bfloat16, and AdamW decays only the kernels. The devices are parts of
this machine's CPU, in 1, 2 or 4 processes. In a checkout: `python -m examples.transformer_sharded --layout both
--processes 2`, where `pip install ".[examples]"` has been done.
"""

import argparse
import contextlib
import functools
import math
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from examples.processes import command, options
from examples.transformer import Text, pieces
from treewright import Module, TrainState, field, spec_like, static
from treewright.checkpoint import CheckpointManager
from treewright.sharding import (
    Rules,
    abstract_state,
    assert_same_on_all_processes,
    constrain,
    constrain_tree,
    sharded_init,
    sharding_report,
    use_rules,
)
from treewright.typed import remat, tree_map, value_and_grad

VOCABULARY, CONTEXT, BATCH = 128, 32, 8

# The model. The names of its axes are its only connection to devices.


def kernel(key: jax.Array, *shape: int, inputs: int) -> jax.Array:
    """Normal numbers whose sums over `inputs` of them have a variance of 1."""
    return jax.random.normal(key, shape) / math.sqrt(inputs)


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Each row of `x` with a mean square of 1, times `scale`; the mean is taken in float32."""
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale[None, None, :]


class Block(Module):
    """One layer: attention, and experts weighted by a router."""

    attention_scale: jax.Array = field(sharding=("embed",))
    projections: jax.Array = field(sharding=("embed", None, "heads", None))  # queries, keys, values
    output: jax.Array = field(sharding=("heads", None, "embed"))
    expert_scale: jax.Array = field(sharding=("embed",))
    router: jax.Array = field(sharding=("embed", None))
    up: jax.Array = field(sharding=("experts", "embed", "hidden"))
    down: jax.Array = field(sharding=("experts", "hidden", "embed"))

    def __init__(self, embed: int, heads: int, hidden: int, experts: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 5)
        size = embed // heads
        self.attention_scale = self.expert_scale = jnp.ones(embed)
        self.projections = kernel(keys[0], embed, 3, heads, size, inputs=embed)
        self.output = kernel(keys[1], heads, size, embed, inputs=embed)
        self.router = kernel(keys[2], embed, experts, inputs=embed)
        self.up = kernel(keys[3], experts, embed, hidden, inputs=embed)
        self.down = kernel(keys[4], experts, hidden, embed, inputs=hidden)

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, sequence, embed]` from `[batch, sequence, embed]`."""
        here = constrain_tree(self)
        x = x + here.attend(normalised(x, here.attention_scale))
        return constrain(x + here.ask(normalised(x, here.expert_scale)), "batch", "sequence", None)

    def attend(self, x: jax.Array) -> jax.Array:
        """Causal attention: each position attends to the positions before it."""
        query, key, value = jnp.einsum("bse,ephd->pbshd", x, self.projections)
        query = constrain(query, "batch", "sequence", "heads", None)
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return jnp.einsum("bshd,hde->bse", found, self.output)

    def ask(self, x: jax.Array) -> jax.Array:
        """The weighted outputs of the experts."""
        weights = jax.nn.softmax((x @ self.router).astype(jnp.float32)).astype(x.dtype)
        hidden = jax.nn.gelu(jnp.einsum("bse,xeh->xbsh", x, self.up))
        hidden = constrain(hidden, "experts", "batch", "sequence", "hidden")
        return jnp.einsum("xbsh,xhe,bsx->bse", hidden, self.down, weights)


class Decoder(Module):
    """Characters to logits for the next ones. All blocks are one, with a leading axis on each leaf."""

    embedding: jax.Array = field(sharding=("vocabulary", "embed"))
    blocks: Block = field(stack="layers")
    scale: jax.Array = field(sharding=("embed",))
    compute: DTypeLike = static(default=jnp.bfloat16)

    def __init__(
        self,
        key: jax.Array,
        *,
        layers: int = 4,
        embed: int = 32,
        heads: int = 4,
        hidden: int = 32,
        experts: int = 4,
        compute: DTypeLike = jnp.bfloat16,
    ) -> None:
        first, rest = jax.random.split(key)
        self.embedding = kernel(first, VOCABULARY, embed, inputs=embed)
        self.blocks = jax.vmap(lambda key: Block(embed, heads, hidden, experts, key))(jax.random.split(rest, layers))
        self.scale = jnp.ones(embed)
        self.compute = compute

    def __call__(self, characters: jax.Array) -> jax.Array:
        """`f32[batch, sequence, vocabulary]` from `i32[batch, sequence]`."""
        here = tree_map(lambda leaf: leaf.astype(self.compute), self)

        @remat
        def layer(x: jax.Array, block: Block) -> tuple[jax.Array, None]:
            return block(x), None  # gathers only this layer, not the whole stack

        x = constrain(here.embedding[characters] * math.sqrt(here.scale.size), "batch", "sequence", None)
        x, _ = jax.lax.scan(layer, x, here.blocks)
        logits = jnp.einsum("bse,ve->bsv", normalised(x, here.scale), here.embedding)
        return constrain(logits.astype(jnp.float32), "batch", "sequence", "vocabulary")


def loss_of(model: Decoder, texts: jax.Array) -> jax.Array:
    """The mean cross entropy of each next character, from `i32[batch, sequence + 1]`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(texts[:, :-1]), texts[:, 1:])
    return jnp.mean(losses)


def decayed(model: Decoder) -> Decoder:
    """True for the fields with weight decay: all but the scales."""
    return spec_like(model, default=True, where={lambda path, _: path.endswith("scale"): False})


def make_state(key: jax.Array, compute: DTypeLike = jnp.bfloat16) -> TrainState[Decoder]:
    """A new model and its optimiser."""
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(4e-3, weight_decay=0.05, mask=decayed))
    return TrainState.create(params=Decoder(key, compute=compute), tx=tx)


def step(state: TrainState[Decoder], texts: jax.Array) -> tuple[TrainState[Decoder], jax.Array]:
    """The state after one update, and the loss before it."""
    loss, grads = value_and_grad(loss_of)(state.params, texts)
    return state.apply_gradients(grads=grads), loss


# The sharding: a mesh, and rules for the names of axes. `KEPT` is for parameters and the optimiser's state,
# `USED` for computations; names that a layout does not list are not split.

BOTH = ("outer", "inner")
INSIDE = {"heads": "inner", "hidden": "inner", "vocabulary": "inner"}
KEPT: dict[str, Rules] = {
    "data": {},
    "fsdp": {"embed": BOTH},
    "tensor": INSIDE,
    "both": {**INSIDE, "embed": "outer"},
    "sequence": {"embed": BOTH},
    "expert": {"experts": "inner", "embed": "outer"},
}
USED: dict[str, Rules] = {
    "data": {"batch": BOTH},
    "fsdp": {"batch": BOTH},
    "tensor": {**INSIDE, "batch": "outer"},
    "both": {**INSIDE, "batch": "outer"},
    "sequence": {"batch": "outer", "sequence": "inner"},
    "expert": {"batch": "outer", "experts": "inner"},
}
NAMES: Rules = MappingProxyType(dict.fromkeys(("vocabulary", "layers", "embed", "heads", "hidden", "experts")))
LAYOUTS = tuple(KEPT)


@contextlib.contextmanager
def laid_out(layout: str) -> Generator[tuple[Mesh, Rules]]:
    """All devices of all processes as a mesh, with the storage rules of the state; both set for the block."""
    devices = jax.device_count()
    shape = (min(2, devices), max(1, devices // 2))
    mesh, storage = jax.make_mesh(shape, BOTH, axis_types=(AxisType.Auto,) * 2), {**NAMES, **KEPT[layout]}
    with (
        jax.set_mesh(mesh),
        use_rules({**NAMES, "batch": None, "sequence": None, **USED[layout]}, storage_rules=storage),
    ):
        yield mesh, storage


# The program


def batches(count: int, start: int = 0) -> list[np.ndarray]:
    """Pieces of Python's documentation for some steps, the same in each process."""
    numbers, _ = Text.of_python().split()
    return [pieces(numbers, BATCH, CONTEXT, np.random.default_rng(start + place)) for place in range(count)]


def trained(update: Any, state: TrainState[Decoder], texts: Sequence[Any]) -> tuple[TrainState[Decoder], list[float]]:
    """The state after all of the texts, and the losses on the way."""
    losses: list[float] = []
    for text in texts:
        state, loss = update(state, text)
        losses.append(float(loss))
    return state, losses


@functools.cache
def losses_on_one_device(compute: str, steps: int) -> list[float]:
    """The losses of one device, without rules."""
    state = jax.jit(make_state, static_argnums=1)(jax.random.key(0), jnp.dtype(compute))
    return trained(jax.jit(step), state, batches(steps))[1]


def everywhere(text: np.ndarray, mesh: Mesh) -> jax.Array:
    """A text on every device of all processes."""
    spec: Any = PartitionSpec  # its constructor has no annotations
    return jax.make_array_from_callback(text.shape, NamedSharding(mesh, spec()), lambda index: text[index])


def work(layout: str, settings: argparse.Namespace) -> None:
    """Train in a layout, from the start or from a checkpoint; print the differences from one device."""
    say = print if jax.process_index() == 0 else lambda *_: None
    key, compute = jax.random.key(0), jnp.dtype(settings.compute)
    with laid_out(layout) as (mesh, storage):
        first = 0
        if settings.restore is None:
            state = sharded_init(make_state, key, compute, mesh=mesh, rules=storage)
        else:
            with CheckpointManager(settings.restore) as manager:
                state = manager.restore(like=abstract_state(make_state, key, compute, mesh=mesh, rules=storage))
            first = int(state.step)
        texts = [everywhere(text, mesh) for text in batches(settings.steps, first)]
        lowered = jax.jit(step, donate_argnums=0).lower(state, texts[0])
        assert_same_on_all_processes(lowered)
        say(f"\n{layout}: steps {first} to {first + settings.steps} in {jax.process_count()} processes")
        compiled = lowered.compile()
        if settings.report:
            say(sharding_report(state, mesh, storage))
            say(compiled.memory_analysis())
        state, losses = trained(compiled, state, texts)
        if settings.save is not None:
            with CheckpointManager(settings.save) as manager:
                manager.save(first + settings.steps, state)
    if jax.process_index() == 0:
        expected = losses_on_one_device(settings.compute, first + settings.steps)
        difference = max(abs(one - other) for one, other in zip(losses, expected[first:], strict=True))
        say(f"loss {losses[0]:.3f} to {losses[-1]:.3f}, at most {difference:.1e} from one device")


def main(argv: Sequence[str] | None = None) -> int:
    """Start the processes, or be one of them."""
    parser = options(__doc__, LAYOUTS, steps=10)
    add = parser.add_argument
    add("--compute", choices=("bfloat16", "float32"), default="bfloat16", help="the dtype of the layers' computations")
    add("--report", action="store_true", help="print the sharding, and the memory of the compiled step")
    add("--save", metavar="FOLDER", type=Path, help="save the last step there; for one layout")
    add("--restore", metavar="FOLDER", type=Path, help="resume from the state that a run in any layout saved there")
    return command("examples.transformer_sharded", parser, argv, work)


if __name__ == "__main__":
    sys.exit(main())
