"""The decoder of `examples/transformer_sharded.py` in flax nnx: the same layouts, by the same rules.

Variables have the names of their axes, which nnx splits as the rules of the moment say when a variable is made. That a
value or a layer is split by other rules while it is used takes functions of our own.
"""

import contextlib
import math
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from flax.core.spmd import get_logical_axis_rules
from jax.sharding import AxisType, Mesh, PartitionSpec
from jax.typing import DTypeLike

from examples.transformer_sharded import BOTH, KEPT, NAMES, USED, VOCABULARY, Rules, batches, everywhere

# The model.


def kernel(key: jax.Array, *shape: int, inputs: int) -> jax.Array:
    """Normal numbers whose sums over `inputs` of them have a variance of 1."""
    return jax.random.normal(key, shape) / math.sqrt(inputs)


def normalised(x: jax.Array, scale: jax.Array) -> jax.Array:
    """Each row of `x` with a mean square of 1, times `scale`; the mean is taken in float32."""
    mean = jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)
    return (x * jax.lax.rsqrt(mean + 1e-6)).astype(x.dtype) * scale[None, None, :]


class Block(nnx.Module):
    """One layer: attention, and experts, each of which answers as far as the router listens to it."""

    def __init__(self, embed: int, heads: int, hidden: int, experts: int, key: jax.Array) -> None:
        keys = jax.random.split(key, 5)
        size = embed // heads
        self.attention_scale = nnx.Param(jnp.ones(embed), out_sharding=("embed",))
        projections = kernel(keys[0], embed, 3, heads, size, inputs=embed)  # queries, keys, values
        self.projections = nnx.Param(projections, out_sharding=("embed", None, "heads", None))
        output = kernel(keys[1], heads, size, embed, inputs=embed)
        self.output = nnx.Param(output, out_sharding=("heads", None, "embed"))
        self.expert_scale = nnx.Param(jnp.ones(embed), out_sharding=("embed",))
        self.router = nnx.Param(kernel(keys[2], embed, experts, inputs=embed), out_sharding=("embed", None))
        up = kernel(keys[3], experts, embed, hidden, inputs=embed)
        self.up = nnx.Param(up, out_sharding=("experts", "embed", "hidden"))
        down = kernel(keys[4], experts, hidden, embed, inputs=hidden)
        self.down = nnx.Param(down, out_sharding=("experts", "hidden", "embed"))

    def __call__(self, x: jax.Array) -> jax.Array:
        """`[batch, sequence, embed]` from `[batch, sequence, embed]`."""
        here = split_module(self)
        x = x + here.attend(normalised(x, here.attention_scale[...]))
        return split(x + here.ask(normalised(x, here.expert_scale[...])), "batch", "sequence", None)

    def attend(self, x: jax.Array) -> jax.Array:
        """What each place finds at the places before it."""
        query, key, value = jnp.einsum("bse,ephd->pbshd", x, self.projections[...])
        query = split(query, "batch", "sequence", "heads", None)
        found = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        return jnp.einsum("bshd,hde->bse", found, self.output[...])

    def ask(self, x: jax.Array) -> jax.Array:
        """What the experts say, weighted."""
        weights = jax.nn.softmax((x @ self.router[...]).astype(jnp.float32)).astype(x.dtype)
        hidden = jax.nn.gelu(jnp.einsum("bse,xeh->xbsh", x, self.up[...]))
        hidden = split(hidden, "experts", "batch", "sequence", "hidden")
        return jnp.einsum("xbsh,xhe,bsx->bse", hidden, self.down[...], weights)


class Decoder(nnx.Module):
    """Characters to logits for the next ones. All blocks are one, with a leading axis on each leaf."""

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
        self.embedding = nnx.Param(kernel(first, VOCABULARY, embed, inputs=embed), out_sharding=("vocabulary", "embed"))

        @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: "layers"})
        def blocks(key: jax.Array) -> Block:
            return Block(embed, heads, hidden, experts, key)

        self.blocks = blocks(jax.random.split(rest, layers))
        self.scale = nnx.Param(jnp.ones(embed), out_sharding=("embed",))
        self.compute = compute

    def __call__(self, characters: jax.Array) -> jax.Array:
        """`f32[batch, sequence, vocabulary]` from `i32[batch, sequence]`."""
        definition, params = nnx.split(self)
        here = nnx.merge(definition, jax.tree.map(lambda leaf: leaf.astype(self.compute), params))

        @nnx.scan(in_axes=(nnx.Carry, 0), out_axes=nnx.Carry, transform_metadata={nnx.PARTITION_NAME: "layers"})
        @nnx.remat
        def layers(x: jax.Array, block: Block) -> jax.Array:
            return block(x)

        x = split(here.embedding[...][characters] * math.sqrt(here.scale.size), "batch", "sequence", None)
        x = layers(x, here.blocks)
        logits = jnp.einsum("bse,ve->bsv", normalised(x, here.scale[...]), here.embedding[...])
        return split(logits.astype(jnp.float32), "batch", "sequence", "vocabulary")


State = tuple[Decoder, nnx.Optimizer[Decoder]]


def loss_of(model: Decoder, texts: jax.Array) -> jax.Array:
    """The mean cross entropy of each next character, from `i32[batch, sequence + 1]`."""
    losses = optax.softmax_cross_entropy_with_integer_labels(model(texts[:, :-1]), texts[:, 1:])
    return jnp.mean(losses)


def decayed(params: Any) -> Any:
    """True for what weight decay makes smaller: all but the scales."""
    return nnx.map_state(lambda path, _: not path[-1].endswith("scale"), params)


def make_state(key: jax.Array, compute: DTypeLike = jnp.bfloat16) -> State:
    """A new model and its optimiser."""
    model = Decoder(key, compute=compute)
    tx = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(4e-3, weight_decay=0.05, mask=decayed))
    return model, nnx.Optimizer(model, tx, wrt=nnx.Param)


def step(model: Decoder, optimizer: nnx.Optimizer[Decoder], texts: jax.Array, kept: Rules) -> jax.Array:
    """Updates the model and its optimiser; gives the loss before."""
    loss, grads = nnx.value_and_grad(loss_of)(model, texts)
    with nnx.logical_axis_rules([*kept.items()]):
        grads = jax.lax.with_sharding_constraint(grads, nnx.get_partition_spec(grads))
    optimizer.update(model, grads)
    return loss


# The sharding, by the same rules.


def split(x: jax.Array, *names: str | None) -> jax.Array:
    """A value that is split by the names of its axes."""
    rules = dict(get_logical_axis_rules())
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*(rules.get(name) for name in names)))


def split_module(module: Any) -> Any:
    """A module whose variables are split as the rules of the moment say."""
    definition, params = nnx.split(module)
    return nnx.merge(definition, jax.lax.with_sharding_constraint(params, nnx.get_partition_spec(params)))


def abstract_state(key: jax.Array, compute: DTypeLike, kept: Rules) -> Any:
    """The state without arrays, with the sharding of each: the target of a restore."""
    with nnx.logical_axis_rules([*kept.items()]):
        return nnx.as_abstract(nnx.eval_shape(lambda key: make_state(key, compute), key))


def sharded_init(key: jax.Array, compute: DTypeLike, kept: Rules) -> State:
    """A new state, of which each device makes its part."""
    with nnx.logical_axis_rules([*kept.items()]):
        return nnx.jit(make_state, static_argnums=1)(key, compute)


@contextlib.contextmanager
def laid_out(layout: str) -> Generator[tuple[Mesh, Rules]]:
    """All devices as a mesh, with the rules by which the state is kept; the mesh and the rules for use are set."""
    devices = jax.device_count()
    shape = (min(2, devices), max(1, devices // 2))
    mesh, kept = jax.make_mesh(shape, BOTH, axis_types=(AxisType.Auto,) * 2), {**NAMES, **KEPT[layout]}
    used = {**NAMES, "batch": None, "sequence": None, **USED[layout]}
    with jax.set_mesh(mesh), nnx.logical_axis_rules([*used.items()]):
        yield mesh, kept


# The program


def train(layout: str, compute: DTypeLike, steps: int) -> tuple[Any, Any, list[float]]:
    """The target of a restore, the state after all steps, and the losses on the way."""
    key = jax.random.key(0)
    with laid_out(layout) as (mesh, kept):
        target, (model, optimizer) = (make(key, compute, kept) for make in (abstract_state, sharded_init))
        update = nnx.jit(lambda *args: step(*args, kept), donate_argnums=(0, 1))
        losses = [float(update(model, optimizer, everywhere(text, mesh))) for text in batches(steps)]
    return nnx.state(target), nnx.state((model, optimizer)), losses
